//! One op on one rank: selects the function that computes an op.
//!
//! The node has been type-checked, so operands and result shapes satisfy the op's rule. Collectives and custom
//! ops span ranks and are elsewhere.

use super::array::WideArray;
use super::error::{OpError, Result};
use super::{attention, elementwise, index, linear, movement, reduce};
use crate::attention::AttentionBound;
use crate::dim::SymbolBindings;
use crate::op::Op;
use crate::text;
use crate::types::DType;

/// The dtype and the shape of a result.
pub type ResultType<'a> = (DType, &'a [usize]);

pub(super) fn compute(
    op: &Op,
    x: &[&WideArray],
    results: &[ResultType<'_>],
    bindings: &SymbolBindings,
) -> Result<Vec<WideArray>> {
    let (dtype, shape) = results[0];
    let out = match op {
        Op::Full(scalar) => movement::full(*scalar, dtype, shape),
        Op::Iota { start, step } => movement::iota(*start, *step, dtype, shape),
        Op::Unary(op) => elementwise::unary(*op, x[0])?,
        Op::Binary(op) => elementwise::binary(*op, x[0], x[1], shape)?,
        Op::BinaryScalar { op, scalar, scalar_left } => {
            elementwise::binary_scalar(*op, x[0], *scalar, *scalar_left)?
        }
        Op::Select => elementwise::select(x[0], x[1], x[2], shape)?,
        Op::Cast => elementwise::cast(x[0], dtype),
        Op::Bitcast => movement::bitcast(x[0], dtype)?,
        Op::MatMul { .. } if x[0].dtype != x[1].dtype => {
            linear::matmul(x[0], &elementwise::cast(x[1], x[0].dtype), dtype, shape)?
        }
        Op::MatMul { .. } => linear::matmul(x[0], x[1], dtype, shape)?,
        Op::GroupedMatMul => linear::grouped_matmul(x[0], x[1], x[2], shape)?,
        Op::Reduce { op, axes, .. } => reduce::reduce(*op, axes, x[0], dtype, shape)?,
        Op::ArgReduce { op, axis, .. } => reduce::arg_reduce(*op, *axis, x[0], shape)?,
        Op::CumSum { axis } => reduce::cumsum(*axis, x[0], dtype),
        Op::Softmax { axis, log } => reduce::softmax(*axis, *log, x[0])?,
        Op::RmsNorm { axes, eps, round_first } => {
            reduce::rms_norm(*axes, eps.0, *round_first, x[0], x.get(1).copied())?
        }
        Op::LayerNorm { axes, eps } => {
            reduce::layer_norm(*axes, eps.0, x[0], x.get(1).copied(), x.get(2).copied())?
        }
        Op::Attention { scale, cap, bounds, sink, log_sum_exp } => {
            let adds = evaluate_bound_offsets(bounds, bindings)?;
            let scores = attention::ScoreAttributes {
                scale: scale.0,
                cap: cap.map(|c| c.0),
                bounds,
                adds,
                sink: *sink,
            };
            let (out, sums) = attention::attention(x, &scores, shape)?;
            return Ok([out].into_iter().chain(log_sum_exp.then_some(sums)).collect());
        }
        Op::AttentionGradient { scale, bounds } => {
            let adds = evaluate_bound_offsets(bounds, bindings)?;
            let scores = attention::ScoreAttributes { scale: scale.0, cap: None, bounds, adds, sink: false };
            return attention::attention_gradient(x, &scores);
        }
        Op::Permuted { op, perm } => return compute_permuted(op, perm, x, results, bindings),
        Op::RotaryEmbedding { width, interleaved } => linear::rotary(x[0], x[1], x[2], *width, *interleaved)?,
        Op::Take { axis } => index::index(x[0], *axis, &x[1..])?,
        Op::Index { axis } => index::index(x[0], *axis, &x[1..])?,
        Op::GatherElements { axis } => index::gather_elements(x[0], x[1], *axis)?,
        Op::ScatterElements { axis, combine } => index::scatter_elements(x[0], x[1], x[2], *axis, *combine)?,
        Op::IndexAdd { axis } => index::index_add(x[0], x[1], x[2], *axis)?,
        Op::IndexPut { axis, accumulate } => index::index_put(x[0], x[1], *axis, &x[2..], *accumulate)?,
        Op::TopK { axis, largest } => return movement::sorted(x[0], *axis, *largest, shape),
        Op::Sort { axis, descending } => return movement::sorted(x[0], *axis, *descending, shape),
        Op::Concat { axis } => movement::concat(x, *axis, shape)?,
        Op::Pad { low, value } => {
            let low: Option<Vec<i64>> = low.iter().map(|d| d.eval(bindings)).collect();
            let low = low.ok_or(OpError::Attribute { what: "the padding" })?;
            movement::pad(x[0], &low, *value, shape)
        }
        Op::Reshape => x[0].reshaped(shape),
        Op::Permute { perm } => movement::permute(x[0], perm, shape),
        Op::Slice { axis, start, step } => {
            let start = start.eval(bindings).ok_or(OpError::Attribute { what: "the start of the slice" })?;
            movement::slice(x[0], *axis, start, *step, shape)?
        }
        Op::Expand => movement::expand(x[0], shape),
        Op::Copy => x[0].clone(),
        Op::Opaque { name, .. } => return Err(OpError::Opaque { name: name.clone() }),
        // The caller runs these over all ranks of a cell.
        Op::Collective(_) | Op::Shard { .. } | Op::Route(_) | Op::Custom(_) => {
            return Err(OpError::Opaque { name: text::op_name(op).to_string() });
        }
    };
    Ok(vec![out])
}

fn evaluate_bound_offsets(bounds: &[AttentionBound], bindings: &SymbolBindings) -> Result<Vec<i64>> {
    let offsets = bounds
        .iter()
        .map(|bound| bound.add.eval(bindings).ok_or(OpError::Attribute { what: "the position of a bound" }));
    offsets.collect()
}

fn compute_permuted(
    op: &Op,
    perm: &[usize],
    x: &[&WideArray],
    results: &[ResultType<'_>],
    bindings: &SymbolBindings,
) -> Result<Vec<WideArray>> {
    let count = op.permuted_results();
    let inner: Vec<Vec<usize>> = results
        .iter()
        .enumerate()
        .map(|(number, (_, shape))| {
            let mut inner = shape.to_vec();
            if number < count {
                perm.iter().zip(*shape).for_each(|(&axis, &n)| inner[axis] = n);
            }
            inner
        })
        .collect();
    let types: Vec<ResultType<'_>> =
        results.iter().zip(&inner).map(|((dtype, _), shape)| (*dtype, &shape[..])).collect();
    let mut out = compute(op, x, &types, bindings)?;
    for (array, (_, shape)) in out.iter_mut().zip(results).take(count) {
        *array = movement::permute(array, perm, shape);
    }
    Ok(out)
}
