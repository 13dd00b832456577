//! The columns that a row of attention sees: the bounds of [`Op::Attention`](crate::Op::Attention), and the
//! order of its operands.
//!
//! Rows are positions of queries and columns are positions of keys, both counted from 0. A row sees the columns
//! that all bounds admit, which form one interval ([`visible_columns`]). Causal order, windows, chunks and
//! lengths are such bounds. Limits are exact integers: a sum that overflows 64 bits saturates, and no column
//! reaches that limit.

use std::ops::Range;

use crate::dim::Dim;
use crate::named_enum;

/// One side of the interval that a row sees. It is given by the position `p`: `add`, plus the index of the row
/// if `row`, plus the element of an operand if `operand`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttentionBound {
    pub side: BoundSide,
    pub row: bool,
    /// A constant summand, which may be negative.
    pub add: Dim,
    /// If set, positions are divided into chunks of this length, from 0 on, and the limit is the begin (for
    /// `From`) or the end (for `Below`) of the chunk of `p`. Without chunks the limit is `p`.
    pub chunk: Option<u64>,
    /// Whether an integer operand is added, which broadcasts to `[.., h, l, 1]`.
    pub operand: bool,
}

named_enum! {
    BoundSide {
        /// Columns before the limit.
        Below = "below",
        /// Columns from the limit on.
        From = "from",
    }
}

impl AttentionBound {
    pub fn relative_to_row(side: BoundSide, add: impl Into<Dim>) -> AttentionBound {
        AttentionBound { side, row: true, add: add.into(), chunk: None, operand: false }
    }

    /// Row `i` sees columns up to `i`.
    pub fn causal() -> AttentionBound {
        AttentionBound::relative_to_row(BoundSide::Below, 1)
    }

    /// The limit of a row for known values of `add` and of the operand's element (0 without an operand).
    pub fn limit(&self, row: usize, add: i64, operand: i64) -> i64 {
        let row = if self.row { i64::try_from(row).unwrap_or(i64::MAX) } else { 0 };
        let p = row.saturating_add(add).saturating_add(operand);
        let Some(chunk) = self.chunk.and_then(|c| i64::try_from(c).ok()).filter(|c| *c > 0) else { return p };
        let begin = p.div_euclid(chunk).saturating_mul(chunk);
        match self.side {
            BoundSide::From => begin,
            BoundSide::Below => begin.saturating_add(chunk),
        }
    }
}

/// The bounds of causal attention, or none.
pub fn causal_bounds_if(causal: bool) -> Vec<AttentionBound> {
    if causal { vec![AttentionBound::causal()] } else { Vec::new() }
}

/// Whether row `i` sees exactly the columns up to `i`.
pub fn is_causal(bounds: &[AttentionBound]) -> bool {
    matches!(bounds, [bound] if *bound == AttentionBound::causal())
}

/// The number of bounds with an operand.
pub fn position_operand_count(bounds: &[AttentionBound]) -> usize {
    bounds.iter().filter(|b| b.operand).count()
}

/// The columns below `columns` that a row sees, given the limit of each bound.
pub fn visible_columns(limits: impl IntoIterator<Item = (BoundSide, i64)>, columns: usize) -> Range<usize> {
    let mut start = 0;
    let mut end = columns;
    for (side, limit) in limits {
        let column = usize::try_from(limit.max(0)).unwrap_or(usize::MAX).min(columns);
        match side {
            BoundSide::From => start = start.max(column),
            BoundSide::Below => end = end.min(column),
        }
    }
    start.min(end)..end
}

#[derive(Clone, Copy, Debug)]
pub struct AttentionOperands<'a, T> {
    pub q: &'a T,
    pub k: &'a T,
    pub v: &'a T,
    pub mask: Option<&'a T>,
    /// One operand for each bound that has one, in the order of the bounds.
    pub positions: &'a [T],
    /// An additional score of each row.
    pub sink: Option<&'a T>,
}

impl<'a, T> AttentionOperands<'a, T> {
    /// Splits the operands in their order. The last one is a sink if `sink` is set. `None` if the number of
    /// operands does not match.
    pub fn from_operands(bounds: &[AttentionBound], sink: bool, operands: &'a [T]) -> Option<Self> {
        let (sink, operands) = if sink {
            let (last, others) = operands.split_last()?;
            (Some(last), others)
        } else {
            (None, operands)
        };
        let split = operands.len().checked_sub(position_operand_count(bounds))?;
        let (first, positions) = operands.split_at(split);
        match first {
            [q, k, v] => Some(AttentionOperands { q, k, v, mask: None, positions, sink }),
            [q, k, v, mask] => Some(AttentionOperands { q, k, v, mask: Some(mask), positions, sink }),
            _ => None,
        }
    }
}

impl<T: Clone> AttentionOperands<'_, T> {
    pub fn with_mask(&self, mask: Option<T>) -> Vec<T> {
        let first = [self.q, self.k, self.v].into_iter().cloned();
        first.chain(mask).chain(self.positions.iter().cloned()).chain(self.sink.cloned()).collect()
    }
}
