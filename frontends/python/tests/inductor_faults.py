"""Faults of one rank within a call of a graph of Inductor whose collectives symmc runs, for tests.

``python inductor_faults.py FAULTS [SEED]`` does random trials on two and three ranks until that many faults were raised, and prints how
the trials ended.
"""

import collections
import contextlib
import datetime
import itertools
import random
import signal
import threading
import time
import unittest.mock as mock

from rank_faults import AT_COMPILATION, TIMEOUT, Alarm, Fault, do_trials, expect_errors, outcome, places, raise_alarm, raising
from with_torch import HAS_TORCH

if HAS_TORCH:
    import torch
    import torch._inductor.config
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    import symmc
    import symmc.torch
    from torch._inductor.scheduler import Scheduler
    from symmc.torch.importing.lift import LiftedGraph
    from symmc.torch.inductor import graph_calls, operators

    @torch.library.custom_op("symmc_test::checked", mutates_args=())
    def checked(x: torch.Tensor) -> torch.Tensor:
        if error_between:
            raise error_between.pop()
        return x + 1

    @checked.register_fake
    def _(x):
        return torch.empty_like(x)


error_between = []
"""The error that the operator between collectives raises in its next call."""


@contextlib.contextmanager
def in_calls(change):
    """In this context a change has effect in calls of planned forms, and not while Inductor compiles."""
    whole = operators._call_form

    def call_form(*given, **named):
        with change():
            return whole(*given, **named)

    with mock.patch.object(operators, "_call_form", call_form):
        yield


def fails_under_inductor(rank):
    """Errors of one rank in a collective that symmc runs in a graph of Inductor, in the first call and later."""
    ranks, number = dist.get_world_size(), 0

    def compiled_anew(size):
        """A function whose collective has no plan yet."""
        run = compiled_by_inductor(summed)
        return lambda x=None: torch.testing.assert_close(run(torch.ones(size) if x is None else x), torch.full((size,), float(ranks)))

    kinds = [MemoryError, KeyboardInterrupt, Fault, symmc.ResourceError]
    own_places = [name for name in places(None) if name not in ("graph", "after")]
    for is_first in (True, False):
        for name in own_places:
            if name in AT_COMPILATION and not is_first:
                continue
            number += 1
            error, victim, run = kinds[number % len(kinds)]("on purpose"), number % ranks, compiled_anew(number + 3)
            if is_first:
                # The ranks agree on calls from now on.
                compiled_anew(2)()
            else:
                run()
            try:
                with in_calls(places(error)[name]) if rank == victim else contextlib.nullcontext():
                    found = outcome(run)
                expect_errors(found, error, rank, victim)
                for _ in range(2):
                    run()
            except BaseException as failure:
                raise AssertionError(f"{name} raises {error!r} on rank {victim}, first call: {is_first}") from failure
    for victim in range(ranks):
        run, freed = compiled_anew(30 + victim), torch.ones(30 + victim)
        run()
        if rank == victim:
            freed.untyped_storage().resize_(0)
        error = outcome(lambda: run(freed))
        assert isinstance(error, symmc.InputError if rank == victim else symmc.PeerError), repr(error)
        assert rank == victim or error.culprit == victim, (error.culprit, str(error))
        assert "operand 0 of all_reduce" in str(error) and "pass a tensor with data" in str(error), str(error)
        for _ in range(2):
            run()
    assert operators._planned and number == 9


def compiled_by_inductor(function, timeout=TIMEOUT, **options):
    """A function in whose graph symmc runs the collectives."""
    # Graphs that Inductor has kept pass no pass.
    torch._inductor.config.force_disable_caches = True
    torch._dynamo.reset()
    symmc.torch.enable(timeout=timeout, **options)
    return torch.compile(function, dynamic=False)


def summed(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def summed_twice(x):
    """Two equal collectives, with an operator between them that may fail."""
    return summed(torch.ops.symmc_test.checked(summed(x)))


def summed_and_gathered(x):
    """Two collectives that differ, with an operator between them that may fail."""
    return funcol.all_gather_tensor(torch.ops.symmc_test.checked(summed(x)), 0, dist.group.WORLD)


def expected_of(function, value, size):
    """The result of a function of a tensor with this value in each element."""
    ranks = dist.get_world_size()
    if function is summed:
        return torch.full((size,), float(ranks * value))
    if function is summed_twice:
        return torch.full((size,), float(ranks * (ranks * value + 1)))
    return torch.full((ranks * size,), float(ranks * value + 1))


GRAPHS = [summed, summed_twice, summed_and_gathered]


class Calls:
    """Calls of a compiled function, each with another value: results of operands of different calls are wrong."""

    def __init__(self, function, run):
        self.function, self.run, self.values = function, run, itertools.count(1)

    def __call__(self, size=16):
        value = next(self.values)
        found = self.run(torch.full((size,), float(value)))
        # Alarms concern the call, not its comparison.
        signal.setitimer(signal.ITIMER_REAL, 0)
        torch.testing.assert_close(found, expected_of(self.function, value, size))


@contextlib.contextmanager
def in_form(number, change):
    """In this context a change has effect in the form of this number of a graph."""
    whole, started = operators.PlannedForm.start, itertools.count()

    def start(*given, **named):
        with change() if next(started) == number else contextlib.nullcontext():
            return whole(*given, **named)

    with mock.patch.object(operators.PlannedForm, "start", start):
        yield


@contextlib.contextmanager
def raising_at_once(error):
    """Raises where the context begins."""
    raise error
    yield


@contextlib.contextmanager
def between_forms(error):
    """In this context the operator between two collectives raises an error."""
    error_between.append(error)
    yield
    assert not error_between


def failure_at(place, form, error):
    """In this context one rank fails at a place of the form of this number, or between the forms of a graph."""
    if place == "between":
        return between_forms(error)
    # At the start nothing of the call has begun.
    return in_form(form, places(error)[place] if place != "start" else lambda: raising_at_once(error))


def failure_places(function):
    """Each place at which a graph can fail, with the number of the form there."""
    forms = range(1 if function is summed else 2)
    between = [] if function is summed else [("between", 0)]
    return [(place, form) for form in forms for place in ("start", "results", "after")] + between


def makes_same_calls_after_failure(rank):
    """One rank fails in each form of a graph, before or after its run, or between forms. The others raise in the same call, or in none if
    they need nothing more of this rank. All later calls of all ranks give what each of them asks for."""
    ranks = dist.get_world_size()
    for function in GRAPHS:
        run = Calls(function, compiled_by_inductor(function))
        for (place, form), victim, new_size in itertools.product(failure_places(function), range(ranks), (False, True)):
            run()
            error = (KeyboardInterrupt if form else Fault)("on purpose")
            change = failure_at(place, form, error)
            try:
                with change if rank == victim else contextlib.nullcontext():
                    found = outcome(run)
                is_last = place == "after" and (form == 1 or function is summed)
                if rank == victim:
                    assert found is error, repr(found)
                elif is_last:
                    assert found is None, repr(found)
                elif place == "between":
                    assert isinstance(found, symmc.PeerError) and found.culprit == victim, repr(found)
                else:
                    expect_errors(found, error, rank, victim)
                run(17 + victim if new_size else 16)
                run()
            except BaseException as failure:
                text = f"{function.__name__}, {place} of form {form} raises {error!r} on rank {victim}, new size: {new_size}"
                raise AssertionError(text) from failure


def fails_before_first_agreement(rank):
    """One rank fails in the first call of all ranks, before they can agree on calls."""
    ranks, error = dist.get_world_size(), Fault("on purpose")
    lifting = mock.patch.object(LiftedGraph, "from_module", raising("from_module", error))
    changes = [lambda: lifting, places(error)["group"], places(error)["bootstrap"]]
    for number, change in enumerate(changes):
        victim = number % ranks
        # Ranks have a board for each timeout.
        run = Calls(summed, compiled_by_inductor(summed, TIMEOUT + 1 + number))
        with in_calls(change) if rank == victim else contextlib.nullcontext():
            found = outcome(run)
        expect_errors(found, error, rank, victim)
        for size in (16, 17):
            run(size)


def notifies_ranks_of_lost_call(rank):
    """An error between two forms ends a graph, and its rank calls no other one for a long time. The others raise meanwhile."""
    run, errors = Calls(summed_twice, compiled_by_inductor(summed_twice)), []
    run()
    with between_forms(Fault("on purpose")) if rank == 0 else contextlib.nullcontext():
        errors.append(outcome(run))
    assert isinstance(errors[0], Fault if rank == 0 else symmc.PeerError), repr(errors)
    # The other ranks come here although rank 0 has called no other graph.
    dist.barrier()
    run()


def counts_nested_graphs_apart(rank):
    """A graph is called by an operator of another graph. Neither call is taken for one that an error has ended, and a failure before the
    inner call is one failure on all ranks."""
    inner = torch.compile(lambda x: summed(x), dynamic=False)

    @torch.library.custom_op("symmc_test::nested", mutates_args=())
    def nested(x: torch.Tensor) -> torch.Tensor:
        # Longer than the watcher waits.
        time.sleep(3 * graph_calls._WATCH_INTERVAL)
        return inner(torch.ops.symmc_test.checked(x))

    @nested.register_fake
    def _(x):
        return torch.empty_like(x)

    def outer(x):
        return summed(nested(summed(x)))

    run, ranks, values = compiled_by_inductor(outer), dist.get_world_size(), itertools.count(1)

    def call():
        value = next(values)
        expected = torch.full((5,), float(ranks**2 * (ranks * value + 1)))
        torch.testing.assert_close(run(torch.full((5,), float(value))), expected)

    epochs = {history: history.epoch for history in graph_calls._histories().values()}
    for _ in range(3):
        call()
    assert all(history.epoch == epoch for history, epoch in epochs.items()), epochs
    assert not graph_calls._running, graph_calls._running
    with between_forms(Fault("on purpose")) if rank == 0 else contextlib.nullcontext():
        found = outcome(call)
    assert isinstance(found, Fault if rank == 0 else symmc.PeerError), repr(found)
    for _ in range(3):
        call()


def runs_partitions_of_graphs(rank):
    """Inductor divides a graph into functions, each with one collective. One rank is slow between them. No call fails."""
    slow = []

    @torch.library.custom_op("symmc_test::slow", mutates_args=())
    def slow_operator(x: torch.Tensor) -> torch.Tensor:
        time.sleep(slow.pop() if slow else 0)
        return x + 1

    @slow_operator.register_fake
    def _(x):
        return torch.empty_like(x)

    def is_cut(_scheduler, node):
        return "cut" if "slow" in str(getattr(node.node, "op_overload", "")) else None

    run, ranks = compiled_by_inductor(lambda x: summed(torch.ops.symmc_test.slow(summed(x)))), dist.get_world_size()
    with torch._inductor.config.patch(graph_partition=True), mock.patch.object(Scheduler, "should_partition", is_cut):
        for value in range(1, 6):
            slow[:] = [3 * graph_calls._WATCH_INTERVAL] if rank == value % ranks else []
            expected = torch.full((5,), float(ranks * (ranks * value + 1)))
            torch.testing.assert_close(run(torch.full((5,), float(value))), expected)


def fails_in_one_of_two_threads(rank):
    """Two threads call graphs of two groups with the same ranks. Failures in one of them do not concern the other."""
    ranks, failing = dist.get_world_size(), threading.local()
    groups = [dist.new_group(list(range(ranks))) for _ in range(2)]
    whole, errors, unexpected = operators.PlannedForm._start, [0, 0], []
    compiled_by_inductor(summed)
    runs = [torch.compile(lambda x, group=group: funcol.all_reduce(x, "sum", group), dynamic=False) for group in groups]

    def start(*given, **named):
        if getattr(failing, "error", None):
            error, failing.error = failing.error, None
            raise error
        return whole(*given, **named)

    def call_often(thread, values):
        symmc.torch.enable(timeout=TIMEOUT)
        for value in values:
            if (rank, thread) == (0, 0) and value % 10 == 5:
                failing.error = Fault("on purpose")
            try:
                torch.testing.assert_close(runs[thread](torch.full((5,), float(value))), torch.full((5,), float(ranks * value)))
            except (Fault, symmc.PeerError):
                errors[thread] += 1
            except BaseException as error:
                unexpected.append(error)

    for thread in range(2):
        # The functions are compiled here: options of Inductor belong to a thread.
        call_often(thread, [1])
    with mock.patch.object(operators.PlannedForm, "_start", start):
        threads = [threading.Thread(target=call_often, args=(thread, range(2, 42))) for thread in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert not unexpected and errors == [4, 0], (errors, unexpected[:3])


def ends_calls_of_all_groups(rank):
    """Ranks in a row and in a column: a failure reaches ranks that are not in the group of the collective that fails."""
    rows, columns = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    row_groups, column_groups = [[dist.new_group(ranks) for ranks in groups] for groups in (rows, columns)]
    row, column = row_groups[rank // 2], column_groups[rank % 2]

    def both(x):
        y = torch.ops.symmc_test.checked(funcol.all_reduce(x, "sum", row))
        y = torch.ops.symmc_test.checked(funcol.all_reduce(y, "sum", column))
        return funcol.all_reduce(y, "sum", row)

    run, values = compiled_by_inductor(both), itertools.count(1)

    def call():
        value = next(values)
        torch.testing.assert_close(run(torch.full((6,), float(value))), torch.full((6,), 2.0 * (2 * (2 * value + 1) + 1)))

    call()
    for victim, form, place in itertools.product(range(2), range(3), ("results", "after", "between")):
        if place == "between" and form > 0:
            continue
        error = Fault("on purpose")
        change = failure_at(place, form, error)
        with change if rank == victim else contextlib.nullcontext():
            found = outcome(call)
        # Ranks of another row may have finished, or wait for ranks that have raised.
        is_row = rank // 2 == victim // 2 and not (place == "after" and form == 2)
        text = f"{place} of form {form} on rank {victim}: {found!r}"
        assert found is error if rank == victim else isinstance(found, symmc.PeerError) or (found is None and not is_row), text
        for _ in range(2):
            call()


def recovers_after_timeout(rank):
    """A rank comes too late for a call, with or without an agreement. Later calls run."""
    limit = 2
    run = Calls(summed, compiled_by_inductor(summed, limit))
    run()
    for victim, has_failed in itertools.product(range(dist.get_world_size()), (False, True)):
        if has_failed:
            # The ranks agree on the call after a failure.
            with in_form(0, places(Fault("on purpose"))["results"]) if rank == victim else contextlib.nullcontext():
                outcome(run)
        dist.barrier()
        if rank == victim:
            time.sleep(2 * limit)
        error = outcome(run)
        assert isinstance(error, symmc.PeerError) and error.culprit == victim, repr(error)
        assert "compile their functions again" not in str(error), str(error)
        dist.barrier()
        for _ in range(2):
            run()


def refuses_different_calls(rank):
    """Where a rank was in another call when one failed, as on GPUs, the calls that all ranks make then raise, and later ones run."""
    run, ranks = Calls(summed, compiled_by_inductor(summed)), dist.get_world_size()
    run()
    (history,) = {form.history for known in operators._planned.values() for form in known.values()}
    for victim in range(ranks):
        if rank == 0:
            # As if this rank had not finished the last call.
            history.parts_before += 1
        error = Fault("on purpose")
        with in_form(0, places(error)["results"]) if rank == victim else contextlib.nullcontext():
            found = outcome(run)
        assert found is error if rank == victim else isinstance(found, symmc.PeerError), repr(found)
        text = "continue with the same call on all of them"
        if text not in str(found):
            # Ranks in the call of the rank that failed do not know of the others yet.
            found = outcome(run)
        assert isinstance(found, symmc.PeerError) and text in str(found), repr(found)
        steps = [None] * ranks
        dist.all_gather_object(steps, next(run.values))
        run.values = itertools.count(max(steps))
        for size in (16, 18, 16):
            run(size)


def fails_beside_pytorch(rank):
    """The plan leaves one of two collectives to PyTorch. A failure before it recovers; one in it leaves the ranks of PyTorch apart, and is
    refused from then on."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=5))

    def large_and_small(large, small):
        return funcol.all_reduce(large, "sum", group), funcol.all_reduce(small, "sum", group)

    compiled_by_inductor(large_and_small, timeout=10, machine="host")
    run, large, small = torch.compile(large_and_small), torch.ones(512, 64), torch.ones(3, 64)
    # Of a fixed size it would get no form.
    torch._dynamo.mark_dynamic(small, 0)

    def call():
        found, found_small = run(large, small)
        torch.testing.assert_close(found, 2 * large)
        torch.testing.assert_close(found_small, 2 * small)

    call()
    forms = [form for known in operators._planned.values() for form in known.values() if form.options.machine == "host"]
    assert sorted((bool(form.runner.symbols), form.is_left) for form in forms) == [(False, False), (True, True)]
    for victim in range(2):
        error = Fault("on purpose")
        with in_form(0, places(error)["results"]) if rank == victim else contextlib.nullcontext():
            found = outcome(call)
        assert found is error if rank == victim else isinstance(found, symmc.PeerError), repr(found)
        for _ in range(2):
            call()
    in_pytorch = in_form(1, lambda: mock.patch.object(operators.PlannedForm, "_start", raising("_start", error)))
    with in_pytorch if rank == 0 else contextlib.nullcontext():
        found = outcome(call)
    assert isinstance(found, Fault if rank == 0 else RuntimeError), repr(found)
    for _ in range(2):
        found = outcome(call)
        assert isinstance(found, symmc.PeerError) and "initialise them again" in str(found), repr(found)


def random_faults(rank, trials, seed):
    """At a random moment of a graph one rank raises an error. Ends after this many such errors."""
    draw, ranks, ended = random.Random(seed), dist.get_world_size(), collections.Counter()
    signal.signal(signal.SIGALRM, raise_alarm)
    whole, delay, faults = graph_calls.enter, [], 0

    def enter(site):
        if delay:
            signal.setitimer(signal.ITIMER_REAL, delay.pop())
        return whole(site)

    graph_calls.enter = enter
    # Ranks that begin the trials have a board.
    Calls(summed, compiled_by_inductor(summed))(2)
    for number in itertools.takewhile(lambda _: faults < trials, itertools.count()):
        function, victim, is_first = draw.choice(GRAPHS), draw.randrange(ranks), draw.random() < 0.4
        run, size = Calls(function, compiled_by_inductor(function)), number + 3
        if not is_first:
            run(size)
        after = draw.uniform(0.0002, 0.25 if is_first else 0.0015)
        dist.barrier()
        delay[:] = [after] if rank == victim else []
        text = f"trial {number} of seed {seed}: {function.__name__}, rank {victim} after {after} s, first call: {is_first}"
        try:
            error = outcome(lambda: run(size))
        except AssertionError as failure:
            raise AssertionError(text) from failure
        signal.setitimer(signal.ITIMER_REAL, 0)
        text = f"{text}: {error!r}"
        is_expected = isinstance(error, Alarm) if rank == victim else isinstance(error, symmc.PeerError) and error.culprit == victim
        assert error is None or is_expected, text
        outcomes = [None] * ranks
        dist.all_gather_object(outcomes, error is not None)
        faults += outcomes[victim]
        ended[f"{'raised' if outcomes[victim] else 'no error'}, {sum(outcomes)} of {ranks} ranks"] += 1
        try:
            for other_size in (size, size + 1000, size):
                run(other_size)
        except BaseException as failure:
            raise AssertionError(f"after {text}") from failure
    if rank == 0:
        print(f"{faults} faults on {ranks} ranks under Inductor, seed {seed}: {dict(ended)}", flush=True)


if __name__ == "__main__":
    do_trials(random_faults)
