"""Puts what compare.sh measured side by side, as Markdown.

    python3 table.py FOLDER [collectives|layers|beside]

Medians in microseconds; a ratio is symmc's best over the best peer's. A part alone where one is named; `beside` is
what beside.sh measured.
"""

import json
import re
import sys
from pathlib import Path


def lines(path):
    """The lines of a file that are JSON objects."""
    text = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in text if line.startswith("{")]


def size(count):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


def table(heads, rows):
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def number(value):
    return "–" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def collectives(folder):
    ours = json.loads((folder / "symmc-collectives.json").read_text())
    peers = lines(folder / "peers-collectives.jsonl") + lines(folder / "serving.jsonl")
    print(f"{ours['machine']}\n")
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        hows = list(dict.fromkeys(p["how"] for p in peers if p["what"] == kind))
        rows = []
        for count in sorted({c["bytes"] for c in ours["collectives"]}):
            mine = [c for c in ours["collectives"] if c["collective"] == kind and c["bytes"] == count]
            # symmc's own run of NCCL is a peer as well.
            times = {p["how"]: p.get("us") for p in peers if p["what"] == kind and p["bytes"] == count}
            plain = [c["us"][1] for c in mine if c["variant"] == "plain" and c["us"]]
            own = [(c["us"][1], c) for c in mine if c["variant"] != "plain" and c["us"]]
            best, case = min(own, key=lambda pair: pair[0])
            name = case["variant"] + (", no exit" if case["exit"] is False else "")
            known = [t for t in list(times.values()) + plain if t is not None]
            cells = [number(times.get(how)) for how in hows]
            rows.append([size(count), number(best), name, *cells, number(min(plain, default=None)), f"{best / min(known):.2f}"])
        print(f"{kind}, bf16\n")
        table(["bytes", "symmc", "variant", *(how if how[:4] in ("Tens", "vLLM") else f"{how} (PyTorch)" for how in hows), "NCCL from symmc", "ratio"], rows)


def norms(folder):
    """All-reduce, residual and norm: symmc's one kernel and separate ones beside the peers'."""
    ours = json.loads((folder / "symmc-collectives.json").read_text())["norms"]
    peers = [p for p in lines(folder / "serving.jsonl") if p["what"] == "all_reduce_norm"]
    hows = list(dict.fromkeys(p["how"] for p in peers))
    rows = []
    for shape in dict.fromkeys((m["rows"], m["hidden"]) for m in ours):
        mine = {m["how"]: m["us"] and m["us"][1] for m in ours if (m["rows"], m["hidden"]) == shape}
        times = {p["how"]: p.get("us") for p in peers if (p["rows"], p["hidden"]) == shape}
        known = [t for t in times.values() if t is not None]
        ratio = f"{mine['fused'] / min(known):.2f}" if known and mine["fused"] else "–"
        cells = [number(mine.get(how)) for how in ("fused", "separate")] + [number(times.get(how)) for how in hows]
        rows.append([f"{shape[0]} × {shape[1]}", *cells, ratio])
    print("all_reduce, residual and RMS norm, rows × elements, bf16\n")
    table(["", "symmc, one kernel", "symmc, separate", *hows, "ratio"], rows)


def layers(folder):
    """What symmc and the peers took for each program and number of tokens."""
    text = (folder / "symmc-layers.txt").read_text()
    ours = {(part, int(tokens)): float(us) for part, tokens, us in re.findall(r"^(\w+)=(\d+) .*?: ([0-9.]+) µs", text, re.M)}
    peers = lines(folder / "peers-layers.jsonl")
    heads = ["tokens", "symmc", "eager", "torch.compile", "torch.compile, collectives placed", "ratio"]
    sizes = "hidden 4096, intermediate 14336, bf16"
    for title, parts in (
        (f"four tensor-parallel MLP layers, {sizes}", ["mlp"]),
        (f"four tensor-parallel decoder layers, {sizes}, 32 heads, 8 of keys, caches of 2048", ["decode", "prefill"]),
    ):
        rows = []
        for part, tokens in dict.fromkeys((p["what"], p["tokens"]) for p in peers if p["what"] in parts):
            times = {p["how"]: p.get("us") for p in peers if (p["what"], p["tokens"]) == (part, tokens)}
            known = [t for t in times.values() if t is not None]
            mine = ours.get((part, tokens))
            cells = [number(t) for t in (mine, *map(times.get, ("eager", "compiled", "placed")))]
            ratio = f"{mine / min(known):.2f}" if mine and known else "–"
            rows.append([f"{tokens}" if len(parts) == 1 else f"{tokens} ({part})", *cells, ratio])
        if rows:
            print(f"{title}\n")
            table(heads, rows)


def middle(values):
    return sorted(values)[len(values) // 2]


def beside(folder):
    rows = []

    def row(who, alone, both):
        if alone and both:
            alone, both = middle(alone), middle(both)
            rows.append([who, number(alone), number(both), number(both - alone), f"{(both / alone - 1) * 100:.1f} %"])

    ours = re.findall(r"^(\w+) \w+: ([0-9.]+) µs", (folder / "symmc-beside.txt").read_text(), re.M)
    times = lambda how: [float(us) for name, us in ours if name == how]
    row("symmc, copies", times("product"), times("copies"))
    row("symmc, NCCL's copy engines", times("product"), times("copy_engine"))
    row("symmc, as the profile chooses", times("product"), times("chosen"))
    peers = lines(folder / "peers-beside.jsonl")
    for how in dict.fromkeys(p["how"] for p in peers):
        for recorded, name in ((True, "graph"), (False, "launched")):
            of = lambda what: [p["us"] for p in peers if (p["how"], p["recorded"], p["what"]) == (how, recorded, what) and "us" in p]
            row(f"PyTorch, {how}, {name}", of("product"), of("beside"))
    table(["", "product alone", "with the all-gather", "added", "of the product"], rows)


folder, part = Path(sys.argv[1]), (sys.argv[2:] or ["all"])[0]
if part == "beside":
    beside(folder)
if part in ("collectives", "all"):
    collectives(folder)
    norms(folder)
if part in ("layers", "all"):
    layers(folder)
