//! Integers that are sums of positions: a constant, steps along the axes, and elements of other values.
//!
//! A [`LinearExpr`] describes a value with certain axes: it gives the element at each position. Views carry
//! it from one value to another ([`AxisView`]). Anything else is an [`ElementRef`]: an element of a value of
//! the program, with its position in that value. Sums are exact integers; [`LinearExpr::fits_type`] says
//! whether a tensor of a dtype holds them.

use symmc_ir::closed_form::non_unit_axes;
use symmc_ir::{DType, Dim, Graph, Op, SymbolTable, TensorType, ValueId};

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

/// The map from positions of a result to positions of the operand from which its elements come.
pub struct AxisView {
    /// For each axis of the operand: the axis of the result that advances it, if any, with its step; and the
    /// start.
    axes: Vec<(Option<(usize, i64)>, Dim)>,
    rank: usize,
}

/// The most terms of a sum.
const MAX_TERMS: usize = 8;
/// Constants stay below this, so that sums of a few of them are exact.
const MAX_CONSTANT: i64 = 1 << 60;

impl AxisView {
    /// The view of an operand that an op broadcasts to a shape.
    pub fn broadcast(from: &[Dim], to: &[Dim]) -> Option<AxisView> {
        let new = to.len().checked_sub(from.len())?;
        let axes = from.iter().enumerate().map(|(a, d)| {
            let moved = (d.as_const() != Some(1)).then_some((a + new, 1));
            (moved, Dim::from(0))
        });
        Some(AxisView { axes: axes.collect(), rank: to.len() })
    }

    /// The view of a value whose axes are advanced by these axes of a value of rank `rank`, each with a
    /// step.
    pub fn from_axes(axes: Vec<Option<(usize, i64)>>, rank: usize) -> AxisView {
        AxisView { axes: axes.into_iter().map(|moved| (moved, Dim::from(0))).collect(), rank }
    }

    /// The view of the operand of an op that only moves elements.
    pub fn of_op(op: &Op, from: &[Dim], to: &[Dim]) -> Option<AxisView> {
        if matches!(op, Op::Expand) {
            return AxisView::broadcast(from, to);
        }
        let mut axes = vec![(None, Dim::from(0)); from.len()];
        match op {
            Op::Permute { perm } => {
                perm.iter().enumerate().for_each(|(to, &from)| axes[from].0 = Some((to, 1)));
            }
            Op::Slice { axis, start, step } => {
                axes.iter_mut().enumerate().for_each(|(a, x)| x.0 = Some((a, 1)));
                axes[*axis] = (Some((*axis, *step)), start.clone());
            }
            // Only reshapes that add or remove axes of extent 1 qualify.
            Op::Reshape => {
                if !non_unit_axes(from).map(|(_, d)| d).eq(non_unit_axes(to).map(|(_, d)| d)) {
                    return None;
                }
                for ((from, _), (to, _)) in non_unit_axes(from).zip(non_unit_axes(to)) {
                    axes[from].0 = Some((to, 1));
                }
            }
            Op::Copy => axes.iter_mut().enumerate().for_each(|(a, x)| x.0 = Some((a, 1))),
            _ => return None,
        }
        // An axis of extent 1 advances nothing.
        for (moved, _) in &mut axes {
            *moved = moved.filter(|&(axis, _)| to[axis].as_const() != Some(1));
        }
        Some(AxisView { axes, rank: to.len() })
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
                let (moved, from) = view.axes.get(*axis)?;
                let start = start.clone() + from.clone();
                match moved {
                    None => Some(AxisIndex::Fixed(start)),
                    Some((axis, 1)) => Some(AxisIndex::Along { axis: *axis, start }),
                    Some(_) => None,
                }
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

    /// `self + factor * other`.
    pub fn add_scaled(&self, factor: i64, other: &LinearExpr) -> Option<LinearExpr> {
        let mut out = self.clone();
        out.constant = self.constant.clone() + scale_dim(&other.constant, factor)?;
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

    pub fn through_view(&self, view: &AxisView) -> Option<LinearExpr> {
        let mut out = LinearExpr::constant(self.constant.clone(), view.rank);
        for (&step, (moved, start)) in self.steps.iter().zip(&view.axes) {
            if step == 0 {
                continue;
            }
            out.constant = out.constant + scale_dim(start, step)?;
            if let Some((axis, by)) = moved {
                out.steps[*axis] = out.steps[*axis].checked_add(step.checked_mul(*by)?)?;
            }
        }
        for (times, leaf) in &self.terms {
            out.terms.push((*times, leaf.through_view(view)?));
        }
        Some(out)
    }

    /// Substitutes an index for each axis of the described value.
    pub fn compose(&self, indices: &[LinearExpr], rank: usize) -> Option<LinearExpr> {
        let mut out = LinearExpr::constant(self.constant.clone(), rank);
        if !self.terms.is_empty() {
            return None;
        }
        for (&step, index) in self.steps.iter().zip(indices) {
            out = out.add_scaled(step, index)?;
        }
        Some(out)
    }

    /// Whether no part depends on an axis.
    pub fn is_constant_along(&self, axis: usize) -> bool {
        self.steps.get(axis).is_none_or(|s| *s == 0) && !self.terms.iter().any(|t| t.1.varies_along(axis))
    }

    /// An interval that contains all values over a shape; `None` if elements of other values occur.
    pub fn range(&self, symbols: &SymbolTable, shape: &[Dim]) -> Option<(i64, i64)> {
        if !self.terms.is_empty() {
            return None;
        }
        let mut ends = [self.constant.clone(), self.constant.clone()];
        for (&step, extent) in self.steps.iter().zip(shape) {
            let last_offset = scale_dim(&(extent.clone() - Dim::from(1)), step)?;
            let end = &mut ends[usize::from(step > 0)];
            *end = end.clone() + last_offset;
        }
        let [(low, _), (_, high)] = [ends[0].bounds(symbols), ends[1].bounds(symbols)];
        (low.unsigned_abs() < i64::MAX as u64 && high < i64::MAX).then_some((low.min(high), high.max(low)))
    }

    /// Whether a tensor of this type holds the sum. Elements of 64 bits are positions and far from the ends
    /// of their range. Sums of narrower elements with anything else are not known to fit.
    pub fn fits_type(&self, symbols: &SymbolTable, ty: &TensorType) -> bool {
        let free = LinearExpr { terms: Vec::new(), ..self.clone() };
        let Some((low, high)) = free.range(symbols, &ty.shape) else { return false };
        let bounds = if ty.dtype == DType::I64 {
            Some((-MAX_CONSTANT, MAX_CONSTANT))
        } else {
            ty.dtype.integer_bounds()
        };
        let Some((min, max)) = bounds else { return false };
        let is_single_term = matches!(self.terms[..], [(1, _)]) && (low, high) == (0, 0);
        min <= low && high <= max && (self.terms.is_empty() || ty.dtype == DType::I64 || is_single_term)
    }
}

/// The product, if it is far from the ends of 64 bits.
fn scale_dim(dim: &Dim, by: i64) -> Option<Dim> {
    (by.checked_abs()? < MAX_CONSTANT >> 24).then(|| dim.clone() * Dim::from(by))
}
