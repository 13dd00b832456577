//! From a program in canonical form and the ranges of its buckets to a plan: variants are chosen, the plan is made, and variants are
//! chosen again with what the plan shows.

use std::collections::{BTreeSet, HashMap};

use symmc_ir::collective::Collective;
use symmc_ir::machine::Profile;
use symmc_ir::{Graph, InputId, InputKind, Node};
use symmc_passes::{
    CanonicalForms, CoalesceConfig, CoalescedSet, Joining, LowerConfig, PassError, Reach, Solutions,
};
use symmc_plan::{Bucket, Decision, ExitBarrier, Plan};
use symmc_planner::{BucketInput, Decided, PlanConfig, PlanError};
use symmc_support::parallel;

use crate::attempt::{Attempt, JoinedSets, Seen, communication_us};
use crate::config::Config;
use crate::divide::{BucketRequest, Ranges};
use crate::error::{Error, ErrorKind};
use crate::program::Program;

/// What the passes and the planner are asked for.
#[derive(Clone, Copy)]
pub struct Pipeline<'a> {
    /// The program.
    pub program: &'a Program,
    /// What is asked for.
    pub config: &'a Config,
    /// The program in canonical form.
    pub canonical: &'a Graph,
    /// The canonical form that can be faster in buckets of small sizes, if there is one.
    pub for_small_sizes: Option<&'a Graph>,
    /// The arguments that are bound.
    pub bound: &'a BTreeSet<InputId>,
    /// Whether the buckets are some of several.
    pub among_others: bool,
    /// Whether collectives may be coalesced.
    pub coalesces: bool,
    /// Solutions of regions, which all lowerings share.
    pub solutions: &'a Solutions,
}

impl<'a> Pipeline<'a> {
    /// For all buckets of a program, with coalesced collectives where the configuration allows them.
    pub fn new(
        program: &'a Program,
        config: &'a Config,
        forms: &'a CanonicalForms,
        bound: &'a BTreeSet<InputId>,
    ) -> Pipeline<'a> {
        Pipeline {
            program,
            config,
            canonical: &forms.usual,
            for_small_sizes: forms.for_small_sizes.as_ref(),
            bound,
            among_others: false,
            coalesces: config.coalesce,
            solutions: &program.solutions,
        }
    }

    fn failed(&self, error: PlanError) -> Error {
        Error::planner(&self.program.graph.name, error)
    }

    /// The plan of these buckets, each in the canonical form in which it costs less by estimate.
    ///
    /// # Errors
    /// The program cannot be planned.
    pub fn planned(&self, buckets: &[BucketRequest]) -> Result<Planned, Error> {
        let usual = self.planned_in_form(buckets);
        let Some(canonical) = self.for_small_sizes else { return usual };
        let small = Pipeline { canonical, for_small_sizes: None, ..*self };
        let (usual, small) = match (usual, small.planned_in_form(buckets)) {
            (Ok(usual), Ok(small)) => (usual, small),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => return Ok(one),
            (Err(error), Err(_)) => return Err(error),
        };
        let mut best = self.attempt(usual.inputs, usual.plan)?;
        let other = self.attempt(small.inputs, small.plan)?;
        self.take_better(buckets, &mut best, other)?;
        let (inputs, plan) = self.packed(buckets, best);
        Ok(Planned { inputs, plan, by_schedule: true })
    }

    /// The plan of these buckets in the form [`canonical`](Self::canonical).
    fn planned_in_form(&self, buckets: &[BucketRequest]) -> Result<Planned, Error> {
        let Lowered { inputs, overlapped } = self.lower(buckets, &Choice::default())?;
        let (inputs, plan) = match self.plan(buckets, &inputs) {
            Err(PlanError::SymmLimit { .. }) => self.within_the_limit(buckets, inputs)?,
            made => (inputs, made.map_err(|e| self.failed(e))?),
        };
        if self.config.symm_limit.is_some() {
            return Ok(Planned { inputs, plan, by_schedule: false });
        }
        let kept = |bucket: &Bucket| bucket.steps.iter().any(|s| s.exit == Some(ExitBarrier::Kept));
        let none = vec![BTreeSet::new(); buckets.len()];
        let sets = [Joining::Packed, Joining::Together]
            .map(|joining| self.joinable(buckets, &none, CoalesceConfig { joining, ..WIDEST }));
        let [packed, together] = sets;
        let (packed, together) = (packed?, together?);
        let shown = plan.buckets.iter().zip(overlapped).enumerate();
        let again = shown.map(|(b, (bucket, overlapped))| {
            overlapped || kept(bucket) || !packed[b].is_empty() || !together[b].is_empty()
        });
        let again: Vec<bool> = again.collect();
        let by_schedule = again.contains(&true);
        let (inputs, plan) = match by_schedule {
            true => self.some_chosen_again(buckets, inputs, plan, &again)?,
            false => (inputs, plan),
        };
        Ok(Planned { inputs, plan, by_schedule })
    }

    /// The plan, with other variants for some of the buckets where those cost less.
    fn some_chosen_again(
        &self,
        buckets: &[BucketRequest],
        mut inputs: Vec<BucketInput>,
        plan: Plan,
        again: &[bool],
    ) -> Result<(Vec<BucketInput>, Plan), Error> {
        if !again.contains(&false) {
            return self.chosen_again(buckets, inputs, plan).map(|best| self.packed(buckets, best));
        }
        let some: Vec<usize> = (0..buckets.len()).filter(|&b| again[b]).collect();
        let requests: Vec<BucketRequest> = some.iter().map(|&b| buckets[b].clone()).collect();
        let first: Vec<BucketInput> = some.iter().map(|&b| inputs[b].clone()).collect();
        let among_others = Pipeline { among_others: true, ..*self };
        let alone = among_others.plan_on_trial(&requests, &first).map_err(|e| self.failed(e))?;
        let best = among_others.chosen_again(&requests, first, alone)?;
        let changed = some.iter().zip(&best.inputs).any(|(&b, input)| inputs[b].graph != input.graph);
        if !changed {
            return Ok((inputs, plan));
        }
        let before = inputs.clone();
        some.into_iter().zip(best.inputs).for_each(|(b, input)| inputs[b] = input);
        // Other buckets find as much room as before, but for landing zones that are new.
        Ok(match self.plan(buckets, &inputs) {
            Ok(plan) => (inputs, plan),
            Err(_) => (before, plan),
        })
    }

    /// The buckets with a variant for each collective.
    ///
    /// # Errors
    /// A pass cannot lower the program.
    pub fn lower(&self, buckets: &[BucketRequest], choice: &Choice) -> Result<Lowered, Error> {
        let nodes = buckets.len() * self.canonical.nodes.len();
        let buckets = buckets.iter().map(|b| &b.ranges).enumerate().collect();
        let lowered: Result<Vec<(BucketInput, bool)>, PassError> =
            parallel::map(buckets, nodes, |(b, symbols)| {
                let choice = BucketChoice { number: b, symbols, choice };
                let lowering = lower_config(self.canonical, self.config, self.bound, choice);
                let lowering = LowerConfig { solutions: self.solutions.clone(), ..lowering };
                let (graph, decisions, report) = symmc_passes::lower(self.canonical, &lowering)?;
                let collectives = collectives(&graph);
                let bytes = bytes_of_steps(&graph, &decisions);
                let decided =
                    |decision| decided(decision, &graph, &collectives, &bytes, &self.config.profile);
                let decisions = decisions.into_iter().map(decided).collect();
                Ok((BucketInput { graph, decisions }, report.overlapped > 0))
            })
            .into_iter()
            .collect();
        let lowered = lowered.map_err(|e| Error::pass(&self.program.graph.name, e))?;
        let (inputs, overlapped) = lowered.into_iter().unzip();
        Ok(Lowered { inputs, overlapped })
    }

    /// The plan on trial, or a cheaper one by estimate: the first choice of variants assumes all overlap that is possible, and that exit
    /// barriers are dropped; others are made with the overlap and the barriers that a plan has, with plain collectives alone, and with
    /// coalesced collectives. Each bucket takes the best of them.
    fn chosen_again(
        &self,
        buckets: &[BucketRequest],
        inputs: Vec<BucketInput>,
        plan: Plan,
    ) -> Result<Attempt, Error> {
        let mut best = self.attempt(inputs, plan)?;
        self.choose_by_schedule(buckets, &mut best)?;
        self.improve(buckets, &mut best, &Choice { plain: true, ..Choice::default() })?;
        self.try_joining(buckets, &mut best, Joining::Packed)?;
        self.try_joining(buckets, &mut best, Joining::Together)?;
        Ok(best)
    }

    /// Chooses variants with the overlap and the exit barriers that the best plan so far has.
    fn choose_by_schedule(&self, buckets: &[BucketRequest], best: &mut Attempt) -> Result<(), Error> {
        let mut kept: Vec<BTreeSet<String>> = Vec::new();
        for _ in 0..ROUNDS {
            let mut seen = best.seen.clone();
            kept.resize(seen.len(), BTreeSet::new());
            for (seen, kept) in seen.iter_mut().zip(&mut kept) {
                // A barrier that was kept once is kept again.
                kept.append(&mut seen.exits_kept);
                seen.exits_kept.clone_from(kept);
            }
            let joined = best.joined.clone();
            if !self.improve(buckets, best, &Choice { seen, joined, ..Choice::default() })? {
                break;
            }
        }
        Ok(())
    }

    /// Joins collectives in this way, within each of a few reaches, where that costs less, besides those that are joined already. Variants
    /// are first chosen with the overlap that those of the best plan were chosen with, and then with the overlap that they have.
    fn try_joining(
        &self,
        buckets: &[BucketRequest],
        best: &mut Attempt,
        joining: Joining,
    ) -> Result<(), Error> {
        let nodes = self.canonical.nodes.len() * buckets.len();
        let tries = if nodes > LARGE { &COALESCING[..FEW] } else { COALESCING };
        let joined = best.joined.clone();
        let rewritten: Vec<BTreeSet<String>> = best.plan.buckets.iter().map(rewritten).collect();
        let mut tried: Vec<Vec<JoinedSets>> = Vec::new();
        for &reach in tries {
            let config = CoalesceConfig { joining, reach, kept: BTreeSet::new() };
            let found = self.joinable(buckets, &rewritten, config)?;
            let sets: Vec<JoinedSets> = found
                .into_iter()
                .enumerate()
                .map(|(b, found)| {
                    let mut sets = joined.get(b).cloned().unwrap_or_default();
                    match joining {
                        Joining::Packed => sets.packed = found,
                        Joining::Together => sets.together = found,
                    }
                    sets
                })
                .collect();
            let is_new = sets.iter().enumerate().any(|(b, sets)| joined.get(b).unwrap_or(&NO_SETS) != sets);
            if !is_new || tried.contains(&sets) {
                continue;
            }
            tried.push(sets.clone());
            let choice = Choice { seen: best.chosen_with.clone(), joined: sets.clone(), ..Choice::default() };
            let Some(other) = self.plan_choice(buckets, best, &choice)? else { continue };
            let own = Choice { seen: other.seen.clone(), joined: sets.clone(), ..Choice::default() };
            let is_far = other.costs.iter().zip(&best.costs).all(|(other, best)| *other > FAR * best);
            if self.take_better(buckets, best, other)? || !is_far && self.improve(buckets, best, &own)? {
                self.choose_by_schedule(buckets, best)?;
            }
            if joining == Joining::Packed && reach.least_startup == LEAST_STARTUP {
                self.improve(buckets, best, &Choice { plain: true, joined: sets, ..Choice::default() })?;
            }
        }
        Ok(())
    }

    /// For each bucket the sets of collectives that would be faster if they were joined, except those that rewriting uses.
    fn joinable(
        &self,
        buckets: &[BucketRequest],
        rewritten: &[BTreeSet<String>],
        config: CoalesceConfig,
    ) -> Result<Vec<Vec<CoalescedSet>>, Error> {
        if !self.coalesces {
            return Ok(vec![Vec::new(); buckets.len()]);
        }
        let sets = buckets.iter().enumerate().map(|(b, bucket)| {
            let choice = Choice::default();
            let choice = BucketChoice { number: b, symbols: &bucket.ranges, choice: &choice };
            let lowering = lower_config(self.canonical, self.config, self.bound, choice);
            let kept = rewritten.get(b).cloned().unwrap_or_default();
            symmc_passes::coalescible(self.canonical, &lowering, &CoalesceConfig { kept, ..config.clone() })
        });
        sets.collect::<Result<_, _>>().map_err(|e| Error::pass(&self.program.graph.name, e))
    }

    /// Takes another choice of variants for the buckets where it costs less; whether there are any. A choice that cannot be
    /// planned is no better.
    fn improve(&self, buckets: &[BucketRequest], best: &mut Attempt, choice: &Choice) -> Result<bool, Error> {
        match self.plan_choice(buckets, best, choice)? {
            Some(other) => self.take_better(buckets, best, other),
            None => Ok(false),
        }
    }

    /// The plan of another choice; `None` if that is the same program as the best one, takes longer than that with its communication
    /// alone, or cannot be planned.
    fn plan_choice(
        &self,
        buckets: &[BucketRequest],
        best: &Attempt,
        choice: &Choice,
    ) -> Result<Option<Attempt>, Error> {
        let inputs = self.lower(buckets, choice)?.inputs;
        if inputs.iter().zip(&best.inputs).all(|(a, b)| a.graph == b.graph) {
            return Ok(None);
        }
        let least_us = inputs.iter().map(|input| communication_us(&input.graph, &self.config.profile));
        if least_us.zip(&best.costs).all(|(least, cost)| least >= *cost) {
            return Ok(None);
        }
        let Ok(plan) = self.plan_on_trial(buckets, &inputs) else { return Ok(None) };
        let mut other = self.attempt(inputs, plan)?;
        other.is_packed = false;
        other.joined.clone_from(&choice.joined);
        other.chosen_with.clone_from(&choice.seen);
        Ok(Some(other))
    }

    /// Takes another plan for the buckets where it costs less; whether there are any.
    fn take_better(
        &self,
        buckets: &[BucketRequest],
        best: &mut Attempt,
        mut other: Attempt,
    ) -> Result<bool, Error> {
        let better: Vec<bool> = best.costs.iter().zip(&other.costs).map(|(a, b)| b < a).collect();
        if !better.contains(&true) {
            return Ok(false);
        }
        if better.contains(&false) {
            let of = |b: usize| if better[b] { &other } else { &*best };
            let buckets_of = || 0..better.len();
            let joined = buckets_of().map(|b| of(b).joined.get(b).cloned().unwrap_or_default()).collect();
            let chosen_with =
                buckets_of().map(|b| of(b).chosen_with.get(b).cloned().unwrap_or_default()).collect();
            let mixed: Vec<BucketInput> = buckets_of().map(|b| of(b).inputs[b].clone()).collect();
            let Ok(plan) = self.plan_on_trial(buckets, &mixed) else { return Ok(false) };
            other = self.attempt(mixed, plan)?;
            other.is_packed = false;
            (other.joined, other.chosen_with) = (joined, chosen_with);
            // Buckets share arenas, and their orders can differ in company.
            if other.costs.iter().zip(&best.costs).any(|(a, b)| a > b) {
                return Ok(false);
            }
        }
        *best = other;
        Ok(true)
    }

    fn attempt(&self, inputs: Vec<BucketInput>, plan: Plan) -> Result<Attempt, Error> {
        Attempt::new(inputs, plan, &self.config.profile, self.config.memory_price)
            .map_err(|message| Error::new(ErrorKind::Defect, message))
    }

    /// What the best attempt is made of, and its plan with the tightest offsets that are found.
    fn packed(&self, buckets: &[BucketRequest], best: Attempt) -> (Vec<BucketInput>, Plan) {
        let Attempt { inputs, plan, is_packed, .. } = best;
        let is_tight = |bucket: &Bucket| {
            let totals = &bucket.totals;
            (totals.ordinary_peak, totals.symmetric_peak) == (totals.ordinary_bound, totals.symmetric_bound)
        };
        if is_packed || plan.buckets.iter().all(is_tight) {
            return (inputs, plan);
        }
        let plan = self.plan(buckets, &inputs).unwrap_or(plan);
        (inputs, plan)
    }

    fn plan(&self, buckets: &[BucketRequest], inputs: &[BucketInput]) -> Result<Plan, PlanError> {
        self.plan_packed(buckets, inputs, PlanConfig::default().pack)
    }

    /// A plan for estimates: offsets are not searched for long, which takes most of the time of some programs.
    fn plan_on_trial(&self, buckets: &[BucketRequest], inputs: &[BucketInput]) -> Result<Plan, PlanError> {
        let pack = symmc_pack::Config { exact: 0, ..PlanConfig::default().pack };
        self.plan_packed(buckets, inputs, pack)
    }

    fn plan_packed(
        &self,
        buckets: &[BucketRequest],
        inputs: &[BucketInput],
        pack: symmc_pack::Config,
    ) -> Result<Plan, PlanError> {
        let own_orders = buckets.iter().enumerate().filter(|(_, b)| b.own_order);
        let config = PlanConfig {
            machine: self.config.profile.name.clone(),
            bind: self.bound.clone(),
            profile: Some(self.config.profile.clone()),
            order: self.config.order,
            slack: self.config.slack,
            memory_price: self.config.memory_price,
            symm_limit: self.config.symm_limit,
            numerics: self.config.numerics,
            own_orders: own_orders.map(|(b, _)| b).collect(),
            among_others: self.among_others,
            pack,
        };
        symmc_planner::plan(&self.program.graph, inputs, &config)
    }

    /// A plan whose collectives ask for less symmetric memory than those of `inputs`, which do not fit the limit. What asks
    /// for the most runs otherwise, until all fits.
    fn within_the_limit(
        &self,
        buckets: &[BucketRequest],
        inputs: Vec<BucketInput>,
    ) -> Result<(Vec<BucketInput>, Plan), Error> {
        let mut largest = largest_asked(&inputs);
        let mut tries = 0;
        loop {
            let most = if tries < EXACT_TRIES { largest.saturating_sub(1) } else { largest / 2 };
            let inputs = self.lower(buckets, &Choice { symmetric: Some(most), ..Choice::default() })?.inputs;
            match self.plan(buckets, &inputs) {
                Err(PlanError::SymmLimit { .. }) if most > 0 => largest = largest_asked(&inputs).min(most),
                made => return made.map(|plan| (inputs, plan)).map_err(|e| self.failed(e)),
            }
            tries += 1;
        }
    }
}

/// How often variants are chosen again with the overlap of a schedule.
const ROUNDS: u32 = 2;

/// Collectives however far from each other.
const WIDEST: CoalesceConfig = CoalesceConfig {
    joining: Joining::Packed,
    reach: Reach { window_us: f64::INFINITY, least_startup: LEAST_STARTUP },
    kept: BTreeSet::new(),
};
const NO_SETS: JoinedSets = JoinedSets { packed: Vec::new(), together: Vec::new() };
/// The reaches that are tried. Start-up is half of the time of small collectives. Collectives that take mostly the time of their bytes are
/// left apart: by measurement they lose more overlap than a start-up is worth (two all-reduces of 16 MiB in each of four layers, on two
/// H200: 1834 µs as one, 1789 µs apart).
const COALESCING: &[Reach] = &[
    Reach { window_us: 160.0, least_startup: 0.5 },
    Reach { window_us: f64::INFINITY, least_startup: 0.5 },
    Reach { window_us: 160.0, least_startup: LEAST_STARTUP },
    Reach { window_us: 640.0, least_startup: LEAST_STARTUP },
    Reach { window_us: 10.0, least_startup: LEAST_STARTUP },
];
/// The least part of the time of a collective that is start-up, for one that is coalesced.
const LEAST_STARTUP: f64 = 0.2;
/// The number of these that are tried for programs whose buckets have more than [`LARGE`] nodes together.
const FEW: usize = 4;
const LARGE: usize = 1_500;
/// How many times the cost of the best plan a plan costs for which variants are not chosen again with its own overlap.
const FAR: f64 = 1.25;

/// What a choice of variants is made with, for all buckets.
#[derive(Default)]
pub struct Choice {
    /// The most symmetric memory that one collective may ask for.
    symmetric: Option<u64>,
    /// Whether all collectives are plain.
    plain: bool,
    /// What a plan shows of each bucket; nothing is known of others.
    seen: Vec<Seen>,
    /// Of each bucket the sets of collectives that are joined; none of others.
    joined: Vec<JoinedSets>,
}

/// What a choice of variants is made with, for one bucket.
pub struct BucketChoice<'a> {
    /// Its position among the buckets.
    pub number: usize,
    /// Its ranges.
    pub symbols: &'a Ranges,
    /// What holds for all buckets.
    pub choice: &'a Choice,
}

/// The buckets with a variant for each collective.
pub struct Lowered {
    /// The programs with their decisions.
    pub inputs: Vec<BucketInput>,
    /// Of each whether the choice depends on computation beside a collective.
    overlapped: Vec<bool>,
}

/// See [`Pipeline::planned`].
pub struct Planned {
    /// What the plan was made of.
    inputs: Vec<BucketInput>,
    /// The plan.
    pub plan: Plan,
    /// Whether variants depend on the schedule: on overlap, or on exit barriers that are kept.
    pub by_schedule: bool,
}

/// How often only what asks for the most symmetric memory is forbidden; then all that asks for more than half of it.
const EXACT_TRIES: u32 = 8;

/// The most symmetric memory that one collective asks for.
fn largest_asked(inputs: &[BucketInput]) -> u64 {
    let of = |graph: &Graph, node: &Node| {
        let c = node.op.as_collective()?;
        let sized = if c.kind.facts().is_sized_by_result() { &node.outputs } else { &node.inputs };
        let bytes = graph.ty(*sized.first()?).bytes().upper(&graph.symbols);
        let n = u64::from(graph.group_size(c.group)?);
        Some(c.variant?.symmetric_bytes(&c.kind, u64::try_from(bytes).unwrap_or(0), n))
    };
    let all = inputs.iter().flat_map(|b| b.graph.nodes.values().filter_map(|n| of(&b.graph, n)));
    all.max().unwrap_or(0)
}

/// The lowering of one bucket.
pub fn lower_config(
    canonical: &Graph,
    config: &Config,
    bound: &BTreeSet<InputId>,
    bucket: BucketChoice<'_>,
) -> LowerConfig {
    let BucketChoice { number, symbols, choice } = bucket;
    let seen = choice.seen.get(number).cloned().unwrap_or_default();
    let JoinedSets { packed, together } = choice.joined.get(number).cloned().unwrap_or_default();
    // The planner puts parameters and constants where collectives need them.
    let held = canonical.inputs.iter().filter(|(_, i)| i.kind != InputKind::Argument).map(|(id, _)| id);
    LowerConfig {
        symbols: symbols.clone(),
        bound: held.chain(bound.iter().copied()).collect(),
        variants: if choice.plain { Some(Vec::new()) } else { config.variants.clone() },
        symmetric: choice.symmetric,
        overlap: seen.overlap,
        exits_kept: seen.exits_kept,
        coalesced: packed,
        together,
        numerics: config.numerics,
        ..LowerConfig::new(config.profile.clone())
    }
}

/// The collectives that rewriting uses: those that are run by other nodes than one of their name.
fn rewritten(bucket: &Bucket) -> BTreeSet<String> {
    let decisions = bucket.decisions.iter().filter(|d| !d.nodes.contains(&d.collective));
    decisions.map(|d| d.collective.clone()).collect()
}

/// The collectives of a program by the name of their node.
fn collectives(graph: &Graph) -> HashMap<&str, &Collective> {
    graph.nodes.iter().filter_map(|(n, node)| Some((graph.node_name(n), node.op.as_collective()?))).collect()
}

/// The bytes of the step of each collective that runs with others, by its name.
fn bytes_of_steps(graph: &Graph, decisions: &[Decision]) -> HashMap<String, u64> {
    let own: HashMap<&str, u64> = decisions.iter().map(|d| (d.collective.as_str(), d.bytes)).collect();
    let mut out = HashMap::new();
    for dispatch in &graph.dispatches {
        let names = || dispatch.nodes().map(|n| graph.node_name(n));
        let all =
            names().filter_map(|name| own.get(name)).fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        out.extend(names().map(|name| (name.to_string(), all)));
    }
    out
}

/// A decision, with the most blocks of each of its kernels.
fn decided(
    decision: Decision,
    graph: &Graph,
    collectives: &HashMap<&str, &Collective>,
    bytes_of_steps: &HashMap<String, u64>,
    profile: &Profile,
) -> Decided {
    let blocks = |name: &String| {
        let c = collectives.get(name.as_str())?;
        let bytes = bytes_of_steps.get(name).copied().unwrap_or(decision.bytes);
        profile.blocks(&c.kind, c.variant?, bytes, graph.group_size(c.group)?)
    };
    let blocks = decision.nodes.iter().map(blocks).collect();
    Decided { decision, blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of this many all-reduces of different sizes, small enough that they are coalesced.
    fn different_collectives(count: usize) -> Program {
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
        Program::from_text(&text).expect("a program")
    }

    #[test]
    fn the_egraph_of_a_region_is_made_once_for_all_attempts() {
        for count in [12, 24, 48] {
            let program = different_collectives(count);
            let profile = Profile::builtin("h200x4").expect("it is built in");
            let config = Config::default().with_profile(profile);
            let plan = crate::compile(&program, &config).expect("a plan");
            crate::estimate_plain(&program, &plan, &config).expect("estimates");
            let coalesced = plan.buckets[0].decisions.iter().filter(|d| d.chosen == "absorbed").count();
            assert!(coalesced > 0, "nothing is coalesced, so that few choices are tried");
            // Each collective by itself, with the chosen variants and with plain ones. The others are coalesced ones: a few sets for
            // each reach.
            let made = program.solutions.egraphs_made();
            assert!((2 * count..=4 * count).contains(&made), "{made} e-graphs for {count} collectives");
        }
    }
}
