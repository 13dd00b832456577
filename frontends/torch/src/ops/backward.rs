//! The backward ops of traced training graphs, in terms of forward ones.

use symmc_import::{Emit, invalid, invalid_if};
use symmc_ir::{BinaryOp, DType, FloatAttribute, ReductionKind, Scalar, UnaryOp, ValueId};

use super::slicing::{replace_slice, write_slice};
use super::{RuleRow, row};
use crate::call::{CallOperand, OpCall};
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.threshold_backward", "le, select", |c| {
        let gradient = CallOperand::Tensor(c.tensor("grad_output")?);
        let x = CallOperand::Tensor(c.tensor("self")?);
        let dtype = c.common_dtype(&[&gradient, &x]);
        let gradient = c.as_tensor(&gradient, dtype)?;
        let x = c.as_tensor(&x, dtype)?;
        let threshold = c.opt_scalar("threshold")?.unwrap_or(Scalar::Int(0));
        let below = c.binary_scalar(BinaryOp::Le, x, threshold)?;
        let zero = c.full(Scalar::Int(0), c.dtype(gradient), vec![])?;
        c.select(below, zero, gradient)
    }),
    row("aten.sigmoid_backward", "g * (y - y * y)", |c| {
        let ([gradient, y], _) = common_operands(c, ["grad_output", "output"])?;
        let slope = one_minus(c, y)?;
        let slope = c.binary(BinaryOp::Mul, y, slope)?;
        c.binary(BinaryOp::Mul, gradient, slope)
    }),
    row("aten.tanh_backward", "g * (1 - y * y)", |c| {
        let ([gradient, y], _) = common_operands(c, ["grad_output", "output"])?;
        let square = c.binary(BinaryOp::Mul, y, y)?;
        let slope = one_minus(c, square)?;
        c.binary(BinaryOp::Mul, gradient, slope)
    }),
    row("aten.silu_backward", "g * s * (1 + x * (1 - s))", silu_backward),
    row("aten._softmax_backward_data", "(g - sum(g * y)) * y", |c| {
        let ([gradient, y], dtype) = common_operands(c, ["grad_output", "output"])?;
        let axis = c.axis("dim", c.rank(y))?;
        let product = c.binary(BinaryOp::Mul, gradient, y)?;
        let sum = sum_along(c, product, axis)?;
        // PyTorch's kernel subtracts before it multiplies, which loses less precision if the two are close.
        let centred = c.binary(BinaryOp::Sub, gradient, sum)?;
        let x = c.binary(BinaryOp::Mul, centred, y)?;
        cast_to_input_dtype(c, x, dtype)
    }),
    row("aten._log_softmax_backward_data", "g - exp(y) * sum(g)", |c| {
        let ([gradient, y], dtype) = common_operands(c, ["grad_output", "output"])?;
        let axis = c.axis("dim", c.rank(y))?;
        let sum = sum_along(c, gradient, axis)?;
        let e = c.unary(UnaryOp::Exp, y)?;
        let scaled = c.binary(BinaryOp::Mul, e, sum)?;
        let x = c.binary(BinaryOp::Sub, gradient, scaled)?;
        cast_to_input_dtype(c, x, dtype)
    }),
    row("aten.gelu_backward", "g * (cdf + x * pdf)", gelu_backward),
    row("aten.native_dropout_backward", "g * mask * scale", |c| {
        let gradient = CallOperand::Tensor(c.tensor("grad_output")?);
        let mask = CallOperand::Tensor(c.tensor("mask")?);
        let scale = c.float_or("scale", 1.0)?;
        let dtype =
            c.common_dtype(&[&gradient, &mask, &CallOperand::Scalar(Scalar::Float(FloatAttribute(scale)))]);
        let y = c.emit_binary(BinaryOp::Mul, &gradient, &mask, dtype)?;
        c.binary_float(BinaryOp::Mul, y, scale)
    }),
    row("aten.slice_backward", "slice_scatter into 0", |c| {
        let (gradient, zero, axis) = gradient_and_zeros(c)?;
        let step = c.int_or("step", 1)?;
        write_slice(c, zero, gradient, axis, step)
    }),
    row("aten.select_backward", "concat with 0", |c| {
        let (gradient, zero, axis) = gradient_and_zeros(c)?;
        let index = c.dim("index")?;
        let start = c.index_from_start(index, &c.extent(zero, axis));
        let gradient = c.unsqueeze(gradient, axis)?;
        replace_slice(c, zero, gradient, axis, start)
    }),
    row("aten._fused_rms_norm_backward", "mul, mean, sum", rms_norm_backward),
    row("aten.native_layer_norm_backward", "mul, mean, sum", layer_norm_backward),
];

/// The gradient of a slice of a tensor, zeros for the whole tensor, and the axis of the slice.
fn gradient_and_zeros(c: &mut OpCall<'_, '_>) -> RuleResult<(ValueId, ValueId, usize)> {
    let gradient = c.first_tensor()?;
    let sizes = c.dims("input_sizes")?;
    let zero = c.full(Scalar::Int(0), c.dtype(gradient), sizes)?;
    Ok((gradient, zero, c.axis("dim", c.rank(zero))?))
}

fn one_minus(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    c.scalar_binary(BinaryOp::Sub, Scalar::Int(1), x)
}

/// Operands in their common dtype, and that dtype.
fn common_operands<const N: usize>(
    c: &mut OpCall<'_, '_>,
    names: [&str; N],
) -> RuleResult<([ValueId; N], DType)> {
    let mut values = Vec::with_capacity(N);
    for name in names {
        values.push(c.tensor(name)?);
    }
    let operands: Vec<CallOperand> = values.iter().map(|&v| CallOperand::Tensor(v)).collect();
    let dtype = c.common_dtype(&operands.iter().collect::<Vec<_>>());
    for v in &mut values {
        *v = c.cast(*v, dtype)?;
    }
    let count = values.len();
    let values = values
        .try_into()
        .map_err(|_| RuleFailure::Invalid(format!("expected {N} operands, found {count}")))?;
    Ok((values, dtype))
}

/// The sum along an axis, which is kept. A tensor without axes is its own sum.
fn sum_along(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize) -> EmitResult {
    if c.rank(x) == 0 { Ok(x) } else { c.reduce(ReductionKind::Sum, x, vec![axis], true) }
}

fn cast_to_input_dtype(c: &mut OpCall<'_, '_>, x: ValueId, dtype: DType) -> EmitResult {
    let dtype = c.opt_dtype("input_dtype")?.unwrap_or(dtype);
    c.cast(x, dtype)
}

fn silu_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    let ([gradient, x], _) = common_operands(c, ["grad_output", "self"])?;
    let s = c.unary(UnaryOp::Sigmoid, x)?;
    let factor = one_minus(c, s)?;
    let factor = c.binary(BinaryOp::Mul, x, factor)?;
    let factor = c.binary_float(BinaryOp::Add, factor, 1.0)?;
    let slope = c.binary(BinaryOp::Mul, s, factor)?;
    c.binary(BinaryOp::Mul, gradient, slope)
}

fn gelu_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    let ([gradient, x], _) = common_operands(c, ["grad_output", "self"])?;
    let square = c.binary(BinaryOp::Mul, x, x)?;
    let slope = match c.opt_string("approximate")? {
        None | Some("none") => {
            let z = c.binary_float(BinaryOp::Mul, x, std::f64::consts::FRAC_1_SQRT_2)?;
            let cdf = c.unary(UnaryOp::Erf, z)?;
            let cdf = c.binary_float(BinaryOp::Add, cdf, 1.0)?;
            let cdf = c.binary_float(BinaryOp::Mul, cdf, 0.5)?;
            let e = c.binary_float(BinaryOp::Mul, square, -0.5)?;
            let e = c.unary(UnaryOp::Exp, e)?;
            let pdf = c.binary_float(
                BinaryOp::Mul,
                e,
                0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2,
            )?;
            let tail = c.binary(BinaryOp::Mul, x, pdf)?;
            c.binary(BinaryOp::Add, cdf, tail)?
        }
        Some("tanh") => {
            // With u = k * (x + a * x³): 0.5 * (1 + tanh u) + 0.5 * x * (1 - tanh² u) * k * (1 + 3a * x²).
            let k = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
            let a = 0.044715;
            let cube = c.binary(BinaryOp::Mul, square, x)?;
            let cube = c.binary_float(BinaryOp::Mul, cube, a)?;
            let u = c.binary(BinaryOp::Add, x, cube)?;
            let u = c.binary_float(BinaryOp::Mul, u, k)?;
            let t = c.unary(UnaryOp::Tanh, u)?;
            let left_term = c.binary_float(BinaryOp::Add, t, 1.0)?;
            let left_term = c.binary_float(BinaryOp::Mul, left_term, 0.5)?;
            let tt = c.binary(BinaryOp::Mul, t, t)?;
            let bell = one_minus(c, tt)?;
            let inner = c.binary_float(BinaryOp::Mul, square, 3.0 * a)?;
            let inner = c.binary_float(BinaryOp::Add, inner, 1.0)?;
            let right = c.binary(BinaryOp::Mul, bell, inner)?;
            let right = c.binary(BinaryOp::Mul, x, right)?;
            let right = c.binary_float(BinaryOp::Mul, right, 0.5 * k)?;
            c.binary(BinaryOp::Add, left_term, right)?
        }
        Some(other) => {
            return invalid!("expected approximate none or tanh, found `{other}`");
        }
    };
    c.binary(BinaryOp::Mul, gradient, slope)
}

/// The axes of `x` before the normalized ones, and the normalized ones.
fn split_axes(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult<(Vec<usize>, Vec<usize>)> {
    let rank = c.rank(x);
    let axes = c.dims("normalized_shape")?.len();
    invalid_if!(axes > rank, "expected at most {rank} normalized axes, found {axes}");
    Ok(((0..rank - axes).collect(), (rank - axes..rank).collect()))
}

/// A gradient times the weight of the norm, if there is one.
fn times_weight(c: &mut OpCall<'_, '_>, gradient: ValueId) -> EmitResult {
    let Some(weight) = c.opt_tensor("weight")? else { return Ok(gradient) };
    let weight = c.cast(weight, c.dtype(gradient))?;
    c.binary(BinaryOp::Mul, gradient, weight)
}

fn set_sum(c: &mut OpCall<'_, '_>, result: usize, term: ValueId, axes: &[usize], dtype: DType) -> RuleResult {
    let sum = if axes.is_empty() { term } else { c.reduce(ReductionKind::Sum, term, axes.to_vec(), false)? };
    let sum = c.cast(sum, dtype)?;
    c.set_result(result, sum);
    Ok(())
}

/// With `x̂ = (x - mean) * rstd` and `ĝ = g * weight`: the gradient of `x` is
/// `rstd * (ĝ - mean(ĝ) - x̂ * mean(ĝ * x̂))`, of the weight `sum(g * x̂)`, of the bias `sum(g)`.
fn layer_norm_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    // Results that the mask leaves out are not read.
    c.ignore(&["bias", "output_mask"]);
    let gradient = c.tensor("grad_out")?;
    let x = c.tensor("input")?;
    let mean = c.tensor("mean")?;
    let rstd = c.tensor("rstd")?;
    let dtype = c.dtype(x);
    let wide = dtype.compute_dtype();
    let (outer, inner) = split_axes(c, x)?;
    let g = c.cast(gradient, wide)?;
    let x = c.cast(x, wide)?;
    let mean = c.cast(mean, wide)?;
    let rstd = c.cast(rstd, wide)?;
    let centred = c.binary(BinaryOp::Sub, x, mean)?;
    let normal = c.binary(BinaryOp::Mul, centred, rstd)?;
    let weighted = times_weight(c, g)?;
    let m = c.reduce(ReductionKind::Mean, weighted, inner.clone(), true)?;
    let product = c.binary(BinaryOp::Mul, weighted, normal)?;
    let p = c.reduce(ReductionKind::Mean, product, inner, true)?;
    let shift = c.binary(BinaryOp::Mul, normal, p)?;
    let y = c.binary(BinaryOp::Sub, weighted, m)?;
    let y = c.binary(BinaryOp::Sub, y, shift)?;
    let y = c.binary(BinaryOp::Mul, y, rstd)?;
    for (result, wanted) in [(1, normal), (2, g)] {
        if c.is_result_read(result) {
            let term = if result == 1 { c.binary(BinaryOp::Mul, g, wanted)? } else { g };
            set_sum(c, result, term, &outer, dtype)?;
        }
    }
    c.cast(y, dtype)
}

/// With `x̂ = x * rstd` and `ĝ = g * weight`: the gradient of `x` is `rstd * (ĝ - x̂ * mean(ĝ * x̂))`, of the
/// weight `sum(g * x̂)`.
fn rms_norm_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    c.ignore(&["output_mask"]);
    let gradient = c.tensor("grad_out")?;
    let x = c.tensor("input")?;
    let rstd = c.tensor("rstd")?;
    let dtype = c.dtype(x);
    let wide = dtype.compute_dtype();
    let (outer, inner) = split_axes(c, x)?;
    let g = c.cast(gradient, wide)?;
    let x = c.cast(x, wide)?;
    let rstd = c.cast(rstd, wide)?;
    let normal = c.binary(BinaryOp::Mul, x, rstd)?;
    let weighted = times_weight(c, g)?;
    let product = c.binary(BinaryOp::Mul, weighted, normal)?;
    let p = c.reduce(ReductionKind::Mean, product, inner, true)?;
    let shift = c.binary(BinaryOp::Mul, normal, p)?;
    let y = c.binary(BinaryOp::Sub, weighted, shift)?;
    let y = c.binary(BinaryOp::Mul, y, rstd)?;
    if c.is_result_read(1) {
        let term = c.binary(BinaryOp::Mul, g, normal)?;
        set_sum(c, 1, term, &outer, dtype)?;
    }
    c.cast(y, dtype)
}
