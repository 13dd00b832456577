"""Relations between sizes that a graph does not state, assumed from the sizes of a call.

Dynamo has a symbol for each extent that varies. It does not know that two of them are always equal, that one is a product of others
(flattened tokens), or that one is at least another (rows of a table that is cut to the number of tokens), unless a guard asked. The
importer rejects operators that need such a relation. A relation is assumed if it holds for the sizes of the call. Sizes for which it
does not hold get another plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import sympy

import symmc
from symmc.torch.importing.size_steps import SizeSteps

_MOST_TOGETHER = 3
"""The largest number of sizes in a product, and of sizes that are fixed to numbers at a time."""


class SizeAssumptions:
    """The known and the assumed relations between the symbols of a program."""

    def __init__(self, steps: Sequence[SizeSteps], may_fix_sizes: bool):
        self.steps = steps
        self.may_fix_sizes = may_fix_sizes
        """Whether sizes may be fixed to numbers. Then each of their values has a plan of its own."""
        self.assumed: dict[str, sympy.Expr] = {}
        self.refuted: set[tuple[str, str]] = set()
        self.differences: dict[str, tuple[str, str]] = {}
        """For each new symbol, which is the difference of two sizes, these two."""

    def dims(self) -> dict[str, int | str]:
        """The relations, as ``dims`` of the import."""
        known = {one.symbol: one.expression for one in self.steps} | self.assumed
        return {symbol: _as_dim(_resolved(known, expression)) for symbol, expression in known.items() if self._is_there(symbol)}

    def _is_there(self, symbol: str) -> bool:
        """Whether a symbol is one of the file: the number of steps is not, and vanishes if it is something else."""
        return all(one.quotient != symbol for one in self.steps)

    def drop_refuted(self, values: dict[str, int]) -> bool:
        """Drops relations that do not hold for these values; whether all hold."""
        values = self.with_differences(values)
        less = {symbol for rest, (symbol, _) in self.differences.items() if values[rest] < 0}
        wrong = [symbol for symbol, of in self.assumed.items() if symbol in less or _evaluate(of, values) != values[symbol]]
        for symbol in wrong:
            self.refuted.add((symbol, str(self.assumed.pop(symbol))))
        self.differences = {rest: pair for rest, pair in self.differences.items() if pair[0] in self.assumed}
        return not wrong

    def with_differences(self, values: dict[str, int]) -> dict[str, int]:
        """The values of all symbols, of those of the file."""
        return values | {rest: values[one] - values[other] for rest, (one, other) in self.differences.items()}

    def open_program(self, open: Callable[[], symmc.Program], values: dict[str, int]) -> symmc.Program:
        """The program of ``open``, with relations assumed that hold for these values and that operators need."""
        found = _try_open(open)
        while isinstance(found, symmc.InputError):
            other = self._assume_more(found, values, open)
            if other is None:
                break
            found = other
        if isinstance(found, symmc.Error):
            raise found
        return found

    def _assume_more(self, error: symmc.Error, values: dict[str, int], open: Callable[[], symmc.Program]):
        """The next result of ``open``, with a relation added that the operator of an error accepts."""
        before, rests = self.assumed, self.differences
        for more, beyond in self._candidates([name for name in error.symbols if name in values], values):
            self.assumed, self.differences = before | more, rests | beyond
            found = _try_open(open)
            if not isinstance(found, symmc.Error) or self._is_another_refusal(found, error, beyond):
                return found
        self.assumed, self.differences = before, rests
        return None

    def _is_another_refusal(self, found: symmc.Error, error: symmc.Error, beyond: dict) -> bool:
        """Whether another node or size is refused now, and not because of the new relation."""
        is_of_sizes = found.node is None and error.node is not None
        is_new = any(rest in found.symbols for rest in beyond)
        return not is_of_sizes and not is_new and self._about(found) != self._about(error)

    def _about(self, error: symmc.Error) -> tuple:
        """The node, kind and symbols of an error. A difference of two sizes counts as the larger one."""
        return error.node, error.kind, {self.differences.get(symbol, (symbol,))[0] for symbol in error.symbols}

    def fix_sizes(self, symbols: Iterable[str], values: dict[str, int]) -> None:
        self.assumed |= {symbol: sympy.Integer(values[symbol]) for symbol in symbols if symbol not in self.assumed}

    def _candidates(self, named: list[str], values: dict[str, int]) -> Iterator[tuple[dict[str, sympy.Expr], dict]]:
        """Candidates for relations of symbols, with new symbols for them: two are equal, one is a product of others or at least
        another, or, if need be, some are numbers."""
        free = [symbol for symbol in named if symbol not in self.assumed]
        found: list[tuple[str, sympy.Expr]] = []
        for one, other in itertools.combinations(free, 2):
            if values[one] == values[other]:
                found.append((other, _symbol(one)))
        for symbol in free:
            others = [other for other in free if other != symbol and values[other] > 1]
            for factors in _combinations(others, range(2, _MOST_TOGETHER + 1)):
                if math.prod(values[factor] for factor in factors) == values[symbol]:
                    found.append((symbol, sympy.Mul(*map(_symbol, factors))))
        rests = {}
        for one, other in itertools.permutations(free, 2):
            if self._is_there(one) and values[one] >= values[other]:
                rest = f"{one}_beyond_{other}"
                rests[one, _symbol(other) + _symbol(rest)] = {rest: (one, other)}
        found += rests
        for symbol, expression in found:
            if (symbol, str(expression)) not in self.refuted:
                yield {symbol: expression}, rests.get((symbol, expression), {})
        for numbers in _combinations(free[::-1], range(1, _MOST_TOGETHER + 1)) if self.may_fix_sizes else ():
            yield {symbol: sympy.Integer(values[symbol]) for symbol in numbers}, {}


def _try_open(open: Callable[[], symmc.Program]) -> symmc.Program | symmc.Error:
    """The program, or the error of the import."""
    try:
        return open()
    except symmc.Error as error:
        return error


def _combinations(symbols: list[str], numbers: range) -> Iterator[tuple[str, ...]]:
    """The combinations of these numbers of symbols, smaller ones first."""
    return itertools.chain.from_iterable(itertools.combinations(symbols, number) for number in numbers)


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True)


def _resolved(known: dict[str, sympy.Expr], expression: sympy.Expr) -> sympy.Expr:
    """An expression in which known symbols are replaced."""
    while True:
        inner = {symbol: known[symbol.name] for symbol in expression.free_symbols if symbol.name in known}
        if not inner:
            return sympy.expand(expression)
        expression = expression.subs(inner)


def _as_dim(expression: sympy.Expr) -> int | str:
    return int(expression) if expression.is_Integer else str(expression)


def _evaluate(expression: sympy.Expr, values: dict[str, int]) -> int:
    return int(expression.subs({symbol: values[symbol.name] for symbol in expression.free_symbols}))
