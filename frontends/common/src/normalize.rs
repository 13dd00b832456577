//! Normalization of the channels of `[batch, channels, ...]`.

use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, ValueId};

use crate::emit::{Emit, extent_product};
use crate::failure::RuleResult;
use crate::formula::{EmitFormulas, Term};
use crate::invalid_if;

/// The axes of a channel: all but the second.
pub fn axes_of_channels(rank: usize) -> Vec<usize> {
    (0..rank).filter(|&axis| axis != 1).collect()
}

/// The number of elements of a channel.
pub fn channel_numel(shape: &[Dim]) -> Dim {
    let others = shape.iter().enumerate().filter(|(axis, _)| *axis != 1);
    others.map(|(_, extent)| extent.clone()).fold(Dim::from(1), |a, b| a * b)
}

/// The mean and the variance of each channel in the compute dtype, as vectors.
pub fn channel_moments<C: Emit>(c: &mut C, x: ValueId) -> RuleResult<[ValueId; 2], C::Error> {
    let rank = c.rank(x);
    invalid_if!(rank < 2, "expected at least two axes, found {rank}");
    let axes = axes_of_channels(rank);
    c.formulas([x], |[x]| {
        let x = x.cast(x.dtype().compute_dtype());
        let mean = x.mean(&axes, true);
        let variance = (x - mean).square().mean(&axes, false);
        [mean.reshape(variance.shape()), variance]
    })
}

/// A vector of numbers for each channel in this dtype, so that it broadcasts to the shape.
pub fn per_channel<'f, E>(v: Term<'f, E>, dtype: DType, shape: &[Dim]) -> Term<'f, E> {
    v.cast(dtype).map(|c, v| c.reshape_per_channel(v, shape))
}

fn scale_and_shift<'f, E>(
    y: Term<'f, E>,
    [weight, bias]: [Option<ValueId>; 2],
    shape: &[Dim],
) -> Term<'f, E> {
    let y = weight.map_or(y, |w| y * per_channel(y.term(w), y.dtype(), shape));
    bias.map_or(y, |b| y + per_channel(y.term(b), y.dtype(), shape))
}

/// `(x - mean) * scale * weight + bias`, with a number for each channel, rounded once to the dtype of `x`.
pub fn normalize_channels<C: Emit>(
    c: &mut C,
    x: ValueId,
    [mean, scale]: [ValueId; 2],
    [weight, bias]: [Option<ValueId>; 2],
) -> RuleResult<ValueId, C::Error> {
    let shape = c.shape(x);
    invalid_if!(shape.len() < 2, "expected at least two axes, found {}", shape.len());
    let dtype = c.dtype(x);
    // Statistics and weights may be wider than the operand.
    let x = c.cast(x, dtype.compute_dtype())?;
    c.formula([x, mean, scale], |[x, mean, scale]| {
        let y = (x - per_channel(mean, x.dtype(), &shape)) * per_channel(scale, x.dtype(), &shape);
        scale_and_shift(y, [weight, bias], &shape).cast(dtype)
    })
}

/// Normalizes the channels of each batch element by their own moments.
pub fn instance_norm<C: Emit>(
    c: &mut C,
    x: ValueId,
    [weight, bias]: [Option<ValueId>; 2],
    eps: f64,
) -> RuleResult<ValueId, C::Error> {
    let shape = c.shape(x);
    invalid_if!(shape.len() < 3, "expected at least three axes, found {}", shape.len());
    let dtype = c.dtype(x);
    let x = c.cast(x, dtype.compute_dtype())?;
    let planes = vec![shape[0].clone(), shape[1].clone(), extent_product(&shape[2..])];
    let flat = c.reshape(x, planes)?;
    let y = c.emit("layer_norm", Op::LayerNorm { axes: 1, eps: FloatAttribute(eps) }, &[flat])?;
    let y = c.reshape(y, shape.clone())?;
    c.formula([y], |[y]| scale_and_shift(y, [weight, bias], &shape).cast(dtype))
}

/// The statistics after a step of training: `old * (1 - momentum) + new * momentum`, in the dtype of `old`.
pub fn updated_statistic<C: Emit>(
    c: &mut C,
    old: ValueId,
    new: ValueId,
    momentum: f64,
) -> RuleResult<ValueId, C::Error> {
    c.formula([old, new], |[old, new]| {
        (old.cast(new.dtype()) * (1.0 - momentum) + new * momentum).cast(old.dtype())
    })
}

/// The variance of a sample of `n` elements, from the variance of these elements.
pub fn unbiased_variance<C: Emit>(c: &mut C, variance: ValueId, n: &Dim) -> RuleResult<ValueId, C::Error> {
    let less = (n.clone() - Dim::from(1)).max_with(&0.into());
    c.formula([variance], |[v]| v.binary_dim(BinaryOp::Mul, n).binary_dim(BinaryOp::Div, &less))
}

/// The gradients of the operand, the weight and the bias of [`normalize_channels`]. If the moments are those of the
/// operand, they depend on it.
pub fn channel_norm_gradients<C: Emit>(
    c: &mut C,
    gradient: ValueId,
    x: ValueId,
    [mean, scale]: [ValueId; 2],
    weight: Option<ValueId>,
    has_own_moments: bool,
) -> RuleResult<[ValueId; 3], C::Error> {
    let shape = c.shape(x);
    let dtype = c.dtype(x);
    let axes = axes_of_channels(shape.len());
    let numel = channel_numel(&shape);
    c.formulas([gradient, x, mean, scale], |[g, x, mean, scale]| {
        let wide = dtype.compute_dtype();
        let g = g.cast(wide);
        let scale = per_channel(scale, wide, &shape);
        let normal = (x.cast(wide) - per_channel(mean, wide, &shape)) * scale;
        let sum = g.sum(&axes, true);
        let dot = (g * normal).sum(&axes, true);
        let inner = if has_own_moments {
            let mean_sum = sum.binary_dim(BinaryOp::Div, &numel);
            let mean_dot = dot.binary_dim(BinaryOp::Div, &numel);
            g - mean_sum - normal * mean_dot
        } else {
            g
        };
        let y = inner * scale;
        let y = weight.map_or(y, |w| y * per_channel(y.term(w), wide, &shape));
        let vector = vec![shape.get(1).cloned().unwrap_or(1.into())];
        [y.cast(dtype), dot.reshape(vector.clone()), sum.reshape(vector)]
    })
}
