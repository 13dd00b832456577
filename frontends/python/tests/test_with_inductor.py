"""Collectives of graphs that Inductor compiles, run by symmc, where PyTorch is."""

import os
import pathlib
import sys
import tempfile
import types
import unittest

from with_torch import HAS_TORCH, close, groups_anew, on_ranks

if HAS_TORCH:
    import torch
    import torch._inductor.config
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    from symmc.torch.settings.versions import VERSION

    c10d = torch.ops._c10d_functional


class Divided(torch.nn.Module if HAS_TORCH else object):
    """Layers whose products are divided between ranks, with a residual and a norm behind each sum."""

    def __init__(self, hidden, ranks):
        super().__init__()
        self.up = torch.nn.ModuleList(torch.nn.Linear(hidden, 4 * hidden // ranks, bias=False) for _ in range(3))
        self.down = torch.nn.ModuleList(torch.nn.Linear(4 * hidden // ranks, hidden, bias=False) for _ in range(3))
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(hidden) for _ in range(4))

    def forward(self, x):
        y = self.norms[0](x)
        for up, down, norm in zip(self.up, self.down, self.norms[1:]):
            x = x + funcol.all_reduce(down(torch.nn.functional.silu(up(y))), "sum", dist.group.WORLD)
            y = norm(x)
        shared = funcol.reduce_scatter_tensor(y.repeat(2, 1), "sum", 0, dist.group.WORLD)
        return funcol.all_gather_tensor(shared, 0, dist.group.WORLD), x


def sort_by_creation(graph):
    """The computations of a graph, and the positions at which it begins and ends collectives."""
    said = []
    for name in [str(node.target) for node in graph.nodes if node.op == "call_function"]:
        if name == "symmc.planned.default":
            said += ["begin", "end"]
        elif "getitem" not in name:
            begins, ends = name.startswith(("_c10d_functional.all", "symmc.start")), "wait" in name
            said.append("end" if ends else "begin" if begins else name)
    return said


def counted(**options):
    """Has graphs that are compiled from now on go through the pass; what they had before it and behind it."""
    from symmc.torch import CollectivePass

    counts = []
    names = ("c10d", "wait_tensor", "symmc.planned", "symmc.start", "symmc.wait", "rsqrt", "vllm", "sglang")

    class Counted(CollectivePass):
        def __call__(self, graph):
            def count():
                return {name: sum(name in str(node.target) for node in graph.nodes) for name in names}

            before, order = count(), sort_by_creation(graph)
            super().__call__(graph)
            counts.append((before, count(), (order, sort_by_creation(graph))))

    # A graph that Inductor has kept from another run passes no pass.
    torch._inductor.config.force_disable_caches = True
    torch._inductor.config.post_grad_custom_post_pass = Counted(**options)
    torch._dynamo.reset()
    return counts


def alike(function, *inputs, limit=1e-4, **options):
    """Runs a function under Inductor with the pass, and compares it with eager; what the graphs had."""
    counts = counted(**options)
    found, expected = torch.compile(function, dynamic=False)(*inputs), function(*inputs)
    both = zip(found, expected) if isinstance(expected, (tuple, list)) else [(found, expected)]
    for one, other in both:
        assert one.dtype == other.dtype, (one.dtype, other.dtype)
        close(one.double(), other.double(), limit)
    return counts


# What ranks do.


def collectives_alone(rank):
    """Collectives under Inductor, before and after the pass, with the same results."""
    counts = counted()
    torch.manual_seed(rank)
    model = Divided(32, 2)
    run = torch.compile(model, dynamic=True)
    with torch.no_grad():
        for tokens in (5, 2, 40):
            torch.manual_seed(tokens)
            x = torch.randn(tokens, 32)
            for found, expected in zip(run(x), model(x)):
                close(found, expected)
    assert counts
    for before, after, _ in counts:
        # The norm in front of the first product has no collective.
        assert (before["c10d"], after["c10d"], after["symmc.planned"], after["rsqrt"]) == (10, 0, 5, 1), counts


def forms_are_shared(rank):
    """Collectives that are alike run as one program, in whichever graph and place they stand, with whatever names."""
    from symmc.torch.inductor import operators

    counted()
    made = []
    operators.PlanRunner = lambda *given, of=operators.PlanRunner: made.append(of(*given)) or made[-1]
    torch.manual_seed(rank)
    model, norm = Divided(32, 2), torch.nn.RMSNorm(32)

    def other(weight, scale, more, x):
        # Other names, sizes by other symbols, and operators in another order.
        given = (x * scale).relu()
        return norm(funcol.all_reduce(given @ weight, "sum", dist.group.WORLD) + more)

    def no_norm(x):
        return funcol.all_reduce(x.sin(), "sum", dist.group.WORLD).cos()

    with torch.no_grad():
        for tokens in (5, 9):
            x = torch.randn(tokens, 32)
            close(torch.compile(model, dynamic=True)(x)[0], model(x)[0])
            # A sum with a norm behind it, in three places, a reduce_scatter, and an all_gather.
            assert len(made) == 3, [runner.program.text() for runner in made]
        weight, scale, more, x = torch.randn(7, 32), torch.randn(7), torch.randn(6, 32), torch.randn(6, 7)
        close(torch.compile(other, dynamic=True)(weight, scale, more, x), other(weight, scale, more, x))
        # Its sum is no output.
        assert len(made) == 4, [runner.program.text() for runner in made]
        for function in (no_norm, lambda x: no_norm(x * 2)):
            x = torch.randn(5, 3)
            close(torch.compile(function, dynamic=False)(x), function(x))
        assert len(made) == 5, [runner.program.text() for runner in made]
    assert len({id(runner.session) for runner in made}) == len(made)


def groups_made_anew(rank):
    """Under other process groups, names mean other groups."""
    import symmc.torch

    symmc.torch.enable()
    run = torch.compile(lambda x: funcol.all_reduce(x, "sum", "0"))
    for _ in range(2):
        close(run(torch.ones(4)), torch.full((4,), 2.0))
        groups_anew()


def kept_by_inductor(rank):
    """A graph from Inductor's cache runs in another process as in the process that compiled it."""
    import symmc.torch
    from torch._dynamo.utils import counters

    symmc.torch.enable()
    run = torch.compile(lambda x: funcol.all_reduce(x * 3, "sum", dist.group.WORLD) + 1)
    close(run(torch.ones(8)), torch.full((8,), 7.0))
    kept = dict(counters["inductor"])
    name = "fxgraph_cache_hit" if os.environ["KEPT"] == "1" else "fxgraph_cache_miss"
    assert kept.get(name, 0) > 0, kept


def kinds(rank):
    """Collectives of every kind, type and reduction: those that symmc does not have stay PyTorch's."""
    group = dist.group.WORLD
    torch.manual_seed(rank)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8):
        x = torch.randint(1, 5, (6, 3)).to(dtype)
        functions = [
            lambda x: funcol.all_reduce(x + 1, "sum", group) * 2,
            lambda x: funcol.all_gather_tensor(x + 1, 0, group),
            lambda x: funcol.reduce_scatter_tensor(x + 1, "sum", 0, group),
            lambda x: funcol.all_to_all_single(x + 1, None, None, group),
            lambda x: funcol.all_to_all_single(x + 1, [2, 4] if rank == 0 else [1, 2], [2, 1] if rank == 0 else [4, 2], group),
        ]
        for at, function in enumerate(functions):
            given = x[:3] if at == 4 and rank == 0 else x
            counts = alike(function, given, limit=0)
            assert at == 4 or counts[0][1]["symmc.planned"] == 1, (dtype, at, counts)
    for reduction in ("avg", "max", "min", "product"):
        x = torch.randint(1, 5, (6, 3)).float()
        if reduction != "avg":
            alike(lambda x: funcol.all_reduce(x + 1, reduction, group) * 2, x, limit=0)
    x = torch.randn(4, 4).to(torch.complex64)
    counts = counted()
    try:
        expected = torch.view_as_real(funcol.all_gather_tensor(x, 0, group)).sum()
    except RuntimeError:
        # PyTorch 2.8 itself does not gather such numbers.
        expected = None
    if expected is not None:
        close(torch.view_as_real(torch.compile(lambda x: funcol.all_gather_tensor(x * 1, 0, group))(x)).sum(), expected)
    assert all(after["symmc.planned"] == 0 for _, after, _ in counts), counts

    def coalesced(x, y):
        return funcol.all_reduce_coalesced([x * 2, y * 3], "sum", group)

    def result_of_the_graph(x):
        return funcol.all_reduce(x, "sum", group)

    alike(coalesced, torch.randn(3), torch.randn(2, 2))
    assert alike(result_of_the_graph, torch.randn(5))[0][1]["symmc.planned"] == 1


def several_groups(rank):
    """Sums over both axes of a mesh of two by two in one graph, behind each other and beside each other."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def function(x):
        y = funcol.all_reduce(x * 2, "sum", (mesh, 1))
        return funcol.all_reduce(y + 1, "sum", (mesh, 0)), funcol.all_gather_tensor(x * 3, 0, (mesh, 1))

    counts = alike(function, torch.arange(8.0).reshape(4, 2) + rank)
    after = counts[0][1]
    assert after["c10d"] == 0 and after["symmc.planned"] + after["symmc.start"] == 3, counts


def overlapped(rank):
    """Work between a collective and the wait for it runs concurrently, and work that needs the results comes after the wait."""
    name = dist.group.WORLD.group_name
    torch.manual_seed(rank)

    def function(x, w):
        one = c10d.all_reduce(x * 2, "sum", name)
        two = c10d.all_gather_into_tensor(x + 1, 2, name)
        y = w @ w
        z = c10d.wait_tensor(one) @ y
        return z, c10d.wait_tensor(two).sum(0) + z, funcol.all_reduce(x, "sum", dist.group.WORLD)

    counts = counted()
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    run = torch.compile(function)
    for _ in range(3):
        for found, expected in zip(run(x, w), function(x, w)):
            close(found, expected, 1e-3)
    ((_, after, (before, behind)),) = counts
    assert after["c10d"] == 0 and after["symmc.start"] == after["symmc.wait"] >= 2, counts
    assert before == behind, (before, behind)


def left_alone(rank):
    """If a plan would use only the vendor's library, PyTorch calls it as before: at all sizes, or at some of them."""
    from symmc.torch.inductor import operators

    def function(x):
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    def runs(rows, dynamic):
        x = torch.randn(rows, 64)
        torch._dynamo.reset()
        close(torch.compile(function, dynamic=dynamic)(x), function(x))

    plain, others = 3, 512
    counts = counted(machine="host")
    runs(plain, False)
    assert counts[-1][1]["c10d"] == 2 and counts[-1][1]["symmc.planned"] == 0, counts
    runs(others, False)
    assert counts[-1][1]["c10d"] == 0 and counts[-1][1]["symmc.planned"] == 1, counts
    torch._dynamo.reset()
    x, run = torch.randn(others, 64), torch.compile(function)
    for rows in (plain, others, plain, others):
        given = x[:rows].clone()
        torch._dynamo.mark_dynamic(given, 0)
        close(run(given), function(given))
    known = [planned for known in operators._planned.values() for planned in known.values()]
    (planned,) = [planned for planned in known if planned.runner.symbols]
    assert planned.decided == ((others,), False), planned.decided
    assert planned.is_left_to_pytorch((plain,), x.device)


def norms_of_engines(rank):
    """Collectives and norms of vLLM and SGLang, by the groups of their own."""
    group = dist.new_group([0, 1])
    define(group)
    torch.manual_seed(rank)
    w, x, residual = torch.randn(32), torch.randn(6, 32), torch.randn(6, 32)
    vllm, norms = torch.ops.vllm, torch.ops.vllm_ir

    def fused(x, residual, w):
        y, total = norms.fused_add_rms_norm(vllm.all_reduce(x * 2, "tp:0"), residual, w, 1e-6)
        return norms.rms_norm(vllm.all_reduce(y.sin(), "tp:0"), w, 1e-6), total

    def shared(x, residual, w):
        part = vllm.reduce_scatter(x * 2, 0, 2, "tp:0")
        return vllm.all_gather(part + 1, 0, 2, "tp:0"), torch.ops.sglang.outplace_all_reduce(x * 3, "tp:0", "ca")

    def in_place(x, residual, w):
        y, total, out = vllm.all_reduce(x * 2, "tp:0"), residual * 1, torch.empty_like(x)
        torch.ops._C.fused_add_rms_norm(y, total, w, 1e-6)
        torch.ops._C.rms_norm(out, vllm.all_reduce(y.sin(), "tp:0"), w, 1e-6)
        return out, total

    def other_axis(x, residual, w):
        return vllm.all_gather(x * 2, -1, 2, "tp:0")

    for function, planned, left in [(fused, 2, 0), (shared, 3, 0), (in_place, 2, 0), (other_axis, 0, 1)]:
        for kind in (torch.float32, torch.bfloat16):
            given = [one.to(kind) for one in (x, residual, w)]
            # Auto-functionalised operators as vLLM has them.
            with torch._inductor.config.patch(enable_auto_functionalized_v2=False):
                counts = alike(function, *given, limit=1e-4 if kind == torch.float32 else 0.1)
            after = counts[0][1]
            assert (after["symmc.planned"], after["vllm"] + after["sglang"]) == (planned, left), (function, counts)


def define(group):
    """Operators with the schemas of vLLM and SGLang, and vLLM's table of groups."""
    module = types.ModuleType("vllm.distributed.parallel_state")
    coordinator = types.SimpleNamespace(device_group=group)
    module._groups = {"tp:0": lambda: coordinator}
    sys.modules["vllm.distributed.parallel_state"] = module

    def rms_norm(x, weight, epsilon, variance_size=None):
        y = x.float()
        return ((y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + epsilon)).to(weight.dtype) * weight).to(x.dtype)

    def fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size=None):
        total = x.float() + x_residual.float()
        return rms_norm(total, weight, epsilon).to(x.dtype), total.to(x.dtype)

    def write_norm(result, input, weight, epsilon):
        result.copy_(rms_norm(input, weight, epsilon))

    def write_fused(input, residual, weight, epsilon):
        normed, total = fused_add_rms_norm(input, residual, weight, epsilon)
        input.copy_(normed)
        residual.copy_(total)

    def gathered(tensor, dim, world_size, group_name):
        return funcol.all_gather_tensor(tensor, dim % tensor.dim(), group).clone()

    def scattered(tensor, dim, world_size, group_name):
        return funcol.reduce_scatter_tensor(tensor, "sum", dim, group).clone()

    def summed(tensor, group_name, method=None):
        return funcol.all_reduce(tensor, "sum", group).clone()

    def sized(tensor, dim, factor, divisor):
        shape = list(tensor.shape)
        shape[dim] = shape[dim] * factor // divisor
        return tensor.new_empty(shape)

    norm = "Tensor weight, float epsilon, SymInt? variance_size=None"
    axis = "(Tensor tensor, SymInt dim, SymInt world_size, str group_name) -> Tensor"
    told = [
        ("vllm", "all_reduce(Tensor tensor, str group_name) -> Tensor", summed, lambda t, g: torch.empty_like(t)),
        ("vllm", f"all_gather{axis}", gathered, lambda t, d, w, g: sized(t, d, w, 1)),
        ("vllm", f"reduce_scatter{axis}", scattered, lambda t, d, w, g: sized(t, d, 1, w)),
        ("sglang", "outplace_all_reduce(Tensor tensor, str group_name, str outplace_all_reduce_method) -> Tensor", summed, lambda t, g, m: torch.empty_like(t)),
        ("vllm_ir", f"rms_norm(Tensor x, {norm}) -> Tensor", rms_norm, lambda x, *_: torch.empty_like(x)),
        ("vllm_ir", f"fused_add_rms_norm(Tensor x, Tensor x_residual, {norm}) -> (Tensor, Tensor)", fused_add_rms_norm, lambda x, r, *_: (torch.empty_like(x), torch.empty_like(r))),
        ("_C", "rms_norm(Tensor(a!) result, Tensor input, Tensor weight, float epsilon) -> ()", write_norm, lambda *_: None),
        ("_C", "fused_add_rms_norm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, float epsilon) -> ()", write_fused, lambda *_: None),
    ]
    for space, schema, kernel, fake in told:
        library = torch.library.Library(space, "FRAGMENT")
        LIBRARIES.append(library)
        name = schema.split("(")[0]
        library.define(schema)
        library.impl(name, kernel, "CPU")
        torch.library.register_fake(f"{space}::{name}", fake, lib=library)


LIBRARIES = []


def groups_by_option(rank):
    """Names that nobody else knows, by a mapping and by a function."""
    group = dist.new_group([0, 1])
    define(group)
    vllm = torch.ops.vllm
    function = lambda x: vllm.all_reduce(x * 2, "mine") + 1  # noqa: E731
    assert alike(function, torch.ones(4))[0][1]["symmc.planned"] == 0
    for groups in ({"mine": group}, lambda name: group if name == "mine" else None):
        assert alike(function, torch.ones(4), groups=groups)[0][1]["symmc.planned"] == 1


def training(rank):
    """Steps of DDP and of FSDP under Inductor, forward and backward, with the gradients of eager."""
    import torch._dynamo.config
    from torch.distributed.fsdp import fully_shard

    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))

    def whole(tensor):
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    def gradients(run, parameters, x):
        run(x).square().mean().backward()
        return [whole(p.grad) for p in parameters]

    torch.manual_seed(rank + 1)
    x = torch.randn(8, 16)
    plain = model()
    expected = gradients(plain, list(plain.parameters()), x)
    for gradient in expected:
        dist.all_reduce(gradient)
        gradient /= 2
    counts = counted()
    sharded, eager = model(), model()
    for one in (sharded, eager):
        for layer in (one[0], one[2], one):
            fully_shard(layer)
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        ddp = torch.nn.parallel.DistributedDataParallel(model())
        with torch._dynamo.compiled_autograd._enable(torch.compile()):
            found = gradients(torch.compile(ddp), list(ddp.parameters()), x)
    if VERSION >= (2, 9):
        # The reducer of PyTorch 2.8 gives other gradients under Inductor alone.
        for one, other in zip(found, expected):
            close(one, other)
    assert any(after["symmc.planned"] + after["symmc.start"] for _, after, _ in counts), counts
    # Eager's, as a mean by gloo is a sum in PyTorch 2.8.
    expected = gradients(eager, list(eager.parameters()), x)
    for one, other in zip(gradients(torch.compile(sharded), list(sharded.parameters()), x), expected):
        close(one, other)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Collectives(unittest.TestCase):
    def test_alone(self):
        on_ranks(collectives_alone)

    def test_that_are_alike_are_one_program(self):
        on_ranks(forms_are_shared)

    def test_of_every_kind(self):
        on_ranks(kinds)

    def test_over_several_groups(self):
        on_ranks(several_groups, 4)

    def test_that_others_overlap(self):
        on_ranks(overlapped)

    def test_that_the_library_runs_best_are_left_to_it(self):
        on_ranks(left_alone)

    def test_of_engines(self):
        on_ranks(norms_of_engines)

    def test_of_groups_that_an_option_tells(self):
        on_ranks(groups_by_option)

    def test_of_steps_of_training(self):
        on_ranks(training)

    def test_under_groups_that_are_made_anew(self):
        on_ranks(groups_made_anew)

    def test_of_graphs_that_inductor_keeps(self):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            try:
                for kept in ("0", "1"):
                    os.environ["KEPT"] = kept
                    on_ranks(kept_by_inductor)
            finally:
                del os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["KEPT"]


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Passes(unittest.TestCase):
    def test_a_pass_shows_its_options(self):
        import symmc.torch
        from symmc.torch import CollectivePass

        self.assertEqual(repr(CollectivePass()), "CollectivePass()")
        found = repr(CollectivePass(machine="h200x2", buckets=[8], timeout=5))
        self.assertEqual(found, "CollectivePass(machine='h200x2', buckets=[8], timeout=5)")
        with self.assertRaisesRegex(symmc.InputError, "option buckets of CollectivePass: expected a list of sizes"):
            CollectivePass(buckets={"n": [8]})
        self.assertEqual(dir(symmc.torch), sorted(symmc.torch.__all__))

    def test_are_told_apart_by_all_that_decides(self):
        from symmc.torch import CollectivePass

        with tempfile.NamedTemporaryFile("w", suffix=".json") as profile:
            profile.write((pathlib.Path(__file__).parents[3] / "ir/src/machine/host.json").read_text())
            profile.flush()
            one, other = CollectivePass(machine=profile.name).uuid(), CollectivePass().uuid()
            self.assertEqual(one, CollectivePass(machine=profile.name).uuid())
            profile.write("\n")
            profile.flush()
            self.assertEqual(3, len({one, other, CollectivePass(machine=profile.name).uuid()}))


if __name__ == "__main__":
    unittest.main()
