//! Forms of stored constants: equal elements, a series, or two values, one of which fills an interval of each
//! row, as in masks.

use super::condition::{AtomKind, AtomWitness, ConditionAtom, MaskCondition};
use super::form::{ElementForm, choice_form};
use super::linear::{ElementRef, LinearExpr};
use super::scalar::element_of;
use crate::dim::Dim;
use crate::graph::Graph;
use crate::ids::ValueId;
use crate::tensor::Tensor;

/// The most elements of a constant that is examined whenever a graph is.
const MAX_SERIES_ELEMENTS: usize = 1 << 16;
/// The most elements of a constant that is examined as a mask.
const MAX_MASK_ELEMENTS: usize = 1 << 24;

/// The form of a constant whose elements are all equal, or an integer series along the last axis.
pub fn stored_series_form(tensor: &Tensor) -> Option<ElementForm> {
    let n = tensor.numel();
    if n == 0 || n > MAX_SERIES_ELEMENTS {
        return None;
    }
    let size = tensor.dtype().size();
    let first = &tensor.data()[..size];
    if tensor.data().chunks_exact(size).all(|e| e == first) {
        return element_of(tensor, 0).map(ElementForm::Full);
    }
    if tensor.dtype().integer_bounds().is_none() || tensor.shape().last() != Some(&n) {
        return None;
    }
    let elements = tensor.to_i64();
    let step = elements[1].checked_sub(elements[0])?;
    let mut linear = LinearExpr::constant(elements[0], tensor.shape().len());
    *linear.steps.last_mut()? = step;
    let is_series = elements.windows(2).all(|w| w[1].checked_sub(w[0]) == Some(step));
    is_series.then_some(ElementForm::linear(linear))
}

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
            RunBoundary::At(column) => column,
            RunBoundary::Row(by) => (row as i64).saturating_add(by).clamp(0, columns as i64) as usize,
        }
    }
}

/// The form of a constant of two values, one of which fills an interval of each row.
pub fn stored_mask_form(graph: &Graph, value: ValueId, data: &Tensor) -> Option<ElementForm> {
    let shape = data.shape();
    let size = data.dtype().size();
    let (&columns, outer) = shape.split_last()?;
    let rows = outer.last().copied().unwrap_or(1);
    if data.numel() == 0 || data.numel() > MAX_MASK_ELEMENTS {
        return None;
    }
    // Heads and batches must share one mask.
    let mut blocks = data.data().chunks_exact(rows * columns * size);
    let block = blocks.next()?;
    if !blocks.all(|other| other == block) {
        return None;
    }
    let first = &block[..size];
    let second_index = block.chunks_exact(size).position(|e| e != first)?;
    let numbers = [element_of(data, 0)?, element_of(data, second_index)?];

    let second = &block[second_index * size..(second_index + 1) * size];
    if block.chunks_exact(size).any(|e| e != first && e != second) {
        return None;
    }
    let ((from, below), numbers) = match find_boundaries(block, first, columns) {
        Some(ends) => (ends, numbers),
        None => (find_boundaries(block, second, columns)?, [numbers[1], numbers[0]]),
    };
    Some(choice_form(interval_condition(graph, value, from, below), numbers, data.dtype()))
}

/// The boundaries of the interval that a value fills in each row of a block.
fn find_boundaries(block: &[u8], value: &[u8], columns: usize) -> Option<(RunBoundary, RunBoundary)> {
    let rows = block.chunks_exact(columns * value.len());
    let runs = rows.map(|row| find_run(row, value)).collect::<Option<Vec<_>>>()?;
    fit_boundaries(&runs, columns)
}

/// The start and the end of a value in a row, if its occurrences are contiguous; an empty range if there are
/// none.
fn find_run(row: &[u8], value: &[u8]) -> Option<(usize, usize)> {
    let elements = row.chunks_exact(value.len());
    let Some(start) = elements.clone().position(|e| e == value) else { return Some((0, 0)) };
    let end = elements.clone().rposition(|e| e == value)? + 1;
    elements.skip(start).take(end - start).all(|e| e == value).then_some((start, end))
}

/// The boundaries that give these runs.
fn fit_boundaries(runs: &[(usize, usize)], columns: usize) -> Option<(RunBoundary, RunBoundary)> {
    let filled = runs.iter().enumerate().filter(|(_, (start, end))| start < end);
    let first_start = filled.clone().find(|(_, (start, _))| *start > 0).map(|(row, run)| (row, run.0));
    let first_end = filled.clone().find(|(_, (_, end))| *end < columns).map(|(row, run)| (row, run.1));
    for from in boundary_candidates(first_start) {
        for below in boundary_candidates(first_end) {
            if fits_runs(runs, from, below, columns) {
                return Some((from, below));
            }
        }
    }
    None
}

/// The boundaries that can lie at this row and column; only the open one if there is no such place.
fn boundary_candidates(place: Option<(usize, usize)>) -> Vec<RunBoundary> {
    let mut candidates = vec![RunBoundary::Open];
    if let Some((row, column)) = place {
        candidates.push(RunBoundary::At(column));
        candidates.push(RunBoundary::Row(column as i64 - row as i64));
    }
    candidates
}

fn fits_runs(runs: &[(usize, usize)], from: RunBoundary, below: RunBoundary, columns: usize) -> bool {
    runs.iter().enumerate().all(|(row, &(start, end))| {
        let run = (from.column_at(row, 0, columns), below.column_at(row, columns, columns));
        if start < end { run == (start, end) } else { run.0 >= run.1 }
    })
}

fn interval_condition(graph: &Graph, value: ValueId, from: RunBoundary, below: RunBoundary) -> MaskCondition {
    let shape = &graph.ty(value).shape;
    let rank = shape.len();
    let unit = Dim::from(1);
    let row = rank.checked_sub(2).filter(|&axis| shape[axis] != unit);
    let column = rank.checked_sub(1).filter(|&axis| shape[axis] != unit);
    let mut atoms = Vec::new();
    // column - limit >= 0 and limit - 1 - column >= 0.
    for (end, sign) in [(from, 1), (below, -1)] {
        let (limit, moves) = match end {
            RunBoundary::Open => continue,
            RunBoundary::At(column) => (column as i64, false),
            RunBoundary::Row(by) => (by, true),
        };
        let mut linear = LinearExpr::constant(-sign * limit + (sign - 1) / 2, rank);
        if let Some(column) = column {
            linear.steps[column] = sign;
        }
        if moves && let Some(row) = row {
            linear.steps[row] = -sign;
        }
        let witness = AtomWitness { leaf: ElementRef::whole_value(graph, value), negated: false };
        atoms.push(ConditionAtom { kind: AtomKind::AtLeastZero(linear), witness });
    }
    MaskCondition { negated: false, atoms }
}
