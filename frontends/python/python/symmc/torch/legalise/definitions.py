"""Definitions of operators that PyTorch has only as kernels: operators of its fast paths, and some backward passes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def find_definition(target: torch._ops.OpOverload):
    """The definition of an operator in this module, if there is one."""
    return _DEFINITIONS.get(str(target))


def rounds_once(target: torch._ops.OpOverload) -> bool:
    """Whether PyTorch rounds the results of an operator, and no values between them and the operands. Operators that are compositions
    of others round after each of them."""
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd
    return str(target) not in _COMPOSITIONS and not target.has_kernel_for_dispatch_key(implicit)


def _attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias,
    mask=None, need_weights=True, average_attn_weights=True, mask_type=None,
):  # fmt: skip
    """Attention of several heads. A mask excludes elements: of rows and columns (type 0), of columns (1), or for each head."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3))
    q, k, v = (F.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in parts)
    scores = q @ k.transpose(-2, -1) / math.sqrt(embed_dim // num_head)
    if mask is not None:
        seen = mask[:, None, None, :] if mask_type == 1 else mask
        scores = scores.masked_fill(seen, -math.inf)
    weights = scores.softmax(-1)
    result = F.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    return result, (weights.mean(1) if average_attn_weights else weights) if need_weights else None


def _encoder_layer(
    x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1,
    norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None, mask_type=None,
):  # fmt: skip
    """A layer of ``torch.nn.TransformerEncoder``."""

    def attended(y):
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return _attention(y, y, y, embed_dim, num_heads, *projections, mask, False, mask_type=mask_type)[0]

    def fed(y):
        y = F.linear(y, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(y) if use_gelu else F.relu(y), ffn_weight_2, ffn_bias_2)

    def first(y):
        return F.layer_norm(y, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(y):
        return F.layer_norm(y, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attended(first(x))
        return x + fed(second(x))
    x = first(x + attended(x))
    return second(x + fed(x))


def _distances(x, y, p, compute_mode=None):
    """The distances of each row of one operand from each of the other."""
    apart = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(x.dtype).sum(-1)
    if math.isinf(p):
        return apart.amax(-1)
    if p == 1:
        return apart.sum(-1)
    return (apart * apart).sum(-1).sqrt() if p == 2 else apart.pow(p).sum(-1).pow(1 / p)


def _distances_backward(gradient, x, y, p, distance):
    apart = x.unsqueeze(-2) - y.unsqueeze(-3)
    if p == 0:
        return torch.zeros_like(x)
    gradient, distance = gradient.unsqueeze(-1), distance.unsqueeze(-1)
    if p == 1:
        return (gradient * apart.sign()).sum(-2)
    if math.isinf(p):
        return (gradient * apart.sign() * (apart.abs() == distance)).sum(-2)
    slope = apart / distance if p == 2 else apart.sign() * (apart.abs() / distance).pow(p - 1)
    # With p < 1 the slope is infinite where two coordinates meet.
    return (gradient * torch.where((apart == 0) | (distance == 0), 0.0, slope)).sum(-2)


def _weight_norm_backward(gradient, direction, length, norms, dim):
    others = [axis for axis in range(direction.dim()) if axis != dim]
    along = (gradient * direction).sum(others, keepdim=True)
    return length / norms * (gradient - direction * (along / (norms * norms))), along / norms


def _diagonal_scatter(x, source, offset=0, dim1=0, dim2=1):
    is_there = torch.diag_embed(torch.ones_like(source, dtype=torch.bool), offset, dim1, dim2)
    source = torch.diag_embed(source, offset, dim1, dim2)
    # For an operand that is not square, the squares extend beyond it or end before it does.
    for axis in (dim1, dim2):
        missing = x.shape[axis] - source.shape[axis]
        width = [0, 0] * (x.dim() - 1 - axis % x.dim()) + [0, missing]
        source, is_there = F.pad(source, width), F.pad(is_there, width)
    return torch.where(is_there, source, x)


def _strided_scatter(x, source, size, stride, storage_offset=None):
    if not x.is_contiguous() or x.storage_offset() != 0:
        raise NotImplementedError("an operand with gaps")
    place = torch.full((), storage_offset or 0, dtype=torch.int64, device=x.device)
    for n, step in zip(size, stride):
        place = place.unsqueeze(-1) + torch.arange(n, device=x.device) * step
    return x.reshape(-1).index_put((place.reshape(-1),), source.reshape(-1)).reshape(x.shape)


def _hypot(x, y):
    largest, least = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    ratio = torch.where(largest > least, least / largest, 1.0)
    length = largest * (ratio * ratio + 1).sqrt()
    return torch.where(x.isinf() | y.isinf(), math.inf, length)


def _floating(x):
    """Integers and bools as numbers of the default dtype, as PyTorch's functions of floats take them."""
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def _copysign(x, y):
    y = torch.as_tensor(y, device=x.device)
    x = _floating(x.to(torch.result_type(x, y)))
    return torch.where(_is_negative(y), -x.abs(), x.abs())


def _not_nan(choose):
    """The larger or the smaller of two numbers, or the one that is a number."""

    def chosen(x, y):
        return torch.where(x.isnan(), y, torch.where(y.isnan(), x, choose(x, y)))

    return chosen


def _kth_value(x, k, dim=-1, keepdim=False):
    both = [part.select(dim, k - 1) for part in x.topk(k, dim, largest=False)]
    return tuple(part.unsqueeze(dim) if keepdim else part for part in both)


def _is_negative(x):
    return (x < 0) | (x == 0) & (1 / x < 0) if x.is_floating_point() else x < 0


def _asinh(x):
    x = _floating(x)
    size = x.abs()
    # Squares of large numbers overflow, and small ones are lost when added to 1.
    large = size.log() + math.log(2)
    small = (size + size * size / ((size * size + 1).sqrt() + 1)).log1p()
    return torch.copysign(torch.where(size > 1e8, large, small), x)


def _acosh(x):
    x = _floating(x)
    beyond = x - 1
    # Both roots are NaN below the domain, where the product of their operands is positive.
    small = (beyond + beyond.sqrt() * (x + 1).sqrt()).log1p()
    return torch.where(x > 1e8, x.log() + math.log(2), small)


def _atanh(x):
    x = _floating(x)
    size = x.abs()
    return torch.copysign((2 * size / (1 - size)).log1p() / 2, x)


def _searched(bounds, x, *, out_int32=False, right=False, side=None, sorter=None):
    if sorter is not None:
        raise NotImplementedError("bounds in another order")
    bounds, x = bounds.unsqueeze(-2) if bounds.dim() > 1 else bounds, x.unsqueeze(-1)
    is_before = bounds <= x if right or side == "right" else bounds < x
    # NaN comes after all numbers.
    is_before = is_before | x.isnan() if x.is_floating_point() else is_before
    return is_before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _gcd(x, y):
    """Euclid's algorithm, as many steps as numbers of this many bits may take. The least integer stays negative."""
    dtype = torch.result_type(x, y)
    x, y = torch.broadcast_tensors(x.to(dtype).abs(), y.to(dtype).abs())
    for _ in range(math.ceil(1.45 * torch.iinfo(dtype).bits)):
        ended = y == 0
        x, y = torch.where(ended, x, y), torch.where(ended, 0, torch.fmod(x, torch.where(ended, 1, y)))
    return x


def _lcm(x, y):
    divisor = _gcd(x, y)
    return (x // torch.where(divisor == 0, 1, divisor) * y).abs()


def _rrelu(x, noise, lower=1 / 8, upper=1 / 3, training=False, generator=None):
    if training:
        raise NotImplementedError("random numbers")
    return F.leaky_relu(x, (lower + upper) / 2), noise.clone()


_DEFINITIONS = {
    "aten._native_multi_head_attention.default": _attention,
    "aten._transformer_encoder_layer_fwd.default": _encoder_layer,
    "aten._cdist_forward.default": _distances,
    "aten._cdist_backward.default": _distances_backward,
    "aten._weight_norm_interface_backward.default": _weight_norm_backward,
    "aten.diagonal_scatter.default": _diagonal_scatter,
    "aten.as_strided_scatter.default": _strided_scatter,
    "aten.hypot.default": _hypot,
    "aten.copysign.Tensor": _copysign,
    "aten.fmax.default": _not_nan(torch.maximum),
    "aten.fmin.default": _not_nan(torch.minimum),
    "aten.kthvalue.default": _kth_value,
    "aten.signbit.default": _is_negative,
    "aten.asinh.default": _asinh,
    "aten.acosh.default": _acosh,
    "aten.atanh.default": _atanh,
    "aten.searchsorted.Tensor": _searched,
    "aten.gcd.default": _gcd,
    "aten.lcm.default": _lcm,
    "aten.rrelu_with_noise_functional.default": _rrelu,
    "prims.fma.default": lambda x, y, z: x * y + z,
}

_COMPOSITIONS = ("aten._native_multi_head_attention.default", "aten._transformer_encoder_layer_fwd.default")
"""Operators with kernels that call other operators."""
