"""Compiles tensor programs with collectives into plans that use symmetric memory, proves the plans safe, and runs them.

    import symmc

    program = symmc.open("model.pt2", ranks=2)
    plan = symmc.compile(program)
    print(plan.report())

``symmc.torch`` is the part for PyTorch: ``torch.compile(model, backend="symmc")``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from symmc._symmc import (
    CheckError,
    Choice,
    DataError,
    DefectError,
    DisagreementError,
    Error,
    Group,
    IndexRangeError,
    InputError,
    PeerError,
    Plan,
    Program,
    ResourceError,
    RunError,
    Session,
    SymmetricBuffer,
    Tensor,
    UnsupportedError,
    Value,
    View,
    __version__,
    compile,
    from_text,
    load,
    machines,
    open,
    set_log,
)

if TYPE_CHECKING:
    from symmc._symmc import SupportsDLPack

__all__ = [
    "CheckError",
    "Choice",
    "DataError",
    "DefectError",
    "DisagreementError",
    "Error",
    "Group",
    "IndexRangeError",
    "InputError",
    "PeerError",
    "Plan",
    "Program",
    "ResourceError",
    "RunError",
    "Session",
    "SymmetricBuffer",
    "Tensor",
    "UnsupportedError",
    "Value",
    "View",
    "__version__",
    "compile",
    "from_exported",
    "from_fx",
    "from_text",
    "load",
    "machines",
    "open",
    "run",
    "set_log",
]


def __dir__() -> list[str]:
    """The public names, and the module ``torch`` once it is imported."""
    return sorted(name for name in [*__all__, "torch"] if name in globals())


def from_exported(exported: Any, **options: Any) -> Program:
    """Imports a ``torch.export.ExportedProgram``, with the options of :func:`open`.

    Unsupported operators are decomposed if symmc supports the parts, as under ``torch.compile``.
    """
    from symmc.torch.capture import exported as capture

    program: Program = capture.from_exported(exported, **options)
    return program


def from_fx(module: Any, inputs: Sequence[Any] | None = None, **options: Any) -> Program:
    """Imports a ``torch.fx.GraphModule`` of ATen operators, with the options of :func:`open`.

    ``inputs`` are example inputs. Without them the nodes of the graph must carry their values (``node.meta["val"]``).
    """
    from symmc.torch.capture import exported as capture

    program: Program = capture.from_fx(module, inputs, **options)
    return program


def run(
    plan: Plan,
    inputs: Sequence[Mapping[str, SupportsDLPack]],
    *,
    symbols: Mapping[str, int] | None = None,
    timeout: float = 30.0,
) -> list[list[Tensor]]:
    """Runs a plan once on the host, on ranks that are threads of this process.

    ``inputs`` is a list with a mapping from names to tensors for each rank, ``symbols`` the sizes of the run, and ``timeout`` the
    longest wait for other ranks in seconds. Returns the outputs of each rank, in the order of the program.
    """
    from concurrent.futures import ThreadPoolExecutor

    if isinstance(inputs, Mapping) or not all(isinstance(given, Mapping) for given in inputs):
        raise InputError("inputs: expected a list with a mapping from names to tensors for each rank")
    if len(inputs) != plan.ranks:
        raise InputError(f"inputs: expected those of {plan.ranks} ranks, found those of {len(inputs)}")

    def run_rank(group: Group, given: Mapping[str, SupportsDLPack]) -> list[Tensor]:
        with Session(plan, group, timeout=timeout) as session:
            session.set(**(symbols or {}))
            for name, tensor in given.items():
                session.write(name, tensor)
            session.run()
            returned = [value for value in session.outputs() if value.replaces is None]
            return [session.read(f"out.{k}") for k in range(len(returned))]

    with ThreadPoolExecutor(plan.ranks) as threads:
        return list(threads.map(run_rank, Group.threads(plan.ranks), inputs))
