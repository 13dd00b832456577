"""Sizes that are multiples of a number, and sizes that must be numbers.

Code that divides rows among ranks or into pieces asks whether the division has a remainder. The answer is a guard, so it holds in every
call of the graph. The program then has a symbol for the quotient, and the size is an expression of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod

import symmc

_MOST = 4096
"""The largest step that is asked for: beyond, sizes are left as they are."""

_DIVIDED = ("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "all_to_all_single")
"""Collectives that divide the leading axis of what they are given among the ranks."""


@dataclass(frozen=True)
class SizeSteps:
    """A size that is ``step * quotient + rest``. The quotient is another symbol."""

    symbol: str
    step: int
    rest: int

    @property
    def quotient(self) -> str:
        """The name of the symbol for the number of steps."""
        return f"{self.symbol}_by_{self.step}"

    @property
    def expression(self) -> sympy.Expr:
        """The size as an expression of the part."""
        return self.step * sympy.Symbol(self.quotient, integer=True) + self.rest

    def divide(self, size: int) -> int:
        if size % self.step != self.rest:
            expected = f"a multiple of {self.step}" + (f" and {self.rest}" if self.rest else "")
            raise symmc.InputError(f"size {self.symbol}: expected {expected}, which ranks divide, found {size}")
        return size // self.step


def find_size_steps(graph: torch.fx.Graph, environment) -> list[SizeSteps]:
    """The sizes of a graph that go in steps; the environment is what PyTorch knows of them."""
    facts = {}
    if environment is None:
        return []
    for guard in environment.guards:
        for dividend, divisor in _divisions_in_guard(guard.expr):
            _record_fact(dividend, divisor, facts)
    for node in graph.nodes:
        for dividend, divisor in _divisions_in_collective(node):
            _record_fact(dividend, divisor, facts)
    free = {str(symbol) for node in graph.nodes if node.op == "placeholder" for symbol in _symbols(node)}
    found = {symbol: _common_step(known) for symbol, known in facts.items() if symbol in free}
    return [SizeSteps(symbol, *step) for symbol, step in found.items() if step is not None]


def _symbols(node: torch.fx.Node) -> set:
    """The symbols in the extents of a node's value, or in that itself."""
    value = node.meta.get("val")
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return set().union(*(size.node.expr.free_symbols for size in sizes if isinstance(size, torch.SymInt)))


def find_fixed_sizes(graph: torch.fx.Graph) -> list[str]:
    """The sizes that have to be numbers in a program: those of heads, by which attention scales scores."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        is_attention = isinstance(node.target, torch._ops.OpOverload) and "scaled_dot_product" in node.target._schema.name
        query = node.args[0].meta.get("val") if is_attention and node.args else None
        size = query.shape[-1] if isinstance(query, torch.Tensor) else None
        if isinstance(size, torch.SymInt):
            found |= dict.fromkeys(sorted(map(str, size.node.expr.free_symbols)))
    return list(found)


def _divisions_in_guard(guard) -> list[tuple]:
    """Expressions and what divides them, if an equation says so."""
    if not isinstance(guard, sympy.Eq):
        return []
    rests: dict[sympy.Symbol, tuple] = {}
    told = guard.lhs - guard.rhs
    for found in told.atoms(FloorDiv, Mod):
        dividend, divisor = found.args
        if not divisor.is_Integer or dividend.has(FloorDiv, Mod):
            continue
        # Both are the rest of a division in other words.
        rest = next((one for one, division in rests.items() if division == found.args), None)
        if rest is None:
            rest = sympy.Symbol(f"rest{len(rests)}", integer=True)
            rests[rest] = found.args
        told = told.subs(found, rest if isinstance(found, Mod) else (dividend - rest) / divisor)
    # A product is nothing if one of its factors is, and sizes are not.
    factors = [part for part in sympy.Mul.make_args(sympy.factor(told)) if not part.is_number]
    factors = [part for part in factors if part in rests or not part.is_Symbol]
    if len(factors) != 1 or len(factors[0].free_symbols) != 1 or not factors[0].free_symbols <= rests.keys():
        return []
    (rest,) = factors[0].free_symbols
    dividend, divisor = rests[rest]
    return [(dividend - value, divisor) for value in sympy.solve(factors[0], rest) if value.is_Integer]


def _divisions_in_collective(node: torch.fx.Node) -> list[tuple]:
    """The leading extents of what a collective divides, and the number of ranks."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target.namespace.startswith("_c10d_functional"):
        return []
    name = target._schema.name.split("::")[1]
    if name not in _DIVIDED:
        return []
    given = dict(zip((argument.name for argument in target._schema.arguments), node.args)) | node.kwargs
    pieces = [one for name in ("output_split_sizes", "input_split_sizes") for one in given.get(name) or ()]
    if len(set(map(_told, pieces))) > 1:
        return []
    ranks = given.get("group_size") or len(given.get("output_split_sizes") or ()) or 1
    values = [one.meta.get("val") for one in node.all_input_nodes]
    leading = [value.shape[0] for value in values if isinstance(value, torch.Tensor) and value.dim()]
    return [(size.node.expr, sympy.Integer(ranks)) for size in leading if isinstance(size, torch.SymInt)]


def _told(size) -> str:
    """A size, which may be a node, as what it is in symbols or numbers."""
    return str(size.meta.get("val") if isinstance(size, torch.fx.Node) else size)


def _record_fact(dividend, divisor, facts: dict[str, list]) -> None:
    """Notes what is known of a single size: that ``a * size + b`` is a multiple of ``divisor``."""
    symbols = list(dividend.free_symbols)
    line = sympy.Poly(dividend, *symbols).all_coeffs() if len(symbols) == 1 and dividend.is_polynomial(*symbols) else []
    if len(line) == 2 and all(term.is_Integer for term in line):
        facts.setdefault(str(symbols[0]), []).append((int(line[0]), int(line[1]), int(divisor)))


def _common_step(facts: list[tuple[int, int, int]]) -> tuple[int, int] | None:
    """The step and the rest of what all of these hold for, if that is not everything."""
    most = math.lcm(*(divisor for *_, divisor in facts))
    if most > _MOST:
        return None
    sizes = [n for n in range(most) if all((a * n + b) % divisor == 0 for a, b, divisor in facts)]
    step = most // len(sizes) if sizes else 1
    return (step, sizes[0]) if step > 1 else None
