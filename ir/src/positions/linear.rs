//! Integers that are sums of positions: a constant, steps along the axes, and elements of other values.
//!
//! A [`LinearExpr`] describes a value with certain axes: it gives the element at each position. Views carry
//! it from one value to another ([`AxisView`]). Anything else is an [`ElementRef`]: an element of a value of
//! the program, with its position in that value. Sums are exact integers; [`LinearExpr::fits_type`] says
//! whether a tensor of a dtype holds them. Arithmetic that could leave 64 bits gives `None`.

use super::integer_range::IntegerRange;
use crate::dim::Dim;
use crate::graph::Graph;
use crate::ids::ValueId;
use crate::op::Op;
use crate::symbol::SymbolTable;
use crate::types::{DType, TensorType};

/// The position of an element of a value along one of its axes, as a function of positions of another value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum AxisIndex {
    /// At one index.
    Fixed(Dim),
    /// At `start` plus the index along an axis of the other value.
    Along {
        /// The axis of the other value.
        axis: usize,
        /// The position at index 0.
        start: Dim,
    },
}

/// Elements of a value of the program, with an index for each of its axes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ElementRef {
    pub value: ValueId,
    pub axis_indices: Vec<AxisIndex>,
}

/// `constant + Σ steps[a] * i[a] + Σ factor * leaf` at the position `i`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinearExpr {
    /// The part that does not depend on the position.
    pub constant: Dim,
    /// The step along each axis; 0 along axes of extent 1.
    pub steps: Vec<i64>,
    /// Elements of other values with their factors; each [`ElementRef`] occurs once.
    pub terms: Vec<(i64, ElementRef)>,
}

/// For each axis of an operand, the position along it from which the elements of a result come.
pub struct AxisView {
    axes: Vec<LinearExpr>,
    /// The rank of the result.
    rank: usize,
}

/// The most terms of a sum.
const MAX_TERMS: usize = 8;
/// Constants stay below this, so that sums of a few of them are exact.
pub const MAX_CONSTANT: i64 = 1 << 60;

impl AxisView {
    /// The view with these positions in the operand, as sums of positions in a value of rank `rank`.
    pub fn new(axes: Vec<LinearExpr>, rank: usize) -> AxisView {
        AxisView { axes, rank }
    }

    /// The view of an operand that an op broadcasts to a shape.
    pub fn broadcast(from: &[Dim], to: &[Dim]) -> Option<AxisView> {
        let added = to.len().checked_sub(from.len())?;
        let axes = from.iter().enumerate().map(|(axis, extent)| match extent.as_const() {
            Some(1) => LinearExpr::constant(0, to.len()),
            _ => LinearExpr::position(axis + added, to),
        });
        Some(AxisView::new(axes.collect(), to.len()))
    }

    /// The view of the operand of an op that only moves elements. A reshape qualifies only if it adds or
    /// removes axes of extent 1.
    pub fn of_op(op: &Op, from: &[Dim], to: &[Dim]) -> Option<AxisView> {
        let same_axes = || (0..to.len()).map(|axis| LinearExpr::position(axis, to));
        let axes = match op {
            Op::Copy => same_axes().collect(),
            Op::Expand => return AxisView::broadcast(from, to),
            Op::Permute { perm } => {
                let mut axes = vec![LinearExpr::constant(0, to.len()); from.len()];
                perm.iter().zip(same_axes()).for_each(|(&axis, position)| axes[axis] = position);
                axes
            }
            Op::Slice { axis, start, step } => {
                let mut axes: Vec<LinearExpr> = same_axes().collect();
                axes[*axis] = axes[*axis].times(*step)?.offset_by(start.clone())?;
                axes
            }
            Op::Reshape => {
                if !non_unit_axes(from).map(|(_, d)| d).eq(non_unit_axes(to).map(|(_, d)| d)) {
                    return None;
                }
                let mut axes = vec![LinearExpr::constant(0, to.len()); from.len()];
                for ((from, _), (axis, _)) in non_unit_axes(from).zip(non_unit_axes(to)) {
                    axes[from] = LinearExpr::position(axis, to);
                }
                axes
            }
            op => unreachable!("{op:?} is not a view"),
        };
        Some(AxisView::new(axes, to.len()))
    }
}

impl ElementRef {
    /// A value, element by element.
    pub fn whole_value(graph: &Graph, value: ValueId) -> ElementRef {
        let indices = graph.ty(value).shape.iter().enumerate().map(|(axis, d)| match d.as_const() {
            Some(1) => AxisIndex::Fixed(Dim::from(0)),
            _ => AxisIndex::Along { axis, start: Dim::from(0) },
        });
        ElementRef { value, axis_indices: indices.collect() }
    }

    pub fn varies_along(&self, axis: usize) -> bool {
        self.axis_indices.iter().any(|p| matches!(p, AxisIndex::Along { axis: a, .. } if *a == axis))
    }

    /// The same elements at the positions of a view of the described value.
    pub fn through_view(&self, view: &AxisView) -> Option<ElementRef> {
        let indices = self.axis_indices.iter().map(|index| match index {
            AxisIndex::Fixed(_) => Some(index.clone()),
            AxisIndex::Along { axis, start } => {
                view.axes.get(*axis)?.offset_by(start.clone())?.to_axis_index()
            }
        });
        Some(ElementRef { value: self.value, axis_indices: indices.collect::<Option<_>>()? })
    }
}

impl LinearExpr {
    /// A constant for a value of rank `rank`.
    pub fn constant(constant: impl Into<Dim>, rank: usize) -> LinearExpr {
        LinearExpr { constant: constant.into(), steps: vec![0; rank], terms: Vec::new() }
    }

    pub fn leaf(leaf: ElementRef, rank: usize) -> LinearExpr {
        LinearExpr { terms: vec![(1, leaf)], ..LinearExpr::constant(0, rank) }
    }

    /// The position along an axis of a value of this shape.
    pub fn position(axis: usize, shape: &[Dim]) -> LinearExpr {
        let mut position = LinearExpr::constant(0, shape.len());
        position.steps[axis] = i64::from(shape[axis].as_const() != Some(1));
        position
    }

    /// `self + factor * other`.
    pub fn add_scaled(&self, factor: i64, other: &LinearExpr) -> Option<LinearExpr> {
        let mut out = self.clone();
        out.constant = add_dims(&self.constant, &scale_dim(&other.constant, factor)?)?;
        for (step, by) in out.steps.iter_mut().zip(&other.steps) {
            *step = step.checked_add(by.checked_mul(factor)?)?;
        }
        for (times, leaf) in &other.terms {
            let times = times.checked_mul(factor)?;
            match out.terms.iter_mut().find(|t| t.1 == *leaf) {
                Some(same) => same.0 = same.0.checked_add(times)?,
                None => out.terms.push((times, leaf.clone())),
            }
        }
        out.terms.retain(|t| t.0 != 0);
        (out.terms.len() <= MAX_TERMS && out.constant.term_count() <= MAX_TERMS).then_some(out)
    }

    pub fn times(&self, factor: i64) -> Option<LinearExpr> {
        LinearExpr::constant(0, self.steps.len()).add_scaled(factor, self)
    }

    /// The floor of the quotient by a positive number, if it is a sum of positions.
    pub fn floor_div(&self, by: i64) -> Option<LinearExpr> {
        let is_divisible =
            self.steps.iter().chain(self.terms.iter().map(|t| &t.0)).all(|s| s.checked_rem(by) == Some(0));
        let constant = match self.constant.as_const() {
            Some(c) => Dim::from(c.checked_div_euclid(by)?),
            None => self.constant.exact_div(&Dim::from(by))?,
        };
        let steps = self.steps.iter().map(|s| s / by).collect();
        let terms = self.terms.iter().map(|(times, leaf)| (times / by, leaf.clone())).collect();
        is_divisible.then_some(LinearExpr { constant, steps, terms })
    }

    pub fn offset_by(&self, by: impl Into<Dim>) -> Option<LinearExpr> {
        self.add_scaled(1, &LinearExpr::constant(by, self.steps.len()))
    }

    /// The sum at the positions of a view.
    pub fn through_view(&self, view: &AxisView) -> Option<LinearExpr> {
        let mut out = LinearExpr::constant(self.constant.clone(), view.rank);
        for (&step, position) in self.steps.iter().zip(&view.axes).filter(|(step, _)| **step != 0) {
            out = out.add_scaled(step, position)?;
        }
        for (times, leaf) in &self.terms {
            out = out.add_scaled(*times, &LinearExpr::leaf(leaf.through_view(view)?, view.rank))?;
        }
        Some(out)
    }

    /// The sum as an index along an axis, if it is a constant or advances with one axis.
    fn to_axis_index(&self) -> Option<AxisIndex> {
        let start = self.constant.clone();
        let mut moving = self.steps.iter().enumerate().filter(|(_, step)| **step != 0);
        match (moving.next(), moving.next()) {
            _ if !self.terms.is_empty() => None,
            (None, _) => Some(AxisIndex::Fixed(start)),
            (Some((axis, 1)), None) => Some(AxisIndex::Along { axis, start }),
            _ => None,
        }
    }

    /// Whether no part depends on an axis.
    pub fn is_constant_along(&self, axis: usize) -> bool {
        self.steps.get(axis).is_none_or(|s| *s == 0) && !self.terms.iter().any(|t| t.1.varies_along(axis))
    }

    /// The number at all positions, if there is one.
    pub fn as_number(&self) -> Option<i64> {
        self.constant.as_const().filter(|_| self.terms.is_empty() && self.steps.iter().all(|s| *s == 0))
    }

    /// The least and the greatest value over a shape with elements; `None` if elements of other values occur.
    pub fn ends(&self, shape: &[Dim]) -> Option<IntegerRange> {
        let mut least = self.constant.clone();
        let mut greatest = self.constant.clone();
        let moving = self.steps.iter().zip(shape).filter(|(step, n)| **step != 0 && n.as_const() != Some(0));
        for (&step, extent) in moving {
            let end = if step < 0 { &mut least } else { &mut greatest };
            *end = add_dims(end, &scale_dim(&(extent.clone() - Dim::from(1)), step)?)?;
        }
        self.terms.is_empty().then_some(IntegerRange { least, greatest })
    }

    /// Numbers between which all values over a shape lie, at all sizes.
    pub fn range(&self, symbols: &SymbolTable, shape: &[Dim]) -> Option<(i64, i64)> {
        let IntegerRange { least, greatest } = self.ends(shape)?;
        if let (Some(low), Some(high)) = (least.as_const(), greatest.as_const()) {
            return Some((low, high));
        }
        // The ends are exchanged where an axis is empty.
        let low = least.bounds(symbols).0.min(greatest.bounds(symbols).1);
        let high = greatest.bounds(symbols).1.max(least.bounds(symbols).0);
        (low > -i64::MAX && high < i64::MAX).then_some((low, high))
    }

    /// Whether a tensor of this type holds the sum. Elements of 64 bits are positions and far from the ends
    /// of their range. Sums of narrower elements with anything else are not known to fit.
    pub fn fits_type(&self, symbols: &SymbolTable, ty: &TensorType) -> bool {
        let free = LinearExpr { terms: Vec::new(), ..self.clone() };
        let Some((low, high)) = free.range(symbols, &ty.shape) else { return false };
        let Some((min, max)) = ty.dtype.integer_bounds() else { return false };
        let is_of_numbers = self.terms.is_empty() && self.constant.as_const().is_some();
        let is_moderate = -MAX_CONSTANT <= low && high <= MAX_CONSTANT;
        let is_single_term = matches!(self.terms[..], [(1, _)]) && (low, high) == (0, 0);
        let knows_terms = self.terms.is_empty() || ty.dtype == DType::I64 || is_single_term;
        min <= low && high <= max && (is_of_numbers || is_moderate) && knows_terms
    }

    /// The same sum over a shape, with step 0 along its axes of extent 1.
    pub fn without_unit_steps(mut self, shape: &[Dim]) -> LinearExpr {
        for (step, extent) in self.steps.iter_mut().zip(shape) {
            if extent.as_const() == Some(1) {
                *step = 0;
            }
        }
        self
    }
}

/// The axes whose extent is not 1, with their extents.
pub fn non_unit_axes(shape: &[Dim]) -> impl Iterator<Item = (usize, &Dim)> {
    shape.iter().enumerate().filter(|(_, d)| d.as_const() != Some(1))
}

/// The product, if it is exact: of numbers, or far from the ends of 64 bits.
pub fn scale_dim(dim: &Dim, by: i64) -> Option<Dim> {
    match dim.as_const() {
        Some(number) => number.checked_mul(by).map(Dim::from),
        None => (by.checked_abs()? < MAX_CONSTANT >> 24).then(|| dim.clone() * Dim::from(by)),
    }
}

/// The sum, if it is exact: of numbers, or far from the ends of 64 bits.
pub fn add_dims(x: &Dim, y: &Dim) -> Option<Dim> {
    match (x.as_const(), y.as_const()) {
        (Some(x), Some(y)) => x.checked_add(y).map(Dim::from),
        (Some(number), None) | (None, Some(number)) if number.unsigned_abs() >= MAX_CONSTANT as u64 => None,
        _ => Some(x.clone() + y.clone()),
    }
}
