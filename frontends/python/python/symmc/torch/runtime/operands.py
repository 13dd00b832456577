"""Checks of the arguments of a call before it runs.

A graph takes its inputs as independent values. If two of them share memory, and the graph changes one in place, results would be wrong.
Graphs that were traced with such arguments know it, and have one input for both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch

from symmc import InputError
from symmc._symmc import OverlapFinder

ARGUMENT = "symmc_argument"
"""The key of the name that an input has in the code of the user, in ``node.meta``."""

_MOST_DRAWN = 1 << 24
"""The most bytes that are compared one by one."""

Axes = tuple[tuple[int, int], ...]
"""The extent and the stride of each axis in bytes, in descending order of strides. The last axis has the bytes of an element."""


class OperandCheck:
    """The arguments of a graph, and which of them it changes in place."""

    def __init__(self, graph: torch.fx.Graph):
        places = [node for node in graph.nodes if node.op == "placeholder"]
        copies = [node for node in graph.nodes if node.target is torch.ops.aten.copy_.default]
        changed = {node.args[0] for node in copies}
        self.names = [node.meta.get(ARGUMENT, node.name) for node in places]
        tensors = [at for at, node in enumerate(places) if isinstance(node.meta.get("val"), torch.Tensor)]
        numbers = [at for at in tensors if places[at] in changed]
        self._finder = OverlapFinder(tensors, numbers) if numbers else None

    def find_overlap(self, inputs: list) -> tuple[int, int] | None:
        """Two arguments that share memory, by their numbers. The call changes the first one in place."""
        if self._finder is None:
            return None
        return next((pair for pair in self._finder.find(inputs) if share_elements(*(inputs[at] for at in pair))), None)

    def overlap_error(self, pair: tuple[int, int], rank: int | None = None) -> InputError:
        changed, other = (self.names[at] if at < len(self.names) else f"number {at}" for at in pair)
        of_rank = "" if rank is None else f"rank {rank}: "
        text = f"{of_rank}the arguments {changed} and {other} share memory, and the function changes {changed} in place"
        error = InputError(f"{text}: pass a copy of one of them, for example {other}.clone()")
        error.culprit = error.rank = rank
        return error


    def explain(self, error: BaseException, inputs: list) -> BaseException:
        """The error of a call with these inputs, which names an argument without memory if there is one."""
        freed = find_without_memory(inputs) if isinstance(error, (InputError, RuntimeError)) else None
        return error if freed is None else without_memory_error(f"the argument {self.names[freed]}")


def find_without_memory(tensors: Iterable) -> int | None:
    """The number of the first tensor that has elements and no memory."""
    strided = ((at, one) for at, one in enumerate(tensors) if isinstance(one, torch.Tensor) and one.layout is torch.strided)
    return next((at for at, one in strided if one.numel() > 0 and (one.is_meta or one.untyped_storage().nbytes() == 0)), None)


def without_memory_error(name: str) -> InputError:
    return InputError(f"{name} has no memory, because its storage was freed or it is on the device meta: pass a tensor with data")


class CheckedFunction:
    """A function of the list of the inputs of a graph that checks them first."""

    def __init__(self, function, operands: OperandCheck):
        self._boxed_call = True
        self.function, self.operands = function, operands

    def __call__(self, inputs: list):
        pair = self.operands.find_overlap(inputs)
        if pair is not None:
            raise self.operands.overlap_error(pair)
        return self.function(inputs)


def checked(function, graph: torch.fx.Graph):
    """A function that refuses arguments that share memory, if the graph changes arguments in place."""
    operands = OperandCheck(graph)
    return function if operands._finder is None else CheckedFunction(function, operands)


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have a byte in common."""
    if one.device != other.device:
        return False
    return _intersect(_axes(one), _axes(other), other.data_ptr() - one.data_ptr())


def _axes(tensor: torch.Tensor) -> Axes:
    width = tensor.element_size()
    axes = [(extent, stride * width) for extent, stride in zip(tensor.shape, tensor.stride()) if extent > 1 and stride > 0]
    return (*sorted(axes, key=lambda axis: -axis[1]), (width, 1))


@functools.lru_cache(maxsize=1024)
def _intersect(one: Axes, other: Axes, distance: int) -> bool:
    """Whether two sets of bytes intersect, the second of which begins this many bytes after the first."""
    if distance >= _span(one) or -distance >= _span(other):
        return False
    if len(one) == len(other) == 1:
        return True
    # Both are rows in steps of the larger stride; the set with the smaller one is a single row.
    step = max(one[0][1], other[0][1])
    (rows, one_row), (other_rows, other_row) = (_rows(axes, step) for axes in (one, other))
    if max(_span(one_row), _span(other_row)) > step:
        return _intersect_as_drawn(one, other, distance)
    # Rows meet only if they are at most one step apart.
    first = distance // step
    shifts = range(max(first, -(other_rows - 1)), min(first + 1, rows - 1) + 1)
    return any(_intersect(one_row, other_row, distance - shift * step) for shift in shifts)


def _intersect_as_drawn(one: Axes, other: Axes, distance: int) -> bool:
    """As ``_intersect``, for sets that are not rows in steps of one stride. Large ones count as intersecting."""
    before = max(-distance, 0)
    size = before + max(_span(one), distance + _span(other))
    if size > _MOST_DRAWN:
        return True
    drawn = torch.zeros(size, dtype=torch.bool)
    drawn.as_strided(*zip(*one), before).fill_(True)
    return bool(drawn.as_strided(*zip(*other), before + distance).any())


def _rows(axes: Axes, step: int) -> tuple[int, Axes]:
    """The number of rows in these steps, and one row."""
    return (axes[0][0], axes[1:]) if axes[0][1] == step and len(axes) > 1 else (1, axes)


def _span(axes: Axes) -> int:
    """The number of bytes from the first to the last."""
    return 1 + sum((extent - 1) * stride for extent, stride in axes)
