#!/usr/bin/env python3
"""Measures planning and running of the real programs: `python3 tests/bench/programs.py [ROUNDS]`.

Builds the release binary, then prints
- the time of each stage of `symmc plan` on the 70B program with four buckets, and its peak memory;
- the time of one run of hf_llama_tp2 on host ranks and in the interpreter, in turn, and their ratio. A run is
  the difference between many repeats and one, so that starting processes does not count.
Medians over ROUNDS (9), with the smallest and the largest.
"""

import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
SYMMC = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "symmc"
REPEATS = 201


def run(*args):
    """Runs symmc; gives standard error and the peak memory of the process in MiB."""
    process = subprocess.Popen([SYMMC, *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    text = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"symmc {' '.join(map(str, args))}\n{text}")
    return text, usage.ru_maxrss / 1024


def show(name, values, unit):
    low, mid, high = min(values), statistics.median(values), max(values)
    print(f"{name:32} {mid:10.2f} {unit}   ({low:.2f} to {high:.2f})")


def plan(rounds):
    args = [PROGRAMS / "llama70b_tp8_graph.pt2", "--ranks", "8", "--machine", "h200x8"]
    stages, memory = {}, []
    for _ in range(rounds):
        text, peak = run("plan", *args, "--bucket", "tokens=2,64,512,8192", "--timing")
        memory.append(peak)
        for stage, time in re.findall(r"^(\w+) ([\d.]+) ms$", text, re.M):
            stages.setdefault(stage, []).append(float(time))
    print("symmc plan llama70b_tp8_graph, 4 buckets")
    for stage, times in stages.items():
        show(f"  {stage}", times, "ms")
    show("  peak memory", memory, "MiB")


def one_run(backend):
    """Milliseconds of one run."""
    tensors = PROGRAMS / "hf_llama_tp2.safetensors"
    args = [PROGRAMS / "hf_llama_tp2.pt2", "--tensors", tensors, "--backend", backend, "--timing"]
    times = []
    for repeats in (1, REPEATS):
        text, _ = run("run", *args, "--repeat", str(repeats))
        times.append(float(re.search(r"run\(s\) in ([\d.]+) ms", text).group(1)))
    return (times[1] - times[0]) / (REPEATS - 1)


def runs(rounds):
    host, interpreter = [], []
    for _ in range(rounds):
        host.append(one_run("host"))
        interpreter.append(one_run("interpreter"))
    print("one run of hf_llama_tp2 (2 ranks, 34 tokens)")
    show("  host ranks", host, "ms")
    show("  interpreter", interpreter, "ms")
    show("  interpreter / host", [i / h for i, h in zip(interpreter, host)], "x")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "symmc-cli"], cwd=ROOT, check=True)
    plan(count)
    runs(count)
