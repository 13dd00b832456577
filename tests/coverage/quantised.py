#!/usr/bin/env python3
"""Runs quantised layers as programs of `torch.export`: `python3 tests/coverage/quantised.py SYMMC [PATTERN...]`.

A form is a module of a few layers with weights (or a cache) of integers or floats of 8 bits, of packed 4 bits, or of bits that stand
for another dtype, as quantisation libraries store them. `symmc plan` and `symmc run` get the archive, and the tensors that eager gave.
With `--compile` each form also runs under `torch.compile(backend="symmc")`, with nothing left to the fallback.
PATTERNs say which forms to try; `--keep FOLDER` keeps the archives. Exit code 1 if any result is wrong.
Needs the packages torch and safetensors, torchao for its forms, and symmc for `--compile`.
"""

import argparse
import collections
import fnmatch
import os
import pathlib
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators of `decomposed`
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from outcome import run

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
NF4 = [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0]
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FP4 += [-x for x in FP4]


def packed(numbers, width, dtype, shifts=None):
    """Numbers of a few bits, packed into the elements of a dtype along the last axis."""
    count = torch.iinfo(dtype).bits // width
    shifts = shifts or range(count)
    grouped = numbers.long().unflatten(-1, (-1, count))
    whole = sum(grouped[..., k] << (width * shift) for k, shift in enumerate(shifts))
    return whole.to(dtype)


class Scaled(nn.Module):
    """A layer whose weight is stored with scales."""

    def __init__(self, **tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


class GptqLinear(Scaled):
    """Rows packed in int32, with zero points packed in int32 and groups of rows."""

    def forward(self, x):
        shifts = torch.arange(0, 32, 4)
        weight = (self.qweight[:, None, :] >> shifts[None, :, None]) & 15
        zeros = ((self.qzeros[:, :, None] >> shifts) & 15).flatten(1) + 1
        weight = weight.flatten(0, 1) - zeros[self.g_idx]
        return x @ (self.scales[self.g_idx] * weight)


class AwqLinear(Scaled):
    """Columns packed in int32 in the order of AWQ; unpacked by way of int8."""

    def forward(self, x):
        shifts = torch.arange(0, 32, 4)
        order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
        unpack = lambda packed: torch.bitwise_right_shift(packed[:, :, None], shifts).to(torch.int8)[..., order].flatten(1)
        weight, zeros = torch.bitwise_and(unpack(self.qweight), 15), torch.bitwise_and(unpack(self.qzeros), 15)
        size = weight.shape[0] // zeros.shape[0]
        weight = (weight - zeros.repeat_interleave(size, dim=0)) * self.scales.repeat_interleave(size, dim=0)
        return x @ weight.to(x.dtype)


class Nf4Linear(Scaled):
    """Indices of a table in nibbles, with the largest magnitude of each block."""

    def forward(self, x):
        nibbles = torch.stack([self.weight >> 4, self.weight & 15], dim=-1).flatten()
        weight = self.table[nibbles.int()].view(-1, 64) * self.absmax[:, None]
        return F.linear(x, weight.view(-1, x.shape[-1]).to(x.dtype))


class Mxfp4Linear(Scaled):
    """Blocks of 32 numbers of 4 bits with a power of two."""

    def forward(self, x):
        blocks = torch.stack([self.table[(self.blocks & 15).long()], self.table[(self.blocks >> 4).long()]], dim=-1).flatten(-2)
        weight = torch.ldexp(blocks, (self.scales.int() - 127)[..., None]).flatten(1)
        return F.linear(x, weight.to(x.dtype))


class Int8Linear(Scaled):
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


class Int8PackLinear(Scaled):
    def forward(self, x):
        return torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scale)


class DynamicInt8Linear(Scaled):
    """Rows of activations are quantised too, and the product is one of integers."""

    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True).float() / 127
        stored = torch.round(x / scale).clamp(-128, 127).to(torch.int8)
        sums = torch._int_mm(stored, self.weight.t())
        return (sums.float() * scale * self.scale).to(x.dtype)


class MixedInt8Linear(Scaled):
    """As bitsandbytes: columns with outliers in floats, the others in integers."""

    def forward(self, x):
        is_outlier = (x.abs() >= 2.5).any(dim=0)
        rest = x.masked_fill(is_outlier, 0)
        scale = rest.abs().amax(-1, keepdim=True) / 127
        stored = torch.round(rest / scale).to(torch.int8)
        sums = torch._int_mm(stored, self.weight.t()).float() * scale * self.scale
        return sums + (x * is_outlier) @ (self.weight.float() * self.scale[:, None]).t()


class Fp8Linear(Scaled):
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


class ScaledFp8Linear(Scaled):
    """Both factors in e4m3, with one scale each or one for each row and column."""

    def forward(self, x):
        axes = -1 if self.scale.numel() > 1 else (0, 1)
        scale = x.abs().amax(axes, keepdim=True).float() / 448
        stored = (x / scale).clamp(-448, 448).to(E4M3)
        scale = scale.reshape(-1, 1) if self.scale.numel() > 1 else scale.reshape(())
        return torch._scaled_mm(stored, self.weight.t(), scale, self.scale, out_dtype=torch.bfloat16)


class BlockFp8Linear(Scaled):
    """Blocks of 128 by 128 as DeepSeek stores them; activations in blocks of 128."""

    def forward(self, x):
        blocks = x.unflatten(-1, (-1, 128))
        scale = blocks.abs().amax(-1, keepdim=True).float() / 448
        stored = (blocks / scale).to(E4M3)
        weight = self.weight.float() * self.scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return F.linear((stored.float() * scale).flatten(-2), weight).to(x.dtype)


class GgufLinear(Scaled):
    """Q4_0: blocks of 18 bytes, an f16 and 32 numbers of 4 bits."""

    def forward(self, x):
        blocks = self.weight.view(-1, 18)
        scale = blocks[:, :2].contiguous().view(torch.float16).float()
        nibbles = torch.cat([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], dim=1).to(torch.int8) - 8
        return F.linear(x, (scale * nibbles).view(-1, x.shape[-1]).to(x.dtype))


class Gguf8Linear(Scaled):
    """Q8_0: blocks of 34 bytes, an f16 and 32 numbers of 8 bits."""

    def forward(self, x):
        blocks = self.weight.view(-1, 34)
        scale = blocks[:, :2].contiguous().view(torch.float16).float()
        return F.linear(x, (scale * blocks[:, 2:].view(torch.int8)).view(-1, x.shape[-1]).to(x.dtype))


class MxFp8Linear(Scaled):
    """e4m3 with powers of two as scales of blocks of 32."""

    def forward(self, x):
        weight = self.weight.float().unflatten(-1, (-1, 32)) * self.scale.float()[..., None]
        return F.linear(x, weight.flatten(-2).to(x.dtype))


class DecomposedLinear(Scaled):
    """As PyTorch's quantisation of exported programs leaves it."""

    def forward(self, x):
        ops = torch.ops.quantized_decomposed
        stored = ops.quantize_per_tensor(x, 0.03, 7, -128, 127, torch.int8)
        x = ops.dequantize_per_tensor(stored, 0.03, 7, -128, 127, torch.int8)
        weight = ops.dequantize_per_channel(self.weight, self.scale, self.zero, 0, -127, 127, torch.int8)
        y = F.linear(x, weight)
        stored = ops.quantize_per_tensor(y, 0.05, 128, 0, 255, torch.uint8)
        return ops.dequantize_per_tensor(stored, 0.05, 128, 0, 255, torch.uint8)


class CachedAttention(nn.Module):
    """Attention over a cache in a narrow dtype, with a scale for each head."""

    def __init__(self, dtype):
        super().__init__()
        limit = 127 if dtype == torch.int8 else 448
        for name in ("keys", "values"):
            full = torch.randn(1, 4, 24, 32)
            scale = full.abs().amax((0, 2, 3), keepdim=True) / limit
            stored = (full / scale).round() if dtype == torch.int8 else full / scale
            self.register_buffer(name, stored.to(dtype))
            self.register_buffer(f"{name}_scale", scale)

    def forward(self, q):
        return F.scaled_dot_product_attention(q, self.keys.to(q.dtype) * self.keys_scale, self.values.to(q.dtype) * self.values_scale)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 32)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.down(F.gelu(self.up(x))).float()


def integers(*shape, bits=8, signed=True):
    low = -(1 << (bits - 1)) if signed else 0
    return torch.randint(low, low + (1 << bits), shape)


def per_row(weight, limit):
    """A weight and the scale of each of its rows."""
    scale = weight.abs().amax(-1) / limit
    return weight / scale[:, None], scale


def int8(rows=32, columns=64):
    weight, scale = per_row(torch.randn(rows, columns), 127)
    return dict(weight=weight.round().to(torch.int8), scale=scale)


def of_torchao(config, dtype=torch.float32):
    """Two layers that torchao quantises. Its tensors are decomposed when the program is exported."""
    from torchao import quantization

    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(dtype).eval()
    quantization.quantize_(model, getattr(quantization, config)())
    return model


def forms():
    """A form by name: a function that makes a module and its operand."""
    x = lambda rows=8, columns=64, dtype=torch.float32: torch.randn(rows, columns).to(dtype)
    bf16 = torch.bfloat16

    def grouped(make):
        group = torch.arange(64) // 16
        zeros, scales = integers(4, 32, bits=4, signed=False), torch.rand(4, 32) / 8
        return make(group, zeros, scales)

    gptq = lambda: grouped(lambda group, zeros, scales: GptqLinear(
        qweight=packed(integers(32, 64, bits=4, signed=False), 4, torch.int32).t().contiguous(),
        qzeros=packed(zeros, 4, torch.int32), scales=scales, g_idx=group))
    awq = lambda: grouped(lambda _, zeros, scales: AwqLinear(
        qweight=packed(integers(64, 32, bits=4, signed=False), 4, torch.int32),
        qzeros=packed(zeros, 4, torch.int32), scales=scales))
    block = lambda: BlockFp8Linear(weight=torch.randn(256, 256).to(E4M3), scale=torch.rand(2, 2) / 16)
    gguf = lambda size, kind: kind(weight=torch.cat(
        [(torch.rand(64, 1) / 8).half().view(torch.uint8), integers(64, size - 2, signed=False).to(torch.uint8)], dim=1).flatten())

    def fp8(dtype):
        weight, scale = per_row(torch.randn(32, 64), 448)
        return Fp8Linear(weight=weight.to(dtype), scale=scale)

    def scaled(by_row):
        weight = torch.randn(32, 64)
        scale = weight.abs().amax(-1, keepdim=True).t() / 448 if by_row else weight.abs().amax() / 448
        return ScaledFp8Linear(weight=(weight / (scale.t() if by_row else scale)).to(E4M3), scale=scale)

    return {
        "gptq_int32": lambda: (gptq(), x()),
        "awq_int32": lambda: (awq(), x()),
        "bnb_nf4": lambda: (Nf4Linear(weight=integers(32 * 64 // 2, signed=False).to(torch.uint8), absmax=torch.rand(32), table=torch.tensor(NF4)), x()),
        "bnb_int8": lambda: (MixedInt8Linear(**int8()), x(rows=24)),
        "mxfp4": lambda: (Mxfp4Linear(blocks=integers(32, 2, 16, signed=False).to(torch.uint8), scales=integers(32, 2, bits=3) .to(torch.uint8) + 124, table=torch.tensor(FP4)), x()),
        "int8_weight_only": lambda: (Int8Linear(**int8()), x()),
        "int8_weight_only_bf16": lambda: (Int8Linear(**int8()), x(dtype=bf16)),
        "int8pack_mm": lambda: (Int8PackLinear(weight=int8()["weight"], scale=int8()["scale"].to(bf16)), x(dtype=bf16)),
        "int8_dynamic": lambda: (DynamicInt8Linear(**int8()), x(rows=24)),
        "kv_int8": lambda: (CachedAttention(torch.int8), torch.randn(1, 4, 3, 32)),
        "kv_fp8": lambda: (CachedAttention(E4M3), torch.randn(1, 4, 3, 32)),
        "fp8_e4m3": lambda: (fp8(E4M3), x()),
        "fp8_e5m2": lambda: (fp8(E5M2), x()),
        "fp8_scaled_mm": lambda: (scaled(False), x(rows=16)),
        "fp8_scaled_mm_rows": lambda: (scaled(True), x(rows=16)),
        "fp8_blocks": lambda: (block(), x(columns=256, dtype=bf16)),
        "mxfp8": lambda: (MxFp8Linear(weight=torch.randn(32, 64).to(E4M3), scale=torch.tensor([[0.5, 2.0]]).repeat(32, 1).to(E8M0)), x()),
        "gguf_q4_0": lambda: (gguf(18, GgufLinear), x()),
        "gguf_q8_0": lambda: (gguf(34, Gguf8Linear), x()),
        "autocast_bf16": lambda: (Autocast(), x()),
        "decomposed": lambda: (DecomposedLinear(**int8(), zero=torch.zeros(32, dtype=torch.int64)), x()),
        "torchao_int8": lambda: (of_torchao("Int8WeightOnlyConfig"), x()),
        "torchao_int8_dynamic": lambda: (of_torchao("Int8DynamicActivationInt8WeightConfig"), x(rows=24)),
        "torchao_fp8": lambda: (of_torchao("Float8WeightOnlyConfig"), x()),
        "torchao_int4_dynamic": lambda: (of_torchao("Int8DynamicActivationIntxWeightConfig"), x()),
    }


def export(module, operand, archive, tensors, decompose):
    with torch.no_grad():
        expected = module(operand)
        exported = torch.export.export(module, (operand,))
        if decompose:
            exported = exported.run_decompositions()
    torch.export.save(exported, archive)
    save_file({"rank0.in.0": operand, "rank0.out.0": expected.contiguous()}, tensors)


def compiled(module, operand):
    """Whether a form agrees with eager under torch.compile, with nothing left to the fallback."""
    import symmc.torch  # noqa: F401

    torch._dynamo.reset()
    with torch.no_grad():
        expected = module(operand)
        try:
            found = torch.compile(module, backend="symmc", options={"fallback": "error"}, fullgraph=True)(operand)
        except Exception as error:
            return "refused", " ".join(str(error).split())[:300]
    near = torch.allclose(found.double(), expected.double(), rtol=2e-2 if expected.dtype == torch.bfloat16 else 1e-3, atol=1e-3)
    return ("agreed", "") if near else ("wrong", f"they differ by {(found.double() - expected.double()).abs().max():.2e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("symmc", help="the symmc command")
    parser.add_argument("names", nargs="*", help="patterns of names such as fp8_*")
    parser.add_argument("--compile", action="store_true", help="try torch.compile too")
    parser.add_argument("--keep", type=pathlib.Path, help="the folder that keeps the archives")
    args = parser.parse_args()
    counts = collections.defaultdict(collections.Counter)

    def count(door, status, name, why):
        counts[door][status] += 1
        if status != "agreed":
            print(f"{door} {status}: {name}: {why[:220]}", flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in forms().items():
            if args.names and not any(fnmatch.fnmatch(name, pattern) for pattern in args.names):
                continue
            torch.manual_seed(0)
            archive, tensors = folder / f"{name}.pt2", folder / f"{name}.safetensors"
            try:
                module, operand = make()
                export(module.eval(), operand, archive, tensors, name.startswith("torchao"))
            except Exception as error:
                count("run", "unbuilt", name, f"{type(error).__name__}: {error}".replace("\n", " "))
                continue
            count("run", *(lambda outcome: (outcome[0], name, outcome[1]))(run(args.symmc, archive, tensors)))
            if args.compile:
                status, why = compiled(module, operand)
                count("compile", status, name, why)
    for door, statuses in counts.items():
        print(f"{door}: " + ", ".join(f"{status} {statuses[status]}" for status in ("agreed", "refused", "wrong", "unbuilt")))
    sys.exit(1 if any(statuses["wrong"] for statuses in counts.values()) or not counts else 0)


if __name__ == "__main__":
    main()
