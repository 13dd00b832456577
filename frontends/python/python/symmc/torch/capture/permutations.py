"""Stores of rows that a permutation moves.

Mixtures of experts sort their choices. Results in sorted order are stored back by the permutation, and autograd adds the gradient
of ``x[order]`` to zeros, row by row, as if ``order`` named a row more than once. Both are gathers by the inverse permutation. A store by
``order // k`` adds k rows to each row of zeros: it is a sum of k gathered rows, which is rounded once. So are the gradient of
``x[order // k]``, which repeats each row k times, and the combination of the results of k experts.

This is done on the joint graph, before it is divided into a forward and a backward pass. The importer cannot do it: the backward graph
takes ``order`` as an argument, so nothing there says that it is a permutation, and its inverse has to be among the saved values. The
form in which an inverse is written here, numbers stored at a permutation, is the one that ``passes/src/canon/permutations.rs`` reads to
remove gathers that undo each other.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

_SORTS = (torch.ops.aten.sort.default, torch.ops.aten.sort.stable)
_ZEROS = tuple(
    getattr(torch.ops.aten, name).default for name in ("zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full")
)
_PUTS = (torch.ops.aten.index_put.default, torch.ops.aten._unsafe_index_put.default)
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten.reshape.default, torch.ops.aten._unsafe_view.default)
_SAME = tuple(getattr(torch.ops.aten, name).default for name in ("clone", "detach", "alias"))


def gather_stored_rows(graph: torch.fx.Graph) -> None:
    """Replaces stores at permuted rows by gathers."""
    permutations = _Permutations(graph)
    for node in list(graph.nodes):
        store = _RowStore.of(node)
        if store is not None:
            permutations.replace(store)


@dataclass
class _RowStore:
    """A node that stores rows in a copy of ``base``, or adds them, at the rows that ``indices`` names."""

    node: torch.fx.Node
    base: torch.fx.Node
    indices: torch.fx.Node
    rows: torch.fx.Node
    adds: bool

    @staticmethod
    def of(node: torch.fx.Node) -> _RowStore | None:
        aten, given = torch.ops.aten, node.args
        store = None
        if node.kwargs:
            return None
        if node.target in _PUTS and len(given[1]) == 1:
            store = _RowStore(node, given[0], given[1][0], given[2], len(given) > 3 and given[3])
        elif node.target is aten.index_copy.default and given[1] == 0:
            store = _RowStore(node, given[0], given[2], given[3], False)
        elif node.target is aten.index_add.default and given[1] == 0:
            store = _RowStore(node, given[0], given[2], given[3], True)
        elif node.target is aten.scatter_add.default and given[1] == 0:
            store = _RowStore(node, given[0], _expanded_column(given[2], given[3]), given[3], True)
        if store is None or not all(isinstance(part, torch.fx.Node) for part in (store.base, store.indices, store.rows)):
            return None
        if any(part.meta["val"].dim() == 0 for part in (store.base, store.indices, store.rows)):
            return None
        is_new = store.base.target in _ZEROS and _is_zero(store.base)
        return store if is_new or not store.adds else None


class _Permutations:
    """The permutations of a graph, with their inverses."""

    def __init__(self, graph: torch.fx.Graph):
        self.graph = graph
        self.places = {node: place for place, node in enumerate(graph.nodes)}
        self.known: set[torch.fx.Node] = set()
        self.inverses: dict[torch.fx.Node, torch.fx.Node] = {}
        # Nodes that store the inverse of a permutation.
        self.stored: set[torch.fx.Node] = set()
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
                self.stored.add(node)
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
        is_whole = all(_is_equal(extent, extents[0]) for extent in extents)
        return is_whole and result.dim() == 1 and result.dtype == torch.int64 and result.device == order.device

    def replace(self, store: _RowStore) -> None:
        node, permutation, rows, count = store.node, store.indices, store.rows, 1
        if permutation.target is torch.ops.aten.floor_divide.default and isinstance(permutation.args[1], int) and store.adds:
            permutation, count = permutation.args
        if permutation not in self.known or node in self.stored:
            return
        extents = _extent(store.base), _extent(permutation), _extent(rows)
        if count < 1 or not _is_equal(extents[0] * count, extents[1]) or not _is_equal(extents[1], extents[2]):
            return
        of_rows, of_base = rows.meta["val"], store.base.meta["val"]
        if not _are_equal(of_rows.shape[1:], of_base.shape[1:]) or of_rows.dtype != of_base.dtype:
            return
        if count > 1 and not all(isinstance(extent, int) and extent > 0 for extent in of_rows.shape[1:]):
            return
        inverse = self._inverse(permutation, node)
        with self.graph.inserting_before(node):
            result = self._add(torch.ops.aten.index.Tensor, (rows, [inverse]), node)
            if count > 1:
                result = self._add(torch.ops.aten.view.default, (result, [-1, count, *of_rows.shape[1:]]), node)
                result = self._add(torch.ops.aten.sum.dim_IntList, (result, [1]), node, dtype=of_rows.dtype)
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
                count = value.shape[0]
                if not isinstance(count, int):
                    count = self._add(torch.ops.aten.sym_size.int, (permutation, 0), permutation)
                numbers = self._add(torch.ops.aten.arange.default, (count,), permutation, device=value.device)
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


def _expanded_column(indices, rows):
    """The rows that indices of elements name, if each row has one index."""
    if not (isinstance(indices, torch.fx.Node) and isinstance(rows, torch.fx.Node) and indices.target is torch.ops.aten.expand.default):
        return None
    column, shape = indices.args[0], rows.meta["val"].shape
    is_column = _are_equal(column.meta["val"].shape, [shape[0], *(1 for _ in shape[1:])])
    if not is_column or not _are_equal(indices.meta["val"].shape, shape):
        return None
    while column.target in (*_VIEWS, torch.ops.aten.unsqueeze.default) and column.meta["val"].dim() > 1:
        column = column.args[0]
    return column if column.meta["val"].dim() == 1 else None


def _extent(node):
    return node.meta["val"].shape[0]


def _is_equal(one, other) -> bool:
    """Whether two extents are known to be equal. Comparing sizes that depend on data directly would be an assumption about them."""
    return statically_known_true(one == other)


def _are_equal(one, other) -> bool:
    return len(one) == len(other) and all(_is_equal(a, b) for a, b in zip(one, other))
