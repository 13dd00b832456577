#!/usr/bin/env python3
"""Packs every table of a folder: `python3 tests/bench/packing.py [FOLDER]` (tests/packing, with its subfolders).

Builds the release binary unless SYMMC names one, then prints buffers, the bound, the peak, the gap between them, work
in block placements, the time of packing, and the time to the first answer within 5 % of the bound for each file, the
least of RUNS runs. A number in a file's name (A.1048576.csv) is the capacity to meet. The offsets are checked here by
a sweep of their own. Exit code 1 if a capacity is not met.

`packing.py --tiled FILE [COPIES ...]` packs copies of one table, one behind the other in time, and prints the time of
packing, and the time and the memory of the whole command, against the number of buffers. `packing.py --random
[BUFFERS ...]` does so for buffers of random sizes, one more at each instant, most of which live shortly and some long.

`packing.py --varied FILE ...` packs copies of each table that are changed a little at random, and prints how many come
within 5 % of their bound in how many milliseconds: their sizes vary by 1 %, a twentieth of the buffers is missing, or
starts and ends move by up to 1 % of the whole time.
"""

import bisect
import csv
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNS = 15
SLOW = 0.5
COPIES = 20
LIMITS = 1, 5, 10, 20, 50
BUILT = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "symmc"


def sweep(path):
    """The peak of a table with offsets and the largest sum alive; ends the program where two buffers overlap."""
    events = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            lower, upper, size, offset = (int(row[k]) for k in ("lower", "upper", "size", "offset"))
            if size:
                events += [(lower, 1, offset, size, row["id"]), (upper, 0, offset, size, row["id"])]
    alive, load, bound, peak = [], 0, 0, 0
    for _, starts, offset, size, name in sorted(events):
        at = bisect.bisect_left(alive, (offset, size, name))
        if not starts:
            del alive[at]
            load -= size
            continue
        below = alive[at - 1] if at else (0, 0, "")
        above = alive[at] if at < len(alive) else (offset + size, 0, "")
        if below[0] + below[1] > offset or offset + size > above[0]:
            sys.exit(f"{path}: {name} overlaps {below[2]} or {above[2]}")
        alive.insert(at, (offset, size, name))
        load += size
        bound, peak = max(bound, load), max(peak, offset + size)
    return bound, peak


def pack(symmc, path, out, capacity, runs=RUNS):
    """What symmc says of the last of some runs, with the least time of all; slow ones are not repeated."""
    limit = [] if capacity is None else ["--capacity", str(capacity)]
    command = [symmc, "pack", path, "--format", "json", "-o", out, *limit]
    seconds = []
    while len(seconds) < runs and max(seconds, default=0) < SLOW:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode not in (0, 1):
            sys.exit(done.returncode)
        found = json.loads(done.stdout)
        seconds.append(found["seconds"])
    check(found, path, out)
    return found | {"seconds": min(seconds)}


def check(found, table, out):
    if sweep(out) != (found["bound"], found["peak"]):
        sys.exit(f"{table}: symmc says {found['bound']}, {found['peak']}; the sweep {sweep(out)}")


def tile(path, copies, out):
    """Writes a table several times over, each copy after the one before."""
    with open(path, newline="") as file:
        rows = [(r["id"], int(r["lower"]), int(r["upper"]), r["size"]) for r in csv.DictReader(file)]
    length = max(upper for _, _, upper, _ in rows)
    with open(out, "w") as file:
        file.write("id,lower,upper,size\n")
        for copy in range(copies):
            at = copy * length
            file.writelines(f"{copy}_{name},{at + lower},{at + upper},{size}\n" for name, lower, upper, size in rows)


def made(buffers, out):
    """Writes a table of random buffers that no instant parts."""
    rng = random.Random(1)
    with open(out, "w") as file:
        file.write("id,lower,upper,size\n")
        for b in range(buffers):
            length = 2 + int(1 / (rng.random() + 1e-4))
            file.write(f"{b},{b},{b + length},{64 * rng.randint(1, 4096)}\n")


def grown(symmc, write, counts):
    """Packs the table that `write` makes of each count."""
    print(f"{'buffers':>9} {'gap %':>7} {'pack ms':>9} {'whole ms':>9} {'CPU ms':>9} {'MB':>6}")
    with tempfile.TemporaryDirectory() as scratch:
        table, out = pathlib.Path(scratch) / "table.csv", pathlib.Path(scratch) / "offsets.csv"
        for count in counts:
            write(count, table)
            start = time.perf_counter()
            child = subprocess.Popen(
                [symmc, "pack", table, "--format", "json", "-o", out], stdout=subprocess.PIPE, text=True
            )
            found = json.loads(child.stdout.read())
            _, _, usage = os.wait4(child.pid, 0)
            whole = time.perf_counter() - start
            check(found, count, out)
            gap = 100 * (found["peak"] / max(found["bound"], 1) - 1)
            busy = usage.ru_utime + usage.ru_stime
            times = f"{1e3 * found['seconds']:9.1f} {1e3 * whole:9.1f} {1e3 * busy:9.1f}"
            print(f"{found['buffers']:9} {gap:7.2f} {times} {usage.ru_maxrss / 1e3:6.0f}")


def changed(rows, kind, rng):
    """A copy of a table's lifetimes and sizes with small changes."""
    span = max(upper for _, upper, _ in rows)

    def moved(at):
        return min(span, max(0, round(at + rng.uniform(-0.01, 0.01) * span)))

    for lower, upper, size in rows:
        if kind == "sizes":
            size = max(1, round(size * (1 + rng.uniform(-0.01, 0.01))))
        elif kind == "fewer" and rng.random() < 0.05:
            continue
        elif kind == "lives":
            start, end = moved(lower), moved(upper)
            lower, upper = (start, end) if start < end else (lower, upper)
        yield lower, upper, size


def varied(symmc, files):
    """Packs changed copies of tables within 5 % of their bounds."""
    within = " ".join(f"{limit:4}" for limit in LIMITS)
    print(f"{'file':24} {'changed':8} {'ms:':>4} {within} {'ever':>5} {'median ms':>10} {'median work':>12}")
    with tempfile.TemporaryDirectory() as scratch:
        path, out = pathlib.Path(scratch) / "table.csv", pathlib.Path(scratch) / "offsets.csv"
        for name in map(pathlib.Path, files):
            with open(name, newline="") as file:
                rows = [tuple(int(row[k]) for k in ("lower", "upper", "size")) for row in csv.DictReader(file)]
            for kind in "sizes", "fewer", "lives":
                found = []
                for copy in range(COPIES):
                    copied = list(changed(rows, kind, random.Random(f"{name.name} {kind} {copy}")))
                    lines = (f"{b},{lower},{upper},{size}\n" for b, (lower, upper, size) in enumerate(copied))
                    path.write_text("id,lower,upper,size\n" + "".join(lines))
                    found.append(pack(symmc, path, out, bound(copied) * 21 // 20, 3))
                times = sorted(1e3 * one["seconds"] for one in found if one["fits"])
                counts = " ".join(f"{bisect.bisect(times, limit):4}" for limit in LIMITS)
                median = [sorted(one[key] for one in found)[COPIES // 2] for key in ("seconds", "work")]
                print(f"{name.name:24} {kind:8}      {counts} {len(times):5} {1e3 * median[0]:10.1f} {median[1]:12}")


def bound(rows):
    """The largest sum of sizes alive."""
    changes = [(lower, size) for lower, _, size in rows] + [(upper, -size) for _, upper, size in rows]
    return max(itertools.accumulate(size for _, size in sorted(changes)))


def table(symmc, folder):
    head = f"{'file':24} {'buffers':>8} {'bound':>12} {'peak':>12} {'gap %':>7} {'work':>9} {'ms':>9} {'5 % ms':>9}"
    print(head, "capacity", sep="  ")
    missed, total = 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(folder.rglob("*.csv")):
            out, capacity = pathlib.Path(scratch) / "offsets.csv", path.name.split(".")[1]
            found = pack(symmc, path, out, capacity if capacity.isdigit() else None)
            near = pack(symmc, path, out, found["bound"] * 21 // 20)
            gap = 100 * (found["peak"] / max(found["bound"], 1) - 1)
            said = "-" if found["capacity"] is None else "met" if found["fits"] else "MISSED"
            missed += said == "MISSED"
            total += found["seconds"]
            numbers = f"{found['buffers']:8} {found['bound']:12} {found['peak']:12} {gap:7.2f} {found['work']:9}"
            times = f"{1e3 * found['seconds']:9.1f} {1e3 * near['seconds']:9.1f}"
            print(f"{path.name:24} {numbers} {times}", said, sep="  ")
    print(f"{1e3 * total:.1f} ms in all, {missed} capacities missed")
    return 1 if missed else 0


def main():
    arguments = sys.argv[1:]
    symmc = os.environ.get("SYMMC")
    if symmc is None:
        subprocess.run(["cargo", "build", "--release", "-q", "-p", "symmc-cli"], cwd=ROOT, check=True)
        symmc = BUILT
    if arguments[:1] == ["--tiled"]:
        copies = [int(c) for c in arguments[2:]] or [1, 4, 10, 35]
        return grown(symmc, lambda count, out: tile(arguments[1], count, out), copies)
    if arguments[:1] == ["--random"]:
        return grown(symmc, made, [int(c) for c in arguments[1:]] or [10_000, 100_000, 1_000_000])
    if arguments[:1] == ["--varied"]:
        return varied(symmc, arguments[1:])
    return table(symmc, pathlib.Path(arguments[0]) if arguments else ROOT / "tests" / "packing")


if __name__ == "__main__":
    sys.exit(main())
