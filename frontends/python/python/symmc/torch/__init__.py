"""symmc under PyTorch.

``torch.compile(model, backend="symmc")`` runs whole graphs as plans; :func:`enable` leaves graphs to Inductor and has their
collectives run by symmc. A process group is a group of sessions: ``symmc.Session(plan, process_group)``.

What is here is public; sub-packages are not. They are the stages of a compiler, from a graph of Dynamo to runs:

- ``capture`` takes graphs, ``agreement`` has ranks compile and call them together,
- ``partition`` decides what runs as plans, ``legalise`` rewrites it into operators that symmc knows, ``importing`` makes programs of it,
- ``runtime`` makes plans and sessions, and runs them on tensors,
- ``inductor`` runs the collectives of graphs that Inductor compiles.

Below them are ``graphs``, ``ranks`` and ``settings``. ARCHITECTURE.md ("torch.compile") describes the stages.
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
    """The bytes that compiled functions take of their devices now beside tensors of PyTorch, by what for: ``ordinary`` and
    ``symmetric`` arenas, ``flags``, ``scratch``, and ``held`` for inputs and outputs of symmc's own."""
    from symmc.torch.runtime import arenas

    return arenas.memory()


def __getattr__(name: str):
    if name == "CollectivePass":
        from symmc.torch.inductor.collective_pass import CollectivePass

        return CollectivePass
    raise AttributeError(f"module {__name__} has no attribute {name}")
