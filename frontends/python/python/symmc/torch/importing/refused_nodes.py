"""Finds the nodes of a graph that an import rejected or left opaque."""

from __future__ import annotations

import operator

import torch

import symmc


def find_unknown_nodes(program: symmc.Program, graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes whose operators are opaque in a program."""
    unknown = program.opaque
    nodes = [node for node in _calls(graph) if node.target is not operator.getitem]
    # A node with several results has the name of one of them.
    named = [node for node in nodes if node.name in unknown or any(user.name in unknown for user in _parts(node))]
    found = {_name(node.target) for node in named}
    return named + [node for node in nodes if _name(node.target) in set(unknown.values()) - found]


def find_refused_node(error: symmc.Error, graph: torch.fx.Graph) -> torch.fx.Node | None:
    """The node because of which a graph is refused, if the error names one."""
    if error.kind not in ("input", "unsupported"):
        return None
    calls, name = {node.name: node for node in _calls(graph)}, error.node or ""
    node = calls.get(name) or calls.get(name.split(".")[0])
    # A node with several results has the name of the first one.
    return node.args[0] if node is not None and node.target is operator.getitem else node


def _calls(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def _name(target) -> str:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return str(target)


def _parts(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that select one of several results."""
    return [user for user in node.users if user.target is operator.getitem]
