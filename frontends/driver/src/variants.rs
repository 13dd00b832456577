//! Searches for the cheapest choice of variants: variants are chosen again with the facts that the plan of
//! an earlier choice shows.
//!
//! The first choice assumes all possible overlap, and that exit barriers are dropped. Other choices use the
//! overlap and the barriers of a plan, only plain collectives, or coalesced collectives. Each bucket takes
//! the best of them. A limit of memory is deliberately absent here: see [`crate::limit`].

use std::collections::BTreeSet;

use symmc_passes::{CoalesceConfig, CoalesceReach, JoinMode};
use symmc_plan::{Bucket, Plan};
use symmc_planner::BucketInput;

use crate::attempt::{JoinedSets, PlanAttempt, communication_us};
use crate::divide::BucketRequest;
use crate::error::Result;
use crate::pipeline::{Pipeline, VariantChoice};

pub struct PlannedBuckets {
    pub inputs: Vec<BucketInput>,
    pub plan: Plan,
    /// Whether variants depend on the schedule: on overlap, or on kept exit barriers.
    pub by_schedule: bool,
    /// The sets of collectives that are joined in each bucket, in the canonical form of the pipeline.
    pub joined: Vec<JoinedSets>,
    /// If there is a limit of memory, all inputs that the search lowered, because they can need less memory
    /// than the chosen one.
    pub tried: Vec<Vec<BucketInput>>,
}

pub struct VariantSearch<'a> {
    pipeline: &'a Pipeline<'a>,
    buckets: &'a [BucketRequest],
    pub best: PlanAttempt,
    /// If there is a limit of memory, all inputs that were lowered.
    pub tried: Vec<Vec<BucketInput>>,
}

impl<'a> VariantSearch<'a> {
    pub fn new(
        pipeline: &'a Pipeline<'a>,
        buckets: &'a [BucketRequest],
        first: PlanAttempt,
    ) -> VariantSearch<'a> {
        VariantSearch { pipeline, buckets, best: first, tried: Vec::new() }
    }

    /// Tries all kinds of choices.
    pub fn run(&mut self) -> Result<()> {
        self.choose_by_schedule()?;
        self.improve(&VariantChoice { plain: true, ..VariantChoice::default() })?;
        self.try_joining(JoinMode::Packed)?;
        self.try_joining(JoinMode::Together)
    }

    /// The sets of collectives that are joined in each bucket of the best attempt.
    pub fn joined_sets(&self) -> Vec<JoinedSets> {
        let mut joined = self.best.joined.clone();
        joined.resize(self.buckets.len(), JoinedSets::default());
        joined
    }

    /// The inputs of the best attempt, and its plan with the tightest offsets that are found.
    pub fn into_packed_plan(self) -> (Vec<BucketInput>, Plan) {
        let PlanAttempt { inputs, plan, is_packed, .. } = self.best;
        let is_tight = plan.buckets.iter().map(|bucket| &bucket.totals).all(|totals| {
            totals.ordinary_peak == totals.ordinary_bound && totals.symmetric_peak == totals.symmetric_bound
        });
        if is_packed || is_tight {
            return (inputs, plan);
        }
        let plan = self.pipeline.plan_inputs(self.buckets, &inputs).unwrap_or(plan);
        (inputs, plan)
    }

    /// Chooses variants with the overlap and the exit barriers of the best plan so far.
    fn choose_by_schedule(&mut self) -> Result<()> {
        let mut kept_exits: Vec<BTreeSet<String>> = vec![BTreeSet::new(); self.best.observed.len()];
        for _ in 0..MAX_OVERLAP_ROUNDS {
            let mut observed = self.best.observed.clone();
            for (observed, exits) in observed.iter_mut().zip(&mut kept_exits) {
                // A barrier that was kept once is assumed to be kept again.
                exits.append(&mut observed.exits_kept);
                observed.exits_kept.clone_from(exits);
            }
            let joined = self.best.joined.clone();
            if !self.improve(&VariantChoice { observed, joined, ..VariantChoice::default() })? {
                break;
            }
        }
        Ok(())
    }

    /// Joins collectives in one mode, within each of a few reaches, if that costs less, in addition to
    /// existing sets. Variants are first chosen with the overlap that the best plan's choice assumed, and
    /// then with the overlap that results.
    fn try_joining(&mut self, joining: JoinMode) -> Result<()> {
        let nodes = self.pipeline.canonical.nodes.len() * self.buckets.len();
        let reaches = if nodes > LARGE_PROGRAM_NODES {
            &COALESCE_REACHES[..LARGE_PROGRAM_REACHES]
        } else {
            COALESCE_REACHES
        };
        let before = self.joined_sets();
        let rewritten: Vec<BTreeSet<String>> =
            self.best.plan.buckets.iter().map(rewritten_collectives).collect();
        let mut tried: Vec<Vec<JoinedSets>> = Vec::new();
        for &reach in reaches {
            let config = CoalesceConfig { joining, reach, kept: BTreeSet::new() };
            let joinable = self.pipeline.joinable(self.buckets, &rewritten, config)?;
            let mut sets = before.clone();
            for (sets, joinable) in sets.iter_mut().zip(joinable) {
                match joining {
                    JoinMode::Packed => sets.packed = joinable,
                    JoinMode::Together => sets.together = joinable,
                }
            }
            if sets == before || tried.contains(&sets) {
                continue;
            }
            tried.push(sets.clone());
            self.try_sets(&sets)?;
            if joining == JoinMode::Packed && reach.least_startup == MIN_STARTUP_FRACTION {
                self.improve(&VariantChoice { plain: true, joined: sets, ..VariantChoice::default() })?;
            }
        }
        Ok(())
    }

    /// Joins these sets of collectives if that costs less.
    fn try_sets(&mut self, sets: &[JoinedSets]) -> Result<()> {
        let joined = sets.to_vec();
        let choice =
            VariantChoice { observed: self.best.chosen_with.clone(), joined, ..VariantChoice::default() };
        let Some(other) = self.plan_choice(&choice)? else { return Ok(()) };
        let own_choice = VariantChoice { observed: other.observed.clone(), ..choice };
        let is_far =
            other.costs.iter().zip(&self.best.costs).all(|(other, best)| *other > MAX_TIME_RATIO * best);
        if self.take_better(other)? || !is_far && self.improve(&own_choice)? {
            self.choose_by_schedule()?;
        }
        Ok(())
    }

    /// Tries another choice of variants and takes it for the buckets in which it costs less. Returns whether
    /// there are any. A choice that cannot be planned is never better.
    fn improve(&mut self, choice: &VariantChoice) -> Result<bool> {
        match self.plan_choice(choice)? {
            Some(other) => self.take_better(other),
            None => Ok(false),
        }
    }

    /// Plans another choice. Returns `None` if it is the same program as the best one, if its communication
    /// alone takes longer than that, or if it cannot be planned.
    fn plan_choice(&mut self, choice: &VariantChoice) -> Result<Option<PlanAttempt>> {
        let inputs = self.pipeline.lower(self.buckets, choice)?.inputs;
        if inputs.iter().zip(&self.best.inputs).all(|(a, b)| a.graph == b.graph) {
            return Ok(None);
        }
        if self.pipeline.options.symm_limit.is_some() {
            self.tried.push(inputs.clone());
        }
        let profile = &self.pipeline.options.profile;
        let least_us = inputs.iter().map(|input| communication_us(&input.graph, profile));
        if least_us.zip(&self.best.costs).all(|(min_us, cost)| min_us >= *cost) {
            return Ok(None);
        }
        let Ok(plan) = self.pipeline.plan_on_trial(self.buckets, &inputs) else { return Ok(None) };
        let mut attempt = self.pipeline.attempt_plan(inputs, plan)?;
        attempt.is_packed = false;
        attempt.joined.clone_from(&choice.joined);
        attempt.chosen_with.clone_from(&choice.observed);
        Ok(Some(attempt))
    }

    /// Takes another plan for the buckets in which it costs less. Returns whether there are any.
    pub fn take_better(&mut self, other: PlanAttempt) -> Result<bool> {
        let better: Vec<bool> = self.best.costs.iter().zip(&other.costs).map(|(a, b)| b < a).collect();
        if !better.contains(&true) {
            return Ok(false);
        }
        if !better.contains(&false) {
            self.best = other;
            return Ok(true);
        }
        let mut inputs = Vec::with_capacity(better.len());
        let mut joined = Vec::with_capacity(better.len());
        let mut chosen_with = Vec::with_capacity(better.len());
        for (b, &is_better) in better.iter().enumerate() {
            let cheaper = if is_better { &other } else { &self.best };
            inputs.push(cheaper.inputs[b].clone());
            joined.push(cheaper.joined.get(b).cloned().unwrap_or_default());
            chosen_with.push(cheaper.chosen_with.get(b).cloned().unwrap_or_default());
        }
        let Ok(plan) = self.pipeline.plan_on_trial(self.buckets, &inputs) else { return Ok(false) };
        let mixed = PlanAttempt {
            joined,
            chosen_with,
            is_packed: false,
            ..self.pipeline.attempt_plan(inputs, plan)?
        };
        // Buckets share arenas, so the order of one can change with the others.
        if mixed.costs.iter().zip(&self.best.costs).any(|(a, b)| a > b) {
            return Ok(false);
        }
        self.best = mixed;
        Ok(true)
    }
}

/// The most times that variants are chosen again with the overlap of a schedule.
const MAX_OVERLAP_ROUNDS: u32 = 2;

/// Joins collectives at any distance.
pub const WIDEST_COALESCING: CoalesceConfig = CoalesceConfig {
    joining: JoinMode::Packed,
    reach: CoalesceReach { window_us: f64::INFINITY, least_startup: MIN_STARTUP_FRACTION },
    kept: BTreeSet::new(),
};
/// The reaches that are tried. Start-up is half of the time of small collectives. Collectives whose time is
/// mostly that of their bytes are left apart: measurements show that they lose more overlap than a start-up
/// is worth (two all-reduces of 16 MiB in each of four layers, on two H200: 1834 µs as one, 1789 µs apart).
const COALESCE_REACHES: &[CoalesceReach] = &[
    CoalesceReach { window_us: 160.0, least_startup: 0.5 },
    CoalesceReach { window_us: f64::INFINITY, least_startup: 0.5 },
    CoalesceReach { window_us: 160.0, least_startup: MIN_STARTUP_FRACTION },
    CoalesceReach { window_us: 640.0, least_startup: MIN_STARTUP_FRACTION },
    CoalesceReach { window_us: 10.0, least_startup: MIN_STARTUP_FRACTION },
];
/// The least fraction of a collective's time that must be start-up for it to be coalesced.
const MIN_STARTUP_FRACTION: f64 = 0.2;
/// The number of reaches that are tried for programs whose buckets have more than [`LARGE_PROGRAM_NODES`] nodes together.
const LARGE_PROGRAM_REACHES: usize = 4;
const LARGE_PROGRAM_NODES: usize = 1_500;
/// Variants are chosen again with a plan's own overlap only if it costs at most this many times the best
/// plan.
const MAX_TIME_RATIO: f64 = 1.25;

/// The collectives that rewriting uses: other nodes than the one with their name run them.
fn rewritten_collectives(bucket: &Bucket) -> BTreeSet<String> {
    let decisions = bucket.decisions.iter().filter(|d| !d.nodes.contains(&d.collective));
    decisions.map(|d| d.collective.clone()).collect()
}
