#!/usr/bin/env python3
"""Checks `symmc.moe` on GPUs, each rank on one: gradients, and captures in CUDA graphs of the caller.

    python3 tests/gpu/exchange.py [--ranks 2] [--replays 20]

Each rank also computes the mixture of all ranks alone, with plain tensors, and compares results and gradients with its own. Captured
calls are replayed with other tokens, weights and choices of experts in the same memory: few and many rows, all tokens to one rank, and
tokens without an expert. A replay with more rows than the capacity must be reported. Needs PyTorch and the package symmc.
"""

import argparse
import os
import socket
import sys
import warnings

import torch
import torch.distributed as dist

import symmc
from symmc.moe import ExpertExchange

EXPERTS, SLOTS, HIDDEN, TOKENS = 8, 3, 72, 33
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class Case:
    """The tokens, choices and weights of all ranks, and the factors of all experts. Every rank draws the same numbers."""

    def __init__(self, ranks, dtype, seed, choice="random"):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(ranks, TOKENS, HIDDEN, generator=generator).to(dtype)
        self.weights = torch.rand(ranks, TOKENS, SLOTS, generator=generator)
        scores = torch.rand(ranks, TOKENS, EXPERTS, generator=generator)
        if choice == "one rank":
            scores[..., : EXPERTS // ranks] += 1
        self.ids = scores.topk(SLOTS, dim=-1).indices
        if choice == "none":
            self.ids[torch.rand(self.ids.shape, generator=generator) < 0.5] = -1
        self.factors = (torch.rand(EXPERTS, HIDDEN, generator=generator) + 0.5).to(dtype)

    def expected(self, rank):
        """The sums of this rank, and the gradients of its tokens, its weights and its experts' factors."""
        x, weights, factors = (t.cuda().requires_grad_() for t in (self.x, self.weights, self.factors))
        ids = self.ids.cuda()
        picked = factors[ids.clamp(min=0)] * (ids >= 0).unsqueeze(-1)
        rows = (torch.tanh(x).unsqueeze(2) * picked).float()
        y = (rows * weights.unsqueeze(-1)).sum(2).to(x.dtype)
        of_x, of_weights, of_factors = torch.autograd.grad(y.float().square().sum(), (x, weights, factors))
        local = EXPERTS // dist.get_world_size()
        return [y[rank].detach(), of_x[rank], of_weights[rank], of_factors[rank * local : (rank + 1) * local]]


class Mixture:
    """A mixture whose experts multiply by factors, with inputs at fixed places."""

    def __init__(self, exchange, dtype):
        self.exchange = exchange
        device = exchange.device
        local = EXPERTS // exchange.ranks
        self.x = torch.zeros(TOKENS, HIDDEN, dtype=dtype, device=device).requires_grad_()
        self.weights = torch.zeros(TOKENS, SLOTS, device=device).requires_grad_()
        self.factors = torch.zeros(local, HIDDEN, dtype=dtype, device=device).requires_grad_()
        self.ids = torch.zeros(TOKENS, SLOTS, dtype=torch.int64, device=device)

    def load(self, case, rank):
        local = EXPERTS // self.exchange.ranks
        with torch.no_grad():
            self.x.copy_(case.x[rank])
            self.weights.copy_(case.weights[rank])
            self.factors.copy_(case.factors[rank * local : (rank + 1) * local])
            self.ids.copy_(case.ids[rank])

    def step(self):
        """The sums and the gradients, by calls that do not wait for the GPU."""
        exchange = self.exchange
        routing = exchange.route(self.ids)
        rows = exchange.dispatch(torch.tanh(self.x), routing)
        numbers = torch.arange(exchange.capacity, device=rows.device)
        if exchange.layout == "batched":
            expert = numbers // (exchange.capacity // exchange.sections)
        else:
            expert = torch.searchsorted(routing.ends, numbers, right=True).clamp(max=exchange.sections - 1)
        y = exchange.combine(rows * self.factors[expert], routing, self.weights)
        return [y.detach(), *torch.autograd.grad(y.float().square().sum(), (self.x, self.weights, self.factors))]


def compare(name, found, expected, dtype):
    for what, a, b in zip(("sums", "tokens", "weights", "factors"), found, expected, strict=True):
        difference = ((a.float() - b.float()).norm() / (b.float().norm() + 1e-9)).item()
        if not difference <= TOLERANCES[dtype]:
            raise AssertionError(f"{name}: {what} differ by {difference:.1e}, allowed {TOLERANCES[dtype]:.1e}")


def captured(step):
    """A graph of a step, and the results that its replays fill."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results


def check_steps(rank, ranks, dtype, layout, align, replays):
    """Steps one by one, and the same steps captured once and replayed."""
    config = dict(experts=EXPERTS, slots=SLOTS, hidden=HIDDEN, tokens=TOKENS, dtype=dtype, layout=layout, align=align)
    name = f"{layout}, {str(dtype)[6:]}, aligned to {align}"
    with ExpertExchange(dist.group.WORLD, **config, gpu=rank) as exchange:
        mixture = Mixture(exchange, dtype)
        for seed, choice in enumerate(("random", "one rank", "none")):
            case = Case(ranks, dtype, seed, choice)
            mixture.load(case, rank)
            compare(f"{name}, {choice}", mixture.step(), case.expected(rank), dtype)
        graph, results = captured(mixture.step)
        for replay in range(replays):
            choice = ("random", "one rank", "none")[replay % 3]
            case = Case(ranks, dtype, 100 + replay, choice)
            mixture.load(case, rank)
            graph.replay()
            compare(f"{name}, replay {replay}, {choice}", results, case.expected(rank), dtype)
        # Calls outside of the graph still work after replays.
        mixture.load(case, rank)
        compare(f"{name}, after the replays", mixture.step(), case.expected(rank), dtype)
        torch.cuda.synchronize()
        exchange.poll()
        del graph
    if rank == 0:
        print(f"{name}: gradients and {replays} replays agree", flush=True)


def check_overfull_replay(rank, ranks):
    """A replay whose routing has more rows than the capacity is reported by `poll`."""
    config = dict(experts=EXPERTS, slots=SLOTS, hidden=HIDDEN, tokens=TOKENS, dtype=torch.float32, capacity=2 * TOKENS)
    exchange = ExpertExchange(dist.group.WORLD, **config, gpu=rank)
    mixture = Mixture(exchange, torch.float32)
    mixture.ids.fill_(-1)
    graph, _ = captured(mixture.step)
    graph.replay()
    torch.cuda.synchronize()
    exchange.poll()
    mixture.ids.zero_()
    graph.replay()
    torch.cuda.synchronize()
    try:
        exchange.poll()
    except symmc.DataError as error:
        found = str(error)
    else:
        raise AssertionError("a replay with more rows than the capacity was not reported")
    rows = ranks * TOKENS * SLOTS
    if f"{rows}" not in found or f"{2 * TOKENS}" not in found:
        raise AssertionError(f"the report names neither {rows} rows nor the capacity {2 * TOKENS}: {found}")
    if rank == 0:
        print(f"an overfull replay: {found}", flush=True)


def run_rank(rank, ranks, port, replays):
    warnings.filterwarnings("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    for dtype in (torch.float32, torch.bfloat16):
        for layout, align in (("expert", 1), ("expert", 8), ("batched", 1)):
            check_steps(rank, ranks, dtype, layout, align, replays)
    check_overfull_replay(rank, ranks)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--replays", type=int, default=20)
    given = parser.parse_args()
    if given.ranks > torch.cuda.device_count():
        print(f"--ranks: expected at most {torch.cuda.device_count()} GPUs, found {given.ranks}", file=sys.stderr)
        return 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, args=(given.ranks, port, given.replays), nprocs=given.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
