"""The state of the search for a function that runs a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

import symmc
from symmc.torch.graphs.nodes import number_nodes
from symmc.torch.partition.unsupported import collective_numbers
from symmc.torch.ranks.exchange import GraphsDiffer
from symmc.torch.runtime.arenas import Arenas
from symmc.torch.runtime.planned_graph import UNKNOWN, RefusedNodes
from symmc.torch.runtime.runner import PlanRunner
from symmc.torch.settings.options import Options


class PartitionSearch:
    """The state of a search: its options, and the operators that are left to the fallback."""

    def __init__(self, options: Options, sizes: Mapping[str, int] | None = None, arenas: Arenas | None = None):
        self.options, self.sizes, self.arenas = options, sizes or {}, arenas
        self.fallback_nodes: dict[int, str] = {}
        """The operators that the fallback runs, by their numbers in the compiled graph, with the reasons."""
        self.may_fix_sizes = False
        """Whether sizes may be fixed to numbers, if an operator is refused because of them and cannot be decomposed."""
        self.first_refusals: dict[int, tuple[str, Exception]] = {}
        """The first refusal of each operator, before it was decomposed."""
        self.difference: GraphsDiffer | None = None
        """The difference between the graphs of the ranks, if they are not one program. PyTorch runs the collectives then."""
        self.is_reordered = False
        """Whether the nodes were sorted independently of the order of the calls in the model."""
        self.function: Callable[[list], list] | None = None
        """The result: a function of the list of the inputs of the graph."""
        self.runners: list[PlanRunner] = []
        """The runners of the plans of the function."""

    def leave_collectives(self, graph: torch.fx.Graph, why: str) -> None:
        """Leaves the collectives of a graph to PyTorch."""
        number_nodes(graph)
        self.fallback_nodes |= {number: why for number in collective_numbers(graph)}

    def record_refusals(self, found: RefusedNodes, nodes: dict[int, str]) -> None:
        for node, why in nodes.items():
            self.first_refusals.setdefault(node, (why, found.error))

    def concern_sizes(self, failed: dict[int, str]) -> bool:
        """Whether one of these was first refused because of sizes."""
        return any(getattr(self.first_refusals[node][1], "symbols", ()) for node in failed)

    def leave_to_fallback(self, failed: dict[int, str], found: RefusedNodes) -> None:
        """Leaves operators to the fallback, or raises if there is none."""
        new = failed.keys() - self.fallback_nodes.keys()
        if not new:
            raise found.error from None
        if self.options.fallback == "error":
            raise self._error(sorted(new)) from None
        self.fallback_nodes |= {node: self.first_refusals[node][0] for node in new}

    def _error(self, nodes: list[int]) -> Exception:
        whys = list(dict.fromkeys(self.first_refusals[node][0] for node in nodes))
        ends = [why.removesuffix(UNKNOWN) for why in whys]
        if all(end != why for end, why in zip(ends, whys)):
            return symmc.UnsupportedError(f"unsupported operators: {', '.join(sorted(ends))}")
        return next(error for why, error in map(self.first_refusals.__getitem__, nodes) if not why.endswith(UNKNOWN))
