"""Faults of one rank within a call of a compiled function, for tests: what each rank must raise, and what the next calls must give.

``python rank_faults.py FAULTS [SEED]`` does random trials on two and three ranks until that many faults were raised, and prints how
the trials ended.
"""

import collections
import contextlib
import itertools
import os
import random
import signal
import sys
import time
import unittest.mock as mock

from with_torch import HAS_TORCH, compiled, on_ranks

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    import symmc
    import symmc.torch
    from symmc.torch.agreement.joint_graph import JointGraph
    from symmc.torch.importing.lift import LiftedGraph
    from symmc.torch.ranks import board
    from symmc.torch.ranks.exchange import RankGroup
    from symmc.torch.runtime import runner
    from symmc.torch.runtime.arenas import Arenas
    from symmc.torch.runtime.planned_graph import PlannedGraph
    from symmc.torch.runtime.runner import PlanRunner

    @torch.library.custom_op("symmc_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @doubled.register_fake
    def _(x):
        return torch.empty_like(x)


TIMEOUT = 60
"""The timeout of waits for other ranks, in seconds. A call that waits for it is wrong."""

LIMIT = TIMEOUT / 2
"""No call takes longer, also under load."""


class Fault(Exception):
    """The error of the rank that fails."""


class Alarm(BaseException):
    """An error at a random moment. It is no ``Exception``, because PyTorch reports some of those as errors of its own."""


def added(x, y):
    return funcol.all_reduce(x + y, "sum", dist.group.WORLD)


def changed(x, y):
    x.mul_(2)
    return funcol.all_reduce(x + y, "sum", dist.group.WORLD)


def cut(x, y):
    """Two plans with an operator between them that eager runs."""
    first = funcol.all_reduce(x + y, "sum", dist.group.WORLD)
    return funcol.all_reduce(torch.ops.symmc_test.doubled(first), "sum", dist.group.WORLD)


class Summed(torch.autograd.Function if HAS_TORCH else object):
    @staticmethod
    def forward(ctx, x):
        return funcol.all_reduce(x, "sum", dist.group.WORLD)

    @staticmethod
    def backward(ctx, gradient):
        return funcol.all_reduce(gradient, "sum", dist.group.WORLD)


def trained(x, y):
    return Summed.apply(x * y)


FUNCTIONS = [added, changed, cut, trained]


def arguments(function):
    x, y = torch.arange(1.0, 5.0), torch.ones(4)
    return (x.requires_grad_(function is trained), y)


def call(run, function, given=None):
    """Calls a function, with its gradient if it has one. Raises if results are wrong."""
    x, y = given or arguments(function)
    before = x.detach().clone()
    result = run(x, y)
    # Alarms concern the call, not its comparison.
    signal.setitimer(signal.ITIMER_REAL, 0)
    ranks = dist.get_world_size()
    if function is trained:
        result.sum().backward()
        torch.testing.assert_close(x.grad, ranks * y)
        torch.testing.assert_close(result.detach(), ranks * before * y)
        return
    expected = {added: ranks * (before + y), changed: ranks * (2 * before + y), cut: 2 * ranks * ranks * (before + y)}
    torch.testing.assert_close(result, expected[function])
    if function is changed:
        torch.testing.assert_close(x, 2 * before)


def outcome(work):
    """The error of work, or None."""
    start = time.monotonic()
    try:
        work()
        return None
    except BaseException as error:
        return error
    finally:
        took = time.monotonic() - start
        assert took < LIMIT, f"a call took {took} s"


def raising(name, error, whole=None):
    """A function in the place of another one, which raises."""

    def function(*given, **named):
        if whole is not None:
            whole(*given, **named)
        raise error

    function.__name__ = name
    return function


def raising_in_bootstrap(error):
    """An exchange of ranks that raises when all of them have passed the barrier of a new group."""
    whole, sessions = RankGroup.all_gather, []

    def all_gather(self, mine, what="a program"):
        values = whole(self, mine, what)
        if what == "a session":
            sessions.append(mine)
            if len(sessions) == 2:
                raise error
        return values

    return all_gather


def places(error):
    """For each place of a call, the change that makes it raise there."""
    run = PlanRunner.run if HAS_TORCH else None
    return {
        "graph": lambda: mock.patch.object(PlannedGraph, "__call__", raising("call", error)),
        "archive": lambda: mock.patch.object(LiftedGraph, "archive", raising("archive", error)),
        "plan": lambda: mock.patch.object(symmc, "compile", raising("compile", error)),
        "bootstrap": lambda: mock.patch.object(RankGroup, "all_gather", raising_in_bootstrap(error)),
        "group": lambda: mock.patch.object(RankGroup, "group", raising("group", error, RankGroup.group)),
        "session": lambda: mock.patch.object(symmc, "Session", raising("Session", error)),
        "opened": lambda: mock.patch.object(symmc, "Session", raising("Session", error, symmc.Session)),
        "sizes": lambda: mock.patch.object(PlanRunner, "_prepare_sizes", raising("sizes", error)),
        "results": lambda: mock.patch.object(runner, "_empty", raising("empty", error)),
        "after": lambda: mock.patch.object(PlanRunner, "run", raising("run", error, run)),
    }


AT_COMPILATION = ("archive", "plan", "bootstrap", "group", "session", "opened", "sizes")
"""Places that only the first call of a function passes."""


def expect_errors(error, own, rank, victim, others_succeed=False):
    """Checks the error of this rank if one of the ranks raised ``own``."""
    if rank == victim:
        assert error is own, repr(error)
    elif not (others_succeed and error is None):
        assert isinstance(error, symmc.PeerError), repr(error)
        assert error.culprit == victim, (error.culprit, str(error))
        # A session that is open when its rank fails may be dropped before the notice of the rank.
        assert type(own).__name__ in str(error) or "closed its session after 0 runs" in str(error), str(error)


def one_rank_raises(rank):
    """Each kind of error, at each place, on each rank, in each kind of function, in the first or a later call."""
    ranks = dist.get_world_size()
    kinds = [MemoryError, KeyboardInterrupt, Fault, symmc.ResourceError, OSError]
    number = 0
    for function in FUNCTIONS:
        for is_first in (True, False):
            for name in places(None):
                if name in AT_COMPILATION and not is_first:
                    continue
                if name == "after" and function is trained:
                    # The others go on to the backward pass, and wait for this rank there, as in eager.
                    continue
                number += 1
                error, victim = kinds[number % len(kinds)]("on purpose"), number % ranks
                run = compiled(function, fallback="eager", timeout=TIMEOUT)
                if not is_first:
                    call(run, function)
                try:
                    with places(error)[name]() if rank == victim else contextlib.nullcontext():
                        found = outcome(lambda: call(run, function))
                    # After the run the others need nothing of this rank, unless another plan follows.
                    expect_errors(found, error, rank, victim, name == "after")
                    for _ in range(2):
                        call(run, function)
                except BaseException as failure:
                    text = f"{function.__name__}, {name} raises {error!r} on rank {victim}, first call: {is_first}"
                    raise AssertionError(text) from failure
    assert number == 3 * (10 + 3) + 9 + 2


def fails_when_sizes_change(rank):
    """An error of one rank while the ranks close a session, and plan and open another one for larger sizes."""
    ranks, error = dist.get_world_size(), Fault("on purpose")
    changes = {
        "close": lambda: mock.patch.object(Arenas, "close", raising("close", error)),
        "closed": lambda: mock.patch.object(Arenas, "close", raising("close", error, Arenas.close)),
        **{name: places(error)[name] for name in ("plan", "bootstrap", "session")},
    }
    for number, (name, change) in enumerate(changes.items()):
        victim = number % ranks
        run = compiled(added, dynamic=True, timeout=TIMEOUT)

        def call_with(size):
            x, y = torch.arange(float(size)), torch.ones(size)
            torch.testing.assert_close(run(x, y), ranks * (x + y))

        call_with(5)
        with change() if rank == victim else contextlib.nullcontext():
            found = outcome(lambda: call_with(100))
        try:
            expect_errors(found, error, rank, victim)
            for size in (100, 5, 101):
                call_with(size)
        except BaseException as failure:
            raise AssertionError(f"{name} raises on rank {victim}") from failure


def fails_while_store_is_stopped(rank):
    """One rank stops the process that hosts the store of PyTorch, and fails. The last rank raises at once, and resumes it."""
    ranks, host, victim = dist.get_world_size(), 0, 1
    pids = [None] * ranks
    dist.all_gather_object(pids, os.getpid())

    def fail(*_given, **_named):
        os.kill(pids[host], signal.SIGSTOP)
        raise error

    for place in (LiftedGraph, "archive"), (symmc, "compile"), (symmc, "Session"):
        run, error = compiled(added, timeout=TIMEOUT), Fault("on purpose")
        dist.barrier()
        with mock.patch.object(*place, fail) if rank == victim else contextlib.nullcontext():
            start = time.monotonic()
            found = outcome(lambda: call(run, added))
            took = time.monotonic() - start
        if rank not in (host, victim):
            os.kill(pids[host], signal.SIGCONT)
        assert (found is error) if rank == victim else isinstance(found, symmc.PeerError), repr(found)
        if rank not in (host, victim):
            assert found.culprit == victim and "on purpose" in str(found), str(found)
            assert took < LIMIT, took
        dist.barrier()
        for _ in range(2):
            call(run, added)


def fails_with_odd_errors(rank):
    """Reasons that cannot be encoded."""
    for victim, has_plan in itertools.product(range(dist.get_world_size()), (False, True)):
        run, error = compiled(added, timeout=TIMEOUT), OSError("no file \udcff")
        if has_plan:
            call(run, added)
        with places(error)["results"]() if rank == victim else contextlib.nullcontext():
            found = outcome(lambda: call(run, added))
        assert found is error if rank == victim else isinstance(found, symmc.PeerError), repr(found)
        assert rank == victim or "no file \\udcff" in str(found), str(found)
        for _ in range(2):
            call(run, added)


def operands_of_one_rank(rank):
    """Arguments that no run can use are refused on all ranks. Others that eager runs give what eager gives."""
    base, data = torch.arange(64.0), bytearray(64)
    unaligned = torch.frombuffer(data, dtype=torch.float32, offset=1, count=4)
    refused = {
        "overlapping": lambda: (base[:4], base[2:6]),
        "the same memory": lambda: (base[:4], base[:4].view(4)),
        "one behind the other in part": lambda: (base[3:7], base[:4]),
    }
    run_by_eager = {
        "one after the other": lambda: (base[:4], base[4:8]),
        "unaligned, changed": lambda: (unaligned.fill_(3), torch.ones(4)),
        "unaligned, read": lambda: (torch.ones(4), unaligned.fill_(3)),
    }
    for victim in range(dist.get_world_size()):
        for name, make in refused.items():
            run = compiled(changed, timeout=TIMEOUT)
            # Dynamo traces with separate arguments.
            call(run, changed)
            for attempt in range(2):
                error = outcome(lambda: run(*(make() if rank == victim else arguments(changed))))
                assert isinstance(error, symmc.InputError), (name, victim, repr(error))
                assert error.culprit == victim and f"rank {victim}: the arguments x and y share memory" in str(error), str(error)
                assert "y.clone()" in str(error) and "arg0" not in str(error), str(error)
                call(run, changed)
            call(run, changed)
        for function in (added, changed):
            run = compiled(function, timeout=TIMEOUT)
            call(run, function)
            for make in run_by_eager.values():
                given = make() if rank == victim else arguments(function)
                x, y = (one.clone() for one in given)
                found, expected = run(*given), function(x, y)
                torch.testing.assert_close(found, expected)
                torch.testing.assert_close(given[0], x)
            # Whoever reads only may read the same memory twice.
            if function is added:
                for make in refused.values():
                    given = make() if rank == victim else arguments(function)
                    torch.testing.assert_close(run(*given), function(*given))


def argument_without_memory(rank):
    """A tensor without memory is found when the run of this rank begins. One without an address is found in the check of operands."""
    for victim, has_address in itertools.product(range(dist.get_world_size()), (True, False)):
        run = compiled(changed, timeout=TIMEOUT)
        call(run, changed)
        x, y = arguments(changed)
        if rank == victim and has_address:
            y.untyped_storage().resize_(0)
        elif rank == victim:
            x, y = x.to("meta"), y.to("meta")
        error = outcome(lambda: run(x, y))
        assert isinstance(error, symmc.InputError if rank == victim else symmc.PeerError), repr(error)
        assert rank == victim or error.culprit == victim, (error.culprit, str(error))
        name = "y" if has_address else "x"
        assert f"the argument {name} has no memory" in str(error), str(error)
        for _ in range(2):
            call(run, changed)


@contextlib.contextmanager
def alarmed(after):
    """In this context an alarm raises an error in calls of joint graphs, this many seconds after their beginning."""
    whole = JointGraph.__call__

    def begun(graph, inputs):
        signal.setitimer(signal.ITIMER_REAL, after)
        return whole(graph, inputs)

    try:
        with mock.patch.object(JointGraph, "__call__", begun):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def taken_rounds(kept):
    """The number of rounds in which this rank took part, once a call in the background has ended."""
    with kept.lock:
        kept.await_background()
        return kept.rounds.round


def raise_alarm(*_given):
    raise Alarm("an alarm")


def random_faults(rank, trials, seed):
    """At a random moment of a call one rank raises an error. Ends after this many such errors."""
    draw, ranks, ended = random.Random(seed), dist.get_world_size(), collections.Counter()
    signal.signal(signal.SIGALRM, raise_alarm)
    # The functions of all trials use one board.
    first = compiled(added, timeout=TIMEOUT)
    call(first, added)
    [kept] = board._boards().values()
    faults = 0
    for number in itertools.takewhile(lambda _: faults < trials, itertools.count()):
        function, victim, is_first = draw.choice(FUNCTIONS[:3]), draw.randrange(ranks), draw.random() < 0.5
        run = compiled(function, fallback="eager", timeout=TIMEOUT)
        if not is_first:
            call(run, function)
        at = draw.uniform(0.0002, 0.8 if is_first else 0.003)
        dist.barrier()
        before, error, start = taken_rounds(kept), None, time.monotonic()
        try:
            with alarmed(at) if rank == victim else contextlib.nullcontext():
                call(run, function)
        except BaseException as failure:
            error = failure
        took = time.monotonic() - start
        text = f"trial {number} of seed {seed}: {function.__name__}, rank {victim} after {at} s, first call: {is_first}, {error!r}"
        assert took < LIMIT, f"{text}: {took} s"
        took_part = taken_rounds(kept) > before
        if error is not None and rank == victim:
            assert isinstance(error, Alarm), text
            if not took_part:
                # The others wait for this rank in the call that failed before they agreed on it.
                call(run, function)
        elif error is not None:
            assert isinstance(error, symmc.PeerError) and error.culprit == victim, text
        outcomes = [None] * ranks
        dist.all_gather_object(outcomes, (error is not None, took_part))
        faults += outcomes[victim][0]
        kind = "agreed" if outcomes[victim][1] else "before the agreement"
        ended[f"{'raised' if outcomes[victim][0] else 'no error'}, {kind}, {sum(has for has, _ in outcomes)} of {ranks} ranks"] += 1
        try:
            for _ in range(2):
                call(run, function)
        except BaseException as failure:
            raise AssertionError(f"after {text}") from failure
    if rank == 0:
        print(f"{faults} faults on {ranks} ranks, seed {seed}: {dict(ended)}", flush=True)


class RandomFaults:
    """Random trials as a function of a rank, which processes can receive."""

    def __init__(self, run_trials, trials, seed):
        self.run_trials, self.trials, self.seed = run_trials, trials, seed

    def __call__(self, rank):
        self.run_trials(rank, self.trials, self.seed)


def do_trials(run_trials):
    """Does the trials that the command line asks for, half of them on two ranks and half on three."""
    trials, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    on_ranks(RandomFaults(run_trials, trials - trials // 2, seed), 2)
    on_ranks(RandomFaults(run_trials, trials // 2, seed + 1), 3)


if __name__ == "__main__":
    do_trials(random_faults)
