#!/usr/bin/env python3
"""The step of an optimizer whose state is sharded (ZeRO-1), compiled in several ways, on one GPU for each rank.

    torchrun --nproc-per-node 2 tests/gpu/optimizer.py [--sizes 1024x16,4096x8] [--ways eager,inductor,overlap,symmc] [--device cpu]

Each bf16 gradient is reduce-scattered, the shards are clipped by the norm of all gradients, each rank updates its shard of the f32
parameters, and the new bf16 parameters are gathered. `--sizes` has the rows of the square matrices and their number. Ways and columns
are those of `training.py`: the median time of a step, its ratio to Inductor, and how far the parameters are from eager's. The script
fails if numbers of symmc are wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from training import compiled, distance, microseconds, read_option

RATE, CLIP = 0.05, 1.0
WARM = 3
# Relative distance of bf16 parameters that orders of sums explain.
NEAR = 1e-2


def update(shards: list[torch.Tensor], gradients: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The new shards of the f32 parameters, and the new bf16 parameters."""
    world = dist.group.WORLD
    gradients = [collectives.reduce_scatter_tensor(gradient, "avg", 0, world).float() for gradient in gradients]
    squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    scale = (CLIP / (collectives.all_reduce(squares, "sum", world).sqrt() + 1e-6)).clamp(max=1.0)
    shards = [shard - RATE * (gradient * scale) for shard, gradient in zip(shards, gradients, strict=True)]
    whole = [collectives.all_gather_tensor(shard.to(torch.bfloat16), 0, world) for shard in shards]
    return shards, [collectives.wait_tensor(parameter) for parameter in whole]


def main() -> int:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1024x16,4096x8")
    parser.add_argument("--ways", default="eager,inductor,overlap,symmc")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="for the backend symmc")
    given = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if given.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    say = print if rank == 0 else lambda *_, **__: None
    say(f"{'matrices':>10} {'way':10} {'µs':>8} {'ratio':>6} {'distance':>9}")
    is_right = True
    for size in given.sizes.split(","):
        rows, count = map(int, size.split("x"))
        torch.manual_seed(rank)
        shards = [torch.randn(rows // ranks, rows, device=device) for _ in range(count)]
        gradients = [torch.randn(rows, rows, device=device, dtype=torch.bfloat16) for _ in range(count)]
        eager = inductor = None
        for way in dict.fromkeys(["eager", *given.ways.split(",")]):
            function = compiled(way, update, dict(map(read_option, given.option)))
            for _ in range(WARM):
                function(shards, gradients)
            _, found = function(shards, gradients)
            found = [parameter.clone() for parameter in found]
            eager = eager or found
            us, away = microseconds(lambda: function(shards, gradients), device), distance(found, eager)
            inductor = us if way == "inductor" else inductor
            ratio = f"{us / inductor:.3f}" if inductor else "-"
            wrong = "" if away <= NEAR else "  WRONG NUMBERS"
            is_right &= away <= NEAR or way != "symmc"
            say(f"{size:>10} {way:10} {us:8.0f} {ratio:>6} {away:9.1e}{wrong}", flush=True)
            del function
    dist.destroy_process_group()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
