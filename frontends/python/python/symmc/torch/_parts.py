"""Parts of tensors that ranks take by their numbers.

A rank takes its shard of what all of them have as one of the parts of a division: another part on each, so another value of the
graph. As a slice by numbers, or an index, it is the same operator on all ranks, and their graphs are one program.
"""

from __future__ import annotations

import itertools
import operator

import torch

_DIVISIONS = (torch.ops.aten.split.Tensor, torch.ops.aten.split_with_sizes.default)


def take_parts(graph: torch.fx.Graph) -> None:
    """Writes divisions of which one part is used as that part."""
    for node in [node for node in graph.nodes if node.op == "call_function" and node.target in _DIVISIONS]:
        chosen = {user.args[1] if user.target is operator.getitem else None for user in node.users}
        parts = node.meta.get("val")
        if len(chosen) == 1 and None not in chosen and isinstance(parts, (tuple, list)) and len(parts) > 1:
            _take(graph, node, parts, chosen.pop())


def _take(graph: torch.fx.Graph, node: torch.fx.Node, parts, number: int) -> None:
    given, axis = node.args[0], node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    sizes = [part.shape[axis] for part in parts]
    users = list(node.users)
    with graph.inserting_before(node):
        if all(isinstance(size, int) for size in sizes):
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
    """One of equal parts of sizes that vary, as an index of an axis of their own."""
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
    """A size as a node, which stands for a part of another."""
    node = graph.call_function(target, arguments)
    node.meta = of.meta | {"val": size}
    return node
