"""Digests of values that ranks compare in every call."""

from __future__ import annotations

import hashlib
import json


def digest_of(value) -> int:
    """A digest of a value that JSON can hold, of 63 bits, the same in all processes."""
    text = json.dumps(value, sort_keys=True).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1
