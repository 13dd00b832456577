"""Gradients of rows that a permutation moves.

Autograd adds the gradient of ``x[order]`` to zeros, row by row, as if ``order`` named a row more than once. Mixtures of experts sort their
choices, so ``order`` is a permutation, and the gradient is a gather by its inverse. ``x[order // k]``, which repeats each row k times in
another order, has the sum of k gathered rows as its gradient. Sums are rounded once.
"""

from __future__ import annotations

import operator

import torch

_SORTS = (torch.ops.aten.sort.default, torch.ops.aten.sort.stable)
_ZEROS = tuple(
    getattr(torch.ops.aten, name).default for name in ("zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full")
)
_PUTS = (torch.ops.aten.index_put.default, torch.ops.aten._unsafe_index_put.default)
_SAME = tuple(getattr(torch.ops.aten, name).default for name in ("clone", "detach", "alias"))


def gather_gradients(graph: torch.fx.Graph) -> None:
    """Replaces sums at permuted rows by gathers."""
    permutations = _Permutations(graph)
    for node in list(graph.nodes):
        if node.target in _PUTS and len(node.args) > 3 and node.args[3]:
            permutations.replace(node)


class _Permutations:
    """The permutations of a graph, with their inverses."""

    def __init__(self, graph: torch.fx.Graph):
        self.graph = graph
        self.places = {node: place for place, node in enumerate(graph.nodes)}
        self.known: set[torch.fx.Node] = set()
        self.inverses: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in graph.nodes:
            if _is_order_of_sort(node):
                self.known.add(node)
                sorted_values = node.args[0].args[0]
                if sorted_values in self.known and _is_ascending(node.args[0]):
                    self._pair(sorted_values, node)
            elif node.target in _SAME and node.args[0] in self.known:
                self.known.add(node)
                if node.args[0] in self.inverses:
                    self._pair(self.inverses[node.args[0]], node)
            elif node.target in _PUTS and len(node.args) == 3 and self._inverts(node):
                self.known.add(node)
                self._pair(node.args[1][0], node)

    def _pair(self, one: torch.fx.Node, other: torch.fx.Node) -> None:
        self.inverses.setdefault(one, other)
        self.inverses.setdefault(other, one)

    def _inverts(self, node: torch.fx.Node) -> bool:
        """Whether a node writes the numbers from 0 on to the places that a permutation names."""
        base, indices, numbers = node.args
        if len(indices) != 1 or indices[0] not in self.known or not _is_range(numbers):
            return False
        order, result = indices[0].meta["val"], node.meta["val"]
        extents = [_extent(base), _extent(indices[0]), _extent(numbers)]
        is_whole = all(isinstance(extent, int) and extent == extents[0] for extent in extents)
        return is_whole and result.dim() == 1 and result.dtype == torch.int64 and result.device == order.device

    def replace(self, node: torch.fx.Node) -> None:
        base, indices, rows = node.args[:3]
        if len(indices) != 1 or not isinstance(indices[0], torch.fx.Node) or base.target not in _ZEROS or not _is_zero(base):
            return
        permutation, count = indices[0], 1
        if permutation.target is torch.ops.aten.floor_divide.default and isinstance(permutation.args[1], int):
            permutation, count = permutation.args
        extents = _extent(base), _extent(permutation), _extent(rows)
        if permutation not in self.known or not all(isinstance(extent, int) for extent in extents):
            return
        if count < 1 or extents[0] * count != extents[1] or extents[1] != extents[2]:
            return
        of_rows, of_base = rows.meta["val"], base.meta["val"]
        if of_rows.shape[1:] != of_base.shape[1:] or of_rows.dtype != of_base.dtype:
            return
        inverse = self._inverse(permutation, node)
        with self.graph.inserting_before(node):
            result = self._add(torch.ops.aten.index.Tensor, (rows, [inverse]), node)
            if count > 1:
                shape = [extents[0], count, *of_rows.shape[1:]]
                result = self._add(torch.ops.aten.view.default, (result, shape), node)
                result = self._add(torch.ops.aten.sum.dim_IntList, (result, [1]), node)
        node.replace_all_uses_with(result)
        self.graph.erase_node(node)

    def _is_inverse_before(self, permutation: torch.fx.Node, node: torch.fx.Node) -> bool:
        """Whether an inverse is known that is computed before a node."""
        inverse = self.inverses.get(permutation)
        # Inverses that this pass adds follow their permutation at once.
        return inverse is not None and self.places.get(inverse, self.places[permutation]) < self.places[node]

    def _inverse(self, permutation: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
        """The inverse of a permutation, computed before a node that reads the permutation."""
        if not self._is_inverse_before(permutation, node):
            value = permutation.meta["val"]
            with self.graph.inserting_before(permutation.next):
                numbers = self._add(torch.ops.aten.arange.default, (value.shape[0],), permutation, device=value.device)
                empty = self._add(torch.ops.aten.empty_like.default, (permutation,), permutation)
                put = self._add(torch.ops.aten.index_put.default, (empty, [permutation], numbers), permutation)
            self.inverses[permutation] = put
        return self.inverses[permutation]

    def _add(self, target, args, like: torch.fx.Node, **kwargs) -> torch.fx.Node:
        """Adds a node with its value, and with the other metadata of a node like it."""
        node = self.graph.call_function(target, args, kwargs)
        node.meta = {key: value for key, value in like.meta.items() if key not in ("val", "tensor_meta")}
        values = lambda given: torch.fx.node.map_arg(given, lambda n: n.meta["val"])  # noqa: E731
        with like.meta["val"].fake_mode:
            node.meta["val"] = target(*values(args), **kwargs)
        return node


def _is_order_of_sort(node: torch.fx.Node) -> bool:
    """Whether a node is the order in which a sort takes the elements of one axis."""
    is_order = node.target is operator.getitem and node.args[1] == 1 and node.args[0].target in _SORTS
    return is_order and node.meta["val"].dim() == 1


def _is_ascending(sort: torch.fx.Node) -> bool:
    """Whether a sort begins with the least element."""
    names = [argument.name for argument in sort.target._schema.arguments]
    at = names.index("descending")
    return not (sort.args[at] if at < len(sort.args) else sort.kwargs.get("descending", False))


def _is_range(node) -> bool:
    if not isinstance(node, torch.fx.Node):
        return False
    if node.target is torch.ops.aten.arange.default:
        return True
    has_start = node.target in (torch.ops.aten.arange.start, torch.ops.aten.arange.start_step)
    return has_start and node.args[0] == 0 and node.args[2:] in ((), (1,))


def _is_zero(node: torch.fx.Node) -> bool:
    """Whether a tensor that a node makes is 0, which the names of others say."""
    if "full" not in node.target._schema.name:
        return True
    return (node.args[-1] if node.args else None) == 0


def _extent(node):
    return node.meta["val"].shape[0]
