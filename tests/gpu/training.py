#!/usr/bin/env python3
"""Training steps of sharded and replicated models, compiled in several ways, on one GPU for each rank.

    torchrun --nproc-per-node 2 tests/gpu/training.py [--tokens 2048,8192] [--steps fsdp,fsdp-cast,ddp] [--layers 6]
        [--ways eager,inductor,overlap,symmc] [--option NAME=VALUE …]

A step is the forward and backward pass of layers of norm, gate, up and down products (4096, 14336) that compute in bf16:
`fsdp` gathers shards of f32 parameters and then casts them, `fsdp-cast` casts first and reduce-scatters bf16 gradients, `ddp`
all-reduces each bf16 gradient. Ways are eager PyTorch, Inductor, Inductor with its bucketing and overlap of collectives, and
`backend="symmc"`, to which options are passed. For each way the table has the median time of a step, its ratio to Inductor, the
peak memory of PyTorch's allocator (the arenas of symmc apart), and how far loss and gradients are from eager's; where they are further than bf16 explains, the row says so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import warnings

import torch
import torch._inductor.config as inductor
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch.nn import functional

HIDDEN, INNER = 4096, 14336
ROUNDS, CALLS, WARM = 6, 3, 3
# Relative distance of gradients, and of the loss, that orders of bf16 sums explain.
NEAR = 0.05


class Gather(torch.autograd.Function):
    """A parameter of which each rank has a shard of rows."""

    @staticmethod
    def forward(ctx, shard, cast_first):
        ctx.cast_first = cast_first
        if cast_first:
            return collectives.all_gather_tensor(shard.to(torch.bfloat16), 0, dist.group.WORLD)
        return collectives.all_gather_tensor(shard, 0, dist.group.WORLD).to(torch.bfloat16)

    @staticmethod
    def backward(ctx, gradient):
        if not ctx.cast_first:
            gradient = gradient.float()
        return collectives.reduce_scatter_tensor(gradient, "avg", 0, dist.group.WORLD).float(), None


class Replicated(torch.autograd.Function):
    """A parameter that each rank has whole."""

    @staticmethod
    def forward(ctx, whole):
        return whole.to(torch.bfloat16)

    @staticmethod
    def backward(ctx, gradient):
        return collectives.all_reduce(gradient, "avg", dist.group.WORLD).float()


def weight_of(step: str, parameter: torch.Tensor) -> torch.Tensor:
    """The bf16 weight of a product."""
    return Replicated.apply(parameter) if step == "ddp" else Gather.apply(parameter, step == "fsdp-cast")


def loss_of(step: str, layers: list[list[torch.Tensor]]):
    """The loss as a function of the activations."""

    def loss(x):
        for gate, up, down in layers:
            h = functional.rms_norm(x, (HIDDEN,))
            gated = functional.silu(h @ weight_of(step, gate).t()) * (h @ weight_of(step, up).t())
            x = x + gated @ weight_of(step, down).t()
        return x.float().square().mean()

    return loss


def compiled(way: str, loss, options: dict):
    """The loss, compiled in this way."""
    torch._dynamo.reset()
    if way == "eager":
        return loss
    if way == "symmc":
        return torch.compile(loss, backend="symmc", options=options)
    overlap = way == "overlap"
    for name in ("reorder_for_compute_comm_overlap", "bucket_all_gathers_fx", "bucket_reduce_scatters_fx", "bucket_all_reduces_fx"):
        if hasattr(inductor, name):
            value = overlap if name.startswith("reorder") else "all" if overlap else "none"
            setattr(inductor, name, value)
    scheduling = getattr(inductor, "aten_distributed_optimizations", None)
    if hasattr(scheduling, "enable_overlap_scheduling"):
        scheduling.enable_overlap_scheduling = overlap
    return torch.compile(loss)


def stepped(function, x, layers) -> torch.Tensor:
    """The loss of one forward and backward pass, whose gradients lie with the parameters."""
    for parameter in (p for layer in layers for p in layer):
        parameter.grad = None
    loss = function(x)
    loss.backward()
    return loss


def microseconds(work) -> float:
    """The median time of a call."""
    times = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        for _ in range(CALLS):
            work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / CALLS * 1000)
    return statistics.median(times)


def distance(found, expected) -> float:
    """The largest relative distance of lists of tensors; infinite where a number is none."""
    return max(((a - b).norm() / b.norm()).nan_to_num(float("inf")).item() for a, b in zip(found, expected, strict=True))


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="2048,8192", help="rows of the activations of each rank")
    parser.add_argument("--steps", default="fsdp,fsdp-cast,ddp")
    parser.add_argument("--ways", default="eager,inductor,overlap,symmc")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a number, for the backend symmc")
    given = parser.parse_args()
    given.option = {name: float(value) for name, _, value in (o.partition("=") for o in given.option)}
    return given


def main() -> None:
    warnings.filterwarnings("ignore")
    given = read_arguments()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    say = print if rank == 0 else lambda *_, **__: None
    say(f"{'step':10} {'tokens':>6} {'way':10} {'µs':>8} {'ratio':>6} {'GiB':>6} {'loss':>10} {'gradients':>10}")
    for step in given.steps.split(","):
        for tokens in map(int, given.tokens.split(",")):
            torch.manual_seed(rank)
            share = 1 if step == "ddp" else ranks
            shapes = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
            layers = [
                [torch.nn.Parameter(torch.randn(rows // share, columns, device=device) * 0.02) for rows, columns in shapes]
                for _ in range(given.layers)
            ]
            x = torch.randn(tokens, HIDDEN, device=device, dtype=torch.bfloat16) * 0.5
            eager, inductors = None, None
            for way in dict.fromkeys(["eager", *given.ways.split(",")]):
                torch.cuda.reset_peak_memory_stats()
                function = compiled(way, loss_of(step, layers), given.option)
                for _ in range(WARM):
                    loss = stepped(function, x, layers)
                found = [loss.detach(), *(p.grad.clone() for layer in layers for p in layer)]
                eager = eager or found
                away = [distance(found[:1], eager[:1]), distance(found[1:], eager[1:])]
                us = microseconds(lambda f=function: stepped(f, x, layers))
                inductors = us if way == "inductor" else inductors
                ratio = f"{us / inductors:.3f}" if inductors else "-"
                memory = torch.cuda.max_memory_allocated() / 2**30
                wrong = "" if max(away) <= NEAR else "  WRONG NUMBERS"
                row = f"{step:10} {tokens:6} {way:10} {us:8.0f} {ratio:>6} {memory:6.2f} {away[0]:10.1e} {away[1]:10.1e}{wrong}"
                say(row, flush=True)
            del layers, x, eager
            torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
