//! Softmax and the norms, which stay whole where the IR has them.

use symmc_import::Emit;
use symmc_ir::{BinaryOp, DType, Float, Op, Reduction, Scalar, UnaryOp, ValueId};

use super::reduce::as_asked;
use super::{Row, row, row_of_results};
use crate::call::{Call, Operand};
use crate::lower::{Emitted, Lowered, Stop};

pub(super) const ROWS: &[Row] = &[
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

fn softmax(c: &mut Call<'_, '_>, log: bool) -> Emitted {
    let x = c.first()?;
    let x = match c.opt_dtype("dtype")? {
        Some(dtype) => c.cast(x, dtype)?,
        None if c.bool_or("half_to_float", false)? => c.cast(x, DType::F32)?,
        None => c.floating(x)?,
    };
    softmax_of(c, x, log)
}

fn softmax_of(c: &mut Call<'_, '_>, x: ValueId, log: bool) -> Emitted {
    let shape = c.shape(x);
    let axis = c.axis("dim", shape.len())?;
    if shape.is_empty() {
        let one = c.reshape(x, vec![1.into()])?;
        let y = c.emit("softmax", Op::Softmax { axis: 0, log }, &[one])?;
        return c.reshape(y, shape);
    }
    c.emit("softmax", Op::Softmax { axis, log }, &[x])
}

fn safe_softmax(c: &mut Call<'_, '_>) -> Emitted {
    let x = c.first()?;
    let x = match c.opt_dtype("dtype")? {
        Some(dtype) => c.cast(x, dtype)?,
        None => c.floating(x)?,
    };
    let axis = c.axis("dim", c.rank(x))?;
    let y = softmax_of(c, x, false)?;
    let low = c.with_float(BinaryOp::Eq, x, f64::NEG_INFINITY)?;
    let nothing = c.reduce(Reduction::All, low, vec![axis], true)?;
    let zero = c.full(Scalar::Int(0), c.dtype(y), vec![])?;
    c.select(nothing, zero, y)
}

/// The number of trailing axes that `normalized_shape` names.
fn normalized_axes(c: &Call<'_, '_>, x: ValueId) -> Lowered<usize> {
    let shape = c.dims("normalized_shape")?;
    let own = &c.ty(x).shape;
    let fits = !shape.is_empty() && shape.len() <= own.len() && own[own.len() - shape.len()..] == shape;
    if fits {
        Ok(shape.len())
    } else {
        Err(Stop::Broken(format!("expected normalized_shape to end {own:?}, found {shape:?}")))
    }
}

/// The default epsilon of `rms_norm`: that of the dtype in which PyTorch computes, which is f32 for f16
/// and bf16. Its composite, its decomposition and its CUDA kernel agree, in all versions that write archives (2.8 and
/// later), although the documentation of `nn.RMSNorm` names the epsilon of the operand's dtype.
fn default_eps(dtype: DType) -> f64 {
    match dtype.wide() {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

fn rms_norm(c: &mut Call<'_, '_>) -> Lowered {
    let x = c.first()?;
    let dtype = c.dtype(x);
    let axes = normalized_axes(c, x)?;
    let weight = c.opt_tensor("weight")?;
    let eps = c.float_or("eps", default_eps(dtype))?;
    if c.wants(1) {
        return rms_norm_with_scale(c, x, axes, eps, weight);
    }
    let op = Op::RmsNorm { axes, eps: Float(eps), round_first: false };
    let y = match weight {
        Some(w) if c.dtype(w) == dtype => c.emit("rms_norm", op, &[x, w])?,
        Some(w) => {
            // A weight of another dtype multiplies before the result is rounded to the dtype of `x`.
            let wide = c.cast(x, dtype.wide())?;
            let normal = c.emit("rms_norm", op, &[wide])?;
            let (normal, w) = (Operand::Tensor(normal), Operand::Tensor(w));
            let common = c.common(&[&normal, &w]);
            let y = c.apply(BinaryOp::Mul, &normal, &w, common)?;
            c.cast(y, dtype)?
        }
        None => c.emit("rms_norm", op, &[x])?,
    };
    c.done(y)
}

/// The norm by its scale, the second result of the fused form: the rows are reduced once.
fn rms_norm_with_scale(
    c: &mut Call<'_, '_>,
    x: ValueId,
    axes: usize,
    eps: f64,
    weight: Option<ValueId>,
) -> Lowered {
    let dtype = c.dtype(x);
    let scale = c.inverse_rms(x, axes, eps)?;
    let x = c.cast(x, dtype.wide())?;
    let mut y = c.binary(BinaryOp::Mul, x, scale)?;
    if let Some(weight) = weight {
        let weight = c.cast(weight, dtype.wide())?;
        y = c.binary(BinaryOp::Mul, y, weight)?;
    }
    c.set(1, scale);
    let y = c.cast(y, dtype)?;
    c.done(y)
}

/// The operand of a norm in the dtype of its weight and bias: where these are f32 and `x` is narrower, they apply before the
/// result is rounded to the dtype of `x`.
fn beside(c: &mut Call<'_, '_>, x: ValueId) -> Emitted {
    let weight = c.opt_tensor("weight")?.or(c.opt_tensor("bias")?);
    let dtype = weight.map_or(c.dtype(x), |w| c.dtype(w));
    c.cast(x, dtype)
}

fn layer_norm(c: &mut Call<'_, '_>) -> Lowered {
    c.ignore(&["cudnn_enable"]);
    let x = c.first()?;
    let axes = normalized_axes(c, x)?;
    let eps = c.float_or("eps", 1e-5)?;
    let (weight, bias) = (c.opt_tensor("weight")?, c.opt_tensor("bias")?);
    if c.wants(1) || c.wants(2) {
        return layer_norm_with_moments(c, x, axes, eps, (weight, bias));
    }
    let dtype = c.dtype(x);
    let affine = beside(c, x)?;
    let y = c.layer_norm(affine, (weight, bias), axes, eps)?;
    let y = c.cast(y, dtype)?;
    c.done(y)
}

/// The norm by its moments, which are results as well: the rows are reduced once.
fn layer_norm_with_moments(
    c: &mut Call<'_, '_>,
    x: ValueId,
    axes: usize,
    eps: f64,
    (weight, bias): (Option<ValueId>, Option<ValueId>),
) -> Lowered {
    let dtype = c.dtype(x);
    let wide = dtype.wide();
    let (mean, scale) = c.moments(x, axes, eps)?;
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
        if c.wants(result) {
            // The kernels for CPUs give them in the dtype of `x`, those for GPUs in that in which they compute.
            let declared = c.declared(result)?.dtype;
            let moment = c.cast(moment, declared)?;
            c.set(result, moment);
        }
    }
    c.done(y)
}

/// `[n, c, …]` is normalised within each of the groups of channels as one axis.
fn group_norm(c: &mut Call<'_, '_>) -> Lowered {
    // The extents are those of the operand.
    c.ignore(&["cudnn_enabled", "N", "C", "HxW"]);
    let x = c.first()?;
    let shape = c.shape(x);
    let groups = if c.get("group").is_some() { c.int("group")? } else { c.int("num_groups")? };
    let eps = c.float_or("eps", 1e-5)?;
    // Weights and biases apply before the result is rounded.
    let dtype = c.dtype(x);
    let wide = dtype.wide();
    let x = c.cast(x, wide)?;
    let flat = c.in_groups(x, groups)?;
    let y = c.emit("layer_norm", Op::LayerNorm { axes: 1, eps: Float(eps) }, &[flat])?;
    if c.wants(1) || c.wants(2) {
        let moments = c.moments(flat, 1, eps)?;
        for (result, moment) in [(1, moments.0), (2, moments.1)] {
            let declared = c.declared(result)?;
            let moment = c.drop_axis(moment, 2)?;
            let moment = c.cast(moment, declared.dtype)?;
            c.set(result, moment);
        }
    }
    let mut y = c.reshape(y, shape.clone())?;
    for (op, name) in [(BinaryOp::Mul, "weight"), (BinaryOp::Add, "bias")] {
        if let Some(w) = c.opt_tensor(name)? {
            let w = c.cast(w, wide)?;
            let w = c.per_channel(w, &shape)?;
            y = c.binary(op, y, w)?;
        }
    }
    let y = c.cast(y, dtype)?;
    c.done(y)
}

fn batch_norm(c: &mut Call<'_, '_>) -> Lowered {
    // It is about statistics that are not updated here.
    c.ignore(&["momentum"]);
    let x = c.first()?;
    let shape = c.shape(x);
    if shape.len() < 2 {
        return Err(Stop::Broken(format!("expected two axes or more, found {}", shape.len())));
    }
    let eps = c.float_or("eps", 1e-5)?;
    let (mean, variance) = (c.tensor("running_mean")?, c.tensor("running_var")?);
    let shifted = c.with_float(BinaryOp::Add, variance, eps)?;
    let scale = c.unary(UnaryOp::Rsqrt, shifted)?;
    for (result, saved) in [(1, mean), (2, scale)] {
        if c.wants(result) {
            // What is kept for a gradient is nothing, or what was used.
            let declared = c.declared(result)?;
            let is_nothing = declared.numel().as_const() == Some(0);
            let kept =
                if is_nothing { c.full(Scalar::Int(0), declared.dtype, declared.shape)? } else { saved };
            c.set(result, kept);
        }
    }
    let mut steps = vec![(BinaryOp::Sub, Some(mean)), (BinaryOp::Mul, Some(scale))];
    steps.push((BinaryOp::Mul, c.opt_tensor("weight")?));
    steps.push((BinaryOp::Add, c.opt_tensor("bias")?));
    let mut y = x;
    for (op, w) in steps {
        if let Some(w) = w {
            let w = c.cast(w, c.dtype(x))?;
            let w = c.per_channel(w, &shape)?;
            y = c.binary(op, y, w)?;
        }
    }
    c.done(y)
}

fn vector_norm(c: &mut Call<'_, '_>) -> Emitted {
    let x = c.first()?;
    let x = as_asked(c, x)?;
    let axes = c.axes("dim", c.rank(x))?;
    let keep = c.bool_or("keepdim", false)?;
    let order = c.float_or(if c.get("p").is_some() { "p" } else { "ord" }, 2.0)?;
    let y = if order == 2.0 {
        let squares = c.binary(BinaryOp::Mul, x, x)?;
        let sum = c.reduce(Reduction::Sum, squares, axes, keep)?;
        c.unary(UnaryOp::Sqrt, sum)?
    } else if order == 1.0 || order == f64::INFINITY {
        let absolute = c.unary(UnaryOp::Abs, x)?;
        let op = if order == 1.0 { Reduction::Sum } else { Reduction::Max };
        c.reduce(op, absolute, axes, keep)?
    } else {
        return Err(Stop::Opaque(format!("the norm of order {order}")));
    };
    Ok(y)
}
