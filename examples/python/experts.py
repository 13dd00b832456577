"""A mixture of experts whose experts are divided between two ranks: ``python examples/python/experts.py``.

The ranks are processes of this machine that PyTorch's gloo connects. With ``--gpus`` each rank has a GPU. They can also be
started by ``torchrun --nproc-per-node 2 examples/python/experts.py``.
"""

import argparse
import os

import torch
import torch.distributed as dist

from symmc.moe import ExpertExchange

EXPERTS, SLOTS, HIDDEN, TOKENS = 8, 2, 64, 32


def run_experts(rows, ends, up, down):
    """The local experts: each multiplies the rows of its section."""
    out = torch.zeros_like(rows)
    start = 0
    for expert, end in enumerate(ends.tolist()):
        hidden = torch.nn.functional.silu(rows[start:end] @ up[expert])
        out[start:end] = hidden @ down[expert]
        start = end
    return out


def run_rank(rank: int, ranks: int, gpus: bool) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29878")
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    dist.init_process_group("nccl" if gpus else "gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    up = torch.randn(EXPERTS, HIDDEN, 4 * HIDDEN).to(device) * 0.1
    down = torch.randn(EXPERTS, 4 * HIDDEN, HIDDEN).to(device) * 0.1
    router = torch.randn(HIDDEN, EXPERTS).to(device)
    local = EXPERTS // ranks
    own = slice(rank * local, (rank + 1) * local)
    torch.manual_seed(1 + rank)
    x = torch.randn(TOKENS, HIDDEN).to(device)
    weights, ids = torch.softmax(x @ router, 1).topk(SLOTS)
    config = dict(experts=EXPERTS, slots=SLOTS, hidden=HIDDEN, tokens=TOKENS, dtype=torch.float32)
    with ExpertExchange(dist.group.WORLD, **config, gpu=rank if gpus else None) as exchange:
        routing = exchange.route(ids)
        rows = exchange.dispatch(x, routing)
        y = exchange.combine(run_experts(rows, routing.ends, up[own], down[own]), routing, weights)
    expected = torch.zeros_like(x)
    for j in range(SLOTS):
        hidden = torch.nn.functional.silu(torch.einsum("th,thi->ti", x, up[ids[:, j]]))
        expected += weights[:, j : j + 1] * torch.einsum("ti,tih->th", hidden, down[ids[:, j]])
    difference = (y - expected).abs().max().item()
    print(f"rank {rank}: {routing.counts.sum().item()} rows, differs from one rank by at most {difference:.1e}")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", action="store_true", help="run each rank on a GPU")
    gpus = parser.parse_args().gpus
    if "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), gpus)
    else:
        torch.multiprocessing.spawn(run_rank, args=(2, gpus), nprocs=2)


if __name__ == "__main__":
    main()
