//! Collectives of the host backend on thread ranks: every kind, variant, operation and dtype, in sequences
//! that mix them on one group, against results computed here, bit for bit.

mod cases;

use cases::{CollectiveCase, RankSetup, every_way, run_cases};
use symmc_ir::collective::{AllToAllSplits, CollectiveKind, CollectiveReduceOp, CollectiveVariant};
use symmc_ir::types::DType;
use symmc_plan::ExitBarrier;

fn world(n: usize) -> Vec<Vec<u32>> {
    vec![(0..n as u32).collect()]
}

#[test]
fn every_kind_variant_and_operation() {
    for n in [1, 2, 3, 4, 8] {
        let mut cases = Vec::new();
        for elements in [0, 1, 7, 65] {
            cases.extend(every_way(n, elements, &[DType::F32, DType::BF16, DType::I64]));
        }
        run_cases(&RankSetup::new(n, world(n)), &cases);
    }
}

#[test]
fn every_dtype() {
    let mut cases = Vec::new();
    for elements in [3, 1031] {
        cases.extend(every_way(3, elements, DType::ALL));
    }
    run_cases(&RankSetup::new(3, world(3)), &cases);
}

#[test]
fn more_than_one_chunk() {
    for n in [2, 3] {
        let cases = every_way(n, 150_001, &[DType::F32, DType::U8]);
        let sums = |c: &CollectiveCase| match &c.kind {
            CollectiveKind::AllReduce(op) | CollectiveKind::ReduceScatter(op) => {
                *op == CollectiveReduceOp::Sum
            }
            _ => true,
        };
        let cases: Vec<CollectiveCase> = cases.into_iter().filter(sums).collect();
        run_cases(&RankSetup::new(n, world(n)), &cases);
    }
}

#[test]
fn cells_work_side_by_side() {
    let cases = every_way(2, 100, &[DType::F32]);
    run_cases(&RankSetup::new(4, vec![vec![0, 2], vec![1, 3]]), &cases);
    run_cases(&RankSetup::new(4, vec![vec![3, 0], vec![2, 1]]), &cases);
}

#[test]
fn chaos_changes_no_result() {
    for seed in 0..6 {
        for n in [2, 4] {
            let cases = every_way(n, 33 + seed as usize, &[DType::F32]);
            run_cases(&RankSetup { chaos: Some(seed), ..RankSetup::new(n, world(n)) }, &cases);
        }
    }
}

#[test]
fn counters_and_epochs_wrap() {
    for back in [1, 2, 7, 40] {
        let cases = every_way(3, 50, &[DType::F32]);
        run_cases(
            &RankSetup { first: u32::MAX - back, chaos: Some(1), ..RankSetup::new(3, world(3)) },
            &cases,
        );
    }
}

#[test]
fn flags_of_the_last_turn_of_epochs_are_cleared() {
    // Large messages, then small ones, and the first of the epochs again for the next large one.
    let case = |elements| {
        CollectiveCase::new(
            CollectiveKind::AllReduce(CollectiveReduceOp::Sum),
            CollectiveVariant::Ll,
            DType::F32,
            elements,
        )
    };
    let cases = [500, 500, 10, 10, 10, 10, 500, 500].map(case);
    let setup = RankSetup { first: u32::MAX - 6, stale: Some((2, 3 * 64)), ..RankSetup::new(3, world(3)) };
    for seed in 0..4 {
        run_cases(&RankSetup { chaos: Some(seed), ..setup.clone() }, &cases);
    }
}

#[test]
fn dropped_exits_with_buffers_in_turn() {
    let mut cases = Vec::new();
    for _ in 0..300 {
        for (kind, variant) in [
            (CollectiveKind::AllReduce(CollectiveReduceOp::Sum), CollectiveVariant::OneShot),
            (CollectiveKind::AllGather, CollectiveVariant::Pull),
            (CollectiveKind::AllReduce(CollectiveReduceOp::Sum), CollectiveVariant::Ll),
            (CollectiveKind::AllToAll(AllToAllSplits::Even), CollectiveVariant::Pull),
        ] {
            let case = CollectiveCase::new(kind, variant, DType::F32, 60);
            cases.push(CollectiveCase { exit: case.exit.map(|_| ExitBarrier::Dropped), ..case });
        }
    }
    run_cases(&RankSetup { chaos: Some(3), ..RankSetup::new(3, world(3)) }, &cases);
}

/// No barrier holds back a rank that is ahead: only the rank that it sends to, or that sends to it, does.
#[test]
fn puts_alone_keep_pairs_in_step() {
    let kinds = |n: u32| {
        let ring: Vec<(u32, u32)> = (0..n).map(|r| (r, (r + 1) % n)).collect();
        let back: Vec<(u32, u32)> = ring.iter().map(|&(a, b)| (b, a)).collect();
        [
            CollectiveKind::Permute { pairs: ring },
            CollectiveKind::Permute { pairs: vec![(0, 1)] },
            CollectiveKind::Permute { pairs: vec![(0, n - 1), (n - 1, 1)] },
            CollectiveKind::Permute { pairs: back },
            CollectiveKind::Permute { pairs: vec![(1, 1)] },
            CollectiveKind::Broadcast { root: 1 },
        ]
    };
    for (n, mixed) in [(2, 1), (3, 1), (3, 6), (4, 6)] {
        let kinds = &kinds(n as u32)[..mixed];
        let case = |i: usize| {
            let elements = [20, 1, 0, 300][i / 7 % 4];
            CollectiveCase::new(kinds[i % kinds.len()].clone(), CollectiveVariant::Put, DType::F32, elements)
        };
        let cases: Vec<CollectiveCase> = (0..3000).map(case).collect();
        run_cases(&RankSetup { chaos: Some(n as u64), ..RankSetup::new(n, world(n)) }, &cases);
    }
}

#[test]
fn sizes_on_the_device() {
    for n in [1, 2, 3, 4] {
        let mut cases = Vec::new();
        for row in [1, 5, 40_000] {
            let kind = CollectiveKind::AllToAll(AllToAllSplits::Device);
            for variant in [CollectiveVariant::Plain, CollectiveVariant::Pull] {
                let case = CollectiveCase::new(kind.clone(), variant, DType::F32, 4 * n * row);
                cases.extend((0..3).map(|_| CollectiveCase { row, ..case.clone() }));
            }
        }
        run_cases(&RankSetup { chaos: Some(2), ..RankSetup::new(n, world(n)) }, &cases);
    }
}
