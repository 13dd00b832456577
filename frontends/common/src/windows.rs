//! Windows on the last axes of an operand, `[batch, channels, ...]`, for convolutions and pooling.
//!
//! The elements under windows become *columns*: for each element of the kernel, the elements of the operand that
//! are under it in all windows. [`WindowGeometry::columns`] gives them, and [`WindowGeometry::transposed_columns`]
//! those of the transposed operation.

use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, TensorType, ValueId};

use crate::emit::Emit;
use crate::failure::RuleResult;
use crate::formula::EmitFormulas;
use crate::{invalid_if, unsupported, unsupported_if};

/// The largest number of slices that windows become. Larger kernels are read by index.
const MAX_SLICES: i64 = 128;

/// The largest kernel, stride, padding or dilation.
const MAX_PARAMETER: i64 = i32::MAX as i64;

/// The windows along one axis.
#[derive(Clone, Debug)]
pub struct WindowAxis {
    pub kernel: i64,
    pub stride: i64,
    pub dilation: i64,
    pub padding_before: Dim,
    pub padding_after: Dim,
    /// The number of elements by which the last window exceeds the padding.
    pub(crate) beyond: Dim,
}

/// The number of windows along an axis, and the elements before and after it.
struct WindowPlacement {
    count: Dim,
    padded: Dim,
}

impl WindowAxis {
    /// Windows without padding.
    pub fn new<E>(kernel: i64, stride: i64, dilation: i64) -> RuleResult<Self, E> {
        unsupported_if!(kernel < 1, "a kernel of {kernel} elements is not supported");
        for (name, value) in [("kernel", kernel), ("stride", stride), ("dilation", dilation)] {
            invalid_if!(
                !(1..=MAX_PARAMETER).contains(&value),
                "expected a {name} from 1 to {MAX_PARAMETER}, found {value}"
            );
        }
        let none = Dim::from(0);
        Ok(WindowAxis {
            kernel,
            stride,
            dilation,
            padding_before: none.clone(),
            padding_after: none.clone(),
            beyond: none,
        })
    }

    pub fn padded<E>(self, before: i64, after: i64) -> RuleResult<Self, E> {
        for padding in [before, after] {
            invalid_if!(
                !(0..=MAX_PARAMETER).contains(&padding),
                "expected a padding from 0 to {MAX_PARAMETER}, found {padding}"
            );
        }
        Ok(WindowAxis { padding_before: before.into(), padding_after: after.into(), ..self })
    }

    /// The distance from the first to the last element under a window, both included.
    pub fn span(&self) -> i64 {
        (self.kernel - 1).saturating_mul(self.dilation).saturating_add(1)
    }

    fn padding(&self) -> Dim {
        self.padding_before.clone() + self.padding_after.clone()
    }

    /// The extent of an operand with this number of windows, plus `further` elements after the last.
    pub fn covered_extent(&self, count: &Dim, further: i64) -> Dim {
        (count.clone() - Dim::from(1)) * Dim::from(self.stride) + Dim::from(self.span() + further)
            - self.padding()
    }

    /// The padding of an axis of this extent with which there is a window for every `stride` elements. It is negative
    /// if the windows leave out elements at the end.
    pub fn same_count_padding(&self, extent: &Dim) -> Dim {
        let stride = Dim::from(self.stride);
        let count = (extent.clone() + stride.clone() - Dim::from(1)).floor_div(&stride);
        (count - Dim::from(1)) * stride + Dim::from(self.span()) - extent.clone()
    }

    /// Distributes a padding to both sides. A negative one counts as 0. If it is odd, the additional element is after
    /// the axis, or else before it.
    pub fn pad_by_total<C: Emit>(&mut self, c: &C, total: Dim, is_more_after: bool) {
        let total = if c.dim_bounds(&total).0 < 0 { total.max_with(&0.into()) } else { total };
        let less = total.floor_div(&2.into());
        let more = total - less.clone();
        (self.padding_before, self.padding_after) = if is_more_after { (less, more) } else { (more, less) };
    }

    fn is_tiling(&self) -> bool {
        self.kernel == self.stride && self.dilation == 1 && self.padding().as_const() == Some(0)
    }

    /// The number of windows on an axis of this extent, which has at least one.
    pub fn count(&self, extent: &Dim) -> Dim {
        let room = extent.clone() + self.padding() + self.beyond.clone() - Dim::from(self.span());
        room.floor_div(&self.stride.into()) + Dim::from(1)
    }

    /// Places the windows on an axis of this extent. Requires it to have at least one.
    fn place<C: Emit>(&self, c: &mut C, extent: &Dim) -> RuleResult<WindowPlacement, C::Error> {
        let padded = extent.clone() + self.padding() + self.beyond.clone();
        let span = Dim::from(self.span());
        let (low, high) = c.dim_bounds(&(padded.clone() - span.clone()));
        unsupported_if!(
            high < 0,
            "{extent:?} elements of an axis are fewer than the {} of the kernel",
            self.span()
        );
        let mut count = self.count(extent);
        if low < 0 && self.span() > 1 {
            c.require_at_most("window", &span, &padded)?;
        }
        if c.dim_bounds(&count).0 < 0 {
            count = count.max_with(&0.into());
        }
        Ok(WindowPlacement { count, padded })
    }

    /// Extends the windows on an axis of this extent beyond its padding, so that the last window may be partial.
    /// A window must start within the operand or the padding before it. A single window on an axis ends where the
    /// padding does.
    fn apply_ceil_mode<C: Emit>(&mut self, c: &C, extent: &Dim) -> RuleResult<(), C::Error> {
        let stride = Dim::from(self.stride);
        let span = Dim::from(self.span());
        let padded = extent.clone() + self.padding();
        if (padded.clone() - span.clone()).exact_div(&stride).is_some() {
            return Ok(());
        }
        let mut last_window = (padded.clone() - span.clone() + Dim::from(self.stride - 1)).floor_div(&stride);
        // A window starts before the padding after the operand.
        let room = span.clone() - self.padding_after.clone() - stride.clone();
        if c.dim_bounds(&room).0 < 0 {
            let Some(n) = (extent.clone() + self.padding_before.clone()).as_const() else {
                return unsupported!("the last windows may begin beyond the operand");
            };
            last_window = last_window.min_with(&(n - 1).div_euclid(self.stride).into());
        }
        match (last_window.as_const(), padded.as_const()) {
            (Some(..=0), Some(padded)) if self.dilation == 1 && self.kernel > padded => {
                self.kernel = padded;
                self.stride = padded.max(1);
            }
            _ => {
                let beyond = last_window * stride + span - padded;
                self.beyond = if c.dim_bounds(&beyond).0 < 0 { beyond.max_with(&0.into()) } else { beyond };
            }
        }
        Ok(())
    }
}

/// The positions of windows, by axis.
#[derive(Clone, Debug)]
pub struct WindowGeometry {
    pub axes: Vec<WindowAxis>,
}

impl WindowGeometry {
    /// Fails if the number of elements of a window is too large to count.
    pub fn new<E>(axes: Vec<WindowAxis>) -> RuleResult<Self, E> {
        let elements = axes.iter().try_fold(1i64, |product, axis| product.checked_mul(axis.kernel));
        let kernel: Vec<i64> = axes.iter().map(|axis| axis.kernel).collect();
        unsupported_if!(
            elements.is_none_or(|e| e > MAX_PARAMETER),
            "a kernel of the extents {kernel:?} is not supported"
        );
        Ok(WindowGeometry { axes })
    }

    /// The number of elements of a window.
    pub fn elements(&self) -> i64 {
        self.axes.iter().map(|axis| axis.kernel).product()
    }

    pub fn kernel(&self) -> Vec<i64> {
        self.axes.iter().map(|axis| axis.kernel).collect()
    }

    /// The extents of an operand with this number of windows, plus `further` elements after the last.
    pub fn covered_extents(&self, count: &[Dim], further: &[i64]) -> Vec<Dim> {
        let axes = self.axes.iter().zip(count).zip(further);
        axes.map(|((axis, count), &further)| axis.covered_extent(count, further)).collect()
    }

    /// Whether the windows neither overlap nor leave gaps.
    fn is_tiling(&self) -> bool {
        self.axes.iter().all(WindowAxis::is_tiling)
    }

    pub fn is_padded(&self) -> bool {
        self.axes.iter().any(|axis| axis.padding().as_const() != Some(0))
    }

    pub fn exceeds_padding(&self) -> bool {
        self.axes.iter().any(|axis| axis.beyond.as_const() != Some(0))
    }

    /// Makes the last windows on axes of these extents partial where whole windows leave elements out.
    pub fn apply_ceil_mode<C: Emit>(&mut self, c: &C, extents: &[Dim]) -> RuleResult<(), C::Error> {
        self.axes.iter_mut().zip(extents).try_for_each(|(axis, extent)| axis.apply_ceil_mode(c, extent))
    }

    /// The elements under each element of a window, for all windows: `[batch, elements, channels, ...]`. Padding
    /// has the value `around`.
    pub fn columns<C: Emit>(&self, c: &mut C, x: ValueId, around: Scalar) -> RuleResult<ValueId, C::Error> {
        let mut counts = Vec::new();
        let mut extents = Vec::new();
        for (i, axis) in self.axes.iter().enumerate() {
            let WindowPlacement { count, padded } = axis.place(c, &c.extent(x, i + 2))?;
            counts.push(count);
            extents.push(padded);
        }
        let low: Vec<Dim> = self.axes.iter().map(|axis| axis.padding_before.clone()).collect();
        let x = pad_axes(c, x, &low, extents, around)?;
        if self.is_tiling() { self.tiles(c, x, &counts) } else { self.pieces(c, x, &counts, false) }
    }

    /// The columns of adjacent windows.
    fn tiles<C: Emit>(&self, c: &mut C, x: ValueId, counts: &[Dim]) -> RuleResult<ValueId, C::Error> {
        let mut x = x;
        let n = counts.len();
        let mut shape = c.shape(x);
        let mut inner = Vec::new();
        let mut outer = Vec::new();
        shape.truncate(2);
        for (i, (axis, count)) in self.axes.iter().zip(counts).enumerate() {
            x = c.slice(x, i + 2, 0.into(), count.clone() * Dim::from(axis.kernel), 1)?;
            shape.extend([count.clone(), axis.kernel.into()]);
            outer.push(2 + 2 * i);
            inner.push(3 + 2 * i);
        }
        let x = c.reshape(x, shape)?;
        let order = std::iter::once(0).chain(inner).chain([1]).chain(outer).collect();
        let x = c.permute(x, order)?;
        let mut shape = vec![c.extent(x, 0), self.elements().into(), c.extent(x, n + 1)];
        shape.extend(counts.iter().cloned());
        c.reshape(x, shape)
    }

    /// The columns of a padded operand, as a slice for each element of the kernel. The elements of the kernel may be
    /// in reverse order.
    fn pieces<C: Emit>(
        &self,
        c: &mut C,
        x: ValueId,
        counts: &[Dim],
        is_reversed: bool,
    ) -> RuleResult<ValueId, C::Error> {
        let last = self.elements() - 1;
        if last >= MAX_SLICES {
            return self.indexed_pieces(c, x, counts, is_reversed);
        }
        let mut slices = Vec::new();
        for element in 0..=last {
            let offsets = self.offsets(if is_reversed { last - element } else { element });
            let mut piece = x;
            for (i, axis) in self.axes.iter().enumerate().rev() {
                piece = c.slice(piece, i + 2, offsets[i].into(), counts[i].clone(), axis.stride)?;
            }
            slices.push(c.unsqueeze(piece, 1)?);
        }
        c.concat(&slices, 1)
    }

    /// The columns of a padded operand, by an index for each axis.
    fn indexed_pieces<C: Emit>(
        &self,
        c: &mut C,
        x: ValueId,
        counts: &[Dim],
        is_reversed: bool,
    ) -> RuleResult<ValueId, C::Error> {
        let n = counts.len();
        let mut y = x;
        for (i, (axis, count)) in self.axes.iter().zip(counts).enumerate() {
            let begin = c.iota(count.clone(), 0, axis.stride, DType::I64)?;
            let (first, step) =
                if is_reversed { (axis.span() - 1, -axis.dilation) } else { (0, axis.dilation) };
            let offset = c.iota(axis.kernel.into(), first, step, DType::I64)?;
            y = c.formula([y, begin, offset], |[y, begin, offset]| {
                y.take(2 + 2 * i, offset.unsqueeze(1) + begin)
            })?;
        }
        let elements = (0..n).map(|i| 2 + 2 * i);
        let places = (0..n).map(|i| 3 + 2 * i);
        let y = c.permute(y, std::iter::once(0).chain(elements).chain([1]).chain(places).collect())?;
        let mut shape = vec![c.extent(y, 0), self.elements().into(), c.extent(y, n + 1)];
        shape.extend(counts.iter().cloned());
        c.reshape(y, shape)
    }

    /// The offset of an element of the kernel from the start of its window, by axis.
    fn offsets(&self, element: i64) -> Vec<i64> {
        let mut remaining = element;
        let mut offsets = vec![0; self.axes.len()];
        for (offset, axis) in offsets.iter_mut().zip(&self.axes).rev() {
            *offset = (remaining % axis.kernel) * axis.dilation;
            remaining /= axis.kernel;
        }
        offsets
    }

    /// The columns of the transposed operation. For each element of a window, in the same order as
    /// [`WindowGeometry::columns`] has them, the result has the element of `x` that it contributed to, for an
    /// operand of the extents `to`. The result is 0 where `x` has no such element.
    pub fn transposed_columns<C: Emit>(
        &self,
        c: &mut C,
        x: ValueId,
        to: &[Dim],
    ) -> RuleResult<ValueId, C::Error> {
        let mut x = x;
        let mut low = Vec::new();
        let mut extents = Vec::new();
        for (i, (axis, to)) in self.axes.iter().zip(to).enumerate() {
            x = insert_zeros(c, x, i + 2, axis.stride)?;
            let front = Dim::from(axis.span() - 1) - axis.padding_before.clone();
            let extent = to.clone() + Dim::from(axis.span() - 1);
            let n = c.extent(x, i + 2);
            let after = extent.clone() - n.clone() - front.clone();
            c.require_cropped(&n, &front, &after)?;
            low.push(front);
            extents.push(extent);
        }
        let x = pad_axes(c, x, &low, extents, Scalar::Int(0))?;
        let mut dense = self.clone();
        dense.axes.iter_mut().for_each(|axis| axis.stride = 1);
        dense.pieces(c, x, to, true)
    }

    /// The transpose of [`WindowGeometry::columns`] for an operand of the extents `to`: each of its elements is
    /// the sum of the window elements on it. `x` is `[batch, channels, elements, ...]`.
    pub fn sum_columns<C: Emit>(&self, c: &mut C, x: ValueId, to: &[Dim]) -> RuleResult<ValueId, C::Error> {
        let count = self.elements();
        unsupported_if!(count > MAX_SLICES, "the kernel has {count} elements, more than {MAX_SLICES}");
        let padded: Vec<Dim> =
            self.axes.iter().zip(to).map(|(axis, to)| to.clone() + axis.padding()).collect();
        let mut y = self.place_element(c, x, 0, &padded)?;
        for element in 1..count {
            let piece = self.place_element(c, x, element, &padded)?;
            y = c.binary(BinaryOp::Add, y, piece)?;
        }
        for (i, (axis, to)) in self.axes.iter().zip(to).enumerate() {
            y = c.slice(y, i + 2, axis.padding_before.clone(), to.clone(), 1)?;
        }
        Ok(y)
    }

    /// One element of all windows, at its positions in an operand of these extents. Other positions are 0.
    fn place_element<C: Emit>(
        &self,
        c: &mut C,
        x: ValueId,
        element: i64,
        extents: &[Dim],
    ) -> RuleResult<ValueId, C::Error> {
        let piece = c.slice(x, 2, element.into(), 1.into(), 1)?;
        let mut piece = c.drop_axis(piece, 2)?;
        for (i, axis) in self.axes.iter().enumerate().rev() {
            piece = insert_zeros(c, piece, i + 2, axis.stride)?;
        }
        let low: Vec<Dim> = self.offsets(element).into_iter().map(Dim::from).collect();
        pad_axes(c, piece, &low, extents.to_vec(), Scalar::Int(0))
    }
}

/// Pads the axes after the second with a number: `low` elements before, and as many after as these extents
/// require.
fn pad_axes<C: Emit>(
    c: &mut C,
    x: ValueId,
    low: &[Dim],
    extents: Vec<Dim>,
    around: Scalar,
) -> RuleResult<ValueId, C::Error> {
    let dtype = c.dtype(x);
    let mut shape = c.shape(x);
    if shape.get(2..) == Some(extents.as_slice()) && low.iter().all(|l| l.as_const() == Some(0)) {
        return Ok(x);
    }
    shape.truncate(2);
    shape.extend(extents);
    let low = [Dim::from(0), Dim::from(0)].iter().chain(low).cloned().collect();
    let value = around.convert_to(dtype);
    c.emit_as("pad", Op::Pad { low, value }, &[x], TensorType::new(dtype, shape))
}

/// The elements of an axis with `step - 1` zeros between them.
fn insert_zeros<C: Emit>(c: &mut C, x: ValueId, axis: usize, step: i64) -> RuleResult<ValueId, C::Error> {
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
    let len = n * Dim::from(step) - Dim::from(step - 1);
    let len = if c.dim_bounds(&len).0 < 0 { len.max_with(&0.into()) } else { len };
    c.slice(x, axis, 0.into(), len, 1)
}
