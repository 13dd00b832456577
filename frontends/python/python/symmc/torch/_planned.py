"""The operator of symmc in graphs of PyTorch, and what runs behind it.

It is called hundreds of times in a pass over a model, when the CPU is what a GPU waits for: nothing but a look-up stands before
the run. A form has one program, plan and session, for all graphs and places that have it.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from symmc.torch import _graph, _ranks
from symmc.torch._form import Form
from symmc.torch._options import Options
from symmc.torch._runner import Runner

_library = torch.library.Library("symmc", "DEF")
_library.define("planned(Tensor[] inputs, SymInt[] sizes, str form) -> Tensor[]")

_runners: dict[str, tuple[object, Runner]] = {}
"""What runs forms, with the default process group that it was made under: names of groups mean others under another."""

_world = dist.distributed_c10d._world if dist.is_available() else None


@functools.cache
def form_of(text: str) -> Form:
    """A form by its text."""
    return Form(text)


def _planned(inputs: list[torch.Tensor], sizes: list[int], text: str) -> list[torch.Tensor]:
    """The results of a form on these inputs, with these values of its symbols."""
    known = _runners.get(text)
    if known is None or known[0] is not _world.default_pg:
        known = _made(text)
    return known[1].run(tuple(sizes), inputs, inputs[0].device)[0]


def _made(text: str) -> tuple[object, Runner]:
    """What runs a form; made when it runs first, on all ranks together."""
    for old, (world, _) in list(_runners.items()):
        if world is not _world.default_pg:
            _runners.pop(old)[1].close()
    form = form_of(text)
    module, symbols = form.module()
    lifted = _graph.Lifted.of(module)
    options = Options.of(form.options)
    ranks, groups = _ranks.taking_part(lifted.groups, options.timeout)
    return _runners.setdefault(text, (_world.default_pg, Runner(lifted, symbols, ranks, groups, options)))


def _fake(inputs, sizes, text):
    return form_of(text).results(sizes, inputs[0])


for _key in ("CPU", "CUDA"):
    _library.impl("planned", _planned, _key)
    # Graphs that have it are differentiated already.
    _library.impl("planned", torch.library.fallthrough_kernel, f"Autograd{_key}")
torch.library.register_fake("symmc::planned", _fake, lib=_library)
