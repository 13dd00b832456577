"""Operators mean what they mean in PyTorch: arguments that are left out, dtypes that do not fit, process groups."""

import unittest
import warnings

from with_torch import HAS_TORCH, close, compiled

if HAS_TORCH:
    import torch
    import torch.distributed as dist

    import symmc

    class Scaled(torch.nn.Module):
        """Norms of activations that are small."""

        def forward(self, x, w):
            F, x = torch.nn.functional, x * 2**-10
            return F.rms_norm(x, (8,)), F.rms_norm(x, (8,), w), F.rms_norm(x, (8,), w.float())


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Meaning(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        warnings.simplefilter("ignore")

    def test_a_norm_without_an_epsilon_is_the_same_before_and_after_decompositions(self):
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            module, x, w = Scaled(), torch.randn(3, 8).to(dtype), torch.randn(8).to(dtype)
            exported = torch.export.export(module, (x, w))
            for program in (exported, exported.run_decompositions()):
                plan = symmc.compile(symmc.from_exported(program, ranks=1))
                for found, expected in zip(symmc.run(plan, [{"in.0": x, "in.1": w}])[0], module(x, w)):
                    self.assertEqual(found.torch().dtype, expected.dtype)
                    close(found.torch().double(), expected.double(), 0.02)
            own = [p.detach().clone().requires_grad_() for p in (x, w)]

            def loss(x, w):
                return torch.nn.functional.rms_norm(x * 2**-10, (8,), w).float().square().sum()

            both = []
            for function in (loss, compiled(loss)):
                [setattr(p, "grad", None) for p in own]
                function(*own).backward()
                both.append([p.grad.double() for p in own])
            for eager, ours in zip(*both):
                close(ours, eager, 0.02 * max(1.0, eager.abs().max().item()))

    def test_dtypes_that_do_not_fit_raise_as_eager_does(self):
        half, full = torch.nn.Linear(8, 8).bfloat16(), torch.nn.Linear(8, 8)
        x = torch.ones(3, 8)
        cases = [
            (half, x),
            (full, x.double()),
            (lambda x: torch.addmm(x, x.double(), x.double().t()), torch.ones(4, 4)),
            (lambda x: torch.baddbmm(x.double(), x, x), torch.ones(2, 4, 4)),
        ]
        with torch.no_grad():
            for function, given in cases:
                with self.assertRaises(RuntimeError) as eager:
                    function(given)
                for options in ({}, {"fallback": "eager"}):
                    with self.assertRaises(RuntimeError) as ours:
                        compiled(function, **options)(given)
                    self.assertIn("dtype", str(ours.exception))
                    self.assertIn(str(eager.exception).splitlines()[0][:20], str(ours.exception))

    def test_numbers_are_rounded_where_eager_rounds_them(self):
        for dtype in (torch.float16, torch.bfloat16):
            x = torch.tensor([0.1, 0.2, 0.3, 0.5, 0.7, -0.1]).to(dtype)
            for function in (
                lambda x: torch.remainder(x, 0.1),
                lambda x: torch.remainder(0.7, x),
                lambda x: torch.div(x, 0.1, rounding_mode="trunc"),
                lambda x: torch.div(0.7, x, rounding_mode="floor"),
                lambda x: x.abs() ** 0.3,
            ):
                close(compiled(function)(x), function(x), 0.001 if dtype == torch.float16 else 0.008)

    def test_sizes_of_bags(self):
        table, indices, offsets = torch.randn(10, 4), torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 3])
        for mode in (0, 1):
            run = compiled(lambda w, i, o: torch.ops.aten._embedding_bag(w, i, o, False, mode)[:3:2])  # noqa: B023
            expected = torch.ops.aten._embedding_bag(table, indices, offsets, False, mode)
            found = run(table, indices, offsets)
            close(found[0], expected[0])
            self.assertEqual(found[1].tolist(), expected[2].tolist())

    def test_a_group_of_some_ranks_is_never_the_world(self):
        import torch.distributed._functional_collectives as funcol
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        try:
            some = dist.new_group([0, 1])
            name = some.group_name

            class Model(torch.nn.Module):
                def forward(self, x):
                    return funcol.wait_tensor(funcol.all_reduce(x, "sum", some))

            x = torch.zeros(4, 8)
            graph = make_fx(Model())(x)
            for program in (
                lambda **options: symmc.from_fx(graph, ranks=4, **options),
                lambda **options: symmc.from_exported(torch.export.export(Model(), (x,)), ranks=4, **options),
            ):
                with self.assertRaises(symmc.InputError) as refused:
                    program()
                self.assertEqual(refused.exception.unknown_groups, [name])
                self.assertIn(f'groups={{"{name}": [[0, 1], [2, 3]]}}', str(refused.exception))
                self.assertIn("has the ranks [0, 1]", str(refused.exception))
                self.assertNotIn("--group", str(refused.exception))
                self.assertIn("[[0, 1], [2, 3]]", program(groups={name: [[0, 1], [2, 3]]}).text())
            world = make_fx(lambda x: funcol.wait_tensor(funcol.all_reduce(x, "sum", dist.group.WORLD)))(x)
            self.assertIn("world", symmc.from_fx(world, ranks=4).text())
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
