//! Lowering: how each collective runs.
//!
//! Sets of collectives that the caller names become one collective each (`coalesce`, `coalesced`). Then the
//! program is cut into `region`s around its collectives. For each region that differs from all others an e-graph over a small `language` is saturated with the [`rules`] and the cheapest program is
//! `extract`ed, by the times of the machine profile and the copies that a placement would force. Equal
//! regions, as the layers of a model have them, are solved once. The lowered program is then
//! `build` from the solutions.
//!
//! Sets of collectives of the lowered program become one step each (`together`).
//!
//! Decisions state their reasons (`reasons`), for which a region is saturated again only if more than variants changed.
//!
//! Invariants: every collective of the result has a variant. No region costs more than plain everywhere, by
//! the profile, nor has more collectives, or collectives of more bytes, than before. The work is bounded by nodes and iterations, never by the clock, and nothing depends on the
//! order of a hash map: the same program and profile give the same result on every machine.

mod beside;
mod build;
mod coalesce;
mod coalesced;
mod context;
mod decisions;
mod exact;
mod extract;
mod imported;
mod language;
mod losses;
mod placing;
mod reasons;
mod region;
pub mod rules;
mod solutions;
mod solve;
mod sums;
mod together;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::machine::Profile;
use symmc_ir::{Graph, InputId, Numerics, NumericsClass, Op, SymbolId, Variant};
use symmc_plan::{Alternative, AppliedRule, Decision};

use crate::canon::groups::groups_of_all_reduces;
use crate::error::{PassError, verified_after};
pub use coalesce::{COALESCE, CoalesceConfig, Joining, Reach, Set as CoalescedSet};
use coalesced::Coalesced;
use context::{Context, Schedule};
pub use context::{Limits, Overlap};
use decisions::Decided;
use extract::Cost;
pub use region::MOST;
use region::{Key, Region};
pub use solutions::Solutions;
use solutions::{Found, Scope};
use solve::{Credit, Solution};
pub use together::TOGETHER;

#[derive(Clone, Debug)]
pub struct LowerConfig {
    pub profile: Profile,
    /// The inclusive range of each symbol in this bucket; a symbol that is missing keeps its own.
    pub symbols: IndexMap<SymbolId, (i64, i64)>,
    /// The inputs that the caller writes into the symmetric arena.
    pub bound: BTreeSet<InputId>,
    /// The variants that the backend runs; `None` for all that have a contract and a curve. Plain is always
    /// among them.
    pub variants: Option<Vec<Variant>>,
    /// The most bytes of symmetric memory that one collective may ask for ([`Variant::symmetric_bytes`]); variants that
    /// need more are not considered. `None` for no limit.
    pub symmetric: Option<u64>,
    pub overlap: Overlap,
    /// The collectives, by their names, of which a plan keeps droppable exit barriers. Others count as dropped where that
    /// cannot lose to plain.
    pub exits_kept: BTreeSet<String>,
    /// Sets of collectives, each of which becomes one ([`coalescible`]).
    pub coalesced: Vec<CoalescedSet>,
    /// Sets of collectives that run as one step each, where variants allow it.
    pub together: Vec<CoalescedSet>,
    /// The numerics classes of rules that may be used.
    pub numerics: Numerics,
    pub limits: Limits,
    /// Solutions of earlier lowerings, which this one uses and adds to. Results do not depend on it.
    pub solutions: Solutions,
}

impl LowerConfig {
    /// For the whole range of all symbols, with nothing bound.
    pub fn new(profile: Profile) -> Self {
        LowerConfig {
            profile,
            symbols: IndexMap::new(),
            bound: BTreeSet::new(),
            variants: None,
            symmetric: None,
            overlap: Overlap::Possible,
            exits_kept: BTreeSet::new(),
            coalesced: Vec::new(),
            together: Vec::new(),
            numerics: Numerics::EXACT,
            limits: Limits { nodes: 10_000, iterations: 16 },
            solutions: Solutions::default(),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    pub regions: usize,
    /// The number of regions that differ from all others.
    pub distinct: usize,
    /// The number of regions that were solved for this lowering: the others were known ([`Solutions`]).
    pub solved: usize,
    /// How often each rule changed one of these e-graphs.
    pub fired: IndexMap<String, usize>,
    /// The number of regions beside which computation was counted.
    pub overlapped: usize,
}

/// Chooses how each collective of a program runs, for one bucket. Variants that the collectives have already
/// are chosen anew. The symbols of the result have the ranges of the bucket. The graph must satisfy the
/// verifier, as what [`crate::canonicalize`] gives does. Fails if the number of ranks is open, a range does not fit its
/// symbol, or the profile has no curve for plain.
pub fn lower(graph: &Graph, config: &LowerConfig) -> Result<(Graph, Vec<Decision>, Report), PassError> {
    if graph.ranks.is_none() {
        return Err(PassError::OpenRanks { pass: "lower", program: graph.name.clone() });
    }
    let mut graph = narrowed(graph, config)?;
    let groups_of_both = match config.numerics.allows(NumericsClass::Reassociate) {
        true => groups_of_all_reduces(&mut graph),
        false => BTreeMap::new(),
    };
    let context = Context { groups_of_both, ..context(&graph, config)? };
    let scope = config.solutions.within(context).map_err(PassError::Internal)?;
    let schedule = Schedule { overlap: config.overlap.clone(), exits_kept: config.exits_kept.clone() };
    let (out, mut decisions, mut report) = chosen(&graph, &scope, schedule.clone(), config)?;
    let names = |set: &CoalescedSet| set.iter().map(|&id| graph.node_name(id).to_string()).collect();
    let sets: Vec<Vec<String>> = config.together.iter().map(names).collect();
    if sets.is_empty() {
        return Ok((out, decisions, report));
    }
    let (out, count) = together::join(out, &sets, &config.bound, &scope.context, &schedule, &mut decisions);
    if cfg!(debug_assertions) {
        verified_after("lower", &out)?;
    }
    if count > 0 {
        report.fired.insert(TOGETHER.into(), count);
    }
    Ok((out, decisions, report))
}

/// The program in which sets of collectives are coalesced and all have variants.
fn chosen(
    graph: &Graph,
    scope: &Scope,
    mut schedule: Schedule,
    config: &LowerConfig,
) -> Result<(Graph, Vec<Decision>, Report), PassError> {
    let sets = &config.coalesced;
    if sets.is_empty() {
        return choose(graph, scope, &schedule, config);
    }
    let Coalesced { graph: coalesced, names } = coalesced::build(graph, sets)
        .ok_or_else(|| PassError::Internal("collectives cannot be coalesced".into()))?;
    coalesce::rename(graph, sets, &names, &mut schedule);
    let (out, decisions, mut report) = choose(&coalesced, scope, &schedule, config)?;
    report.fired.insert(COALESCE.into(), sets.len());
    let decisions = coalesce::decisions(graph, sets, &names, &scope.context, decisions);
    Ok((out, decisions, report))
}

fn choose(
    graph: &Graph,
    scope: &Scope,
    schedule: &Schedule,
    config: &LowerConfig,
) -> Result<(Graph, Vec<Decision>, Report), PassError> {
    let regions = region::cut(graph, &config.bound, &scope.context, schedule);
    let mut solver =
        Solver { graph, regions: &regions, scope, solutions: Vec::new(), solved: 0, of_region: Vec::new() };
    solver.solve_regions()?;
    let (mut out, mut names) = solver.build()?;
    if solver.credit_new_all_reduces(&out, &names)? {
        (out, names) = solver.build()?;
    }
    if cfg!(debug_assertions) {
        verified_after("lower", &out)?;
    }
    let mut decisions: Vec<(symmc_ir::NodeId, Decision)> = Vec::new();
    for (region, (&at, names)) in regions.iter().zip(solver.of_region.iter().zip(&names)) {
        for decided in &solver.solutions[at].decisions {
            let node = region.nodes[decided.node];
            decisions.push((node, decision(graph.node_name(node), decided, names)));
        }
    }
    decisions.sort_by_key(|(node, _)| *node);
    let decisions = decisions.into_iter().map(|(_, d)| d).collect();
    let mut report = Report {
        regions: regions.len(),
        distinct: regions.iter().map(|region| &region.key).collect::<HashSet<_>>().len(),
        solved: solver.solved,
        fired: IndexMap::new(),
        overlapped: regions.iter().filter(|r| r.key.beside > 0).count(),
    };
    for (rule, times) in solver.solutions.iter().flat_map(|s| &s.fired) {
        *report.fired.entry(rule.clone()).or_default() += times;
    }
    Ok((out, decisions, report))
}

/// The sets of collectives that are faster as one collective or one step each, by the profile. Whether a program is faster with them depends on
/// its schedule, too.
pub fn coalescible(
    graph: &Graph,
    config: &LowerConfig,
    coalesce: &CoalesceConfig,
) -> Result<Vec<CoalescedSet>, PassError> {
    let graph = narrowed(graph, config)?;
    Ok(coalesce::sets(&graph, &context(&graph, config)?, &config.bound, coalesce))
}

/// Solves the regions of a program, equal ones once.
struct Solver<'a> {
    graph: &'a Graph,
    regions: &'a [Region],
    scope: &'a Scope,
    solutions: Vec<Arc<Solution>>,
    /// How many of the solutions were not known before.
    solved: usize,
    of_region: Vec<usize>,
}

impl<'a> Solver<'a> {
    fn solve_regions(&mut self) -> Result<(), PassError> {
        let mut known: HashMap<&Key, usize> = HashMap::new();
        let mut distinct: Vec<&Region> = Vec::new();
        for region in self.regions {
            let at = *known.entry(&region.key).or_insert(distinct.len());
            if at == distinct.len() {
                distinct.push(region);
            }
            self.of_region.push(at);
        }
        let keys: Vec<(&Key, Vec<Credit>)> = distinct.iter().map(|r| (&r.key, Vec::new())).collect();
        let found = self.scope.solve_all(&keys);
        distinct.into_iter().zip(found).try_for_each(|(region, found)| self.add(region, found))
    }

    fn add(&mut self, region: &Region, found: Option<Found>) -> Result<(), PassError> {
        let (solution, is_new) = found.ok_or_else(|| unsolved(self.graph, region))?;
        self.solutions.push(solution);
        self.solved += usize::from(is_new);
        Ok(())
    }

    /// The program with its regions solved, and the names of the steps of each region.
    fn build(&self) -> Result<(Graph, Vec<Vec<String>>), PassError> {
        let solved = self.regions.iter().zip(&self.of_region);
        let solved: Vec<build::Solved> =
            solved.map(|(region, &at)| build::Solved { region, solution: &self.solutions[at] }).collect();
        build::build(self.graph, &solved)
            .ok_or_else(|| PassError::Internal("a solution does not fit its region".into()))
    }

    /// Chooses the variants of all-reduces that rules made once more, now that it is known which of them are one step with the
    /// addition behind them. Returns whether there are any.
    fn credit_new_all_reduces(&mut self, built: &Graph, names: &[Vec<String>]) -> Result<bool, PassError> {
        let regions = self.regions;
        let rewritten: Vec<usize> = (0..regions.len())
            .filter(|&r| {
                let solution = &self.solutions[self.of_region[r]];
                solution.new_all_reduces(&regions[r].key.form).next().is_some()
            })
            .collect();
        if rewritten.is_empty() {
            return Ok(false);
        }
        let open = without_variants(built.clone());
        let credited = symmc_dispatch::fused(&open, &self.scope.context.profile);
        let mut variants: HashMap<&str, Vec<Variant>> = HashMap::new();
        for &(value, variant) in &credited {
            variants.entry(open.name_of(value)).or_default().push(variant);
        }
        let mut known: HashMap<(usize, Vec<Credit>), usize> = HashMap::new();
        let mut again: Vec<(&Region, Vec<Credit>)> = Vec::new();
        let before = self.solutions.len();
        for r in rewritten {
            let at = self.of_region[r];
            let new = self.solutions[at].new_all_reduces(&regions[r].key.form);
            let credits: Vec<Credit> = new
                .flat_map(|step| {
                    let of = variants.get(names[r][step].as_str()).into_iter().flatten();
                    of.map(move |&variant| (step, variant))
                })
                .collect();
            if credits.is_empty() {
                continue;
            }
            let next = before + again.len();
            self.of_region[r] = *known.entry((at, credits.clone())).or_insert(next);
            if self.of_region[r] == next {
                again.push((&regions[r], credits));
            }
        }
        let keys: Vec<(&Key, Vec<Credit>)> =
            again.iter().map(|(region, credits)| (&region.key, credits.clone())).collect();
        for ((region, _), found) in again.iter().zip(self.scope.solve_all(&keys)) {
            self.add(region, found)?;
        }
        Ok(!again.is_empty())
    }
}

/// The estimated microseconds of all computation of a program at the upper ends of a bucket, one node after another.
pub fn computation_us(graph: &Graph, config: &LowerConfig) -> Result<f64, PassError> {
    let graph = narrowed(graph, config)?;
    Ok(beside::computation_us(&graph, &context(&graph, config)?))
}

/// The graph with the ranges of the bucket, and without variants.
fn narrowed(graph: &Graph, config: &LowerConfig) -> Result<Graph, PassError> {
    let mut out = graph.clone();
    for (&id, &(min, max)) in &config.symbols {
        let Some(own) = graph.symbols.get(id) else { continue };
        if min > max || min < own.min || max > own.max {
            let symbol = own.name.clone();
            return Err(PassError::Range { symbol, min, max, own_min: own.min, own_max: own.max });
        }
        (out.symbols[id].min, out.symbols[id].max) = (min, max);
    }
    Ok(without_variants(out))
}

fn without_variants(mut graph: Graph) -> Graph {
    for node in graph.nodes.values_mut() {
        if let Op::Collective(c) = &mut node.op {
            c.variant = None;
        }
    }
    graph
}

fn context(graph: &Graph, config: &LowerConfig) -> Result<Context, PassError> {
    for (n, node) in graph.nodes.iter() {
        let Op::Collective(c) = &node.op else { continue };
        if config.profile.curve(&c.kind, Variant::Plain, None, 2).is_none() {
            return Err(PassError::NoPlain {
                node: graph.node_name(n).to_string(),
                collective: c.kind.name().to_string(),
                profile: config.profile.name.clone(),
            });
        }
    }
    Ok(Context {
        profile: config.profile.clone(),
        sizes: graph.groups.keys().map(|g| graph.group_size(g).unwrap_or(1)).collect(),
        symbols: graph.symbols.clone(),
        variants: config.variants.clone(),
        symmetric: config.symmetric,
        numerics: config.numerics,
        limits: config.limits,
        groups_of_both: BTreeMap::new(),
    })
}

fn unsolved(graph: &Graph, region: &Region) -> PassError {
    let name = region.nodes.first().map_or("", |&n| graph.node_name(n));
    PassError::Internal(format!("no way was found to run the region of %{name}"))
}

fn decision(collective: &str, decided: &Decided, names: &[String]) -> Decision {
    // Estimates are meant for people and for files; a nanosecond is finer than any of them.
    let round = |us: f64| (us * 1000.0).round() / 1000.0;
    let alternative = |(name, Cost { us, copy_us, saved_us }): &(String, Cost)| Alternative {
        name: name.clone(),
        us: round(*us),
        copy_us: round(*copy_us),
        saved_us: round(*saved_us),
    };
    let rule = |(name, us): &(String, Option<f64>)| AppliedRule { name: name.clone(), us: us.map(round) };
    Decision {
        collective: collective.to_string(),
        nodes: decided.steps.iter().map(|&s| names[s].clone()).collect(),
        chosen: decided.chosen.clone(),
        bytes: decided.bytes,
        alternatives: decided.alternatives.iter().map(alternative).collect(),
        rules: decided.rules.iter().map(rule).collect(),
    }
}
