"""Results whose number of rows is data: exported programs and compiled functions give what eager gives, with its extents."""

import copy
import unittest

from with_torch import HAS_TORCH, close, compiled

if HAS_TORCH:
    import torch

    import symmc

    class Mixture(torch.nn.Module):
        """A mixture of experts as Hugging Face writes it."""

        def __init__(self, experts=4, width=8, slots=2):
            super().__init__()
            self.slots, self.gate = slots, torch.nn.Linear(width, experts, bias=False)
            self.experts = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(experts)])

        def forward(self, x):
            weights, chosen = torch.topk(self.gate(x).softmax(-1), self.slots, dim=-1)
            out = torch.zeros_like(x)
            mask = torch.nn.functional.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
            for number, expert in enumerate(self.experts):
                slot, token = torch.where(mask[number])
                out.index_add_(0, token, expert(x[token]).relu() * weights[token, slot, None])
            return out

    class Function(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def forward(self, *arguments):
            return self.function(*arguments)

    def stored(x, m):
        y = x.clone()
        y[m] = x[m].exp()
        return y

    def repeated(x, m):
        y = torch.repeat_interleave(x, m.long() * 2, dim=0)
        torch._check(y.shape[0] <= 12)
        return y

    def chosen(x, m):
        return torch.cond((x.sum() > 0), lambda x, m: x[m.long()] + 1, lambda x, m: x[(m.long() - 1) % 6] - 1, (x, m))

    FUNCTIONS = {
        "rows": lambda x, m: x[m].relu(),
        "sum": lambda x, m: x[x > 0].sum(),
        "mean": lambda x, m: x[m].mean(0),
        "positions": lambda x, m: torch.nonzero(x * m[:, None]),
        "coordinates": lambda x, m: torch.where(x > m[:, None]),
        "selected": lambda x, m: torch.masked_select(x, m[:, None]),
        "columns": lambda x, m: x.T[:, m] * 2,
        "product": lambda x, m: x[m] @ x.T,
        "distinct": lambda x, m: torch.unique(m.long(), return_inverse=True, return_counts=True),
        "joined": lambda x, m: torch.cat([x[m], x[~m]]),
        "loss": lambda x, m: torch.nn.functional.cross_entropy(x[m], m[m].long()),
        "stored": stored,
        "repeated": repeated,
        "chosen": chosen,
    }


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class DataCounts(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        torch.manual_seed(0)

    def same(self, found, expected):
        found = found if isinstance(found, (tuple, list)) else [found]
        expected = expected if isinstance(expected, (tuple, list)) else [expected]
        self.assertEqual(len(found), len(expected))
        for one, two in zip(found, expected):
            self.assertEqual((tuple(one.shape), one.dtype), (tuple(two.shape), two.dtype))
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5, equal_nan=True)

    def cases(self):
        x = torch.randn(6, 5)
        for flags in ([0] * 6, [1] * 6, [0, 0, 1, 0, 0, 0], [1, 0, 1, 1, 0, 0]):
            yield x, torch.tensor(flags, dtype=torch.bool)

    def test_exported_programs(self):
        for name, function in FUNCTIONS.items():
            exported = torch.export.export(Function(function), next(self.cases()))
            plan = symmc.compile(symmc.from_exported(exported), ranks=1)
            with symmc.Session(plan, symmc.Group.threads(1)[0]) as session:
                for x, m in self.cases():
                    with self.subTest(name=name, mask=m.tolist()):
                        session.write("in.0", x)
                        session.write("in.1", m)
                        session.run()
                        values = session.outputs()
                        found = [torch.from_dlpack(session.read(f"out.{number}")) for number in range(len(values))]
                        self.same(found, function(x, m))
                        for number, one in enumerate(found):
                            self.assertEqual(session.extents(f"out.{number}"), tuple(one.shape))

    def test_compiled_functions_are_one_plan(self):
        for name, function in FUNCTIONS.items():
            torch._dynamo.reset()
            with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
                run = torch.compile(function, backend="symmc", fullgraph=True, options={"fallback": "error"})
                for x, m in self.cases():
                    with self.subTest(name=name, mask=m.tolist()):
                        self.same(run(x, m), function(x, m))

    def test_a_mixture_of_experts_and_its_gradients(self):
        model, x = Mixture(), torch.randn(7, 8)
        other = copy.deepcopy(model)
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled(model)(x).square().mean().backward()
        other(x).square().mean().backward()
        for one, two in zip(model.parameters(), other.parameters()):
            close(one.grad, two.grad, 1e-6)


if __name__ == "__main__":
    unittest.main()
