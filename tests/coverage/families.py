#!/usr/bin/env python3
"""Runs models of Hugging Face families through symmc: `python3 tests/coverage/families.py SYMMC FOLDER [NAME...]`.

FOLDER has programs that `tests/programs/families.py FOLDER '*'` wrote; NAMEs are patterns of those to run. Each runs on host
threads against what PyTorch gave, and counts as in torch_samples.py. With `--squares` also lists the programs in which, once they
are in canonical form, a value has two axes that grow with the number of tokens, other than by batch. Exit code 1 if any is
wrong.
"""

import argparse
import collections
import fnmatch
import pathlib
import re
import subprocess
import sys

from outcome import run

# Longer names before those that they end with.
VARIANTS = "static_prefill prefill eager_padded padded batched positions eager static_decode rolled_decode past tp2 cuda".split()


def squares(symmc, program, tensors):
    """The ops whose first result has two axes that grow with the number of tokens."""
    given = [symmc, "print", str(program), "--tensors", str(tensors), "--stage", "canonical"]
    text = subprocess.run(given, capture_output=True, text=True, timeout=120).stdout
    found = []
    for shape, op in re.findall(r"^%[^ ]+: \w+\[([^\]]*)\][^=]* = (\w+)", text, re.M):
        extents = [re.sub(r"\bbatch\b", "", d) for d in shape.split(",")]
        if sum(bool(re.search("[a-z]", d)) for d in extents) > 1:
            found.append(op)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("symmc", help="the symmc command")
    parser.add_argument("folder", type=pathlib.Path, help="the folder of the programs")
    parser.add_argument("names", nargs="*", help="patterns of file names without their end")
    parser.add_argument("--squares", action="store_true", help="also list programs with values of tokens by tokens")
    args = parser.parse_args()
    totals = collections.defaultdict(collections.Counter)
    for program in sorted(args.folder.glob("*.pt2")):
        if args.names and not any(fnmatch.fnmatch(program.stem, n) for n in args.names):
            continue
        tensors = program.with_suffix(".safetensors")
        status, words = run(args.symmc, program, tensors, ranks=2 if program.stem.endswith("_tp2") else 1)
        variant = next(v for v in VARIANTS if program.stem.endswith(f"_{v}"))
        totals[variant][status] += 1
        if status != "agreed":
            print(f"{status}: {program.stem}: {words[:200]}", flush=True)
        if args.squares and (found := squares(args.symmc, program, tensors)):
            print(f"tokens by tokens: {program.stem}: {', '.join(sorted(set(found)))}", flush=True)
    for variant, counts in totals.items():
        print(f"{variant}: " + ", ".join(f"{status} {counts[status]}" for status in ("agreed", "refused", "wrong")))
    everything = sum(totals.values(), collections.Counter())
    print(", ".join(f"{status} {everything[status]}" for status in ("agreed", "refused", "wrong")))
    sys.exit(1 if everything["wrong"] or not everything else 0)


if __name__ == "__main__":
    main()
