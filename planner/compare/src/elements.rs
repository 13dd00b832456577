//! The elements of a class that a value has, and their order.
//!
//! A *class* is a sequence of elements that both programs may compute. A value shows elements of one class
//! under an offset and strides, as a view shows elements of its base (`symmc_ir::layout`). Two values are equal
//! if they show the same elements of one class in the same order.
//!
//! Invariant: strides of axes of extent 1 are 0.

use symmc_ir::entity::Entity;
use symmc_ir::layout::{Layout, view_layout};
use symmc_ir::{Dim, Op, SymbolTable, TensorType, ValueId};

/// A sequence of elements, by the number of the term that computes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ElementClass(pub u32);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ElementView {
    pub class: ElementClass,
    /// The position of the first element.
    pub offset: Dim,
    pub shape: Vec<Dim>,
    pub strides: Vec<Dim>,
}

/// Whether an extent is 1 at all sizes.
pub fn is_unit(extent: &Dim) -> bool {
    extent.as_const() == Some(1)
}

impl ElementView {
    /// All elements of a class, which has as many elements as the shape.
    pub fn full(class: ElementClass, shape: &[Dim]) -> ElementView {
        let strides = contiguous_strides(shape);
        ElementView { class, offset: Dim::from(0), shape: shape.to_vec(), strides }
    }

    /// One element, repeated at each position of a shape.
    pub fn repeated(class: ElementClass, shape: &[Dim]) -> ElementView {
        let strides = vec![Dim::from(0); shape.len()];
        ElementView { class, offset: Dim::from(0), shape: shape.to_vec(), strides }
    }

    /// The elements that a view of these elements shows. `None` if the op is not a view, or may reach beyond
    /// the value.
    pub fn apply_view(
        &self,
        op: &Op,
        x: &TensorType,
        result: &TensorType,
        symbols: &SymbolTable,
    ) -> Option<ElementView> {
        if let Op::Slice { axis, start, step } = op {
            let own = self.shape.get(*axis)?;
            let count = result.shape.get(*axis)?;
            let last_position = start.clone() + (count.clone() - Dim::from(1)) * Dim::from(*step);
            let within = Dim::from(0).provably_le(start, symbols)
                && last_position.provably_le(&(own.clone() - Dim::from(1)), symbols);
            if !within {
                return None;
            }
        }
        let base = ValueId::new(0);
        let layout = Layout { base, offset: self.offset.clone(), strides: self.strides.clone() };
        let Layout { offset, strides, .. } = view_layout(op, &layout, x, result)?;
        let mut out = ElementView { class: self.class, offset, shape: result.shape.clone(), strides };
        out.clear_units();
        Some(out)
    }

    fn clear_units(&mut self) {
        let units = self.shape.iter().zip(&mut self.strides).filter(|(extent, _)| is_unit(extent));
        units.for_each(|(_, stride)| *stride = Dim::from(0));
    }

    /// The stride along each axis of a shape to which the elements broadcast.
    pub fn broadcast_strides(&self, rank: usize) -> Vec<Dim> {
        let new = rank.saturating_sub(self.shape.len());
        let mut strides = vec![Dim::from(0); new];
        strides.extend(self.strides.iter().cloned());
        strides
    }
}

/// Row-major strides, 0 along axes of extent 1.
pub fn contiguous_strides(shape: &[Dim]) -> Vec<Dim> {
    let mut strides = vec![Dim::from(0); shape.len()];
    let mut next = Dim::from(1);
    for (axis, extent) in shape.iter().enumerate().rev() {
        if !is_unit(extent) {
            strides[axis] = next.clone();
            next = next * extent.clone();
        }
    }
    strides
}

/// The axes along which several operands are read together.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct AxisNest {
    /// The extents, outermost first; none is 1.
    pub extents: Vec<Dim>,
    /// For each operand its stride along each axis.
    pub strides: Vec<Vec<Dim>>,
}

impl AxisNest {
    /// The axes of these extents with the strides of all operands. Axes of extent 1 are left out.
    pub fn new(extents: &[Dim], strides: &[Vec<Dim>]) -> AxisNest {
        let kept_axes: Vec<usize> = (0..extents.len()).filter(|&axis| !is_unit(&extents[axis])).collect();
        AxisNest {
            extents: kept_axes.iter().map(|&axis| extents[axis].clone()).collect(),
            strides: strides
                .iter()
                .map(|s| kept_axes.iter().map(|&axis| s[axis].clone()).collect())
                .collect(),
        }
    }

    /// The same positions in the same order. Neighbouring axes are merged if all operands read them as one.
    pub fn merged(mut self) -> AxisNest {
        let mut axis = self.extents.len();
        while axis >= 2 {
            axis -= 1;
            let inner = self.extents[axis].clone();
            if self.strides.iter().all(|s| s[axis - 1] == s[axis].clone() * inner.clone()) {
                self.extents[axis - 1] = self.extents[axis - 1].clone() * inner.clone();
                self.extents.remove(axis);
                for strides in &mut self.strides {
                    strides.remove(axis - 1);
                }
            }
        }
        self
    }
}
