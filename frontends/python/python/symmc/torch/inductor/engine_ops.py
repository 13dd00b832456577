"""Operators of inference engines as functional collectives and ATen operators.

vLLM and SGLang have collectives of their own, whose groups have names that the engines resolve, and norms in one kernel. Operators that
write to their arguments occur as ``auto_functionalized``: its results are those of the operator, followed by the new values of the
arguments.
"""

from __future__ import annotations

import torch

_ALL_REDUCE = "_c10d_functional.all_reduce.default"
_REDUCE_SCATTER = "_c10d_functional.reduce_scatter_tensor.default"
_ALL_GATHER = "_c10d_functional.all_gather_into_tensor.default"
_WAIT = "_c10d_functional.wait_tensor.default"


class NoForm(Exception):
    """A part of a graph that a form cannot hold."""


def arguments(node: torch.fx.Node) -> dict:
    """The arguments of a node by the names of its schema."""
    functionalized = _functionalized(node)
    if functionalized is not None:
        return dict(node.kwargs)
    schema = node.target._schema.arguments
    given = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return {**given, **{argument.name: value for argument, value in zip(schema, node.args)}, **node.kwargs}


def name_of(node: torch.fx.Node) -> str:
    """The operator that a node calls, also if it is functionalized."""
    target = _functionalized(node) or node.target
    return str(target).removesuffix(".default")


def _functionalized(node: torch.fx.Node):
    if node.op == "call_function" and node.target is torch.ops.higher_order.auto_functionalized:
        return node.args[0]
    return None


def first_result(node: torch.fx.Node) -> int:
    """The number of the first result that a recipe returns."""
    return 0 if _functionalized(node) is None else 1


def find_recipe(node: torch.fx.Node):
    """The recipe that computes a node in a part, if the node is one of these operators."""
    return _RECIPES.get(name_of(node)) if node.op == "call_function" else None


def is_collective(node: torch.fx.Node) -> bool:
    """Whether a node is a collective that needs no wait."""
    return node.op == "call_function" and name_of(node) in _COLLECTIVES


def is_norm(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and name_of(node) in _NORMS


def is_sum(node: torch.fx.Node) -> bool:
    """Whether a node is a collective that a norm can be part of."""
    return name_of(node) in _SUMS


def _all_reduce(part, node):
    given = arguments(node)
    value = given["tensor"].meta["val"]
    begun = part.emit(_ALL_REDUCE, [part.reference(given["tensor"]), "sum", given["group_name"]], value)
    return [part.emit(_WAIT, [begun], value)]


def _over_first_axis(given: dict) -> None:
    rank = given["tensor"].meta["val"].dim()
    if not (isinstance(given["dim"], int) and given["dim"] % max(rank, 1) == 0):
        raise NoForm(f"axis {given['dim']}")


def _reduce_scatter(part, node):
    given = arguments(node)
    _over_first_axis(given)
    told = [part.reference(given["tensor"]), "sum", given["world_size"], given["group_name"]]
    value = node.meta["val"]
    return [part.emit(_WAIT, [part.emit(_REDUCE_SCATTER, told, value)], value)]


def _all_gather(part, node):
    given = arguments(node)
    _over_first_axis(given)
    told = [part.reference(given["tensor"]), given["world_size"], given["group_name"]]
    value = node.meta["val"]
    return [part.emit(_WAIT, [part.emit(_ALL_GATHER, told, value)], value)]


def _normed(part, x: dict, value: torch.Tensor, weight, epsilon: float) -> dict:
    """The RMS norm of a value in f32, of the type of another one."""
    rows = [*value.shape[:-1], 1]
    square = part.emit("aten.pow.Tensor_Scalar", [x, 2], value, torch.float32)
    mean = part.emit("aten.mean.dim", [square, [-1], True], value, torch.float32, rows)
    shifted = part.emit("aten.add.Scalar", [mean, epsilon], value, torch.float32, rows)
    inverse = part.emit("aten.rsqrt.default", [shifted], value, torch.float32, rows)
    y = part.emit("aten.mul.Tensor", [x, inverse], value, torch.float32)
    if weight is None:
        return _cast(part, y, value, torch.float32, value.dtype)
    kind = weight.meta["val"].dtype
    y = part.emit("aten.mul.Tensor", [_cast(part, y, value, torch.float32, kind), part.reference(weight)], value, kind)
    return _cast(part, y, value, kind, value.dtype)


def _cast(part, x: dict, value: torch.Tensor, of: torch.dtype, to: torch.dtype) -> dict:
    if of == to:
        return x
    told = [x, {"dtype": str(to).removeprefix("torch.")}]
    return part.emit("prims.convert_element_type.default", told, value, to)


def _rms_norm(part, node):
    given = arguments(node)
    x = given.get("x", given.get("input"))
    if given.get("variance_size") is not None:
        raise NoForm("a norm of a part of each row")
    value = x.meta["val"]
    whole = _cast(part, part.reference(x), value, value.dtype, torch.float32)
    return [_normed(part, whole, value, given["weight"], given["epsilon"])]


def _fused_add_rms_norm(part, node):
    given = arguments(node)
    x, residual = given.get("x", given.get("input")), given.get("x_residual", given.get("residual"))
    if given.get("variance_size") is not None:
        raise NoForm("a norm of a part of each row")
    value = x.meta["val"]
    parts = [
        _cast(part, part.reference(one), value, one.meta["val"].dtype, torch.float32) for one in (x, residual)
    ]
    total = part.emit("aten.add.Tensor", parts, value, torch.float32)
    normed = _normed(part, total, value, given["weight"], given["epsilon"])
    return [normed, _cast(part, total, value, torch.float32, residual.meta["val"].dtype)]


_SUMS = {"vllm.all_reduce": _all_reduce, "sglang.outplace_all_reduce": _all_reduce}
_COLLECTIVES = {**_SUMS, "vllm.reduce_scatter": _reduce_scatter, "vllm.all_gather": _all_gather}
_NORMS = {
    "vllm_ir.rms_norm": _rms_norm,
    "vllm_ir.fused_add_rms_norm": _fused_add_rms_norm,
    "_C.rms_norm": _rms_norm,
    "_C.fused_add_rms_norm": _fused_add_rms_norm,
}
_RECIPES = {**_COLLECTIVES, **_NORMS}

