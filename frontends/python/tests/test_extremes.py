"""Element-wise operators at the ends of their dtypes, against eager: integers at their extremes, floats at NaN, infinities, both zeros,
subnormal and largest numbers, and numbers that a dtype cannot hold. Each compiled function has many operators.

PyTorch's kernels take single elements by scalar code and several by vector code. Where the two differ, either result is right. A float is
also right if it is no further from the result in f64 than eager's. All other differences are those of `DIFFERENCES`, from which
docs/coverage.md has a table: ``UPDATE_EXPECT=1`` writes it again.
"""

import dataclasses
import itertools
import math
import os
import pathlib
import unittest
import warnings

from with_torch import HAS_TORCH, compiled

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "coverage.md"
START, END = "<!-- differences: written by frontends/python/tests/test_extremes.py -->\n", "<!-- end of differences -->\n"


@dataclasses.dataclass
class Difference:
    """Results of symmc that are neither those of eager nor closer to the result in f64."""

    operators: str
    operands: str
    eager: str
    symmc: str
    dtypes: str = ""
    """The dtypes of the operands for which the tests find it. Rows without dtypes are tested elsewhere."""


DIFFERENCES = [
    Difference("maximum minimum fmax fmin clamp amax amin", "zeros of both signs", "scalar code gives the first, vector code the second of equal numbers", "the first"),
    Difference("topk kthvalue", "zeros of both signs", "any order of equal numbers", "the order of the operand"),
    Difference("remainder fmod", "a divisor that is subnormal", "vector code gives NaN", "the exact remainder"),
    Difference("gelu", "infinity", "vector code gives NaN", "infinity"),
    Difference("floor_divide div", "f16 and bf16", "rounds between its steps, so that the floor may be off by one unit", "the floor of the exact quotient"),
    Difference("signbit copysign", "NaN with a sign", "the sign", "NaN counts as positive", "bfloat16 float16"),
    Difference("add sub threshold", "a number that f16 or bf16 does not represent", "CPU kernels round the number in `add` and `sub`, GPU kernels in `threshold`", "the number in f32 in `add` and `sub`, rounded in `threshold`", "float16 bfloat16"),
    Difference("gelu gelu_tanh", "numbers far below 0, in f64", "cancels: the last digits are lost", "the precise tail", "float64"),
    Difference("log1p", "the least subnormal number of f64", "0", "the number", "float64"),
    Difference("to", "NaN, and floats beyond the range of an integer dtype", "not defined: CPU kernels give the least integer in most places, GPU kernels the nearest", "0 for NaN; the nearest i64, which wraps in narrower dtypes"),
    Difference("var std", "f32 and bf16 whose squares f32 does not represent (beyond 1e19, below 1e-19)", "CPU kernels square in f64, GPU kernels in f32", "squares in f32"),
    Difference("scaled_dot_product_attention matmul", "f32 and bf16 whose partial sums exceed f32", "infinity or the sum, by the order of addition", "the same, in another order"),
    Difference("ONNX RMSNormalization RotaryEmbedding", "f16 and bf16", "round before the product with the weight or the rotation", "rounds once"),
    Difference("addcdiv", "a `value` in f16 and bf16, under torch.compile", "eager rounds once; torch.compile itself makes three operators of the call", "rounds after each of these"),
    Difference("scaled_dot_product_attention", "a query whose scores are all NaN", "CPU kernels give 0 in place of the row, the others NaN", "NaN"),
    Difference("masked_fill fill", "a tensor without axes whose number does not fit into the integer dtype", "raises", "wraps"),
    Difference("clamp add", "bounds or `alpha` beyond the range of f16 or bf16", "CPU kernels raise, GPU kernels compute in f32", "computes in f32"),
    Difference("all_reduce reduce_scatter", "NaN on some ranks, with max and min", "gloo and NCCL: NaN or the number, by the order of ranks", "NaN"),
    Difference("all_reduce reduce_scatter", "zeros of both signs, with max and min", "gloo: by the order of ranks", "that of the first rank"),
    Difference("ONNX ArgMax ArgMin ReduceMax ReduceMin TopK", "NaN", "the reference of ONNX: NaN and its position; ONNX Runtime leaves NaN out", "as the reference"),
    Difference("ONNX ReduceSum", "sums of i64 beyond 2^63", "the reference of ONNX wraps; ONNX Runtime saturates", "as the reference"),
]  # fmt: skip


def table() -> str:
    """The table of the page."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in row.operators.split())} | {row.operands} | {row.eager} | {row.symmc} |\n" for row in DIFFERENCES
    ]
    return "| operators | operands | PyTorch, ONNX | symmc |\n|---|---|---|---|\n" + "".join(rows)


if HAS_TORCH:
    import torch

    import symmc

    A = torch.ops.aten
    INTS = (torch.uint8, torch.int32, torch.int64)
    FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

    def named(names, **others):
        return {name: getattr(A, name) for name in names.split()} | others

    # Operators of two integers, of which the second is no divisor.
    OF_TWO = named(
        "add sub mul maximum minimum eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor __lshift__ __rshift__ bitwise_left_shift "
        "bitwise_right_shift logical_and logical_xor pow div atan2 rsub copysign fmax",
        scaled=lambda x, y: (torch.add(x, y, alpha=3), torch.sub(x, y, alpha=3), torch.addcmul(x, y, y, value=2)),
        chosen=lambda x, y: (torch.where(x > y, x, y), x.clamp(min=y), x.clamp(max=y)),
        changed=lambda x, y: x.clone().__ilshift__(y).__irshift__(y).__ixor__(y).add_(y).mul_(y),
    )
    DIVISIONS = named(
        "remainder fmod floor_divide",
        floor=lambda x, y: torch.div(x, y, rounding_mode="floor"),
        trunc=lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    )
    OF_ONE = named(
        "neg abs sign bitwise_not logical_not relu square floor ceil trunc exp sqrt rsqrt reciprocal sin tanh sigmoid log log1p asinh acosh "
        "isnan isfinite signbit nan_to_num prod amax amin any all argmax argmin sum",
        sums=lambda x: (x.cumsum(0), x.cumprod(0), x.sum(dtype=torch.int32), x.diff()),
        sorted=lambda x: (x.sort()[0], x.sort(descending=True)[0], x.topk(3)[0]),
        products=lambda x: (torch.outer(x, x), x[:4].view(2, 2) @ x[1:5].view(2, 2), torch.dot(x, x)),
        cast=lambda x: [x.to(dtype) for dtype in (torch.bool, *INTS, *FLOATS)],
    )
    OF_BOOLS = named(
        "bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor add mul eq ne lt le gt ge maximum minimum div",
        one=lambda x, y: (~x, x.logical_not(), x.any(), x.all(), x.amax(), x.amin(), x * 2.5, x + 1, x / 2, x.sort(stable=True)),
        sums=lambda x, y: (x.sum(), x.prod(), x.cumsum(0), x.cumprod(0), x.sum(dtype=torch.uint8), x.count_nonzero()),
        cast=lambda x, y: [x.to(dtype) for dtype in (*INTS, *FLOATS)],
        chosen=lambda x, y: (torch.where(x, x, y), x.masked_fill(y, True), x.long().argmax(), x.clone().__iand__(y).__ixor__(x)),
    )
    SCALARS = "add sub mul rsub eq lt ge bitwise_and bitwise_xor __lshift__ __rshift__ bitwise_left_shift"

    ON_FLOAT = (
        "relu tanh sigmoid silu gelu relu6 hardtanh hardsigmoid hardswish leaky_relu elu celu selu softplus mish log_sigmoid neg abs sign "
        "floor ceil round trunc frac exp log sqrt rsqrt reciprocal sin cos erf exp2 log2 log10 log1p expm1 erfc sinh cosh square tan atan "
        "asin acos atanh isnan isfinite isinf nan_to_num logical_not signbit logit hardshrink softshrink deg2rad sinc special_entr"
    )
    # Steps of these in f16 are rounded.
    ON_WIDE_FLOAT = "asinh acosh"
    ON_FLOATS = (
        "add sub mul div floor_divide remainder fmod pow atan2 eq ne lt le gt ge maximum minimum fmax fmin hypot copysign logaddexp xlogy "
        "heaviside logical_and logical_or rsub"
    )


def integers(dtype):
    """The extremes of a dtype, and numbers near 0 and near its width."""
    info = torch.iinfo(dtype)
    near = {info.min, info.min + 1, info.max, info.max - 1, -info.bits, -7, -2, -1, 0, 1, 2, 7, info.bits - 1, info.bits, info.bits + 1}
    return torch.tensor(sorted(number for number in near if info.min <= number <= info.max), dtype=dtype)


def floats(dtype):
    info = torch.finfo(dtype)
    tiny = info.smallest_normal
    sizes = [math.nan, math.inf, 0.0, 1.0, 2.5, 0.5, 3.0, info.max, tiny, tiny / 4, tiny * info.eps, 88.0, 104.0, 1e-3, 7.0, 0.1, 0.999, 1e4]
    return torch.tensor([sign * size for size in sizes for sign in (1, -1)], dtype=torch.float64).to(dtype)


def pairs(x, y):
    return x.repeat_interleave(len(y)), y.repeat(len(x))


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


def through_compile(function, given):
    return compiled(function)(*given)


def through_file(function, given, decomposed=False):
    class Model(torch.nn.Module):
        def forward(self, *given):
            return tuple(leaves(function(*given)))

    exported = torch.export.export(Model(), given)
    program = symmc.from_exported(exported.run_decompositions() if decomposed else exported, ranks=1)
    (results,) = symmc.run(symmc.compile(program), [{f"in.{i}": one for i, one in enumerate(given)}])
    return [one.torch() for one in results]


DOORS = {
    "compile": through_compile,
    "file": through_file,
    "decomposed file": lambda function, given: through_file(function, given, True),
}


def is_same(found, expected):
    """Where numbers are the same, zeros with their signs."""
    same_zero = (found != 0) | (torch.signbit(found) == torch.signbit(expected))
    return (found == expected) & same_zero | found.isnan() & expected.isnan()


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Extremes(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")

    def expect_integers(self, functions, given):
        """The results of functions of integers are those of eager through every door."""
        known = {name: leaves(function(*given)) for name, function in functions.items()}
        for door, run in DOORS.items():
            results = iter(leaves(run(lambda *given: [function(*given) for function in functions.values()], given)))
            for name, expected in known.items():
                for one in expected:
                    with self.subTest(name, door=door, dtypes=[operand.dtype for operand in given]):
                        # Functions of floats round differently in the last place.
                        close = 4 * torch.finfo(one.dtype).eps if one.is_floating_point() else 0
                        torch.testing.assert_close(next(results), one, rtol=close, atol=0, equal_nan=True)

    def test_integers(self):
        for dtype in INTS:
            x, y = pairs(integers(dtype), integers(dtype))
            self.expect_integers(OF_TWO, (x, y))
            # PyTorch ends the process for the quotient of the least integer and -1.
            divides = (y != 0) & ~((x == torch.iinfo(dtype).min) & (y.long() == -1))
            self.expect_integers(DIVISIONS, (x[divides], y[divides]))
            self.expect_integers(OF_ONE, (integers(dtype),))

    def test_bools(self):
        self.expect_integers(OF_BOOLS, pairs(torch.tensor([True, False]), torch.tensor([True, False])))

    def test_comparisons_beyond_the_digits_of_floats(self):
        near = torch.tensor([2**53, 2**53 + 1, 2**53 - 1, -(2**53) - 1, 2**63 - 1, -(2**63), 0])
        functions = {}
        for name in "eq ne lt le gt ge".split():
            functions[name] = lambda x, y, f=getattr(A, name): f(x, y)
            for number in (2**53 + 1, 2**63 - 1, -(2**63), 2.0**53, 2.0**63, -1e19, math.nan, math.inf, 0.5):
                functions[f"{name} {number}"] = lambda x, y, f=getattr(A, name), n=number: f(x, n)
            for dtype in FLOATS:
                functions[f"{name} {dtype}"] = lambda x, y, f=getattr(A, name), dtype=dtype: f(x, y.to(dtype))
        self.expect_integers(functions, pairs(near, near))

    def test_powers_of_integers(self):
        for dtype in INTS:
            x = integers(dtype)
            functions = {f"{n} to": lambda x, n=n: torch.pow(n, x) for n in (-3, -1, 0, 1, 2, 7)}
            functions |= {f"to {n}": lambda x, n=n: torch.pow(x, n) for n in (0, 1, 2, 3, 7, 63, 64, 65, 2.0, 0.5, -0.5, -2.0)}
            self.expect_integers(functions, (x,))
            for number in (-1, -2):
                for run in (lambda x, n=number: torch.pow(x, n), compiled(lambda x, n=number: torch.pow(x, n))):
                    with self.assertRaisesRegex(RuntimeError, "negative integer powers"):
                        run(x)

    def test_divisions_by_zero_raise_as_in_eager(self):
        for dtype, (name, function) in itertools.product(INTS, DIVISIONS.items()):
            x, zero = torch.tensor([1, 2], dtype=dtype), torch.tensor([1, 0], dtype=dtype)
            for divide, given in ((function, (x, zero)), (lambda x, function=function: function(x, 0), (x,))):
                with self.subTest(name, dtype=dtype, operands=len(given)):
                    for run in (divide, compiled(divide), lambda *given, divide=divide: through_file(divide, given)):
                        with self.assertRaises((RuntimeError, ZeroDivisionError, symmc.InputError, symmc.RunError)):
                            run(*given)

    def test_products_of_integers(self):
        for dtype in INTS:
            generator = torch.Generator().manual_seed(0)
            least = 0 if dtype == torch.uint8 else -9
            sizes = ((3, 4), (3, 5), (5, 4), (5,))
            x, y, z, v = (torch.randint(least, 9, size, generator=generator).to(dtype) for size in sizes)
            z[0, 0], x[0, 0] = torch.iinfo(dtype).max, torch.iinfo(dtype).min
            functions = {}
            for beta, alpha in ((1, 1), (2, 3), (0, 1), (1, 0), (-1, 2)):
                scales = {"beta": beta, "alpha": alpha}
                functions |= {
                    f"addmm {scales}": lambda x, y, z, v, scales=scales: torch.addmm(x, y, z, **scales),
                    f"addmv {scales}": lambda x, y, z, v, scales=scales: torch.addmv(x[:, 0], y, v, **scales),
                    f"baddbmm {scales}": lambda x, y, z, v, scales=scales: torch.baddbmm(x[None], y[None], z[None], **scales),
                    f"addr {scales}": lambda x, y, z, v, scales=scales: torch.addr(x, x[:, 1], x[0], **scales),
                }
            functions["products"] = lambda x, y, z, v: (y @ z, y @ v, torch.dot(v, v), torch.nn.functional.linear(y, z.t(), x[0]))
            self.expect_integers(functions, (x, y, z, v))

    def test_divisors_of_integers(self):
        for dtype in INTS:
            x, y = pairs(integers(dtype), integers(dtype))
            # PyTorch's own quotient of the least integer by its divisor may end the process.
            has_magnitude = (x.long() != torch.iinfo(dtype).min) & (y.long() != torch.iinfo(dtype).min) | (torch.iinfo(dtype).min == 0)
            given = (x[has_magnitude], y[has_magnitude])
            torch.testing.assert_close(compiled(torch.lcm)(*given), torch.lcm(*given))
            torch.testing.assert_close(compiled(torch.gcd)(x, y), torch.gcd(x, y))

    def test_integers_of_several_dtypes(self):
        functions = {name: OF_TWO[name] for name in "add mul maximum lt bitwise_or __lshift__ bitwise_right_shift pow copysign changed".split()}
        for first, second in itertools.permutations(INTS, 2):
            if not torch.can_cast(torch.promote_types(first, second), first):
                continue
            given = pairs(integers(first), integers(second))
            kept = functions if torch.promote_types(first, second) == first else {n: f for n, f in functions.items() if n != "changed"}
            self.expect_integers(kept, given)

    def test_integers_and_numbers(self):
        for dtype in INTS:
            info, functions = torch.iinfo(dtype), {}
            for number in (info.min, info.max, -1, 0, 1, info.bits - 1, info.bits, 256, 300, 2**31, 2**40, 2**63 - 1, -(2**63)):
                for name in SCALARS.split():
                    functions[f"{name} {number}"] = lambda x, name=name, number=number: getattr(A, name)(x, number)
                functions[f"of {number}"] = lambda x, n=number: (torch.bitwise_right_shift(n, x), torch.pow(n, x), x / n if n else x)
                if torch.tensor(number).to(dtype).long().item() not in (0, -1):
                    for name, function in DIVISIONS.items():
                        functions[f"{name} {number}"] = lambda x, function=function, number=number: function(x, number)
            for number in (0.5, -2.5, 1e10):
                functions[f"float {number}"] = lambda x, n=number: (x + n, x * n, x > n, x.clamp(min=n), x // n)
            self.expect_integers(functions, (integers(dtype),))

    def test_numbers_outside_of_their_dtype_raise_as_in_eager(self):
        mask = torch.tensor([True, False])
        functions = {
            "clamp min": lambda x, n: x.clamp(min=n),
            "clamp max": lambda x, n: x.clamp(max=n),
            "full_like": torch.full_like,
            "masked_fill": lambda x, n: x.masked_fill(mask, n),
            "fill in place": lambda x, n: x.clone().fill_(n),
            "where": lambda x, n: torch.where(mask, x, n),
            "alpha": lambda x, n: torch.add(x, x, alpha=n),
            "pow": torch.pow,
            "addr": lambda x, n: torch.addr(torch.ones_like(x).diag(), x, x, beta=n),
            "pad": lambda x, n: torch.nn.functional.pad(x, (1, 1), value=n),
            "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
        }
        cases = [(torch.uint8, 300), (torch.int32, 2**31), (torch.int32, -(2**40)), (torch.int64, 1e30), (torch.int32, math.nan)]
        raised = 0
        for (name, function), (dtype, number) in itertools.product(functions.items(), cases):
            x = torch.tensor([1, 2], dtype=dtype)
            with self.subTest(name, dtype=dtype, number=number):
                try:
                    expected = function(x, number)
                except RuntimeError as error:
                    raised += 1
                    with self.assertRaises(RuntimeError) as refused:
                        compiled(lambda x: function(x, number))(x)  # noqa: B023
                    # PyTorch itself may refuse to trace the call.
                    if "fake tensor" not in str(refused.exception):
                        self.assertIn(str(error).splitlines()[0], str(refused.exception))
                    with self.assertRaises((symmc.InputError, RuntimeError, ValueError, OverflowError)):
                        through_file(lambda x: function(x, number), (x,))  # noqa: B023
                else:
                    torch.testing.assert_close(compiled(lambda x: function(x, number))(x), expected, equal_nan=True)  # noqa: B023
        self.assertGreater(raised, 25)

    def expect_floats(self, functions, given, unexplained):
        """The results are right, or a row of `DIFFERENCES` explains them. Returns these rows."""
        dtype, used = str(given[0].dtype).removeprefix("torch."), set()
        results = through_compile(lambda *given: [function(*given) for function in functions.values()], given)
        for (name, function), found in zip(functions.items(), results, strict=True):
            single = torch.stack([function(*[operand[i : i + 1].clone() for operand in given])[0] for i in range(len(given[0]))])
            self.assertEqual(found.dtype, single.dtype, name)
            right = is_same(found, single) | is_same(found, function(*given))
            if found.is_floating_point():
                info, (one, other) = torch.finfo(found.dtype), (found.double(), single.double())
                near = {16: 1.01, 32: 32, 64: 512}[info.bits]
                unit = torch.maximum(other.abs(), torch.tensor(info.smallest_normal, dtype=torch.float64)) * info.eps
                right |= ((one - other).abs() <= near * unit) & (other != 0)
                exact = torch.stack([function(*[operand[i : i + 1].double() for operand in given])[0] for i in range(len(given[0]))]).double()
                # Not for zeros alone.
                right |= ((one - exact).abs() <= (other - exact).abs()) & (one != other) | is_same(one, exact.to(found.dtype).double())
            wrong = (~right).nonzero().flatten().tolist()
            if not wrong:
                continue
            rows = [i for i, row in enumerate(DIFFERENCES) if name.split()[0] in row.operators.split() and dtype in row.dtypes.split()]
            used |= set(rows)
            if not rows:
                i = wrong[0]
                operands = [operand[i].item() for operand in given]
                unexplained.append(f"{name} {dtype} {operands}: found {found[i].item()}, eager {single[i].item()}, {len(wrong)} in all")
        return used

    def test_floats(self):
        unexplained, used = [], set()
        for dtype in FLOATS:
            x = floats(dtype)
            of_one = named(ON_FLOAT + " " + ON_WIDE_FLOAT * (dtype in FLOATS[2:]), gelu_tanh=lambda x: A.gelu(x, approximate="tanh"))
            used |= self.expect_floats(of_one, (x,), unexplained)
            of_two = named(ON_FLOATS, trunc=DIVISIONS["trunc"], floor=DIVISIONS["floor"], clamp=lambda x, y: x.clamp(min=y))
            used |= self.expect_floats(of_two, pairs(x, x), unexplained)
            numbers = {}
            names = "add sub mul div pow lt remainder threshold".split()
            for number, name in itertools.product((0.0, 2, 0.5, -0.5, 3, math.inf, math.nan, 0.1, 1e30), names):
                more = (7.0,) if name == "threshold" else ()
                numbers[f"{name} {number}"] = lambda x, name=name, n=number, more=more: getattr(A, name)(x, n, *more)
            if dtype == torch.float16:
                # Not a number of this dtype.
                numbers.pop("pow 1e+30")
            used |= self.expect_floats(numbers, (x,), unexplained)
        self.assertEqual(unexplained, [])
        idle = [row.operators for i, row in enumerate(DIFFERENCES) if row.dtypes and i not in used]
        self.assertEqual(idle, [], "rows of DIFFERENCES that no result needs")

    def test_orders_with_nan_and_ties(self):
        functions = {
            "extremes": lambda x: (x.argmax(-1), x.argmin(-1), x.argmax(), x.argmin(), x.amax(-1), x.amin(-1), *x.max(-1), *x.min(-1)),
            "sort": lambda x: (*x.sort(stable=True, dim=-1), *x.sort(stable=True, descending=True, dim=-1), x.argsort(stable=True)),
            "of order": lambda x: (x.topk(3).values, x.topk(3, largest=False).values, x.kthvalue(2).values),
            "sums": lambda x: (x.sum(-1), x.nansum(-1), x.any(-1), x.all(-1), x.isnan().sum(-1), x.nan_to_num(1.0, 2.0, 3.0)),
            "softmax": lambda x: (x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1)),
        }
        nan, inf = math.nan, math.inf
        rows = ([1, nan, 3, 3, nan, -inf], [2, 3, 3, 1, 1, 3], [nan] * 6, [inf, -inf, inf, 0, 1, -inf], [0.0, -0.0, 0.0, -1, -0.0, -1], [-inf] * 6)
        for dtype in FLOATS:
            for x in (torch.tensor(rows, dtype=dtype), *torch.tensor(rows, dtype=dtype).unbind()):
                for name, function in functions.items():
                    with self.subTest(name, dtype=dtype, x=x):
                        torch.testing.assert_close(leaves(compiled(function)(x)), leaves(function(x)), equal_nan=True)

    def test_bounds_of_clamp(self):
        ends = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.5)
        for dtype in FLOATS:
            x, low, high = torch.tensor(list(itertools.product(ends, ends, ends)), dtype=dtype).unbind(1)
            functions = {"tensors": lambda x, low, high: torch.clamp(x, low, high)}
            for least, largest in itertools.product(ends, ends):
                functions[f"{least} {largest}"] = lambda x, low, high, a=least, b=largest: x.clamp(a, b)
            found = compiled(lambda *given: [function(*given) for function in functions.values()])(x, low, high)
            for (name, function), one in zip(functions.items(), found, strict=True):
                with self.subTest(name, dtype=dtype):
                    torch.testing.assert_close(one, function(x, low, high), rtol=0, atol=0, equal_nan=True)

    def test_gradients_of_distances_where_coordinates_meet(self):
        x, y = torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([[1.0, 5]])
        for p in (0.5, 0.9, 1.0, 1.5, 2.0, 3.0):
            both = []
            for function in (torch.cdist, compiled(lambda x, y, p=p: torch.cdist(x, y, p))):
                own = x.clone().requires_grad_()
                result = function(own, y, p) if function is torch.cdist else function(own, y)
                result.sum().backward()
                both.append(own.grad)
            torch.testing.assert_close(*both)


class Page(unittest.TestCase):
    def test_the_page_has_the_table(self):
        page = PAGE.read_text()
        before, _, rest = page.partition(START)
        _, _, after = rest.partition(END)
        expected = before + START + table() + END + after
        if os.environ.get("UPDATE_EXPECT"):
            PAGE.write_text(expected)
        else:
            self.assertEqual(page, expected, "UPDATE_EXPECT=1 writes the table")


if __name__ == "__main__":
    unittest.main()
