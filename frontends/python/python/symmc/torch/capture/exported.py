"""Programs of exported graphs. Unsupported operators are decomposed, as under ``torch.compile``."""

from __future__ import annotations

import dataclasses

import torch
from torch.export import ExportedProgram
from torch.export import graph_signature as signature
from torch.utils import _pytree as pytree

import symmc
from symmc.torch.capture.fx_graphs import export_fx_graph
from symmc.torch.graphs.nodes import NUMBER, copy_graph, number_nodes, output_of
from symmc.torch.importing import programs, refused_nodes
from symmc.torch.legalise.decompose import DecomposedGraph
from symmc.torch.ranks import process_groups


def from_exported(exported: ExportedProgram, **options) -> symmc.Program:
    """Imports an exported program."""
    if not isinstance(exported, ExportedProgram):
        raise symmc.InputError(f"expected a torch.export.ExportedProgram, found {type(exported).__name__}")
    return _ExportedImport(exported, options).program()


def from_fx(module: torch.fx.GraphModule, inputs=None, **options) -> symmc.Program:
    """Imports a graph of ATen operators."""
    return _ExportedImport(export_fx_graph(module, inputs), options).program()


class _ExportedImport:
    """The import of an exported program, with the operators that are decomposed or stay opaque."""

    def __init__(self, exported: ExportedProgram, options: dict):
        self.exported, self.options = exported, options
        self.numbered = torch.fx.GraphModule(exported.graph_module, copy_graph(exported.graph, {}))
        number_nodes(self.numbered.graph)
        self.whole: set[int] = set()
        """The nodes, by their numbers, that are not decomposed, since their parts are not supported either."""
        self.first_refusals: dict[int, Exception] = {}
        """The first error for each of them."""

    def program(self) -> symmc.Program:
        """The program. Operators that are not supported even after decomposition are opaque in it."""
        graph = DecomposedGraph(self.numbered)
        while True:
            program, refused, error = self._import(graph)
            if error is not None and error.is_of_dtypes:
                # PyTorch raises here as well; the decomposed operator might not.
                raise error
            found = {node: graph.origins[node] for node in refused if graph.origins[node] not in self.whole}
            if not found and error is not None:
                raise next((self.first_refusals.get(graph.origins[node], error) for node in refused), error) from None
            if not found:
                return program
            if error is not None:
                for origin in found.values():
                    self.first_refusals.setdefault(origin, error)
            failed = {origin for node, origin in found.items() if not graph.decompose(node)}
            if failed:
                self.whole |= failed
                graph = DecomposedGraph(self.numbered, self.whole)

    def _import(self, graph: DecomposedGraph) -> tuple[symmc.Program | None, list[int], symmc.Error | None]:
        """The program or the error of the import, with the nodes that are refused or unknown."""
        nodes = graph.module.graph
        try:
            program = programs.open_archives([programs.serialize_program(self._exported_with(graph))], **self.options)
        except symmc.Error as error:
            error.args = (str(error) + process_groups.describe_members(error.unknown_groups), *error.args[1:])
            node = refused_nodes.find_refused_node(error, nodes)
            return None, [] if node is None else [node.meta[NUMBER]], error
        return program, [node.meta[NUMBER] for node in refused_nodes.find_unknown_nodes(program, nodes)], None

    def _exported_with(self, graph: DecomposedGraph) -> ExportedProgram:
        """The exported program with this graph, which returns the same values."""
        if not graph.is_changed:
            return self.exported
        given = self.exported.graph_signature
        returned = output_of(graph.module.graph).args[0]
        specs = zip(given.output_specs, pytree.tree_leaves(returned), strict=True)
        return ExportedProgram(
            root=graph.module,
            graph=graph.module.graph,
            graph_signature=signature.ExportGraphSignature(given.input_specs, [_renamed(*one) for one in specs]),
            state_dict=self.exported.state_dict,
            range_constraints=self.exported.range_constraints,
            module_call_graph=self.exported.module_call_graph,
            constants=self.exported.constants,
            verifiers=self.exported.verifiers,
        )


def _renamed(spec: signature.OutputSpec, node) -> signature.OutputSpec:
    """The entry of a signature for an output, with the current name of its node."""
    if not isinstance(node, torch.fx.Node) or not hasattr(spec.arg, "name"):
        return spec
    return dataclasses.replace(spec, arg=dataclasses.replace(spec.arg, name=node.name))
