"""Graphs of PyTorch as programs: by way of ``torch.export``'s own format, which symmc reads."""

from __future__ import annotations

import contextlib
import operator
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._export.verifier import SpecViolationError
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export import graph_signature as signature
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

import symmc
from symmc.torch.importing import archive
from symmc.torch.importing.size_steps import Steps, numbers, steps
from symmc.torch.legalise.rank_slices import take_parts
from symmc.torch.ranks.process_groups import in_order

NUMBER = "symmc"
"""Where nodes have their number in the graph that is compiled: names differ between copies of it."""

_KEPT = ("val", "tensor_meta", "stack_trace", NUMBER)

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


def archived(exported: ExportedProgram) -> bytes:
    """An exported program as a file."""
    try:
        return archive.stored(exported)
    except Exception as error:
        # PyTorch has no one class for what its format cannot hold.
        refusal = symmc.UnsupportedError(f"torch.export does not store the graph: {error}")
        named = re.search(r"Failed serializing node (\w+)", str(error))
        refusal.node = named[1] if named else None
        raise refusal from error


def opened(archives: list[bytes], **options) -> symmc.Program:
    """The program of an archive, or of those of all ranks."""
    with tempfile.TemporaryDirectory(prefix="symmc-") as folder:
        paths = []
        for rank, archive in enumerate(archives):
            paths.append(os.path.join(folder, f"graph{rank}.pt2" if len(archives) > 1 else "graph.pt2"))
            with open(paths[-1], "wb") as file:
                file.write(archive)
        try:
            return symmc.open(paths if len(paths) > 1 else paths[0], **options)
        except symmc.Error as error:
            # Nobody else knows these files.
            for rank, path in enumerate(paths):
                name = "the graph" if len(paths) == 1 else f"the graph of rank {rank}"
                error.args = tuple(str(text).replace(path, name).replace("the archive of rank", "the graph of rank") for text in error.args)
            error.path = None
            raise


def exported_of(module: torch.fx.GraphModule, inputs=None) -> ExportedProgram:
    """A graph of ATen operators as an exported program."""
    _check_graph(module, inputs)
    return _Lifting.whole(_valued(module, inputs))


def _check_graph(module, inputs) -> None:
    """Refuses what is no graph of ATen operators with values."""
    if not isinstance(module, torch.fx.GraphModule):
        raise symmc.InputError(f"expected a torch.fx.GraphModule, found {type(module).__name__}")
    for node in module.graph.nodes:
        if node.op in ("call_module", "call_method"):
            found = f"{node.op} {node.target}"
            raise symmc.InputError(f"node {node.name}: expected ATen operators, as make_fx gives them, found {found}")
    for node in module.graph.nodes:
        if inputs is None and node.op == "placeholder" and "val" not in node.meta:
            raise symmc.InputError(f"input {node.name}: its value is not known: give example inputs")
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    if inputs is not None and not isinstance(inputs, (list, tuple)):
        raise symmc.InputError(f"inputs: expected a list of example inputs, found {type(inputs).__name__}")
    if inputs is not None and len(inputs) != len(placeholders):
        raise symmc.InputError(f"inputs: the graph has {len(placeholders)}, found {len(inputs)}")


def _valued(module: torch.fx.GraphModule, inputs) -> torch.fx.GraphModule:
    """A copy of a graph whose nodes carry their values, all of one mode of fake tensors."""
    module = torch.fx.GraphModule(module, copied(module.graph, {}))
    nodes = list(module.graph.nodes)
    if inputs is None:
        values = pytree.tree_leaves([node.meta.get("val") for node in nodes])
        modes = {id(value.fake_mode) for value in values if isinstance(value, FakeTensor)}
        if len(modes) == 1 and all("val" in node.meta for node in nodes if node.op == "call_function"):
            return module
        # Each value has a mode of its own where real tensors were traced.
        inputs = [node.meta["val"] for node in nodes if node.op == "placeholder"]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*pytree.tree_map(lambda given: _faked(given, mode), inputs))
    return module


def _faked(given, mode: FakeTensorMode):
    if not isinstance(given, torch.Tensor):
        return given
    with mode:
        return torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)


def copied(graph: torch.fx.Graph, known: dict[torch.fx.Node, torch.fx.Node]) -> torch.fx.Graph:
    """A copy of a graph; ``known`` is told the new node of each."""
    copy = torch.fx.Graph()
    returned = copy.graph_copy(graph, known)
    copy.output(returned)
    for old, new in known.items():
        new.meta = dict(old.meta)
    return copy


@dataclass
class Lifted:
    """A graph as an exported program, and how its inputs and outputs are those of the graph."""

    exported: ExportedProgram
    inputs: list[int]
    """Which inputs of the graph are arguments of the program, in their order: all that are tensors."""
    values: list[Any]
    """The value of every input of the graph, as it was traced."""
    finish: Callable[[list, list], tuple]
    """The outputs of the graph, of its inputs and of the results of the program: these themselves, views of them, and sizes."""
    devices: list[torch.device]
    """Where the outputs of the program that replace none are wanted."""
    mutated: list[int]
    """Which arguments of the program are replaced."""
    complex: list[int]
    """Which arguments of the program are complex numbers, which it takes as real ones with one more axis."""
    orders: dict[int, list[int]]
    """The axes from the outermost in memory to the innermost of arguments whose axes are stored in another order: the program
    takes them as they are stored."""
    ranges: dict
    """The least and the largest value of each symbol."""
    groups: list[str]
    """The process groups, in the order in which they were made; the program calls them ``0``, ``1`` and so on."""
    steps: list[Steps]
    """Sizes that are multiples of something."""
    numbers: list[str]
    """Sizes that have to be numbers in the program."""

    def archive(self, ranges: dict[str, tuple[int, int]]) -> bytes:
        """The program as a file, for symbols in these ranges, of which they may know more."""
        for symbol, found in self.ranges.items():
            least, most = ranges.get(str(symbol), (0, None))
            if least == most:
                found = ValueRanges(least, most)
            elif most is not None and not (found.upper.is_Integer and found.upper < most):
                found = ValueRanges(found.lower, max(most, int(found.lower)))
            self.exported.range_constraints[symbol] = found
        return archived(self.exported)

    def of_symbols(self, sizes: dict[str, int]) -> dict[str, int]:
        """The values of all symbols of the program, of those of the graph's."""
        return sizes | {one.part: one.parts(sizes[one.symbol]) for one in self.steps if one.symbol in sizes}

    @staticmethod
    def of(module: torch.fx.GraphModule) -> Lifted:
        """The program of a functional graph, of which changes of inputs at the end are part."""
        graph = torch.fx.Graph()
        known: dict[torch.fx.Node, torch.fx.Node] = {}
        returned = graph.graph_copy(module.graph, known)
        for old, new in known.items():
            new.meta = {key: old.meta[key] for key in _KEPT if key in old.meta}
        # What is replaced is so in what the graph gives, too.
        end = graph.output(returned)
        _write_out_sums(graph)
        _take_sizes_of_operands(graph)
        _forget_random_state(graph)
        if groups_in(graph):
            with assuming_nothing(environment_of(graph)):
                take_parts(graph)
        returned = end.args[0]
        graph.erase_node(end)
        return _Lifting(module, graph, returned).lifted()


class _Lifting:
    """What is known while a graph becomes an exported program."""

    def __init__(self, module, graph: torch.fx.Graph, returned, is_numbered: bool = True):
        self.module, self.graph, self.is_numbered = module, graph, is_numbered
        self.placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.returned = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        self.groups: list[str] = []
        self.objects: dict[torch.fx.Node, object] = {}
        """What the graph has beside tensors and only gives back."""

    def lifted(self) -> Lifted:
        values = [node.meta.get("val") for node in self.placeholders]
        specs, constants = self._constants()
        tensors = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
        specs += [_input(node) for node in self._kept()]
        mutations = self._mutations()
        mutated = [tensors.index(self.placeholders.index(target)) for target, _ in mutations]
        finishing = _Finishing(self.graph, self.placeholders, {target for target, _ in mutations}, self.objects)
        finish, results = finishing.outputs(self.returned)
        orders = self._as_stored([self.placeholders[at] for at in tensors], mutations)
        exported = self._exported((specs, constants), mutations, results)
        devices = [node.meta["val"].device for node in results]
        odd = [at for at, tensor in enumerate(tensors) if values[tensor].is_complex()]
        ranges = dict(exported.range_constraints)
        known = steps(self.graph, environment_of(self.graph)), numbers(self.graph)
        return Lifted(exported, tensors, values, finish, devices, mutated, odd, orders, ranges, self.groups, *known)

    @staticmethod
    def whole(module: torch.fx.GraphModule) -> ExportedProgram:
        """A graph as an exported program all of whose outputs are results."""
        graph = copied(module.graph, {})
        _write_out_sums(graph)
        _take_sizes_of_operands(graph)
        _forget_random_state(graph)
        end = next(node for node in graph.nodes if node.op == "output")
        returned = end.args[0]
        graph.erase_node(end)
        # The members of its groups are looked up by name: those of the default group are all ranks, others the caller states.
        lifting = _Lifting(module, graph, pytree.tree_leaves(returned), is_numbered=False)
        specs, constants = lifting._constants()
        specs += [_input(node) for node in lifting._kept()]
        return lifting._exported((specs, constants), lifting._mutations(), lifting.returned)

    def _constants(self):
        """Tensors of the module become inputs that the program carries."""
        specs, constants = [], {}
        first = next(iter(self.graph.nodes), None)
        for node in [node for node in self.graph.nodes if node.op == "get_attr"]:
            tensor = operator.attrgetter(node.target)(self.module)
            if not isinstance(tensor, torch.Tensor):
                # What is given back as it is, such as the mesh of a DTensor.
                if not node.users:
                    self.objects[node] = tensor
                    self.graph.erase_node(node)
                continue
            if node.target not in constants:
                constants[node.target] = tensor.detach()
            with self.graph.inserting_before(first):
                name = f"constant_{len(specs)}"
                placeholder = self.graph.placeholder(name)
            placeholder.meta = node.meta
            node.replace_all_uses_with(placeholder)
            self.returned = [placeholder if out is node else out for out in self.returned]
            self.graph.erase_node(node)
            specs.append(
                signature.InputSpec(
                    signature.InputKind.CONSTANT_TENSOR, signature.TensorArgument(name=placeholder.name), node.target
                )
            )
        return specs, constants

    def _as_stored(self, tensors: list[torch.fx.Node], mutations: list) -> dict[int, list[int]]:
        """Has the program take tensors with their axes in the order of their strides, so that they need no copy, and give what
        replaces them in the same order; the orders, by the numbers of the tensors."""
        orders, permute = {}, torch.ops.aten.permute.default
        for number, node in enumerate(tensors):
            value, order = node.meta["val"], _memory_order(node.meta["val"])
            if value.is_complex() or order is None or order == sorted(order):
                continue
            orders[number], users = order, list(node.users)
            node.meta["val"] = value.permute(order)
            with self.graph.inserting_after(node):
                given = self._call(permute, (node, inverse(order)), {}, value)
            for user in users:
                user.replace_input_with(node, given)
            for at, (target, new) in enumerate(mutations):
                if target is node:
                    mutations[at] = target, self._call(permute, (new, order), {}, new.meta["val"].permute(order))
        return orders

    def _exported(self, inputs, mutations: list, results: list) -> ExportedProgram:
        """The graph with these inputs (and constants), replacements of inputs, and results."""
        (specs, constants), kind = inputs, signature.OutputKind
        out_specs = [signature.OutputSpec(kind.USER_INPUT_MUTATION, _argument(node), target.name) for target, node in mutations]
        out_specs += [signature.OutputSpec(kind.USER_OUTPUT, _argument(node), None) for node in results]
        self.graph.output(tuple(node for _, node in mutations) + tuple(results))
        self.graph.lint()
        try:
            # PyTorch 2.9 expects the fake tensors of what is being compiled meanwhile, if something is.
            with tracing(None):
                return ExportedProgram(
                    root=torch.fx.GraphModule(self.module, self.graph),
                    graph=self.graph,
                    graph_signature=signature.ExportGraphSignature(specs, out_specs),
                    state_dict={},
                    range_constraints=_ranges(self.graph),
                    module_call_graph=[_call(len(specs) - len(constants), len(results))],
                    constants=constants,
                )
        except SpecViolationError as error:
            raise symmc.InputError(f"expected a functional graph of ATen operators: {error}") from error

    def _kept(self) -> list[torch.fx.Node]:
        """Inputs but for objects of Python, such as meshes, that nothing uses once process groups have names."""
        self._rename_groups()
        kept = []
        for node in self.placeholders:
            if isinstance(node.meta.get("val"), (torch.Tensor, torch.SymInt, int, float, bool)) or node.users:
                kept.append(node)
            else:
                self.graph.erase_node(node)
        return kept

    def _mutations(self):
        """Inputs with what replaces them: ``copy_`` at the end of the graph."""
        found: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in list(self.graph.nodes):
            if node.op == "call_function" and node.target is torch.ops.aten.copy_.default:
                target, value = node.args[0], node.args[1]
                if target.op != "placeholder":
                    continue
                found[target] = self._of_type(node, target, value)
                node.replace_all_uses_with(found[target])
                self.returned = [found[target] if out is node else out for out in self.returned]
                self.graph.erase_node(node)
        return list(found.items())

    def _of_type(self, copy, target, value):
        """A value as its target has it: of its type and extents, and not an input as it is."""
        with self.graph.inserting_before(copy):
            want, have = target.meta["val"], value.meta["val"]
            if have.dtype != want.dtype:
                value = self._call(torch.ops.aten._to_copy.default, (value,), {"dtype": want.dtype}, want)
            if tuple(have.shape) != tuple(want.shape):
                value = self._call(torch.ops.aten.expand.default, (value, list(want.shape)), {}, want)
            if value.op == "placeholder":
                value = self._call(torch.ops.aten.clone.default, (value,), {}, want)
        return value

    def _call(self, target, args, kwargs, value):
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = value
        return node

    def _rename_groups(self):
        """Process groups by the order in which they were made, where their own names may differ between ranks; by names
        otherwise."""
        self.groups = in_order(groups_in(self.graph))
        if self.is_numbered:
            rename_groups(self.graph, lambda name: str(self.groups.index(name)))


def groups_of(node: torch.fx.Node) -> list[str]:
    """The names of the process groups that a node has as arguments."""
    found = [group_argument(node, at, argument) for at, argument in _arguments(node)]
    return [name for name in found if name is not None]


def groups_in(graph: torch.fx.Graph) -> list[str]:
    """The names of the process groups of a graph, by their first use."""
    return list(dict.fromkeys(name for node in graph.nodes for name in groups_of(node)))


def rename_groups(graph: torch.fx.Graph, renamed: Callable[[str], str]) -> None:
    """Has a graph call its process groups by other names."""
    for node in graph.nodes:
        for at, argument in _arguments(node):
            name = group_argument(node, at, argument)
            if name is not None and at < len(node.args):
                node.update_arg(at, renamed(name))
            elif name is not None:
                node.update_kwarg(argument.name, renamed(name))


def _arguments(node: torch.fx.Node):
    """The arguments of an operator's schema, numbered."""
    is_operator = node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
    return enumerate(node.target._schema.arguments) if is_operator else ()


def _write_out_sums(graph: torch.fx.Graph) -> None:
    """Sums of several sizes as sums of two, which the format has."""
    sums = getattr(torch, "sym_sum", None)
    for node in [node for node in graph.nodes if node.op == "call_function" and node.target is sums]:
        terms = list(node.args[0]) or [0]
        total, value = terms[0], _size(terms[0])
        with graph.inserting_before(node):
            for term in terms[1:]:
                total = graph.call_function(operator.add, (total, term))
                value = value + _size(term)
                total.meta = {**node.meta, "val": value}
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def _take_sizes_of_operands(graph: torch.fx.Graph) -> None:
    """Sizes that operators give beside tensors, as attention on GPUs does, are those of their operands.

    The format has numbers there, but no sizes that vary.
    """
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        values = node.meta.get("val")
        if not isinstance(values, (tuple, list)) or not any(isinstance(value, torch.SymInt) for value in values):
            continue
        known, read = list(values), [user for user in node.users if user.target is operator.getitem]
        for at, value in enumerate(values):
            same = _axis_of(node.all_input_nodes, value) if isinstance(value, torch.SymInt) else None
            readers = [user for user in read if user.args[1] == at]
            if same is None and (readers or not isinstance(value, torch.SymInt)):
                continue
            for user in readers:
                with graph.inserting_before(user):
                    size = graph.call_function(torch.ops.aten.sym_size.int, same)
                size.meta = dict(user.meta)
                user.replace_all_uses_with(size)
                graph.erase_node(user)
            # Nobody reads it any more.
            known[at] = 0
        node.meta["val"] = type(values)(known)


def _forget_random_state(graph: torch.fx.Graph) -> None:
    """Results of a dtype that the format of some versions of PyTorch has not, and that nobody reads, as that of flash attention."""
    for node in graph.nodes:
        values = node.meta.get("val")
        if node.op != "call_function" or not isinstance(values, (tuple, list)):
            continue
        read = {user.args[1] for user in node.users if user.target is operator.getitem}
        is_odd = lambda value: isinstance(value, torch.Tensor) and value.dtype in (torch.uint16, torch.uint32, torch.uint64)
        if any(is_odd(value) and at not in read for at, value in enumerate(values)):
            known = [None if is_odd(value) and at not in read else value for at, value in enumerate(values)]
            node.meta["val"] = type(values)(known)


def _axis_of(nodes: list[torch.fx.Node], size: torch.SymInt):
    """A tensor of these and its axis of this size, whatever the size is."""
    for node in nodes:
        value = node.meta.get("val")
        for axis, extent in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(extent, torch.SymInt) and extent.node.expr == size.node.expr:
                return node, axis
    return None


def _size(term):
    return term.meta["val"] if isinstance(term, torch.fx.Node) else term


class _Finishing:
    """How the outputs of a graph are made of its inputs and of the results of the program.

    Views are views of what eager's are views of, with its strides: whoever has them may ask for their layout, and sees what is
    written to what they share.
    """

    def __init__(
        self,
        program: torch.fx.Graph,
        placeholders: list[torch.fx.Node],
        mutated: set[torch.fx.Node],
        objects: dict[torch.fx.Node, object],
    ):
        self.program, self.placeholders, self.mutated, self.objects = program, placeholders, mutated, objects
        self.graph, self.module = torch.fx.Graph(), torch.nn.Module()
        self.inputs, self.given = self.graph.placeholder("inputs"), self.graph.placeholder("results")
        self.results: list[torch.fx.Node] = []
        self.known: dict[torch.fx.Node, torch.fx.Node] = {}

    def outputs(self, returned: list):
        """A function of the inputs and the results, and the nodes of the program that are its results."""
        self.graph.output(tuple(self._made(out) if isinstance(out, torch.fx.Node) else out for out in returned))
        return torch.fx.GraphModule(self.module, self.graph).forward, self.results

    def _made(self, node: torch.fx.Node) -> torch.fx.Node:
        if node not in self.known:
            if node in self.placeholders:
                self.known[node] = self._item(self.inputs, self.placeholders.index(node))
            elif node in self.objects:
                name = f"object_{len(self.known)}"
                setattr(self.module, name, self.objects[node])
                self.known[node] = self.graph.get_attr(name)
            elif isinstance(node.meta.get("val"), _SYMBOLIC) or self._is_replayed(node):
                self.known[node] = self.graph.node_copy(node, self._made)
            else:
                self.known[node] = self._result(node)
        return self.known[node]

    def _item(self, of: torch.fx.Node, number: int) -> torch.fx.Node:
        return self.graph.call_function(operator.getitem, (of, number))

    def _is_replayed(self, node: torch.fx.Node) -> bool:
        """Whether a node is a view that is made of the tensor of which it is one: as it was traced, with the same strides."""
        base = _base(node)
        if base is node or base in self.mutated:
            return False
        if base.op == "placeholder":
            return base in self.placeholders
        return _memory_order(base.meta["val"]) is not None

    def _result(self, node: torch.fx.Node) -> torch.fx.Node:
        """A result of the program, with its axes in the order of its strides: the program's results are contiguous.

        Complex numbers are real ones with one more axis.
        """
        order = _memory_order(node.meta["val"])
        given = self._item(self.given, len(self.results))
        if node.meta["val"].is_complex():
            given = self.graph.call_function(torch.ops.aten.view_as_complex.default, (given,))
        if order is None or order == sorted(order):
            self.results.append(node)
            return given
        stored = self.program.call_function(torch.ops.aten.permute.default, (node, order))
        stored.meta = {key: value for key, value in node.meta.items() if key in (NUMBER, "stack_trace")}
        stored.meta["val"] = node.meta["val"].permute(order)
        self.results.append(stored)
        return self.graph.call_function(torch.ops.aten.permute.default, (given, inverse(order)))


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of, itself if it is none."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], torch.fx.Node):
        is_view = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
        is_part = node.target is operator.getitem and _base(node.args[0]) is not node.args[0]
        if not (is_view or is_part):
            break
        node = node.args[0]
    return node


def inverse(order: list[int]) -> list[int]:
    """The permutation that undoes one."""
    return [order.index(axis) for axis in range(len(order))]


def _memory_order(value) -> list[int] | None:
    """The axes from the outermost in memory to the innermost; none where elements do not lie behind each other."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    sizes, strides = _hints(value.shape), _hints(value.stride())
    if None in sizes or None in strides:
        return None
    order = sorted(range(len(sizes)), key=lambda axis: -strides[axis])
    expected = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    return order


def _hints(sizes) -> list[int | None]:
    return [size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes]


def group_argument(node: torch.fx.Node, at: int, argument) -> str | None:
    """The name of a process group, if this argument of a node is one."""
    if not is_group(argument):
        return None
    name = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
    if isinstance(name, torch.fx.Node):
        # The process group itself, which the graph is given.
        group = getattr(name.meta.get("val"), "real_obj", None)
        return getattr(group, "group_name", None)
    return name if isinstance(name, str) else None


def is_group(argument) -> bool:
    """Whether an argument of a schema is a process group."""
    return argument.name.endswith(("group_name", "process_group"))


def _input(node: torch.fx.Node):
    return signature.InputSpec(signature.InputKind.USER_INPUT, _argument(node), None)


def _argument(node):
    """What a signature says of an input, or of an output, which may be no node."""
    if not isinstance(node, torch.fx.Node):
        return signature.ConstantArgument(name="", value=node)
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return signature.TensorArgument(name=node.name)
    if isinstance(value, torch.SymInt):
        return signature.SymIntArgument(name=node.name)
    return signature.ConstantArgument(name=node.name, value=value)


def _call(inputs: int, outputs: int) -> ModuleCallEntry:
    given = pytree.tree_structure((tuple(range(inputs)), {}))
    result = pytree.tree_structure(tuple(range(outputs)))
    return ModuleCallEntry("", ModuleCallSignature([], [], given, result))


def _ranges(graph: torch.fx.Graph) -> dict:
    """The least and the largest value of each symbol that the graph has: Dynamo knows others, as of numbers of a rank."""
    found = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                known = size.node.shape_env.var_to_range
                found |= {symbol: _range(known[symbol]) for symbol in size.node.expr.free_symbols if symbol not in found}
    return found


def _range(found: ValueRanges) -> ValueRanges:
    lower = max(int(found.lower), 0) if found.lower.is_Integer else 0
    upper = int(found.upper) if found.upper.is_Integer else int_oo
    # Of numbers that are never sizes nothing is known before one of them is there.
    return ValueRanges(lower, upper if upper >= lower else int_oo)


_PYTORCH = os.path.dirname(torch.__file__) + os.sep


def line_of(node: torch.fx.Node) -> str:
    """Where in the model a node comes from: the innermost line that is not PyTorch's own, if there is one."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File ")]
    lines = [line for line in lines if _PYTORCH not in line] or lines
    return f" ({lines[-1]})" if lines else ""


def environment_of(graph: torch.fx.Graph):
    """What PyTorch knows of the sizes of a graph, if any of them vary."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for size in getattr(value, "shape", ()) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def ignored_guards(environment) -> int:
    """How often something was assumed of sizes after Dynamo had made its guards, which therefore do not ask for it."""
    return 0 if environment is None else environment.counter["ignored_backward_guard"]


@contextlib.contextmanager
def assuming_nothing(environment):
    """While this lasts, what is asked of sizes holds for all of them: it is no guard."""
    if environment is None:
        yield
        return
    before = ignored_guards(environment)
    with environment.suppress_guards():
        yield
    environment.counter["ignored_backward_guard"] = before
