//! What of a condition are bounds of attention, and what stays a mask.
//!
//! An atom is a bound where it compares the column with something that does not depend on it. Atoms that say nothing of
//! the row, or nothing of the column, stay small: the former are the mask that is left, the latter hide all of a row
//! and become a bound at an operand. Only what depends on both and is no bound keeps the mask as large as it was.

use symmc_ir::{AttentionBound, BoundSide, DType, Dim, Op};

use super::condition::{AtomKind, AtomWitness, ConditionAtom, MaskCondition};
use super::linear::{AxisIndex, ElementRef, LinearExpr};
use crate::rewrite::Rewriter;

#[derive(Debug)]
pub struct ConditionSplit {
    /// The bounds, with the operand of each that has one.
    pub bounds: Vec<PendingBound>,
    /// What is left: all of these.
    pub rest: Vec<AtomWitness>,
    /// Whether anything of the condition is a bound, or hides nothing.
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
    /// A sum of these; nothing if there is no operand.
    Sum(Vec<(i64, ElementRef)>),
    /// The row sees nothing where this is false.
    Rows(AtomWitness),
    /// Where the chunk of `of` begins, or ends on the side below, less `less`.
    Chunk {
        /// A position of the row.
        of: LinearExpr,
        /// How much further the chunks of columns begin.
        less: LinearExpr,
        /// The positions of a chunk.
        by: i64,
    },
    /// Where the elements that equal that of the row begin, or end, along an axis along which they never fall.
    Segment { leaf: ElementRef, axis: usize },
}

/// Takes a condition about scores of this shape apart, if it is a conjunction.
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
    let all = out.bounds.clone();
    out.bounds.retain(|limit| !all.iter().any(|other| is_implied(limit, other)));
    Some(out)
}

/// Whether the end or the beginning of a chunk hides nothing beside a bound within the chunk.
fn is_implied(limit: &PendingBound, by: &PendingBound) -> bool {
    let (a, b) = (&limit.bound, &by.bound);
    // Elements that never fall do not exceed that of the row up to it.
    if let (BoundOperand::Segment { leaf, axis }, BoundSide::Below) = (&limit.operand, a.side) {
        let from_start = matches!(&leaf.axis_indices[*axis], AxisIndex::Along { start, .. } if start.as_const() == Some(0));
        let near = b.row && !b.operand && b.chunk.is_none() && b.add.as_const().is_some_and(|c| c <= 1);
        return from_start && near && b.side == BoundSide::Below;
    }
    let alike = (a.side, a.row, a.operand) == (b.side, b.row, b.operand) && limit.operand == by.operand;
    let Some(behind) = (b.add.clone() - a.add.clone()).as_const() else { return false };
    let within = match a.side {
        BoundSide::Below => behind <= 1,
        BoundSide::From => behind >= 0,
    };
    alike && a.chunk.is_some() && b.chunk.is_none() && within
}

/// Adds a bound that is not there yet, those below a limit first.
fn add_bound(bounds: &mut Vec<PendingBound>, limit: PendingBound) {
    let alike =
        |b: &PendingBound| AttentionBound { add: limit.bound.add.clone(), ..b.bound.clone() } == limit.bound;
    let same = |b: &&mut PendingBound| b.bound.chunk.is_none() && alike(b) && b.operand == limit.operand;
    if let Some(other) = bounds.iter_mut().find(same)
        && let Some(more) = (limit.bound.add.clone() - other.bound.add.clone()).as_const()
    {
        // Of two that differ by a constant one says what both say.
        if (more < 0) == (limit.bound.side == BoundSide::Below) {
            *other = limit;
        }
        return;
    }
    if !bounds.contains(&limit) {
        let behind = bounds.iter().position(|b| b.bound.side == BoundSide::From).unwrap_or(bounds.len());
        let at = if limit.bound.side == BoundSide::Below { behind } else { bounds.len() };
        bounds.insert(at, limit);
    }
}

fn atom_bound(cx: &Rewriter, kind: &AtomKind, scores: &[Dim]) -> Option<PendingBound> {
    let column = scores.len().checked_sub(1)?;
    let still = |x: &LinearExpr| x.is_constant_along(column);
    let without = |x: &LinearExpr| {
        let mut x = x.clone();
        x.steps[column] = 0;
        still(&x).then_some(x)
    };
    match kind {
        AtomKind::AtLeastZero(x) if x.steps[column] == 0 => segment(cx, x, scores),
        AtomKind::AtLeastZero(x) => match x.steps[column] {
            // column + e >= 0, and -column + e >= 0.
            1 => position_bound(cx, BoundSide::From, without(x)?.times(-1)?, None, scores),
            -1 => position_bound(cx, BoundSide::Below, without(x)?.offset_by(1)?, None, scores),
            _ => None,
        },
        AtomKind::ChunkAtLeast { a, b, by } => {
            // The chunk of the column is not before, or not behind, that of the other side. What is added to the column
            // is added to the other side instead where it moves whole chunks.
            let (side, x, other) = match (a.steps[column], b.steps[column]) {
                (1, 0) if still(b) => (BoundSide::From, without(a)?, b),
                (0, 1) if still(a) => (BoundSide::Below, without(b)?, a),
                _ => return None,
            };
            let whole =
                x.steps.iter().all(|s| *s == 0) && x.terms.is_empty() && x.constant.is_divisible_by(*by);
            if !whole {
                let operand = BoundOperand::Chunk { of: other.clone(), less: x, by: *by };
                return operand_bound(cx, side, operand, scores);
            }
            position_bound(cx, side, other.add_scaled(-1, &x)?, Some(u64::try_from(*by).ok()?), scores)
        }
        AtomKind::Opaque => None,
    }
}

/// The bound at an operand that is computed from positions of rows.
fn operand_bound(
    cx: &Rewriter,
    side: BoundSide,
    operand: BoundOperand,
    scores: &[Dim],
) -> Option<PendingBound> {
    let row = scores.len().checked_sub(2).filter(|row| *row > 0)?;
    let integer = |leaf: &ElementRef| matches!(cx.ty(leaf.value).dtype, DType::I32 | DType::I64);
    let fits = |x: &LinearExpr| {
        let others = x.steps.iter().enumerate().filter(|(axis, _)| *axis != row);
        others.into_iter().all(|(_, s)| *s == 0) && x.terms.iter().all(|t| integer(&t.1))
    };
    let fits = match &operand {
        BoundOperand::Chunk { of, less, .. } => fits(of) && fits(less),
        _ => true,
    };
    let bound = AttentionBound { side, row: false, add: Dim::from(0), chunk: None, operand: true };
    fits.then_some(PendingBound { bound, operand })
}

/// The bound where an element of the row is not less, or not more, than that of the column, of a cumulative sum of bools.
fn segment(cx: &Rewriter, x: &LinearExpr, scores: &[Dim]) -> Option<PendingBound> {
    let (row, column) = (scores.len().checked_sub(2)?, scores.len() - 1);
    let [(a, first), (b, second)] = &x.terms[..] else { return None };
    let (side, own, other) = match (first.varies_along(row), second.varies_along(row), a, b) {
        (true, false, 1, -1) => (BoundSide::Below, first, second),
        (true, false, -1, 1) => (BoundSide::From, first, second),
        (false, true, -1, 1) => (BoundSide::Below, second, first),
        (false, true, 1, -1) => (BoundSide::From, second, first),
        _ => return None,
    };
    let axis =
        own.axis_indices.iter().position(|p| matches!(p, AxisIndex::Along { axis, .. } if *axis == row))?;
    let mut of_column = own.axis_indices.clone();
    of_column[axis] = AxisIndex::Along { axis: column, start: Dim::from(0) };
    let (Op::CumSum { axis: along }, &[counted]) = cx.def(own.value)? else { return None };
    let fits = x.constant.as_const() == Some(0)
        && x.steps.iter().all(|s| *s == 0)
        && own.value == other.value
        && other.axis_indices == of_column
        && *along == axis
        && cx.ty(counted).dtype == DType::Bool
        && cx.shape(own.value)[axis] == scores[column];
    fits.then(|| operand_bound(cx, side, BoundOperand::Segment { leaf: own.clone(), axis }, scores)).flatten()
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
    let integer = |leaf: &ElementRef| matches!(cx.ty(leaf.value).dtype, DType::I32 | DType::I64);
    let fits = outer.iter().all(|s| *s == 0) && p.terms.iter().all(|t| integer(&t.1));
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

/// An atom that hides all of some rows and nothing of others.
fn row_mask_bound(atom: &ConditionAtom, scores: &[Dim]) -> Option<PendingBound> {
    let (row, column) = (scores.len().checked_sub(2)?, scores.len() - 1);
    let leaf = &atom.witness.leaf;
    let fits = leaf.varies_along(row) && !leaf.varies_along(column);
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
            let last = if bound.row { rows.clone() - Dim::from(1) } else { Dim::from(0) };
            (last + bound.add.clone()).provably_le(&Dim::from(0), symbols)
        }
    }
}

/// Whether every row sees a column by these bounds, as far as is known.
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
    let one = Dim::from(1);
    let last = rows.clone() - one.clone();
    // A bound at a row, with the ends of all columns as bounds.
    // A chunk begins not behind its position, and ends behind it.
    let line = |b: &&AttentionBound| {
        let ends = b.chunk.is_some() && b.side == BoundSide::Below;
        (i64::from(b.row), b.add.clone() + Dim::from(i64::from(ends)))
    };
    let of = |side| bounds.iter().filter(move |b| b.side == side);
    let below = of(BoundSide::Below).map(line).chain([(0, columns.clone())]);
    let from: Vec<(i64, Dim)> = of(BoundSide::From).map(line).chain([(0, Dim::from(0))]).collect();
    // Where there is a row there is a column.
    let filled = rows.provably_le(columns, symbols);
    below.into_iter().all(|(up, end)| {
        from.iter().all(|(down, start)| {
            if filled && (up, *down) == (0, 0) && end == *columns && start.as_const() == Some(0) {
                return true;
            }
            // Linear in the row: it holds everywhere if it holds at the first and the last.
            let room = end.clone() - start.clone();
            let at_last = room.clone() + last.clone() * Dim::from(up - down);
            one.provably_le(&room, symbols) && one.provably_le(&at_last, symbols)
        })
    })
}
