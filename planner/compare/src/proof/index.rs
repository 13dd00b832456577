//! Positions as sums of axes.
//!
//! An [`Axis`] has the positions from 0 up to its extent. An [`Index`] is a sum of axes with factors, such as
//! `16*row + column`. A reshape divides an index by an extent; if the index does not show quotient and
//! remainder, an axis is split into an outer and an inner one. A split holds everywhere: an index that has the
//! axis has its two parts from then on.

use std::collections::BTreeMap;

use symmc_ir::{Dim, SymbolTable};

use crate::elements::is_unit;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AxisId(u32);

/// The sum of a constant and of axes with factors. No factor is 0.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Index {
    pub constant: Dim,
    pub terms: BTreeMap<AxisId, Dim>,
}

impl Index {
    pub fn constant(dim: Dim) -> Index {
        Index { constant: dim, terms: BTreeMap::new() }
    }

    pub fn axis(axis: AxisId) -> Index {
        Index { constant: Dim::from(0), terms: BTreeMap::from([(axis, Dim::from(1))]) }
    }

    pub fn as_constant(&self) -> Option<&Dim> {
        self.terms.is_empty().then_some(&self.constant)
    }

    #[must_use]
    pub fn plus(mut self, other: &Index) -> Index {
        self.constant = self.constant + other.constant.clone();
        for (&axis, factor) in &other.terms {
            self.add_term(axis, factor.clone());
        }
        self
    }

    #[must_use]
    pub fn times(&self, factor: &Dim) -> Index {
        let mut out = Index::constant(self.constant.clone() * factor.clone());
        for (&axis, own) in &self.terms {
            out.add_term(axis, own.clone() * factor.clone());
        }
        out
    }

    fn add_term(&mut self, axis: AxisId, factor: Dim) {
        let sum = self.terms.remove(&axis).map_or(factor.clone(), |own| own + factor);
        if sum != Dim::from(0) {
            self.terms.insert(axis, sum);
        }
    }
}

/// Where the evaluation of a value has to go on in two parts: the positions of an axis below `at`, and the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AxisCut {
    pub axis: AxisId,
    pub at: Dim,
}

struct Axis {
    extent: Dim,
    /// The outer and the inner axis that replace it.
    parts: Option<[AxisId; 2]>,
}

/// The most axes of one proof.
const MAX_AXES: usize = 20_000;
/// The most splits for one division.
const MAX_SPLITS: usize = 8;

pub struct AxisTable<'a> {
    axes: Vec<Axis>,
    pub symbols: &'a SymbolTable,
}

impl<'a> AxisTable<'a> {
    pub fn new(symbols: &'a SymbolTable) -> AxisTable<'a> {
        AxisTable { axes: Vec::new(), symbols }
    }

    /// All positions of a new axis. An axis of one position is the constant 0.
    pub fn add(&mut self, extent: &Dim) -> Option<Index> {
        if is_unit(extent) {
            return Some(Index::constant(Dim::from(0)));
        }
        self.add_axis(extent.clone()).map(Index::axis)
    }

    fn add_axis(&mut self, extent: Dim) -> Option<AxisId> {
        let id = AxisId(u32::try_from(self.axes.len()).ok().filter(|_| self.axes.len() < MAX_AXES)?);
        self.axes.push(Axis { extent, parts: None });
        Some(id)
    }

    pub fn extent(&self, axis: AxisId) -> &Dim {
        &self.axes[axis.0 as usize].extent
    }

    /// The same index over axes that are not split.
    pub fn resolve(&self, index: &Index) -> Index {
        let mut out = Index::constant(index.constant.clone());
        let mut open: Vec<(AxisId, Dim)> = index.terms.iter().map(|(&a, f)| (a, f.clone())).collect();
        while let Some((axis, factor)) = open.pop() {
            match self.axes[axis.0 as usize].parts {
                Some([outer, inner]) => {
                    open.push((outer, factor.clone() * self.extent(inner).clone()));
                    open.push((inner, factor));
                }
                None => out.add_term(axis, factor),
            }
        }
        out
    }

    /// The axes that are not split of which an axis consists, outermost first.
    pub fn unsplit_axes(&self, axis: AxisId, out: &mut Vec<AxisId>) {
        match self.axes[axis.0 as usize].parts {
            Some(parts) => parts.into_iter().for_each(|part| self.unsplit_axes(part, out)),
            None => out.push(axis),
        }
    }

    fn split(&mut self, axis: AxisId, outer: Dim, inner: Dim) -> Option<()> {
        let parts = [self.add_axis(outer)?, self.add_axis(inner)?];
        self.axes[axis.0 as usize].parts = Some(parts);
        Some(())
    }

    /// The least and the largest value of an index, as dims. `None` if a factor may have either sign.
    pub fn bounds(&self, index: &Index) -> Option<[Dim; 2]> {
        let index = self.resolve(index);
        let zero = Dim::from(0);
        let mut out = [index.constant.clone(), index.constant];
        for (&axis, factor) in &index.terms {
            let span = factor.clone() * (self.extent(axis).clone() - Dim::from(1));
            if zero.provably_le(factor, self.symbols) {
                out[1] = out[1].clone() + span;
            } else if factor.provably_le(&zero, self.symbols) {
                out[0] = out[0].clone() + span;
            } else {
                return None;
            }
        }
        Some(out)
    }

    /// Whether an index always lies in `start..end`.
    pub fn is_within(&self, index: &Index, start: &Dim, end: &Dim) -> bool {
        self.bounds(index).is_some_and(|[least, largest]| {
            start.provably_le(&least, self.symbols) && (largest + Dim::from(1)).provably_le(end, self.symbols)
        })
    }

    /// The quotient and the remainder of an index that is not negative.
    pub fn divide(&mut self, index: &Index, divisor: &Dim) -> Option<[Index; 2]> {
        if is_unit(divisor) {
            return Some([self.resolve(index), Index::constant(Dim::from(0))]);
        }
        for _ in 0..MAX_SPLITS {
            let resolved = self.resolve(index);
            let mut quotient = Index::constant(Dim::from(0));
            let mut remainder = Index::constant(Dim::from(0));
            for (&axis, factor) in &resolved.terms {
                match factor.exact_div(divisor) {
                    Some(count) => quotient.add_term(axis, count),
                    None => remainder.add_term(axis, factor.clone()),
                }
            }
            (quotient.constant, remainder.constant) = divide_constant(&resolved.constant, divisor);
            if self.is_within(&remainder, &Dim::from(0), divisor) {
                return Some([quotient, remainder]);
            }
            self.split_for(&remainder, divisor)?;
        }
        None
    }

    /// Splits an axis of the remainder of a division at the divisor.
    fn split_for(&mut self, remainder: &Index, divisor: &Dim) -> Option<()> {
        let split = remainder.terms.iter().find_map(|(&axis, factor)| {
            let inner = divisor.exact_div(factor)?;
            let outer = self.extent(axis).exact_div(&inner)?;
            (!is_unit(&inner) && !is_unit(&outer)).then_some((axis, outer, inner))
        });
        let (axis, outer, inner) = split?;
        self.split(axis, outer, inner)
    }

    /// The cut of an axis at which an index reaches `boundary`.
    pub fn cut_at(&self, index: &Index, boundary: &Dim) -> Option<AxisCut> {
        let index = self.resolve(index);
        let distance = boundary.clone() - index.constant.clone();
        let mut candidates = index.terms.iter().filter_map(|(&axis, factor)| {
            let at = distance.exact_div(factor)?;
            let mut others = index.clone();
            others.terms.remove(&axis);
            others.constant = Dim::from(0);
            // The upper part may have no positions at some sizes.
            let is_between = Dim::from(1).provably_le(&at, self.symbols)
                && at.provably_le(self.extent(axis), self.symbols)
                && at != *self.extent(axis);
            (is_between && self.is_within(&others, &Dim::from(0), factor)).then_some(AxisCut { axis, at })
        });
        candidates.next()
    }

    /// The two parts of an index after a cut.
    pub fn apply_cut(&mut self, indices: &[Index], cut: &AxisCut) -> Option<[Vec<Index>; 2]> {
        let rest = self.extent(cut.axis).clone() - cut.at.clone();
        let low = self.add(&cut.at)?;
        let high = self.add(&rest)?.plus(&Index::constant(cut.at.clone()));
        Some([low, high].map(|part| {
            let replace = |index: &Index| {
                let mut index = self.resolve(index);
                match index.terms.remove(&cut.axis) {
                    Some(factor) => index.plus(&part.times(&factor)),
                    None => index,
                }
            };
            indices.iter().map(replace).collect()
        }))
    }
}

fn divide_constant(dim: &Dim, divisor: &Dim) -> (Dim, Dim) {
    if let Some(quotient) = dim.exact_div(divisor) {
        return (quotient, Dim::from(0));
    }
    match (dim.as_const(), divisor.as_const()) {
        (Some(x), Some(y)) if y > 0 => (Dim::from(x.div_euclid(y)), Dim::from(x.rem_euclid(y))),
        _ => (Dim::from(0), dim.clone()),
    }
}
