"""Collectives of graphs that Inductor compiles, planned and run by symmc: a pass behind Inductor's own."""

from __future__ import annotations

import hashlib
import operator
import pathlib

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

import symmc
from symmc.torch import _planned  # noqa: F401 (the operator)
from symmc.torch._compiled import where
from symmc.torch._form import NotData, Part, is_data
from symmc.torch._options import Options

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
"""What stands between a collective and the end of the norm behind it, written out."""


class CollectivePass(CustomGraphPass):
    """Replaces functional collectives, and a sum with a residual and an RMS norm behind one, by operators of symmc.

    An Inductor pass: ``torch._inductor.config.post_grad_custom_post_pass = CollectivePass()``, or :func:`enable`. What a
    replaced collective is stands in its operator, so that graphs which Inductor keeps run in other processes.
    """

    def __init__(self, **options):
        self.options = Options.of({"fallback": "error", **options})

    def __call__(self, graph: torch.fx.Graph) -> None:
        found = [node for node in graph.nodes if _is_collective(node)]
        for node in found:
            region = _region(node)
            if region is not None:
                _replace(graph, region, self.options)
        if found:
            from torch._inductor.pattern_matcher import stable_topological_sort

            stable_topological_sort(graph)
            graph.lint()

    def uuid(self) -> bytes:
        """What compile caches tell passes apart by."""
        text = [symmc.__version__, repr(self.options)]
        text += [path.read_text(encoding="utf-8") for path in sorted(pathlib.Path(__file__).parent.glob("*.py"))]
        return hashlib.sha256("\0".join(text).encode()).digest()


def enable(**options) -> None:
    """Has all of ``torch.compile`` run collectives by symmc, with the options of the backend."""
    torch._inductor.config.post_grad_custom_post_pass = CollectivePass(**options)


def _is_collective(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    known = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    return node.target.namespace == "_c10d_functional" and node.target._opname in known


def _region(collective: torch.fx.Node) -> list[torch.fx.Node] | None:
    """A collective with its wait and, behind a sum, the residual and the norm; none where nobody waits for it alone."""
    waits = [user for user in collective.users if user.target is torch.ops._c10d_functional.wait_tensor.default]
    if len(waits) != 1 or len(collective.users) != 1:
        return None
    small = [collective, waits[0]]
    if collective.target._opname != "all_reduce":
        return small
    behind, order = _descendants(collective), _order(collective.graph)
    region = set(small)
    for node in sorted(behind, key=order.__getitem__):
        if node not in region and _belongs(node, region, behind):
            region.add(node)
    if not any(node.target is _aten.rsqrt.default for node in region):
        region = set(small)
    return sorted(region, key=order.__getitem__)


def _belongs(node: torch.fx.Node, region: set, behind: set) -> bool:
    """Whether a node works on what the region gives, and otherwise on what is there before."""
    given = node.all_input_nodes
    inside = any(other in region for other in given)
    return node.target in _FOLLOWERS and inside and is_data(node) and all(other in region or other not in behind for other in given)


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


def _replace(graph: torch.fx.Graph, region: list[torch.fx.Node], options: Options) -> None:
    """Puts one operator in place of a region, if a form can hold it."""
    try:
        part = Part(region)
    except NotData:
        return
    sizes = [_size_node(graph, symbol) for symbol in part.symbols]
    if None in sizes or not all(node.meta["val"].is_contiguous() for node in part.outputs):
        return
    text = part.text({"machine": options.machine, "buckets": list(options.buckets), "timeout": options.timeout})
    with graph.inserting_after(region[-1]):
        call = graph.call_function(torch.ops.symmc.planned.default, (part.inputs, sizes, text))
    call.meta["val"] = [node.meta["val"] for node in part.outputs]
    for number, old in enumerate(part.outputs):
        with graph.inserting_after(call):
            new = graph.call_function(operator.getitem, (call, number))
        new.meta = dict(old.meta)
        old.replace_all_uses_with(new, delete_user_cb=lambda user: user not in region)
    for node in reversed(region):
        graph.erase_node(node)


def _size_node(graph: torch.fx.Graph, symbol: str) -> torch.fx.Node | None:
    """A node that gives the value of a symbol, made of an input of the graph if there is none."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for source, at, axis in where([node.meta.get("val") for node in placeholders]):
        if source == symbol and axis is None:
            return placeholders[at]
        if source == symbol:
            with graph.inserting_after(placeholders[-1]):
                size = graph.call_function(_aten.sym_size.int, (placeholders[at], axis))
            size.meta["val"] = placeholders[at].meta["val"].shape[axis]
            return size
    return None
