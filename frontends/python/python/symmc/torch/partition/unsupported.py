"""Finds nodes that symmc leaves to the fallback, and warns about them."""

from __future__ import annotations

import warnings

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

import symmc
from symmc.torch.graphs.nodes import NUMBER, called_operator, is_process_group, source_line
from symmc.torch.runtime.runner import DTYPES
from symmc.torch.settings.options import Options

_warned: set[tuple[str, str]] = set()
"""The operators that a warning has named, with their lines."""


def collective_numbers(graph: torch.fx.Graph) -> list[int]:
    """The numbers of collectives and of the nodes that wait for them."""

    def is_one(node: torch.fx.Node) -> bool:
        called = called_operator(node)
        return called is not None and (
            called.namespace.startswith("_c10d_functional") or any(map(is_process_group, called._schema.arguments))
        )

    return [node.meta[NUMBER] for node in graph.nodes if is_one(node)]


def unsupported_nodes(graph: torch.fx.Graph, error: symmc.Error) -> dict[int, str]:
    """The numbers of unsupported nodes, with the reasons: elements of an unsupported type, or sizes that depend on data."""

    def is_odd(node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype not in (*DTYPES.values(), torch.complex64, torch.complex128)

    calls = [node for node in graph.nodes if node.op == "call_function"]
    found = {node.meta[NUMBER]: str(error) for node in calls if is_odd(node) or any(map(is_odd, node.all_input_nodes))}
    for node in calls:
        symbols = _data_symbols(node)
        if symbols:
            names = ", ".join(sorted(map(str, symbols)))
            found[node.meta[NUMBER]] = f"a size depends on data ({names}), and the graph cannot be planned: {error}"
    return found


def _data_symbols(node: torch.fx.Node) -> set:
    """The symbols of sizes that depend on data, in the operands and results of a node."""
    values = pytree.tree_leaves([node.meta.get("val"), *[given.meta.get("val") for given in node.all_input_nodes]])
    return set().union(*map(free_unbacked_symbols, values)) if values else set()


def data_size_error(graph: torch.fx.Graph, error: symmc.Error) -> symmc.Error | None:
    """The error of a graph in which sizes depend on data, with the first operator and its line."""
    odd = unsupported_nodes(graph, error)
    for node in graph.nodes:
        if node.op == "call_function" and _data_symbols(node):
            why = f"{odd[node.meta[NUMBER]]}; other remedies are to pass the size as an argument of the compiled function, or to set `fallback`"
            named = symmc.UnsupportedError(f"{node.target}{source_line(node)}: {why}")
            named.node = node.name
            return named
    return None


def warn_about_fallback(calls: list[torch.fx.Node], refused: dict[int, str], options: Options) -> None:
    """Names each operator that symmc does not run, with its line, once."""
    new = []
    for node in calls:
        if node.meta[NUMBER] in refused:
            named = (str(node.target), source_line(node))
            if named not in _warned:
                _warned.add(named)
                new.append(f"{named[0]}{named[1]}: {refused[node.meta[NUMBER]]}")
    if new:
        text = "\n  ".join(new)
        warnings.warn(f"symmc leaves {len(new)} operator(s) to {options.fallback}:\n  {text}", stacklevel=2)
