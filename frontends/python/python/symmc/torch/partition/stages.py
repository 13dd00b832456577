"""Graphs in stages. Plans run the even ones, the fallback runs the odd ones."""

from __future__ import annotations

import operator

import torch
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.passes.split_module import split_module

from symmc.torch.graphs.nodes import NUMBER, is_random, output_of, process_groups_in, process_groups_of
from symmc.torch.importing.lift import LiftedGraph
from symmc.torch.partition.fallback import FallbackGraph, as_tuple
from symmc.torch.partition.search import PartitionSearch
from symmc.torch.ranks.process_groups import refusing_on_all_ranks
from symmc.torch.runtime.planned_graph import PlannedGraph, device_of


def plan_whole(module: torch.fx.GraphModule, search: PartitionSearch):
    """A graph as a plan. A graph that returns only views of its inputs runs in eager, which makes such views."""
    with refusing_on_all_ranks(process_groups_in(module.graph), search.options.timeout):
        lifted = LiftedGraph.from_module(module)
        device_of(lifted)
    if not lifted.program.outputs:
        return FallbackGraph(module, "eager")
    planned = PlannedGraph(lifted, search.options, search.may_fix_sizes, search.sizes, search.arenas)
    search.runners.append(planned.runner)
    return planned


class CutGraph:
    """A graph in stages, run one after another."""

    def __init__(self, module: torch.fx.GraphModule, search: PartitionSearch):
        self._boxed_call = True
        options = search.options
        stages = assign_stages(module.graph, search.fallback_nodes)
        end = output_of(module.graph)
        for node in sorted(stages, key=stages.__getitem__):
            end.prepend(node)
        _pass_symbols(module.graph)
        self.whole = split_module(module, None, lambda node: stages[node], keep_original_order=True)
        for call in [node for node in self.whole.graph.nodes if node.op == "call_module"]:
            part = getattr(self.whole, call.target)
            _annotate(part, call)
            number, single = int(call.target.removeprefix("submod_")), _is_single(part)
            if number % 2 == 0:
                function = plan_whole(as_tuple(part), search)
            else:
                function = FallbackGraph(part, "eager" if _is_communication(part.graph) else options.fallback)
            setattr(self.whole, call.target, Stage(function, single))
        self.whole.recompile()

    def __call__(self, inputs: list):
        return list(self.whole(*inputs))


class Stage(torch.nn.Module):
    """A stage, as a module that the cut graph calls."""

    def __init__(self, function, single: bool):
        super().__init__()
        self.function, self.single = function, single

    def forward(self, *inputs):
        results = self.function(list(inputs))
        return results[0] if self.single else tuple(results)


def assign_stages(graph: torch.fx.Graph, refused: dict[int, str]) -> dict[torch.fx.Node, int]:
    """The stage of each node. symmc runs the even ones. A stage reads results of earlier stages."""
    stages: dict[torch.fx.Node, int] = {}
    drawn = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        before = [stages[given] for given in node.all_input_nodes if given in stages]
        is_refused = node.meta[NUMBER] in refused
        if node.target is operator.getitem or _is_wait(node) or not (has_tensor(node) or is_refused):
            # Parts of results, sizes, and waits belong to the stage of their operand.
            stages[node] = max(before, default=0)
            continue
        kind = int(is_refused)
        stages[node] = max((stage + (stage % 2 != kind) for stage in before), default=kind)
        if is_random(node):
            # Random numbers are drawn in the order of the graph.
            drawn = stages[node] = max(stages[node], drawn)
    # Inputs are replaced after all their readers.
    last = max(stages.values(), default=0)
    for node in stages:
        if node.target is torch.ops.aten.copy_.default:
            stages[node] = last + last % 2
    return stages


def has_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


def _is_communication(graph: torch.fx.Graph) -> bool:
    """Whether all that a stage computes are collectives: there is nothing to compile."""
    calls = [node for node in graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    begun = [node for node in calls if process_groups_of(node)]
    return bool(begun) and all(node in begun or _is_wait(node) or not has_tensor(node) for node in calls)


def _is_wait(node: torch.fx.Node) -> bool:
    """Whether a node waits for a collective that another one began."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.endswith("::wait_tensor")


def _pass_symbols(graph: torch.fx.Graph) -> None:
    """Passes stages the symbols in the extents of their inputs, which may be expressions of these."""
    known = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            known.add(value.node.expr)
        if isinstance(value, (torch.Tensor, torch.SymInt)) and free_symbols(value) <= known:
            # `split_module` reads this key.
            node.meta["example_value"] = value


def _annotate(part: torch.fx.GraphModule, call: torch.fx.Node) -> None:
    """Gives the inputs of a stage the values of the arguments of its call."""
    for placeholder, given in zip([n for n in part.graph.nodes if n.op == "placeholder"], call.args):
        if isinstance(given, torch.fx.Node) and "val" in given.meta:
            placeholder.meta.setdefault("val", given.meta["val"])


def _is_single(part: torch.fx.GraphModule) -> bool:
    return not isinstance(output_of(part.graph).args[0], (tuple, list))
