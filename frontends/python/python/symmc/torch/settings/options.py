"""Options of ``torch.compile(model, backend="symmc", options={...})``.

Options that are also arguments of :func:`symmc.compile` have the same names, values and defaults. None stands for the default.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike, fspath
from typing import Any

from symmc import InputError, Program, machines
from symmc._symmc import SizeAssumptions, check_machine, check_numerics, check_order, check_slack, check_variants, read_defined_op
from symmc.torch.settings.reports import format_of

_FALLBACKS = ("inductor", "eager", "error")


@dataclass(frozen=True)
class Options:
    """How graphs are compiled."""

    machine: str | PathLike[str] | None = None
    """The machine for which choices are made; by default the host, or the GPUs of this machine."""
    buckets: Mapping[str, Sequence[int]] | Sequence[int] = ()
    """The largest value of each bucket, by the name of the symbol in reports or in Dynamo. A graph ignores names that it does not
    have, with a warning if it has none of them. A list applies to every dynamic size. By default there is one bucket, up to the next
    power of two."""
    bind: bool | str | Sequence[str] = False
    """The arguments in the symmetric arena: True for all that collectives need there, or names of arguments as in reports.
    A graph ignores names that it does not have, with a warning if it has none of them."""
    variants: str | Sequence[str] | None = None
    """The variants that collectives may run as, in addition to ``plain``; None for all that the profile knows."""
    order: str | None = None
    """The strategy that orders the steps: ``chosen`` (the default), ``lean``, or the name of a simple rule."""
    fallback: str = "inductor"
    """The part of PyTorch that runs unsupported operators: ``inductor`` or ``eager``. ``error`` raises an error instead."""
    numerics: str = "exact"
    """The changes of rounding that plans may make: ``exact`` for none, or one or more of ``reassociate``, ``narrow`` and
    ``narrow-f16``, separated by commas."""
    memory_price: float | None = None
    """The microseconds by which overlap must make a call faster, by estimate, for each MiB of memory that it takes; None for the
    default of :func:`symmc.compile`."""
    slack: float | None = None
    """The memory that overlap may take, in percent of the memory of the leanest order; None for the default of 100."""
    symm_limit: int | None = None
    """The largest size of the symmetric arena, in bytes."""
    coalesce: bool = True
    """Whether several collectives may be combined into one if a run is estimated to become faster."""
    definitions: Sequence[str] = ()
    """Definitions of custom ops, as :func:`symmc.open` takes them. A graph uses those of the ops that it calls."""
    timeout: float = 30.0
    """The longest wait for other ranks, in seconds."""
    report: str | PathLike[str] | None = None
    """A file to which the reports of the plans are written: text (``.txt``), or a page (``.html``)."""

    @staticmethod
    def of(given) -> Options:
        if not isinstance(given, (Mapping, type(None))):
            raise InputError(f"options of the backend symmc: expected a mapping from names to values, found {given!r}")
        given = {name: value for name, value in (given or {}).items() if not (value is None and name in _CHECKS)}
        _expect_known(given, [f.name for f in fields(Options)], "the backend symmc")
        for name, value in given.items():
            _CHECKS[name](name, value)
        if isinstance(given.get("machine"), PathLike):
            given["machine"] = fspath(given["machine"])
        return Options(**given)

    @staticmethod
    def of_pass(given) -> Options:
        """The options of a :class:`CollectivePass`, which leaves unsupported operators to Inductor."""
        _expect_known(given, ["machine", "buckets", "timeout", "groups"], "CollectivePass")
        if isinstance(given.get("buckets"), Mapping):
            found = given["buckets"]
            raise InputError(f"option buckets of CollectivePass: expected a list of sizes for every dynamic size, found {found!r}")
        return Options.of({"fallback": "error", **given})

    def of_compile(self, arguments: Iterable[str]) -> dict[str, Any]:
        """The keywords of :func:`symmc.compile` for a program with these arguments, except the machine and the buckets."""
        bind, known = self.bind, list(arguments)
        if not isinstance(bind, bool):
            names = [bind] if isinstance(bind, str) else list(bind)
            bind = [name for name in known if name in names]
            if names and not bind:
                found = f"found {', '.join(names)}, and the graph has {', '.join(known) or 'none'}"
                warnings.warn(f"option bind: expected arguments of the graph, {found}", stacklevel=2)
        return {
            "bind": bind,
            "variants": self.variants,
            "order": self.order,
            "slack": self.slack,
            "memory_price": self.memory_price,
            "symm_limit": self.symm_limit,
            "coalesce": self.coalesce,
            "numerics": self.numerics,
        }


    def bucket_ends(self, program: Program, assumptions: SizeAssumptions) -> dict[str, list[int]]:
        """The upper ends of the buckets of each symbol of a program, as :func:`symmc.compile` takes them."""
        if not isinstance(self.buckets, Mapping):
            return assumptions.buckets(program.symbols, self.buckets)
        found = {}
        for name, (least, most) in program.symbols.items():
            alias = program.aliases[name]
            if name in self.buckets or alias in self.buckets:
                ends = self.buckets.get(name, self.buckets.get(alias, ()))
                found[name] = sorted({end for end in ends if least <= end < most} | {most})
        if self.buckets and program.symbols and not found:
            known = ", ".join(f"{name} ({alias})" for name, alias in program.aliases.items())
            names = ", ".join(self.buckets)
            text = f"option buckets: expected symbols of the graph, found {names}, and the graph has {known}"
            warnings.warn(text, stacklevel=2)
        return found


def _expect_known(given, known: list[str], of: str) -> None:
    for name in given:
        if name not in known:
            raise InputError(f"option {name} of {of}: expected one of {', '.join(known)}")


def _is_size(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_list(value, is_member: Callable[[Any], bool]) -> bool:
    return not isinstance(value, (str, bytes)) and isinstance(value, Sequence) and all(map(is_member, value))


def _is_name(value) -> bool:
    return isinstance(value, str)


def _is_buckets(value) -> bool:
    if isinstance(value, Mapping):
        return all(_is_name(name) and _is_list(ends, _is_size) for name, ends in value.items())
    return _is_list(value, _is_size)


def _expect(expected: str, holds: Callable[[Any], bool], check: Callable[[Any], object] | None = None):
    """A check of an option by its type, and then of its value by the compiled part of the package."""

    def checked(name: str, value) -> None:
        if not holds(value):
            raise InputError(f"option {name}: expected {expected}, found {value!r}")
        if check is not None:
            try:
                check(value)
            except InputError as error:
                raise InputError(f"option {str(error) if str(error).startswith(name) else f'{name}: {error}'}") from None

    return checked


def _check_report(_name: str, path) -> None:
    if not isinstance(path, (str, PathLike)):
        raise InputError(f"option report: expected a path, found {path!r}")
    format_of(path)


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "machine": _expect(
        f"a path or a name such as {', '.join(machines())}", lambda value: isinstance(value, (str, PathLike)), check_machine
    ),
    "buckets": _expect("lists of sizes of at least 1 by the names of symbols, or a list of sizes", _is_buckets),
    "bind": _expect(
        "True, or names of arguments", lambda value: isinstance(value, (bool, str)) or _is_list(value, _is_name)
    ),
    "variants": _expect(
        "names of variants", lambda value: _is_name(value) or _is_list(value, _is_name), check_variants
    ),
    "order": _expect("the name of an order", _is_name, check_order),
    "fallback": _expect(f"one of {', '.join(_FALLBACKS)}", lambda value: _is_name(value) and value in _FALLBACKS),
    "numerics": _expect("a text such as 'reassociate,narrow'", _is_name, check_numerics),
    "memory_price": _expect("a number of at least 0", _is_number),
    "slack": _expect("a percentage, 0 or at least 1", _is_number, check_slack),
    "symm_limit": _expect("bytes, at least 1", lambda value: _is_size(value) and value < 1 << 64),
    "coalesce": _expect("True or False", lambda value: isinstance(value, bool)),
    "definitions": _expect(
        "programs in the text form", lambda value: _is_list(value, _is_name), lambda texts: [read_defined_op(text) for text in texts]
    ),
    "timeout": _expect("seconds above 0", lambda value: _is_number(value) and value > 0),
    "report": _check_report,
}
"""The check of each option."""
