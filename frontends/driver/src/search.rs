//! The search for the plan of a bucket: one loop over proposals ([`crate::proposals`]).
//!
//! The first attempt chooses the variant of each collective alone. Each proposal then makes choices from the best
//! attempt so far. A choice is lowered and planned, and its cost is the estimate of the whole plan: time, and memory at
//! a price. The cheapest attempt stays. Rounds of all proposals end when one of them finds nothing better, or when
//! [`MAX_ATTEMPTS`] or [`MAX_LOWERED_NODES`] is reached. Then the search is restarted from runner-ups that have other
//! variants and cost little more, because several collectives may have to change together.
//!
//! With a limit of symmetric memory, the same loop also records its attempts as candidates, and plans those that need less
//! symmetric memory. The fastest candidate that fits is the result ([`crate::limit`]). The attempts do not depend on the
//! limit, so that a smaller limit hardly ever gives a faster plan.

use std::collections::HashSet;
use std::slice;
use std::sync::Arc;

use symmc_planner::{BucketInput, PlanConfig, Planner, PlanningEffort};

use crate::attempt::{Attempt, communication_us};
use crate::divide::{BucketRequest, SymbolRanges};
use crate::error::{DriverError, Result};
use crate::limit::{Candidate, Candidates, SymmetricNeeds};
use crate::pipeline::{BucketPrograms, Choice, Pipeline};
use crate::proposals::{FORM_PROPOSALS, OBSERVED_SCHEDULE, PROPOSALS, Proposal, ProposedChoice, SearchState};

/// The most rounds of all proposals.
const MAX_ROUNDS: usize = 3;

/// The most attempts that are planned for one bucket.
const MAX_ATTEMPTS: usize = 240;

/// The most nodes of all different programs that are lowered for one bucket, and the same for large programs.
const MAX_LOWERED_NODES: usize = 60_000;
const MAX_LOWERED_NODES_OF_LARGE: usize = 40_000;

/// The most times that variants are chosen again with the schedule of the attempt before.
const MAX_OBSERVED_ROUNDS: usize = 2;

/// The most that a sketch may cost, relative to the sketch of the best attempt, to be planned.
const MAX_SKETCH_RATIO: f64 = 1.01;

/// The most that an attempt may cost, relative to the best one, for its variants to be chosen again with its own schedule.
const MAX_NEAR_RATIO: f64 = 1.25;

/// The most that an attempt may cost, relative to the best one, for the search to restart from it.
const MAX_RESTART_RATIO: f64 = 1.03;

/// The most attempts from which the search restarts.
const MAX_RESTARTS: usize = 2;

/// The most attempts of one proposal that may follow each other without gain.
const MAX_ATTEMPTS_WITHOUT_GAIN: usize = 24;

/// The difference of costs in microseconds below which attempts count as equal.
const MIN_SAVED_US: f64 = 1e-3;

/// The best plan of a bucket.
#[derive(Clone)]
pub struct SearchedBucket {
    pub best: Attempt,
    /// Whether `best` is within the limit of symmetric memory.
    pub fits: bool,
    /// The choices that were planned after the first one.
    pub tried: Vec<TriedProposal>,
    /// All attempts, if symmetric memory is limited.
    pub candidates: Candidates,
}

/// A choice that was planned.
#[derive(Clone, PartialEq, Debug)]
pub struct TriedProposal {
    pub proposal: &'static str,
    /// Why the proposal may be faster.
    pub reason: &'static str,
    pub change: String,
    /// The collectives that the choice changed; none if it concerns all.
    pub collectives: Vec<String>,
    /// The estimated cost in microseconds: time, and memory at a price.
    pub cost: f64,
    /// The cost of the attempt that it changes: the best one so far or, after a restart, a runner-up.
    pub before: f64,
}

struct BucketSearch<'a> {
    pipeline: &'a Pipeline<'a>,
    programs: BucketPrograms<'a>,
    config: PlanConfig,
    /// The planner's options for sketches.
    sketch_config: PlanConfig,
    best: Attempt,
    /// The cost of a sketch of the best attempt.
    best_sketch_cost: f64,
    /// All attempts, if symmetric memory is limited.
    candidates: Vec<Candidate>,
    known_choices: HashSet<Choice>,
    known_inputs: Vec<Arc<BucketInput>>,
    lowered_nodes: usize,
    /// The number of attempts, except those whose communication alone is slower than the best attempt.
    attempts: usize,
    tried: Vec<TriedProposal>,
    /// The attempts from which the search may restart, with the costs of their sketches.
    runner_ups: Vec<(Attempt, f64)>,
}

/// The result of planning a choice.
enum Considered {
    /// It is the best attempt now.
    Better,
    /// It costs at most [`MAX_NEAR_RATIO`] times as much as the best attempt. The cost of its sketch is given if the whole
    /// plan was made.
    Near(Box<Attempt>, Option<f64>),
    Worse,
}

/// Finds the cheapest plan of a bucket, or the fastest one within the limit of symmetric memory. `among_others` says
/// whether the plan has further buckets.
pub fn search_bucket(
    pipeline: &Pipeline<'_>,
    ranges: &SymbolRanges,
    among_others: bool,
) -> Result<SearchedBucket> {
    let mut config = pipeline.plan_config(&[BucketRequest::new(ranges.clone())], among_others);
    config.pack.exact = 0;
    let programs = BucketPrograms::new(pipeline, ranges)?;
    let choice = Choice::default();
    let input = Arc::new(pipeline.lower(&programs, &choice)?);
    let has_collectives = input.graph.nodes.values().any(|node| node.op.as_collective().is_some());
    let sketch_config = PlanConfig { effort: PlanningEffort::Sketch, ..config.clone() };
    let best = plan_free(pipeline, &config, choice.clone(), (*input).clone())?;
    let mut search = BucketSearch {
        pipeline,
        programs,
        config,
        sketch_config,
        best,
        best_sketch_cost: f64::INFINITY,
        candidates: Vec::new(),
        known_choices: HashSet::from([choice]),
        known_inputs: vec![input.clone()],
        lowered_nodes: 0,
        attempts: 0,
        tried: Vec::new(),
        runner_ups: Vec::new(),
    };
    let needs = search.limited_needs(&input)?;
    let effort = PlanningEffort::Full;
    search.candidates.extend(needs.map(|needs| Candidate::new(&search.best, effort, input, needs)));
    if has_collectives && pipeline.is_searched {
        search.run()?;
    }
    search.finish()
}

/// Plans a choice without a limit.
fn plan_free(
    pipeline: &Pipeline<'_>,
    config: &PlanConfig,
    choice: Choice,
    input: BucketInput,
) -> Result<Attempt> {
    let (placed, fixed_bytes) = {
        let planner = Planner::new(pipeline.source, slice::from_ref(&input), config)?;
        (planner.place()?, planner.fixed_bytes())
    };
    Attempt::new(choice, input, placed, fixed_bytes, pipeline.options)
}

impl BucketSearch<'_> {
    fn state(&self) -> SearchState<'_> {
        SearchState {
            pipeline: self.pipeline,
            programs: &self.programs,
            best: &self.best,
            is_limited: self.is_limited(),
        }
    }

    /// Whether symmetric memory is limited.
    fn is_limited(&self) -> bool {
        self.pipeline.options.symm_limit.is_some()
    }

    fn run(&mut self) -> Result<()> {
        let Attempt { choice, input, .. } = self.best.clone();
        self.best_sketch_cost = plan_free(self.pipeline, &self.sketch_config, choice, input)?.cost;
        self.follow_schedule()?;
        self.run_rounds(PROPOSALS)?;
        self.runner_ups.sort_by(|(a, _), (b, _)| a.cost.total_cmp(&b.cost));
        for (runner_up, sketch_cost) in std::mem::take(&mut self.runner_ups).into_iter().take(MAX_RESTARTS) {
            if runner_up.cost > MAX_RESTART_RATIO * self.best.cost {
                break;
            }
            let best = std::mem::replace(&mut self.best, runner_up);
            let best_sketch_cost = std::mem::replace(&mut self.best_sketch_cost, sketch_cost);
            self.run_rounds(FORM_PROPOSALS)?;
            if self.best.cost > best.cost - MIN_SAVED_US {
                (self.best, self.best_sketch_cost) = (best, best_sketch_cost);
            } else {
                self.run_rounds(PROPOSALS)?;
            }
        }
        Ok(())
    }

    /// Tries the choices of these proposals until they find nothing better.
    fn run_rounds(&mut self, proposals: &'static [Proposal]) -> Result<()> {
        for _ in 0..MAX_ROUNDS {
            let before = self.best.cost;
            for proposal in proposals {
                if self.is_exhausted() {
                    return Ok(());
                }
                let mut without_gain = 0;
                for proposed in (proposal.choices)(&self.state())? {
                    if self.is_exhausted() {
                        return Ok(());
                    }
                    if without_gain >= MAX_ATTEMPTS_WITHOUT_GAIN {
                        break;
                    }
                    let attempts_before = self.attempts;
                    if self.try_proposal(proposal, proposed)? {
                        self.follow_schedule()?;
                        without_gain = 0;
                    } else {
                        without_gain += self.attempts - attempts_before;
                    }
                }
            }
            if self.best.cost > before - MIN_SAVED_US {
                break;
            }
        }
        Ok(())
    }

    fn is_exhausted(&self) -> bool {
        let max_lowered_nodes =
            if self.state().is_large() { MAX_LOWERED_NODES_OF_LARGE } else { MAX_LOWERED_NODES };
        self.attempts >= MAX_ATTEMPTS || self.lowered_nodes >= max_lowered_nodes
    }

    /// Plans a choice of a proposal. If it costs little more than the best attempt, and the proposal changes schedules,
    /// plans it again with the overlap and the exit barriers of its own schedule. Returns whether one of both plans is
    /// the best attempt now.
    fn try_proposal(&mut self, proposal: &'static Proposal, proposed: ProposedChoice) -> Result<bool> {
        match self.consider(proposal, proposed.clone())? {
            Considered::Better => Ok(true),
            Considered::Near(attempt, sketch_cost) if proposal.changes_schedule => {
                let conditions = attempt.observed_conditions()?;
                let choice = Choice { conditions, ..attempt.choice.clone() };
                let proposed = ProposedChoice { choice, ..proposed };
                let is_better = matches!(self.consider(proposal, proposed)?, Considered::Better);
                self.runner_ups.extend(sketch_cost.filter(|_| !is_better).map(|cost| (*attempt, cost)));
                Ok(is_better)
            }
            _ => Ok(false),
        }
    }

    /// Chooses variants again with the overlap and the exit barriers of the best attempt.
    fn follow_schedule(&mut self) -> Result<()> {
        for _ in 0..MAX_OBSERVED_ROUNDS {
            for proposed in (OBSERVED_SCHEDULE.choices)(&self.state())? {
                if !matches!(self.consider(&OBSERVED_SCHEDULE, proposed)?, Considered::Better) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Plans a choice, and keeps it if it costs less than the best one. A choice that cannot be planned, that gives a known
    /// program, or whose communication alone takes longer than the best plan is never better. The last one is planned
    /// as a candidate if symmetric memory is limited and it may need less than others.
    fn consider(&mut self, proposal: &'static Proposal, proposed: ProposedChoice) -> Result<Considered> {
        let ProposedChoice { choice, change, collectives } = proposed;
        if !self.known_choices.insert(choice.clone()) {
            return Ok(Considered::Worse);
        }
        let input = Arc::new(self.pipeline.lower(&self.programs, &choice)?);
        if self.known_inputs.iter().any(|known| known.graph == input.graph) {
            return Ok(Considered::Worse);
        }
        self.known_inputs.push(input.clone());
        self.lowered_nodes += input.graph.nodes.len();
        let least_us = communication_us(&input.graph, &self.pipeline.options.profile);
        let is_slower = least_us >= self.best.cost;
        let needs = match self.limited_needs(&input) {
            Err(DriverError::Plan(_)) => return Ok(Considered::Worse),
            needs => needs?,
        };
        if is_slower && needs.as_ref().is_none_or(|needs| self.is_replaced(least_us, needs)) {
            return Ok(Considered::Worse);
        }
        let before = self.best.cost;
        let Some((attempt, sketch_cost)) = self.plan_choice(choice, &input)? else {
            return Ok(Considered::Worse);
        };
        let effort = if sketch_cost.is_some() { PlanningEffort::Full } else { PlanningEffort::Sketch };
        self.candidates.extend(needs.map(|needs| Candidate::new(&attempt, effort, input, needs)));
        let cost = attempt.cost;
        let is_better = sketch_cost.is_some() && cost < before - MIN_SAVED_US;
        let Proposal { name: proposal, reason, .. } = *proposal;
        tracing::debug!(
            target: "symmc::compile", proposal, change, ?collectives, before, cost, is_better, "tried a proposal"
        );
        self.tried.push(TriedProposal { proposal, reason, change, collectives, cost, before });
        if is_slower {
            return Ok(Considered::Worse);
        }
        self.attempts += 1;
        match sketch_cost.filter(|_| is_better) {
            Some(sketch_cost) => {
                self.best = attempt;
                self.best_sketch_cost = sketch_cost;
                Ok(Considered::Better)
            }
            None if cost <= MAX_NEAR_RATIO * before => Ok(Considered::Near(Box::new(attempt), sketch_cost)),
            None => Ok(Considered::Worse),
        }
    }

    /// The symmetric memory that a program needs, if it is limited.
    fn limited_needs(&self, input: &BucketInput) -> Result<Option<SymmetricNeeds>> {
        let needs = || SymmetricNeeds::new(self.pipeline, &self.config, input);
        self.is_limited().then(needs).transpose()
    }

    /// Whether a candidate takes no longer than a program that takes at least some time, and needs no more.
    fn is_replaced(&self, least_us: f64, needs: &SymmetricNeeds) -> bool {
        self.candidates.iter().any(|candidate| candidate.dominates(least_us, needs))
    }

    /// Plans a choice: a sketch, and the plan with the cost of its sketch if that is not much above the sketch of the
    /// best attempt. `None` if it cannot be planned.
    fn plan_choice(&self, choice: Choice, input: &BucketInput) -> Result<Option<(Attempt, Option<f64>)>> {
        let planned = |config| match plan_free(self.pipeline, config, choice.clone(), input.clone()) {
            Ok(attempt) => Ok(Some(attempt)),
            Err(DriverError::Plan(_)) => Ok(None),
            Err(error) => Err(error),
        };
        let Some(sketch) = planned(&self.sketch_config)? else { return Ok(None) };
        if sketch.cost > MAX_SKETCH_RATIO * self.best_sketch_cost {
            return Ok(Some((sketch, None)));
        }
        Ok(planned(&self.config)?.map(|attempt| (attempt, Some(sketch.cost))))
    }

    fn finish(self) -> Result<SearchedBucket> {
        let candidates = Candidates::new(self.config, self.candidates);
        let within_limit = match self.pipeline.options.symm_limit {
            Some(limit) => candidates.fastest_alone(self.pipeline, limit)?,
            None => Some(self.best.clone()),
        };
        let fits = within_limit.is_some();
        let best = within_limit.unwrap_or(self.best);
        Ok(SearchedBucket { best, fits, tried: self.tried, candidates })
    }
}

#[cfg(test)]
mod tests {
    use symmc_ir::machine::MachineProfile;
    use symmc_ir::{Graph, text};

    use crate::options::CompileOptions;
    use crate::{compile, estimate_plain};

    /// A program of this many all-reduces of different sizes, small enough to be coalesced.
    fn different_collectives(count: usize) -> Graph {
        let mut text = String::from("program \"p\" ranks 4\ngroup @w world\n");
        let mut body = String::new();
        for i in 0..count {
            let ty = format!("f32[{}, 64]", 64 + 4 * i);
            text += &format!("arg %a{i}: {ty}\n");
            body += &format!("%n{i}: {ty} = exp %a{i}\n%r{i}: {ty} = all_reduce %n{i} op=sum group=@w\n");
            body += &format!("%s{i}: {ty} = exp %r{i}\n");
        }
        text += &body;
        (0..count).for_each(|i| text += &format!("return %s{i}\n"));
        text::parse(&text).expect("a program")
    }

    #[test]
    fn the_egraph_of_a_region_is_made_once_for_all_attempts() {
        for count in [12, 24, 48] {
            let graph = different_collectives(count);
            let options = CompileOptions::new(MachineProfile::builtin("h200x4").expect("it is built in"));
            let (plan, _) = compile(&graph, &options).expect("a plan");
            estimate_plain(&graph, &plan, &options).expect("estimates");
            let coalesced = plan.buckets[0].decisions.iter().filter(|d| d.chosen == "absorbed").count();
            assert!(coalesced > 0, "nothing is coalesced, so that few choices are tried");
            // Each collective alone, with the chosen variants and with plain ones. The others are coalesced
            // ones: a few sets for each reach.
            let built = options.solutions.egraphs_built();
            assert!((2 * count..=4 * count).contains(&built), "{built} e-graphs for {count} collectives");
        }
    }

    #[test]
    fn buckets_of_many_tokens_return_sums_and_say_why() {
        let text = "program \"p\" ranks 2\nsymbol t in 1..=4096\ngroup @ep world\narg %tokens: bf16[t, 1024]\n\
            arg %own_ids: i64[t, 8]\narg %w: f32[t, 8]\n%ids: i64[2*t, 8] = all_gather %own_ids group=@ep\n\
            %rows: i64[t, 8], %all: i64[2*t, 8], %slots: i64[16*t], %counts: i64[16], %ends: i64[16] = \
            route %ids experts=32 align=1 layout=expert group=@ep\n\
            %sent: bf16[16*t, 1024] = dispatch_rows %tokens, %slots, %all group=@ep\n\
            %h: bf16[16*t, 1024] = silu %sent\n\
            %y: bf16[t, 1024] = combine_rows %h, %rows, %w group=@ep\nreturn %y\n";
        let graph = text::parse(text).expect("a program");
        let mut options = CompileOptions::new(MachineProfile::builtin("h200x2").expect("it is built in"));
        options.buckets.extend(graph.symbols.keys().map(|t| (t, vec![8, 4096])));
        let (plan, _) = compile(&graph, &options).expect("a plan");
        let mut forms = Vec::new();
        for bucket in &plan.buckets {
            let decision = bucket.decisions.iter().find(|d| d.collective == "y").expect("a decision");
            let as_sums = decision.rules.first().is_some_and(|rule| rule.name == "combine_rows_as_sums");
            let has_rows = decision.alternatives.iter().any(|a| a.name == "combine_rows.pull");
            assert_eq!(as_sums, has_rows, "{decision:?}");
            assert_eq!(decision.chosen, if as_sums { "push" } else { "pull" }, "{decision:?}");
            forms.push(as_sums);
        }
        assert_eq!(forms, [false, true]);
    }
}
