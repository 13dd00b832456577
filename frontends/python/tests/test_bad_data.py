"""Data that a step refuses: the error is of the type that eager raises too, and the compiled function goes on."""

import unittest

from with_torch import HAS_TORCH, close, compiled, on_ranks

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    import symmc

    class Taken(torch.autograd.Function):
        """The sum over ranks, whose gradient is taken by rows that only the backward pass reads."""

        @staticmethod
        def forward(ctx, x, rows):
            ctx.save_for_backward(rows)
            return funcol.all_reduce(x, "sum", dist.group.WORLD)

        @staticmethod
        def backward(ctx, gradient):
            return funcol.all_reduce(gradient[ctx.saved_tensors[0]], "sum", dist.group.WORLD), None

    X = torch.arange(12.0).reshape(4, 3)
    GOOD, BAD = torch.tensor([0, 3, 1]), (torch.tensor([0, 4, 1]), torch.tensor([0, 1, -5]))
    COLUMN = torch.tensor([[0, 1, 2]])
    INTS = torch.tensor([7, -7, 5])
    ZERO = torch.tensor([1, 0, 2])
    ROWS = torch.ones(3, 3)

    CASES = {
        "x[i]": (lambda i: X[i], GOOD, BAD),
        "x[:, i]": (lambda i: X.t()[:, i], GOOD, BAD),
        "x[i, j]": (lambda i: X[i, COLUMN[0]], GOOD, BAD),
        "gather": (lambda i: torch.gather(X, 0, i[None]), GOOD, BAD),
        "take_along_dim": (lambda i: torch.take_along_dim(X, i[None], 0), GOOD, BAD),
        "index_select": (lambda i: X.index_select(0, i), GOOD, BAD),
        "take": (lambda i: X.take(i), GOOD, (torch.tensor([0, 12, 1]), torch.tensor([-13, 0, 1]))),
        "embedding": (lambda i: torch.nn.functional.embedding(i, X), GOOD, BAD),
        "scatter": (lambda i: X.scatter(0, i[None], ROWS), GOOD, BAD),
        "scatter value": (lambda i: X.scatter(0, i[None], 1.0), GOOD, BAD),
        "scatter_add": (lambda i: X.scatter_add(0, i[None], ROWS), GOOD, BAD),
        "scatter_reduce": (lambda i: X.scatter_reduce(0, i[None], ROWS, "amax"), GOOD, BAD),
        "index_add": (lambda i: X.index_add(0, i, ROWS), GOOD, BAD),
        "index_copy": (lambda i: X.index_copy(0, i, ROWS), GOOD, BAD),
        "index_put": (lambda i: X.index_put((i,), ROWS), GOOD, BAD),
        "index_put add": (lambda i: X.index_put((i,), ROWS, accumulate=True), GOOD, BAD),
        "index_fill": (lambda i: X.index_fill(0, i, 9.0), GOOD, BAD),
        "nll_loss": (lambda i: torch.nn.functional.nll_loss(X.t(), i), GOOD, (torch.tensor([0, 4, 1]),)),
        "//": (lambda i: INTS // i, GOOD + 1, (ZERO,)),
        "// reversed": (lambda i: 7 // i, GOOD + 1, (ZERO,)),
        "// i32": (lambda i: INTS.int() // i.int(), GOOD + 1, (ZERO,)),
        "%": (lambda i: INTS % i, GOOD + 1, (ZERO,)),
        "fmod": (lambda i: torch.fmod(INTS, i), GOOD + 1, (ZERO,)),
        "div floor": (lambda i: torch.div(INTS, i, rounding_mode="floor"), GOOD + 1, (ZERO,)),
        "div trunc": (lambda i: torch.div(INTS, i, rounding_mode="trunc"), GOOD + 1, (ZERO,)),
    }


def error_of(function, *given):
    try:
        function(*given)
    except Exception as error:
        return error
    return None


def bad_rows_of_ranks(rank):
    """A bad index of one rank is an error on all of them, before or after a collective, and all of them go on."""
    world, table = dist.group.WORLD, torch.arange(8.0).reshape(4, 2)

    def before(i, total):
        return funcol.all_reduce(table[i], "sum", world)

    def after(i, total):
        return table[i] + funcol.all_reduce(torch.ones(2, 2), "sum", world)

    def counts(i, total):
        # Changed in place only where the call succeeds.
        total.add_(funcol.all_reduce(table[i], "sum", world).sum())
        return total * 1

    for function in (before, after, counts):
        run = compiled(function, timeout=30)
        total, expected = torch.zeros(()), torch.zeros(())
        good = torch.tensor([1, 2])
        for culprit in (None, 0, None, 1, 1, None):
            i = torch.tensor([1, 9]) if rank == culprit else good
            if culprit is None:
                close(run(i, total), function(i, expected))
            else:
                error = error_of(run, i, total)
                assert isinstance(error, symmc.InputError) and isinstance(error, IndexError), repr(error)
                assert f"rank {culprit}" in str(error) and "the index 9 is outside axis 0" in str(error), error
                assert error.rank == culprit, error.rank
            close(total, expected)


def bad_rows_while_passes_share_a_session(rank):
    """A forward or a backward pass with bad data ends the session that both share; the next step opens another one for both."""

    def step(w, i, rows):
        return (Taken.apply(w[i] * 2, rows) ** 2).sum()

    good, bad = torch.tensor([1, 0, 2]), torch.tensor([1, 7, 2])
    run = compiled(step, timeout=30)
    for culprit, is_backward in [(None, False), (0, False), (None, False), (1, True), (0, True), (None, False)]:
        leaves = [torch.arange(6.0).reshape(3, 2).requires_grad_() for _ in range(2)]
        given = [(bad if culprit == rank and wrong else good).clone() for wrong in (not is_backward, is_backward)]
        if culprit is None:
            for leaf, function in zip(leaves, (run, step)):
                function(leaf, *given).backward()
            close(leaves[0].grad, leaves[1].grad)
            continue
        error = error_of(lambda: run(leaves[0], *given).backward())
        assert isinstance(error, (IndexError, symmc.Error)) and "7" in str(error), repr(error)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class BadData(unittest.TestCase):
    def test_errors_are_of_the_types_of_eager_and_the_next_call_runs(self):
        for name, (function, good, bad) in CASES.items():
            with self.subTest(name):
                # A function that closes over the case has one graph for all of its data.
                run = compiled(lambda i, function=function: function(i))
                for given in (good, *bad, good):
                    expected = error_of(function, given)
                    if expected is None:
                        torch.testing.assert_close(run(given), function(given))
                        continue
                    found = error_of(run, given)
                    self.assertIsInstance(found, type(expected), (name, found))
                    self.assertIsInstance(found, symmc.InputError, (name, found))

    def test_one_rank_with_bad_data(self):
        on_ranks([bad_rows_of_ranks, bad_rows_while_passes_share_a_session])


if __name__ == "__main__":
    unittest.main()
