"""Graphs that symmc cannot run whole: what it can run stays together, the rest is somebody else's."""

from __future__ import annotations

import operator
import os
import warnings

import torch
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.passes.split_module import split_module

import symmc
from symmc.torch import _graph, _ranks
from symmc.torch._compiled import UNKNOWN, Compiled, Refused, device_of
from symmc.torch._expand import Expanded
from symmc.torch._options import Options
from symmc.torch._ranks import Apart
from symmc.torch._runner import DTYPES

_named: set[tuple[str, str]] = set()
"""The operators with their lines that a warning named already."""


def compiled(module: torch.fx.GraphModule, options: Options):
    """A function of the list of the inputs of a graph: one plan, or several with what is between them."""
    for number, node in enumerate(module.graph.nodes):
        node.meta[_graph.NUMBER] = number
    graph, search = Expanded(module), _Search(options)
    while True:
        try:
            return _compiled(graph.module, search)
        except Refused as found:
            if found.error.is_of_dtypes:
                # Eager raises there: what the operator is made of might not.
                return _Raising(module, found.error)
            failed = {graph.origins[node]: why for node, why in found.nodes.items() if not graph.expand(node)}
            search.note(found, {graph.origins[node]: why for node, why in found.nodes.items()})
            if failed and not search.fixes and (found.symbols or search.are_sizes(failed)):
                search.fixes = True
                graph = Expanded(module, search.whole)
            elif failed:
                search.leave(failed, found)
                # An operator whose definition needs what symmc does not know stays whole, for whoever runs it.
                graph = Expanded(module, search.whole)
        except Apart as error:
            # Each rank runs what is between its collectives, and nobody has to be alike.
            found = {graph.origins[number]: f"the graphs of ranks differ: {error}" for number in _collectives(graph.module.graph)}
            if options.fallback == "error" or found.keys() <= search.whole.keys():
                raise
            search.whole |= found
            graph = Expanded(module, search.whole)
        except symmc.Error as error:
            if error.kind == "input" and error.symbols and not search.fixes:
                # Sizes of which nothing else is known may be numbers.
                search.fixes = True
                graph = Expanded(module, search.whole)
                continue
            # No node is to blame alone: those that touch a type which symmc does not know, or all.
            if options.fallback == "error" or error.kind not in ("input", "unsupported"):
                raise
            odd = {graph.origins[number]: str(error) for number in _odd(graph.module.graph)}
            odd = {number: why for number, why in odd.items() if number not in search.whole}
            if not odd:
                text = f"symmc leaves a graph to {options.fallback}: {error}"
                warnings.warn(text, stacklevel=2)
                return _Elsewhere(module, options.fallback)
            search.whole |= odd
            graph = Expanded(module, search.whole)


class _Search:
    """What is known of the operators of a graph that symmc does not run as they are."""

    def __init__(self, options: Options):
        self.options = options
        self.whole: dict[int, str] = {}
        """Those that others run, by their numbers in the graph that is compiled, and why."""
        self.fixes = False
        """Whether sizes may be taken for numbers, where an operator is refused for them that has no other form."""
        self.first: dict[int, tuple[str, Exception]] = {}
        """Why each was refused at first, before it was replaced by what it is made of."""

    def note(self, found: Refused, nodes: dict[int, str]) -> None:
        for node, why in nodes.items():
            self.first.setdefault(node, (why, found.error))

    def are_sizes(self, failed: dict[int, str]) -> bool:
        """Whether sizes were why one of these was refused at first."""
        return any(getattr(self.first[node][1], "symbols", ()) for node in failed)

    def leave(self, failed: dict[int, str], found: Refused) -> None:
        """Leaves operators to others, or says that nobody is there."""
        new = failed.keys() - self.whole.keys()
        if not new:
            raise found.error from None
        if self.options.fallback == "error":
            raise self._error(sorted(new)) from None
        self.whole |= {node: self.first[node][0] for node in new}

    def _error(self, nodes: list[int]) -> Exception:
        whys = list(dict.fromkeys(self.first[node][0] for node in nodes))
        ends = [why.removesuffix(UNKNOWN) for why in whys]
        if all(end != why for end, why in zip(ends, whys)):
            return symmc.UnsupportedError(f"operators that symmc does not know: {', '.join(sorted(ends))}")
        return next(error for why, error in map(self.first.__getitem__, nodes) if not why.endswith(UNKNOWN))


def _compiled(module: torch.fx.GraphModule, search: _Search):
    refused, options = search.whole, search.options
    calls = [node for node in module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    if not any(_is_tensor(node) for node in calls):
        return _Elsewhere(module, "eager")
    if not refused:
        return _planned(module, options, search.fixes)
    _warn(calls, refused, options)
    return _Cut(module, search)


def _planned(module: torch.fx.GraphModule, options: Options, fixes: bool):
    """A graph as a plan, unless all that it gives are views of its inputs: these are made as eager makes them."""
    with _ranks.refusing_together(_graph.groups_in(module.graph), options.timeout):
        lifted = _graph.Lifted.of(module)
        device_of(lifted)
    return Compiled(lifted, options, fixes) if lifted.exported.graph_signature.output_specs else _Elsewhere(module, "eager")


def _collectives(graph: torch.fx.Graph) -> list[int]:
    """The numbers of collectives, and of what waits for them."""

    def is_one(node: torch.fx.Node) -> bool:
        return isinstance(node.target, torch._ops.OpOverload) and (
            node.target.namespace.startswith("_c10d_functional") or any(map(_graph.is_group, node.target._schema.arguments))
        )

    return [node.meta[_graph.NUMBER] for node in graph.nodes if is_one(node)]


def _is_wait(node: torch.fx.Node) -> bool:
    """Whether a node waits for a collective that another one began."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.endswith("::wait_tensor")


def _odd(graph: torch.fx.Graph) -> list[int]:
    """The numbers of nodes that take or give elements of a type that symmc does not know."""

    def is_odd(node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype not in (*DTYPES.values(), torch.complex64, torch.complex128)

    calls = [node for node in graph.nodes if node.op == "call_function"]
    return [node.meta[_graph.NUMBER] for node in calls if is_odd(node) or any(map(is_odd, node.all_input_nodes))]


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


class _Cut:
    """A graph in stages: those of symmc and others take turns."""

    def __init__(self, module: torch.fx.GraphModule, search: _Search):
        self._boxed_call = True
        options = search.options
        stages = _stages(module.graph, search.whole)
        end = next(node for node in module.graph.nodes if node.op == "output")
        for node in sorted(stages, key=stages.__getitem__):
            end.prepend(node)
        _tell_symbols(module.graph)
        self.whole = split_module(module, None, lambda node: stages[node], keep_original_order=True)
        for call in [node for node in self.whole.graph.nodes if node.op == "call_module"]:
            part = getattr(self.whole, call.target)
            _annotate(part, call)
            number, single = int(call.target.removeprefix("submod_")), _is_single(part)
            if number % 2 == 0:
                function = _planned(_as_tuple(part), options, search.fixes)
            else:
                function = _Elsewhere(part, options.fallback)
            setattr(self.whole, call.target, _Part(function, single))
        self.whole.recompile()

    def __call__(self, inputs: list):
        return list(self.whole(*inputs))


class _Part(torch.nn.Module):
    """A stage, called as the graph calls it."""

    def __init__(self, function, single: bool):
        super().__init__()
        self.function, self.single = function, single

    def forward(self, *inputs):
        results = self.function(list(inputs))
        return results[0] if self.single else tuple(results)


class _Elsewhere:
    """A graph that Inductor runs, or nobody compiles."""

    def __init__(self, module: torch.fx.GraphModule, how: str):
        self._boxed_call = True
        self.function = None
        module = _as_tuple(module)
        if how == "inductor":
            self.function = _by_inductor(module)
        else:
            self.module = module

    def __call__(self, inputs: list):
        return list(self.module(*inputs) if self.function is None else self.function(list(inputs)))


class _Raising:
    """A graph with operands of dtypes for which PyTorch raises, though not while it is traced: eager runs it up to there."""

    def __init__(self, module: torch.fx.GraphModule, error: symmc.Error):
        self._boxed_call = True
        self.module, self.error = _as_tuple(module), error

    def __call__(self, inputs: list):
        self.module(*inputs)
        raise self.error


def _by_inductor(module: torch.fx.GraphModule):
    """A graph of ATen operators compiled by Inductor, which wants them as its own decompositions leave them."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    values = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    fake = detect_fake_mode(values) or FakeTensorMode()
    # What Inductor tells AOT autograd of strides would be taken for that of the whole graph, of which this may be a stage.
    with fake, V.set_fake_mode(fake), TracingContext.report_output_strides():
        decomposed = make_fx(torch.fx.Interpreter(module).run, decomposition_table=select_decomp_table())(*values)
        # What nobody reads of an operator that gives several, as Inductor has removed it by then.
        decomposed.graph.eliminate_dead_code()
        joint = joint_graph_passes(decomposed)
        end = next(node for node in joint.graph.nodes if node.op == "output")
        # All results have the strides that they were traced with.
        end.meta["user_visible_output_idxs"] = list(range(len(end.args[0])))
        return compile_fx_inner(joint, values)


def _stages(graph: torch.fx.Graph, refused: dict[int, str]) -> dict[torch.fx.Node, int]:
    """For each node the stage that runs it: symmc has the even ones. A stage reads what those before it wrote."""
    stages: dict[torch.fx.Node, int] = {}
    drawn = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        before = [stages[given] for given in node.all_input_nodes if given in stages]
        if node.target is operator.getitem or _is_wait(node) or not _is_tensor(node):
            # What a node gives several of, sizes, and waits for who begins something belong where they come from.
            stages[node] = max(before, default=0)
            continue
        kind = int(node.meta[_graph.NUMBER] in refused)
        stages[node] = max((stage + (stage % 2 != kind) for stage in before), default=kind)
        if _is_random(node):
            # Random numbers are drawn in the order of the graph.
            drawn = stages[node] = max(stages[node], drawn)
    # Inputs are replaced when all who read them have.
    last = max(stages.values(), default=0)
    for node in stages:
        if node.target is torch.ops.aten.copy_.default:
            stages[node] = last + last % 2
    return stages


def _is_random(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _tell_symbols(graph: torch.fx.Graph) -> None:
    """Has stages be given the symbols in the extents of what they are given, which may be expressions of these."""
    known = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            known.add(value.node.expr)
        if isinstance(value, (torch.Tensor, torch.SymInt)) and free_symbols(value) <= known:
            # Where `split_module` looks for them.
            node.meta["example_value"] = value


def _annotate(part: torch.fx.GraphModule, call: torch.fx.Node) -> None:
    """Inputs of a stage have the values of what it is called with."""
    for placeholder, given in zip([n for n in part.graph.nodes if n.op == "placeholder"], call.args):
        if isinstance(given, torch.fx.Node) and "val" in given.meta:
            placeholder.meta.setdefault("val", given.meta["val"])


def _is_single(part: torch.fx.GraphModule) -> bool:
    return not isinstance(_returned(part), (tuple, list))


def _returned(part: torch.fx.GraphModule):
    return next(node for node in part.graph.nodes if node.op == "output").args[0]


def _as_tuple(part: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same with a tuple of results."""
    returned = _returned(part)
    if not isinstance(returned, (tuple, list)):
        next(node for node in part.graph.nodes if node.op == "output").args = ((returned,),)
        part.recompile()
    return part


def _warn(calls: list[torch.fx.Node], refused: dict[int, str], options: Options) -> None:
    """Names each operator that symmc does not run, with its line, once."""
    new = []
    for node in calls:
        if node.meta[_graph.NUMBER] in refused:
            named = (str(node.target), _line(node))
            if named not in _named:
                _named.add(named)
                new.append(f"{named[0]}{named[1]}: {refused[node.meta[_graph.NUMBER]]}")
    if new:
        text = "\n  ".join(new)
        warnings.warn(f"symmc leaves {len(new)} operator(s) to {options.fallback}:\n  {text}", stacklevel=2)


_PYTORCH = os.path.dirname(torch.__file__) + os.sep


def _line(node: torch.fx.Node) -> str:
    """Where in the model a node comes from: the innermost line that is not PyTorch's own, if there is one."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File ")]
    lines = [line for line in lines if _PYTORCH not in line] or lines
    return f" ({lines[-1]})" if lines else ""
