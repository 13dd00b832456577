"""The backend of ``torch.compile``."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.attention import SDPBackend, sdpa_kernel

from symmc import InputError
from symmc.torch.agreement import joint_graph
from symmc.torch.capture import argument_names, attention
from symmc.torch.importing import op_definitions
from symmc.torch.runtime.arenas import Arenas
from symmc.torch.settings.options import Options


def backend(module: torch.fx.GraphModule, inputs, *, options=None, mode=None):
    """Compiles a graph of Dynamo: the forward pass, and the backward pass if gradients are needed.

    ``mode`` is one of Inductor's, and has no effect.
    """
    wanted = Options.of(options)
    _check_mode(mode)
    op_definitions.check_group_argument_names(wanted)

    differentiated = torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in inputs
    )
    # The two passes never run at the same time, so they share arenas.
    arenas = Arenas() if differentiated else None
    names = argument_names.dynamo_names(module)

    def compiled(graph: torch.fx.GraphModule, _inputs):
        argument_names.name_inputs(graph.graph, names)
        with unset_fake_temporarily(), torch.no_grad():
            return joint_graph.compile_joint_graph(graph, wanted, arenas)

    whole = aot_autograd(
        fw_compiler=compiled,
        bw_compiler=compiled,
        partition_fn=attention.partitioned,
        keep_inference_input_mutations=True,
    )
    is_written_out = differentiated and not attention.is_fusible(module)
    with sdpa_kernel(SDPBackend.MATH) if is_written_out else nullcontext():
        return whole(module, inputs)


def _check_mode(mode) -> None:
    """Refuses a mode that Inductor does not have."""
    if mode is None:
        return
    from torch._inductor import list_mode_options

    known = list_mode_options()
    if not isinstance(mode, str) or mode not in known:
        raise InputError(f"mode: expected one of {', '.join(known)}, found {mode!r}")
