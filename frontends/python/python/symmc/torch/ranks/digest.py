"""Digests of values that ranks compare in every call."""

from __future__ import annotations

import functools
import hashlib
import json


def digest_of(value) -> int:
    """A digest of a value that JSON can hold, of 63 bits, the same in all processes."""
    text = json.dumps(value, sort_keys=True).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


@functools.lru_cache(maxsize=1024, typed=True)
def digest_of_sizes(*sizes: int) -> int:
    """The digest of the sizes of a call. Most calls have the sizes of an earlier one."""
    return digest_of(sizes)
