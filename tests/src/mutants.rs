//! Trials of the comparison of plans with their sources: edits of planned programs that it must notice.
//!
//! A seed names a program: greedy sampling over a divided vocabulary, layers of experts, guards and clamps, or a random program
//! ([`symmc_cases`]). Its plan must compare as equal, or the trial counts it as not compared. Each mutant is the planned program
//! with one edit of one node, planned again with the same source. A mutant that the comparison passes is run by the reference
//! interpreter on many draws, with special values among them. If it then differs from the source where the plan without the edit
//! does not, the comparison missed it.
//!
//! The suite `mutants` runs some in each test run; `cargo run --release -p symmc-tests --example check_mutants -- PLANS` runs as
//! many as wanted.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use symmc::{CheckedPlan, CompileConfig, ErrorKind, MachineProfile, Program, SourceStatus};
use symmc_cases::idioms;
use symmc_cases::programs::{self, Variants};
use symmc_ir::interp::{self, RunCount, SeedConfig, SeedScope};
use symmc_ir::{
    BinaryOp, CollectiveKind, CollectiveReduceOp, Dim, Graph, NodeId, Op, ReductionKind, Scalar,
    SymbolBindings, Tensor, UnaryOp, ValueId, text, verify,
};
use symmc_plan::Plan;
use symmc_planner::{BucketInput, PlanConfig, Planner};
use symmc_support::random::SplitMix;

use crate::rewrites::{DRAWS, inputs, is_near, with_constants};

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
const SEEDED_DRAWS: u64 = 12;
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
        let Some((edit, place, mutant, checked)) =
            (0..MOST_TRIES).find_map(|_| make_mutant(source, &plan, &mut r))
        else {
            continue;
        };
        let counts = counts.edits.entry(edit).or_default();
        counts.mutants += 1;
        let compared = symmc::compare_with_source(&checked);
        if compared.status() == SourceStatus::Different {
            counts.different += 1;
        } else if !compared.is_complete() {
            counts.not_compared += 1;
        } else {
            let base = text::parse(&plan.programs[place.0]).map_err(|e| e.to_string())?;
            match find_difference(source, &base, &mutant, r.next())? {
                None => counts.equal += 1,
                Some(difference) => {
                    counts.missed += 1;
                    let node = mutant.node_name(place.1);
                    let mutant = text::print(&mutant);
                    return Err(format!("missed: {edit} of %{node}: {difference}\n{mutant}"));
                }
            }
        }
    }
    Ok(())
}

/// A planned program with one edit, and its plan. `None` if the edit gives no valid program.
fn make_mutant(
    source: &Graph,
    plan: &Plan,
    r: &mut SplitMix,
) -> Option<(&'static str, (usize, NodeId), Graph, CheckedPlan)> {
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
    Some((edit, (edited, node), graph, checked))
}

/// Edits a node. Returns the kind of the edit, or `None` if this edit does not fit the node.
fn edit_node(graph: &mut Graph, id: NodeId, r: &mut SplitMix) -> Option<&'static str> {
    if r.one_in(4) {
        return replace_operand(graph, id, r);
    }
    let is_float = graph.nodes[id].inputs.first().is_some_and(|&x| graph.ty(x).dtype.is_float());
    let bypassed = graph.nodes[id].inputs.clone();
    match &mut graph.nodes[id].op {
        Op::BinaryScalar { op: BinaryOp::Rem | BinaryOp::Min | BinaryOp::Max, .. } if r.one_in(2) => {
            bypass(graph, id, bypassed[0]).then_some("clamp dropped")
        }
        Op::BinaryScalar { scalar, .. } => {
            *scalar = match *scalar {
                Scalar::Int(x) => Scalar::Int(x.saturating_add(r.pick(&[-1, 1]))),
                other => Scalar::Float(symmc_ir::FloatAttribute(other.as_f64() * 1.01 + 1e-3)),
            };
            Some("scalar")
        }
        Op::Binary(op) => {
            use BinaryOp::*;
            *op = match *op {
                Add => Sub,
                Sub => Add,
                Mul => Add,
                Ge => Gt,
                Gt => Ge,
                Le => Lt,
                Lt => Le,
                Max => Min,
                Min => Max,
                Eq => Ne,
                And => Or,
                Or => And,
                _ => return None,
            };
            Some(if is_float { "float operation" } else { "integer operation" })
        }
        Op::Select => bypass(graph, id, bypassed[1 + r.below(2)]).then_some("guard dropped"),
        Op::Unary(op @ UnaryOp::IsNan) => {
            *op = UnaryOp::IsFinite;
            Some("guard changed")
        }
        Op::Unary(op @ (UnaryOp::Neg | UnaryOp::Relu)) => {
            *op = UnaryOp::Abs;
            Some("float operation")
        }
        Op::RmsNorm { round_first, .. } => {
            *round_first = !*round_first;
            Some("round_first")
        }
        Op::Reduce { op, .. } => {
            *op = match *op {
                ReductionKind::Sum => ReductionKind::Max,
                ReductionKind::Max => ReductionKind::Min,
                ReductionKind::Min => ReductionKind::Max,
                _ => return None,
            };
            Some("reduction")
        }
        Op::TopK { largest, .. } => {
            *largest = !*largest;
            Some("order")
        }
        Op::Slice { start, .. } => {
            *start = start.clone() + Dim::from(r.pick(&[-1, 1]));
            Some("slice")
        }
        Op::Iota { start, .. } => {
            *start += 1;
            Some("iota")
        }
        Op::Collective(c) => {
            let size = c.group;
            match &mut c.kind {
                CollectiveKind::AllReduce(op @ CollectiveReduceOp::Sum) => *op = CollectiveReduceOp::Max,
                CollectiveKind::AllReduce(op @ CollectiveReduceOp::Max) => *op = CollectiveReduceOp::Min,
                CollectiveKind::Permute { pairs } => {
                    pairs.iter_mut().for_each(|(from, to)| std::mem::swap(from, to));
                }
                CollectiveKind::Broadcast { root } => *root ^= 1,
                _ => return None,
            }
            graph.groups.get(size).map(|_| "collective")
        }
        _ => None,
    }
}

/// Replaces an operand by another value of its type.
fn replace_operand(graph: &mut Graph, id: NodeId, r: &mut SplitMix) -> Option<&'static str> {
    let node = &graph.nodes[id];
    let operand = r.below(node.inputs.len());
    let old = *node.inputs.get(operand)?;
    let is_defined = |v: ValueId| graph.defining_node(v).is_none_or(|n| n < id);
    let others: Vec<ValueId> =
        graph.values.keys().filter(|&v| v != old && is_defined(v) && graph.ty(v) == graph.ty(old)).collect();
    if others.is_empty() {
        return None;
    }
    let moves_by_data = match &node.op {
        Op::GroupedMatMul | Op::Route(_) => true,
        op => op.as_collective().is_some_and(|c| c.kind.moves_by_data()),
    };
    graph.nodes[id].inputs[operand] = r.pick(&others);
    Some(if moves_by_data { "operand of experts" } else { "operand" })
}

/// Lets all readers of the result of a node read this value.
fn bypass(graph: &mut Graph, id: NodeId, value: ValueId) -> bool {
    let result = graph.nodes[id].outputs[0];
    if graph.ty(result) != graph.ty(value) || graph.outputs.iter().any(|output| output.value == result) {
        return false;
    }
    for node in graph.nodes.values_mut() {
        node.inputs.iter_mut().filter(|v| **v == result).for_each(|v| *v = value);
    }
    true
}

/// A draw on which the mutant gives something else than the source, and the program without the edit does not.
fn find_difference(
    source: &Graph,
    base: &Graph,
    mutant: &Graph,
    seed: u64,
) -> Result<Option<String>, String> {
    let histories = interp::output_histories(source, RunCount::One);
    let mut r = SplitMix(seed);
    for draw in 0..DRAWS.len() as u64 + SEEDED_DRAWS {
        let mut bindings = SymbolBindings::new();
        for (id, symbol) in mutant.symbols.iter() {
            bindings.set(id, symbol.min + r.below((symbol.max - symbol.min).min(64) as usize + 1) as i64);
        }
        let drawn: Vec<Vec<Arc<Tensor>>> = match DRAWS.get(draw as usize) {
            Some(&(numbers, is_shared)) => inputs(source, &bindings, numbers, is_shared, &mut r),
            None => {
                let scope = SeedScope::PerRank;
                let config = SeedConfig { seed: r.next(), arguments: scope, parameters: scope };
                let of_rank = |rank| interp::seeded_inputs(source, &bindings, &config, rank);
                let all = (0..source.ranks.unwrap_or(1)).map(of_rank).collect::<Result<Vec<_>, _>>();
                all.map_err(|e| e.to_string())?
            }
        };
        let run = |graph: &Graph| interp::run(graph, &bindings, &with_constants(graph, &drawn)).ok();
        let expected = run(source);
        let agrees = |found: &Option<Vec<Vec<Tensor>>>| match (found, &expected) {
            (Some(found), Some(expected)) => found.iter().zip(expected).all(|(found, expected)| {
                let outputs = found.iter().zip(expected).zip(&histories);
                outputs
                    .into_iter()
                    .all(|((found, expected), history)| is_near(found, expected, history, &drawn))
            }),
            (found, expected) => found.is_some() == expected.is_some(),
        };
        if agrees(&run(base)) && !agrees(&run(mutant)) {
            return Ok(Some(format!("draw {draw} of {bindings:?}")));
        }
    }
    Ok(None)
}

/// The program of a seed.
fn program(seed: u64) -> Result<Graph, String> {
    let mut r = SplitMix(seed ^ 0x9209_4a3d);
    let source = match seed % 5 {
        0 => return Ok(programs::program(seed, 4 + r.below(12), Variants::Open)),
        1 => return Ok(idioms::program(seed).graph),
        2 => vocabulary(&mut r),
        3 => experts(&mut r),
        _ => guards(&mut r),
    };
    text::parse(&source).map_err(|e| format!("{e}\n{source}"))
}

/// The largest element of rows that ranks hold in parts.
fn vocabulary(r: &mut SplitMix) -> String {
    let (ranks, shard, tokens, dtype) = r.pick(&[
        (2, 8, 4, "f32"),
        (4, 64, 8, "bf16"),
        (4, 500, 16, "f32"),
        (8, 2000, 4, "f32"),
        (4, 8000, 8, "bf16"),
        (8, 1000, 16, "bf16"),
    ]);
    let (all, rows) = (ranks * shard, ranks * tokens);
    format!(
        "program \"greedy\" ranks {ranks}\ngroup @w world\narg %x: {dtype}[{tokens}, 16]\nparam %head: {dtype}[16, {shard}] source \"h\"\n\
         %l: {dtype}[{tokens}, {shard}] = matmul %x, %head\n%g: {dtype}[{rows}, {shard}] = all_gather %l group=@w\n\
         %r: {dtype}[{ranks}, {tokens}, {shard}] = reshape %g\n%p: {dtype}[{tokens}, {ranks}, {shard}] = permute %r perm=[1, 0, 2]\n\
         %f: {dtype}[{tokens}, {all}] = reshape %p\n%y: i64[{tokens}] = argmax %f axis=1 keep=false\nreturn %y\n"
    )
}

/// Two layers of experts.
fn experts(r: &mut SplitMix) -> String {
    let (ranks, chosen) = r.pick(&[(2, 1), (2, 2), (4, 2)]);
    let (tokens, experts) = (8, 8);
    let (all, own) = (ranks * tokens, experts / ranks);
    let capacity = all * chosen;
    let layer = |k: usize, x: &str| {
        format!(
            "%all{k}: i64[{all}, {chosen}] = all_gather %ids{k} group=@w\n\
             %mine{k}: i64[{tokens}, {chosen}], %ev{k}: i64[{all}, {chosen}], %sl{k}: i64[{capacity}], %cnt{k}: i64[{own}], %ends{k}: i64[{own}] = \
             route %all{k} experts={experts} align=1 layout=expert group=@w\n\
             %s{k}: f32[{capacity}, 16] = dispatch_rows %{x}, %sl{k}, %ev{k} group=@w\n\
             %o{k}: f32[{capacity}, 16] = grouped_matmul %s{k}, %w{k}, %ends{k}\n\
             %y{k}: f32[{tokens}, 16] = combine_rows %o{k}, %mine{k} group=@w\n"
        )
    };
    format!(
        "program \"experts\" ranks {ranks}\ngroup @w world\narg %x: f32[{tokens}, 16]\narg %ids1: i64[{tokens}, {chosen}]\n\
         arg %ids2: i64[{tokens}, {chosen}]\nparam %w1: f32[{own}, 16, 16] source \"w1\"\nparam %w2: f32[{own}, 16, 16] source \"w2\"\n{}{}return %y2\n",
        layer(1, "x"),
        layer(2, "y1")
    )
}

/// Guards of special values, clamps before indices, the part of a vocabulary that a rank has, and a norm.
fn guards(r: &mut SplitMix) -> String {
    let dtype = r.pick(&["f32", "bf16", "f16"]);
    let rows = r.pick(&[20, 40]);
    let bound = if r.one_in(2) { format!("rem %i, {rows}") } else { format!("min %m0, {}", rows - 1) };
    format!(
        "program \"guards\" ranks 2\nsymbol t in 1..=16\ngroup @w world\narg %x: {dtype}[t, 8]\narg %z: {dtype}[t, 8]\narg %i: i64[t]\n\
         arg %lo: i64[]\nparam %e: {dtype}[{rows}, 8] source \"e\"\nparam %g: {dtype}[8] source \"g\"\n\
         %f0: {dtype}[] = full value=0.0\n%i0: i64[] = full value=0\n%n: bool[t, 8] = is_nan %x\n%a: {dtype}[t, 8] = select %n, %f0, %x\n\
         %m0: i64[t] = max %i, 0\n%k: i64[t] = {bound}\n%b: {dtype}[t, 8] = take %e, %k axis=0\n\
         %hi: i64[] = add %lo, {rows}\n%c0: bool[t] = ge %i, %lo\n%c1: bool[t] = lt %i, %hi\n%c: bool[t] = and %c0, %c1\n\
         %d0: i64[t] = sub %i, %lo\n%d1: i64[t] = select %c, %d0, %i0\n%d2: {dtype}[t, 8] = take %e, %d1 axis=0\n%c2: bool[t, 1] = reshape %c\n\
         %d: {dtype}[t, 8] = select %c2, %d2, %f0\n%q0: bool[t, 8] = ge %x, %z\n%q: {dtype}[t, 8] = select %q0, %b, %d\n\
         %s: {dtype}[t, 8] = add %a, %q\n%s1: {dtype}[t, 8] = all_reduce %s op=sum group=@w\n\
         %y: {dtype}[t, 8] = rms_norm %s1, %g axes=1 eps=1e-5 round_first=false\n%v: {dtype}[t, 8] = add %b, %d\nreturn %y, %v\n"
    )
}
