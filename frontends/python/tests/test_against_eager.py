"""Compiled functions against eager ones, in all that a caller can see: values, types, strides, what shares memory with what,
and what became of the inputs. Each function is tried whole, and cut where it has operators that symmc does not know."""

import importlib.util
import itertools
import math
import unittest
import warnings

HAS_TORCH = importlib.util.find_spec("torch") is not None

if HAS_TORCH:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    import symmc
    from symmc.torch.settings.versions import VERSION

    R, B = torch.randn, torch.special.bessel_j0
    CONSTANT = torch.arange(3.0)

    def changed_view(x):
        x[0].add_(1)
        return x * 2

    def changed_before(x, y):
        x.add_(1)
        return y * 2

    def twice(x):
        y = x + 1
        return y, y, [y], y[1:], y.view(-1)

    def same():
        x = R(3)
        return x, x

    def overlapping():
        x = R(4)
        return x[:3], x[1:]

    def bags(table, ids):
        offsets = torch.tensor([0, 2, 2, 5])
        modes = ("sum", "mean", "max")
        return [torch.nn.functional.embedding_bag(ids, table, offsets, mode=mode, padding_idx=3) for mode in modes]

    def pools(x):
        return torch.nn.functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), torch.nn.functional.avg_pool2d(x, 3, 2, ceil_mode=True)

    def sums(x):
        # Older versions have sums of two alone.
        return x * 2, torch.sym_sum([x.shape[0], x.shape[0], 5]) if hasattr(torch, "sym_sum") else x.shape[0]

    def triangular(x):
        lower = x[:, :4, :4].tril() + 4 * torch.eye(4)
        one = torch.linalg.solve_triangular(lower, x[:, :4], upper=False)
        return one, torch.linalg.solve_triangular(lower.mT, x[:, :4], upper=True, unitriangular=True)

    C = torch.complex64

    def rotary(x, factors):
        # As Llama's own code has it: pairs of neighbours turned by factors that a table holds.
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = pairs * factors.unsqueeze(1)
        return torch.view_as_real(turned).flatten(2).type_as(x)

    def complex_sums(x, y):
        z = torch.cat([x * 1j + y, (x / y).conj()]) @ y.mT
        return z, z.abs(), z.real + z.imag, torch.view_as_real(z.mean(0)), z.resolve_conj() * (2 - 1j)

    def transforms(x):
        spectrum = torch.fft.rfft(x)
        back = torch.fft.irfft(spectrum * 2, n=x.shape[-1])
        return back, torch.fft.fft2(x).real, torch.fft.ifft(x, norm="ortho", dim=0), spectrum

    def encoder():
        # In inference modules of PyTorch call one operator for a whole layer.
        layers = [torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first) for first in (False, True)]
        both = torch.nn.Sequential(*layers).eval()
        attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()

        def run(x):
            with torch.no_grad():
                return both(x), attention(x, x, x)

        return run

    def kernels_alone(x, n):
        lower = torch.func.jacrev(lambda y: y.sin() * y.sum())(x[0])
        apart = [torch.cdist(x, x + 1, p) for p in (1.0, 2.0, 3.0, float("inf"))]
        lengths = x.hypot(x * 2), x.copysign(-x)
        return lower, apart, torch.lcm(n.int(), n[:1].int() + 6), torch.gcd(n.to(torch.uint8) % 2 + 233, n.int() % 2 * 610 + 377), n << 2, n >> 1, torch.diagonal_scatter(x, x[0, :3] * 2, 1), torch.nn.functional.rrelu(x), lengths

    def normed(x, mean, spread):
        # The number of rows, and that without one, by which running variances are corrected, are floats of sizes.
        return torch.nn.functional.batch_norm(x, mean, spread, training=True)

    def scaled(x):
        rows, images = x.shape[0], x[None, None]
        resized = [torch.nn.functional.interpolate(images, scale_factor=by, mode="bilinear") for by in (0.5, 1.5)]
        return resized, x[: int(rows * 0.5)] * 2, x.new_ones(math.ceil(rows / 3)), x[: int(rows * 0.3)] + 1

    def with_nans(x):
        y = torch.where(x > 1, math.nan, x).roll(1, 0)
        bounds = torch.tensor([-1.0, 0.0, 0.0, 1.0])
        found = torch.searchsorted(bounds, y), torch.searchsorted(bounds.expand(len(x), 4), x, side="right")
        scattered = x.masked_scatter(x > 0, x.flatten().flip(0))
        curves = (x * 1e3).asinh(), (x * 1e-5).asinh(), (x.abs() * 1e12).acosh(), (x.abs() + 1).acosh(), (0 * x).signbit()
        return x.log().fmax(y), x.log().fmin(y), x.kthvalue(2, 0), y.kthvalue(1, 1, True), found, scattered, curves

    def divided(x, n):
        return x.view(-1, n).sum(), x.new_zeros(n), torch.full((n,), x.shape[0])

    def changed_overlap(x, y):
        x.add_(1)
        return x + y[:3]

    def convolved(x):
        weight = torch.arange(54.0).view(2, 3, 3, 3) / 54
        y = torch.nn.functional.conv2d(x, weight)
        return y, torch.nn.functional.fold(torch.nn.functional.unfold(x, 2), x.shape[-2:], 2)

    def fft_changed(z, x):
        z.mul_(2).add_(x)
        return torch.fft.fft(z, dim=0)

    WHOLE = {
        "rotary embeddings by complex factors": (rotary, lambda: (R(5, 2, 8), R(5, 4, dtype=C)), lambda: (R(7, 2, 8), R(7, 4, dtype=C))),
        "complex numbers": (complex_sums, lambda: (R(4, 6, dtype=C), R(4, 6, dtype=C)), lambda: (R(5, 6, dtype=C), R(5, 6, dtype=C))),
        "Fourier transforms": (transforms, lambda: (R(6, 8),), lambda: (R(9, 8),), lambda: (R(9, 7),)),
        "complex numbers changed in place": (fft_changed, lambda: (R(4, 3, dtype=C), R(4, 3)), lambda: (R(4, 6, dtype=C)[:, ::2], R(4, 3))),
        "a layer of an encoder as one operator": (encoder(), lambda: (R(2, 5, 8),), lambda: (R(3, 7, 8),)),
        "operators that are kernels alone": (kernels_alone, lambda: (R(4, 4), torch.arange(-5, 5)), lambda: (R(5, 4), torch.arange(9))),
        "windows over images of any size": (convolved, lambda: (R(2, 3, 6, 7),), lambda: (R(2, 3, 9, 5),), lambda: (R(2, 3, 12, 12),)),
        "sizes that divide others": (divided, lambda: (R(6), 2), lambda: (R(9), 3), lambda: (R(12), 3)),
        "conjugates": (lambda z: (z.conj() * 2, z.conj()), lambda: (R(4, dtype=C),), lambda: (R(4, dtype=C).conj(),)),
        "an input": (lambda x: x, lambda: (R(3),)),
        "views of an input alone": (lambda x: (x, x[0], x.t()), lambda: (R(3, 4),)),
        "views of sizes that change": (lambda x: (x[1:], x.t(), x.shape[0]), lambda: (R(3, 4),), lambda: (R(5, 4),)),
        "constants alone": (lambda: (torch.ones(3), torch.arange(4)), lambda: ()),
        "constants and results": (lambda x: (x + 1, CONSTANT, torch.ones(2)), lambda: (R(3),)),
        "no tensors": (lambda n: n + 1, lambda: (3,), lambda: (4,)),
        "nothing": (lambda x: None, lambda: (R(3),)),
        "numbers": (lambda x, n, f: (x * n + f, n, f * 2, x.shape[0] * n), lambda: (R(3), 3, 2.5), lambda: (R(4), 4, 1.5)),
        "an input twice": (lambda x, y: x + y, same),
        "an input twice, changed": (lambda x, y: x.add_(y), same),
        "inputs that overlap": (lambda x, y: x + y, overlapping),
        "a changed view": (changed_view, lambda: (R(3, 4),)),
        "a changed input with gaps": (lambda x: x[::2].mul_(3), lambda: (R(8, 4),)),
        "a changed transposed input": (lambda x: x.mul_(3), lambda: (R(8, 4).t(),)),
        "one result several times": (twice, lambda: (R(4),)),
        "no rows": (lambda x: (x + 1, (x * 2).sum(1), x.t()), lambda: (R(0, 4),), lambda: (R(3, 4),)),
        "one row": (lambda x: ((x * 2).sum(1), x + 1, x * 2), lambda: (R(1, 4),), lambda: (R(3, 4),), lambda: (R(1, 1),)),
        "one element": (lambda x: (x * 2, x.view(1, 1) + 1, (x + 1).view(1)), lambda: (R(()),)),
        "expanded": (lambda x: ((x + 1).expand(3, 4), x * 2), lambda: (R(4),), lambda: (R(1, 4).expand(3, 4),)),
        "channels last": (lambda x: x * 2, lambda: (R(2, 3, 4, 4).to(memory_format=torch.channels_last),)),
        "diagonals": (lambda x: ((x * 2).diagonal(1) + 1, x.diagonal()), lambda: (R(4, 4),), lambda: (R(6, 6),)),
        "windows that overlap": (lambda x: (x + 1).unfold(0, 3, 2) * 2, lambda: (R(9, 4),), lambda: (R(12, 4),)),
        "windows side by side": (lambda x: (x + 1).unfold(1, 2, 2).sum(-1), lambda: (R(3, 4),), lambda: (R(5, 4),)),
        "strides": (lambda x: (x * 2).as_strided((3, 4), (2, 1), 1) + x, lambda: (R(3, 4),)),
        "running products": (lambda x: (x.cumprod(0), x.cumprod(1)), lambda: (R(5, 3),), lambda: (R(9, 3),)),
        "bags of embeddings": (bags, lambda: (R(8, 4), torch.randint(0, 8, (9,))), lambda: (R(8, 4), torch.randint(0, 8, (6,)))),
        "pools": (pools, lambda: (R(2, 3, 7, 7),), lambda: (R(4, 3, 7, 7),)),
        "triangular systems": (triangular, lambda: (R(2, 7, 5),), lambda: (R(3, 7, 5),)),
        "sums of sizes": (sums, lambda: (R(6, 4),), lambda: (R(9, 4),)),
        "ratios of sizes": (lambda x: x * (x.shape[0] / x.shape[1]), lambda: (R(6, 4),), lambda: (R(9, 5),)),
        "norms of batches, which change averages": (normed, *[lambda n=n: (R(n, 4), R(4), R(4).abs()) for n in (5, 6, 9)]),
        "sizes that are scaled and rounded": (scaled, *[lambda n=n: (R(n, 8),) for n in (6, 9, 12, 17)]),
        "numbers beside what is none": (with_nans, lambda: (R(6, 4),), lambda: (R(9, 5),)),
        "where no vector starts": (lambda x: x * 2, lambda: (R(9)[1:],)),
    }
    CUT = {
        "first and last": (lambda x: B(B(x) @ x), lambda: (R(4, 4),)),
        "two stages apart": (lambda x: B(B(x + 1) @ x) * 2, lambda: (R(4, 4),)),
        "sizes that change": (lambda x: B(B(x + 1) @ x.t()).t() * x.shape[0], lambda: (R(4, 3),), lambda: (R(7, 3),)),
        "sizes that are products of inputs'": (lambda x: B((x @ x.t()).flatten() + 1) * 2, lambda: (R(4, 3),), lambda: (R(7, 3),)),
        "sizes of numbers": (lambda x, n: B(x.repeat(2 * n + 1)) * 2, lambda: (R(3), 2), lambda: (R(5), 4)),
        "of views": (lambda x: B(x[1:]) + B((x @ x.t())[1:, :4]), lambda: (R(4, 4),)),
        "a changed input": (lambda c, x: c.add_(B(x + 1)).mul_(B(c * 2)), lambda: (R(4), R(4))),
        "a changed overlap": (changed_before, overlapping),
        "transposed results": (lambda x: (B(x.t() @ x).t(), B(x).t(), B(x)[1:]), lambda: (R(4, 3),)),
        "channels last": (lambda x: (B(x), x * 2), lambda: (R(2, 3, 4, 4).to(memory_format=torch.channels_last),)),
        "complex": (lambda x: torch.linalg.inv(torch.complex(x, x + 1)) * (1 + 2j), lambda: (R(3, 3),)),
        "types of others": (lambda x: ((x.to(torch.int8) + 1) * 2).float() + x, lambda: (torch.arange(4.0),)),
    }


def tensors(tree):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class AgainstEager(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def expect_same(self, found, expected):
        found, expected = torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected)
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            if not isinstance(other, torch.Tensor):
                self.assertEqual(one, other)
                continue
            self.assertEqual((one.shape, one.dtype, one.stride()), (other.shape, other.dtype, other.stride()))
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)

    def shared(self, tree):
        """Which tensors are one, and which lie in one memory."""
        pairs = itertools.combinations([tensor for tensor in tensors(tree) if tensor.numel()], 2)
        return [(a is b, a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()) for a, b in pairs]

    def expect_eager(self, function, makers, dynamic, fallback):
        torch._dynamo.reset()
        run = torch.compile(function, backend="symmc", dynamic=dynamic, options={"fallback": fallback})
        for _, make in itertools.product(range(2), makers):
            torch.manual_seed(5)
            mine = make()
            torch.manual_seed(5)
            theirs = make()
            found, expected = run(*mine), function(*theirs)
            self.expect_same((found, mine), (expected, theirs))
            self.assertEqual(self.shared((found, mine)), self.shared((expected, theirs)))

    def test_functions_without_a_cut(self):
        for (name, (function, *makers)), dynamic in itertools.product(WHOLE.items(), (None, True)):
            if VERSION < (2, 13) and name in ("Fourier transforms", "a layer of an encoder as one operator"):
                # PyTorch 2.8 to 2.10 trace them with other strides than they have.
                continue
            with self.subTest(name, dynamic=dynamic):
                self.expect_eager(function, makers, dynamic, "error")

    def test_inputs_that_overlap_and_are_changed(self):
        self.expect_eager(changed_overlap, [overlapping], None, "error")

    def test_functions_with_parts_of_others(self):
        # Inductor compiles each part for seconds.
        by_inductor = ("two stages apart", "sizes that change", "sizes that are products of inputs'", "a changed input", "transposed results")
        for name, (function, *makers) in CUT.items():
            for fallback in ("eager", "inductor") if name in by_inductor else ("eager",):
                with self.subTest(name, fallback=fallback), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.expect_eager(function, makers, None, fallback)

    def test_gradients_of_operators_that_are_kernels_alone(self):
        layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3))
        for function in (layer, lambda x: torch.cdist(x, x.flip(0) * 2), lambda x: torch.view_as_complex(x.view(3, 2, 2)).square().abs()):
            torch._dynamo.reset()
            x = R(3, 4, requires_grad=True)
            inputs = (x, *layer.parameters()) if function is layer else (x,)
            run = torch.compile(function, backend="symmc", options={"fallback": "error"})
            for one, other in zip(torch.autograd.grad(run(x).sum(), inputs), torch.autograd.grad(function(x).sum(), inputs)):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)

    def test_gradients_through_several_parts_of_others(self):
        def function(x, w):
            return torch.lgamma(torch.lgamma(x.abs() + 1) @ w + 5).sum()

        for fallback in ("inductor", "eager"):
            with self.subTest(fallback), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch._dynamo.reset()
                run = torch.compile(function, backend="symmc", options={"fallback": fallback})
                x, w = R(3, 4, requires_grad=True), R(4, 4, requires_grad=True)
                for one, other in zip(torch.autograd.grad(run(x, w), (x, w)), torch.autograd.grad(function(x, w), (x, w))):
                    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)

    def test_numbers_that_are_no_sizes(self):
        functions = (lambda x, k: x.roll(k, 0) + 1, lambda x, k: x * k, lambda x, k: x.tril(k) * 2, lambda x, k: x[k:] * 2)
        calls = ((None, (3, 2, -1, -2, 1)), (True, (3, -1, 2)), (True, (-2, -1, 3)), (None, (3, 2, 0, 2**40)))
        for function, (dynamic, numbers) in itertools.product(functions, calls):
            with self.subTest(numbers=numbers, dynamic=dynamic):
                torch._dynamo.reset()
                run, x = torch.compile(function, backend="symmc", dynamic=dynamic, options={"fallback": "error"}), R(5, 3)
                for k in numbers if function is functions[1] else [k for k in numbers if k < 9]:
                    torch.testing.assert_close(run(x, k), function(x, k))

    def test_optimizers_over_lists(self):
        for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax):
            with self.subTest(kind.__name__):
                torch._dynamo.reset()
                given = [R(4, 3), R(5)]
                weights = [[torch.nn.Parameter(w.clone()) for w in given] for _ in range(2)]
                for number, mine in enumerate(weights):
                    optimizer = kind(mine, lr=1e-2, foreach=True)
                    run = torch.compile(optimizer.step, backend="symmc", options={"fallback": "error"}) if number else optimizer.step
                    for seed in range(2):
                        torch.manual_seed(seed)
                        for weight in mine:
                            weight.grad = torch.randn_like(weight)
                        run()
                for one, other in zip(*weights):
                    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

    def test_a_machine_that_is_none_is_never_left_to_others(self):
        for options, text in [({"machine": "h200"}, "there is no machine h200"), ({"machine": __file__}, "line 1")]:
            torch._dynamo.reset()
            with self.assertRaisesRegex(Exception, text):
                torch.compile(lambda x: x + 1, backend="symmc", options=options)(torch.ones(2))

    def test_modes_are_those_of_inductor(self):
        torch._dynamo.reset()
        self.assertEqual(torch.compile(lambda x: x + 1, backend="symmc", mode="reduce-overhead")(torch.ones(1)).item(), 2)
        with self.assertRaisesRegex(Exception, "mode: expected one of .*reduce-overhead.* found 'fast'"):
            torch.compile(lambda x: x + 1, backend="symmc", mode="fast")(torch.ones(2))

    def test_programs_of_graphs_have_all_their_outputs(self):
        def function(x):
            return x.t(), x, x + CONSTANT, (x * 2).t()

        x = torch.arange(6.0).view(2, 3)
        for inputs in (None, (x,)):
            with self.subTest(inputs=inputs is not None):
                plan = symmc.compile(symmc.from_fx(make_fx(function)(x), inputs), ranks=1)
                (found,) = symmc.run(plan, [{"in.0": x}])
                self.expect_same([tensor.torch() for tensor in found], [out.contiguous() for out in function(x)])

    def test_attention_of_gpus_gives_sizes_that_vary(self):
        aten = torch.ops.aten

        def fixed(q):
            # Numbers of heads and their elements do not vary.
            return int(q.shape[1]), int(q.shape[3])

        def cudnn(q, mask):
            fixed(q)
            return aten._scaled_dot_product_cudnn_attention(q, q, q, mask, False)[0]

        def flash(q, mask):
            fixed(q)
            result = aten._scaled_dot_product_flash_attention(q, q, q, 0.0, True)
            return result[0] * result[4], mask + result[5]

        # No GPU is needed for what it is traced to.
        q, mask = torch.empty(2, 4, 7, 16, device="meta"), torch.empty(2, 1, 7, 7, device="meta")
        for function in (cudnn, flash):
            with self.subTest(function=function.__name__):
                graph = make_fx(function, tracing_mode="symbolic")(q.bfloat16(), mask.bfloat16())
                graph.graph.eliminate_dead_code()
                given = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
                symbols = {str(size) for tensor in given for size in tensor.shape if str(size).isidentifier()}
                program = symmc.from_fx(graph, ranks=1, dims={symbol: (2, 16) for symbol in symbols})
                q2, mask2 = R(3, 4, 5, 16).bfloat16(), R(3, 1, 5, 5).bfloat16()
                sizes = {str(symbol): size for symbol, size in zip(given[0].shape, q2.shape) if str(symbol) in symbols}
                found = symmc.run(symmc.compile(program), [{"in.0": q2, "in.1": mask2}], symbols=sizes)[0]
                attention = torch.nn.functional.scaled_dot_product_attention
                expected = [attention(q2, q2, q2, attn_mask=mask2)]
                if function is flash:
                    expected = [attention(q2, q2, q2, is_causal=True) * 5, mask2 + 5]
                for a, b in zip(found, expected, strict=True):
                    torch.testing.assert_close(a.torch(), b.contiguous(), rtol=2e-2, atol=2e-2)

    def test_exported_programs_know_what_operators_are_made_of(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("seen", torch.zeros(3, 3))
                self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

            def forward(self, x, n):
                self.seen.copy_(x[:3, :3].hypot(x[:3, 1:4]))
                spread = torch.std_mean(x, 0)
                return {"apart": torch.cdist(x, x + 1, 3.0), "signs": [x.copysign(-x), n << 2], "spread": spread, "layer": self.layer(x[None])}

        model, given = Model().eval(), (R(5, 8), torch.arange(4))
        rows = ({0: torch.export.Dim("rows", min=4, max=16)}, None)
        for dynamic, decomposed in itertools.product((None, rows), (False, True)):
            with self.subTest(dynamic=dynamic is not None, decomposed=decomposed), torch.no_grad():
                exported = torch.export.export(model, given, dynamic_shapes=dynamic)
                program = symmc.from_exported(exported.run_decompositions({}) if decomposed else exported, ranks=1)
                self.assertEqual(program.opaque, {})
                inputs = {"in.0": given[0], "in.1": given[1]} | {f"w.{name}": one for name, one in program.parameters(0).items()}
                sizes = {name: 5 for name in program.symbols}
                (found,) = symmc.run(symmc.compile(program), [inputs], symbols=sizes)
                self.expect_same([one.torch() for one in found], [one.contiguous() for one in tensors(model(*given))])
        self.assertEqual(symmc.from_exported(exported).parameters().keys(), program.parameters().keys())

    def test_operators_that_nothing_is_known_of_stay_opaque(self):
        def function(x):
            return B(x @ x), torch.cdist(x, x, 3.0), torch.special.airy_ai(x)

        program = symmc.from_fx(make_fx(function)(R(4, 4)), ranks=1)
        self.assertEqual(sorted(program.opaque.values()), ["aten.special_airy_ai.default", "aten.special_bessel_j0.default"])

    def test_definitions_replace_operators(self):
        schema = "special_bessel_j0(Tensor self) -> Tensor"
        definition = (
            f'program "aten::{schema}" ranks ?\nsymbol n in 1..=64\narg %self: $self.dtype[n, 4]\n'
            "%y: $self.dtype[n, 4] = sub %self, 1.0\nreturn %y\n"
        )
        graph, x = make_fx(lambda x: B(x) * 2)(R(3, 4)), R(3, 4)
        program = symmc.from_fx(graph, ranks=1, definitions=[definition])
        self.assertEqual(program.opaque, {})
        (found,) = symmc.run(symmc.compile(program), [{"in.0": x}])
        self.expect_same([found[0].torch()], [(x - 1) * 2])
        with self.assertRaisesRegex(symmc.InputError, "special_bessel_j0.*expected `n` of the definition from 1 to 2, found 3"):
            symmc.from_fx(graph, ranks=1, definitions=[definition.replace("..=64", "..=2")])

    def test_graphs_that_do_not_fit_are_refused_by_name(self):
        module = make_fx(lambda x, y: x + y)(R(3), R(3))
        changing = make_fx(lambda x: x.add_(1))(R(3))
        cases = [
            (lambda: symmc.from_fx(module, (R(3),)), "the graph has 2, found 1"),
            (lambda: symmc.from_fx(module, R(3)), "expected a list of example inputs, found Tensor"),
            (lambda: symmc.from_fx(changing), "expected a functional graph.*add_"),
            (lambda: symmc.from_fx(module, ranks=0), "^the graph: "),
            (lambda: symmc.compile(symmc.from_fx(module)), "ranks: the program does not fix the number of ranks"),
        ]
        for work, text in cases:
            with self.subTest(text), self.assertRaisesRegex(symmc.InputError, text):
                work()


if __name__ == "__main__":
    unittest.main()
