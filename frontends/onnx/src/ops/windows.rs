//! Convolutions and pooling. See [`symmc_import::windows`].

use symmc_import::convolution::{ConvolutionLayout, add_channel_bias, kernel_extents};
use symmc_import::emit::extent_product;
use symmc_import::pooling::{AverageDivisor, flatten_to_one_channel};
use symmc_import::windows::{WindowAxis, WindowGeometry};
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, ReductionKind, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("Conv", 22, "pad, slice, concat, matmul_unrounded, add, cast", convolution),
    row("ConvTranspose", 22, "pad, slice, concat, matmul_unrounded, add, cast", transposed_convolution),
    row_of_results("MaxPool", 22, "pad, slice, concat, max, argmax", max_pool),
    row("AveragePool", 22, "pad, slice, concat, sum", average_pool),
    row("LpPool", 22, "pad, slice, concat, sum of powers", lp_pool),
    row("GlobalAveragePool", 22, "mean", |c| global_pool(c, ReductionKind::Mean)),
    row("GlobalMaxPool", 22, "max", |c| global_pool(c, ReductionKind::Max)),
    row("GlobalLpPool", 22, "sum of powers", global_lp_pool),
];

/// How a node pads the axes of its windows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AutoPadding {
    /// By the numbers in `pads`, which are 0 by default.
    Stated,
    Nothing,
    /// So that there is a window for every stride. An odd element is after the axis, or else before it.
    SameCount {
        is_more_after: bool,
    },
}

fn auto_padding(c: &OpCall<'_, '_>) -> RuleResult<AutoPadding> {
    Ok(match c.opt_string("auto_pad")? {
        None | Some("NOTSET") => AutoPadding::Stated,
        Some("VALID") => AutoPadding::Nothing,
        Some("SAME_UPPER") => AutoPadding::SameCount { is_more_after: true },
        Some("SAME_LOWER") => AutoPadding::SameCount { is_more_after: false },
        Some(other) => {
            return invalid!("expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER, found `{other}`");
        }
    })
}

/// An attribute with an integer for each of `n` axes.
fn axis_integers(c: &OpCall<'_, '_>, name: &str, n: usize, default: i64) -> RuleResult<Vec<i64>> {
    let values = c.opt_attribute_ints(name)?.map_or_else(|| vec![default; n], <[i64]>::to_vec);
    invalid_if!(values.len() != n, "expected {n} integers as `{name}`, found {values:?}");
    Ok(values)
}

/// Windows of these extents as a node places them on an operand, except for the padding that `auto_pad` requests.
fn read_windows(c: &OpCall<'_, '_>, kernel: &[i64]) -> RuleResult<(WindowGeometry, AutoPadding)> {
    let n = kernel.len();
    let auto = auto_padding(c)?;
    let strides = axis_integers(c, "strides", n, 1)?;
    let dilations = axis_integers(c, "dilations", n, 1)?;
    let mut pads = axis_integers(c, "pads", 2 * n, 0)?;
    if auto != AutoPadding::Stated {
        pads.fill(0);
    }
    let axes =
        (0..n).map(|i| WindowAxis::new(kernel[i], strides[i], dilations[i])?.padded(pads[i], pads[n + i]));
    Ok((WindowGeometry::new(axes.collect::<RuleResult<_>>()?)?, auto))
}

/// The windows on an operand, with its padding.
fn placed_windows(
    c: &OpCall<'_, '_>,
    x: ValueId,
    kernel: &[i64],
    is_pooling: bool,
) -> RuleResult<WindowGeometry> {
    let (mut windows, auto) = read_windows(c, kernel)?;
    if let AutoPadding::SameCount { is_more_after } = auto {
        for (i, axis) in windows.axes.iter_mut().enumerate() {
            let total = axis.same_count_padding(&c.extent(x, i + 2));
            // ONNX Runtime pads for pooling by a negative number, and for convolutions by 0.
            unsupported_if!(
                is_pooling && c.dim_bounds(&total).0 < -1,
                "auto_pad of a window that is smaller than the stride is not supported, found {} and {}",
                axis.span(),
                axis.stride
            );
            // ONNX counts the padding with the dilation, and ONNX Runtime without it.
            unsupported_if!(
                is_pooling && axis.dilation > 1,
                "auto_pad of pooling with dilations is not supported, found {}",
                axis.dilation
            );
            axis.pad_by_total(c, total, is_more_after);
        }
    }
    Ok(windows)
}

/// The number of axes after the batch and the channels.
pub(super) fn window_axes(c: &OpCall<'_, '_>, x: ValueId) -> RuleResult<usize> {
    let rank = c.rank(x);
    invalid_if!(rank < 3, "expected at least three axes, found {rank}");
    Ok(rank - 2)
}

/// The extents of the kernel of a convolution, which the attribute may repeat.
fn convolution_kernel(c: &OpCall<'_, '_>, x: ValueId, w: ValueId) -> RuleResult<Vec<i64>> {
    let kernel = kernel_extents(c, w, window_axes(c, x)?)?;
    if let Some(stated) = c.opt_attribute_ints("kernel_shape")? {
        invalid_if!(stated != kernel, "expected {kernel:?} as `kernel_shape`, found {stated:?}");
    }
    Ok(kernel)
}

fn convolution(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, w] = c.first_tensors()?;
    let bias = c.opt_tensor(2)?;
    let y = convolution_sums(c, x, w)?;
    add_channel_bias(c, y, bias, c.dtype(x))
}

/// The convolution that the attributes describe, with sums that are not rounded.
pub(super) fn convolution_sums(c: &mut OpCall<'_, '_>, x: ValueId, w: ValueId) -> EmitResult {
    let kernel = convolution_kernel(c, x, w)?;
    let windows = placed_windows(c, x, &kernel, false)?;
    let layout = ConvolutionLayout::new(c, w, windows, c.int_or("group", 1)?)?;
    layout.forward(c, x, w)
}

fn transposed_convolution(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, w] = c.first_tensors()?;
    let bias = c.opt_tensor(2)?;
    let kernel = convolution_kernel(c, x, w)?;
    let n = kernel.len();
    let (mut windows, auto) = read_windows(c, &kernel)?;
    let further = axis_integers(c, "output_padding", n, 0)?;
    invalid_if!(
        further.iter().any(|further| !(0..=i64::from(i32::MAX)).contains(further)),
        "expected at least 0 as `output_padding`, found {further:?}"
    );
    // Some exporters state the extents of the batch and the channels as well.
    let stated = c.opt_attribute_ints("output_shape")?.filter(|shape| !shape.is_empty());
    let stated = match stated {
        Some(shape) if shape.len() == n || shape.len() == n + 2 => Some(&shape[shape.len() - n..]),
        Some(shape) => return invalid!("expected {n} integers as `output_shape`, found {shape:?}"),
        None => None,
    };
    let mut extents = Vec::with_capacity(n);
    for (i, axis) in windows.axes.iter_mut().enumerate() {
        let count = c.extent(x, i + 2);
        let extent = match (stated, auto) {
            (Some(shape), _) => {
                invalid_if!(shape[i] < 1, "expected at least 1 as `output_shape`, found {shape:?}");
                Dim::from(shape[i])
            }
            (None, AutoPadding::SameCount { .. }) => count.clone() * Dim::from(axis.stride),
            (None, _) => {
                extents.push(axis.covered_extent(&count, further[i]));
                continue;
            }
        };
        (axis.padding_before, axis.padding_after) = (0.into(), 0.into());
        let total = axis.covered_extent(&count, further[i]) - extent.clone();
        // ONNX states the extents, and ONNX Runtime leaves out the elements that no window covers.
        unsupported_if!(
            stated.is_none() && c.dim_bounds(&total).0 < 0,
            "auto_pad of a window that is smaller than the stride is not supported, found {} and {}",
            axis.span(),
            axis.stride
        );
        axis.pad_by_total(c, total, auto == AutoPadding::SameCount { is_more_after: true });
        extents.push(extent);
    }
    let layout = ConvolutionLayout::new(c, w, windows, c.int_or("group", 1)?)?;
    let y = layout.transposed(c, x, w, &extents)?;
    add_channel_bias(c, y, bias, c.dtype(x))
}

/// The windows of a pooling operator.
fn pool_windows(c: &OpCall<'_, '_>, x: ValueId) -> RuleResult<WindowGeometry> {
    let n = window_axes(c, x)?;
    let kernel = c.opt_attribute_ints("kernel_shape")?.unwrap_or_default();
    invalid_if!(kernel.len() != n, "expected {n} integers as `kernel_shape`, found {kernel:?}");
    let mut windows = placed_windows(c, x, kernel, true)?;
    if c.flag("ceil_mode")? {
        windows.apply_ceil_mode(c, &c.shape(x)[2..])?;
    }
    Ok(windows)
}

fn max_pool(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.tensor(0)?;
    let windows = pool_windows(c, x)?;
    let is_column_major = c.flag("storage_order")?;
    let pool = windows.max_pool(c, x)?;
    if c.is_result_read(1) {
        let n = windows.axes.len();
        unsupported_if!(is_column_major && n > 2, "storage_order 1 with {n} axes is not supported");
        let order: Vec<usize> = if is_column_major { (0..n).rev().collect() } else { (0..n).collect() };
        let positions = windows.max_positions(c, &pool, &order)?;
        // Positions count from the start of the tensor.
        let shape = c.shape(x);
        let plane = extent_product(&shape[2..]);
        let planes = c.iota(shape[0].clone() * shape[1].clone(), 0, 1, DType::I64)?;
        let mut column = vec![shape[0].clone(), shape[1].clone()];
        column.resize(shape.len(), Dim::from(1));
        let positions = c.formula([positions, planes], |[positions, planes]| {
            positions + planes.reshape(column).binary_dim(BinaryOp::Mul, &plane)
        })?;
        c.set_result(1, positions);
    }
    c.set_result(0, pool.largest);
    Ok(())
}

fn average_pool(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    average_pool_of(c, x)
}

/// The average pool that the attributes describe.
pub(super) fn average_pool_of(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let windows = pool_windows(c, x)?;
    let divisor = match c.flag("count_include_pad")? {
        true => AverageDivisor::PaddedElements,
        false => AverageDivisor::Elements,
    };
    windows.average_pool(c, x, divisor)
}

/// The order of a norm.
fn norm_order(c: &OpCall<'_, '_>) -> RuleResult<f64> {
    let p = c.int_or("p", 2)?;
    invalid_if!(p < 1, "expected at least 1 as `p`, found {p}");
    Ok(p as f64)
}

/// The powers of absolute values whose sum is a power of the norm.
fn powers(c: &mut OpCall<'_, '_>, x: ValueId, p: f64) -> EmitResult {
    c.formula([x], |[x]| match p {
        1.0 => x.abs(),
        2.0 => x.square(),
        _ => x.abs().map(|c, x| c.binary_float(BinaryOp::Pow, x, p)),
    })
}

fn root(c: &mut OpCall<'_, '_>, sum: ValueId, p: f64) -> EmitResult {
    c.formula([sum], |[sum]| match p {
        1.0 => sum,
        2.0 => sum.sqrt(),
        _ => sum.map(|c, sum| c.binary_float(BinaryOp::Pow, sum, 1.0 / p)),
    })
}

fn lp_pool(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let windows = pool_windows(c, x)?;
    let p = norm_order(c)?;
    let dtype = c.dtype(x);
    let mut shape = c.shape(x);
    let x = c.cast(x, dtype.compute_dtype())?;
    let x = flatten_to_one_channel(c, x, windows.axes.len())?;
    let x = powers(c, x, p)?;
    let sum = windows.sum_pool(c, x)?;
    let y = root(c, sum, p)?;
    shape.truncate(2);
    shape.extend(c.shape(y).split_off(2));
    let y = c.reshape(y, shape)?;
    c.cast(y, dtype)
}

fn global_pool(c: &mut OpCall<'_, '_>, op: ReductionKind) -> EmitResult {
    let x = c.tensor(0)?;
    let n = window_axes(c, x)?;
    c.reduce(op, x, (2..n + 2).collect(), true)
}

fn global_lp_pool(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let n = window_axes(c, x)?;
    let p = norm_order(c)?;
    let x = powers(c, x, p)?;
    let sum = c.reduce(ReductionKind::Sum, x, (2..n + 2).collect(), true)?;
    root(c, sum, p)
}
