//! Masks that are stored as constants of two values, one of which fills an interval of each row.

use symmc_ir::{DType, Dim, FloatAttribute, Graph, Scalar, Tensor, ValueId};

use super::condition::{AtomKind, AtomWitness, ConditionAtom, MaskCondition};
use super::fact::{MaskFact, choice_fact};
use super::linear::{ElementRef, LinearExpr};

/// The most elements of a constant that is analysed.
const MAX_ELEMENTS: usize = 1 << 24;

#[derive(Clone, Copy)]
enum RunBoundary {
    /// The first or the last column.
    Open,
    At(usize),
    /// The index of the row plus this.
    Row(i64),
}

impl RunBoundary {
    /// The column of this boundary in a row.
    fn column_at(self, row: usize, open: usize, columns: usize) -> usize {
        match self {
            RunBoundary::Open => open,
            RunBoundary::At(at) => at,
            RunBoundary::Row(by) => (row as i64).saturating_add(by).clamp(0, columns as i64) as usize,
        }
    }
}

/// The elements of a constant as a function of positions.
pub fn constant_mask_fact(graph: &Graph, value: ValueId, data: &Tensor) -> Option<MaskFact> {
    let shape = data.shape();
    let size = data.dtype().size();
    let (&columns, outer) = shape.split_last()?;
    let rows = outer.last().copied().unwrap_or(1);
    if data.numel() == 0 || data.numel() > MAX_ELEMENTS {
        return None;
    }
    // Heads and batches must share one mask.
    let mut blocks = data.data().chunks_exact(rows * columns * size);
    let block = blocks.next()?;
    if !blocks.all(|other| other == block) {
        return None;
    }
    let first = &block[..size];
    let other = block.chunks_exact(size).position(|e| e != first)?;
    let numbers = [scalar_at(data, 0)?, scalar_at(data, other)?];
    let seen = |value: &[u8]| {
        let runs = block
            .chunks_exact(columns * size)
            .map(|row| find_run(row, value, size))
            .collect::<Option<Vec<_>>>()?;
        fit_boundaries(&runs, columns)
    };
    let second = &block[other * size..(other + 1) * size];
    if block.chunks_exact(size).any(|e| e != first && e != second) {
        return None;
    }
    let ((from, below), numbers) = match seen(first) {
        Some(ends) => (ends, numbers),
        None => (seen(second)?, [numbers[1], numbers[0]]),
    };
    Some(choice_fact(interval_condition(graph, value, from, below), numbers, data.dtype()))
}

fn scalar_at(data: &Tensor, at: usize) -> Option<Scalar> {
    let x = data.get_f64(at);
    match data.dtype() {
        DType::Bool => Some(Scalar::Bool(x != 0.0)),
        d if d.is_float() => (!x.is_nan()).then_some(Scalar::Float(FloatAttribute(x))),
        _ => (x.abs() < 9e15).then_some(Scalar::Int(x as i64)),
    }
}

/// The start and the end of a value in a row, if its occurrences are contiguous; an empty range if there are
/// none.
fn find_run(row: &[u8], value: &[u8], size: usize) -> Option<(usize, usize)> {
    let is = |e: &[u8]| e == value;
    let elements = || row.chunks_exact(size);
    let Some(start) = elements().position(is) else { return Some((0, 0)) };
    let end = elements().rposition(is)? + 1;
    elements().skip(start).take(end - start).all(is).then_some((start, end))
}

/// The boundaries that give these runs.
fn fit_boundaries(runs: &[(usize, usize)], columns: usize) -> Option<(RunBoundary, RunBoundary)> {
    let filled = || runs.iter().enumerate().filter(|(_, r)| r.0 < r.1);
    let candidates = |end: Option<(usize, usize)>| {
        let ends = end.map(|(row, at)| [RunBoundary::At(at), RunBoundary::Row(at as i64 - row as i64)]);
        [RunBoundary::Open].into_iter().chain(ends.into_iter().flatten()).collect::<Vec<_>>()
    };
    let from = candidates(filled().find(|(_, r)| r.0 > 0).map(|(i, r)| (i, r.0)));
    let below = candidates(filled().find(|(_, r)| r.1 < columns).map(|(i, r)| (i, r.1)));
    let fits = |from: RunBoundary, below: RunBoundary| {
        runs.iter().enumerate().all(|(i, &(start, end))| {
            let found = (from.column_at(i, 0, columns), below.column_at(i, columns, columns));
            if start < end { found == (start, end) } else { found.0 >= found.1 }
        })
    };
    from.iter().find_map(|&f| below.iter().find(|&&b| fits(f, b)).map(|&b| (f, b)))
}

fn interval_condition(graph: &Graph, value: ValueId, from: RunBoundary, below: RunBoundary) -> MaskCondition {
    let shape = &graph.ty(value).shape;
    let rank = shape.len();
    let one = Dim::from(1);
    let step = |axis: Option<usize>, by: i64, steps: &mut Vec<i64>| {
        if let Some(axis) = axis.filter(|&a| shape[a] != one) {
            steps[axis] = by;
        }
    };
    let row = rank.checked_sub(2);
    let column = rank.checked_sub(1);
    let mut atoms = Vec::new();
    // column - limit >= 0 and limit - 1 - column >= 0.
    for (end, sign) in [(from, 1), (below, -1)] {
        let (at, moves) = match end {
            RunBoundary::Open => continue,
            RunBoundary::At(at) => (at as i64, false),
            RunBoundary::Row(by) => (by, true),
        };
        let mut linear = LinearExpr::constant(-sign * at + (sign - 1) / 2, rank);
        step(column, sign, &mut linear.steps);
        if moves {
            step(row, -sign, &mut linear.steps);
        }
        let witness = AtomWitness { leaf: ElementRef::whole_value(graph, value), negated: false };
        atoms.push(ConditionAtom { kind: AtomKind::AtLeastZero(linear), witness });
    }
    MaskCondition { negated: false, atoms }
}
