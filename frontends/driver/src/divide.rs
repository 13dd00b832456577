//! Where the range of a symbol is divided so that each size runs by a form that is good there.
//!
//! The form of a bucket is chosen at the upper ends of its ranges. At smaller sizes other variants can be faster. The division
//! compares them at a grid of sizes, the powers of two in the range of each symbol and the end of that range: variants are chosen at each
//! point, and a form is *good* at a point if its collectives take at most [`LOSS`] times what those chosen there take. What a
//! run loses by less than [`SMALL`] of its time does not count. A box of sizes whose form is not good at one of its points is cut
//! in two, until all are good or there are as many boxes as allowed, those that lose most first.
//!
//! Overlap and order are deliberately absent: they need a schedule. [`crate::compile()`] compares planned buckets afterwards.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use indexmap::IndexMap;
use symmc_ir::{Dim, Graph, Op, SymbolId, ValueId};
use symmc_plan::Decision;

/// The inclusive range of each symbol in one bucket.
pub type SymbolRanges = IndexMap<SymbolId, (i64, i64)>;

#[derive(Clone, PartialEq, Debug)]
pub struct BucketRequest {
    pub ranges: SymbolRanges,
    /// Whether its steps have an order of their own, also if another bucket runs the same program.
    pub own_order: bool,
}

impl BucketRequest {
    /// A bucket of these ranges, which shares its order with buckets of the same program.
    pub fn new(ranges: SymbolRanges) -> BucketRequest {
        BucketRequest { ranges, own_order: false }
    }
}

/// How much longer the collectives of a good form take at most than those that are chosen for the size.
const LOSS: f64 = 1.07;

/// The part of a run's time that is not worth a bucket.
const SMALL: f64 = 0.01;

/// How many nodes are lowered at most to divide one range: nodes of the program times points of the grid.
const NODES: usize = 60_000;

/// The most points of a grid.
const POINTS: usize = 320;

pub trait VariantChooser {
    /// Why no choice can be made.
    type Error;

    /// How each collective is chosen at each of these points, in the order of the program.
    fn choose_variants(&self, points: Vec<SymbolRanges>) -> Result<Vec<Vec<Decision>>, Self::Error>;

    fn computation_us(&self, point: &SymbolRanges) -> Result<f64, Self::Error>;
}

/// Divides the ranges of these symbols, in the order of their sizes, into at most `most` parts. `nodes` is the number of nodes of
/// the program.
pub fn divide_ranges<C: VariantChooser>(
    of: &SymbolRanges,
    symbols: &[SymbolId],
    (nodes, most): (usize, usize),
    chooser: &C,
) -> Result<Vec<SymbolRanges>, C::Error> {
    let points = (NODES / nodes.max(1)).clamp(16, POINTS);
    let Some(grid) = SizeGrid::new(of, symbols, points).filter(|_| most > 1) else {
        return Ok(vec![of.clone()]);
    };
    let points: Vec<SymbolRanges> = grid.positions().iter().map(|at| grid.point(of, at)).collect();
    let decisions = chooser.choose_variants(points.clone())?;
    let mut forms = PointForms { chooser, points, decisions, compute_us: BTreeMap::new() };
    let mut sections = vec![(grid.full_section(), grid.section_losses(&grid.full_section(), &mut forms)?)];
    while sections.len() < most {
        let sum = |lost: &[(Vec<usize>, f64)]| lost.iter().map(|(_, us)| us).sum::<f64>();
        let losing =
            sections.iter().enumerate().map(|(i, (_, lost))| (i, sum(lost))).filter(|(_, us)| *us > 0.0);
        let Some((worst, _)) = losing.max_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        let (section, lost) = &sections[worst];
        let Some((axis, size)) = best_cut(section, lost) else { break };
        let [mut lower, mut upper] = [section.clone(), section.clone()];
        (lower[axis].1, upper[axis].0) = (size, size + 1);
        let [lower_lost, upper_lost] =
            [grid.section_losses(&lower, &mut forms)?, grid.section_losses(&upper, &mut forms)?];
        sections[worst] = (upper, upper_lost);
        sections.insert(worst, (lower, lower_lost));
    }
    Ok(sections.iter().map(|(section, _)| grid.ranges(of, section)).collect())
}

struct PointForms<'a, C> {
    chooser: &'a C,
    points: Vec<SymbolRanges>,
    /// How each collective is chosen at each point.
    decisions: Vec<Vec<Decision>>,
    compute_us: BTreeMap<usize, f64>,
}

impl<C: VariantChooser> PointForms<'_, C> {
    /// The microseconds that what is chosen at the point `form` loses at the point `there`, if that is not little.
    fn loss_at(&mut self, form: usize, there: usize) -> Result<f64, C::Error> {
        let mut total = 0.0;
        let mut lost = 0.0;
        for (ours, best) in self.decisions[form].iter().zip(&self.decisions[there]) {
            let us = |name: &str| best.alternatives.iter().find(|a| a.name == name).map(|a| a.us);
            let Some(best_us) = us(&best.chosen) else { continue };
            total += best_us;
            lost += us(&ours.chosen).map_or(0.0, |us| (us - LOSS * best_us).max(0.0));
        }
        if lost <= SMALL * total {
            return Ok(0.0);
        }
        let compute_us = match self.compute_us.get(&there) {
            Some(&us) => us,
            None => self.chooser.computation_us(&self.points[there])?,
        };
        self.compute_us.insert(there, compute_us);
        Ok(if lost > SMALL * (total + compute_us) { lost } else { 0.0 })
    }
}

/// The inclusive range of each axis of a grid.
type GridSection = Vec<(usize, usize)>;

/// Sizes of several symbols, all combinations of them.
pub struct SizeGrid {
    axes: Vec<(SymbolId, Vec<i64>)>,
}

impl SizeGrid {
    /// The powers of two in each range, and its end; with fewer powers where these are more than `most` points. None if there
    /// is only one.
    pub fn new(of: &SymbolRanges, symbols: &[SymbolId], most: usize) -> Option<SizeGrid> {
        let grid = (1..64).find_map(|step| {
            let axes = symbols.iter().filter_map(|&s| Some((s, compared_sizes(*of.get(&s)?, step))));
            let grid = SizeGrid { axes: axes.filter(|(_, sizes)| sizes.len() > 1).collect() };
            (grid.len() <= most).then_some(grid)
        });
        grid.filter(|grid| !grid.axes.is_empty())
    }

    /// The positions of all points; the last one has the upper ends.
    pub fn positions(&self) -> Vec<Vec<usize>> {
        (0..self.len()).map(|at| self.coordinates(at)).collect()
    }

    /// The two parts of the ranges that leave most points at which their form loses to a form of their own, if it loses at any;
    /// see [`best_cut`].
    pub fn cut_ranges(&self, of: &SymbolRanges, lost: &[(Vec<usize>, f64)]) -> Option<[SymbolRanges; 2]> {
        let whole = self.full_section();
        let (axis, size) = best_cut(&whole, lost).filter(|_| lost.iter().any(|&(_, us)| us > 0.0))?;
        let [mut lower, mut upper] = [whole.clone(), whole];
        (lower[axis].1, upper[axis].0) = (size, size + 1);
        Some([self.ranges(of, &lower), self.ranges(of, &upper)])
    }

    fn len(&self) -> usize {
        self.axes.iter().map(|(_, sizes)| sizes.len()).fold(1, usize::saturating_mul)
    }

    fn full_section(&self) -> GridSection {
        self.axes.iter().map(|(_, sizes)| (0, sizes.len() - 1)).collect()
    }

    fn coordinates(&self, mut at: usize) -> Vec<usize> {
        let mut digit = |(_, sizes): &(SymbolId, Vec<i64>)| {
            let of = at % sizes.len();
            at /= sizes.len();
            of
        };
        self.axes.iter().map(&mut digit).collect()
    }

    fn index(&self, coordinates: &[usize]) -> usize {
        let digits = self.axes.iter().zip(coordinates).rev();
        digits.fold(0, |at, ((_, sizes), &of)| at * sizes.len() + of)
    }

    /// The ranges of a point: those of symbols without an axis end at their upper ends.
    pub fn point(&self, of: &SymbolRanges, coordinates: &[usize]) -> SymbolRanges {
        let mut out: SymbolRanges = of.iter().map(|(&s, &(_, high))| (s, (high, high))).collect();
        for ((symbol, sizes), &at) in self.axes.iter().zip(coordinates) {
            out.insert(*symbol, (sizes[at], sizes[at]));
        }
        out
    }

    fn ranges(&self, of: &SymbolRanges, section: &GridSection) -> SymbolRanges {
        let mut out = of.clone();
        for ((symbol, sizes), &(first, last)) in self.axes.iter().zip(section) {
            let low = first.checked_sub(1).map_or(of[symbol].0, |below| sizes[below] + 1);
            out.insert(*symbol, (low, sizes[last]));
        }
        out
    }

    /// The points of a section, with what the form of its upper end loses there in microseconds: 0 where it is good.
    fn section_losses<C: VariantChooser>(
        &self,
        section: &GridSection,
        forms: &mut PointForms<'_, C>,
    ) -> Result<Vec<(Vec<usize>, f64)>, C::Error> {
        let corner: Vec<usize> = section.iter().map(|&(_, last)| last).collect();
        let form = self.index(&corner);
        let mut out = Vec::new();
        let mut at: Vec<usize> = section.iter().map(|&(first, _)| first).collect();
        loop {
            out.push((at.clone(), forms.loss_at(form, self.index(&at))?));
            let Some(axis) = (0..at.len()).find(|&axis| at[axis] < section[axis].1) else { break };
            at[axis] += 1;
            (0..axis).for_each(|below| at[below] = section[below].0);
        }
        Ok(out)
    }
}

/// The axis and the last size of the lower part of the cut that leaves the most points that lose, and of these cuts the one that
/// leaves the fewest others, to a form of their own: along a single axis, at the largest size that loses.
fn best_cut(section: &GridSection, lost: &[(Vec<usize>, f64)]) -> Option<(usize, usize)> {
    let cuts = section.iter().enumerate();
    let cuts = cuts.flat_map(|(axis, &(first, last))| (first..last).map(move |cut| (axis, cut)));
    let score = |&(axis, cut): &(usize, usize)| {
        let below = || lost.iter().filter(|(at, _)| at[axis] <= cut);
        let losing = below().filter(|(_, us)| *us > 0.0).count();
        (losing, Reverse(below().count() - losing))
    };
    cuts.max_by_key(score)
}

/// The sizes at which forms are compared, ascending: the powers of two in a range, of which each `step`th counts, and the end
/// of the range.
fn compared_sizes((low, high): (i64, i64), step: usize) -> Vec<i64> {
    let powers = (0..63).map(|k| 1i64 << k).filter(|p| (low..high).contains(p));
    powers.step_by(step).chain([high]).collect()
}

/// The symbols on which the sizes of collectives depend.
pub fn collective_symbols(graph: &Graph) -> Vec<SymbolId> {
    let communicating = graph.nodes.values().filter(|n| matches!(n.op, Op::Collective(_)));
    let values = communicating.flat_map(|n| n.inputs.iter().chain(&n.outputs));
    let dims = values.flat_map(|&v: &ValueId| graph.ty(v).shape.iter().flat_map(Dim::symbols));
    let mut out: Vec<SymbolId> = dims.collect();
    out.sort_unstable();
    out.dedup();
    out
}
