"""The backend of ``torch.compile``, where PyTorch is."""

import copy
import faulthandler
import gc
import importlib.util
import os
import socket
import tempfile
import threading
import time
import traceback
import unittest
import warnings
from unittest import mock

HAS_TORCH = importlib.util.find_spec("torch") is not None

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol
    import torch.multiprocessing as mp

    import symmc

    class Losses(torch.nn.Module):
        """A sum of losses."""

        def forward(self, x):
            F, y = torch.nn.functional, x.detach().sigmoid()
            labels = torch.tensor([1, -100, 3, 0, 7, 2])
            parts = F.mse_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y), F.binary_cross_entropy_with_logits(x, y)
            return sum(parts) + F.cross_entropy(x, labels, weight=torch.arange(1.0, 9.0), label_smoothing=0.1)

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


def compiled(function, **options):
    """A function under the backend, which leaves nothing to others unless it is asked to."""
    torch._dynamo.reset()
    dynamic = options.pop("dynamic", None)
    return torch.compile(function, backend="symmc", dynamic=dynamic, options={"fallback": "error", **options})


LIMIT = 900
"""No job takes longer, in seconds: ranks may have one processor together."""


def _of_rank(rank, ranks, port, functions, failures):
    # Where a rank is that does not end.
    faulthandler.dump_traceback_later(LIMIT - 30)
    warnings.filterwarnings("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        for function in functions:
            (globals()[function] if isinstance(function, str) else function)(rank)
            dist.barrier()
    except BaseException:
        failures.put(f"rank {rank}: {traceback.format_exc()}")
        raise SystemExit(1) from None
    finally:
        dist.destroy_process_group()


def on_ranks(function, ranks=2):
    """Runs a function, of this module by its name, or several behind each other, on ranks that are processes."""
    functions = function if isinstance(function, list) else [function]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    failures = context.SimpleQueue()
    arguments = [(rank, ranks, port, functions, failures) for rank in range(ranks)]
    processes = [context.Process(target=_of_rank, args=given) for given in arguments]
    [process.start() for process in processes]
    until = time.monotonic() + LIMIT
    [process.join(max(1.0, until - time.monotonic())) for process in processes]
    if any(process.exitcode != 0 for process in processes):
        [process.kill() for process in processes if process.is_alive()]
        raise AssertionError(failures.get() if not failures.empty() else "a rank did not end")


def close(found, expected, limit=1e-4):
    difference = (found - expected).abs().max().item() if found.numel() else 0.0
    if not difference <= limit:
        raise AssertionError(f"largest difference {difference}, allowed {limit}")


def gradients(function, parameters, *inputs):
    """The loss and the gradients of a function of parameters and inputs."""
    own = [p.detach().clone().requires_grad_() for p in parameters]
    loss = function(*own, *inputs)
    loss.backward()
    return loss.detach(), [p.grad for p in own]


def same_gradients(function, parameters, *inputs, limit=1e-4):
    run = compiled(function)
    for _ in range(2):
        loss, found = gradients(run, parameters, *inputs)
        expected_loss, expected = gradients(function, parameters, *inputs)
        close(loss, expected_loss, limit * max(1.0, expected_loss.abs().item()))
        for one, other in zip(found, expected):
            close(one, other, limit * max(1.0, other.abs().max().item()))


# What ranks do, by name.


def sums(rank):
    def function(x, scale):
        return funcol.all_reduce(x * scale, "sum", dist.group.WORLD) + 1

    run = compiled(function, dynamic=True)
    for n in (5, 2, 100, 7):
        torch.manual_seed(rank + n)
        x = torch.randn(n, 16)
        close(run(x, torch.tensor(2.0)), function(x, torch.tensor(2.0)))

    def divided(x, y, world=dist.group.WORLD):
        rows, columns = funcol.reduce_scatter_tensor(x, "avg", 0, world), funcol.reduce_scatter_tensor(y, "sum", 1, world)
        return rows, columns, funcol.all_to_all_single(x, None, None, world), funcol.all_gather_tensor(columns, 1, world)

    run = compiled(divided, dynamic=True, buckets=[16, 64])
    for n in (6, 2, 100, 4):
        x, y = torch.randn(n, 3), torch.randn(n + 1, 2 * n)
        for found, expected in zip(run(x, y), divided(x, y)):
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
        other = funcol.all_gather_tensor(torch.cat([x, x * 2], 1).chunk(2, 1)[1 - rank], 1, dist.group.WORLD)
        return funcol.all_reduce(mine, "sum", dist.group.WORLD), other

    run = compiled(function, dynamic=True)
    for rows in (4, 10, 100):
        x, w = torch.randn(rows, 2 * rows), torch.randn(6, 2)
        torch._dynamo.mark_static(w)
        for found, expected in zip(run(x, w), function(x, w)):
            close(found, expected, 1e-3)


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
        dist.barrier()
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
        dist.init_process_group("gloo")


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
    """Where the importer refuses the graph of one rank, all leave theirs to others together, or name the operator."""

    def function(x):
        drawn = torch.rand_like(x) if rank == 1 else torch.ones_like(x)
        return funcol.all_reduce(x * 2 + drawn.clamp(5, 5), "sum", dist.group.WORLD) + 1

    x = torch.randn(4, 4)
    try:
        compiled(function, timeout=60)(x)
    except Exception as error:
        assert "rand" in str(error) and "draws random numbers" in str(error), error
        assert "rank 1" in str(error) or rank == 1, error
    else:
        raise AssertionError("a graph that draws random numbers ran")
    for told in left_to_others(function, x):
        assert any("the graphs of ranks differ" in text and "rand" in text for text in told), told


def refused_before_import(rank):
    """What one rank refuses before its graph is imported, the others learn as well, long before their limit."""

    def function(x):
        odd = torch.ones(3, device="meta" if rank == 1 else "cpu") * 2
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, odd

    begun = time.monotonic()
    try:
        compiled(function, timeout=120)(torch.ones(4))
    except Exception as error:
        assert "tensors of one GPU, or of the host, found some of" in str(error), error
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
    """What is told of a function whose parts go to others, to each of them in turn; its results are those of eager."""
    for fallback in ("eager", "inductor"):
        # Each operator is named once, with its line.
        symmc.torch._cut._named.clear()
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


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Backend(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        torch.manual_seed(0)

    def test_a_model_and_its_gradients(self):
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4))
        other, x = copy.deepcopy(model), torch.randn(5, 8)
        compiled(model)(x).square().mean().backward()
        other(x).square().mean().backward()
        for one, two in zip(model.parameters(), other.parameters()):
            close(one.grad, two.grad, 1e-6)

    def test_weights_that_change_are_read_again(self):
        model, x = torch.nn.Linear(4, 4), torch.randn(3, 4)
        run = compiled(model)
        with torch.no_grad():
            for _ in range(3):
                close(run(x), model(x))
                model.weight.add_(1)
                model.bias.data = torch.randn(4)

    def test_inputs_are_changed_in_place(self):
        def function(cache, x):
            cache[:, 1:3] = x
            cache.mul_(2)
            return cache.sum(0)

        run = compiled(function)
        for layout in (lambda t: t, lambda t: t.t().contiguous().t()):
            cache, x = layout(torch.randn(2, 6)), torch.randn(2, 2)
            expected = cache.clone()
            address = cache.data_ptr()
            close(run(cache, x), function(expected, x), 1e-6)
            close(cache, expected, 1e-6)
            self.assertEqual(cache.data_ptr(), address)

    def test_outputs_of_every_kind(self):
        def function(x, n: int):
            y = x + 1
            return x, y, y, None, n, y.shape[0], y.t(), (x * n, [y.sum()])

        run = compiled(function, dynamic=True)
        for size in (4, 6):
            x = torch.randn(size, 3)
            found, expected = run(x, 3), function(x, 3)
            self.assertIs(found[0], x)
            self.assertEqual(found[3:6], expected[3:6])
            for one, two in [(found[1], expected[1]), (found[6], expected[6]), (found[7][1][0], expected[7][1][0])]:
                close(one, two, 1e-5)

    def test_results_outlive_later_calls(self):
        run = compiled(lambda x: x * 2)
        results = [run(torch.full((4,), float(i))) for i in range(5)]
        for i, result in enumerate(results):
            close(result, torch.full((4,), 2.0 * i))

    def test_sizes_up_to_any_and_empty(self):
        run = compiled(lambda x: (x * 2).sum(1), dynamic=True)
        for n in (3, 1000, 5, 20000, 2):
            x = torch.randn(n, 4)
            close(run(x), (x * 2).sum(1), 1e-5)

    def test_dtypes(self):
        def function(x):
            return (x * 3 - 1).abs()

        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32):
            x = (torch.randn(7, 5) * 4).to(dtype)
            close(compiled(function)(x).double(), function(x).double(), 1e-2)

    def test_unknown_operators_are_left_to_others_and_named_once(self):
        def function(x):
            y = torch.relu(x + 1)
            z = torch.linalg.qr(y @ y.t() + torch.eye(4))[1].abs()
            return (z * 2).sum() + y.mean()

        x = torch.randn(4, 4)
        with self.assertRaisesRegex(Exception, "linalg_qr"):
            compiled(function)(x)
        for fallback in ("eager", "inductor"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run = compiled(function, fallback=fallback)
                close(run(x), function(x))
                close(run(x), function(x))
            said = [str(w.message) for w in caught if "symmc leaves" in str(w.message)]
            self.assertEqual(len(said), int(fallback == "eager"), said)
            self.assertTrue(all("linalg_qr" in text and "test_with_torch.py" in text for text in said), said)

    def test_operators_become_what_pytorch_defines_them_by(self):
        nn, F = torch.nn, torch.nn.functional
        cases = {
            "batch norm in training": (nn.BatchNorm1d(8), (6, 8)),
            "batch norm in evaluation": (nn.BatchNorm1d(8).eval(), (6, 8)),
            "group norm": (nn.GroupNorm(2, 8), (3, 8, 5)),
            "a convolution": (nn.Conv2d(2, 4, 3, 2, 1, bias=False), (2, 2, 6, 5)),
            "patches": (nn.Conv2d(2, 4, 9, 9), (2, 2, 18, 18)),
            "a causal convolution by channel": (nn.Sequential(nn.ConstantPad1d((3, 0), 0.0), nn.Conv1d(4, 4, 4, groups=4)), (2, 4, 7)),
            "a transposed convolution": (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 5)),
            "pools": (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.AvgPool2d(2, 1, 1)), (2, 1, 8, 8)),
            "reflected padding": (nn.Conv1d(4, 2, 3, padding=2, padding_mode="reflect"), (2, 4, 7)),
            "interpolation": (nn.Sequential(nn.Conv2d(1, 2, 1), nn.Upsample(scale_factor=2, mode="bilinear")), (2, 1, 3, 4)),
            "losses": (Losses(), (6, 8)),
        }
        for name, (module, shape) in cases.items():
            with self.subTest(name):
                torch.manual_seed(3)
                x, other = torch.randn(shape), copy.deepcopy(module)
                # Of pictures, and of what is padded so, no gradient is wanted.
                one, two = (x.clone().requires_grad_(name not in ("patches", "reflected padding")) for _ in range(2))
                found, expected = compiled(module)(one), other(two)
                close(found, expected)
                found.square().sum().backward()
                expected.square().sum().backward()
                if one.requires_grad:
                    close(one.grad, two.grad, 1e-3)
                for mine, theirs in zip(module.parameters(), other.parameters()):
                    close(mine.grad, theirs.grad, 1e-3)
                for mine, theirs in zip(module.buffers(), other.buffers()):
                    close(mine, theirs)

    def test_an_operator_whose_definition_is_not_known_stays_whole(self):
        def function(x):
            return torch.linalg.qr(x)[1].abs().sum() + torch.cummax(x * 2, 0)[0].sum() + torch.nn.functional.mse_loss(x, x * 2)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run, x = compiled(function, fallback="eager"), torch.randn(4, 4)
            close(run(x), function(x))
        said = "".join(str(w.message) for w in caught if "symmc leaves" in str(w.message))
        self.assertIn("2 operator(s)", said)
        self.assertIn("aten.linalg_qr", said)
        self.assertIn("aten.cummax", said)

    def test_sizes_of_windows_and_sums_of_sizes(self):
        def chunks(x):
            return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % 4)).view(-1, 4, 8).sum(1)

        def halves(x):
            half = x.shape[0] // 2
            return torch.cat([x[half:] * 2, x[:half]]) + x

        def sums(x):
            return x.new_ones(torch.sym_sum([x.shape[0], x.shape[0], 5])).cumsum(0) if hasattr(torch, "sym_sum") else x

        def spread(x):
            return x.var(0) + torch.nn.functional.conv1d(x.t()[None], torch.ones(2, 8, 2), stride=2, padding=1).sum()

        def pairs(x):
            return x.view(x.shape[0] // 2, 2, x.shape[1]).sum(1) + x.view(2, -1, 8)[0] + torch.cat(x.chunk(2), 1)[:, 4:12]

        def behind_one(x):
            assert (x.shape[0] - 1) % 3 == 0
            return x[1:].unflatten(0, (-1, 3)).sum(1) * (x.shape[0] // 3)

        any_size, odd, even = (7, 2, 100, 5), (7, 4, 100, 10), (6, 4, 100, 14)
        cases = [(chunks, any_size), (halves, any_size), (sums, any_size), (spread, any_size), (pairs, even), (behind_one, odd)]
        for function, sizes in cases:
            run = compiled(function, dynamic=True)
            for rows in sizes:
                with self.subTest(function.__name__, rows=rows):
                    x = torch.randn(rows, 8)
                    close(run(x), function(x), 1e-3)

    def test_sizes_of_which_a_graph_says_too_little(self):
        """Extents that are equal, products or numbers in every call; others than those at first have plans of their own."""

        def attention(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

        def flattened(x, y):
            return x.view(y.shape[0], y.shape[1], 32) + y

        def heads(x, w):
            return x.reshape(x.shape[0], x.shape[1], -1, w.shape[0]).sum(-2) * w

        cases = [
            # The lengths of keys and values have symbols of their own.
            (attention, lambda n: [torch.randn(2, n, 8), torch.randn(2, n + 3, 8)[:, : n + 1], torch.randn(2, n + 1, 8)]),
            (flattened, lambda n: [torch.randn(3 * n, 32), torch.randn(3, n, 1)]),
            (heads, lambda n: [torch.randn(2, n, 16), torch.randn(4 if n < 50 else 8)]),
            (lambda x: x.view(x.shape[0] // 2, -1) * 2, lambda n: [torch.randn(2 * n, 5)]),
        ]
        for function, make_inputs in cases:
            run = compiled(function, dynamic=True)
            for tokens in (7, 5, 100):
                inputs = make_inputs(tokens)
                for at, given in enumerate(inputs):
                    for axis in range(given.dim()):
                        # As behind a graph break: no two sizes are known to be one.
                        torch._dynamo.maybe_mark_dynamic(given, axis)
                close(run(*inputs), function(*inputs))

    def test_tables_that_are_cut_by_another_size_have_one_plan(self):
        cases = [
            (lambda x, table: x * table[: x.shape[0]], [(5, 16), (7, 16), (9, 9), (3, 13)]),
            (lambda x, table: x + table[-x.shape[0] :], [(5, 16), (16, 16), (2, 9)]),
            (lambda x, table: x[: table.shape[0]] * table, [(16, 5), (12, 9), (9, 9)]),
        ]
        for function, sizes in cases:
            run, planned = compiled(function, dynamic=True), symmc.compile
            with mock.patch.object(symmc, "compile", side_effect=planned) as plans:
                for rows, entries in sizes:
                    x, table = torch.randn(rows, 4), torch.randn(entries, 4)
                    close(run(x, table), function(x, table))
            self.assertEqual(plans.call_count, 1)
        # What was equal at first, or less, has another plan where it is not.
        run = compiled(lambda x, y: x[: y.shape[0]].sum(0) + y[: x.shape[0]].sum(0), dynamic=True)
        for rows, others in ((6, 6), (4, 9), (9, 4), (5, 5)):
            x, y = torch.randn(rows, 4), torch.randn(others, 4)
            close(run(x, y), x[:others].sum(0) + y[:rows].sum(0))

    def test_a_cut_graph_changes_inputs_in_place_and_has_gradients(self):
        def function(state, x):
            y = torch.linalg.inv(x @ x.t() + torch.eye(4)) * 2
            state.add_(y.detach())
            return y.sum() + state.sum()

        run, x = compiled(function, fallback="eager"), torch.randn(4, 4)
        for _ in range(2):
            found, expected = torch.zeros(4, 4), torch.zeros(4, 4)
            one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
            run(found, one).backward()
            function(expected, two).backward()
            close(found, expected)
            close(one.grad, two.grad)

    def test_options_are_checked(self):
        for options, text in [
            ({"colour": "red"}, "expected one of machine"),
            ({"fallback": "x"}, "expected inductor"),
            ({"buckets": 4}, "option buckets"),
            ({"buckets": [0]}, "option buckets"),
            ({"timeout": "soon"}, "option timeout"),
            ({"timeout": -1}, "option timeout"),
            ({"report": 7}, "option report"),
            ({"report": "report.pdf"}, "ends in .txt or .html, found 'report.pdf'"),
            ({"report": "/nowhere/report.txt"}, "/nowhere/report.txt: No such file"),
        ]:
            with self.assertRaisesRegex(Exception, text):
                compiled(lambda x: x + 1, **options)(torch.ones(2))

    def test_buckets_and_a_report(self):
        with tempfile.TemporaryDirectory() as folder:
            for suffix, texts in [("txt", ["3 buckets"]), ("html", ["<!DOCTYPE html>", "3 buckets", "</html>"])]:
                path = os.path.join(folder, f"report.{suffix}")
                for _ in range(2):
                    run = compiled(lambda x: x * 2, buckets=[4, 8, 16], report=path)
                    for n in (3, 5, 16):
                        x = torch.ones(n, 2)
                        torch._dynamo.mark_dynamic(x, 0)
                        close(run(x), x * 2)
                with open(path) as file:
                    found = file.read()
                for text in texts:
                    self.assertIn(text, found)
                # Two plans, on one page.
                self.assertEqual((found.count("3 buckets"), found.count("</html>")), (2, int(suffix == "html")))

    def test_views_are_views_of_what_they_are_in_eager(self):
        def function(x, w):
            y, z = x * 2, x.t() + 1
            return x[x.shape[0] // 2 :], x.t(), y, y.t(), y.view(-1)[3:], z, z.t().view(-1), (w + 1)[:, 1], y.split(2)

        run = compiled(function, dynamic=True)
        for rows in (4, 6, 10):
            x, w = torch.randn(2 * rows, 6)[::2], torch.randn(rows, 3)
            found, expected = run(x, w), function(x, w)
            for k, (one, other) in enumerate(zip([*found[:8], *found[8]], [*expected[:8], *expected[8]])):
                with self.subTest(output=k, rows=rows):
                    close(one, other)
                    self.assertEqual(one.stride(), other.stride())
                    self.assertEqual(one.storage_offset(), other.storage_offset())
            self.assertEqual(found[1].data_ptr(), x.data_ptr())
            found[2].zero_()
            close(found[3], torch.zeros_like(found[3]))

    def test_numbers_of_sizes_are_those_of_the_call(self):
        def function(x):
            return x.shape[0] / 2, x.shape[0] // 2, x.numel(), x * (x.shape[0] / 3)

        run = compiled(function, dynamic=True, fallback="eager")
        for rows in (5, 7, 12):
            x = torch.randn(rows, 3)
            found, expected = run(x), function(x)
            self.assertEqual(found[:3], expected[:3])
            close(found[3], expected[3])

    def test_what_a_stage_of_others_gives_comes_before_who_reads_it(self):
        def function(x):
            y = x + torch.rand_like(x)
            return y, torch.randn(3), torch.bernoulli(torch.sigmoid(x))

        run, x = compiled(function, fallback="eager"), torch.randn(4, 4)
        for _ in range(2):
            torch.manual_seed(7)
            found = run(x)
            torch.manual_seed(7)
            for one, other in zip(found, function(x)):
                close(one, other, 1e-6)

    def test_operators_of_higher_order_are_left_to_others(self):
        def function(x):
            return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x * 3,)) + 1

        run = compiled(function, fallback="eager")
        for x in (torch.ones(4), -torch.ones(4)):
            close(run(x), function(x))

    def test_inductor_runs_random_numbers_and_parts_of_tensors(self):
        def function(x):
            return torch.nn.functional.dropout(x * 1, 0.5, True)

        run, x = compiled(function, fallback="inductor"), torch.ones(1000, requires_grad=True)
        y = run(x)
        y.sum().backward()
        self.assertTrue(torch.equal(x.grad, y.detach()))
        self.assertEqual(set(y.tolist()), {0.0, 2.0})

        def parts(x):
            return torch.special.bessel_j0((x + 1)[:, :3]), torch.special.bessel_j0((x * 2).t())

        x = torch.randn(6, 6)
        for one, other in zip(compiled(parts, fallback="inductor")(x), parts(x)):
            close(one, other)

    def test_graphs_on_devices_that_symmc_does_not_know_are_left_to_others(self):
        found = compiled(lambda x: x * 2, fallback="eager")(torch.ones(4, device="meta"))
        self.assertEqual((found.shape, found.device.type), ((4,), "meta"))

    def test_threads_take_turns(self):
        def function(x):
            return (x @ x.t()).relu().sum(0)

        run, wrong = compiled(function, dynamic=True), []
        run(torch.randn(5, 4))

        def calls(thread):
            try:
                for k in range(40):
                    x = torch.randn(2 + k * thread % 37, 4)
                    close(run(x), function(x))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=calls, args=(thread,)) for thread in range(1, 5)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(wrong, [])

    def test_compiling_again_leaves_nothing_behind(self):
        def cycle():
            layer = torch.nn.Linear(8, 8)
            compiled(lambda x: layer(x).relu())(torch.randn(3, 8)).sum().backward()
            gc.collect()
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        for _ in range(2):
            before = cycle()
        for _ in range(5):
            behind = cycle()
        # What other tests left may have gone meanwhile.
        self.assertLessEqual(behind[0], before[0])
        self.assertLessEqual(behind[1], before[1])

    def test_an_exported_program(self):
        class Model(torch.nn.Module):
            def forward(self, x):
                return torch.relu(x) * 2

        exported = torch.export.export(Model(), (torch.randn(3, 4),))
        plan = symmc.compile(symmc.from_exported(exported, ranks=1))
        x = torch.randn(3, 4)
        (((found,)),) = symmc.run(plan, [{"in.0": x}])
        close(found.torch(), torch.relu(x) * 2, 1e-6)

    def test_a_graph_of_operators(self):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(torch.ops.aten.relu.default, (x,)),))
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        program = symmc.from_fx(module, (torch.randn(3, 4),), ranks=1)
        self.assertIn("relu", program.text())

    def test_what_is_no_graph_of_operators_is_refused(self):
        class Model(torch.nn.Module):
            def forward(self, x):
                return x.relu()

        traced = torch.fx.symbolic_trace(Model())
        graph = torch.fx.Graph()
        graph.output((graph.placeholder("x"),))
        bare = torch.fx.GraphModule(torch.nn.Module(), graph)
        cases = [
            (symmc.from_exported, Model(), "expected a torch.export.ExportedProgram, found Model"),
            (symmc.from_fx, 5, "expected a torch.fx.GraphModule, found int"),
            (symmc.from_fx, traced, "node relu: expected ATen operators"),
            (symmc.from_fx, bare, "input x: its value is not known"),
        ]
        for function, given, text in cases:
            with self.subTest(text), self.assertRaisesRegex(symmc.InputError, text):
                function(given)

    def test_bf16_by_dlpack(self):
        text = 'program "p" ranks 1\narg %x: bf16[4]\n%y: bf16[4] = add %x, %x\nreturn %y\n'
        plan = symmc.compile(symmc.from_text(text))
        (((found,)),) = symmc.run(plan, [{"x": torch.ones(4, dtype=torch.bfloat16)}])
        self.assertEqual(found.torch().tolist(), [2.0] * 4)
        with self.assertRaisesRegex(symmc.InputError, "bf16"):
            found.numpy()


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Ranks(unittest.TestCase):
    def test_sums_and_steps_of_training(self):
        # One job: what PyTorch takes to start is most of the time.
        on_ranks(["sums", "fsdp_like", "ddp_like", "process_group_as_group", "different_constants", "parts_by_rank"])

    def test_a_mesh_of_two_axes(self):
        on_ranks("two_groups", 4)

    def test_a_group_of_some_ranks(self):
        on_ranks("subgroup", 3)

    def test_graphs_that_differ_between_ranks_are_refused(self):
        on_ranks(["different_graphs", "refused_on_one_rank", "refused_before_import", "uneven_pieces"])

    def test_ranks_are_in_some_graphs_only_and_groups_are_made_anew(self):
        on_ranks("groups_of_several_graphs", 3)


if __name__ == "__main__":
    unittest.main()
