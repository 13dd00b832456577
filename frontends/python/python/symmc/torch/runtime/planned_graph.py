"""Graphs that run as plans."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch

import symmc
from symmc.torch.graphs.layouts import inverse_permutation
from symmc.torch.graphs.nodes import NUMBER
from symmc.torch.graphs.sizes import symbol_sources
from symmc.torch.importing import op_definitions, refused_nodes
from symmc.torch.importing.lift import LiftedGraph
from symmc.torch.ranks import process_groups
from symmc.torch.ranks.exchange import GraphsDiffer
from symmc.torch.runtime.arenas import Arenas
from symmc.torch.runtime.runner import PlanRunner
from symmc.torch.settings.options import Options

UNKNOWN = " is not known"
"""The end of the reason for an operator that is not known."""


class RefusedNodes(Exception):
    """The nodes that symmc rejects, by their numbers, with the reasons."""

    def __init__(self, nodes: dict[int, str], error: symmc.Error):
        super().__init__(str(error))
        self.nodes, self.error = nodes, error

    @property
    def symbols(self) -> tuple[str, ...]:
        """The sizes because of which the nodes are rejected."""
        return tuple(self.error.symbols)


class PlannedGraph:
    """A graph as a function of the list of its inputs. Inputs on another device are copied in every call."""

    def __init__(
        self, lifted: LiftedGraph, options: Options, may_fix_sizes: bool = False, sizes: Mapping[str, int] | None = None,
        arenas: Arenas | None = None,
    ):  # fmt: skip
        self._boxed_call = True
        self.lifted, self.sizes = lifted, sizes or {}
        self.symbol_sources = symbol_sources(self.lifted.values)
        self.device = device_of(lifted)
        values = self.lifted.values
        self.on_other_devices = [k for k, at in enumerate(self.lifted.inputs) if values[at].device != self.device]
        self.select_inputs = _input_selector(self.lifted.inputs, len(values))
        self.host_results = [k for k, device in enumerate(self.lifted.devices) if device != self.device]
        options = op_definitions.select_for_graph(options, lifted.program.graph)
        ranks, groups = process_groups.connect_groups(self.lifted.groups, options.timeout)
        symbols = [symbol for symbol, _, _ in self.symbol_sources]
        self.runner = PlanRunner(self.lifted, symbols, ranks, groups, options, may_fix_sizes, arenas)
        self._naming_nodes(lambda: self.runner.plan_for(self._traced(), self.device, self._reject_unknown_operators))

    def _reject_unknown_operators(self, program: symmc.Program) -> None:
        """Raises for unsupported operators, if there are any."""
        if program.opaque:
            nodes = refused_nodes.find_unknown_nodes(program, self.lifted.program.graph)
            names = ", ".join(sorted(set(program.opaque.values())))
            error = symmc.UnsupportedError(f"unsupported operators: {names}")
            raise RefusedNodes({node.meta[NUMBER]: f"{node.target}{UNKNOWN}" for node in nodes}, error)

    def _naming_nodes(self, work):
        """The result of ``work``. Its errors that name a node of the graph become :class:`RefusedNodes`."""
        try:
            return work()
        except GraphsDiffer:
            raise
        except symmc.Error as error:
            node = refused_nodes.find_refused_node(error, self.lifted.program.graph)
            if node is None:
                raise
            raise RefusedNodes({node.meta[NUMBER]: str(error)}, error) from error

    def _traced(self) -> tuple[int, ...]:
        """The sizes of the inputs in the call for which the graph is compiled. Sizes that are not known are those of the trace."""
        values = self.lifted.values
        sizes = [values[at] if axis is None else values[at].shape[axis] for _, at, axis in self.symbol_sources]
        hints = [1 if size.node.hint is None else size.node.hint for size in sizes]
        return tuple(self.sizes.get(symbol, hint) for (symbol, *_), hint in zip(self.symbol_sources, hints))

    def __call__(self, inputs: list):
        sizes = tuple([inputs[at] if axis is None else inputs[at].shape[axis] for _, at, axis in self.symbol_sources])
        given = self.select_inputs(inputs)
        if self.lifted.complex:
            given = tuple(_as_real(one) if at in self.lifted.complex else one for at, one in enumerate(given))
        if self.on_other_devices:
            given = tuple(one.to(self.device) if at in self.on_other_devices else one for at, one in enumerate(given))
        if self.lifted.orders:
            given = self._as_stored(given)
        results, lent = self.runner.run(sizes, given, self.device)
        for at in self.lifted.mutated:
            if lent[at] is not given[at] or at in self.on_other_devices or at in self.lifted.complex:
                self._write_back(inputs[self.lifted.inputs[at]], at, lent[at])
        for at in self.host_results:
            results[at] = results[at].cpu()
        return list(self.lifted.finish(inputs, results))

    def _as_stored(self, given: tuple) -> tuple:
        """Arguments with their axes in the order in which they were stored when the graph was traced."""
        orders, stored = self.lifted.orders, list(given)
        for at, order in orders.items():
            stored[at] = stored[at].permute(order)
        return tuple(stored)

    def _write_back(self, changed: torch.Tensor, at: int, result: torch.Tensor) -> None:
        """Copies the results that replace arguments into the tensors of the caller."""
        if at in self.lifted.complex:
            result = torch.view_as_complex(result)
        order = self.lifted.orders.get(at)
        changed.copy_(result if order is None else result.permute(inverse_permutation(order)))


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as real ones with one more axis, in the same memory."""
    return torch.view_as_real(tensor.resolve_conj())


def device_of(lifted: LiftedGraph) -> torch.device:
    """The device of a graph: the GPU of its tensors, or the host if none is on a GPU."""
    tensors = [node.meta["val"] for node in lifted.program.graph.nodes if _is_tensor(node)]
    gpus = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    others = {tensor.device.type for tensor in tensors} - {"cpu", "cuda"}
    if others or len(gpus) > 1:
        found = ", ".join(sorted(others) + sorted(map(str, gpus)))
        raise symmc.UnsupportedError(f"expected tensors on one GPU or on the host, found tensors on {found}")
    return next(iter(gpus), torch.device("cpu"))


def _input_selector(places: list[int], count: int):
    """A function that selects the inputs at some places out of ``count``, as a tuple."""
    if places == list(range(count)):
        return tuple
    if len(places) < 2:
        return lambda inputs: tuple([inputs[at] for at in places])
    return operator.itemgetter(*places)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
