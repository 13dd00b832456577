"""Operators in f16 and bf16 against eager: a sample of the calls of ``tests/coverage/narrow.py``, which runs all of them, and of the functions
of ``tests/coverage/random_functions.py``."""

import contextlib
import importlib.util
import io
import pathlib
import sys
import unittest

HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("expecttest") is not None
HAS_ONNX = importlib.util.find_spec("onnx") is not None

COVERAGE = pathlib.Path(__file__).resolve().parents[3] / "tests" / "coverage"

TORCH = [
    # Rules with several ops: norms, moments, interpolation, activations, logarithms.
    "^foreach_norm$", "^clip_grad_norm$", "^batch_norm_evaluation$", "^lerp$", "^hardswish$", r"^nn\.functional\.hardswish$",
    r"^nn\.functional\.glu$", "^std$", "^log2$", "^log1p$", "^sinh$", r"^nn\.functional\.elu$",
    # Definitions in Python.
    "^hypot$", "^asinh$", "^asinh_large$", "^cdist$",
    # Biases that cancel products, and operands that are left out.
    "^cancelling_linear$", "^cancelling_conv1d$", "^cancelling_addmm_scaled$", "^cancelling_baddbmm$", "^addmm_beta_0$",
]  # fmt: skip
ONNX = ["^reduce_l2_default", "^reduce_log_sum_default$", "^l2normalization_axis_0$", "^hardswish$", "^mish$", "^selu_default$", "^softplus$"]


def outcome(script, *words):
    """The exit code and the output of a sweep."""
    sys.path.insert(0, str(COVERAGE))
    try:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            code = importlib.import_module(script).main([*words])
    finally:
        sys.path.remove(str(COVERAGE))
    return code, shown.getvalue()


@unittest.skipUnless(HAS_TORCH and COVERAGE.is_dir(), "PyTorch with its samples, or the folder tests/coverage, is not there")
class Narrow(unittest.TestCase):
    def expect_none_wrong(self, *words):
        code, shown = outcome("narrow", *words, "--jobs", "1", "--limit", "1", "--draws", "6")
        self.assertEqual(code, 0, shown)
        self.assertRegex(shown, r"(?m)^\w+ \w+: ok [1-9]", shown)

    def test_compiled_functions_are_as_close_as_eager(self):
        self.expect_none_wrong("--door", "compile", *TORCH)

    def test_exported_programs_are_as_close_as_eager(self):
        self.expect_none_wrong("--door", "exported", *TORCH)

    @unittest.skipUnless(HAS_ONNX, "onnx is not installed")
    def test_onnx_models_are_as_close_as_one_rounding(self):
        self.expect_none_wrong("--door", "onnx", *ONNX)

    def test_random_functions_are_right(self):
        code, shown = outcome("random_functions", "--seed", "20000", "--count", "24")
        self.assertEqual(code, 0, shown)
        self.assertRegex(shown, "^ok 24,", shown)


if __name__ == "__main__":
    unittest.main()
