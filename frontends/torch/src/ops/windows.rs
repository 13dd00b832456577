//! Windows on the last axes of an operand: pooling, and sums of windows. See [`symmc_import::windows`].

use symmc_import::pooling::{
    AverageDivisor, adaptive_average_pool, adaptive_average_pool_gradient, adaptive_max_pool, chosen_gradient,
};
use symmc_import::windows::{WindowAxis, WindowGeometry};
use symmc_import::{Emit, RuleCall, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{DType, Dim, Scalar, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};
use crate::schema::Argument;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.avg_pool1d aten.avg_pool2d aten.avg_pool3d", "pad, slice, concat, sum", average_pool),
    row(
        "aten.avg_pool2d_backward.default aten.avg_pool3d_backward.default",
        "pad, slice, concat, sum",
        average_pool_backward,
    ),
    row("aten.col2im", "slice, pad, add", fold),
    row("aten.im2col", "pad, slice, concat", unfold),
    row_of_results(
        "aten.max_pool1d aten.max_pool2d aten.max_pool3d aten.max_pool1d_with_indices \
         aten.max_pool2d_with_indices aten.max_pool3d_with_indices",
        "pad, slice, concat, max, argmax",
        max_pool,
    ),
    row(
        "aten.max_pool2d_with_indices_backward.default aten.max_pool3d_with_indices_backward.default \
         aten.adaptive_max_pool2d_backward.default aten.adaptive_max_pool3d_backward.default",
        "scatter",
        max_pool_backward,
    ),
    row(
        "aten.adaptive_avg_pool1d aten.adaptive_avg_pool2d aten.adaptive_avg_pool3d aten._adaptive_avg_pool2d \
         aten._adaptive_avg_pool3d",
        "mean; matmul",
        |c| {
            let x = c.first_tensor()?;
            let counts = output_sizes(c, x)?;
            adaptive_average_pool(c, x, &counts)
        },
    ),
    row("aten._adaptive_avg_pool2d_backward aten._adaptive_avg_pool3d_backward", "expand; matmul", |c| {
        let [gradient, x] = c.tensors_named(["grad_output", "self"])?;
        let shape = c.shape(x);
        adaptive_average_pool_gradient(c, gradient, &shape, axes_in_name(c))
    }),
    row_of_results(
        "aten.adaptive_max_pool1d aten.adaptive_max_pool2d aten.adaptive_max_pool3d",
        "take, max, argmax",
        |c| {
            let x = c.first_tensor()?;
            let counts = output_sizes(c, x)?.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>();
            let Some(counts) = counts else { return unsupported!("`output_size` is symbolic") };
            let results = adaptive_max_pool(c, x, &counts)?;
            c.set_results(results)
        },
    ),
];

/// The sizes of the last axes of a result of adaptive pooling.
fn output_sizes(c: &OpCall<'_, '_>, x: ValueId) -> RuleResult<Vec<Dim>> {
    let n = axes_in_name(c);
    let counts = c.dims("output_size")?;
    let counts = if let [one] = counts.as_slice() { vec![one.clone(); n] } else { counts };
    let rank = c.rank(x);
    invalid_if!(counts.len() != n, "expected {n} integers as `output_size`, found {counts:?}");
    invalid_if!(rank != n + 1 && rank != n + 2, "expected {} axes, found {rank}", n + 2);
    unsupported_if!(
        counts.iter().any(|count| c.dim_bounds(count).0 < 1),
        "an output_size of 0 is not supported, found {counts:?}"
    );
    Ok(counts)
}

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

/// The padding of a convolution: a number for each axis, or a name.
enum Padding<'p> {
    Numbers(Vec<i64>),
    Named(&'p str),
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
    let dilation = axis_integers(c, "dilation", n, 1)?;
    let padding = match c.get("padding") {
        Some(Argument::String(mode)) => Padding::Named(mode),
        _ => Padding::Numbers(axis_integers(c, "padding", n, 0)?),
    };
    let mut axes = Vec::with_capacity(n);
    for (i, &kernel) in kernel.iter().enumerate() {
        let axis = WindowAxis::new(kernel, stride[i], dilation[i])?;
        axes.push(match &padding {
            Padding::Numbers(numbers) => axis.padded(numbers[i], numbers[i])?,
            Padding::Named("valid") => axis,
            Padding::Named("same") => {
                invalid_if!(
                    stride[i] != 1,
                    "expected a stride of 1 with padding `same`, found {}",
                    stride[i]
                );
                let total = axis.span() - 1;
                axis.padded(total / 2, total - total / 2)?
            }
            Padding::Named(other) => return invalid!("expected padding `valid` or `same`, found `{other}`"),
        });
    }
    WindowGeometry::new(axes)
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

/// The elements of windows as columns: `[batch, channels * elements, windows]`.
fn unfold(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let rank = c.rank(x);
    invalid_if!(rank != 3 && rank != 4, "expected three or four axes, found {rank}");
    let x = if rank == 3 { c.unsqueeze(x, 0)? } else { x };
    let kernel = axis_integers(c, "kernel_size", 2, 1)?;
    let windows = read_windows(c, &kernel, None)?;
    let columns = windows.columns(c, x, Scalar::Int(0))?;
    let columns = c.permute(columns, vec![0, 2, 1, 3, 4])?;
    let shape = c.shape(columns);
    let rows = shape[1].clone() * shape[2].clone();
    let y = c.reshape(columns, vec![shape[0].clone(), rows, shape[3].clone() * shape[4].clone()])?;
    if rank == 3 { c.drop_axis(y, 0) } else { Ok(y) }
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
    unsupported_if!(dtype == DType::Bool, "operands of {dtype} are not supported");
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
