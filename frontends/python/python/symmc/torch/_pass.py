"""Collectives of graphs that Inductor compiles, planned and run by symmc: a pass behind Inductor's own."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import operator
import pathlib
import zlib

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx.passes.utils.fuser_utils import fuse_as_graphmodule

import symmc
from symmc.torch import _graph, _ranks
from symmc.torch._compiled import where
from symmc.torch._options import Options
from symmc.torch._runner import Runner

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
        text = symmc.__version__ + repr(self.options) + pathlib.Path(__file__).read_text(encoding="utf-8")
        return hashlib.sha256(text.encode()).digest()


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
    return node.target in _FOLLOWERS and inside and all(other in region or other not in behind for other in given)


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
    """Puts one operator in place of a region."""
    owner = graph.owning_module
    part, inputs, outputs = fuse_as_graphmodule(owner, region, "symmc_region")
    if any(not isinstance(node.meta.get("val"), torch.Tensor) for node in [*inputs, *outputs]):
        return
    for own, given in zip([node for node in part.graph.nodes if node.op == "placeholder"], inputs):
        own.meta["val"] = given.meta["val"]
    if not all(node.meta["val"].is_contiguous() for node in outputs):
        return
    lifted = _graph.Lifted.of(part)
    values = [node.meta["val"] for node in [*inputs, *outputs]]
    symbols = sorted({str(s) for v in values for d in v.shape if isinstance(d, torch.SymInt) for s in d.node.expr.free_symbols})
    sizes = [_size_node(graph, symbol) for symbol in symbols]
    if None in sizes or any(_written(d) is None for value in values for d in value.shape):
        return
    spec = _spec(lifted, symbols, values[len(inputs) :], options)
    with graph.inserting_after(region[-1]):
        call = graph.call_function(torch.ops.symmc.planned.default, (list(inputs), sizes, spec))
    call.meta["val"] = [node.meta["val"] for node in outputs]
    for number, old in enumerate(outputs):
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


def _spec(lifted: _graph.Lifted, symbols: list[str], outputs, options: Options) -> str:
    """All that another process needs to run a program."""
    archive = base64.b85encode(zlib.compress(lifted.archive({}))).decode()
    results = [[str(value.dtype).removeprefix("torch."), [_written(d) for d in value.shape]] for value in outputs]
    return json.dumps(
        {
            "archive": archive,
            "groups": lifted.groups,
            "symbols": symbols,
            "results": results,
            "options": {"machine": options.machine, "buckets": list(options.buckets), "timeout": options.timeout},
        }
    )


_OPERATIONS = {"Add": operator.add, "Mul": operator.mul, "FloorDiv": operator.floordiv, "Mod": operator.mod}


def _written(size) -> int | str | list | None:
    """A size as data: a number, a symbol, or an operation with its operands; none where it has others."""
    expression = size.node.expr if isinstance(size, torch.SymInt) else size
    if isinstance(expression, int) or expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return str(expression)
    name, operands = type(expression).__name__, [_written(operand) for operand in expression.args]
    return [name, *operands] if name in _OPERATIONS and None not in operands else None


def _read(size, values: dict):
    """A size of data, for values that may be symbols themselves."""
    if isinstance(size, list):
        return functools.reduce(_OPERATIONS[size[0]], [_read(operand, values) for operand in size[1:]])
    return values[size] if isinstance(size, str) else size


class _Archived:
    """A program in an operator's argument."""

    def __init__(self, archive: bytes):
        self._archive = archive

    def archive(self, _caps: dict[str, int]) -> bytes:
        """The file."""
        return self._archive

    def dims(self, caps: dict[str, int]) -> dict:
        """The bounds, which the file has not."""
        return {symbol: (None, cap) for symbol, cap in caps.items()}


@functools.cache
def _of(spec: str) -> dict:
    return json.loads(spec)


@functools.cache
def _runner(spec: str) -> Runner:
    """What runs a program; made when it runs first, on all ranks together."""
    told = _of(spec)
    source = _Archived(zlib.decompress(base64.b85decode(told["archive"])))
    options = Options.of(told["options"])
    ranks, groups = _ranks.taking_part(told["groups"], options.timeout)
    return Runner(source, told["symbols"], ranks, groups, options)


@torch.library.custom_op("symmc::planned", mutates_args=())
def planned(inputs: list[torch.Tensor], sizes: list[int], spec: str) -> list[torch.Tensor]:
    """The results of a program on these inputs, with these values of its symbols."""
    results, _ = _runner(spec).run(tuple(sizes), list(inputs), inputs[0].device)
    return results


@planned.register_fake
def _(inputs, sizes, spec):
    told = _of(spec)
    values = dict(zip(told["symbols"], sizes))

    results = told["results"]
    return [
        inputs[0].new_empty([_read(d, values) for d in shape], dtype=getattr(torch, dtype)) for dtype, shape in results
    ]
