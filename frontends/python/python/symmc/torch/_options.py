"""What ``torch.compile(model, backend="symmc", options={...})`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from os import PathLike, fspath

from symmc import InputError, machines

from symmc._symmc import check_machine, check_numerics
from symmc.torch._report import format_of


@dataclass(frozen=True)
class Options:
    """How graphs are compiled."""

    machine: str | PathLike[str] | None = None
    """The profile that choices are made by; by default that of the host, or of the GPUs that there are."""
    buckets: Sequence[int] = ()
    """The largest value of each bucket of a dynamic size. Without, there is one bucket, up to the next power of two."""
    fallback: str = "inductor"
    """What runs the operators that symmc does not know: ``inductor``, ``eager``, or ``error`` for nobody."""
    numerics: str = "strict"
    """The changes of rounding that plans may make: ``strict`` for none, or one or more of ``reassociate``, ``narrow`` and
    ``narrow-f16``, separated by commas."""
    memory_price: float | None = None
    """How many microseconds a call must become faster, by estimate, for each MiB of memory that overlap takes; None for the
    default of :func:`symmc.compile`."""
    slack: float | None = None
    """How much more memory than the leanest order overlap may take at most, as a fraction; None for the default."""
    symm_limit: int | None = None
    """The bytes that the symmetric arena may take."""
    timeout: float = 30.0
    """No wait for other ranks takes longer, in seconds."""
    report: str | PathLike[str] | None = None
    """A file to which the reports of the plans are written: text (``.txt``), or a page (``.html``)."""

    @staticmethod
    def of(given) -> Options:
        """The options of a mapping."""
        given = dict(given or {})
        _expect_known(given, [f.name for f in fields(Options)], "the backend symmc")
        if isinstance(given.get("machine"), PathLike):
            given["machine"] = fspath(given["machine"])
        options = Options(**given)
        if options.fallback not in ("inductor", "eager", "error"):
            raise InputError(f"option fallback: expected inductor, eager or error, found {options.fallback!r}")
        if not isinstance(options.numerics, str):
            raise InputError(f"option numerics: expected a text such as 'reassociate,narrow', found {options.numerics!r}")
        check_numerics(options.numerics)
        if options.machine is not None and not isinstance(options.machine, str):
            raise InputError(f"option machine: expected a name such as {', '.join(machines())}, found {options.machine!r}")
        if options.machine is not None:
            check_machine(options.machine)
        options._check()
        return options

    @staticmethod
    def of_pass(given) -> Options:
        """Those of a pass, which leaves to others what it does not know."""
        _expect_known(given, ["machine", "buckets", "timeout", "groups"], "CollectivePass")
        return Options.of({"fallback": "error", **given})

    def _check(self) -> None:
        """Refuses values of other types, and those that say nothing."""
        buckets = self.buckets
        if isinstance(buckets, str) or not isinstance(buckets, Sequence) or not all(_is_size(b) for b in buckets):
            raise InputError(f"option buckets: expected a list of sizes of at least 1, found {buckets!r}")
        seconds = self.timeout
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
            raise InputError(f"option timeout: expected seconds, found {seconds!r}")
        for name in ("memory_price", "slack"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, (int, float, type(None))) or not 0 <= (number or 0) < float("inf"):
                raise InputError(f"option {name}: expected a number of at least 0, found {number!r}")
        if self.symm_limit is not None and not _is_size(self.symm_limit):
            raise InputError(f"option symm_limit: expected bytes, at least 1, found {self.symm_limit!r}")
        if not isinstance(self.report, (str, PathLike, type(None))):
            raise InputError(f"option report: expected a path, found {self.report!r}")
        if self.report is not None:
            format_of(self.report)


def _expect_known(given, known: list[str], of: str) -> None:
    """Refuses options that are none."""
    for name in given:
        if name not in known:
            raise InputError(f"option {name} of {of}: expected one of {', '.join(known)}")


def _is_size(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
