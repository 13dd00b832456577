//! Convolutions, their transposes and gradients, as one matrix product each. The slices of an operand under
//! each element of the kernel are concatenated and multiplied by the kernel as a matrix. A kernel with too
//! many elements stays opaque.

use symmc_import::emit::extent_product;
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported};
use symmc_ir::{Dim, ReductionKind, ValueId};

use super::windows::{WindowGeometry, axes_in_name, transposed_columns, window_columns};
use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult, Term};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row(
        "aten.conv1d.default aten.conv2d.default aten.conv3d.default aten.convolution",
        "pad, slice, concat, matmul_unrounded, add, cast",
        convolution,
    ),
    row_of_results("aten.convolution_backward", "pad, slice, concat, matmul, sum", backward),
];

/// The operands of a convolution. The shape of its kernel is `[outputs, inputs per group, kernel...]`. A
/// transposed convolution has the channels of its operand in place of the outputs.
struct ConvolutionLayout {
    windows: WindowGeometry,
    groups: i64,
    /// The extents of the kernel's first two axes.
    outer: i64,
    inner: i64,
    is_transposed: bool,
}

impl ConvolutionLayout {
    fn from_call(c: &OpCall<'_, '_>, w: ValueId, axes: usize) -> RuleResult<ConvolutionLayout> {
        let kernel_shape = c.shape(w).iter().map(Dim::as_const).collect::<Option<Vec<i64>>>();
        let Some(kernel_shape) = kernel_shape else {
            return unsupported!("the kernel has a symbolic extent");
        };
        let [outer, inner, kernel @ ..] = kernel_shape.as_slice() else {
            return invalid!("expected a kernel of {} axes", axes + 2);
        };
        let windows = WindowGeometry::from_call(c, kernel.to_vec(), 1)?;
        let groups = c.int_or("groups", 1)?;
        invalid_if!(groups < 1 || outer % groups != 0, "expected groups that divide {outer}, found {groups}");
        let is_transposed = c.bool_or("transposed", false)?;
        Ok(ConvolutionLayout { windows, groups, outer: *outer, inner: *inner, is_transposed })
    }

    /// Rejects a tensor with another number of channels.
    fn check_channels(&self, c: &OpCall<'_, '_>, x: ValueId, channels: Option<i64>) -> RuleResult {
        let actual = c.extent(x, 1);
        if channels.map(Dim::from) == Some(actual.clone()) {
            return Ok(());
        }
        let inner = self.inner;
        let groups = self.groups;
        invalid!("expected {inner} channels in each of {groups} groups, found {actual:?}")
    }

    fn input_channels(&self) -> Option<i64> {
        self.inner.checked_mul(self.groups)
    }

    /// The convolution. The operand has as many channels per group as the kernel's second axis, and the
    /// result has as many channels as its first axis.
    fn forward_convolution(&self, c: &mut OpCall<'_, '_>, x: ValueId, w: ValueId) -> EmitResult {
        self.check_channels(c, x, self.input_channels())?;
        let x = window_columns(c, x, &self.windows)?;
        let w = self.matrix(c, w, [0, 1, 3, 2])?;
        self.multiply_kernel(c, w, x, self.inner, self.outer)
    }

    /// The transpose of [`ConvolutionLayout::forward_convolution`], with a result of these extents.
    fn transposed_convolution(
        &self,
        c: &mut OpCall<'_, '_>,
        x: ValueId,
        w: ValueId,
        to: &[Dim],
    ) -> EmitResult {
        self.check_channels(c, x, Some(self.outer))?;
        let x = transposed_columns(c, x, &self.windows, to)?;
        let w = self.matrix(c, w, [0, 2, 3, 1])?;
        self.multiply_kernel(c, w, x, self.outer / self.groups, self.inner.saturating_mul(self.groups))
    }

    /// The gradient of the kernel, from the operand and the gradient of the result of
    /// [`ConvolutionLayout::forward_convolution`].
    fn kernel_gradient(&self, c: &mut OpCall<'_, '_>, x: ValueId, y: ValueId) -> EmitResult {
        self.check_channels(c, x, self.input_channels())?;
        self.check_channels(c, y, Some(self.outer))?;
        let x = window_columns(c, x, &self.windows)?;
        let batch = c.extent(x, 0);
        let places = extent_product(c.shape(x).get(3..).unwrap_or_default());
        let terms = Dim::from(self.windows.elements() * self.inner);
        let total_places = batch.clone() * places.clone();
        let groups = Dim::from(self.groups);
        let outputs = Dim::from(self.outer / self.groups);
        let matrix = vec![self.outer.into(), self.windows.elements().into(), self.inner.into()];
        let mut shape = vec![Dim::from(self.outer), Dim::from(self.inner)];
        shape.extend(self.windows.kernel.iter().map(|&k| Dim::from(k)));
        c.formula([x, y], |[x, y]| {
            let x = self.group_columns(x, self.inner).permute(&[1, 0, 3, 2]);
            let x = x.reshape(vec![groups.clone(), total_places.clone(), terms]);
            let y = y.reshape(vec![batch, groups.clone(), outputs.clone(), places]).permute(&[1, 2, 0, 3]);
            let y = y.reshape(vec![groups, outputs, total_places]);
            y.numpy_matmul(x).reshape(matrix).permute(&[0, 2, 1]).reshape(shape)
        })
    }

    /// The kernel as `[groups, rows, elements * columns]`. `order` permutes four axes: groups, the rest of
    /// the first axis, the second axis, and the elements.
    fn matrix(&self, c: &mut OpCall<'_, '_>, w: ValueId, order: [usize; 4]) -> EmitResult {
        let elements = self.windows.elements();
        let shape = [self.groups, self.outer / self.groups, self.inner, elements];
        let rows = shape.get(order[1]).copied().unwrap_or(1);
        let terms = elements * shape.get(order[3]).copied().unwrap_or(1);
        c.formula([w], |[w]| {
            let split = w.reshape(shape.iter().map(|&d| Dim::from(d)).collect()).permute(&order);
            split.reshape(vec![self.groups.into(), rows.into(), terms.into()])
        })
    }

    /// Reshapes `[batch, elements, groups * inputs, ...]` to `[batch, groups, elements * inputs, places]`.
    fn group_columns<'f>(&self, x: Term<'f>, inputs: i64) -> Term<'f> {
        let batch = x.extent(0);
        let places = extent_product(x.shape().get(3..).unwrap_or_default());
        let elements = self.windows.elements();
        let groups = self.groups;
        let shape = vec![batch.clone(), elements.into(), groups.into(), inputs.into(), places.clone()];
        let terms = Dim::from(elements * inputs);
        x.reshape(shape).permute(&[0, 2, 1, 3, 4]).reshape(vec![batch, groups.into(), terms, places])
    }

    /// Multiplies a kernel in matrix form by the columns of an operand. The result `[batch, outputs, ...]` has
    /// the sums before they are rounded.
    fn multiply_kernel(
        &self,
        c: &mut OpCall<'_, '_>,
        w: ValueId,
        x: ValueId,
        inputs: i64,
        outputs: i64,
    ) -> EmitResult {
        let mut shape = vec![c.extent(x, 0), outputs.into()];
        shape.extend(c.shape(x).split_off(3));
        let x = c.formula([x], |[x]| self.group_columns(x, inputs))?;
        let y = c.product_sums(w, x)?;
        c.reshape(y, shape)
    }
}

/// A convolution over as many axes as the name of the operator says, or as the kernel has.
fn convolution(c: &mut OpCall<'_, '_>) -> EmitResult {
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
    let layout = ConvolutionLayout::from_call(c, w, n)?;
    let dtype = c.dtype(x);
    let further = layout.windows.axis_integers(c, "output_padding", 0, 0)?;
    let y = if layout.is_transposed {
        let area: Vec<Dim> = c.shape(x).split_off(2);
        let extents = layout.windows.covered_extents(&area, &further);
        layout.transposed_convolution(c, x, w, &extents)?
    } else {
        layout.forward_convolution(c, x, w)?
    };
    let mut column = vec![Dim::from(1); n + 1];
    column[0] = c.extent(y, 1);
    let bias = bias.map(|b| c.reshape(b, column)).transpose()?;
    let y = c.scale_and_add(y, 1.0, bias, 1.0, dtype)?;
    let y = if single { c.drop_axis(y, 0)? } else { y };
    Ok(y)
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
    let layout = ConvolutionLayout::from_call(c, w, n)?;
    if c.is_result_read(0) {
        let y = if layout.is_transposed {
            layout.forward_convolution(c, gradient, w)?
        } else {
            let extents: Vec<Dim> = c.shape(x).split_off(2);
            layout.transposed_convolution(c, gradient, w, &extents)?
        };
        let y = c.cast(y, c.dtype(gradient))?;
        c.set_result(0, y);
    }
    if c.is_result_read(1) {
        let (from, to) = if layout.is_transposed { (gradient, x) } else { (x, gradient) };
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
