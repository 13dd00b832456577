"""PyTorch with symmc.

``torch.compile(model, backend="symmc")`` runs whole graphs as plans. With :func:`enable` Inductor runs graphs, and symmc their
collectives. Sessions take process groups: ``symmc.Session(plan, process_group)``.

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
    """Has all of ``torch.compile`` run collectives by symmc: ``machine``, ``buckets`` and ``timeout`` as for the backend."""
    from symmc.torch.inductor import collective_pass

    collective_pass.enable(**options)


def memory() -> dict[str, int]:
    """The bytes that compiled functions take of their devices now, in addition to tensors of PyTorch, by purpose: ``ordinary`` and
    ``symmetric`` arenas, ``flags``, ``scratch``, and ``held`` for inputs and outputs of symmc's own."""
    from symmc.torch.runtime import arenas

    return arenas.memory()


def __getattr__(name: str):
    if name == "CollectivePass":
        from symmc.torch.inductor.collective_pass import CollectivePass

        return CollectivePass
    raise AttributeError(f"module {__name__} has no attribute {name}")
