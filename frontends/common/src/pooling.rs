//! Pooling of the elements under windows on the last axes of an operand.

use symmc_ir::{ArgOp, BinaryOp, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar, TensorType, ValueId};

use crate::emit::{Emit, extent_product};
use crate::failure::RuleResult;
use crate::formula::EmitFormulas;
use crate::resampling::multiply_axis;
use crate::windows::WindowGeometry;
use crate::{invalid, invalid_if, unsupported, unsupported_if};

/// The largest number of parts of an axis whose longest one is determined.
const MAX_PARTS: i64 = 1 << 20;

/// The number by which the sum of the elements of a window is divided.
#[derive(Clone, Copy, Debug)]
pub enum AverageDivisor {
    Number(f64),
    /// The number of elements of the window, except those beyond the padding.
    PaddedElements,
    /// The number of elements of the window that are within the operand.
    Elements,
}

/// An operand of pooling over the last `n` axes, reshaped to have a batch axis and one channel.
pub fn flatten_to_one_channel<C: Emit>(c: &mut C, x: ValueId, n: usize) -> RuleResult<ValueId, C::Error> {
    let shape = c.shape(x);
    let outer = shape.len().checked_sub(n);
    let Some(outer) = outer.filter(|o| (1..=2).contains(o)) else {
        return invalid!("expected {} axes, found {}", n + 2, shape.len());
    };
    let batch = extent_product(&shape[..outer]);
    let mut flat = vec![batch, Dim::from(1)];
    flat.extend(shape.into_iter().skip(outer));
    c.reshape(x, flat)
}

/// Replaces the channel of pooled elements by the axes that the operand has before its last `n` axes.
fn restore_channels<C: Emit>(
    c: &mut C,
    y: ValueId,
    mut shape: Vec<Dim>,
    n: usize,
) -> RuleResult<ValueId, C::Error> {
    shape.truncate(shape.len().saturating_sub(n));
    shape.extend(c.shape(y).split_off(2));
    c.reshape(y, shape)
}

impl WindowGeometry {
    /// The means of the elements under the windows on the last axes of `x`.
    pub fn average_pool<C: Emit>(
        &self,
        c: &mut C,
        x: ValueId,
        divisor: AverageDivisor,
    ) -> RuleResult<ValueId, C::Error> {
        let n = self.axes.len();
        let shape = c.shape(x);
        let dtype = c.dtype(x);
        let x = flatten_to_one_channel(c, x, n)?;
        let extents = c.shape(x).split_off(2);
        let x = c.cast(x, dtype.compute_dtype())?;
        let sum = self.sum_pool(c, x)?;
        let y = self.divide_by_counts(c, &extents, sum, divisor)?;
        let y = restore_channels(c, y, shape, n)?;
        c.cast(y, dtype)
    }

    /// The sums of the elements under each window of an operand with one channel.
    pub fn sum_pool<C: Emit>(&self, c: &mut C, x: ValueId) -> RuleResult<ValueId, C::Error> {
        let columns = self.columns(c, x, Scalar::Int(0))?;
        c.reduce(ReductionKind::Sum, columns, vec![1], false)
    }

    /// The gradient of the operand of [`WindowGeometry::average_pool`], of this shape.
    pub fn average_pool_gradient<C: Emit>(
        &self,
        c: &mut C,
        gradient: ValueId,
        shape: Vec<Dim>,
        dtype: DType,
        divisor: AverageDivisor,
    ) -> RuleResult<ValueId, C::Error> {
        let n = self.axes.len();
        let extents = shape.get(shape.len().saturating_sub(n)..).unwrap_or_default().to_vec();
        unsupported_if!(self.exceeds_padding(), "the last windows reach beyond the operand");
        let gradient = flatten_to_one_channel(c, gradient, n)?;
        let gradient = c.cast(gradient, dtype.compute_dtype())?;
        let gradient = self.divide_by_counts(c, &extents, gradient, divisor)?;
        let columns = self.transposed_columns(c, gradient, &extents)?;
        let sum = c.reduce(ReductionKind::Sum, columns, vec![1], false)?;
        let y = c.reshape(sum, shape)?;
        c.cast(y, dtype)
    }

    /// Divides the sums of windows on an operand of these extents.
    fn divide_by_counts<C: Emit>(
        &self,
        c: &mut C,
        extents: &[Dim],
        y: ValueId,
        divisor: AverageDivisor,
    ) -> RuleResult<ValueId, C::Error> {
        let counts_padding = match divisor {
            AverageDivisor::Number(number) => return c.binary_float(BinaryOp::Div, y, number),
            AverageDivisor::PaddedElements => true,
            AverageDivisor::Elements => !self.is_padded(),
        };
        if counts_padding && !self.exceeds_padding() {
            return c.binary_float(BinaryOp::Div, y, self.elements() as f64);
        }
        let mut counted = self.clone();
        let mut shape = vec![Dim::from(1), Dim::from(1)];
        for (axis, extent) in counted.axes.iter_mut().zip(extents) {
            let mut extent = extent.clone();
            if counts_padding {
                extent = extent + axis.padding_before.clone() + axis.padding_after.clone();
                (axis.padding_before, axis.padding_after) = (0.into(), 0.into());
            }
            shape.push(extent);
        }
        let ones = c.full(Scalar::Int(1), c.dtype(y), shape)?;
        let count = counted.sum_pool(c, ones)?;
        c.binary(BinaryOp::Div, y, count)
    }

    /// The largest element under each window on the last axes of `x`, and the columns that it is chosen from.
    pub fn max_pool<C: Emit>(&self, c: &mut C, x: ValueId) -> RuleResult<MaxPool, C::Error> {
        let n = self.axes.len();
        let shape = c.shape(x);
        let dtype = c.dtype(x);
        let x = flatten_to_one_channel(c, x, n)?;
        let extents = c.shape(x).split_off(2);
        let least = match dtype.integer_bounds() {
            Some((least, _)) => Scalar::Int(least),
            None => Scalar::Float(FloatAttribute(f64::NEG_INFINITY)),
        };
        let columns = self.columns(c, x, least)?;
        let y = c.reduce(ReductionKind::Max, columns, vec![1], false)?;
        let counts = c.shape(y).split_off(2);
        let largest = restore_channels(c, y, shape, n)?;
        Ok(MaxPool { largest, columns, extents, counts })
    }

    /// The positions of the largest elements in their planes, whose axes vary from the slowest in this order.
    pub fn max_positions<C: Emit>(
        &self,
        c: &mut C,
        pool: &MaxPool,
        order: &[usize],
    ) -> RuleResult<ValueId, C::Error> {
        let element = c.arg_reduce(ArgOp::Max, pool.columns, 1, false)?;
        let mut position = c.full(Scalar::Int(0), DType::I64, vec![])?;
        for &i in order {
            let (Some(axis), Some(extent), Some(count)) =
                (self.axes.get(i), pool.extents.get(i), pool.counts.get(i))
            else {
                return invalid!("expected an axis of windows, found {i}");
            };
            let inner: i64 = self.axes.iter().skip(i + 1).map(|axis| axis.kernel).product();
            let mut column = vec![Dim::from(1); pool.counts.len() - i];
            column[0] = count.clone();
            let first = Dim::from(0) - axis.padding_before.clone();
            position = c.formula([position, element], |[position, element]| {
                let within = element.floor_div(inner) % axis.kernel * axis.dilation;
                let begin = within.map(|c, _| c.emit_positions(&first, axis.stride, count.clone()));
                let coordinate = within + begin.reshape(column);
                position * position.map(|c, _| c.emit_dim(extent, DType::I64)) + coordinate
            })?;
        }
        let shape = c.shape(pool.largest);
        c.reshape(position, shape)
    }
}

/// The results of max pooling.
#[derive(Clone, Debug)]
pub struct MaxPool {
    pub largest: ValueId,
    columns: ValueId,
    /// The extents of the pooled axes of the operand.
    extents: Vec<Dim>,
    /// The numbers of windows.
    counts: Vec<Dim>,
}

/// The means of an axis in this number of parts of about equal length. Parts overlap where the number does not
/// divide the extent.
fn average_parts<C: Emit>(c: &mut C, x: ValueId, axis: usize, count: &Dim) -> RuleResult<ValueId, C::Error> {
    let n = c.extent(x, axis);
    if let Some(each) = n.exact_div(count) {
        let mut shape = c.shape(x);
        shape.splice(axis..=axis, [count.clone(), each]);
        let parts = c.reshape(x, shape)?;
        return c.reduce(ReductionKind::Mean, parts, vec![axis + 1], false);
    }
    let matrix = part_matrix(c, &n, count, c.dtype(x))?;
    let matrix = c.transposed(matrix)?;
    multiply_axis(c, x, axis, matrix)
}

/// The first position of each of `count` parts of an axis, and the position after the last.
fn part_bounds<C: Emit>(c: &mut C, n: &Dim, count: &Dim) -> RuleResult<[ValueId; 2], C::Error> {
    let part = c.iota(count.clone(), 0, 1, DType::I64)?;
    c.formulas([part], |[part]| {
        let start = part.binary_dim(BinaryOp::Mul, n).binary_dim(BinaryOp::FloorDiv, count);
        let past = (part + 1)
            .binary_dim(BinaryOp::Mul, n)
            .binary_dim(BinaryOp::Add, &(count.clone() - Dim::from(1)));
        [start, past.binary_dim(BinaryOp::FloorDiv, count)]
    })
}

/// The weight of each element of an axis for the mean of each part.
fn part_matrix<C: Emit>(c: &mut C, n: &Dim, count: &Dim, dtype: DType) -> RuleResult<ValueId, C::Error> {
    let [start, end] = part_bounds(c, n, count)?;
    let positions = c.iota(n.clone(), 0, 1, DType::I64)?;
    c.formula([start, end, positions], |[start, end, positions]| {
        let is_inside = start.unsqueeze(1).le(positions) & end.unsqueeze(1).gt(positions);
        is_inside.cast(dtype) / (end - start).unsqueeze(1).cast(dtype)
    })
}

/// The means of the last axes in these numbers of parts.
pub fn adaptive_average_pool<C: Emit>(
    c: &mut C,
    x: ValueId,
    counts: &[Dim],
) -> RuleResult<ValueId, C::Error> {
    let dtype = c.dtype(x);
    let first = c.rank(x).saturating_sub(counts.len());
    let mut y = c.cast(x, dtype.compute_dtype())?;
    for (i, count) in counts.iter().enumerate() {
        y = average_parts(c, y, first + i, count)?;
    }
    c.cast(y, dtype)
}

/// The gradient of an operand of this shape of [`adaptive_average_pool`].
pub fn adaptive_average_pool_gradient<C: Emit>(
    c: &mut C,
    gradient: ValueId,
    to: &[Dim],
    n: usize,
) -> RuleResult<ValueId, C::Error> {
    let dtype = c.dtype(gradient);
    let rank = c.rank(gradient);
    invalid_if!(rank != to.len(), "expected {} axes of the gradient, found {rank}", to.len());
    let mut y = c.cast(gradient, dtype.compute_dtype())?;
    for (axis, extent) in to.iter().enumerate().skip(to.len().saturating_sub(n)) {
        let count = c.extent(y, axis);
        y = match extent.exact_div(&count) {
            Some(each) => {
                let mut shape = c.shape(y);
                let y = c.unsqueeze(y, axis + 1)?;
                let mut wide = c.shape(y);
                wide[axis + 1] = each.clone();
                shape[axis] = extent.clone();
                c.formula([y], |[y]| y.binary_dim(BinaryOp::Div, &each).expand(wide).reshape(shape))?
            }
            None => {
                let matrix = part_matrix(c, extent, &count, c.dtype(y))?;
                multiply_axis(c, y, axis, matrix)?
            }
        };
    }
    c.cast(y, dtype)
}

/// The largest elements of the last axes in these numbers of parts, and their positions in the plane of these axes.
pub fn adaptive_max_pool<C: Emit>(
    c: &mut C,
    x: ValueId,
    counts: &[i64],
) -> RuleResult<[ValueId; 2], C::Error> {
    let n = counts.len();
    let shape = c.shape(x);
    let flat = flatten_to_one_channel(c, x, n)?;
    let extents = c.shape(flat).split_off(2);
    let Some(extents) = extents.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>() else {
        return unsupported!("the operand has symbolic extents");
    };
    invalid_if!(
        extents.iter().chain(counts).any(|&extent| !(1..1 << 31).contains(&extent)),
        "expected axes and sizes of at least 1, found {extents:?} and {counts:?}"
    );
    unsupported_if!(
        counts.iter().any(|&count| count > MAX_PARTS),
        "more than {MAX_PARTS} parts of an axis are not supported, found {counts:?}"
    );
    // All parts have the length of the longest. Elements after the end of a part repeat its last one.
    let lengths = extents.iter().zip(counts).map(|(&extent, &count)| {
        let length = |i: i64| ((i + 1) * extent + count - 1) / count - i * extent / count;
        (0..count).map(length).max().unwrap_or(1)
    });
    let lengths: Vec<i64> = lengths.collect();
    let mut y = flat;
    let mut bounds = Vec::new();
    for (i, (&extent, &count)) in extents.iter().zip(counts).enumerate() {
        let [start, end] = part_bounds(c, &extent.into(), &count.into())?;
        let step = c.iota(lengths[i].into(), 0, 1, DType::I64)?;
        y = c.formula([y, start, end, step], |[y, start, end, step]| {
            let index = (start.unsqueeze(1) + step).min(end.unsqueeze(1) - 1);
            y.take(2 + 2 * i, index)
        })?;
        bounds.push([start, end]);
    }
    let places = (0..n).map(|i| 2 + 2 * i);
    let elements = (0..n).map(|i| 3 + 2 * i);
    let y = c.permute(y, [0, 1].into_iter().chain(places).chain(elements).collect())?;
    let mut columns = c.shape(y);
    columns.truncate(2 + n);
    columns.push(lengths.iter().product::<i64>().into());
    let columns = c.reshape(y, columns)?;
    let largest = c.reduce(ReductionKind::Max, columns, vec![2 + n], false)?;
    let element = c.arg_reduce(ArgOp::Max, columns, 2 + n, false)?;
    let mut position = c.full(Scalar::Int(0), DType::I64, vec![])?;
    for (i, [start, end]) in bounds.into_iter().enumerate() {
        let inner: i64 = lengths.iter().skip(i + 1).product();
        let mut column = vec![Dim::from(1); n - i];
        column[0] = counts[i].into();
        position = c.formula([position, element, start, end], |[position, element, start, end]| {
            let within = element.floor_div(inner) % lengths[i];
            let coordinate = (within + start.reshape(column.clone())).min(end.reshape(column) - 1);
            position * extents[i] + coordinate
        })?;
    }
    let mut result = shape;
    result.truncate(result.len() - n);
    result.extend(counts.iter().map(|&count| Dim::from(count)));
    Ok([c.reshape(largest, result.clone())?, c.reshape(position, result)?])
}

/// The gradient of an operand of this shape whose elements at `places` were chosen. The places are positions in
/// the plane of its last `n` axes.
pub fn chosen_gradient<C: Emit>(
    c: &mut C,
    gradient: ValueId,
    places: ValueId,
    shape: Vec<Dim>,
    n: usize,
) -> RuleResult<ValueId, C::Error> {
    let dtype = c.dtype(gradient);
    let gradient = flatten_planes(c, gradient, n)?;
    let places = flatten_planes(c, places, n)?;
    let gradient = c.cast(gradient, dtype.compute_dtype())?;
    let outer = shape.len().saturating_sub(n);
    let flat = vec![extent_product(&shape[..outer]), extent_product(&shape[outer..])];
    let ty = TensorType::new(dtype.compute_dtype(), flat);
    let zero = c.full(Scalar::Int(0), ty.dtype, ty.shape.clone())?;
    let op = Op::ScatterElements { axis: 1, combine: Some(ReductionKind::Sum) };
    let y = c.emit_as("scatter", op, &[zero, places, gradient], ty)?;
    let y = c.reshape(y, shape)?;
    c.cast(y, dtype)
}

/// Reshapes an operand so that its last `n` axes are one, and the axes before them as well.
fn flatten_planes<C: Emit>(c: &mut C, x: ValueId, n: usize) -> RuleResult<ValueId, C::Error> {
    let x = flatten_to_one_channel(c, x, n)?;
    let shape = c.shape(x);
    c.reshape(x, vec![c.extent(x, 0), extent_product(&shape[2..])])
}
