"""Archives of symmc's own writer are the same programs as those that PyTorch writes, and values that an archive cannot hold are refused."""

import importlib.util
import os
import tempfile
import unittest

HAS_TORCH = importlib.util.find_spec("torch") is not None

if HAS_TORCH:
    import torch
    from torch.export import Dim
    from torch.fx.experimental.proxy_tensor import make_fx

    import symmc

    class Stored(torch.nn.Module):
        """Tied weights, buffers that are written or not persistent, a constant, and an argument that is a number."""

        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
            self.second.weight = self.first.weight
            self.register_buffer("count", torch.zeros(6))
            self.register_buffer("scale", torch.arange(6.0).reshape(2, 3).t().reshape(6), persistent=False)
            self.table = torch.arange(12.0)[::2]

        def forward(self, x, factor=3):
            self.count.add_(1)
            return self.second(self.first(x)) * self.scale + self.table + self.count * factor, None

    class Sizes(torch.nn.Module):
        """Sizes and their functions as arguments, several results, lists, infinities."""

        def forward(self, x, y):
            rows = x.shape[0]
            first, last = torch.split(x, [rows - 2, 2])
            values, indices = x.topk(2, dim=0)
            filled = torch.full((rows, 3), float("-inf")), torch.full((2,), float("nan"))
            return first.sum() + last.mean() + rows, torch.cat([x, y]), values, indices, x[:, None], filled

    class Wrapped(torch.nn.Module):
        """A graph within a graph, types as arguments, a size that depends on data."""

        def forward(self, x, n):
            with torch.no_grad():
                y = x.to(torch.float64) @ x.t().double()
            count = n.item()
            torch._check(count >= 0)
            torch._check(count <= 4)
            return y.sum() + x[:count].sum(), x[:, (n - 2).reshape(1)], torch.zeros_like(x, device="cpu")


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Writer(unittest.TestCase):
    def test_programs_are_those_of_files_of_pytorch(self):
        if importlib.import_module("symmc.torch.settings.versions").VERSION < (2, 9):
            self.skipTest("this version of PyTorch pickles the tensors of its files")
        rows = {0: Dim("rows", min=4, max=50)}
        with torch.device("meta"):
            on_meta = torch.nn.Linear(3, 3), (torch.ones(2, 3),)
        for model, given, sizes in [
            (Stored(), (torch.ones(2, 6),), None),
            (Sizes(), (torch.ones(6, 4), torch.ones(5, 4)), (rows, {0: Dim("more", max=100)})),
            (Wrapped(), (torch.ones(5, 2), torch.tensor(3)), None),
            (torch.nn.Linear(3, 3), (torch.ones(5, 3),), (rows,)),
            (*on_meta, None),
        ]:
            exported = torch.export.export(model, given, dynamic_shapes=sizes)
            with self.subTest(type(model).__name__), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "graph.pt2")
                torch.export.save(exported, path)
                found, expected = symmc.from_exported(exported, ranks=1), symmc.open(path, ranks=1)
                self.assertEqual(found.text(), expected.text())
                self.assertEqual(found.notes, expected.notes)
                self.assertEqual(found.opaque, expected.opaque)
                if next(model.parameters(), given[0]).is_meta:
                    continue
                ours, theirs = found.parameters(), expected.parameters()
                self.assertEqual(ours.keys(), theirs.keys())
                for name, tensor in ours.items():
                    self.assertTrue(torch.equal(torch.from_dlpack(tensor), torch.from_dlpack(theirs[name])), name)

    def test_arguments_keep_their_names_if_operators_are_decomposed(self):
        class Model(torch.nn.Module):
            def forward(self, input):
                return torch.kron(input, input).sum() + torch.nn.functional.triplet_margin_loss(input, input * 2, input * 3)

        exported = torch.export.export(Model(), (torch.ones(2, 8),))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "graph.pt2")
            torch.export.save(exported, path)
            self.assertEqual(symmc.open(path).opaque.keys(), {"kron", "triplet_margin_loss"})
        program = symmc.from_exported(exported)
        self.assertEqual((program.arguments, program.opaque), (["input"], {}))

    def test_values_that_no_archive_holds_are_refused_by_name(self):
        graph = make_fx(lambda x: torch.ops.aten.add.Tensor(x, 1), tracing_mode="fake")(torch.ones(2))
        node = next(node for node in graph.graph.nodes if node.op == "call_function")
        operand, name = node.args[0], f"`{node.name}` (torch.ops.aten.add.Tensor)"
        for value, text in [
            (1 << 63, "expected integers of 64 bits, found 9223372036854775808"),
            ([1, 2.0], "expected a list of arguments of one kind, found float, int"),
            (torch.float4_e2m1fn_x2, "expected a supported dtype, found float4_e2m1fn_x2"),
            ("\ud800", "surrogates not allowed"),
            (range(2), "found range"),
        ]:
            node.args = (operand, value)
            with self.assertRaises(symmc.UnsupportedError) as caught:
                symmc.from_fx(graph)
            self.assertIn(f"{name}: ", str(caught.exception))
            self.assertIn(text, str(caught.exception))
            self.assertEqual((caught.exception.node, caught.exception.op), (node.name, "torch.ops.aten.add.Tensor"))

    def test_graphs_that_write_their_operands_are_refused(self):
        graph = make_fx(lambda x: x.mul(2).add_(1))(torch.ones(2))
        with self.assertRaisesRegex(symmc.InputError, "expected a functional graph .* found aten.add_.Tensor, which writes its operands"):
            symmc.from_fx(graph)


if __name__ == "__main__":
    unittest.main()
