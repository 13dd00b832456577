"""Builds the outputs of a graph from its inputs and from the results of its program."""

from __future__ import annotations

import operator

import torch

from symmc.torch.graphs.layouts import inverse_permutation, memory_order
from symmc.torch.graphs.nodes import NUMBER, is_view

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


class OutputBuilder:
    """Builds a function that returns the outputs of a graph, and collects the results that its program returns.

    An output that is a view in eager is a view of the same tensor with the same strides: callers may ask for the layout, and writes to
    one are seen in the other.
    """

    def __init__(
        self,
        program: torch.fx.Graph,
        placeholders: list[torch.fx.Node],
        mutated: set[torch.fx.Node],
        objects: dict[torch.fx.Node, object],
    ):
        self.program, self.placeholders, self.mutated, self.objects = program, placeholders, mutated, objects
        self.graph, self.module = torch.fx.Graph(), torch.nn.Module()
        self.inputs, self.given = self.graph.placeholder("inputs"), self.graph.placeholder("results")
        self.results: list[torch.fx.Node] = []
        self.known: dict[torch.fx.Node, torch.fx.Node] = {}

    def build(self, returned: list):
        """Returns a function of the inputs and the results, and the nodes of the program that are its results."""
        self.graph.output(tuple(self._node_for(out) if isinstance(out, torch.fx.Node) else out for out in returned))
        return torch.fx.GraphModule(self.module, self.graph).forward, self.results

    def _node_for(self, node: torch.fx.Node) -> torch.fx.Node:
        if node not in self.known:
            if node in self.placeholders:
                self.known[node] = self._item(self.inputs, self.placeholders.index(node))
            elif node in self.objects:
                name = f"object_{len(self.known)}"
                setattr(self.module, name, self.objects[node])
                self.known[node] = self.graph.get_attr(name)
            elif isinstance(node.meta.get("val"), _SYMBOLIC) or self._is_replayed(node):
                self.known[node] = self.graph.node_copy(node, self._node_for)
            else:
                self.known[node] = self._result(node)
        return self.known[node]

    def _item(self, of: torch.fx.Node, number: int) -> torch.fx.Node:
        return self.graph.call_function(operator.getitem, (of, number))

    def _is_replayed(self, node: torch.fx.Node) -> bool:
        """Whether a node is a view that is made again from its base, with the same strides as traced."""
        base = _base(node)
        if base is node or base in self.mutated:
            return False
        if base.op == "placeholder":
            return base in self.placeholders
        return memory_order(base.meta["val"]) is not None

    def _result(self, node: torch.fx.Node) -> torch.fx.Node:
        """A result of the program, with its axes in the order of its strides: the program's results are contiguous.

        Complex numbers are real ones with one more axis.
        """
        order = memory_order(node.meta["val"])
        given = self._item(self.given, len(self.results))
        if node.meta["val"].is_complex():
            given = self.graph.call_function(torch.ops.aten.view_as_complex.default, (given,))
        if order is None or order == sorted(order):
            self.results.append(node)
            return given
        stored = self.program.call_function(torch.ops.aten.permute.default, (node, order))
        stored.meta = {key: value for key, value in node.meta.items() if key in (NUMBER, "stack_trace")}
        stored.meta["val"] = node.meta["val"].permute(order)
        self.results.append(stored)
        return self.graph.call_function(torch.ops.aten.permute.default, (given, inverse_permutation(order)))


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """The base of a view, or the node itself if it is not a view."""
    while is_view(node):
        node = node.args[0]
    return node
