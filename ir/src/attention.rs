//! Which keys a query sees: the bounds of [`Op::Attention`](crate::Op::Attention), and the order of its operands.
//!
//! Rows are positions of queries, columns positions of keys, both counted from 0. A row sees the columns that all bounds
//! let through, so what it sees is one interval ([`visible_columns`]); causal order, windows, chunks and lengths are such bounds.
//! Limits are exact integers: sums that leave 64 bits count as the nearest end, which no column reaches.

use std::ops::Range;

use crate::dim::Dim;
use crate::named_enum;

/// One side of what a row sees, at the position `p`: `add`, plus the index of the row if `row`, plus the element of an
/// operand if `operand`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttentionBound {
    pub side: BoundSide,
    pub row: bool,
    /// What is added; may be negative.
    pub add: Dim,
    /// Positions are cut into chunks of so many, from 0 on, and the limit is where the chunk of `p` begins (from) or ends
    /// (below). Without chunks the limit is `p`.
    pub chunk: Option<u64>,
    /// An integer operand is added that broadcasts to `[.., h, l, 1]`.
    pub operand: bool,
}

named_enum! {
    BoundSide {
        /// Those before the limit.
        Below = "below",
        /// The limit and those behind it.
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

    /// The limit of a row, where `add` and the element of the operand (0 without one) are known.
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

/// The bounds of attention that is causal or sees everything.
pub fn causal_bounds_if(causal: bool) -> Vec<AttentionBound> {
    if causal { vec![AttentionBound::causal()] } else { Vec::new() }
}

/// Whether the bounds say that row `i` sees columns up to `i`, and nothing else.
pub fn is_causal(bounds: &[AttentionBound]) -> bool {
    matches!(bounds, [bound] if *bound == AttentionBound::causal())
}

/// How many bounds have an operand.
pub fn position_operand_count(bounds: &[AttentionBound]) -> usize {
    bounds.iter().filter(|b| b.operand).count()
}

/// The columns below `columns` that a row sees, by the limit of each bound.
pub fn visible_columns(limits: impl IntoIterator<Item = (BoundSide, i64)>, columns: usize) -> Range<usize> {
    let column = |limit: i64| usize::try_from(limit.max(0)).unwrap_or(usize::MAX).min(columns);
    let (mut start, mut end) = (0, columns);
    for (side, limit) in limits {
        match side {
            BoundSide::From => start = start.max(column(limit)),
            BoundSide::Below => end = end.min(column(limit)),
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
    /// One for each bound that has an operand, in their order.
    pub positions: &'a [T],
    /// One more score of each row, if there is one.
    pub sink: Option<&'a T>,
}

impl<'a, T> AttentionOperands<'a, T> {
    /// Takes operands in their order apart, of which the last is a `sink` or not; `None` if there are not as many as
    /// bounds say.
    pub fn from_operands(bounds: &[AttentionBound], sink: bool, operands: &'a [T]) -> Option<Self> {
        let (sink, operands) = match sink {
            true => operands.split_last().map(|(last, others)| (Some(last), others))?,
            false => (None, operands),
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
