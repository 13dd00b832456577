#!/usr/bin/env python3
"""Compares random functions under `torch.compile(backend="symmc")` with eager: `random_functions.py [--seed S] [--count N]`.

A function is a chain of operators on matrices of f16, bf16, f32 and integers: arithmetic, functions, reductions, norms, moves and
conversions. Its operators are continuous in floats, so that eager and symmc may round differently. A function is wrong if

- an integer result is not eager's,
- a result is not finite where eager's and the one in f64 are, or
- a result is more than FACTOR times as far from the one in f64 as eager's, and more than ROUNDINGS of its dtype.

A wrong function is printed with its seed. The last line has the counts; exit code 1 if any is wrong. Needs torch and symmc.
"""

import argparse
import collections
import random
import sys
import traceback
import warnings

import torch

ROWS, COLUMNS = 4, 6
FACTOR, ROUNDINGS = 3.0, 8.0

UNARY = [
    "torch.sigmoid({x})", "torch.tanh({x})", "torch.relu({x})", "F.gelu({x})", "F.silu({x})", "-{x}", "{x}.abs()", "{x}.abs().sqrt()",
    "({x}.abs() + 1).rsqrt()", "{x}.sin()", "{x}.cos()", "{x}.abs().log1p()", "{x}.erf()", "F.hardswish({x})", "F.softplus({x})", "{x}.asinh()",
    "{x}.clamp(-3, 3).exp()", "F.elu({x})", "F.mish({x})", "{x} * 0.3 + 1.7", "{x}.square()", "F.leaky_relu({x}, 0.1)", "F.hardsigmoid({x})",
    "({x}.abs() + 0.5).log2()", "({x}.abs() + 0.5).reciprocal()", "{x}.clamp(-3, 3).expm1()", "{x}.clamp(-3, 3).sinh()",
]  # fmt: skip
BINARY = [
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / ({y}.abs() + 0.5)", "torch.maximum({x}, {y})", "torch.minimum({x}, {y})",
    "torch.hypot({x}, {y})", "torch.lerp({x}, {y}, 0.3)", "torch.add({x}, {y}, alpha=0.7)", "torch.where({m} > 0, {x}, {y})",
]  # fmt: skip
REDUCED = [
    "{x} - {x}.mean({d}, keepdim=True)", "{x} + {x}.sum({d}, keepdim=True)", "{x} * {x}.amax({d}, keepdim=True)", "{x}.softmax({d})",
    "{x} + {x}.var({d}, keepdim=True)", "{x} / ({x}.std({d}, keepdim=True) + 1)", "{x} + {x}.norm(dim={d}, keepdim=True)",
    "F.normalize({x}, dim={d})", "{x}.log_softmax({d})", "{x} + {x}.logsumexp({d}, keepdim=True)", "{x}.cumsum({d})",
    "F.layer_norm({x}, ({c},))", "F.rms_norm({x}, ({c},), eps=1e-5)", "{x} + {x}.abs().amin({d}, keepdim=True)",
]  # fmt: skip
MOVED = [
    "{x}.flip({d})", "{x}.roll(1, {d})", "torch.cat([{x}[2:], {x}[:2]])", "{x}.t().reshape({r}, {c})", "{x}[:, :1].expand({r}, {c}).clone()",
    "torch.cat([{x}[:, 3:], {x}[:, :3]], 1)", "{x}.reshape(-1)[{p}].reshape({r}, {c})", "F.pad({x}[:, 1:], (0, 1))",
]  # fmt: skip
WHOLE = [
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} & {y}", "{x} | {y}", "{x} ^ {y}", "torch.maximum({x}, {y})", "torch.minimum({x}, {y})",
    "torch.where({x} > {y}, {x}, {y})", "-{x}", "{x}.abs()", "~{x}", "{x} * 3 - 1", "{x} // 7", "{x} % 5", "torch.div({x}, 3, rounding_mode='trunc')",
    "{x} // ({y}.clamp(1, 9))", "{x} % ({y}.clamp(1, 9))", "{x}.sum({d}, keepdim=True).to({t}) + {x}", "{x}.cumsum({d}).to({t})", "{x}.square()",
    "{x}.amax({d}, keepdim=True) - {x}", "{x}.sign()", "({x} > {y}).to({t})", "{x}.clamp(-5, 100)", "{x}.sort({d}).values", "{x} << 2", "{x} >> 1",
]  # fmt: skip
FLOATS, INTEGERS = ["half", "brain", "single"], ["torch.int32", "torch.int64"]


class Writer:
    """Writes the lines of a function. Values are names with their dtypes."""

    def __init__(self, chance):
        self.chance, self.lines = chance, []
        self.values = {"a": "half", "b": "brain", "c": "single", "i": "torch.int32", "j": "torch.int64"}
        main = chance.choice(FLOATS[:2])
        self.weights = {dtype: 8 if dtype == main else 1 for dtype in [*FLOATS, *INTEGERS]}

    def named(self, dtype):
        """A value of a dtype, mostly a recent one."""
        names = [name for name, known in self.values.items() if known == dtype]
        return names[-1] if self.chance.random() < 0.6 else self.chance.choice(names)

    def add(self, text, dtype):
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.values[name] = dtype

    def step(self):
        dtypes = sorted(set(self.values.values()))
        dtype = self.chance.choices(dtypes, [self.weights[one] for one in dtypes])[0]
        places = {"d": self.chance.randrange(2), "r": ROWS, "c": COLUMNS, "t": dtype, "p": "p", "m": self.named("torch.int32")}
        x, y = self.named(dtype), self.named(dtype)
        if self.chance.random() < 0.08:
            to = self.chance.choice(FLOATS if dtype in FLOATS else [*FLOATS, *INTEGERS])
            # Large integers would make every further float infinite.
            self.add(f"({x} % 50).to({to})" if dtype in INTEGERS and to in FLOATS else f"{x}.to({to})", to)
            return
        kinds = [UNARY, UNARY, BINARY, BINARY, REDUCED, MOVED] if dtype in FLOATS else [WHOLE, WHOLE, MOVED]
        self.add(self.chance.choice(self.chance.choice(kinds)).format(x=x, y=y, **places), dtype)


def written(seed):
    """The source of a function, which takes the dtypes for floats as well."""
    chance = random.Random(seed)
    writer = Writer(chance)
    for _ in range(chance.randint(3, 14)):
        writer.step()
    read = [name for name in writer.values if name.startswith("v")]
    results = [name for name in read if not any(name in line.split(" = ", 1)[1] for line in writer.lines)] or read[-1:]
    body = "\n".join(f"    {line}" for line in writer.lines)
    return f"def function(a, b, c, i, j, p, half, brain, single):\n{body}\n    return ({', '.join(results)},)\n"


def operands(seed):
    generator = torch.Generator().manual_seed(seed)
    floats = [torch.randn(ROWS, COLUMNS, generator=generator) * scale for scale in (1.0, 2.0, 1.0)]
    integers = [torch.randint(-1000, 1000, (ROWS, COLUMNS), generator=generator) for _ in range(2)]
    dtypes = (torch.half, torch.bfloat16, torch.float, torch.int32, torch.int64)
    return [t.to(dtype) for t, dtype in zip([*floats, *integers], dtypes)] + [torch.randperm(ROWS * COLUMNS, generator=generator)]


def judged(found, eager, truth):
    """The reason why a result is wrong, or None."""
    if (found.dtype, found.shape) != (eager.dtype, eager.shape):
        return f"{found.dtype}{list(found.shape)} in place of {eager.dtype}{list(eager.shape)}"
    if not eager.is_floating_point():
        # Integers that depend on floats, such as signs, may differ.
        return None if torch.equal(found, eager) else f"{found.tolist()} in place of {eager.tolist()}"
    both = eager.isfinite() & truth.to(eager.dtype).isfinite()
    if not found[both].isfinite().all():
        return "a number that is not finite in place of one that is"
    size = truth[both].norm()
    mine, theirs = ((t[both].double() - truth[both]).norm() for t in (found, eager))
    allowed = max(FACTOR * theirs, ROUNDINGS * torch.finfo(eager.dtype).eps / 2 * size)
    return None if mine <= allowed else f"{mine / size:.2e} from f64, eager {theirs / size:.2e}"


def tried(seed):
    """The outcome of a function: `ok`, `refused` or `wrong`, and the reason."""
    source = written(seed)
    scope = {"torch": torch, "F": torch.nn.functional}
    exec(compile(source, f"<function {seed}>", "exec"), scope)
    function, given = scope["function"], operands(seed)
    narrow = lambda *tensors: function(*tensors, torch.half, torch.bfloat16, torch.float)
    eager = narrow(*[t.clone() for t in given])
    truth = function(*[t.double() if t.is_floating_point() else t.clone() for t in given], *[torch.double] * 3)
    torch._dynamo.reset()
    try:
        found = torch.compile(narrow, backend="symmc", options={"fallback": "error"})(*given)
    except Exception as error:
        if "UnsupportedError" in type(error).__name__ or "not known" in str(error):
            return "refused", str(error).splitlines()[0]
        return "wrong", f"{source}{traceback.format_exc(limit=1)}"
    reasons = [why for one in zip(found, eager, truth) if (why := judged(*one)) is not None]
    return ("wrong", f"{source}    # {'; '.join(reasons)}") if reasons else ("ok", "")


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first function")
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args(words)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    counts = collections.Counter()
    for seed in range(args.seed, args.seed + args.count):
        status, why = tried(seed)
        counts[status] += 1
        if status != "ok":
            print(f"{status}: seed {seed}\n{why}", flush=True)
    print(", ".join(f"{status} {counts[status]}" for status in ("ok", "refused", "wrong")))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
