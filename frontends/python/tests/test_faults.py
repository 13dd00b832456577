"""Failures of compiled functions and sessions: each gives an error that names it, before a timeout, and leaves nothing behind."""

import contextlib
import gc
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

HAS_TORCH = importlib.util.find_spec("torch") is not None

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    import symmc

SUM = """program "sum" ranks {ranks}
group @all world
arg %x: f32[4]
%y: f32[4] = all_reduce %x op=sum group=@all
return %y
"""

LIMIT = 90
"""No rank takes longer, in seconds."""


def planned(ranks=2):
    return symmc.compile(symmc.from_text(SUM.format(ranks=ranks)))


def summed(scale=2.0, timeout=20):
    """A compiled sum over all ranks."""
    everyone = dist.group.WORLD
    return torch.compile(
        lambda x: funcol.all_reduce(x * scale, "sum", everyone),
        backend="symmc",
        dynamic=False,
        options={"fallback": "error", "timeout": timeout},
    )


def raised(work, kind, *texts, within=10.0):
    """The error of work, which has this kind and these texts."""
    start = time.monotonic()
    try:
        work()
    except BaseException as error:
        took = time.monotonic() - start
        assert isinstance(error, kind) and all(text in str(error) for text in texts), repr(error)
        assert took < within, f"{error!r} after {took} s"
        return error
    raise AssertionError(f"nothing was raised, expected {kind} with {texts}")


def interrupted(work):
    """Ctrl-C ends work within about a second."""
    after = 1.0
    timer = threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    raised(work, KeyboardInterrupt, within=after + 1.5)
    timer.join()


# What ranks do, by name.


def groups(rank):
    """Groups that are none, not this rank's, of another size, or gone."""
    plan, alone, everyone = planned(), dist.new_group([0]), dist.group.WORLD
    for group in (5, "0", dist.device_mesh.init_device_mesh("cpu", (2,))):
        raised(lambda: symmc.Session(plan, group), symmc.InputError, "expected a symmc.Group or a process group")
    text = "the group has 1" if rank == 0 else "rank 1 is not in the process group"
    raised(lambda: symmc.Session(plan, alone), symmc.InputError, text)
    raised(lambda: symmc.Session(planned(3), dist.group.WORLD), symmc.InputError, "3 ranks", "the group has 2")
    gone = dist.new_group([0, 1])
    dist.destroy_process_group(gone)
    raised(lambda: symmc.Session(plan, gone), symmc.InputError, "the process group was destroyed")
    if rank == 0:
        error = raised(lambda: symmc.Session(plan, dist.group.WORLD, timeout=1), symmc.PeerError, "rank 1", within=3)
        assert error.culprit == error.rank == 1
    dist.barrier()
    # All of it leaves the group as it was, but for who did not come.
    run = summed()
    assert run(torch.ones(4)).tolist() == [4.0] * 4
    dist.barrier()
    dist.destroy_process_group()
    assert run(torch.ones(4)).tolist() == [4.0] * 4
    raised(lambda: run(torch.ones(5)), Exception, "no process group")
    raised(lambda: symmc.Session(plan, everyone), symmc.InputError, "no process group")


def pairs(rank):
    """Two groups side by side, and one function that is compiled for both and for all ranks."""
    own = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]

    def function(x, wide: bool):
        return funcol.all_reduce(x, "sum", dist.group.WORLD if wide else own)

    run = torch.compile(function, backend="symmc", options={"fallback": "error"})
    for _ in range(2):
        x = torch.full((3,), float(rank))
        assert run(x, False).tolist() == [1.0 if rank < 2 else 5.0] * 3
        assert run(x, True).tolist() == [6.0] * 3


def compiles(rank):
    """Errors and interrupts of one rank while it compiles; afterwards the same ranks compile again."""
    whole = symmc.compile

    def fails(*_given, **_options):
        raise MemoryError("no room")

    symmc.compile = fails if rank == 1 else whole
    expected = (Exception, "no room") if rank == 1 else (symmc.PeerError, "rank 1 failed", "no room")
    raised(lambda: summed()(torch.ones(4)), *expected, within=15)
    symmc.compile = whole
    assert summed(3.0)(torch.ones(4)).tolist() == [6.0] * 4
    dist.barrier()
    torch.compiler.reset()
    if rank == 0:
        # The other one does not come.
        interrupted(lambda: symmc.Session(planned(), dist.group.WORLD, timeout=60))
        raised(lambda: summed(4.0, timeout=1)(torch.ones(4)), Exception, "rank 1 did not join within 1 s")
        interrupted(lambda: summed(5.0, timeout=60)(torch.ones(4)))
    else:
        raised(lambda: torch.compile(lambda x: x @ torch.ones(7, 7), backend="symmc")(torch.ones(4)), Exception, "reduction dim")
    dist.barrier()
    torch.compiler.reset()
    # Who came in vain is in step again.
    for scale in (6.0, 7.0):
        assert summed(scale)(torch.ones(4)).tolist() == [2 * scale] * 4


def runs(rank):
    """Interrupts within a call, and a rank that comes later; then one that dies."""
    run = summed(timeout=20)
    assert run(torch.ones(4)).tolist() == [4.0] * 4
    dist.barrier()
    if rank == 0:
        interrupted(lambda: run(torch.ones(4)))
    dist.barrier()
    # The interrupted run goes on, and is the other one's next.
    for _ in range(2 - rank):
        run(torch.ones(4))
    if rank == 1:
        run(torch.ones(4)), run(torch.ones(4))
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(2):
        assert raised(lambda: run(torch.ones(4)), symmc.PeerError, "rank 1").rank == 1
    os._exit(0)


def loses_rank(rank, victim, action, is_within):
    """A rank stops or dies before its first call, or while all compile. Rank 0 hosts the store of PyTorch. Every other rank names the
    victim, also the one that leaves last."""
    from symmc.torch.importing.lift import LiftedGraph

    processes = [None] * dist.get_world_size()
    dist.all_gather_object(processes, os.getpid())
    run = summed(timeout=3)
    archive = LiftedGraph.archive

    def fails(*given):
        os.kill(os.getpid(), action)
        return archive(*given)

    if rank == victim and not is_within:
        os.kill(os.getpid(), action)
    if rank == victim:
        LiftedGraph.archive = fails
    error = raised(lambda: run(torch.ones(4)), symmc.PeerError, within=LIMIT / 2)
    assert error.culprit == error.rank == victim, repr(error)
    if rank == max(other for other in range(len(processes)) if other != victim):
        with contextlib.suppress(ProcessLookupError):
            os.kill(processes[victim], signal.SIGKILL)
    elif rank == 0:
        # The others read in the store of this rank who is at fault.
        time.sleep(2)
    os._exit(0)


def loses_store_before(rank):
    loses_rank(rank, 0, signal.SIGSTOP, False)


def loses_store_within(rank):
    loses_rank(rank, 0, signal.SIGSTOP, True)


def loses_dead_store_before(rank):
    loses_rank(rank, 0, signal.SIGKILL, False)


def loses_dead_store_within(rank):
    loses_rank(rank, 0, signal.SIGKILL, True)


def loses_other_before(rank):
    loses_rank(rank, 2, signal.SIGSTOP, False)


def loses_other_within(rank):
    loses_rank(rank, 2, signal.SIGSTOP, True)


def raises_in_fork(rank):
    """A forked process leaves the block of a session by its own exception. The session goes on."""
    child = 0
    try:
        with symmc.Session(planned(), dist.group.WORLD) as session:
            session.write("x", torch.ones(4))
            session.run()
            child = os.fork()
            if child == 0:
                raise KeyError("its own")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
            session.run()
    except KeyError as error:
        os._exit(5 if child == 0 and error.args == ("its own",) else 1)
    except symmc.Error:
        if child == 0:
            os._exit(1)
        raise


def forks(rank):
    """Workers of a data loader, and forked processes that end with what they have a copy of."""
    run, session = summed(), symmc.Session(planned(), dist.group.WORLD)
    assert run(torch.ones(4)).tolist() == [4.0] * 4
    loader = torch.utils.data.DataLoader(torch.eye(4), batch_size=2, num_workers=1, multiprocessing_context="fork")
    for batch in loader:
        run(batch)
    child = os.fork()
    if child == 0:
        raised(lambda: run(torch.ones(4)), symmc.InputError, "does not survive a fork")
        raised(session.run, symmc.InputError, "does not survive a fork")
        del run, session
        torch.compiler.reset()
        gc.collect()
        alone = torch.compile(lambda x: x + 1, backend="symmc")
        assert alone(torch.ones(4)).tolist() == [2.0] * 4
        # PyTorch 2.8 itself does not survive the ordinary end of such a process.
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(torch.ones(4)).tolist() == [4.0] * 4
    session.write("x", torch.ones(4))
    session.run()
    # Both are there when the process ends.


def on_ranks(name, ranks=2):
    """The exit codes and the outputs of ranks that run a function of this module."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-W", "ignore", __file__, name]
    processes = [
        subprocess.Popen(command, env={**job, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(ranks)
    ]
    until, found = time.monotonic() + LIMIT, []
    for process in processes:
        try:
            out, _ = process.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            out = f"did not end\n{process.communicate()[0]}"
        found.append((process.returncode, out))
    return found


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Faults(unittest.TestCase):
    def expect(self, name, ranks=2, codes=None):
        before = set(os.listdir("/dev/shm"))
        found = on_ranks(name, ranks)
        text = "\n".join(out for _, out in found)
        self.assertEqual([code for code, _ in found], codes or [0] * ranks, text)
        self.assertNotIn("panicked", text)
        self.assertLessEqual({name for name in os.listdir("/dev/shm") if "symmc" in name}, before)

    def test_groups_that_do_not_fit_are_named(self):
        self.expect("groups")

    def test_groups_side_by_side(self):
        self.expect("pairs", 4)

    def test_a_rank_that_fails_or_is_interrupted_while_it_compiles(self):
        self.expect("compiles")

    def test_ctrl_c_within_a_call_and_a_rank_that_dies(self):
        self.expect("runs", codes=[0, -signal.SIGKILL])

    def test_names_the_rank_that_stops_or_dies_while_ranks_compile(self):
        for name in ("loses_store_before", "loses_store_within", "loses_dead_store_before", "loses_dead_store_within"):
            with self.subTest(name):
                self.expect(name, 3, codes=[-signal.SIGKILL, 0, 0])
        for name in ("loses_other_before", "loses_other_within"):
            with self.subTest(name):
                self.expect(name, 3, codes=[0, 0, -signal.SIGKILL])

    def test_keeps_the_exception_of_a_forked_process(self):
        self.expect("raises_in_fork")

    def test_forked_processes_leave_those_they_come_from_alone(self):
        self.expect("forks")

    def test_versions_of_pytorch_that_are_too_old_are_named(self):
        from symmc.torch.settings import versions

        for text in ("2.7.1+cpu", "1.13.0", "2.4.0a0+git12"):
            with self.assertRaisesRegex(symmc.UnsupportedError, r"expected PyTorch 2\.8 or later, found " + text[:3]):
                versions.refuse_old(text)
        for text in ("2.8.0", "2.15.0+cu130", "3.0.0.dev1"):
            versions.refuse_old(text)


if __name__ == "__main__":
    # Who starts tests in the background may have them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if len(sys.argv) == 2 and sys.argv[1] in globals():
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        globals()[sys.argv[1]](int(os.environ["RANK"]))
    else:
        unittest.main()
