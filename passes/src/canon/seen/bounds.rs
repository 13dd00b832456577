//! What of a condition are bounds of attention, and what stays a mask.
//!
//! An atom is a bound where it compares the column with something that does not depend on it. Atoms that say nothing of
//! the row, or nothing of the column, stay small: the former are the mask that is left, the latter hide all of a row
//! and become a bound at an operand. Only what depends on both and is no bound keeps the mask as large as it was.

use symmc_ir::{BinaryOp, Bound, DType, Dim, Op, Scalar, Side, Type, UnaryOp, ValueId, infer};

use super::condition::{Atom, Condition, Kind, Witness};
use super::linear::{Leaf, Linear, Place};
use crate::rewrite::Rewriter;

/// A condition as attention takes it.
#[derive(Debug)]
pub struct Split {
    /// The bounds, with the operand of each that has one.
    pub bounds: Vec<Limit>,
    /// What is left: all of these.
    pub rest: Vec<Witness>,
    /// Whether anything of the condition is a bound, or hides nothing.
    pub gained: bool,
}

/// A bound whose operand is not a value yet.
#[derive(Clone, PartialEq, Debug)]
pub struct Limit {
    /// The bound.
    pub bound: Bound,
    /// What its operand is a sum of; nothing if it has none.
    pub terms: Vec<(i64, Leaf)>,
    /// A bool operand: the row sees nothing where it is false.
    pub rows: Option<Witness>,
}

/// Positions beyond all extents.
const FAR: i64 = 1 << 41;

/// Takes a condition about scores of this shape apart, if it is a conjunction.
pub fn split(cx: &Rewriter, condition: &Condition, scores: &[Dim]) -> Option<Split> {
    if condition.negated {
        return None;
    }
    let mut out = Split { bounds: Vec::new(), rest: Vec::new(), gained: false };
    for atom in &condition.atoms {
        match limit(cx, &atom.kind, scores).or_else(|| of_rows(atom, scores)) {
            Some(limit) => {
                out.gained = true;
                if !seen_anyway(cx, &limit, scores) {
                    add(&mut out.bounds, limit);
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
fn is_implied(limit: &Limit, by: &Limit) -> bool {
    let (a, b) = (&limit.bound, &by.bound);
    let alike = (a.side, a.row, a.operand) == (b.side, b.row, b.operand) && limit.terms == by.terms;
    let Some(behind) = (b.add.clone() - a.add.clone()).as_const() else { return false };
    let within = match a.side {
        Side::Below => behind <= 1,
        Side::From => behind >= 0,
    };
    alike && a.chunk.is_some() && b.chunk.is_none() && by.rows.is_none() && within
}

/// Adds a bound that is not there yet, those below a limit first.
fn add(bounds: &mut Vec<Limit>, limit: Limit) {
    let alike = |b: &Limit| Bound { add: limit.bound.add.clone(), ..b.bound.clone() } == limit.bound;
    let same = |b: &&mut Limit| {
        b.bound.chunk.is_none() && alike(b) && b.terms == limit.terms && b.rows == limit.rows
    };
    if let Some(other) = bounds.iter_mut().find(same)
        && let Some(more) = (limit.bound.add.clone() - other.bound.add.clone()).as_const()
    {
        // Of two that differ by a constant one says what both say.
        if (more < 0) == (limit.bound.side == Side::Below) {
            *other = limit;
        }
        return;
    }
    if !bounds.contains(&limit) {
        let behind = bounds.iter().position(|b| b.bound.side == Side::From).unwrap_or(bounds.len());
        let at = if limit.bound.side == Side::Below { behind } else { bounds.len() };
        bounds.insert(at, limit);
    }
}

/// The bound that an atom is.
fn limit(cx: &Rewriter, kind: &Kind, scores: &[Dim]) -> Option<Limit> {
    let column = scores.len().checked_sub(1)?;
    let still = |x: &Linear| x.is_still_along(column);
    let without = |x: &Linear| {
        let mut x = x.clone();
        x.steps[column] = 0;
        still(&x).then_some(x)
    };
    match kind {
        Kind::AtLeastZero(x) => match x.steps[column] {
            // column + e >= 0, and -column + e >= 0.
            1 => at(cx, Side::From, without(x)?.times(-1)?, None, scores),
            -1 => at(cx, Side::Below, without(x)?.shifted(1)?, None, scores),
            _ => None,
        },
        Kind::ChunkAtLeast { a, b, by } => {
            // The chunk of the column is not before, or not behind, that of the other side. What is added to the column
            // is added to the other side instead where it moves whole chunks.
            let (side, x, other) = match (a.steps[column], b.steps[column]) {
                (1, 0) if still(b) => (Side::From, without(a)?, b),
                (0, 1) if still(a) => (Side::Below, without(b)?, a),
                _ => return None,
            };
            let whole = x.steps.iter().all(|s| *s == 0) && x.terms.is_empty() && x.constant.divisible_by(*by);
            whole.then_some(())?;
            at(cx, side, other.plus(-1, &x)?, Some(u64::try_from(*by).ok()?), scores)
        }
        Kind::Opaque => None,
    }
}

/// The bound at a position.
fn at(cx: &Rewriter, side: Side, p: Linear, chunk: Option<u64>, scores: &[Dim]) -> Option<Limit> {
    let (row, outer) = p.steps.get(..p.steps.len().checked_sub(1)?)?.split_last()?;
    let moves = match row {
        0 => false,
        1 => true,
        _ => return None,
    };
    let integer = |leaf: &Leaf| matches!(cx.ty(leaf.value).dtype, DType::I32 | DType::I64);
    let fits = outer.iter().all(|s| *s == 0) && p.terms.iter().all(|t| integer(&t.1));
    let (low, high) = p.constant.bounds(cx.symbols());
    let small = low > -(1 << 40) && high < 1 << 40 && chunk.is_none_or(|c| c <= 1 << 40);
    (fits && small && scores.len() >= 3).then(|| Limit {
        bound: Bound { side, row: moves, add: p.constant.clone(), chunk, operand: !p.terms.is_empty() },
        terms: p.terms,
        rows: None,
    })
}

/// An atom that hides all of some rows and nothing of others.
fn of_rows(atom: &Atom, scores: &[Dim]) -> Option<Limit> {
    let (row, column) = (scores.len().checked_sub(2)?, scores.len() - 1);
    let leaf = &atom.witness.leaf;
    let fits = leaf.moves_along(row) && !leaf.moves_along(column);
    fits.then(|| Limit {
        bound: Bound { side: Side::Below, row: false, add: Dim::from(0), chunk: None, operand: true },
        terms: Vec::new(),
        rows: Some(atom.witness.clone()),
    })
}

/// Whether the bound hides nothing.
fn seen_anyway(cx: &Rewriter, limit: &Limit, scores: &[Dim]) -> bool {
    let Limit { bound, .. } = limit;
    let [.., rows, columns] = scores else { return false };
    if bound.operand || bound.chunk.is_some() {
        return false;
    }
    let symbols = cx.symbols();
    match bound.side {
        Side::Below => columns.provably_le(&bound.add, symbols),
        Side::From => {
            let last = if bound.row { rows.clone() - Dim::from(1) } else { Dim::from(0) };
            (last + bound.add.clone()).provably_le(&Dim::from(0), symbols)
        }
    }
}

/// Whether every row sees a column by these bounds, as far as is known.
pub fn each_row_sees<'a>(cx: &Rewriter, bounds: impl Iterator<Item = &'a Bound>, scores: &[Dim]) -> bool {
    let [.., rows, columns] = scores else { return false };
    let bounds: Vec<&Bound> = bounds.collect();
    if bounds.iter().any(|b| b.operand) {
        return false;
    }
    let symbols = cx.symbols();
    let one = Dim::from(1);
    let last = rows.clone() - one.clone();
    // A bound at a row, with the ends of all columns as bounds.
    // A chunk begins not behind its position, and ends behind it.
    let line = |b: &&Bound| {
        let ends = b.chunk.is_some() && b.side == Side::Below;
        (i64::from(b.row), b.add.clone() + Dim::from(i64::from(ends)))
    };
    let of = |side| bounds.iter().filter(move |b| b.side == side);
    let below = of(Side::Below).map(line).chain([(0, columns.clone())]);
    let from: Vec<(i64, Dim)> = of(Side::From).map(line).chain([(0, Dim::from(0))]).collect();
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

/// The operand of a bound as a value that broadcasts to the rows of the scores; `None` if it has none.
pub fn operand(cx: &mut Rewriter, limit: &Limit, scores: &[Dim]) -> Option<ValueId> {
    if let Some(rows) = &limit.rows {
        let seen = witness(cx, rows, scores)?;
        let ty = Type::new(DType::I64, cx.shape(seen).to_vec());
        let number = cx.emit("rows", Op::Cast, &[seen], ty.clone());
        let op = Op::BinaryScalar { op: BinaryOp::Mul, scalar: Scalar::Int(FAR), scalar_left: false };
        return Some(cx.emit("limit", op, &[number], ty));
    }
    let mut sum = None;
    for (times, leaf) in &limit.terms {
        let mut x = placed(cx, leaf, scores)?;
        if limit.terms.len() > 1 || *times != 1 {
            let ty = Type::new(DType::I64, cx.shape(x).to_vec());
            if cx.ty(x).dtype != DType::I64 {
                x = cx.emit("wide", Op::Cast, &[x], ty.clone());
            }
            if *times != 1 {
                let op =
                    Op::BinaryScalar { op: BinaryOp::Mul, scalar: Scalar::Int(*times), scalar_left: false };
                x = cx.emit("times", op, &[x], ty);
            }
        }
        sum = Some(match sum {
            None => x,
            Some(other) => both(cx, "position", BinaryOp::Add, other, x)?,
        });
    }
    sum
}

/// All of some witnesses as a mask; `None` if there are none.
pub fn mask(cx: &mut Rewriter, rest: &[Witness], scores: &[Dim]) -> Option<ValueId> {
    let mut all = None;
    for one in rest {
        let next = witness(cx, one, scores)?;
        all = Some(match all {
            None => next,
            Some(other) => both(cx, "mask", BinaryOp::And, other, next)?,
        });
    }
    all
}

/// An op of two values that broadcast together.
pub fn both(cx: &mut Rewriter, part: &str, op: BinaryOp, x: ValueId, y: ValueId) -> Option<ValueId> {
    let shape = infer::broadcast(&[cx.shape(x), cx.shape(y)]).ok()?;
    let ty = Type::new(cx.ty(x).dtype, shape);
    Some(cx.emit(part, Op::Binary(op), &[x, y], ty))
}

fn witness(cx: &mut Rewriter, of: &Witness, scores: &[Dim]) -> Option<ValueId> {
    let value = placed(cx, &of.leaf, scores)?;
    let ty = cx.ty(value).clone();
    Some(if of.negated { cx.emit("not", Op::Unary(UnaryOp::Not), &[value], ty) } else { value })
}

/// A leaf as a value whose axes are those of a shape, of extent 1 where it does not move along them.
pub fn placed(cx: &mut Rewriter, leaf: &Leaf, shape: &[Dim]) -> Option<ValueId> {
    let mut value = leaf.value;
    let mut order = Vec::new();
    for (axis, place) in leaf.at.iter().enumerate() {
        let (start, count) = match place {
            Place::Fixed(at) => (at.clone(), Dim::from(1)),
            Place::Along { axis: to, start } => {
                order.push((*to, axis));
                (start.clone(), shape.get(*to)?.clone())
            }
        };
        let mut ty = cx.ty(value).clone();
        if ty.shape[axis] != count {
            ty.shape[axis] = count;
            value = cx.emit("part", Op::Slice { axis, start, step: 1 }, &[value], ty);
        }
    }
    order.sort_unstable();
    // Two axes that move along one would be a diagonal.
    if order.windows(2).any(|w| w[0].0 == w[1].0) {
        return None;
    }
    let fixed = (0..leaf.at.len()).filter(|a| !order.iter().any(|(_, axis)| axis == a));
    let perm: Vec<usize> = fixed.chain(order.iter().map(|(_, axis)| *axis)).collect();
    let ty = cx.ty(value).clone();
    let turned = Type::new(ty.dtype, perm.iter().map(|&a| ty.shape[a].clone()).collect::<Vec<_>>());
    let value = cx.emit("axes", Op::Permute { perm }, &[value], turned);
    let mut wide = vec![Dim::from(1); shape.len()];
    order.iter().for_each(|&(to, _)| wide[to] = shape[to].clone());
    Some(cx.reshape(value, wide))
}
