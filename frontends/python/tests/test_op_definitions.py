"""Custom ops with definitions under ``torch.compile``. Needs PyTorch."""

import unittest

from with_torch import HAS_TORCH, close, compiled, gradients, on_ranks

if HAS_TORCH:
    import torch
    import torch.distributed as dist

    from symmc.torch.graphs.nodes import NUMBER, process_groups_of
    from symmc.torch.partition.unsupported import collective_numbers

    RUNS = []
    """The ops whose kernels ran, in order."""

    @torch.library.custom_op("symmc_defined::scale", mutates_args=())
    def scale(x: torch.Tensor, by: float, times: int = 2) -> torch.Tensor:
        RUNS.append("scale")
        return x * by * times

    @torch.library.custom_op("symmc_defined::push", mutates_args=("cache",))
    def push(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        RUNS.append("push")
        cache.add_(x)
        return cache.sum(0)

    @torch.library.custom_op("symmc_defined::total", mutates_args=())
    def total(x: torch.Tensor, group_name: str) -> torch.Tensor:
        RUNS.append("total")
        y = x.clone()
        dist.all_reduce(y, group=dist.distributed_c10d._resolve_process_group(group_name))
        return y

    @torch.library.custom_op("symmc_defined::total_of_all", mutates_args=())
    def total_of_all(x: torch.Tensor, group_name: str = "0") -> torch.Tensor:
        return total(x, group_name)

    @torch.library.custom_op("symmc_defined::collect", mutates_args=("sums",))
    def collect(sums: torch.Tensor, x: torch.Tensor, group_name: str) -> None:
        sums.add_(total(x, group_name))

    scale.register_fake(lambda x, by, times=2: torch.empty_like(x))
    push.register_fake(lambda cache, x: torch.empty_like(cache[0]))
    total.register_fake(lambda x, group_name: torch.empty_like(x))
    total_of_all.register_fake(lambda x, group_name="0": torch.empty_like(x))
    collect.register_fake(lambda sums, x, group_name: None)

    def save_numbers(ctx, inputs, output):
        _, ctx.by, ctx.times = inputs

    scale.register_autograd(lambda ctx, gradient: (scale(gradient, ctx.by, ctx.times), None, None), setup_context=save_numbers)

SCALE = """program "symmc_defined::scale(Tensor x, float by, int times=2) -> Tensor" ranks ?
symbol n in 0..=1048576
symbol m in 0..=1048576
arg %x: $x.dtype[n, m]
%a: $x.dtype[n, m] = mul %x, $by
%b: $x.dtype[n, m] = mul %a, $times
return %b
"""

PUSH = """program "symmc_defined::push(Tensor(a!) cache, Tensor x) -> Tensor" ranks ?
arg %cache: f32[$cache.0, 4]
arg %x: f32[$cache.0, 4]
%new: f32[$cache.0, 4] = add %cache, %x
%sum: f32[4] = reduce %new op=sum axes=[0] keep=false
return %sum
mutate %cache = %new
"""

TOTAL = """program "symmc_defined::total(Tensor x, str group_name) -> Tensor" ranks ?
symbol n in 0..=1048576
symbol m in 0..=1048576
group @g $group_name
arg %x: f32[n, m]
%y: f32[n, m] = all_reduce %x op=sum group=@g
return %y
"""


TOTAL_OF_ALL = TOTAL.replace("total(Tensor x, str group_name)", r'total_of_all(Tensor x, str group_name=\"0\")')

COLLECT = """program "symmc_defined::collect(Tensor(a!) sums, Tensor x, str group_name) -> ()" ranks ?
symbol n in 0..=1048576
group @g $group_name
arg %sums: f32[n, 4]
arg %x: f32[n, 4]
%y: f32[n, 4] = all_reduce %x op=sum group=@g
%new: f32[n, 4] = add %sums, %y
mutate %sums = %new
"""


def totals(rank):
    # The first group has another number in the graph than its name.
    dist.new_group([rank])
    others = dist.new_group([0, 1]).group_name

    def function(x):
        return total(x.square(), others) + total(x, dist.group.WORLD.group_name)

    run = compiled(function, dynamic=True, definitions=[TOTAL, SCALE])
    for n in (3, 5):
        x = torch.arange(4.0 * n).view(n, 4) + rank
        RUNS.clear()
        found = run(x)
        assert RUNS == [], RUNS
        close(found, function(x))


def groups_of_wrapped_calls_and_defaults(rank):
    """Groups that are a default of the schema, or an argument of an op that writes, where nothing else names a group."""
    dist.new_group([rank])
    everyone = dist.group.WORLD.group_name

    def collected(x):
        sums = torch.ones_like(x)
        collect(sums, x, everyone)
        return sums * 2

    x = torch.arange(12.0).view(3, 4) + rank
    for function, definition in ((lambda x: total_of_all(x) + 1, TOTAL_OF_ALL), (collected, COLLECT)):
        run = compiled(function, definitions=[definition])
        RUNS.clear()
        found = run(x)
        assert RUNS == [], RUNS
        close(found, function(x))


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Definitions(unittest.TestCase):
    def test_replace_calls_forward_and_backward(self):
        def function(x):
            return scale(x + 1, 0.5) - scale(x, 3.0, 1).sin()

        run = compiled(function, dynamic=True, definitions=[PUSH, SCALE])
        for n in (3, 6):
            x = torch.randn(n, 4)
            expected = function(x)
            _, (gradient,) = gradients(lambda x: function(x).sum(), [x])
            RUNS.clear()
            close(run(x), expected)
            _, (found,) = gradients(lambda x: run(x).sum(), [x])
            self.assertEqual(RUNS, [])
            close(found, gradient)

    def test_write_arguments(self):
        def function(cache, x):
            y = push(cache, x)
            return y + cache[0]

        caches, x = [torch.ones(3, 4) for _ in range(2)], torch.randn(3, 4)
        expected = function(caches[0], x)
        RUNS.clear()
        close(compiled(function, definitions=[PUSH])(caches[1], x), expected)
        self.assertEqual(RUNS, [])
        close(caches[1], caches[0])

    def test_calls_that_no_definition_accepts_are_left_to_others(self):
        x, only = torch.randn(3, 4), SCALE.replace("int times=2", "int times=2 == 5").replace("$times", "5")
        run = compiled(lambda x: scale(x, 0.5) + 1, definitions=[only], fallback="eager")
        with self.assertWarnsRegex(UserWarning, "the definition does not accept the call: expected 5 as `times`, found 2"):
            found = run(x)
        close(found, x + 1)
        with self.assertRaisesRegex(Exception, "expected 5 as `times`, found 2"):
            compiled(lambda x: scale(x, 0.5) + 1, definitions=[only])(x)

    def test_groups_are_recognised_by_the_names_of_arguments(self):
        other = TOTAL.replace("group_name", "ranks_of")
        with self.assertRaisesRegex(Exception, "the argument ranks_of of symmc_defined.total.default names a process group: expected"):
            compiled(lambda x: x + 1, definitions=[other])(torch.ones(2))

    def test_wrapped_calls_with_groups_are_collectives(self):
        graph = torch.fx.Graph()
        x, sums = graph.placeholder("x"), graph.placeholder("sums")
        wrapper = torch.ops.higher_order.auto_functionalized
        group = {"group_name": "0"}
        calls = [
            graph.call_function(wrapper, (torch.ops.symmc_defined.collect.default,), {"sums": sums, "x": x, **group}),
            graph.call_function(wrapper, (torch.ops.symmc_defined.push.default,), {"cache": sums, "x": x}),
            graph.call_function(torch.ops.symmc_defined.total.default, (x, "0")),
            graph.call_function(torch.ops.symmc_defined.scale.default, (x, 0.5)),
        ]
        for number, node in enumerate([x, sums, *calls]):
            node.meta[NUMBER] = number
        self.assertEqual(collective_numbers(graph), [2, 4])
        self.assertEqual([process_groups_of(node) for node in calls], [["0"], [], ["0"], []])

    def test_exchange_values_between_ranks(self):
        on_ranks([totals, groups_of_wrapped_calls_and_defaults])


if __name__ == "__main__":
    unittest.main()
