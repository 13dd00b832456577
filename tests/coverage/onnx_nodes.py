#!/usr/bin/env python3
"""Runs ONNX's own tests of operators through symmc: `python3 tests/coverage/onnx_nodes.py SYMMC [OPTIONS]`.

Each case of `onnx.backend.test.case.node` is written as a model with its recorded inputs and outputs and runs on one
rank (`--compare recorded`, with symmc's tolerances). Inputs that symmc needs as constants (axes, shapes) may become
initializers: a case that is refused is tried again with all integer inputs, scales and regions as initializers, and
counted as `agreed as initializers` then. Needs onnx, numpy and safetensors.

Counted are cases by what happened: agreed, agreed as initializers, refused (exit code 2), wrong (other numbers or any
other end), out of scope (sequences, optionals, strings, other element types of the file format), apart (APART).
The last line is `agreed A, agreed as initializers I, refused R, wrong W, apart P, out of scope S`; exit code 1 if any is
wrong.
"""

import argparse
import collections
import os
import pathlib
import re
import sys
import tempfile

from outcome import run

# Cases whose result is not defined, or less precise than symmc's: a program of constants must have exactly the recorded
# numbers, which were computed in f32 here.
APART = {
    "random numbers": r"(bernoulli|random|dropout.*training|training_dropout|multinomial)",
    "windows in f32": r"(hann|hamming|blackman)window",
    "four digits": r"averagepool_2d_ceil_last_window_starts_on_pad",
}


def arrays(values, names):
    """The arrays of a case by name; None if one is no dense tensor of numbers."""
    import numpy

    out = {}
    for name, value in zip(names, values):
        if not isinstance(value, (numpy.ndarray, numpy.generic)) or numpy.asarray(value).dtype.kind in "OUSc":
            return None
        out[name] = numpy.asarray(value, order="C")
    return out


def attempt(symmc, case, folder, constants):
    """What symmc makes of a case whose inputs of these names are initializers."""
    import onnx
    import onnx.numpy_helper
    from safetensors.numpy import save_file

    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs = [i.name for i in model.graph.input]
    given, expected = case.data_sets[0]
    values = arrays(given, inputs)
    results = arrays(expected, [o.name for o in model.graph.output])
    if values is None or results is None:
        return "out of scope", ""
    kept = [i for i in model.graph.input if i.name not in constants]
    for name in inputs:
        if name in constants and name in values:
            model.graph.initializer.append(onnx.numpy_helper.from_array(values[name], name))
    del model.graph.input[:]
    model.graph.input.extend(kept)
    recorded = {f"rank0.in.{i}": values[v.name] for i, v in enumerate(kept) if v.name in values}
    recorded |= {f"rank0.out.{i}": value for i, value in enumerate(results.values())}
    try:
        save_file(recorded, folder / "case.safetensors")
    except Exception:
        return "out of scope", ""
    onnx.save(model, folder / "case.onnx")
    return run(symmc, folder / "case.onnx", folder / "case.safetensors")


# Floats that symmc needs as constants, by the names of their inputs.
CONSTANT_FLOATS = {"scales", "roi", "depth", "start", "limit", "delta"}


def constant_inputs(case):
    import numpy

    names = [i.name for i in case.model.graph.input]
    values = zip(names, case.data_sets[0][0])
    return {n for n, v in values if isinstance(v, numpy.ndarray | numpy.generic) and (v.dtype.kind in "iub" or n in CONSTANT_FLOATS)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("symmc", help="the symmc command")
    parser.add_argument("--case", help="only cases whose name matches this pattern")
    parser.add_argument("--keep", help="a folder for the files of cases that went wrong")
    parser.add_argument("--refused", action="store_true", help="also print the cases that are refused or out of scope")
    args = parser.parse_args()
    from onnx.backend.test.case.node import collect_testcases

    symmc = str(pathlib.Path(args.symmc).resolve())
    if args.keep:
        os.makedirs(args.keep, exist_ok=True)
    total = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for case in collect_testcases(None):
            if args.case and not re.search(args.case, case.name):
                continue
            if any(re.search(pattern, case.name) for pattern in APART.values()):
                total["apart"] += 1
                continue
            if not case.data_sets:
                continue
            status, words = attempt(symmc, case, folder, set())
            if status == "refused" and constant_inputs(case):
                again, said = attempt(symmc, case, folder, constant_inputs(case))
                if again != "refused":
                    status, words = ("agreed as initializers" if again == "agreed" else again), said
            total[status] += 1
            if args.refused and status in ("refused", "out of scope"):
                print(f"{status}: {case.name}: {words}", flush=True)
            if status == "wrong":
                print(f"wrong: {case.name}: {words}", flush=True)
                if args.keep:
                    for end in ("onnx", "safetensors"):
                        os.replace(folder / f"case.{end}", pathlib.Path(args.keep) / f"{case.name}.{end}")
    names = ["agreed", "agreed as initializers", "refused", "wrong", "apart", "out of scope"]
    print(", ".join(f"{name} {total[name]}" for name in names))
    sys.exit(1 if total["wrong"] else 0)


if __name__ == "__main__":
    main()
