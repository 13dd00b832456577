//! Windows on the last axes of an operand: pooling, and sums of windows. See [`symmc_import::windows`].

use symmc_import::pooling::{AverageDivisor, chosen_gradient};
use symmc_import::windows::{WindowAxis, WindowGeometry};
use symmc_import::{Emit, RuleCall, invalid, invalid_if, unsupported_if};
use symmc_ir::Dim;

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

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

/// The integers of an argument, unless it is missing or empty.
fn non_empty_ints(c: &OpCall<'_, '_>, name: &str) -> RuleResult<Option<Vec<i64>>> {
    Ok(c.opt_ints(name)?.filter(|v| !v.is_empty()))
}

/// An integer for each of `n` axes. A single one applies to all axes.
pub(super) fn axis_integers(c: &OpCall<'_, '_>, name: &str, n: usize, default: i64) -> RuleResult<Vec<i64>> {
    let values = non_empty_ints(c, name)?.unwrap_or_else(|| vec![default]);
    let per_axis = if let [one] = values.as_slice() { vec![*one; n] } else { values };
    let most = i64::from(i32::MAX);
    invalid_if!(
        per_axis.len() != n || per_axis.iter().any(|v| !(0..=most).contains(v)),
        "expected {n} integers from 0 to {most} as `{name}`, found {per_axis:?}"
    );
    Ok(per_axis)
}

/// Windows of these extents, as a call places them. `strides` are the default strides, by default 1.
pub(super) fn read_windows(
    c: &OpCall<'_, '_>,
    kernel: &[i64],
    strides: Option<&[i64]>,
) -> RuleResult<WindowGeometry> {
    let n = kernel.len();
    let stride = match (non_empty_ints(c, "stride")?, strides) {
        (None, Some(strides)) => strides.to_vec(),
        _ => axis_integers(c, "stride", n, 1)?,
    };
    let padding = axis_integers(c, "padding", n, 0)?;
    let dilation = axis_integers(c, "dilation", n, 1)?;
    let axes = kernel.iter().zip(stride).zip(dilation).zip(padding);
    let axes = axes.map(|(((&kernel, stride), dilation), padding)| {
        WindowAxis::new(kernel, stride, dilation)?.padded(padding, padding)
    });
    WindowGeometry::new(axes.collect::<RuleResult<_>>()?)
}

/// The transpose of windows: each element of the result is the sum of the window elements on it.
fn fold(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let kernel = non_empty_ints(c, "kernel_size")?.unwrap_or_default();
    let windows = read_windows(c, &kernel, None)?;
    let area = c.dims("output_size")?;
    let is_batch = c.rank(x) == 3;
    let count = Dim::from(windows.elements());
    let channels = c.shape(x).iter().rev().nth(1).and_then(|rows| rows.exact_div(&count));
    let Some(channels) = channels.filter(|_| c.rank(x) <= 3 && area.len() == kernel.len()) else {
        let shape = c.shape(x);
        return invalid!("expected a multiple of {count:?} rows, found {shape:?}");
    };
    let mut shape = vec![if is_batch { c.extent(x, 0) } else { 1.into() }, channels, count];
    shape.extend(windows.axes.iter().zip(&area).map(|(axis, extent)| axis.count(extent)));
    let dtype = c.dtype(x);
    let x = c.cast(x, dtype.compute_dtype())?;
    let x = c.reshape(x, shape)?;
    let y = windows.sum_columns(c, x, &area)?;
    let y = if is_batch { y } else { c.drop_axis(y, 0)? };
    c.cast(y, dtype)
}

/// The windows of a pooling over `n` axes. They are adjacent by default.
fn pool_windows(c: &OpCall<'_, '_>, n: usize) -> RuleResult<WindowGeometry> {
    let kernel = non_empty_ints(c, "kernel_size")?.unwrap_or_default();
    let kernel = if let [one] = kernel.as_slice() { vec![*one; n] } else { kernel };
    invalid_if!(kernel.len() != n, "expected {n} integers as `kernel_size`, found {kernel:?}");
    read_windows(c, &kernel, Some(&kernel))
}

fn apply_ceil_mode(c: &OpCall<'_, '_>, windows: &mut WindowGeometry, shape: &[Dim]) -> RuleResult {
    if c.bool_or("ceil_mode", false)? {
        let extents = shape.get(shape.len().saturating_sub(windows.axes.len())..).unwrap_or_default();
        windows.apply_ceil_mode(c, extents)?;
    }
    Ok(())
}

fn average_divisor(c: &OpCall<'_, '_>) -> RuleResult<AverageDivisor> {
    if let Some(number) = c.opt_int("divisor_override")? {
        c.ignore(&["count_include_pad"]);
        return Ok(AverageDivisor::Number(number as f64));
    }
    let counts_padding = c.bool_or("count_include_pad", true)?;
    Ok(if counts_padding { AverageDivisor::PaddedElements } else { AverageDivisor::Elements })
}

fn average_pool(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let mut windows = pool_windows(c, axes_in_name(c))?;
    apply_ceil_mode(c, &mut windows, &c.shape(x))?;
    let divisor = average_divisor(c)?;
    windows.average_pool(c, x, divisor)
}

fn average_pool_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [gradient, x] = c.tensors_named(["grad_output", "self"])?;
    let mut windows = pool_windows(c, axes_in_name(c))?;
    let shape = c.shape(x);
    apply_ceil_mode(c, &mut windows, &shape)?;
    let divisor = average_divisor(c)?;
    windows.average_pool_gradient(c, gradient, shape, c.dtype(x), divisor)
}

/// The largest element under each window, and its position in the operand, in row-major order of the axes of
/// windows.
fn max_pool(c: &mut OpCall<'_, '_>) -> RuleResult {
    let n = axes_in_name(c);
    let x = c.first_tensor()?;
    let mut windows = pool_windows(c, n)?;
    let dtype = c.dtype(x);
    apply_ceil_mode(c, &mut windows, &c.shape(x))?;
    unsupported_if!(!dtype.is_float(), "operands of {dtype} are not supported");
    let pool = windows.max_pool(c, x)?;
    if c.is_result_read(1) {
        let order: Vec<usize> = (0..n).collect();
        let positions = windows.max_positions(c, &pool, &order)?;
        c.set_result(1, positions);
    }
    c.set_only_result(pool.largest)
}

fn max_pool_backward(c: &mut OpCall<'_, '_>) -> EmitResult {
    let n = axes_in_name(c);
    // The indices already contain the positions of the windows.
    c.ignore(&["kernel_size", "stride", "padding", "dilation", "ceil_mode"]);
    let [gradient, x, places] = c.tensors_named(["grad_output", "self", "indices"])?;
    chosen_gradient(c, gradient, places, c.shape(x), n)
}
