//! Quotients and remainders, and their simplification: exact parts, common factors, and divisions without remainder.

use smallvec::smallvec;

use super::{Dim, DimAtom, DimTerm, DimTerms, floor_div, floor_mod, multiply_ranges};
use crate::symbol::SymbolTable;

/// A limit far below the point where arithmetic saturates.
const MAX_MAGNITUDE: i64 = 1 << 60;

impl Dim {
    /// `floor(self / divisor)`. Division by the constant 0 remains an expression, which has no value.
    pub fn floor_div(&self, divisor: &Dim) -> Dim {
        if let Some(exact) = self.exact_div(divisor) {
            return exact;
        }
        match (self.as_const(), divisor.as_const()) {
            (Some(a), Some(b)) if b != 0 => Dim::from(floor_div(a, b)),
            (None, Some(b)) if b > 0 => {
                let (quotient, remainder) = self.split_by_divisor(b);
                let floored = match remainder.as_const() {
                    Some(a) => Dim::from(floor_div(a, b)),
                    None => remainder.normalized_quotient(b),
                };
                quotient + floored
            }
            _ => {
                if let Some(exact) = self.exact_div_by_quotient(divisor) {
                    return exact;
                }
                match self.cancel_common_atoms(divisor) {
                    Some((_, dividend, divisor)) => dividend.floor_div(&divisor),
                    None => Dim::from_atom(DimAtom::FloorDiv(self.clone(), divisor.clone())),
                }
            }
        }
    }

    /// `self mod divisor` with the sign of the divisor.
    pub fn modulo(&self, divisor: &Dim) -> Dim {
        if self.exact_div(divisor).is_some() || self.exact_div_by_quotient(divisor).is_some() {
            return Dim::from(0);
        }
        match (self.as_const(), divisor.as_const()) {
            (Some(a), Some(b)) if b != 0 => Dim::from(floor_mod(a, b)),
            (None, Some(b)) if b > 0 => {
                let remainder = self.split_by_divisor(b).1;
                if remainder.as_const().is_some() {
                    remainder
                } else if remainder.is_whole_multiple(b) {
                    Dim::from(0)
                } else if let Some(congruent) = remainder.without_congruent_remainders(b) {
                    congruent.modulo(divisor)
                } else {
                    Dim::from_atom(DimAtom::Mod(remainder, divisor.clone()))
                }
            }
            _ => match self.cancel_common_atoms(divisor) {
                Some((common, dividend, divisor)) => common * dividend.modulo(&divisor),
                None => Dim::from_atom(DimAtom::Mod(self.clone(), divisor.clone())),
            },
        }
    }

    /// The expression as `b` times the first result plus the second. No term of the second is a multiple of
    /// `b`, and its constant is from 0 to `b - 1`.
    pub(super) fn split_by_divisor(&self, b: i64) -> (Dim, Dim) {
        let (terms, constant) = self.terms_and_constant();
        let (multiples, other_terms): (DimTerms, DimTerms) =
            terms.iter().cloned().partition(|t| t.factor % b == 0);
        let quotient_terms = multiples.into_iter().map(|t| DimTerm { factor: t.factor / b, ..t }).collect();
        let remainder = Dim::from_terms(other_terms, floor_mod(constant, b));
        (Dim::from_terms(quotient_terms, floor_div(constant, b)), remainder)
    }

    /// The normal form of `div(self, b)`, where `self` is the rest of
    /// [`split_by_divisor`](Self::split_by_divisor) and not constant. Three equalities give one form:
    /// `div(div(a, m) + c, b)` is `div(a + m*c, m*b)`, common factors of all terms and `b` cancel, and
    /// `-div(-a, b)` is `div(a + b - 1, b)`.
    pub(super) fn normalized_quotient(&self, b: i64) -> Dim {
        if let Some((inner, by)) = self.merge_nested_division(b) {
            return inner.floor_div(&Dim::from(by));
        }
        let (terms, constant) = self.terms_and_constant();
        let common = terms.iter().fold(b, |common, t| gcd(common, t.factor));
        if common > 1 {
            let terms = terms.iter().map(|t| DimTerm { factor: t.factor / common, ..t.clone() }).collect();
            let inner = Dim::from_terms(terms, floor_div(constant, common));
            return inner.floor_div(&Dim::from(b / common));
        }
        if terms.first().is_some_and(|t| t.factor < 0) && terms.iter().all(|t| t.factor > -MAX_MAGNITUDE) {
            return self.scale_by(-1).add_constant(b - 1).floor_div(&Dim::from(b)).scale_by(-1);
        }
        Dim::from_atom(DimAtom::FloorDiv(self.clone(), Dim::from(b)))
    }

    /// The quotient by a divisor with a term `c*div(a, k)`, where `a` is a multiple of `k`, if it is exact.
    /// Both sides are multiplied by `k` for that: with `m = n + mod(-n, 8)`, `div(m, div(m, 8))` is `8*m`
    /// divided by `m`.
    pub(super) fn exact_div_by_quotient(&self, divisor: &Dim) -> Option<Dim> {
        let k = divisor.terms_and_constant().0.iter().find_map(DimTerm::missing_divisor)?;
        let multiple = divisor.clone() * Dim::from(k);
        let is_whole = !multiple
            .terms_and_constant()
            .0
            .iter()
            .any(|t| t.product.iter().any(|a| matches!(a, DimAtom::FloorDiv(..))));
        if !is_whole {
            return None;
        }
        (self.clone() * Dim::from(k)).exact_div(&multiple)
    }

    /// The product of the atoms that all terms of the expression and the divisor have, and both without it: `div(b*x, 8*b)` is
    /// `div(x, 8)` and `mod(b*x, 8*b)` is `b*mod(x, 8)` wherever they have a value. `None` if there are no such atoms.
    pub(super) fn cancel_common_atoms(&self, divisor: &Dim) -> Option<(Dim, Dim, Dim)> {
        let ((terms, 0), (divisor_terms, 0)) = (self.terms_and_constant(), divisor.terms_and_constant())
        else {
            return None;
        };
        let (first, others) = divisor_terms.split_first()?;
        let mut common = first.product.clone();
        for term in others.iter().chain(terms) {
            let mut left = term.product.clone();
            common.retain(|atom| left.iter().position(|a| a == atom).map(|at| left.remove(at)).is_some());
        }
        if common.is_empty() || terms.is_empty() {
            return None;
        }
        let common = Dim::from_normal_terms(smallvec![DimTerm { product: common, factor: 1 }], 0);
        Some((common.clone(), self.exact_div(&common)?, divisor.exact_div(&common)?))
    }

    /// Removes a division that is a term of the expression. The first result divided by the second equals the
    /// expression divided by `b`.
    fn merge_nested_division(&self, b: i64) -> Option<(Dim, i64)> {
        let (terms, constant) = self.terms_and_constant();
        let mut divisions = terms.iter().enumerate().filter_map(|(i, t)| match t.product.as_slice() {
            [DimAtom::FloorDiv(a, k)] if t.factor.abs() == 1 => {
                Some((i, a.clone(), k.as_const().filter(|&k| k > 0)?))
            }
            _ => None,
        });
        let (position, a, m) = divisions.next()?;
        if divisions.next().is_some() {
            return None;
        }
        let by = m.checked_mul(b)?;
        let mut numbers = [constant].into_iter().chain(terms.iter().map(|t| t.factor));
        let is_sound =
            numbers.all(|n| n.checked_mul(m).and_then(i64::checked_abs).is_some_and(|n| n < MAX_MAGNITUDE));
        if by >= MAX_MAGNITUDE || !is_sound {
            return None;
        }
        let mut other_terms = DimTerms::from(terms);
        let is_positive = other_terms.remove(position).factor > 0;
        // The negation of a quotient is the quotient of the negated number, rounded up.
        let a = if is_positive { a } else { a.scale_by(-1).add_constant(m - 1) };
        Some((a + Dim::from_terms(other_terms, constant).scale_by(m), by))
    }

    /// The same value with remainders written as differences, unless they nest deeply.
    fn expand_remainders(&self) -> Dim {
        const MAX_SIMPLIFIED_DEPTH: usize = 3;
        if self.depth() > MAX_SIMPLIFIED_DEPTH {
            return self.clone();
        }
        self.map_atoms(|atom| match atom {
            DimAtom::Mod(a, k) if k.as_const().is_some_and(|k| k > 0) => {
                a.expand_remainders() - a.floor_div(k) * k.clone()
            }
            other => Dim::from_atom(other.clone()),
        })
    }

    /// Whether the expression is a multiple of `divisor` because of remainders in it, as `n + mod(-n, 4)` is one of 4.
    pub(super) fn is_whole_multiple(&self, divisor: i64) -> bool {
        self.quotient_of_whole_multiple(divisor).is_some()
    }

    /// The quotient by `divisor` if the expression is a multiple of it because of remainders: `n + mod(-n, 4)` by 4 is
    /// `div(n + 3, 4)`.
    pub(super) fn quotient_of_whole_multiple(&self, divisor: i64) -> Option<Dim> {
        if self.depth() == 0 {
            return None;
        }
        self.expand_remainders().exact_div(&Dim::from(divisor))
    }

    /// The expression with `y` in place of each term `mod(y, m)` where `m` is a multiple of `b`: both have the same remainder
    /// by `b`. `None` if there is no such term, or numbers may become large.
    pub(super) fn without_congruent_remainders(&self, b: i64) -> Option<Dim> {
        let (terms, constant) = self.terms_and_constant();
        let mut congruent = Dim::from(constant);
        let mut is_changed = false;
        for term in terms {
            let own = match term.product.as_slice() {
                [DimAtom::Mod(y, m)] if m.as_const().is_some_and(|m| m > 0 && m % b == 0) => {
                    is_changed = true;
                    y.scale_by(term.factor)
                }
                _ => Dim::from_normal_terms(smallvec![term.clone()], 0),
            };
            congruent = congruent + own;
        }
        let (terms, constant) = congruent.terms_and_constant();
        let mut numbers = [constant].into_iter().chain(terms.iter().map(|t| t.factor));
        let is_small = numbers.all(|n| n.checked_abs().is_some_and(|n| n < MAX_MAGNITUDE));
        (is_changed && is_small).then_some(congruent)
    }

    /// The divisor `k` of a term `c*div(a, k)` where `c` is not a multiple of `k`. `None` unless `k` times the
    /// expression is small for all values of the symbols.
    pub(super) fn missing_divisor_within(&self, symbols: &SymbolTable) -> Option<i64> {
        let (terms, constant) = self.terms_and_constant();
        let k = terms.iter().find_map(DimTerm::missing_divisor)?;
        let max_magnitude = terms.iter().fold(constant.saturating_abs(), |sum, t| {
            let factor_range = (t.factor, t.factor);
            let (low, high) =
                t.product.iter().fold(factor_range, |range, a| multiply_ranges(range, a.bounds(symbols)));
            sum.saturating_add(low.saturating_abs().max(high.saturating_abs()))
        });
        (max_magnitude.saturating_mul(k) < MAX_MAGNITUDE).then_some(k)
    }
}

impl DimTerm {
    /// The term without a division that is exact: `4*div(a, 4)` is `a` if `a` is a multiple of 4, as `n +
    /// mod(-n, 4)` is.
    pub(super) fn cancel_exact_division(&self) -> Option<Dim> {
        let (position, a, divisor) = self.product.iter().enumerate().find_map(|(i, atom)| {
            let DimAtom::FloorDiv(a, k) = atom else { return None };
            let divisor = k.as_const().filter(|&k| k > 0 && self.factor % k == 0)?;
            a.is_whole_multiple(divisor).then(|| (i, a.clone(), divisor))
        })?;
        let mut product = self.product.clone();
        product.remove(position);
        Some(a * Dim::from_terms(smallvec![DimTerm { product, factor: self.factor / divisor }], 0))
    }

    /// The divisor `k` of a term `c*div(a, k)` where `c` is not a multiple of `k`, if both are small.
    fn missing_divisor(&self) -> Option<i64> {
        const MAX_SPLIT_FACTOR: i64 = 1 << 20;
        let [DimAtom::FloorDiv(_, k)] = self.product.as_slice() else { return None };
        let small = self.factor.checked_abs().is_some_and(|f| f < MAX_SPLIT_FACTOR);
        k.as_const().filter(|&k| small && k > 1 && k < MAX_SPLIT_FACTOR && self.factor % k != 0)
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.saturating_abs() } else { gcd(b, a % b) }
}
