//! Numerics classes: random programs of sums, casts and collectives, planned in every set of classes.
//!
//! Every plan states its classes, is accepted by the comparison with its source, and runs as the interpreter says. No plan
//! has more collectives than its program, or collectives of more bytes, and none takes sums in f16 or narrower than its
//! classes allow. Exact plans have equal bits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use symmc::unstable::ir::interp::{self, RunCount, Tolerance, compare};
use symmc::unstable::ir::{
    BinaryOp, Collective, CollectiveKind, CollectiveReduceOp, DType, Dim, Graph, GraphBuilder, GroupMembers,
    InputKind, Node, Op, TensorType, UnaryOp, ValueId, verify,
};
use symmc::unstable::support::random::SplitMix;
use symmc::{
    CheckedPlan, CompileConfig, DrawConfig, Execution, MachineProfile, Numerics, NumericsClass, Plan,
    Program, RunConfig, Tensor, Weights, Workload,
};

const PROGRAMS: u64 = 28;
/// Two arguments of each type.
const INPUTS: [DType; 10] = {
    use DType::{BF16, F16, F32, F64, I32};
    [I32, F64, F16, BF16, F32, I32, F64, F16, BF16, F32]
};

/// A program in which sums and casts stand before and after collectives, and many values are needed twice.
fn program(seed: u64) -> Graph {
    let mut r = SplitMix(seed);
    let ranks = r.pick(&[2, 4]);
    let mut b = GraphBuilder::new(format!("sums {seed}"), Some(ranks));
    let cells = vec![(0..ranks / 2).collect(), (ranks / 2..ranks).collect()];
    let groups = [b.group("world", GroupMembers::World), b.group("half", GroupMembers::Cells(cells))];
    let shape = vec![Dim::from(8), Dim::from(1024)];
    let mut values: Vec<ValueId> = INPUTS
        .iter()
        .map(|&dtype| b.input(InputKind::Argument, "x", "", TensorType::new(dtype, shape.clone()), None))
        .collect();
    for _ in 0..4 + r.below(10) {
        // Recent values make chains, others are needed again.
        let recent = values.len().saturating_sub(3);
        let x = if r.one_in(3) { r.pick(&values) } else { values[recent + r.below(values.len() - recent)] };
        let ty = b.graph().ty(x).clone();
        let group = if r.one_in(4) { groups[1] } else { groups[0] };
        let sum = CollectiveKind::AllReduce(CollectiveReduceOp::Sum);
        let like: Vec<ValueId> = values.iter().copied().filter(|&v| *b.graph().ty(v) == ty).collect();
        let cast_type = TensorType::new(
            r.pick(&[DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64]),
            ty.shape.clone(),
        );
        let added = match r.below(10) {
            0 | 1 => {
                let op = r.pick(&[
                    CollectiveReduceOp::Sum,
                    CollectiveReduceOp::Sum,
                    CollectiveReduceOp::Avg,
                    CollectiveReduceOp::Max,
                    CollectiveReduceOp::Min,
                ]);
                b.collective("r", CollectiveKind::AllReduce(op), group, &[x]).map(|v| v[0])
            }
            // Sums of all-reduces, whose parts may be needed again.
            2 | 3 => {
                // Ranks hold the same bits of most other values, which need no all-reduce.
                let arguments = values.iter().take(INPUTS.len()).copied();
                let like_arguments: Vec<ValueId> = arguments.filter(|v| like.contains(v)).collect();
                let terms = if r.one_in(2) && like_arguments.len() > 1 {
                    [like_arguments[0], like_arguments[1]]
                } else {
                    [x, r.pick(&like)]
                };
                let sums = terms.map(|v| b.collective("r", sum.clone(), group, &[v]).map(|v| v[0]));
                let sums: Vec<ValueId> = sums.into_iter().flatten().collect();
                values.extend(sums.iter().filter(|_| r.one_in(3)));
                b.op("s", Op::Binary(BinaryOp::Add), &sums)
            }
            4 => b.op("s", Op::Binary(BinaryOp::Add), &[x, r.pick(&like)]),
            5 if ty.dtype.is_float() => b.op_as("c", Op::Cast, &[x], cast_type),
            // Casts after and before an all-reduce.
            6 if ty.dtype.is_float() => {
                b.collective("r", sum, group, &[x]).and_then(|v| b.op_as("c", Op::Cast, &v, cast_type))
            }
            7 if ty.dtype.is_float() => b
                .op_as("c", Op::Cast, &[x], cast_type)
                .and_then(|v| b.collective("r", sum, group, &[v]).map(|v| v[0])),
            8 if ty.shape[0] == Dim::from(8) => b
                .collective("p", CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum), groups[0], &[x])
                .and_then(|v| b.collective("g", CollectiveKind::AllGather, groups[0], &v).map(|v| v[0])),
            _ => b.op("n", Op::Unary(UnaryOp::Neg), &[x]),
        };
        values.extend(added.ok());
    }
    return_unused(&mut b, &mut r, &values);
    let graph = b.finish();
    assert!(verify::verify(&graph).is_ok(), "{:?}", verify::verify(&graph));
    graph
}

/// Returns what nothing uses, and a few other values.
fn return_unused(b: &mut GraphBuilder, r: &mut SplitMix, values: &[ValueId]) {
    let unused = |v: &&ValueId| !b.graph().nodes.values().any(|node| node.inputs.contains(v));
    let mut returned: Vec<ValueId> = values.iter().skip(INPUTS.len()).filter(unused).copied().collect();
    returned.extend((0..r.below(3)).map(|_| r.pick(values)));
    returned.into_iter().for_each(|v| b.output(v));
}

fn sets_of_classes() -> Vec<Numerics> {
    let classes = NumericsClass::ALL;
    let set =
        |bits: usize| (0..classes.len()).filter(move |i| bits >> i & 1 == 1).map(|i| classes[i]).collect();
    (0..1 << classes.len()).map(set).collect()
}

/// The type of what each collective of a program carries. An all-reduce in two steps is one.
fn collectives(graph: &Graph) -> Vec<&TensorType> {
    let gathers = |n: &&Node| n.op.as_collective().is_some_and(|c| c.kind == CollectiveKind::AllGather);
    let is_first_step = |kind: &CollectiveKind, result: ValueId| {
        let reduced = match kind {
            CollectiveKind::ReduceScatter(_) | CollectiveKind::AllToAll(_) => sum_of_pieces(graph, result),
            _ => return false,
        };
        let is_outside = |n: &&Node| n.outputs.iter().all(|v| !reduced.contains(v));
        let reads = |n: &&Node| n.inputs.iter().any(|v| reduced.contains(v));
        let users: Vec<&Node> = graph.nodes.values().filter(reads).filter(is_outside).collect();
        users.len() == 1
            && users.iter().all(gathers)
            && graph.outputs.iter().all(|o| !reduced.contains(&o.value))
    };
    let mut out = Vec::new();
    for node in graph.nodes.values() {
        let Some(c) = node.op.as_collective() else { continue };
        if !is_first_step(&c.kind, node.outputs[0]) {
            let gathers = c.kind == CollectiveKind::AllGather;
            out.push(graph.ty(if gathers { node.outputs[0] } else { node.inputs[0] }));
        }
    }
    out
}

/// An exchanged or reduced value and the values that are computed from it alone: its pieces, their sum and casts of that.
fn sum_of_pieces(graph: &Graph, exchanged: ValueId) -> BTreeSet<ValueId> {
    let mut out = BTreeSet::from([exchanged]);
    for node in graph.nodes.values() {
        let sums = matches!(
            node.op,
            Op::Slice { .. }
                | Op::Cast
                | Op::Binary(BinaryOp::Add)
                | Op::BinaryScalar { op: BinaryOp::Div, .. }
        );
        if sums && node.inputs.iter().all(|v| out.contains(v)) {
            out.extend(&node.outputs);
        }
    }
    out
}

/// The number of collectives of a program and their bytes.
fn traffic(graph: &Graph) -> (usize, i64) {
    let bytes = |ty: &&TensorType| ty.bytes().as_const().unwrap_or_else(|| panic!("sizes are numbers"));
    let nodes = collectives(graph);
    (nodes.len(), nodes.iter().map(bytes).sum())
}

/// The number of sums and means among ranks in a type.
fn sums_in(graph: &Graph, dtype: DType) -> usize {
    let accumulates = |c: &Collective| {
        use CollectiveKind::{AllReduce, ReduceScatter};
        matches!(c.kind, AllReduce(CollectiveReduceOp::Sum | CollectiveReduceOp::Avg) | ReduceScatter(_))
    };
    graph
        .nodes
        .values()
        .filter(|n| n.op.as_collective().is_some_and(accumulates) && graph.ty(n.inputs[0]).dtype == dtype)
        .count()
}

/// Checks the invariants of a lowered program against its source.
fn check_lowered(canonical: &Graph, lowered: &Graph, numerics: Numerics) {
    let (before, after) = (traffic(canonical), traffic(lowered));
    assert!(after.0 <= before.0 && after.1 <= before.1, "{numerics}: {before:?} became {after:?}");
    for (dtype, class) in [(DType::BF16, NumericsClass::Narrow), (DType::F16, NumericsClass::NarrowF16)] {
        let (before, after) = (sums_in(canonical, dtype), sums_in(lowered, dtype));
        // An all-reduce in two steps may be two.
        assert!(
            numerics.allows(class) || after <= 2 * before,
            "{numerics}: {before} sums in {dtype} became {after}"
        );
    }
}

fn outputs(plan: &CheckedPlan, work: &Workload, execution: &Execution) -> Vec<Vec<Tensor>> {
    symmc::run(plan, work, execution, &RunConfig::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn plans_of_every_numerics_class_pass_without_extra_traffic() {
    // For each class alone, in how many programs it spares collectives, and in how many bytes.
    let mut spared: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for seed in 0..PROGRAMS {
        let program = Program::from_graph(program(seed)).unwrap_or_else(|e| panic!("{e}"));
        let canonical = symmc::canonicalize_program(&program).unwrap_or_else(|e| panic!("{e}"));
        let machine = ["host", "h200x2", "h200x4"][seed as usize % 3];
        let draw = DrawConfig::default().with_seed(seed).with_arguments(true);
        let work = Workload::gather(&program.graph, &Weights::default(), None, &draw);
        let work = work.unwrap_or_else(|e| panic!("{e}"));
        let mut exact = (0, 0);
        for numerics in sets_of_classes() {
            let label = format!("seed {seed}, {machine}, {numerics}");
            let profile = MachineProfile::builtin(machine).unwrap_or_else(|| panic!("{machine}"));
            let config = CompileConfig::default().with_profile(profile).with_numerics(numerics);
            let lowered = symmc::lower_program(&program, &config).unwrap_or_else(|e| panic!("{label}: {e}"));
            check_lowered(&canonical, &lowered[0], numerics);
            let plan = symmc::compile(&program, &config).unwrap_or_else(|e| panic!("{label}: {e}"));
            let read = Plan::from_json(&plan.to_json()).unwrap_or_else(|e| panic!("{label}: {e}"));
            assert_eq!(read.numerics, numerics, "{label}");
            let plan = symmc::into_checked_plan(read).unwrap_or_else(|e| panic!("{label}: {e}"));
            let compared = symmc::compare_with_source(&plan);
            assert!(compared.differences.is_empty(), "{label}: {:?}", compared.differences);
            check_run(&plan, &work, &label);
            let carried = traffic(&lowered[0]);
            if numerics.is_exact() {
                exact = carried;
            }
            let counts = spared.entry(numerics.to_string()).or_default();
            counts.0 += usize::from(carried.0 < exact.0);
            counts.1 += usize::from(carried.1 < exact.1);
        }
    }
    assert!(spared["reassociate"].0 > 2, "{spared:?}");
    assert!(spared["narrow"].1 > 2 && spared["narrow-f16"].1 > 2, "{spared:?}");
}

/// The plan runs as the interpreter says, within what its history and its classes allow.
fn check_run(plan: &CheckedPlan, work: &Workload, at: &str) {
    let expected = outputs(plan, work, &Execution::Interpreter);
    let actual = outputs(plan, work, &Execution::Threads);
    let histories =
        plan.output_histories(plan.buckets[0].program, RunCount::One).unwrap_or_else(|e| panic!("{e}"));
    for (rank, (found, expected)) in actual.iter().zip(&expected).enumerate() {
        for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
            let tolerance = Tolerance::for_history(&histories[k], expected);
            let c = compare(found, expected, tolerance);
            assert!(
                c.agrees(),
                "{at}, rank {rank}, output {k}: {c} (allowed {tolerance})\n{}",
                plan.source.text
            );
        }
    }
}

#[test]
fn exact_programs_have_equal_bits() {
    for seed in 0..PROGRAMS {
        let program = Program::from_graph(program(seed)).unwrap_or_else(|e| panic!("{e}"));
        let config = CompileConfig::default()
            .with_profile(MachineProfile::builtin("h200x4").unwrap_or_else(|| panic!("h200x4")));
        let lowered = symmc::lower_program(&program, &config).unwrap_or_else(|e| panic!("{e}")).remove(0);
        let draw = DrawConfig::default().with_seed(seed).with_arguments(true);
        let work = Workload::gather(&program.graph, &Weights::default(), None, &draw)
            .unwrap_or_else(|e| panic!("{e}"));
        let inputs: Vec<Vec<Arc<Tensor>>> = work.inputs.clone();
        let run = |graph| interp::run(graph, &work.bindings, &inputs).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(run(&lowered), run(&program.graph), "seed {seed}");
    }
}
