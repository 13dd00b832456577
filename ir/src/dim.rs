//! Dims: integer expressions over bounded symbols, in a normal form.
//!
//! A [`Dim`] is a polynomial with integer coefficients whose atoms are symbols and the four operations
//! that do not distribute (`//`, `%`, `max`, `min`). Terms are sorted, like terms are collected and
//! constants fold, so equal expressions compare equal whenever they are equal as polynomials over their
//! atoms.
//!
//! Arithmetic saturates at the ends of `i64`. A saturated dim is far beyond the limits of the
//! verifier, so no later stage sees one.

use std::fmt;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::entity::Entity;
use crate::quote::{is_identifier, write_string};
use crate::symbol::{SymbolId, SymbolTable};

mod corner;
mod quotient;

/// An integer expression in normal form.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim(DimRepr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum DimRepr {
    Const(i64),
    /// At least one term; sorted by product, which is not empty; no zero coefficient.
    Sum(Arc<DimSum>),
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct DimSum {
    terms: DimTerms,
    constant: i64,
}

/// Nearly all sums have one term, and nearly all terms one atom.
type DimTerms = SmallVec<[DimTerm; 1]>;
type AtomProduct = SmallVec<[DimAtom; 1]>;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct DimTerm {
    /// Sorted; an atom to the k-th power occurs k times.
    product: AtomProduct,
    factor: i64,
}

/// A condition on symbols at which a dim changes its form: a `min` or `max` selects its other argument, or a
/// quotient or remainder steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DimBreakpoint {
    /// The form changes where this dim changes its sign. It is the difference of the arguments of a `min` or
    /// `max`.
    Sign(Dim),
    /// The value steps where the first dim is a multiple of the second.
    Multiple(Dim, Dim),
}

/// A factor that the polynomial form treats as opaque.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum DimAtom {
    Symbol(SymbolId),
    FloorDiv(Dim, Dim),
    Mod(Dim, Dim),
    Max(Dim, Dim),
    Min(Dim, Dim),
}

/// The maximum number of atoms of a dim, including atoms within atoms; see [`check_shape_complexity`].
pub const MAX_ATOMS: usize = 256;
/// The maximum nesting depth of `div`, `mod`, `max` and `min` in a dim; see [`check_shape_complexity`].
pub const MAX_DEPTH: usize = 32;
pub const MAX_RANK: usize = 64;
/// The maximum number of terms in the product of a shape's dims; see [`check_shape_complexity`].
pub const MAX_TERMS: usize = 1024;

/// Checks that a shape stays within the limits of this module, so that later arithmetic on it stays small.
pub fn check_shape_complexity(shape: &[Dim]) -> Result<(), String> {
    if shape.len() > MAX_RANK {
        return Err(format!("expected at most {MAX_RANK} axes, found {}", shape.len()));
    }
    let mut terms: usize = 1;
    for dim in shape {
        let atoms = dim.atom_count();
        let depth = dim.depth();
        if atoms > MAX_ATOMS {
            return Err(format!("expected an extent of at most {MAX_ATOMS} factors, found {atoms}"));
        }
        if depth > MAX_DEPTH {
            return Err(format!("expected an extent of at most {MAX_DEPTH} nested functions, found {depth}"));
        }
        terms = terms.saturating_mul(dim.term_count());
    }
    if terms > MAX_TERMS {
        return Err(format!(
            "expected at most {MAX_TERMS} terms in the number of elements, found up to {terms}"
        ));
    }
    Ok(())
}

/// Values of symbols for one run. Unbound symbols have no value.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SymbolBindings(Vec<Option<i64>>);

impl SymbolBindings {
    pub fn new() -> Self {
        SymbolBindings::default()
    }
    pub fn set(&mut self, symbol: SymbolId, value: i64) {
        if self.0.len() <= symbol.index() {
            self.0.resize(symbol.index() + 1, None);
        }
        self.0[symbol.index()] = Some(value);
    }
    pub fn get(&self, symbol: SymbolId) -> Option<i64> {
        self.0.get(symbol.index()).copied().flatten()
    }
    /// Every symbol at its upper bound.
    pub fn at_upper_bounds(symbols: &SymbolTable) -> Self {
        SymbolBindings(symbols.values().map(|s| Some(s.max)).collect())
    }
    /// Every symbol at its lower bound.
    pub fn at_lower_bounds(symbols: &SymbolTable) -> Self {
        SymbolBindings(symbols.values().map(|s| Some(s.min)).collect())
    }
}

impl From<i64> for Dim {
    fn from(value: i64) -> Self {
        Dim(DimRepr::Const(value))
    }
}

impl From<SymbolId> for Dim {
    fn from(symbol: SymbolId) -> Self {
        Dim::from_atom(DimAtom::Symbol(symbol))
    }
}

impl Dim {
    fn from_atom(atom: DimAtom) -> Self {
        Dim::from_normal_terms(smallvec![DimTerm { product: smallvec![atom], factor: 1 }], 0)
    }

    /// A sum of terms in normal form, at least one term.
    fn from_normal_terms(terms: DimTerms, constant: i64) -> Self {
        Dim(DimRepr::Sum(Arc::new(DimSum { terms, constant })))
    }

    fn from_terms(mut terms: DimTerms, mut constant: i64) -> Self {
        terms.retain(|t| {
            if t.product.is_empty() {
                constant = constant.saturating_add(t.factor);
            }
            !t.product.is_empty()
        });
        terms.sort_by(|a, b| a.product.cmp(&b.product));
        let mut merged = DimTerms::new();
        for term in terms {
            match merged.last_mut() {
                Some(last) if last.product == term.product => {
                    last.factor = last.factor.saturating_add(term.factor);
                }
                _ => merged.push(term),
            }
        }
        merged.retain(|t| t.factor != 0);
        match merged.iter().enumerate().find_map(|(i, t)| Some((i, t.cancel_exact_division()?))) {
            Some((i, whole)) => {
                merged.remove(i);
                Dim::from_terms(merged, constant) + whole
            }
            None if merged.is_empty() => Dim(DimRepr::Const(constant)),
            None => Dim::from_normal_terms(merged, constant),
        }
    }

    /// The expression times a constant. A factor other than 0 preserves the normal form.
    fn scale_by(&self, by: i64) -> Self {
        match (&self.0, by) {
            (_, 1) => self.clone(),
            (_, 0) => Dim::from(0),
            (DimRepr::Const(c), _) => Dim::from(c.saturating_mul(by)),
            (DimRepr::Sum(sum), _) => {
                let mut terms = sum.terms.clone();
                terms.iter_mut().for_each(|t| t.factor = t.factor.saturating_mul(by));
                let constant = sum.constant.saturating_mul(by);
                let has_whole = terms.iter().any(|t| t.cancel_exact_division().is_some());
                if has_whole {
                    Dim::from_terms(terms, constant)
                } else {
                    Dim::from_normal_terms(terms, constant)
                }
            }
        }
    }

    fn add_constant(&self, constant: i64) -> Self {
        match (&self.0, constant) {
            (_, 0) => self.clone(),
            (DimRepr::Const(c), _) => Dim::from(c.saturating_add(constant)),
            (DimRepr::Sum(sum), _) => {
                Dim::from_normal_terms(sum.terms.clone(), sum.constant.saturating_add(constant))
            }
        }
    }

    fn terms_and_constant(&self) -> (&[DimTerm], i64) {
        match &self.0 {
            DimRepr::Const(c) => (&[], *c),
            DimRepr::Sum(s) => (&s.terms, s.constant),
        }
    }

    pub fn as_const(&self) -> Option<i64> {
        match self.0 {
            DimRepr::Const(c) => Some(c),
            DimRepr::Sum(_) => None,
        }
    }

    pub fn as_symbol(&self) -> Option<SymbolId> {
        match self.terms_and_constant() {
            ([DimTerm { product, factor: 1 }], 0) => match product.as_slice() {
                [DimAtom::Symbol(s)] => Some(*s),
                _ => None,
            },
            _ => None,
        }
    }

    /// The number of terms, including the constant unless it is 0; at least 1.
    pub fn term_count(&self) -> usize {
        let (terms, constant) = self.terms_and_constant();
        (terms.len() + usize::from(constant != 0)).max(1)
    }

    /// The number of atoms, including atoms within atoms.
    pub fn atom_count(&self) -> usize {
        let atoms = self.terms_and_constant().0.iter().flat_map(|t| &t.product);
        atoms.map(|atom| atom.arguments().map_or(1, |(a, b)| 1 + a.atom_count() + b.atom_count())).sum()
    }

    /// The nesting depth of `div`, `mod`, `max` and `min`; 0 without any.
    pub fn depth(&self) -> usize {
        let atoms = self.terms_and_constant().0.iter().flat_map(|t| &t.product);
        let depths = atoms.map(|atom| atom.arguments().map_or(0, |(a, b)| 1 + a.depth().max(b.depth())));
        depths.max().unwrap_or(0)
    }

    /// `self / divisor` if the division is exact as a polynomial.
    pub fn exact_div(&self, divisor: &Dim) -> Option<Dim> {
        if self == divisor && divisor.as_const() != Some(0) {
            return Some(Dim::from(1));
        }
        let (terms, constant) = divisor.terms_and_constant();
        if terms.len() + usize::from(constant != 0) > 1 {
            return self.long_div(divisor);
        }
        let (terms, constant) = self.terms_and_constant();
        let (product, factor) = match divisor.terms_and_constant() {
            ([], c) => (&[][..], c),
            ([t], 0) => (t.product.as_slice(), t.factor),
            _ => return None,
        };
        if factor == 0 || constant.checked_rem(factor)? != 0 || (constant != 0 && !product.is_empty()) {
            return None;
        }
        let mut out = DimTerms::new();
        for t in terms {
            if t.factor.checked_rem(factor)? != 0 {
                return None;
            }
            out.push(DimTerm { product: remove_atoms(&t.product, product)?, factor: t.factor / factor });
        }
        Some(Dim::from_terms(out, constant / factor))
    }

    /// Long division by a sum. Each step divides by the leading term, until nothing is left. The leading term
    /// is the one with the most factors, and the first among equals; every step removes such a term and leaves
    /// smaller ones.
    fn long_div(&self, divisor: &Dim) -> Option<Dim> {
        let divisor_lead = divisor.leading_term()?;
        let mut remainder = self.clone();
        let mut quotient = Dim::from(0);
        for _ in 0..MAX_ATOMS {
            if remainder.as_const() == Some(0) {
                return Some(quotient);
            }
            let term = remainder.leading_term()?.exact_div(&divisor_lead)?;
            remainder = remainder - term.clone() * divisor.clone();
            quotient = quotient + term;
            check_shape_complexity(&[remainder.clone(), quotient.clone()]).ok()?;
        }
        None
    }

    fn leading_term(&self) -> Option<Dim> {
        let terms = self.terms_and_constant().0.iter();
        let leading = terms
            .max_by(|a, b| a.product.len().cmp(&b.product.len()).then_with(|| b.product.cmp(&a.product)));
        leading.map(|t| Dim::from_normal_terms(smallvec![t.clone()], 0))
    }

    pub fn max_with(&self, other: &Dim) -> Dim {
        let ([low, high], is_ordered) = self.order_by_bounds(other);
        if is_ordered { high.clone() } else { Dim::from_atom(DimAtom::Max(low.clone(), high.clone())) }
    }

    pub fn min_with(&self, other: &Dim) -> Dim {
        let ([low, high], is_ordered) = self.order_by_bounds(other);
        if is_ordered { low.clone() } else { Dim::from_atom(DimAtom::Min(low.clone(), high.clone())) }
    }

    /// Both dims, and whether the first is known to be at most the second. If it is unknown, they are in the
    /// order of the normal form.
    fn order_by_bounds<'a>(&'a self, other: &'a Dim) -> ([&'a Dim; 2], bool) {
        let difference = (self.clone() - other.clone()).as_const();
        let first = difference.map_or(self <= other, |d| d < 0);
        (if first { [self, other] } else { [other, self] }, difference.is_some())
    }

    /// The value under a binding; `None` if a symbol is unbound, a divisor is zero or `i64` overflows.
    pub fn eval(&self, bindings: &SymbolBindings) -> Option<i64> {
        let (terms, constant) = self.terms_and_constant();
        let mut sum = constant;
        for t in terms {
            let mut value = t.factor;
            for atom in &t.product {
                value = value.checked_mul(atom.eval(bindings)?)?;
            }
            sum = sum.checked_add(value)?;
        }
        Some(sum)
    }

    /// Inclusive bounds over all values of the symbols within their own bounds, by interval arithmetic: never
    /// too narrow, possibly too wide. Products of differences are bounded as a whole. For sums `a` of symbols
    /// the bounds use the fact that `k*div(a, k)` lies within `k - 1` below `a`.
    pub fn bounds(&self, symbols: &SymbolTable) -> (i64, i64) {
        let (terms, constant) = self.terms_and_constant();
        if !terms.iter().any(DimTerm::is_nested) {
            return self.flat_bounds(symbols);
        }
        // The nested terms are the same in every form of the other terms. Bounding them once per form would
        // take time exponential in their depth.
        let (nested, flat): (DimTerms, DimTerms) = terms.iter().cloned().partition(DimTerm::is_nested);
        let nested = Dim::from_normal_terms(nested, 0).interval_bounds(symbols);
        let flat = Dim::from_terms(flat, constant).flat_bounds(symbols);
        (nested.0.saturating_add(flat.0), nested.1.saturating_add(flat.1))
    }

    /// The bounds of an expression without nesting.
    fn flat_bounds(&self, symbols: &SymbolTable) -> (i64, i64) {
        let mut plain = self.interval_bounds(symbols);
        if let Some((low, high)) = self.corner_bounds(symbols) {
            plain = (plain.0.max(low), plain.1.min(high));
        }
        if let Some(k) = self.missing_divisor_within(symbols) {
            let (low, high) = self.scale_by(k).flat_bounds(symbols);
            let ends = (floor_div(low, k) + i64::from(floor_mod(low, k) > 0), floor_div(high, k));
            return (plain.0.max(ends.0), plain.1.min(ends.1));
        }
        match self.rewrite_div_as_mod(symbols).map(|other| other.flat_bounds(symbols)) {
            Some(other) => (plain.0.max(other.0), plain.1.min(other.1)),
            None => plain,
        }
    }

    fn interval_bounds(&self, symbols: &SymbolTable) -> (i64, i64) {
        let (terms, constant) = self.terms_and_constant();
        let mut sum = (constant, constant);
        for t in terms {
            let mut range = (t.factor, t.factor);
            for atom in &t.product {
                range = multiply_ranges(range, atom.bounds(symbols));
            }
            sum = (sum.0.saturating_add(range.0), sum.1.saturating_add(range.1));
        }
        sum
    }

    /// The same value with the first term `c*k*div(a, k)` written as `c*a - c*mod(a, k)`. `None` unless `a` is
    /// a short sum of symbols, small enough that nothing saturates.
    fn rewrite_div_as_mod(&self, symbols: &SymbolTable) -> Option<Dim> {
        let (terms, constant) = self.terms_and_constant();
        let mut numbers = terms.iter().map(|t| t.factor).chain([constant]);
        if !numbers.all(|x| {
            (-MAX_SMALL_FACTOR * MAX_SMALL_FACTOR..=MAX_SMALL_FACTOR * MAX_SMALL_FACTOR).contains(&x)
        }) {
            return None;
        }
        terms.iter().enumerate().find_map(|(i, term)| {
            let [DimAtom::FloorDiv(a, k)] = term.product.as_slice() else { return None };
            let k_value = k.as_const().filter(|&k| k > 0)?;
            let times =
                term.factor.checked_rem(k_value).filter(|&r| r == 0).map(|_| term.factor / k_value)?;
            (is_small(times) && a.is_small_sum(symbols)).then_some(())?;
            let mut other_terms = DimTerms::from(terms);
            other_terms.remove(i);
            Some(Dim::from_terms(other_terms, constant) + (a.clone() - a.modulo(k)) * Dim::from(times))
        })
    }

    /// Whether the dim is a sum of a few symbols that are not negative, with small factors.
    fn is_small_sum(&self, symbols: &SymbolTable) -> bool {
        let (terms, constant) = self.terms_and_constant();
        terms.len() <= 4
            && is_small(constant)
            && terms.iter().all(|t| match t.product.as_slice() {
                [DimAtom::Symbol(s)] => {
                    let symbol = symbols.get(*s);
                    is_small(t.factor)
                        && symbol.is_some_and(|s| s.min >= 0 && s.max <= MAX_SMALL_FACTOR * MAX_SMALL_FACTOR)
                }
                _ => false,
            })
    }

    /// The largest value over all values of the symbols (see [`bounds`](Self::bounds)).
    pub fn upper_bound(&self, symbols: &SymbolTable) -> i64 {
        self.bounds(symbols).1
    }

    /// Whether `self <= other` holds for all values of the symbols, as far as interval arithmetic shows.
    pub fn provably_le(&self, other: &Dim, symbols: &SymbolTable) -> bool {
        (other.clone() - self.clone()).bounds(symbols).0 >= 0
    }

    /// Whether every value of the expression is a multiple of `divisor`, as far as the coefficients show.
    pub fn is_divisible_by(&self, divisor: i64) -> bool {
        self.exact_div(&Dim::from(divisor)).is_some()
    }

    /// The symbols that occur, each once, in ascending order.
    pub fn symbols(&self) -> Vec<SymbolId> {
        let mut out = Vec::new();
        self.visit_symbols(&mut out);
        out.sort_unstable();
        out.dedup();
        out
    }

    fn visit_symbols(&self, out: &mut Vec<SymbolId>) {
        for atom in self.terms_and_constant().0.iter().flat_map(|t| &t.product) {
            match atom {
                DimAtom::Symbol(s) => out.push(*s),
                DimAtom::FloorDiv(a, b) | DimAtom::Mod(a, b) | DimAtom::Max(a, b) | DimAtom::Min(a, b) => {
                    a.visit_symbols(out);
                    b.visit_symbols(out);
                }
            }
        }
    }

    pub fn substitute(&self, map: &impl Fn(SymbolId) -> Dim) -> Dim {
        self.map_atoms(|atom| match atom {
            DimAtom::Symbol(s) => map(*s),
            DimAtom::FloorDiv(a, b) => a.substitute(map).floor_div(&b.substitute(map)),
            DimAtom::Mod(a, b) => a.substitute(map).modulo(&b.substitute(map)),
            DimAtom::Max(a, b) => a.substitute(map).max_with(&b.substitute(map)),
            DimAtom::Min(a, b) => a.substitute(map).min_with(&b.substitute(map)),
        })
    }

    fn map_atoms(&self, map: impl Fn(&DimAtom) -> Dim) -> Dim {
        let (terms, constant) = self.terms_and_constant();
        terms.iter().fold(Dim::from(constant), |sum, t| {
            sum + t.product.iter().fold(Dim::from(t.factor), |product, atom| product * map(atom))
        })
    }

    /// The same value for all values of the symbols within their bounds, with the operations that these bounds
    /// decide removed: a `max` or `min` one of whose arguments is never the result, or the remainder of a value
    /// below the divisor.
    pub fn simplify_within(&self, symbols: &SymbolTable) -> Dim {
        if self.depth() == 0 {
            return self.clone();
        }
        self.map_atoms(|atom| atom.simplify_within(symbols))
    }

    /// Displays the expression with the names of its symbols: `4*tokens + 1`, `div(tokens, 2)`.
    pub fn display<'a>(&'a self, symbols: &'a SymbolTable) -> DisplayDim<'a> {
        DisplayDim { dim: self, symbols }
    }
}

const MAX_SMALL_FACTOR: i64 = 1 << 20;

fn is_small(number: i64) -> bool {
    (-MAX_SMALL_FACTOR..=MAX_SMALL_FACTOR).contains(&number)
}

impl DimTerm {
    /// Whether an argument of one of its atoms has atoms with arguments.
    fn is_nested(&self) -> bool {
        let mut atoms = self.product.iter();
        atoms.any(|atom| atom.arguments().is_some_and(|(a, b)| a.depth() > 0 || b.depth() > 0))
    }
}

impl DimAtom {
    /// The two arguments, unless it is a symbol.
    fn arguments(&self) -> Option<(&Dim, &Dim)> {
        match self {
            DimAtom::Symbol(_) => None,
            DimAtom::FloorDiv(a, b) | DimAtom::Mod(a, b) | DimAtom::Max(a, b) | DimAtom::Min(a, b) => {
                Some((a, b))
            }
        }
    }

    fn simplify_within(&self, symbols: &SymbolTable) -> Dim {
        let Some((a, b)) = self.arguments() else { return Dim::from_atom(self.clone()) };
        let a = a.simplify_within(symbols);
        let b = b.simplify_within(symbols);
        let (low, high) = (a.clone() - b.clone()).bounds(symbols);
        match self {
            DimAtom::Max(..) if low >= 0 => a,
            DimAtom::Max(..) if high <= 0 => b,
            DimAtom::Max(..) => a.max_with(&b),
            DimAtom::Min(..) if low >= 0 => b,
            DimAtom::Min(..) if high <= 0 => a,
            DimAtom::Min(..) => a.min_with(&b),
            DimAtom::Mod(..) if high < 0 && a.bounds(symbols).0 >= 0 => a,
            DimAtom::Mod(..) => a.modulo(&b),
            _ => {
                let quotient = a.floor_div(&b);
                match quotient.bounds(symbols) {
                    (low, high) if low == high => Dim::from(low),
                    _ => quotient,
                }
            }
        }
    }

    fn eval(&self, bindings: &SymbolBindings) -> Option<i64> {
        Some(match self {
            DimAtom::Symbol(s) => bindings.get(*s)?,
            DimAtom::FloorDiv(a, b) => checked_floor_div(a.eval(bindings)?, b.eval(bindings)?)?,
            DimAtom::Mod(a, b) => checked_floor_mod(a.eval(bindings)?, b.eval(bindings)?)?,
            DimAtom::Max(a, b) => a.eval(bindings)?.max(b.eval(bindings)?),
            DimAtom::Min(a, b) => a.eval(bindings)?.min(b.eval(bindings)?),
        })
    }

    fn bounds(&self, symbols: &SymbolTable) -> (i64, i64) {
        match self {
            DimAtom::Symbol(s) => symbols.get(*s).map_or((i64::MIN, i64::MAX), |s| (s.min, s.max)),
            DimAtom::Max(a, b) => {
                let a = a.bounds(symbols);
                let b = b.bounds(symbols);
                (a.0.max(b.0), a.1.max(b.1))
            }
            DimAtom::Min(a, b) => {
                let a = a.bounds(symbols);
                let b = b.bounds(symbols);
                (a.0.min(b.0), a.1.min(b.1))
            }
            DimAtom::FloorDiv(dividend, divisor) => {
                let a = dividend.bounds(symbols);
                let b = divisor.bounds(symbols);
                if b.0 <= 0 {
                    return (i64::MIN, i64::MAX);
                }
                let ends = [a.0, a.1].map(|x| [floor_div(x, b.0), floor_div(x, b.1)]);
                let (low, high) = (ends[0][0].min(ends[0][1]), ends[1][0].max(ends[1][1]));
                match divisor.as_const().and_then(|k| dividend.quotient_of_whole_multiple(k)) {
                    Some(quotient) if quotient.depth() <= dividend.depth() => {
                        let exact = quotient.bounds(symbols);
                        (low.max(exact.0), high.min(exact.1))
                    }
                    _ => (low, high),
                }
            }
            DimAtom::Mod(a, b) => {
                let a = a.bounds(symbols);
                let b = b.bounds(symbols);
                match (a.0 >= 0, b.0 > 0) {
                    (_, false) => (i64::MIN, i64::MAX),
                    (true, true) if a.1 < b.0 => a,
                    (true, true) => (0, a.1.min(b.1 - 1)),
                    (false, true) => (0, b.1 - 1),
                }
            }
        }
    }
}

fn floor_div(a: i64, b: i64) -> i64 {
    checked_floor_div(a, b).unwrap_or(i64::MAX)
}

fn floor_mod(a: i64, b: i64) -> i64 {
    checked_floor_mod(a, b).unwrap_or(0)
}

fn checked_floor_div(a: i64, b: i64) -> Option<i64> {
    let q = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
}

fn checked_floor_mod(a: i64, b: i64) -> Option<i64> {
    let r = a.checked_rem(b)?;
    Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
}

fn multiply_ranges(a: (i64, i64), b: (i64, i64)) -> (i64, i64) {
    let ends =
        [a.0.saturating_mul(b.0), a.0.saturating_mul(b.1), a.1.saturating_mul(b.0), a.1.saturating_mul(b.1)];
    (ends.into_iter().min().unwrap_or(0), ends.into_iter().max().unwrap_or(0))
}

/// `from` without one occurrence of each atom in `what`; `None` if one does not occur. Both are sorted.
fn remove_atoms(from: &[DimAtom], removed: &[DimAtom]) -> Option<AtomProduct> {
    let mut remaining = AtomProduct::from(from);
    for atom in removed {
        let position = remaining.binary_search(atom).ok()?;
        remaining.remove(position);
    }
    Some(remaining)
}

impl Add for Dim {
    type Output = Dim;
    fn add(self, other: Dim) -> Dim {
        match (&self.0, &other.0) {
            (DimRepr::Const(c), _) => other.add_constant(*c),
            (_, DimRepr::Const(c)) => self.add_constant(*c),
            (DimRepr::Sum(a), DimRepr::Sum(b)) => Dim::from_terms(
                a.terms.iter().chain(&b.terms).cloned().collect(),
                a.constant.saturating_add(b.constant),
            ),
        }
    }
}

impl Sub for Dim {
    type Output = Dim;
    fn sub(self, other: Dim) -> Dim {
        self + other.scale_by(-1)
    }
}

impl Mul for Dim {
    type Output = Dim;
    fn mul(self, other: Dim) -> Dim {
        let (a, b) = match (&self.0, &other.0) {
            (DimRepr::Const(c), _) => return other.scale_by(*c),
            (_, DimRepr::Const(c)) => return self.scale_by(*c),
            (DimRepr::Sum(a), DimRepr::Sum(b)) => (a, b),
        };
        let mut terms = scale_terms(&a.terms, b.constant);
        terms.extend(scale_terms(&b.terms, a.constant));
        for x in &a.terms {
            for y in &b.terms {
                let mut product: AtomProduct = x.product.iter().chain(&y.product).cloned().collect();
                product.sort();
                terms.push(DimTerm { product, factor: x.factor.saturating_mul(y.factor) });
            }
        }
        Dim::from_terms(terms, a.constant.saturating_mul(b.constant))
    }
}

fn scale_terms(terms: &DimTerms, factor: i64) -> DimTerms {
    let scaled =
        terms.iter().map(|t| DimTerm { product: t.product.clone(), factor: t.factor.saturating_mul(factor) });
    scaled.collect()
}

pub struct DisplayDim<'a> {
    dim: &'a Dim,
    symbols: &'a SymbolTable,
}

impl fmt::Display for DisplayDim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_dim(f, self.dim, &|s, f| match self.symbols.get(s) {
            Some(symbol) if is_identifier(&symbol.name) => f.write_str(&symbol.name),
            Some(symbol) => write_string(f, &symbol.name),
            None => write!(f, "{s}"),
        })
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_dim(f, self, &|s, f| write!(f, "{s}"))
    }
}

type WriteSymbol<'a> = dyn Fn(SymbolId, &mut fmt::Formatter<'_>) -> fmt::Result + 'a;

fn write_dim(f: &mut fmt::Formatter<'_>, dim: &Dim, symbol: &WriteSymbol<'_>) -> fmt::Result {
    let (terms, constant) = dim.terms_and_constant();
    if terms.is_empty() {
        return write!(f, "{constant}");
    }
    for (i, t) in terms.iter().enumerate() {
        match (i, t.factor < 0) {
            (0, false) => {}
            (0, true) => f.write_str("-")?,
            (_, false) => f.write_str(" + ")?,
            (_, true) => f.write_str(" - ")?,
        }
        if t.factor.unsigned_abs() != 1 {
            write!(f, "{}*", t.factor.unsigned_abs())?;
        }
        for (j, atom) in t.product.iter().enumerate() {
            if j > 0 {
                f.write_str("*")?;
            }
            let (name, a, b) = match atom {
                DimAtom::Symbol(s) => {
                    symbol(*s, f)?;
                    continue;
                }
                DimAtom::FloorDiv(a, b) => ("div", a, b),
                DimAtom::Mod(a, b) => ("mod", a, b),
                DimAtom::Max(a, b) => ("max", a, b),
                DimAtom::Min(a, b) => ("min", a, b),
            };
            write!(f, "{name}(")?;
            write_dim(f, a, symbol)?;
            f.write_str(", ")?;
            write_dim(f, b, symbol)?;
            f.write_str(")")?;
        }
    }
    match constant {
        0 => Ok(()),
        c if c < 0 => write!(f, " - {}", c.unsigned_abs()),
        c => write!(f, " + {c}"),
    }
}

impl Dim {
    /// All conditions at which the dim changes its form, including those within arguments.
    pub fn breakpoints(&self) -> Vec<DimBreakpoint> {
        let mut out = Vec::new();
        self.collect_breakpoints(&mut out);
        out
    }

    fn collect_breakpoints(&self, out: &mut Vec<DimBreakpoint>) {
        for atom in self.terms_and_constant().0.iter().flat_map(|t| &t.product) {
            let (DimAtom::FloorDiv(a, b) | DimAtom::Mod(a, b) | DimAtom::Max(a, b) | DimAtom::Min(a, b)) =
                atom
            else {
                continue;
            };
            out.push(match atom {
                DimAtom::Max(..) | DimAtom::Min(..) => DimBreakpoint::Sign(a.clone() - b.clone()),
                _ => DimBreakpoint::Multiple(a.clone(), b.clone()),
            });
            a.collect_breakpoints(out);
            b.collect_breakpoints(out);
        }
    }
}
