//! Plans within a limit of the symmetric arena.
//!
//! The arena holds *fixed memory*, which has one place for all buckets (landing zones and bound inputs), and blocks, which
//! buckets place on their own. A bucket that needs large landing zones therefore leaves less room for the blocks of all
//! others. The search of a bucket ([`crate::search`]) records its attempts as candidates, without regard to the limit. If
//! the fastest candidates do not fit together, the plan is made for each of several sizes of the fixed memory, with the
//! fastest candidates that use no more of it and whose blocks fit the rest. These sizes do not depend on the limit either,
//! so that a smaller limit hardly ever gives a faster plan.
//!
//! A program is made to fit by keeping exit barriers one after another, in the requested order and in the leanest order,
//! for the same and for an unknown next run.

use std::collections::BTreeMap;
use std::slice;
use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;
use symmc_plan::{Bucket, FixedRegion, FixedRole, PAGE, Plan};
use symmc_planner::{
    BucketInput, OrderStrategy, PlacedPrograms, PlanConfig, PlanError, Planner, PlanningEffort,
    ProgramSchedules,
};
use symmc_support::parallel;

use crate::attempt::Attempt;
use crate::divide::BucketRequest;
use crate::error::{DriverError, Result};
use crate::options::CompileOptions;
use crate::pipeline::{Choice, Pipeline};
use crate::proposals::symmetric_requests;

/// The most sizes of the fixed memory for which a plan is made.
const MAX_FIXED_SIZES: usize = 48;

/// The least time of a plan that is expected of an attempt, relative to its sketch.
const MIN_FULL_RATIO: f64 = 0.95;

/// The most microseconds that buckets of one plan may lose to their plans alone without a search for another one.
const MAX_LOST_US: f64 = 1e-3;

/// The bytes of each region of the fixed memory.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FixedSizes(IndexMap<FixedRole, u64>);

impl FixedSizes {
    pub fn new(regions: &[FixedRegion]) -> FixedSizes {
        FixedSizes(regions.iter().map(|region| (region.role.clone(), region.size)).collect())
    }

    pub fn total(&self) -> u64 {
        self.0.values().fold(0, |sum, &size| sum.saturating_add(size))
    }

    fn is_within(&self, other: &FixedSizes) -> bool {
        self.0.iter().all(|(role, size)| other.0.get(role).is_some_and(|larger| size <= larger))
    }

    /// The fixed memory of a plan with buckets of both.
    fn join(&self, other: &FixedSizes) -> FixedSizes {
        let mut joined = self.clone();
        for (role, &size) in &other.0 {
            let region = joined.0.entry(role.clone()).or_insert(0);
            *region = size.max(*region);
        }
        joined
    }
}

/// The symmetric memory that a program needs, as far as it is known before the program is scheduled.
#[derive(Clone)]
pub struct SymmetricNeeds {
    fixed: FixedSizes,
    /// The sum of the bytes that its collectives ask for.
    requested: u64,
    largest_request: u64,
}

impl SymmetricNeeds {
    pub fn new(pipeline: &Pipeline<'_>, config: &PlanConfig, input: &BucketInput) -> Result<SymmetricNeeds> {
        let planner = Planner::new(pipeline.source, slice::from_ref(input), config)?;
        let fixed = FixedSizes::new(planner.fixed_regions());
        let mut needs = SymmetricNeeds { fixed, requested: 0, largest_request: 0 };
        for bytes in symmetric_requests(&input.graph) {
            needs.requested = needs.requested.saturating_add(bytes);
            needs.largest_request = needs.largest_request.max(bytes);
        }
        Ok(needs)
    }

    fn is_within(&self, other: &SymmetricNeeds) -> bool {
        self.fixed.is_within(&other.fixed)
            && self.requested <= other.requested
            && self.largest_request <= other.largest_request
    }
}

/// An attempt of a bucket that can be planned again to fit a limit.
#[derive(Clone)]
pub struct Candidate {
    pub choice: Choice,
    pub input: Arc<BucketInput>,
    /// The estimated microseconds of a run without a limit.
    us: f64,
    /// The least microseconds of a run that are expected of any plan of it. Less memory does not make it faster.
    least_us: f64,
    needs: SymmetricNeeds,
    /// The bytes of its blocks in the symmetric arena without a limit.
    block_bytes: u64,
    /// The same with all exit barriers kept that free memory.
    least_block_bytes: OnceLock<u64>,
}

impl Candidate {
    pub fn new(
        attempt: &Attempt,
        effort: PlanningEffort,
        input: Arc<BucketInput>,
        needs: SymmetricNeeds,
    ) -> Candidate {
        let gain = match effort {
            PlanningEffort::Full => 1.0,
            PlanningEffort::Sketch => MIN_FULL_RATIO,
        };
        Candidate {
            choice: attempt.choice.clone(),
            input,
            us: attempt.estimate.total_us,
            least_us: gain * attempt.estimate.total_us,
            needs,
            block_bytes: attempt.block_bytes,
            least_block_bytes: OnceLock::new(),
        }
    }

    /// Whether this candidate takes at most these microseconds, and needs no more of the symmetric arena.
    pub fn dominates(&self, us: f64, needs: &SymmetricNeeds) -> bool {
        self.us <= us && self.needs.is_within(needs)
    }

    fn fixed(&self) -> &FixedSizes {
        &self.needs.fixed
    }

    /// Plans this bucket alone, in a symmetric arena in which blocks take at most `room` bytes.
    fn fit(&self, pipeline: &Pipeline<'_>, config: &PlanConfig, room: u64) -> Result<Option<PlacedPlan>> {
        if self.least_block_bytes.get().is_some_and(|&least| least > room) {
            return Ok(None);
        }
        let planner = Planner::new(pipeline.source, slice::from_ref(&*self.input), config)?;
        let fixed_bytes = planner.fixed_bytes();
        match schedules_within(&planner, pipeline.options, fixed_bytes.saturating_add(room))? {
            Ok(FittedSchedules { plan, .. }) => Ok(Some(plan)),
            Err(needed) => {
                self.least_block_bytes.get_or_init(|| needed.saturating_sub(fixed_bytes));
                Ok(None)
            }
        }
    }

    fn least_block_bytes(&self, pipeline: &Pipeline<'_>, config: &PlanConfig) -> Result<u64> {
        match self.fit(pipeline, config, 0)? {
            Some(_) => Ok(0),
            None => Ok(self.least_block_bytes.get().copied().unwrap_or(u64::MAX)),
        }
    }
}

/// Placed programs with the estimated microseconds of a run of all their buckets.
struct PlacedPlan {
    placed: PlacedPrograms,
    us: f64,
}

impl PlacedPlan {
    /// Whether it is faster than another one, or as fast with less memory.
    fn is_better_than(&self, other: &PlacedPlan) -> bool {
        (self.us, total_bytes(&self.placed.buckets)) < (other.us, total_bytes(&other.placed.buckets))
    }
}

/// The fastest candidate of a bucket that fits.
struct FittedCandidate<'c> {
    index: usize,
    candidate: &'c Candidate,
    plan: PlacedPlan,
}

/// The candidates of a bucket.
#[derive(Clone)]
pub struct Candidates {
    /// The planner's options for the bucket alone.
    config: PlanConfig,
    /// In order of the least time that is expected of each.
    by_time: Vec<Candidate>,
}

impl Candidates {
    pub fn new(config: PlanConfig, mut candidates: Vec<Candidate>) -> Candidates {
        candidates.sort_by(|a, b| a.least_us.total_cmp(&b.least_us));
        Candidates { config, by_time: candidates }
    }

    /// The fastest plan of the bucket alone within a limit of the symmetric arena.
    pub fn fastest_alone(&self, pipeline: &Pipeline<'_>, limit: u64) -> Result<Option<Attempt>> {
        let limit = limit / PAGE * PAGE;
        let fitted = self.fastest(pipeline, |fixed| limit.checked_sub(fixed.total()))?;
        let Some(FittedCandidate { candidate, plan, .. }) = fitted else { return Ok(None) };
        let (choice, input) = (candidate.choice.clone(), (*candidate.input).clone());
        Attempt::new(choice, input, plan.placed, candidate.fixed().total(), pipeline.options).map(Some)
    }

    /// The fastest candidate that fits. `room` gives the bytes for blocks next to some fixed memory.
    fn fastest(
        &self,
        pipeline: &Pipeline<'_>,
        room: impl Fn(&FixedSizes) -> Option<u64>,
    ) -> Result<Option<FittedCandidate<'_>>> {
        let mut fastest: Option<FittedCandidate<'_>> = None;
        for (index, candidate) in self.by_time.iter().enumerate() {
            if fastest.as_ref().is_some_and(|fastest| candidate.least_us > fastest.plan.us) {
                break;
            }
            let Some(room) = room(candidate.fixed()) else { continue };
            let Some(plan) = candidate.fit(pipeline, &self.config, room)? else { continue };
            if fastest.as_ref().is_none_or(|fastest| plan.is_better_than(&fastest.plan)) {
                fastest = Some(FittedCandidate { index, candidate, plan });
            }
        }
        Ok(fastest)
    }

    /// The least microseconds of the candidates that use no more than some fixed memory.
    fn least_us(&self, fixed: &FixedSizes) -> f64 {
        let first = self.by_time.iter().find(|candidate| candidate.fixed().is_within(fixed));
        first.map_or(f64::INFINITY, |candidate| candidate.least_us)
    }

    /// Among the candidates that use no more than some fixed memory, the one whose blocks need the least, with their bytes.
    fn leanest(&self, pipeline: &Pipeline<'_>, fixed: &FixedSizes) -> Result<Option<(u64, &Candidate)>> {
        let mut within: Vec<&Candidate> =
            self.by_time.iter().filter(|c| c.fixed().is_within(fixed)).collect();
        within.sort_by_key(|candidate| candidate.block_bytes);
        let mut leanest: Option<(u64, &Candidate)> = None;
        for candidate in within {
            let bytes = candidate.least_block_bytes(pipeline, &self.config)?;
            if leanest.is_none_or(|(least, _)| bytes < least) {
                leanest = Some((bytes, candidate));
            }
            if bytes == 0 {
                break;
            }
        }
        Ok(leanest)
    }

    /// The different fixed memories of the candidates that no other one dominates in time, blocks and fixed memory.
    fn pareto_fixed_sizes(&self) -> Vec<&FixedSizes> {
        let mut candidates: Vec<&Candidate> = self.by_time.iter().collect();
        candidates.sort_by(|a, b| a.us.total_cmp(&b.us));
        let mut useful: Vec<&Candidate> = Vec::new();
        for candidate in candidates {
            let dominates = |other: &&Candidate| {
                other.block_bytes <= candidate.block_bytes && other.fixed().is_within(candidate.fixed())
            };
            if !useful.iter().any(dominates) {
                useful.push(candidate);
            }
        }
        let mut sizes: Vec<&FixedSizes> = Vec::new();
        for candidate in useful {
            if !sizes.contains(&candidate.fixed()) {
                sizes.push(candidate.fixed());
            }
        }
        sizes
    }
}

/// A searched bucket.
pub struct LimitedBucket<'b> {
    /// The fastest plan of the bucket alone that fits.
    pub fastest_alone: Option<&'b Attempt>,
    pub candidates: &'b Candidates,
}

/// A plan of all buckets with the estimated microseconds of a run of each, in sum.
struct TimedPlan {
    plan: Plan,
    us: f64,
}

/// The smallest symmetric arena that was found for a plan.
pub struct SmallestArena {
    pub bytes: u64,
    /// The part of landing zones and bound inputs.
    pub fixed_bytes: u64,
}

/// Makes plans of searched buckets within a limit of the symmetric arena.
pub struct LimitedPlanner<'a> {
    pipeline: &'a Pipeline<'a>,
    /// The planner's options for all buckets.
    config: PlanConfig,
    limit: u64,
}

impl LimitedPlanner<'_> {
    pub fn new<'a>(pipeline: &'a Pipeline<'a>, requests: &[BucketRequest], limit: u64) -> LimitedPlanner<'a> {
        LimitedPlanner { pipeline, config: pipeline.plan_config(requests, false), limit: limit / PAGE * PAGE }
    }

    /// Makes the fastest plan that fits. If none does, returns the smallest arena that was found.
    pub fn plan(&self, buckets: &[LimitedBucket<'_>]) -> Result<Result<Plan, SmallestArena>> {
        let candidates: Vec<&Candidates> = buckets.iter().map(|bucket| bucket.candidates).collect();
        let mut fastest: Option<TimedPlan> = None;
        let alone: Option<Vec<&Attempt>> = buckets.iter().map(|bucket| bucket.fastest_alone).collect();
        if let Some(alone) = alone {
            let inputs: Vec<BucketInput> = alone.iter().map(|attempt| attempt.input.clone()).collect();
            let us: f64 = alone.iter().map(|attempt| attempt.estimate.total_us).sum();
            fastest = self.plan_inputs(&inputs, us)?.ok();
            // No plan is faster than the fastest ones of all buckets alone.
            if let Some(fastest) = fastest.take_if(|fastest| fastest.us <= us + MAX_LOST_US) {
                return Ok(Ok(fastest.plan));
            }
        }
        let sizes = joined_fixed_sizes(&candidates);
        if let Some(plan) = self.plan_by_fixed_sizes(&candidates, &sizes, fastest)? {
            return Ok(Ok(plan));
        }
        let leanest = self.leanest_inputs(&candidates, sizes)?;
        Ok(self.plan_inputs(&leanest, f64::INFINITY)?.map(|planned| planned.plan))
    }

    /// Makes one plan of the programs of all buckets, whose plans alone take `alone_us` microseconds. Equal programs share
    /// one order, unless that does not fit or takes longer.
    fn plan_inputs(&self, inputs: &[BucketInput], alone_us: f64) -> Result<Result<TimedPlan, SmallestArena>> {
        let planner = Planner::new(self.pipeline.source, inputs, &self.config)?;
        let shared = self.plan_within(&planner)?;
        let is_good = shared.as_ref().is_ok_and(|planned| planned.us <= alone_us + MAX_LOST_US);
        if is_good || planner.program_count() == inputs.len() {
            return Ok(shared);
        }
        let config = PlanConfig { own_orders: (0..inputs.len()).collect(), ..self.config.clone() };
        let own = self.plan_within(&Planner::new(self.pipeline.source, inputs, &config)?)?;
        Ok(match (shared, own) {
            (Ok(shared), Ok(own)) => Ok(if own.us < shared.us { own } else { shared }),
            (Ok(planned), Err(_)) | (Err(_), Ok(planned)) => Ok(planned),
            (Err(shared), Err(own)) => Err(if own.bytes < shared.bytes { own } else { shared }),
        })
    }

    fn plan_within(&self, planner: &Planner<'_>) -> Result<Result<TimedPlan, SmallestArena>> {
        match schedules_within(planner, self.pipeline.options, self.limit)? {
            Ok(FittedSchedules { schedules, plan: PlacedPlan { placed, us } }) => {
                Ok(Ok(TimedPlan { plan: schedules.write(placed.buckets)?, us }))
            }
            Err(needed) => {
                let bytes = needed.next_multiple_of(PAGE);
                Ok(Err(SmallestArena { bytes, fixed_bytes: planner.fixed_bytes() }))
            }
        }
    }

    /// The fastest plan whose fixed memory has at most one of these sizes, or `fastest` if none is faster.
    fn plan_by_fixed_sizes(
        &self,
        buckets: &[&Candidates],
        sizes: &[FixedSizes],
        mut fastest: Option<TimedPlan>,
    ) -> Result<Option<Plan>> {
        let mut known: Vec<Vec<usize>> = Vec::new();
        for fixed in sizes {
            let may_be_faster = |us: f64| fastest.as_ref().is_none_or(|fastest| us < fastest.us);
            let least_us: f64 = buckets.iter().map(|bucket| bucket.least_us(fixed)).sum();
            let Some(room) = self.limit.checked_sub(fixed.total()).filter(|_| may_be_faster(least_us)) else {
                continue;
            };
            let Some(fitted) = self.fastest_of_each(buckets, fixed, room)? else { continue };
            let indices: Vec<usize> = fitted.iter().map(|fitted| fitted.index).collect();
            let us = fitted.iter().map(|fitted| fitted.plan.us).sum();
            if !may_be_faster(us) || known.contains(&indices) {
                continue;
            }
            known.push(indices);
            let inputs: Vec<BucketInput> =
                fitted.iter().map(|fitted| (*fitted.candidate.input).clone()).collect();
            if let Ok(planned) = self.plan_inputs(&inputs, us)?
                && may_be_faster(planned.us)
            {
                fastest = Some(planned);
            }
        }
        Ok(fastest.map(|fastest| fastest.plan))
    }

    /// For each bucket, the fastest candidate within some fixed memory whose blocks take at most `room` bytes. `None` if a
    /// bucket has none.
    fn fastest_of_each<'c>(
        &self,
        buckets: &[&'c Candidates],
        fixed: &FixedSizes,
        room: u64,
    ) -> Result<Option<Vec<FittedCandidate<'c>>>> {
        let fitted = parallel::map(buckets.to_vec(), self.nodes(buckets.len()), |bucket| {
            bucket.fastest(self.pipeline, |own| own.is_within(fixed).then_some(room))
        });
        fitted.into_iter().collect()
    }

    /// The programs of the smallest plan: for each bucket, the leanest candidate within the same fixed memory.
    fn leanest_inputs(
        &self,
        buckets: &[&Candidates],
        mut sizes: Vec<FixedSizes>,
    ) -> Result<Vec<BucketInput>> {
        sizes.sort_by_key(FixedSizes::total);
        let mut least: Option<(u64, Vec<BucketInput>)> = None;
        for fixed in &sizes {
            if least.as_ref().is_some_and(|(bytes, _)| fixed.total() >= *bytes) {
                break;
            }
            let leanest = parallel::map(buckets.to_vec(), self.nodes(buckets.len()), |bucket| {
                bucket.leanest(self.pipeline, fixed)
            });
            let Some(leanest) = leanest.into_iter().collect::<Result<Option<Vec<_>>>>()? else { continue };
            let block_bytes = leanest.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
            let bytes = fixed.total().saturating_add(block_bytes);
            if least.as_ref().is_none_or(|(least, _)| bytes < *least) {
                least = Some((bytes, leanest.iter().map(|(_, c)| (*c.input).clone()).collect()));
            }
        }
        let least = least.ok_or_else(|| DriverError::defect("a bucket has no candidate"))?;
        Ok(least.1)
    }

    fn nodes(&self, buckets: usize) -> usize {
        buckets * self.pipeline.canonical.nodes.len()
    }
}

/// The sizes of the fixed memory of plans with one candidate of each bucket, those that allow the fastest plans first. If
/// there are too many, the slower ones are left out, except the smallest.
fn joined_fixed_sizes(buckets: &[&Candidates]) -> Vec<FixedSizes> {
    let mut sizes = vec![FixedSizes::default()];
    for (b, bucket) in buckets.iter().enumerate() {
        let own = bucket.pareto_fixed_sizes();
        let mut joined: Vec<(f64, u64, FixedSizes)> = Vec::new();
        for fixed in sizes.iter().flat_map(|fixed| own.iter().map(|own| fixed.join(own))) {
            if !joined.iter().any(|(_, _, known)| *known == fixed) {
                let least_us = buckets[..=b].iter().map(|bucket| bucket.least_us(&fixed)).sum();
                joined.push((least_us, fixed.total(), fixed));
            }
        }
        joined.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        if joined.len() > MAX_FIXED_SIZES
            && let Some(smallest) = (0..joined.len()).min_by_key(|&i| joined[i].1)
        {
            let last = smallest.max(MAX_FIXED_SIZES - 1);
            joined.swap(MAX_FIXED_SIZES - 1, last);
            joined.truncate(MAX_FIXED_SIZES);
        }
        sizes = joined.into_iter().map(|(_, _, fixed)| fixed).collect();
    }
    sizes
}

/// Schedules whose symmetric arena is within a limit.
struct FittedSchedules<'p> {
    schedules: ProgramSchedules<'p>,
    plan: PlacedPlan,
}

/// The fastest schedules of programs within a limit of symmetric memory. If no schedules fit, returns the bytes that the
/// smallest ones need.
fn schedules_within<'p>(
    planner: &'p Planner<'p>,
    options: &CompileOptions,
    limit: u64,
) -> Result<Result<FittedSchedules<'p>, u64>> {
    let programs: Vec<usize> = (0..planner.program_count()).collect();
    let fitted =
        parallel::map(programs, planner.node_count(), |p| program_within(planner, p, options, limit));
    let mut parts = Vec::with_capacity(fitted.len());
    let mut resolved = BTreeMap::new();
    let mut total_us = 0.0;
    let mut needed: Option<u64> = None;
    for fitted in fitted {
        match fitted? {
            Ok(FittedSchedules { schedules, plan: PlacedPlan { placed, us } }) => {
                parts.push((schedules, placed.buckets));
                resolved.extend(placed.programs);
                total_us += us;
            }
            Err(bytes) => needed = needed.max(Some(bytes)),
        }
    }
    if let Some(needed) = needed {
        return Ok(Err(needed));
    }
    let joined = ProgramSchedules::join(parts);
    let (schedules, buckets) = joined.ok_or_else(|| DriverError::defect("a plan has no program"))?;
    let placed = PlacedPrograms { buckets, programs: resolved };
    Ok(Ok(FittedSchedules { schedules, plan: PlacedPlan { placed, us: total_us } }))
}

/// The fastest schedule of one program within a limit of symmetric memory, in the requested order or in the leanest one,
/// with exit barriers kept until the arena fits. If it never fits, the bytes that it needs.
fn program_within<'p>(
    planner: &'p Planner<'p>,
    program: usize,
    options: &CompileOptions,
    limit: u64,
) -> Result<Result<FittedSchedules<'p>, u64>> {
    let lean = (options.order == OrderStrategy::Chosen).then_some(OrderStrategy::Lean);
    let mut least = u64::MAX;
    let mut fastest: Option<FittedSchedules<'p>> = None;
    for order in [Some(options.order), lean].into_iter().flatten() {
        for &next_run in planner.next_runs() {
            let mut schedules = planner.schedule_program(program, order, next_run)?;
            let relies_on_next_run = schedules.rely_on_next_run();
            match keep_barriers_to_fit(&mut schedules, limit)? {
                Ok(placed) => {
                    let plan = PlacedPlan { us: estimate_us(&placed, options)?, placed };
                    if fastest.as_ref().is_none_or(|fastest| plan.is_better_than(&fastest.plan)) {
                        fastest = Some(FittedSchedules { schedules, plan });
                    }
                }
                Err(needed) => least = least.min(needed),
            }
            if !relies_on_next_run {
                break;
            }
        }
    }
    Ok(fastest.ok_or(least))
}

fn total_bytes(buckets: &[Bucket]) -> u64 {
    let bytes = buckets.iter().map(|b| b.totals.ordinary_peak.saturating_add(b.totals.symmetric_peak));
    bytes.fold(0, u64::saturating_add)
}

/// Keeps exit barriers until the symmetric arena takes at most `limit` bytes. If it never does, returns the bytes that it
/// needs.
fn keep_barriers_to_fit(
    schedules: &mut ProgramSchedules<'_>,
    limit: u64,
) -> Result<Result<PlacedPrograms, u64>, PlanError> {
    loop {
        // A lower bound is known before blocks have offsets.
        if schedules.symmetric_bound()? <= limit {
            let placed = schedules.place()?;
            if placed.symmetric_peak() <= limit {
                return Ok(Ok(placed));
            }
        }
        if !schedules.keep_barriers()? {
            return Ok(Err(schedules.place()?.symmetric_peak()));
        }
    }
}

/// The estimated microseconds of a run of all buckets.
fn estimate_us(placed: &PlacedPrograms, options: &CompileOptions) -> Result<f64> {
    let mut us = 0.0;
    for bucket in &placed.buckets {
        let program = placed.programs.get(&bucket.program);
        let program = program.ok_or_else(|| DriverError::defect("a bucket names no program"))?;
        us += program.estimate(bucket, &options.profile).map_err(DriverError::defect)?.total_us;
    }
    Ok(us)
}
