"""Nodes of fx graphs: copies, numbers, views, process groups among the arguments, source lines."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator

import torch

NUMBER = "symmc"
"""The key of the number of a node in ``node.meta``. Copies of a graph keep numbers, not names."""

OPERATOR = "symmc.operator"
"""The key of the number of the operator of PyTorch that a node is part of, if the graph has several nodes in place of it. The importer
computes values between these nodes as the kernel of the operator does: without rounding them to f16 or bf16."""


def number_nodes(graph: torch.fx.Graph) -> None:
    for number, node in enumerate(graph.nodes):
        node.meta[NUMBER] = number


def copy_graph(graph: torch.fx.Graph, known: dict[torch.fx.Node, torch.fx.Node]) -> torch.fx.Graph:
    """A copy of a graph; ``known`` receives the new node of each node, which has the same name."""
    copy = torch.fx.Graph()
    returned = copy.graph_copy(graph, known)
    copy.output(returned)
    for old, new in known.items():
        new.meta, new.name = dict(old.meta), old.name
    return copy


def is_view(node: torch.fx.Node) -> bool:
    """Whether a node is a view of its first operand, or one of several views of the same tensor."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def operator_names(graph: torch.fx.Graph) -> set[str]:
    """The names of the operators that a graph calls, such as ``aten.add.Tensor``, directly or by a wrapper that has one as an argument."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return {str(one) for node in calls for one in (node.target, *node.args) if isinstance(one, torch._ops.OpOverload)}


def called_operator(node: torch.fx.Node) -> torch._ops.OpOverload | None:
    """The operator that a node calls, directly or by a wrapper. A wrapper of an operator that writes has the operator as its first argument,
    and those of the operator by their names."""
    if node.op != "call_function":
        return None
    called = node.args[0] if not isinstance(node.target, torch._ops.OpOverload) and node.args else node.target
    return called if isinstance(called, torch._ops.OpOverload) else None


def process_groups_of(node: torch.fx.Node) -> list[str]:
    """The names of the process groups that a node has as arguments."""
    return [name for _, _, name in _group_arguments(node)]


def process_groups_in(graph: torch.fx.Graph) -> list[str]:
    """The names of the process groups of a graph, by their first use."""
    return list(dict.fromkeys(name for node in graph.nodes for name in process_groups_of(node)))


def rename_process_groups(graph: torch.fx.Graph, renamed: Callable[[str], str]) -> None:
    """Renames the process groups of a graph."""
    for node in graph.nodes:
        for at, argument, name in list(_group_arguments(node)):
            if at is not None:
                node.update_arg(at, renamed(name))
            else:
                node.update_kwarg(argument, renamed(name))


def _group_arguments(node: torch.fx.Node) -> Iterator[tuple[int | None, str, str]]:
    """The process groups that a node has as arguments: the place of each among positional arguments, if it is one, the name of the argument,
    and that of the group. A group may be a default of the schema."""
    called = called_operator(node)
    if called is None:
        return
    is_wrapper = called is not node.target
    for at, argument in enumerate(called._schema.arguments):
        if not is_process_group(argument):
            continue
        is_positional = not is_wrapper and at < len(node.args)
        given = node.args[at] if is_positional else node.kwargs.get(argument.name, argument.default_value)
        if isinstance(given, torch.fx.Node):
            # The process group itself, which is an input of the graph.
            given = getattr(getattr(given.meta.get("val"), "real_obj", None), "group_name", None)
        if isinstance(given, str) and given:
            yield at if is_positional else None, argument.name, given


def is_process_group(argument) -> bool:
    """Whether an argument of a schema is a process group."""
    return is_group_name(argument.name)


def is_group_name(name: str) -> bool:
    """Whether an argument of this name is a process group."""
    return name.endswith(("group_name", "process_group"))


_PYTORCH = os.path.dirname(torch.__file__) + os.sep


def source_line(node: torch.fx.Node) -> str:
    """The source line of a node in the model: the innermost line that is not PyTorch's own, if there is one."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File ")]
    lines = [line for line in lines if _PYTORCH not in line] or lines
    return f" ({lines[-1]})" if lines else ""


def is_random(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def output_of(graph: torch.fx.Graph) -> torch.fx.Node:
    """The node that returns the results of a graph."""
    return next(node for node in reversed(graph.nodes) if node.op == "output")
