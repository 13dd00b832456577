//! Splits a condition into bounds of attention and a remaining mask.
//!
//! An atom is a bound if it compares the column with something that does not depend on it. Atoms that do not
//! depend on the row, or not on the column, stay small. The former make up the remaining mask. The latter
//! hide a whole row and become a bound with an operand. Only an atom that depends on both and is not a bound
//! keeps the mask at its full size.

use symmc_ir::positions::{
    AtomKind, AtomWitness, AxisIndex, ConditionAtom, ElementRef, LinearExpr, MaskCondition,
};
use symmc_ir::{AttentionBound, BoundSide, DType, Dim, Op};

use crate::rewrite::Rewriter;

#[derive(Debug)]
pub struct ConditionSplit {
    /// The bounds, with the operands of those that have one.
    pub bounds: Vec<PendingBound>,
    /// The remaining atoms, as a conjunction.
    pub rest: Vec<AtomWitness>,
    /// Whether some atom became a bound or turned out to hide nothing.
    pub gained: bool,
}

/// A bound whose operand is not a value yet.
#[derive(Clone, PartialEq, Debug)]
pub struct PendingBound {
    pub bound: AttentionBound,
    pub operand: BoundOperand,
}

#[derive(Clone, PartialEq, Debug)]
pub enum BoundOperand {
    /// The sum of these terms; empty if there is no operand.
    Sum(Vec<(i64, ElementRef)>),
    /// A row sees nothing if this is false for it.
    Rows(AtomWitness),
    /// The start of the chunk of `of`, or its end for a bound with the side below, minus `less`.
    Chunk {
        /// A position that depends on the row.
        of: LinearExpr,
        /// The offset that the atom adds to the column before it determines the column's chunk.
        less: LinearExpr,
        /// The number of positions in a chunk.
        by: i64,
    },
    /// The start, or the end, of the run of elements that equal the row's element, along an axis on which
    /// elements never decrease.
    Segment { leaf: ElementRef, axis: usize },
}

/// Splits a condition on scores of this shape, if it is a conjunction.
pub fn split_condition(cx: &Rewriter, condition: &MaskCondition, scores: &[Dim]) -> Option<ConditionSplit> {
    if condition.negated {
        return None;
    }
    let mut out = ConditionSplit { bounds: Vec::new(), rest: Vec::new(), gained: false };
    for atom in &condition.atoms {
        match atom_bound(cx, &atom.kind, scores).or_else(|| row_mask_bound(atom, scores)) {
            Some(limit) => {
                out.gained = true;
                if !hides_nothing(cx, &limit, scores) {
                    add_bound(&mut out.bounds, limit);
                }
            }
            None if out.rest.contains(&atom.witness) => {}
            None => out.rest.push(atom.witness.clone()),
        }
    }
    let all_bounds = out.bounds.clone();
    out.bounds.retain(|limit| !all_bounds.iter().any(|other| is_implied(limit, other)));
    Some(out)
}

/// Whether a bound at the start or end of a chunk hides nothing beyond another bound, which lies within the
/// chunk.
fn is_implied(limit: &PendingBound, by: &PendingBound) -> bool {
    let a = &limit.bound;
    let b = &by.bound;
    // Elements never decrease, so those up to the row's own do not exceed it.
    if let (BoundOperand::Segment { leaf, axis }, BoundSide::Below) = (&limit.operand, a.side) {
        let from_start = match &leaf.axis_indices[*axis] {
            AxisIndex::Along { start, .. } => start.as_const() == Some(0),
            AxisIndex::Fixed(_) => false,
        };
        let near = b.row && !b.operand && b.chunk.is_none() && b.add.as_const().is_some_and(|c| c <= 1);
        return from_start && near && b.side == BoundSide::Below;
    }
    let same_position =
        (a.side, a.row, a.operand) == (b.side, b.row, b.operand) && limit.operand == by.operand;
    let Some(distance) = (b.add.clone() - a.add.clone()).as_const() else { return false };
    let within = match a.side {
        BoundSide::Below => distance <= 1,
        BoundSide::From => distance >= 0,
    };
    same_position && a.chunk.is_some() && b.chunk.is_none() && within
}

/// Adds a bound unless it is already there. Bounds with the side below come first.
fn add_bound(bounds: &mut Vec<PendingBound>, limit: PendingBound) {
    let matching = bounds.iter_mut().find(|b| {
        b.bound.chunk.is_none()
            && AttentionBound { add: limit.bound.add.clone(), ..b.bound.clone() } == limit.bound
            && b.operand == limit.operand
    });
    if let Some(existing) = matching
        && let Some(difference) = (limit.bound.add.clone() - existing.bound.add.clone()).as_const()
    {
        // If two bounds differ by a constant, the tighter one implies the other.
        if (difference < 0) == (limit.bound.side == BoundSide::Below) {
            *existing = limit;
        }
        return;
    }
    if !bounds.contains(&limit) {
        let first_from = bounds.iter().position(|b| b.bound.side == BoundSide::From).unwrap_or(bounds.len());
        let index = if limit.bound.side == BoundSide::Below { first_from } else { bounds.len() };
        bounds.insert(index, limit);
    }
}

fn atom_bound(cx: &Rewriter, kind: &AtomKind, scores: &[Dim]) -> Option<PendingBound> {
    let column = scores.len().checked_sub(1)?;
    match kind {
        AtomKind::AtLeastZero(x) if x.steps[column] == 0 => segment(cx, x, scores),
        AtomKind::AtLeastZero(x) => match x.steps[column] {
            // column + e >= 0, and -column + e >= 0.
            1 => position_bound(cx, BoundSide::From, without_step(x, column)?.times(-1)?, None, scores),
            -1 => position_bound(cx, BoundSide::Below, without_step(x, column)?.offset_by(1)?, None, scores),
            _ => None,
        },
        AtomKind::ChunkAtLeast { a, b, by } => {
            // The chunk of the column is at or after the chunk of the other side, or at or before it. If the
            // offset of the column moves whole chunks, it moves to the other side.
            let (side, x, other) = match (a.steps[column], b.steps[column]) {
                (1, 0) if b.is_constant_along(column) => (BoundSide::From, without_step(a, column)?, b),
                (0, 1) if a.is_constant_along(column) => (BoundSide::Below, without_step(b, column)?, a),
                _ => return None,
            };
            let moves_whole_chunks =
                x.steps.iter().all(|s| *s == 0) && x.terms.is_empty() && x.constant.is_divisible_by(*by);
            if !moves_whole_chunks {
                let operand = BoundOperand::Chunk { of: other.clone(), less: x, by: *by };
                return operand_bound(cx, side, operand, scores);
            }
            position_bound(cx, side, other.add_scaled(-1, &x)?, Some(u64::try_from(*by).ok()?), scores)
        }
        AtomKind::Opaque => None,
    }
}

/// The expression without its step along an axis, if that makes it constant along the axis.
fn without_step(x: &LinearExpr, axis: usize) -> Option<LinearExpr> {
    let mut x = x.clone();
    x.steps[axis] = 0;
    x.is_constant_along(axis).then_some(x)
}

/// A bound whose operand is computed from positions of rows.
fn operand_bound(
    cx: &Rewriter,
    side: BoundSide,
    operand: BoundOperand,
    scores: &[Dim],
) -> Option<PendingBound> {
    let row = scores.len().checked_sub(2).filter(|row| *row > 0)?;
    let fits = match &operand {
        BoundOperand::Chunk { of, less, .. } => {
            is_integer_along_row(cx, of, row) && is_integer_along_row(cx, less, row)
        }
        _ => true,
    };
    let bound = AttentionBound { side, row: false, add: Dim::from(0), chunk: None, operand: true };
    fits.then_some(PendingBound { bound, operand })
}

/// Whether an expression moves only with the row, and all its elements are integers.
fn is_integer_along_row(cx: &Rewriter, x: &LinearExpr, row: usize) -> bool {
    x.steps.iter().enumerate().all(|(axis, step)| axis == row || *step == 0) && has_integer_terms(cx, x)
}

fn has_integer_terms(cx: &Rewriter, x: &LinearExpr) -> bool {
    x.terms.iter().all(|(_, leaf)| matches!(cx.ty(leaf.value).dtype, DType::I32 | DType::I64))
}

/// The bound for a comparison of the row's element with the column's element, of a cumulative sum of bools.
fn segment(cx: &Rewriter, x: &LinearExpr, scores: &[Dim]) -> Option<PendingBound> {
    let row = scores.len().checked_sub(2)?;
    let column = row + 1;
    let [(a, first), (b, second)] = &x.terms[..] else { return None };
    let (side, row_leaf, column_leaf) = match (first.varies_along(row), second.varies_along(row), a, b) {
        (true, false, 1, -1) => (BoundSide::Below, first, second),
        (true, false, -1, 1) => (BoundSide::From, first, second),
        (false, true, -1, 1) => (BoundSide::Below, second, first),
        (false, true, 1, -1) => (BoundSide::From, second, first),
        _ => return None,
    };
    let row_indices = &row_leaf.axis_indices;
    let axis = row_indices.iter().position(|p| matches!(p, AxisIndex::Along { axis, .. } if *axis == row))?;
    let mut column_indices = row_indices.clone();
    column_indices[axis] = AxisIndex::Along { axis: column, start: Dim::from(0) };
    let (Op::CumSum { axis: along }, &[counted]) = cx.def(row_leaf.value)? else { return None };
    let fits = x.constant.as_const() == Some(0)
        && x.steps.iter().all(|s| *s == 0)
        && row_leaf.value == column_leaf.value
        && column_leaf.axis_indices == column_indices
        && *along == axis
        && cx.ty(counted).dtype == DType::Bool
        && cx.shape(row_leaf.value)[axis] == scores[column];
    if !fits {
        return None;
    }
    operand_bound(cx, side, BoundOperand::Segment { leaf: row_leaf.clone(), axis }, scores)
}

fn position_bound(
    cx: &Rewriter,
    side: BoundSide,
    p: LinearExpr,
    chunk: Option<u64>,
    scores: &[Dim],
) -> Option<PendingBound> {
    let (row, outer) = p.steps.get(..p.steps.len().checked_sub(1)?)?.split_last()?;
    let moves = match row {
        0 => false,
        1 => true,
        _ => return None,
    };
    let fits = outer.iter().all(|s| *s == 0) && has_integer_terms(cx, &p);
    let (low, high) = p.constant.bounds(cx.symbols());
    let small = low > -(1 << 40) && high < 1 << 40 && chunk.is_none_or(|c| c <= 1 << 40);
    (fits && small && scores.len() >= 3).then(|| PendingBound {
        bound: AttentionBound {
            side,
            row: moves,
            add: p.constant.clone(),
            chunk,
            operand: !p.terms.is_empty(),
        },
        operand: BoundOperand::Sum(p.terms),
    })
}

/// A bound for an atom that hides some rows completely and nothing of others.
fn row_mask_bound(atom: &ConditionAtom, scores: &[Dim]) -> Option<PendingBound> {
    let row = scores.len().checked_sub(2)?;
    let leaf = &atom.witness.leaf;
    let fits = leaf.varies_along(row) && !leaf.varies_along(row + 1);
    fits.then(|| PendingBound {
        bound: AttentionBound {
            side: BoundSide::Below,
            row: false,
            add: Dim::from(0),
            chunk: None,
            operand: true,
        },
        operand: BoundOperand::Rows(atom.witness.clone()),
    })
}

/// Whether the bound hides nothing.
fn hides_nothing(cx: &Rewriter, limit: &PendingBound, scores: &[Dim]) -> bool {
    let PendingBound { bound, .. } = limit;
    let [.., rows, columns] = scores else { return false };
    if bound.operand || bound.chunk.is_some() {
        return false;
    }
    let symbols = cx.symbols();
    match bound.side {
        BoundSide::Below => columns.provably_le(&bound.add, symbols),
        BoundSide::From => {
            let last_row = if bound.row { rows.clone() - Dim::from(1) } else { Dim::from(0) };
            (last_row + bound.add.clone()).provably_le(&Dim::from(0), symbols)
        }
    }
}

/// Whether every row is known to see a column by these bounds.
pub fn every_row_has_visible_column<'a>(
    cx: &Rewriter,
    bounds: impl Iterator<Item = &'a AttentionBound>,
    scores: &[Dim],
) -> bool {
    let [.., rows, columns] = scores else { return false };
    let bounds: Vec<&AttentionBound> = bounds.collect();
    if bounds.iter().any(|b| b.operand) {
        return false;
    }
    let symbols = cx.symbols();
    let unit = Dim::from(1);
    let last_row = rows.clone() - unit.clone();
    // A bound that moves with the row; the first and the last column count as bounds, too. A chunk begins at
    // or before its position and ends after it.
    let mut below = vec![(0, columns.clone())];
    let mut from = vec![(0, Dim::from(0))];
    for bound in bounds {
        let position = bound.add.clone();
        match bound.side {
            BoundSide::Below => {
                let chunk = Dim::from(i64::from(bound.chunk.is_some()));
                below.push((i64::from(bound.row), position + chunk));
            }
            BoundSide::From => from.push((i64::from(bound.row), position)),
        }
    }
    // If there is a row, there is a column.
    let filled = rows.provably_le(columns, symbols);
    below.into_iter().all(|(up, end)| {
        from.iter().all(|(down, start)| {
            if filled && (up, *down) == (0, 0) && end == *columns && start.as_const() == Some(0) {
                return true;
            }
            // The difference is linear in the row, so it holds everywhere if it holds at the first and the
            // last row.
            let room = end.clone() - start.clone();
            let at_last = room.clone() + last_row.clone() * Dim::from(up - down);
            unit.provably_le(&room, symbols) && unit.provably_le(&at_last, symbols)
        })
    })
}
