"""The pass that replaces collectives, with the sum and the norm after them. It runs after Inductor's own passes."""

from __future__ import annotations

import hashlib
import operator
import pathlib
from dataclasses import dataclass

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

import symmc
from symmc.torch.graphs.nodes import is_view
from symmc.torch.graphs.sizes import symbol_sources
from symmc.torch.inductor import engine_ops, operators
from symmc.torch.inductor.engine_ops import NoForm
from symmc.torch.inductor.form import GraphPart, is_data
from symmc.torch.inductor.graph_calls import describe_sites
from symmc.torch.ranks import process_groups
from symmc.torch.settings.options import Options

_aten, _prims = torch.ops.aten, torch.ops.prims

_FOLLOWERS = {
    _aten.add.Tensor,
    _aten.add.Scalar,
    _aten.mul.Tensor,
    _aten.pow.Tensor_Scalar,
    _aten.mean.dim,
    _aten.rsqrt.default,
    _aten._to_copy.default,
    _prims.convert_element_type.default,
}
"""The operators between a collective and the end of the decomposed norm after it."""


_LADDERS = {1: [4**k for k in range(1, 9)], 2: [64, 1024, 16384]}
"""Default upper ends of buckets, by the number of symbols of a form: the best variant for a prompt is not the best for a token."""


class CollectivePass(CustomGraphPass):
    """Replaces functional collectives, and a residual sum and an RMS norm after one, by operators of symmc.

    An Inductor pass: ``torch._inductor.config.post_grad_custom_post_pass = CollectivePass()``, or :func:`enable`. The operator holds
    the computation of the collective as text, so that graphs in Inductor's cache run in other processes. ``groups`` resolves names of
    process groups that PyTorch does not have: a mapping, or a function. Other options are ``machine``, ``timeout``, and ``buckets`` as
    a list of sizes for every dynamic size.
    """

    def __init__(self, *, groups=None, **options):
        self.options = Options.of_pass(options)
        if groups is not None:
            process_groups.register_groups(groups)

    def __repr__(self) -> str:
        """The options that differ from the defaults."""
        default = Options()
        given = {name: getattr(self.options, name) for name in ("machine", "buckets", "timeout")}
        listed = [f"{name}={value!r}" for name, value in given.items() if value != getattr(default, name)]
        return f"CollectivePass({', '.join(listed)})"

    def __call__(self, graph: torch.fx.Graph) -> None:
        found = [node for node in graph.nodes if _is_collective(node)]
        for node in found:
            site = _CollectiveSite.of(node)
            if site is not None:
                site.replace(self.options)
        if found:
            from torch._inductor.pattern_matcher import stable_topological_sort

            operators.lower()
            stable_topological_sort(graph)
            _number_forms(graph)
            graph.lint()

    def uuid(self) -> bytes:
        """The key of the pass in compile caches: a hash of everything that its result depends on."""
        files = sorted(pathlib.Path(symmc.__file__).parent.rglob("*.py"))
        if self.options.machine is not None and pathlib.Path(self.options.machine).is_file():
            files.append(pathlib.Path(self.options.machine))
        text = [symmc.__version__, repr(self.options), repr(sorted(process_groups.group_sizes().items()))]
        text += [path.read_text(encoding="utf-8") for path in files]
        return hashlib.sha256("\0".join(text).encode()).digest()


def enable(**options) -> None:
    """Makes ``torch.compile`` with Inductor run all collectives by symmc, with the options of :class:`CollectivePass`."""
    torch._inductor.config.post_grad_custom_post_pass = CollectivePass(**options)


def _is_collective(node: torch.fx.Node) -> bool:
    if engine_ops.is_collective(node):
        return True
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    known = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    return node.target.namespace == "_c10d_functional" and node.target._opname in known


@dataclass
class _CollectiveSite:
    graph: torch.fx.Graph
    collective: torch.fx.Node
    result: torch.fx.Node
    """The wait for the collective, or the collective itself if it needs no wait."""
    region: list[torch.fx.Node]
    """The nodes that are replaced, in the order of the graph."""

    @staticmethod
    def of(node: torch.fx.Node) -> _CollectiveSite | None:
        """The site of a collective with the nodes after it; None if it does not have exactly one wait."""
        if engine_ops.is_collective(node):
            small, is_sum = [node], engine_ops.is_sum(node)
        else:
            waits = [user for user in node.users if user.target is torch.ops._c10d_functional.wait_tensor.default]
            if len(waits) != 1 or len(node.users) != 1:
                return None
            small, is_sum = [node, waits[0]], node.target._opname == "all_reduce"
        return _CollectiveSite(node.graph, node, small[-1], _with_norm(small) if is_sum else small)

    @property
    def is_overlapped(self) -> bool:
        """Whether there is other work between the collective and the wait for it."""
        node = self.collective.next
        while node is not self.result and self.result is not self.collective:
            if _is_work(node):
                return True
            node = node.next
        return False

    def replace(self, options: Options) -> None:
        """Replaces the region by operators of symmc, or the collective alone if no form or plan can hold the region."""
        is_overlapped = self.is_overlapped
        small = [node for node in self.region if node in (self.collective, self.result)]
        for region in [self.region, small]:
            if is_overlapped and not self._is_ready(region):
                continue
            try:
                part = GraphPart(region)
            except NoForm:
                continue
            sizes = [_size_node(self.graph, symbol) for symbol in part.symbols]
            if None in sizes or not all(node.meta["val"].is_contiguous() for node in part.outputs):
                continue
            text = part.text(_plan_options(options, len(sizes)))
            if self._is_worth_it(text):
                self._put(region, part, (part.inputs, sizes, text), is_overlapped)
                return

    def _is_worth_it(self, text: str) -> bool:
        device = self.collective.all_input_nodes[0].meta["val"].device.type
        try:
            ranks = max(len(process_groups.members_of(name)) for name in operators.form_of(text).groups)
        except symmc.InputError:
            # An unknown group.
            return False
        return device in ("cpu", "cuda") and operators.is_worth_it(text, device, ranks)

    def _is_ready(self, region: list[torch.fx.Node]) -> bool:
        """Whether all operands of a region exist before the collective."""
        order = _order(self.graph)
        given = {other for node in region for other in node.all_input_nodes} - set(region)
        return all(order[node] < order[self.collective] for node in given)

    def _put(self, region: list[torch.fx.Node], part: GraphPart, arguments: tuple, is_overlapped: bool) -> None:
        graph, ops = self.graph, torch.ops.symmc
        if is_overlapped:
            with graph.inserting_before(self.collective):
                token = graph.call_function(ops.start.default, (*arguments, ""))
            token.meta["val"] = part.inputs[0].meta["val"].new_empty(1, dtype=torch.int64)
            with graph.inserting_before(self.result):
                call = graph.call_function(ops.wait.default, (token, *arguments))
        else:
            with graph.inserting_after(region[-1]):
                call = graph.call_function(ops.planned.default, (*arguments, ""))
        call.meta["val"] = [node.meta["val"] for node in part.outputs]
        for number, old in enumerate(part.outputs):
            with graph.inserting_after(call):
                new = graph.call_function(operator.getitem, (call, number))
            new.meta = dict(old.meta)
            old.replace_all_uses_with(new, delete_user_cb=lambda user: user not in region)
        for node in reversed(region):
            graph.erase_node(node)


def _number_forms(graph: torch.fx.Graph) -> None:
    """Sets the last argument of operators of symmc: the place of a form in its graph."""
    nodes = [node for node in graph.nodes if node.target in (torch.ops.symmc.planned.default, torch.ops.symmc.start.default)]
    name = hashlib.sha256(str(graph).encode()).hexdigest()[:16]
    texts = describe_sites(name, [tuple(operators.form_of(node.args[2]).groups) for node in nodes])
    for node, text in zip(nodes, texts):
        node.update_arg(3, text)


def _plan_options(options: Options, symbols: int) -> dict:
    """The options of the plan of a form."""
    buckets = list(options.buckets) or _LADDERS.get(symbols, [])
    return {"machine": options.machine, "buckets": buckets, "timeout": options.timeout}


def _is_work(node: torch.fx.Node) -> bool:
    """Whether a node computes or sends something."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if node.target in (torch.ops._c10d_functional.wait_tensor.default, torch.ops.symmc.wait.default):
        return False
    return not is_view(node) and not isinstance(node.meta.get("val"), (torch.SymInt, int))


def _with_norm(small: list[torch.fx.Node]) -> list[torch.fx.Node]:
    """An all-reduce with the residual and the norm after it, if there is one."""
    descendants, order = _descendants(small[0]), _order(small[0].graph)
    region = set(small)
    for node in sorted(descendants, key=order.__getitem__):
        if node not in region and _belongs(node, region, descendants):
            region.add(node)
    has_norm = any(node.target is _aten.rsqrt.default or engine_ops.is_norm(node) for node in region)
    return sorted(region, key=order.__getitem__) if has_norm else small


def _belongs(node: torch.fx.Node, region: set, descendants: set) -> bool:
    """Whether a node reads a result of the region, and otherwise only values that exist before it."""
    if node.target is operator.getitem:
        return node.args[0] in region and engine_ops.is_norm(node.args[0])
    given = node.all_input_nodes
    is_known = node.target in _FOLLOWERS and is_data(node) or engine_ops.is_norm(node)
    inside = any(other in region for other in given)
    return is_known and inside and all(other in region or other not in descendants for other in given)


def _descendants(node: torch.fx.Node) -> set[torch.fx.Node]:
    found, asked = set(), [node]
    while asked:
        for user in asked.pop().users:
            if user not in found and user.op != "output":
                found.add(user)
                asked.append(user)
    return found


def _order(graph: torch.fx.Graph) -> dict[torch.fx.Node, int]:
    return {node: number for number, node in enumerate(graph.nodes)}


def _size_node(graph: torch.fx.Graph, symbol: str) -> torch.fx.Node | None:
    """A node that gives the value of a symbol. If there is none, it is made from an input of the graph."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for source, at, axis in symbol_sources([node.meta.get("val") for node in placeholders]):
        if source == symbol and axis is None:
            return placeholders[at]
        if source == symbol:
            with graph.inserting_after(placeholders[-1]):
                size = graph.call_function(_aten.sym_size.int, (placeholders[at], axis))
            size.meta["val"] = placeholders[at].meta["val"].shape[axis]
            return size
    return None
