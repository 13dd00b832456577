"""Compiles a model whose weights are divided between two ranks: ``python examples/python/two_ranks.py``.

The ranks are processes of this machine that PyTorch's gloo connects. With ``--gpus`` each rank has a GPU. They can also be
started by ``torchrun --nproc-per-node 2 examples/python/two_ranks.py``.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


class Mlp(torch.nn.Module):
    """Two products with divided weights, and one sum over the ranks."""

    def __init__(self, hidden: int, ranks: int):
        super().__init__()
        self.norm = torch.nn.RMSNorm(hidden)
        self.up = torch.nn.Linear(hidden, 4 * hidden // ranks, bias=False)
        self.down = torch.nn.Linear(4 * hidden // ranks, hidden, bias=False)

    def forward(self, x):
        y = self.down(torch.nn.functional.silu(self.up(self.norm(x))))
        return x + funcol.all_reduce(y, "sum", dist.group.WORLD)


def run_rank(rank: int, ranks: int, gpus: bool) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29876")
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    dist.init_process_group("nccl" if gpus else "gloo", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    model = torch.nn.Sequential(*[Mlp(64, ranks) for _ in range(2)]).to(device)
    report = "two_ranks.txt" if rank == 0 else None
    compiled = torch.compile(model, backend="symmc", dynamic=True, options={"report": report})
    with torch.no_grad():
        for tokens in (2, 7, 100):
            torch.manual_seed(tokens)
            x = torch.randn(tokens, 64, device=device)
            difference = (compiled(x) - model(x)).abs().max().item()
            if rank == 0:
                print(f"{tokens:4} tokens: differs from eager by at most {difference:.1e}")
    if rank == 0:
        print(f"the decisions are in {report}")
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
