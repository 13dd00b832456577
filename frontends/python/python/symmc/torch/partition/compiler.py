"""Graphs that symmc cannot run whole: what it can run stays together, the rest is somebody else's."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping

import torch
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols
from torch.fx.passes.split_module import split_module
from torch.utils import _pytree as pytree

import symmc
from symmc.torch.importing import lift
from symmc.torch.ranks import process_groups
from symmc.torch.runtime.planned_graph import UNKNOWN, Compiled, Refused, device_of
from symmc.torch.runtime.arenas import Arenas
from symmc.torch.legalise.decompose import Expanded
from symmc.torch.settings.options import Options
from symmc.torch.ranks.process_groups import Apart
from symmc.torch.legalise.canonical_order import in_canonical_order
from symmc.torch.runtime.runner import DTYPES, Runner

_warned: set[tuple[str, str]] = set()
"""The operators with their lines that a warning named already."""


class Search:
    """The search for a way to run a graph: its options, and the operators that symmc does not run as they are."""

    def __init__(self, options: Options, sizes: Mapping[str, int] | None = None, arenas: Arenas | None = None):
        self.options, self.sizes, self.arenas = options, sizes or {}, arenas
        self.whole: dict[int, str] = {}
        """The operators that the fallback runs, by their numbers in the compiled graph, and why."""
        self.fixes = False
        """Whether sizes may be taken for numbers, where an operator is refused for them that has no other form."""
        self.first: dict[int, tuple[str, Exception]] = {}
        """Why each operator was refused at first, before it was decomposed."""
        self.apart: Apart | None = None
        """Why the graphs of ranks are not one program, if they are not. PyTorch runs the collectives then."""
        self.is_reordered = False
        """Whether the nodes were sorted independently of the order of the calls in the model."""
        self.function: Callable[[list], list] | None = None
        """The result: a function of the list of the inputs of the graph."""
        self.runners: list[Runner] = []
        """What runs the plans of the function."""

    def leave_collectives(self, graph: torch.fx.Graph, why: str) -> None:
        """Leaves the collectives of a graph to PyTorch."""
        _number(graph)
        self.whole |= {number: why for number in _collectives(graph)}

    def note(self, found: Refused, nodes: dict[int, str]) -> None:
        for node, why in nodes.items():
            self.first.setdefault(node, (why, found.error))

    def are_sizes(self, failed: dict[int, str]) -> bool:
        """Whether sizes were why one of these was refused at first."""
        return any(getattr(self.first[node][1], "symbols", ()) for node in failed)

    def leave(self, failed: dict[int, str], found: Refused) -> None:
        """Leaves operators to the fallback, or raises if there is none."""
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


def compiled(module: torch.fx.GraphModule, search: Search):
    """A function of the list of the inputs of a graph: one plan, or several with what is between them."""
    _number(module.graph)
    search.function = _found(module, search)
    return search.function


def in_eager(module: torch.fx.GraphModule):
    """A graph as a function of the list of its inputs, without compilation."""
    return _Elsewhere(module, "eager")


def _number(graph: torch.fx.Graph) -> None:
    for number, node in enumerate(graph.nodes):
        node.meta[lift.NUMBER] = number


def _found(module: torch.fx.GraphModule, search: Search):
    graph, options, given = Expanded(module, search.whole), search.options, module
    while True:
        try:
            return _compiled(graph.module, search)
        except Refused as found:
            if found.error.is_of_dtypes:
                # Eager raises here; the decomposed operator might not.
                return _Raising(given, found.error)
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
            module = _after_apart(given, module, search, error)
            graph = Expanded(module, search.whole)
        except symmc.Error as error:
            if error.kind == "input" and error.symbols and not search.fixes:
                # Sizes of which nothing else is known may be numbers.
                search.fixes = True
                graph = Expanded(module, search.whole)
                continue
            # No single node is to blame: leave those with unsupported types or sizes, or all.
            if error.kind not in ("input", "unsupported"):
                raise
            odd = {graph.origins[number]: why for number, why in _odd(graph.module.graph, error).items()}
            odd = {number: why for number, why in odd.items() if number not in search.whole}
            if options.fallback == "error":
                named = _named(graph.module.graph, error)
                if named is None:
                    raise
                raise named from error
            if not odd:
                text = f"symmc leaves a graph to {options.fallback}: {error}"
                warnings.warn(text, stacklevel=2)
                return _Elsewhere(given, options.fallback)
            search.whole |= odd
            graph = Expanded(module, search.whole)


def _after_apart(given: torch.fx.GraphModule, module: torch.fx.GraphModule, search: Search, error: Apart):
    """The next graph to try if the graphs of ranks are not one program. All ranks get the same result."""
    if not search.is_reordered:
        search.is_reordered = True
        # A rank whose graph has no such order tries once more with the others.
        return in_canonical_order(given) or given
    # Each rank runs the operators between its collectives, and its graph may differ from the others.
    search.apart = error
    found = {number: f"the graphs of ranks differ: {error}" for number in _collectives(given.graph)}
    if search.options.fallback == "error" or found.keys() <= search.whole.keys():
        raise error
    search.whole |= found
    return given


def _compiled(module: torch.fx.GraphModule, search: Search):
    refused, options = search.whole, search.options
    search.runners.clear()
    calls = [node for node in module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    if not any(_is_tensor(node) for node in calls):
        return _Elsewhere(module, "eager")
    if not refused:
        return _planned(module, search)
    _warn(calls, refused, options)
    return _Cut(module, search)


def _planned(module: torch.fx.GraphModule, search: Search):
    """A graph as a plan, unless all that it gives are views of its inputs: these are made as eager makes them."""
    with process_groups.refusing_together(lift.groups_in(module.graph), search.options.timeout):
        lifted = lift.Lifted.of(module)
        device_of(lifted)
    if not lifted.exported.graph_signature.output_specs:
        return _Elsewhere(module, "eager")
    planned = Compiled(lifted, search.options, search.fixes, search.sizes, search.arenas)
    search.runners.append(planned.runner)
    return planned


def _collectives(graph: torch.fx.Graph) -> list[int]:
    """The numbers of collectives, and of what waits for them."""

    def is_one(node: torch.fx.Node) -> bool:
        return isinstance(node.target, torch._ops.OpOverload) and (
            node.target.namespace.startswith("_c10d_functional") or any(map(lift.is_group, node.target._schema.arguments))
        )

    return [node.meta[lift.NUMBER] for node in graph.nodes if is_one(node)]


def _is_communication(graph: torch.fx.Graph) -> bool:
    """Whether all that a stage computes are collectives: there is nothing to compile."""
    calls = [node for node in graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    begun = [node for node in calls if lift.groups_of(node)]
    return bool(begun) and all(node in begun or _is_wait(node) or not _is_tensor(node) for node in calls)


def _is_wait(node: torch.fx.Node) -> bool:
    """Whether a node waits for a collective that another one began."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.endswith("::wait_tensor")


def _odd(graph: torch.fx.Graph, error: symmc.Error) -> dict[int, str]:
    """The numbers of nodes that touch what symmc does not know, and why others run them: elements of a type that it does not
    know, or sizes that depend on data."""

    def is_odd(node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype not in (*DTYPES.values(), torch.complex64, torch.complex128)

    calls = [node for node in graph.nodes if node.op == "call_function"]
    found = {node.meta[lift.NUMBER]: str(error) for node in calls if is_odd(node) or any(map(is_odd, node.all_input_nodes))}
    for node in calls:
        symbols = _data_symbols(node)
        if symbols:
            names = ", ".join(sorted(map(str, symbols)))
            found[node.meta[lift.NUMBER]] = f"a size depends on data ({names}): symmc plans sizes that arguments have"
    return found


def _data_symbols(node: torch.fx.Node) -> set:
    """The symbols of sizes that depend on data, in the operands and results of a node."""
    values = pytree.tree_leaves([node.meta.get("val"), *[given.meta.get("val") for given in node.all_input_nodes]])
    return set().union(*map(free_unbacked_symbols, values)) if values else set()


def _named(graph: torch.fx.Graph, error: symmc.Error) -> symmc.Error | None:
    """The error of a graph in which sizes depend on data, with the first operator and its line."""
    odd = _odd(graph, error)
    for node in graph.nodes:
        if node.op == "call_function" and _data_symbols(node):
            why = f"{odd[node.meta[lift.NUMBER]]}; give the size as an argument of the compiled function, or set `fallback`"
            named = symmc.UnsupportedError(f"{node.target}{lift.line_of(node)}: {why}")
            named.node = node.name
            return named
    return None


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


class _Cut:
    """A graph in stages: those of symmc and others take turns."""

    def __init__(self, module: torch.fx.GraphModule, search: Search):
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
                function = _planned(_as_tuple(part), search)
            else:
                function = _Elsewhere(part, "eager" if _is_communication(part.graph) else options.fallback)
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
        if how == "inductor" and not _lacks_symbols(module):
            self.function = _by_inductor(module)
        else:
            self.module = module

    def __call__(self, inputs: list):
        return list(self.module(*inputs) if self.function is None else self.function(list(inputs)))


def _lacks_symbols(module: torch.fx.GraphModule) -> bool:
    """Whether inputs are expressions of sizes that no input is or has, which Inductor cannot compute them from."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    needed, given = set(), set()
    for value in values:
        if not isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            continue
        needed |= free_symbols(value)
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        given |= {size.node.expr for size in sizes if isinstance(size, (torch.SymInt, torch.SymFloat))}
    return not needed <= given


class _Raising:
    """A graph with operands of dtypes that PyTorch rejects in eager, but not while it traces: eager runs it up to the error."""

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
        is_refused = node.meta[lift.NUMBER] in refused
        if node.target is operator.getitem or _is_wait(node) or not (_is_tensor(node) or is_refused):
            # What a node gives several of, sizes, and waits for who begins something belong where they come from.
            stages[node] = max(before, default=0)
            continue
        kind = int(is_refused)
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
        if node.meta[lift.NUMBER] in refused:
            named = (str(node.target), lift.line_of(node))
            if named not in _warned:
                _warned.add(named)
                new.append(f"{named[0]}{named[1]}: {refused[node.meta[lift.NUMBER]]}")
    if new:
        text = "\n  ".join(new)
        warnings.warn(f"symmc leaves {len(new)} operator(s) to {options.fallback}:\n  {text}", stacklevel=2)
