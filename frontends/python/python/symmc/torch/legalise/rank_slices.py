"""Slices that depend on the rank, in one canonical form.

A rank takes its shard of a tensor as one output of a split, which is another value of the graph on each rank, or as a slice that begins
at a multiple of its length. Rewritten as a slice by numbers or as an index, it is the same operator on all ranks, and their graphs are
one program.
"""

from __future__ import annotations

import itertools
import operator

import torch

from symmc._symmc import size_ratio

_DIVISIONS = (torch.ops.aten.split.Tensor, torch.ops.aten.split_with_sizes.default, torch.ops.aten.unbind.int)


def take_rank_slices(graph: torch.fx.Graph) -> None:
    """Rewrites splits with one used output, and slices at a multiple of their length."""
    for node in [node for node in graph.nodes if node.op == "call_function" and node.target in _DIVISIONS]:
        chosen = {user.args[1] if user.target is operator.getitem else None for user in node.users}
        parts = node.meta.get("val")
        number = chosen.pop() if len(chosen) == 1 else None
        if number is not None and isinstance(parts, (tuple, list)) and len(parts) > 1:
            _take(graph, node, parts, number)
    for node in [node for node in graph.nodes if node.op == "call_function" and node.target is torch.ops.aten.slice.Tensor]:
        _take_slice(graph, node)


def _take_slice(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Writes a slice of a symbolic extent as an index, if it is one of equal parts."""
    given, axis, start, _, step = (*node.args, *(None, 0, None, None, 1)[len(node.args) :])
    value, whole = node.meta.get("val"), given.meta.get("val")
    if step != 1 or not isinstance(value, torch.Tensor) or not isinstance(whole, torch.Tensor):
        return
    axis %= whole.dim()
    length, extent = value.shape[axis], whole.shape[axis]
    hints = _hint(length), _hint(extent)
    if not isinstance(length, torch.SymInt) or None in hints or hints[0] == 0:
        return
    count, number = hints[1] // hints[0], size_ratio(_as_text(start), _as_text(length))
    # Parts of this length cover the extent, except for a rest that is shorter than a part.
    is_equal_part = size_ratio(f"({_as_text(extent)})//{count}", _as_text(length)) == 1
    if number is None or not 0 <= number < count or count < 2 or not is_equal_part:
        return
    with graph.inserting_before(node):
        total = _sized(graph, node, torch.ops.aten.sym_size.int, (given, axis), extent)
        total = _sized(graph, node, operator.floordiv, (total, count), length)
        total = _sized(graph, node, operator.mul, (total, count), length * count)
        cut = graph.call_function(torch.ops.aten.slice.Tensor, (given, axis, 0, total))
        cut.meta = given.meta | {"val": torch.ops.aten.slice.Tensor(whole, axis, 0, length * count)}
        parts = [torch.ops.aten.slice.Tensor(whole, axis, length * at, length * (at + 1)) for at in range(count)]
        part = _indexed(graph, node, cut, axis, parts, number)
    part.meta = dict(node.meta)
    node.replace_all_uses_with(part)
    graph.erase_node(node)
    # The nodes that computed its bounds differ between ranks.
    graph.eliminate_dead_code()


def _hint(size) -> int | None:
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _as_text(size) -> str:
    """A size, a number or a node of one as an expression."""
    value = size.meta.get("val") if isinstance(size, torch.fx.Node) else size
    return str(value.node.expr if isinstance(value, torch.SymInt) else value or 0)


def _take(graph: torch.fx.Graph, node: torch.fx.Node, parts, number: int) -> None:
    is_unbound = node.target is torch.ops.aten.unbind.int
    given, at = node.args[0], 1 if is_unbound else 2
    axis = node.args[at] if len(node.args) > at else node.kwargs.get("dim", 0)
    sizes = [] if is_unbound else [part.shape[axis] for part in parts]
    users = list(node.users)
    with graph.inserting_before(node):
        if is_unbound:
            part = graph.call_function(torch.ops.aten.select.int, (given, axis, number))
        elif all(isinstance(size, int) for size in sizes):
            ends = list(itertools.accumulate(sizes, initial=0))
            arguments = (given, axis, ends[number], ends[number + 1])
            part = graph.call_function(torch.ops.aten.slice.Tensor, arguments)
        elif len({str(size) for size in sizes}) == 1:
            part = _indexed(graph, node, given, axis % parts[0].dim(), parts, number)
        else:
            return
    for user in users:
        part.meta = part.meta | user.meta
        user.replace_all_uses_with(part)
        graph.erase_node(user)
    graph.erase_node(node)


def _indexed(graph: torch.fx.Graph, node: torch.fx.Node, given: torch.fx.Node, axis: int, parts, number: int) -> torch.fx.Node:
    """One of equal parts of symbolic sizes, as an index of a separate axis."""
    extents = []
    for at, size in enumerate(given.meta["val"].shape):
        if isinstance(size, torch.SymInt):
            extents.append(_sized(graph, node, torch.ops.aten.sym_size.int, (given, at), size))
        else:
            extents.append(size)
        if at == axis:
            length = _sized(graph, node, operator.floordiv, (extents[-1], len(parts)), parts[0].shape[axis])
            extents[-1:] = [len(parts), length]
    apart = graph.call_function(torch.ops.aten.reshape.default, (given, extents))
    apart.meta = node.meta | {"val": torch.stack(list(parts), axis)}
    return graph.call_function(torch.ops.aten.select.int, (apart, axis, number))


def _sized(graph: torch.fx.Graph, of: torch.fx.Node, target, arguments: tuple, size: torch.SymInt) -> torch.fx.Node:
    """A size as a node, which represents a part of another size."""
    node = graph.call_function(target, arguments)
    node.meta = of.meta | {"val": size}
    return node
