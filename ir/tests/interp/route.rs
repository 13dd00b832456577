//! Routing of tokens to experts and the exchanges of rows, on values that are small enough to follow.

use symmc_ir::collective::{Collective, CollectiveKind};
use symmc_ir::interp::{InterpError, OpError};
use symmc_ir::{DType, GroupId, Op, Route, RouteLayout, RouteScope, Tensor, TensorType};

use crate::common::{apply, apply_on_ranks, assert_same, f32s, i64s, t, ty};

/// The types of the results of a route of `tokens` tokens with `k` slots on each of `ranks` ranks.
fn route_types(ranks: usize, tokens: usize, k: usize, capacity: usize, sections: usize) -> Vec<TensorType> {
    let shapes: [&[usize]; 5] = [&[tokens, k], &[ranks * tokens, k], &[capacity], &[sections], &[sections]];
    shapes.map(|shape| ty(DType::I64, shape)).to_vec()
}

fn route(experts: u32, align: u32, layout: RouteLayout, scope: RouteScope) -> Op {
    Op::Route(Route { experts, align, layout, scope })
}

/// Two ranks with two tokens of two slots each. Rank 0 has the experts 0 and 1, rank 1 has 2 and 3.
const IDS: [i64; 8] = [0, 3, 1, 0, 0, 2, -1, 3];

fn routed(align: u32, layout: RouteLayout, capacity: usize) -> Result<Vec<Vec<Tensor>>, InterpError> {
    let ids = || vec![i64s(&[4, 2], &IDS)];
    let make = |group: GroupId| route(4, align, layout, RouteScope::Group(group));
    apply_on_ranks(&[&[0, 1]], make, &[ids(), ids()], route_types(2, 2, 2, capacity, 2))
}

#[test]
fn expert_layout_orders_slots_by_rank_token_and_slot() {
    let results = routed(1, RouteLayout::Expert, 5).unwrap();
    // Expert 0 has the slots 0, 3 and 4, expert 1 has slot 2; expert 2 has slot 5, expert 3 has 1 and 7.
    let slots = [0, 6, 3, 1, 2, 5, -1, 7];
    let first = [
        i64s(&[2, 2], &slots[..4]),
        i64s(&[4, 2], &slots),
        i64s(&[5], &[0, 3, 4, 2, -1]),
        i64s(&[2], &[3, 1]),
        i64s(&[2], &[3, 4]),
    ];
    let second = [
        i64s(&[2, 2], &slots[4..]),
        i64s(&[4, 2], &slots),
        i64s(&[5], &[5, 1, 7, -1, -1]),
        i64s(&[2], &[1, 2]),
        i64s(&[2], &[1, 3]),
    ];
    assert_same("rank 0", &results[0], &first, 0.0);
    assert_same("rank 1", &results[1], &second, 0.0);
}

#[test]
fn sections_begin_at_multiples_of_the_alignment() {
    let results = routed(4, RouteLayout::Expert, 8).unwrap();
    assert_eq!(results[0][2].to_i64(), [0, 3, 4, -1, 2, -1, -1, -1]);
    assert_eq!(results[0][3].to_i64(), [3, 1]);
    assert_eq!(results[0][4].to_i64(), [4, 8]);
    assert_eq!(results[1][1].to_i64(), [0, 12, 4, 1, 2, 8, -1, 13]);
}

#[test]
fn batched_layout_divides_capacity_equally_among_experts() {
    let results = routed(1, RouteLayout::Batched, 7).unwrap();
    assert_eq!(results[0][2].to_i64(), [0, 3, 4, 2, -1, -1, -1]);
    assert_eq!(results[0][3].to_i64(), [3, 1]);
    assert_eq!(results[0][4].to_i64(), [3, 4]);
    assert_eq!(results[1][2].to_i64(), [5, -1, -1, 1, 7, -1, -1]);
    assert_eq!(results[1][4].to_i64(), [1, 5]);
    match routed(1, RouteLayout::Batched, 5) {
        Err(InterpError::Op { error, .. }) => {
            assert_eq!(error, OpError::ExpertCapacity { expert: 0, found: 3, capacity: 2 });
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn rank_layout_sends_each_token_once_per_rank() {
    let results = routed(1, RouteLayout::Rank, 4).unwrap();
    // Rank 0 has experts of tokens 0 and 1 of rank 0, and of token 0 of rank 1.
    assert_eq!(results[0][2].to_i64(), [0, 2, 4, -1]);
    assert_eq!(results[0][3].to_i64(), [2, 1]);
    assert_eq!(results[0][4].to_i64(), [2, 3]);
    assert_eq!(results[1][2].to_i64(), [1, 5, 7, -1]);
    assert_eq!(results[1][3].to_i64(), [1, 2]);
    // Slot 3 is on the rank of slot 2.
    assert_eq!(results[0][1].to_i64(), [0, 4, 1, -1, 2, 5, -1, 6]);
}

#[test]
fn local_route_sorts_the_slots_of_one_rank() {
    let op = route(3, 1, RouteLayout::Expert, RouteScope::Local);
    let ids = t(DType::I32, &[4, 1], &[2.0, 0.0, 2.0, 0.0]);
    let results = apply(op, &[ids], route_types(1, 4, 1, 4, 3)).unwrap();
    let rows = i64s(&[4, 1], &[2, 0, 3, 1]);
    let expected =
        [rows.clone(), rows, i64s(&[4], &[1, 3, 0, 2]), i64s(&[3], &[2, 0, 2]), i64s(&[3], &[2, 2, 4])];
    assert_same("local", &results, &expected, 0.0);
}

#[test]
fn too_many_rows_and_unknown_experts_are_errors() {
    match routed(1, RouteLayout::Expert, 3) {
        Err(InterpError::Op { op: "route", error, .. }) => {
            assert_eq!(error, OpError::Capacity { rank: 0, found: 4, capacity: 3 });
        }
        other => panic!("{other:?}"),
    }
    for id in [3, -2, i64::MIN] {
        let op = route(3, 1, RouteLayout::Expert, RouteScope::Local);
        match apply(op, &[i64s(&[1, 2], &[-1, id])], route_types(1, 1, 2, 2, 3)) {
            Err(InterpError::Op { error, .. }) => {
                assert_eq!(error, OpError::ExpertId { id, slot: 1, last: 2 })
            }
            other => panic!("{other:?}"),
        }
    }
}

fn exchange(kind: CollectiveKind, operands: &[Vec<Tensor>], result: TensorType) -> Vec<Vec<Tensor>> {
    let op = |group| Op::Collective(Collective { kind: kind.clone(), group, variant: None });
    apply_on_ranks(&[&[0, 1]], op, operands, vec![result]).unwrap()
}

#[test]
fn rows_go_to_experts_and_weighted_sums_come_back() {
    let tables = routed(1, RouteLayout::Expert, 5).unwrap();
    let x = |first: f64| f32s(&[2, 1], &[first, first + 1.0]);
    let operands: Vec<Vec<Tensor>> = tables
        .iter()
        .zip([10.0, 20.0])
        .map(|(tables, first)| vec![x(first), tables[2].clone(), tables[1].clone()])
        .collect();
    let sent = exchange(CollectiveKind::DispatchRows, &operands, ty(DType::F32, &[5, 1]));
    assert_eq!(sent[0][0].to_f64(), [10.0, 11.0, 20.0, 11.0, 0.0]);
    assert_eq!(sent[1][0].to_f64(), [20.0, 10.0, 21.0, 0.0, 0.0]);
    let weights = [[1.0, 10.0, 1.0, 10.0], [1.0, 10.0, 100.0, 1.0]];
    let operands: Vec<Vec<Tensor>> = (0..2)
        .map(|rank| {
            let weights = f32s(&[2, 2], &weights[rank]);
            vec![sent[rank][0].clone(), tables[rank][0].clone(), weights]
        })
        .collect();
    let sums = exchange(CollectiveKind::CombineRows, &operands, ty(DType::F32, &[2, 1]));
    assert_eq!(sums[0][0].to_f64(), [110.0, 121.0]);
    // The slot without an expert adds nothing, whatever its weight.
    assert_eq!(sums[1][0].to_f64(), [220.0, 21.0]);
    let operands: Vec<Vec<Tensor>> = operands
        .into_iter()
        .map(|mut x| {
            x.truncate(2);
            x
        })
        .collect();
    let sums = exchange(CollectiveKind::CombineRows, &operands, ty(DType::F32, &[2, 1]));
    assert_eq!(sums[0][0].to_f64(), [20.0, 22.0]);
}

#[test]
fn rows_are_added_by_rank_and_then_by_slot() {
    // Slot order would add 1 to 2^24 first, which f32 cannot hold.
    let large = f64::from(1 << 24);
    let own = [f32s(&[2, 1], &[large, 0.0]), f32s(&[2, 1], &[1.0, 1.0])];
    let rows = i64s(&[1, 3], &[2, 0, 3]);
    let none = i64s(&[1, 3], &[-1, 1, -1]);
    let combined = [vec![own[0].clone(), rows], vec![own[1].clone(), none]];
    let sums = exchange(CollectiveKind::CombineRows, &combined, ty(DType::F32, &[1, 1]));
    assert_eq!([sums[0][0].to_f64(), sums[1][0].to_f64()], [[large + 2.0], [0.0]]);
    let all_rows = i64s(&[2, 3], &[2, 0, 3, -1, 1, -1]);
    let reduced = own.map(|x| vec![x, all_rows.clone()]);
    let op = |group| Op::Collective(Collective { kind: CollectiveKind::ReduceRows, group, variant: None });
    let types = vec![ty(DType::F32, &[1, 1]), ty(DType::F32, &[1, 1])];
    let results = apply_on_ranks(&[&[0, 1]], op, &reduced, types).unwrap();
    assert_eq!([results[0][0].to_f64(), results[1][0].to_f64()], [[large + 2.0], [0.0]]);
    // The second results have the sums of the other rank.
    assert_eq!([results[0][1].to_f64(), results[1][1].to_f64()], [[2.0], [0.0]]);
}

#[test]
fn rows_without_elements_come_back() {
    let own = |table| vec![f32s(&[2, 0], &[]), table];
    let combined = [0, 1].map(|_| own(i64s(&[3, 1], &[0, -1, 1])));
    let sums = exchange(CollectiveKind::CombineRows, &combined, ty(DType::F32, &[3, 0]));
    assert_eq!(sums[0][0].shape(), [3, 0]);
    let op = |group| Op::Collective(Collective { kind: CollectiveKind::ReduceRows, group, variant: None });
    let types = vec![ty(DType::F32, &[2, 0]), ty(DType::F32, &[2, 0])];
    let reduced = [0, 1].map(|_| own(i64s(&[4, 1], &[0, 1, 2, -1])));
    let results = apply_on_ranks(&[&[0, 1]], op, &reduced, types).unwrap();
    assert_eq!([results[0][0].shape(), results[1][1].shape()], [[2, 0]; 2]);
}
