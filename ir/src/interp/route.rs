//! Routing of tokens to experts, and the exchange of rows that follows it, written after their definitions.

use super::array::WideArray;
use super::error::{OpError, Result};
use crate::route::{Route, RouteLayout};
use crate::types::{DType, Scalar};

/// The row that a slot has: the rank and the row there.
#[derive(Clone, Copy)]
struct RoutedRow {
    rank: usize,
    row: usize,
}

/// The rows that one rank receives.
struct ReceivedRows {
    /// The global slot of each row, or -1.
    slots: Vec<i64>,
    counts: Vec<i64>,
    ends: Vec<i64>,
}

/// The results of `route` on the ranks of a cell. Each operand list has the ids of all tokens.
pub(super) fn route(
    route: &Route,
    ranks: usize,
    capacity: usize,
    operands: &[Vec<WideArray>],
) -> Result<Vec<Vec<WideArray>>, (usize, OpError)> {
    let mut out = Vec::with_capacity(ranks);
    for (me, operands) in operands.iter().enumerate() {
        out.push(route_on_rank(route, ranks, me, capacity, &operands[0]).map_err(|e| (me, e))?);
    }
    Ok(out)
}

fn route_on_rank(
    route: &Route,
    ranks: usize,
    me: usize,
    capacity: usize,
    ids: &WideArray,
) -> Result<Vec<WideArray>> {
    let (tokens, k) = (ids.shape[0], ids.shape[1]);
    let own_tokens = tokens / ranks;
    let experts = ids.as_ints()?;
    let last_expert = route.experts - 1;
    if let Some(slot) = experts.iter().position(|&id| id < -1 || id > i64::from(last_expert)) {
        return Err(OpError::ExpertId { id: experts[slot], slot, last: last_expert });
    }
    let mut rows: Vec<Option<RoutedRow>> = vec![None; experts.len()];
    let mut received = Vec::with_capacity(ranks);
    for rank in 0..ranks {
        let rows = receive_rows(route, ranks, rank, k, capacity, experts, &mut rows)?;
        received.push(rows);
        let row_count = received[rank].slots.len();
        if row_count > capacity {
            return Err(OpError::Capacity { rank, found: row_count, capacity });
        }
    }
    let global = |row: &Option<RoutedRow>| row.map_or(-1, |r| (r.rank * capacity + r.row) as i64);
    let all_rows: Vec<i64> = rows.iter().map(global).collect();
    let first = me * own_tokens * k;
    let own_rows = all_rows[first..first + own_tokens * k].to_vec();
    let mine = &mut received[me];
    mine.slots.resize(capacity, -1);
    let sections = mine.counts.len();
    let ints = |shape: &[usize], elements: &[i64]| WideArray::from_ints(DType::I64, shape, elements.to_vec());
    Ok(vec![
        ints(&[own_tokens, k], &own_rows),
        ints(&[tokens, k], &all_rows),
        ints(&[capacity], &mine.slots),
        ints(&[sections], &mine.counts),
        ints(&[sections], &mine.ends),
    ])
}

/// Gives rows of `rank` to the slots in `experts` that belong there.
fn receive_rows(
    route: &Route,
    ranks: usize,
    rank: usize,
    k: usize,
    capacity: usize,
    experts: &[i64],
    rows: &mut [Option<RoutedRow>],
) -> Result<ReceivedRows> {
    let local = route.experts as usize / ranks;
    let is_here = |id: i64| usize::try_from(id).is_ok_and(|id| id / local == rank);
    let slots_per_rank = experts.len() / ranks;
    let mut out = ReceivedRows { slots: Vec::new(), counts: Vec::new(), ends: Vec::new() };
    for section in 0..route.section_count(ranks as u32) as usize {
        let start = out.slots.len();
        for (slot, &id) in experts.iter().enumerate().filter(|(_, id)| is_here(**id)) {
            let is_in_section = match route.layout {
                RouteLayout::Expert | RouteLayout::Batched => id as usize % local == section,
                RouteLayout::Rank => {
                    let token_start = slot / k * k;
                    let is_first = !experts[token_start..slot].iter().any(|&earlier| is_here(earlier));
                    slot / slots_per_rank == section && is_first
                }
            };
            if is_in_section {
                rows[slot] = Some(RoutedRow { rank, row: out.slots.len() });
                out.slots.push(slot as i64);
            }
        }
        let row_count = out.slots.len() - start;
        out.counts.push(row_count as i64);
        if let Some(max_rows) = route.section_capacity(ranks, capacity) {
            if row_count > max_rows {
                let expert = rank * local + section;
                return Err(OpError::ExpertCapacity { expert, found: row_count, capacity: max_rows });
            }
            out.ends.push(out.slots.len() as i64);
            out.slots.resize(start + max_rows, -1);
        } else {
            let end = out.slots.len().next_multiple_of(route.align as usize);
            out.slots.resize(end, -1);
            out.ends.push(end as i64);
        }
    }
    Ok(out)
}

/// The result on each rank: the token of the slot of each row, or zero.
pub(super) fn dispatch_rows(operands: &[Vec<WideArray>]) -> Result<Vec<Vec<WideArray>>, (usize, OpError)> {
    let mut out = Vec::with_capacity(operands.len());
    for (rank, own) in operands.iter().enumerate() {
        out.push(dispatch_on_rank(operands, own).map_err(|e| (rank, e))?);
    }
    Ok(out)
}

fn dispatch_on_rank(operands: &[Vec<WideArray>], own: &[WideArray]) -> Result<Vec<WideArray>> {
    let (x, slots, all_rows) = (&own[0], own[1].as_ints()?, &own[2]);
    let (tokens, width, k) = (x.shape[0], x.shape[1], all_rows.shape[1]);
    let last_slot = (operands.len() * tokens * k) as i64 - 1;
    let mut sources = Vec::with_capacity(slots.len());
    for (position, &slot) in slots.iter().enumerate() {
        if slot > last_slot {
            return Err(OpError::Row { what: "slot", found: slot, position, last: last_slot });
        }
        let token = usize::try_from(slot).ok().map(|slot| slot / k);
        sources.push(token.map(|token| (token / tokens, token % tokens)));
    }
    Ok(vec![gather_rows(operands, x, &sources, width)?])
}

/// The rows of the first operands that are named by rank and row, with zeros where there is none.
fn gather_rows(
    operands: &[Vec<WideArray>],
    x: &WideArray,
    sources: &[Option<(usize, usize)>],
    width: usize,
) -> Result<WideArray> {
    let rows_per_rank = x.shape[0];
    let first_operands: Vec<&WideArray> = operands.iter().map(|o| &o[0]).collect();
    let joined = super::movement::concat(&first_operands, 0, &[rows_per_rank * first_operands.len(), width])?;
    let positions: Vec<usize> = sources
        .iter()
        .flat_map(|source| {
            (0..width).map(move |i| match source {
                Some((rank, row)) => (rank * rows_per_rank + row) * width + i,
                None => usize::MAX,
            })
        })
        .collect();
    Ok(joined.gather_positions(&[sources.len(), width], &positions, Scalar::Int(0)))
}

/// The result on each rank: for each token the weighted sum of the rows of its slots.
pub(super) fn combine_rows(operands: &[Vec<WideArray>]) -> Result<Vec<Vec<WideArray>>, (usize, OpError)> {
    let mut out = Vec::with_capacity(operands.len());
    for (rank, own) in operands.iter().enumerate() {
        out.push(combine_on_rank(operands, own).map_err(|e| (rank, e))?);
    }
    Ok(out)
}

fn combine_on_rank(operands: &[Vec<WideArray>], own: &[WideArray]) -> Result<Vec<WideArray>> {
    let ranks = operands.len();
    check_rows(own, ranks)?;
    let all_tokens = 0..own[1].shape[0];
    let mut sums = Vec::with_capacity(ranks);
    for (rank, of_rank) in operands.iter().enumerate() {
        sums.push(sum_rows(&of_rank[0], rank, own, all_tokens.clone())?);
    }
    Ok(vec![add_in_order(&own[0], own[1].shape[0], sums)])
}

/// Each rank sums its own rows of all tokens. All ranks have equal tables.
pub(super) fn reduce_rows(operands: &[Vec<WideArray>]) -> Result<Vec<Vec<WideArray>>, (usize, OpError)> {
    let ranks = operands.len();
    let tokens = operands[0][1].shape[0] / ranks;
    // The sums by the rank that has the rows, and then by that of the tokens.
    let mut sums = Vec::with_capacity(ranks);
    for (rank, own) in operands.iter().enumerate() {
        let mut row = Vec::with_capacity(ranks);
        check_rows(own, ranks).map_err(|e| (rank, e))?;
        for target in 0..ranks {
            let token_range = target * tokens..(target + 1) * tokens;
            row.push(sum_rows(&own[0], rank, own, token_range).map_err(|e| (rank, e))?);
        }
        sums.push(row);
    }
    let mut out = Vec::with_capacity(ranks);
    for (target, own) in operands.iter().enumerate() {
        let x = &own[0];
        let other_sums =
            (1..ranks).flat_map(|by| sums[(target + by) % ranks][target].iter().copied()).collect();
        let other_sums =
            WideArray::from_floats(x.dtype.compute_dtype(), &[(ranks - 1) * tokens, x.shape[1]], other_sums);
        let received = sums.iter().map(|row| row[target].clone()).collect();
        out.push(vec![add_in_order(x, tokens, received), other_sums]);
    }
    Ok(out)
}

/// Checks the rows of a combination on one of some ranks.
fn check_rows(own: &[WideArray], ranks: usize) -> Result<()> {
    let last_row = (ranks * own[0].shape[0]) as i64 - 1;
    for (position, &row) in own[1].as_ints()?.iter().enumerate() {
        if row > last_row {
            return Err(OpError::Row { what: "row", found: row, position, last: last_row });
        }
    }
    Ok(())
}

/// The sums of the tokens `part` over their rows on the rank that has `x`. `tables` has the rows of all tokens
/// after its first operand, and optionally their weights.
fn sum_rows(
    x: &WideArray,
    rank: usize,
    tables: &[WideArray],
    part: std::ops::Range<usize>,
) -> Result<Vec<f64>> {
    let (capacity, width, k) = (x.shape[0], x.shape[1], tables[1].shape[1]);
    let rows = tables[1].as_ints()?;
    let weights = tables.get(2).map(WideArray::as_floats).transpose()?;
    let elements = x.as_floats()?;
    let narrow = accumulated(x.dtype);
    let mut out = vec![0.0; part.len() * width];
    for position in part.start * k..part.end * k {
        let own = usize::try_from(rows[position]).ok().and_then(|row| row.checked_sub(rank * capacity));
        let Some(row) = own.filter(|&row| row < capacity) else { continue };
        let weight = weights.map_or(1.0, |w| narrow(w[position]));
        let sums = &mut out[(position / k - part.start) * width..][..width];
        for (sum, &element) in sums.iter_mut().zip(&elements[row * width..][..width]) {
            *sum = narrow(*sum + narrow(element * weight));
        }
    }
    Ok(out)
}

/// The sums of all ranks of this many tokens, added in ascending order of rank, in the dtype of `x`.
fn add_in_order(x: &WideArray, tokens: usize, sums: Vec<Vec<f64>>) -> WideArray {
    let narrow = accumulated(x.dtype);
    let width = x.shape[1];
    let mut sums = sums.into_iter();
    let mut total = sums.next().unwrap_or_default();
    for sum in sums {
        for (total, next) in total.iter_mut().zip(sum) {
            *total = narrow(*total + next);
        }
    }
    WideArray::from_floats(x.dtype, &[tokens, width], total)
}

/// Sums and products of f32 computed in f64 and rounded to f32 equal the f32 operations.
fn accumulated(dtype: DType) -> fn(f64) -> f64 {
    if dtype == DType::F64 { |x| x } else { |x| f64::from(x as f32) }
}
