//! Coalescing on random programs: the sets that can be one collective, and their results.

use std::collections::BTreeSet;

use symmc_ir::machine::MachineProfile;
use symmc_ir::*;
use symmc_passes::{
    CoalesceConfig, CoalesceReach, JoinMode, LowerConfig, PassError, find_coalescible, lower,
};
use symmc_support::random::SplitMix;

use crate::common::{bindings, difference};

/// A program of collectives of all kinds that can be coalesced, element-wise ops between them, and values of
/// several dtypes.
fn random_program(rng: &mut SplitMix) -> Graph {
    let mut b = GraphBuilder::new("random", Some(4));
    let t = b.symbol("t", 1, 3);
    let groups = [
        b.group("all", GroupMembers::World),
        b.group("same", GroupMembers::Cells(vec![vec![0, 1, 2, 3]])),
        b.group("rows", GroupMembers::Cells(vec![vec![0, 1], vec![2, 3]])),
        b.group("columns", GroupMembers::Cells(vec![vec![0, 2], vec![1, 3]])),
    ];
    let shapes: [Vec<Dim>; 4] = [
        vec![4.into(), 3.into()],
        vec![Dim::from(t) * Dim::from(4), 2.into()],
        vec![8.into()],
        vec![4.into(), 0.into()],
    ];
    let mut values = Vec::new();
    for i in 0..5 {
        let ty = TensorType::new(
            rng.pick(&[DType::F32, DType::F32, DType::BF16, DType::I32]),
            shapes[rng.below(4)].clone(),
        );
        values.push(b.input(InputKind::Argument, &format!("x{i}"), "", ty, None));
    }
    for _ in 0..24 {
        let x = values[values.len() - 1 - rng.below(values.len().min(8))];
        let group = rng.pick(&groups);
        let kind = match rng.below(8) {
            0 | 1 => CollectiveKind::AllReduce(rng.pick(&[CollectiveReduceOp::Sum, CollectiveReduceOp::Max])),
            2 => CollectiveKind::AllGather,
            3 => CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum),
            4 => CollectiveKind::AllToAll(AllToAllSplits::Even),
            5 => CollectiveKind::Broadcast { root: 1 },
            6 => CollectiveKind::Permute { pairs: vec![(1, 0)] },
            _ => {
                if let Ok(y) = b.op("n", Op::Unary(UnaryOp::Neg), &[x]) {
                    values.push(y);
                }
                continue;
            }
        };
        let op = Op::Collective(Collective { kind, group, variant: None });
        if let Ok(y) = b.op("c", op, &[x])
            && b.graph().ty(y).bytes().upper_bound(&b.graph().symbols) <= 1 << 12
        {
            values.push(y);
        }
    }
    for &v in values.iter().rev().take(6) {
        b.output(v);
    }
    b.finish()
}

/// For each node, all nodes on which it depends, directly or not.
fn needed(graph: &Graph) -> Vec<BTreeSet<NodeId>> {
    let mut out: Vec<BTreeSet<NodeId>> = Vec::new();
    for node in graph.nodes.values() {
        let mut own = BTreeSet::new();
        for def in node.inputs.iter().filter_map(|&v| graph.defining_node(v)) {
            own.insert(def);
            own.extend(out[symmc_ir::entity::Entity::index(def)].iter().copied());
        }
        out.push(own);
    }
    out
}

/// A few collectives of one kind, one set of cells and one dtype, which may depend on each other.
fn similar_collectives(graph: &Graph, rng: &mut SplitMix) -> Option<Vec<NodeId>> {
    let key_of = |id: NodeId| {
        let node = &graph.nodes[id];
        let c = node.op.as_collective()?;
        Some((c.kind.clone(), graph.cells(c.group), graph.ty(node.inputs[0]).dtype))
    };
    let collectives: Vec<NodeId> = graph.nodes.keys().filter(|&id| key_of(id).is_some()).collect();
    let first = key_of(*collectives.get(rng.below(collectives.len().max(1)))?);
    let set: Vec<NodeId> = collectives.into_iter().filter(|&id| key_of(id) == first).collect();
    let set: Vec<NodeId> = set.into_iter().filter(|_| !rng.one_in(4)).collect();
    (set.len() > 1).then_some(set)
}

fn compare(graph: &Graph, lowered: &Graph, case: u64) {
    for which in [0, 2] {
        let worst = difference(graph, lowered, &bindings(graph, which), case);
        assert_eq!(worst, 0.0, "{}\nagainst\n{}", text::print(graph), text::print(lowered));
    }
}

/// A set can be one collective exactly if no member depends on another, and then nothing changes.
#[test]
fn independent_collectives_coalesce_and_dependent_ones_are_rejected() {
    let profile = MachineProfile::builtin("h200x4").unwrap();
    let mut rng = SplitMix(23);
    let (mut coalesced, mut refused) = (0, 0);
    for case in 0..400 {
        let graph = random_program(&mut rng);
        let Some(set) = similar_collectives(&graph, &mut rng) else { continue };
        let needed = needed(&graph);
        let are_independent =
            set.iter().all(|&id| set.iter().all(|m| !needed[entity::Entity::index(id)].contains(m)));
        let config = LowerConfig { coalesced: vec![set.clone()], ..LowerConfig::new(profile.clone()) };
        match lower(&graph, &config) {
            Ok((out, decisions, _)) => {
                assert!(are_independent, "{set:?}\n{}", text::print(&graph));
                compare(&graph, &out, case);
                let absorbed = decisions.iter().filter(|d| d.nodes.is_empty()).count();
                assert!(absorbed >= set.len() - 1, "{decisions:?}");
                coalesced += 1;
            }
            Err(PassError::Internal(_)) => {
                assert!(!are_independent, "{set:?}\n{}", text::print(&graph));
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(coalesced > 50 && refused > 20, "{coalesced} {refused}");
}

/// Sets that are found never depend on each other, even through other sets.
#[test]
fn coalescible_sets_leave_an_acyclic_program() {
    let mut rng = SplitMix(5);
    let mut counts = [0; 2];
    for case in 0..300 {
        let graph = random_program(&mut rng);
        let config = LowerConfig::new(MachineProfile::builtin(rng.pick(&["h200x4", "host"])).unwrap());
        let window_us = rng.pick(&[0.0, 4.0, f64::INFINITY]);
        let reach = CoalesceReach { window_us, least_startup: rng.pick(&[0.0, 0.5]) };
        let [packed, together] = [JoinMode::Packed, JoinMode::Together].map(|joining| {
            find_coalescible(&graph, &config, &CoalesceConfig { joining, reach, kept: BTreeSet::new() })
                .unwrap()
        });
        counts[0] += packed.len();
        let (out, ..) = lower(&graph, &LowerConfig { coalesced: packed.clone(), ..config.clone() }).unwrap();
        compare(&graph, &out, case);
        // Both at once: members of sets that are packed leave the others.
        for coalesced in [Vec::new(), packed] {
            let is_joint = coalesced.is_empty();
            let config = LowerConfig { coalesced, together: together.clone(), ..config.clone() };
            let (out, ..) = lower(&graph, &config).unwrap();
            compare(&graph, &out, case);
            if is_joint {
                counts[1] += out.dispatches.len();
            }
        }
    }
    assert!(counts[0] > 50 && counts[1] > 50, "{counts:?}");
}

/// Many members, and collectives that stay unchanged.
#[test]
fn many_small_collectives_are_one() {
    let mut b = GraphBuilder::new("many", Some(4));
    let world = b.group("all", GroupMembers::World);
    let ty = |n: i64| TensorType::new(DType::F32, vec![n.into()]);
    for i in 0..64 {
        let x = b.input(InputKind::Argument, &format!("x{i}"), "", ty(1 + i % 3), None);
        let y = b.op("n", Op::Unary(UnaryOp::Neg), &[x]).unwrap();
        let kind = CollectiveKind::AllReduce(CollectiveReduceOp::Sum);
        let z = b
            .op(&format!("r{i}"), Op::Collective(Collective { kind, group: world, variant: None }), &[y])
            .unwrap();
        let z = b.op("e", Op::Unary(UnaryOp::Exp), &[z]).unwrap();
        b.output(z);
    }
    let graph = b.finish();
    let config = LowerConfig::new(MachineProfile::builtin("h200x4").unwrap());
    let reach = CoalesceReach { window_us: f64::INFINITY, least_startup: 0.5 };
    for (kept, size) in [(vec![], 64), (vec!["r0".to_string(), "r63".to_string()], 62)] {
        let coalesce = CoalesceConfig { joining: JoinMode::Packed, reach, kept: kept.into_iter().collect() };
        let sets = find_coalescible(&graph, &config, &coalesce).unwrap();
        assert_eq!(sets.iter().map(Vec::len).collect::<Vec<_>>(), [size]);
        let (out, ..) = lower(&graph, &LowerConfig { coalesced: sets, ..config.clone() }).unwrap();
        let remaining = out.nodes.values().filter(|n| n.op.as_collective().is_some()).count();
        assert_eq!(remaining, 65 - size);
        compare(&graph, &out, 1);
    }
}
