"""Supported versions of PyTorch."""

from __future__ import annotations

import re

import torch

from symmc import UnsupportedError

OLDEST = (2, 8)


def _parsed(text: str) -> tuple[int, int]:
    """The first two numbers of a version such as ``2.15.0+cpu``."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else OLDEST


def refuse_old(text: str) -> None:
    """Refuses a version that is too old."""
    if _parsed(text) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedError(f"symmc.torch: expected PyTorch {oldest} or later, found {text}")


VERSION = _parsed(torch.__version__)
refuse_old(torch.__version__)
