"""Programs of exported graphs. Unsupported operators are decomposed, as under ``torch.compile``."""

from __future__ import annotations

import dataclasses

import torch
from torch.export import ExportedProgram

import symmc
from symmc.torch.capture.fx_graphs import lift_fx_graph
from symmc.torch.graphs.nodes import NUMBER, copy_graph, number_nodes
from symmc.torch.importing import programs, refused_nodes
from symmc.torch.importing.writer import ProgramGraph
from symmc.torch.legalise.decompose import DecomposedGraph
from symmc.torch.ranks import process_groups


def from_exported(exported: ExportedProgram, **options) -> symmc.Program:
    """Imports an exported program."""
    if not isinstance(exported, ExportedProgram):
        raise symmc.InputError(f"expected a torch.export.ExportedProgram, found {type(exported).__name__}")
    return _ProgramImport(program_graph(exported), options).program()


def program_graph(exported: ExportedProgram) -> ProgramGraph:
    given = exported.graph_signature
    return ProgramGraph(
        exported.graph_module,
        exported.graph,
        [_entry(spec, {"CONSTANT_TENSOR": "tensor_constant"}.get(spec.kind.name)) for spec in given.input_specs],
        [_entry(spec) for spec in given.output_specs],
        {str(symbol): (_bound(found.lower), _bound(found.upper)) for symbol, found in exported.range_constraints.items()},
        exported.state_dict,
        exported.constants,
        tuple(verifier.dialect for verifier in exported.verifiers),
    )


def _entry(spec, kind: str | None = None) -> tuple[str, dict]:
    """An entry of the signature of an exported program, as in its format."""
    kind = kind or spec.kind.name.lower()
    fields = {f"{kind.removesuffix('_mutation')}_name": spec.target}
    return kind, fields if getattr(spec, "persistent", None) is None else {**fields, "persistent": spec.persistent}


def _bound(value) -> int | None:
    return int(value) if value.is_Integer else None


def from_fx(module: torch.fx.GraphModule, inputs=None, **options) -> symmc.Program:
    """Imports a graph of ATen operators."""
    return _ProgramImport(lift_fx_graph(module, inputs), options).program()


class _ProgramImport:
    """The import of a program, with the operators that are decomposed or stay opaque."""

    def __init__(self, source: ProgramGraph, options: dict):
        self.source, self.options = source, options
        self.numbered = torch.fx.GraphModule(source.module, copy_graph(source.graph, {}))
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
            source = dataclasses.replace(self.source, module=graph.module, graph=nodes)
            program = programs.open_archives([source.archive()], **self.options)
        except symmc.Error as error:
            error.args = (str(error) + process_groups.describe_members(error.unknown_groups), *error.args[1:])
            node = refused_nodes.find_refused_node(error, nodes)
            return None, [] if node is None else [node.meta[NUMBER]], error
        return program, [node.meta[NUMBER] for node in refused_nodes.find_unknown_nodes(program, nodes)], None
