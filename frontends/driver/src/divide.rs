//! Divides the ranges of symbols so that each size runs by a form that is good there.
//!
//! The form of a bucket is chosen at the upper ends of its ranges. At smaller sizes other variants can be
//! faster. The division compares them at a grid of sizes: the powers of two in the range of each symbol, and
//! the end of that range. Variants are chosen at each point. A form is *good* at a point if its collectives
//! take at most [`MAX_TIME_RATIO`] times as long as those chosen there. Losses below the fraction [`MIN_LOST_FRACTION`] of a run's
//! time do not count. If the form of a box of sizes is not good at one of its points, the box is cut in two.
//! This continues, with the boxes that lose most first, until all are good or the allowed number of boxes is
//! reached.
//!
//! Overlap and order are deliberately absent, because they need a schedule. [`crate::compile()`] compares
//! planned buckets afterwards.

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
    /// Whether its steps have an order of their own even if another bucket runs the same program.
    pub own_order: bool,
}

impl BucketRequest {
    /// A bucket of these ranges, which shares its order with buckets of the same program.
    pub fn new(ranges: SymbolRanges) -> BucketRequest {
        BucketRequest { ranges, own_order: false }
    }
}

/// The most time that the collectives of a good form take, relative to those chosen for the size.
const MAX_TIME_RATIO: f64 = 1.07;

/// The fraction of a run's time that does not justify a bucket.
const MIN_LOST_FRACTION: f64 = 0.01;

/// The most nodes that are lowered to divide one range: nodes of the program times points of the grid.
const MAX_LOWERED_NODES: usize = 60_000;

/// The most points of a grid.
const MAX_GRID_POINTS: usize = 320;

pub trait VariantChooser {
    /// The error if no choice can be made.
    type Error;

    /// The decision for each collective at each of these points, in program order.
    fn choose_variants(&self, points: Vec<SymbolRanges>) -> Result<Vec<Vec<Decision>>, Self::Error>;

    fn computation_us(&self, point: &SymbolRanges) -> Result<f64, Self::Error>;
}

/// Divides the ranges of these symbols, in the order of their sizes, into at most `max_sections` parts.
/// `nodes` is the number of nodes of the program.
pub fn divide_ranges<C: VariantChooser>(
    whole: &SymbolRanges,
    symbols: &[SymbolId],
    nodes: usize,
    max_sections: usize,
    chooser: &C,
) -> Result<Vec<SymbolRanges>, C::Error> {
    let points = (MAX_LOWERED_NODES / nodes.max(1)).clamp(16, MAX_GRID_POINTS);
    let Some(grid) = SizeGrid::new(whole, symbols, points).filter(|_| max_sections > 1) else {
        return Ok(vec![whole.clone()]);
    };
    let points: Vec<SymbolRanges> =
        grid.positions().iter().map(|coordinates| grid.point(whole, coordinates)).collect();
    let decisions = chooser.choose_variants(points.clone())?;
    let mut forms = PointForms { chooser, points, decisions, compute_us: BTreeMap::new() };
    let mut sections = vec![(grid.full_section(), grid.section_losses(&grid.full_section(), &mut forms)?)];
    while sections.len() < max_sections {
        let losses = sections.iter().map(|(_, lost)| lost.iter().map(|(_, us)| us).sum::<f64>()).enumerate();
        let losing = losses.filter(|(_, us)| *us > 0.0);
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
    Ok(sections.iter().map(|(section, _)| grid.ranges(whole, section)).collect())
}

struct PointForms<'a, C> {
    chooser: &'a C,
    points: Vec<SymbolRanges>,
    /// The decision for each collective at each point.
    decisions: Vec<Vec<Decision>>,
    compute_us: BTreeMap<usize, f64>,
}

impl<C: VariantChooser> PointForms<'_, C> {
    /// The microseconds that the form chosen at the point `form` loses at the point `there`; 0 if that is
    /// little.
    fn loss_at(&mut self, form: usize, there: usize) -> Result<f64, C::Error> {
        let mut total = 0.0;
        let mut lost = 0.0;
        for (ours, best) in self.decisions[form].iter().zip(&self.decisions[there]) {
            let Some(best_us) = alternative_us(best, &best.chosen) else { continue };
            total += best_us;
            lost +=
                alternative_us(best, &ours.chosen).map_or(0.0, |us| (us - MAX_TIME_RATIO * best_us).max(0.0));
        }
        if lost <= MIN_LOST_FRACTION * total {
            return Ok(0.0);
        }
        let compute_us = match self.compute_us.get(&there) {
            Some(&us) => us,
            None => self.chooser.computation_us(&self.points[there])?,
        };
        self.compute_us.insert(there, compute_us);
        Ok(if lost > MIN_LOST_FRACTION * (total + compute_us) { lost } else { 0.0 })
    }
}

fn alternative_us(decision: &Decision, name: &str) -> Option<f64> {
    decision.alternatives.iter().find(|a| a.name == name).map(|a| a.us)
}

/// The inclusive range of each axis of a grid.
type GridSection = Vec<(usize, usize)>;

/// All combinations of sizes of several symbols.
pub struct SizeGrid {
    axes: Vec<(SymbolId, Vec<i64>)>,
}

impl SizeGrid {
    /// The grid of the powers of two in each range and the range's end. Powers are skipped evenly if there
    /// would be more than `max_points` points. `None` if there is only one point.
    pub fn new(whole: &SymbolRanges, symbols: &[SymbolId], max_points: usize) -> Option<SizeGrid> {
        let grid = (1..64).find_map(|step| {
            let axes = symbols.iter().filter_map(|&s| Some((s, compared_sizes(*whole.get(&s)?, step))));
            let grid = SizeGrid { axes: axes.filter(|(_, sizes)| sizes.len() > 1).collect() };
            (grid.len() <= max_points).then_some(grid)
        });
        grid.filter(|grid| !grid.axes.is_empty())
    }

    /// The coordinates of all points; the last one has the upper ends.
    pub fn positions(&self) -> Vec<Vec<usize>> {
        (0..self.len()).map(|index| self.coordinates(index)).collect()
    }

    /// Cuts the ranges in two by [`best_cut`]; `None` if their form loses nowhere.
    pub fn cut_ranges(&self, ranges: &SymbolRanges, lost: &[(Vec<usize>, f64)]) -> Option<[SymbolRanges; 2]> {
        let section = self.full_section();
        let (axis, size) = best_cut(&section, lost).filter(|_| lost.iter().any(|&(_, us)| us > 0.0))?;
        let [mut lower, mut upper] = [section.clone(), section];
        (lower[axis].1, upper[axis].0) = (size, size + 1);
        Some([self.ranges(ranges, &lower), self.ranges(ranges, &upper)])
    }

    fn len(&self) -> usize {
        self.axes.iter().map(|(_, sizes)| sizes.len()).fold(1, usize::saturating_mul)
    }

    fn full_section(&self) -> GridSection {
        self.axes.iter().map(|(_, sizes)| (0, sizes.len() - 1)).collect()
    }

    fn coordinates(&self, mut index: usize) -> Vec<usize> {
        let mut coordinates = Vec::with_capacity(self.axes.len());
        for (_, sizes) in &self.axes {
            coordinates.push(index % sizes.len());
            index /= sizes.len();
        }
        coordinates
    }

    fn index(&self, coordinates: &[usize]) -> usize {
        let digits = self.axes.iter().zip(coordinates).rev();
        digits.fold(0, |index, ((_, sizes), &coordinate)| index * sizes.len() + coordinate)
    }

    /// The ranges of a point. Symbols without an axis have their upper ends.
    pub fn point(&self, whole: &SymbolRanges, coordinates: &[usize]) -> SymbolRanges {
        let mut out: SymbolRanges = whole.iter().map(|(&s, &(_, high))| (s, (high, high))).collect();
        for ((symbol, sizes), &coordinate) in self.axes.iter().zip(coordinates) {
            out.insert(*symbol, (sizes[coordinate], sizes[coordinate]));
        }
        out
    }

    fn ranges(&self, whole: &SymbolRanges, section: &GridSection) -> SymbolRanges {
        let mut out = whole.clone();
        for ((symbol, sizes), &(first, last)) in self.axes.iter().zip(section) {
            let low = first.checked_sub(1).map_or(whole[symbol].0, |below| sizes[below] + 1);
            out.insert(*symbol, (low, sizes[last]));
        }
        out
    }

    /// The points of a section, with the microseconds that the form of its upper end loses there; 0 where
    /// the form is good.
    fn section_losses<C: VariantChooser>(
        &self,
        section: &GridSection,
        forms: &mut PointForms<'_, C>,
    ) -> Result<Vec<(Vec<usize>, f64)>, C::Error> {
        let corner: Vec<usize> = section.iter().map(|&(_, last)| last).collect();
        let form = self.index(&corner);
        let mut out = Vec::new();
        let mut coordinates: Vec<usize> = section.iter().map(|&(first, _)| first).collect();
        loop {
            out.push((coordinates.clone(), forms.loss_at(form, self.index(&coordinates))?));
            let Some(axis) = (0..coordinates.len()).find(|&axis| coordinates[axis] < section[axis].1) else {
                break;
            };
            coordinates[axis] += 1;
            (0..axis).for_each(|below| coordinates[below] = section[below].0);
        }
        Ok(out)
    }
}

/// The best cut of a section, as its axis and the last size of the lower part. The cut puts the most losing
/// points into the lower part, which gets a form of its own, and among equal cuts the fewest other points.
/// Along a single axis, this is at the largest losing size.
fn best_cut(section: &GridSection, lost: &[(Vec<usize>, f64)]) -> Option<(usize, usize)> {
    let cuts = section.iter().enumerate();
    let cuts = cuts.flat_map(|(axis, &(first, last))| (first..last).map(move |cut| (axis, cut)));
    cuts.max_by_key(|&(axis, cut)| {
        let below = lost.iter().filter(|(coordinates, _)| coordinates[axis] <= cut);
        let losing = below.clone().filter(|(_, us)| *us > 0.0).count();
        (losing, Reverse(below.count() - losing))
    })
}

/// The sizes at which forms are compared, ascending: every `step`th power of two in a range, and the end of
/// the range.
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
