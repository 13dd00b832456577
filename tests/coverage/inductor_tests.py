#!/usr/bin/env python3
"""Runs the tests that PyTorch has for Inductor under `torch.compile(backend="symmc")`: `python3 tests/coverage/inductor_tests.py CHECKOUT [PATTERN...]`.

CHECKOUT is a checkout of PyTorch, best of the version that is installed, or the file `test_torchinductor.py` itself: the tests are
not part of PyTorch's packages. The tests are those of the classes `CommonTemplate` and `SweepInputs...`; PATTERNs say which to run.
`--dynamic` takes all sizes for unknown, `--fallback` says who runs operators that symmc does not know.

Each test is a process of its own, forked once all is imported, with a limit of time. The file is read definition by definition: what
needs modules that are not there is left out. `check_model` of the tests is replaced by one that compiles with symmc and compares with
eager; other calls of `torch.compile` in tests go to symmc as well. A test counts as

    agree      results equal those of eager
    rounded    results in f32 or c64 differ by more than the test allows, but are no further from f64 than FACTOR times eager's
    cut        results equal those of eager, and some operators were left to the fallback
    skipped    the test skips itself, for want of a GPU, say
    foreign    it asks for something of Inductor: its kernels, its settings, its code
    apart      PyTorch's own `aot_eager` fails in the same way, or the test orders operands with equal elements (TIES), of which PyTorch
               does not define a choice
    wrong      results differ
    raised     symmc raises an error
    crashed    the process ended
    slow       no end within the limit

Exit code 1 if any is wrong, raised or crashed.
"""

import argparse
import ast
import collections
import copy
import fnmatch
import json
import os
import pathlib
import re
import signal
import sys
import time
import traceback
import types
import unittest
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import torch
import torch._dynamo.testing
import torch._inductor.compile_fx
import torch._inductor.config
import torch._inductor.metrics
from torch.testing._internal.common_utils import TestCase
from torch.utils import _pytree as pytree

import symmc.torch

BAD = ("wrong", "raised", "crashed")
COMPILE, OPTIMIZE = torch.compile, torch._dynamo.optimize
"""PyTorch's own, for which others stand in tests."""

ORDER = ("agree", "rounded", "cut", "skipped", "foreign", "apart", "slow", *BAD)


FACTOR = 2.0
"""How much further from the results in f64 than eager's largest error those of symmc may be."""


TIES = re.compile(r"topk|sort|argmax|argmin|kthvalue|median|mode")
"""Tests that choose among elements by their order."""


class Differs(Exception):
    """Results are not those of eager."""


class Tied(Exception):
    """Results differ from those of eager by the choice among equal elements."""


class Rounded(Exception):
    """Results differ from those of eager as much as both differ from f64."""


class Checked:
    """How tests compile, and what they found."""

    def __init__(self, backend, dynamic, fallback):
        self.backend, self.dynamic, self.compile = backend, dynamic, COMPILE
        self.options = {"fallback": fallback} if backend == "symmc" else None
        self.count, self.name = 0, ""

    def compiled(self, model=None, **options):
        """Stands in for `torch.compile` in tests."""
        if model is None:
            return lambda model: self.compiled(model, **options)
        own = {key: options[key] for key in ("fullgraph", "dynamic") if key in options}
        if options.get("backend", "inductor") != "inductor":
            return self.compile(model, backend=options["backend"], **own)
        self.count += 1
        return self.compile(model, backend=self.backend, options=self.options, **{"dynamic": self.dynamic, **own})

    def check(self, test, model, inputs, kwargs=None, *, atol=None, rtol=None, check_lowp=True, exact_dtype=True, nopython=True,
              reference_in_float=True, assert_equal=True, check_gradient=False, **others):
        """Stands in for `check_model` in tests."""
        torch._dynamo.reset()
        kwargs = kwargs or {}
        narrow = [one for one in pytree.tree_leaves((inputs, kwargs)) if is_narrow(one)]
        wide = reference_in_float and bool(narrow)
        given = pytree.tree_map(lambda one: one.float() if wide and is_narrow(one) else one, (cloned(inputs), cloned(kwargs)))
        if wide and hasattr(model, "to"):
            model = model.to(torch.float)
        torch.manual_seed(0)
        expected = model(*given[0], **given[1])
        if wide and hasattr(model, "to"):
            model = model.to(narrow[0].dtype)
        run = self.compiled(lambda *inputs, **kwargs: model(*inputs, **kwargs), fullgraph=nopython)
        torch.manual_seed(0)
        own = cloned(inputs)
        found = run(*own, **kwargs)
        try:
            self.same(test, found, expected, wide or not exact_dtype, (atol, rtol), assert_equal)
        except Differs as differs:
            if TIES.search(self.name) and has_ties((inputs, kwargs)):
                raise Tied(str(differs)) from None
            if only_rounded(model, (inputs, kwargs), found, expected):
                raise Rounded(str(differs)) from None
            raise
        if check_gradient:
            self.same(test, gradients(found, own), gradients(expected, given[0]), wide, (atol, rtol), True)

    @staticmethod
    def same(test, found, expected, any_dtype, tolerance, values):
        """Raises where results differ."""
        ones, others = pytree.tree_leaves(found), pytree.tree_leaves(expected)
        if len(ones) != len(others):
            raise Differs(f"{len(ones)} results, eager has {len(others)}")
        for one, other in zip(ones, others):
            if isinstance(other, torch.Tensor) and any_dtype:
                other = other.to(one.dtype)
            if isinstance(other, torch.Tensor) and (one.shape, one.dtype) != (other.shape, other.dtype):
                raise Differs(f"{one.dtype}{list(one.shape)}, eager has {other.dtype}{list(other.shape)}")
            if not values:
                continue
            try:
                test.assertEqual(one, other, atol=tolerance[0], rtol=tolerance[1], equal_nan=True)
            except AssertionError as error:
                raise Differs(str(error)) from None


def has_ties(given):
    """Whether an operand has equal elements."""
    tensors = [one for one in pytree.tree_leaves(given) if isinstance(one, torch.Tensor) and not one.is_complex()]
    return any(one.numel() > one.unique().numel() for one in tensors)


def only_rounded(model, given, found, expected):
    """Whether results in f32 or c64 are about as close to those in f64 as eager's are."""
    ones, others = [[t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)] for tree in (found, expected)]
    pairs = list(zip(ones, others))
    if len(ones) != len(others) or any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in pairs):
        return False

    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}

    def as_double(value):
        return value.to(wide.get(value.dtype, value.dtype)) if isinstance(value, torch.Tensor) else value

    try:
        model = copy.deepcopy(model).double() if isinstance(model, torch.nn.Module) else model
        torch.manual_seed(0)
        inputs, kwargs = pytree.tree_map(as_double, (cloned(given[0]), cloned(given[1])))
        exact = [t for t in pytree.tree_leaves(model(*inputs, **kwargs)) if isinstance(t, torch.Tensor)]
    except Exception:  # Not every test runs in f64.
        return False
    if [t.shape for t in exact] != [t.shape for t in others]:
        return False
    for (one, other), truth in zip(pairs, exact):
        if wide.get(one.dtype) != truth.dtype:
            if not torch.equal(one, other):
                return False
            continue
        finite = other.isfinite() & truth.isfinite()
        if not torch.equal(one[~finite].nan_to_num(), other[~finite].nan_to_num()):
            return False
        ours, theirs = [float((t.to(truth.dtype) - truth)[finite].abs().max()) if bool(finite.any()) else 0.0 for t in (one, other)]
        if not ours <= FACTOR * theirs:
            return False
    return True


def is_narrow(value):
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def cloned(tree):
    """The same tensors anew, with their strides: tests may change them in place."""
    def one(value):
        if not isinstance(value, torch.Tensor) or value.is_leaf and value.requires_grad is False and value.layout != torch.strided:
            return value
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        copy.copy_(value.detach()) if 0 not in value.stride() else None
        copy = value.detach().clone() if 0 in value.stride() else copy
        return copy.requires_grad_(value.requires_grad)

    return pytree.tree_map(one, tree)


def gradients(results, inputs):
    """The gradients of all inputs that have one."""
    outputs = [one for one in pytree.tree_leaves(results) if isinstance(one, torch.Tensor) and one.requires_grad]
    leaves = [one for one in pytree.tree_leaves(inputs) if isinstance(one, torch.Tensor) and one.requires_grad]
    torch.manual_seed(1)
    weights = [torch.rand(one.shape).to(one.dtype) for one in outputs]
    return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


class Renamed(types.ModuleType):
    """A package by the name that it had before it was part of PyTorch. Nothing is imported twice."""

    def __init__(self, name, package):
        super().__init__(name)
        self.package = package

    def __getattr__(self, name):
        return getattr(self.package, name)


def definitions(path):
    """The names of the file of tests. Definitions that need what is not there are left out."""
    for old, new in (("torchdynamo", torch._dynamo), ("torchinductor", torch._inductor)):
        known = {name: module for name, module in sys.modules.items() if name.startswith(new.__name__ + ".")}
        sys.modules |= {name.replace(new.__name__, old, 1): module for name, module in known.items()} | {old: Renamed(old, new)}
    sys.path[:0] = [str(path.parent), str(path.parent.parent)]
    names = {"__name__": "inductor_tests_of_pytorch", "__file__": str(path), "torchdynamo": torch._dynamo,
             "torchinductor": torch._inductor, "HAS_CPU": True, "HAS_GPU": False, "HAS_CUDA": False}
    pending = list(ast.parse(path.read_text()).body)
    while pending:
        statement = pending.pop(0)
        if isinstance(statement, (ast.If, ast.Try)):
            # Classes of tests stand below conditions; what runs them does as well.
            pending[:0] = [] if isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test) else statement.body
            continue
        if not is_defined(statement, path, names) and isinstance(statement, ast.ClassDef):
            # Decorators of single tests may need what is not there.
            statement.body = [member for member in statement.body if is_defined(member, path, dict(names))]
            is_defined(statement, path, names)
    return names


def is_defined(statement, path, names):
    """Executes a statement, and returns whether it succeeds."""
    try:
        exec(compile(ast.Module([statement], []), str(path), "exec"), names)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return False
    return True


def tests_of(names):
    """The tests by name: functions of a test case."""
    found = {}
    for name, value in list(names.items()):
        if isinstance(value, type) and (name == "CommonTemplate" or name.startswith("SweepInputs")):
            for test, function in vars(value).items():
                if callable(function) and test.startswith("test"):
                    found[test] = function
    if not found:
        sys.exit("the file has no tests of CommonTemplate")
    return found


def run_test(name, function, names, checked):
    """What a test gives: a class, and words."""
    checked.name = name
    class Test(TestCase):
        device = "cpu"

        def runTest(self):
            pass

    for owner in (value for value in names.values() if isinstance(value, type)):
        if owner.__name__ == "CommonTemplate" or owner.__name__.startswith("SweepInputs"):
            for member, value in vars(owner).items():
                if not member.startswith("__") and member not in ("common", "device"):
                    setattr(Test, member, value)
    def check(test, *given, **options):
        checked.check(test, *given, **options)

    def skip(*_given, **_options):
        raise unittest.SkipTest("it runs on GPUs")

    Test.common = check
    # Functions of the file find these by their names.
    names |= {"check_model": check, "check_model_cuda": skip, "check_model_gpu": skip}
    torch.compile = checked.compiled
    def optimize(backend="inductor", *given, nopython=False, **others):
        # `torch.compile` itself comes here with an object of its own.
        if backend == "inductor" or getattr(backend, "__name__", "").startswith("compile_fx"):
            return lambda model: checked.compiled(model, fullgraph=nopython)
        return OPTIMIZE(backend, *given, nopython=nopython, **others)

    torch._dynamo.optimize = optimize
    test = Test()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function(test)
        except unittest.SkipTest as error:
            return "skipped", str(error)
        except Differs as error:
            return "wrong", str(error)
        except Rounded as error:
            return "rounded", str(error)
        except Tied as error:
            return "apart", f"equal elements: {error}"
        except Exception as error:
            own = error
            while own is not None and not isinstance(own, symmc.Error):
                own = own.__cause__ or getattr(own, "inner_exception", None)
            words = f"{type(error).__name__}: {error}"
            if own is not None or "symmc" in "".join(traceback.format_tb(error.__traceback__)[-4:]):
                return "raised", words
            return "foreign", words
    if checked.count == 0:
        return "foreign", "it compiles nothing"
    cuts = [str(warning.message) for warning in caught if "symmc leaves" in str(warning.message)]
    return ("cut", "; ".join(cuts)) if cuts else ("agree", "")


def outcome(name, function, names, options):
    """What becomes of a test under symmc; where it fails, whether it does under `aot_eager` as well."""
    torch.set_num_threads(1)
    found, words = run_test(name, function, names, Checked("symmc", options.dynamic, options.fallback))
    if found in BAD or found == "foreign":
        torch._dynamo.reset()
        other, _ = run_test(name, function, names, Checked("aot_eager", options.dynamic, None))
        if other not in ("agree", "skipped"):
            return ("apart" if found in BAD else "foreign"), words
        if found == "foreign":
            return "raised", words
    return found, words


def forked(name, function, names, options):
    """The outcome of a test in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1), os.dup2(sink, 2)
            found = outcome(name, function, names, options)
        except BaseException as error:
            found = "raised", f"{type(error).__name__}: {error}"
        with os.fdopen(write, "w") as out:
            json.dump(found, out)
        os._exit(0)
    os.close(write)
    return child, read


def run_all(tests, names, options):
    """The outcomes of all tests, several at a time."""
    waiting, running = list(tests.items()), {}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            name, function = waiting.pop(0)
            child, read = forked(name, function, names, options)
            running[child] = (name, read, time.monotonic() + options.limit)
        for child, (name, read, until) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended == 0 and time.monotonic() < until:
                continue
            if ended == 0:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                found = "slow", f"no end within {options.limit} s"
            else:
                text = os.fdopen(os.dup(read)).read()
                found = tuple(json.loads(text)) if text else ("crashed", f"status {status}")
            os.close(read)
            del running[child]
            yield name, *found
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--dynamic", action="store_const", const=True, default=False)
    parser.add_argument("--fallback", default="inductor", choices=["inductor", "eager"])
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for a test")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="take every n-th test")
    options = parser.parse_args()
    path = options.checkout
    if path.is_dir():
        path = path / "test" / "inductor" / "test_torchinductor.py"
    if not path.is_file():
        sys.exit(f"{path}: there is no such file; expected a checkout of PyTorch or its test_torchinductor.py")
    names = definitions(path)
    tests = {name: function for name, function in tests_of(names).items()
             if any(fnmatch.fnmatch(name, pattern) for pattern in options.patterns)}
    tests = dict(list(tests.items())[:: options.every])
    counts = collections.Counter()
    for name, found, words in run_all(tests, names, options):
        counts[found] += 1
        if found != "agree":
            line = " ".join(words.split())
            print(f"{found:8} {name}: {line[:300]}", flush=True)
    kind = "dynamic" if options.dynamic else "static"
    print(f"\nPyTorch {torch.__version__}, {kind} shapes, {sum(counts.values())} tests")
    for found in ORDER:
        print(f"{found:8} {counts[found]}")
    sys.exit(1 if any(counts[found] for found in BAD) else 0)


if __name__ == "__main__":
    main()
