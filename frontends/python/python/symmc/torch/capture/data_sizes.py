"""Values of the forward pass for the backward pass, whose sizes depend on data.

PyTorch passes such tensors as they are, and their sizes as integers, for which the host would wait. A plan has fixed extents: it returns
all rows that such a tensor can have, of which the first ones count. So the backward pass takes the tensors from which sizes are read, and
tensors with all their rows, and cuts the first rows from them.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from symmc.torch.graphs.nodes import output_of

_library = torch.library.Library("symmc", "FRAGMENT")
_library.define("whole_rows(Tensor x) -> Tensor")
_library.impl("whole_rows", lambda x: x.clone(), "CompositeExplicitAutograd")

_READ = torch.ops.aten._local_scalar_dense.default
_ASSERT = torch.ops.aten._assert_scalar.default

_RELATIONS = {sympy.Eq: operator.eq, sympy.Le: operator.le, sympy.Lt: operator.lt, sympy.Ge: operator.ge, sympy.Gt: operator.gt}


@dataclass
class SavedValue:
    """A value that the forward pass returns for the backward pass, and the input of the backward pass."""

    returned: torch.fx.Node
    taken: torch.fx.Node

    @property
    def value(self):
        return self.returned.meta.get("val")


def save_data_sizes(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, results: int) -> None:
    """Changes both graphs, of which the forward pass has this many results besides the values that it saves. Graphs in which a size is
    read from no tensor stay as they are."""
    returned = list(output_of(forward.graph).args[0])
    numbers = [node for node in returned[results:] if _is_size(node)]
    tensors = [node for node in returned[results:] if not _is_size(node)]
    inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
    taken = zip([*numbers, *tensors], inputs)
    saved = [SavedValue(node, placeholder) for node, placeholder in taken if isinstance(node, torch.fx.Node)]
    data_dependent = [one for one in saved if _data_symbols(one.value)]
    readers = _readers(forward.graph)
    needed = sorted({symbol for one in data_dependent for symbol in _data_symbols(one.value)}, key=str)
    if not data_dependent or not all(symbol in readers for symbol in needed):
        return
    if not all(_is_supported(one.value, set(needed)) for one in data_dependent):
        return
    first = inputs[len(numbers)] if len(inputs) > len(numbers) else None
    device = next((one.value.device for one in data_dependent if isinstance(one.value, torch.Tensor)), None)
    sources = [_on_device(forward.graph, readers[symbol].args[0], device) for symbol in needed]
    sizes = _Sizes(backward.graph, [readers[symbol] for symbol in needed], sources, first)
    _repeat_assertions(forward.graph, sizes)
    returned[results:results] = sizes.sources
    for one in data_dependent:
        if _is_size(one.returned):
            del returned[len(returned) - 1 - returned[::-1].index(one.returned)]
            one.taken.replace_all_uses_with(sizes.node_of(one.value.node.expr))
            backward.graph.erase_node(one.taken)
        else:
            at = returned.index(one.returned, results)
            returned[at] = _all_rows(forward.graph, one.returned)
            _cut_rows(backward.graph, one.taken, sizes)
    output_of(forward.graph).args = (tuple(returned),)
    for module in (forward, backward):
        module.graph.eliminate_dead_code()
        module.graph.lint()
        module.recompile()


def _is_size(node) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))


def _data_symbols(value) -> set:
    return free_unbacked_symbols(value) if isinstance(value, (torch.Tensor, torch.SymInt)) else set()


def _readers(graph: torch.fx.Graph) -> dict[sympy.Symbol, torch.fx.Node]:
    """The node that reads each size from a tensor."""
    found: dict[sympy.Symbol, torch.fx.Node] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.target is _READ and isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            found.setdefault(value.node.expr, node)
    return found


def _is_supported(value, symbols: set) -> bool:
    """Whether a size is computed from these symbols by sums and products, or a tensor has one axis with such an extent."""
    sizes = [value] if isinstance(value, torch.SymInt) else [size for size in value.shape if _data_symbols(size)]
    return len(sizes) == 1 and sizes[0].node.expr.free_symbols <= symbols and _is_sum_of_products(sizes[0].node.expr)


def _is_sum_of_products(expression) -> bool:
    parts = expression.args if isinstance(expression, (sympy.Add, sympy.Mul)) else ()
    return expression.is_Symbol or expression.is_Integer or (bool(parts) and all(map(_is_sum_of_products, parts)))


class _Sizes:
    """The sizes that depend on data, in the backward pass, which reads them from the same tensors again."""

    def __init__(self, graph: torch.fx.Graph, readers: list[torch.fx.Node], sources: list[torch.fx.Node], first: torch.fx.Node | None):
        self.graph, self.sources = graph, sources
        self.known: dict[sympy.Expr, torch.fx.Node | int] = {}
        self.symbols = {reader.meta["val"].node.expr for reader in readers}
        before = first if first is not None else next(iter(graph.nodes))
        inputs = []
        for number, source in enumerate(sources):
            with graph.inserting_before(before):
                inputs.append(graph.placeholder(f"size_{number}"))
            inputs[-1].meta["val"] = source.meta["val"]
        self.last = _last_placeholder(graph)
        for given, reader in zip(inputs, readers):
            value = reader.meta["val"]
            self.known[value.node.expr] = self.insert(_READ, (given,), value)

    def insert(self, target, args, value) -> torch.fx.Node:
        """Adds a node after those that were added before."""
        with self.graph.inserting_after(self.last):
            node = self.graph.call_function(target, args)
        node.meta["val"] = value
        self.last = node
        return node

    def node_of(self, expression) -> torch.fx.Node | int:
        """The size that an expression gives."""
        if expression.is_Integer:
            return int(expression)
        if expression not in self.known:
            combine = operator.add if isinstance(expression, sympy.Add) else operator.mul
            first, *others = map(self.node_of, expression.args)
            for other in others:
                value = combine(_value(first), _value(other))
                first = self.insert(combine, (first, other), value)
            self.known[expression] = first
        return self.known[expression]


def _on_device(graph: torch.fx.Graph, source: torch.fx.Node, device: torch.device | None) -> torch.fx.Node:
    """A tensor that a size is read from, on the device of the graph: programs often copy it to the host, and a plan does not."""
    value = source.meta["val"]
    if device is None or value.device == device:
        return source
    with graph.inserting_before(output_of(graph)):
        moved = graph.call_function(torch.ops.aten._to_copy.default, (source,), {"device": device})
    with value.fake_mode:
        moved.meta["val"] = torch.empty_like(value, device=device)
    return moved


def _repeat_assertions(graph: torch.fx.Graph, sizes: _Sizes) -> None:
    """Asserts in the backward pass what the forward pass asserts of its sizes: relations from which bounds of others follow."""
    for node in graph.nodes:
        condition = node.args[0].meta.get("val") if node.target is _ASSERT and isinstance(node.args[0], torch.fx.Node) else None
        relation = condition.node.expr if isinstance(condition, torch.SymBool) else None
        combine = next((combine for kind, combine in _RELATIONS.items() if isinstance(relation, kind)), None)
        if combine is None or not relation.free_symbols <= sizes.symbols or not all(map(_is_sum_of_products, relation.args)):
            continue
        holds = sizes.insert(combine, tuple(map(sizes.node_of, relation.args)), condition)
        sizes.insert(_ASSERT, (holds, node.args[1]), None)


def _value(term):
    return term.meta["val"] if isinstance(term, torch.fx.Node) else term


def _last_placeholder(graph: torch.fx.Graph) -> torch.fx.Node:
    return [node for node in graph.nodes if node.op == "placeholder"][-1]


def _all_rows(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    with graph.inserting_before(output_of(graph)):
        whole = graph.call_function(torch.ops.symmc.whole_rows.default, (node,))
    whole.meta = {key: node.meta[key] for key in ("val", "saved_tensor_with_no_vc_check") if key in node.meta}
    return whole


def _cut_rows(graph: torch.fx.Graph, taken: torch.fx.Node, sizes: _Sizes) -> None:
    """Makes an input one with any number of rows, and its readers read the first ones."""
    value = taken.meta["val"]
    axis = next(axis for axis, size in enumerate(value.shape) if _data_symbols(size))
    length = value.shape[axis]
    environment = length.node.shape_env
    with environment.ignore_fresh_unbacked_symbols():
        extent = environment.create_unbacked_symint()
    torch._check(extent >= 0)
    shape = [extent if at == axis else size for at, size in enumerate(value.shape)]
    with value.fake_mode:
        taken.meta["val"] = torch.empty(shape, dtype=value.dtype, device=value.device)
    taken.meta.pop("tensor_meta", None)
    readers = list(taken.users)
    rows = sizes.node_of(length.node.expr)
    all_rows = sizes.insert(torch.ops.aten.sym_size.int, (taken, axis), extent)
    fits = sizes.insert(operator.le, (rows, all_rows), _value(rows) <= extent)
    sizes.insert(_ASSERT, (fits, "the saved rows are too few"), None)
    first = sizes.insert(torch.ops.aten.slice.Tensor, (taken, axis, 0, rows), value)
    for reader in readers:
        reader.replace_input_with(taken, first)
