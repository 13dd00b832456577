"""Fused attention in graphs with gradients.

PyTorch chooses a kernel for attention. It traces one operator for the forward pass and one for the backward pass, which reads the
log-sum-exp of the rows and the random state of dropout. symmc has both operators without dropout and without gradients of masks.
Attention with dropout, or with a mask that needs a gradient, is traced as products and a softmax.
"""

from __future__ import annotations

import re

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

_ATTENTION = torch.nn.functional.scaled_dot_product_attention

_FUSED = re.compile("_scaled_dot_product_.*attention.*")
"""The operators of PyTorch's kernels for attention and for its gradients."""

_REPEATING = tuple(getattr(torch.ops.aten, name).default for name in ("unsqueeze", "expand", "clone", "view", "_unsafe_view", "reshape"))
"""The operators that repeat heads."""


def is_fusible(module: torch.fx.GraphModule) -> bool:
    """Whether symmc has the gradients of all attentions of a graph of Dynamo as PyTorch fuses them."""
    graphs = [part.graph for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    return all(_is_fusible(node) for graph in graphs for node in graph.nodes if _is_attention(node))


def _is_attention(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == _ATTENTION.__name__


def _is_fusible(node: torch.fx.Node) -> bool:
    mask, dropout = _argument(node, 3, "attn_mask"), _argument(node, 4, "dropout_p")
    if dropout not in (None, 0, 0.0):
        return False
    value = mask.meta.get("example_value") if isinstance(mask, torch.fx.Node) else mask
    return not (isinstance(value, torch.Tensor) and value.requires_grad)


def _argument(node: torch.fx.Node, at: int, name: str):
    return node.args[at] if at < len(node.args) else node.kwargs.get(name)


def partitioned(joint: torch.fx.GraphModule, inputs, **options):
    """The graphs of the forward and of the backward pass.

    Element-wise steps share kernels: what they give is cheaper computed again than kept for the backward pass.
    """
    for node in joint.graph.nodes:
        if _FUSED.fullmatch(getattr(node.target, "_opname", "")):
            _drop_random_state(node)
            _repeat_again(node)
    return min_cut_rematerialization_partition(joint, inputs, **options)


def _drop_random_state(node: torch.fx.Node) -> None:
    """Gives a gradient of attention without dropout another tensor in place of the random state, which it does not look at: that is not
    kept for the backward pass then, and may have a dtype that programs have not."""
    places = {argument.name: at for at, argument in enumerate(node.target._schema.arguments) if at < len(node.args)}
    if "philox_seed" in places and node.args[places["dropout_p"]] == 0.0:
        for state in ("philox_seed", "philox_offset"):
            node.update_arg(places[state], node.args[places["logsumexp"]])


def _repeat_again(node: torch.fx.Node) -> None:
    """Has heads of keys and values that are repeated for the queries that share them be repeated again in the backward pass, where
    that costs nothing: PyTorch would keep the copies."""
    for at, argument in enumerate(node.target._schema.arguments):
        if argument.name not in ("key", "value") or at >= len(node.args):
            continue
        chain, source = [], node.args[at]
        while isinstance(source, torch.fx.Node) and source.target in _REPEATING:
            chain.append(source)
            source = source.args[0]
        if any(link.target is torch.ops.aten.expand.default for link in chain):
            for link in chain:
                link.meta.setdefault("recompute", CheckpointPolicy.PREFER_RECOMPUTE)
                # Of no checkpointed region; some versions of PyTorch ask for its number.
                link.meta.setdefault("ac_graph_id", 0)
