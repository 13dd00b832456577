//! Scaled dot-product attention, as one op and in the forms to which PyTorch decomposes it for its kernels,
//! and their gradients.
//!
//! The form of the log-sum-exp of each row depends on the kernel: some have an axis of one element after the
//! rows, some have more rows than the queries. It is stored as the program declares it and read back from
//! that form. Dropout is rejected, so the random state is imported as zeros, which the gradient does not
//! read. Gradients of masks stay opaque.

use symmc_import::{Emit, RuleCall, invalid_if, unsupported, unsupported_if};
use symmc_ir::attention::causal_bounds_if;
use symmc_ir::{DType, Dim, FloatAttribute, Op, Scalar, TensorType, ValueId};

use super::{RuleRow, row_of_results};
use crate::call::OpCall;
use crate::effects::{self, bare_target};
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::scope::tensor_names;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results(
        "aten.scaled_dot_product_attention aten._scaled_dot_product_attention_math",
        "attention",
        |c| {
            c.require_results_unread_from(1)?;
            attention(c)
        },
    ),
    row_of_results(
        "aten._scaled_dot_product_flash_attention aten._scaled_dot_product_flash_attention_for_cpu \
         aten._scaled_dot_product_efficient_attention aten._scaled_dot_product_cudnn_attention \
         aten._scaled_dot_product_fused_attention_overrideable",
        "attention",
        fused_attention,
    ),
    row_of_results(
        "aten._scaled_dot_product_flash_attention_backward \
         aten._scaled_dot_product_flash_attention_for_cpu_backward \
         aten._scaled_dot_product_efficient_attention_backward \
         aten._scaled_dot_product_cudnn_attention_backward \
         aten._scaled_dot_product_fused_attention_overrideable_backward",
        "attention_gradient",
        gradient,
    ),
];

/// The mask, in the argument in which the kernel takes it.
fn read_mask(c: &mut OpCall<'_, '_>) -> RuleResult<Option<ValueId>> {
    if c.node.target.contains("_cudnn_") {
        return cudnn_mask(c);
    }
    Ok(c.opt_tensor("attn_mask")?.or(c.opt_tensor("attn_bias")?))
}

/// Attention with the additional results that the kernel for its gradient reads.
fn fused_attention(c: &mut OpCall<'_, '_>) -> RuleResult {
    for result in 2..c.result_count() {
        random_state(c, result)?;
    }
    let computed = c.bool_or("compute_log_sumexp", true)? && c.bool_or("compute_logsumexp", true)?;
    unsupported_if!(c.is_result_read(1) && !computed, "the log-sum-exp is used, but was not requested");
    attention(c)
}

fn attention(c: &mut OpCall<'_, '_>) -> RuleResult {
    // The extents say whether heads are grouped. The other arguments are about results that are not read.
    c.ignore(&["enable_gqa", "compute_log_sumexp", "compute_logsumexp", "return_debug_mask"]);
    require_no_dropout(c)?;
    let [q, k, v] = c.tensors_named(["query", "key", "value"])?;
    let mask = read_mask(c)?;
    let causal = c.bool_or("is_causal", false)?;
    let rank = c.rank(q);
    invalid_if!(rank < 2, "expected a query of at least two axes, found {rank}");
    let scale = c.attention_scale(q, c.opt_scalar("scale")?.map(Scalar::as_f64))?;
    let operands = [expand_heads(c, q, q, rank)?, expand_heads(c, k, q, rank)?, expand_heads(c, v, q, rank)?];
    if !c.is_result_read(1) {
        let y = c.emit_attention(operands, mask, scale, None, causal_bounds_if(causal))?;
        let y = if rank == 2 { c.drop_axis(y, 0)? } else { y };
        return c.set_only_result(y);
    }
    let operands = append_mask(c, operands.to_vec(), mask)?;
    let bounds = causal_bounds_if(causal);
    let op =
        Op::Attention { scale: FloatAttribute(scale), cap: None, bounds, sink: false, log_sum_exp: true };
    let outputs = c.emit_all("attention", op, &operands)?;
    let sums = to_declared_log_sum_exp(c, outputs[1])?;
    c.set_results([outputs[0], sums])
}

/// The mask of cuDNN's attention. PyTorch converts a bool mask for it to numbers: 0 where a column is seen and
/// -65504, the lowest number of f16, where it is hidden. The result is the bool mask, so that a hidden column
/// never counts, however large its score is. Rows that see no column become zero, as in PyTorch's other
/// kernels for bool masks.
fn cudnn_mask(c: &mut OpCall<'_, '_>) -> RuleResult<Option<ValueId>> {
    let Some(mask) = c.opt_tensor("attn_bias")? else { return Ok(None) };
    let graph = c.builder().graph();
    let Some((Op::Select, &[condition, visible, hidden])) = graph.definition(mask) else {
        return Ok(Some(mask));
    };
    let is_full_of = |value, number| match graph.definition(value) {
        Some((Op::Full(scalar), _)) => scalar.as_f64() == number,
        _ => false,
    };
    if !is_full_of(visible, 0.0) || !is_full_of(hidden, -65504.0) {
        return Ok(Some(mask));
    }
    let shape = c.shape(mask);
    Ok(Some(c.expand(condition, shape)?))
}

fn require_no_dropout(c: &OpCall<'_, '_>) -> RuleResult {
    match c.float_or("dropout_p", 0.0)? {
        0.0 => Ok(()),
        _ => Err(RuleFailure::Invalid(effects::DRAWS_ERROR.into())),
    }
}

/// The operands, followed by the mask if there is one. A bool mask selects, and a float mask is added to the
/// scores.
fn append_mask(
    c: &mut OpCall<'_, '_>,
    mut operands: Vec<ValueId>,
    mask: Option<ValueId>,
) -> RuleResult<Vec<ValueId>> {
    if let Some(mask) = mask {
        operands.push(if c.dtype(mask).is_float() { mask } else { c.cast(mask, DType::Bool)? });
    }
    Ok(operands)
}

/// Sets a result that only gradients with dropout need. It is zero if the IR has its dtype, and is left out
/// if only gradients read it.
fn random_state(c: &mut OpCall<'_, '_>, result: usize) -> RuleResult {
    if !c.is_result_read(result) || is_read_by_gradients_alone(c, result) {
        return Ok(());
    }
    match c.declared_result_type(result) {
        Ok(ty) if ty.dtype == DType::I64 && ty.shape.is_empty() => {
            let zero = c.full(Scalar::Int(0), ty.dtype, ty.shape)?;
            c.set_result(result, zero);
            Ok(())
        }
        _ => unsupported!("result {result} is used, which is not supported"),
    }
}

fn is_read_by_gradients_alone(c: &OpCall<'_, '_>, result: usize) -> bool {
    let Some(name) = c.result_names().get(result).copied().flatten() else { return false };
    let graph = c.lowering.scope.graph;
    for node in &graph.nodes {
        let target = bare_target(&node.target);
        let is_gradient = target.starts_with("aten._scaled_dot_product_") && target.contains("_backward");
        if !is_gradient && node.inputs.iter().any(|i| tensor_names(&i.arg).contains(&name)) {
            return false;
        }
    }
    !c.lowering.scope.is_returned(name)
}

/// The log-sum-exp `[.., h, l]` in the declared form of the result. That may have one more axis, and more
/// rows, whose weights are zero.
fn to_declared_log_sum_exp(c: &mut OpCall<'_, '_>, sums: ValueId) -> EmitResult {
    let declared = c.declared_result_type(1)?;
    let mut shape = c.shape(sums);
    let has_column = declared.shape.len() == shape.len() + 1 && declared.shape.last() == Some(&Dim::from(1));
    let rows = declared.shape.get(shape.len() - 1).cloned();
    let mut sums = c.cast(sums, declared.dtype)?;
    if let (Some(rows), Some(last)) = (rows, shape.last_mut())
        && rows != *last
    {
        *last = rows;
        let op = Op::Pad {
            low: vec![Dim::from(0); shape.len()],
            value: Scalar::Float(FloatAttribute(f64::INFINITY)),
        };
        sums = c.emit_as("pad", op, &[sums], TensorType::new(declared.dtype, shape))?;
    }
    if has_column { c.reshape(sums, declared.shape) } else { Ok(sums) }
}

/// The log-sum-exp `[.., h, l]` of a query, from the form in which it was stored.
fn from_declared_log_sum_exp(c: &mut OpCall<'_, '_>, sums: ValueId, q: ValueId) -> EmitResult {
    let shape = c.shape(q);
    let rows = &shape[..shape.len() - 1];
    let mut sums = sums;
    if c.rank(sums) == rows.len() + 1 {
        sums = c.drop_axis(sums, rows.len())?;
    }
    unsupported_if!(c.rank(sums) != rows.len(), "the log-sum-exp has {} axes", c.rank(sums));
    let row_axis = rows.len() - 1;
    sums = c.slice(sums, row_axis, Dim::from(0), rows[row_axis].clone(), 1)?;
    c.cast(sums, c.dtype(q).compute_dtype())
}

fn gradient(c: &mut OpCall<'_, '_>) -> RuleResult {
    let unread = ["cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset"];
    c.ignore(&unread);
    // The reads of the results already say which gradients are wanted.
    c.ignore(&["grad_input_mask"]);
    c.require_results_unread_from(3)?;
    require_no_dropout(c)?;
    let of_result = c.opt_tensor("grad_out_")?;
    let of_result = of_result.map_or_else(|| c.tensor("grad_out"), Ok)?;
    let [result, q, k, v] = c.tensors_named(["out", "query", "key", "value"])?;
    let mask = read_mask(c)?;
    let causal = c.bool_or("is_causal", false)?;
    invalid_if!(c.rank(q) < 3, "expected a query of at least three axes, found {}", c.rank(q));
    let scale = c.attention_scale(q, c.opt_scalar("scale")?.map(Scalar::as_f64))?;
    let sums = c.tensor("logsumexp")?;
    let sums = from_declared_log_sum_exp(c, sums, q)?;
    let of_result = c.cast(of_result, c.dtype(q))?;
    let operands = append_mask(c, vec![of_result, result, sums, q, k, v], mask)?;
    let op = Op::AttentionGradient { scale: FloatAttribute(scale), bounds: causal_bounds_if(causal) };
    let gradients = c.emit_all("gradient", op, &operands)?;
    for (number, gradient) in gradients.into_iter().enumerate() {
        c.set_result(number, gradient);
    }
    Ok(())
}

/// An operand with a heads axis, expanded to the batch extents of the query where it broadcasts.
fn expand_heads(c: &mut OpCall<'_, '_>, x: ValueId, q: ValueId, rank: usize) -> EmitResult {
    if rank == 2 {
        return c.unsqueeze(x, 0);
    }
    let extents = c.shape(x);
    let mut shape = c.shape(q);
    unsupported_if!(extents.len() > rank, "key or value has more axes than the query");
    let new = rank - extents.len();
    for (axis, d) in extents.iter().enumerate() {
        if axis + new + 3 >= rank || d.as_const() != Some(1) {
            shape[axis + new] = d.clone();
        }
    }
    c.expand(x, shape)
}
