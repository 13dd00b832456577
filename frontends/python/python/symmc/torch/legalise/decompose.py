"""Decomposes operators by the definitions of PyTorch, or by those in ``definitions``."""

from __future__ import annotations

import logging
import operator
from collections.abc import Container
from contextlib import nullcontext

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from symmc.torch.graphs.nodes import NUMBER, OPERATOR, copy_graph, output_of
from symmc.torch.legalise import definitions


class DecomposedGraph:
    """A copy of a graph in which some operators are decomposed."""

    def __init__(self, module: torch.fx.GraphModule, whole: Container[int] = ()):
        self.whole = whole
        self.module = torch.fx.GraphModule(module, copy_graph(module.graph, known := {}))
        self.origins = {node.meta[NUMBER]: node.meta[NUMBER] for node in known.values()}
        """For each node by its number the node of the given graph that it is part of."""

    def decompose(self, number: int) -> bool:
        """Replaces a node by its definition. Returns whether the definition differs from the node."""
        if self.origins[number] in self.whole:
            return False
        graph = self.module.graph
        node = next((node for node in graph.nodes if node.meta.get(NUMBER) == number), None)
        part = None if node is None else _trace_definition(node)
        if part is None:
            return False
        given = [node for node in node.all_input_nodes]
        known = dict(zip([n for n in part.graph.nodes if n.op == "placeholder"], given))
        with graph.inserting_before(node):
            for inner in part.graph.nodes:
                if inner.op != "placeholder" and inner.op != "output":
                    known[inner] = self._copied(inner, node, known)
        results = pytree.tree_map_only(torch.fx.Node, known.__getitem__, _returned(part))
        self._replace(node, results)
        return True

    def _copied(self, inner: torch.fx.Node, node: torch.fx.Node, known: dict) -> torch.fx.Node:
        """Copies a node of an operator's definition into the graph."""
        copy = self.module.graph.node_copy(inner, known.__getitem__)
        copy.meta = {key: node.meta[key] for key in ("stack_trace",) if key in node.meta}
        copy.meta["val"] = inner.meta.get("val")
        if OPERATOR in node.meta or definitions.rounds_once(node.target):
            copy.meta[OPERATOR] = node.meta.get(OPERATOR, node.meta[NUMBER])
        self._number(copy, node)
        return copy

    def _number(self, new: torch.fx.Node, node: torch.fx.Node) -> None:
        new.meta[NUMBER] = number = max(self.origins) + 1
        self.origins[number] = self.origins[node.meta[NUMBER]]

    def _replace(self, node: torch.fx.Node, results) -> None:
        """Replaces the uses of a node by the results of its definition, as separate values with the node's strides."""
        graph = self.module.graph
        places = [(node, results)]
        if isinstance(results, (tuple, list)):
            places = [(user, results[user.args[1]]) for user in list(node.users)]
        for old, result in places:
            with graph.inserting_before(old):
                copy = graph.call_function(torch.ops.aten.clone.default, (result,))
            copy.meta = dict(old.meta)
            self._number(copy, node)
            old.replace_all_uses_with(copy)
            if old is not node:
                graph.erase_node(old)
        graph.erase_node(node)


def _returned(part: torch.fx.GraphModule):
    return output_of(part.graph).args[0]


def _trace_definition(node: torch.fx.Node) -> torch.fx.GraphModule | None:
    """The definition of an operator as a graph of its inputs, if it computes the same without new guards on sizes."""
    function = _definition(node)
    inputs = node.all_input_nodes
    values = [given.meta.get("val") for given in inputs]
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    if function is None or mode is None:
        return None

    def applied(*given):
        known = dict(zip(inputs, given))
        args, kwargs = pytree.tree_map_only(torch.fx.Node, known.__getitem__, (node.args, node.kwargs))
        result = function(*args, **kwargs)
        return tuple(result) if isinstance(result, (tuple, list)) else result

    shapes = mode.shape_env
    assumed = len(shapes.guards) if shapes is not None else 0
    # Older versions cannot refuse new assumptions.
    fixed = shapes.error_on_new_guards() if hasattr(shapes, "error_on_new_guards") else nullcontext()
    # A failure here is expected.
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    try:
        log.setLevel(logging.CRITICAL)
        with mode, fixed:
            part = make_fx(applied)(*values)
    except Exception:
        # A definition may read sizes or have effects that cannot be traced: the operator stays as it is.
        return None
    finally:
        log.setLevel(level)
    part.graph.eliminate_dead_code()
    is_sound = (shapes is None or len(shapes.guards) == assumed) and _is_sound(part, node)
    return part if is_sound else None


def _definition(node: torch.fx.Node):
    """The function by which PyTorch defines an operator, if there is one and the operator writes no operand."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    if any(user.target is not operator.getitem for user in node.users) and not isinstance(node.meta["val"], torch.Tensor):
        return None
    own = definitions.find_definition(target)
    if own is not None or target in decomposition_table:
        return own or decomposition_table[target]
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd
    return target.decompose if target.has_kernel_for_dispatch_key(implicit) else None


def _is_sound(part: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """Whether a definition is of ATen's operators, other than the one that it defines, with results of the same types."""
    for inner in part.graph.nodes:
        target = inner.target
        if inner.op == "get_attr" or target is node.target:
            return False
        if isinstance(target, torch._ops.OpOverload):
            is_drawn = torch.Tag.nondeterministic_seeded in target.tags
            if target.namespace != "aten" or target._schema.is_mutable or is_drawn:
                return False
    found = pytree.tree_leaves(pytree.tree_map_only(torch.fx.Node, lambda n: n.meta["val"], _returned(part)))
    expected = pytree.tree_leaves(node.meta["val"])
    return len(found) == len(expected) and all(map(_is_alike, found, expected))


def _is_alike(found, expected) -> bool:
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return found is expected
    same = found.dtype == expected.dtype and found.device == expected.device
    return same and tuple(map(str, found.shape)) == tuple(map(str, expected.shape))
