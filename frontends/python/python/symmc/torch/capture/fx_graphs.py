"""Programs from fx graphs, as ``make_fx`` returns them."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

import symmc
from symmc.torch.graphs.nodes import copy_graph
from symmc.torch.importing.lift import GraphLifter
from symmc.torch.importing.writer import ProgramGraph


def lift_fx_graph(module: torch.fx.GraphModule, inputs=None) -> ProgramGraph:
    """A graph of ATen operators as a program."""
    _check_graph(module, inputs)
    return GraphLifter.whole_program(_valued(module, inputs))


def _check_graph(module, inputs) -> None:
    """Checks that a module is a graph of ATen operators with values."""
    if not isinstance(module, torch.fx.GraphModule):
        raise symmc.InputError(f"expected a torch.fx.GraphModule, found {type(module).__name__}")
    for node in module.graph.nodes:
        if node.op in ("call_module", "call_method"):
            found = f"{node.op} {node.target}"
            raise symmc.InputError(f"node {node.name}: expected ATen operators, such as make_fx traces, found {found}")
    for node in module.graph.nodes:
        if inputs is None and node.op == "placeholder" and "val" not in node.meta:
            raise symmc.InputError(f"input {node.name}: expected its value in node.meta['val'], found none: give example inputs")
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    if inputs is not None and not isinstance(inputs, (list, tuple)):
        raise symmc.InputError(f"inputs: expected a list of example inputs, found {type(inputs).__name__}")
    if inputs is not None and len(inputs) != len(placeholders):
        raise symmc.InputError(f"inputs: the graph has {len(placeholders)}, found {len(inputs)}")


def _valued(module: torch.fx.GraphModule, inputs) -> torch.fx.GraphModule:
    """A copy of a graph whose nodes carry their values, all of one mode of fake tensors."""
    module = torch.fx.GraphModule(module, copy_graph(module.graph, {}))
    nodes = list(module.graph.nodes)
    if inputs is None:
        values = pytree.tree_leaves([node.meta.get("val") for node in nodes])
        modes = {id(value.fake_mode) for value in values if isinstance(value, FakeTensor)}
        if len(modes) == 1 and all("val" in node.meta for node in nodes if node.op == "call_function"):
            return module
        # If real tensors were traced, each value has another mode.
        inputs = [node.meta["val"] for node in nodes if node.op == "placeholder"]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*pytree.tree_map(lambda given: _faked(given, mode), inputs))
    return module


def _faked(given, mode: FakeTensorMode):
    if not isinstance(given, torch.Tensor):
        return given
    with mode:
        return torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
