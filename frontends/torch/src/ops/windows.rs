//! Windows on the last axes of an operand, `[batch, channels, ...]`, for convolutions and pooling.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{ArgOp, BinaryOp, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar, TensorType, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.avg_pool2d.default aten.avg_pool3d.default", "pad, slice, concat, sum", average_pool),
    row(
        "aten.avg_pool2d_backward.default aten.avg_pool3d_backward.default",
        "pad, slice, concat, sum",
        average_pool_backward,
    ),
    row("aten.col2im", "slice, pad, add", fold),
    row_of_results(
        "aten.max_pool2d_with_indices.default aten.max_pool3d_with_indices.default",
        "pad, slice, concat, max, argmax",
        max_pool,
    ),
    row(
        "aten.max_pool2d_with_indices_backward.default aten.max_pool3d_with_indices_backward.default",
        "scatter",
        max_pool_backward,
    ),
];

/// The number of axes of windows in the name of an operator, such as 2 in `aten.conv2d`. 0 if it has none.
pub(super) fn axes_in_name(c: &OpCall<'_, '_>) -> usize {
    let digits = c.node.target.as_bytes().windows(2).filter(|w| w[0].is_ascii_digit() && w[1] == b'd');
    digits.map(|w| usize::from(w[0] - b'0')).next().unwrap_or(0)
}

/// The largest number of elements of a window. Each element is a slice.
const MOST: i64 = 128;

/// The positions of windows, by axis.
#[derive(Clone)]
pub(super) struct WindowGeometry {
    pub kernel: Vec<i64>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    /// The number of elements by which the last window exceeds the padding.
    beyond: Vec<Dim>,
}

/// The integers of an argument, unless it is missing or empty.
fn non_empty_ints(c: &OpCall<'_, '_>, name: &str) -> RuleResult<Option<Vec<i64>>> {
    Ok(c.opt_ints(name)?.filter(|v| !v.is_empty()))
}

impl WindowGeometry {
    /// Windows of these extents, as a call places them. `step` is the default stride.
    pub fn from_call(c: &OpCall<'_, '_>, kernel: Vec<i64>, step: i64) -> RuleResult<WindowGeometry> {
        let beyond = vec![Dim::from(0); kernel.len()];
        let unplaced = WindowGeometry { kernel, stride: vec![], padding: vec![], dilation: vec![], beyond };
        unsupported_if!(
            unplaced.kernel.iter().try_fold(1i64, |a, &k| a.checked_mul(k)).is_none_or(|e| e < 1),
            "a kernel of the extents {:?} is not supported",
            unplaced.kernel
        );
        let stride = unplaced.axis_integers(c, "stride", step, 1)?;
        let padding = unplaced.axis_integers(c, "padding", 0, 0)?;
        let dilation = unplaced.axis_integers(c, "dilation", 1, 1)?;
        Ok(WindowGeometry { stride, padding, dilation, ..unplaced })
    }

    /// An integer for each axis. A single one applies to all axes.
    pub fn axis_integers(
        &self,
        c: &OpCall<'_, '_>,
        name: &str,
        default: i64,
        least: i64,
    ) -> RuleResult<Vec<i64>> {
        let n = self.kernel.len();
        let values = non_empty_ints(c, name)?.unwrap_or_else(|| vec![default]);
        let per_axis = if let [one] = values.as_slice() { vec![*one; n] } else { values };
        if per_axis.len() != n || per_axis.iter().any(|&v| v < least || v > i64::from(i32::MAX)) {
            let message =
                format!("expected {n} integers of at least {least} as `{name}`, found {per_axis:?}");
            return Err(RuleFailure::Invalid(message));
        }
        Ok(per_axis)
    }

    pub fn elements(&self) -> i64 {
        self.kernel.iter().product()
    }

    /// Extent, stride, padding and dilation of each axis.
    fn axis_parameters(&self) -> impl Iterator<Item = (i64, i64, i64, i64)> + '_ {
        let parameters = self.kernel.iter().zip(&self.stride).zip(&self.padding).zip(&self.dilation);
        parameters.map(|(((&k, &s), &p), &d)| (k, s, p, d))
    }

    /// The extents of an operand with this number of windows, plus `further` elements after the last.
    pub fn covered_extents(&self, count: &[Dim], further: &[i64]) -> Vec<Dim> {
        let axes = self.axis_parameters().zip(count).zip(further);
        let extents = axes.map(|(((k, s, p, d), count), &further)| {
            (count.clone() - Dim::from(1)) * Dim::from(s) + Dim::from(window_span(k, d) + further - 2 * p)
        });
        extents.collect()
    }

    /// Whether the windows neither overlap nor leave gaps.
    fn are_disjoint(&self) -> bool {
        self.axis_parameters().all(|(k, s, p, d)| k == s && p == 0 && d == 1)
    }

    fn exceed_padding(&self) -> bool {
        self.beyond.iter().any(|b| b.as_const() != Some(0))
    }

    /// Extends the windows beyond the padding of an operand of these extents, if the call requests ceil mode.
    /// A window must start within the operand or the padding before it. A single window on an axis ends where
    /// the padding does.
    fn apply_ceil_mode(&mut self, c: &OpCall<'_, '_>, area: &[Dim]) -> RuleResult {
        if !c.bool_or("ceil_mode", false)? {
            return Ok(());
        }
        let axes: Vec<(i64, i64, i64, i64)> = self.axis_parameters().collect();
        for (i, ((k, s, p, d), n)) in axes.into_iter().zip(area).enumerate() {
            if (n.clone() + Dim::from(2 * p - window_span(k, d))).exact_div(&s.into()).is_some() {
                continue;
            }
            // A window starts before the end of the operand, which includes the padding in front of it.
            let padded = n.clone() + Dim::from(2 * p);
            let mut last_window =
                (padded.clone() - Dim::from(window_span(k, d)) + Dim::from(s - 1)).floor_div(&s.into());
            if p.saturating_add(s) > window_span(k, d) {
                let Some(n) = n.as_const() else {
                    return unsupported!("the last windows may begin beyond the operand");
                };
                last_window = last_window.min_with(&(n.saturating_add(p) - 1).div_euclid(s).into());
            }
            match (last_window.as_const(), padded.as_const()) {
                (Some(..=0), Some(padded)) if d == 1 => {
                    (self.kernel[i], self.stride[i]) = (k.min(padded), k.min(padded).max(1));
                }
                _ => {
                    let beyond = last_window * Dim::from(s) + Dim::from(window_span(k, d)) - padded;
                    self.beyond[i] =
                        if c.dim_bounds(&beyond).0 < 0 { beyond.max_with(&0.into()) } else { beyond };
                }
            }
        }
        Ok(())
    }

    fn check_count(&self) -> RuleResult {
        match self.elements() {
            n if n <= MOST => Ok(()),
            n => unsupported!("the kernel has {n} elements, more than {MOST}"),
        }
    }
}

/// The distance from the first to the last element under a window, both included.
fn window_span(kernel: i64, dilation: i64) -> i64 {
    (kernel - 1).saturating_mul(dilation).saturating_add(1)
}

/// The elements under each element of a window, for all windows: `[batch, elements, channels, ...]`.
pub(super) fn window_columns(c: &mut OpCall<'_, '_>, x: ValueId, windows: &WindowGeometry) -> EmitResult {
    window_columns_padded(c, x, windows, Scalar::Int(0))
}

/// The same as [`window_columns`], with padding of the value `around`.
fn window_columns_padded(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    windows: &WindowGeometry,
    around: Scalar,
) -> EmitResult {
    let low: Vec<i64> = windows.padding.clone();
    let mut extents = Vec::new();
    let mut area = Vec::new();
    for (i, ((k, s, p, d), beyond)) in windows.axis_parameters().zip(&windows.beyond).enumerate() {
        let extent = c.extent(x, i + 2) + Dim::from(2 * p) + beyond.clone();
        let room = extent.clone() - Dim::from(window_span(k, d));
        unsupported_if!(
            c.dim_bounds(&room).0 < 0,
            "{n:?} elements of an axis may be fewer than the {reach} of the kernel",
            n = c.extent(x, i + 2),
            reach = window_span(k, d)
        );
        extents.push(room.floor_div(&s.into()) + Dim::from(1));
        area.push(extent);
    }
    if windows.are_disjoint() {
        let x = pad_operand(c, x, &low, area, around)?;
        return tile_columns(c, x, windows, &extents);
    }
    windows.check_count()?;
    let x = pad_operand(c, x, &low, area, around)?;
    window_slices(c, x, windows, &extents, |element| element)
}

/// The slices of an operand under adjacent windows.
fn tile_columns(c: &mut OpCall<'_, '_>, x: ValueId, windows: &WindowGeometry, extents: &[Dim]) -> EmitResult {
    let mut x = x;
    let n = extents.len();
    let mut shape = c.shape(x);
    let mut inner = Vec::new();
    let mut outer = Vec::new();
    shape.truncate(2);
    for (i, (&k, extent)) in windows.kernel.iter().zip(extents).enumerate() {
        x = c.slice(x, i + 2, 0.into(), extent.clone() * Dim::from(k), 1)?;
        shape.extend([extent.clone(), k.into()]);
        outer.push(2 + 2 * i);
        inner.push(3 + 2 * i);
    }
    let x = c.reshape(x, shape)?;
    let order = std::iter::once(0).chain(inner).chain([1]).chain(outer).collect();
    let x = c.permute(x, order)?;
    let mut shape = vec![c.extent(x, 0), windows.elements().into(), c.extent(x, n + 1)];
    shape.extend(extents.iter().cloned());
    c.reshape(x, shape)
}

/// The slices of a padded operand under each element of a window, concatenated along axis 1. `of` maps the
/// position in the result to the element.
fn window_slices(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    windows: &WindowGeometry,
    extents: &[Dim],
    of: impl Fn(i64) -> i64,
) -> EmitResult {
    let mut slices = Vec::new();
    for element in 0..windows.elements() {
        let mut piece = x;
        let mut remaining = of(element);
        for (i, (k, s, _, d)) in windows.axis_parameters().enumerate().collect::<Vec<_>>().into_iter().rev() {
            let len = extents.get(i).cloned().unwrap_or(1.into());
            piece = c.slice(piece, i + 2, ((remaining % k) * d).into(), len, s)?;
            remaining /= k;
        }
        slices.push(c.unsqueeze(piece, 1)?);
    }
    c.concat(&slices, 1)
}

/// Pads the operand with a number: `low` elements before, and as many after as the extents `area` require.
fn pad_operand(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    low: &[i64],
    area: Vec<Dim>,
    around: Scalar,
) -> EmitResult {
    let dtype = c.dtype(x);
    let mut shape = c.shape(x);
    if shape.get(2..) == Some(area.as_slice()) && low.iter().all(|&l| l == 0) {
        return Ok(x);
    }
    shape.truncate(2);
    shape.extend(area);
    let low = [0, 0].iter().chain(low).map(|&l| Dim::from(l)).collect();
    let value = around.convert_to(dtype);
    c.emit_as("pad", Op::Pad { low, value }, &[x], TensorType::new(dtype, shape))
}

/// The columns of the transposed operation, which [`window_columns`] gives of the forward one. For each
/// element of a window, from the last to the first, the result has the element of `x` that it contributed to,
/// for an operand of the extents `to`. It is 0 where there is none.
pub(super) fn transposed_columns(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    windows: &WindowGeometry,
    to: &[Dim],
) -> EmitResult {
    windows.check_count()?;
    let mut x = x;
    let mut low = Vec::new();
    let mut area = Vec::new();
    for (i, ((k, s, p, d), to)) in windows.axis_parameters().zip(to).enumerate() {
        x = insert_zeros(c, x, i + 2, s)?;
        let front = window_span(k, d) - 1 - p;
        let extent = to.clone() + Dim::from(window_span(k, d) - 1);
        let after = extent.clone() - c.extent(x, i + 2) - Dim::from(front);
        unsupported_if!(
            front < 0 || c.dim_bounds(&after).0 < 0,
            "the padding of {p} may exceed the span of the kernel"
        );
        low.push(front);
        area.push(extent);
    }
    let x = pad_operand(c, x, &low, area, Scalar::Int(0))?;
    let count = windows.elements();
    let dense = WindowGeometry {
        kernel: windows.kernel.clone(),
        stride: vec![1; to.len()],
        padding: vec![0; to.len()],
        dilation: windows.dilation.clone(),
        beyond: vec![Dim::from(0); to.len()],
    };
    window_slices(c, x, &dense, to, |element| count - 1 - element)
}

/// The transpose of [`window_columns`]: each element of the operand is the sum of the window elements on it.
fn fold(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let kernel = non_empty_ints(c, "kernel_size")?.unwrap_or_default();
    let windows = WindowGeometry::from_call(c, kernel, 1)?;
    let area = c.dims("output_size")?;
    windows.check_count()?;
    let is_batch = c.rank(x) == 3;
    let count = Dim::from(windows.elements());
    let n = windows.kernel.len();
    let channels = c.shape(x).iter().rev().nth(1).and_then(|rows| rows.exact_div(&count));
    let Some(channels) = channels.filter(|_| c.rank(x) <= 3 && area.len() == n) else {
        let shape = c.shape(x);
        return invalid!("expected a multiple of {count:?} rows, found {shape:?}");
    };
    let mut shape = vec![if is_batch { c.extent(x, 0) } else { 1.into() }, channels, count];
    let mut around = Vec::new();
    for ((k, s, p, d), extent) in windows.axis_parameters().zip(&area) {
        let padded = extent.clone() + Dim::from(2 * p);
        shape.push((padded.clone() - Dim::from(window_span(k, d))).floor_div(&s.into()) + Dim::from(1));
        around.push(padded);
    }
    let dtype = c.dtype(x);
    let x = c.cast(x, dtype.compute_dtype())?;
    let x = c.reshape(x, shape)?;
    let mut sum = None;
    for element in 0..windows.elements() {
        let piece = place_element(c, x, &windows, element, &around)?;
        sum = Some(match sum {
            Some(sum) => c.binary(BinaryOp::Add, sum, piece)?,
            None => piece,
        });
    }
    let Some(mut y) = sum else { return invalid!("expected a kernel, found none") };
    for (i, ((.., p, _), extent)) in windows.axis_parameters().zip(area).enumerate() {
        y = c.slice(y, i + 2, p.into(), extent, 1)?;
    }
    let y = if is_batch { y } else { c.drop_axis(y, 0)? };
    c.cast(y, dtype)
}

/// One element of all windows, at its positions in an operand of the extents `around`. Other positions are 0.
fn place_element(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    windows: &WindowGeometry,
    element: i64,
    around: &[Dim],
) -> EmitResult {
    let piece = c.slice(x, 2, element.into(), 1.into(), 1)?;
    let mut piece = c.drop_axis(piece, 2)?;
    let mut remaining = element;
    let mut low = vec![0; windows.kernel.len()];
    for (i, (k, s, _, d)) in windows.axis_parameters().enumerate().collect::<Vec<_>>().into_iter().rev() {
        low[i] = (remaining % k) * d;
        remaining /= k;
        piece = insert_zeros(c, piece, i + 2, s)?;
    }
    pad_operand(c, piece, &low, around.to_vec(), Scalar::Int(0))
}

/// The elements of an axis with `step - 1` zeros between them.
fn insert_zeros(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize, step: i64) -> EmitResult {
    if step == 1 {
        return Ok(x);
    }
    let dtype = c.dtype(x);
    let n = c.extent(x, axis);
    let mut shape = c.shape(x);
    let x = c.unsqueeze(x, axis + 1)?;
    let mut wide = c.shape(x);
    let low = vec![Dim::from(0); wide.len()];
    if let Some(extent) = wide.get_mut(axis + 1) {
        *extent = step.into();
    }
    let value = Scalar::Int(0).convert_to(dtype);
    let x = c.emit_as("pad", Op::Pad { low, value }, &[x], TensorType::new(dtype, wide))?;
    if let Some(extent) = shape.get_mut(axis) {
        *extent = n.clone() * Dim::from(step);
    }
    let x = c.reshape(x, shape)?;
    c.slice(x, axis, 0.into(), n * Dim::from(step) - Dim::from(step - 1), 1)
}

fn pool_windows(c: &OpCall<'_, '_>, n: usize) -> RuleResult<WindowGeometry> {
    let kernel = non_empty_ints(c, "kernel_size")?.unwrap_or_default();
    let kernel = if let [one] = kernel.as_slice() { vec![*one; n] } else { kernel };
    invalid_if!(kernel.len() != n, "expected {n} integers as `kernel_size`, found {kernel:?}");
    let mut windows = WindowGeometry::from_call(c, kernel, 1)?;
    if non_empty_ints(c, "stride")?.is_none() {
        windows.stride.clone_from(&windows.kernel);
    }
    Ok(windows)
}

/// An operand of pooling, reshaped to have a batch axis and one channel.
fn flatten_to_one_channel(c: &mut OpCall<'_, '_>, x: ValueId, n: usize) -> EmitResult {
    let shape = c.shape(x);
    let outer = shape.len().checked_sub(n);
    let Some(outer) = outer.filter(|o| (1..=2).contains(o)) else {
        return invalid!("expected {} axes, found {}", n + 2, shape.len());
    };
    let batch = shape.iter().take(outer).cloned().fold(Dim::from(1), |a, b| a * b);
    let mut flat = vec![batch, Dim::from(1)];
    flat.extend(shape.into_iter().skip(outer));
    c.reshape(x, flat)
}

/// Divides the sums of windows by the number of elements that count: one number, or one for each window.
fn divide_by_counts(
    c: &mut OpCall<'_, '_>,
    windows: &WindowGeometry,
    area: &[Dim],
    y: ValueId,
) -> EmitResult {
    if let Some(number) = c.opt_int("divisor_override")? {
        c.ignore(&["count_include_pad"]);
        return c.binary_float(BinaryOp::Div, y, number as f64);
    }
    let counts_padding = c.bool_or("count_include_pad", true)? || windows.padding.iter().all(|&p| p == 0);
    if counts_padding && !windows.exceed_padding() {
        return c.binary_float(BinaryOp::Div, y, windows.elements() as f64);
    }
    let mut counted = windows.clone();
    let mut shape = vec![Dim::from(1), Dim::from(1)];
    shape.extend(area.iter().cloned());
    if counts_padding {
        for (extent, padding) in shape.iter_mut().skip(2).zip(&mut counted.padding) {
            *extent = extent.clone() + Dim::from(2 * std::mem::take(padding));
        }
    }
    let ones_area = c.full(Scalar::Int(1), c.dtype(y), shape)?;
    let ones = window_columns(c, ones_area, &counted)?;
    let count = c.reduce(ReductionKind::Sum, ones, vec![1], false)?;
    c.binary(BinaryOp::Div, y, count)
}

fn average_pool(c: &mut OpCall<'_, '_>) -> EmitResult {
    let n = axes_in_name(c);
    let x = c.first_tensor()?;
    let mut windows = pool_windows(c, n)?;
    let mut shape = c.shape(x);
    let dtype = c.dtype(x);
    let x = flatten_to_one_channel(c, x, n)?;
    let area = c.shape(x).split_off(2);
    windows.apply_ceil_mode(c, &area)?;
    let x = c.cast(x, dtype.compute_dtype())?;
    let columns = window_columns(c, x, &windows)?;
    let sum = c.reduce(ReductionKind::Sum, columns, vec![1], false)?;
    let y = divide_by_counts(c, &windows, &area, sum)?;
    shape.truncate(shape.len().saturating_sub(n));
    shape.extend(c.shape(y).split_off(2));
    let y = c.reshape(y, shape)?;
    c.cast(y, dtype)
}

fn average_pool_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    let n = axes_in_name(c);
    let [gradient, x] = c.tensors_named(["grad_output", "self"])?;
    let mut windows = pool_windows(c, n)?;
    let shape = c.shape(x);
    let dtype = c.dtype(x);
    let area = shape.get(shape.len().saturating_sub(n)..).unwrap_or_default().to_vec();
    windows.apply_ceil_mode(c, &area)?;
    unsupported_if!(windows.exceed_padding(), "the last windows reach beyond the operand");
    let gradient = flatten_to_one_channel(c, gradient, n)?;
    let gradient = c.cast(gradient, dtype.compute_dtype())?;
    let gradient = divide_by_counts(c, &windows, &area, gradient)?;
    let columns = transposed_columns(c, gradient, &windows, &area)?;
    let sum = c.reduce(ReductionKind::Sum, columns, vec![1], false)?;
    let y = c.reshape(sum, shape)?;
    c.cast(y, dtype)
}

/// The largest element under each window, and its position in the operand, in row-major order of the axes of
/// windows.
fn max_pool(c: &mut OpCall<'_, '_>) -> RuleResult {
    let n = axes_in_name(c);
    let x = c.first_tensor()?;
    let mut windows = pool_windows(c, n)?;
    let mut shape = c.shape(x);
    let dtype = c.dtype(x);
    let x = flatten_to_one_channel(c, x, n)?;
    let area = c.shape(x).split_off(2);
    windows.apply_ceil_mode(c, &area)?;
    unsupported_if!(!dtype.is_float(), "operands of {dtype} are not supported");
    let columns = window_columns_padded(c, x, &windows, Scalar::Float(FloatAttribute(f64::NEG_INFINITY)))?;
    let y = c.reduce(ReductionKind::Max, columns, vec![1], false)?;
    let standing = c.shape(y).split_off(2);
    shape.truncate(shape.len().saturating_sub(n));
    shape.extend(standing.iter().cloned());
    if c.is_result_read(1) {
        let element = c.arg_reduce(ArgOp::Max, columns, 1, false)?;
        let positions = element_positions(c, &windows, &area, &standing, element)?;
        let positions = c.reshape(positions, shape.clone())?;
        c.set_result(1, positions);
    }
    let y = c.reshape(y, shape)?;
    c.set_only_result(y)
}

/// The positions of window elements in an operand of the extents `area`, from their numbers within their
/// windows.
fn element_positions(
    c: &mut OpCall<'_, '_>,
    windows: &WindowGeometry,
    area: &[Dim],
    standing: &[Dim],
    element: ValueId,
) -> EmitResult {
    let mut position = c.full(Scalar::Int(0), DType::I64, vec![])?;
    let mut inner = windows.elements();
    for (i, (((k, s, p, d), extent), count)) in windows.axis_parameters().zip(area).zip(standing).enumerate()
    {
        inner /= k;
        let mut column = vec![Dim::from(1); standing.len() - i];
        column[0] = count.clone();
        position = c.formula([position, element], |[position, element]| {
            let within = element.floor_div(inner) % k * d;
            let begin = within.map(|c, _| c.iota(count.clone(), -p, s, DType::I64));
            let coordinate = within + begin.reshape(column);
            position * position.map(|c, _| c.emit_dim(extent, DType::I64)) + coordinate
        })?;
    }
    Ok(position)
}

fn max_pool_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    let n = axes_in_name(c);
    // The indices already contain the positions of the windows.
    c.ignore(&["kernel_size", "stride", "padding", "dilation", "ceil_mode"]);
    let [gradient, x, places] = c.tensors_named(["grad_output", "self", "indices"])?;
    let shape = c.shape(x);
    let dtype = c.dtype(gradient);
    let x = flatten_plane(c, x, n)?;
    let gradient = flatten_plane(c, gradient, n)?;
    let places = flatten_plane(c, places, n)?;
    let gradient = c.cast(gradient, dtype.compute_dtype())?;
    let ty = TensorType::new(dtype.compute_dtype(), c.shape(x));
    let zero = c.full(Scalar::Int(0), ty.dtype, ty.shape.clone())?;
    let op = Op::ScatterElements { axis: 1, combine: Some(ReductionKind::Sum) };
    let y = c.emit_as("scatter", op, &[zero, places, gradient], ty)?;
    let y = c.reshape(y, shape)?;
    c.cast(y, dtype)
}

fn flatten_plane(c: &mut OpCall<'_, '_>, x: ValueId, n: usize) -> EmitResult {
    let x = flatten_to_one_channel(c, x, n)?;
    let flat = c.shape(x).into_iter().skip(2).fold(Dim::from(1), |a, b| a * b);
    let outer = c.extent(x, 0);
    c.reshape(x, vec![outer, flat])
}
