#!/usr/bin/env python3
"""Times what a call of a compiled function costs on the CPU, beside what its program takes.

    python3 calls.py [INPUTS,...]

Needs the package `symmc` and PyTorch. For each number of inputs (1, 50, 200 and 1000): a program of two steps on inputs of
one element, given as arguments and as weights of a module. What a run of its session alone takes, nothing being bound; what the
function that the backend made adds to it, and what a call by `torch.compile` adds to it in all; beside that what
`torch.compile` takes with a backend that does nothing. Then the sum over one rank with a residual and a norm behind it that
`symmc.torch.CollectivePass` puts into graphs: its operator by PyTorch's dispatcher, its function, which code of Inductor calls, and
a functional collective (gloo) alone. Microseconds: the smallest mean of five calls that follow each other within a second, so
that what else the machine does is left out.
"""

import os
import socket
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import torch
import torch._inductor.config
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._dynamo.backends.common import aot_autograd

import symmc.torch
from symmc.torch.inductor import operators as symmc_operators
from symmc.torch.partition import stages


def fastest(call, times=5, limit=1.0):
    """Microseconds of a call."""
    for _ in range(20):
        call()
    best, end = float("inf"), time.perf_counter() + limit
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - start) / times)
    return best * 1e6


class Idle:
    """What a backend makes that does nothing."""

    _boxed_call = True

    def __init__(self, result):
        self.result = result

    def __call__(self, inputs):
        return [self.result]


class Weights(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(one, requires_grad=False) for one in weights)

    def forward(self):
        return torch.cat(list(self.weights)) + 1


def idle(result):
    def made(*_given):
        return Idle(result)

    return lambda graph, inputs: aot_autograd(fw_compiler=made, inference_compiler=made)(graph, inputs)


def calls(count):
    """What calls of functions with so many inputs take."""
    given = [torch.randn(1) for _ in range(count)]
    for name, function, arguments in [
        ("arguments", lambda *all: torch.cat(all) + 1, given),
        ("weights", Weights(given), []),
    ]:
        torch._dynamo.reset()
        made, known = [], stages.PlannedGraph
        stages.PlannedGraph = lambda *of: made.append(known(*of)) or made[-1]
        function_of = torch.compile(function, backend="symmc", options={"fallback": "error"})
        kept = function_of(*arguments)
        stages.PlannedGraph = known
        run = fastest(made[0].runner.session.run)
        del kept
        own = fastest(lambda: made[0](list(given))) - run
        whole = fastest(lambda: function_of(*arguments)) - run
        torch._dynamo.reset()
        nothing = torch.compile(function, backend=idle(torch.zeros(count)))
        nothing(*arguments)
        row = (f"{run:.1f}", f"{own:.1f}", f"{own / count:.3f}", f"{whole:.1f}", f"{fastest(lambda: nothing(*arguments)):.1f}")
        print(f"| {count} {name} | {' | '.join(row)} |", flush=True)


def operators():
    """What the operator of the pass takes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    torch._inductor.config.force_disable_caches = True
    norm = torch.nn.RMSNorm(64)

    def function(x, residual):
        x = funcol.all_reduce(x, "sum", dist.group.WORLD) + residual
        return norm(x), x

    given = [torch.randn(4, 64), torch.randn(4, 64)]
    symmc.torch.enable()
    torch._dynamo.reset()
    torch.compile(function)(*given)
    ((text, known),) = symmc_operators._planned.items()
    (planned,) = known.values()
    session = planned.runner.session
    operands = [norm.weight if value.shape == (64,) else given.pop(0) for value in session.inputs()]
    kept = torch.ops.symmc.called_planned(operands, [], text)
    run, name = fastest(session.run), dist.group.WORLD.group_name
    del kept
    by_dispatcher = fastest(lambda: torch.ops.symmc.planned.default(operands, [], text)) - run
    called = fastest(lambda: torch.ops.symmc.called_planned(operands, [], text)) - run
    c10d = torch.ops._c10d_functional
    functional = fastest(lambda: c10d.wait_tensor.default(c10d.all_reduce.default(operands[0], "sum", name)))
    print(f"\na run {run:.1f}; above it: the operator {by_dispatcher:.1f}, its function {called:.1f}; functional {functional:.1f}")
    dist.destroy_process_group()


def main():
    torch.set_num_threads(1)
    counts = [int(count) for count in (sys.argv[1] if len(sys.argv) > 1 else "1,50,200,1000").split(",")]
    print(f"PyTorch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    print("| inputs | a run | the function above it | for each input | a call above it | a backend that does nothing |")
    print("|---|---|---|---|---|---|")
    with torch.no_grad():
        for count in counts:
            calls(count)
        operators()


if __name__ == "__main__":
    main()
