//! Values that lie at their rank's piece of what one group gathers, accessed by the peers of another group:
//! every kind of collective with every variant, on meshes whose groups cross, nest and are numbered in
//! reverse.

use symmc_ir::collective::{AllToAllSplits, CollectiveKind, CollectiveReduceOp};
use symmc_ir::{CollectiveVariant, interp};
use symmc_runtime::exec::{CustomKernelRegistry, ExecConfig};

use crate::support::{check_against_interpreter, planned};

/// The number of ranks, the group of the collective under test, and the group that gathers its result.
const MESHES: [(u32, &str, &str); 5] = [
    (4, "[[0, 2], [1, 3]]", "[[0, 1], [2, 3]]"),
    (4, "[[3, 1], [0, 2]]", "[[2, 3], [1, 0]]"),
    (4, "[[0, 1, 2, 3]]", "[[1, 0], [2, 3]]"),
    (2, "[[0, 1]]", "[[1, 0]]"),
    (8, "[[0, 4], [5, 1], [2, 6], [3, 7]]", "[[0, 1, 2, 3], [7, 6, 5, 4]]"),
];

/// The name of a kind in a program, with the rows of its operand for results of `rows` rows.
fn spell_collective(kind: &CollectiveKind, rows: usize, n: usize) -> (String, usize) {
    match kind {
        CollectiveKind::AllReduce(_) => ("all_reduce %x op=sum".into(), rows),
        CollectiveKind::AllGather => ("all_gather %x".into(), rows / n),
        CollectiveKind::ReduceScatter(_) => ("reduce_scatter %x op=sum".into(), rows * n),
        CollectiveKind::AllToAll(_) => ("all_to_all %x splits=even".into(), rows),
        CollectiveKind::Broadcast { .. } => ("broadcast %x root=1".into(), rows),
        CollectiveKind::DispatchRows | CollectiveKind::CombineRows | CollectiveKind::ReduceRows => {
            unreachable!("they have operands that are results of a route")
        }
        CollectiveKind::Permute { .. } => ("permute_ranks %x pairs=[0->1, 1->0]".into(), rows),
    }
}

#[test]
fn peers_of_another_group_read_values_placed_by_rank() {
    let kinds = [
        CollectiveKind::AllReduce(CollectiveReduceOp::Sum),
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum),
        CollectiveKind::AllToAll(AllToAllSplits::Even),
        CollectiveKind::Broadcast { root: 1 },
        CollectiveKind::Permute { pairs: vec![(0, 1), (1, 0)] },
    ];
    let gathers = CollectiveVariant::ALL
        .iter()
        .filter(|v| v.contract(&CollectiveKind::AllGather).is_some_and(|c| c.in_place));
    let mut by_rank = 0;
    for ((ranks, group, outer), kind) in MESHES.iter().flat_map(|m| kinds.iter().map(move |k| (m, k))) {
        let size = |cells: &str| cells.split(']').next().map_or(0, |cell| cell.split(',').count());
        let (rows, n) = (16, size(group));
        let (op, from) = spell_collective(kind, rows, n);
        for via in CollectiveVariant::ALL.iter().filter(|v| v.contract(kind).is_some()) {
            for gather in gathers.clone() {
                let program = format!(
                    "program \"by rank\" ranks {ranks}\ngroup @g {group}\ngroup @h {outer}\n\
                     arg %x: i64[{from}, 16]\n%a: i64[{rows}, 16] = {op} group=@g via={via}\n\
                     %b: i64[{all}, 16] = all_gather %a group=@h via={gather}\n\
                     %c: i64[{all}, 16] = neg %b\nreturn %c\n",
                    all = rows * size(outer),
                );
                let planned = planned(&program);
                by_rank += usize::from(planned.plan.buckets[0].places["a"].by_rank.is_some());
                let none = (&CustomKernelRegistry::new(), &interp::ReferenceKernelRegistry::new());
                check_against_interpreter(&planned, none, ExecConfig::default(), &[], 2);
            }
        }
    }
    assert!(by_rank > 300, "{by_rank} values by rank");
}
