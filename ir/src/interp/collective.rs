//! Collectives over the operands of one cell of a group, in order of rank within the cell.

use super::array::{ArrayData, WideArray};
use super::elementwise::{float_max, float_min};
use super::error::{OpError, Result};
use super::index::leading_rows;
use super::movement::{concat, full};
use super::route;
use crate::collective::{AllToAllSplits, CollectiveKind, CollectiveReduceOp};
use crate::types::{DType, Scalar};

/// The results on each rank of a cell, from the operands on each. An error carries the rank within the cell.
pub(super) fn exchange(
    kind: &CollectiveKind,
    operands: &[Vec<WideArray>],
) -> Result<Vec<Vec<WideArray>>, (usize, OpError)> {
    let n = operands.len();
    let x: Vec<&WideArray> = operands.iter().map(|o| &o[0]).collect();
    match kind {
        CollectiveKind::AllReduce(op) => {
            Ok(one_result_per_rank(vec![reduce(*op, &x).map_err(|e| (0, e))?; n]))
        }
        CollectiveKind::ReduceScatter(op) => {
            let sum = reduce(*op, &x).map_err(|e| (0, e))?;
            let piece = sum.shape[0] / n;
            Ok(one_result_per_rank((0..n).map(|r| leading_rows(&sum, r * piece, piece)).collect()))
        }
        CollectiveKind::AllGather => {
            Ok(one_result_per_rank(vec![concat_leading(&x).map_err(|e| (0, e))?; n]))
        }
        CollectiveKind::AllToAll(AllToAllSplits::Even) => {
            let piece = x[0].shape[0] / n;
            let mut received = Vec::with_capacity(n);
            for r in 0..n {
                let pieces: Vec<WideArray> = x.iter().map(|x| leading_rows(x, r * piece, piece)).collect();
                received.push(concat_leading(&pieces.iter().collect::<Vec<_>>()).map_err(|e| (r, e))?);
            }
            Ok(one_result_per_rank(received))
        }
        CollectiveKind::AllToAll(AllToAllSplits::Device) => exchange_by_splits(operands),
        CollectiveKind::DispatchRows => route::dispatch_rows(operands),
        CollectiveKind::CombineRows => route::combine_rows(operands),
        CollectiveKind::ReduceRows => route::reduce_rows(operands),
        CollectiveKind::Broadcast { root } => Ok(one_result_per_rank(vec![x[*root as usize].clone(); n])),
        CollectiveKind::Permute { pairs } => {
            let received = (0..n).map(|r| match pairs.iter().find(|(_, to)| *to as usize == r) {
                Some((from, _)) => x[*from as usize].clone(),
                None => full(Scalar::Int(0), x[r].dtype, &x[r].shape),
            });
            Ok(one_result_per_rank(received.collect()))
        }
    }
}

fn one_result_per_rank(results: Vec<WideArray>) -> Vec<Vec<WideArray>> {
    results.into_iter().map(|result| vec![result]).collect()
}

/// All operands concatenated along the leading axis.
fn concat_leading(x: &[&WideArray]) -> Result<WideArray> {
    let mut shape = x[0].shape.clone();
    shape[0] = x.iter().map(|x| x.shape[0]).sum();
    concat(x, 0, &shape)
}

/// The reduction in ascending order of rank. Floats accumulate in f32 (f64 in f64) and are rounded once, so a
/// backend that does the same gives the same bits.
fn reduce(op: CollectiveReduceOp, x: &[&WideArray]) -> Result<WideArray> {
    let n = x.len();
    let dtype = x[0].dtype;
    let shape = &x[0].shape;
    match &*x[0].data {
        ArrayData::Float(first) => {
            let f: fn(f64, f64) -> f64 = match op {
                CollectiveReduceOp::Sum | CollectiveReduceOp::Avg => |a, b| a + b,
                CollectiveReduceOp::Prod => |a, b| a * b,
                CollectiveReduceOp::Max => float_max,
                CollectiveReduceOp::Min => float_min,
            };
            // Sum, product and quotient of two f32, computed in f64 and rounded to f32, equal the f32
            // operations.
            let narrow: fn(f64) -> f64 = if dtype == DType::F64 { |x| x } else { |x| f64::from(x as f32) };
            let mut out = first.clone();
            for y in &x[1..] {
                out.iter_mut().zip(y.as_floats()?).for_each(|(o, &y)| *o = narrow(f(*o, y)));
            }
            if op == CollectiveReduceOp::Avg {
                out.iter_mut().for_each(|o| *o = narrow(*o / n as f64));
            }
            Ok(WideArray::from_floats(dtype, shape, out))
        }
        ArrayData::Int(first) => {
            let f: fn(i64, i64) -> i64 = match op {
                CollectiveReduceOp::Sum | CollectiveReduceOp::Avg => i64::wrapping_add,
                CollectiveReduceOp::Prod => i64::wrapping_mul,
                CollectiveReduceOp::Max => i64::max,
                CollectiveReduceOp::Min => i64::min,
            };
            let mut out = first.clone();
            for y in &x[1..] {
                out.iter_mut().zip(y.as_ints()?).for_each(|(o, &y)| *o = f(*o, y));
            }
            if op == CollectiveReduceOp::Avg {
                out.iter_mut().for_each(|o| *o /= n as i64);
            }
            Ok(WideArray::from_ints(dtype, shape, out))
        }
    }
}

/// All-to-all with split sizes known only on the device. Operands: `x`, and `[n]` rows for each rank.
fn exchange_by_splits(operands: &[Vec<WideArray>]) -> Result<Vec<Vec<WideArray>>, (usize, OpError)> {
    let n = operands.len();
    let capacity = operands[0][0].shape[0];
    let mut sent = Vec::with_capacity(n);
    for (rank, operands) in operands.iter().enumerate() {
        let splits = operands[1].as_ints().map_err(|e| (rank, e))?;
        sent.push(check_splits("rows sent", capacity, splits).map_err(|e| (rank, e))?);
    }
    let mut results = Vec::with_capacity(n);
    for rank in 0..n {
        let counts: Vec<i64> = sent.iter().map(|sizes| sizes[rank] as i64).collect();
        let received = check_splits("rows received", capacity, &counts).map_err(|e| (rank, e))?;
        let mut pieces: Vec<WideArray> = (0..n)
            .map(|from| leading_rows(&operands[from][0], sent[from][..rank].iter().sum(), received[from]))
            .collect();
        let x = &operands[rank][0];
        let mut padding_shape = x.shape.clone();
        padding_shape[0] = capacity - received.iter().sum::<usize>();
        pieces.push(full(Scalar::Int(0), x.dtype, &padding_shape));
        let packed = concat_leading(&pieces.iter().collect::<Vec<_>>()).map_err(|e| (rank, e))?;
        results.push(vec![packed, WideArray::from_ints(DType::I64, &[n], counts)]);
    }
    Ok(results)
}

fn check_splits(what: &'static str, capacity: usize, splits: &[i64]) -> Result<Vec<usize>, OpError> {
    let counts: Option<Vec<usize>> = splits.iter().map(|&s| usize::try_from(s).ok()).collect();
    let fitting = counts.filter(|counts| {
        let sum = counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
        sum.is_some_and(|sum| sum <= capacity)
    });
    fitting.ok_or_else(|| OpError::Splits { what, capacity, found: splits.to_vec() })
}
