//! Softmax and normalization. They become single ops where the IR has them.

use symmc_import::emit::extent_product;
use symmc_import::normalize::{channel_moments, instance_norm, normalize_channels};
use symmc_import::windows::{WindowAxis, WindowGeometry};
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid_if, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, Scalar, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("Softmax", 13, "softmax", |c| softmax(c, false)),
    row_of_results("LogSoftmax", 13, "log_softmax", |c| softmax(c, true)),
    row("MeanVarianceNormalization", 13, "mean of squares, sqrt, div", |c| {
        let x = c.tensor(0)?;
        let rank = c.rank(x);
        let axes = c.opt_attribute_ints("axes")?.unwrap_or(&[0, 2, 3]);
        let mut axes = axes.iter().map(|&axis| c.resolve_axis(axis, rank)).collect::<RuleResult<Vec<_>>>()?;
        axes.sort_unstable();
        // The spread of equal numbers is 0.
        c.formula([x], |[x]| {
            let centered = x - x.mean(&axes, true);
            let spread = centered.square().mean(&axes, true).sqrt();
            centered / (spread + 1e-9)
        })
    }),
    row_of_results("LayerNormalization", 17, "layer_norm", |c| {
        let x = c.tensor(0)?;
        let weight = c.opt_tensor(1)?;
        let bias = c.opt_tensor(2)?;
        layer_norm(c, x, weight, bias, EPSILON)
    }),
    row_of_results("RMSNormalization", 23, "rms_norm", plain_rms_norm),
    row_of_results("SimplifiedLayerNormalization", 1, "rms_norm", plain_rms_norm),
    row_of_results("com.microsoft::SimplifiedLayerNormalization", 1, "rms_norm", plain_rms_norm),
    row_of_results("com.microsoft::SkipLayerNormalization", 1, "add, layer_norm", |c| {
        let x = add_skip_connection(c, 4)?;
        let weight = c.opt_tensor(2)?;
        let bias = c.opt_tensor(3)?;
        layer_norm(c, x, weight, bias, SKIP_EPSILON)
    }),
    row_of_results("com.microsoft::SkipSimplifiedLayerNormalization", 1, "add, rms_norm", |c| {
        let x = add_skip_connection(c, 3)?;
        let weight = c.opt_tensor(2)?;
        rms_norm(c, x, weight, SKIP_EPSILON)
    }),
    row_of_results("com.microsoft::EmbedLayerNormalization", 1, "take, add, layer_norm", embed_layer_norm),
    row("GroupNormalization", 21, "layer_norm of groups, mul, add", group_norm),
    row_of_results("BatchNormalization", 15, "sub, mul, add", batch_norm),
    row("InstanceNormalization", 22, "layer_norm of channels, mul, add", |c| {
        let [x, weight, bias] = c.first_tensors()?;
        let eps = c.float_or("epsilon", EPSILON)?;
        instance_norm(c, x, [Some(weight), Some(bias)], eps)
    }),
    row("LRN", 13, "x / (sum of squares of adjacent channels) ^ beta", local_response_norm),
    row("LpNormalization", 22, "x / norm", |c| {
        let x = c.tensor(0)?;
        let axis = c.axis_or("axis", -1, c.rank(x))?;
        let p = c.int_or("p", 2)?;
        invalid_if!(p != 1 && p != 2, "expected p of 1 or 2, found {p}");
        c.formula([x], |[x]| {
            let norm = if p == 1 { x.abs().sum(&[axis], true) } else { x.square().sum(&[axis], true).sqrt() };
            // Vectors of zeros stay zeros.
            x / norm.eq(0.0).select(1.0, norm)
        })
    }),
];

/// The default of `epsilon`, which is added to the variance.
const EPSILON: f64 = 1e-5;

/// The default of `epsilon` in ONNX Runtime's ops that normalize a sum.
const SKIP_EPSILON: f64 = 1e-12;

/// Before version 13, all axes from `axis` on were normalized as one.
fn softmax(c: &mut OpCall<'_, '_>, log: bool) -> RuleResult {
    let x = c.tensor(0)?;
    let shape = c.shape(x);
    let axis = c.axis_or("axis", if c.version < 13 { 1 } else { -1 }, shape.len())?;
    if c.version >= 13 || axis + 1 == shape.len() {
        let y = c.emit("softmax", Op::Softmax { axis, log }, &[x])?;
        return c.set_only_result(y);
    }
    let flat = c.reshape(x, vec![extent_product(&shape[..axis]), extent_product(&shape[axis..])])?;
    let y = c.emit("softmax", Op::Softmax { axis: 1, log }, &[flat])?;
    let y = c.reshape(y, shape)?;
    c.set_only_result(y)
}

/// The sum of the first two operands and of the optional operand `bias`. It is also the fourth result.
fn add_skip_connection(c: &mut OpCall<'_, '_>, bias: usize) -> EmitResult {
    let [x, skip] = c.first_tensors()?;
    let mut sum = c.binary(BinaryOp::Add, x, skip)?;
    if let Some(bias) = c.opt_tensor(bias)? {
        sum = c.binary(BinaryOp::Add, sum, bias)?;
    }
    // ONNX Runtime's kernels normalize the sum that they return.
    c.keep_rounding(sum);
    c.set_result(3, sum);
    Ok(sum)
}

fn normalized_axes(c: &OpCall<'_, '_>, x: ValueId) -> RuleResult<usize> {
    let rank = c.rank(x);
    Ok(rank - c.axis_or("axis", -1, rank)?)
}

/// A weight or bias, broadcast to the last `axes` axes of `x`.
fn expand_to_normalized_axes(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    w: Option<ValueId>,
    axes: usize,
) -> RuleResult<Option<ValueId>> {
    let shape = c.shape(x).split_off(c.rank(x) - axes);
    let Some(w) = w else { return Ok(None) };
    let mut extents = c.shape(w);
    while extents.len() > axes && extents.first().and_then(Dim::as_const) == Some(1) {
        extents.remove(0);
    }
    let w = c.reshape(w, extents)?;
    let w = c.expand(w, shape)?;
    c.cast(w, c.dtype(x)).map(Some)
}

fn layer_norm(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    weight: Option<ValueId>,
    bias: Option<ValueId>,
    epsilon: f64,
) -> RuleResult {
    let axes = normalized_axes(c, x)?;
    let eps = c.float_or("epsilon", epsilon)?;
    let weight = expand_to_normalized_axes(c, x, weight, axes)?;
    let bias = expand_to_normalized_axes(c, x, bias, axes)?;
    let y = c.layer_norm(x, (weight, bias), axes, eps)?;
    if c.is_result_read(1) || c.is_result_read(2) {
        let [mean, scale] = c.formulas([x], |[x]| x.mean_and_inverse_std(axes, eps))?;
        c.set_result(1, mean);
        c.set_result(2, scale);
    }
    c.set_only_result(y)
}

/// Operands: words, segments, tables of words, positions and segments, weight and bias of the norm, mask, positions. The
/// second result is 0 without a mask, and the third is the sum of the embeddings.
fn embed_layer_norm(c: &mut OpCall<'_, '_>) -> RuleResult {
    let words = c.tensor(0)?;
    // The mask and its attribute only affect the second result.
    c.ignore(&["mask_index_type"]);
    let has_mask = c.operand_name(7).is_some();
    unsupported_if!(has_mask && c.is_result_read(1), "the positions of padding are not supported");
    let unmasked = c.full(Scalar::Int(0), DType::I32, vec![c.extent(words, 0)])?;
    c.set_result(1, unmasked);
    let table = c.tensor(2)?;
    let mut sum = c.emit("words", Op::Take { axis: 0 }, &[table, words])?;
    let positions = match c.opt_tensor(8)? {
        Some(positions) => positions,
        None => c.iota(c.extent(words, 1), 0, 1, DType::I64)?,
    };
    let table = c.tensor(3)?;
    let embedded = c.emit("positions", Op::Take { axis: 0 }, &[table, positions])?;
    sum = c.binary(BinaryOp::Add, sum, embedded)?;
    if let (Some(segments), Some(table)) = (c.opt_tensor(1)?, c.opt_tensor(4)?) {
        let embedded = c.emit("segments", Op::Take { axis: 0 }, &[table, segments])?;
        sum = c.binary(BinaryOp::Add, sum, embedded)?;
    }
    c.set_result(2, sum);
    let (weight, bias) = (c.tensor(5)?, c.tensor(6)?);
    let y = c.layer_norm(sum, (Some(weight), Some(bias)), 1, c.float_or("epsilon", SKIP_EPSILON)?)?;
    c.set_only_result(y)
}

fn plain_rms_norm(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.tensor(0)?;
    let weight = c.opt_tensor(1)?;
    rms_norm(c, x, weight, EPSILON)
}

/// The normalized value is rounded to the dtype of `x` before it is multiplied by the weight.
fn rms_norm(c: &mut OpCall<'_, '_>, x: ValueId, weight: Option<ValueId>, epsilon: f64) -> RuleResult {
    let axes = normalized_axes(c, x)?;
    let eps = c.float_or("epsilon", epsilon)?;
    let mut operands = vec![x];
    operands.extend(expand_to_normalized_axes(c, x, weight, axes)?);
    let y =
        c.emit("rms_norm", Op::RmsNorm { axes, eps: FloatAttribute(eps), round_first: true }, &operands)?;
    // The inverse of the root mean square is the second result, or the third after a mean that is never
    // computed.
    let inverse = if c.result_count() > 2 { 2 } else { 1 };
    if c.is_result_read(inverse) {
        let scale = c.formula([x], |[x]| x.inverse_rms(axes, eps))?;
        c.set_result(inverse, scale);
    }
    c.set_only_result(y)
}

/// Normalizes `[n, channels, …]` within each group of channels.
fn group_norm(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let shape = c.shape(x);
    unsupported_if!(c.version < 21, "version {} has one weight per group, which is not supported", c.version);
    let groups = c.int("num_groups")?;
    let eps = c.float_or("epsilon", EPSILON)?;
    let flat = c.group_channels(x, groups)?;
    let y = c.emit("layer_norm", Op::LayerNorm { axes: 1, eps: FloatAttribute(eps) }, &[flat])?;
    let mut y = c.reshape(y, shape.clone())?;
    for (op, i) in [(BinaryOp::Mul, 1), (BinaryOp::Add, 2)] {
        let w = c.tensor(i)?;
        let w = c.reshape_per_channel(w, &shape)?;
        y = c.binary(op, y, w)?;
    }
    Ok(y)
}

/// In training, the moments are those of the operand, and the second and third result are the new statistics.
fn batch_norm(c: &mut OpCall<'_, '_>) -> RuleResult {
    let [x, weight, bias, mean, variance] = c.first_tensors()?;
    let eps = c.float_or("epsilon", EPSILON)?;
    let momentum = c.float_or("momentum", 0.9)?;
    let axes = c.rank(x).saturating_sub(2);
    unsupported_if!(
        c.int_or("spatial", 1)? == 0 && axes > 0,
        "statistics for each element (spatial=0) are not supported"
    );
    let is_training = c.flag("training_mode")?;
    unsupported_if!(
        c.version < 14 && (1..c.result_count()).any(|i| c.is_result_read(i)),
        "results beside the first, in version {}, are not supported",
        c.version
    );
    let [used_mean, used_variance] = if is_training { channel_moments(c, x)? } else { [mean, variance] };
    let scale = c.formula([used_variance], |[v]| (v.cast(v.dtype().compute_dtype()) + eps).rsqrt())?;
    let y = normalize_channels(c, x, [used_mean, scale], [Some(weight), Some(bias)])?;
    c.set_result(0, y);
    if is_training {
        for (result, old, new) in [(1, mean, used_mean), (2, variance, used_variance)] {
            let updated = c.formula([old, new], |[old, new]| {
                let mixed = old.cast(new.dtype()) * momentum + new * (1.0 - momentum);
                mixed.cast(old.dtype())
            })?;
            c.set_result(result, updated);
        }
    }
    Ok(())
}

/// `x / (bias + alpha / size * sum)^beta`, where the sum is of the squares in `size` adjacent channels.
fn local_response_norm(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let shape = c.shape(x);
    invalid_if!(shape.len() < 2, "expected at least two axes, found {}", shape.len());
    let size = c.int("size")?;
    let alpha = c.float_or("alpha", 1e-4)?;
    let beta = c.float_or("beta", 0.75)?;
    let bias = c.float_or("bias", 1.0)?;
    let dtype = c.dtype(x);
    invalid_if!(size < 1, "expected a size of at least 1, found {size}");
    let windows = WindowGeometry::new(vec![
        WindowAxis::new(size, 1, 1)?.padded((size - 1) / 2, size / 2)?,
        WindowAxis::new(1, 1, 1)?,
    ])?;
    let planes = vec![shape[0].clone(), 1.into(), shape[1].clone(), extent_product(&shape[2..])];
    let square = c.formula([x], |[x]| x.cast(dtype.compute_dtype()).square().reshape(planes))?;
    let sum = windows.sum_pool(c, square)?;
    c.formula([x, sum], |[x, sum]| {
        let base = sum.reshape(shape) * (alpha / size as f64) + bias;
        let power = base.map(|c, base| c.binary_float(BinaryOp::Pow, base, beta));
        (x.cast(dtype.compute_dtype()) / power).cast(dtype)
    })
}
