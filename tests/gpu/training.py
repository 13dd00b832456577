#!/usr/bin/env python3
"""Training steps of sharded and replicated models, compiled in several ways, on one GPU for each rank.

    torchrun --nproc-per-node 2 tests/gpu/training.py [--tokens 2048,8192] [--steps fsdp,fsdp-cast,ddp,llama,moe] [--layers 6]
        [--ways eager,inductor,overlap,symmc] [--option NAME=VALUE …] [--prices 1,0.5,2] [--replays 10000]
        [--device cpu --hidden 64 --inner 128]

A step is the forward and backward pass of a few layers that compute in bf16:
`fsdp`       norm, gate, up and down products; shards of f32 parameters are gathered and then cast
`fsdp-cast`  the same, cast and then gathered; bf16 gradients are reduce-scattered
`ddp`        the same with whole parameters; each bf16 gradient is all-reduced
`llama`      FSDP2-like blocks: norms with weights, attention with rotary embeddings and grouped heads, gated products; all
             parameters are sharded, cast and gathered
`moe`        the same attention, and a mixture of eight experts of which a router takes two for each token. All experts compute all
             tokens, and the router weighs them, so that no size depends on data
`experts`  the same attention, and a mixture of 32 experts, of which each rank has its share and a router takes eight for each token.
           Tokens go to the ranks of their experts and back by two exchanges, whose sizes depend on data (as torchtitan does it)

Ways are eager PyTorch, Inductor, Inductor with its bucketing and overlap of collectives, and `backend="symmc"`, to which options are
passed; with `--prices`, once for each multiple of the default of `memory_price`. For each way the table has the median time of a step,
its ratio to Inductor, the peak memory of PyTorch's allocator with the memory of symmc's sessions, the latter alone, and how far loss and
gradients are from eager's; where they are further than bf16 explains, the row says so.

`--replays N` repeats each step of symmc N times, in turn with a new input and with the first one, and compares the bits of loss and
gradients of the first input. The script fails if they ever differ, or if numbers of symmc are wrong.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch._inductor.config as inductor
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch.nn import functional

HIDDEN, INNER, HEAD, GROUP = 4096, 14336, 128, 4
EXPERTS, TAKEN = 8, 2
DIVIDED_EXPERTS, DIVIDED_TAKEN, DIVIDED_INNER = 32, 8, 768
ROUNDS, CALLS, WARM = 6, 3, 3
# Relative distance of gradients, and of the loss, that orders of bf16 sums explain.
NEAR = 0.05
# The default of memory_price.
PRICE = 0.05


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
        shard = collectives.reduce_scatter_tensor(gradient, "avg", 0, dist.group.WORLD)
        # In eager, gradients of f32 are not waited for otherwise, and all that was communicated stays in memory.
        return collectives.wait_tensor(shard).float(), None


class Replicated(torch.autograd.Function):
    """A parameter that each rank has whole."""

    @staticmethod
    def forward(ctx, whole):
        return whole.to(torch.bfloat16)

    @staticmethod
    def backward(ctx, gradient):
        return collectives.all_reduce(gradient, "avg", dist.group.WORLD).float()


@dataclass
class Step:
    """A training step: the parameters of a layer, and what a layer computes of its input and its bf16 weights."""

    shapes: Callable[[], list[tuple[int, ...]]]
    layer: Callable[..., torch.Tensor]
    weight: Callable[[torch.Tensor], torch.Tensor]
    is_sharded: bool = True
    near: float = NEAR
    """How far gradients may be from eager's."""
    owned: int = 0
    """How many of the last parameters are divided among the ranks, and never gathered."""

    def weights(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        gathered = len(parameters) - self.owned
        return [*map(self.weight, parameters[:gathered]), *(p.to(torch.bfloat16) for p in parameters[gathered:])]


def gated_products(x, gate, up, down):
    h = functional.rms_norm(x, (x.shape[-1],))
    return x + (functional.silu(h @ gate.t()) * (h @ up.t())) @ down.t()


def rotated(x, angles):
    """Heads with rotary embeddings."""
    one, two = x.float().chunk(2, dim=-1)
    sine, cosine = angles.sin(), angles.cos()
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], dim=-1).to(x.dtype)


def attended(x, norm, query, key, value, output):
    """Causal attention of one sequence, with fewer heads of keys and values than of queries."""
    tokens = x.shape[0]
    h = functional.rms_norm(x, (x.shape[-1],), norm, 1e-6)
    frequencies = 10000.0 ** (-torch.arange(0, HEAD, 2, device=x.device, dtype=torch.float32) / HEAD)
    angles = torch.arange(tokens, device=x.device, dtype=torch.float32)[:, None] * frequencies
    q, k, v = ((h @ w.t()).view(1, tokens, -1, HEAD).transpose(1, 2) for w in (query, key, value))
    q, k = rotated(q, angles), rotated(k, angles)
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], dim=1) for one in (k, v))
    heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + heads.transpose(1, 2).reshape(tokens, -1) @ output.t()


def llama_block(x, norm, query, key, value, output, norm_of_products, gate, up, down):
    x = attended(x, norm, query, key, value, output)
    h = functional.rms_norm(x, (x.shape[-1],), norm_of_products, 1e-6)
    return x + (functional.silu(h @ gate.t()) * (h @ up.t())) @ down.t()


def mixture_block(x, norm, query, key, value, output, norm_of_experts, router, gate, up, down):
    x = attended(x, norm, query, key, value, output)
    h = functional.rms_norm(x, (x.shape[-1],), norm_of_experts, 1e-6)
    scores = (h.float() @ router.float().t()).softmax(-1)
    best, which = scores.topk(TAKEN, dim=-1)
    weights = torch.zeros_like(scores).scatter(1, which, best / best.sum(-1, keepdim=True))
    inner = functional.silu(h @ gate.t()) * (h @ up.t())
    inner = inner.view(x.shape[0], EXPERTS, -1) * weights.to(x.dtype)[:, :, None]
    return x + inner.reshape(x.shape[0], -1) @ down.t()


def exchanged_experts(h, router, gate, up, down):
    """The experts of this rank compute the tokens that any rank sends them."""
    ranks, local, width = dist.get_world_size(), gate.shape[0], h.shape[1]
    scores = (h @ router.t()).float().softmax(-1)
    best, which = scores.topk(DIVIDED_TAKEN, dim=-1)
    best = best / best.sum(-1, keepdim=True)
    order = torch.argsort(which.view(-1), stable=True)
    bins = {"bins": DIVIDED_EXPERTS, "min": 0, "max": DIVIDED_EXPERTS - 1}
    sent = torch.histc(which.view(-1).float(), **bins).long()
    group = dist.group.WORLD
    received = collectives.wait_tensor(collectives.all_to_all_single(sent, None, None, group)).view(ranks, local)
    sent_sizes = sent.view(ranks, local).sum(1).tolist()
    received_sizes = received.sum(1).tolist()
    tokens = order // DIVIDED_TAKEN
    rows = collectives.all_to_all_single_autograd(h[tokens], received_sizes, sent_sizes, group)
    # By rank and expert as they come, by expert and rank for the products.
    numbers = torch.arange(local, device=h.device).repeat(ranks)
    expert = torch.repeat_interleave(numbers, received.view(-1), output_size=rows.shape[0])
    by_expert = torch.argsort(expert, stable=True)
    ends = received.sum(0).cumsum(0).to(torch.int32)
    rows = rows[by_expert]
    gated = functional.silu(torch._grouped_mm(rows, gate.transpose(-2, -1), offs=ends))
    inner = gated * torch._grouped_mm(rows, up.transpose(-2, -1), offs=ends)
    out = torch._grouped_mm(inner, down.transpose(-2, -1), offs=ends)
    out = torch.zeros_like(out).index_copy(0, by_expert, out)
    back = collectives.all_to_all_single_autograd(out, sent_sizes, received_sizes, group)
    weighted = (back.float() * best.view(-1)[order][:, None]).to(h.dtype)
    return torch.zeros_like(h).scatter_add(0, tokens[:, None].expand(-1, width), weighted)


def experts_block(x, norm, query, key, value, output, norm_of_experts, router, gate, up, down):
    x = attended(x, norm, query, key, value, output)
    h = functional.rms_norm(x, (x.shape[-1],), norm_of_experts, 1e-6)
    return x + exchanged_experts(h, router, gate, up, down)


def products_shapes():
    return [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]


def attention_shapes():
    return [(HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN // GROUP, HIDDEN), (HIDDEN // GROUP, HIDDEN), (HIDDEN, HIDDEN)]


def llama_shapes():
    return [*attention_shapes(), (HIDDEN,), *products_shapes()]


def mixture_shapes():
    return [*attention_shapes(), (HIDDEN,), (EXPERTS, HIDDEN), *products_shapes()]


def experts_shapes():
    products = [(DIVIDED_INNER, HIDDEN), (DIVIDED_INNER, HIDDEN), (HIDDEN, DIVIDED_INNER)]
    return [*attention_shapes(), (HIDDEN,), (DIVIDED_EXPERTS, HIDDEN), *((DIVIDED_EXPERTS, *shape) for shape in products)]


def gathered(shard):
    return Gather.apply(shard, True)


STEPS = {
    "fsdp": Step(products_shapes, gated_products, lambda shard: Gather.apply(shard, False)),
    "fsdp-cast": Step(products_shapes, gated_products, gathered),
    "ddp": Step(products_shapes, gated_products, Replicated.apply, is_sharded=False),
    "llama": Step(llama_shapes, llama_block, gathered),
    # Experts of nearly equal scores are chosen otherwise after other roundings.
    "moe": Step(mixture_shapes, mixture_block, gathered, near=0.3),
    "experts": Step(experts_shapes, experts_block, gathered, near=0.3, owned=3),
}


def parameters_of(step: Step, layers: int, ranks: int, device: torch.device) -> list[list[torch.Tensor]]:
    """The parameters of a rank. Those of norms are near one."""
    share = ranks if step.is_sharded else 1

    def parameter(shape):
        of_rank = torch.randn(shape[0] // share, *shape[1:], device=device) * 0.02
        return torch.nn.Parameter(of_rank + 1 if len(shape) == 1 else of_rank)

    return [[parameter(shape) for shape in step.shapes()] for _ in range(layers)]


def loss_of(step: Step, layers: list[list[torch.Tensor]]):
    """The loss as a function of the activations."""

    def loss(x):
        for parameters in layers:
            x = step.layer(x, *step.weights(parameters))
        return x.float().square().mean()

    return loss


def compiled(way: str, loss, options: dict):
    """The loss, compiled in this way."""
    torch._dynamo.reset()
    # Functions that were compiled before hold arenas until they are collected.
    gc.collect()
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


def results_of(function, x, layers) -> list[torch.Tensor]:
    """The loss and the gradients of a step."""
    return [stepped(function, x, layers).detach(), *(p.grad for layer in layers for p in layer)]


def microseconds(work, device: torch.device) -> float:
    """The median time of a call."""
    times = []
    for _ in range(ROUNDS):
        if device.type == "cpu":
            begin = time.perf_counter()
            for _ in range(CALLS):
                work()
            times.append((time.perf_counter() - begin) / CALLS * 1e6)
            continue
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


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of floats, which are equal also where a number is none."""
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def differing_replays(function, x, layers, count: int) -> int:
    """How often the step of an input has other bits than the first time, of so many steps in turn with new inputs and with this one."""
    first = [tensor.clone() for tensor in results_of(function, x, layers)]
    differing = torch.zeros((), dtype=torch.int64, device=x.device)
    for replay in range(count):
        if replay % 2 == 0:
            stepped(function, torch.randn_like(x) * (0.25 + replay % 7 / 8), layers)
            continue
        found = results_of(function, x, layers)
        differs = [(bits(a) != bits(b)).any() for a, b in zip(found, first, strict=True)]
        differing += torch.stack(differs).any()
    return int(differing.item())


def memory_of(device: torch.device) -> tuple[float, float]:
    """The peak of PyTorch's allocator, and the bytes of symmc's sessions, in GiB."""
    from symmc.torch import memory

    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return peak / 2**30, sum(memory().values()) / 2**30


def variants_of(way: str, options: dict, prices: list[float]) -> list[tuple[str, dict]]:
    """A way by name, with its options; that of symmc once for each price of memory."""
    if way != "symmc":
        return [(way, {})]
    named = [(factor, {} if factor == 1 else {"memory_price": PRICE * factor}) for factor in prices]
    return [("symmc" if factor == 1 else f"symmc ×{factor:g}", options | price) for factor, price in named]


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="2048,8192", help="rows of the activations of each rank")
    parser.add_argument("--steps", default="fsdp,fsdp-cast,ddp")
    parser.add_argument("--ways", default="eager,inductor,overlap,symmc")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=HIDDEN, help=f"for llama and moe, a multiple of {GROUP} heads")
    parser.add_argument("--inner", type=int, default=INNER)
    parser.add_argument("--head", type=int, default=HEAD, help="elements of a head of attention")
    parser.add_argument("--prices", default="1", help="multiples of the default of memory_price")
    parser.add_argument("--replays", type=int, default=0, metavar="N")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="for the backend symmc")
    given = parser.parse_args()
    given.option = dict(read_option(option) for option in given.option)
    given.prices = [float(price) for price in given.prices.split(",")]
    unknown = [step for step in given.steps.split(",") if step not in STEPS]
    if unknown:
        parser.error(f"--steps: expected {', '.join(STEPS)}, found {', '.join(unknown)}")
    return given


def read_option(text: str) -> tuple[str, object]:
    """An option and its value: a number, if it is one."""
    name, _, value = text.partition("=")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            pass
    return name, {"true": True, "false": False}.get(value.lower(), value)


class Table:
    """The rows of a step at some number of tokens, against eager and Inductor."""

    def __init__(self, say, given, device: torch.device, layers, x):
        self.say, self.given, self.device, self.layers, self.x = say, given, device, layers, x
        self.eager: list[torch.Tensor] | None = None
        self.inductor: float | None = None
        self.is_right = True

    def add(self, name: str, step: str, function) -> None:
        """Runs a way, and prints its row."""
        for _ in range(WARM):
            results_of(function, self.x, self.layers)
        found = [tensor.clone() for tensor in results_of(function, self.x, self.layers)]
        self.eager = self.eager or found
        away = [distance(found[:1], self.eager[:1]), distance(found[1:], self.eager[1:])]
        us = microseconds(lambda: stepped(function, self.x, self.layers), self.device)
        self.inductor = us if name == "inductor" else self.inductor
        ratio = f"{us / self.inductor:.3f}" if self.inductor else "-"
        peak, sessions = memory_of(self.device) if name.startswith("symmc") else (memory_of(self.device)[0], 0.0)
        is_near = away[0] <= NEAR and away[1] <= STEPS[step].near
        self.is_right &= is_near or not name.startswith("symmc")
        wrong = "" if is_near else "  WRONG NUMBERS"
        memory = f"{peak + sessions:6.2f} {sessions:6.2f}"
        self.say(
            f"{step:10} {len(self.x):6} {name:10} {us:8.0f} {ratio:>6} {memory} {away[0]:10.1e} {away[1]:10.1e}{wrong}",
            flush=True,
        )

    def replay(self, name: str, step: str, function) -> None:
        """Repeats the step of symmc with changing inputs."""
        count = self.given.replays
        differing = differing_replays(function, self.x, self.layers, count)
        self.is_right &= differing == 0
        self.say(f"{step:10} {len(self.x):6} {name:10} {count} replays, {differing} of {count // 2} with other bits", flush=True)


def main() -> int:
    global HIDDEN, INNER, HEAD
    warnings.filterwarnings("ignore")
    # Sizes that a program reads from tensors stay in its graph.
    torch._dynamo.config.capture_scalar_outputs = True
    given = read_arguments()
    HIDDEN, INNER, HEAD = given.hidden, given.inner, given.head
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if given.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    say = print if rank == 0 else lambda *_, **__: None
    heads = f"{'GiB':>6} {'symmc':>6} {'loss':>10} {'gradients':>10}"
    say(f"{'step':10} {'tokens':>6} {'way':10} {'µs':>8} {'ratio':>6} {heads}")
    is_right = True
    for name in given.steps.split(","):
        step = STEPS[name]
        for tokens in map(int, given.tokens.split(",")):
            torch.manual_seed(rank)
            layers = parameters_of(step, given.layers, ranks, device)
            x = torch.randn(tokens, HIDDEN, device=device, dtype=torch.bfloat16) * 0.5
            table = Table(say, given, device, layers, x)
            for way in dict.fromkeys(["eager", *given.ways.split(",")]):
                for shown, options in variants_of(way, given.option, given.prices):
                    if device.type == "cuda":
                        torch.cuda.reset_peak_memory_stats()
                    function = compiled(way, loss_of(step, layers), options)
                    table.add(shown, name, function)
                    if way == "symmc" and given.replays:
                        table.replay(shown, name, function)
                    del function
            is_right &= table.is_right
            del layers, x, table
            if device.type == "cuda":
                torch.cuda.empty_cache()
    dist.destroy_process_group()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
