//! Bounds of polynomials whose terms have different signs, such as `(a - 2) * (b - 2)`.
//!
//! Interval arithmetic bounds each term separately. Rewritten with the distance of every atom from its minimum,
//! such a product has no negative terms, and its bounds are exact.

use std::collections::BTreeMap;

use super::{Dim, DimAtom};
use crate::symbol::SymbolTable;

/// The maximum number of terms, and of atoms per term, that are rewritten.
const MAX_TERMS: usize = 16;
const MAX_ATOMS: usize = 4;

impl Dim {
    /// The bounds after rewriting each atom as its minimum plus the distance from it: never too narrow. `None`
    /// if the rewriting gains nothing, or if the numbers are too large.
    pub(super) fn corner_bounds(&self, symbols: &SymbolTable) -> Option<(i64, i64)> {
        let (terms, constant) = self.terms_and_constant();
        let is_product = terms.iter().any(|t| t.product.len() > 1);
        let signs = terms.iter().any(|t| t.factor > 0) && terms.iter().any(|t| t.factor < 0);
        if !is_product || !signs || terms.len() > MAX_TERMS {
            return None;
        }
        let mut sums: BTreeMap<Vec<&DimAtom>, i128> = BTreeMap::from([(Vec::new(), i128::from(constant))]);
        for term in terms {
            if term.product.len() > MAX_ATOMS {
                return None;
            }
            for above in 0..1u32 << term.product.len() {
                let mut factor = i128::from(term.factor);
                let mut other_atoms = Vec::new();
                for (i, atom) in term.product.iter().enumerate() {
                    if above >> i & 1 == 1 {
                        other_atoms.push(atom);
                    } else {
                        factor = factor.checked_mul(i128::from(atom.bounds(symbols).0))?;
                    }
                }
                let sum = sums.entry(other_atoms).or_insert(0);
                *sum = sum.checked_add(factor)?;
            }
        }
        let mut low = 0i128;
        let mut high = 0i128;
        for (atoms, factor) in sums {
            let mut max_product = factor;
            for atom in &atoms {
                let (smallest, largest) = atom.bounds(symbols);
                max_product = max_product.checked_mul(i128::from(largest) - i128::from(smallest))?;
            }
            // The distance from the minimum may be 0.
            let min_product = if atoms.is_empty() { factor } else { 0 };
            low = low.checked_add(max_product.min(min_product))?;
            high = high.checked_add(max_product.max(min_product))?;
        }
        Some((saturate_to_i64(low), saturate_to_i64(high)))
    }
}

fn saturate_to_i64(x: i128) -> i64 {
    i64::try_from(x).unwrap_or(if x < 0 { i64::MIN } else { i64::MAX })
}
