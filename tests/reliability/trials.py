#!/usr/bin/env python3
"""Random kills, stops, exceptions and drops of ranks, and what the others make of them.

A trial starts the ranks of a small program in one of these forms, and disturbs one of them at a random time:

- ``run``: ``symmc run``, which starts the ranks
- ``torchrun``: ``symmc run`` on every rank, with the environment of torchrun
- ``mpirun``: the same under ``mpirun``, with a shell for each rank that stores its output and exit code
- ``c`` and ``python``: sessions that are opened, run and closed without an end

It then checks that every other rank ends in time, that the error names the disturbed rank (in C and Python as its
culprit), and that nothing is left: no process, no shared memory, no file. The process of a rank that a launcher started
is known by the log of ``symmc run`` or by its environment under ``mpirun``. What a form needs and the machine lacks is
skipped and counted.

How late an end may be depends on the machine. Before the trials the script measures how long an undisturbed start takes,
and allows a multiple of it beyond the limit.

    tests/reliability/trials.py --trials 1000 --symmc target/debug/symmc --library target/debug/libsymmc.so --python PYTHON

Exit code 0: every trial is as it should be. Needs Python 3.9 and no packages.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
MARK = "SYMMC_TRIAL"
SIGNALS = ("KILL", "TERM", "ABRT", "USR1")
PROMPT = 0.5
"""How soon, in seconds, others learn of a rank that died or left."""
GATHERING = 2.0
"""How long ranks that have not come yet are awaited after one of those that came has died."""
STARTING = 30.0
"""How long the victim's process is awaited."""
UNDER_MPIRUN = 'out="$0/out.$OMPI_COMM_WORLD_RANK"; "$@" > "$out" 2>&1; code=$?; echo "EXIT $code" >> "$out"'
"""The command of a shell that runs a rank under mpirun."""


def program(ranks: int) -> str:
    """A program that meets its peers in three ways."""
    return (
        f'program "trial" ranks {ranks}\ngroup @all world\narg %x: f32[512]\n'
        "%a: f32[512] = all_reduce %x op=sum group=@all\n%b: f32[512] = neg %a\n"
        "%y: f32[512] = all_reduce %b op=max group=@all\nreturn %y\n"
    )


@dataclass
class Form:
    """A way to start ranks."""

    name: str
    actions: tuple[str, ...]
    missing: str = ""
    """Why it is skipped, if it is."""


@dataclass
class Trial:
    number: int
    form: str
    ranks: int
    action: str
    victim: int
    delay: float
    limit: float
    folder: Path
    processes: list[subprocess.Popen] = field(default_factory=list)
    victim_process: int | None = None
    """The process of the victim if a launcher started it."""


@dataclass
class End:
    """How a process ended: after how many seconds, its exit code, and what it said."""

    after: float
    code: int | None
    text: str


class Bench:
    """What is used of the machine."""

    def __init__(self, options: argparse.Namespace):
        self.symmc = Path(options.symmc).resolve()
        self.python = options.python
        self.library = Path(options.library).resolve() if options.library else None
        self.work = Path(tempfile.mkdtemp(prefix="symmc-trials-"))
        self.rank = self.work / "ranks"
        self.slack = 2.0
        self.starting = 0.5
        left = SIGNALS + ("STOP",)
        leaves = ("exit", "close")
        self.forms = [
            Form("run", left + ("launcher KILL", "pause"), "" if self.symmc.exists() else "no symmc"),
            Form("torchrun", left, "" if self.symmc.exists() else "no symmc"),
            Form("mpirun", left, "" if shutil.which("mpirun") and self.symmc.exists() else "no mpirun"),
            Form("c", left + leaves + ("free", "abort"), self.compile()),
            Form("python", left + leaves + ("raise", "raise_bare", "drop"), self.import_package()),
        ]

    def compile(self) -> str:
        """Compiles the C program; why that is not possible."""
        if not self.library or not self.library.exists():
            return "no library"
        if not shutil.which("gcc"):
            return "no gcc"
        include = ROOT / "frontends/capi/include"
        line = ["gcc", "-O1", "-I", include, FOLDER / "ranks.c", self.library, f"-Wl,-rpath,{self.library.parent}", "-o", self.rank]
        done = subprocess.run(line, capture_output=True, text=True)
        return done.stderr.strip() if done.returncode else ""

    def import_package(self) -> str:
        """Why the package cannot be used, if it cannot."""
        if not self.python:
            return "no interpreter was given"
        done = subprocess.run([self.python, "-c", "import symmc"], capture_output=True, text=True)
        return "no package" if done.returncode else ""

    def environment(self, trial: Trial, rank: int | None) -> dict[str, str]:
        """The variables of a rank, or of a launcher."""
        own = {key: value for key, value in os.environ.items() if not re.match(r"RANK$|WORLD|MASTER|OMPI|PMI|SLURM", key)}
        own |= {MARK: self.mark(trial), "TMPDIR": str(trial.folder), "TRIAL_PROGRAM": program(trial.ranks)}
        if trial.form == "run":
            own["SYMMC_LOG"] = "symmc::join=debug"
        if rank is not None:
            own |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(trial.ranks), "LOCAL_WORLD_SIZE": str(trial.ranks)}
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": self.mark(trial)}
        return own

    def mark(self, trial: Trial) -> str:
        return f"{os.getpid()}-{trial.number}"

    def start(self, trial: Trial) -> None:
        """Starts all processes of a trial."""
        file = trial.folder / "p.symm"
        file.write_text(program(trial.ranks))
        run = [str(self.symmc), "run", str(file), "--seed", "1", "--timeout", str(int(trial.limit)), "--compare", "none", "--repeat", "100000000"]
        at = random.randrange(0, 2000)
        for rank in range(trial.ranks):
            action = trial.action if rank == trial.victim and trial.action.islower() else "none"
            lines = {
                "torchrun": run,
                "c": [str(self.rank), str(int(trial.limit * 1000)), action, str(at)],
                "python": [str(self.python), str(FOLDER / "ranks.py"), str(trial.limit), action, str(at)],
            }
            if trial.form in lines:
                trial.processes.append(self.spawn(trial, lines[trial.form], rank))
        if trial.form == "run":
            trial.processes.append(self.spawn(trial, run, None))
        if trial.form == "mpirun":
            line = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(trial.ranks)]
            line += ["sh", "-c", UNDER_MPIRUN, str(trial.folder)]
            trial.processes.append(self.spawn(trial, line + run, None))

    def spawn(self, trial: Trial, line: list[str], rank: int | None) -> subprocess.Popen:
        out = open(trial.folder / f"out.{'launcher' if rank is None else rank}", "wb")
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment(trial, rank), start_new_session=True)

    def marked(self, trial: Trial) -> list[int]:
        """The processes of a trial that live."""
        mark, found = f"{MARK}={self.mark(trial)}".encode(), []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
                state = Path(f"/proc/{entry}/stat").read_text().rpartition(") ")[2][:1]
            except OSError:
                continue
            if mark in environment.split(b"\0") and state not in "ZX":
                found.append(int(entry))
        return found

    def process_of_victim(self, trial: Trial) -> int | None:
        """The process of the victim, whom a launcher may still have to start; nothing if the launcher ends first."""
        until = time.monotonic() + STARTING
        while time.monotonic() < until and trial.processes[0].poll() is None:
            if trial.form == "run":
                started = re.search(rf"started the process of a rank rank={trial.victim} pid=(\d+)$", output(trial, "launcher"), re.M)
                found = [int(started[1])] if started else []
            else:
                found = [pid for pid in self.marked(trial) if mpi_rank(pid) == trial.victim]
            if found:
                return found[0]
            time.sleep(0.005)
        return None

    def calibrate(self) -> None:
        """Measures a start, and sets the slack."""
        times = []
        for number in range(3):
            trial = Trial(-1 - number, "run", 2, "none", 0, 0, 60, Path(tempfile.mkdtemp(dir=self.work)))
            file = trial.folder / "p.symm"
            file.write_text(program(2))
            begun = time.monotonic()
            subprocess.run([self.symmc, "run", file, "--seed", "1", "--compare", "none"], capture_output=True, env=self.environment(trial, None))
            times.append(time.monotonic() - begun)
        self.starting = max(times)
        self.slack = 2.0 + 4 * self.starting


def mpi_rank(pid: int) -> int | None:
    """The rank of a process that runs symmc under mpirun."""
    try:
        is_rank = Path(f"/proc/{pid}/comm").read_text().strip() == "symmc"
        number = re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)\0", Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return None
    return int(number[1]) if is_rank and number else None


def output(trial: Trial, name: int | str) -> str:
    """The output of a rank or of the launcher until now."""
    file = trial.folder / f"out.{name}"
    return file.read_text(errors="replace") if file.exists() else ""


def send(pid: int, name: str) -> bool:
    """Sends a signal; whether there was a process."""
    try:
        os.kill(pid, getattr(signal, f"SIG{name}"))
        return True
    except ProcessLookupError:
        return False


def culprit(end: End) -> int | None:
    """The rank that an end blames. Lines of the log are in its text too."""
    said = re.search(r"^ERROR (\S+) (\S+) ", end.text, re.M)
    if said:
        return int(said[1]) if said[1].lstrip("-").isdigit() else None
    patterns = (
        r"rank (\d+) keeps the others waiting",
        r"waited \d+ ms for ranks? (\d+)",
        r"ranks? (\d+)(?:, \d+)* did not join",
        r"rank (\d+) (?:died|made no progress|dropped|closed|aborted|stopped)",
    )
    said = "".join(line for line in end.text.splitlines(True) if not re.match(r"\d{4}-\d\d-\d\dT", line))
    for pattern in patterns:
        found = re.search(pattern, said)
        if found:
            return int(found[1])
    return None


def disturb(bench: Bench, trial: Trial) -> bool:
    """Does the action; whether there was something to disturb. Actions in lower case are done by the rank itself."""
    time.sleep(trial.delay)
    if trial.action.islower() and trial.action != "pause":
        return True
    if trial.action.startswith("launcher"):
        return send(trial.processes[0].pid, trial.action.split()[1])
    if trial.action == "pause":
        pids: set[int] = set()
        # A launcher that is not stopped yet may start more ranks.
        while more := set(bench.marked(trial)) - pids:
            [send(pid, "STOP") for pid in more]
            pids |= more
        time.sleep(trial.limit + 1.5)
        [send(pid, "CONT") for pid in pids]
        time.sleep(0.5 + bench.starting)
        return True
    if trial.form in ("run", "mpirun"):
        trial.victim_process = bench.process_of_victim(trial)
        return trial.victim_process is not None and send(trial.victim_process, trial.action)
    return trial.processes[trial.victim].poll() is None and send(trial.processes[trial.victim].pid, trial.action)


def exit_code(trial: Trial, number: int) -> int | None:
    """The exit code of a rank, or of the launcher of `symmc run`, if it has ended."""
    if trial.form != "mpirun":
        return trial.processes[number].poll()
    said = re.search(r"^EXIT (\d+)$", output(trial, number), re.M)
    return int(said[1]) if said else None


def await_ends(bench: Bench, trial: Trial) -> list[End | None]:
    """The ends of all ranks but the victim, or of the launcher of `symmc run`; one that does not end has no code."""
    begun = time.monotonic()
    is_rank = trial.form != "run"
    awaited = [i for i in range(trial.ranks if is_rank else 1) if not (is_rank and i == trial.victim)]
    patience = trial.limit + GATHERING + 5 * bench.slack + 30
    after: dict[int, float] = {}
    left_at = None
    while len(after) < len(awaited) and time.monotonic() - begun < patience:
        if left_at is None and has_left(trial):
            left_at = time.monotonic()
        for i in awaited:
            if i not in after and exit_code(trial, i) is not None:
                after[i] = time.monotonic() - (left_at or begun)
        time.sleep(0.02)
    ends: list[End | None] = [None] * (max(awaited) + 1)
    for i in awaited:
        code = exit_code(trial, i) if i in after else None
        ends[i] = End(after.get(i, patience), code, output(trial, i if is_rank else "launcher"))
    return ends


def has_left(trial: Trial) -> bool:
    """Whether the victim has done its action by itself."""
    if not trial.action.islower() or trial.form not in ("c", "python"):
        return False
    return "LEAVES" in output(trial, trial.victim)


def judge(bench: Bench, trial: Trial, ends: list[End | None]) -> str:
    """What is wrong with the end of a trial; nothing if it is as it should be."""
    for i, end in enumerate(ends):
        if end is None:
            continue
        if end.code is None:
            return f"process {i} did not end"
        if trial.action == "launcher KILL":
            continue
        if end.code == 0:
            return f"process {i} ended with 0, though rank {trial.victim} was disturbed"
        bound = trial.limit if trial.action == "STOP" or re.search("did not join|while the ranks joined|before", end.text) else PROMPT
        if re.search("while the ranks joined", end.text):
            bound += GATHERING
        if end.after > bound + bench.slack:
            return f"process {i} ended after {end.after:.1f} s, expected {bound} s and {bench.slack:.1f} s of slack"
        if blamed(ends, i) != trial.victim:
            return f"process {i} blames rank {culprit(end)}, expected {trial.victim}"
        if re.search(r"panicked|defect of symmc", end.text):
            return f"process {i} panicked"
    return ""


def blamed(ends: list[End | None], process: int) -> int | None:
    """The rank that a process blames in the end. Sessions follow each other: a rank that ended its session before the victim was
    disturbed waits for the others in the next one, and rightly blames a rank that left because of the victim."""
    end, rank = ends[process], culprit(ends[process])
    for _ in ends:
        following = ends[rank] if rank is not None and rank < len(ends) else None
        if following is None or "did not join" not in end.text:
            break
        end, rank = following, culprit(following)
    return rank


def wait_for(process: subprocess.Popen, seconds: float) -> None:
    """Waits until a process has ended, but not longer."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass


def clean(bench: Bench, trial: Trial) -> str:
    """Ends what the trial itself left (a stopped victim), and says what else is there."""
    if trial.form == "mpirun" and trial.victim_process is not None:
        # mpirun ends after its ranks.
        send(trial.victim_process, "KILL")
        wait_for(trial.processes[0], 5 + bench.slack)
    for process in trial.processes:
        if trial.action in ("STOP", "launcher KILL") or process.poll() is None:
            send(process.pid, "KILL")
        process.wait()
    until = time.monotonic() + 2 + bench.slack
    while bench.marked(trial) and time.monotonic() < until:
        time.sleep(0.02)
    left = bench.marked(trial)
    [send(pid, "KILL") for pid in left]
    files = [entry.name for entry in trial.folder.iterdir() if not re.match(r"out\.|p\.symm|ompi\.|pmix", entry.name)]
    shared = [name for name in os.listdir("/dev/shm") if "symmc" in name]
    if left:
        return f"processes left: {left}"
    return f"left: {files + shared}" if files or shared else ""


def run(bench: Bench, trial: Trial) -> str:
    """Does a trial; what is wrong."""
    bench.start(trial)
    was_there = disturb(bench, trial)
    if trial.action == "pause" and was_there:
        state = trial.processes[0].poll()
        text = output(trial, "launcher")
        clean(bench, trial)
        return "" if state is None else f"a run that was paused as a whole ended: {text}"
    if not was_there:
        clean(bench, trial)
        return "not disturbed"
    ends = await_ends(bench, trial)
    wrong = judge(bench, trial, ends)
    return wrong or clean(bench, trial) if not wrong else (clean(bench, trial), wrong)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3)
    parser.add_argument("--symmc", default=str(ROOT / "target/release/symmc"))
    parser.add_argument("--library", default=None)
    parser.add_argument("--python", default=None)
    parser.add_argument("--forms", default="run,torchrun,mpirun,c,python")
    parser.add_argument("--no-skips", action="store_true", help="fail if a form cannot run here")
    options = parser.parse_args()
    random.seed(options.seed)
    bench = Bench(options)
    bench.calibrate()
    print(f"a start takes {bench.starting:.2f} s, so ends may be {bench.slack:.1f} s late", flush=True)
    counts: dict[tuple[str, str], collections.Counter] = collections.defaultdict(collections.Counter)
    asked = options.forms.split(",")
    forms = [form for form in bench.forms if form.name in asked]
    failures = 0
    if options.no_skips:
        for form in forms:
            if form.missing:
                print(f"{form.name}: {form.missing}")
                failures += 1
    for number in range(options.trials):
        form = forms[number % len(forms)]
        action = random.choice(form.actions)
        key = (form.name, action)
        if form.missing:
            counts[form.name, "all"][f"skipped: {form.missing}"] += 1
            continue
        ranks = random.choice((2, 3, 4))
        delay = random.choice((random.uniform(0, 1.5 * bench.starting), random.uniform(0, 0.5) + 2 * bench.starting))
        # The interpreter takes its time before it opens a session.
        delay += {"python": 0.3}.get(form.name, 0)
        folder = Path(tempfile.mkdtemp(dir=bench.work))
        trial = Trial(number, form.name, ranks, action, random.randrange(ranks), delay, options.limit, folder)
        wrong = run(bench, trial)
        counts[key]["not disturbed" if wrong == "not disturbed" else "wrong" if wrong else "right"] += 1
        if wrong and wrong != "not disturbed":
            failures += 1
            print(f"trial {number}: {form.name}, {ranks} ranks, {action} of rank {trial.victim} after {delay:.2f} s: {wrong}", flush=True)
            for file in sorted(folder.glob("out.*")):
                print("   ", file.name, file.read_text(errors="replace")[-300:].strip().replace("\n", " | "), flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    for (name, action), counter in sorted(counts.items()):
        print(f"{name:9} {action:14}", ", ".join(f"{what} {n}" for what, n in sorted(counter.items())))
    shutil.rmtree(bench.work, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
