"""One rank fails in a call of a compiled function: the others raise at once, and the next calls run."""

import unittest

import inductor_faults
from inductor_faults import (
    counts_nested_graphs_apart,
    ends_calls_of_all_groups,
    fails_before_first_agreement,
    fails_beside_pytorch,
    fails_in_one_of_two_threads,
    fails_under_inductor,
    makes_same_calls_after_failure,
    notifies_ranks_of_lost_call,
    recovers_after_timeout,
    refuses_different_calls,
    runs_partitions_of_graphs,
)
from rank_faults import (
    RandomFaults,
    argument_without_memory,
    fails_when_sizes_change,
    fails_while_store_is_stopped,
    fails_with_odd_errors,
    one_rank_raises,
    operands_of_one_rank,
    random_faults,
)
from with_torch import HAS_TORCH, on_ranks


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class OneRankFails(unittest.TestCase):
    def test_reports_errors_at_each_place_to_all_ranks(self):
        on_ranks(one_rank_raises)

    def test_reports_errors_when_sizes_change(self):
        on_ranks(fails_when_sizes_change, 3)

    def test_makes_same_calls_after_failure_under_inductor(self):
        on_ranks([fails_under_inductor, makes_same_calls_after_failure, recovers_after_timeout, refuses_different_calls, fails_beside_pytorch])

    def test_ends_calls_of_all_groups(self):
        on_ranks([ends_calls_of_all_groups, fails_before_first_agreement], 4)

    def test_finds_calls_that_an_error_has_ended(self):
        functions = [notifies_ranks_of_lost_call, counts_nested_graphs_apart, runs_partitions_of_graphs, fails_in_one_of_two_threads]
        on_ranks(functions, 3)

    def test_notifies_ranks_while_store_is_stopped(self):
        on_ranks(fails_while_store_is_stopped, 3)

    def test_reports_reasons_that_are_not_utf_8(self):
        on_ranks(fails_with_odd_errors)

    def test_refuses_operands_of_one_rank_on_all_ranks(self):
        on_ranks([operands_of_one_rank, argument_without_memory])

    def test_recovers_after_faults_at_random_moments(self):
        # `rank_faults.py 100` does more trials.
        on_ranks(RandomFaults(random_faults, 6, 1), 3)

    def test_recovers_after_faults_at_random_moments_under_inductor(self):
        # `inductor_faults.py 100` does more trials.
        on_ranks(RandomFaults(inductor_faults.random_faults, 6, 1), 3)


if __name__ == "__main__":
    unittest.main()
