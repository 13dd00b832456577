"""Facts of a graph about its sizes: sizes that are multiples of a number, and sizes that must be numbers.

Code that divides rows among ranks or into pieces asks whether the division has a remainder. The answer is a guard, so it holds in every
call of the graph. Guards and sizes are passed as text: all reasoning about them is in Rust (``frontends/common/src/sizes``).
"""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from symmc import _symmc

_DIVIDED = ("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "all_to_all_single")
"""Collectives that divide the leading axis of their operand among the ranks."""


def find_size_steps(graph: torch.fx.Graph, environment) -> list[_symmc.SizeStep]:
    """The sizes of a graph that are multiples of a step, by PyTorch's shape environment."""
    if environment is None:
        return []
    guards = [str(guard.expr) for guard in environment.guards]
    guards += [guard for node in graph.nodes for guard in _divisions_in_collective(node)]
    free = {str(symbol) for node in graph.nodes if node.op == "placeholder" for symbol in _symbols(node)}
    return _symmc.find_size_steps(guards, sorted(free))


def _symbols(node: torch.fx.Node) -> set:
    """The symbols in the extents of a node's value, or in the value if it is a size."""
    value = node.meta.get("val")
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return set().union(*(size.node.expr.free_symbols for size in sizes if isinstance(size, torch.SymInt)))


def find_fixed_sizes(graph: torch.fx.Graph) -> list[str]:
    """The sizes that have to be numbers in a program: those of heads, by which attention scales scores, and the extents of saved rows,
    which the plan of another graph has chosen."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("val")
            found |= dict.fromkeys(sorted(map(str, free_unbacked_symbols(value)))) if isinstance(value, torch.Tensor) else {}
    for node in graph.nodes:
        is_attention = isinstance(node.target, torch._ops.OpOverload) and "scaled_dot_product" in node.target._schema.name
        query = node.args[0].meta.get("val") if is_attention and node.args else None
        size = query.shape[-1] if isinstance(query, torch.Tensor) else None
        if isinstance(size, torch.SymInt):
            found |= dict.fromkeys(sorted(map(str, size.node.expr.free_symbols)))
    return list(found)


def _divisions_in_collective(node: torch.fx.Node) -> list[str]:
    """The guards that the leading extents of the operands of dividing collectives are multiples of the number of ranks."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target.namespace.startswith("_c10d_functional"):
        return []
    name = target._schema.name.split("::")[1]
    if name not in _DIVIDED:
        return []
    given = dict(zip((argument.name for argument in target._schema.arguments), node.args)) | node.kwargs
    pieces = [one for name in ("output_split_sizes", "input_split_sizes") for one in given.get(name) or ()]
    if len(set(map(_told, pieces))) > 1:
        return []
    ranks = given.get("group_size") or len(given.get("output_split_sizes") or ()) or 1
    values = [one.meta.get("val") for one in node.all_input_nodes]
    leading = [value.shape[0] for value in values if isinstance(value, torch.Tensor) and value.dim()]
    return [f"Eq(Mod({size.node.expr}, {ranks}), 0)" for size in leading if isinstance(size, torch.SymInt)]


def _told(size) -> str:
    """The symbolic or numeric value of a size, which may be a node."""
    return str(size.meta.get("val") if isinstance(size, torch.fx.Node) else size)
