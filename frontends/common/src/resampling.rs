//! Interpolation between the elements of an axis.
//!
//! Each element of the result has a *coordinate* on the axis of the operand, and is a weighted sum of the elements
//! near it, the *taps*. Axes are resampled one after the other.

use symmc_ir::{BinaryOp, DType, Dim, ReductionKind, Scalar, ValueId};

use crate::emit::Emit;
use crate::failure::RuleResult;
use crate::formula::{EmitFormulas, Term};
use crate::unsupported_if;

/// Rounding of a coordinate to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionRounding {
    Floor,
    Ceil,
    /// To the nearest position; the lower one of two.
    HalfDown,
    /// To the nearest position; the upper one of two.
    HalfUp,
}

/// The weights of the elements around a coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResamplingFilter {
    Nearest(PositionRounding),
    Linear,
    /// Keys' cubic convolution with this coefficient.
    Cubic(f64),
}

/// The distance of neighbouring coordinates.
#[derive(Clone, Debug)]
pub enum ResamplingStep {
    /// The extent of the operand divided by that of the result, rounded before it is multiplied.
    Extents,
    /// A number that positions are multiplied by.
    Factor(f64),
    /// A number that positions are divided by.
    Divisor(f64),
}

/// The coordinates of the elements of the result. `i` is the position of an element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CoordinateTransform {
    /// `offset + step * (i + 0.5) - 0.5`
    HalfPixel { offset: f64 },
    /// The first and the last element are those of the operand.
    AlignCorners,
    /// `step * i`
    Asymmetric,
    /// `step * (i + 0.5)`
    PixelCenters,
    /// From `start` to `end`, as parts of the distance from the first to the last element.
    Crop { start: f64, end: f64 },
}

/// The resampling of one axis.
#[derive(Clone, Debug)]
pub struct AxisResampling {
    pub axis: usize,
    /// The extent of the axis of the result.
    pub count: Dim,
    pub step: ResamplingStep,
    pub transform: CoordinateTransform,
}

/// The properties that all axes have in common.
#[derive(Clone, Copy, Debug)]
pub struct Resampling {
    pub filter: ResamplingFilter,
    /// Whether elements outside the operand have the weight 0. By default they equal the element at the border.
    pub excludes_outside: bool,
    /// Whether the filter is stretched where the result has fewer elements than the operand, so that all of these
    /// contribute. Elements outside the operand then have the weight 0.
    pub antialias: bool,
    /// The value of elements whose coordinates are outside the operand, if it is not that of the filter.
    pub extrapolation: Option<f64>,
}

impl Resampling {
    pub fn new(filter: ResamplingFilter) -> Self {
        Resampling { filter, excludes_outside: false, antialias: false, extrapolation: None }
    }
}

/// An element that contributes to each element of the result.
struct Tap {
    index: ValueId,
    /// `None` if it is the only one.
    weight: Option<ValueId>,
}

/// The dtype in which coordinates are computed.
fn coordinate_dtype(x: DType, filter: ResamplingFilter) -> DType {
    match filter {
        ResamplingFilter::Nearest(_) => DType::F32,
        _ => x.compute_dtype(),
    }
}

impl AxisResampling {
    /// The factor by which each element is repeated, if that is the result.
    fn repetitions(&self, extent: &Dim, filter: ResamplingFilter) -> Option<i64> {
        let ResamplingFilter::Nearest(rounding) = filter else { return None };
        let factor = self.count.exact_div(extent)?.as_const()?;
        let is_factor = match self.step {
            ResamplingStep::Extents => true,
            ResamplingStep::Factor(step) => step == 1.0 / factor as f64,
            ResamplingStep::Divisor(step) => step == factor as f64,
        };
        let is_repetition = match (self.transform, rounding) {
            (CoordinateTransform::Asymmetric, PositionRounding::Floor) => true,
            (
                CoordinateTransform::HalfPixel { offset },
                PositionRounding::HalfDown | PositionRounding::HalfUp,
            ) => offset == 0.0,
            (CoordinateTransform::PixelCenters, PositionRounding::Floor) => true,
            _ => false,
        };
        (is_factor && is_repetition && factor > 0).then_some(factor)
    }

    /// The coordinates of the elements of the result, in this dtype.
    fn coordinates<C: Emit>(&self, c: &mut C, extent: &Dim, dtype: DType) -> RuleResult<ValueId, C::Error> {
        let positions = c.iota(self.count.clone(), 0, 1, DType::I64)?;
        let positions = c.cast(positions, dtype)?;
        let last = extent.clone() - Dim::from(1);
        // Division of 0 by 1 gives the coordinate 0 of a single element.
        let distance = (self.count.clone() - Dim::from(1)).max_with(&1.into());
        match self.transform {
            CoordinateTransform::HalfPixel { offset } => {
                let half = c.formula([positions], |[i]| i + 0.5)?;
                let scaled = self.multiply_by_step(c, half, extent)?;
                c.formula([scaled], |[x]| if offset == 0.0 { x - 0.5 } else { x + offset - 0.5 })
            }
            CoordinateTransform::PixelCenters => {
                let half = c.formula([positions], |[i]| i + 0.5)?;
                self.multiply_by_step(c, half, extent)
            }
            CoordinateTransform::Asymmetric => self.multiply_by_step(c, positions, extent),
            CoordinateTransform::AlignCorners => {
                let step = ratio(c, &last, &distance, dtype)?;
                c.binary(BinaryOp::Mul, positions, step)
            }
            CoordinateTransform::Crop { start, end } => {
                let single = self.count.as_const() == Some(1);
                let last_value = c.emit_dim(&last, dtype)?;
                let step = ratio(c, &last, &distance, dtype)?;
                c.formula([positions, last_value, step], |[i, last, step]| {
                    if single {
                        i + last * (0.5 * (start + end))
                    } else {
                        last * start + i * (step * (end - start))
                    }
                })
            }
        }
    }

    fn multiply_by_step<C: Emit>(
        &self,
        c: &mut C,
        x: ValueId,
        extent: &Dim,
    ) -> RuleResult<ValueId, C::Error> {
        match self.step {
            ResamplingStep::Factor(step) => c.binary_float(BinaryOp::Mul, x, step),
            ResamplingStep::Divisor(step) => c.binary_float(BinaryOp::Div, x, step),
            ResamplingStep::Extents => {
                let dtype = c.dtype(x);
                let step = ratio(c, extent, &self.count, dtype)?;
                c.binary(BinaryOp::Mul, x, step)
            }
        }
    }

    /// The weight of each element of an axis for each element of the result, by a filter that covers all elements
    /// between neighbouring coordinates.
    fn stretched_matrix<C: Emit>(
        &self,
        c: &mut C,
        coordinates: ValueId,
        extent: &Dim,
        filter: ResamplingFilter,
    ) -> RuleResult<ValueId, C::Error> {
        let dtype = c.dtype(coordinates);
        let one = c.full(Scalar::Int(1), dtype, vec![])?;
        let step = match self.transform {
            CoordinateTransform::AlignCorners => {
                let distance = (self.count.clone() - Dim::from(1)).max_with(&1.into());
                ratio(c, &(extent.clone() - Dim::from(1)), &distance, dtype)?
            }
            _ => self.multiply_by_step(c, one, extent)?,
        };
        let positions = c.iota(extent.clone(), 0, 1, DType::I64)?;
        c.formula([coordinates, positions, step, one], |[x, positions, step, one]| {
            let distance = (positions.cast(dtype) - x.unsqueeze(1)).abs() / step.max(one);
            let weights = match filter {
                ResamplingFilter::Cubic(a) => {
                    let near = near_weight(distance, a);
                    let far = far_weight(distance, a);
                    let far = distance.lt(2.0).select(far, 0.0);
                    distance.le(1.0).select(near, far)
                }
                _ => (1.0 - distance).relu(),
            };
            weights / weights.sum(&[1], true)
        })
    }

    /// The taps on an axis of this extent.
    fn taps<C: Emit>(
        &self,
        c: &mut C,
        coordinates: ValueId,
        extent: &Dim,
        resampling: Resampling,
    ) -> RuleResult<Vec<Tap>, C::Error> {
        match resampling.filter {
            ResamplingFilter::Nearest(rounding) => {
                let index = c.formula([coordinates], |[x]| {
                    clamp_position(round_to_position(x, rounding).cast(DType::I64), extent)
                })?;
                Ok(vec![Tap { index, weight: None }])
            }
            ResamplingFilter::Linear => {
                weighted_taps(c, coordinates, extent, resampling, 0, |t| vec![1.0 - t, t])
            }
            ResamplingFilter::Cubic(a) => {
                weighted_taps(c, coordinates, extent, resampling, -1, |t| cubic_weights(t, a))
            }
        }
    }
}

fn round_to_position<E>(x: Term<'_, E>, rounding: PositionRounding) -> Term<'_, E> {
    match rounding {
        PositionRounding::Floor => x.floor(),
        PositionRounding::Ceil => -(-x).floor(),
        PositionRounding::HalfDown => -(0.5 - x).floor(),
        PositionRounding::HalfUp => (x + 0.5).floor(),
    }
}

fn clamp_position<'f, E>(index: Term<'f, E>, extent: &Dim) -> Term<'f, E> {
    index.max(0).binary_dim(BinaryOp::Min, &(extent.clone() - Dim::from(1)))
}

/// The weight of an element at a distance of at most 1.
fn near_weight<E>(d: Term<'_, E>, a: f64) -> Term<'_, E> {
    (d * (a + 2.0) - (a + 3.0)) * d * d + 1.0
}

/// The weight of an element at a distance from 1 to 2.
fn far_weight<E>(d: Term<'_, E>, a: f64) -> Term<'_, E> {
    ((d * a - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
}

/// The weights of Keys' cubic convolution, for the elements from the one before the lower neighbour on. `t` is the
/// distance to the lower neighbour.
pub(crate) fn cubic_weights<E>(t: Term<'_, E>, a: f64) -> Vec<Term<'_, E>> {
    let rest = 1.0 - t;
    vec![far_weight(t + 1.0, a), near_weight(t, a), near_weight(rest, a), far_weight(rest + 1.0, a)]
}

/// The taps at consecutive positions, from `first` after the lower neighbour of a coordinate on. `weights` are
/// functions of the distance to the lower neighbour.
fn weighted_taps<C: Emit>(
    c: &mut C,
    coordinates: ValueId,
    extent: &Dim,
    resampling: Resampling,
    first: i64,
    weights: impl for<'f> Fn(Term<'f, C::Error>) -> Vec<Term<'f, C::Error>>,
) -> RuleResult<Vec<Tap>, C::Error> {
    let [lower, t] = c.formulas([coordinates], |[x]| {
        let floor = x.floor();
        [floor.cast(DType::I64), x - floor]
    })?;
    let mut taps = Vec::new();
    let mut total = None;
    let count = if first == 0 { 2 } else { 4 };
    for k in 0..count {
        let [index, weight] = c.formulas([lower, t], |[lower, t]| {
            let index = if first + k == 0 { lower } else { lower + (first + k) };
            let weight = weights(t).into_iter().nth(k as usize).unwrap_or(t);
            let clamped = clamp_position(index, extent);
            let weight =
                if resampling.excludes_outside { index.eq(clamped).select(weight, 0.0) } else { weight };
            [clamped, weight]
        })?;
        total = Some(match total {
            Some(sum) => c.binary(BinaryOp::Add, sum, weight)?,
            None => weight,
        });
        taps.push((index, weight));
    }
    let mut result = Vec::new();
    for (index, weight) in taps {
        let weight = match total {
            Some(total) if resampling.excludes_outside => c.binary(BinaryOp::Div, weight, total)?,
            _ => weight,
        };
        result.push(Tap { index, weight: Some(weight) });
    }
    Ok(result)
}

/// The quotient of two dims in a float dtype.
fn ratio<C: Emit>(c: &mut C, x: &Dim, y: &Dim, dtype: DType) -> RuleResult<ValueId, C::Error> {
    let x = c.emit_dim(x, dtype)?;
    let y = c.emit_dim(y, dtype)?;
    c.binary(BinaryOp::Div, x, y)
}

/// Resamples axes of an operand, rounded once to its dtype.
pub fn resample<C: Emit>(
    c: &mut C,
    x: ValueId,
    axes: &[AxisResampling],
    resampling: Resampling,
) -> RuleResult<ValueId, C::Error> {
    let dtype = c.dtype(x);
    let is_nearest = matches!(resampling.filter, ResamplingFilter::Nearest(_));
    unsupported_if!(!is_nearest && !dtype.is_float(), "interpolation of {dtype} is not supported");
    let mut y = if is_nearest { x } else { c.cast(x, dtype.compute_dtype())? };
    let mut outside = Vec::new();
    for axis in axes {
        let extent = c.extent(y, axis.axis);
        if let Some(factor) = axis.repetitions(&extent, resampling.filter) {
            y = c.repeat_elements(y, axis.axis, &factor.into())?;
            continue;
        }
        let coordinates = axis.coordinates(c, &extent, coordinate_dtype(dtype, resampling.filter))?;
        if resampling.extrapolation.is_some() {
            let last = extent.clone() - Dim::from(1);
            let is_outside = c.formula([coordinates], |[x]| {
                let last = x.map(|c, x| c.emit_dim(&last, c.dtype(x)));
                x.lt(0.0) | x.gt(last)
            })?;
            outside.push((axis.axis, is_outside));
        }
        y = if resampling.antialias && !is_nearest {
            let matrix = axis.stretched_matrix(c, coordinates, &extent, resampling.filter)?;
            let matrix = c.transposed(matrix)?;
            multiply_axis(c, y, axis.axis, matrix)?
        } else {
            let taps = axis.taps(c, coordinates, &extent, resampling)?;
            sum_of_taps(c, y, axis.axis, &taps)?
        };
    }
    if let Some(value) = resampling.extrapolation {
        for (axis, is_outside) in outside {
            let column = column_shape(c.rank(y), axis, c.extent(y, axis));
            y = c.formula([y, is_outside], |[y, is_outside]| is_outside.reshape(column).select(value, y))?;
        }
    }
    c.cast(y, dtype)
}

/// The shape in which a vector broadcasts along an axis.
fn column_shape(rank: usize, axis: usize, extent: Dim) -> Vec<Dim> {
    std::iter::once(extent).chain((axis + 1..rank).map(|_| Dim::from(1))).collect()
}

fn sum_of_taps<C: Emit>(c: &mut C, x: ValueId, axis: usize, taps: &[Tap]) -> RuleResult<ValueId, C::Error> {
    let mut sum = None;
    for tap in taps {
        let part = c.formula([x, tap.index], |[x, index]| {
            let elements = x.take(axis, index);
            tap.weight.map_or(elements, |weight| {
                let weight = elements.term(weight);
                elements * weight.reshape(column_shape(x.rank(), axis, weight.extent(0)))
            })
        })?;
        sum = Some(match sum {
            Some(sum) => c.binary(BinaryOp::Add, sum, part)?,
            None => part,
        });
    }
    Ok(sum.unwrap_or(x))
}

/// The gradient of an operand of the shape `to` of [`resample`], whose axes have these extents in `gradient`.
pub fn resample_gradient<C: Emit>(
    c: &mut C,
    gradient: ValueId,
    to: &[Dim],
    axes: &[AxisResampling],
    resampling: Resampling,
) -> RuleResult<ValueId, C::Error> {
    let dtype = c.dtype(gradient);
    let mut y = c.cast(gradient, dtype.compute_dtype())?;
    for axis in axes {
        let extent = to.get(axis.axis).cloned().unwrap_or(1.into());
        if let Some(factor) = axis.repetitions(&extent, resampling.filter) {
            let mut shape = c.shape(y);
            shape.splice(axis.axis..=axis.axis, [extent, factor.into()]);
            let parts = c.reshape(y, shape)?;
            y = c.reduce(ReductionKind::Sum, parts, vec![axis.axis + 1], false)?;
            continue;
        }
        let coordinates = axis.coordinates(c, &extent, coordinate_dtype(dtype, resampling.filter))?;
        let matrix = match resampling.filter {
            ResamplingFilter::Linear | ResamplingFilter::Cubic(_) if resampling.antialias => {
                axis.stretched_matrix(c, coordinates, &extent, resampling.filter)?
            }
            _ => {
                let taps = axis.taps(c, coordinates, &extent, resampling)?;
                matrix_of_taps(c, &taps, &extent, dtype.compute_dtype())?
            }
        };
        y = multiply_axis(c, y, axis.axis, matrix)?;
    }
    c.cast(y, dtype)
}

/// The products of the vectors along an axis with a matrix, whose columns become the axis.
pub fn multiply_axis<C: Emit>(
    c: &mut C,
    x: ValueId,
    axis: usize,
    matrix: ValueId,
) -> RuleResult<ValueId, C::Error> {
    let rank = c.rank(x);
    let mut to_last: Vec<usize> = (0..rank).filter(|&a| a != axis).collect();
    to_last.push(axis);
    let mut back: Vec<usize> = (0..rank - 1).collect();
    back.insert(axis, rank - 1);
    c.formula([x, matrix], |[x, matrix]| x.permute(&to_last).numpy_matmul(matrix).permute(&back))
}

/// The weight of each element of an axis for each element of the result.
fn matrix_of_taps<C: Emit>(
    c: &mut C,
    taps: &[Tap],
    extent: &Dim,
    dtype: DType,
) -> RuleResult<ValueId, C::Error> {
    let positions = c.iota(extent.clone(), 0, 1, DType::I64)?;
    let mut sum = None;
    for tap in taps {
        let part = c.formula([tap.index, positions], |[index, positions]| {
            let is_tap = index.unsqueeze(1).eq(positions).cast(dtype);
            tap.weight.map_or(is_tap, |weight| is_tap * is_tap.term(weight).unsqueeze(1))
        })?;
        sum = Some(match sum {
            Some(sum) => c.binary(BinaryOp::Add, sum, part)?,
            None => part,
        });
    }
    match sum {
        Some(matrix) => Ok(matrix),
        None => crate::invalid!("expected a filter with weights, found none"),
    }
}
