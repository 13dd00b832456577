//! Softmax and normalization. They become single ops where the IR has them.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid};
use symmc_ir::{BinaryOp, DType, FloatAttribute, Op, ReductionKind, ValueId};

use super::reduce::cast_to_requested_dtype;
use super::{RuleRow, row, row_of_results};
use crate::call::{CallOperand, OpCall};
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.softmax aten._softmax", "softmax", |c| softmax(c, false)),
    row("aten._safe_softmax", "softmax, 0 where all is -infinity", safe_softmax),
    row("aten.log_softmax aten._log_softmax", "log_softmax", |c| softmax(c, true)),
    row_of_results("aten.rms_norm aten._fused_rms_norm", "rms_norm", rms_norm),
    row_of_results("aten.layer_norm aten.native_layer_norm", "layer_norm", layer_norm),
    row_of_results("aten.group_norm aten.native_group_norm", "layer_norm of groups, mul, add", group_norm),
    row_of_results("aten._weight_norm aten._weight_norm_interface", "mul, sum, sqrt, div", weight_norm),
    row("aten.norm aten.linalg_vector_norm", "sqrt of sum of squares", vector_norm),
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
    c.formula([x, y], |[x, y]| {
        let has_nothing = x.eq(f64::NEG_INFINITY).reduce(ReductionKind::All, &[axis], true);
        has_nothing.select(0.0, y)
    })
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
        invalid!("expected normalized_shape to be the last extents of {extents:?}, found {shape:?}")
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
    let [y, scale] = c.formulas([x], |[x]| {
        let scale = x.inverse_rms(axes, eps);
        let y = x.cast(scale.dtype()) * scale;
        let y = weight.map_or(y, |w| y * y.term(w).cast(y.dtype()));
        [y.cast(dtype), scale]
    })?;
    c.set_results([y, scale])
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
    let [y, mean, scale] = c.formulas([x], |[x]| {
        let [mean, scale] = x.mean_and_inverse_std(axes, eps);
        let y = (x.cast(mean.dtype()) - mean) * scale;
        let y = weight.map_or(y, |w| y * y.term(w).cast(y.dtype()));
        let y = bias.map_or(y, |b| y + y.term(b).cast(y.dtype()));
        [y.cast(dtype), mean, scale]
    })?;
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
        let [mean, scale] = c.formulas([flat], |[flat]| flat.mean_and_inverse_std(1, eps))?;
        for (result, moment) in [(1, mean), (2, scale)] {
            let declared = c.declared_result_type(result)?.dtype;
            let moment = c.formula([moment], |[moment]| moment.drop_axis(2).cast(declared))?;
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

fn vector_norm(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let x = cast_to_requested_dtype(c, x)?;
    let axes = c.axes("dim", c.rank(x))?;
    let keep = c.bool_or("keepdim", false)?;
    let order = c.float_or(if c.get("p").is_some() { "p" } else { "ord" }, 2.0)?;
    let is_one_element = axes.iter().all(|&a| c.extent(x, a).as_const() == Some(1));
    // Squares may overflow where the element does not.
    let is_maximum = order == f64::INFINITY || is_one_element && order != 0.0;
    let order = if is_maximum { f64::INFINITY } else { order };
    c.formula([x], |[x]| x.norm(order, &axes, keep))
}

/// `direction * (length / norm)`, where the norm is over all axes except `dim`. It is the second result.
fn weight_norm(c: &mut OpCall<'_, '_>) -> RuleResult {
    let [direction, length] = c.tensors_named(["v", "g"])?;
    let rank = c.rank(direction);
    let dim = c.int_or("dim", 0)?;
    // -1 means that there is one norm of all elements.
    let kept = if dim == -1 { None } else { Some(c.resolve_axis(dim, rank)?) };
    let axes: Vec<usize> = (0..rank).filter(|&axis| Some(axis) != kept).collect();
    let wide = c.dtype(direction).compute_dtype();
    let [y, norm] = c.formulas([direction, length], |[direction, length]| {
        let v = direction.cast(wide);
        let squares = v.square();
        let norm = if axes.is_empty() { squares } else { squares.sum(&axes, true) }.sqrt();
        let y = v * (length.cast(wide) / norm);
        [y.cast(direction.dtype()), norm]
    })?;
    if c.is_result_read(1) {
        let declared = c.declared_result_type(1)?;
        let norm = c.reshape(norm, declared.shape)?;
        let norm = c.cast(norm, declared.dtype)?;
        c.set_result(1, norm);
    }
    c.set_result(0, y);
    Ok(())
}
