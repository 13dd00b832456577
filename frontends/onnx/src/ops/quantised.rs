//! Quantised tensors: integers or narrow floats, each with a scale and a zero point.
//!
//! A number `x` is stored as `round(x / scale) + zero`, saturated to the stored dtype, and read as `(stored - zero) *
//! scale`. Conversions are computed in f32, as ONNX Runtime does. Products of quantised matrices and convolutions are
//! computed on 32-bit integers, without rounding. Other quantised ops compute on the numbers that their operands stand for.

use symmc_import::convolution::add_channel_bias;
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::float8::{F8E4M3, F8E5M2};
use symmc_ir::{BinaryOp, DType, Dim, Op, ReductionKind, UnaryOp, ValueId};

use super::windows::{average_pool_of, convolution_sums, window_axes};
use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult, Term};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("QuantizeLinear", 25, "div, round, add, clamp, cast", quantize_linear),
    row("com.microsoft::QuantizeLinear", 1, "div, round, add, clamp, cast", quantize_linear),
    row("DequantizeLinear", 25, "cast, sub, mul", dequantize_linear),
    row("com.microsoft::DequantizeLinear", 1, "cast, sub, mul", dequantize_linear),
    row_of_results("DynamicQuantizeLinear", 11, "max, min, div, round, clamp, cast", |c| {
        let x = c.tensor(0)?;
        let (quantised, scale, zero) = quantize_dynamically(c, x)?;
        c.set_results([quantised, scale, zero])
    }),
    row("MatMulInteger", 10, "cast, sub, matmul", |c| {
        let [x, y] = c.first_tensors()?;
        let zeros = [c.opt_tensor(2)?, c.opt_tensor(3)?];
        integer_product(c, [x, y], zeros)
    }),
    row("com.microsoft::MatMulIntegerToFloat", 1, "cast, sub, matmul, mul, add", |c| {
        let [x, y, x_scale, y_scale] = c.first_tensors()?;
        let zeros = [c.opt_tensor(4)?, c.opt_tensor(5)?];
        let bias = c.opt_tensor(6)?;
        let sums = integer_product(c, [x, y], zeros)?;
        let scale = c.binary(BinaryOp::Mul, x_scale, y_scale)?;
        scaled_sums(c, sums, scale, bias)
    }),
    row("com.microsoft::DynamicQuantizeMatMul", 1, "max, min, div, round, sub, matmul, mul, add", |c| {
        let [x, y, y_scale] = c.first_tensors()?;
        let y_zero = c.opt_tensor(3)?;
        let bias = c.opt_tensor(4)?;
        let (x, x_scale, x_zero) = quantize_dynamically(c, x)?;
        let sums = integer_product(c, [x, y], [Some(x_zero), y_zero])?;
        let scale = c.binary(BinaryOp::Mul, x_scale, y_scale)?;
        scaled_sums(c, sums, scale, bias)
    }),
    row("ConvInteger", 10, "cast, sub, pad, slice, concat, matmul", |c| {
        let [x, w] = c.first_tensors()?;
        let zeros = [c.opt_tensor(2)?, c.opt_tensor(3)?];
        integer_convolution(c, [x, w], zeros)
    }),
    row("QLinearMatMul", 21, "cast, sub, matmul, mul, round, add, clamp", |c| {
        let x = QuantisedOperand::read(c, 0)?;
        let y = QuantisedOperand::read(c, 3)?;
        let sums = integer_product(c, [x.stored, y.stored], [x.zero, y.zero])?;
        requantised(c, sums, [x.scale, y.scale], 6)
    }),
    row("com.microsoft::QGemm", 1, "cast, sub, matmul, mul, round, add, clamp", quantised_gemm),
    row("QLinearConv", 10, "cast, sub, pad, slice, concat, matmul, mul, round, add, clamp", |c| {
        let x = QuantisedOperand::read(c, 0)?;
        let w = QuantisedOperand::read(c, 3)?;
        let bias = c.opt_tensor(8)?;
        let sums = integer_convolution(c, [x.stored, w.stored], [x.zero, w.zero])?;
        let sums = add_channel_bias(c, sums, bias, DType::I32)?;
        let w_scale = per_channel(c, w.scale, c.rank(sums), 1)?;
        requantised(c, sums, [x.scale, w_scale], 6)
    }),
    row("com.microsoft::QLinearAdd", 1, "add of dequantised operands", |c| {
        quantised_binary(c, BinaryOp::Add)
    }),
    row("com.microsoft::QLinearMul", 1, "mul of dequantised operands", |c| {
        quantised_binary(c, BinaryOp::Mul)
    }),
    row("com.microsoft::QLinearSigmoid", 1, "sigmoid of a dequantised operand", |c| {
        quantised_unary(c, |c, x| c.unary(UnaryOp::Sigmoid, x))
    }),
    row("com.microsoft::QLinearLeakyRelu", 1, "leaky relu of a dequantised operand", |c| {
        let alpha = c.float_or("alpha", 0.01)?;
        quantised_unary(c, |c, x| c.formula([x], |[x]| x.ge(0.0).select(x, x * alpha)))
    }),
    row("com.microsoft::QLinearSoftmax", 1, "softmax of a dequantised operand", |c| {
        let opset = c.int("opset")?;
        unsupported_if!(opset < 13, "softmax of several axes is not supported, found opset {opset}");
        quantised_unary(c, |c, x| {
            let axis = c.axis_or("axis", -1, c.rank(x))?;
            c.emit("softmax", Op::Softmax { axis, log: false }, &[x])
        })
    }),
    row("com.microsoft::QLinearAveragePool", 1, "average pool of a dequantised operand", |c| {
        unsupported_if!(c.flag("channels_last")?, "channels on the last axis are not supported");
        quantised_unary(c, average_pool_of)
    }),
    row("com.microsoft::QLinearGlobalAveragePool", 1, "mean of a dequantised operand", |c| {
        unsupported_if!(c.flag("channels_last")?, "channels on the last axis are not supported");
        quantised_unary(c, |c, x| {
            let axes = (2..window_axes(c, x)? + 2).collect();
            c.reduce(ReductionKind::Mean, x, axes, true)
        })
    }),
    row("com.microsoft::QLinearConcat", 1, "concat of dequantised operands", quantised_concat),
    row("com.microsoft::QLinearWhere", 1, "select of dequantised operands", |c| {
        let condition = c.tensor(0)?;
        let x = QuantisedOperand::read(c, 1)?.dequantised(c)?;
        let y = QuantisedOperand::read(c, 4)?.dequantised(c)?;
        let selected = c.select(condition, x, y)?;
        quantised_result(c, selected, 7)
    }),
];

/// A stored operand with its scale and its zero point, which are the operands after it.
struct QuantisedOperand {
    stored: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
}

impl QuantisedOperand {
    fn read(c: &mut OpCall<'_, '_>, first: usize) -> RuleResult<Self> {
        Ok(QuantisedOperand {
            stored: c.tensor(first)?,
            scale: c.tensor(first + 1)?,
            zero: c.opt_tensor(first + 2)?,
        })
    }

    fn dequantised(&self, c: &mut OpCall<'_, '_>) -> EmitResult {
        dequantised(c, self.stored, self.scale, self.zero)
    }
}

/// The dtype of the result of `QuantizeLinear`: that of the zero point, or of the attribute.
fn quantised_dtype(c: &OpCall<'_, '_>, zero: Option<ValueId>) -> RuleResult<DType> {
    let stated = c.opt_dtype("output_dtype")?;
    match (zero.map(|zero| c.dtype(zero)), stated) {
        (Some(zero), Some(stated)) if zero != stated => {
            invalid!("expected a zero point of the dtype {stated}, found {zero}")
        }
        (zero, stated) => Ok(zero.or(stated).unwrap_or(DType::U8)),
    }
}

fn quantize_linear(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, scale] = c.first_tensors()?;
    let zero = c.opt_tensor(2)?;
    let dtype = quantised_dtype(c, zero)?;
    let precision = c.opt_dtype("precision")?.unwrap_or(DType::F32);
    unsupported_if!(precision != DType::F32, "a quotient in {precision} is not supported");
    let saturates = c.int_or("saturate", 1)? != 0;
    let axis = QuantisedAxis::read(c, x, scale)?;
    let scale = axis.broadcast(c, scale)?;
    let zero = zero.map(|zero| axis.broadcast(c, zero)).transpose()?;
    quantised(c, x, scale, zero, dtype, saturates)
}

fn dequantize_linear(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [stored, scale] = c.first_tensors()?;
    let zero = c.opt_tensor(2)?;
    let dtype = c.opt_dtype("output_dtype")?.unwrap_or(c.dtype(scale));
    let axis = QuantisedAxis::read(c, stored, scale)?;
    let scale = axis.broadcast(c, scale)?;
    let zero = zero.map(|zero| axis.broadcast(c, zero)).transpose()?;
    let y = dequantised(c, stored, scale, zero)?;
    c.cast(y, dtype)
}

/// The axis along which scales and zero points differ.
struct QuantisedAxis {
    rank: usize,
    axis: usize,
    extent: Dim,
    /// The number of adjacent elements with one scale, if there is more than one scale.
    block: i64,
}

impl QuantisedAxis {
    fn read(c: &OpCall<'_, '_>, x: ValueId, scale: ValueId) -> RuleResult<Self> {
        let rank = c.rank(x);
        let block = c.int_or("block_size", 0)?;
        invalid_if!(block < 0, "expected at least 0 as `block_size`, found {block}");
        if c.ty(scale).numel() == Dim::from(1) && block == 0 {
            return Ok(QuantisedAxis { rank, axis: 0, extent: 1.into(), block: 0 });
        }
        let axis = c.axis_or("axis", 1, rank)?;
        let expected = if block == 0 { 1 } else { rank };
        let found = c.rank(scale);
        invalid_if!(found != expected, "expected scales of {expected} axes, found {found}");
        Ok(QuantisedAxis { rank, axis, extent: c.extent(x, axis), block })
    }

    /// Numbers of each element, block or slice in a form that broadcasts to the elements.
    fn broadcast(&self, c: &mut OpCall<'_, '_>, numbers: ValueId) -> EmitResult {
        match self.block {
            0 => per_channel(c, numbers, self.rank, self.axis),
            block => {
                let numbers = c.repeat_elements(numbers, self.axis, &block.into())?;
                c.slice(numbers, self.axis, 0.into(), self.extent.clone(), 1)
            }
        }
    }
}

/// A scalar, or a vector over an axis in a form that broadcasts to that axis.
fn per_channel(c: &mut OpCall<'_, '_>, numbers: ValueId, rank: usize, axis: usize) -> EmitResult {
    if c.ty(numbers).numel() == Dim::from(1) {
        return c.reshape(numbers, vec![]);
    }
    let mut shape = vec![Dim::from(1); rank];
    shape[axis] = c.ty(numbers).numel();
    c.reshape(numbers, shape)
}

/// The largest number of a float of 8 bits. Numbers beyond it saturate, where a node asks for that.
fn largest_float8(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F8E4M3 => Some(f64::from(F8E4M3::LARGEST)),
        DType::F8E5M2 => Some(f64::from(F8E5M2::LARGEST)),
        _ => None,
    }
}

/// A cast, which saturates by default if the dtype is a float of 8 bits.
pub(super) fn cast_to_narrow(c: &mut OpCall<'_, '_>, x: ValueId, dtype: DType) -> EmitResult {
    let saturates = c.int_or("saturate", 1)? != 0;
    let mode = c.opt_string("round_mode")?.unwrap_or("up");
    let rounds_up = dtype == DType::F8E8M0 && c.dtype(x) != dtype;
    unsupported_if!(rounds_up, "a cast to {dtype} with the round_mode `{mode}` is not supported");
    let Some(largest) = largest_float8(dtype).filter(|_| c.dtype(x) != dtype) else {
        return c.cast(x, dtype);
    };
    let is_float = c.dtype(x).is_float() && !c.dtype(x).is_storage_float();
    let x = if is_float { x } else { c.cast(x, DType::F32)? };
    let x = c.formula([x], |[x]| match dtype {
        _ if saturates => x.clamp(-largest, largest),
        DType::F8E4M3 => overflow_to_nan(x),
        _ => x,
    })?;
    c.cast(x, dtype)
}

/// NaN in place of numbers that are rounded beyond the largest e4m3. Casts saturate there.
fn overflow_to_nan(x: Term<'_>) -> Term<'_> {
    x.abs().gt(464.0).select(f64::NAN, x)
}

/// `round(x / scale) + zero` in a dtype.
fn quantised(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
    dtype: DType,
    saturates: bool,
) -> EmitResult {
    let bounds = match dtype.integer_bounds() {
        Some((least, largest)) => Some((least as f64, largest as f64)),
        None => largest_float8(dtype).filter(|_| saturates).map(|largest| (-largest, largest)),
    };
    let x = c.cast(x, DType::F32)?;
    let scale = c.cast(scale, DType::F32)?;
    let zero = zero.map(|zero| c.cast(zero, DType::F32)).transpose()?;
    let is_integer = dtype.is_integer();
    let overflows = dtype == DType::F8E4M3 && !saturates;
    let y = c.formula([x, scale], |[x, scale]| {
        let quotient = x / scale;
        let rounded = if is_integer { quotient.unary(UnaryOp::Round) } else { quotient };
        let moved = match zero {
            Some(zero) => rounded + rounded.term(zero),
            None => rounded,
        };
        let moved = if overflows { overflow_to_nan(moved) } else { moved };
        bounds.map_or(moved, |(least, largest)| moved.clamp(least, largest))
    })?;
    c.cast(y, dtype)
}

/// `(stored - zero) * scale` in f32, or in f64 for scales of f64.
fn dequantised(c: &mut OpCall<'_, '_>, stored: ValueId, scale: ValueId, zero: Option<ValueId>) -> EmitResult {
    // Differences of wide integers are not exact in f32.
    let is_wide = c.dtype(stored).is_integer() && c.dtype(stored).size() > 2;
    let difference_dtype = if is_wide { DType::I32 } else { DType::F32 };
    let mut x = c.cast(stored, difference_dtype)?;
    if let Some(zero) = zero {
        let zero = c.cast(zero, difference_dtype)?;
        x = c.binary(BinaryOp::Sub, x, zero)?;
    }
    let x = c.cast(x, DType::F32)?;
    let scale = c.cast(scale, DType::F32)?;
    c.binary(BinaryOp::Mul, x, scale)
}

/// A matrix as unsigned bytes, with the scale and the zero point by which its range is covered.
fn quantize_dynamically(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult<(ValueId, ValueId, ValueId)> {
    let axes: Vec<usize> = (0..c.rank(x)).collect();
    let [scale, zero] = c.formulas([x], |[x]| {
        let largest = x.reduce(ReductionKind::Max, &axes, false).max(0.0);
        let least = x.reduce(ReductionKind::Min, &axes, false).min(0.0);
        let range = largest - least;
        // Numbers that are all 0 have any scale.
        let scale = range.eq(0.0).select(1.0, range / 255.0);
        let zero = (least.constant(0.0) - least / scale).clamp(0.0, 255.0);
        [scale, zero.unary(UnaryOp::Round).cast(DType::U8)]
    })?;
    let stored = quantised(c, x, scale, Some(zero), DType::U8, true)?;
    Ok((stored, scale, zero))
}

/// Integers of 32 bits, less their zero points.
fn centred(c: &mut OpCall<'_, '_>, stored: ValueId, zero: Option<ValueId>) -> EmitResult {
    let stored = c.cast(stored, DType::I32)?;
    let Some(zero) = zero else { return Ok(stored) };
    let zero = c.cast(zero, DType::I32)?;
    c.binary(BinaryOp::Sub, stored, zero)
}

/// The product of two matrices of integers, less their zero points. The zero points of the left matrix are one or one for
/// each row, those of the right one or one for each column.
fn integer_product(
    c: &mut OpCall<'_, '_>,
    [x, y]: [ValueId; 2],
    [x_zero, y_zero]: [Option<ValueId>; 2],
) -> EmitResult {
    let is_one = |c: &OpCall<'_, '_>, zero: ValueId| c.ty(zero).numel() == Dim::from(1);
    let x_zero = match x_zero {
        Some(zero) if c.rank(zero) == 1 || is_one(c, zero) => Some(per_channel(c, zero, 2, 0)?),
        zero => zero,
    };
    let y_zero = match y_zero {
        Some(zero) if is_one(c, zero) => Some(per_channel(c, zero, 1, 0)?),
        zero => zero,
    };
    let x = centred(c, x, x_zero)?;
    let y = centred(c, y, y_zero)?;
    c.numpy_matmul(x, y)
}

/// The convolution of integers, less their zero points. Padding stands for zeros.
fn integer_convolution(
    c: &mut OpCall<'_, '_>,
    [x, w]: [ValueId; 2],
    [x_zero, w_zero]: [Option<ValueId>; 2],
) -> EmitResult {
    let x_zero = x_zero.map(|zero| c.reshape(zero, vec![])).transpose()?;
    let w_zero = w_zero.map(|zero| per_channel(c, zero, c.rank(w), 0)).transpose()?;
    let x = centred(c, x, x_zero)?;
    let w = centred(c, w, w_zero)?;
    convolution_sums(c, x, w)
}

/// Sums of integers times a scale, plus a bias of floats.
fn scaled_sums(c: &mut OpCall<'_, '_>, sums: ValueId, scale: ValueId, bias: Option<ValueId>) -> EmitResult {
    let sums = c.cast(sums, c.dtype(scale))?;
    let y = c.binary(BinaryOp::Mul, sums, scale)?;
    match bias {
        Some(bias) => c.binary(BinaryOp::Add, y, bias),
        None => Ok(y),
    }
}

/// Sums of integers with the scales of their factors, in the dtype of the zero point of the result. The scale of the result
/// is the operand `first`, and its zero point follows.
fn requantised(c: &mut OpCall<'_, '_>, sums: ValueId, factors: [ValueId; 2], first: usize) -> EmitResult {
    let scale = c.tensor(first)?;
    let zero = c.tensor(first + 1)?;
    let dtype = c.dtype(zero);
    let bounds = dtype.integer_bounds();
    let Some((least, largest)) = bounds else { return unsupported!("a product in {dtype} is not supported") };
    let [x, y] = factors.map(|factor| c.cast(factor, DType::F32));
    let factor = c.formula([x?, y?], |[x, y]| x * y)?;
    let scale = c.cast(scale, DType::F32)?;
    let scale = c.reshape(scale, vec![])?;
    let zero = c.reshape(zero, vec![])?;
    let sums = c.cast(sums, DType::F32)?;
    let zero = c.cast(zero, DType::F32)?;
    let y = c.formula([sums, factor, scale, zero], |[sums, factor, scale, zero]| {
        let rounded = (sums * (factor / scale)).unary(UnaryOp::Round) + zero;
        rounded.clamp(least as f64, largest as f64)
    })?;
    c.cast(y, dtype)
}

/// Numbers in the dtype of the zero point of the result. The scale of the result is the operand `first`, and its zero point
/// follows.
fn quantised_result(c: &mut OpCall<'_, '_>, x: ValueId, first: usize) -> EmitResult {
    let scale = c.tensor(first)?;
    let zero = c.opt_tensor(first + 1)?;
    let dtype = zero.map_or(DType::U8, |zero| c.dtype(zero));
    let scale = c.reshape(scale, vec![])?;
    let zero = zero.map(|zero| c.reshape(zero, vec![])).transpose()?;
    quantised(c, x, scale, zero, dtype, true)
}

fn quantised_unary(
    c: &mut OpCall<'_, '_>,
    compute: impl FnOnce(&mut OpCall<'_, '_>, ValueId) -> EmitResult,
) -> EmitResult {
    let x = QuantisedOperand::read(c, 0)?.dequantised(c)?;
    let y = compute(c, x)?;
    quantised_result(c, y, 3)
}

fn quantised_binary(c: &mut OpCall<'_, '_>, op: BinaryOp) -> EmitResult {
    let x = QuantisedOperand::read(c, 0)?.dequantised(c)?;
    let y = QuantisedOperand::read(c, 3)?.dequantised(c)?;
    let z = c.binary(op, x, y)?;
    quantised_result(c, z, 6)
}

/// The scale and the zero point of the result come first, then each operand with its own.
fn quantised_concat(c: &mut OpCall<'_, '_>) -> EmitResult {
    let count = c.node.input.len();
    invalid_if!(
        count < 5 || count % 3 != 2,
        "expected two operands and then three for each tensor, found {count}"
    );
    let mut parts = Vec::with_capacity(count / 3);
    for first in (2..count).step_by(3) {
        parts.push(QuantisedOperand::read(c, first)?.dequantised(c)?);
    }
    let axis = c.resolve_axis(c.int("axis")?, c.rank(parts[0]))?;
    let whole = c.concat(&parts, axis)?;
    quantised_result(c, whole, 0)
}

/// `alpha * x @ y + bias`, quantised if the result has a scale. The bias is of 32-bit integers, on the scale of the sums.
fn quantised_gemm(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = QuantisedOperand::read(c, 0)?;
    let y = QuantisedOperand::read(c, 3)?;
    let bias = c.opt_tensor(6)?;
    let has_result_scale = c.opt_tensor(7)?.is_some();
    let alpha = c.float_or("alpha", 1.0)?;
    let mut factors = [x.stored, y.stored];
    for (stored, flag) in factors.iter_mut().zip(["transA", "transB"]) {
        if c.flag(flag)? {
            *stored = c.transposed(*stored)?;
        }
    }
    let mut sums = integer_product(c, factors, [x.zero, y.zero])?;
    if let Some(bias) = bias {
        sums = c.binary(BinaryOp::Add, sums, bias)?;
    }
    let x_scale = c.binary_float(BinaryOp::Mul, x.scale, alpha)?;
    if has_result_scale {
        return requantised(c, sums, [x_scale, y.scale], 7);
    }
    let scale = c.binary(BinaryOp::Mul, x_scale, y.scale)?;
    scaled_sums(c, sums, scale, None)
}
