"""The names that the inputs of a graph have in the code of the user, for messages."""

from __future__ import annotations

import re

import torch

from symmc.torch.runtime.operands import ARGUMENT

_LOCAL = re.compile(r"[LG]\['([^']*)'\]")
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")


def dynamo_names(module: torch.fx.GraphModule) -> list[str]:
    """The names of the inputs of a graph of Dynamo, such as ``x`` or ``self.layer.weight``."""
    return [_source_name(node) for node in module.graph.nodes if node.op == "placeholder"]


def name_inputs(graph: torch.fx.Graph, names: list[str]) -> None:
    """Stores names of Dynamo's inputs in the nodes of a graph that AOT autograd made of it. The inputs of a backward graph have none."""
    places = [node for node in graph.nodes if node.op == "placeholder"]
    for at, node in enumerate(places):
        described = node.meta.get("desc")
        # Views of one tensor become one input.
        described = getattr(described, "base_of", described)
        number = getattr(described, "idx", None)
        if number is None and described is None and len(places) == len(names) and node.name.startswith(("arg", "primals")):
            # PyTorch 2.8 describes no inputs.
            number = at
        if isinstance(number, int) and number < len(names):
            node.meta[ARGUMENT] = names[number]


def _source_name(node: torch.fx.Node) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None) or getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", None)
    # A method before PyTorch 2.10, a property since.
    name = name() if callable(name) else name
    if not isinstance(name, str):
        return node.name
    return _MEMBER.sub(r".\1", _LOCAL.sub(r"\1", name))
