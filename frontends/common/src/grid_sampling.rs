//! Sampling at coordinates that a tensor gives.

use symmc_ir::{BinaryOp, DType, Dim, UnaryOp, ValueId};

use crate::emit::{Emit, extent_product};
use crate::failure::RuleResult;
use crate::formula::{EmitFormulas, Term};
use crate::resampling::cubic_weights;
use crate::{invalid, invalid_if, unsupported_if};

/// The elements around a coordinate that contribute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GridFilter {
    Nearest,
    Linear,
    /// Keys' cubic convolution with this coefficient.
    Cubic(f64),
}

/// The elements outside the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridPadding {
    Zeros,
    Border,
    Reflection,
}

/// How a framework treats coordinates outside the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridConvention {
    /// Coordinates are moved inside before they are rounded. Cubic filters extend beyond the border.
    PyTorch,
    /// Coordinates are rounded before they are moved inside, also for cubic filters.
    Onnx,
}

#[derive(Clone, Copy, Debug)]
pub struct GridSampling {
    pub convention: GridConvention,
    pub filter: GridFilter,
    pub padding: GridPadding,
    /// Whether -1 and 1 are the centers of the first and the last element, rather than their outer borders.
    pub align_corners: bool,
}

/// An element along one axis that contributes to each element of the result.
struct GridTap {
    index: ValueId,
    is_inside: ValueId,
    /// `None` if it is the only one.
    weight: Option<ValueId>,
}

impl GridSampling {
    /// The position in elements of a coordinate from -1 to 1.
    fn to_position<'f, E>(self, x: Term<'f, E>, extent: &Dim) -> Term<'f, E> {
        if self.align_corners {
            (x + 1.0).binary_dim(BinaryOp::Mul, &(extent.clone() - Dim::from(1))) * 0.5
        } else {
            ((x + 1.0).binary_dim(BinaryOp::Mul, extent) - 1.0) * 0.5
        }
    }

    /// A position within the operand that stands for one outside.
    fn moved_inside<'f, E>(self, x: Term<'f, E>, extent: &Dim) -> Term<'f, E> {
        match self.padding {
            GridPadding::Zeros => x,
            GridPadding::Border => limit_to_axis(x, extent),
            GridPadding::Reflection => {
                let last = extent.clone() - Dim::from(1);
                let (low, period) = if self.align_corners {
                    (0.0, (Dim::from(2) * last).max_with(&1.into()))
                } else {
                    (-0.5, Dim::from(2) * extent.clone())
                };
                let distance = (x - low).abs().binary_dim(BinaryOp::Rem, &period);
                let opposite = (-distance).binary_dim(BinaryOp::Add, &period);
                limit_to_axis(distance.min(opposite) + low, extent)
            }
        }
    }

    /// The position of a cubic filter, whose elements are moved inside one by one.
    fn limited_to_border<'f, E>(self, x: Term<'f, E>, extent: &Dim) -> Term<'f, E> {
        if (self.convention, self.padding) != (GridConvention::Onnx, GridPadding::Border) {
            return x;
        }
        let margin = if self.align_corners { 0.0 } else { 0.5 };
        let last = x.map(|c, x| c.emit_dim(&(extent.clone() - Dim::from(1)), c.dtype(x)));
        let is_outside = x.lt(-margin) | x.gt(last + margin);
        is_outside.select(limit_to_axis(x, extent), x)
    }

    /// The taps of coordinates along an axis of this extent.
    fn taps<C: Emit>(self, c: &mut C, x: ValueId, extent: &Dim) -> RuleResult<Vec<GridTap>, C::Error> {
        let (first, count) = match self.filter {
            GridFilter::Nearest => (0, 1),
            GridFilter::Linear => (0, 2),
            GridFilter::Cubic(_) => (-1, 4),
        };
        let is_cubic = matches!(self.filter, GridFilter::Cubic(_));
        let mut taps = Vec::with_capacity(count);
        for k in 0..count {
            let [index, is_inside, weight] = c.formulas([x], |[x]| {
                let position = self.to_position(x, extent);
                let (tap, weight) = match (self.filter, self.convention) {
                    (GridFilter::Nearest, GridConvention::PyTorch) => {
                        let position = self.moved_inside(position, extent);
                        (position.unary(UnaryOp::Round), position)
                    }
                    (GridFilter::Nearest, GridConvention::Onnx) => {
                        (self.moved_inside(position.unary(UnaryOp::Round), extent), position)
                    }
                    _ => {
                        let position = match self.filter {
                            GridFilter::Cubic(_) => self.limited_to_border(position, extent),
                            _ => self.moved_inside(position, extent),
                        };
                        let lower = position.floor();
                        let t = position - lower;
                        let weight = match (self.filter, k) {
                            (GridFilter::Cubic(a), _) => cubic_weights(t, a).into_iter().nth(k).unwrap_or(t),
                            (_, 0) => 1.0 - t,
                            _ => t,
                        };
                        (lower + (first + k as i64) as f64, weight)
                    }
                };
                let tap = if is_cubic { self.moved_inside(tap, extent) } else { tap };
                let is_before_end = tap.map(|c, x| c.binary_dim(BinaryOp::Lt, x, extent));
                let is_inside = tap.ge(0.0) & is_before_end;
                [limit_to_axis(tap, extent).cast(DType::I64), is_inside, weight]
            })?;
            taps.push(GridTap { index, is_inside, weight: (count > 1).then_some(weight) });
        }
        Ok(taps)
    }
}

fn limit_to_axis<'f, E>(position: Term<'f, E>, extent: &Dim) -> Term<'f, E> {
    position.max(0.0).binary_dim(BinaryOp::Min, &(extent.clone() - Dim::from(1)))
}

/// The elements of `[batch, channels, ...]` at the coordinates `[batch, ..., axes]`, whose last axis has the
/// coordinate of the last axis of the operand first.
pub fn sample_grid<C: Emit>(
    c: &mut C,
    x: ValueId,
    grid: ValueId,
    sampling: GridSampling,
) -> RuleResult<ValueId, C::Error> {
    let shape = c.shape(x);
    let places = c.shape(grid);
    let dtype = c.dtype(x);
    let n = shape.len().saturating_sub(2);
    unsupported_if!(!dtype.is_float(), "interpolation of {dtype} is not supported");
    invalid_if!(
        n == 0
            || places.len() != n + 2
            || places[0] != shape[0]
            || places[n + 1].as_const() != Some(n as i64),
        "expected coordinates for each batch element and axis of {shape:?}, found {places:?}"
    );
    let wide = dtype.compute_dtype();
    let extents = &shape[2..];
    let count = extent_product(&places[1..=n]);
    let planes = c.reshape(x, vec![shape[0].clone(), shape[1].clone(), extent_product(extents)])?;
    let planes = c.cast(planes, wide)?;
    let mut axes = Vec::with_capacity(n);
    for (axis, extent) in extents.iter().enumerate() {
        let row = vec![shape[0].clone(), 1.into(), count.clone()];
        let coordinate =
            c.formula([grid], |[grid]| grid.slice(n + 1, (n - 1 - axis) as i64, 1).reshape(row).cast(wide))?;
        axes.push(sampling.taps(c, coordinate, extent)?);
    }
    let combinations = axes.iter().map(Vec::len).product();
    let mut sum = None;
    for combination in 0..combinations {
        let part = weighted_elements(c, planes, &axes, extents, combination)?;
        sum = Some(match sum {
            Some(sum) => c.binary(BinaryOp::Add, sum, part)?,
            None => part,
        });
    }
    let Some(sum) = sum else { return invalid!("expected axes to sample, found none") };
    let y = c.cast(sum, dtype)?;
    let outer = shape[..2].iter().chain(&places[1..=n]);
    c.reshape(y, outer.cloned().collect())
}

/// The elements of planes at one tap of each axis, times their weights. `combination` numbers the taps.
fn weighted_elements<C: Emit>(
    c: &mut C,
    planes: ValueId,
    axes: &[Vec<GridTap>],
    extents: &[Dim],
    combination: usize,
) -> RuleResult<ValueId, C::Error> {
    let mut remaining = combination;
    let mut chosen = Vec::with_capacity(axes.len());
    for taps in axes.iter().rev() {
        chosen.push(&taps[remaining % taps.len()]);
        remaining /= taps.len();
    }
    chosen.reverse();
    let [first, others @ ..] = chosen.as_slice() else {
        return invalid!("expected axes to sample, found none");
    };
    c.formula([planes, first.index, first.is_inside], |[planes, index, is_inside]| {
        let (mut index, mut is_inside) = (index, is_inside);
        let mut weight = first.weight.map(|weight| planes.term(weight));
        for (tap, extent) in others.iter().zip(&extents[1..]) {
            index = index.binary_dim(BinaryOp::Mul, extent) + index.term(tap.index);
            is_inside = is_inside & is_inside.term(tap.is_inside);
            weight = weight.zip(tap.weight).map(|(weight, next)| weight * weight.term(next));
        }
        let mut shape = planes.shape();
        if let (Some(last), Some(count)) = (shape.last_mut(), index.shape().last()) {
            *last = count.clone();
        }
        let elements = planes.gather(2, index.expand(shape));
        let weighted = weight.map_or(elements, |weight| elements * weight);
        is_inside.select(weighted, 0.0)
    })
}
