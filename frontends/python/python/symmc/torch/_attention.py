"""Fused attention in graphs with gradients.

PyTorch chooses a kernel for attention and traces its operator for the forward pass and another for the backward pass, which reads the
log-sum-exp of the rows and the random state of dropout. symmc has both operators without dropout and without gradients of masks;
where a graph has these, attention is traced as what it is made of.
"""

from __future__ import annotations

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition

_ATTENTION = torch.nn.functional.scaled_dot_product_attention


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
    _drop_random_state(joint.graph)
    return min_cut_rematerialization_partition(joint, inputs, **options)


def _drop_random_state(graph: torch.fx.Graph) -> None:
    """Gives gradients of attention without dropout another tensor in place of the random state, which they do not look at: it is not
    kept for the backward pass then, and may have a dtype that programs have not."""
    for node in graph.nodes:
        name = getattr(node.target, "_opname", "")
        if node.op != "call_function" or not (name.startswith("_scaled_dot_product_") and name.endswith("_backward")):
            continue
        names = [argument.name for argument in node.target._schema.arguments]
        places = {name: at for at, name in enumerate(names) if at < len(node.args)}
        if "philox_seed" not in places or node.args[places["dropout_p"]] != 0.0:
            continue
        for state in ("philox_seed", "philox_offset"):
            node.update_arg(places[state], node.args[places["logsumexp"]])
