"""The package without PyTorch: programs, plans, sessions, errors, and the command."""

import copy
import importlib.util
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import symmc

SUM = """program "sum" ranks 2
symbol n in 1..=64
group @all world
arg %x: f32[n, 8]
param %w: f32[8] source "weight"
%a: f32[n, 8] = mul %x, %w
%y: f32[n, 8] = all_reduce %a op=sum group=@all
return %y
"""

COUNT = """program "count" ranks 2
group @all world
arg %x: f32[4]
arg %state: f32[4]
%y: f32[4] = all_reduce %x op=sum group=@all
%next: f32[4] = add %state, %y
return %y
mutate %state = %next
"""


def on_ranks(plan, work, **options):
    """The results of ``work`` on each rank. Ranks are threads, each with a session."""
    results, errors = [None] * plan.ranks, []

    def of_rank(group):
        try:
            with symmc.Session(plan, group, **options) as session:
                results[group.rank] = work(session)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=of_rank, args=(group,)) for group in symmc.Group.threads(plan.ranks)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if errors:
        raise errors[0]
    return results


class Programs(unittest.TestCase):
    def test_a_program_prints_the_text_it_was_made_of(self):
        program = symmc.from_text(SUM)
        self.assertEqual((program.name, program.ranks, program.symbols), ("sum", 2, {"n": (1, 64)}))
        self.assertEqual(symmc.from_text(program.text()).text(), program.text())
        self.assertIn("ranks 2", repr(program))

    def test_files_are_opened_by_their_path(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "sum.symm"
            path.write_text(SUM)
            self.assertEqual(symmc.open(path).name, "sum")
            self.assertEqual(symmc.open(str(path), dims={"n": (None, 16)}).symbols, {"n": (1, 16)})
            self.assertEqual(symmc.open(path, dims={"n": "2..8"}).symbols, {"n": (2, 8)})
            with self.assertRaisesRegex(symmc.InputError, "expected a range"):
                symmc.open(path, dims={"n": "?"})

    def test_what_is_wrong_with_a_file_has_its_name(self):
        with self.assertRaises(symmc.InputError) as caught:
            symmc.open("/nowhere/model.pt2")
        self.assertIn("/nowhere/model.pt2", str(caught.exception))
        self.assertEqual(caught.exception.kind, "input")
        with self.assertRaises(symmc.InputError):
            symmc.from_text("program")
        self.assertTrue(issubclass(symmc.InputError, symmc.Error))

    def test_errors_have_their_kind_whoever_raises_them(self):
        self.assertEqual(symmc.UnsupportedError("text").kind, "unsupported")
        self.assertEqual((symmc.PeerError("text").kind, symmc.PeerError("text").rank), ("peer", None))


class Plans(unittest.TestCase):
    def setUp(self):
        self.plan = symmc.compile(symmc.from_text(SUM), buckets={"n": [8, 64]})

    def test_a_plan_reports_explains_and_checks_itself(self):
        self.assertIn("%y", self.plan.report())
        self.assertIn("%y", self.plan.explain("y"))
        report = self.plan.check(require_compared=True)
        self.assertIn("2 buckets", report)
        self.assertIn("equal to its source", report)
        self.assertEqual(set(self.plan.memory()), {"symmetric", "ordinary", "flags", "scratch", "held"})
        with self.assertRaisesRegex(symmc.InputError, "7"):
            self.plan.memory(7)
        with self.assertRaisesRegex(symmc.InputError, "nothing"):
            self.plan.explain("nothing")

    def test_reports_are_text_or_a_page(self):
        page = self.plan.report("html")
        self.assertTrue(page.startswith("<!DOCTYPE html>") and "%y" in page, page)
        self.assertNotIn("http", page)
        self.assertEqual(self.plan.report(), self.plan.report(format="text"))
        frame = self.plan._repr_html_()
        self.assertTrue(frame.startswith("<iframe srcdoc=") and frame.count('"') == 4, frame[:100])
        with self.assertRaisesRegex(symmc.InputError, "expected text or html"):
            self.plan.report("pdf")

    def test_plans_are_copied_and_pickled_and_nothing_else_is(self):
        self.assertIs(copy.deepcopy([self.plan])[0], self.plan)
        self.assertEqual(pickle.loads(pickle.dumps(self.plan)).report(), self.plan.report())
        others = [symmc.from_text(SUM), symmc.Group.threads(1)[0]]
        alone = symmc.compile(symmc.from_text(SUM.replace("ranks 2", "ranks 1")))
        with symmc.Session(alone, symmc.Group.threads(1)[0]) as session:
            for thing in [*others, session]:
                for work in (pickle.dumps, copy.deepcopy):
                    with self.assertRaisesRegex(TypeError, f"cannot pickle.*{type(thing).__name__}"):
                        work(thing)

    def test_choices_are_those_of_the_report(self):
        plan = symmc.compile(symmc.from_text(SUM), machine="h200x2", buckets={"n": [4, 64]})
        choices, report = plan.choices(), plan.report()
        self.assertEqual([choice.symbols for choice in choices], [{"n": (1, 4)}, {"n": (5, 64)}])
        for choice, nbytes in zip(choices, (128, 2048)):
            self.assertEqual((choice.collective, choice.nbytes), ("y", nbytes))
            times = list(choice.estimates.values())
            self.assertEqual(times, sorted(times))
            self.assertEqual(choice.estimates[choice.chosen], times[0])
            self.assertIn("plain", choice.estimates)
            self.assertRegex(report, f"%y .* {choice.chosen} ")
            self.assertIn(choice.chosen, repr(choice))

    def test_a_plan_is_the_same_after_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            self.plan.save(path)
            self.assertEqual(symmc.load(path).report(), self.plan.report())
            with open(path, "a") as file:
                file.write("x")
            with self.assertRaises(symmc.InputError):
                symmc.load(path)

    def test_machines_have_names(self):
        self.assertIn("host", symmc.machines())
        for machine in symmc.machines():
            symmc.compile(symmc.from_text(SUM), machine=machine)
        with self.assertRaisesRegex(symmc.InputError, "expected one of host"):
            symmc.compile(symmc.from_text(SUM), machine="toaster")
        with self.assertRaisesRegex(symmc.InputError, "m"):
            symmc.compile(symmc.from_text(SUM), buckets={"m": [4]})

    def test_run_gives_the_outputs_of_all_ranks(self):
        x, w = np.ones((3, 8), np.float32), np.arange(8, dtype=np.float32)
        outputs = symmc.run(self.plan, [{"x": x, "weight": w}] * 2, symbols={"n": 3})
        for (found,) in outputs:
            np.testing.assert_array_equal(found.numpy(), 2 * np.broadcast_to(w, (3, 8)))
        with self.assertRaisesRegex(symmc.InputError, "inputs: expected those of 2 ranks"):
            symmc.run(self.plan, [{}])


class Sessions(unittest.TestCase):
    def test_bound_memory_is_used_where_it_lies(self):
        plan = symmc.compile(symmc.from_text(COUNT))

        def work(session):
            x, y, state = np.full(4, session.rank + 1, np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32)
            for name, array in [("x", x), ("out.0", y), ("state", state)]:
                session.bind(name, array)
            for _ in range(3):
                session.run()
            x[:] = 0
            session.enqueue()
            session.wait(10)
            return y.copy(), state.copy()

        for y, state in on_ranks(plan, work):
            np.testing.assert_array_equal(y, np.zeros(4))
            np.testing.assert_array_equal(state, np.full(4, 9))

    def test_sizes_change_between_runs(self):
        plan = symmc.compile(symmc.from_text(SUM), buckets={"n": [8, 64]})

        def work(session):
            found = []
            for n in (3, 64, 1):
                session.set(n=n)
                session.write("weight", np.ones(8, np.float32))
                session.write("x", np.full((n, 8), n, np.float32))
                session.run()
                found.append(session.read("out.0").numpy())
            return found

        for found in on_ranks(plan, work):
            for n, y in zip((3, 64, 1), found):
                np.testing.assert_array_equal(y, np.full((n, 8), 2 * n))

    def test_values_say_what_they_are(self):
        plan = symmc.compile(symmc.from_text(SUM))

        def work(session):
            with self.assertRaisesRegex(symmc.InputError, "set n"):
                session.inputs()
            session.set(n=5)
            (x,), (w,), (y,) = session.inputs(), session.parameters(), session.outputs()
            return (x.name, x.kind, x.dtype, x.shape, x.nbytes), (w.source, w.kind), (y.kind, y.replaces)

        for found in on_ranks(plan, work):
            expected = (("x", "argument", "f32", (5, 8), 160), ("weight", "parameter"), ("output", None))
            self.assertEqual(found, expected)

    def test_what_does_not_fit_is_refused_by_name(self):
        plan = symmc.compile(symmc.from_text(SUM))

        def work(session):
            session.set(n=4)
            cases = [
                (np.zeros((4, 7), np.float32), r"x: expected f32\[4, 8\], found f32\[4, 7\]"),
                (np.zeros((4, 8), np.int64), r"x: expected f32\[4, 8\], found i64"),
                (np.zeros((8, 4), np.float32).T, "contiguous"),
                (np.zeros((4, 8), np.complex64), "type of the elements is not supported"),
                ([1.0], "expected a tensor"),
                (None, "expected a tensor"),
            ]
            for value, text in cases:
                for take in (session.bind, session.write):
                    with self.assertRaisesRegex(symmc.InputError, text):
                        take("x", value)
            with self.assertRaisesRegex(symmc.InputError, "nothing"):
                session.bind("nothing", np.zeros(4, np.float32))
            with self.assertRaisesRegex(symmc.InputError, "m"):
                session.set(m=4)
            with self.assertRaisesRegex(symmc.InputError, "65"):
                session.set(n=65)
            with self.assertRaisesRegex(symmc.InputError, "no data"):
                session.run()

        on_ranks(plan, work)

    def test_memory_that_nobody_may_write_is_read(self):
        plan = symmc.compile(symmc.from_text(COUNT))

        def work(session):
            x = np.ones(4, np.float32)
            x.flags.writeable = False
            for name in ("x", "state"):
                session.write(name, x)
                with self.assertRaisesRegex(symmc.InputError, "readonly"):
                    session.bind(name, x)
            session.run()
            return session.read("out.0").numpy()[0]

        self.assertEqual(on_ranks(plan, work), [2.0, 2.0])

    def test_objects_that_share_nothing_are_refused_by_name(self):
        plan = symmc.compile(symmc.from_text(COUNT))

        class Shares:
            def __init__(self, place, capsule):
                self.place, self.capsule = place, capsule

            def __dlpack_device__(self):
                return self.place

            def __dlpack__(self, **_keywords):
                return self.capsule

        def work(session):
            taken = np.ones(4, np.float32).__dlpack__()
            np.from_dlpack(Shares((1, 0), taken))
            for value, text in [
                (Shares((1, 0), taken), "x: the tensor has been taken"),
                (Shares((1, 0), 5), "x: expected a capsule from __dlpack__"),
                (Shares("here", taken), "x: its memory cannot be shared"),
                (np.ones(4, ">f4"), "x: its memory cannot be shared"),
                (np.ones(4, [("a", "f4")]), "x: its memory cannot be shared"),
            ]:
                for take in (session.bind, session.write):
                    with self.assertRaisesRegex(symmc.InputError, text):
                        take("x", value)

        on_ranks(plan, work)

    def test_interrupts_of_objects_are_no_errors_of_theirs(self):
        plan = symmc.compile(symmc.from_text(COUNT))

        class Raises:
            def __init__(self, at, error):
                self.at, self.error = at, error

            def __dlpack_device__(self):
                if self.at == "device":
                    raise self.error
                return (1, 0)

            def __dlpack__(self, **_keywords):
                raise self.error

        def work(session):
            for at in ("device", "tensor"):
                for error in (SystemExit(3), KeyboardInterrupt(), GeneratorExit()):
                    for take in (session.bind, session.write):
                        with self.assertRaises(type(error)):
                            take("x", Raises(at, error))
                with self.assertRaisesRegex(symmc.InputError, "x: its memory cannot be shared: ValueError: no"):
                    session.bind("x", Raises(at, ValueError("no")))

        on_ranks(plan, work)

    def test_views_are_outputs_until_the_next_run(self):
        plan = symmc.compile(symmc.from_text(SUM))

        def work(session):
            def run(n, value):
                session.set(n=n)
                session.write("weight", np.ones(8, np.float32))
                session.write("x", np.full((n, 8), value, np.float32))
                session.run()

            run(4, 1)
            first = session.view("out.0")
            taken = first.numpy()
            np.testing.assert_array_equal(taken, np.full((4, 8), 2))
            self.assertEqual((first.shape, first.dtype, first.stale), ((4, 8), "f32", False))
            run(4, 5)
            for take in (first.numpy, lambda: np.from_dlpack(first)):
                with self.assertRaisesRegex(symmc.InputError, "%?y.*run 1.*later run"):
                    take()
            self.assertTrue(first.stale and "stale" in repr(first))
            # The run wrote where the array lies, which is the next view's memory.
            np.testing.assert_array_equal(taken, np.full((4, 8), 10))
            second = session.view("y").numpy()
            self.assertEqual(second.ctypes.data, taken.ctypes.data)
            run(6, 1)
            np.testing.assert_array_equal(session.view("out.0").numpy(), np.full((6, 8), 2))
            # That of a larger size has memory of its own.
            np.testing.assert_array_equal(second, np.full((4, 8), 10))
            run(3, 1)
            third = session.view("out.0")
            for name in ("x", "nothing", "out.1"):
                with self.assertRaisesRegex(symmc.InputError, f"{name}: expected an output"):
                    session.view(name)
            session.bind("out.0", np.zeros((3, 8), np.float32))
            with self.assertRaisesRegex(symmc.InputError, "bound"):
                session.view("out.0")
            return third

        for view in on_ranks(plan, work):
            # The memory is there behind the session.
            np.testing.assert_array_equal(view.numpy(), np.full((3, 8), 2))

    def test_calls_with_anything_raise_exceptions(self):
        """Whatever is given instead of an argument: the call works, or raises what names it; nothing ends the process."""
        plan = symmc.compile(symmc.from_text(COUNT))
        huge = 1 << 80

        class Raises:
            def __dlpack__(self, **_keywords):
                raise RuntimeError("mine")

            def __dlpack_device__(self):
                return (1, 0)

        read_only = np.ones(4, np.float32)
        read_only.flags.writeable = False
        things = [
            None, -1, 0, 1.5, huge, -huge, float("nan"), float("inf"), True, "", "x", "\0", "out.0", "\ud800", b"x", [], [None],
            {}, {"n": [0]}, {"n": huge}, object(), Raises(), read_only, np.ones(4, ">f4"), np.ones(8, np.float32)[::2],
            np.zeros(0, np.float32), np.float32(1), np.array(1.0, np.float32), np.ones((2, 2), np.float32), symmc, plan,
        ]  # fmt: skip

        def work(session):
            calls = [
                *(getattr(symmc, name) for name in ("open", "from_text", "load", "compile", "run", "Session")),
                *(lambda v, o=option: symmc.compile(symmc.from_text(SUM), **{o: v})
                  for option in ("machine", "ranks", "buckets", "bind", "variants", "order", "slack", "memory_price", "symm_limit", "coalesce")),
                *(lambda v, o=option: symmc.open(__file__, **{o: v}) for option in ("ranks", "groups", "dims", "schemas", "definitions", "tensors")),
                *(lambda v, o=option: symmc.Session(plan, symmc.Group.threads(1)[0], **{o: v}) for option in ("gpu", "timeout", "extendable")),
                lambda v: symmc.Session(plan, v, timeout=0.1),
                lambda v: symmc.run(plan, [v, v], timeout=0.1),
                symmc.Group.threads, plan.report, plan.explain, plan.memory, lambda v: plan.memory(gpu=v),
                lambda v: symmc.Group.bootstrap(v, 2, lambda mine: [mine]), lambda v: symmc.Group.bootstrap(0, v, lambda mine: [mine]),
                lambda v: symmc.Group.bootstrap(0, 2, v), lambda v: symmc.Group.bootstrap(0, 2, lambda mine: v),
                session.bind, session.write, lambda v: session.bind(v, np.ones(4, np.float32)), lambda v: session.bind("x", v),
                lambda v: session.write("x", v), lambda v: session.set(n=v), session.unbind, session.read, session.view,
                lambda v: session.enqueue(v) if v not in (None, True) else None, session.wait,
            ]  # fmt: skip
            wrong = []
            for number, call in enumerate(calls):
                for thing in things:
                    if isinstance(thing, symmc.Plan) and number > 5:
                        continue
                    try:
                        call(thing)
                    except (symmc.DefectError, SystemError) as error:
                        wrong.append((number, thing, error))
                    except (symmc.Error, TypeError, ValueError, OverflowError, AttributeError, RuntimeError):
                        pass
            self.assertEqual(wrong, [])

        alone = symmc.compile(symmc.from_text(COUNT.replace("ranks 2", "ranks 1")))
        on_ranks(alone, work)

    def test_a_session_keeps_what_is_bound(self):
        plan = symmc.compile(symmc.from_text(COUNT))

        def work(session):
            for name, value in [("x", 1), ("state", 0)]:
                session.bind(name, np.full(4, value, np.float32))
            junk = [np.full(4, 7, np.float32) for _ in range(1000)]
            session.run()
            del junk
            return session.read("out.0").numpy()[0]

        self.assertEqual(on_ranks(plan, work), [2.0, 2.0])

    def test_after_the_end_there_is_none(self):
        plan = symmc.compile(symmc.from_text(COUNT))
        ended = on_ranks(plan, lambda session: session)
        for session in ended:
            with self.assertRaisesRegex(symmc.InputError, "closed"):
                session.run()
            session.close()

    def test_programs_take_turns_in_one_session(self):
        plans = [symmc.compile(symmc.from_text(COUNT.replace("f32[4]", f"f32[{n}]"))) for n in (4, 1024)]

        def of_rank(group):
            with symmc.Session(plans[0], group, extendable=True) as first:
                before = first.memory()
                second = first.open_program(plans[1])
                self.assertEqual(first.memory(), second.memory())
                self.assertGreaterEqual(second.memory()["ordinary"], before["ordinary"])
                found = []
                for round in range(3):
                    for n, session in ((4, first), (1024, second)):
                        session.write("x", np.full(n, round + 1, np.float32))
                        session.write("state", np.zeros(n, np.float32))
                        session.run()
                        found.append(session.read("out.0").numpy().copy())
                second.close()
                first.run()
                with self.assertRaisesRegex(symmc.InputError, "the session is closed"):
                    second.run()
                return found

        with ThreadPoolExecutor(2) as threads:
            one, other = threads.map(of_rank, symmc.Group.threads(2))
        for mine, theirs in zip(one, other):
            self.assertEqual(mine.tolist(), theirs.tolist())
        self.assertEqual([len(found) for found in one], [4, 1024] * 3)
        with symmc.Session(symmc.compile(symmc.from_text(COUNT.replace("ranks 2", "ranks 1"))), symmc.Group.threads(1)[0]) as alone:
            with self.assertRaisesRegex(symmc.InputError, "1 ranks, the plan is for 2"):
                alone.open_program(plans[0])

    def test_a_rank_that_does_not_come_is_named(self):
        plan = symmc.compile(symmc.from_text(COUNT))
        with self.assertRaises(symmc.PeerError) as caught:
            symmc.Session(plan, symmc.Group.threads(2)[0], timeout=0.3)
        self.assertIn("rank 1", str(caught.exception))

    def test_an_exception_in_one_rank_ends_the_run_of_the_other(self):
        plan = symmc.compile(symmc.from_text(COUNT))

        def work(session):
            for name in ("x", "state"):
                session.write(name, np.zeros(4, np.float32))
            session.run()
            if session.rank == 0:
                raise KeyError("mine")
            session.run()

        with self.assertRaises((KeyError, symmc.PeerError)):
            on_ranks(plan, work, timeout=5)

    def test_environment_without_ranks_is_refused(self):
        with self.assertRaisesRegex(symmc.InputError, "torchrun"):
            symmc.Group.from_env()
        with self.assertRaisesRegex(symmc.InputError, "ranks"):
            symmc.Group.threads(0)

    def test_ranks_with_means_of_their_own_find_each_other(self):
        plan = symmc.compile(symmc.from_text(COUNT))
        barrier, said = threading.Barrier(2), {}
        found = []

        def of_rank(rank):
            def all_gather(mine):
                said[rank] = mine
                barrier.wait()
                all_ = [said[0], said[1]]
                barrier.wait()
                return all_

            group = symmc.Group.bootstrap(rank, 2, all_gather)
            with symmc.Session(plan, group) as session:
                for name in ("x", "state"):
                    session.write(name, np.ones(4, np.float32))
                session.run()
                found.append(session.read("out.0").numpy()[0])

        threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(found, [2.0, 2.0])

        def fails(_mine):
            raise OSError("no network")

        with self.assertRaisesRegex(symmc.Error, "no network"):
            symmc.Group.bootstrap(0, 2, fails)


PROGRAM = f"""
import os, signal, sys, time
import numpy as np
import symmc
# Who starts tests in the background may have them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
plan = symmc.compile(symmc.from_text({COUNT!r}))
"""


def started(text, **environment):
    """A process that runs a program."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def as_ranks(text):
    """Two processes with the environment of torchrun."""
    run = f"test-{os.getpid()}-{time.monotonic_ns()}"
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": run}
    return [started(text, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(2)]


class Processes(unittest.TestCase):
    def test_a_killed_rank_is_named_by_the_other(self):
        ranks = as_ranks(
            """
session = symmc.Session(plan, timeout=10)
for name in ("x", "state"):
    session.write(name, np.zeros(4, np.float32))
session.run()
if session.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for _ in range(1000):
        session.run()
except symmc.PeerError as error:
    print("rank", error.rank, error)
"""
        )
        out, error = ranks[0].communicate(timeout=60)
        ranks[1].communicate(timeout=60)
        self.assertEqual((ranks[0].returncode, ranks[1].returncode), (0, -signal.SIGKILL), error)
        self.assertIn("rank 1", out)

    def test_a_rank_that_leaves_without_closing_ends_the_others_at_once(self):
        work = """
def fill(session):
    for name in ("x", "state"):
        session.write(name, np.zeros(4, np.float32))
    session.run()
try:
    # Without word of rank 1 it would wait for two minutes.
    if os.environ["RANK"] == "0":
        with symmc.Session(plan, timeout=120) as session:
            fill(session)
            for _ in range(10**9):
                session.run()
    else:
        {leave}
except symmc.Error as error:
    print(type(error).__name__, error.culprit, error.rank, error.reporter, error)
"""
        ways = {
            "with symmc.Session(plan, timeout=120) as session: fill(session); raise ValueError('boom')": "aborted its session: ValueError: boom",
            "session = symmc.Session(plan, timeout=120); fill(session); del session": "closed its session after 1 run",
            "session = symmc.Session(plan, timeout=120); fill(session); raise ValueError('boom')": "",
            "session = symmc.Session(plan, timeout=120); fill(session); session.close()": "closed its session after 1 run",
        }
        for leave, how in ways.items():
            ranks = as_ranks(work.replace("{leave}", leave))
            out, error = ranks[0].communicate(timeout=60)
            ranks[1].communicate(timeout=60)
            self.assertRegex(out, "^PeerError 1 1 [01] rank 1 " + how, error)

    def test_ctrl_c_ends_a_wait(self):
        ranks = as_ranks(
            """
session = symmc.Session(plan, timeout=60)
for name in ("x", "state"):
    session.write(name, np.zeros(4, np.float32))
session.run()
print("ready", flush=True)
try:
    if session.rank == 0:
        session.run()
    else:
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""
        )
        self.assertEqual(ranks[0].stdout.readline(), "ready\n")
        self.assertEqual(ranks[1].stdout.readline(), "ready\n")
        time.sleep(0.3)
        start = time.monotonic()
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
        for rank in ranks:
            out, error = rank.communicate(timeout=60)
            self.assertIn("interrupted", out, error)
        self.assertLess(time.monotonic() - start, 30)

    def test_a_session_is_not_used_behind_a_fork(self):
        process = started(
            """
import threading
groups = symmc.Group.threads(2)
threading.Thread(target=lambda: symmc.Session(plan, groups[1]), daemon=True).start()
session = symmc.Session(plan, groups[0])
pid = os.fork()
if pid == 0:
    try:
        session.run()
    except symmc.InputError as error:
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
        )
        out, error = process.communicate(timeout=60)
        self.assertEqual(out.strip(), "0", error)


    def test_ctrl_c_ends_long_work(self):
        """A plan that takes much longer than the limit is given up at once."""
        process = started(
            """
text = "program \\"long\\" ranks 2\\ngroup @all world\\narg %x: f32[64, 64]\\n%v0: f32[64, 64] = mul %x, %x\\n"
for k in range(30000):
    text += f"%s{k}: f32[64, 64] = all_reduce %v{k} op=sum group=@all\\n%v{k + 1}: f32[64, 64] = add %s{k}, %x\\n"
program = symmc.from_text(text + "return %v30000\\n")
print("ready", flush=True)
start = time.monotonic()
try:
    symmc.compile(program)
    print("too short:", time.monotonic() - start)
except KeyboardInterrupt:
    print("interrupted")
"""
        )
        self.assertEqual(process.stdout.readline(), "ready\n")
        time.sleep(0.3)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        self.assertEqual((out, process.returncode), ("interrupted\n", 0), error)
        self.assertLess(time.monotonic() - start, 3)


class Command(unittest.TestCase):
    def run_command(self, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "symmc", *arguments], capture_output=True, text=True, timeout=120
        )

    def test_the_command_runs_a_program_on_processes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "sum.symm")
            pathlib.Path(path).write_text(SUM)
            ran = self.run_command("run", path, "--set", "n=4", "--compare", "interpreter")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertIn("compared with the interpreter", ran.stdout)

    def test_bad_input_has_exit_code_2(self):
        ran = self.run_command("plan", "/nowhere.symm")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("/nowhere.symm", ran.stderr)

    def test_help_and_version(self):
        self.assertIn("Usage: symmc", self.run_command("--help").stdout)
        self.assertIn(symmc.__version__, self.run_command("--version").stdout)


class Page(unittest.TestCase):
    """The programs of docs/python.md run as they stand."""

    def test_the_programs_of_the_page(self):
        root = pathlib.Path(__file__).parents[3]
        parts = (root / "docs" / "python.md").read_text().split("```python\n")[1:]
        programs = [part.split("```")[0] for part in parts]
        self.assertEqual(len(programs), 4)
        for program in programs:
            with self.subTest(program), tempfile.TemporaryDirectory() as folder:
                if "torch" in program and importlib.util.find_spec("torch") is None:
                    self.skipTest("PyTorch is not installed")
                (pathlib.Path(folder) / "tests").symlink_to(root / "tests")
                path = pathlib.Path(folder) / "program.py"
                path.write_text(program)
                ran = subprocess.run(
                    [sys.executable, "-W", "ignore", str(path)], cwd=folder, capture_output=True, text=True, timeout=300
                )
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertEqual(ran.stdout == "", "print" not in program)


class Start(unittest.TestCase):
    def test_importing_loads_no_other_library(self):
        text = "import sys, symmc; print([m for m in ('torch', 'numpy') if m in sys.modules])"
        ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
        self.assertEqual(ran.stdout.strip(), "[]", ran.stderr)


if __name__ == "__main__":
    unittest.main()
