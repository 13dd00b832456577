"""Runs the tests of this folder and lists those that are skipped.

Usage: ``run.py [--sample]``. The sample has a few minutes of tests, which reach each stage of ``torch.compile``. Skipped tests go into the
file that ``SYMMC_SKIPPED_TESTS`` names as well, as those in Rust do.
"""

import os
import pathlib
import sys
import unittest

FOLDER = pathlib.Path(__file__).parent

SAMPLE = [
    # Without PyTorch.
    "test_layout",
    "test_package",
    "test_stubs",
    "test_log",
    "test_arguments",
    # One rank: capture, legalise, partition, import, run.
    "test_writer",
    "test_with_torch",
    "test_calls.Calls.test_bind_what_lies_elsewhere_than_at_the_last_launch",
    "test_calls.Calls.test_change_inputs_of_other_strides_in_place",
    "test_calls.Calls.test_of_forms_have_a_session_on_each_device",
    "test_calls.Calls.test_run_no_function_of_python_for_each_input",
    "test_calls.Calls.test_take_tensors_of_any_strides_and_refuse_others",
    "test_meaning",
    # Casts, and roundings in f16 and bf16.
    "test_casts",
    "test_narrow",
    "test_op_definitions",
    # The pages of docs/ whose blocks are files and commands.
    "test_pages",
    # Several ranks, their faults and disagreements.
    "test_with_ranks",
    "test_bad_data",
    "test_one_rank_fails",
    "test_moe",
    # Inductor's graphs, with collectives by symmc.
    "test_with_inductor.Collectives.test_alone",
    "test_with_inductor.Collectives.test_of_every_kind",
    "test_with_inductor.Passes",
]


def main() -> int:
    """The exit code: 0 if no test failed."""
    sys.path.insert(0, str(FOLDER))
    loader = unittest.TestLoader()
    is_sample = sys.argv[1:] == ["--sample"]
    tests = loader.loadTestsFromNames(SAMPLE) if is_sample else loader.discover(str(FOLDER))
    result = unittest.TextTestRunner().run(tests)
    lines = [f"skipped: {test.id()}: {reason}\n" for test, reason in result.skipped]
    sys.stderr.writelines(lines)
    if path := os.environ.get("SYMMC_SKIPPED_TESTS"):
        with open(path, "a") as file:
            file.writelines(lines)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
