#!/usr/bin/env python3
"""Times a Llama whose weights are divided between ranks, compiled by symmc's Python package and by PyTorch.

    torchrun --nproc-per-node 2 compiled.py [TOKENS,... [SYMMC]]

Eight layers of hidden size 4096 (or `LAYERS`), bf16, the modelling code of transformers with functional all_reduces behind the
second products. For each number of tokens and each way (`torch.compile`, the same with `symmc.torch.CollectivePass`, both with
CUDA graphs, `backend="symmc"`; or those of `WAYS`): microseconds of a call when several follow each other, microseconds of the
CPU within a call, and the relative distance of its result from eager's. The ways are timed in turn, `ROUNDS` times (12), and what
is told is the median of all rounds. Then ratios: with the pass to without, `backend="symmc"` to `torch.compile` without and with
CUDA graphs and, where SYMMC names the command, to `symmc bench program` on the program that the backend planned. Needs the
package `symmc`, PyTorch and transformers.
"""

import functools
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")

import torch
import torch._inductor.config
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import transformers

import symmc
from symmc.torch import CollectivePass

WAYS = ["compile", "compile + pass", "graphs", "graphs + pass", "symmc"]


class Reduced(torch.nn.Module):
    """A product of this rank's part of the weights, summed over ranks."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return funcol.all_reduce(self.inner(x), "sum", dist.group.WORLD)


def built(rank, ranks):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336 // ranks,
        num_hidden_layers=int(os.environ.get("LAYERS", 8)),
        num_attention_heads=32 // ranks,
        num_key_value_heads=8 // ranks,
        head_dim=128,
        vocab_size=1024,
        max_position_embeddings=8192,
    )
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(False)
    for number, (name, weight) in enumerate(model.named_parameters()):
        if "_proj" in name:
            generator = torch.Generator(device="cuda").manual_seed(1000 * rank + number)
            weight.copy_(torch.randn(weight.shape, generator=generator, device="cuda") * 0.02)
    for layer in model.model.layers:
        layer.self_attn.o_proj = Reduced(layer.self_attn.o_proj)
        layer.mlp.down_proj = Reduced(layer.mlp.down_proj)
    return model


def compiled(model, way):
    """The model under a way, whose code is its own: what was compiled for other ways stays."""
    torch._inductor.config.post_grad_custom_post_pass = CollectivePass() if "pass" in way else None
    names = {"model": model}
    exec("def call(ids):\n    return model(input_ids=ids, use_cache=False).logits", names)
    if way == "symmc":
        return torch.compile(names["call"], backend="symmc", dynamic=False, options={"fallback": "error"})
    return torch.compile(names["call"], mode="reduce-overhead" if "graphs" in way else "default", dynamic=False)


def on_gpu(call, runs=10):
    """Microseconds of a call behind others."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    dist.barrier()
    for _ in range(3):
        call()
    start.record()
    for _ in range(runs):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / runs


def on_cpu(call):
    """Microseconds until a call returns, with nothing before it."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def in_turn(calls, measure, rounds):
    """The median of what is measured of each call, in rounds of all."""
    found = {way: [] for way in calls}
    for _ in range(rounds):
        for way, call in calls.items():
            found[way].append(measure(call))
    return {way: statistics.median(all_of) for way, all_of in found.items()}


def by_itself(command, program, ranks, group):
    """Microseconds of a run of a program by `symmc bench program`, which rank 0 starts while the others wait on the host."""
    found = None
    if dist.get_rank() == 0:
        with tempfile.NamedTemporaryFile("w", suffix=".symm") as file:
            file.write(program.text())
            file.flush()
            machine = "h200x4" if ranks > 2 else "h200x2"
            line = [command, "bench", "program", file.name, "--machine", machine]
            environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
            ran = subprocess.run(line, capture_output=True, text=True, timeout=200, env=environment)
        print((ran.stdout + ran.stderr).strip(), flush=True)
        times = re.search(r"([\d.]+) µs", ran.stdout)
        found = float(times[1]) if times else None
    dist.barrier(group)
    return found


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    on_host = dist.new_group(backend="gloo")
    command = str(pathlib.Path(sys.argv[2]).resolve()) if len(sys.argv) > 2 else None
    rounds = int(os.environ.get("ROUNDS", 12))
    planned, compile_plan = [], symmc.compile

    def seen(program, **options):
        planned.append(program)
        return compile_plan(program, **options)

    symmc.compile = seen
    model = built(rank, ranks)
    with torch.no_grad():
        for tokens in [int(n) for n in (sys.argv[1] if len(sys.argv) > 1 else "2,64,512").split(",")]:
            torch.manual_seed(tokens)
            ids = torch.randint(0, 1000, (1, tokens), device="cuda")
            exact = model(input_ids=ids, use_cache=False).logits.double()
            torch._dynamo.reset()
            calls, errors, plans = {}, {}, {}
            for way in os.environ.get("WAYS", ",".join(WAYS)).split(","):
                function, before = compiled(model, way), len(planned)
                calls[way] = functools.partial(function, ids)
                for _ in range(3):
                    errors[way] = ((calls[way]().double() - exact).norm() / exact.norm()).item()
                plans[way] = len(planned) - before
            times = in_turn(calls, on_gpu, rounds)
            cpu = in_turn(calls, on_cpu, rounds)
            rows = [f"{way} {times[way]:.0f} (CPU {cpu[way]:.0f}, error {errors[way]:.0e}, {plans[way]} plans)" for way in calls]
            if command and "symmc" in times:
                times["bench program"] = by_itself(command, planned[-1], ranks, on_host)
            pairs = [(WAYS[1], WAYS[0]), (WAYS[3], WAYS[2]), *(("symmc", peer) for peer in ("compile", "graphs", "bench program"))]
            known = [pair for pair in pairs if all(times.get(way) for way in pair)]
            if rank == 0:
                print(f"{tokens} tokens: " + ", ".join(rows), flush=True)
                ratios = [f"{a} / {b} {times[a] / times[b]:.3f}" for a, b in known]
                print(f"{tokens} tokens: " + ", ".join(ratios), flush=True)
    dist.barrier()
    # CUDA graphs hold communicators that NCCL would wait for.
    os._exit(0)


if __name__ == "__main__":
    main()
