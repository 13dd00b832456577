//! Compute steps on a device.
//!
//! ```text
//! Op, LocatedTensor ──lower──► GpuCommand: launches of generated kernels, matrix products, copies
//! ```
//!
//! Semantics are those of [`symmc_ir::Op`], as on the host: floats are computed in f32 (f64 for f64) and
//! rounded once. Extents, strides and constants are part of the generated text; addresses are parameters, so
//! equal steps share a function. A result may be in place of an operand under the rules of
//! [`symmc_runtime::kernels`]: exactly in place, for element-wise ops, softmax, norms and cumulative sums,
//! and in place of the first operand of a scatter or a rotary embedding.
//!
//! Out-of-range data never causes an access to foreign memory, and is reported ([`DeviceAssertions`]).
//!
//! Not here: collectives, custom and opaque ops, and shards, which are copies after a program is bound on its
//! rank.

mod assertions;
mod attention;
pub(crate) mod attention_choice;
mod attention_gradient;
pub mod batch;
mod bounds;
pub mod command;
pub mod gemm;
pub mod gemm_search;
mod grouped;
mod grouped_tiling;
pub mod library_attention;
pub mod loops;
mod lowering;
mod machine;
pub mod mask_bias;
mod matmul;
mod movement;
pub mod products;
mod radix;
pub mod rotary;
mod route;
mod rows;
pub mod scatter;
pub mod selection;
mod skinny;
mod sort;
pub(crate) mod space;
mod text;
mod wgmma;

use symmc_ir::Op;
use symmc_runtime::exec::LocatedTensor;

pub use self::assertions::{AssertedFault, DeviceAssertion, DeviceAssertions, IndexedAxis};
pub use self::lowering::{BoundOperation, KernelLowering};
use self::lowering::{arity, mismatch_error, no_kernel};
pub use self::machine::{AlgorithmSelection, GEMM_WORKSPACE, InputUse, KernelTarget, STATUS_BYTES};
use crate::codegen::command::Commands;

/// Lowers a step. Fails if the op has no kernel, or its operands do not fit it.
pub fn lower(step: &BoundOperation<'_>, l: &mut KernelLowering<'_>) -> Commands {
    l.step = step.index;
    lower_op(step.op, step.operands, step.results, l)
}

fn lower_op(op: &Op, x: &[LocatedTensor], r: &[LocatedTensor], l: &mut KernelLowering<'_>) -> Commands {
    arity(op, x.len(), r.len())?;
    match op {
        Op::Full(_) | Op::Iota { .. } | Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } => {
            loops::lower_elements(op, x, &r[0], l)
        }
        Op::Select | Op::Cast | Op::Bitcast => loops::lower_elements(op, x, &r[0], l),
        Op::Reshape | Op::Copy => movement::copy(&x[0], &r[0], l),
        Op::Permute { .. } | Op::Slice { .. } | Op::Expand => Err(no_kernel(op)),
        Op::Concat { axis } => movement::concat(*axis, x, &r[0], l),
        Op::Pad { low, value } => movement::pad(low, *value, &x[0], &r[0], l),
        Op::Take { axis } | Op::Index { axis } => movement::index(*axis, x, &r[0], l),
        Op::GatherElements { axis } => movement::gather(*axis, x, &r[0], l),
        Op::MatMul { .. } => matmul::lower(&x[0], &x[1], &r[0], l),
        Op::GroupedMatMul => grouped::lower([&x[0], &x[1], &x[2]], &r[0], l),
        Op::Reduce { op, axes, .. } => rows::reduce(*op, axes, &x[0], &r[0], l),
        Op::ArgReduce { op, axis, .. } => rows::arg_reduce(*op, *axis, &x[0], &r[0], l),
        Op::CumSum { axis } => rows::cumsum(*axis, &x[0], &r[0], l),
        Op::Softmax { axis, .. } => loops::lower_rows(op, &[*axis], x, &r[0], l),
        Op::Attention { scale, cap, bounds, sink, .. } => {
            let scores = attention::ScoreOptions { scale: *scale, cap: *cap, bounds, sink: *sink };
            attention::lower(&scores, x, r, l)
        }
        Op::AttentionGradient { scale, bounds } => {
            let scores = attention::ScoreOptions { scale: *scale, cap: None, bounds, sink: false };
            attention_gradient::lower(&scores, x, r, l)
        }
        Op::Permuted { op, perm } => {
            let inner =
                unpermuted(op, perm, r).ok_or_else(|| mismatch_error("the axes", &r[0].shape, perm))?;
            lower_op(op, x, &inner, l)
        }
        Op::RotaryEmbedding { width, interleaved } => rotary::lower(*width, *interleaved, x, &r[0], l),
        Op::ScatterElements { axis, combine } => {
            scatter::lower_scatter_elements(*axis, *combine, x, &r[0], l)
        }
        Op::IndexAdd { axis } => {
            let add = Some(symmc_ir::ReductionKind::Sum);
            scatter::lower_index_put(*axis, add, [&x[0], &x[2]], &x[1..2], &r[0], l)
        }
        Op::IndexPut { axis, accumulate } => {
            let add = accumulate.then_some(symmc_ir::ReductionKind::Sum);
            scatter::lower_index_put(*axis, add, [&x[0], &x[1]], &x[2..], &r[0], l)
        }
        Op::TopK { axis, largest } => sort::lower(*axis, *largest, &x[0], r, l),
        Op::Sort { axis, descending } => sort::lower(*axis, *descending, &x[0], r, l),
        Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. } => {
            let rank = x[0].shape.len();
            let inner: Vec<usize> = (rank.saturating_sub(*axes)..rank).collect();
            loops::lower_rows(op, &inner, x, &r[0], l)
        }
        Op::Route(attributes) => route::lower(attributes, &x[0], r, l),
        Op::Shard { .. } | Op::Collective(_) | Op::Opaque { .. } | Op::Custom(_) => Err(no_kernel(op)),
    }
}

/// The results of an op whose results are permuted, with their axes in the op's own order.
fn unpermuted(op: &Op, perm: &[usize], results: &[LocatedTensor]) -> Option<Vec<LocatedTensor>> {
    let count = op.permuted_results();
    results
        .iter()
        .enumerate()
        .map(|(i, r)| if i < count { r.unpermuted(perm) } else { Some(r.clone()) })
        .collect()
}

pub fn workspace(
    op: &Op,
    operands: &[LocatedTensor],
    results: &[LocatedTensor],
    machine: &KernelTarget,
) -> usize {
    match op {
        Op::MatMul { .. } => GEMM_WORKSPACE,
        Op::TopK { axis, .. } | Op::Sort { axis, .. } => {
            operands.first().map_or(0, |x| sort::workspace(*axis, x))
        }
        Op::Attention { scale, cap, bounds, sink, .. } => {
            let scores = attention::ScoreOptions { scale: *scale, cap: *cap, bounds, sink: *sink };
            let result = results.first().filter(|_| operands.len() >= 3);
            result.map_or(0, |result| attention::workspace(&scores, operands, result, machine))
        }
        Op::AttentionGradient { scale, bounds } => {
            let scores = attention::ScoreOptions { scale: *scale, cap: None, bounds, sink: false };
            attention_gradient::workspace(&scores, operands, machine)
        }
        Op::Permuted { op, perm } => {
            unpermuted(op, perm, results).map_or(0, |inner| workspace(op, operands, &inner, machine))
        }
        Op::Reduce { .. } => rows::REDUCE_WORKSPACE,
        Op::Reshape | Op::Copy => {
            operands.first().map_or(0, |x| x.shape.iter().product::<usize>() * x.dtype.size())
        }
        Op::Full(_) | Op::Iota { .. } | Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } => 0,
        Op::Select | Op::Cast | Op::Bitcast | Op::Permute { .. } | Op::Slice { .. } | Op::Expand => 0,
        Op::GroupedMatMul | Op::ArgReduce { .. } | Op::CumSum { .. } | Op::Softmax { .. } => 0,
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::RotaryEmbedding { .. } => 0,
        Op::Take { .. } | Op::Index { .. } | Op::GatherElements { .. } => 0,
        Op::ScatterElements { .. } | Op::IndexAdd { .. } | Op::IndexPut { .. } => {
            scatter::workspace(op, operands)
        }
        Op::Concat { .. } | Op::Pad { .. } | Op::Shard { .. } | Op::Route(_) => 0,
        Op::Collective(_) | Op::Opaque { .. } | Op::Custom(_) => 0,
    }
}
