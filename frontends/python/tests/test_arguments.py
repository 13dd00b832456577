"""Wrong arguments, and tensors of any content through DLPack. Each is refused by its name."""

import ctypes
import pathlib
import tempfile
import unittest

import numpy as np

import symmc

SQUARE = """program "square" ranks 1
symbol n in 1..=64
arg %x: f32[n, 4]
%y: f32[n, 4] = mul %x, %x
return %y
"""

NAME = b"dltensor"

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Managed(ctypes.Structure):
    """A tensor as DLPack gives it; nothing frees it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


SUMS = """program "sums" ranks 2
group @g world
arg %x: f32[4096]
arg %y: f32[4096]
%a: f32[4096] = all_reduce %x op=sum group=@g
%b: f32[4096] = all_reduce %y op=sum group=@g
%c: f32[4096] = add %a, %b
return %c
"""


class Numerics(unittest.TestCase):
    """Sums of floats are added up in another order where a class allows that, and only there."""

    def test_two_reductions_become_one_where_sums_may_be_reassociated(self):
        absorbed = {}
        for numerics in (None, "exact", "narrow", "reassociate", "narrow, reassociate"):
            plan = symmc.compile(symmc.from_text(SUMS), numerics=numerics)
            absorbed[plan.numerics] = [choice.chosen for choice in plan.choices()].count("absorbed")
        # The second reduction is absorbed by the first.
        self.assertEqual(absorbed, {"exact": 0, "narrow": 0, "reassociate": 1, "reassociate,narrow": 1})

    def test_other_classes_are_refused(self):
        for found in ("fast", "", "exact,narrow", "strict"):
            with self.assertRaisesRegex(symmc.InputError, "numerics: .*found"):
                symmc.compile(symmc.from_text(SUMS), numerics=found)
        with self.assertRaisesRegex(symmc.InputError, "relaxed was replaced by classes"):
            symmc.compile(symmc.from_text(SUMS), numerics="relaxed")


class Exported:
    """A tensor of any content."""

    def __init__(self, data, shape, strides=None, dtype=(2, 32, 1)):
        def array(numbers):
            return None if numbers is None else (ctypes.c_int64 * max(len(numbers), 1))(*numbers)

        self.shape, self.strides = array(shape), array(strides)
        self.tensor = Managed(data, (1, 0), len(shape), *dtype, self.shape, self.strides, 0, None, None)

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_keywords):
        return new_capsule(ctypes.addressof(self.tensor), NAME, None)


def alone(text=SQUARE):
    return symmc.Session(symmc.compile(symmc.from_text(text)), symmc.Group.threads(1)[0])


class Arguments(unittest.TestCase):
    def test_numbers_are_refused_by_the_name_of_their_argument(self):
        program = symmc.from_text(SQUARE)
        plan, session = symmc.compile(program), alone()
        calls = {
            "ranks": [
                lambda n: symmc.open(__file__, ranks=n),
                lambda n: symmc.compile(program, ranks=n),
                symmc.Group.threads,
                lambda n: symmc.Group.bootstrap(0, n, list),
            ],
            "rank": [plan.memory, program.parameters, lambda n: symmc.Group.bootstrap(n, 2, list)],
            "symm_limit": [lambda n: symmc.compile(program, symm_limit=n)],
            "slack": [lambda n: symmc.compile(program, slack=float(min(n, -1)))],
            "memory_price": [lambda n: symmc.compile(program, memory_price=float(min(n, -1)))],
            "gpu": [lambda n: plan.memory(gpu=n), lambda n: symmc.Session(plan, gpu=n)],
            "timeout": [lambda n: session.wait(float(min(n, -1))), lambda n: symmc.Session(plan, timeout=float(min(n, -1)))],
            "n": [lambda n: session.set(n=n)],
        }
        for name, functions in calls.items():
            for k, function in enumerate(functions):
                for number in (-1, -(1 << 40), 1 << 80):
                    with self.subTest(name, call=k, number=number), self.assertRaises(symmc.InputError) as caught:
                        function(number)
                    self.assertRegex(str(caught.exception), rf"\b{name}\b.*found|serves {name}=")

    def test_things_of_other_types_are_told_what_is_expected(self):
        program = symmc.from_text(SQUARE)
        for function, text in [
            (lambda v: symmc.open(v), "paths: expected a path"),
            (lambda v: symmc.compile(program, bind=v), "bind: expected True, or names"),
            (lambda v: symmc.compile(program, variants=v), "variants: expected names of variants"),
            (lambda v: symmc.open(__file__, dims={"n": v}), "dims: expected a size, a pair"),
        ]:
            for value in (b"x", 1.5, {1: 2}, object()):
                with self.subTest(text, value=value), self.assertRaisesRegex(TypeError, f"{text}.*found {type(value).__name__}"):
                    function(value)
        plan = symmc.compile(program)
        for inputs in ({"x": 1}, [1], "x"):
            with self.subTest(inputs=inputs), self.assertRaisesRegex(symmc.InputError, "inputs: expected a list with a mapping"):
                symmc.run(plan, inputs)

    def test_slack_is_a_percentage(self):
        program = symmc.from_text(SQUARE)
        for percent in (0, 5, 100.0, 500):
            symmc.compile(program, slack=percent)
        with self.assertRaisesRegex(symmc.InputError, r"slack: expected a percentage, 0 or at least 1, found 0\.05: give 5 for 5 %"):
            symmc.compile(program, slack=0.05)

    def test_buckets_are_given_by_symbol_or_for_the_only_symbol(self):
        one = symmc.from_text(SQUARE)
        for buckets in ([8, 64], {"n": [8, 64]}):
            self.assertIn("buckets 2", repr(symmc.compile(one, buckets=buckets)))
        for value in ("8", 8, {"n": 8}, [None]):
            with self.subTest(value=value), self.assertRaisesRegex(TypeError, "buckets: expected lists of sizes by the names of symbols"):
                symmc.compile(one, buckets=value)
        two = symmc.from_text(SQUARE.replace("symbol n", "symbol m in 1..=64\nsymbol n").replace("[n, 4]", "[n, m]"))
        with self.assertRaisesRegex(symmc.InputError, r'the symbols m, n: expected lists of sizes by symbol, such as {"m": \[8, 64\]}'):
            symmc.compile(two, buckets=[8, 64])

    def test_groups_of_another_type_are_refused(self):
        for value in ({"3": "0,1;2,3"}, [[0, 1]], {"3": [0, 1]}, "3=0,1"):
            with self.subTest(value=value), self.assertRaisesRegex(TypeError, "groups: expected the lists of ranks.*found"):
                symmc.open(__file__, groups=value)

    def test_a_list_of_groups_is_no_group(self):
        plan = symmc.compile(symmc.from_text(SQUARE))
        with self.assertRaisesRegex(TypeError, "group: expected the group of one rank, found a list of 2"):
            symmc.Session(plan, symmc.Group.threads(2))

    def test_load_says_what_a_file_of_a_program_is(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, content, text in [
                ("model.pt2", b"PK\x03\x04", "model.pt2: this is a .pt2 archive; expected a plan"),
                ("model.onnx", b"\x08\x0a", "model.onnx: this is an ONNX model; expected a plan"),
                ("model.symm", SQUARE.encode(), "model.symm: this is a program as .symm text; expected a plan"),
            ]:
                path = pathlib.Path(folder, name)
                path.write_bytes(content)
                with self.assertRaisesRegex(symmc.InputError, text):
                    symmc.load(path)

    def test_only_public_names_are_listed(self):
        self.assertLessEqual(set(dir(symmc)), {*symmc.__all__, "torch"})
        self.assertLessEqual(set(symmc.__all__), set(dir(symmc)))

    def test_runs_without_sizes_name_the_symbols(self):
        with symmc.Session(symmc.compile(symmc.from_text(SQUARE)), symmc.Group.threads(1)[0]) as session:
            with self.assertRaisesRegex(symmc.InputError, "the sizes of the program are not set: set n"):
                session.run()

    def test_what_may_be_said_in_several_ways(self):
        program = symmc.from_text(SQUARE)
        for options in (
            {"bind": "x"}, {"bind": ["x"]}, {"bind": True}, {"machine": "host"}, {"variants": []}, {"variants": "pull, ll"},
            {"variants": ["pull"]}, {"order": "dfs-users"},
        ):  # fmt: skip
            self.assertEqual(symmc.compile(program, **options).ranks, 1)
        self.assertEqual(program.arguments, ["x"])
        for options, text in [
            ({"variants": "pull,pul"}, "variants: expected one of plain, .*found \"pul\""),
            ({"variants": ["two-shot"]}, "variants: expected .*found \"two-shot\""),
            ({"order": "fast"}, "order: expected one of chosen, lean.*found \"fast\""),
        ]:
            with self.assertRaisesRegex(symmc.InputError, text):
                symmc.compile(program, **options)
        with self.assertRaisesRegex(symmc.InputError, "there is no machine nowhere.json"):
            symmc.compile(program, machine=pathlib.Path("nowhere.json"))

    def test_notebooks_show_programs_by_their_text(self):
        self.assertIn("arg %x: f32[n, 4]", symmc.from_text(SQUARE)._repr_html_())


class Contents(unittest.TestCase):
    """Tensors of any content: what cannot be read is refused, and never touched."""

    def test_tensors_without_sense_are_refused_by_name(self):
        huge = 1 << 62
        cases = [
            (Exported(None, (2, 4)), "without"),
            (Exported(None, (huge, huge)), "extents"),
            (Exported(64, (huge, huge)), "extents"),
            (Exported(64, (-1, 4)), "extents"),
            (Exported(None, (0, huge, huge)), r"expected f32\[2, 4\]"),
            (Exported(64, (2, 4), (-4, 1)), "contiguous"),
            (Exported(64, (2, 4), (0, 1)), "contiguous"),
            (Exported(64, (2, 4), (1, 2)), "contiguous"),
            (Exported(64, (2, 4), None, (2, 32, 4)), "type"),
            (Exported(64, (2, 4), None, (9, 1, 0)), "type"),
            (Exported(64, ()), r"expected f32\[2, 4\]"),
        ]
        with alone() as session:
            session.set(n=2)
            for k, (tensor, text) in enumerate(cases):
                for take in (session.bind, session.write):
                    with self.subTest(k, take=take.__name__), self.assertRaisesRegex(symmc.InputError, f"x: .*{text}"):
                        take("x", tensor)

    def test_what_is_empty_needs_no_memory(self):
        with alone(SQUARE.replace("1..=64", "0..=64")) as session:
            session.set(n=0)
            session.write("x", Exported(None, (0, 4)))
            session.run()
            self.assertEqual(session.read("out.0").numpy().shape, (0, 4))

    def test_copies_that_do_not_fit_say_why(self):
        with alone() as session:
            session.set(n=2)
            # A copy of what nobody may write keeps the order of its axes.
            with self.assertRaisesRegex(symmc.InputError, "x: expected a contiguous"):
                session.write("x", np.broadcast_to(np.ones((1, 4), np.float32), (2, 4)))


class Views(unittest.TestCase):
    def test_views_stay_while_other_memory_is_bound_and_sizes_grow(self):
        with alone() as session:
            for n in (2, 50, 3, 64):
                session.set(n=n)
                session.bind("x", np.full((n, 4), 3, np.float32))
                session.run()
                view = session.view("out.0")
                session.bind("x", np.full((n, 4), 5, np.float32))
                np.testing.assert_array_equal(view.numpy(), np.full((n, 4), 9))

    def test_runs_that_never_began_leave_views_as_they_are(self):
        session = alone()
        session.set(n=2)
        session.write("x", np.ones((2, 4), np.float32))
        session.run()
        view = session.view("out.0")
        session.close()
        for call in (session.run, session.enqueue, lambda: session.launch((), [], None)):
            with self.assertRaisesRegex(symmc.InputError, "closed"):
                call()
        self.assertFalse(view.stale)
        np.testing.assert_array_equal(view.numpy(), np.ones((2, 4)))


if __name__ == "__main__":
    unittest.main()
