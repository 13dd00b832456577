"""Sorts the nodes of a graph by what they compute, independently of the order of the calls in the model.

Ranks may call independent collectives in different orders. Sorted, their graphs are the same program.
"""

from __future__ import annotations

import torch

from symmc.torch.graphs.nodes import is_random, output_of


def sort_canonically(module: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """The graph with its nodes as a walk from its outputs finds them, and with names that follow this order.

    ``None`` where the order means more than what is computed from what: random numbers, and changes that are read again.
    """
    nodes = list(module.graph.nodes)
    end = nodes[-1]
    changes = [node for node in nodes if node.target is torch.ops.aten.copy_.default]
    calls = [node for node in nodes if node.op not in ("placeholder", "get_attr", "output")]
    if any(not user.op == "output" for change in changes for user in change.users) or any(map(is_random, calls)):
        return None
    places = {node: number for number, node in enumerate(nodes)}
    # An input is changed after all its readers.
    roots = [node for node in end.all_input_nodes if node not in changes]
    roots += sorted(changes, key=lambda change: places[change.args[0]])
    order = _walked(roots)
    if set(order) != set(calls):
        # A node that no output needs has an effect, such as an assertion.
        return None
    graph, known = torch.fx.Graph(), {}
    for node in [node for node in nodes if node.op in ("placeholder", "get_attr")]:
        known[node] = graph.node_copy(node, known.__getitem__)
    for node in order:
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
        known[node] = graph.create_node(node.op, node.target, *arguments)
    graph.output(torch.fx.node.map_arg(end.args[0], known.__getitem__))
    for old, new in known.items():
        new.meta = dict(old.meta)
    last = output_of(graph)
    last.meta = dict(end.meta)
    return torch.fx.GraphModule(module, graph)


def _walked(roots: list[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes that some nodes depend on, operands first."""
    found: dict[torch.fx.Node, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, is_ready = stack.pop()
        if node in found or node.op in ("placeholder", "get_attr"):
            continue
        if is_ready:
            found[node] = None
            continue
        stack.append((node, True))
        stack += [(given, False) for given in reversed(node.all_input_nodes)]
    return list(found)
