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
"""The largest number of sizes of which another one is taken for the product, or that are taken for numbers at a time."""


class SizeAssumptions:
    """The known and the assumed relations between the symbols of a program."""

    def __init__(self, steps: Sequence[SizeSteps], may_fix_sizes: bool):
        self.steps = steps
        self.may_fix_sizes = may_fix_sizes
        """Whether sizes may be taken for numbers: each of their values has a plan of its own then."""
        self.assumed: dict[str, sympy.Expr] = {}
        self.refuted: set[tuple[str, str]] = set()
        self.differences: dict[str, tuple[str, str]] = {}
        """For the new symbols of what sizes have beyond others, these two."""

    def dims(self) -> dict[str, int | str]:
        """What is said of symbols when the program is opened."""
        known = {one.symbol: one.expression for one in self.steps} | self.assumed
        return {symbol: _as_dim(_resolved(known, expression)) for symbol, expression in known.items() if self._is_there(symbol)}

    def _is_there(self, symbol: str) -> bool:
        """Whether a symbol is one of the file: the number of steps is not, and vanishes if it is something else."""
        return all(one.quotient != symbol for one in self.steps)

    def drop_refuted(self, values: dict[str, int]) -> bool:
        """Drops what does not hold for the values of the symbols; whether all of it does."""
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
        """The program that ``open`` gives; what an operator is refused for is assumed if it holds for these values."""
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
        """What ``open`` gives, or is refused for, where something is assumed with which the operator of an error is not refused."""
        before, rests = self.assumed, self.differences
        for more, beyond in self._candidates([name for name in error.symbols if name in values], values):
            self.assumed, self.differences = before | more, rests | beyond
            found = _try_open(open)
            if not isinstance(found, symmc.Error) or self._is_another_refusal(found, error, beyond):
                return found
        self.assumed, self.differences = before, rests
        return None

    def _is_another_refusal(self, found: symmc.Error, error: symmc.Error, beyond: dict) -> bool:
        """Whether what is refused now is something else, and nothing of what was assumed is in its way."""
        is_of_sizes = found.node is None and error.node is not None
        is_new = any(rest in found.symbols for rest in beyond)
        return not is_of_sizes and not is_new and self._about(found) != self._about(error)

    def _about(self, error: symmc.Error) -> tuple:
        """What an error says is in the way; what a size has beyond another stands for the size."""
        return error.node, error.kind, {self.differences.get(symbol, (symbol,))[0] for symbol in error.symbols}

    def fix_sizes(self, symbols: Iterable[str], values: dict[str, int]) -> None:
        """Takes symbols for numbers."""
        self.assumed |= {symbol: sympy.Integer(values[symbol]) for symbol in symbols if symbol not in self.assumed}

    def _candidates(self, named: list[str], values: dict[str, int]) -> Iterator[tuple[dict[str, sympy.Expr], dict]]:
        """What may be assumed of symbols, and new ones for it: that two are equal, or one is a product of others or never less than
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
    """What is opened, or why it is not."""
    try:
        return open()
    except symmc.Error as error:
        return error


def _combinations(symbols: list[str], numbers: range) -> Iterator[tuple[str, ...]]:
    """So many symbols at a time, fewer first."""
    return itertools.chain.from_iterable(itertools.combinations(symbols, number) for number in numbers)


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True)


def _resolved(known: dict[str, sympy.Expr], expression: sympy.Expr) -> sympy.Expr:
    """An expression of symbols of which nothing is said."""
    while True:
        inner = {symbol: known[symbol.name] for symbol in expression.free_symbols if symbol.name in known}
        if not inner:
            return sympy.expand(expression)
        expression = expression.subs(inner)


def _as_dim(expression: sympy.Expr) -> int | str:
    return int(expression) if expression.is_Integer else str(expression)


def _evaluate(expression: sympy.Expr, values: dict[str, int]) -> int:
    return int(expression.subs({symbol: values[symbol.name] for symbol in expression.free_symbols}))
