#!/usr/bin/env python3
"""One rank fails in graphs of Inductor whose collectives symmc runs on GPUs.

    failures.py [RANKS]

Runs of GPUs end after their calls, so ranks notice a failure in different calls. For each place of a failure this checks that no rank gets
results of operands of different calls without an error, and that calls are right again once the ranks continue with the same step. Several
ranks run on one GPU if there are fewer GPUs. Needs the package `symmc` and PyTorch.
"""

import itertools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "frontends/python/tests"))

import contextlib

import symmc
import torch
import torch.distributed as dist
from inductor_faults import GRAPHS, Calls, compiled_by_inductor, failure_at, failure_places, outcome
from rank_faults import Fault
from with_torch import on_ranks

MAX_FAILED_CALLS = 3


def call_until_all_succeed(run):
    """The errors of this rank until all ranks succeed in the same call."""
    errors = []
    for _ in range(MAX_FAILED_CALLS + 1):
        # All ranks continue with the last step of any rank.
        steps = [None] * dist.get_world_size()
        dist.all_gather_object(steps, next(run.values))
        run.values = itertools.count(max(steps))
        error = outcome(run)
        if isinstance(error, AssertionError):
            raise error
        failed = [None] * dist.get_world_size()
        dist.all_gather_object(failed, error is not None)
        if not any(failed):
            return errors
        errors.append(error)
    raise AssertionError(f"calls still fail: {errors!r}")


def continue_alone(run, calls):
    """The outcomes of calls without an agreement of the caller, until symmc says that the ranks are in different calls."""
    outcomes = []
    for _ in range(calls):
        outcomes.append(outcome(run))
        if isinstance(outcomes[-1], symmc.DisagreementError):
            break
    return outcomes


def fail_everywhere(rank):
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")
    ranks = dist.get_world_size()
    for function in GRAPHS:
        run = Calls(function, compiled_by_inductor(function))
        for (place, form), victim, calls_alone in itertools.product(failure_places(function), range(ranks), (0, 3)):
            for _ in range(2):
                run()
            error = Fault("on purpose")
            change = failure_at(place, form, error)
            with change if rank == victim else contextlib.nullcontext():
                first = outcome(run)
            assert rank != victim or first is error, repr(first)
            alone = continue_alone(run, calls_alone)
            # The results of runs that failed are void, and a later call raises.
            for number, found in enumerate(alone):
                is_void = any(isinstance(other, symmc.Error) for other in alone[number + 1 :])
                assert not isinstance(found, AssertionError) or is_void, (place, form, victim, alone)
            later = call_until_all_succeed(run)
            if rank == 0:
                kinds = [type(found).__name__ for found in (first, *alone, *later)]
                print(f"{function.__name__:20} {place:7} of form {form}, rank {victim} fails: rank 0 gets {kinds}", flush=True)
            run()


if __name__ == "__main__":
    on_ranks(fail_everywhere, int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    print("all right")
