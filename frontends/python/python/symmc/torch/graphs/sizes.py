"""Symbolic sizes of fx graphs, and PyTorch's facts about them."""

from __future__ import annotations

from typing import Any

import torch


def symbol_sources(values) -> list[tuple[str, int, int | None]]:
    """For each symbol the input of the graph that gives its value, and the axis of that input."""
    told: dict[str, tuple[int, int | None]] = {}
    for at, value in enumerate(values):
        sizes: list[tuple[int | None, Any]] = [(None, value)] if isinstance(value, torch.SymInt) else []
        if isinstance(value, torch.Tensor):
            sizes = list(enumerate(value.shape))
        for axis, size in sizes:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                told.setdefault(str(size.node.expr), (at, axis))
    return [(symbol, *found) for symbol, found in told.items()]


def shape_env_of(graph: torch.fx.Graph):
    """PyTorch's shape environment of a graph, if any of its sizes vary."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for size in getattr(value, "shape", ()) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def ignored_guards(environment) -> int:
    """The number of assumptions about sizes that were made after Dynamo had made its guards, which therefore do not check them."""
    return 0 if environment is None else environment.counter["ignored_backward_guard"]
