//! The backward ops of traced training graphs, in terms of forward ones.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if};
use symmc_ir::{BinaryOp, DType, FloatAttribute, Scalar, ValueId};

use super::slicing::{replace_slice, write_slice};
use super::{RuleRow, row};
use crate::call::{CallOperand, OpCall};
use crate::lower::{EmitResult, RuleResult, Term};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.threshold_backward", "le, select", |c| {
        let ([gradient, x], _) = common_operands(c, ["grad_output", "self"])?;
        let threshold = c.opt_scalar("threshold")?.unwrap_or(Scalar::Int(0));
        c.formula([gradient, x], |[g, x]| x.le(threshold).select(0.0, g))
    }),
    row("aten.sigmoid_backward", "g * (y - y * y)", |c| {
        let ([gradient, y], _) = common_operands(c, ["grad_output", "output"])?;
        c.formula([gradient, y], |[g, y]| g * (y * (1.0 - y)))
    }),
    row("aten.tanh_backward", "g * (1 - y * y)", |c| {
        let ([gradient, y], _) = common_operands(c, ["grad_output", "output"])?;
        c.formula([gradient, y], |[g, y]| g * (1.0 - y.square()))
    }),
    row("aten.leaky_relu_backward", "select", |c| {
        // The sign of the result is that of the operand where the slope is not negative.
        c.ignore(&["self_is_result"]);
        let slope = c.float_or("negative_slope", 0.01)?;
        let ([gradient, x], _) = common_operands(c, ["grad_output", "self"])?;
        c.formula([gradient, x], |[g, x]| x.gt(0.0).select(g, g * slope))
    }),
    row("aten.elu_backward", "select of exp", |c| {
        let [alpha, scale, input_scale] =
            [c.float_or("alpha", 1.0)?, c.float_or("scale", 1.0)?, c.float_or("input_scale", 1.0)?];
        let is_result = c.bool_or("is_result", false)?;
        let ([gradient, x], _) = common_operands(c, ["grad_output", "self_or_result"])?;
        c.formula([gradient, x], |[g, x]| {
            let slope = if is_result {
                (x + alpha * scale) * input_scale
            } else {
                (x * input_scale).exp() * (alpha * scale * input_scale)
            };
            let positive = g * scale;
            if is_result { x.le(0.0) } else { x.lt(0.0) }.select(g * slope, positive)
        })
    }),
    row("aten.hardtanh_backward", "select", |c| {
        let [low, high] = [c.float_or("min_val", -1.0)?, c.float_or("max_val", 1.0)?];
        let ([gradient, x], _) = common_operands(c, ["grad_output", "self"])?;
        c.formula([gradient, x], |[g, x]| {
            // The bounds are not rounded to the dtype.
            let x = x.cast(x.dtype().compute_dtype());
            (x.le(low) | x.ge(high)).select(0.0, g)
        })
    }),
    row("aten.hardsigmoid_backward", "select", |c| {
        let ([gradient, x], _) = common_operands(c, ["grad_output", "self"])?;
        c.formula([gradient, x], |[g, x]| (x.gt(-3.0) & x.lt(3.0)).select(g * (1.0 / 6.0), g.constant(0.0)))
    }),
    row("aten.hardswish_backward", "select", |c| {
        let ([gradient, x], _) = common_operands(c, ["grad_output", "self"])?;
        c.formula([gradient, x], |[g, x]| {
            let inside = g * (x * (1.0 / 3.0) + 0.5);
            let below = x.le(-3.0).select(0.0, inside);
            x.lt(3.0).select(below, g)
        })
    }),
    row("aten.softplus_backward", "g * sigmoid(beta * x)", |c| {
        let [beta, threshold] = [c.float_or("beta", 1.0)?, c.float_or("threshold", 20.0)?];
        let ([gradient, x], _) = common_operands(c, ["grad_output", "self"])?;
        c.formula([gradient, x], |[g, x]| {
            let z = x * beta;
            z.gt(threshold).select(g, g * z.sigmoid())
        })
    }),
    row("aten.silu_backward", "g * s * (1 + x * (1 - s))", |c| {
        let ([gradient, x], _) = common_operands(c, ["grad_output", "self"])?;
        c.formula([gradient, x], |[g, x]| {
            let s = x.sigmoid();
            g * (s * (x * (1.0 - s) + 1.0))
        })
    }),
    row("aten._softmax_backward_data", "(g - sum(g * y)) * y", |c| {
        // PyTorch's kernel subtracts before it multiplies, which loses less precision if the two are close.
        softmax_gradient(c, |g, y, axis| (g - sum_along(g * y, axis)) * y)
    }),
    row("aten._log_softmax_backward_data", "g - exp(y) * sum(g)", |c| {
        softmax_gradient(c, |g, y, axis| {
            let sum = sum_along(g, axis);
            g - y.exp() * sum
        })
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
    row("aten._fused_rms_norm_backward", "mul, mean, sum", |c| norm_backward(c, None)),
    row("aten.native_layer_norm_backward", "mul, mean, sum", |c| {
        let mean = c.tensor("mean")?;
        norm_backward(c, Some(mean))
    }),
];

/// The gradient of a slice of a tensor, zeros for the whole tensor, and the axis of the slice.
fn gradient_and_zeros(c: &mut OpCall<'_, '_>) -> RuleResult<(ValueId, ValueId, usize)> {
    let gradient = c.first_tensor()?;
    let sizes = c.dims("input_sizes")?;
    let zero = c.full(Scalar::Int(0), c.dtype(gradient), sizes)?;
    Ok((gradient, zero, c.axis("dim", c.rank(zero))?))
}

/// Operands in their common dtype, and that dtype.
pub(super) fn common_operands<const N: usize>(
    c: &mut OpCall<'_, '_>,
    names: [&str; N],
) -> RuleResult<([ValueId; N], DType)> {
    let values = c.tensors_named(names)?;
    let operands = values.map(CallOperand::Tensor);
    let dtype = c.common_dtype(&operands.iter().collect::<Vec<_>>());
    Ok((c.formulas(values, |values| values.map(|v| v.cast(dtype)))?, dtype))
}

/// The sum along an axis, which is kept. A tensor without axes is its own sum.
fn sum_along(x: Term<'_>, axis: usize) -> Term<'_> {
    if x.rank() == 0 { x } else { x.sum(&[axis], true) }
}

fn softmax_gradient(
    c: &mut OpCall<'_, '_>,
    formula: impl for<'f> FnOnce(Term<'f>, Term<'f>, usize) -> Term<'f>,
) -> EmitResult {
    let ([gradient, y], dtype) = common_operands(c, ["grad_output", "output"])?;
    let axis = c.axis("dim", c.rank(y))?;
    let dtype = c.opt_dtype("input_dtype")?.unwrap_or(dtype);
    c.formula([gradient, y], |[g, y]| formula(g, y, axis).cast(dtype))
}

fn gelu_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    const ROOT: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    let ([gradient, x], _) = common_operands(c, ["grad_output", "self"])?;
    match c.opt_string("approximate")? {
        None | Some("none") => c.formula([gradient, x], |[g, x]| {
            let square = x.square();
            let cdf = ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
            let pdf = (square * -0.5).exp() * (0.5 * ROOT);
            g * (cdf + x * pdf)
        }),
        Some("tanh") => c.formula([gradient, x], |[g, x]| {
            // With u = k * (x + a * x³): 0.5 * (1 + tanh u) + 0.5 * x * (1 - tanh² u) * k * (1 + 3a * x²).
            let a = 0.044715;
            let square = x.square();
            let t = ((x + square * x * a) * ROOT).tanh();
            let half = (t + 1.0) * 0.5;
            let bell = 1.0 - t.square();
            g * (half + x * (bell * (square * (3.0 * a) + 1.0)) * (0.5 * ROOT))
        }),
        Some(other) => invalid!("expected approximate none or tanh, found `{other}`"),
    }
}

/// With `x̂ = (x - mean) * rstd` and `ĝ = g * weight`: the gradient of `x` is
/// `rstd * (ĝ - mean(ĝ) - x̂ * mean(ĝ * x̂))`, of the weight `sum(g * x̂)`, of the bias `sum(g)`. A norm without
/// a mean has no terms of it.
fn norm_backward(c: &mut OpCall<'_, '_>, mean: Option<ValueId>) -> EmitResult {
    // Results that the mask leaves out are not read.
    c.ignore(&["bias", "output_mask"]);
    let [gradient, x, rstd] = c.tensors_named(["grad_out", "input", "rstd"])?;
    let weight = c.opt_tensor("weight")?;
    let dtype = c.dtype(x);
    let wide = dtype.compute_dtype();
    let rank = c.rank(x);
    let axes = c.dims("normalized_shape")?.len();
    invalid_if!(axes > rank, "expected at most {rank} normalized axes, found {axes}");
    let outer: Vec<usize> = (0..rank - axes).collect();
    let inner: Vec<usize> = (rank - axes..rank).collect();
    let [y, normal, g] = c.formulas([gradient, x, rstd], |[gradient, x, rstd]| {
        let g = gradient.cast(wide);
        let x = x.cast(wide);
        let mean = mean.map(|mean| x.term(mean).cast(wide));
        let rstd = rstd.cast(wide);
        let normal = mean.map_or(x, |mean| x - mean) * rstd;
        let weighted = weight.map_or(g, |w| g * g.term(w).cast(wide));
        let weighted_mean = mean.map(|_| weighted.mean(&inner, true));
        let shift = normal * (weighted * normal).mean(&inner, true);
        let y = weighted_mean.map_or(weighted, |mean| weighted - mean) - shift;
        [y * rstd, normal, g]
    })?;
    for result in [1, 2] {
        if c.is_result_read(result) {
            let sum = c.formula([g, normal], |[g, normal]| {
                let term = if result == 1 { g * normal } else { g };
                if outer.is_empty() { term.cast(dtype) } else { term.sum(&outer, false).cast(dtype) }
            })?;
            c.set_result(result, sum);
        }
    }
    c.cast(y, dtype)
}
