//! Softmax and normalization. They become single ops where the IR has them.

use symmc_import::Emit;
use symmc_ir::{BinaryOp, DType, FloatAttribute, Op, ReductionKind, Scalar, UnaryOp, ValueId};

use super::reduce::cast_to_requested_dtype;
use super::{RuleRow, row, row_of_results};
use crate::call::{CallOperand, OpCall};
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.softmax", "softmax", |c| softmax(c, false)),
    row("aten._softmax", "softmax", |c| softmax(c, false)),
    row("aten._safe_softmax", "softmax, 0 where all is -infinity", safe_softmax),
    row("aten.log_softmax", "log_softmax", |c| softmax(c, true)),
    row("aten._log_softmax", "log_softmax", |c| softmax(c, true)),
    row_of_results("aten.rms_norm", "rms_norm", rms_norm),
    row_of_results("aten._fused_rms_norm", "rms_norm", rms_norm),
    row_of_results("aten.layer_norm", "layer_norm", layer_norm),
    row_of_results("aten.native_layer_norm", "layer_norm", layer_norm),
    row_of_results("aten.group_norm", "layer_norm of groups, mul, add", group_norm),
    row_of_results("aten.native_group_norm", "layer_norm of groups, mul, add", group_norm),
    row_of_results("aten._native_batch_norm_legit_no_training", "sub, mul, add", batch_norm),
    row("aten.norm", "sqrt of sum of squares", vector_norm),
    row("aten.linalg_vector_norm", "sqrt of sum of squares", vector_norm),
];

fn softmax(c: &mut OpCall<'_, '_>, log: bool) -> EmitResult {
    let x = c.first_tensor()?;
    let x = match c.opt_dtype("dtype")? {
        Some(dtype) => c.cast(x, dtype)?,
        None if c.bool_or("half_to_float", false)? => c.cast(x, DType::F32)?,
        None => c.cast_to_float(x)?,
    };
    softmax_of(c, x, log)
}

fn softmax_of(c: &mut OpCall<'_, '_>, x: ValueId, log: bool) -> EmitResult {
    let shape = c.shape(x);
    let axis = c.axis("dim", shape.len())?;
    if shape.is_empty() {
        let vector = c.reshape(x, vec![1.into()])?;
        let y = c.emit("softmax", Op::Softmax { axis: 0, log }, &[vector])?;
        return c.reshape(y, shape);
    }
    c.emit("softmax", Op::Softmax { axis, log }, &[x])
}

fn safe_softmax(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let x = match c.opt_dtype("dtype")? {
        Some(dtype) => c.cast(x, dtype)?,
        None => c.cast_to_float(x)?,
    };
    let axis = c.axis("dim", c.rank(x))?;
    let y = softmax_of(c, x, false)?;
    let low = c.binary_float(BinaryOp::Eq, x, f64::NEG_INFINITY)?;
    let nothing = c.reduce(ReductionKind::All, low, vec![axis], true)?;
    let zero = c.full(Scalar::Int(0), c.dtype(y), vec![])?;
    c.select(nothing, zero, y)
}

/// The number of trailing axes that `normalized_shape` names.
fn normalized_axes(c: &OpCall<'_, '_>, x: ValueId) -> RuleResult<usize> {
    let shape = c.dims("normalized_shape")?;
    let extents = &c.ty(x).shape;
    let fits =
        !shape.is_empty() && shape.len() <= extents.len() && extents[extents.len() - shape.len()..] == shape;
    if fits {
        Ok(shape.len())
    } else {
        Err(RuleFailure::Invalid(format!(
            "expected normalized_shape to be the last extents of {extents:?}, found {shape:?}"
        )))
    }
}

/// The default epsilon of `rms_norm`: that of PyTorch's compute dtype, which is f32 for f16 and bf16. Its
/// composite, its decomposition and its CUDA kernel agree in all versions that write archives (2.8 and
/// later), although the documentation of `nn.RMSNorm` names the epsilon of the operand's dtype.
fn default_eps(dtype: DType) -> f64 {
    match dtype.compute_dtype() {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

fn rms_norm(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.first_tensor()?;
    let dtype = c.dtype(x);
    let axes = normalized_axes(c, x)?;
    let weight = c.opt_tensor("weight")?;
    let eps = c.float_or("eps", default_eps(dtype))?;
    if c.is_result_read(1) {
        return rms_norm_with_scale(c, x, axes, eps, weight);
    }
    let op = Op::RmsNorm { axes, eps: FloatAttribute(eps), round_first: false };
    let y = match weight {
        Some(w) if c.dtype(w) == dtype => c.emit("rms_norm", op, &[x, w])?,
        Some(w) => {
            // A weight of another dtype multiplies before the result is rounded to the dtype of `x`.
            let wide = c.cast(x, dtype.compute_dtype())?;
            let normal = c.emit("rms_norm", op, &[wide])?;
            let normal = CallOperand::Tensor(normal);
            let w = CallOperand::Tensor(w);
            let common = c.common_dtype(&[&normal, &w]);
            let y = c.emit_binary(BinaryOp::Mul, &normal, &w, common)?;
            c.cast(y, dtype)?
        }
        None => c.emit("rms_norm", op, &[x])?,
    };
    c.set_only_result(y)
}

/// The norm computed from its scale, the second result of the fused form. The rows are reduced once.
fn rms_norm_with_scale(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    axes: usize,
    eps: f64,
    weight: Option<ValueId>,
) -> RuleResult {
    let dtype = c.dtype(x);
    let scale = c.inverse_rms(x, axes, eps)?;
    let x = c.cast(x, dtype.compute_dtype())?;
    let mut y = c.binary(BinaryOp::Mul, x, scale)?;
    if let Some(weight) = weight {
        let weight = c.cast(weight, dtype.compute_dtype())?;
        y = c.binary(BinaryOp::Mul, y, weight)?;
    }
    c.set_result(1, scale);
    let y = c.cast(y, dtype)?;
    c.set_only_result(y)
}

/// The operand of a norm in the dtype of its weight and bias. If these are f32 and `x` is narrower, they
/// apply before the result is rounded to the dtype of `x`.
fn cast_to_weight_dtype(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let weight = c.opt_tensor("weight")?.or(c.opt_tensor("bias")?);
    let dtype = weight.map_or(c.dtype(x), |w| c.dtype(w));
    c.cast(x, dtype)
}

fn layer_norm(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore(&["cudnn_enable"]);
    let x = c.first_tensor()?;
    let axes = normalized_axes(c, x)?;
    let eps = c.float_or("eps", 1e-5)?;
    let weight = c.opt_tensor("weight")?;
    let bias = c.opt_tensor("bias")?;
    if c.is_result_read(1) || c.is_result_read(2) {
        return layer_norm_with_moments(c, x, axes, eps, (weight, bias));
    }
    let dtype = c.dtype(x);
    let affine = cast_to_weight_dtype(c, x)?;
    let y = c.layer_norm(affine, (weight, bias), axes, eps)?;
    let y = c.cast(y, dtype)?;
    c.set_only_result(y)
}

/// The norm computed from its moments, which are results as well. The rows are reduced once.
fn layer_norm_with_moments(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    axes: usize,
    eps: f64,
    (weight, bias): (Option<ValueId>, Option<ValueId>),
) -> RuleResult {
    let dtype = c.dtype(x);
    let wide = dtype.compute_dtype();
    let (mean, scale) = c.mean_and_inverse_std(x, axes, eps)?;
    let x = c.cast(x, wide)?;
    let centred = c.binary(BinaryOp::Sub, x, mean)?;
    let mut y = c.binary(BinaryOp::Mul, centred, scale)?;
    for (op, parameter) in [(BinaryOp::Mul, weight), (BinaryOp::Add, bias)] {
        if let Some(parameter) = parameter {
            let parameter = c.cast(parameter, wide)?;
            y = c.binary(op, y, parameter)?;
        }
    }
    let y = c.cast(y, dtype)?;
    for (result, moment) in [(1, mean), (2, scale)] {
        if c.is_result_read(result) {
            // CPU kernels return them in the dtype of `x`, GPU kernels in their compute dtype.
            let declared = c.declared_result_type(result)?.dtype;
            let moment = c.cast(moment, declared)?;
            c.set_result(result, moment);
        }
    }
    c.set_only_result(y)
}

/// Normalizes `[n, channels, …]` within each group of channels.
fn group_norm(c: &mut OpCall<'_, '_>) -> RuleResult {
    // The extents are those of the operand.
    c.ignore(&["cudnn_enabled", "N", "C", "HxW"]);
    let x = c.first_tensor()?;
    let shape = c.shape(x);
    let groups = if c.get("group").is_some() { c.int("group")? } else { c.int("num_groups")? };
    let eps = c.float_or("eps", 1e-5)?;
    // Weights and biases apply before the result is rounded.
    let dtype = c.dtype(x);
    let wide = dtype.compute_dtype();
    let x = c.cast(x, wide)?;
    let flat = c.group_channels(x, groups)?;
    let y = c.emit("layer_norm", Op::LayerNorm { axes: 1, eps: FloatAttribute(eps) }, &[flat])?;
    if c.is_result_read(1) || c.is_result_read(2) {
        let moments = c.mean_and_inverse_std(flat, 1, eps)?;
        for (result, moment) in [(1, moments.0), (2, moments.1)] {
            let declared = c.declared_result_type(result)?;
            let moment = c.drop_axis(moment, 2)?;
            let moment = c.cast(moment, declared.dtype)?;
            c.set_result(result, moment);
        }
    }
    let mut y = c.reshape(y, shape.clone())?;
    for (op, name) in [(BinaryOp::Mul, "weight"), (BinaryOp::Add, "bias")] {
        if let Some(w) = c.opt_tensor(name)? {
            let w = c.cast(w, wide)?;
            let w = c.reshape_per_channel(w, &shape)?;
            y = c.binary(op, y, w)?;
        }
    }
    let y = c.cast(y, dtype)?;
    c.set_only_result(y)
}

fn batch_norm(c: &mut OpCall<'_, '_>) -> RuleResult {
    // The momentum is for statistics that are not updated here.
    c.ignore(&["momentum"]);
    let x = c.first_tensor()?;
    let shape = c.shape(x);
    if shape.len() < 2 {
        return Err(RuleFailure::Invalid(format!("expected at least two axes, found {}", shape.len())));
    }
    let eps = c.float_or("eps", 1e-5)?;
    let mean = c.tensor("running_mean")?;
    let variance = c.tensor("running_var")?;
    let shifted = c.binary_float(BinaryOp::Add, variance, eps)?;
    let scale = c.unary(UnaryOp::Rsqrt, shifted)?;
    for (result, saved) in [(1, mean), (2, scale)] {
        if c.is_result_read(result) {
            // The value saved for a gradient is empty, or the statistic that was used.
            let declared = c.declared_result_type(result)?;
            let is_nothing = declared.numel().as_const() == Some(0);
            let statistic =
                if is_nothing { c.full(Scalar::Int(0), declared.dtype, declared.shape)? } else { saved };
            c.set_result(result, statistic);
        }
    }
    let mut steps = vec![(BinaryOp::Sub, Some(mean)), (BinaryOp::Mul, Some(scale))];
    steps.push((BinaryOp::Mul, c.opt_tensor("weight")?));
    steps.push((BinaryOp::Add, c.opt_tensor("bias")?));
    // Statistics and weights may be wider than the operand.
    let mut y = c.cast(x, c.dtype(x).compute_dtype())?;
    for (op, w) in steps {
        if let Some(w) = w {
            let w = c.cast(w, c.dtype(y))?;
            let w = c.reshape_per_channel(w, &shape)?;
            y = c.binary(op, y, w)?;
        }
    }
    let y = c.cast(y, c.dtype(x))?;
    c.set_only_result(y)
}

fn vector_norm(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let x = cast_to_requested_dtype(c, x)?;
    let axes = c.axes("dim", c.rank(x))?;
    let keep = c.bool_or("keepdim", false)?;
    let order = c.float_or(if c.get("p").is_some() { "p" } else { "ord" }, 2.0)?;
    let is_one_element = axes.iter().all(|&a| c.extent(x, a).as_const() == Some(1));
    let y = if is_one_element && order != 0.0 {
        // Squares may overflow where the element does not.
        let size = c.unary(UnaryOp::Abs, x)?;
        c.reduce(ReductionKind::Max, size, axes, keep)?
    } else if order == 2.0 {
        let squares = c.binary(BinaryOp::Mul, x, x)?;
        let sum = c.reduce(ReductionKind::Sum, squares, axes, keep)?;
        c.unary(UnaryOp::Sqrt, sum)?
    } else if order == 1.0 || order == f64::INFINITY {
        let absolute = c.unary(UnaryOp::Abs, x)?;
        let op = if order == 1.0 { ReductionKind::Sum } else { ReductionKind::Max };
        c.reduce(op, absolute, axes, keep)?
    } else {
        return Err(RuleFailure::Opaque(format!("the norm of order {order} is not supported")));
    };
    Ok(y)
}
