"""Attention in graphs with gradients: PyTorch's fused operators, forward and backward, by the backend of ``torch.compile``."""

import unittest
from unittest import mock

from with_torch import HAS_TORCH, close, compiled

if HAS_TORCH:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention import SDPBackend

    from symmc.torch.capture import attention as capture_attention
    from symmc.torch.capture import fx_graphs
    from symmc.torch.importing import programs

    aten = torch.ops.aten


def attention(q, k, v, **options):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def repeated(x, times):
    """Heads, each several times, as models with fewer heads of keys have them."""
    b, g, s, e = x.shape
    return x[:, :, None].expand(b, g, times, s, e).reshape(b, g * times, s, e)


def with_gradients(function, inputs):
    """The result of a function and the gradients of its inputs, for a gradient of the result that is the same each time."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    result = function(*inputs)
    torch.manual_seed(3)
    result.backward(torch.randn_like(result))
    return [result.detach(), *[x.grad for x in inputs]]


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Gradients(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        torch.manual_seed(0)

    def texts(self, run):
        """The programs that are compiled while this runs."""
        found, opened = [], programs.open_archives

        def noted(*arguments, **options):
            program = opened(*arguments, **options)
            found.append(program.text())
            return program

        with mock.patch("symmc.torch.importing.programs.open_archives", side_effect=noted):
            run()
        return found

    def check(self, function, inputs, limit=1e-5, fused=True, **options):
        """Holds a compiled function and its gradients against eager's, and whether its attention is one step each way."""
        expected, found = with_gradients(function, inputs), []
        texts = self.texts(lambda: found.extend(with_gradients(compiled(function, **options), inputs)))
        for one, two in zip(found, expected):
            self.assertEqual((one.stride(), one.dtype), (two.stride(), two.dtype))
            close(one.float(), two.float(), limit)
        text = "".join(texts)
        self.assertEqual(text.count(" attention_gradient "), 1 if fused else 0, text)
        self.assertEqual(" softmax " in text, not fused, text)

    def check_mask_is_computed_again(self, function, inputs):
        """Holds gradients against eager's, and that the mask of 17 positions is no input of the backward pass."""
        expected, found = with_gradients(function, inputs), []
        forward, backward = self.texts(lambda: found.extend(with_gradients(compiled(function), inputs)))
        for one, two in zip(found, expected):
            close(one, two, 1e-5)
        self.assertNotRegex(backward, r"arg %\w+: \w+\[(1, 1, )?17, 17\]")

    def test_every_form_is_as_eager(self):
        mask = torch.rand(33, 21) > 0.3
        mask[:, 0] = True
        bias = torch.randn(1, 4, 33, 21)
        draw = lambda heads, tokens, e=8: torch.randn(2, heads, tokens, e)
        same = lambda **options: (lambda q, k, v: attention(q, k, v, **options))
        cross = [draw(4, 33), draw(4, 21), draw(4, 21, 5)]
        cases = {
            "causal": (same(is_causal=True), [draw(4, 33)] * 3),
            "values of another size": (same(scale=0.7), cross),
            "a scale": (same(scale=0.7), [draw(4, 33), draw(4, 21), draw(4, 21)]),
            "a mask of bools": (same(attn_mask=mask), [draw(4, 33), draw(4, 21), draw(4, 21)]),
            "a bias": (same(attn_mask=bias), [draw(4, 33), draw(4, 21), draw(4, 21)]),
            "one row": (same(), [draw(2, 1), draw(2, 7), draw(2, 7)]),
            "heads in groups": (same(enable_gqa=True, is_causal=True), [draw(4, 17), draw(2, 17), draw(2, 17)]),
            "heads that are repeated": (
                lambda q, k, v: attention(q, repeated(k, 3), repeated(v, 3)),
                [draw(6, 5), draw(2, 70), draw(2, 70)],
            ),
        }
        for name, (function, inputs) in cases.items():
            with self.subTest(name):
                # What PyTorch's kernel for CPUs does not take, PyTorch writes out.
                fused = name != "values of another size"
                if name == "heads in groups":
                    fused = torch._fused_sdp_choice(*inputs, is_causal=True, enable_gqa=True) != SDPBackend.MATH.value
                self.check(function, inputs, fused=fused)

    def test_half_precision_and_layouts_of_projections(self):
        def heads(q, k, v):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

        for dtype in (torch.bfloat16, torch.float16):
            with self.subTest(dtype=dtype):
                self.check(heads, [torch.randn(2, 65, 3, 16, dtype=dtype) for _ in range(3)], 6e-2)

    def test_sizes_that_vary(self):
        def function(q, k, v):
            return attention(q, k, v, is_causal=True)

        run = compiled(function, dynamic=True)
        for tokens in (33, 7, 64):
            inputs = [torch.randn(1, 2, tokens, 8) for _ in range(3)]
            for one, two in zip(with_gradients(run, inputs), with_gradients(function, inputs)):
                close(one, two, 1e-5)

    def test_repeated_heads_are_not_kept(self):
        """Heads are saved before they are repeated, and the op sums the gradients of the copies."""

        def function(q, k, v):
            return attention(q * 2, repeated(k * 2, 4), repeated(v * 2, 4), is_causal=True)

        inputs = [torch.randn(1, 8, 16, 4), torch.randn(1, 2, 16, 4), torch.randn(1, 2, 16, 4)]
        backward = self.texts(lambda: with_gradients(compiled(function), inputs))[-1]
        arguments = [line for line in backward.splitlines() if line.startswith("arg ")]
        repeats = [line for line in arguments if "[1, 8, 16, 4]" in line or "[1, 16, 8, 4]" in line]
        # The queries, the result and its gradient.
        self.assertLessEqual(len(repeats), 3, backward)

    def test_masks_of_positions_are_computed_again(self):
        def function(q, k, v, rows):
            ahead = torch.arange(17)[None, :] <= torch.arange(17)[:, None]
            mask = torch.where(ahead, 0.0, float("-inf"))[None, None] if rows is None else (ahead & (rows > 0))[None, None]
            return attention(attention(q, k, v, attn_mask=mask), k, v, attn_mask=mask)

        inputs = [torch.randn(1, 2, 17, 8) for _ in range(3)]
        for rows in (None, torch.ones(17, 1)):
            masked = lambda q, k, v, rows=rows: function(q, k, v, rows)
            self.check_mask_is_computed_again(masked, inputs)

    def test_masks_of_inputs_that_change_are_kept(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("step", torch.tensor(5))

            def forward(self, q, k, v):
                mask = (torch.arange(17)[None, :] <= self.step).expand(17, 17)[None, None]
                y = attention(q, k, v, attn_mask=mask)
                self.step.add_(7)
                return y

        inputs = [torch.randn(1, 2, 17, 8) for _ in range(3)]
        expected = with_gradients(Model(), inputs)
        for one, two in zip(with_gradients(compiled(Model()), inputs), expected):
            close(one, two, 1e-5)

    def test_masks_of_positions_are_kept_out_of_checkpointed_regions(self):
        def function(q, k, v):
            mask = (torch.arange(17)[None, :] <= torch.arange(17)[:, None])[None, None]
            inner = lambda q, k, v: attention(attention(q, k, v, attn_mask=mask), k, v, attn_mask=mask)
            return torch.utils.checkpoint.checkpoint(inner, q, k, v, use_reentrant=False)

        self.check_mask_is_computed_again(function, [torch.randn(1, 2, 17, 8) for _ in range(3)])

    def test_masks_with_gradients_and_dropout_are_written_out(self):
        q, mask = torch.randn(1, 2, 9, 8), torch.randn(9, 9)
        self.check(lambda q, mask: attention(q, q, q, attn_mask=mask), [q, mask], fused=False)

        def dropped(q):
            return attention(q, q, q, dropout_p=0.5)

        texts = self.texts(lambda: with_gradients(compiled(dropped, fallback="eager"), [q]))
        self.assertNotIn("attention_gradient", "".join(texts))

    def test_operators_of_gpus(self):
        """As they are traced for GPUs, which need not be there: with the results that each kernel has besides."""
        for name, joint in (("flash", self.flash), ("efficient", self.efficient), ("cudnn", self.cudnn)):
            for tokens, keys, heads, causal in ((70, 70, 4, True), (64, 50, 4, False), (7, 7, 2, True)):
                if name == "efficient" and heads != 4:
                    continue
                with self.subTest(name, tokens=tokens), FakeTensorMode():
                    shapes = (4, tokens), (heads, keys), (heads, keys), (4, tokens)
                    values = [
                        torch.empty(2, n, h, 16, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for h, n in shapes
                    ]
                    graph = make_fx(lambda *inputs: joint(*inputs, causal))(*values)
                self.prepare(graph.graph)
                program = programs.open_archives([fx_graphs.lift_fx_graph(graph).archive()])
                self.assertEqual(program.text().count(" attention_gradient "), 1, program.text())
                self.assertEqual(program.text().count("log_sum_exp=true"), 1, program.text())
                self.assertNotIn("opaque", program.text())

    def flash(self, q, k, v, g, causal):
        out, sums, of_q, of_k, most_q, most_k, seed, offset, _ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        rest = (of_q, of_k, most_q, most_k, 0.0, causal, seed, offset)
        return out, *aten._scaled_dot_product_flash_attention_backward(g, q, k, v, out, sums, *rest)

    def efficient(self, q, k, v, g, causal):
        out, sums, seed, offset = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)
        wanted = [True, True, True, False]
        rest = (seed, offset, 0.0, wanted, causal)
        return out, sums, *aten._scaled_dot_product_efficient_attention_backward(g, q, k, v, None, out, sums, *rest)[:3]

    def cudnn(self, q, k, v, g, causal):
        found = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
        out, sums, of_q, of_k, most_q, most_k, seed, offset, _ = found
        rest = (seed, offset, None, of_q, of_k, most_q, most_k, 0.0, causal)
        return out, sums, *aten._scaled_dot_product_cudnn_attention_backward(g, q, k, v, out, sums, *rest)

    def prepare(self, graph):
        """Drops the random state, as the backend does before it divides a graph: programs have no dtype for that of flash."""
        for node in graph.nodes:
            if getattr(node.target, "_opname", "").endswith("attention_backward"):
                capture_attention._drop_random_state(node)
        graph.eliminate_dead_code()
        used = [node.meta["val"].dtype for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
        self.assertNotIn(torch.uint64, used)


if __name__ == "__main__":
    unittest.main()
