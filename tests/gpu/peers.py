"""PyTorch's side of the comparison, on the GPUs of one machine.

    torchrun --nproc-per-node RANKS peers.py layers (mlp|prefill|decode)=TOKENS...
    torchrun --nproc-per-node RANKS peers.py collectives BYTES...
    torchrun --nproc-per-node RANKS peers.py beside plain|window|copy_engine

Every line of output is JSON: what was measured, and the median, least and most microseconds of one call over
replays of a CUDA graph that holds several. `layers` runs layers of layers.py eagerly, compiled, and compiled with
collectives placed in symmetric memory; `collectives` runs NCCL as it is, NCCL on registered windows, and
PyTorch's symmetric-memory kernels; `beside` runs an all-gather of 128 MiB beside a product of 8192 x 8192 matrices,
with NCCL as it is, on registered windows, or there with the policy that takes no multiprocessors, from graphs and
also without.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

import layers

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
REPLAYS = 20
# Of the layers, and of the caches when decoding.
HIDDEN, POSITIONS = 4096, 2048


def say(**what):
    if RANK == 0:
        print(json.dumps(what), flush=True)


def measure(call, calls, recorded=True, captured=None):
    """Median, least and most microseconds of one call, of several in a graph or one after another; `captured` is called
    when the graph is there."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(5):
            call()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        if recorded:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(calls):
                    call()
            if captured:
                captured()
        times = []
        for replay in range(REPLAYS + 3):
            dist.barrier()
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            if recorded:
                graph.replay()
            else:
                for _ in range(calls):
                    call()
            end.record(stream)
            torch.cuda.synchronize()
            if replay >= 3:
                times.append(begin.elapsed_time(end) * 1e3 / calls)
    times.sort()
    return {"us": times[len(times) // 2], "least": times[0], "most": times[-1]}


def attempt(call, calls, graph=True, captured=None, **what):
    try:
        say(**what, **measure(call, calls, graph, captured))
    except Exception as error:  # what a peer cannot do is part of the comparison
        torch.cuda.synchronize()
        say(**what, failed=f"{type(error).__name__}: {str(error).splitlines()[0][:160]}")


def program(model, given, **what):
    """The model as its author writes it, compiled, and compiled with collectives placed in symmetric memory."""
    with torch.no_grad():
        attempt(lambda: model(*given), 3, how="eager", **what)
        torch._dynamo.reset()
        compiled = torch.compile(model)
        attempt(lambda: compiled(*given), 3, how="compiled", **what)
        torch._dynamo.reset()
        symmetric.enable_symm_mem_for_group(dist.group.WORLD.group_name)
        torch._inductor.config._collective.auto_select = True
        placed = torch.compile(model)
        attempt(lambda: placed(*given), 3, how="placed", **what)
        torch._inductor.config._collective.auto_select = False


def stacks(device, cases):
    kind = {"device": device, "dtype": torch.bfloat16}
    for case in cases:
        part, tokens = case.split("=")[0], int(case.split("=")[1])
        model = (layers.mlp if part == "mlp" else layers.decoder)(RANKS).to(**kind)
        caches = layers.caches(model, tokens, POSITIONS, **kind) if part == "decode" else ()
        for cache in caches:
            cache.normal_()
        program(model, (torch.randn(tokens, HIDDEN, **kind), *caches), what=part, tokens=tokens)


def beside(device, how):
    side, group = 8192, dist.group.WORLD.group_name
    dist.all_reduce(torch.ones(1, device=device))
    # What symmc draws: a product takes as long as its numbers let the clocks be.
    drawn = ((torch.arange(side * side, device=device) % 8191 * 7919 % 8191) - 4095) / 1e5
    a, b = (drawn.to(torch.bfloat16).view(side, side).clone() for _ in range(2))
    product = torch.empty_like(a)
    if how == "plain":
        whole, piece = (torch.zeros(side * side // n, device=device, dtype=torch.bfloat16) for n in (1, RANKS))
    else:
        whole, piece = (symmetric.empty(side * side // n, device=device, dtype=torch.bfloat16) for n in (1, RANKS))
        for tensor in (whole, piece):
            symmetric.rendezvous(tensor, group)

    def multiply():
        torch.mm(a, b, out=product)

    def both():
        gathering = dist.all_gather_into_tensor(whole, piece, async_op=True)
        multiply()
        gathering.wait()

    for recorded in (False, True):
        for _ in range(3):
            for what, call in (("product", multiply), ("beside", both)):
                attempt(call, 3, recorded, what=what, how=how, recorded=recorded)


def collective(device, sizes):
    group = dist.group.WORLD.group_name
    for size in sizes:
        count = size // 2

        def plain(n):
            return torch.randn(n, device=device).to(torch.bfloat16)

        whole, result, piece = plain(count), plain(count), plain(count // RANKS)
        rows = [
            ("all_reduce", lambda a, b, c: dist.all_reduce(a)),
            ("all_gather", lambda a, b, c: dist.all_gather_into_tensor(b, c)),
            ("reduce_scatter", lambda a, b, c: dist.reduce_scatter_tensor(c, b)),
            ("all_to_all", lambda a, b, c: dist.all_to_all_single(b, a)),
        ]
        for name, call in rows:
            attempt(lambda: call(whole, result, piece), 10, what=name, bytes=size, how="nccl")

        def window(n):
            tensor = symmetric.empty(n, device=device, dtype=torch.bfloat16)
            symmetric.rendezvous(tensor, group)
            return tensor.normal_()

        whole, result, piece = window(count), window(count), window(count // RANKS)
        for name, call in rows:
            attempt(lambda: call(whole, result, piece), 10, what=name, bytes=size, how="nccl window")
        if size <= 16 << 20:
            one = lambda: torch.ops.symm_mem.one_shot_all_reduce(whole, "sum", group)
            attempt(one, 10, what="all_reduce", bytes=size, how="torch one_shot")
        two = lambda: torch.ops.symm_mem.two_shot_all_reduce_(whole, "sum", group)
        attempt(two, 10, what="all_reduce", bytes=size, how="torch two_shot")


def main():
    torch.cuda.set_device(RANK)
    device = torch.device("cuda", RANK)
    part, given = sys.argv[1], sys.argv[2:]
    options = dist.ProcessGroupNCCL.Options()
    if given == ["copy_engine"]:
        options.config.cta_policy = dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
    dist.init_process_group("nccl", pg_options=options, device_id=device)
    if part != "layers":
        symmetric.set_backend("NCCL")
    if part == "beside":
        beside(device, given[0])
    elif part == "collectives":
        collective(device, [int(bytes) for bytes in given])
    else:
        stacks(device, given)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
