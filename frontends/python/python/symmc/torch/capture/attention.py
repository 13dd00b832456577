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

from symmc.torch.capture.data_sizes import save_data_sizes
from symmc.torch.capture.permutations import gather_stored_rows
from symmc.torch.graphs.nodes import is_view

_ATTENTION = torch.nn.functional.scaled_dot_product_attention

_FUSED = re.compile("_scaled_dot_product_.*attention.*")
"""The operators of PyTorch's kernels for attention and for its gradients."""

_REPEATING = tuple(getattr(torch.ops.aten, name).default for name in ("unsqueeze", "expand", "clone", "view", "_unsafe_view", "reshape"))
"""The operators that repeat heads."""

_MASKS = ("attn_mask", "attn_bias")

_STEPS_OF_MASKS = (
    "arange", "cat", "clone", "constant_pad_nd", "cumsum", "empty", "empty_like", "full", "full_like", "index", "lift_fresh_copy",
    "new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "tril", "triu", "zeros", "zeros_like", "_to_copy",
)  # fmt: skip
"""The operators besides element-wise ones and views that compute masks of positions."""


def is_fusible(module: torch.fx.GraphModule) -> bool:
    """Whether symmc supports the fused gradients of all attentions of a graph of Dynamo."""
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

    Element-wise steps share kernels: it is cheaper to compute their results again than to keep them for the backward pass.
    """
    gather_stored_rows(joint.graph)
    for node in joint.graph.nodes:
        if _FUSED.fullmatch(getattr(node.target, "_opname", "")):
            _drop_random_state(node)
            _repeat_again(node)
            _make_mask_again(node)
        elif _has_gaps(node):
            _view_again(node)
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    save_data_sizes(forward, backward, options["num_fwd_outputs"])
    return forward, backward


def _drop_random_state(node: torch.fx.Node) -> None:
    """Replaces the random state in a gradient of attention without dropout by another tensor, since the gradient does not read it. The
    state is then not kept for the backward pass, and may have a dtype that programs do not support."""
    places = {argument.name: at for at, argument in enumerate(node.target._schema.arguments) if at < len(node.args)}
    if "philox_seed" in places and node.args[places["dropout_p"]] == 0.0:
        for state in ("philox_seed", "philox_offset"):
            node.update_arg(places[state], node.args[places["logsumexp"]])


def _repeat_again(node: torch.fx.Node) -> None:
    """Makes the backward pass repeat the heads of keys and values that several queries share. This costs nothing there, while PyTorch
    would keep the copies."""
    for at, argument in enumerate(node.target._schema.arguments):
        if argument.name not in ("key", "value") or at >= len(node.args):
            continue
        chain, source = [], node.args[at]
        while isinstance(source, torch.fx.Node) and source.target in _REPEATING:
            chain.append(source)
            source = source.args[0]
        if any(link.target is torch.ops.aten.expand.default for link in chain):
            _recompute(chain)


def _has_gaps(node: torch.fx.Node) -> bool:
    """Whether a node is a tensor whose elements are not adjacent in memory, such as half of the columns of another."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    extents = (*value.shape, *value.stride())
    if not all(isinstance(extent, int) for extent in extents) or value.numel() == 0:
        return False
    return sum((n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True)) >= value.numel()


def _view_again(node: torch.fx.Node) -> None:
    """Makes the backward pass compute a view again from the tensor that it views. It would keep the view itself otherwise, and copy it
    before a plan reads it."""
    chain, source = [], node
    while is_view(source):
        chain.append(source)
        source = source.args[0]
    # The caller may change inputs between the passes.
    if source.op != "placeholder":
        _recompute(chain)


def _make_mask_again(node: torch.fx.Node) -> None:
    """Makes the backward pass compute a mask of positions again. The plan of that pass then knows which columns each row sees, and reads
    no mask."""
    for at, argument in enumerate(node.target._schema.arguments):
        given = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
        if argument.name in _MASKS and isinstance(given, torch.fx.Node):
            chain = _steps_of_mask(given)
            if chain is not None:
                _recompute(chain)


def _steps_of_mask(mask: torch.fx.Node) -> list[torch.fx.Node] | None:
    """The nodes that compute a mask from inputs and numbers, if they are element-wise, or cheap otherwise, and if the program changes none of
    these inputs, which the backward pass reads again."""
    found: dict[torch.fx.Node, None] = {}
    pending = [mask]
    while pending:
        node = pending.pop()
        if node.op == "placeholder" and any(user.target is torch.ops.aten.copy_.default and user.args[0] is node for user in node.users):
            return None
        if node.op == "placeholder" or node in found:
            continue
        if node.op != "call_function" or not _is_step_of_mask(node.target):
            return None
        found[node] = None
        pending += node.all_input_nodes
    return list(found)


def _is_step_of_mask(target) -> bool:
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    is_elementwise = torch.Tag.pointwise in target.tags and torch.Tag.nondeterministic_seeded not in target.tags
    return is_elementwise or target.is_view or target._schema.name.removeprefix("aten::") in _STEPS_OF_MASKS


def _recompute(nodes: list[torch.fx.Node]) -> None:
    # PyTorch saves what a later checkpointed region reads from an earlier one, so these nodes count to the last region that reads them.
    region = max((user.meta.get("ac_graph_id", 0) for node in nodes for user in node.users), default=0)
    for node in nodes:
        node.meta.setdefault("recompute", CheckpointPolicy.PREFER_RECOMPUTE)
        node.meta.setdefault("ac_graph_id", region)
