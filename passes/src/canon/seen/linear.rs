//! Integers that are sums of positions: a constant, steps along the axes, and elements of other values.
//!
//! A [`Linear`] is about a value of some axes and says what its element at a position is. Views carry it from one value
//! to another ([`View`]). What is not understood is a [`Leaf`]: an element of a value of the program, with the place
//! where it stands. Sums are exact integers; [`Linear::fits`] says whether a tensor of a dtype holds them.

use symmc_ir::known::non_unit;
use symmc_ir::{DType, Dim, Graph, Op, Symbols, Type, ValueId};

/// Where an element of a value stands along one of its axes, for the positions of another value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// At one index.
    Fixed(Dim),
    /// At `start` plus the index along an axis of the other value.
    Along {
        /// The axis of the other value.
        axis: usize,
        /// Where its index 0 is.
        start: Dim,
    },
}

/// Elements of a value of the program; one place for each of its axes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Leaf {
    pub value: ValueId,
    pub at: Vec<Place>,
}

/// `constant + Σ steps[a] * i[a] + Σ factor * leaf` at the position `i`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Linear {
    /// What does not move.
    pub constant: Dim,
    /// What one step along each axis adds; 0 along axes of extent 1.
    pub steps: Vec<i64>,
    /// Elements of other values, each value at one place once.
    pub terms: Vec<(i64, Leaf)>,
}

/// How the axes of an operand follow those of a result whose elements are elements of the operand.
pub struct View {
    /// For each axis of the operand the axis of the result that moves it, if one does, with its step; and where it starts.
    axes: Vec<(Option<(usize, i64)>, Dim)>,
    rank: usize,
}

/// Sums have at most so many terms.
const MAX_TERMS: usize = 8;
/// Constants stay below this, so that sums of a few of them are exact.
const MAX_CONSTANT: i64 = 1 << 60;

impl View {
    /// Of an operand that an op broadcasts to a shape.
    pub fn broadcast(from: &[Dim], to: &[Dim]) -> Option<View> {
        let new = to.len().checked_sub(from.len())?;
        let axes = from.iter().enumerate().map(|(a, d)| {
            let moved = (d.as_const() != Some(1)).then_some((a + new, 1));
            (moved, Dim::from(0))
        });
        Some(View { axes: axes.collect(), rank: to.len() })
    }

    /// Of a value whose axes are moved by these axes of a value of so many, each with a step.
    pub fn moved(axes: Vec<Option<(usize, i64)>>, rank: usize) -> View {
        View { axes: axes.into_iter().map(|moved| (moved, Dim::from(0))).collect(), rank }
    }

    /// Of the operand of an op that moves elements.
    pub fn of(op: &Op, from: &[Dim], to: &[Dim]) -> Option<View> {
        if matches!(op, Op::Expand) {
            return View::broadcast(from, to);
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
            // Where only axes of extent 1 come and go.
            Op::Reshape => {
                if !non_unit(from).map(|(_, d)| d).eq(non_unit(to).map(|(_, d)| d)) {
                    return None;
                }
                for ((from, _), (to, _)) in non_unit(from).zip(non_unit(to)) {
                    axes[from].0 = Some((to, 1));
                }
            }
            Op::Copy => axes.iter_mut().enumerate().for_each(|(a, x)| x.0 = Some((a, 1))),
            _ => return None,
        }
        // An axis of extent 1 moves nothing.
        for (moved, _) in &mut axes {
            *moved = moved.filter(|&(axis, _)| to[axis].as_const() != Some(1));
        }
        Some(View { axes, rank: to.len() })
    }
}

impl Leaf {
    /// All of a value, element by element.
    pub fn whole(graph: &Graph, value: ValueId) -> Leaf {
        let at = graph.ty(value).shape.iter().enumerate().map(|(axis, d)| match d.as_const() {
            Some(1) => Place::Fixed(Dim::from(0)),
            _ => Place::Along { axis, start: Dim::from(0) },
        });
        Leaf { value, at: at.collect() }
    }

    pub fn moves_along(&self, axis: usize) -> bool {
        self.at.iter().any(|p| matches!(p, Place::Along { axis: a, .. } if *a == axis))
    }

    /// The same elements for the positions of what is a view of the value that this is about.
    pub fn viewed(&self, view: &View) -> Option<Leaf> {
        let at = self.at.iter().map(|place| match place {
            Place::Fixed(_) => Some(place.clone()),
            Place::Along { axis, start } => {
                let (moved, from) = view.axes.get(*axis)?;
                let start = start.clone() + from.clone();
                match moved {
                    None => Some(Place::Fixed(start)),
                    Some((axis, 1)) => Some(Place::Along { axis: *axis, start }),
                    Some(_) => None,
                }
            }
        });
        Some(Leaf { value: self.value, at: at.collect::<Option<_>>()? })
    }
}

impl Linear {
    /// A constant about a value of so many axes.
    pub fn constant(constant: impl Into<Dim>, rank: usize) -> Linear {
        Linear { constant: constant.into(), steps: vec![0; rank], terms: Vec::new() }
    }

    pub fn leaf(leaf: Leaf, rank: usize) -> Linear {
        Linear { terms: vec![(1, leaf)], ..Linear::constant(0, rank) }
    }

    /// `self + factor * other`.
    pub fn plus(&self, factor: i64, other: &Linear) -> Option<Linear> {
        let mut out = self.clone();
        out.constant = self.constant.clone() + scaled(&other.constant, factor)?;
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
        (out.terms.len() <= MAX_TERMS && out.constant.terms() <= MAX_TERMS).then_some(out)
    }

    pub fn times(&self, factor: i64) -> Option<Linear> {
        Linear::constant(0, self.steps.len()).plus(factor, self)
    }

    /// The floor of a quotient by a positive number, where that is a sum of positions.
    pub fn over(&self, by: i64) -> Option<Linear> {
        let whole =
            self.steps.iter().chain(self.terms.iter().map(|t| &t.0)).all(|s| s.checked_rem(by) == Some(0));
        let constant = match self.constant.as_const() {
            Some(c) => Dim::from(c.checked_div_euclid(by)?),
            None => self.constant.exact_div(&Dim::from(by))?,
        };
        let steps = self.steps.iter().map(|s| s / by).collect();
        let terms = self.terms.iter().map(|(times, leaf)| (times / by, leaf.clone())).collect();
        whole.then_some(Linear { constant, steps, terms })
    }

    pub fn shifted(&self, by: impl Into<Dim>) -> Option<Linear> {
        self.plus(1, &Linear::constant(by, self.steps.len()))
    }

    pub fn viewed(&self, view: &View) -> Option<Linear> {
        let mut out = Linear::constant(self.constant.clone(), view.rank);
        for (&step, (moved, start)) in self.steps.iter().zip(&view.axes) {
            if step == 0 {
                continue;
            }
            out.constant = out.constant + scaled(start, step)?;
            if let Some((axis, by)) = moved {
                out.steps[*axis] = out.steps[*axis].checked_add(step.checked_mul(*by)?)?;
            }
        }
        for (times, leaf) in &self.terms {
            out.terms.push((*times, leaf.viewed(view)?));
        }
        Some(out)
    }

    /// With an index in the place of each axis of the value that this is about.
    pub fn at(&self, indices: &[Linear], rank: usize) -> Option<Linear> {
        let mut out = Linear::constant(self.constant.clone(), rank);
        if !self.terms.is_empty() {
            return None;
        }
        for (&step, index) in self.steps.iter().zip(indices) {
            out = out.plus(step, index)?;
        }
        Some(out)
    }

    /// Whether nothing in it depends on an axis.
    pub fn is_still_along(&self, axis: usize) -> bool {
        self.steps.get(axis).is_none_or(|s| *s == 0) && !self.terms.iter().any(|t| t.1.moves_along(axis))
    }

    /// The least and the greatest value over a shape, never too narrow; `None` if elements of values are in it.
    pub fn range(&self, symbols: &Symbols, shape: &[Dim]) -> Option<(i64, i64)> {
        if !self.terms.is_empty() {
            return None;
        }
        let mut ends = [self.constant.clone(), self.constant.clone()];
        for (&step, extent) in self.steps.iter().zip(shape) {
            let last = scaled(&(extent.clone() - Dim::from(1)), step)?;
            let end = &mut ends[usize::from(step > 0)];
            *end = end.clone() + last;
        }
        let [(low, _), (_, high)] = [ends[0].bounds(symbols), ends[1].bounds(symbols)];
        (low.unsigned_abs() < i64::MAX as u64 && high < i64::MAX).then_some((low.min(high), high.max(low)))
    }

    /// Whether a tensor of this type holds it. Elements of 64 bits are positions and far from the ends of their range; sums
    /// of narrower ones with anything are not known to fit.
    pub fn fits(&self, symbols: &Symbols, ty: &Type) -> bool {
        let free = Linear { terms: Vec::new(), ..self.clone() };
        let Some((low, high)) = free.range(symbols, &ty.shape) else { return false };
        let (min, max) = match ty.dtype {
            DType::I64 => (-MAX_CONSTANT, MAX_CONSTANT),
            DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            DType::U8 => (0, 255),
            _ => return false,
        };
        let alone = matches!(self.terms[..], [(1, _)]) && (low, high) == (0, 0);
        min <= low && high <= max && (self.terms.is_empty() || ty.dtype == DType::I64 || alone)
    }
}

/// A product, if it is far from the ends of 64 bits.
fn scaled(dim: &Dim, by: i64) -> Option<Dim> {
    (by.checked_abs()? < MAX_CONSTANT >> 24).then(|| dim.clone() * Dim::from(by))
}
