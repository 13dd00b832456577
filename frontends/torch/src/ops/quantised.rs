//! Views of the bits of tensors as other dtypes, and products of quantised matrices.
//!
//! Factors of 8 bits are multiplied as numbers that represent them exactly: integers as 32-bit integers, or in the dtype of
//! the other factor, and floats in bf16. The sums are of 32 bits, and are scaled before they are rounded.

use symmc_import::{Emit, EmitFormulas, invalid_if, unsupported, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, Scalar, TensorType, UnaryOp, ValueId};

use super::{RuleRow, row};
use crate::aliasing::note_alias;
use crate::call::{CallOperand, OpCall};
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.view.dtype", "bitcast", |c| {
        let x = c.first_tensor()?;
        let Some(dtype) = c.opt_dtype("dtype")?.filter(|dtype| *dtype != c.dtype(x)) else { return Ok(x) };
        let bits = view_bits(c, x, dtype)?;
        note_alias(c, bits, x);
        Ok(bits)
    }),
    row("aten._int_mm", "cast, matmul", |c| {
        let [x, y] = c.tensors_named(["self", "mat2"])?;
        let (x, y) = (c.cast(x, DType::I32)?, c.cast(y, DType::I32)?);
        c.matmul(x, y)
    }),
    row("aten._weight_int8pack_mm", "cast, matmul_unrounded, mul", |c| {
        let [x, weight, scales] = c.tensors_named(["self", "mat2", "scales"])?;
        let dtype = c.dtype(x);
        let weight = c.cast(weight, dtype)?;
        let weight = c.transposed(weight)?;
        let sums = c.product_sums(x, weight)?;
        let scales = c.cast(scales, c.dtype(sums))?;
        let y = c.binary(BinaryOp::Mul, sums, scales)?;
        c.cast(y, dtype)
    }),
    row("aten._scaled_mm", "cast, matmul_unrounded, mul, add", scaled_product),
    row("quantized_decomposed.quantize_per_tensor", "mul, round, add, clamp, cast", |c| {
        let scale = inverse_scale(c, "scale")?;
        let zero = number(c, "zero_point")?;
        quantize(c, scale, zero, false)
    }),
    row("quantized_decomposed.quantize_per_channel", "mul, round, add, clamp, cast", |c| {
        let scale = inverse_scale(c, "scales")?;
        let zero = number(c, "zero_points")?;
        let (scale, zero) = (along_axis(c, scale)?, along_axis(c, zero)?);
        quantize(c, scale, zero, false)
    }),
    row("quantized_decomposed.quantize_per_token", "mul, add, round, clamp, cast", |c| {
        let scale = inverse_scale(c, "scales")?;
        let zero = number(c, "zero_points")?;
        quantize(c, scale, zero, true)
    }),
    row("quantized_decomposed.dequantize_per_tensor", "cast, sub, mul", |c| {
        let scale = number(c, "scale")?;
        let zero = number(c, "zero_point")?;
        dequantize(c, scale, Some(zero))
    }),
    row("quantized_decomposed.dequantize_per_channel", "cast, sub, mul", |c| {
        let scale = number(c, "scales")?;
        let scale = along_axis(c, scale)?;
        let zero = opt_number(c, "zero_points")?.map(|zero| along_axis(c, zero)).transpose()?;
        dequantize(c, scale, zero)
    }),
    row("quantized_decomposed.dequantize_per_token", "cast, sub, mul", |c| {
        let scale = number(c, "scales")?;
        let zero = number(c, "zero_points")?;
        dequantize(c, scale, Some(zero))
    }),
    row("quantized_decomposed.dequantize_per_channel_group", "cast, sub, mul", |c| {
        let x = c.first_tensor()?;
        let size = c.int("group_size")?;
        let scale = number(c, "scales")?;
        let zero = opt_number(c, "zero_points")?;
        let scale = for_groups(c, x, scale, size)?;
        let zero = zero.map(|zero| for_groups(c, x, zero, size)).transpose()?;
        dequantize(c, scale, zero)
    }),
];

/// A number or a tensor of numbers in f32.
fn number(c: &mut OpCall<'_, '_>, name: &str) -> EmitResult {
    let operand = c.operand(name)?;
    c.as_tensor(&operand, DType::F32)
}

fn opt_number(c: &mut OpCall<'_, '_>, name: &str) -> RuleResult<Option<ValueId>> {
    let operand = c.opt_operand(name)?;
    operand.map(|operand| c.as_tensor(&operand, DType::F32)).transpose()
}

/// The reciprocal of a scale in f32. That of a number is rounded once.
fn inverse_scale(c: &mut OpCall<'_, '_>, name: &str) -> EmitResult {
    match c.operand(name)? {
        CallOperand::Scalar(scale) => {
            let inverse = Scalar::Float(FloatAttribute(1.0 / scale.as_f64()));
            c.full(inverse, DType::F32, vec![])
        }
        operand => {
            let scale = c.as_tensor(&operand, DType::F32)?;
            c.formula([scale], |[scale]| scale.constant(1.0) / scale)
        }
    }
}

/// A vector with an element for each slice of the axis that the call names.
fn along_axis(c: &mut OpCall<'_, '_>, numbers: ValueId) -> EmitResult {
    let x = c.first_tensor()?;
    let rank = c.rank(x);
    let mut shape = vec![Dim::from(1); rank];
    shape[c.axis("axis", rank)?] = c.ty(numbers).numel();
    c.reshape(numbers, shape)
}

/// Numbers of groups of adjacent elements of a matrix, for each element.
fn for_groups(c: &mut OpCall<'_, '_>, x: ValueId, numbers: ValueId, size: i64) -> EmitResult {
    let shape = c.shape(x);
    let [rows, columns] = &shape[..] else { return unsupported!("groups of {} axes", shape.len()) };
    let size = if columns.as_const().is_some_and(|n| n < size) { columns.clone() } else { size.into() };
    let Some(groups) = columns.exact_div(&size) else {
        return unsupported!("groups of {size:?} elements do not divide {columns:?}");
    };
    let numbers = c.reshape(numbers, vec![rows.clone(), groups])?;
    c.repeat_elements(numbers, 1, &size)
}

/// `round(x * inverse) + zero`, or `round(x * inverse + zero)`, between the bounds of the call and in its dtype.
fn quantize(c: &mut OpCall<'_, '_>, inverse: ValueId, zero: ValueId, rounds_sum: bool) -> EmitResult {
    let x = c.first_tensor()?;
    let x = c.cast(x, DType::F32)?;
    let (least, largest) = (number(c, "quant_min")?, number(c, "quant_max")?);
    let y = c.formula([x, inverse, zero, least, largest], |[x, inverse, zero, least, largest]| {
        let scaled = x * inverse;
        let stored = match rounds_sum {
            true => (scaled + zero).unary(UnaryOp::Round),
            false => scaled.unary(UnaryOp::Round) + zero,
        };
        stored.max(least).min(largest)
    })?;
    match c.opt_dtype("dtype")? {
        Some(dtype) => c.cast(y, dtype),
        None => Ok(y),
    }
}

/// `(x - zero) * scale` in the dtype that the call asks for, which is f32 by default.
fn dequantize(c: &mut OpCall<'_, '_>, scale: ValueId, zero: Option<ValueId>) -> EmitResult {
    // These describe how the operand was stored.
    c.ignore(&["quant_min", "quant_max", "dtype", "axis"]);
    let x = c.first_tensor()?;
    let dtype = match c.opt_dtype("out_dtype")? {
        Some(dtype) => dtype,
        None => c.opt_dtype("output_dtype")?.unwrap_or(DType::F32),
    };
    let mut x = c.cast(x, DType::F32)?;
    if let Some(zero) = zero {
        x = c.binary(BinaryOp::Sub, x, zero)?;
    }
    let y = c.binary(BinaryOp::Mul, x, scale)?;
    c.cast(y, dtype)
}

/// The bits of `x` as another dtype. If its elements are wider or narrower, adjacent elements of the last axis are joined or
/// divided, with the low bits first.
fn view_bits(c: &mut OpCall<'_, '_>, x: ValueId, dtype: DType) -> EmitResult {
    // A bool is a byte of 0 or 1.
    if c.dtype(x) == DType::Bool {
        let bytes = c.cast(x, DType::U8)?;
        return view_bits(c, bytes, dtype);
    }
    if dtype == DType::Bool {
        let bytes = view_bits(c, x, DType::U8)?;
        return c.cast(bytes, DType::Bool);
    }
    let [from, to] = [c.dtype(x).size(), dtype.size()];
    let bits = bitcast(c, x, bits_dtype(from))?;
    let bits = match from.cmp(&to) {
        std::cmp::Ordering::Equal => bits,
        std::cmp::Ordering::Less => join_elements(c, bits, bits_dtype(to))?,
        std::cmp::Ordering::Greater => divide_elements(c, bits, bits_dtype(to))?,
    };
    bitcast(c, bits, dtype)
}

/// The dtype of integers of a size in bytes. Shifts to the left by fewer bits than they have lose no bits.
fn bits_dtype(size: usize) -> DType {
    match size {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::I64,
    }
}

fn bitcast(c: &mut OpCall<'_, '_>, x: ValueId, dtype: DType) -> EmitResult {
    if c.dtype(x) == dtype {
        return Ok(x);
    }
    let shape = c.shape(x);
    c.emit_as("bits", Op::Bitcast, &[x], TensorType::new(dtype, shape))
}

/// Integers whose bytes are those of adjacent narrower integers.
fn join_elements(c: &mut OpCall<'_, '_>, x: ValueId, dtype: DType) -> EmitResult {
    let size = c.dtype(x).size();
    let count = dtype.size() / size;
    let mut shape = c.shape(x);
    let joined = shape.last().and_then(|last| last.exact_div(&(count as i64).into()));
    let (Some(joined), Some(last)) = (joined, shape.last_mut()) else {
        return unsupported!("expected a last axis of a multiple of {count} elements, found {shape:?}");
    };
    *last = joined;
    let axis = shape.len();
    shape.push((count as i64).into());
    let parts = c.reshape(x, shape)?;
    c.formula([parts], |[parts]| {
        let part = |k: usize| {
            let part = parts.slice(axis, k as i64, 1).drop_axis(axis).cast(dtype);
            if k == 0 { part } else { part.binary(BinaryOp::Shl, (8 * size * k) as i64) }
        };
        (1..count).fold(part(0), |sum, k| sum.binary(BinaryOp::Or, part(k)))
    })
}

/// Divides each integer into adjacent narrower integers, the low bits first.
fn divide_elements(c: &mut OpCall<'_, '_>, x: ValueId, dtype: DType) -> EmitResult {
    let count = c.dtype(x).size() / dtype.size();
    let mut shape = c.shape(x);
    let axis = shape.len();
    let Some(last) = shape.last_mut() else { return unsupported!("a tensor without axes is not divided") };
    *last = last.clone() * Dim::from(count as i64);
    let mut parts = Vec::with_capacity(count);
    for k in 0..count {
        let shift = (8 * dtype.size() * k) as i64;
        let part = if k == 0 { x } else { c.binary_scalar(BinaryOp::Shr, x, Scalar::Int(shift))? };
        let part = c.cast(part, dtype)?;
        parts.push(c.unsqueeze(part, axis)?);
    }
    let parts = c.concat(&parts, axis)?;
    c.reshape(parts, shape)
}

/// How the scales of a matrix relate to its elements.
enum ScaleLayout {
    /// One scale for all elements, or one for each row of the left factor or column of the right one. It applies to sums.
    Sums,
    /// One scale for each block, of this many elements along each axis.
    Blocks([i64; 2]),
}

fn scale_layout(c: &OpCall<'_, '_>, x: ValueId, scale: ValueId, inner: usize) -> RuleResult<ScaleLayout> {
    if c.ty(scale).numel() == Dim::from(1) {
        return Ok(ScaleLayout::Sums);
    }
    let (extents, scales) = (c.shape(x), c.shape(scale));
    let ([_, _], [_, _]) = (&extents[..], &scales[..]) else {
        return unsupported!("scales of the shape {scales:?} are not supported");
    };
    let is_one_per_sum = scales[inner] == Dim::from(1) && scales[1 - inner] == extents[1 - inner];
    if is_one_per_sum {
        return Ok(ScaleLayout::Sums);
    }
    let block = |axis: usize| {
        // PyTorch knows blocks of 1 or 128.
        let count = |block: i64| (extents[axis].clone() + Dim::from(block - 1)).floor_div(&block.into());
        let is_covered = |block: i64| count(block) == scales[axis];
        [1, 128].into_iter().find(|&block| is_covered(block))
    };
    match [block(0), block(1)] {
        [Some(first), Some(second)] => Ok(ScaleLayout::Blocks([first, second])),
        _ => unsupported!("scales of the shape {scales:?} for a matrix {extents:?} are not supported"),
    }
}

/// A scale of sums in f32. One for all elements may have any number of axes.
fn sum_scale(c: &mut OpCall<'_, '_>, scale: ValueId) -> EmitResult {
    let is_one = c.ty(scale).numel() == Dim::from(1);
    let scale = if is_one { c.reshape(scale, vec![])? } else { scale };
    c.cast(scale, DType::F32)
}

/// The elements of a matrix times the scales of their blocks, in f32.
fn scaled_blocks(c: &mut OpCall<'_, '_>, x: ValueId, scale: ValueId, blocks: [i64; 2]) -> EmitResult {
    let shape = c.shape(x);
    let mut scale = c.cast(scale, DType::F32)?;
    for (axis, block) in blocks.into_iter().enumerate().filter(|(_, block)| *block > 1) {
        scale = c.repeat_elements(scale, axis, &block.into())?;
        scale = c.slice(scale, axis, 0.into(), shape[axis].clone(), 1)?;
    }
    let x = c.cast(x, DType::F32)?;
    c.binary(BinaryOp::Mul, x, scale)
}

/// `(self * scale_a) @ (mat2 * scale_b) + bias`, rounded once.
fn scaled_product(c: &mut OpCall<'_, '_>) -> EmitResult {
    // Sums in fewer bits are an option of the kernels.
    c.ignore(&["use_fast_accum"]);
    let [x, y, x_scale, y_scale] = c.tensors_named(["self", "mat2", "scale_a", "scale_b"])?;
    let bias = c.opt_tensor("bias")?;
    let dtype = c.opt_dtype("out_dtype")?.unwrap_or(c.dtype(x));
    let result_scale = c.opt_tensor("scale_result")?;
    invalid_if!(
        (c.rank(x), c.rank(y)) != (2, 2),
        "expected two matrices, found {} and {} axes",
        c.rank(x),
        c.rank(y)
    );
    unsupported_if!(
        [x, y].into_iter().any(|factor| !c.dtype(factor).is_float()),
        "factors of {} and {} are not supported",
        c.dtype(x),
        c.dtype(y)
    );
    let layouts = [scale_layout(c, x, x_scale, 1)?, scale_layout(c, y, y_scale, 0)?];
    let mut sums = match layouts {
        [ScaleLayout::Sums, ScaleLayout::Sums] => {
            let (x, y) = (c.cast(x, DType::BF16)?, c.cast(y, DType::BF16)?);
            let sums = c.product_sums(x, y)?;
            let (x_scale, y_scale) = (sum_scale(c, x_scale)?, sum_scale(c, y_scale)?);
            let scales = c.binary(BinaryOp::Mul, x_scale, y_scale)?;
            c.binary(BinaryOp::Mul, sums, scales)?
        }
        [of_x, of_y] => {
            let mut factors = [x, y];
            for (factor, (scale, layout)) in factors.iter_mut().zip([(x_scale, of_x), (y_scale, of_y)]) {
                *factor = match layout {
                    ScaleLayout::Blocks(blocks) => scaled_blocks(c, *factor, scale, blocks)?,
                    ScaleLayout::Sums => scaled_blocks(c, *factor, scale, [1, 1])?,
                };
            }
            c.product_sums(factors[0], factors[1])?
        }
    };
    if let Some(bias) = bias {
        let bias = c.cast(bias, DType::F32)?;
        sums = c.binary(BinaryOp::Add, sums, bias)?;
    }
    // PyTorch scales results of 8 bits only.
    if let Some(scale) = result_scale.filter(|_| dtype.is_storage_float()) {
        let scale = c.cast(scale, DType::F32)?;
        sums = c.binary(BinaryOp::Mul, sums, scale)?;
    }
    c.cast(sums, dtype)
}
