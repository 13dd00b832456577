//! Lowering: how each collective runs.
//!
//! Before that, [`choose_forms`] chooses for each bucket on which side of a collective a product runs, and how the
//! results of experts return.
//!
//! 1. Sets of collectives that the caller names become one collective each (`coalesce`, `coalesced_graph`).
//! 2. The program is cut into regions around its collectives (`region`).
//! 3. Each distinct region becomes an e-graph over a small language (`language`), which is saturated with
//!    the [`rules`]. The cheapest program is extracted (`extract`) by the times of the machine profile and
//!    the copies that a placement would force. Equal regions, such as those of a model's layers, are solved
//!    once.
//! 4. The lowered program is built from the solutions (`build`).
//! 5. Sets of collectives of the lowered program become one step each (`joint_steps`).
//!
//! Decisions state their reasons (`explanations`). A region is saturated again for them only if more than
//! variants changed.
//!
//! Invariants: every collective of the result has a variant. By the profile, no region costs more than with
//! plain variants everywhere. No region has more collectives, or collectives of more bytes, than before.
//! Nodes and iterations bound the work, never the clock, and nothing depends on the order of a hash map. The
//! same program and profile therefore give the same result on every machine.

mod build;
mod coalesce;
mod coalesced_graph;
mod computation;
mod conditions;
mod context;
mod decisions;
mod exact_search;
mod explanations;
mod extract;
mod imported_region;
mod joint_costs;
mod joint_steps;
mod language;
mod mesh;
mod patterns;
mod products;
mod region;
mod region_plan;
mod row_sums;
pub mod rules;
mod solutions;
mod solve;
mod stored_factors;
mod sums;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::machine::MachineProfile;
use symmc_ir::{CollectiveVariant, Graph, InputId, Numerics, NumericsClass, Op, SymbolId};
use symmc_plan::{AppliedRule, Decision, DecisionAlternative};

use crate::canon::groups::merged_all_reduce_groups;
use crate::error::{PassError, verify_after};
pub use coalesce::{COALESCE_RULE, CoalesceConfig, CoalesceReach, CollectiveSet as CoalescedSet, JoinMode};
use coalesced_graph::CoalescedProgram;
pub use conditions::{CollectiveConditions, LowerConditions, VariantSet};
pub use context::EGraphLimits;
use context::{LowerContext, round_us};
use decisions::RegionDecision;

pub use joint_steps::JOINT_STEP_RULE;
pub use products::{MovedProduct, PRODUCT_AFTER_COLLECTIVE, PRODUCT_BEFORE_COLLECTIVE};
pub use region::MAX_REGION_NODES;
use region::{RegionKey, RewriteRegion};
pub use row_sums::{COMBINE_AS_SUMS, ReturnedSums};
pub use solutions::SolutionCache;
use solutions::{SolutionScope, SolveOutcome};
use solve::{FusionCredit, RegionSolution};

#[derive(Clone, Debug)]
pub struct LowerConfig {
    pub profile: MachineProfile,
    /// The inclusive range of each symbol in this bucket; a symbol that is missing keeps its own.
    pub symbols: IndexMap<SymbolId, (i64, i64)>,
    /// The inputs that the caller writes into the symmetric arena.
    pub bound: BTreeSet<InputId>,
    /// The variants that the backend runs; `None` for all that have a contract and a curve. The plain
    /// variant is always among them.
    pub variants: Option<Vec<CollectiveVariant>>,
    pub conditions: LowerConditions,
    /// Sets of collectives, each of which becomes one collective ([`find_coalescible`]).
    pub coalesced: Vec<CoalescedSet>,
    /// Sets of collectives that run as one step each if their variants allow it.
    pub together: Vec<CoalescedSet>,
    /// The numerics classes of rules that may be used.
    pub numerics: Numerics,
    pub limits: EGraphLimits,
    /// Solutions of earlier lowerings, which this one uses and adds to. Results do not depend on it.
    pub solutions: SolutionCache,
}

impl LowerConfig {
    /// A config for the whole range of all symbols, with nothing bound.
    pub fn new(profile: MachineProfile) -> Self {
        LowerConfig {
            profile,
            symbols: IndexMap::new(),
            bound: BTreeSet::new(),
            variants: None,
            conditions: LowerConditions::default(),
            coalesced: Vec::new(),
            together: Vec::new(),
            numerics: Numerics::EXACT,
            limits: EGraphLimits { nodes: 10_000, iterations: 16 },
            solutions: SolutionCache::default(),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LowerReport {
    pub regions: usize,
    /// The number of regions that differ from all others.
    pub distinct: usize,
    /// The number of regions that were solved for this lowering. The others came from the [`SolutionCache`].
    pub solved: usize,
    /// How often each rule changed one of these e-graphs.
    pub fired: IndexMap<String, usize>,
}

/// Chooses how each collective of a program runs, for one bucket.
///
/// Existing variants of collectives are chosen again. The symbols of the result have the ranges of the
/// bucket. The graph must satisfy the verifier, as results of [`crate::canonicalize`] do. Fails if the
/// number of ranks is open, a range does not fit its symbol, or the profile has no curve for plain.
pub fn lower(graph: &Graph, config: &LowerConfig) -> Result<(Graph, Vec<Decision>, LowerReport), PassError> {
    PreparedLowering::new(graph, config)?.lower(&config.conditions, &config.together)
}

/// A program of a bucket, with its sets of collectives coalesced, cut into regions. It can be lowered under several
/// conditions.
pub struct PreparedLowering {
    /// The program in the ranges of the bucket.
    graph: Graph,
    bound: BTreeSet<InputId>,
    scope: Arc<SolutionScope>,
    sets: Vec<CoalescedSet>,
    /// The program after coalescing; `None` if there are no sets.
    coalesced: Option<CoalescedProgram>,
    regions: Vec<RewriteRegion>,
}

impl PreparedLowering {
    /// Prepares a program for lowerings with this config; its conditions and its sets for steps are not used.
    /// Errors are those of [`lower`].
    pub fn new(graph: &Graph, config: &LowerConfig) -> Result<PreparedLowering, PassError> {
        if graph.ranks.is_none() {
            return Err(PassError::OpenRanks { pass: "lower", program: graph.name.clone() });
        }
        let mut graph = narrow_to_bucket(graph, config)?;
        let merged_groups = if config.numerics.allows(NumericsClass::Reassociate) {
            merged_all_reduce_groups(&mut graph)
        } else {
            BTreeMap::new()
        };
        let context = LowerContext { merged_groups, ..build_context(&graph, config)? };
        let scope = config.solutions.scope_for(context).map_err(PassError::Internal)?;
        let sets = config.coalesced.clone();
        let coalesce = || {
            coalesced_graph::coalesce_sets(&graph, &sets)
                .ok_or_else(|| PassError::Internal("a set of collectives cannot be coalesced".into()))
        };
        let coalesced = if sets.is_empty() { None } else { Some(coalesce()?) };
        let program = coalesced.as_ref().map_or(&graph, |coalesced| &coalesced.graph);
        let regions = region::find_regions(program, &config.bound, &scope.context);
        Ok(PreparedLowering { graph, bound: config.bound.clone(), scope, sets, coalesced, regions })
    }

    /// Lowers the program under these conditions, with these sets of collectives as one step each.
    pub fn lower(
        &self,
        conditions: &LowerConditions,
        together: &[CoalescedSet],
    ) -> Result<(Graph, Vec<Decision>, LowerReport), PassError> {
        let (out, mut decisions, mut report) = self.lower_coalesced(conditions)?;
        if together.is_empty() {
            return Ok((out, decisions, report));
        }
        let name = |&id| self.graph.node_name(id).to_string();
        let sets: Vec<Vec<String>> = together.iter().map(|set| set.iter().map(name).collect()).collect();
        let context = &self.scope.context;
        let (out, count) =
            joint_steps::join_steps(out, &sets, &self.bound, context, conditions, &mut decisions);
        if cfg!(debug_assertions) {
            verify_after("lower", &out)?;
        }
        if count > 0 {
            report.fired.insert(JOINT_STEP_RULE.into(), count);
        }
        Ok((out, decisions, report))
    }

    fn lower_coalesced(
        &self,
        conditions: &LowerConditions,
    ) -> Result<(Graph, Vec<Decision>, LowerReport), PassError> {
        let Some(CoalescedProgram { graph: coalesced, names }) = &self.coalesced else {
            return lower_regions(&self.graph, &self.regions, &self.scope, conditions);
        };
        let (graph, sets) = (&self.graph, &self.sets);
        let mut conditions = conditions.clone();
        coalesce::rename_in_conditions(graph, sets, names, &mut conditions);
        let (out, decisions, mut report) = lower_regions(coalesced, &self.regions, &self.scope, &conditions)?;
        report.fired.insert(COALESCE_RULE.into(), sets.len());
        let decisions = coalesce::expand_decisions(graph, sets, names, &self.scope.context, decisions);
        Ok((out, decisions, report))
    }
}

fn lower_regions(
    graph: &Graph,
    regions: &[RewriteRegion],
    scope: &SolutionScope,
    conditions: &LowerConditions,
) -> Result<(Graph, Vec<Decision>, LowerReport), PassError> {
    let keys: Vec<RegionKey> = regions.iter().map(|region| region.key(graph, conditions)).collect();
    let mut solver = RegionSolver {
        graph,
        regions,
        keys: &keys,
        scope,
        solutions: Vec::new(),
        solved: 0,
        of_region: Vec::new(),
    };
    solver.solve_regions()?;
    let (mut out, mut names) = solver.build_graph()?;
    if solver.credit_new_all_reduces(&out, &names)? {
        (out, names) = solver.build_graph()?;
    }
    if cfg!(debug_assertions) {
        verify_after("lower", &out)?;
    }
    let mut decisions: Vec<(symmc_ir::NodeId, Decision)> = Vec::new();
    for (region, (&solution, names)) in regions.iter().zip(solver.of_region.iter().zip(&names)) {
        for decided in &solver.solutions[solution].decisions {
            let node = region.nodes[decided.node];
            decisions.push((node, to_plan_decision(graph.node_name(node), decided, names)));
        }
    }
    decisions.sort_by_key(|(node, _)| *node);
    let decisions = decisions.into_iter().map(|(_, d)| d).collect();
    let mut report = LowerReport {
        regions: regions.len(),
        distinct: keys.iter().collect::<HashSet<_>>().len(),
        solved: solver.solved,
        fired: IndexMap::new(),
    };
    for (rule, times) in solver.solutions.iter().flat_map(|s| &s.fired) {
        *report.fired.entry(rule.clone()).or_default() += times;
    }
    Ok((out, decisions, report))
}

/// The reasons of the choices of [`choose_forms`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ChosenForms {
    pub products: Vec<MovedProduct>,
    pub sums: Vec<ReturnedSums>,
}

impl ChosenForms {
    /// Adds the reasons to decisions about the chosen collectives, and decisions about replaced ones.
    pub fn explain(&self, decisions: &mut Vec<Decision>) {
        for decision in decisions.iter_mut() {
            let name = decision.collective.clone();
            self.sums.iter().filter(|sums| sums.collective == name).for_each(|sums| sums.explain(decision));
        }
        self.products.iter().for_each(|moved| moved.explain(decisions));
    }
}

/// Chooses the form of a program in a bucket: on which side of a collective a product runs, how the results of experts
/// return, and whether products read weights of 8 bits as they are stored. All lowerings of the bucket and all sets of
/// collectives start from this program.
pub fn choose_forms<'g>(
    graph: &'g Graph,
    config: &LowerConfig,
) -> Result<(Cow<'g, Graph>, ChosenForms), PassError> {
    let (program, forms) = choose_collective_forms(graph, config)?;
    let max_rows = config.profile.dispatches.product.and_then(|limits| limits.stored_rows);
    let Some(max_rows) = max_rows.filter(|_| stored_factors::may_apply(&program)) else {
        return Ok((program, forms));
    };
    let narrowed = narrow_to_bucket(&program, config)?;
    let Some(mut rewritten) = stored_factors::read_stored_factors(&narrowed, max_rows) else {
        return Ok((program, forms));
    };
    rewritten.symbols = graph.symbols.clone();
    Ok((Cow::Owned(rewritten), forms))
}

fn choose_collective_forms<'g>(
    graph: &'g Graph,
    config: &LowerConfig,
) -> Result<(Cow<'g, Graph>, ChosenForms), PassError> {
    if !products::may_move(graph) {
        let (program, sums) = choose_row_sums(graph, config)?;
        return Ok((program, ChosenForms { products: Vec::new(), sums }));
    }
    let narrowed = narrow_to_bucket(graph, config)?;
    let context = build_context(&narrowed, config)?;
    let Some((mut moved, products)) = products::move_products(&narrowed, &context) else {
        let (program, sums) = choose_row_sums(graph, config)?;
        return Ok((program, ChosenForms { products: Vec::new(), sums }));
    };
    moved.symbols = graph.symbols.clone();
    let (program, sums) = choose_row_sums(&moved, config)?;
    Ok((Cow::Owned(program.into_owned()), ChosenForms { products, sums }))
}

/// Chooses how the results of experts return in a bucket: returns the program, and the estimates of both forms.
pub fn choose_row_sums<'g>(
    graph: &'g Graph,
    config: &LowerConfig,
) -> Result<(Cow<'g, Graph>, Vec<ReturnedSums>), PassError> {
    if !row_sums::has_combinations(graph) {
        return Ok((Cow::Borrowed(graph), Vec::new()));
    }
    let narrowed = narrow_to_bucket(graph, config)?;
    let context = build_context(&narrowed, config)?;
    row_sums::choose(graph, &context, &config.bound)
}

/// Finds the sets of collectives that the profile estimates to be faster as one collective or one step each.
/// Whether they make a program faster also depends on its schedule.
pub fn find_coalescible(
    graph: &Graph,
    config: &LowerConfig,
    coalesce: &CoalesceConfig,
) -> Result<Vec<CoalescedSet>, PassError> {
    let graph = narrow_to_bucket(graph, config)?;
    Ok(coalesce::find_sets(&graph, &build_context(&graph, config)?, &config.bound, coalesce))
}

/// Solves the regions of a program, each distinct region once.
struct RegionSolver<'a> {
    graph: &'a Graph,
    regions: &'a [RewriteRegion],
    /// The key of each region.
    keys: &'a [RegionKey],
    scope: &'a SolutionScope,
    solutions: Vec<Arc<RegionSolution>>,
    /// The number of solutions that were not in the cache.
    solved: usize,
    of_region: Vec<usize>,
}

impl<'a> RegionSolver<'a> {
    fn solve_regions(&mut self) -> Result<(), PassError> {
        let mut solution_of_key: HashMap<&RegionKey, usize> = HashMap::new();
        let mut distinct: Vec<usize> = Vec::new();
        for (r, key) in self.keys.iter().enumerate() {
            let solution = *solution_of_key.entry(key).or_insert(distinct.len());
            if solution == distinct.len() {
                distinct.push(r);
            }
            self.of_region.push(solution);
        }
        let keys: Vec<(&RegionKey, Vec<FusionCredit>)> =
            distinct.iter().map(|&r| (&self.keys[r], Vec::new())).collect();
        let solutions = self.scope.solve_all(&keys);
        distinct
            .into_iter()
            .zip(solutions)
            .try_for_each(|(region, solution)| self.add_solution(region, solution))
    }

    fn add_solution(&mut self, region: usize, outcome: Option<SolveOutcome>) -> Result<(), PassError> {
        let (solution, is_new) = outcome.ok_or_else(|| unsolved_error(self.graph, &self.regions[region]))?;
        self.solutions.push(solution);
        self.solved += usize::from(is_new);
        Ok(())
    }

    /// Returns the program with its regions solved, and the names of the steps of each region.
    fn build_graph(&self) -> Result<(Graph, Vec<Vec<String>>), PassError> {
        let solved = self.regions.iter().zip(&self.of_region);
        let solved: Vec<build::SolvedRegion> = solved
            .map(|(region, &solution)| build::SolvedRegion { region, solution: &self.solutions[solution] })
            .collect();
        build::replace_regions(self.graph, &solved)
            .ok_or_else(|| PassError::Internal("a solution does not fit its region".into()))
    }

    /// Chooses the variants of all-reduces that rules made again, because the built graph shows which of
    /// them are one step with the addition after them. Returns whether there are any.
    fn credit_new_all_reduces(&mut self, built: &Graph, names: &[Vec<String>]) -> Result<bool, PassError> {
        let regions = self.regions;
        let rewritten: Vec<usize> = (0..regions.len())
            .filter(|&r| {
                let solution = &self.solutions[self.of_region[r]];
                solution.new_all_reduces(&regions[r].form).next().is_some()
            })
            .collect();
        if rewritten.is_empty() {
            return Ok(false);
        }
        let open = without_variants(built.clone());
        let credited = symmc_dispatch::fusible_collectives(&open, &self.scope.context.profile);
        let mut variants: HashMap<&str, Vec<CollectiveVariant>> = HashMap::new();
        for &(value, variant) in &credited {
            variants.entry(open.value_name(value)).or_default().push(variant);
        }
        let mut solution_of_credits: HashMap<(usize, Vec<FusionCredit>), usize> = HashMap::new();
        let mut newly_credited: Vec<(usize, Vec<FusionCredit>)> = Vec::new();
        let before = self.solutions.len();
        for r in rewritten {
            let solution = self.of_region[r];
            let new = self.solutions[solution].new_all_reduces(&regions[r].form);
            let credits: Vec<FusionCredit> = new
                .flat_map(|step| {
                    let fusible = variants.get(names[r][step].as_str()).into_iter().flatten();
                    fusible.map(move |&variant| (step, variant))
                })
                .collect();
            if credits.is_empty() {
                continue;
            }
            let next = before + newly_credited.len();
            self.of_region[r] = *solution_of_credits.entry((solution, credits.clone())).or_insert(next);
            if self.of_region[r] == next {
                newly_credited.push((r, credits));
            }
        }
        let keys: Vec<(&RegionKey, Vec<FusionCredit>)> =
            newly_credited.iter().map(|(r, credits)| (&self.keys[*r], credits.clone())).collect();
        for (&(r, _), solution) in newly_credited.iter().zip(self.scope.solve_all(&keys)) {
            self.add_solution(r, solution)?;
        }
        Ok(!newly_credited.is_empty())
    }
}

/// The estimated time of all computation of a program at the upper ends of a bucket, in microseconds, one
/// node after another.
pub fn computation_us(graph: &Graph, config: &LowerConfig) -> Result<f64, PassError> {
    let graph = narrow_to_bucket(graph, config)?;
    Ok(computation::computation_us(&graph, &build_context(&graph, config)?))
}

/// The graph with the ranges of the bucket, and without variants.
fn narrow_to_bucket(graph: &Graph, config: &LowerConfig) -> Result<Graph, PassError> {
    let mut out = graph.clone();
    for (&id, &(min, max)) in &config.symbols {
        let Some(full) = graph.symbols.get(id) else { continue };
        if min > max || min < full.min || max > full.max {
            let symbol = full.name.clone();
            return Err(PassError::Range { symbol, min, max, own_min: full.min, own_max: full.max });
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

fn build_context(graph: &Graph, config: &LowerConfig) -> Result<LowerContext, PassError> {
    for (n, node) in graph.nodes.iter() {
        let Op::Collective(c) = &node.op else { continue };
        if config.profile.nearest_curve(&c.kind, CollectiveVariant::Plain, None, 2).is_none() {
            return Err(PassError::NoPlain {
                node: graph.node_name(n).to_string(),
                collective: c.kind.name().to_string(),
                profile: config.profile.name.clone(),
            });
        }
    }
    Ok(LowerContext {
        profile: config.profile.clone(),
        cells: graph.groups.keys().map(|g| graph.cells(g).unwrap_or_default()).collect(),
        symbols: graph.symbols.clone(),
        variants: config.variants.clone(),
        numerics: config.numerics,
        limits: config.limits,
        merged_groups: BTreeMap::new(),
    })
}

fn unsolved_error(graph: &Graph, region: &RewriteRegion) -> PassError {
    let name = region.nodes.first().map_or("", |&n| graph.node_name(n));
    PassError::Internal(format!("no variant can run the region of %{name}"))
}

fn to_plan_decision(collective: &str, decided: &RegionDecision, names: &[String]) -> Decision {
    let mut alternatives = Vec::with_capacity(decided.alternatives.len());
    for (name, cost) in &decided.alternatives {
        alternatives.push(DecisionAlternative {
            name: name.clone(),
            us: round_us(cost.us),
            copy_us: round_us(cost.copy_us),
            saved_us: round_us(cost.saved_us),
        });
    }
    let mut rules = Vec::with_capacity(decided.rules.len());
    for (name, us) in &decided.rules {
        rules.push(AppliedRule { name: name.clone(), us: us.map(round_us) });
    }
    Decision {
        collective: collective.to_string(),
        nodes: decided.steps.iter().map(|&s| names[s].clone()).collect(),
        chosen: decided.chosen.clone(),
        bytes: decided.bytes,
        alternatives,
        rules,
    }
}
