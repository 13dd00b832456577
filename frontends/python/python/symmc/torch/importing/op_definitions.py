"""Definitions of custom ops, for the graphs that call these ops."""

from __future__ import annotations

import dataclasses

import torch

from symmc import InputError
from symmc._symmc import read_defined_op
from symmc.torch.graphs.nodes import is_group_name, operator_names
from symmc.torch.settings.options import Options


def check_group_argument_names(options: Options) -> None:
    """Raises if an argument of a defined op names a process group, but its own name does not end as those of process groups do."""
    for text in options.definitions:
        target, groups = read_defined_op(text)
        for name in groups:
            if not is_group_name(name):
                raise InputError(
                    f"option definitions: the argument {name} of {target} names a process group: expected a name that ends in "
                    "group_name or process_group"
                )


def select_for_graph(options: Options, graph: torch.fx.Graph) -> Options:
    """The options with the definitions of ops that a graph calls. The importer rejects definitions of other ops."""
    if not options.definitions:
        return options
    names = operator_names(graph)
    return dataclasses.replace(options, definitions=[text for text in options.definitions if read_defined_op(text)[0] in names])
