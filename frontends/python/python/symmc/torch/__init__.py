"""The part of symmc for PyTorch.

``torch.compile(model, backend="symmc")`` runs whole graphs as plans. With :func:`enable` Inductor runs the graphs, and symmc runs
their collectives. Sessions accept process groups: ``symmc.Session(plan, process_group)``.

Only the names of this module are public. The sub-packages are the stages of a compiler, from a graph of Dynamo to runs:

- ``capture`` takes graphs; ``agreement`` makes functions that several ranks compile and call together,
- ``partition`` decides which nodes run as plans, ``legalise`` rewrites operators, ``importing`` makes programs,
- ``runtime`` makes plans and sessions, and runs them on tensors,
- ``inductor`` runs the collectives of graphs that Inductor compiles.

``graphs``, ``ranks`` and ``settings`` are below them. ARCHITECTURE.md ("torch.compile") describes the stages.
"""

from __future__ import annotations

from symmc.torch.settings import versions as _versions  # Refuses an old PyTorch before anything else is imported.
from symmc.torch.ranks.process_groups import group_of

__all__ = ["CollectivePass", "backend", "enable", "group_of", "memory"]


def backend(module, inputs, *, options=None, mode=None):
    """The backend of ``torch.compile``."""
    from symmc.torch.capture import backend

    return backend.backend(module, inputs, options=options, mode=mode)


def enable(**options) -> None:
    """Makes ``torch.compile`` with Inductor run all collectives by symmc.

    The options are those of :class:`CollectivePass`: ``machine``, ``timeout``, ``groups``, and ``buckets`` as a list.
    """
    from symmc.torch.inductor import collective_pass

    collective_pass.enable(**options)


def memory() -> dict[str, int]:
    """The bytes that compiled functions use on their devices now, in addition to PyTorch's tensors, by purpose: ``ordinary`` and
    ``symmetric`` arenas, ``flags``, ``scratch``, and ``held`` for inputs and outputs that symmc allocated."""
    from symmc.torch.runtime import arenas

    return arenas.memory()


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)


def __getattr__(name: str):
    if name == "CollectivePass":
        from symmc.torch.inductor.collective_pass import CollectivePass

        return CollectivePass
    raise AttributeError(f"module {__name__} has no attribute {name}")
