"""The backend of ``torch.compile`` on several ranks, which are processes of a gloo group."""

import gc
import os
import tempfile
import time
import unittest
import warnings
from unittest import mock

from with_torch import HAS_TORCH, close, compiled, gradients, groups_anew, on_ranks, same_gradients

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    import symmc

    class Gathered(torch.autograd.Function):
        """A shard of a weight, whole; its gradient is summed over ranks and divided among them."""

        @staticmethod
        def forward(ctx, shard):
            return funcol.all_gather_tensor(shard, 0, dist.group.WORLD)

        @staticmethod
        def backward(ctx, gradient):
            return funcol.reduce_scatter_tensor(gradient, "sum", 0, dist.group.WORLD)

    class Replicated(torch.autograd.Function):
        """A weight that all ranks have; its gradient is their mean."""

        @staticmethod
        def forward(ctx, weight):
            return weight.view_as(weight)

        @staticmethod
        def backward(ctx, gradient):
            return funcol.all_reduce(gradient, "avg", dist.group.WORLD)


def sums(rank):
    def function(x, scale):
        return funcol.all_reduce(x * scale, "sum", dist.group.WORLD) + 1

    run = compiled(function, dynamic=True)
    for n in (5, 2, 100, 7):
        torch.manual_seed(rank + n)
        x = torch.randn(n, 16)
        close(run(x, torch.tensor(2.0)), function(x, torch.tensor(2.0)))

    def divided(x, y, world=dist.group.WORLD, mean="avg"):
        rows, columns = funcol.reduce_scatter_tensor(x, mean, 0, world), funcol.reduce_scatter_tensor(y, "sum", 1, world)
        return rows, columns, funcol.all_to_all_single(x, None, None, world), funcol.all_gather_tensor(columns, 1, world)

    run = compiled(divided, dynamic=True, buckets=[16, 64])
    for n in (6, 2, 100, 4):
        x, y = torch.randn(n, 3), torch.randn(n + 1, 2 * n)
        # A mean by gloo is a sum in PyTorch 2.8.
        rows, *others = divided(x, y, mean="sum")
        for found, expected in zip(run(x, y), [rows / dist.get_world_size(), *others]):
            close(found, expected)


def fsdp_like(rank):
    def step(w1, w2, x):
        y = torch.relu(x @ Gathered.apply(w1).t()) @ Gathered.apply(w2).t()
        return (y * y).mean()

    torch.manual_seed(rank)
    same_gradients(step, [torch.randn(16, 32), torch.randn(8, 32)], torch.randn(5, 32))


def ddp_like(rank):
    def step(w1, b1, w2, x):
        h = torch.nn.functional.linear(x, Replicated.apply(w1), Replicated.apply(b1))
        return torch.nn.functional.cross_entropy(torch.nn.functional.gelu(h) @ Replicated.apply(w2), torch.arange(5))

    torch.manual_seed(0)
    weights = [torch.randn(64, 32), torch.randn(64), torch.randn(64, 10)]
    torch.manual_seed(rank)
    same_gradients(step, weights, torch.randn(5, 32))


def options_of_collectives(rank):
    """Options that choose how collectives run, on arguments that are read, and on one that is changed in place."""

    def function(w, x):
        total = funcol.all_reduce(w, "sum", dist.group.WORLD)
        w.add_(1)
        return total + funcol.all_reduce(w, "sum", dist.group.WORLD), funcol.all_gather_tensor(x, 0, dist.group.WORLD)

    for options in [
        {"variants": []},
        {"variants": "plain", "bind": True},
        {"variants": "one_shot,pull"},
        {"variants": ["pull"], "bind": "arg1_1"},
        {"order": "lpmf", "bind": True},
    ]:
        torch.manual_seed(rank)
        w, x = torch.randn(64, 64), torch.randn(5, 64)
        other = w.clone()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.txt")
            run = compiled(function, machine="h200x2", report=path, **options)
            for _ in range(3):
                for found, wanted in zip(run(w, x), function(other, x)):
                    close(found, wanted)
                close(w, other)
            with open(path) as file:
                report = file.read()
        if options.get("variants") in ([], "plain"):
            chosen = [line.split("KiB")[1].split()[0] for line in report.splitlines() if line.startswith("  %all_")]
            assert "plain" in chosen and set(chosen) <= {"plain", "absorbed"}, report
        if options.get("bind") == "arg1_1":
            assert "bound input 1" in report and "as an operand of %all_gather" not in report, report


def shared_arenas(rank):
    """The forward and the backward pass of a graph take turns in one session, also when sizes outgrow their plans."""
    import symmc.torch
    from symmc.torch.runtime import arenas

    def step(shards, x):
        for shard in shards:
            x = torch.tanh(x @ Gathered.apply(shard * 2))
        return (x * x).mean()

    torch._dynamo.reset()
    gc.collect()
    opened, open_session = [], arenas.Arenas.open

    def recorded(self, owner, plan, *others):
        opened.append((plan, open_session(self, owner, plan, *others)))
        return opened[-1][1]

    torch.manual_seed(rank)
    # Some dynamic training graphs do not pass PyTorch 2.8, where each size is compiled by itself.
    dynamic = not torch.__version__.startswith("2.8.")
    shards = [torch.randn(32, 64) / 8 for _ in range(3)]
    with mock.patch.object(arenas.Arenas, "open", recorded):
        run = compiled(step, machine="h200x2", variants="pull", dynamic=dynamic)
        for rows in (5, 300, 7):
            x, results = torch.randn(rows, 64), []
            for function in (run, step):
                leaves = [shard.clone().requires_grad_() for shard in shards]
                loss = function(leaves, x)
                loss.backward()
                results.append([loss.detach(), *(leaf.grad for leaf in leaves)])
            for found, expected in zip(*results):
                close(found, expected, 1e-5)
    assert len(opened) > 2 and len({id(session) for _, session in opened}) == len(opened), opened
    # The last forward and backward programs, in one session.
    (forward, session), (backward, other) = opened[-2:]
    memory, own, total = session.memory(), [forward.memory(), backward.memory()], symmc.torch.memory()
    assert memory == other.memory() and all(memory[part] <= total[part] for part in memory), (memory, total)
    assert memory["ordinary"] == max(plan["ordinary"] for plan in own), (memory, own)
    most = max(plan.memory()["symmetric"] for plan, _ in opened)
    assert 0 < memory["symmetric"] <= most + 4096 < sum(plan["symmetric"] for plan in own), (memory, own)


def two_groups(rank):
    """Four ranks in a mesh of two by two: sums over one axis, then the other."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def function(x):
        y = funcol.all_reduce(x * 2, "sum", (mesh, 1))
        return funcol.all_gather_tensor(y, 0, (mesh, 0))

    run = compiled(function)
    x = torch.arange(8.0).reshape(4, 2) + rank
    close(run(x), function(x))


def subgroup(rank):
    """Only the ranks of a group compile what uses it."""
    groups = [dist.new_group([0, 2]), dist.new_group([1])]
    if rank == 1:
        return

    def function(x):
        return funcol.all_reduce(x, "sum", groups[0])

    x = torch.full((4,), float(rank))
    close(compiled(function)(x), torch.full((4,), 2.0))


def parts_by_rank(rank):
    """Each rank takes its own part of what all have."""

    def function(x, w):
        mine = w.split(3)[rank] * x.sum()
        other = funcol.all_gather_tensor(torch.cat([x, x * 2], 1).chunk(2, 1)[1 - rank].contiguous(), 1, dist.group.WORLD)
        return funcol.all_reduce(mine, "sum", dist.group.WORLD), other

    run = compiled(function, dynamic=True)
    for rows in (4, 10, 100):
        x, w = torch.randn(rows, 2 * rows), torch.randn(6, 2)
        torch._dynamo.mark_static(w)
        for found, expected in zip(run(x, w), function(x, w)):
            close(found, expected, 1e-3)

    def sliced(x):
        # One row may be left over.
        count, me = x.shape[0] // 2, dist.get_rank()
        parts = [x[me * count : (me + 1) * count], x.narrow(0, (1 - me) * count, count), x.view(-1, 2, 2).unbind(1)[me]]
        return [funcol.all_gather_tensor(part * 2, 0, dist.group.WORLD) for part in parts]

    run = compiled(sliced, dynamic=True)
    for rows in (4, 10, 7, 100):
        for found, expected in zip(run(torch.ones(rows, 4) * rows), sliced(torch.ones(rows, 4) * rows)):
            close(found, expected)


def sizes_of_ranks(rank):
    """If ranks have different sizes, the fallback runs the collectives, and each rank has programs for its sizes."""

    def step(w, x):
        return (torch.relu(x @ Gathered.apply(w).t()) ** 2).mean()

    for dynamic in (True, None):
        run = compiled(step, dynamic=dynamic, fallback="eager", timeout=20)
        torch.manual_seed(rank)
        for rows in ((5, 6), (7, 5), (9, 40)):
            w, x = torch.randn(16, 32, requires_grad=True), torch.randn(rows[rank], 32)
            close(*[torch.autograd.grad(function(w, x), w)[0] for function in (run, step)])
    try:
        compiled(step, dynamic=True, timeout=20)(torch.randn(16, 32), torch.randn(3 + rank, 32))
    except Exception as error:
        assert "expected one size on all ranks" in str(error), error
    else:
        raise AssertionError("sizes that differ became one program")


def meshes(rank):
    """Results that are no tensors: the mesh of a DTensor, where it is not the process's first."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    for _ in range(2):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.arange(24.0).view(4, 6), mesh, [Shard(0)])

        def function(x):
            return x.redistribute(placements=[Shard(1)]) + 1, x.sum(), x * 2

        for found, expected in zip(compiled(function)(x), function(x)):
            close(found.full_tensor(), expected.full_tensor())
            assert found.placements == expected.placements and found.device_mesh == mesh


def process_group_as_group(rank):
    text = 'program "sum" ranks 2\ngroup @all world\narg %x: f32[4]\n%y: f32[4] = all_reduce %x op=sum group=@all\nreturn %y\n'
    with symmc.Session(symmc.compile(symmc.from_text(text)), dist.group.WORLD) as session:
        x, y = torch.full((4,), rank + 1.0), torch.zeros(4)
        session.bind("x", x)
        session.bind("out.0", y)
        session.run()
        close(y, torch.full((4,), 3.0))


def groups_of_several_graphs(rank):
    """Ranks that are in some graphs only, before and after process groups are made anew."""
    for _ in range(2):
        pair = dist.new_group([0, 1])
        if rank < 2:
            close(compiled(lambda x: funcol.all_reduce(x, "sum", pair))(torch.ones(4)), torch.full((4,), 2.0))
        everyone = compiled(lambda x: funcol.all_reduce(x * 2, "sum", dist.group.WORLD))
        close(everyone(torch.ones(4)), torch.full((4,), 6.0))
        groups_anew()


def different_graphs(rank):
    """Graphs that are no one program are refused on all ranks, and those of sizes that do not fit."""

    def function(x):
        y = x * 2 if rank == 0 else x.sum(0).expand(x.shape) + x.relu()
        return funcol.all_reduce(y, "sum", dist.group.WORLD)

    try:
        compiled(function, timeout=5)(torch.ones(4, 4))
    except Exception as error:
        assert "rank" in str(error), error
    else:
        raise AssertionError("two graphs ran as one program")
    # Others may run the collectives, so that each rank has programs of its own.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run, x = compiled(function, fallback="eager"), torch.randn(4, 4)
        for _ in range(2):
            close(run(x), function(x))
    assert any("the graphs of ranks differ" in str(warning.message) for warning in caught), caught

    def whole(x):
        # An operator that symmc does not know between collectives, which stay in its programs.
        y = torch.linalg.inv(funcol.all_reduce(x, "sum", dist.group.WORLD) + torch.eye(4) * 9)
        return funcol.all_gather_tensor(y @ x, 0, dist.group.WORLD) + 1

    close(compiled(whole, fallback="eager")(x), whole(x))
    run = compiled(lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD), timeout=3, dynamic=True)
    close(run(torch.ones(3, 4)), torch.full((3, 4), 2.0))
    try:
        run(torch.ones(100 if rank == 0 else 5, 4))
    except symmc.Error as error:
        assert "rank" in str(error), error
    else:
        raise AssertionError("sizes that differ were summed")


def refused_on_one_rank(rank):
    """If the importer refuses the graph of one rank, all ranks leave theirs to the fallback, or name the operator."""

    def function(x):
        drawn = torch.rand_like(x) if rank == 1 else torch.ones_like(x)
        return funcol.all_reduce(x * 2 + drawn.clamp(5, 5), "sum", dist.group.WORLD) + 1

    x = torch.randn(4, 4)
    try:
        compiled(function, timeout=60)(x)
    except Exception as error:
        assert "rand" in str(error) and "random numbers are not supported" in str(error), error
        assert "rank 1" in str(error) or rank == 1, error
    else:
        raise AssertionError("a graph that draws random numbers ran")
    for told in left_to_others(function, x):
        assert any("the graphs of ranks differ" in text and "rand" in text for text in told), told


def refused_before_import(rank):
    """A refusal on one rank before its graph is imported reaches the other ranks, long before their timeout."""

    def function(x):
        odd = torch.ones(3, device="meta" if rank == 1 else "cpu") * 2
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, odd

    begun = time.monotonic()
    try:
        compiled(function, timeout=120)(torch.ones(4))
    except Exception as error:
        assert "expected tensors on one GPU or on the host, found tensors on meta" in str(error), error
        assert "rank 1" in str(error) or rank == 1, error
    else:
        raise AssertionError("a graph of two devices ran")
    assert time.monotonic() - begun < 60, "the other rank was waited for"
    run = compiled(function, fallback="eager", timeout=120)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            close(run(torch.ones(4))[0], torch.full((4,), 5.0))


def left_to_others(function, *inputs):
    """Warnings about a function whose parts run in each fallback in turn. Its results are those of eager."""
    for fallback in ("eager", "inductor"):
        # Each operator is named once, with its line.
        symmc.torch.partition.unsupported._warned.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = compiled(function, fallback=fallback, timeout=60)
            for _ in range(2):
                found, expected = run(*inputs), function(*inputs)
                for one, other in zip(*map(torch.utils._pytree.tree_leaves, (found, expected))):
                    close(one, other)
        yield [str(warning.message) for warning in caught]


def uneven_pieces(rank):
    """Pieces that differ between ranks are exchanged where each has as many rows; others are refused by name and go to others."""
    world, x = dist.group.WORLD, torch.randn(6) + rank

    def function(x):
        total = funcol.all_reduce(x, "sum", world)
        swapped = funcol.permute_tensor(x * 2, [1, 0], world)
        return swapped + total, funcol.all_to_all_single(x, [[1, 5], [5, 1]][rank], [[1, 5], [5, 1]][rank], world) + 1

    for dynamic in (None, False):
        for one, other in zip(compiled(function, timeout=60, dynamic=dynamic)(x), function(x)):
            close(one, other)
    run = compiled(lambda x: funcol.permute_tensor(x * 2, [1, 0], world), timeout=60, dynamic=True)
    for rows in (5, 2, 100):
        close(run(torch.full((rows,), rank + 1.0)), torch.full((rows,), 4.0 - 2 * rank))

    def function(x):
        total = funcol.all_reduce(x, "sum", world)
        return total, funcol.all_to_all_single(x, [rank + 1] * 2, [1, 2], world)[0]

    try:
        compiled(function, timeout=60)(x[:3])
    except Exception as error:
        assert "all_to_all_single" in str(error) and "split_sizes" in str(error), error
    else:
        raise AssertionError("pieces of other numbers on each rank became one program")
    for told in left_to_others(function, x[:3]):
        assert any("all_to_all_single" in text for text in told) and "all_reduce" not in "".join(told), told


def different_constants(rank):
    """Graphs of ranks that differ in a number are one program."""
    factor = float(rank + 1)

    def function(x):
        return funcol.all_reduce(x * factor, "sum", dist.group.WORLD)

    close(compiled(function)(torch.ones(4)), torch.full((4,), 3.0))


def mixture(x, router, up, down):
    """A mixture whose experts are divided among the ranks: tokens go to the ranks of their experts, and back, in numbers that are data."""
    ranks, local, group = dist.get_world_size(), up.shape[0], dist.group.WORLD
    weights, which = (x @ router).softmax(-1).topk(2, dim=-1)
    order = torch.argsort(which.view(-1), stable=True)
    sent = torch.histc(which.view(-1).float(), bins=ranks * local, min=0, max=ranks * local - 1).long()
    received = funcol.wait_tensor(funcol.all_to_all_single(sent, None, None, group)).view(ranks, local)
    sent_sizes, received_sizes = sent.view(ranks, local).sum(1).tolist(), received.sum(1).tolist()
    rows = funcol.all_to_all_single_autograd(x[order // 2], received_sizes, sent_sizes, group)
    experts = torch.repeat_interleave(torch.arange(local).repeat(ranks), received.view(-1), output_size=rows.shape[0])
    by_expert = torch.argsort(experts, stable=True)
    ends = received.sum(0).cumsum(0).to(torch.int32)
    hidden = torch.nn.functional.silu(torch._grouped_mm(rows[by_expert], up, offs=ends))
    out = torch._grouped_mm(hidden, down, offs=ends)
    out = torch.zeros_like(out).index_copy(0, by_expert, out)
    back = funcol.all_to_all_single_autograd(out, sent_sizes, received_sizes, group)
    weighted = back * weights.view(-1)[order].unsqueeze(1)
    return torch.zeros_like(x).scatter_add(0, (order // 2).unsqueeze(1).expand(-1, x.shape[1]), weighted)


def training_of_divided_experts(rank):
    """Gradients of a mixture. What the forward pass saves has as many rows as the ranks send to this one."""
    torch.manual_seed(0)
    router, up, down = torch.randn(16, 4), torch.randn(4, 16, 8) * 0.3, torch.randn(4, 8, 16) * 0.3
    own = slice(2 * rank, 2 * rank + 2)
    torch.manual_seed(rank + 1)
    x = torch.randn(12, 16)

    def loss(x, router, up, down):
        return (mixture(x, router, up, down) - 1).square().mean()

    with torch._dynamo.config.patch(capture_scalar_outputs=True), mock.patch("symmc.compile", wraps=symmc.compile) as planned:
        run = compiled(loss, dynamic=False)
        # All tokens to one rank, which receives more rows than in the call for which the graph was compiled.
        for pull in (0.0, 3.0, -3.0):
            pulled = router + torch.tensor([pull, pull, -pull, -pull]) * x.mean(0).sign().unsqueeze(1)
            parameters = [x, pulled, up[own], down[own]]
            (found_loss, found), (expected_loss, expected) = (gradients(one, parameters) for one in (run, loss))
            close(found_loss, expected_loss)
            for one, other in zip(found, expected):
                close(one, other)
        # The number of tokens of the second call becomes a symbol.
        run = compiled(loss)
        for tokens in (12, 9, 14):
            parameters = [torch.randn(tokens, 16), router, up[own], down[own]]
            (found_loss, found), (expected_loss, expected) = (gradients(one, parameters) for one in (run, loss))
            close(found_loss, expected_loss)
            for one, other in zip(found, expected):
                close(one, other)
    texts = [call.args[0].text() for call in planned.call_args_list]
    assert len(texts) > 1 and not any("accumulate=true" in text or "combine=sum" in text for text in texts), texts


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Ranks(unittest.TestCase):
    def test_sums_and_steps_of_training(self):
        # One job: what PyTorch takes to start is most of the time.
        on_ranks([sums, fsdp_like, ddp_like, process_group_as_group, different_constants, parts_by_rank, meshes, options_of_collectives, shared_arenas, training_of_divided_experts])

    def test_a_mesh_of_two_axes(self):
        on_ranks(two_groups, 4)

    def test_a_group_of_some_ranks(self):
        on_ranks(subgroup, 3)

    def test_graphs_that_differ_between_ranks_are_refused(self):
        on_ranks([different_graphs, sizes_of_ranks, refused_on_one_rank, refused_before_import, uneven_pieces])

    def test_ranks_are_in_some_graphs_only_and_groups_are_made_anew(self):
        on_ranks(groups_of_several_graphs, 3)


if __name__ == "__main__":
    unittest.main()
