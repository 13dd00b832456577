//! Convolutions, their transposes and gradients, as one matrix product each. The slices of an operand under
//! each element of the kernel are concatenated and multiplied by the kernel as a matrix.

use symmc_ir::{Dim, Scalar, ValueId};

use crate::emit::{Emit, extent_product};
use crate::failure::RuleResult;
use crate::formula::{EmitFormulas, Term};
use crate::windows::WindowGeometry;
use crate::{invalid, invalid_if, unsupported};

/// The operands of a convolution. The shape of its kernel is `[outputs, inputs per group, kernel...]`. A
/// transposed convolution has the channels of its operand in place of the outputs.
#[derive(Clone, Debug)]
pub struct ConvolutionLayout {
    pub windows: WindowGeometry,
    groups: i64,
    /// The extents of the kernel's first two axes.
    outer: i64,
    inner: i64,
}

/// The extents of a kernel with this number of axes of windows. Fails if one is not a constant.
pub fn kernel_extents<C: Emit>(c: &C, w: ValueId, axes: usize) -> RuleResult<Vec<i64>, C::Error> {
    let shape = c.shape(w);
    invalid_if!(
        axes == 0 || shape.len() != axes + 2,
        "expected a kernel of {} axes, found {}",
        axes + 2,
        shape.len()
    );
    let extents = shape.iter().skip(2).map(Dim::as_const).collect::<Option<Vec<i64>>>();
    match extents {
        Some(extents) => Ok(extents),
        None => unsupported!("the kernel has a symbolic extent"),
    }
}

impl ConvolutionLayout {
    pub fn new<C: Emit>(
        c: &C,
        w: ValueId,
        windows: WindowGeometry,
        groups: i64,
    ) -> RuleResult<Self, C::Error> {
        let (Some(outer), Some(inner)) = (c.extent(w, 0).as_const(), c.extent(w, 1).as_const()) else {
            return unsupported!("the kernel has a symbolic extent");
        };
        invalid_if!(groups < 1 || outer % groups != 0, "expected groups that divide {outer}, found {groups}");
        Ok(ConvolutionLayout { windows, groups, outer, inner })
    }

    /// Rejects a tensor with another number of channels.
    fn check_channels<C: Emit>(&self, c: &C, x: ValueId, channels: Option<i64>) -> RuleResult<(), C::Error> {
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

    /// The convolution, with sums that are not rounded. The operand has as many channels per group as the
    /// kernel's second axis, and the result has as many channels as its first axis.
    pub fn forward<C: Emit>(&self, c: &mut C, x: ValueId, w: ValueId) -> RuleResult<ValueId, C::Error> {
        self.check_channels(c, x, self.input_channels())?;
        let x = self.windows.columns(c, x, Scalar::Int(0))?;
        let w = self.matrix(c, w, [0, 1, 3, 2])?;
        self.multiply_kernel(c, w, x, self.inner, self.outer)
    }

    /// The transpose of [`ConvolutionLayout::forward`], with a result of these extents. Requires them to be at least 1.
    pub fn transposed<C: Emit>(
        &self,
        c: &mut C,
        x: ValueId,
        w: ValueId,
        to: &[Dim],
    ) -> RuleResult<ValueId, C::Error> {
        self.check_channels(c, x, Some(self.outer))?;
        let mut extents = Vec::with_capacity(to.len());
        for extent in to {
            c.require_at_most("extent", &1.into(), extent)?;
            let may_be_negative = c.dim_bounds(extent).0 < 0;
            extents.push(if may_be_negative { extent.max_with(&0.into()) } else { extent.clone() });
        }
        let x = self.windows.transposed_columns(c, x, &extents)?;
        let w = self.matrix(c, w, [0, 2, 3, 1])?;
        self.multiply_kernel(c, w, x, self.outer / self.groups, self.inner.saturating_mul(self.groups))
    }

    /// The gradient of the kernel, from the operand and the gradient of the result of
    /// [`ConvolutionLayout::forward`].
    pub fn kernel_gradient<C: Emit>(
        &self,
        c: &mut C,
        x: ValueId,
        y: ValueId,
    ) -> RuleResult<ValueId, C::Error> {
        self.check_channels(c, x, self.input_channels())?;
        self.check_channels(c, y, Some(self.outer))?;
        let x = self.windows.columns(c, x, Scalar::Int(0))?;
        let batch = c.extent(x, 0);
        let places = extent_product(c.shape(x).get(3..).unwrap_or_default());
        let terms = Dim::from(self.windows.elements() * self.inner);
        let total_places = batch.clone() * places.clone();
        let groups = Dim::from(self.groups);
        let outputs = Dim::from(self.outer / self.groups);
        let matrix = vec![self.outer.into(), self.windows.elements().into(), self.inner.into()];
        let mut shape = vec![Dim::from(self.outer), Dim::from(self.inner)];
        shape.extend(self.windows.kernel().into_iter().map(Dim::from));
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
    fn matrix<C: Emit>(&self, c: &mut C, w: ValueId, order: [usize; 4]) -> RuleResult<ValueId, C::Error> {
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
    fn group_columns<'f, E>(&self, x: Term<'f, E>, inputs: i64) -> Term<'f, E> {
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
    fn multiply_kernel<C: Emit>(
        &self,
        c: &mut C,
        w: ValueId,
        x: ValueId,
        inputs: i64,
        outputs: i64,
    ) -> RuleResult<ValueId, C::Error> {
        let mut shape = vec![c.extent(x, 0), outputs.into()];
        shape.extend(c.shape(x).split_off(3));
        let x = c.formula([x], |[x]| self.group_columns(x, inputs))?;
        let y = c.product_sums(w, x)?;
        c.reshape(y, shape)
    }
}

/// Adds a bias to the sums of a convolution and rounds them to this dtype.
pub fn add_channel_bias<C: Emit>(
    c: &mut C,
    sums: ValueId,
    bias: Option<ValueId>,
    dtype: symmc_ir::DType,
) -> RuleResult<ValueId, C::Error> {
    let mut column = vec![Dim::from(1); c.rank(sums).saturating_sub(1)];
    if let Some(channels) = column.first_mut() {
        *channels = c.extent(sums, 1);
    }
    let bias = bias.map(|b| c.reshape(b, column)).transpose()?;
    c.scale_and_add(sums, 1.0, bias, 1.0, dtype)
}
