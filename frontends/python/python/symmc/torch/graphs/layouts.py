"""The order in which the axes of traced tensors lie in memory."""

from __future__ import annotations

import torch


def inverse_permutation(order: list[int]) -> list[int]:
    """The inverse of a permutation."""
    return [order.index(axis) for axis in range(len(order))]


def memory_order(value) -> list[int] | None:
    """The axes from the outermost in memory to the innermost; None if the elements are not contiguous in any order."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    sizes, strides = _hints(value.shape), _hints(value.stride())
    if None in sizes or None in strides:
        return None
    order = sorted(range(len(sizes)), key=lambda axis: -strides[axis])
    expected = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    return order


def _hints(sizes) -> list[int | None]:
    return [size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes]
