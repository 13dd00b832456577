"""Rewrites values that the format of ``torch.export`` cannot hold."""

from __future__ import annotations

import operator

import torch


def legalise_for_export(graph: torch.fx.Graph) -> None:
    """Rewrites what the format of ``torch.export`` cannot hold."""
    _write_out_sums(graph)
    _take_sizes_of_operands(graph)
    _forget_random_state(graph)


def _write_out_sums(graph: torch.fx.Graph) -> None:
    """Writes sums of several sizes as sums of two, which the format has."""
    sums = getattr(torch, "sym_sum", None)
    for node in [node for node in graph.nodes if node.op == "call_function" and node.target is sums]:
        terms = list(node.args[0]) or [0]
        total, value = terms[0], _size(terms[0])
        with graph.inserting_before(node):
            for term in terms[1:]:
                total = graph.call_function(operator.add, (total, term))
                value = value + _size(term)
                total.meta = {**node.meta, "val": value}
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def _take_sizes_of_operands(graph: torch.fx.Graph) -> None:
    """Replaces sizes among the results of operators, such as attention on GPUs, by sizes of their operands.

    The format has numbers there, but no symbols.
    """
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        values = node.meta.get("val")
        if not isinstance(values, (tuple, list)) or not any(isinstance(value, torch.SymInt) for value in values):
            continue
        known, read = list(values), [user for user in node.users if user.target is operator.getitem]
        for at, value in enumerate(values):
            same = _axis_of(node.all_input_nodes, value) if isinstance(value, torch.SymInt) else None
            readers = [user for user in read if user.args[1] == at]
            if same is None and (readers or not isinstance(value, torch.SymInt)):
                continue
            for user in readers:
                with graph.inserting_before(user):
                    size = graph.call_function(torch.ops.aten.sym_size.int, same)
                size.meta = dict(user.meta)
                user.replace_all_uses_with(size)
                graph.erase_node(user)
            # It has no users any more.
            known[at] = 0
        node.meta["val"] = type(values)(known)


def _forget_random_state(graph: torch.fx.Graph) -> None:
    """Drops unused results whose dtype the format of some versions of PyTorch lacks, such as the random state of flash attention."""
    for node in graph.nodes:
        values = node.meta.get("val")
        if node.op != "call_function" or not isinstance(values, (tuple, list)):
            continue
        read = {user.args[1] for user in node.users if user.target is operator.getitem}
        is_odd = lambda value: isinstance(value, torch.Tensor) and value.dtype in (torch.uint16, torch.uint32, torch.uint64)
        if any(is_odd(value) and at not in read for at, value in enumerate(values)):
            known = [None if is_odd(value) and at not in read else value for at, value in enumerate(values)]
            node.meta["val"] = type(values)(known)


def _axis_of(nodes: list[torch.fx.Node], size: torch.SymInt):
    """A tensor of these with an axis of this size, for all values of the size."""
    for node in nodes:
        value = node.meta.get("val")
        for axis, extent in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(extent, torch.SymInt) and extent.node.expr == size.node.expr:
                return node, axis
    return None


def _size(term):
    return term.meta["val"] if isinstance(term, torch.fx.Node) else term
