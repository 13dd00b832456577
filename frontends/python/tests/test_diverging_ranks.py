"""Ranks that call one compiled function with sizes, orders or graphs of their own: all run, or all raise the same error."""

import unittest
import warnings

from with_torch import HAS_TORCH, close, compiled, on_ranks

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    import symmc
    from symmc.torch.partition import unsupported


def rows_of(step, rank, ranks):
    """How many rows a rank sends to each: others in every step, also none, and now and then the same on all ranks."""
    if step % 4 == 3:
        return [2] * ranks
    return [0 if rank == 1 and step == 2 else (rank * 5 + peer * 3 + step * 7) % 4 for peer in range(ranks)]


def exchange(rank):
    """A mixture of experts without dropped tokens: each call has other numbers of rows on each rank."""
    ranks, world = dist.get_world_size(), dist.group.WORLD

    def function(x, received, sent):
        got = funcol.all_to_all_single_autograd(x * 2, received, sent, world)
        return got + 1, funcol.all_reduce(x.detach().sum(), "sum", world)

    for dynamic in (None, True):
        torch._dynamo.reset()
        run = torch.compile(function, backend="symmc", dynamic=dynamic, options={"fallback": "eager", "timeout": 60})
        for step in range(7):
            sent = rows_of(step, rank, ranks)
            received = [rows_of(step, peer, ranks)[rank] for peer in range(ranks)]
            x = torch.randn(sum(sent), 3, requires_grad=step % 2 == 1)
            found, expected = run(x, received, sent), function(x, received, sent)
            for one, other in zip(found, expected):
                close(one, other)
            if x.requires_grad:
                weight = torch.randn_like(found[0])
                close(*[torch.autograd.grad((one[0] * weight).sum(), x)[0] for one in (found, expected)])


def compiles_alone(rank):
    """One rank compiles anew for a reason of its own, in a graph whose sizes are the same on all ranks."""

    def function(x, flag):
        y = x * 2 if flag else x + x
        return funcol.all_reduce(y, "sum", dist.group.WORLD) + 1

    run, x = compiled(function, fallback="eager", timeout=60), torch.randn(4, 3)
    for flag in (True, rank == 0, True, rank != 0, False):
        close(run(x, flag), function(x, flag))
    strict = compiled(function, timeout=60)
    close(strict(x, True), function(x, True))
    error = error_of(strict, x, rank == 0)
    assert isinstance(error, symmc.DisagreementError) and "the graphs of ranks differ" in str(error), repr(error)
    close(strict(x, True), function(x, True))
    # A rank that compiles the same anew runs it in a plan again.
    if rank == 0:
        torch._dynamo.reset()
    close(strict(x, True), function(x, True))


def error_of(function, *given):
    try:
        function(*given)
    except Exception as error:
        return error
    return None


def collectives_that_do_not_fit(rank):
    """All ranks raise the same, and go on; gloo would end their processes."""
    ranks, world = dist.get_world_size(), dist.group.WORLD
    last = rank == ranks - 1

    def exchanged(x):
        rows = x.shape[0] // ranks
        return funcol.all_to_all_single(x, [rows] * ranks, [rows] * ranks, world)

    cases = {
        "all_reduce": lambda x: funcol.all_reduce(x * 2, "sum", world),
        "all_gather_into_tensor": lambda x: funcol.all_gather_tensor(x * 2, 0, world),
        "reduce_scatter_tensor": lambda x: funcol.reduce_scatter_tensor(x * 2, "sum", 0, world),
        "all_to_all_single": exchanged,
        "broadcast": lambda x: funcol.broadcast(x * 2, 0, world),
    }
    for name, function in cases.items():
        for dynamic, fallback in ((True, "eager"), *([(False, "error")] if name == "all_reduce" else [])):
            run = compiled(function, dynamic=dynamic, fallback=fallback, timeout=60)
            for rows in (2 + last, 2, 2 + last):
                x = torch.randn(ranks * rows, 3)
                error = error_of(run, x)
                told = [None] * ranks
                dist.all_gather_object(told, (rows, None if error is None else str(error)))
                assert len({text for _, text in told}) == 1, told
                if len({count for count, _ in told}) == 1:
                    close(run(x), function(x))
                else:
                    assert isinstance(error, symmc.DisagreementError) and name in str(error), (name, dynamic, repr(error))
    # The operator of a reduction, and the number of collectives.
    kinds = compiled(lambda x: funcol.all_reduce(x, "sum" if last else "max", world), fallback="eager", timeout=60)
    error = error_of(kinds, torch.ones(3))
    assert isinstance(error, symmc.DisagreementError) and "max" in str(error) and "sum" in str(error), repr(error)


def sizes_from_data(rank):
    """Results whose sizes are data stay out of the plan, with what touches them; everything else stays in it. Results of fixed extents,
    between which sizes are data, run as a plan."""
    ranks, world = dist.get_world_size(), dist.group.WORLD

    def function(x, rows):
        got = funcol.all_to_all_single(rows, None, None, world)
        sent, received = rows.tolist(), got.tolist()
        for count in sent + received:
            torch._check_is_size(count)
        y = funcol.all_to_all_single(x, received, sent, world) * 2
        back = funcol.all_to_all_single(y, sent, received, world)
        return back, got, funcol.all_reduce(x.sum(0), "sum", world), y

    rows = torch.tensor([2 + (rank == peer) for peer in range(ranks)])
    x = torch.randn(int(rows.sum()), 3)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = compiled(lambda x, rows: function(x, rows)[:3], timeout=60)
        for found, expected in zip(run(x, rows), function(x, rows)):
            close(found, expected)
        unsupported._warned.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = compiled(function, fallback="eager", timeout=60)
            for _ in range(2):
                for found, expected in zip(run(x, rows), function(x, rows)):
                    close(found, expected)
        said = "".join(str(warning.message) for warning in caught if "symmc leaves" in str(warning.message))
        assert "a size depends on data" in said and "all_to_all_single" in said and "all_reduce" not in said, said
        error = str(error_of(compiled(function, timeout=60), x, rows))
        assert "depends on data" in error and "test_diverging_ranks.py" in error and "as an argument" in error, error


def orders_of_groups(rank):
    """Independent collectives on both axes of a mesh, which odd ranks call in the other order."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    a, b = mesh.get_group("a"), mesh.get_group("b")

    def function(x):
        if rank % 2:
            z = funcol.all_reduce(x + 1, "sum", b)
            y = funcol.all_to_all_single(x * 2, None, None, a)
        else:
            y = funcol.all_to_all_single(x * 2, None, None, a)
            z = funcol.all_reduce(x + 1, "sum", b)
        return y - 1, z * 3

    x = torch.arange(8.0) + 10 * rank
    run = compiled(function)
    for _ in range(2):
        for found, expected in zip(run(x), function(x)):
            close(found, expected)

    # Groups that divide the ranks differently.
    uneven = [dist.new_group([0]), dist.new_group([1, 2, 3])][min(rank, 1)]

    def mixed(x):
        return funcol.all_reduce(funcol.all_reduce(x, "sum", uneven) + 1, "sum", dist.group.WORLD)

    close(compiled(mixed, fallback="eager")(x), mixed(x))
    error = str(error_of(compiled(mixed), x))
    assert "the process groups do not partition the ranks in the same way" in error and "[1, 2, 3]" in error, error


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class DivergingRanks(unittest.TestCase):
    def test_sizes_graphs_and_collectives_of_ranks(self):
        on_ranks([exchange, compiles_alone, collectives_that_do_not_fit, sizes_from_data], 3)

    def test_orders_of_groups(self):
        on_ranks(orders_of_groups, 4)


if __name__ == "__main__":
    unittest.main()
