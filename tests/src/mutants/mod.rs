//! Trials of the comparison of plans with their sources: edits of planned programs that it must notice.
//!
//! A seed names a program (`programs`). Its plan must compare as equal, or the trial counts it as not compared. Each mutant is the
//! planned program with one edit of one node (`edits`), planned again with the same source. A mutant that the comparison passes is
//! run by the reference interpreter on many draws, with special values among them. If it then differs from the source where the plan
//! without the edit does not, the comparison missed it. Outputs that no sum affects differ if any bit does. All other outputs differ
//! by more than rounding, or, if an edit only moves a rounding, in too many elements of narrow types.
//!
//! The suite `mutants` runs some in each test run; `cargo run --release -p symmc-tests --example check_mutants -- PLANS` runs as
//! many as wanted.

mod edits;
mod programs;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use symmc::{CheckedPlan, CompileConfig, ErrorKind, MachineProfile, Program, SourceStatus};
use symmc_ir::interp::{self, NarrowDifferences, RunCount, SeedConfig, SeedScope};
use symmc_ir::{EntityMap, Graph, NodeId, Op, RoundingEffect, SymbolBindings, Tensor, text, verify};
use symmc_plan::Plan;
use symmc_planner::{BucketInput, PlanConfig, Planner};
use symmc_support::random::SplitMix;

use self::edits::edit_node;
use self::programs::program;
use crate::rewrites::{DRAWS, has_same_bits, inputs, is_near, with_constants};

/// The outcomes of the mutants of one kind of edit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EditCounts {
    pub mutants: usize,
    /// The comparison reports a difference.
    pub different: usize,
    /// The comparison is not complete.
    pub not_compared: usize,
    /// The comparison passes the mutant, and the interpreter finds no difference.
    pub equal: usize,
    /// The comparison passes the mutant, and the interpreter finds a difference.
    pub missed: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MutantCounts {
    pub plans: usize,
    /// Plans without an edit whose comparison is not complete. They have no mutants.
    pub plans_not_compared: usize,
    /// By kind of edit.
    pub edits: BTreeMap<&'static str, EditCounts>,
}

impl MutantCounts {
    pub fn total(&self) -> EditCounts {
        self.edits.values().fold(EditCounts::default(), |all, one| EditCounts {
            mutants: all.mutants + one.mutants,
            different: all.different + one.different,
            not_compared: all.not_compared + one.not_compared,
            equal: all.equal + one.equal,
            missed: all.missed + one.missed,
        })
    }
}

/// The number of draws of seeded inputs on which a passed mutant runs.
const SEEDED_DRAWS: u64 = 24;
/// The number of edits that are tried for each wanted mutant.
const MOST_TRIES: usize = 8;

/// The plan of a seed and some of its mutants.
///
/// # Errors
/// The plan differs from its source, a step panics, or a mutant is missed: with all that is needed to see it again.
pub fn trial(seed: u64, mutants: usize, counts: &mut MutantCounts) -> Result<(), String> {
    let source = program(seed)?;
    let tried = AssertUnwindSafe(|| mutate_plan(seed, &source, mutants, counts));
    let result = catch_unwind(tried).unwrap_or_else(|_| Err("panicked".into()));
    result.map_err(|error| format!("seed {seed}: {error}\n{}", text::print(&source)))
}

fn mutate_plan(seed: u64, source: &Graph, mutants: usize, counts: &mut MutantCounts) -> Result<(), String> {
    let mut r = SplitMix(seed ^ 0x03a7_a175);
    let program = Program::from_graph(source.clone()).map_err(|e| e.to_string())?;
    let names = MachineProfile::builtin_names();
    let profile = MachineProfile::builtin(r.pick(&names)).ok_or("no such machine")?;
    let plan = match symmc::compile(&program, &CompileConfig::default().with_profile(profile)) {
        Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(()),
        plan => plan.map_err(|e| e.to_string())?,
    };
    counts.plans += 1;
    let compared = symmc::compare_with_source(&plan);
    if compared.status() == SourceStatus::Different {
        return Err(format!("the plan differs from its source: {:?}", compared.differences));
    }
    if !compared.is_complete() {
        counts.plans_not_compared += 1;
        return Ok(());
    }
    for _ in 0..mutants {
        let Some(mutant) = (0..MOST_TRIES).find_map(|_| make_mutant(source, &plan, &mut r)) else {
            continue;
        };
        let counts = counts.edits.entry(mutant.edit).or_default();
        counts.mutants += 1;
        let compared = symmc::compare_with_source(&mutant.plan);
        if compared.status() == SourceStatus::Different {
            counts.different += 1;
        } else if !compared.is_complete() {
            counts.not_compared += 1;
        } else {
            let base = text::parse(&plan.programs[mutant.program]).map_err(|e| e.to_string())?;
            match find_difference(source, &base, &mutant, r.next())? {
                None => counts.equal += 1,
                Some(difference) => {
                    counts.missed += 1;
                    let PlanMutant { edit, graph, node, .. } = mutant;
                    let node = graph.node_name(node);
                    let graph = text::print(&graph);
                    return Err(format!("missed: {edit} of %{node}: {difference}\n{graph}"));
                }
            }
        }
    }
    Ok(())
}

/// A planned program with one edit, and its plan.
struct PlanMutant {
    /// The kind of the edit.
    edit: &'static str,
    /// The index of the edited program in the plan.
    program: usize,
    node: NodeId,
    graph: Graph,
    plan: CheckedPlan,
}

/// Edits a planned program. `None` if the edit gives no valid program.
fn make_mutant(source: &Graph, plan: &Plan, r: &mut SplitMix) -> Option<PlanMutant> {
    let edited = r.below(plan.programs.len());
    let mut graph = text::parse(&plan.programs[edited]).ok()?;
    graph.dispatches.clear();
    let nodes: Vec<NodeId> = graph.nodes.keys().collect();
    let node = r.pick(&nodes);
    let edit = edit_node(&mut graph, node, r)?;
    verify::verify(&graph).ok()?;
    let buckets: Option<Vec<BucketInput>> = plan
        .buckets
        .iter()
        .map(|bucket| {
            let mut program = if bucket.program == edited {
                graph.clone()
            } else {
                text::parse(&plan.programs[bucket.program]).ok()?
            };
            program.dispatches.clear();
            Some(BucketInput { graph: program, decisions: Vec::new() })
        })
        .collect();
    let planner_buckets = buckets?;
    let config = PlanConfig::default();
    let mut mutant = Planner::new(source, &planner_buckets, &config).ok()?.plan().ok()?;
    mutant.numerics = plan.numerics;
    let checked = CheckedPlan::new(mutant).ok()?;
    Some(PlanMutant { edit, program: edited, node, graph, plan: checked })
}

/// For each output whether an op sums floats or fuses several roundings on the way to it.
fn outputs_with_sums(graph: &Graph) -> Vec<bool> {
    let mut has_sums = EntityMap::filled(false, graph.values.len());
    for node in graph.nodes.values() {
        let is_float = node.inputs.first().is_some_and(|&v| graph.ty(v).dtype.is_float());
        let combines = match &node.op {
            Op::ScatterElements { combine, .. } => combine.is_some(),
            op => op.as_collective().is_some_and(|c| c.kind.reduce_op().is_some()),
        };
        let sums = is_float && (combines || node.op.facts().rounding[0] == RoundingEffect::Accumulates);
        let is_after_sum = node.inputs.iter().any(|&v| has_sums[v]);
        node.outputs.iter().for_each(|&v| has_sums[v] = sums || is_after_sum);
    }
    graph.outputs.iter().map(|output| has_sums[output.value]).collect()
}

/// Whether more than 1 in 128 elements of narrow types differ.
fn are_too_many(NarrowDifferences { elements, different }: NarrowDifferences) -> bool {
    different > 1 && different * 128 > elements
}

/// A draw on which the mutant gives something else than the source, and the program without the edit does not.
fn find_difference(
    source: &Graph,
    base: &Graph,
    mutant: &PlanMutant,
    seed: u64,
) -> Result<Option<String>, String> {
    let moves_rounding = mutant.edit == "round_first" && mutant.plan.numerics.is_exact();
    let mut other_roundings = [NarrowDifferences::default(); 2];
    let has_sums = outputs_with_sums(source);
    let histories = interp::output_histories(source, RunCount::One);
    let mut r = SplitMix(seed);
    for draw in 0..DRAWS.len() as u64 + SEEDED_DRAWS {
        let mut bindings = SymbolBindings::new();
        for (id, symbol) in mutant.graph.symbols.iter() {
            let size = symbol.min + r.below((symbol.max - symbol.min).min(64) as usize + 1) as i64;
            bindings.set(id, if r.one_in(4) { symbol.max } else { size });
        }
        let drawn: Vec<Vec<Arc<Tensor>>> = match DRAWS.get(draw as usize) {
            Some(&(numbers, is_shared)) => inputs(source, &bindings, numbers, is_shared, &mut r),
            None => {
                let scope = SeedScope::PerRank;
                let config = SeedConfig { seed: r.next(), arguments: scope, parameters: scope };
                let of_rank = |rank| interp::seeded_inputs(source, &bindings, &config, rank);
                let inputs = (0..source.ranks.unwrap_or(1)).map(of_rank).collect::<Result<Vec<_>, _>>();
                inputs.map_err(|e| e.to_string())?
            }
        };
        let run = |graph: &Graph| interp::run(graph, &bindings, &with_constants(graph, &drawn)).ok();
        let expected = run(source);
        let agrees = |found: &Option<Vec<Vec<Tensor>>>| match (found, &expected) {
            (Some(found), Some(expected)) => found.iter().zip(expected).all(|(found, expected)| {
                let mut outputs = found.iter().zip(expected).zip(histories.iter().zip(&has_sums));
                outputs.all(|((found, expected), (history, has_sums))| {
                    if *has_sums {
                        is_near(found, expected, history, &drawn)
                    } else {
                        has_same_bits(found, expected)
                    }
                })
            }),
            (found, expected) => found.is_some() == expected.is_some(),
        };
        let outcomes = [run(base), run(&mutant.graph)];
        if agrees(&outcomes[0]) && !agrees(&outcomes[1]) {
            return Ok(Some(format!("draw {draw} of {bindings:?}")));
        }
        // Elements of special values may differ whatever the rounding is.
        let is_seeded = draw as usize >= DRAWS.len();
        for (roundings, found) in other_roundings.iter_mut().zip(&outcomes) {
            if let (true, Some(found), Some(expected)) = (is_seeded, found, &expected) {
                let outputs = found.iter().flatten().zip(expected.iter().flatten());
                outputs.for_each(|(found, expected)| roundings.count(found, expected));
            }
        }
    }
    let [of_base, of_mutant] = other_roundings;
    if moves_rounding && !are_too_many(of_base) && are_too_many(of_mutant) {
        let NarrowDifferences { elements, different } = of_mutant;
        return Ok(Some(format!("{different} of {elements} elements are rounded otherwise")));
    }
    Ok(None)
}
