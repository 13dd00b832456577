#!/usr/bin/env python3
"""Exports realistic programs of one rank with PyTorch, and compares their collectives before and after planning.

    python3 optimised.py OUT [NAME...] [--ranks 4] [--report SYMMC [--machine h200x4]]

OUT gets `NAME.symm` for each program, or for those that the patterns NAME match. With `--report`, SYMMC is the `symmc` command; it
plans each program, and the script prints collectives and MiB of the export and of the plan, and estimated times in microseconds of the
plan with plain collectives and of the plan as it is. The MiB of a collective are those of the larger of its operand and result. Plans with
plain collectives are rewritten too, so their time is not that of the export. No option of `symmc plan` turns off only rewriting.

Programs that cannot be exported or imported are reported with the reason, and the exit code is 1. Needs no GPU: the process group is
PyTorch's fake one, and tensors have no data. Needs the Python package `symmc`. Written for PyTorch 2.15 and transformers 5.17.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.models.cohere.modeling_cohere import CohereDecoderLayer, CohereRotaryEmbedding
from transformers.models.gptj.modeling_gptj import GPTJBlock, GPTJRotaryEmbedding

import symmc

BF16, F32, I64 = torch.bfloat16, torch.float32, torch.int64
HIDDEN, INNER, HEAD, VOCABULARY = 4096, 14336, 128, 128256
# Steps of training with sharded or replicated parameters.
TRAINED_HIDDEN, TRAINED_INNER, TRAINED_TOKENS, FSDP_LAYERS = 2048, 5632, 512, 3
DDP_HIDDEN, DDP_TOKENS, DDP_LAYERS, ZERO_LAYERS, MESH_LAYERS = 1024, 256, 32, 16, 4
BLOCK_LAYERS, DECODE_TOKENS, PREFILL_TOKENS, BLOCK_TOKENS = 4, 16, 2048, 1024
GREEDY_TOKENS, LOSS_TOKENS, EXPERT_TOKENS, EXPERT_INNER, SCALED_BLOCK = 64, 512, 2048, 2048, 128
RATE, CLIP, EPSILON = 0.01, 1.0, 1e-5

COLLECTIVES = "all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|permute_ranks"
BYTES = {"bool": 1, "u8": 1, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8}


@dataclass
class Traced:
    """A function of tensors to export, and the ranks of the process groups that it uses besides the world."""

    function: Callable
    inputs: list[torch.Tensor]
    groups: dict[str, list[list[int]]] = field(default_factory=dict)
    numerics: str = "exact"


def tensor(*shape, dtype=BF16, trained=False):
    return torch.empty(shape, dtype=dtype, requires_grad=trained)


def mesh_of(*extents):
    """A mesh of all ranks, made of tensors that have data."""
    with unset_fake_temporarily():
        return init_device_mesh("cpu", extents, mesh_dim_names=("rows", "columns")[: len(extents)])


def cells(mesh, order):
    """The ranks of the groups along the last axis of this order of the axes of a mesh."""
    with unset_fake_temporarily():
        return mesh.mesh.permute(order).tolist()


class GatherShard(torch.autograd.Function):
    """Gathers an f32 parameter and casts it, and scatters the mean of its gradient."""

    @staticmethod
    def forward(ctx, shard):
        return collectives.all_gather_tensor(shard, 0, dist.group.WORLD).to(BF16)

    @staticmethod
    def backward(ctx, gradient):
        return collectives.reduce_scatter_tensor(gradient.float(), "avg", 0, dist.group.WORLD)


class CopyToRanks(torch.autograd.Function):
    """Megatron's f: the input of column-parallel products, whose gradient is summed."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return collectives.all_reduce(gradient, "sum", ctx.group), None


class SumOverRanks(torch.autograd.Function):
    """Megatron's g: the result of row-parallel products."""

    @staticmethod
    def forward(ctx, x, group):
        return collectives.all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class RowParallel(nn.Linear):
    """A linear layer of which each rank has a part of the columns. Its bias is added after the sum."""

    def forward(self, x):
        y = collectives.all_reduce(functional.linear(x, self.weight), "sum", dist.group.WORLD)
        return y if self.bias is None else y + self.bias


def norm(x, weight):
    """RMS norm as Llama writes it."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)).to(x.dtype)


def attend(h, query, key, value):
    """Causal attention of one sequence by the heads of this rank."""
    tokens = h.shape[0]
    q, k, v = ((h @ w.t()).view(1, tokens, -1, HEAD).transpose(1, 2) for w in (query, key, value))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(tokens, -1)


def megatron_block(x, n1, query, key, value, output, n2, gate, up, down):
    world = dist.group.WORLD
    h = CopyToRanks.apply(norm(x, n1), world)
    x = x + SumOverRanks.apply(attend(h, query, key, value) @ output.t(), world)
    h = CopyToRanks.apply(norm(x, n2), world)
    return x + SumOverRanks.apply((functional.silu(h @ gate.t()) * (h @ up.t())) @ down.t(), world)


def block_weights(ranks, trained=False):
    part, inner = HIDDEN // ranks, INNER // ranks
    shapes = [(HIDDEN,), *[(part, HIDDEN)] * 3, (HIDDEN, part), (HIDDEN,), *[(inner, HIDDEN)] * 2, (HIDDEN, inner)]
    return [tensor(*shape, trained=trained) for shape in shapes]


def fsdp_f32(ranks):
    """A step of layers whose f32 shards are gathered and then cast, with SGD."""
    h, n = TRAINED_HIDDEN, TRAINED_INNER
    shapes = [(h,), (h, h), (h, h), (n, h), (n, h), (h, n)]

    def step(x, *shards):
        y = x
        for layer in range(FSDP_LAYERS):
            weights = [GatherShard.apply(shard) for shard in shards[layer * len(shapes) :][: len(shapes)]]
            n1, first, second, gate, up, down = weights
            y = y + functional.silu(norm(y, n1) @ first.t()) @ second.t()
            y = y + (functional.silu(norm(y, n1) @ gate.t()) * (y @ up.t())) @ down.t()
        gradients = torch.autograd.grad(y.float().square().mean(), shards)
        return [shard - RATE * gradient for shard, gradient in zip(shards, gradients)]

    shards = [tensor(a // ranks, *b, dtype=F32, trained=True) for _ in range(FSDP_LAYERS) for a, *b in shapes]
    return Traced(step, [tensor(TRAINED_TOKENS, h), *shards])


def ddp64(ranks):
    """A step of 32 linear layers with biases, whose gradients are divided and all-reduced."""

    def step(x, *parameters):
        for weight, bias in zip(parameters[::2], parameters[1::2]):
            x = functional.gelu(functional.linear(x, weight, bias), approximate="tanh")
        gradients = torch.autograd.grad(x.float().square().mean(), parameters)
        return [collectives.all_reduce(gradient / ranks, "sum", dist.group.WORLD) for gradient in gradients]

    h = DDP_HIDDEN
    parameters = [tensor(*shape, trained=True) for _ in range(DDP_LAYERS) for shape in ((h, h), (h,))]
    return Traced(step, [tensor(DDP_TOKENS, h), *parameters])


def zero1(ranks):
    """A step whose optimiser is sharded: gradients are scattered and clipped by their norm, new parameters are gathered."""
    world = dist.group.WORLD

    def step(x, *weights):
        for weight in weights:
            x = functional.gelu(x @ weight.t(), approximate="tanh")
        gradients = torch.autograd.grad(x.float().square().mean(), weights)
        gradients = [collectives.reduce_scatter_tensor(gradient, "avg", 0, world) for gradient in gradients]
        squares = [collectives.all_reduce(gradient.float().square().sum(), "sum", world) for gradient in gradients]
        scale = (CLIP / (torch.stack(squares).sum().sqrt() + 1e-6)).clamp(max=1.0)
        rows, rank = DDP_HIDDEN // ranks, dist.get_rank()
        shards = [weight.detach()[rank * rows :][:rows] for weight in weights]
        shards = [shard - RATE * (gradient * scale).to(BF16) for shard, gradient in zip(shards, gradients)]
        return [collectives.all_gather_tensor(shard, 0, world) for shard in shards]

    return Traced(step, [tensor(DDP_TOKENS, DDP_HIDDEN), *(tensor(DDP_HIDDEN, DDP_HIDDEN, trained=True) for _ in range(ZERO_LAYERS))])


def megatron_train(ranks):
    """A tensor-parallel block with the gradients of its input and its parameters."""

    def step(x, *weights):
        return torch.autograd.grad(megatron_block(x, *weights).float().square().mean(), [x, *weights])

    return Traced(step, [tensor(BLOCK_TOKENS, HIDDEN, trained=True), *block_weights(ranks, trained=True)])


class GptjLayers(nn.Module):
    """GPT-J's blocks, with attention and MLP side by side."""

    def __init__(self, ranks):
        super().__init__()
        config = transformers.GPTJConfig(n_embd=HIDDEN, n_head=16, n_positions=2048, attn_implementation="eager")
        self.rotary = GPTJRotaryEmbedding(config)
        self.layers = nn.ModuleList(GPTJBlock(config, layer_idx=k) for k in range(BLOCK_LAYERS))
        for layer in self.layers:
            attention, mlp = layer.attn, layer.mlp
            attention.num_attention_heads //= ranks
            for name in ("q_proj", "k_proj", "v_proj"):
                setattr(attention, name, nn.Linear(HIDDEN, HIDDEN // ranks, bias=False))
            attention.out_proj = RowParallel(HIDDEN // ranks, HIDDEN, bias=False)
            mlp.fc_in = nn.Linear(HIDDEN, 4 * HIDDEN // ranks)
            mlp.fc_out = RowParallel(4 * HIDDEN // ranks, HIDDEN)

    def forward(self, x):
        embeddings = self.rotary(x, position_ids=torch.arange(x.shape[1]).unsqueeze(0))
        for layer in self.layers:
            x = layer(x, position_embeddings=embeddings)
            x = x[0] if isinstance(x, tuple) else x
        return x


def of_module(module, x):
    """A module of which parameters and buffers are inputs."""
    names, tensors = zip(*module.named_parameters(), *module.named_buffers())

    def forward(x, *tensors):
        with torch.no_grad():
            return torch.func.functional_call(module, dict(zip(names, tensors)), (x,))

    return Traced(forward, [x, *tensors], numerics="reassociate")


def gptj(ranks, tokens):
    return of_module(GptjLayers(ranks).eval(), tensor(1, tokens, HIDDEN))


class CohereLayers(nn.Module):
    """Cohere's blocks: as GPT-J's, with grouped heads and without biases."""

    def __init__(self, ranks):
        super().__init__()
        config = transformers.CohereConfig(hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=32,
            num_key_value_heads=8, num_hidden_layers=BLOCK_LAYERS, attn_implementation="sdpa")
        self.rotary = CohereRotaryEmbedding(config)
        self.layers = nn.ModuleList(CohereDecoderLayer(config, layer_idx=k) for k in range(BLOCK_LAYERS))
        for layer in self.layers:
            attention, mlp = layer.self_attn, layer.mlp
            attention.q_proj = nn.Linear(HIDDEN, HIDDEN // ranks, bias=False)
            attention.k_proj = nn.Linear(HIDDEN, HIDDEN // 4 // ranks, bias=False)
            attention.v_proj = nn.Linear(HIDDEN, HIDDEN // 4 // ranks, bias=False)
            attention.o_proj = RowParallel(HIDDEN // ranks, HIDDEN, bias=False)
            mlp.gate_proj = nn.Linear(HIDDEN, INNER // ranks, bias=False)
            mlp.up_proj = nn.Linear(HIDDEN, INNER // ranks, bias=False)
            mlp.down_proj = RowParallel(INNER // ranks, HIDDEN, bias=False)

    def forward(self, x):
        embeddings = self.rotary(x, torch.arange(x.shape[1]).unsqueeze(0))
        for layer in self.layers:
            x = layer(x, position_embeddings=embeddings)
            x = x[0] if isinstance(x, tuple) else x
        return x


def cohere(ranks):
    return of_module(CohereLayers(ranks).eval(), tensor(1, DECODE_TOKENS, HIDDEN))


class LlamaBlock(nn.Module):
    """A block whose linear layers DTensor parallelises."""

    def __init__(self):
        super().__init__()
        self.n1, self.n2 = (nn.Parameter(tensor(HIDDEN)) for _ in range(2))
        self.query, self.key, self.value, self.output = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x):
        tokens = x.shape[0]
        h = norm(x, self.n1)
        q, k, v = (w(h).view(1, tokens, -1, HEAD).transpose(1, 2) for w in (self.query, self.key, self.value))
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(heads.transpose(1, 2).reshape(tokens, -1))
        h = norm(x, self.n2)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def llama_dtensor(ranks):
    """The gradients of a Llama block that DTensor parallelises: those of its input and its parameters."""
    mesh = mesh_of(ranks)
    columns, rows = ("query", "key", "value", "gate", "up"), ("output", "down")
    block = LlamaBlock()
    plan = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
    parallelize_module(block, mesh, plan)
    placed = {name: p.placements if isinstance(p, DTensor) else None for name, p in block.named_parameters()}
    inputs = [(p.to_local() if isinstance(p, DTensor) else p).detach() for p in block.parameters()]

    def step(x, *parts):
        parameters = {
            name: part if placements is None else DTensor.from_local(part, mesh, placements, run_check=False)
            for (name, placements), part in zip(placed.items(), parts)
        }
        y = torch.func.functional_call(block, parameters, (x,))
        return torch.autograd.grad(y.float().square().mean(), [x, *parts])

    return Traced(step, [tensor(BLOCK_TOKENS, HIDDEN, trained=True), *(part.requires_grad_() for part in inputs)],
        numerics="reassociate")


def vocabulary_greedy(ranks):
    """A vocabulary-parallel embedding, an MLP and a head whose logits are gathered for greedy sampling."""
    rows, world = VOCABULARY // ranks, dist.group.WORLD

    def step(ids, first, table, n1, up, down, head):
        outside = (ids < first) | (ids >= first + rows)
        x = functional.embedding((ids - first).masked_fill(outside, 0), table).masked_fill(outside.unsqueeze(1), 0.0)
        x = collectives.all_reduce(x, "sum", world)
        x = x + collectives.all_reduce(functional.silu(norm(x, n1) @ up.t()) @ down.t(), "sum", world)
        return collectives.all_gather_tensor(norm(x, n1) @ head.t(), 1, world).argmax(-1)

    inner = INNER // ranks
    return Traced(step, [tensor(GREEDY_TOKENS, dtype=I64), tensor(dtype=I64), tensor(rows, HIDDEN), tensor(HIDDEN),
        tensor(inner, HIDDEN), tensor(HIDDEN, inner), tensor(rows, HIDDEN)])


def vocabulary_loss(ranks):
    """A vocabulary-parallel head whose logits are gathered for a cross-entropy."""

    def step(x, head, targets):
        logits = collectives.all_gather_tensor(x @ head.t(), 1, dist.group.WORLD)
        return functional.cross_entropy(logits.float(), targets)

    return Traced(step, [tensor(LOSS_TOKENS, HIDDEN), tensor(VOCABULARY // ranks, HIDDEN), tensor(LOSS_TOKENS, dtype=I64)])


def prefill_last(ranks):
    """A block and a vocabulary-parallel head, of which the logits of the last token are wanted."""

    def step(x, n3, head, *weights):
        logits = norm(megatron_block(x, *weights), n3) @ head.t()
        return collectives.all_gather_tensor(logits, 1, dist.group.WORLD)[-1]

    return Traced(step, [tensor(PREFILL_TOKENS, HIDDEN), tensor(HIDDEN), tensor(VOCABULARY // ranks, HIDDEN), *block_weights(ranks)])


def exchange(x):
    return collectives.all_to_all_single(x, None, None, dist.group.WORLD)


def experts_upcast(ranks):
    """Experts whose tokens are cast to f32 for both exchanges."""

    def step(x, up, down):
        h = exchange(x.float()).to(BF16)
        return exchange((functional.silu(h @ up.t()) @ down.t()).float()).to(BF16)

    return Traced(step, [tensor(EXPERT_TOKENS, HIDDEN), tensor(EXPERT_INNER, HIDDEN), tensor(HIDDEN, EXPERT_INNER)])


def experts_with_scales(ranks):
    """Experts whose tokens are exchanged as uint8, with a scale for each block."""

    def step(x, up, down):
        blocks = x.float().view(EXPERT_TOKENS, -1, SCALED_BLOCK)
        scales = blocks.abs().amax(-1).clamp(min=EPSILON) / 127
        payload = (blocks / scales.unsqueeze(-1) + 128).round().to(torch.uint8).view(EXPERT_TOKENS, -1)
        payload, scales = exchange(payload), exchange(scales)
        blocks = (payload.view(EXPERT_TOKENS, -1, SCALED_BLOCK).float() - 128) * scales.unsqueeze(-1)
        h = blocks.view(EXPERT_TOKENS, -1).to(BF16)
        return exchange(functional.silu(h @ up.t()) @ down.t())

    return Traced(step, [tensor(EXPERT_TOKENS, HIDDEN), tensor(EXPERT_INNER, HIDDEN), tensor(HIDDEN, EXPERT_INNER)])


def mesh_2d(ranks):
    """A step on a mesh of two axes: tensor-parallel MLPs, gradients all-reduced over the data axis, and their norm over both."""
    mesh = mesh_of(2, ranks // 2)
    data, tensors = mesh.get_group(0), mesh.get_group(1)

    def step(x, *parameters):
        y = x
        for layer in range(MESH_LAYERS):
            n1, up, down = parameters[3 * layer :][:3]
            h = CopyToRanks.apply(norm(y, n1), tensors)
            y = y + SumOverRanks.apply(functional.silu(h @ up.t()) @ down.t(), tensors)
        gradients = torch.autograd.grad(y.float().square().mean(), parameters)
        gradients = [collectives.all_reduce(gradient, "avg", data) for gradient in gradients]
        squares = [collectives.all_reduce(gradient.float().square().sum(), "sum", tensors) for gradient in gradients]
        total = collectives.all_reduce(torch.stack(squares).sum(), "sum", data)
        scale = (CLIP / (total.sqrt() + 1e-6)).clamp(max=1.0)
        return [p.detach() - RATE * (g * scale).to(BF16) for p, g in zip(parameters, gradients)]

    h, inner = TRAINED_HIDDEN, TRAINED_INNER // (ranks // 2)
    parameters = [tensor(*s, trained=True) for _ in range(MESH_LAYERS) for s in ((h,), (inner, h), (h, inner))]
    groups = {data.group_name: cells(mesh, (1, 0)), tensors.group_name: cells(mesh, (0, 1))}
    return Traced(step, [tensor(TRAINED_TOKENS, h), *parameters], groups)


PROGRAMS = {
    "fsdp_f32": fsdp_f32,
    "ddp64": ddp64,
    "zero1": zero1,
    "megatron_train": megatron_train,
    "gptj_16": lambda ranks: gptj(ranks, DECODE_TOKENS),
    "gptj_2048": lambda ranks: gptj(ranks, PREFILL_TOKENS),
    "cohere_16": cohere,
    "llama_dtensor": llama_dtensor,
    "vocabulary_greedy": vocabulary_greedy,
    "vocabulary_loss": vocabulary_loss,
    "prefill_last": prefill_last,
    "experts_upcast": experts_upcast,
    "experts_with_scales": experts_with_scales,
    "mesh_2d": mesh_2d,
}


def export(name: str, ranks: int) -> tuple[str, str]:
    """The text of a program, and the numerics classes to plan it with."""
    torch.set_default_dtype(BF16)
    with FakeTensorMode(allow_non_fake_inputs=True):
        traced = PROGRAMS[name](ranks)
        graph = make_fx(traced.function, tracing_mode="fake")(*traced.inputs)
    graph.graph.eliminate_dead_code()
    program = symmc.from_fx(graph, ranks=ranks, groups=traced.groups)
    for opaque in program.opaque:
        print(f"{name}: no form is known of {opaque}", file=sys.stderr)
    return program.text(), traced.numerics


def sizes_before(text: str) -> list[int]:
    """The bytes of each collective of a program: those of the larger of operand and result."""
    types = {name: math.prod(map(int, re.findall(r"\d+", shape))) * BYTES[dtype]
        for name, dtype, shape in re.findall(r"(%[\w.]+): (\w+)\[([\d, ]*)\]", text)}
    found = re.findall(rf"^(%[\w.]+): [^=]+ = (?:{COLLECTIVES}) (%[\w.]+)", text, re.MULTILINE)
    return [max(types[name] for name in pair) for pair in found]


def report(name: str, file: pathlib.Path, numerics: str, command: str, machine: str) -> None:
    """Prints the row of a program."""
    arguments = [command, "plan", file, "--machine", machine, "--numerics", numerics, "--format", "summary"]
    bucket = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)["buckets"][0]
    before, after = sizes_before(file.read_text()), [c["bytes"] for c in bucket["collectives"]]
    numbers = f"{len(before):>6} {sum(before) / 2**20:>9.2f} {len(after):>6} {sum(after) / 2**20:>9.2f}"
    times = f"{bucket['plain_total_us'] or math.nan:>9.1f} {bucket['total_us']:>9.1f} {bucket['exposed_us']:>9.1f}"
    print(f"{name:<20} {numerics:<12} {numbers} {times}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME", default=["*"])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--report", metavar="SYMMC")
    parser.add_argument("--machine", default="h200x4")
    given = parser.parse_args()
    names = [name for name in PROGRAMS if any(fnmatch.fnmatch(name, pattern) for pattern in given.names)]
    if not names:
        parser.error(f"no program has such a name; the names are {', '.join(PROGRAMS)}")
    if given.ranks < 2 or given.ranks % 2 or 8 % given.ranks:
        parser.error(f"--ranks: expected 2, 4 or 8, found {given.ranks}")
    given.out.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=given.ranks)
    if given.report:
        counts = f"{'before':>6} {'MiB':>9} {'after':>6} {'MiB':>9}"
        print(f"{'program':<20} {'numerics':<12} {counts} {'plain µs':>9} {'plan µs':>9} {'exposed':>9}")
    failed = []
    for name in names:
        file = given.out / f"{name}.symm"
        try:
            text, numerics = export(name, given.ranks)
            file.write_text(text)
            if given.report:
                report(name, file, numerics, given.report, given.machine)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}: {error.stderr.strip()}")
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    dist.destroy_process_group()
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
