//! The buckets of a plan: each is searched alone, buckets that were not requested are cut and joined, and one plan is made of all.
//!
//! The ranges were divided by the choice of variants alone ([`crate::divide`]). Once buckets are searched, the estimate of
//! each at the sizes of a grid is compared with that of a search for these sizes alone. A bucket that takes more than
//! [`MAX_TIME_RATIO`] times as long at some size is cut in two. At the end, a bucket joins the one above it if the form of
//! that one is good at all of its sizes as well. Buckets do not join where the dispatches of the machine change, because
//! that gain is measured and not part of the estimate. A large program is compared at few sizes, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::SymbolId;
use symmc_passes::SolutionCache;
use symmc_plan::Plan;
use symmc_planner::{BucketInput, Planner};
use symmc_support::parallel;

use crate::divide::{self, BucketRequest, SizeGrid, SymbolRanges};
use crate::error::{DriverError, Result};
use crate::limit::{LimitedBucket, LimitedPlanner, SmallestArena};
use crate::pipeline::Pipeline;
use crate::ranges::MAX_UNASKED;
use crate::search::{SearchedBucket, search_bucket};

/// The ratio between the time of a bucket and that of a plan for a single size above which the bucket is
/// cut.
const MAX_TIME_RATIO: f64 = 1.08;

/// The most rounds of cutting buckets.
const MAX_CUT_ROUNDS: usize = 8;

/// The most nodes that are searched to compare one bucket: nodes of the program times points of the grid.
const MAX_SEARCHED_NODES: usize = 8_000;

/// The most nodes of a program that is compared.
const MAX_COMPARED_NODES: usize = 1_500;

/// The most nodes of a program that is compared if its variants do not depend on the schedule.
const MAX_UNSCHEDULED_NODES: usize = 500;

/// The buckets of a plan with their searches.
type SearchedBuckets = Vec<(BucketRequest, Arc<SearchedBucket>)>;

/// Plans these buckets, after cutting and joining those of `unasked` symbols.
pub fn plan_refined(
    pipeline: &Pipeline<'_>,
    buckets: Vec<BucketRequest>,
    unasked: &BTreeSet<SymbolId>,
) -> Result<(Plan, Vec<Arc<SearchedBucket>>)> {
    let mut refinement = Refinement::new(pipeline, unasked);
    let initial = refinement.search_all(buckets)?;
    let refined = if all_fit(&initial) { refinement.refine(&initial, unasked)? } else { initial.clone() };
    let is_same = initial.iter().map(|(request, _)| request).eq(refined.iter().map(|(request, _)| request));
    // The initial buckets do not depend on the limit of symmetric memory. Their smallest arena is the least limit.
    let mut smallest = None;
    for searched in if is_same { vec![initial] } else { vec![refined, initial] } {
        match plan_buckets(pipeline, &searched)? {
            Ok(plan) => return Ok((plan, searched.into_iter().map(|(_, bucket)| bucket).collect())),
            Err(arena) => smallest = Some(arena),
        }
    }
    Err(limit_error(pipeline, smallest))
}

/// Searches these buckets and makes one plan of them.
pub fn search_and_plan(pipeline: &Pipeline<'_>, buckets: Vec<BucketRequest>) -> Result<Plan> {
    let searched = Refinement::new(pipeline, &BTreeSet::new()).search_all(buckets)?;
    plan_buckets(pipeline, &searched)?.map_err(|smallest| limit_error(pipeline, Some(smallest)))
}

/// Makes one plan of searched buckets, with the tightest offsets that are found.
fn plan_buckets(pipeline: &Pipeline<'_>, searched: &SearchedBuckets) -> Result<Result<Plan, SmallestArena>> {
    let requests: Vec<BucketRequest> = searched.iter().map(|(request, _)| request.clone()).collect();
    if let Some(limit) = pipeline.options.symm_limit {
        let buckets = searched.iter().map(|(_, bucket)| LimitedBucket {
            fastest_alone: Some(&bucket.best).filter(|_| bucket.fits),
            candidates: &bucket.candidates,
        });
        let buckets: Vec<LimitedBucket<'_>> = buckets.collect();
        return LimitedPlanner::new(pipeline, &requests, limit).plan(&buckets);
    }
    let inputs: Vec<BucketInput> = searched.iter().map(|(_, bucket)| bucket.best.input.clone()).collect();
    let config = pipeline.plan_config(&requests, false);
    Ok(Ok(Planner::new(pipeline.source, &inputs, &config)?.plan()?))
}

fn limit_error(pipeline: &Pipeline<'_>, smallest: Option<SmallestArena>) -> DriverError {
    match (pipeline.options.symm_limit, smallest) {
        (Some(limit), Some(SmallestArena { bytes, fixed_bytes })) => {
            DriverError::SymmLimit { limit, least: bytes, fixed: fixed_bytes }
        }
        _ => DriverError::defect("a plan without a limit of symmetric memory does not fit"),
    }
}

/// Whether each bucket fits the limit of symmetric memory alone.
fn all_fit(searched: &SearchedBuckets) -> bool {
    searched.iter().all(|(_, bucket)| bucket.fits)
}

struct Refinement<'a> {
    pipeline: &'a Pipeline<'a>,
    /// The symbols on which collectives depend and for which no buckets were requested.
    symbols: Vec<SymbolId>,
    /// For each symbol, the last sizes before dispatches change.
    limits: BTreeMap<SymbolId, BTreeSet<i64>>,
    /// The searched buckets by their ranges.
    searched: BTreeMap<Vec<(i64, i64)>, Arc<SearchedBucket>>,
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

fn range_key(ranges: &SymbolRanges) -> Vec<(i64, i64)> {
    ranges.values().copied().collect()
}

impl<'a> Refinement<'a> {
    fn new(pipeline: &'a Pipeline<'a>, unasked: &BTreeSet<SymbolId>) -> Refinement<'a> {
        let symbols = divide::collective_symbols(pipeline.canonical).into_iter();
        Refinement {
            pipeline,
            symbols: symbols.filter(|s| unasked.contains(s)).collect(),
            limits: symmc_dispatch::unit_size_limits(pipeline.canonical, &pipeline.options.profile),
            searched: BTreeMap::new(),
            alone: BTreeMap::new(),
        }
    }

    /// Cuts and joins searched buckets.
    fn refine(&mut self, initial: &SearchedBuckets, unasked: &BTreeSet<SymbolId>) -> Result<SearchedBuckets> {
        let mut searched = initial.clone();
        self.compare_if_small(&searched);
        for _ in 0..MAX_CUT_ROUNDS {
            let cut = self.cut_buckets(&searched)?;
            if cut.len() == searched.len() {
                break;
            }
            let more = self.search_all(cut)?;
            if !all_fit(&more) {
                break;
            }
            searched = more;
        }
        let joined = self.join_buckets(&searched, unasked)?;
        if joined.len() < searched.len() {
            let fewer = self.search_all(joined)?;
            if all_fit(&fewer) && self.cut_buckets(&fewer)?.len() == fewer.len() {
                searched = fewer;
            }
        }
        Ok(searched)
    }

    /// Compares no sizes if the program is large. If variants do not depend on the schedule, a form differs from
    /// the division's choice only in its order, so that even medium programs are not worth it.
    fn compare_if_small(&mut self, searched: &SearchedBuckets) {
        let by_schedule = searched.iter().any(|(_, bucket)| !bucket.tried.is_empty());
        let most = if by_schedule { MAX_COMPARED_NODES } else { MAX_UNSCHEDULED_NODES };
        if self.pipeline.canonical.nodes.len() > most {
            self.symbols.clear();
        }
    }

    /// Searches the buckets that were not searched before.
    fn search_all(&mut self, requests: Vec<BucketRequest>) -> Result<SearchedBuckets> {
        let among_others = requests.len() > 1;
        if !among_others {
            // A bucket without others may rely on the next run.
            self.searched.clear();
        }
        let missing: Vec<&SymbolRanges> = requests
            .iter()
            .map(|request| &request.ranges)
            .filter(|ranges| !self.searched.contains_key(&range_key(ranges)))
            .collect();
        let nodes = missing.len() * self.pipeline.canonical.nodes.len();
        let pipeline = self.pipeline;
        let found = parallel::map(missing, nodes, |ranges| {
            Ok::<_, DriverError>((range_key(ranges), search_bucket(pipeline, ranges, among_others)?))
        });
        for found in found {
            let (key, bucket) = found?;
            self.searched.insert(key, Arc::new(bucket));
        }
        let searched = requests.into_iter().map(|request| {
            let bucket = self.searched[&range_key(&request.ranges)].clone();
            (request, bucket)
        });
        Ok(searched.collect())
    }

    /// The cuts of buckets in two where they are slow at some of their sizes.
    fn cut_buckets(&mut self, searched: &SearchedBuckets) -> Result<Vec<BucketRequest>> {
        if !self.symbols.is_empty() {
            // Buckets were made for their upper ends, so their estimates there are those of plans for these sizes.
            for (request, bucket) in searched {
                let point = upper_end(&request.ranges);
                let us = self.estimate_at(bucket, &point)?;
                self.alone.entry(point_sizes(&point)).or_insert(Some(us));
            }
        }
        let mut out = Vec::new();
        for (b, (request, bucket)) in searched.iter().enumerate() {
            let ranges = &request.ranges;
            let room = out.len() + searched.len() - b < MAX_UNASKED;
            let halves = match self.grid(ranges).filter(|_| room) {
                Some(grid) => grid.cut_ranges(ranges, &self.grid_losses(bucket, ranges, &grid)?),
                None => None,
            };
            match halves {
                Some(halves) => out.extend(halves.map(|ranges| BucketRequest { ranges, own_order: true })),
                None => out.push(request.clone()),
            }
        }
        Ok(out)
    }

    /// The sizes at which a bucket is compared.
    fn grid(&self, ranges: &SymbolRanges) -> Option<SizeGrid> {
        let nodes = self.pipeline.canonical.nodes.len().max(1);
        SizeGrid::new(ranges, &self.symbols, (MAX_SEARCHED_NODES / nodes).max(1 << self.symbols.len().min(4)))
    }

    /// The points of a grid, with the microseconds that a bucket loses there; 0 if that is little.
    fn grid_losses(
        &mut self,
        bucket: &SearchedBucket,
        ranges: &SymbolRanges,
        grid: &SizeGrid,
    ) -> Result<Vec<(Vec<usize>, f64)>> {
        let positions = grid.positions();
        let points: Vec<SymbolRanges> =
            positions.iter().map(|coordinates| grid.point(ranges, coordinates)).collect();
        let lost = self.lost_at(bucket, &points)?;
        Ok(positions.into_iter().zip(lost).collect())
    }

    /// The microseconds that a bucket loses at each of these sizes.
    fn lost_at(&mut self, bucket: &SearchedBucket, points: &[SymbolRanges]) -> Result<Vec<f64>> {
        self.search_alone(points)?;
        let lost = points.iter().map(|point| {
            // A plan for one size may not exist even if one for the range does. Then there is no comparison.
            let Some(best) = self.alone.get(&point_sizes(point)).copied().flatten() else { return Ok(0.0) };
            let ours = self.estimate_at(bucket, point)?;
            Ok(if ours > MAX_TIME_RATIO * best { ours - best } else { 0.0 })
        });
        lost.collect()
    }

    /// Searches the single sizes that are missing.
    fn search_alone(&mut self, points: &[SymbolRanges]) -> Result<()> {
        let missing: Vec<&SymbolRanges> =
            points.iter().filter(|p| !self.alone.contains_key(&point_sizes(p))).collect();
        let nodes = missing.len() * self.pipeline.canonical.nodes.len();
        let this = &*self;
        let planned = parallel::map(missing, nodes, |point| {
            // Other points have other solutions, so these are dropped at once.
            let solutions = SolutionCache::default();
            let single = Pipeline { solutions: &solutions, ..*this.pipeline };
            let found = search_bucket(&single, point, true).ok().filter(|bucket| bucket.fits);
            (point_sizes(point), found.map(|bucket| bucket.best.estimate.total_us))
        });
        self.alone.extend(planned);
        Ok(())
    }

    fn estimate_at(&self, bucket: &SearchedBucket, point: &SymbolRanges) -> Result<f64> {
        let symbols = &self.pipeline.canonical.symbols;
        let named: IndexMap<String, i64> =
            point.iter().map(|(&s, range)| (symbols[s].name.clone(), range.1)).collect();
        let best = &bucket.best;
        let estimate = best.program.estimate_at(&best.bucket, &self.pipeline.options.profile, &named);
        Ok(estimate.map_err(DriverError::defect)?.total_us)
    }

    /// The buckets, after joining each to one above it if both run the same program, or if the form of the
    /// one above also serves its sizes.
    fn join_buckets(
        &mut self,
        searched: &SearchedBuckets,
        unasked: &BTreeSet<SymbolId>,
    ) -> Result<Vec<BucketRequest>> {
        let mut out = searched.clone();
        while let Some((a, b, symbol)) = self.pair_to_join(&out, unasked)? {
            let low = out[a].0.ranges[&symbol].0;
            if let Some(range) = out[b].0.ranges.get_mut(&symbol) {
                range.0 = low;
            }
            out.remove(a);
        }
        Ok(out.into_iter().map(|(request, _)| request).collect())
    }

    /// The positions of a bucket and one above it that can be joined, and the symbol in which they differ.
    fn pair_to_join(
        &mut self,
        buckets: &SearchedBuckets,
        unasked: &BTreeSet<SymbolId>,
    ) -> Result<Option<(usize, usize, SymbolId)>> {
        for (a, (lower, lower_bucket)) in buckets.iter().enumerate() {
            for (b, (upper, upper_bucket)) in buckets.iter().enumerate() {
                let Some(symbol) =
                    differing_symbol(&lower.ranges, &upper.ranges).filter(|s| unasked.contains(s))
                else {
                    continue;
                };
                let limit = self.limits.get(&symbol).is_some_and(|l| l.contains(&lower.ranges[&symbol].1));
                if is_same_program(lower_bucket, upper_bucket)
                    || !limit && self.serves(upper_bucket, &lower.ranges)?
                {
                    return Ok(Some((a, b, symbol)));
                }
            }
        }
        Ok(None)
    }

    /// Whether the form of a bucket is good at all compared sizes of these ranges.
    fn serves(&mut self, bucket: &SearchedBucket, ranges: &SymbolRanges) -> Result<bool> {
        if self.symbols.is_empty() {
            return Ok(false);
        }
        let points = match self.grid(ranges) {
            Some(grid) => {
                grid.positions().iter().map(|coordinates| grid.point(ranges, coordinates)).collect()
            }
            None => vec![upper_end(ranges)],
        };
        Ok(self.lost_at(bucket, &points)?.iter().all(|&us| us == 0.0))
    }
}

/// Whether the planned programs of two buckets are equal, except for their ranges.
fn is_same_program(a: &SearchedBucket, b: &SearchedBucket) -> bool {
    let (a, b) = (&a.best.program.graph, &b.best.program.graph);
    a.nodes == b.nodes && a.values == b.values && a.dispatches == b.dispatches && a.outputs == b.outputs
}

/// The only symbol in which two buckets differ, if `lower` ends directly below `upper`.
fn differing_symbol(lower: &SymbolRanges, upper: &SymbolRanges) -> Option<SymbolId> {
    let mut differing = lower.iter().filter(|&(s, range)| upper[s] != *range);
    let (&symbol, range) = differing.next()?;
    let adjacent = range.1.checked_add(1) == Some(upper[&symbol].0);
    (adjacent && differing.next().is_none()).then_some(symbol)
}
