#!/usr/bin/env python3
"""Compares random functions under `torch.compile(backend="symmc")` with eager: `random_functions.py [--seed S] [--count N]`.

A function is a chain of operators on matrices of f16, bf16, f32 and integers: arithmetic, functions, products with biases, reductions,
norms, moves, shifts and conversions. Its operators are continuous in floats, so that eager and symmc may round differently. Integers are
small, or any number of their dtype. BATCH functions are compiled at once. A function is wrong if

- an integer result is not eager's,
- a result is not finite where eager's and the one in f64 are, or
- a result is more than FACTOR times as far from the one in f64 as eager's, and more than ROUNDINGS of its dtype.

A result of eager without digits, which is further than NO_DIGITS from the one in f64, says nothing: an earlier value has overflowed.

A wrong function is printed with its seed, alone where it is wrong alone. The last line has the counts; exit code 1 if any is wrong.
Needs torch and symmc.
"""

import argparse
import collections
import random
import re
import sys
import traceback
import warnings

import torch

ROWS, COLUMNS = 4, 6
BATCH = 8
FACTOR, ROUNDINGS, NO_DIGITS = 3.0, 8.0, 0.25

UNARY = [
    "torch.sigmoid({x})", "torch.tanh({x})", "torch.relu({x})", "F.gelu({x})", "F.silu({x})", "-{x}", "{x}.abs()", "{x}.abs().sqrt()",
    "({x}.abs() + 1).rsqrt()", "{x}.sin()", "{x}.cos()", "{x}.abs().log1p()", "{x}.erf()", "F.hardswish({x})", "F.softplus({x})", "{x}.asinh()",
    "{x}.clamp(-3, 3).exp()", "F.elu({x})", "F.mish({x})", "{x} * 0.3 + 1.7", "{x}.square()", "F.leaky_relu({x}, 0.1)", "F.hardsigmoid({x})",
    "({x}.abs() + 0.5).log2()", "({x}.abs() + 0.5).reciprocal()", "{x}.clamp(-3, 3).expm1()", "{x}.clamp(-3, 3).sinh()",
    "F.gelu({x}, approximate='tanh')", "F.selu({x})", "F.celu({x}, 0.7)", "F.logsigmoid({x})", "F.tanhshrink({x})", "F.softsign({x})",
    "({x}.abs() + 1).acosh()", "{x}.tanh().mul(0.9).atanh()", "{x}.atan()", "{x}.exp2().clamp(max=9)", "{x}.erfc()", "F.relu6({x})",
    "{x}.sigmoid().logit(0.01)", "({x}.abs() + 0.5) ** 1.5", "{x} ** 3", "{x}.nan_to_num()", "F.softplus({x}, 2.0, 5.0)",
]  # fmt: skip
BINARY = [
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / ({y}.abs() + 0.5)", "torch.maximum({x}, {y})", "torch.minimum({x}, {y})", "torch.hypot({x}, {y})",
    "torch.lerp({x}, {y}, 0.3)", "torch.add({x}, {y}, alpha=0.7)", "torch.where({m} > 0, {x}, {y})", "torch.lerp({x}, {y}, {y}.sigmoid())",
    "torch.addcmul({x}, {x}, {y}, value=0.3)", "torch.addcdiv({x}, {y}, {y}.abs() + 1, value=0.3)", "torch.logaddexp({x}, {y})",
    "torch.clamp({x}, {y} - 1, {y} + 1)", "torch.atan2({x}, {y}.abs() + 0.5)", "torch.sub({x}, {y}, alpha=2)",
    "F.smooth_l1_loss({x}, {y}, reduction='none')", "F.huber_loss({x}, {y}, reduction='none', delta=0.5)", "F.cosine_similarity({x}, {y}, 0) + {x}",
]  # fmt: skip
PRODUCTS = [
    "{x} @ {y}.t() @ {x}", "F.linear({x}, {x}.t() @ {y}, {y}[0])", "F.linear({x}, {y}.t() @ {y})",
    "torch.addmm({x}, {y} @ {y}.t(), {x}, beta=0.5, alpha=0.3)", "torch.addmm({y}[0], {x}, {x}.t() @ {y}, alpha=2)",
    "torch.baddbmm({x}[None], {y}[None] @ {y}.t(), {x}[None], beta=-1)[0]", "torch.addmv({x}[0], {y}.t() @ {y}, {x}[1], alpha=0.5) + {x}",
    "F.scaled_dot_product_attention({x}[None], {y}[None], {x}[None])[0]", "F.conv1d({x}[None], {y}[:, :4, None] * 0.3, {y}[:, 0])[0]",
    "F.linear({x}, {y}.t() @ {y}, -({x} @ ({y}.t() @ {y}).t())[0])",
]  # fmt: skip
REDUCED = [
    "{x} - {x}.mean({d}, keepdim=True)", "{x} + {x}.sum({d}, keepdim=True)", "{x} * {x}.amax({d}, keepdim=True)", "{x}.softmax({d})",
    "{x} + {x}.var({d}, keepdim=True)", "{x} / ({x}.std({d}, keepdim=True) + 1)", "{x} + {x}.norm(dim={d}, keepdim=True)",
    "F.normalize({x}, dim={d})", "{x}.log_softmax({d})", "{x} + {x}.logsumexp({d}, keepdim=True)", "{x}.cumsum({d})", "F.layer_norm({x}, ({c},))",
    "F.rms_norm({x}, ({c},), eps=1e-5)", "{x} + {x}.abs().amin({d}, keepdim=True)", "F.layer_norm({x}, ({c},), {x}[0], {x}[1])",
    "F.group_norm({x}[None], 2)[0]", "F.batch_norm({x}, None, None, training=True)", "F.batch_norm({x}, {x}[0], {x}[1].abs() + 0.5)",
    "F.instance_norm({x}[None])[0]", "{x}.tanh().cumprod({d})", "{x} + {x}.tanh().prod({d}, keepdim=True)",
    "{x}.softmax({d}, dtype=single).to({t})", "{x} + {x}.norm(1, {d}, keepdim=True)", "{x} + {x}.norm(3, {d}, keepdim=True)",
    "F.interpolate({x}[None], scale_factor=2)[0, :, ::2]", "{x} - {x}.mean()", "{x} / ({x}.std() + 1)",
    "F.kl_div({x}.log_softmax({d}), {y}.flip(1).softmax({d}), reduction='none')", "{x}.sort({d}).values", "F.glu(torch.cat([{x}, {x}], {d}), {d})",
    "{x} * torch.linalg.vector_norm({x})", "F.cross_entropy({x}, {x}.softmax(1)) + {x}",
]  # fmt: skip
MOVED = [
    "{x}.flip({d})", "{x}.roll(1, {d})", "torch.cat([{x}[2:], {x}[:2]])", "{x}.t().reshape({r}, {c})", "{x}[:, :1].expand({r}, {c}).clone()",
    "torch.cat([{x}[:, 3:], {x}[:, :3]], 1)", "{x}.reshape(-1)[{p}].reshape({r}, {c})", "F.pad({x}[:, 1:], (0, 1))",
    "{x}.repeat_interleave(2, {d}).unfold({d}, 2, 2).select(-1, 1)", "torch.stack([{x}, {x}])[1]", "{x}.tril()",
    "{x}.gather(1, {p}.reshape({r}, {c}) % {c})", "torch.zeros_like({x}).index_add(0, {p}[:{r}] % {r}, {x})", "{x}.masked_fill({m} > 0, 1)",
]  # fmt: skip
WHOLE = [
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} & {y}", "{x} | {y}", "{x} ^ {y}", "torch.maximum({x}, {y})", "torch.minimum({x}, {y})",
    "torch.where({x} > {y}, {x}, {y})", "-{x}", "{x}.abs()", "~{x}", "{x} * 3 - 1", "{x} // 7", "{x} % 5",
    "torch.div({x}, 3, rounding_mode='trunc')", "{x} // ({y}.clamp(1, 9))", "{x} % ({y}.clamp(1, 9))", "{x}.sum({d}, keepdim=True).to({t}) + {x}",
    "{x}.cumsum({d}).to({t})", "{x}.square()", "{x}.amax({d}, keepdim=True) - {x}", "{x}.sign()", "({x} > {y}).to({t})", "{x}.clamp(5, 100)",
    "{x}.sort({d}).values", "{x} << 2", "{x} >> 1", "{x} << {y}", "{x} >> {y}", "{x} >> ({y} & 63)", "1 << ({x} & 15)", "{x} ** 3",
    "{x} ** ({y}.clamp(0, 5))", "2 ** ({x} & 7)", "torch.fmod({x}, 7)", "torch.div({x}, {y}.clamp(1, 9), rounding_mode='floor')",
    "torch.div({x}, {y}.clamp(1, 9), rounding_mode='trunc')", "{x}.cumprod({d}).to({t})", "{x}.prod({d}, keepdim=True).to({t}) + {y}",
    "{x} @ {y}.t() @ {x}", "torch.addmm({x}, {y} @ {y}.t(), {x}, beta=2, alpha=3)", "torch.add({x}, {y}, alpha=3)", "({x} == {y}).to({t})",
    "({x} <= {y}.flip({d})) * {x}", "torch.clamp({x}, {y}, {x}.flip({d}))", "torch.argsort({x}, dim={d}, stable=True).to({t}) + {x}",
    "{x}.argmax({d}, keepdim=True).to({t}) ^ {x}", "{x}.argmin({d}, keepdim=True).to({t}) | {y}",
    "{x}.topk(2, {d}).values.sum({d}, keepdim=True).to({t}) - {x}", "torch.addcmul({x}, {x}, {y}, value=2)", "{x}.to(torch.uint8).to({t}) - {y}",
    "torch.sub({x}, {y}, alpha=2)", "(({x} != 0) & ({y} > 3)).to({t})", "(({x} > 0) ^ ({y} > 0)).sum({d}, keepdim=True).to({t}) * {x}",
    "{x}.diff(dim=0, prepend={x}[:1])", "torch.rsub({x}, 5)", "{x}.masked_fill({y} > 2, 9)", "{x}.abs().bitwise_not()",
    "{x}.square().cumsum({d}).to({t})", "torch.dot({x}[0], {y}[1]) + {x}",
]  # fmt: skip
FLOATS, INTEGERS = ["half", "brain", "single"], ["torch.int32", "torch.int64", "torch.uint8"]


class Writer:
    """Writes the lines of a function. Values are names with their dtypes."""

    def __init__(self, chance):
        self.chance, self.lines = chance, []
        self.values = {"a": "half", "b": "brain", "c": "single", "i": "torch.int32", "j": "torch.int64", "u": "torch.uint8"}
        main = chance.choice([*FLOATS[:2] * 2, *INTEGERS])
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
        kinds = [UNARY, UNARY, BINARY, BINARY, REDUCED, MOVED, PRODUCTS] if dtype in FLOATS else [WHOLE, WHOLE, MOVED]
        self.add(self.chance.choice(self.chance.choice(kinds)).format(x=x, y=y, **places), dtype)


def written(seed):
    """The source of a function, which takes the dtypes for floats as well."""
    chance = random.Random(seed)
    writer = Writer(chance)
    for _ in range(chance.randint(3, 14)):
        writer.step()
    read = [name for name in writer.values if name.startswith("v")]
    results = [name for name in read if not any(re.search(rf"\b{name}\b", line.split(" = ", 1)[1]) for line in writer.lines)]
    body = "\n".join(f"    {line}" for line in writer.lines)
    return f"def function(a, b, c, i, j, u, p, half, brain, single):\n{body}\n    return ({', '.join(results)},)\n"


def operands(seed):
    """Operands of a function. The integers of every second seed are any numbers of their dtypes, with the extremes among them."""
    generator = torch.Generator().manual_seed(seed)
    floats = [torch.randn(ROWS, COLUMNS, generator=generator) * scale for scale in (1.0, 2.0, 1.0)]
    integers = []
    for dtype in (torch.int32, torch.int64, torch.uint8):
        least, largest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        low, high = (max(-1000, least), min(1000, largest)) if seed % 2 == 0 else (least, largest)
        drawn = torch.randint(low, high, (ROWS, COLUMNS), generator=generator, dtype=dtype)
        if seed % 2:
            drawn[0, :4] = torch.tensor([least, largest, least + 1, 0], dtype=dtype)
        integers.append(drawn)
    narrowed = [t.to(dtype) for t, dtype in zip(floats, (torch.half, torch.bfloat16, torch.float))]
    return [*narrowed, *integers, torch.randperm(ROWS * COLUMNS, generator=generator)]


def judged(found, eager, truth):
    """The reason why a result is wrong, or None."""
    if (found.dtype, found.shape) != (eager.dtype, eager.shape):
        return f"{found.dtype}{list(found.shape)} in place of {eager.dtype}{list(eager.shape)}"
    if not eager.is_floating_point():
        # Integers that depend on floats, such as signs, may differ.
        return None if torch.equal(found, eager) else f"{found.tolist()} in place of {eager.tolist()}"
    both = eager.isfinite() & truth.to(eager.dtype).isfinite()
    size = truth[both].norm()
    if (eager[both].double() - truth[both]).norm() > NO_DIGITS * size:
        return None
    if not found[both].isfinite().all():
        return "a number that is not finite in place of one that is"
    mine, theirs = ((t[both].double() - truth[both]).norm() for t in (found, eager))
    allowed = max(FACTOR * theirs, ROUNDINGS * torch.finfo(eager.dtype).eps / 2 * size)
    return None if mine <= allowed else f"{mine / size:.2e} from f64, eager {theirs / size:.2e}"


def function_of(seed):
    """A function of the operands and the dtypes for floats."""
    scope = {"torch": torch, "F": torch.nn.functional}
    exec(compile(written(seed), f"<function {seed}>", "exec"), scope)
    return scope["function"]


def compiled_results(seeds):
    """The results of functions that are compiled at once."""
    functions, given = [function_of(seed) for seed in seeds], [operands(seed) for seed in seeds]
    narrow = lambda given: [function(*one, torch.half, torch.bfloat16, torch.float) for function, one in zip(functions, given)]
    torch._dynamo.reset()
    return torch.compile(narrow, backend="symmc", dynamic=False, options={"fallback": "error"})(given)


def reasons(seed, found):
    """The reasons why the results of a function are wrong."""
    function, given = function_of(seed), operands(seed)
    eager = function(*[t.clone() for t in given], torch.half, torch.bfloat16, torch.float)
    truth = function(*[t.double() if t.is_floating_point() else t.clone() for t in given], *[torch.double] * 3)
    return [why for one in zip(found, eager, truth, strict=True) if (why := judged(*one)) is not None]


def tried(seeds):
    """The outcome of each function: `ok`, `refused` or `wrong`, and the reason. Functions that fail together run alone."""
    try:
        outcomes = [reasons(seed, found) for seed, found in zip(seeds, compiled_results(seeds), strict=True)]
    except Exception as error:
        if len(seeds) > 1:
            return [outcome for seed in seeds for outcome in tried([seed])]
        is_refused = "UnsupportedError" in f"{type(error).__name__} {error}"
        return [("refused", f"{error}\n".splitlines()[0]) if is_refused else ("wrong", written(seeds[0]) + traceback.format_exc(limit=1))]
    if len(seeds) > 1 and any(outcomes):
        alone = [outcome for seed in seeds for outcome in tried([seed])]
        # Functions that are right alone are wrong together.
        return [("wrong", f"with seeds {seeds}: {why}") if why and one[0] == "ok" else one for one, why in zip(alone, outcomes)]
    return [("wrong", f"{written(seed)}    # {'; '.join(why)}") if why else ("ok", "") for seed, why in zip(seeds, outcomes)]


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first function")
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args(words)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    counts = collections.Counter()
    end = args.seed + args.count
    for first in range(args.seed, end, BATCH):
        seeds = list(range(first, min(first + BATCH, end)))
        for seed, (status, why) in zip(seeds, tried(seeds)):
            counts[status] += 1
            if status != "ok":
                print(f"{status}: seed {seed}\n{why}", flush=True)
    print(", ".join(f"{status} {counts[status]}" for status in ("ok", "refused", "wrong")))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
