//! Finds the fastest plan whose symmetric arena fits a limit.
//!
//! This is the only search for a limit. It descends one ladder:
//!
//! 1. The *variants*: first those of the cheapest plan, and all others that the search for it lowered,
//!    including those with coalesced collectives. Then variants that ask for less symmetric memory: the
//!    largest request is forbidden repeatedly, both with the collectives of the cheapest plan joined, and
//!    with none joined.
//! 2. The *order*: the requested one, and the leanest one, without overlap.
//! 3. The *next run*: whether dropped exit barriers may rely on the next run being of the same bucket.
//! 4. The *exit barriers*: barriers are kept one after another, where the arena holds the most, until the
//!    plan fits.
//!
//! The rungs do not depend on the limit; only which of them fit does. The search returns the fastest plan
//! that fits. It skips candidates that cannot beat the best plan so far, and combines parts of candidates by
//! bucket, so a smaller limit can give a faster plan in rare cases of several buckets. Leaner variants can
//! be faster by the estimate of the whole run, so they are tried even if the cheapest plan fits. A lower
//! bound on a plan's memory is known before its blocks have offsets: only plans whose bound fits are packed.

use symmc_ir::{Graph, Node};
use symmc_plan::{PAGE, Plan};
use symmc_planner::{BucketInput, OrderStrategy, PlanConfig, PlanError, Planner, ProgramSchedules};

use crate::attempt::{JoinedSets, PlanAttempt, communication_us};
use crate::divide::BucketRequest;
use crate::error::{DriverError, Result};
use crate::pipeline::{Pipeline, VariantChoice};
use crate::variants::PlannedBuckets;

/// Returns the fastest plan of these buckets whose symmetric arena takes at most `limit` bytes. `cheapest`
/// is the plan without a limit. Fails if no plan fits the limit, or the program cannot be planned.
pub fn fastest_within(
    pipeline: &Pipeline<'_>,
    buckets: &[BucketRequest],
    cheapest: PlannedBuckets,
    limit: u64,
) -> Result<PlannedBuckets> {
    let PlannedBuckets { inputs, joined, tried, .. } = cheapest;
    let mut search = LimitSearch::new(pipeline, buckets, limit);
    for inputs in [inputs].into_iter().chain(tried) {
        search.try_inputs(inputs)?;
    }
    for form in [Some(*pipeline), pipeline.small_sizes()].into_iter().flatten() {
        search.try_leaner_variants(&form, &[])?;
    }
    if joined.iter().any(|sets| *sets != JoinedSets::default()) {
        search.try_leaner_variants(pipeline, &joined)?;
    }
    search.try_fastest_of_each_bucket()?;
    search.finish()
}

/// The search, with the fastest plan that fits so far.
struct LimitSearch<'a> {
    pipeline: &'a Pipeline<'a>,
    buckets: &'a [BucketRequest],
    config: PlanConfig,
    limit: u64,
    tried: Vec<Vec<BucketInput>>,
    best: Option<PlanAttempt>,
    /// For each bucket, the fastest input among attempts that fit, with its time.
    fastest: Vec<Option<(f64, BucketInput)>>,
    /// While no plan fits: the bytes of the smallest arena so far, and its fixed part.
    least: Option<(u64, u64)>,
    /// The error of the first lowered programs that cannot be planned.
    error: Option<PlanError>,
}

impl<'a> LimitSearch<'a> {
    fn new(pipeline: &'a Pipeline<'a>, buckets: &'a [BucketRequest], limit: u64) -> LimitSearch<'a> {
        LimitSearch {
            pipeline,
            buckets,
            config: pipeline.plan_config(buckets),
            limit,
            tried: Vec::new(),
            best: None,
            fastest: vec![None; buckets.len()],
            least: None,
            error: None,
        }
    }

    /// The most bytes for the symmetric arena, which consists of whole pages.
    fn arena_limit(&self) -> u64 {
        self.limit / PAGE * PAGE
    }

    /// Tries the variants with these sets of collectives joined, and others that ask for less and less symmetric
    /// memory.
    fn try_leaner_variants(&mut self, form: &Pipeline<'_>, joined: &[JoinedSets]) -> Result<()> {
        let mut choice = VariantChoice { joined: joined.to_vec(), ..VariantChoice::default() };
        let first = form.lower(self.buckets, &choice)?.inputs;
        let mut requested = largest_symmetric_request(&first);
        let mut descents = 0;
        let mut lowered = vec![first];
        while requested > 0 {
            let limit = if descents < EXACT_DESCENTS { requested - 1 } else { requested / 2 };
            choice.symmetric = Some(limit);
            let inputs = form.lower(self.buckets, &choice)?.inputs;
            requested = largest_symmetric_request(&inputs).min(limit);
            descents += 1;
            lowered.push(inputs);
        }
        lowered.into_iter().try_for_each(|inputs| self.try_inputs(inputs))
    }

    /// Tries the combination of the fastest input of each bucket.
    fn try_fastest_of_each_bucket(&mut self) -> Result<()> {
        let fastest: Option<Vec<BucketInput>> =
            self.fastest.iter().map(|fastest| fastest.as_ref().map(|(_, input)| input.clone())).collect();
        fastest.map_or(Ok(()), |inputs| self.try_inputs(inputs))
    }

    /// Tries all orders and exit barriers for lowered programs.
    fn try_inputs(&mut self, inputs: Vec<BucketInput>) -> Result<()> {
        let is_known =
            self.tried.iter().any(|tried| tried.iter().zip(&inputs).all(|(a, b)| a.graph == b.graph));
        if is_known || !self.can_be_faster(&inputs) {
            return Ok(());
        }
        self.tried.push(inputs.clone());
        match self.try_schedules(&inputs) {
            // Other lowered programs may still be plannable.
            Err(DriverError::Plan(error)) => {
                self.error.get_or_insert(error);
                Ok(())
            }
            tried => tried,
        }
    }

    /// Whether the communication of lowered programs alone takes less time than the fastest plan so far.
    fn can_be_faster(&self, inputs: &[BucketInput]) -> bool {
        let profile = &self.pipeline.options.profile;
        let least_us: f64 = inputs.iter().map(|input| communication_us(&input.graph, profile)).sum();
        self.best.as_ref().is_none_or(|best| least_us < best.total_us())
    }

    fn try_schedules(&mut self, inputs: &[BucketInput]) -> Result<()> {
        let config = self.config.clone();
        let planner = Planner::new(self.pipeline.source, inputs, &config)?;
        let lean = (config.order == OrderStrategy::Chosen).then_some(OrderStrategy::Lean);
        for order in [Some(config.order), lean].into_iter().flatten() {
            for &next_run in planner.next_runs() {
                let schedules = planner.schedule(order, next_run)?;
                let relies_on_next_run = schedules.rely_on_next_run();
                if let Some(plan) = self.first_that_fits(schedules, planner.fixed_bytes())? {
                    self.take_if_faster(inputs, plan)?;
                }
                if !relies_on_next_run {
                    break;
                }
            }
        }
        Ok(())
    }

    fn first_that_fits(
        &mut self,
        mut schedules: ProgramSchedules<'_>,
        fixed_bytes: u64,
    ) -> Result<Option<Plan>, PlanError> {
        loop {
            if schedules.symmetric_bound()? <= self.arena_limit() {
                let plan = schedules.plan()?;
                if plan.arenas.symmetric <= self.arena_limit() {
                    return Ok(Some(plan));
                }
            }
            if !schedules.keep_barriers()? {
                break;
            }
        }
        if self.best.is_none() {
            let needed = schedules.plan()?.arenas.symmetric;
            if self.least.is_none_or(|(fewest, _)| needed < fewest) {
                self.least = Some((needed, fixed_bytes));
            }
        }
        Ok(None)
    }

    /// Makes a fitting plan the best one if it is faster than the best one so far.
    fn take_if_faster(&mut self, inputs: &[BucketInput], plan: Plan) -> Result<()> {
        let attempt = self.pipeline.attempt_plan(inputs.to_vec(), plan)?;
        for ((fastest, input), &us) in self.fastest.iter_mut().zip(inputs).zip(&attempt.times_us) {
            if fastest.as_ref().is_none_or(|(fastest_us, _)| us < *fastest_us) {
                *fastest = Some((us, input.clone()));
            }
        }
        if self.best.as_ref().is_none_or(|best| time_and_cost(&attempt) < time_and_cost(best)) {
            self.best = Some(attempt);
        }
        Ok(())
    }

    fn finish(self) -> Result<PlannedBuckets> {
        let LimitSearch { best, least, error, limit, .. } = self;
        match (best, least, error) {
            (Some(PlanAttempt { inputs, plan, .. }), _, _) => {
                Ok(PlannedBuckets { inputs, plan, by_schedule: false, joined: Vec::new(), tried: Vec::new() })
            }
            (None, Some((least, fixed)), _) => Err(DriverError::SymmLimit { limit, least, fixed }),
            (None, None, Some(error)) => Err(error.into()),
            (None, None, None) => Err(DriverError::defect("the search for a memory limit tried no plan")),
        }
    }
}

fn time_and_cost(attempt: &PlanAttempt) -> (f64, f64) {
    (attempt.total_us(), attempt.costs.iter().sum())
}

/// The number of descents that forbid only the largest request. Later ones forbid all requests above half of
/// it.
const EXACT_DESCENTS: u32 = 8;

fn largest_symmetric_request(inputs: &[BucketInput]) -> u64 {
    let mut largest = 0;
    for graph in inputs.iter().map(|input| &input.graph) {
        for node in graph.nodes.values() {
            largest = largest.max(symmetric_request(graph, node).unwrap_or(0));
        }
    }
    largest
}

fn symmetric_request(graph: &Graph, node: &Node) -> Option<u64> {
    let c = node.op.as_collective()?;
    let operands: Vec<_> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
    let results: Vec<_> = node.outputs.iter().map(|&v| graph.ty(v)).collect();
    let bytes = c.kind.sized_type(&operands, &results)?.bytes().upper_bound(&graph.symbols);
    let ranks = u64::from(graph.group_size(c.group)?);
    Some(c.variant?.symmetric_bytes(&c.kind, u64::try_from(bytes).unwrap_or(0), ranks))
}
