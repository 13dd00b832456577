#!/usr/bin/env python3
"""Runs PyTorch's own samples of ops through symmc: `python3 tests/coverage/torch_samples.py SYMMC [OPTIONS]`.

Each sample of `torch.testing._internal.common_methods_invocations.op_db` becomes a module whose arguments are the
sample's tensors, is exported and saved, and runs on one rank against what PyTorch computed (`--compare recorded`, with
symmc's tolerances). Needs torch, numpy and safetensors; samples that torch itself cannot export are counted apart.

Counted are samples by what happened:
- agreed: the outputs are those of PyTorch;
- refused: symmc says what it does not take, exit code 2;
- wrong: other numbers, or any other end (a panic, a signal, a hang);
- apart: samples whose result PyTorch does not define (APART says which and why), and those where symmc is no further from
  what f64 gives than PyTorch itself is, up to FACTOR: both round intermediate values.

With `--decomposed` each program runs again after `run_decompositions()`, which changes no result; with `--scale` floats are
smaller, so that what is added to them, such as the epsilon of a norm that the call leaves out, shows.

The last line is `agreed A, refused R, wrong W, apart P, not exported N`; exit code 1 if any is wrong.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

from outcome import command, run

DTYPES = ["float32", "bfloat16", "int64", "bool", "float16", "float64", "int32", "uint8"]
# Those that are run where none is asked for.
COMMON = DTYPES[:4]

# Ops whose result is not defined by their operands.
APART = {
    "uninitialised memory": r"^(empty|new_empty|empty_like|empty_strided|new_empty_strided|empty_permuted|resize_|resize_as_)",
    "random numbers": r"(rand|normal|uniform|bernoulli|multinomial|dropout|exponential|geometric|cauchy|rrelu)",
}
# Ops that choose among equals as the implementation likes.
TIES = r"^(sort|topk|argsort|msort|mode|median|nanmedian|kthvalue|aminmax|max|min|argmax|argmin|cummax|cummin|unique)"


# How much further from the result in f64 than PyTorch's largest error the outputs of symmc may be.
FACTOR = 2.0


def apart(name):
    return next((why for why, pattern in APART.items() if re.search(pattern, name)), None)


def flat(value, tensors):
    """The value with each tensor in it replaced by its position among `tensors`."""
    import torch

    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ("tensor", len(tensors) - 1)
    if isinstance(value, (list, tuple)):
        return (type(value), [flat(v, tensors) for v in value])
    if isinstance(value, dict):
        return (dict, {k: flat(v, tensors) for k, v in value.items()})
    return ("value", value)


def rebuilt(tree, tensors):
    kind, what = tree
    if kind == "tensor":
        return tensors[what]
    if kind == "value":
        return what
    if kind is dict:
        return {k: rebuilt(v, tensors) for k, v in what.items()}
    items = [rebuilt(v, tensors) for v in what]
    return kind(items) if kind in (list, tuple) else kind(*items)


def in_double(tree):
    """The value with f64 in place of other dtypes of floats that it names."""
    import torch

    kind, what = tree
    if kind == "value" and isinstance(what, torch.dtype) and what.is_floating_point:
        return kind, torch.float64
    if kind is dict:
        return kind, {k: in_double(v) for k, v in what.items()}
    if kind in ("tensor", "value"):
        return tree
    return kind, [in_double(v) for v in what]


def has_ties(tensors):
    return any(t.numel() > t.unique().numel() for t in tensors if not t.dtype.is_complex)


def leaves(value):
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in leaves(v)]
    return []


def only_rounded(symmc, module, tensors, expected, folder):
    """Whether symmc's outputs are about as close to those of a module in f64 as PyTorch's are."""
    import safetensors.torch
    import torch

    if not any(t.is_floating_point() for t in expected):
        return False
    wide = [t.double() if t.is_floating_point() else t.clone() for t in tensors]
    try:
        exact = leaves(module(*wide))
    except Exception:  # Not every op takes f64.
        return False
    files = [folder / f"sample.{end}" for end in ("pt2", "safetensors")]
    found = folder / "found.safetensors"
    again = [*command(symmc, *files), "--compare", "none", "--output", str(found)]
    done = subprocess.run(again, capture_output=True, timeout=120)
    if done.returncode != 0:
        return False
    found = safetensors.torch.load_file(found)
    for i, (theirs, truth) in enumerate(zip(expected, exact)):
        ours = found[f"rank0.out.{i}"]
        if not theirs.is_floating_point():
            if not torch.equal(ours, theirs):
                return False
            continue
        finite = theirs.isfinite()
        if not torch.equal(ours[~finite].nan_to_num(), theirs[~finite].nan_to_num()):
            return False
        errors = [(t.double() - truth)[finite].abs() for t in (ours, theirs)]
        mine, their = [float(e.max()) if e.numel() else 0.0 for e in errors]
        if not mine <= FACTOR * their:
            return False
    return True


def samples_of(op, dtype, limit):
    """The first samples of an op."""
    import itertools

    return itertools.islice(op.sample_inputs("cpu", dtype), limit)


def one(symmc, op, sample, folder, scale=1.0, decomposed=False):
    """What happened to one sample."""
    import safetensors.torch
    import torch

    tensors = []
    tree = flat((sample.input, list(sample.args), dict(sample.kwargs)), tensors)
    tensors = [t.detach().clone().contiguous() for t in tensors]
    tensors = [t * scale if t.is_floating_point() and scale != 1.0 else t for t in tensors]

    class Sample(torch.nn.Module):
        def __init__(self, tree=tree):
            super().__init__()
            self.tree = tree

        def forward(self, *given):
            x, args, kwargs = rebuilt(self.tree, given)
            return op(x, *args, **kwargs)

    try:
        expected = leaves(Sample()(*[t.clone() for t in tensors]))
        exported = torch.export.export(Sample(), tuple(t.clone() for t in tensors), strict=False)
        program = folder / "sample.pt2"
        torch.export.save(exported, program)
    except Exception as error:  # Whatever torch cannot export is no case.
        return "not exported", str(error).splitlines()[:1]
    recorded = {f"rank0.in.{i}": t for i, t in enumerate(tensors)}
    recorded |= {f"rank0.out.{i}": t.detach().clone().contiguous() for i, t in enumerate(expected)}
    try:
        safetensors.torch.save_file(recorded, folder / "sample.safetensors")
    except Exception as error:
        return "not exported", str(error).splitlines()[:1]
    status, words = run(symmc, program, folder / "sample.safetensors")
    if decomposed and status == "agreed":
        try:
            torch.export.save(exported.run_decompositions(), program)
        except Exception as error:
            return "not exported", str(error).splitlines()[:1]
        status, words = run(symmc, program, folder / "sample.safetensors")
        words = f"after run_decompositions(): {words}"
    if status == "wrong" and re.search(TIES, op.name) and has_ties(tensors):
        return "apart", "ties"
    if status == "wrong" and only_rounded(symmc, Sample(in_double(tree)), tensors, expected, folder):
        return "apart", "roundings"
    return status, words


def of_op(task):
    """The outcomes of all samples of one op and dtype."""
    symmc, index, dtype, limit, keep, scale, decomposed = task
    warnings.filterwarnings("ignore")
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    torch.set_num_threads(1)
    op, out = op_db[index], []
    name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    kind = getattr(torch, dtype)
    if kind not in op.supported_dtypes("cpu"):
        return name, dtype, out
    if why := apart(op.name):
        return name, dtype, [("apart", why)]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for n, sample in enumerate(samples_of(op, kind, limit)):
                folder = pathlib.Path(scratch)
                status, words = one(symmc, op, sample, folder, scale, decomposed)
                out.append((status, words))
                if status == "wrong" and keep:
                    kept = pathlib.Path(keep) / f"{name.replace('/', '_')}.{dtype}.{n}"
                    for end in ("pt2", "safetensors"):
                        if (folder / f"sample.{end}").exists():
                            os.replace(folder / f"sample.{end}", f"{kept}.{end}")
        except Exception as error:  # A sample that torch fails to make.
            out.append(("not exported", str(error).splitlines()[:1]))
    return name, dtype, out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("symmc", help="the symmc command")
    parser.add_argument("--op", help="only ops whose name matches this pattern")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="only this dtype")
    parser.add_argument("--limit", type=int, default=1000, help="samples of each op and dtype at most")
    parser.add_argument("--scale", type=float, default=1.0, help="floats are multiplied by this")
    parser.add_argument("--decomposed", action="store_true", help="also after run_decompositions()")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", help="a folder for the files of samples that went wrong")
    parser.add_argument("--json", help="a file for all outcomes")
    args = parser.parse_args()
    from torch.testing._internal.common_methods_invocations import op_db

    symmc = str(pathlib.Path(args.symmc).resolve())
    if args.keep:
        os.makedirs(args.keep, exist_ok=True)
    chosen = [i for i, op in enumerate(op_db) if not args.op or re.search(args.op, op.name)]
    how = (args.limit, args.keep, args.scale, args.decomposed)
    tasks = [(symmc, i, d, *how) for i in chosen for d in args.dtype or COMMON]
    total, rows = collections.Counter(), []
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        for name, dtype, out in pool.map(of_op, tasks):
            counts = collections.Counter(status for status, _ in out)
            total += counts
            rows.append({"op": name, "dtype": dtype, "outcomes": out})
            for status, words in out:
                if status == "wrong":
                    print(f"wrong: {name} {dtype}: {words}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows))
    ops = {r["op"] for r in rows if any(s == "agreed" for s, _ in r["outcomes"])}
    print(f"{len(ops)} of {len({r['op'] for r in rows})} ops have a sample that agrees")
    print(
        f"agreed {total['agreed']}, refused {total['refused']}, wrong {total['wrong']}, "
        f"apart {total['apart']}, not exported {total['not exported']}"
    )
    sys.exit(1 if total["wrong"] else 0)


if __name__ == "__main__":
    main()
