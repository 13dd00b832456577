//! Collectives of the library in windows: operands and results must have the same place on all ranks of a cell.

use symmc_check::{CheckError, check};
use symmc_ir::text;
use symmc_plan::{PerRankOffset, Plan};
use symmc_planner::{BucketInput, PlanConfig, plan};

/// A collective in a window, whose result another group gathers in place.
fn window_and_gather(ranks: u32, groups: [&str; 2], op: &str) -> Plan {
    let rows = 16 * groups[1].split(']').next().map_or(0, |cell| cell.split(',').count());
    let program = format!(
        "program \"p\" ranks {ranks}\ngroup @g {}\ngroup @h {}\narg %x: f32[16, 16]\n%k: f32[16, 16] = neg %x\n\
         %a: f32[16, 16] = {op} group=@g via=nccl_window\n%b: f32[{rows}, 16] = all_gather %a group=@h via=push\n\
         %c: f32[{rows}, 16] = neg %b\nreturn %c\n",
        groups[0], groups[1]
    );
    let graph = text::parse(&program).unwrap_or_else(|e| panic!("{e}\n{program}"));
    let bucket = BucketInput { graph: graph.clone(), decisions: Vec::new() };
    let plan = plan(&graph, &[bucket], &PlanConfig::default()).expect("plans");
    check(&plan).unwrap_or_else(|e| panic!("{e:?}"));
    plan
}

#[test]
fn window_values_have_one_offset_within_a_cell() {
    let (rows, columns) = ("[[0, 1], [2, 3]]", "[[0, 2], [1, 3]]");
    for op in ["all_reduce %k op=sum", "all_to_all %k splits=even"] {
        for (ranks, groups, by_rank) in [
            // The ranks of a column have one number in their rows.
            (4, [columns, rows], true),
            (4, [rows, rows], false),
            (4, ["[[0, 1, 2, 3]]", rows], false),
            (2, ["[[0, 1]]", "[[1, 0]]"], false),
        ] {
            let mut plan = window_and_gather(ranks, groups, op);
            let placement = &mut plan.buckets[0].places["a"];
            assert_eq!(placement.by_rank.is_some(), by_rank, "{op} on {groups:?}");
            // Place it by rank in its own group, in which each rank has another number.
            placement.by_rank = Some(PerRankOffset { group: "g".into(), stride: "1024".into() });
            let errors = check(&plan).expect_err("not at one place");
            let uneven = |e: &CheckError| matches!(e, CheckError::WindowUneven { value, .. } if value == "a");
            assert!(errors.iter().any(uneven) || !by_rank, "{op} on {groups:?}: {errors:#?}");
        }
    }
}

#[test]
fn window_gather_operand_lies_at_its_own_piece() {
    let program = "program \"p\" ranks 2\ngroup @g world\narg %x: f32[16, 16]\n%k: f32[16, 16] = neg %x\n\
         %a: f32[32, 16] = all_gather %k group=@g via=nccl_window\n%c: f32[32, 16] = neg %a\nreturn %c\n";
    let graph = text::parse(program).expect("parses");
    let bucket = BucketInput { graph: graph.clone(), decisions: Vec::new() };
    let plan = plan(&graph, &[bucket], &PlanConfig::default()).expect("plans");
    check(&plan).unwrap_or_else(|e| panic!("{e:?}"));
    assert!(plan.buckets[0].places["k"].by_rank.is_some());
}
