//! What is known of quotients and remainders by constants: parts that leave nothing, and divisions that lose nothing.

use smallvec::smallvec;

use super::{Atom, Dim, Term, Terms, floor_div, floor_mod, mul_range};
use crate::entity::Table;
use crate::symbol::{Symbol, SymbolId};

impl Dim {
    /// `b` times the first and the second are the expression: of the second no term is a multiple of `b`, and its constant is
    /// from 0 to `b - 1`.
    pub(super) fn parted(&self, b: i64) -> (Dim, Dim) {
        let (terms, constant) = self.parts();
        let (whole, rest): (Terms, Terms) = terms.iter().cloned().partition(|t| t.factor % b == 0);
        let whole = whole.into_iter().map(|t| Term { factor: t.factor / b, ..t }).collect();
        let rest = Dim::from_terms(rest, floor_mod(constant, b));
        (Dim::from_terms(whole, floor_div(constant, b)), rest)
    }

    /// The same value with remainders written as what division leaves, where they do not nest deeply.
    fn without_mod(&self) -> Dim {
        const DEEP: usize = 3;
        if self.depth() > DEEP {
            return self.clone();
        }
        let (terms, constant) = self.parts();
        let mut sum = Dim::from(constant);
        for t in terms {
            let mut value = Dim::from(t.factor);
            for atom in &t.product {
                value = value
                    * match atom {
                        Atom::Mod(a, k) if k.as_const().is_some_and(|k| k > 0) => {
                            a.without_mod() - a.floor_div(k) * k.clone()
                        }
                        other => Dim::atom(other.clone()),
                    };
            }
            sum = sum + value;
        }
        sum
    }

    /// The divisor of a term `c*div(a, k)` whose factor is no multiple of it, if that times the expression is small for all
    /// values of the symbols.
    pub(super) fn lacking(&self, symbols: &Table<SymbolId, Symbol>) -> Option<i64> {
        const LIMIT: i64 = 1 << 60;
        let (terms, constant) = self.parts();
        let k = terms.iter().find_map(Term::lacking)?;
        let most = terms.iter().fold(constant.saturating_abs(), |sum, t| {
            let one = (t.factor, t.factor);
            let (low, high) = t.product.iter().fold(one, |range, a| mul_range(range, a.bounds(symbols)));
            sum.saturating_add(low.saturating_abs().max(high.saturating_abs()))
        });
        (most.saturating_mul(k) < LIMIT).then_some(k)
    }
}

impl Term {
    /// What the term is without a division that leaves nothing: `4*div(a, 4)` is `a` where that is a multiple of 4, as
    /// `n + mod(-n, 4)` is.
    pub(super) fn undivided(&self) -> Option<Dim> {
        let whole = |atom: &Atom| {
            let Atom::FloorDiv(a, k) = atom else { return None };
            let divisor = k.as_const().filter(|&k| k > 0 && self.factor % k == 0)?;
            let is_whole = a.depth() > 0 && a.without_mod().divisible_by(divisor);
            is_whole.then(|| (a.clone(), divisor))
        };
        let (at, (a, divisor)) = self.product.iter().enumerate().find_map(|(i, p)| Some((i, whole(p)?)))?;
        let mut product = self.product.clone();
        product.remove(at);
        Some(a * Dim::from_terms(smallvec![Term { product, factor: self.factor / divisor }], 0))
    }

    /// The divisor of a term `c*div(a, k)` whose factor is no multiple of it, if both are small.
    fn lacking(&self) -> Option<i64> {
        const SMALL: i64 = 1 << 20;
        let [Atom::FloorDiv(_, k)] = self.product.as_slice() else { return None };
        let small = self.factor.checked_abs().is_some_and(|f| f < SMALL);
        k.as_const().filter(|&k| small && k > 1 && k < SMALL && self.factor % k != 0)
    }
}
