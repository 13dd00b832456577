"""Calls of compiled functions: their parts, and the layouts of tensors that they accept. Needs PyTorch."""

import sys
import unittest

from with_torch import HAS_TORCH, close, compiled, on_ranks

import symmc

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    from symmc.torch.settings.versions import VERSION

    HAS_TABLE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def called(work):
    """How many functions a call of one runs, those of C among them."""
    count = 0

    def note(_frame, event, _function):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def made_of(function, *inputs):
    """The backend functions that the compilation of a function made, after one call."""
    from symmc.torch.partition import stages

    made, known = [], stages.PlannedGraph
    stages.PlannedGraph = lambda *given: made.append(known(*given)) or made[-1]
    try:
        with torch.no_grad():
            compiled(function)(*inputs)
    finally:
        stages.PlannedGraph = known
    return made


def session_of(text):
    return symmc.Session(symmc.compile(symmc.from_text(text)), symmc.Group.threads(1)[0])


def operators_are_called_directly(rank):
    """Code of Inductor calls functions of symmc, with operands as they want them."""
    from torch._inductor.utils import run_and_get_code
    from test_with_inductor import counted

    counted()
    norm = torch.nn.RMSNorm(32)

    def function(x, y):
        # The operand of the first one is a view with other strides: Inductor of PyTorch 2.8, which has it then, waits too late.
        given = (x * 2).t() if VERSION >= (2, 9) else (x * 2).t().contiguous()
        summed = funcol.all_reduce(given, "sum", dist.group.WORLD)
        begun = funcol.all_reduce(y.contiguous(), "sum", dist.group.WORLD)
        normed = norm(summed + y)
        between = (y @ y.t()).relu() + 1
        return funcol.all_reduce(normed + 1, "sum", dist.group.WORLD) * 2, between, begun

    torch.manual_seed(rank)
    x, y = torch.randn(32, 4), torch.randn(4, 32)
    with torch.no_grad():
        found, codes = run_and_get_code(torch.compile(function), x, y)
        for one, other in zip(found, function(x, y)):
            close(one, other)
    code = "\n".join(codes)
    assert "torch.ops.symmc.called_start(" in code and "torch.ops.symmc.called_wait(" in code, code
    for name in ("planned", "start", "wait"):
        assert f"symmc.{name}.default(" not in code, code


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Calls(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()

    def test_run_no_function_of_python_for_each_input(self):
        def counts(inputs):
            given = [torch.randn(3) for _ in range(inputs)]
            (made,) = made_of(lambda *all: torch.cat(all), *given)
            made(list(given))
            count = called(lambda: made(list(given)))
            torch._dynamo.reset()
            return count

        few, many = counts(4), counts(104)
        if HAS_TABLE:
            self.assertEqual(few, many)
        else:
            # Two questions for each tensor.
            self.assertLessEqual(many - few, 2 * 100)

    def test_bind_what_lies_elsewhere_than_at_the_last_launch(self):
        session = session_of('program "p" ranks 1\narg %x: f32[4]\n%y: f32[4] = add %x, %x\nreturn %y\n')
        first, other, found = torch.ones(4), torch.full((4,), 3.0), torch.empty(4)
        session.launch((first,), [found], None)
        self.assertEqual([2.0] * 4, found.tolist())
        session.bind("x", other)
        session.launch((first,), [found], None)
        self.assertEqual([2.0] * 4, found.tolist())
        session.unbind("x")
        session.launch((other,), [found], None)
        self.assertEqual([6.0] * 4, found.tolist())
        session.launch((torch.nn.Parameter(first),), [found], None)
        self.assertEqual([2.0] * 4, found.tolist())
        session.close()

    def test_take_tensors_of_any_strides_and_refuse_others(self):
        session = session_of(
            'program "p" ranks 1\nsymbol n in 0..=8\narg %x: f32[n, 3]\narg %w: f32[n, 3]\n'
            "%y: f32[n, 3] = add %x, %w\nreturn %y\n"
        )
        session.set(n=2)
        x, found = torch.arange(6.0).reshape(2, 3), torch.empty(2, 3)
        self.assertEqual([1], session.launch((x, x.t().contiguous().t()), [found], None))
        self.assertIsNone(session.launch((x, x), [found], None))
        close(found, x + x)
        with self.assertRaisesRegex(symmc.InputError, "in: expected 2 tensors, found 1"):
            session.launch((x,), [found], None)
        with self.assertRaisesRegex(symmc.InputError, "out: expected 1 tensors, found 0"):
            session.launch((x, x), [], None)
        with self.assertRaisesRegex(symmc.InputError, r"out\.0: expected a contiguous tensor"):
            session.launch((x, x), [torch.empty(3, 2).t()], None)
        if HAS_TABLE:
            with self.assertRaisesRegex(symmc.InputError, r"in\.1: expected 24 bytes, found 12"):
                session.launch((x, x[:1]), [found], None)
            with self.assertRaisesRegex(symmc.InputError, r"in\.1: the tensor does not report its location: .*meta"):
                session.launch((x, x.to("meta")), [found], None)
        session.set(n=0)
        self.assertIsNone(session.launch((x[:0], x[:0]), [found[:0]], None))
        session.set(n=2)
        self.assertIsNone(session.launch((x, x), [found.zero_()], None))
        close(found, x + x)
        session.close()

    def test_change_inputs_of_other_strides_in_place(self):
        def function(state, x):
            state.add_(x)
            return state * 2

        run = compiled(function)
        base = torch.arange(12.0)
        for state in (base.clone().reshape(3, 4).t(), base.clone().reshape(4, 3), torch.zeros(5, 4, 3)[2]):
            x, expected = torch.randn(4, 3), state.clone()
            with torch.no_grad():
                close(run(state, x), function(expected, x))
            close(state, expected)

    def test_of_forms_have_a_session_on_each_device(self):
        from symmc.torch.inductor import operators

        class Made:
            world = operators._world.default_pg

        known, operators.PlannedForm = operators.PlannedForm, lambda _text: Made()
        try:
            host, gpu = torch.device("cpu"), torch.device("cuda", 0)
            self.assertIs(operators._find_planned("form", host), operators._find_planned("form", host))
            self.assertIsNot(operators._find_planned("form", host), operators._find_planned("form", gpu))
        finally:
            operators.PlannedForm = known
            del operators._planned["form"]

    def test_of_operators_go_past_the_dispatcher(self):
        on_ranks(operators_are_called_directly)


if __name__ == "__main__":
    unittest.main()
