"""Finds the function that runs a graph: one plan, or stages of plans and of graphs that the fallback runs.

A graph that is rejected is tried again in another form: with operators decomposed, with sizes fixed to numbers, or sorted in an order
that ranks share. Nodes that are still rejected are left to the fallback.
"""

from __future__ import annotations

import warnings

import torch

import symmc
from symmc.torch.graphs.nodes import number_nodes
from symmc.torch.legalise.canonical_order import sort_canonically
from symmc.torch.legalise.decompose import DecomposedGraph
from symmc.torch.partition.fallback import EagerErrorGraph, FallbackGraph
from symmc.torch.partition.search import PartitionSearch
from symmc.torch.partition.stages import CutGraph, has_tensor, plan_whole
from symmc.torch.partition.unsupported import collective_numbers, data_size_error, unsupported_nodes, warn_about_fallback
from symmc.torch.ranks.exchange import GraphsDiffer
from symmc.torch.runtime.planned_graph import RefusedNodes


def compile_graph(module: torch.fx.GraphModule, search: PartitionSearch):
    """A function of the list of the inputs of a graph: one plan, or several plans with the parts between them."""
    number_nodes(module.graph)
    search.function = _find_function(module, search)
    return search.function


def _find_function(module: torch.fx.GraphModule, search: PartitionSearch):
    graph, options, given = DecomposedGraph(module, search.fallback_nodes), search.options, module
    while True:
        try:
            return _build_function(graph.module, search)
        except RefusedNodes as found:
            if found.error.is_of_dtypes:
                # Eager raises here; the decomposed operator might not.
                return EagerErrorGraph(given, found.error)
            failed = {graph.origins[node]: why for node, why in found.nodes.items() if not graph.decompose(node)}
            search.record_refusals(found, {graph.origins[node]: why for node, why in found.nodes.items()})
            if failed and not search.may_fix_sizes and (found.symbols or search.concern_sizes(failed)):
                search.may_fix_sizes = True
                graph = DecomposedGraph(module, search.fallback_nodes)
            elif failed:
                search.leave_to_fallback(failed, found)
                # An operator whose definition needs unsupported operators stays whole for the fallback.
                graph = DecomposedGraph(module, search.fallback_nodes)
        except GraphsDiffer as error:
            module = _next_module(given, module, search, error)
            graph = DecomposedGraph(module, search.fallback_nodes)
        except symmc.Error as error:
            if error.kind == "input" and error.symbols and not search.may_fix_sizes:
                # Sizes without a known relation may be numbers.
                search.may_fix_sizes = True
                graph = DecomposedGraph(module, search.fallback_nodes)
                continue
            # The error names no node: leave the nodes with unsupported types or sizes to the fallback, or the whole graph.
            if error.kind not in ("input", "unsupported"):
                raise
            odd = {graph.origins[number]: why for number, why in unsupported_nodes(graph.module.graph, error).items()}
            odd = {number: why for number, why in odd.items() if number not in search.fallback_nodes}
            if options.fallback == "error":
                named = data_size_error(graph.module.graph, error)
                if named is None:
                    raise
                raise named from error
            if not odd:
                text = f"symmc leaves a graph to {options.fallback}: {error}"
                warnings.warn(text, stacklevel=2)
                return FallbackGraph(given, options.fallback)
            search.fallback_nodes |= odd
            graph = DecomposedGraph(module, search.fallback_nodes)


def _next_module(given: torch.fx.GraphModule, module: torch.fx.GraphModule, search: PartitionSearch, error: GraphsDiffer):
    """The next graph to try if the graphs of ranks are not one program. All ranks get the same result."""
    if not search.is_reordered:
        search.is_reordered = True
        # A rank whose graph has no such order tries once more with the others.
        return sort_canonically(given) or given
    # Each rank runs the operators between its collectives, and its graph may differ from the others.
    search.difference = error
    found = {number: f"the graphs of ranks differ: {error}" for number in collective_numbers(given.graph)}
    if search.options.fallback == "error" or found.keys() <= search.fallback_nodes.keys():
        raise error
    search.fallback_nodes |= found
    return given


def _build_function(module: torch.fx.GraphModule, search: PartitionSearch):
    refused, options = search.fallback_nodes, search.options
    search.runners.clear()
    calls = [node for node in module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    if not any(has_tensor(node) for node in calls):
        return FallbackGraph(module, "eager")
    if not refused:
        return plan_whole(module, search)
    warn_about_fallback(calls, refused, options)
    return CutGraph(module, search)
