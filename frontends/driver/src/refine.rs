//! Refines buckets that were not requested by comparing them with plans for single sizes.
//!
//! The ranges were divided by the choice of variants alone ([`crate::divide`]). Once buckets are planned,
//! the estimate of each at the sizes of a grid is compared with that of a plan for these sizes alone. A
//! bucket that takes more than [`MAX_TIME_RATIO`] times as long at some size is cut in two. At the end, a bucket joins
//! the one above it if the form of that one is good at all of its sizes as well. Buckets do not join where
//! the dispatches of the machine change, because that gain is measured and not part of the estimate. A large
//! program is compared at few sizes, or not at all.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use symmc_ir::SymbolId;
use symmc_passes::SolutionCache;
use symmc_plan::{ParsedProgram, Plan};
use symmc_support::parallel;

use crate::divide::{self, BucketRequest, SizeGrid, SymbolRanges};
use crate::error::{DriverError, Result};
use crate::pipeline::Pipeline;
use crate::ranges::MAX_UNASKED;
use crate::search::plan_buckets;
use crate::variants::PlannedBuckets;

/// The ratio between the time of a bucket and that of a plan for a single size above which the bucket is
/// cut.
const MAX_TIME_RATIO: f64 = 1.08;

/// The most rounds of cutting buckets.
const MAX_CUT_ROUNDS: usize = 8;

/// The most nodes that are planned to compare one bucket: nodes of the program times points of the grid.
const MAX_PLANNED_NODES: usize = 8_000;

/// The most nodes of a program that is compared.
const MAX_COMPARED_NODES: usize = 1_500;

/// The most nodes of a program that is compared if its variants do not depend on the schedule.
const MAX_UNSCHEDULED_NODES: usize = 500;

/// Plans these buckets, after cutting and joining those of `unasked` symbols.
pub fn plan_refined(
    pipeline: &Pipeline<'_>,
    mut buckets: Vec<BucketRequest>,
    unasked: &BTreeSet<SymbolId>,
) -> Result<Plan> {
    let PlannedBuckets { mut plan, by_schedule, .. } = plan_buckets(pipeline, &buckets)?;
    // If variants do not depend on the schedule, a form differs from the division's choice only in its
    // order.
    let compared = pipeline.canonical.nodes.len()
        <= if by_schedule { MAX_COMPARED_NODES } else { MAX_UNSCHEDULED_NODES };
    let symbols = divide::collective_symbols(pipeline.canonical).into_iter();
    let symbols = symbols.filter(|s| compared && unasked.contains(s));
    let limits = symmc_dispatch::unit_size_limits(pipeline.canonical, &pipeline.options.profile);
    let mut comparison =
        BucketComparison { pipeline, symbols: symbols.collect(), limits, alone: BTreeMap::new() };
    for _ in 0..MAX_CUT_ROUNDS {
        let cut = comparison.cut_buckets(&plan, &buckets)?;
        if cut.len() == buckets.len() {
            break;
        }
        buckets = cut;
        plan = plan_buckets(pipeline, &buckets)?.plan;
    }
    let joined = comparison.join_buckets(&plan, &buckets, unasked)?;
    if joined.len() < buckets.len() {
        let fewer = plan_buckets(pipeline, &joined)?.plan;
        // Buckets share fixed memory, so the form of one can change with the others.
        if comparison.cut_buckets(&fewer, &joined)?.len() == joined.len() {
            plan = fewer;
        }
    }
    Ok(plan)
}

struct BucketComparison<'a> {
    pipeline: &'a Pipeline<'a>,
    /// The symbols on which collectives depend and for which no buckets were requested.
    symbols: Vec<SymbolId>,
    /// For each symbol, the last sizes before dispatches change.
    limits: BTreeMap<SymbolId, BTreeSet<i64>>,
    /// The estimated microseconds of plans for single sizes, by these sizes; `None` if there is no such
    /// plan.
    alone: BTreeMap<Vec<i64>, Option<f64>>,
}

/// The point at the upper ends of ranges.
fn upper_end(ranges: &SymbolRanges) -> SymbolRanges {
    ranges.iter().map(|(&s, &(_, high))| (s, (high, high))).collect()
}

fn point_sizes(point: &SymbolRanges) -> Vec<i64> {
    point.values().map(|&(_, size)| size).collect()
}

impl BucketComparison<'_> {
    /// The buckets, after cutting in two those that are slow at some of their sizes.
    fn cut_buckets(&mut self, plan: &Plan, buckets: &[BucketRequest]) -> Result<Vec<BucketRequest>> {
        if !self.symbols.is_empty() {
            self.record_own_estimates(plan, buckets)?;
        }
        let mut out = Vec::new();
        for (b, bucket) in buckets.iter().enumerate() {
            let ranges = &bucket.ranges;
            let room = out.len() + buckets.len() - b < MAX_UNASKED;
            let halves = match self.grid(ranges).filter(|_| room) {
                Some(grid) => grid.cut_ranges(ranges, &self.grid_losses(plan, b, ranges, &grid)?),
                None => None,
            };
            match halves {
                Some(halves) => out.extend(halves.map(|ranges| BucketRequest { ranges, own_order: true })),
                None => out.push(bucket.clone()),
            }
        }
        Ok(out)
    }

    /// The sizes at which a bucket is compared.
    fn grid(&self, ranges: &SymbolRanges) -> Option<SizeGrid> {
        let nodes = self.pipeline.canonical.nodes.len().max(1);
        SizeGrid::new(ranges, &self.symbols, (MAX_PLANNED_NODES / nodes).max(1 << self.symbols.len().min(4)))
    }

    /// The points of a grid, with the microseconds that a bucket loses there; 0 if that is little.
    fn grid_losses(
        &mut self,
        plan: &Plan,
        b: usize,
        ranges: &SymbolRanges,
        grid: &SizeGrid,
    ) -> Result<Vec<(Vec<usize>, f64)>> {
        let positions = grid.positions();
        let points: Vec<SymbolRanges> =
            positions.iter().map(|coordinates| grid.point(ranges, coordinates)).collect();
        let lost = self.lost_at(plan, b, &points)?;
        Ok(positions.into_iter().zip(lost).collect())
    }

    /// Records the estimates of buckets at their upper ends, for which they were made, as those of plans for
    /// these sizes.
    fn record_own_estimates(&mut self, plan: &Plan, buckets: &[BucketRequest]) -> Result<()> {
        for (b, bucket) in buckets.iter().enumerate() {
            let point = upper_end(&bucket.ranges);
            let us = self.estimate_bucket(plan, b, &read_bucket_program(plan, b)?, &point)?;
            self.alone.entry(point_sizes(&point)).or_insert(Some(us));
        }
        Ok(())
    }

    /// The microseconds that a bucket loses at each of these sizes.
    fn lost_at(&mut self, plan: &Plan, b: usize, points: &[SymbolRanges]) -> Result<Vec<f64>> {
        self.plan_alone(points)?;
        let program = read_bucket_program(plan, b)?;
        let lost = points.iter().map(|point| {
            // A plan for one size may not exist even if one for the range does. Then there is no comparison.
            let Some(best) = self.alone.get(&point_sizes(point)).copied().flatten() else { return Ok(0.0) };
            let ours = self.estimate_bucket(plan, b, &program, point)?;
            Ok(if ours > MAX_TIME_RATIO * best { ours - best } else { 0.0 })
        });
        lost.collect()
    }

    /// Makes the plans for single sizes that are missing.
    fn plan_alone(&mut self, points: &[SymbolRanges]) -> Result<()> {
        let missing: Vec<&SymbolRanges> =
            points.iter().filter(|p| !self.alone.contains_key(&point_sizes(p))).collect();
        let nodes = missing.len() * self.pipeline.canonical.nodes.len();
        let this = &*self;
        let planned = parallel::map(missing, nodes, |point| {
            // Other points have other solutions, so these are dropped at once.
            let solutions = SolutionCache::default();
            let single = Pipeline { among_others: true, solutions: &solutions, ..*this.pipeline };
            let Ok(plan) = plan_buckets(&single, &[BucketRequest::new(point.clone())]).map(|p| p.plan) else {
                return Ok::<_, DriverError>((point_sizes(point), None));
            };
            Ok((
                point_sizes(point),
                Some(this.estimate_bucket(&plan, 0, &read_bucket_program(&plan, 0)?, point)?),
            ))
        });
        for point in planned {
            let (sizes, us) = point?;
            self.alone.insert(sizes, us);
        }
        Ok(())
    }

    fn estimate_bucket(
        &self,
        plan: &Plan,
        b: usize,
        program: &ParsedProgram,
        point: &SymbolRanges,
    ) -> Result<f64> {
        let symbols = &self.pipeline.canonical.symbols;
        let named: IndexMap<String, i64> =
            point.iter().map(|(&s, range)| (symbols[s].name.clone(), range.1)).collect();
        let bucket =
            plan.buckets.get(b).ok_or_else(|| DriverError::Defect(format!("the plan has no bucket {b}")))?;
        let estimate = program.estimate_at(bucket, &self.pipeline.options.profile, &named);
        Ok(estimate.map_err(DriverError::defect)?.total_us)
    }

    /// The buckets, after joining each to one above it if both run the same program, or if the form of the
    /// one above also serves its sizes.
    fn join_buckets(
        &mut self,
        plan: &Plan,
        buckets: &[BucketRequest],
        unasked: &BTreeSet<SymbolId>,
    ) -> Result<Vec<BucketRequest>> {
        let mut out: Vec<(usize, BucketRequest)> = buckets.iter().cloned().enumerate().collect();
        while let Some((a, b, symbol)) = self.pair_to_join(plan, &out, unasked)? {
            let low = out[a].1.ranges[&symbol].0;
            if let Some(range) = out[b].1.ranges.get_mut(&symbol) {
                range.0 = low;
            }
            out.remove(a);
        }
        Ok(out.into_iter().map(|(_, bucket)| bucket).collect())
    }

    /// The positions of a bucket and one above it that can be joined, and the symbol in which they differ.
    fn pair_to_join(
        &mut self,
        plan: &Plan,
        out: &[(usize, BucketRequest)],
        unasked: &BTreeSet<SymbolId>,
    ) -> Result<Option<(usize, usize, SymbolId)>> {
        for a in 0..out.len() {
            for b in 0..out.len() {
                let lower = &out[a].1.ranges;
                let upper = &out[b].1.ranges;
                let Some(symbol) = differing_symbol(lower, upper).filter(|s| unasked.contains(s)) else {
                    continue;
                };
                let same_program = plan.buckets[out[a].0].program == plan.buckets[out[b].0].program;
                let limit = self.limits.get(&symbol).is_some_and(|l| l.contains(&lower[&symbol].1));
                if same_program || !limit && self.serves(plan, out[b].0, lower)? {
                    return Ok(Some((a, b, symbol)));
                }
            }
        }
        Ok(None)
    }

    /// Whether the form of a bucket is good at all compared sizes of these ranges.
    fn serves(&mut self, plan: &Plan, b: usize, ranges: &SymbolRanges) -> Result<bool> {
        if self.symbols.is_empty() {
            return Ok(false);
        }
        let points = match self.grid(ranges) {
            Some(grid) => {
                grid.positions().iter().map(|coordinates| grid.point(ranges, coordinates)).collect()
            }
            None => vec![upper_end(ranges)],
        };
        Ok(self.lost_at(plan, b, &points)?.iter().all(|&us| us == 0.0))
    }
}

/// The only symbol in which two buckets differ, if `lower` ends directly below `upper`.
fn differing_symbol(lower: &SymbolRanges, upper: &SymbolRanges) -> Option<SymbolId> {
    let mut differing = lower.iter().filter(|&(s, range)| upper[s] != *range);
    let (&symbol, range) = differing.next()?;
    let adjacent = range.1.checked_add(1) == Some(upper[&symbol].0);
    (adjacent && differing.next().is_none()).then_some(symbol)
}

fn read_bucket_program(plan: &Plan, b: usize) -> Result<ParsedProgram> {
    let bucket =
        plan.buckets.get(b).ok_or_else(|| DriverError::Defect(format!("the plan has no bucket {b}")))?;
    let text =
        plan.programs.get(bucket.program).ok_or_else(|| DriverError::defect("a bucket names no program"))?;
    ParsedProgram::parse(text).map_err(DriverError::defect)
}
