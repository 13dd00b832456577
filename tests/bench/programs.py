#!/usr/bin/env python3
"""Measures planning and running of the real programs: `python3 tests/bench/programs.py [ROUNDS]`.

Builds the release binary, then prints
- for each program and two machines, the memory of the order that is chosen beside those of simple rules, as a table;
- for the same, the exit barriers that are dropped and what they cost, the copies, the inputs that lie in the symmetric
  arena, and the least limit of that arena with the barriers it keeps;
- by how much each arena is above the max-live bound of its order;
- the time to plan and to check a program of 10,000 steps beside one collective, of which half are concatenated;
- the time to plan a program of 10,000 steps that has no layers, and its memory beside those orders;
- by how much planning takes longer when programs have four times the steps, of kinds that keep much open at once;
- the time of each stage of `symmc plan` on the 70B program with four buckets, and its peak memory;
- the time of one run of hf_llama_tp2 on host ranks and in the interpreter, in turn, and their ratio. A run is
  the difference between many repeats and one, so that starting processes does not count.
Medians over ROUNDS (9), with the smallest and the largest.
"""

import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
SYMMC = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "symmc"
REPEATS = 201
RANKS = {"gpt_tp2": 2, "hf_llama_tp2": 2, "hf_llama_tp2_core": 2, "llama70b_tp8_graph": 8}
NAMED = ["program", "list", "dfs", "dfs-users", "post-order", "lpmf", "bfs"]


def run(*args):
    """Runs symmc; gives standard error and the peak memory of the process in MiB."""
    process = subprocess.Popen([SYMMC, *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    text = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"symmc {' '.join(map(str, args))}\n{text}")
    return text, usage.ru_maxrss / 1024


def cpu_ms(*args):
    """Milliseconds of CPU time that symmc takes."""
    process = subprocess.Popen([SYMMC, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"symmc {' '.join(map(str, args))} failed")
    return 1e3 * (usage.ru_utime + usage.ru_stime)


def show(name, values, unit):
    low, mid, high = min(values), statistics.median(values), max(values)
    print(f"{name:32} {mid:10.2f} {unit}   ({low:.2f} to {high:.2f})")


def programs():
    """The name, the files and the ranks of each program."""
    found = {path.stem: [path] for path in PROGRAMS.glob("*.pt2")}
    for path in sorted(PROGRAMS.glob("*_rank*.onnx")):
        found.setdefault(path.stem.rsplit("_rank", 1)[0], []).append(path)
    return [(name, found[name], RANKS.get(name, 4)) for name in sorted(found)]


def planned(program, ranks, machine, *options):
    """A plan of the program in these files, or what is said of why there is none."""
    args = [SYMMC, "plan", *program, "--ranks", str(ranks), "--machine", machine, "--format", "json", *options]
    process = subprocess.run(args, capture_output=True, text=True)
    return json.loads(process.stdout) if process.returncode == 0 else process.stderr


def totals(program, ranks, machine, *options):
    """The sums of the bucket of a plan that needs the most."""
    return max((b["totals"] for b in planned(program, ranks, machine, *options)["buckets"]), key=peak)


def peak(totals):
    return totals["ordinary_peak"] + totals["symmetric_peak"]


def size(n):
    for unit in ["B", "KiB", "MiB"]:
        if n < 1024:
            break
        n /= 1024
    return f"{n:.{max(0, 3 - len(str(int(n))))}f} {unit}" if unit != "B" else f"{n} B"


def order_row(name, program, ranks, machine):
    need = {order: peak(totals(program, ranks, machine, "--order", order)) for order in ["chosen", "lean", *NAMED]}
    best = min(NAMED, key=lambda order: need[order])
    cells = [need["program"], need[best], need["lean"], need["chosen"]]
    cells = [size(n) for n in cells]
    cells[1] += f" ({best})" if need[best] < need["program"] else ""
    gain = (need["chosen"] / need["program"] - 1) * 100
    print(f"| {name} | {machine} | {' | '.join(cells)} | {gain:+.1f} % |")


def orders():
    print("peaks of both arenas together")
    print("| program | machine | program order | best of seven rules | leanest | chosen | against program order |")
    print("|---|---|---|---|---|---|---|")
    for name, program, ranks in programs():
        for machine in ["host", "h200x8"]:
            order_row(name, program, ranks, machine)


def barriers():
    print("| program | variants | symmetric arena | dropped | for | kept | copies | bound inputs | least arena | kept there |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, program, ranks in programs():
        for variants in ["all", "one_shot,pull"]:
            args = [program, ranks, "h200x8"]
            args += ["--variants", variants] if variants != "all" else []
            # At its largest size the library runs the collectives of this one.
            few = name.startswith("llama70b")
            args += ["--bucket", "tokens=64"] if few else []
            plan = planned(*args)
            of = plan["buckets"][0]["totals"]
            bound = sum("bound" in f["role"] for f in plan["fixed"])
            refused = planned(*args, "--symm-limit", "0")
            least = re.search(r"takes (\d+) bytes", refused).group(1) if isinstance(refused, str) else "0"
            kept = planned(*args, "--symm-limit", least)["buckets"][0]["totals"]["barriers_kept"]
            copies = f"{of['copies']} ({size(of['copied'])})" if of["copies"] else "0"
            cells = [size(plan["arenas"]["symmetric"]), of["barriers_dropped"], size(of["barrier_bytes"]),
                     of["barriers_kept"], copies, bound, size(int(least)), kept]
            print(f"| {name}{', 64 tokens' if few else ''} | {variants} | {' | '.join(map(str, cells))} |")


def gap_row(name, program, ranks, machine, *options):
    """The largest peaks of the buckets, and how far those of any bucket are above the bounds, in the chosen order and
    in each of the others."""
    plans = {order: planned(program, ranks, machine, "--order", order, *options)["buckets"]
             for order in ["chosen", "lean", *NAMED]}

    def gap(arena, buckets):
        of = [b["totals"] for b in buckets]
        return max((t[f"{arena}_peak"] / t[f"{arena}_bound"] - 1) * 100 if t[f"{arena}_bound"] else 0 for t in of)

    cells = []
    for arena in ["ordinary", "symmetric"]:
        peaks = [size(max(b["totals"][f"{arena}_{what}"] for b in plans["chosen"])) for what in ["peak", "bound"]]
        cells += [*peaks, f"{gap(arena, plans['chosen']):.2f}"]
    most = max(gap(arena, buckets) for buckets in plans.values() for arena in ["ordinary", "symmetric"])
    print(f"| {name} | {machine} | {' | '.join(cells)} | {most:.2f} |")


def gaps():
    print("| program | machine | ordinary peak | bound | gap % | symmetric peak | bound | gap % | any order, % |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, program, ranks in programs():
        for machine in ["host", "h200x8"]:
            options = ["--bucket", "tokens=2,64,512,8192"] if name.startswith("llama70b") else []
            gap_row(name, program, ranks, machine, *options)


def wide(nodes):
    """Half of the nodes are alive together and concatenated, the other half use pieces of one all-reduce."""
    half, rows = nodes // 2, 32 * (nodes // 2)
    lines = ['program "wide" ranks 4', "group @world world", "arg %x: f32[64, 64]", "param %w: f32[64, 64]"]
    lines += [f"arg %y: f32[{rows}, 64]", f"%h: f32[{rows}, 64] = matmul %y, %w"]
    lines += [f"%v{i}: f32[64, 64] = mul %x, {i}.5" for i in range(half)]
    lines += [f"%c: f32[{64 * half}, 64] = concat {', '.join(f'%v{i}' for i in range(half))} axis=0"]
    lines += [f"%r: f32[{rows}, 64] = all_reduce %h op=sum group=@world"]
    for i in range(half):
        lines += [f"%s{i}: f32[1, 64] = slice %r axis=0 start={i} step=1"]
        lines += [f"%u{i}: f32[64] = reduce %s{i} op=max axes=[0] keep=false"]
    lines += [f"%d: f32[{64 * half}] = concat {', '.join(f'%u{i}' for i in range(half))} axis=0"]
    lines += ["%m: f32[64] = reduce %c op=sum axes=[0] keep=false", "return %d", "return %m", ""]
    return "\n".join(lines)


def beside_one(rounds):
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "wide.symm"
        program.write_text(wide(10000))
        times = [run("plan", program, "--machine", "h200x4", "--slack", "0", "--timing")[0] for _ in range(rounds)]
    print("10,000 steps beside one collective")
    for stage in ["plan", "check"]:
        of = [float(re.search(rf"^{stage} ([\d.]+) ms$", text, re.M).group(1)) for text in times]
        show(f"  {stage}", of, "ms")


def generated(nodes):
    """A program whose nodes use values at random among the last few; about half of the nodes are used."""
    rng, widths = random.Random(1), [16, 32, 64, 128]
    lines = ['program "generated" ranks 4', "group @world world", "arg %x: f32[64, 64]"]
    lines += [f"param %w{j}_{k}: f32[{j}, {k}]" for j in widths for k in widths]
    recent = [("x", 64)]
    for n in range(nodes):
        (a, j), k, roll = rng.choice(recent), rng.choice(widths), rng.random()
        same = [v for v, width in recent if width == j and v != a]
        if roll < 0.08:
            text, k = f"all_reduce %{a} op=sum group=@world", j
        elif roll < 0.45 and same:
            text, k = f"add %{a}, %{rng.choice(same)}", j
        else:
            text = f"matmul %{a}, %w{j}_{k}"
        lines.append(f"%v{n}: f32[64, {k}] = {text}")
        recent = [*recent[-11:], (f"v{n}", k)]
    return "\n".join([*lines, f"return %v{nodes - 1}", ""])


def large(rounds):
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "generated.symm"
        program.write_text(generated(21500))
        times = [run("plan", program, "--timing")[0] for _ in range(rounds)]
        times = [float(re.search(r"^plan ([\d.]+) ms$", text, re.M).group(1)) for text in times]
        order_row("generated, 10,000 steps", [program], 4, "host")
        show("planning it", times, "ms")


def many(kind, count):
    """So many collectives in a chain, collectives that are all concatenated, collectives of different sizes between element-wise steps,
    element-wise steps of many shapes, or layers whose weights are gathered."""
    lines = ['program "many" ranks 2', "group @all world"]
    if kind == "layers":
        lines += ["arg %y0: bf16[512, 1024]"] + [f"param %x{i}: bf16[512, 1024]" for i in range(count)]
        for i in range(count):
            lines += [f"%g{i}: bf16[1024, 1024] = all_gather %x{i} group=@all"]
            lines += [f"%y{i + 1}: bf16[512, 1024] = matmul %y{i}, %g{i}"]
        return "\n".join([*lines, f"return %y{count}", ""])
    if kind == "different":
        size = {i: f"f32[{64 + 4 * i}, 64]" for i in range(count)}
        lines += [f"arg %x{i}: {size[i]}" for i in range(count)]
        for i in range(count):
            lines += [f"%n{i}: {size[i]} = exp %x{i}"]
            lines += [f"%r{i}: {size[i]} = all_reduce %n{i} op={'sum' if i % 3 else 'max'} group=@all"]
            lines += [f"%y{i}: {size[i]} = exp %r{i}"]
        return "\n".join([*lines, *(f"return %y{i}" for i in range(count)), ""])
    size = {i: 1024 if kind != "maps" else 16 * (1 + i % 97) for i in range(count)}
    lines += [f"arg %x{i}: f32[{size[i]}]" for i in range(1 if kind == "chain" else count)]
    for i in range(count):
        of = f"y{i - 1}" if kind == "chain" and i > 0 else f"x{i}"
        op = f"exp %{of}" if kind == "maps" else f"all_reduce %{of} op=sum group=@all"
        lines.append(f"%y{i}: f32[{size[i]}] = {op}")
    if kind == "maps":
        return "\n".join([*lines, *(f"return %y{i}" for i in range(count)), ""])
    parts = ["x0", f"y{count - 1}"] if kind == "chain" else [f"y{i}" for i in range(count)]
    lines.append(f"%c: f32[{1024 * len(parts)}] = concat {', '.join(f'%{p}' for p in parts)} axis=0")
    return "\n".join([*lines, "return %c", ""])


def growth(rounds):
    print("planning, by CPU time, of programs with four times the steps")
    for kind, count in [("chain", 4000), ("concat", 4000), ("maps", 2000), ("layers", 500), ("different", 100)]:
        of = []
        with tempfile.TemporaryDirectory() as folder:
            for steps in [count, 4 * count]:
                program = pathlib.Path(folder) / f"{kind}{steps}.symm"
                program.write_text(many(kind, steps))
                of.append(min(cpu_ms("plan", program, "--machine", "h200x2", "--format", "json") for _ in range(rounds)))
        print(f"  {kind:8} {count:6} {of[0]:9.1f} ms   {4 * count:6} {of[1]:9.1f} ms   {of[1] / of[0]:5.2f} x")


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
        times.append(float(re.search(r"runs? in ([\d.]+) ms", text).group(1)))
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
    # First, while this process is small: what it takes when it starts another counts as the peak memory of that.
    plan(count)
    orders()
    gaps()
    barriers()
    large(count)
    beside_one(count)
    growth(count)
    runs(count)
