//! The search for the choice of variants that costs least: variants are chosen again with what the plan of an earlier choice shows.
//!
//! The first choice assumes all overlap that is possible, and that exit barriers are dropped. Others are made with the overlap and
//! the barriers that a plan has, with plain collectives alone, and with coalesced collectives. Each bucket takes the best of them.
//! A limit of memory is deliberately absent here: see [`crate::limit`].

use std::collections::BTreeSet;

use symmc_passes::{CoalesceConfig, CoalesceReach, JoinMode};
use symmc_plan::{Bucket, Plan};
use symmc_planner::BucketInput;

use crate::attempt::{JoinedSets, ObservedSchedule, PlanAttempt, communication_us};
use crate::divide::BucketRequest;
use crate::error::Result;
use crate::pipeline::{Pipeline, VariantChoice};

pub struct PlannedBuckets {
    pub inputs: Vec<BucketInput>,
    pub plan: Plan,
    /// Whether variants depend on the schedule: on overlap, or on exit barriers that are kept.
    pub by_schedule: bool,
    /// The sets of collectives that are joined in each bucket, in the canonical form of the pipeline.
    pub joined: Vec<JoinedSets>,
    /// If there is a limit of memory, everything that the search lowered: it can need less memory than what was chosen.
    pub tried: Vec<Vec<BucketInput>>,
}

pub struct VariantSearch<'a> {
    pipeline: &'a Pipeline<'a>,
    buckets: &'a [BucketRequest],
    pub best: PlanAttempt,
    /// Everything that was lowered, if there is a limit of memory.
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

    /// Searches in all ways.
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

    /// What the best attempt is made of, and its plan with the tightest offsets that are found.
    pub fn into_packed_plan(self) -> (Vec<BucketInput>, Plan) {
        let PlanAttempt { inputs, plan, is_packed, .. } = self.best;
        let is_tight = |bucket: &Bucket| {
            let totals = &bucket.totals;
            (totals.ordinary_peak, totals.symmetric_peak) == (totals.ordinary_bound, totals.symmetric_bound)
        };
        if is_packed || plan.buckets.iter().all(is_tight) {
            return (inputs, plan);
        }
        let plan = self.pipeline.plan_inputs(self.buckets, &inputs).unwrap_or(plan);
        (inputs, plan)
    }

    /// Chooses variants with the overlap and the exit barriers that the best plan so far has.
    fn choose_by_schedule(&mut self) -> Result<()> {
        let mut kept: Vec<BTreeSet<String>> = vec![BTreeSet::new(); self.best.observed.len()];
        for _ in 0..ROUNDS {
            let mut seen = self.best.observed.clone();
            for (seen, kept) in seen.iter_mut().zip(&mut kept) {
                // A barrier that was kept once is kept again.
                kept.append(&mut seen.exits_kept);
                seen.exits_kept.clone_from(kept);
            }
            let joined = self.best.joined.clone();
            if !self.improve(&VariantChoice { observed: seen, joined, ..VariantChoice::default() })? {
                break;
            }
        }
        Ok(())
    }

    /// Joins collectives in this way, within each of a few reaches, where that costs less, besides those that are joined already. Variants
    /// are first chosen with the overlap that those of the best plan were chosen with, and then with the overlap that they have.
    fn try_joining(&mut self, joining: JoinMode) -> Result<()> {
        let nodes = self.pipeline.canonical.nodes.len() * self.buckets.len();
        let reaches = if nodes > LARGE { &COALESCING[..FEW] } else { COALESCING };
        let before = self.joined_sets();
        let rewritten: Vec<BTreeSet<String>> =
            self.best.plan.buckets.iter().map(rewritten_collectives).collect();
        let mut tried: Vec<Vec<JoinedSets>> = Vec::new();
        for &reach in reaches {
            let config = CoalesceConfig { joining, reach, kept: BTreeSet::new() };
            let found = self.pipeline.joinable(self.buckets, &rewritten, config)?;
            let mut sets = before.clone();
            for (sets, found) in sets.iter_mut().zip(found) {
                match joining {
                    JoinMode::Packed => sets.packed = found,
                    JoinMode::Together => sets.together = found,
                }
            }
            if sets == before || tried.contains(&sets) {
                continue;
            }
            tried.push(sets.clone());
            self.try_sets(&sets)?;
            if joining == JoinMode::Packed && reach.least_startup == LEAST_STARTUP {
                self.improve(&VariantChoice { plain: true, joined: sets, ..VariantChoice::default() })?;
            }
        }
        Ok(())
    }

    /// Joins these sets of collectives where that costs less.
    fn try_sets(&mut self, sets: &[JoinedSets]) -> Result<()> {
        let joined = sets.to_vec();
        let choice =
            VariantChoice { observed: self.best.chosen_with.clone(), joined, ..VariantChoice::default() };
        let Some(other) = self.plan_choice(&choice)? else { return Ok(()) };
        let own = VariantChoice { observed: other.observed.clone(), ..choice };
        let is_far = other.costs.iter().zip(&self.best.costs).all(|(other, best)| *other > FAR * best);
        if self.take_better(other)? || !is_far && self.improve(&own)? {
            self.choose_by_schedule()?;
        }
        Ok(())
    }

    /// Takes another choice of variants for the buckets where it costs less; whether there are any. A choice that cannot be
    /// planned is no better.
    fn improve(&mut self, choice: &VariantChoice) -> Result<bool> {
        match self.plan_choice(choice)? {
            Some(other) => self.take_better(other),
            None => Ok(false),
        }
    }

    /// The plan of another choice; `None` if that is the same program as the best one, takes longer than that with its communication
    /// alone, or cannot be planned.
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
        if least_us.zip(&self.best.costs).all(|(least, cost)| least >= *cost) {
            return Ok(None);
        }
        let Ok(plan) = self.pipeline.plan_on_trial(self.buckets, &inputs) else { return Ok(None) };
        let mut other = self.pipeline.attempt_plan(inputs, plan)?;
        other.is_packed = false;
        other.joined.clone_from(&choice.joined);
        other.chosen_with.clone_from(&choice.observed);
        Ok(Some(other))
    }

    /// Takes another plan for the buckets where it costs less; whether there are any.
    pub fn take_better(&mut self, other: PlanAttempt) -> Result<bool> {
        let better: Vec<bool> = self.best.costs.iter().zip(&other.costs).map(|(a, b)| b < a).collect();
        if !better.contains(&true) {
            return Ok(false);
        }
        if !better.contains(&false) {
            self.best = other;
            return Ok(true);
        }
        let of_bucket = |b: usize| if better[b] { &other } else { &self.best };
        let all = 0..better.len();
        let inputs: Vec<BucketInput> = all.clone().map(|b| of_bucket(b).inputs[b].clone()).collect();
        let joined = all.clone().map(|b| of_bucket(b).joined.get(b).cloned().unwrap_or_default()).collect();
        let chosen_with: Vec<ObservedSchedule> =
            all.map(|b| of_bucket(b).chosen_with.get(b).cloned().unwrap_or_default()).collect();
        let Ok(plan) = self.pipeline.plan_on_trial(self.buckets, &inputs) else { return Ok(false) };
        let mixed = PlanAttempt {
            joined,
            chosen_with,
            is_packed: false,
            ..self.pipeline.attempt_plan(inputs, plan)?
        };
        // Buckets share arenas, and their orders can differ in company.
        if mixed.costs.iter().zip(&self.best.costs).any(|(a, b)| a > b) {
            return Ok(false);
        }
        self.best = mixed;
        Ok(true)
    }
}

/// How often variants are chosen again with the overlap of a schedule.
const ROUNDS: u32 = 2;

/// Collectives however far from each other.
pub const WIDEST: CoalesceConfig = CoalesceConfig {
    joining: JoinMode::Packed,
    reach: CoalesceReach { window_us: f64::INFINITY, least_startup: LEAST_STARTUP },
    kept: BTreeSet::new(),
};
/// The reaches that are tried. Start-up is half of the time of small collectives. Collectives that take mostly the time of their bytes are
/// left apart: by measurement they lose more overlap than a start-up is worth (two all-reduces of 16 MiB in each of four layers, on two
/// H200: 1834 µs as one, 1789 µs apart).
const COALESCING: &[CoalesceReach] = &[
    CoalesceReach { window_us: 160.0, least_startup: 0.5 },
    CoalesceReach { window_us: f64::INFINITY, least_startup: 0.5 },
    CoalesceReach { window_us: 160.0, least_startup: LEAST_STARTUP },
    CoalesceReach { window_us: 640.0, least_startup: LEAST_STARTUP },
    CoalesceReach { window_us: 10.0, least_startup: LEAST_STARTUP },
];
/// The least part of the time of a collective that is start-up, for one that is coalesced.
const LEAST_STARTUP: f64 = 0.2;
/// The number of these that are tried for programs whose buckets have more than [`LARGE`] nodes together.
const FEW: usize = 4;
const LARGE: usize = 1_500;
/// How many times the cost of the best plan a plan costs for which variants are not chosen again with its own overlap.
const FAR: f64 = 1.25;

/// The collectives that rewriting uses: those that are run by other nodes than one of their name.
fn rewritten_collectives(bucket: &Bucket) -> BTreeSet<String> {
    let decisions = bucket.decisions.iter().filter(|d| !d.nodes.contains(&d.collective));
    decisions.map(|d| d.collective.clone()).collect()
}
