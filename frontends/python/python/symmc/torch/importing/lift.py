"""Lift: turns a functional graph into a graph whose inputs and results are tensors only."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from symmc._symmc import SizeStep
from symmc.torch.graphs.layouts import inverse_permutation, memory_order
from symmc.torch.graphs.nodes import copy_graph, output_of, process_groups_in, rename_process_groups
from symmc.torch.graphs.sizes import shape_env_of
from symmc.torch.importing.outputs import OutputBuilder
from symmc.torch.importing.size_steps import find_fixed_sizes, find_size_steps
from symmc.torch.importing.writer import ProgramGraph, Ranges, Signature
from symmc.torch.ranks.process_groups import sort_by_creation


@dataclass
class LiftedGraph:
    """A graph as a program, and how the inputs and outputs of both are related."""

    program: ProgramGraph
    inputs: list[int]
    """The inputs of the graph that are arguments of the program, in order: all tensors."""
    values: list[Any]
    """The traced value of every input of the graph."""
    finish: Callable[[list, list], tuple]
    """Makes the outputs of the graph from its inputs and the results of the program: these values, views of them, and sizes."""
    devices: list[torch.device]
    """The devices of the outputs of the program that replace no argument."""
    mutated: list[int]
    """The arguments of the program that are replaced."""
    complex: list[int]
    """The arguments of the program that are complex numbers. It takes them as real numbers with one more axis."""
    orders: dict[int, list[int]]
    """The axes from the outermost in memory to the innermost, for arguments whose axes are stored in another order. The program takes
    them in the stored order."""
    groups: list[str]
    """The process groups, in the order in which they were made; the program calls them ``0``, ``1`` and so on."""
    steps: list[SizeStep]
    """Sizes that are always multiples of a number."""
    numbers: list[str]
    """Sizes that have to be numbers in the program."""

    def archive(self, ranges: dict[str, tuple[int, int]]) -> bytes:
        """The program as a file, for symbols in these ranges, which the graph may narrow."""
        narrowed: Ranges = {}
        for symbol, (lower, upper) in self.program.ranges.items():
            least, most = ranges.get(symbol, (0, None))
            if least == most:
                lower = upper = most
            elif most is not None and (upper is None or upper >= most):
                upper = max(most, lower or 0)
            narrowed[symbol] = lower, upper
        return dataclasses.replace(self.program, ranges=narrowed).archive()

    @staticmethod
    def from_module(module: torch.fx.GraphModule) -> LiftedGraph:
        """Lifts a functional graph, including the changes of inputs at its end."""
        return GraphLifter(module).lift()


class GraphLifter:
    """Turns a copy of a graph into a program."""

    def __init__(self, module: torch.fx.GraphModule, is_numbered: bool = True):
        self.module, self.graph, self.is_numbered = module, copy_graph(module.graph, {}), is_numbered
        self.placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        end = output_of(self.graph)
        self.returned = pytree.tree_leaves(end.args[0])
        self.graph.erase_node(end)
        self.groups: list[str] = []
        self.objects: dict[torch.fx.Node, object] = {}
        """Objects other than tensors that the graph only returns."""

    def lift(self) -> LiftedGraph:
        values = [node.meta.get("val") for node in self.placeholders]
        constants = self._constants()
        tensors = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
        self._name_groups()
        mutations = self._mutations()
        mutated = [tensors.index(self.placeholders.index(target)) for target, _ in mutations]
        finishing = OutputBuilder(self.graph, self.placeholders, {target for target, _ in mutations}, self.objects)
        finish, results = finishing.build(self.returned)
        orders = self._as_stored([self.placeholders[at] for at in tensors], mutations)
        program = self._program(constants, mutations, results)
        devices = [node.meta["val"].device for node in results]
        odd = [at for at, tensor in enumerate(tensors) if values[tensor].is_complex()]
        known = find_size_steps(self.graph, shape_env_of(self.graph)), find_fixed_sizes(self.graph)
        return LiftedGraph(program, tensors, values, finish, devices, mutated, odd, orders, self.groups, *known)

    @staticmethod
    def whole_program(module: torch.fx.GraphModule) -> ProgramGraph:
        """A graph as a program all of whose outputs are results."""
        # The members of its groups are looked up by name: those of the default group are all ranks, others the caller states.
        lifting = GraphLifter(module, is_numbered=False)
        constants = lifting._constants()
        lifting._name_groups()
        return lifting._program(constants, lifting._mutations(), lifting.returned)

    def _constants(self) -> dict[torch.fx.Node, str]:
        """Turns tensors of the module into inputs whose data is part of the program. Returns these inputs, with their names there."""
        constants: dict[torch.fx.Node, str] = {}
        first = next(iter(self.graph.nodes), None)
        for node in [node for node in self.graph.nodes if node.op == "get_attr"]:
            tensor = operator.attrgetter(node.target)(self.module)
            if not isinstance(tensor, torch.Tensor):
                # An object that is returned unchanged, such as the mesh of a DTensor.
                if not node.users:
                    self.objects[node] = tensor
                    self.graph.erase_node(node)
                continue
            with self.graph.inserting_before(first):
                placeholder = self.graph.placeholder(f"constant_{len(constants)}")
            placeholder.meta = node.meta
            node.replace_all_uses_with(placeholder)
            self.returned = [placeholder if out is node else out for out in self.returned]
            self.graph.erase_node(node)
            constants[placeholder] = node.target
        return constants

    def _as_stored(self, tensors: list[torch.fx.Node], mutations: list) -> dict[int, list[int]]:
        """Makes the program take tensors with their axes in the order of their strides, so that they need no copy, and return their
        replacements in the same order. Returns the orders, by the numbers of the tensors."""
        orders, permute = {}, torch.ops.aten.permute.default
        for number, node in enumerate(tensors):
            value, order = node.meta["val"], memory_order(node.meta["val"])
            if value.is_complex() or order is None or order == sorted(order):
                continue
            orders[number], users = order, list(node.users)
            node.meta["val"] = value.permute(order)
            with self.graph.inserting_after(node):
                given = self._call(permute, (node, inverse_permutation(order)), {}, value)
            for user in users:
                user.replace_input_with(node, given)
            for at, (target, new) in enumerate(mutations):
                if target is node:
                    mutations[at] = target, self._call(permute, (new, order), {}, new.meta["val"].permute(order))
        return orders

    def _program(self, constants: dict[torch.fx.Node, str], mutations: list, results: list) -> ProgramGraph:
        """The graph with these constants, replacements of inputs, and results."""
        outputs: Signature = [("user_input_mutation", {"user_input_name": target.name}) for target, _ in mutations]
        outputs += [("user_output", {}) for _ in results]
        self.graph.output(tuple(node for _, node in mutations) + tuple(results))
        given = [constants.get(node) for node in self.graph.nodes if node.op == "placeholder"]
        inputs: Signature = [
            ("user_input", {}) if name is None else ("tensor_constant", {"tensor_constant_name": name}) for name in given
        ]
        data = {name: operator.attrgetter(name)(self.module).detach() for name in constants.values()}
        return ProgramGraph(self.module, self.graph, inputs, outputs, _ranges(self.graph), constants=data)

    def _mutations(self):
        """Inputs with their replacements, by ``copy_`` at the end of the graph."""
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
        """A value converted to the type and extents of its target. An input is copied."""
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

    def _name_groups(self) -> None:
        """Names process groups by the order in which they were made if their names may differ between ranks, otherwise by their names.
        Python objects among the inputs, such as meshes, are unused then, and are left out."""
        self.groups = sort_by_creation(process_groups_in(self.graph))
        if self.is_numbered:
            rename_process_groups(self.graph, lambda name: str(self.groups.index(name)))
        for node in list(self.placeholders):
            if not (isinstance(node.meta.get("val"), (torch.Tensor, torch.SymInt, int, float, bool)) or node.users):
                self.graph.erase_node(node)


def _ranges(graph: torch.fx.Graph) -> Ranges:
    """The ranges of the symbols of the graph. Dynamo has more symbols, such as numbers of a rank."""
    found: Ranges = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                known = size.node.shape_env.var_to_range
                found |= {str(symbol): _range(known[symbol]) for symbol in size.node.expr.free_symbols if str(symbol) not in found}
    return found


def _range(found) -> tuple[int, int | None]:
    lower = max(int(found.lower), 0) if found.lower.is_Integer else 0
    upper = int(found.upper) if found.upper.is_Integer else None
    # The range of a number that is never a size is unknown until one value is seen.
    return lower, None if upper is None or upper < lower else upper
