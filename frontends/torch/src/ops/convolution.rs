//! Convolutions and their gradients. See [`symmc_import::convolution`].

use symmc_import::convolution::{ConvolutionLayout, add_channel_bias, kernel_extents};
use symmc_import::{Emit, RuleCall, invalid_if};
use symmc_ir::{Dim, ReductionKind, ValueId};

use super::windows::{axes_in_name, axis_integers, read_windows};
use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row(
        "aten.conv1d aten.conv2d aten.conv3d aten.convolution aten._convolution",
        "pad, slice, concat, matmul_unrounded, add, cast",
        |c| {
            let is_transposed = c.bool_or("transposed", false)?;
            convolution(c, is_transposed)
        },
    ),
    row(
        "aten.conv_transpose1d aten.conv_transpose2d aten.conv_transpose3d",
        "pad, slice, concat, matmul_unrounded, add, cast",
        |c| convolution(c, true),
    ),
    row_of_results("aten.convolution_backward", "pad, slice, concat, matmul, sum", backward),
];

/// The layout of a call whose kernel has this number of axes of windows.
fn convolution_layout(c: &OpCall<'_, '_>, w: ValueId, axes: usize) -> RuleResult<ConvolutionLayout> {
    let windows = read_windows(c, &kernel_extents(c, w, axes)?, None)?;
    ConvolutionLayout::new(c, w, windows, c.int_or("groups", 1)?)
}

/// A convolution over as many axes as the name of the operator says, or as the kernel has.
fn convolution(c: &mut OpCall<'_, '_>, is_transposed: bool) -> EmitResult {
    // These choose kernels of cuDNN.
    c.ignore(&["benchmark", "deterministic", "cudnn_enabled", "allow_tf32"]);
    let [x, w] = c.tensors_named(["input", "weight"])?;
    let bias = c.opt_tensor("bias")?;
    let n = match axes_in_name(c) {
        0 => c.rank(w).saturating_sub(2),
        axes => axes,
    };
    invalid_if!(
        n == 0 || c.rank(w) != n + 2 || !(c.rank(x) == n + 2 || c.rank(x) == n + 1),
        "expected {} axes, found {rank} and a kernel of {kernel}",
        n + 2,
        rank = c.rank(x),
        kernel = c.rank(w)
    );
    let single = c.rank(x) == n + 1;
    let x = if single { c.unsqueeze(x, 0)? } else { x };
    let layout = convolution_layout(c, w, n)?;
    let dtype = c.dtype(x);
    let further = axis_integers(c, "output_padding", n, 0)?;
    let y = if is_transposed {
        let extents = layout.windows.covered_extents(&c.shape(x).split_off(2), &further);
        layout.transposed(c, x, w, &extents)?
    } else {
        layout.forward(c, x, w)?
    };
    let y = add_channel_bias(c, y, bias, dtype)?;
    if single { c.drop_axis(y, 0) } else { Ok(y) }
}

fn backward(c: &mut OpCall<'_, '_>) -> RuleResult {
    // Results that the mask leaves out are not read.
    c.ignore(&["bias_sizes", "output_mask", "output_padding"]);
    let [gradient, x, w] = c.tensors_named(["grad_output", "input", "weight"])?;
    let n = c.rank(w).saturating_sub(2);
    invalid_if!(
        n == 0 || c.rank(x) != n + 2 || c.rank(gradient) != n + 2,
        "expected {} axes, found {rank} and {operand_rank}",
        n + 2,
        rank = c.rank(gradient),
        operand_rank = c.rank(x)
    );
    let layout = convolution_layout(c, w, n)?;
    let is_transposed = c.bool_or("transposed", false)?;
    if c.is_result_read(0) {
        let y = if is_transposed {
            layout.forward(c, gradient, w)?
        } else {
            let extents: Vec<Dim> = c.shape(x).split_off(2);
            layout.transposed(c, gradient, w, &extents)?
        };
        let y = c.cast(y, c.dtype(gradient))?;
        c.set_result(0, y);
    }
    if c.is_result_read(1) {
        let (from, to) = if is_transposed { (gradient, x) } else { (x, gradient) };
        let y = layout.kernel_gradient(c, from, to)?;
        c.set_result(1, y);
    }
    if c.is_result_read(2) {
        let axes = (0..n + 2).filter(|&a| a != 1).collect();
        let y = c.reduce(ReductionKind::Sum, gradient, axes, false)?;
        c.set_result(2, y);
    }
    Ok(())
}
