//! Ranges of integers.

use crate::dim::Dim;
use crate::symbol::SymbolTable;
use crate::types::DType;

/// The most integers that a range lists.
pub const MAX_LISTED_INTEGERS: i64 = 4096;

/// Bounds of the elements of an integer or bool value, both inclusive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IntegerRange {
    pub least: Dim,
    pub greatest: Dim,
}

impl IntegerRange {
    pub fn new(least: impl Into<Dim>, greatest: impl Into<Dim>) -> IntegerRange {
        IntegerRange { least: least.into(), greatest: greatest.into() }
    }

    /// The positions along an axis of this extent.
    pub fn of_positions(extent: &Dim) -> IntegerRange {
        IntegerRange::new(0, extent.clone() - Dim::from(1))
    }

    pub fn union(self, other: &IntegerRange) -> IntegerRange {
        IntegerRange {
            least: self.least.min_with(&other.least),
            greatest: self.greatest.max_with(&other.greatest),
        }
    }

    /// The range with a function applied to both ends.
    pub fn map(&self, f: impl Fn(&Dim) -> Option<Dim>) -> Option<IntegerRange> {
        Some(IntegerRange { least: f(&self.least)?, greatest: f(&self.greatest)? })
    }

    /// The numbers between which all elements lie at all sizes.
    pub fn bounds(&self, symbols: &SymbolTable) -> [i64; 2] {
        [self.least.bounds(symbols).0, self.greatest.bounds(symbols).1]
    }

    /// All integers of the range, if they are few.
    pub fn few_integers(&self, symbols: &SymbolTable) -> Option<Vec<i64>> {
        let [least, greatest] = self.bounds(symbols);
        let are_few = greatest.checked_sub(least).is_some_and(|n| (0..MAX_LISTED_INTEGERS).contains(&n));
        are_few.then(|| (least..=greatest).collect())
    }

    /// Whether all elements are at least this.
    pub fn is_at_least(&self, least: i64, symbols: &SymbolTable) -> bool {
        Dim::from(least).provably_le(&self.least, symbols)
    }

    /// Whether all elements are at most this.
    pub fn is_at_most(&self, greatest: &Dim, symbols: &SymbolTable) -> bool {
        self.greatest.provably_le(greatest, symbols)
    }

    /// Whether indices with these bounds lie within an axis for all values of the symbols.
    pub fn is_within_axis(&self, extent: &Dim, symbols: &SymbolTable) -> bool {
        let last = extent.clone() - Dim::from(1);
        [&self.least, &self.greatest]
            .into_iter()
            .all(|index| Dim::from(0).provably_le(index, symbols) && index.provably_le(&last, symbols))
    }

    /// Whether a tensor of this dtype stores each integer between the bounds without change.
    pub fn fits_type(&self, dtype: DType, symbols: &SymbolTable) -> bool {
        let Some([least, greatest]) = exact_integers(dtype) else { return false };
        let [low, high] = self.bounds(symbols);
        least <= low && high <= greatest
    }
}

/// The integers that a dtype stores, each exactly.
pub fn exact_integers(dtype: DType) -> Option<[i64; 2]> {
    let magnitude = |bits: u32| [-(1_i64 << bits), 1_i64 << bits];
    Some(match dtype {
        // The ends also stand for bounds that overflowed.
        DType::I64 => [i64::MIN + 1, i64::MAX - 1],
        DType::F8E4M3 => magnitude(4),
        DType::F8E5M2 => magnitude(3),
        DType::F8E8M0 => [1, 2],
        DType::BF16 => magnitude(8),
        DType::F16 => magnitude(11),
        DType::F32 => magnitude(24),
        DType::F64 => magnitude(53),
        DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::I8 | DType::I16 | DType::I32 => {
            dtype.integer_bounds()?.into()
        }
    })
}
