"""The backend of ``torch.compile``, where PyTorch is, on one rank."""

import copy
import dataclasses
import gc
import inspect
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
from unittest import mock

from with_torch import HAS_TORCH, close, compiled, same_gradients

if HAS_TORCH:
    import torch

    import symmc
    from symmc.torch.runtime import runner
    from symmc.torch.runtime.arenas import Arenas
    from symmc.torch.settings.options import Options

    class Losses(torch.nn.Module):
        """A sum of losses."""

        def forward(self, x):
            F, y = torch.nn.functional, x.detach().sigmoid()
            labels = torch.tensor([1, -100, 3, 0, 7, 2])
            parts = F.mse_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y), F.binary_cross_entropy_with_logits(x, y)
            return sum(parts) + F.cross_entropy(x, labels, weight=torch.arange(1.0, 9.0), label_smoothing=0.1)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Backend(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        torch.manual_seed(0)

    def test_a_model_and_its_gradients(self):
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4))
        other, x = copy.deepcopy(model), torch.randn(5, 8)
        compiled(model)(x).square().mean().backward()
        other(x).square().mean().backward()
        for one, two in zip(model.parameters(), other.parameters()):
            close(one.grad, two.grad, 1e-6)

    def test_weights_that_change_are_read_again(self):
        model, x = torch.nn.Linear(4, 4), torch.randn(3, 4)
        run = compiled(model)
        with torch.no_grad():
            for _ in range(3):
                close(run(x), model(x))
                model.weight.add_(1)
                model.bias.data = torch.randn(4)

    def test_inputs_are_changed_in_place(self):
        def function(cache, x):
            cache[:, 1:3] = x
            cache.mul_(2)
            return cache.sum(0)

        run = compiled(function)
        for layout in (lambda t: t, lambda t: t.t().contiguous().t()):
            cache, x = layout(torch.randn(2, 6)), torch.randn(2, 2)
            expected = cache.clone()
            address = cache.data_ptr()
            close(run(cache, x), function(expected, x), 1e-6)
            close(cache, expected, 1e-6)
            self.assertEqual(cache.data_ptr(), address)

    def test_permuted_arguments_are_not_copied(self):
        def function(x, cache, *weights):
            cache[1:3] += x.detach()[:2, :2].sum()
            for weight in weights:
                x = torch.nn.functional.silu(x @ weight.t())
            return x, cache.mT

        def tensors():
            torch.manual_seed(3)
            weights = [torch.nn.Parameter(torch.randn(n, k)) for n, k in ((6, 4), (5, 6), (4, 5))]
            return [torch.randn(5, 4, requires_grad=True), torch.randn(3, 2, 8).permute(2, 0, 1), *weights]

        run, found, expected = compiled(function, dynamic=False), tensors(), tensors()
        with mock.patch.object(runner, "_as_contiguous", wraps=runner._as_contiguous) as copy:
            results = [run(*found), function(*expected)]
            # The backward pass takes the transposed weights that the forward pass kept.
            for result in results:
                result[0].square().sum().backward()
        copy.assert_not_called()
        for one, two in zip(results[0], results[1]):
            close(one, two, 1e-5)
            self.assertEqual(one.stride(), two.stride())
        close(found[1], expected[1], 1e-5)
        for one, two in zip(found, expected):
            if two.grad is not None:
                close(one.grad, two.grad, 1e-4)

    def test_element_wise_values_are_computed_again_for_the_backward_pass(self):
        def function(x, gate, up):
            return torch.nn.functional.silu(x @ gate) * (x @ up)

        kept = []
        x, gate, up = (torch.nn.Parameter(torch.randn(*shape)) for shape in ((5, 4), (4, 7), (4, 7)))
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tuple(tensor.shape)) or tensor, lambda tensor: tensor):
            result = compiled(function)(x, gate, up)
        self.assertEqual(kept.count((5, 7)), 2, kept)
        result.sum().backward()
        found = gate.grad.clone()
        gate.grad = None
        function(x, gate, up).sum().backward()
        close(found, gate.grad, 1e-5)

    def test_tensors_are_kept_instead_of_views_with_gaps(self):
        def function(x, w):
            return (x @ w)[:, :3].sin()

        kept = []
        x, w = torch.nn.Parameter(torch.randn(5, 4)), torch.nn.Parameter(torch.randn(4, 14))
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
            result = compiled(function)(x, w)
        self.assertIn((5, 14), [tuple(tensor.shape) for tensor in kept])
        self.assertNotIn((5, 3), [tuple(tensor.shape) for tensor in kept])
        result.sum().backward()
        found = w.grad.clone()
        w.grad = None
        function(x, w).sum().backward()
        close(found, w.grad, 1e-5)

    def test_stores_of_permuted_rows_are_gathers(self):
        def sorted_rows(x, scores):
            order = torch.argsort(scores, stable=True)
            back = torch.empty_like(order)
            back[order] = torch.arange(order.shape[0])
            repeated = x[order // 3] * torch.arange(12.0)[:, None]
            return (repeated[torch.argsort(order)].sin() + repeated[back].cos() * repeated[order]).square().sum()

        def stored_back(x, scores):
            order = torch.argsort(scores, stable=True)
            rows = x[order // 3].sin()
            copied = torch.zeros_like(rows).index_copy(0, order, rows * 2)
            put = torch.ones_like(rows).index_put((order,), rows.cos())
            filled = torch.ones(order.shape[0]).index_put((order,), torch.tensor(3.0))
            added = torch.zeros_like(x).index_add(0, order // 3, rows)
            column = (order // 3).unsqueeze(1).expand(-1, x.shape[1])
            summed = added + torch.zeros_like(x).scatter_add(0, column, rows * rows)
            return (copied * put + summed.repeat(3, 1) * filled.unsqueeze(1)).square().sum()

        def named_twice(x, scores):
            return (x[torch.argsort(scores) % 2] * x[torch.argsort(scores)[:4] // 3]).sum()

        def added_to_others(x, scores):
            order = torch.argsort(scores[:4], stable=True)
            column = torch.stack([order, order.flip(0)], 1)
            summed = torch.zeros_like(x).scatter_add(0, column, x.cos())
            none = x.new_zeros(2, 0).index_add(0, order // 2, x[:, :0]).sum()
            return (x.index_add(0, order, x.sin()) + summed).square().sum() + none

        scores = torch.tensor([3, 1, 2, 0, 5, 5, 4, 9, 7, 7, 8, 2])
        for function, is_gather in ((sorted_rows, True), (stored_back, True), (named_twice, False), (added_to_others, False)):
            rows = torch.randn(4, 2 if function is added_to_others else 5 if is_gather else 1)
            given = scores if is_gather else scores[:4]
            with mock.patch("symmc.compile", wraps=symmc.compile) as planned:
                same_gradients(function, [rows], given)
            texts = [call.args[0].text() for call in planned.call_args_list]
            is_added = [found in text for text in texts for found in ("accumulate=true", "combine=sum", "index_add")]
            self.assertEqual(any(is_added), not is_gather, function.__name__)

    def test_gradients_of_rows_in_other_orders(self):
        def descending(x, scores):
            order = torch.argsort(scores, stable=True)
            return (x[order].sin() + x[torch.argsort(order, descending=True)].cos() * x[order]).square().sum()

        def ranks_as_floats(x, scores):
            order = torch.argsort(scores, stable=True)
            ranks = torch.empty(order.shape[0])
            ranks[order] = torch.arange(12.0)
            return (x[order] * ranks[:, None]).square().sum()

        scores = torch.tensor([3, 1, 2, 0, 5, 5, 4, 9, 7, 7, 8, 2])
        for function in (descending, ranks_as_floats):
            with self.subTest(function.__name__):
                same_gradients(function, [torch.randn(12, 5)], scores)

    def test_outputs_of_every_kind(self):
        def function(x, n: int):
            y = x + 1
            return x, y, y, None, n, y.shape[0], y.t(), (x * n, [y.sum()])

        run = compiled(function, dynamic=True)
        for size in (4, 6):
            x = torch.randn(size, 3)
            found, expected = run(x, 3), function(x, 3)
            self.assertIs(found[0], x)
            self.assertEqual(found[3:6], expected[3:6])
            for one, two in [(found[1], expected[1]), (found[6], expected[6]), (found[7][1][0], expected[7][1][0])]:
                close(one, two, 1e-5)

    def test_results_outlive_later_calls(self):
        run = compiled(lambda x: x * 2)
        results = [run(torch.full((4,), float(i))) for i in range(5)]
        for i, result in enumerate(results):
            close(result, torch.full((4,), 2.0 * i))

    def test_sizes_up_to_any_and_empty(self):
        run = compiled(lambda x: (x * 2).sum(1), dynamic=True)
        for n in (3, 1000, 5, 20000, 2):
            x = torch.randn(n, 4)
            close(run(x), (x * 2).sum(1), 1e-5)

    def test_sizes_padded_to_a_multiple_share_a_plan(self):
        def chunks(x, padding):
            y = torch.nn.functional.pad(x, (0, 0, 0, padding))
            return y.reshape(x.shape[0], -1, 8, x.shape[2]).cumsum(2).reshape(x.shape[0], -1, x.shape[2])[:, : x.shape[1]]

        def complement(x):
            return chunks(x, (8 - x.shape[1] % 8) % 8)

        def negative(x):
            return chunks(x, -x.shape[1] % 8)

        for function in (complement, negative):
            run = compiled(function, dynamic=True)
            with self.subTest(function.__name__), mock.patch("symmc.compile", wraps=symmc.compile) as planned:
                # Dynamo traces tokens that are a multiple separately.
                for batch, tokens in ((2, 50), (2, 33), (3, 63), (2, 41), (2, 50), (3, 33)):
                    x = torch.randn(batch, tokens, 4)
                    close(run(x), function(x), 1e-5)
                self.assertEqual(planned.call_count, 1)

    def test_dtypes(self):
        def function(x):
            return (x * 3 - 1).abs()

        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32):
            x = (torch.randn(7, 5) * 4).to(dtype)
            close(compiled(function)(x).double(), function(x).double(), 1e-2)

    def test_unknown_operators_are_left_to_others_and_named_once(self):
        def function(x):
            y = torch.relu(x + 1)
            z = torch.linalg.qr(y @ y.t() + torch.eye(4))[1].abs()
            return (z * 2).sum() + y.mean()

        x = torch.randn(4, 4)
        with self.assertRaisesRegex(Exception, "linalg_qr"):
            compiled(function)(x)
        for fallback in ("eager", "inductor"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run = compiled(function, fallback=fallback)
                close(run(x), function(x))
                close(run(x), function(x))
            said = [str(w.message) for w in caught if "symmc leaves" in str(w.message)]
            self.assertEqual(len(said), int(fallback == "eager"), said)
            self.assertTrue(all("linalg_qr" in text and "test_with_torch.py" in text for text in said), said)

    def test_operators_become_what_pytorch_defines_them_by(self):
        nn, F = torch.nn, torch.nn.functional
        cases = {
            "batch norm in training": (nn.BatchNorm1d(8), (6, 8)),
            "batch norm in evaluation": (nn.BatchNorm1d(8).eval(), (6, 8)),
            "group norm": (nn.GroupNorm(2, 8), (3, 8, 5)),
            "a convolution": (nn.Conv2d(2, 4, 3, 2, 1, bias=False), (2, 2, 6, 5)),
            "patches": (nn.Conv2d(2, 4, 9, 9), (2, 2, 18, 18)),
            "a causal convolution by channel": (nn.Sequential(nn.ConstantPad1d((3, 0), 0.0), nn.Conv1d(4, 4, 4, groups=4)), (2, 4, 7)),
            "a transposed convolution": (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 5)),
            "pools": (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.AvgPool2d(2, 1, 1)), (2, 1, 8, 8)),
            "reflected padding": (nn.Conv1d(4, 2, 3, padding=2, padding_mode="reflect"), (2, 4, 7)),
            "interpolation": (nn.Sequential(nn.Conv2d(1, 2, 1), nn.Upsample(scale_factor=2, mode="bilinear")), (2, 1, 3, 4)),
            "losses": (Losses(), (6, 8)),
        }
        for name, (module, shape) in cases.items():
            with self.subTest(name):
                torch.manual_seed(3)
                x, other = torch.randn(shape), copy.deepcopy(module)
                # Of pictures, and of what is padded so, no gradient is wanted.
                one, two = (x.clone().requires_grad_(name not in ("patches", "reflected padding")) for _ in range(2))
                found, expected = compiled(module)(one), other(two)
                close(found, expected)
                found.square().sum().backward()
                expected.square().sum().backward()
                if one.requires_grad:
                    close(one.grad, two.grad, 1e-3)
                for mine, theirs in zip(module.parameters(), other.parameters()):
                    close(mine.grad, theirs.grad, 1e-3)
                for mine, theirs in zip(module.buffers(), other.buffers()):
                    close(mine, theirs)

    def test_an_operator_whose_definition_is_not_known_stays_whole(self):
        def function(x):
            return torch.linalg.qr(x)[1].abs().sum() + torch.lgamma(x.abs() + 1).sum() + torch.nn.functional.mse_loss(x, x * 2)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run, x = compiled(function, fallback="eager"), torch.randn(4, 4)
            close(run(x), function(x))
        said = "".join(str(w.message) for w in caught if "symmc leaves" in str(w.message))
        self.assertIn("2 operator(s)", said)
        self.assertIn("aten.linalg_qr", said)
        self.assertIn("aten.lgamma", said)

    def test_sizes_of_windows_and_sums_of_sizes(self):
        def chunks(x):
            return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % 4)).view(-1, 4, 8).sum(1)

        def halves(x):
            half = x.shape[0] // 2
            return torch.cat([x[half:] * 2, x[:half]]) + x

        def sums(x):
            return x.new_ones(torch.sym_sum([x.shape[0], x.shape[0], 5])).cumsum(0) if hasattr(torch, "sym_sum") else x

        def spread(x):
            return x.var(0) + torch.nn.functional.conv1d(x.t()[None], torch.ones(2, 8, 2), stride=2, padding=1).sum()

        def pairs(x):
            return x.view(x.shape[0] // 2, 2, x.shape[1]).sum(1) + x.view(2, -1, 8)[0] + torch.cat(x.chunk(2), 1)[:, 4:12]

        def behind_one(x):
            assert (x.shape[0] - 1) % 3 == 0
            return x[1:].unflatten(0, (-1, 3)).sum(1) * (x.shape[0] // 3)

        any_size, odd, even = (7, 2, 100, 5), (7, 4, 100, 10), (6, 4, 100, 14)
        cases = [(chunks, any_size), (halves, any_size), (sums, any_size), (spread, any_size), (pairs, even), (behind_one, odd)]
        for function, sizes in cases:
            run = compiled(function, dynamic=True)
            for rows in sizes:
                with self.subTest(function.__name__, rows=rows):
                    x = torch.randn(rows, 8)
                    close(run(x), function(x), 1e-3)

    def test_sizes_of_which_a_graph_says_too_little(self):
        """Extents that are equal, products or numbers in every call; others than those at first have plans of their own."""

        def attention(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

        def flattened(x, y):
            return x.view(y.shape[0], y.shape[1], 32) + y

        def heads(x, w):
            return x.reshape(x.shape[0], x.shape[1], -1, w.shape[0]).sum(-2) * w

        cases = [
            # The lengths of keys and values have symbols of their own.
            (attention, lambda n: [torch.randn(2, n, 8), torch.randn(2, n + 3, 8)[:, : n + 1], torch.randn(2, n + 1, 8)]),
            (flattened, lambda n: [torch.randn(3 * n, 32), torch.randn(3, n, 1)]),
            (heads, lambda n: [torch.randn(2, n, 16), torch.randn(4 if n < 50 else 8)]),
            (lambda x: x.view(x.shape[0] // 2, -1) * 2, lambda n: [torch.randn(2 * n, 5)]),
        ]
        for function, make_inputs in cases:
            run = compiled(function, dynamic=True)
            for tokens in (7, 5, 100):
                inputs = make_inputs(tokens)
                for at, given in enumerate(inputs):
                    for axis in range(given.dim()):
                        # As behind a graph break: no two sizes are known to be one.
                        torch._dynamo.maybe_mark_dynamic(given, axis)
                close(run(*inputs), function(*inputs))

    def test_tables_that_are_cut_by_another_size_have_one_plan(self):
        cases = [
            (lambda x, table: x * table[: x.shape[0]], [(5, 16), (7, 16), (9, 9), (3, 13)]),
            (lambda x, table: x + table[-x.shape[0] :], [(5, 16), (16, 16), (2, 9)]),
            (lambda x, table: x[: table.shape[0]] * table, [(16, 5), (12, 9), (9, 9)]),
        ]
        for function, sizes in cases:
            run, planned = compiled(function, dynamic=True), symmc.compile
            with mock.patch.object(symmc, "compile", side_effect=planned) as plans:
                for rows, entries in sizes:
                    x, table = torch.randn(rows, 4), torch.randn(entries, 4)
                    close(run(x, table), function(x, table))
            self.assertEqual(plans.call_count, 1)
        # What was equal at first, or less, has another plan where it is not.
        run = compiled(lambda x, y: x[: y.shape[0]].sum(0) + y[: x.shape[0]].sum(0), dynamic=True)
        for rows, others in ((6, 6), (4, 9), (9, 4), (5, 5)):
            x, y = torch.randn(rows, 4), torch.randn(others, 4)
            close(run(x, y), x[:others].sum(0) + y[:rows].sum(0))

    def test_a_cut_graph_changes_inputs_in_place_and_has_gradients(self):
        def function(state, x):
            y = torch.linalg.inv(x @ x.t() + torch.eye(4)) * 2
            state.add_(y.detach())
            return y.sum() + state.sum()

        run, x = compiled(function, fallback="eager"), torch.randn(4, 4)
        for _ in range(2):
            found, expected = torch.zeros(4, 4), torch.zeros(4, 4)
            one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
            run(found, one).backward()
            function(expected, two).backward()
            close(found, expected)
            close(one.grad, two.grad)

    def test_options_are_checked(self):
        wrong = {
            "machine": [7, "h200", __file__],
            "buckets": [4, [0], "8", [True], {"n": 8}, {"n": [0]}, {8: [8]}],
            "bind": [7, 1.5, [1], {"x": 1}],
            "variants": [7, "pul", ["pull", 3], "pull,,ll"],
            "order": [7, "leanest", ["lean"], ""],
            "slack": ["much", -1, 0.05, float("nan"), float("inf"), True],
            "memory_price": ["much", -0.5, float("nan"), False],
            "symm_limit": [0, -1, 1.5, 1 << 64, "1M"],
            "coalesce": [0, 1, "yes"],
            "numerics": [7, "loose", ["narrow"]],
            "fallback": ["x", 7, ["eager"]],
            "definitions": [7, "a.symm", [7], ["arg %x: f32[2]"], ['program "f" ranks ?']],
            "timeout": ["soon", -1, 0, float("inf"), True],
            "report": [7, "report.pdf"],
        }
        self.assertEqual(set(wrong), {field.name for field in dataclasses.fields(Options)})
        for name, values in wrong.items():
            for value in values:
                with self.subTest(name, value=value), self.assertRaises(Exception) as caught:
                    compiled(lambda x: x + 1, **{name: value})(torch.ones(2))
                self.assertRegex(str(caught.exception), rf"option {name}: .*(expected|there is no machine|line 1|no numerics class)")
        with self.assertRaisesRegex(Exception, "option colour .*: expected one of machine, buckets"):
            compiled(lambda x: x + 1, colour="red")(torch.ones(2))
        with self.assertRaisesRegex(Exception, "/nowhere/report.txt: No such file"):
            compiled(lambda x: x + 1, report="/nowhere/report.txt")(torch.ones(2))
        with self.assertRaisesRegex(symmc.InputError, "expected a mapping"):
            Options.of(7)

    def test_options_are_those_of_compile(self):
        own = set(inspect.signature(symmc.compile).parameters) - {"program", "ranks"}
        self.assertLessEqual(own, {field.name for field in dataclasses.fields(Options)})
        given = {
            "machine": "h200x4", "buckets": [64], "bind": ["nothing", "arg0_1"], "variants": ["pull", "ll"], "order": "lean",
            "slack": 50, "memory_price": 2, "symm_limit": 1 << 20, "coalesce": False, "numerics": "narrow",
        }  # fmt: skip
        self.assertEqual(set(given), own)
        with mock.patch("symmc.compile", wraps=symmc.compile) as compile:
            compiled(lambda x: x + 1, **given)(torch.ones(2))
            self.assertEqual(compile.call_args.kwargs, given | {"buckets": {}, "bind": ["arg0_1"]})
            compiled(lambda x: x + 1, **dict.fromkeys(given), dynamic=True)(torch.ones(2))
            kept = {"buckets": {}, "bind": False, "coalesce": True, "numerics": "exact"}
            self.assertEqual(compile.call_args.kwargs, dict.fromkeys(given) | kept)
        with mock.patch("symmc.compile", wraps=symmc.compile) as compile:
            run = compiled(lambda x: x + 1, dynamic=True, buckets={"other": [3]})
            with self.assertWarnsRegex(UserWarning, "option buckets: expected symbols of the graph, found other"):
                run(torch.ones(5))
            (symbol,) = compile.call_args.args[0].symbols
            torch._dynamo.reset()
            compiled(lambda x: x + 1, dynamic=True, buckets={symbol: [4]})(torch.ones(5))
            self.assertEqual(compile.call_args.kwargs["buckets"][symbol][0], 4)
        with self.assertWarnsRegex(UserWarning, "option bind: expected arguments of the graph, found y, and the graph has arg0_1"):
            compiled(lambda x: x + 1, bind="y")(torch.ones(2))

    def test_programs_share_a_session_or_have_their_own(self):
        class Session:
            refusal = None

            def __init__(self, *_given, **_named):
                self.first = self

            def open_program(self, _plan):
                if Session.refusal is not None:
                    raise Session.refusal
                other = Session()
                other.first = self.first
                return other

            def memory(self):
                return {"ordinary": 1}

            def close(self):
                pass

        class Owner:
            forgotten = 0

            def forget_session(self):
                self.forgotten += 1

        owners, ranks = [Owner() for _ in range(5)], mock.Mock(members=(0, 1), open=lambda opened: opened(None))
        with mock.patch("symmc.Session", Session):
            arenas = Arenas()
            first, second = (arenas.open(owner, None, ranks, None, 30) for owner in owners[:2])
            self.assertIs(second.first, first)
            Session.refusal = symmc.InputError("no room")
            apart = [arenas.open(owner, None, ranks, None, 30) for owner in owners[2:4]]
            self.assertEqual([one.first for one in apart], apart)
            self.assertEqual(arenas.memory(), {"ordinary": 3})
            # A program of a session that has ended by an error ends the others as well, and those alone.
            Session.refusal = symmc.IndexRangeError("an earlier run")
            with self.assertRaises(symmc.IndexRangeError):
                arenas.open(owners[4], None, ranks, None, 30)
            self.assertEqual([owner.forgotten for owner in owners], [1, 1, 0, 0, 0])
            self.assertIs((third := arenas.open(owners[4], None, ranks, None, 30)).first, third)
            arenas.close(third)
            self.assertEqual(arenas.memory(), {"ordinary": 2})

    def test_buckets_and_a_report(self):
        with tempfile.TemporaryDirectory() as folder:
            for suffix, texts in [("txt", ["3 buckets"]), ("html", ["<!DOCTYPE html>", "3 buckets", "</html>"])]:
                path = os.path.join(folder, f"report.{suffix}")
                for _ in range(2):
                    run = compiled(lambda x: x * 2, buckets=[4, 8, 16], report=path)
                    for n in (3, 5, 16):
                        x = torch.ones(n, 2)
                        torch._dynamo.mark_dynamic(x, 0)
                        close(run(x), x * 2)
                with open(path) as file:
                    found = file.read()
                for text in texts:
                    self.assertIn(text, found)
                # Two plans, on one page.
                self.assertEqual((found.count("3 buckets"), found.count("</html>")), (2, int(suffix == "html")))

    def test_a_report_replaces_a_link_and_leaves_its_target(self):
        with tempfile.TemporaryDirectory() as folder:
            path, target = os.path.join(folder, "report.txt"), os.path.join(folder, "target")
            with open(target, "w") as file:
                file.write("keep")
            os.symlink(target, path)
            compiled(lambda x: x * 3, report=path)(torch.ones(2))
            self.assertFalse(os.path.islink(path))
            with open(target) as file:
                self.assertEqual(file.read(), "keep")
            self.assertEqual(sorted(os.listdir(folder)), ["report.txt", "target"])

    def test_a_report_keeps_the_permissions_of_its_file_and_is_not_put_in_place_of_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.txt")
            compiled(lambda x: x * 3, report=path)(torch.ones(2))
            os.chmod(path, 0o600)
            compiled(lambda x: x * 5, report=path)(torch.ones(2))
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            page = os.path.join(folder, "page.html")
            os.mkdir(page)
            with self.assertRaisesRegex(Exception, "option report: .*page.html: .*irectory"):
                compiled(lambda x: x * 7, report=page)(torch.ones(2))
            self.assertEqual(sorted(os.listdir(folder)), ["page.html", "report.txt"])

    def test_a_report_goes_to_the_standard_output(self):
        program = """
import torch, symmc.torch
torch.compile(lambda x: x * 3, backend="symmc", options={"report": "/dev/stdout"})(torch.ones(2))
"""
        found = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=300)
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertIn("1 bucket", found.stdout)

    def test_views_are_views_of_what_they_are_in_eager(self):
        def function(x, w):
            y, z = x * 2, x.t() + 1
            return x[x.shape[0] // 2 :], x.t(), y, y.t(), y.view(-1)[3:], z, z.t().view(-1), (w + 1)[:, 1], y.split(2)

        run = compiled(function, dynamic=True)
        for rows in (4, 6, 10):
            x, w = torch.randn(2 * rows, 6)[::2], torch.randn(rows, 3)
            found, expected = run(x, w), function(x, w)
            for k, (one, other) in enumerate(zip([*found[:8], *found[8]], [*expected[:8], *expected[8]])):
                with self.subTest(output=k, rows=rows):
                    close(one, other)
                    self.assertEqual(one.stride(), other.stride())
                    self.assertEqual(one.storage_offset(), other.storage_offset())
            self.assertEqual(found[1].data_ptr(), x.data_ptr())
            found[2].zero_()
            close(found[3], torch.zeros_like(found[3]))

    def test_numbers_of_sizes_are_those_of_the_call(self):
        def function(x):
            return x.shape[0] / 2, x.shape[0] // 2, x.numel(), x * (x.shape[0] / 3)

        run = compiled(function, dynamic=True, fallback="eager")
        for rows in (5, 7, 12):
            x = torch.randn(rows, 3)
            found, expected = run(x), function(x)
            self.assertEqual(found[:3], expected[:3])
            close(found[3], expected[3])

    def test_a_stage_of_inductor_may_be_given_float_expressions_of_sizes(self):
        run = compiled(lambda x, n: x + round(n / 2 * 123.4567, 0), dynamic=True, fallback="inductor")
        for n in (2, 5):
            close(run(torch.zeros(2), n), torch.zeros(2) + round(n / 2 * 123.4567, 0))

    def test_differences_of_ranks_are_called_those_of_graphs(self):
        from symmc.torch.capture.exported import program_graph
        from symmc.torch.importing import programs

        archives = [
            program_graph(torch.export.export(model, (torch.ones(3),))).archive()
            for model in (torch.nn.ReLU(), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()))
        ]
        with self.assertRaises(symmc.Error) as caught:
            programs.open_archives(archives)
        self.assertIn("the graph of rank", str(caught.exception))
        self.assertNotIn("archive", str(caught.exception))

    def test_what_a_stage_of_others_gives_comes_before_who_reads_it(self):
        def function(x):
            y = x + torch.rand_like(x)
            return y, torch.randn(3), torch.bernoulli(torch.sigmoid(x))

        run, x = compiled(function, fallback="eager"), torch.randn(4, 4)
        for _ in range(2):
            torch.manual_seed(7)
            found = run(x)
            torch.manual_seed(7)
            for one, other in zip(found, function(x)):
                close(one, other, 1e-6)

    def test_operators_of_higher_order_are_left_to_others(self):
        def function(x):
            return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x * 3,)) + 1

        run = compiled(function, fallback="eager")
        for x in (torch.ones(4), -torch.ones(4)):
            close(run(x), function(x))

    def test_inductor_runs_random_numbers_and_parts_of_tensors(self):
        def function(x):
            return torch.nn.functional.dropout(x * 1, 0.5, True)

        run, x = compiled(function, fallback="inductor"), torch.ones(1000, requires_grad=True)
        y = run(x)
        y.sum().backward()
        self.assertTrue(torch.equal(x.grad, y.detach()))
        self.assertEqual(set(y.tolist()), {0.0, 2.0})

        def parts(x):
            return torch.special.bessel_j0((x + 1)[:, :3]), torch.special.bessel_j0((x * 2).t())

        x = torch.randn(6, 6)
        for one, other in zip(compiled(parts, fallback="inductor")(x), parts(x)):
            close(one, other)

    def test_graphs_on_devices_that_symmc_does_not_know_are_left_to_others(self):
        found = compiled(lambda x: x * 2, fallback="eager")(torch.ones(4, device="meta"))
        self.assertEqual((found.shape, found.device.type), ((4,), "meta"))

    def test_threads_take_turns(self):
        def function(x):
            return (x @ x.t()).relu().sum(0)

        run, wrong = compiled(function, dynamic=True), []
        run(torch.randn(5, 4))

        def calls(thread):
            try:
                for k in range(40):
                    x = torch.randn(2 + k * thread % 37, 4)
                    close(run(x), function(x))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=calls, args=(thread,)) for thread in range(1, 5)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(wrong, [])

    def test_compiling_again_leaves_nothing_behind(self):
        def cycle():
            layer = torch.nn.Linear(8, 8)
            compiled(lambda x: layer(x).relu())(torch.randn(3, 8)).sum().backward()
            gc.collect()
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        for _ in range(2):
            before = cycle()
        for _ in range(5):
            behind = cycle()
        # What other tests left may have gone meanwhile.
        self.assertLessEqual(behind[0], before[0])
        self.assertLessEqual(behind[1], before[1])

    def test_an_exported_program(self):
        class Model(torch.nn.Module):
            def forward(self, x):
                return torch.relu(x) * 2

        exported = torch.export.export(Model(), (torch.randn(3, 4),))
        plan = symmc.compile(symmc.from_exported(exported, ranks=1))
        x = torch.randn(3, 4)
        (((found,)),) = symmc.run(plan, [{"in.0": x}])
        close(found.torch(), torch.relu(x) * 2, 1e-6)

    def test_a_graph_of_operators(self):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(torch.ops.aten.relu.default, (x,)),))
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        program = symmc.from_fx(module, (torch.randn(3, 4),), ranks=1)
        self.assertIn("relu", program.text())

    def test_what_is_no_graph_of_operators_is_refused(self):
        class Model(torch.nn.Module):
            def forward(self, x):
                return x.relu()

        traced = torch.fx.symbolic_trace(Model())
        graph = torch.fx.Graph()
        graph.output((graph.placeholder("x"),))
        bare = torch.fx.GraphModule(torch.nn.Module(), graph)
        cases = [
            (symmc.from_exported, Model(), "expected a torch.export.ExportedProgram, found Model"),
            (symmc.from_fx, 5, "expected a torch.fx.GraphModule, found int"),
            (symmc.from_fx, traced, "node relu: expected ATen operators"),
            (symmc.from_fx, bare, "input x: expected its value in node.meta"),
        ]
        for function, given, text in cases:
            with self.subTest(text), self.assertRaisesRegex(symmc.InputError, text):
                function(given)

    def test_bf16_by_dlpack(self):
        text = 'program "p" ranks 1\narg %x: bf16[4]\n%y: bf16[4] = add %x, %x\nreturn %y\n'
        plan = symmc.compile(symmc.from_text(text))
        (((found,)),) = symmc.run(plan, [{"x": torch.ones(4, dtype=torch.bfloat16)}])
        self.assertEqual(found.torch().tolist(), [2.0] * 4)
        with self.assertRaisesRegex(symmc.InputError, "bf16"):
            found.numpy()


if __name__ == "__main__":
    unittest.main()
