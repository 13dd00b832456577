"""The shared parts of tests of ``torch.compile``: the backend, jobs of ranks, and the comparison of results."""

import faulthandler
import importlib.util
import os
import socket
import time
import traceback
import warnings

HAS_TORCH = importlib.util.find_spec("torch") is not None

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp


def compiled(function, **options):
    """A function under the backend, which leaves nothing to others unless it is asked to."""
    torch._dynamo.reset()
    dynamic = options.pop("dynamic", None)
    return torch.compile(function, backend="symmc", dynamic=dynamic, options={"fallback": "error", **options})


LIMIT = 900
"""No job takes longer, in seconds: ranks may have one processor together."""


def _of_rank(rank, ranks, port, functions, failures):
    # Where a rank is that does not end.
    faulthandler.dump_traceback_later(LIMIT - 30)
    warnings.filterwarnings("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        for function in functions:
            function(rank)
            dist.barrier()
    except BaseException:
        failures.put(f"rank {rank}: {traceback.format_exc()}")
        raise SystemExit(1) from None
    finally:
        dist.destroy_process_group()


def groups_anew():
    """Ends the process groups of a rank and makes new ones, which all ranks call together."""
    dist.barrier()
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("gloo")


def on_ranks(function, ranks=2):
    """Runs a function of a module, or several behind each other, on ranks that are processes."""
    functions = function if isinstance(function, list) else [function]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    failures = context.SimpleQueue()
    arguments = [(rank, ranks, port, functions, failures) for rank in range(ranks)]
    processes = [context.Process(target=_of_rank, args=given) for given in arguments]
    [process.start() for process in processes]
    until = time.monotonic() + LIMIT
    [process.join(max(1.0, until - time.monotonic())) for process in processes]
    if any(process.exitcode != 0 for process in processes):
        [process.kill() for process in processes if process.is_alive()]
        raise AssertionError(failures.get() if not failures.empty() else "a rank did not end")


def close(found, expected, limit=1e-4):
    difference = (found - expected).abs().max().item() if found.numel() else 0.0
    if not difference <= limit:
        raise AssertionError(f"largest difference {difference}, allowed {limit}")


def gradients(function, parameters, *inputs):
    """The loss and the gradients of a function of parameters and inputs."""
    own = [p.detach().clone().requires_grad_() for p in parameters]
    loss = function(*own, *inputs)
    loss.backward()
    return loss.detach(), [p.grad for p in own]


def same_gradients(function, parameters, *inputs, limit=1e-4):
    run = compiled(function)
    for _ in range(2):
        loss, found = gradients(run, parameters, *inputs)
        expected_loss, expected = gradients(function, parameters, *inputs)
        close(loss, expected_loss, limit * max(1.0, expected_loss.abs().item()))
        for one, other in zip(found, expected):
            close(one, other, limit * max(1.0, other.abs().max().item()))
