"""The backend of ``torch.compile``."""

from __future__ import annotations

import torch
from torch._dynamo.backends.common import aot_autograd

from symmc.torch import _cut
from symmc.torch._options import Options


def backend(module: torch.fx.GraphModule, inputs, *, options=None, **_others):
    """Compiles a graph of Dynamo: forward, and backward where gradients are wanted."""
    wanted = Options.of(options)

    def compiled(graph: torch.fx.GraphModule, _inputs):
        return _cut.compiled(graph, wanted)

    whole = aot_autograd(
        fw_compiler=compiled, bw_compiler=compiled, inference_compiler=compiled, keep_inference_input_mutations=True
    )
    return whole(module, inputs)
