#!/usr/bin/env python3
"""Exports exchanges whose sizes depend on data, with what PyTorch gives.

    python3 experts.py OUT [NAME...]

Each program runs in as many processes as it has ranks, joined by gloo; each rank has its own inputs, and for programs
with experts its own experts. OUT gets `NAME.pt2`, the program of rank 0, or `NAME.rank{r}.pt2`, and `NAME.safetensors` with
`rank{r}.w.PARAMETER`, `rank{r}.in.I` and `rank{r}.out.I`. Written for PyTorch 2.15.
"""

import argparse
import os
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.multiprocessing
from safetensors.torch import save_file

import dispatcher  # noqa: F401  It registers custom ops.
from saving import stripped

HIDDEN, WIDE, TOKENS = 8, 16, 6


def exchange(x, received, sent, group):
    return collectives.wait_tensor(
        torch.ops._c10d_functional.all_to_all_single(x, received, sent, group.group_name))


class Summed(torch.nn.Module):
    """Rows to the ranks that the counts name, and their sum."""

    def __init__(self, group):
        super().__init__()
        self.group = group

    def forward(self, x, counts):
        n = self.group.size()
        received = exchange(counts, [1] * n, [1] * n, self.group)
        rows = exchange(x, received.tolist(), counts.tolist(), self.group)
        return rows.sum(0), rows.amax(0), rows.mean(0)

    def inputs(self, rank, n):
        counts = torch.zeros(n, dtype=torch.int64)
        counts[(rank + 1) % n] = TOKENS - rank
        counts[rank] += rank
        return torch.randn(TOKENS, HIDDEN), counts


class Bounded(Summed):
    """The same with a bound on the rows that a rank receives, below what all ranks have."""

    def forward(self, x, counts):
        n = self.group.size()
        received = exchange(counts, [1] * n, [1] * n, self.group).tolist()
        torch._check(sum(received) <= 2 * TOKENS - 1)
        rows = exchange(x, received, counts.tolist(), self.group)
        return (torch.tanh(rows) * 2 + 1).sum(0), torch.cat([rows, x]).sum(0)


class Ring(Summed):
    """Rows to the next rank and from the previous one, in both directions. The ranks are numbers, so each rank has a
    program of its own."""

    def forward(self, x):
        n, rank = self.group.size(), self.group.rank()
        received = x
        for step in (1, -1):
            sent, received = received * 2, torch.empty_like(x)
            pair = [dist.P2POp(dist.isend, sent, (rank + step) % n), dist.P2POp(dist.irecv, received, (rank - step) % n)]
            for work in dist.batch_isend_irecv(pair):
                work.wait()
            received = received + x
        return (received,)

    def inputs(self, rank, n):
        return (torch.randn(TOKENS, HIDDEN),)


class Mixture(torch.nn.Module):
    """Routed experts: rows sorted by expert, sent, grouped by local expert, and sent back."""

    experts, top = 4, 2

    def __init__(self, group, rank):
        super().__init__()
        self.group = group
        local = self.experts // group.size()
        self.router = torch.nn.Linear(HIDDEN, self.experts, bias=False)
        everyone = torch.randn(self.experts, HIDDEN, WIDE) / 3, torch.randn(self.experts, WIDE, HIDDEN) / 3
        up, down = (w[rank * local:(rank + 1) * local].clone() for w in everyone)
        self.up, self.down = torch.nn.Parameter(up), torch.nn.Parameter(down)

    def local(self):
        return self.experts // self.group.size()

    def inputs(self, rank, n):
        return (torch.randn(TOKENS, HIDDEN),)

    def dispatch(self, x):
        n = self.group.size()
        weights, ids = self.router(x).softmax(-1).topk(self.top)
        order = torch.argsort(ids.flatten(), stable=True)
        counts = torch.nn.functional.one_hot(ids.flatten(), self.experts).sum(0)
        arriving = exchange(counts, [self.local()] * n, [self.local()] * n, self.group)
        sent = counts.view(n, -1).sum(1).tolist()
        received = arriving.view(n, -1).sum(1).tolist()
        rows = exchange(x[order // self.top], received, sent, self.group)
        return weights, order, arriving, sent, received, rows

    def combine(self, rows, weights, order, sent, received):
        rows = exchange(rows, sent, received, self.group)
        scores = weights.flatten()[order].unsqueeze(1)
        out = torch.zeros(TOKENS, HIDDEN)
        return out.index_add(0, order // self.top, rows * scores)

    def of_experts(self, arriving):
        """The local expert of each row that arrives."""
        n, local = self.group.size(), self.local()
        of_chunk = torch.arange(local).repeat(n)
        starts = arriving.cumsum(0) - arriving
        return of_chunk, starts

    def forward(self, x):
        weights, order, arriving, sent, received, rows = self.dispatch(x)
        # The row of each position in the order of the experts: the position of a row plus what precedes its chunk.
        ends = arriving.cumsum(0)
        position = torch.arange(rows.shape[0])
        chunk = (position.unsqueeze(1) >= ends.unsqueeze(0)).sum(1)
        by_expert = torch.argsort(chunk % self.local(), stable=True)
        grouped = rows[by_expert]
        ends = arriving.view(-1, self.local()).sum(0).cumsum(0).to(torch.int32)
        hidden = torch.nn.functional.silu(torch._grouped_mm(grouped.bfloat16(), self.up.bfloat16(), ends))
        found = torch._grouped_mm(hidden, self.down.bfloat16(), ends).float()
        back = torch.empty_like(found)
        back[by_expert] = found
        return self.combine(back, weights, order, sent, received)


class Looped(Mixture):
    """The same with a loop over the local experts, each with the rows that `split` gives it."""

    def forward(self, x):
        weights, order, arriving, sent, received, rows = self.dispatch(x)
        ends = arriving.cumsum(0)
        position = torch.arange(rows.shape[0])
        chunk = (position.unsqueeze(1) >= ends.unsqueeze(0)).sum(1)
        by_expert = torch.argsort(chunk % self.local(), stable=True)
        of_each = arriving.view(-1, self.local()).sum(0).tolist()
        pieces = torch.split(rows[by_expert], of_each)
        found = [torch.relu(piece @ self.up[i]) @ self.down[i] for i, piece in enumerate(pieces)]
        found = torch.cat(found)
        back = found[torch.argsort(by_expert)]
        return self.combine(back, weights, order, sent, received)


class Dispatched(Mixture):
    """Experts between custom ops, which `dispatcher` registers: once with scores, and once without."""

    def forward(self, x):
        n, local = self.group.size(), self.local()
        weights, ids = self.router(x).softmax(-1).topk(self.top)
        counts = torch.nn.functional.one_hot(ids.flatten(), self.experts).sum(0)
        capacity = n * TOKENS * min(self.top, local)
        rows, ranks, places, arriving = torch.ops.minimal_ep.dispatch(x, ids, counts, capacity, n)
        ends = arriving.cumsum(0)
        expert = (torch.arange(capacity).unsqueeze(1) >= ends).sum(1).clamp(max=local - 1)
        hidden = torch.relu(torch.bmm(rows.unsqueeze(1), self.up[expert]))
        found = torch.bmm(hidden, self.down[expert]).squeeze(1)
        group = self.group.group_name
        out = torch.ops.minimal_ep.combine(found, ranks, places, weights, TOKENS, self.top, group)
        return out, torch.ops.minimal_ep.combine(found, ranks, places, None, TOKENS, self.top, group), arriving


PROGRAMS = {
    "exchange_sum2": (2, Summed),
    "exchange_sum4": (4, Summed),
    "exchange_bound2": (2, Bounded),
    "ring2": (2, Ring),
    "ring4": (4, Ring),
    "mixture2": (2, Mixture),
    "mixture4": (4, Mixture),
    "mixture_loop2": (2, Looped),
    "dispatched2": (2, Dispatched),
    "dispatched4": (4, Dispatched),
}


def build(name, rank, group):
    _, kind = PROGRAMS[name]
    torch.manual_seed(7)
    model = kind(group, rank) if issubclass(kind, Mixture) else kind(group)
    torch.manual_seed(100 + rank)
    return model.eval(), model.inputs(rank, group.size())


def of_rank(rank, n, name, folder, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHDYNAMO_ENABLE_P2P_COMPILATION="1")
    dist.init_process_group("gloo", rank=rank, world_size=n)
    with torch.no_grad():
        model, inputs = build(name, rank, dist.group.WORLD)
        outputs = model(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        tensors = {f"rank{rank}.w.{k}": v for k, v in model.state_dict().items()}
        tensors |= {f"rank{rank}.in.{i}": v for i, v in enumerate(inputs)}
        tensors |= {f"rank{rank}.out.{i}": v for i, v in enumerate(outputs)}
        torch.save(tensors, f"{folder}/{rank}")
        by_rank = isinstance(model, Ring)
        if by_rank or rank == 0:
            # Dynamo replaces sends and receives, which the other mode of export does not.
            program = torch.export.export(model, inputs, strict=by_rank)
            stripped(program, f"{folder}/{name}.rank{rank}.pt2" if by_rank else f"{folder}/{name}.pt2")
    dist.barrier()
    dist.destroy_process_group()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("names", nargs="*")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(options.names or PROGRAMS):
        n, _ = PROGRAMS[name]
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(of_rank, (n, name, folder, 29510 + i), nprocs=n)
            everything = {}
            for rank in range(n):
                everything |= torch.load(f"{folder}/{rank}")
            save_file({k: v.contiguous() for k, v in everything.items()}, options.out / f"{name}.safetensors")
            for program in pathlib.Path(folder).glob("*.pt2"):
                (options.out / program.name).write_bytes(program.read_bytes())
        print(name)


if __name__ == "__main__":
    main()
