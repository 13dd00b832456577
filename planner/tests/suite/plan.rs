//! Small programs and the expected plans.
//!
//! A plan is written as one line per step: its number, `-` or `~` for the compute and the communication lane,
//! the node, its waits, the decision about a droppable exit barrier, and the places of its results with the
//! steps at which that memory is occupied. Places are `o` for the ordinary and `s` for the symmetric arena with
//! an offset, and `out`, `in` and `fixed` with an index.

use std::fmt::Write;

use symmc_check::{CheckError, check};
use symmc_ir::entity::Entity;
use symmc_ir::{Graph, InputId, text};
use symmc_plan::{
    ArenaKind, Bucket, CopyReason, ExitBarrier, FixedRole, Lane, MemoryRef, PeerReach, Plan, ValuePlacement,
};
use symmc_planner::{BucketInput, CollectiveChoice, OrderStrategy, PlanConfig, PlanError, plan};

use crate::common::plans_by_kept_barriers;
use crate::programs::narrowed;

const HEAD: &str = "program \"p\" ranks 4\ngroup @all world\ngroup @pairs [[0, 1], [2, 3]]\n\
                    group @cross [[0, 2], [1, 3]]\n";

fn graph(body: &str) -> Graph {
    text::parse(&format!("{HEAD}{body}")).unwrap_or_else(|e| panic!("{e}"))
}

/// Plans buckets. The source has the range that covers all of them.
fn try_plan(graphs: Vec<Graph>, config: &PlanConfig) -> Result<Plan, PlanError> {
    let mut source = graphs[0].clone();
    for (s, symbol) in graphs.iter().flat_map(|g| g.symbols.iter()) {
        let merged = &mut source.symbols[s];
        (merged.min, merged.max) = (merged.min.min(symbol.min), merged.max.max(symbol.max));
    }
    let buckets: Vec<BucketInput> =
        graphs.into_iter().map(|graph| BucketInput { graph, decisions: Vec::new() }).collect();
    plan(&source, &buckets, config)
}

/// Plans a program, whose node order is the best order unless stated otherwise, and checks the plan.
fn planned(body: &str) -> Plan {
    planned_with(vec![graph(body)], &PlanConfig::default())
}

/// The plan of a program with its steps in program order.
fn planned_in_order(body: &str) -> Plan {
    planned_with(vec![graph(body)], &PlanConfig { order: OrderStrategy::Program, ..PlanConfig::default() })
}

fn planned_with(graphs: Vec<Graph>, config: &PlanConfig) -> Plan {
    let plan = try_plan(graphs, config).unwrap_or_else(|e| panic!("{e}"));
    let errors = check(&plan).err().unwrap_or_default();
    assert!(errors.is_empty(), "{errors:#?}\n{}", plan.to_json());
    plan
}

fn place_text(bucket: &Bucket, place: &ValuePlacement) -> String {
    let mut out = match place.memory {
        MemoryRef::Buffer(b) => {
            let b = &bucket.buffers[b];
            let arena = if b.arena == ArenaKind::Ordinary { "o" } else { "s" };
            format!("{arena}{} [{}..{}]", b.offset, b.first, b.last)
        }
        MemoryRef::Fixed(f) => format!("fixed{f}"),
        MemoryRef::Input(i) => format!("in{i}"),
        MemoryRef::Output(k) => format!("out{k}"),
    };
    if place.offset != "0" {
        let _ = write!(out, " +{}", place.offset);
    }
    if let Some(by) = &place.by_rank {
        let _ = write!(out, " +{} by rank of {}", by.stride, by.group);
    }
    out
}

/// The steps of the first bucket.
fn steps(plan: &Plan) -> String {
    let bucket = &plan.buckets[0];
    let program = text::parse(&plan.programs[bucket.program]).expect("a planned program parses");
    let names = program.values_by_name();
    let mut out = String::new();
    for (s, step) in bucket.steps.iter().enumerate() {
        let lane = if step.lane == Lane::Compute { "-" } else { "~" };
        let _ = write!(out, "{s} {lane} {}", step.node);
        for w in &step.waits {
            let _ = write!(out, " after {w}");
        }
        match step.exit {
            Some(ExitBarrier::Dropped) => out.push_str(" dropped"),
            Some(ExitBarrier::Kept) => out.push_str(" kept"),
            None => {}
        }
        let node = program.defining_node(names[step.node.as_str()]).expect("a node");
        for &v in &program.nodes[node].outputs {
            let _ = write!(out, " = {}", place_text(bucket, &bucket.places[program.value_name(v)]));
        }
        out.push('\n');
    }
    out
}

#[track_caller]
fn expect(plan: &Plan, expected: &str) {
    let lines =
        |text: &str| text.lines().map(|l| l.trim().to_string()).filter(|l| !l.is_empty()).collect::<Vec<_>>();
    assert_eq!(lines(&steps(plan)), lines(expected), "{}", steps(plan));
}

fn place_of<'a>(plan: &'a Plan, value: &str) -> &'a ValuePlacement {
    &plan.buckets[0].places[value]
}

/// All-reduces of one size, one after another, each with a product before it.
fn chain(variants: &[&str]) -> String {
    let mut body = String::from("arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n");
    let mut last_value = "x".to_string();
    for (i, variant) in variants.iter().enumerate() {
        let _ = writeln!(body, "%a{i}: f32[16, 16] = matmul %{last_value}, %w");
        let _ = writeln!(body, "%r{i}: f32[16, 16] = all_reduce %a{i} op=sum group={variant}");
        last_value = format!("r{i}");
    }
    body + &format!("return %{last_value}\n")
}

#[test]
fn a_dropped_operand_outlives_the_next_operand() {
    // One-shot operands take two places in turn: a1 may not lie where a0 is read until r1 has met. a1 is
    // read until r0 of the next run has met, which comes before a1 is written again.
    let p = planned(&chain(&["@all via=one_shot", "@all via=one_shot"]));
    expect(
        &p,
        "0 - a0 = s0 [0..2]
         1 - r0 dropped = o0 [1..2]
         2 - a1 = s1024 [2..0]
         3 - r1 dropped = out0",
    );
    let reach: Vec<PeerReach> = p.buckets[0].buffers.iter().map(|b| b.reach).collect();
    assert_eq!(reach, [PeerReach::Read, PeerReach::Local, PeerReach::Read]);
    assert_eq!(p.buckets[0].totals.barriers_dropped, 2);
}

#[test]
fn an_odd_number_of_turns_keeps_one_barrier() {
    // Three operands that are each alive together with both others would need three places across runs.
    let p = planned(&chain(&["@all via=one_shot", "@all via=one_shot", "@all via=one_shot"]));
    let t = p.buckets[0].totals;
    assert_eq!((t.barriers_dropped, t.barriers_kept), (2, 1));
    assert_eq!((t.symmetric_peak, t.symmetric_bound), (2048, 2048));
}

#[test]
fn results_of_the_rendezvous_may_take_the_bytes() {
    // r1 is written after its rendezvous, when all peers have left r0, so it lies where a0 was read.
    let p = planned(
        "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n\
         %a0: f32[16, 16] = matmul %x, %w\n\
         %r0: f32[16, 16] = all_reduce %a0 op=sum group=@all via=one_shot\n\
         %a1: f32[16, 16] = matmul %r0, %w\n\
         %r1: f32[16, 16] = all_to_all %a1 splits=even group=@all via=push\n\
         %z: f32[16, 16] = matmul %r1, %w\nreturn %z\n",
    );
    expect(
        &p,
        "0 - a0 = s0 [0..2]
         1 - r0 dropped = o0 [1..2]
         2 - a1 = o1024 [2..3]
         3 - r1 = s0 [3..4]
         4 - z = out0",
    );
}

/// Two collectives. With this variant the second writes an operand of a third.
fn rendezvous_through(variant: &str) -> String {
    format!(
        "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n\
         %a0: f32[16, 16] = matmul %x, %w\n\
         %r0: f32[16, 16] = all_reduce %a0 op=sum group=@all via=one_shot\n\
         %a1: f32[16, 16] = matmul %r0, %w\n\
         %r1: f32[16, 16] = all_to_all %a1 splits=even group=@all via={variant}\n\
         %z: f32[16, 16] = matmul %r1, %w\n\
         %r2: f32[16, 16] = all_reduce %r1 op=sum group=@all via=two_shot\nreturn %z, %r2\n"
    )
}

#[test]
fn library_writes_wait_for_the_whole_rendezvous() {
    // The library may write a piece of r1 as soon as one peer has arrived, while another still reads a0. The
    // bytes that a push may take are not free for it.
    let pushed = planned_in_order(&rendezvous_through("push"));
    let plain = planned_in_order(&rendezvous_through("plain"));
    let location = |p: &Plan, value: &str| match place_of(p, value).memory {
        MemoryRef::Buffer(i) => (p.buckets[0].buffers[i].arena, p.buckets[0].buffers[i].offset),
        ref memory => panic!("%{value} lies in {memory:?}"),
    };
    assert_eq!(location(&pushed, "a0"), location(&pushed, "r1"), "after the rendezvous");
    assert_ne!(location(&plain, "a0"), location(&plain, "r1"), "from the arrival on");
    // The check distinguishes the two by the variant alone.
    let mut wrong = pushed.clone();
    for program in wrong.programs.iter_mut() {
        *program = program.replace("via=push", "via=plain");
    }
    let errors = check(&wrong).expect_err("peers still read a0");
    assert!(errors.iter().any(|e| matches!(e, CheckError::Race { .. })), "{errors:?}");
}

#[test]
fn a_lone_collective_keeps_its_barrier() {
    // The collective meets itself only after its operand is written again.
    expect(
        &planned(&chain(&["@all via=one_shot"])),
        "0 - a0 = s0 [0..1]
         1 - r0 kept = out0",
    );
}

/// One-shot all-reduces of operands with these numbers of rows of 256 bytes.
fn rows(rows: &[usize]) -> String {
    let mut body = String::from("param %w: f32[64, 64]\n");
    let mut returned = Vec::new();
    for (i, rows) in rows.iter().enumerate() {
        body.insert_str(0, &format!("arg %x{i}: f32[{rows}, 64]\n"));
        let _ = writeln!(body, "%a{i}: f32[{rows}, 64] = matmul %x{i}, %w");
        let _ = writeln!(body, "%r{i}: f32[{rows}, 64] = all_reduce %a{i} op=sum group=@all via=one_shot");
        returned.push(format!("%r{i}"));
    }
    body + &format!("return {}\n", returned.join(", "))
}

#[test]
fn barriers_are_kept_where_dropping_exceeds_the_limit() {
    let body = rows(&[64, 64, 16, 16, 16]);
    let config = PlanConfig { order: OrderStrategy::Program, ..PlanConfig::default() };
    let bucket = BucketInput { graph: graph(&body), decisions: Vec::new() };
    let plans = plans_by_kept_barriers(&bucket.graph, std::slice::from_ref(&bucket), &config);
    let within = |most: u64| plans.iter().find(|p| p.arenas.symmetric <= most).expect("a plan");
    let exits = |p: &Plan| -> Vec<(ExitBarrier, Option<u64>)> {
        p.buckets[0].steps.iter().filter_map(|s| Some((s.exit?, s.exit_bytes))).collect()
    };
    let sizes = |p: &Plan| (p.arenas.symmetric, p.buckets[0].totals.barrier_bytes);
    let (large, small) = (64 * 64 * 4, 16 * 64 * 4);
    // Each operand stays until the next has been reduced, so two of the large ones are alive together.
    let free = &plans[0];
    assert_eq!(sizes(free), (2 * large, large), "{}", steps(free));
    assert!(exits(free).iter().all(|e| e.0 == ExitBarrier::Dropped), "{}", steps(free));
    // One barrier between the large operands is enough for the small ones in between.
    let tight = within(large + small);
    assert_eq!(sizes(tight).0, large + small, "{}", steps(tight));
    let kept_exits: Vec<_> = exits(tight).into_iter().filter(|e| e.0 == ExitBarrier::Kept).collect();
    assert_eq!(kept_exits, [(ExitBarrier::Kept, Some(large - small))], "{}", steps(tight));
    // If no barrier next to the large operands is dropped, each is alive alone.
    let smallest = within(large);
    assert_eq!(sizes(smallest), (large, 0), "{}", steps(smallest));
    let dropped = exits(smallest).iter().filter(|e| e.0 == ExitBarrier::Dropped).count();
    assert!(dropped >= 2, "the small ones lie side by side in as much: {}", steps(smallest));
    assert!(plans.iter().all(|p| p.arenas.symmetric >= large));
    for plan in &plans {
        check(plan).unwrap_or_else(|e| panic!("{e:?}"));
    }
}

#[test]
fn only_a_rendezvous_of_all_peers_counts() {
    // A group of pairs does not meet the whole world; the world meets the pairs.
    let small_then_large = planned(&chain(&["@pairs via=one_shot", "@all via=plain", "@pairs via=plain"]));
    let exit = |p: &Plan, s: usize| p.buckets[0].steps[s].exit;
    assert_eq!(exit(&small_then_large, 1), Some(ExitBarrier::Dropped));
    let large_then_small = planned(&chain(&["@all via=one_shot", "@pairs via=plain"]));
    assert_eq!(exit(&large_then_small, 1), Some(ExitBarrier::Kept));
    let crossed = planned(&chain(&["@pairs via=one_shot", "@cross via=plain"]));
    assert_eq!(exit(&crossed, 1), Some(ExitBarrier::Kept));
}

#[test]
fn a_broadcast_does_not_meet() {
    let p = planned(
        "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n\
         %a: f32[16, 16] = matmul %x, %w\n\
         %r: f32[16, 16] = all_reduce %a op=sum group=@all via=one_shot\n\
         %b: f32[16, 16] = broadcast %r root=0 group=@all via=plain\n\
         return %b\n",
    );
    assert_eq!(p.buckets[0].steps[1].exit, Some(ExitBarrier::Kept));
}

#[test]
fn put_writes_symmetric_memory_without_a_rendezvous() {
    // The operand stays in place. Of a returned result only the copy leaves the arena.
    let p = planned(
        "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n\
         %a: f32[16, 16] = matmul %x, %w\n\
         %r: f32[16, 16] = all_reduce %a op=sum group=@all via=one_shot\n\
         %b: f32[16, 16] = broadcast %r root=0 group=@all via=put\n\
         %c: f32[16, 16] = matmul %b, %w\n\
         %d: f32[16, 16] = permute_ranks %c pairs=[0->1, 1->2] group=@all via=put\n\
         return %d\n",
    );
    expect(
        &p,
        "0 - a = s0 [0..1]
         1 - r kept = o0 [1..2]
         2 - b = s0 [2..3]
         3 - c = o0 [3..4]
         4 - d = s0 [4..5]
         5 - d.out = out0",
    );
    let reach: Vec<PeerReach> = p.buckets[0].buffers.iter().map(|b| b.reach).collect();
    assert_eq!(
        reach,
        [PeerReach::Read, PeerReach::Local, PeerReach::Written, PeerReach::Local, PeerReach::Written]
    );
    // An input is sent from its own place.
    let p = planned(
        "arg %x: f32[16, 16]\n%y: f32[16, 16] = broadcast %x root=1 group=@pairs via=put\nreturn %y\n",
    );
    expect(&p, "0 - y = s0 [0..1]\n1 - y.out = out0");
}

#[test]
fn with_several_buckets_the_last_barrier_stays() {
    let mut body = chain(&["@all via=one_shot", "@all via=one_shot"]);
    body = body.replace("arg %x: f32[16, 16]", "symbol t in 1..=64\narg %x: f32[t, 16]");
    for i in 0..2 {
        body = body.replace(&format!("%a{i}: f32[16, 16]"), &format!("%a{i}: f32[t, 16]"));
        body = body.replace(&format!("%r{i}: f32[16, 16]"), &format!("%r{i}: f32[t, 16]"));
    }
    let p = planned_with(narrowed(&graph(&body), &[(1, 16), (17, 64)]), &PlanConfig::default());
    assert_eq!(p.programs.len(), 1, "equal programs are kept once");
    for bucket in &p.buckets {
        let exits: Vec<Option<ExitBarrier>> = bucket.steps.iter().map(|s| s.exit).collect();
        assert_eq!(exits, [None, Some(ExitBarrier::Dropped), None, Some(ExitBarrier::Kept)]);
    }
    // Sizes are those of each bucket's upper bound, the arenas those of the larger one.
    let sizes: Vec<u64> = p.buckets.iter().map(|b| b.buffers[0].size).collect();
    assert_eq!(sizes, [16 * 16 * 4, 64 * 16 * 4]);
    assert_eq!((p.arenas.symmetric, p.arenas.ordinary), (8192, 4096));
    assert!(p.programs[0].contains("symbol t in 1..=64"), "{}", p.programs[0]);
}

#[test]
fn ll_collectives_share_two_landing_zones() {
    let body = "arg %x: f32[16, 16]\n\
         %s: f32[4, 16] = slice %x axis=0 start=0 step=1\n\
         %n: f32[4, 16] = neg %s\n\
         %a: f32[4, 16] = all_reduce %n op=sum group=@all via=ll\n\
         %r: f32[16, 16] = all_reduce %x op=sum group=@all via=ll\n\
         %q: f32[4, 16] = all_reduce %a op=sum group=@pairs via=ll\n\
         return %q\nreturn %r\n";
    let p = planned(body);
    let fixed: Vec<(FixedRole, u64, u64)> =
        p.fixed.iter().map(|f| (f.role.clone(), f.offset, f.size)).collect();
    let zone = |group: &str, zone| FixedRole::Landing { group: group.into(), zone };
    // Eight bytes carry four, and every rank has a slot: 1024 bytes from four ranks, 256 from two.
    assert_eq!(
        fixed,
        [
            (zone("all", 0), 0, 8192),
            (zone("all", 1), 8192, 8192),
            (zone("pairs", 0), 16384, 1024),
            (zone("pairs", 1), 17408, 1024)
        ]
    );
    assert_eq!(p.arenas.symmetric, 20480);
    assert_eq!(p.buckets[0].totals.symmetric_bound, 18432);
}

const PULLED_INPUTS: &str = "param %w: f32[16, 16] source \"w\"\narg %x: f32[16, 16]\n\
    %v: f32[8, 32] = reshape %x\n\
    %a: f32[16, 16] = all_reduce %w op=sum group=@all via=one_shot\n\
    %b: f32[8, 32] = all_reduce %v op=sum group=@all via=one_shot\n\
    %c: f32[32, 32] = all_gather %v group=@all via=pull\n\
    return %a\nreturn %b\nreturn %c\n";

#[test]
fn parameters_are_bound_and_arguments_copied() {
    let p = planned(PULLED_INPUTS);
    assert_eq!(p.fixed.iter().map(|f| f.role.clone()).collect::<Vec<_>>(), [FixedRole::Bound { input: 0 }]);
    assert_eq!(place_of(&p, "w").memory, MemoryRef::Fixed(0));
    assert_eq!(place_of(&p, "x").memory, MemoryRef::Input(1));
    let copies = &p.buckets[0].copies;
    assert_eq!(copies.len(), 1, "one copy serves both collectives: {copies:?}");
    assert_eq!(
        (copies[0].reason, copies[0].bytes, copies[0].bind),
        (CopyReason::SymmetricInput, 1024, Some(1))
    );
    assert_eq!((copies[0].node.as_str(), copies[0].of.as_str()), ("v.symmetric", "v"));
    let t = p.buckets[0].totals;
    assert_eq!((t.copies, t.copied), (1, 1024));
}

#[test]
fn bound_argument_needs_only_its_last_barrier() {
    let bind = [InputId::new(1)].into_iter().collect();
    let p = planned_with(vec![graph(PULLED_INPUTS)], &PlanConfig { bind, ..PlanConfig::default() });
    assert!(p.buckets[0].copies.is_empty());
    assert_eq!(place_of(&p, "x").memory, MemoryRef::Fixed(1));
    let exits: Vec<Option<ExitBarrier>> = p.buckets[0].steps.iter().map(|s| s.exit).collect();
    // The parameter is never overwritten, and the argument's second reader meets its first. Peers must have
    // left the second reader before the caller writes the argument again.
    assert_eq!(exits, [Some(ExitBarrier::Dropped), Some(ExitBarrier::Dropped), Some(ExitBarrier::Kept)]);
}

#[test]
fn operands_unreadable_in_one_range_are_copied() {
    let p = planned(
        "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n\
         %h: f32[16, 16] = matmul %x, %w\n\
         %t: f32[16, 16] = permute %h perm=[1, 0]\n\
         %a: f32[16, 16] = all_reduce %t op=sum group=@all via=plain\n\
         %f: f32[256] = reshape %h\n\
         %s: f32[64] = slice %f axis=0 start=1 step=1\n\
         %b: f32[64] = all_reduce %s op=sum group=@all via=one_shot\n\
         %u: f32[64] = slice %f axis=0 start=4 step=1\n\
         %c: f32[64] = all_reduce %u op=sum group=@all via=one_shot\n\
         return %a\nreturn %b\nreturn %c\n",
    );
    let copies: Vec<(&str, CopyReason)> =
        p.buckets[0].copies.iter().map(|c| (c.of.as_str(), c.reason)).collect();
    assert_eq!(copies, [("t", CopyReason::Contiguous), ("s", CopyReason::Contiguous)]);
    // u is aligned, so peers read all of h in place.
    let MemoryRef::Buffer(h) = place_of(&p, "h").memory else { panic!() };
    assert_eq!(p.buckets[0].buffers[h].arena, ArenaKind::Symmetric);
}

#[test]
fn an_operand_is_gathered_where_it_is_produced() {
    let p = planned_in_order(
        "arg %x: f32[4, 16]\n%n: f32[4, 16] = neg %x\n\
         %g: f32[16, 16] = all_gather %n group=@all via=push\n%e: f32[16, 16] = exp %g\n\
         %h: f32[4, 16] = relu %x\n%f: f32[8, 16] = all_gather %h group=@pairs via=plain\n\
         return %e\nreturn %f\n",
    );
    assert_eq!(place_text(&p.buckets[0], place_of(&p, "n")), "s0 [0..2] +256 by rank of all");
    assert_eq!(place_text(&p.buckets[0], place_of(&p, "g")), "s0 [0..2]");
    assert_eq!(place_text(&p.buckets[0], place_of(&p, "h")), "out1 +256 by rank of pairs");
    assert_eq!(place_of(&p, "h").why, "this rank's piece of %f");
}

#[test]
fn a_result_does_not_become_symmetric_for_its_piece() {
    let p = planned(
        "arg %x: f32[4, 16]\n%n: f32[4, 16] = neg %x\n\
         %g: f32[16, 16] = all_gather %n group=@all via=pull\n%e: f32[16, 16] = exp %g\nreturn %e\n",
    );
    expect(
        &p,
        "0 - n = s0 [0..1]
         1 - g kept = out0
         2 - e = out0",
    );
}

#[test]
fn operand_with_later_readers_is_not_gathered_in_place() {
    let p = planned(
        "arg %x: f32[4, 16]\n%n: f32[4, 16] = neg %x\n\
         %g: f32[16, 16] = all_gather %n group=@all via=plain\n\
         %s: f32[4, 16] = slice %g axis=0 start=0 step=1\n\
         %m: f32[4, 16] = add %n, %s\n\
         %i: f32[16, 16] = all_gather %x group=@all via=plain\n\
         return %m\nreturn %i\n",
    );
    assert!(p.buckets[0].places.values().all(|p| p.by_rank.is_none()), "{}", steps(&p));
}

#[test]
fn pieces_lie_inside_their_concatenation() {
    let p = planned(
        "symbol t in 1..=8\narg %x: f32[t, 16]\n%a: f32[t, 16] = neg %x\n%b: f32[t, 16] = exp %x\n\
         %c: f32[3*t, 16] = concat %a, %x, %b axis=0\n\
         %d: f32[t, 16] = exp %b\n\
         %e: f32[2*t, 16] = concat %d, %d axis=0\n\
         %f: f32[t, 16] = tanh %x\n%g: f32[t, 32] = concat %f, %f axis=1\n\
         return %c\nreturn %e\nreturn %g\n",
    );
    assert_eq!(place_text(&p.buckets[0], place_of(&p, "a")), "out0");
    assert_eq!(place_of(&p, "a").why, "a piece of %c");
    // b is read after c, where it stays; d can lie at one of its two places; f is strided inside g.
    assert_eq!(place_text(&p.buckets[0], place_of(&p, "b")), "out0 +128*t");
    assert_eq!(place_text(&p.buckets[0], place_of(&p, "d")), "out1");
    assert!(matches!(place_of(&p, "f").memory, MemoryRef::Buffer(_)));
    let late = planned(
        "symbol t in 1..=8\narg %x: f32[t, 16]\n%a: f32[t, 16] = neg %x\n%b: f32[t, 16] = exp %a\n\
         %c: f32[2*t, 16] = concat %x, %b axis=0\nreturn %c\n",
    );
    assert_eq!(place_text(&late.buckets[0], place_of(&late, "b")), "out0 +64*t");
}

#[test]
fn element_wise_results_overwrite_operands_that_die() {
    let p = planned(
        "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n%h: f32[16, 16] = matmul %x, %w\n\
         %a: f32[16, 16] = relu %h\n%f: f32[256] = reshape %a\n%b: f32[256] = exp %f\n\
         %i: i32[256] = cast %b\n%m: bool[256] = gt %i, 0\n\
         return %m\n",
    );
    expect(
        &p,
        "0 - h = o0 [0..4]
         1 - a = o0 [0..4]
         2 - b = o0 [0..4]
         3 - i = o0 [0..4]
         4 - m = out0",
    );
    assert_eq!(place_of(&p, "b").why, "over %a, which nothing needs any more");
}

#[test]
fn rows_and_stores_are_written_over_the_first_operand() {
    let p = planned(
        "arg %x: f32[16, 16]\narg %at: i64[4]\nparam %w: f32[16, 16]\n%h: f32[16, 16] = matmul %x, %w\n\
         %s: f32[16, 16] = softmax %h axis=1 log=false\n%g: f32[16] = reduce %x op=sum axes=[0] keep=false\n\
         %n: f32[16, 16] = rms_norm %s, %g axes=1 eps=1e-5 round_first=false\n\
         %l: f32[16, 16] = layer_norm %n axes=1 eps=1e-5\n%c: f32[16, 16] = cumsum %l axis=0\n\
         %r: f32[4, 16] = slice %x axis=0 start=0 step=1\n\
         %p: f32[16, 16] = index_put %c, %r, %at axis=0 accumulate=false\n\
         %q: f32[16, 16] = index_add %p, %at, %r axis=0\n%z: f32[16, 16] = matmul %q, %w\nreturn %z\n",
    );
    let memory = |v: &str| place_of(&p, v).memory;
    for v in ["s", "n", "l", "c", "p", "q"] {
        assert_eq!(memory(v), memory("h"), "{v}\n{}", steps(&p));
    }
    assert_eq!(place_of(&p, "q").why, "over %p, which nothing needs any more");
    // An input that is read at other positions or at other times than it is written stays in its own memory.
    let p = planned(
        "arg %x: f32[16]\narg %at: i64[16]\n%h: f32[16] = relu %x\n\
         %n: f32[16] = layer_norm %h, %h axes=1 eps=1e-5\n%k: f32[16] = exp %n\n\
         %u: f32[16] = index_add %n, %at, %k axis=0\n%o: f32[16] = index_add %x, %at, %u axis=0\nreturn %o\n",
    );
    let memory = |v: &str| place_of(&p, v).memory;
    assert_ne!(memory("n"), memory("h"), "its weight is the operand too\n{}", steps(&p));
    assert_ne!(memory("u"), memory("k"), "{}", steps(&p));
    assert_ne!(memory("o"), memory("u"), "{}", steps(&p));
}

#[test]
fn outputs_are_written_over_the_inputs_that_they_replace() {
    let cache = |rest: &str| {
        planned(&format!(
            "arg %x: f32[2, 16]\narg %at: i64[2]\nparam %cache: f32[64, 16]\nparam %w: f32[16, 16]\n\
             %p: f32[64, 16] = index_put %cache, %x, %at axis=0 accumulate=false\n\
             %q: f32[64, 16] = index_add %p, %at, %x axis=0\n{rest}return %z\nmutate %cache = %q\n"
        ))
    };
    let place_of_value = |p: &Plan, v: &str| place_text(&p.buckets[0], place_of(p, v));
    let p = cache("%z: f32[64, 16] = matmul %q, %w\n");
    assert_eq!(["cache", "p", "q"].map(|v| place_of_value(&p, v)), ["out1", "out1", "out1"], "{}", steps(&p));
    assert!(p.buckets[0].buffers.is_empty() && p.buckets[0].copies.is_empty());
    assert_eq!(place_of(&p, "p").why, "over %cache, which nothing needs any more");
    // An input that is read together with the new value stays in the caller's memory.
    let p = cache("%z: f32[64, 16] = sub %q, %cache\n");
    assert_eq!(["cache", "p", "q"].map(|v| place_of_value(&p, v)), ["in2", "out1", "out1"], "{}", steps(&p));
    let p = planned(
        "param %s: f32[16, 16]\n%t: f32[16, 16] = permute %s perm=[1, 0]\n%n: f32[16, 16] = add %s, %t\n\
         mutate %s = %n\n",
    );
    assert_eq!(place_of_value(&p, "s"), "in0", "{}", steps(&p));
    // A collective that reads the input may be in flight, unless the new value waits for it.
    let reduced = |beside: &str| {
        planned(&format!(
            "arg %x: f32[16, 16]\nparam %s: f32[16, 16]\n\
             %r: f32[16, 16] = all_reduce %s op=sum group=@all via=plain\n\
             %n: f32[16, 16] = add %s, %{beside}\nreturn %r\nmutate %s = %n\n"
        ))
    };
    assert_eq!(place_of_value(&reduced("x"), "s"), "in1");
    assert_eq!(place_of_value(&reduced("r"), "s"), "out1");
    expect(&reduced("r"), "0 - r = out0\n1 - n = out1");
}

#[test]
fn a_broadcast_is_written_over_its_operand() {
    let with = |via| {
        planned(&format!(
            "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n%h: f32[16, 16] = matmul %x, %w\n\
             %b: f32[16, 16] = broadcast %h root=1 group=@pairs via={via}\n\
             %p: f32[16, 16] = permute_ranks %b pairs=[0->1, 1->0] group=@pairs via={via}\n\
             %z: f32[16, 16] = matmul %p, %w\nreturn %z\n"
        ))
    };
    let plain = with("plain");
    let memory = |v: &str| place_of(&plain, v).memory;
    assert_eq!(memory("b"), memory("h"), "{}", steps(&plain));
    // A rank may be written to before its own operand is sent.
    assert_ne!(memory("p"), memory("b"), "{}", steps(&plain));
    // Only the destination of a put is symmetric. The sent operand stays in place.
    let stored = with("put");
    assert_ne!(place_of(&stored, "b").memory, place_of(&stored, "h").memory, "{}", steps(&stored));
}

#[test]
fn an_operand_that_is_read_otherwise_is_not_overwritten() {
    let p = planned(
        "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n%h: f32[16, 16] = matmul %x, %w\n\
         %t: f32[16, 16] = permute %h perm=[1, 0]\n\
         %a: f32[16, 16] = add %h, %t\n\
         %r: f32[1, 16] = slice %a axis=0 start=0 step=1\n\
         %b: f32[16, 16] = add %a, %r\n\
         %k: f32[16, 16] = relu %b\n\
         %l: f32[16, 16] = add %k, %b\n\
         %z: f32[16, 16] = matmul %l, %w\nreturn %z\n",
    );
    let memory = |v: &str| place_of(&p, v).memory;
    assert_ne!(memory("h"), memory("a"), "its transpose is an operand too");
    assert_ne!(memory("a"), memory("b"), "its first row is an operand too");
    assert_ne!(memory("b"), memory("k"), "it is read later");
    assert!(memory("k") == memory("l") || memory("b") == memory("l"));
}

#[test]
fn an_operand_that_peers_still_read_is_not_overwritten() {
    let p = planned(
        "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n%h: f32[16, 16] = matmul %x, %w\n\
         %r: f32[16, 16] = all_reduce %h op=sum group=@all via=one_shot\n\
         %a: f32[16, 16] = add %r, %h\n\
         %s: f32[16, 16] = all_reduce %a op=sum group=@all via=one_shot\n\
         %c: f32[16, 16] = add %s, %a\nreturn %c\n",
    );
    assert_ne!(place_of(&p, "h").memory, place_of(&p, "a").memory);
    assert_eq!(p.buckets[0].steps[1].exit, Some(ExitBarrier::Dropped));
}

#[test]
fn all_reduce_overwrites_its_operand_where_the_variant_allows() {
    let two_shot = planned(&chain(&["@all via=two_shot", "@all via=two_shot", "@all via=plain"]));
    expect(
        &two_shot,
        "0 - a0 = s0 [0..2]
         1 - r0 = s0 [0..2]
         2 - a1 = s1024 [2..4]
         3 - r1 = s1024 [2..4]
         4 - a2 = out0
         5 - r2 = out0",
    );
}

#[test]
fn outputs_are_written_in_place_or_copied() {
    let p = planned(
        "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n%h: f32[16, 16] = matmul %x, %w\n\
         %v: f32[256] = reshape %h\n%k: f32[16, 16] = matmul %h, %w\n\
         %g: f32[16, 16] = all_reduce %k op=sum group=@all via=two_shot\n\
         %q: f32[16, 16] = relu %x\n\
         return %x\nreturn %v\nreturn %g\nreturn %q\nreturn %q\n",
    );
    let copies: Vec<&str> = p.buckets[0].copies.iter().map(|c| c.of.as_str()).collect();
    // h is produced in output 1, so returning its view moves nothing.
    assert_eq!(place_text(&p.buckets[0], place_of(&p, "h")), "out1");
    assert_eq!(place_text(&p.buckets[0], place_of(&p, "v.out")), "out1");
    assert_eq!(place_text(&p.buckets[0], place_of(&p, "q")), "out3");
    let mut copies = copies;
    copies.sort_unstable();
    assert_eq!(copies, ["g", "q", "x"]);
}

#[test]
fn part_of_an_output_is_copied_for_peers() {
    let p = planned(
        "arg %x: f32[16, 16]\nparam %w: f32[16, 16]\n%h: f32[16, 16] = matmul %x, %w\n\
         %s: f32[4, 16] = slice %h axis=0 start=4 step=1\n\
         %a: f32[4, 16] = all_reduce %s op=sum group=@all via=one_shot\nreturn %h\nreturn %a\n",
    );
    assert_eq!(place_text(&p.buckets[0], place_of(&p, "h")), "out0");
    let copies = &p.buckets[0].copies;
    assert_eq!((copies.len(), copies[0].reason, copies[0].bytes), (1, CopyReason::SymmetricOutput, 256));
}

const INDEPENDENT: &str = "arg %x: f32[64, 64]\nparam %w: f32[64, 64]\n\
    %a: f32[64, 64] = matmul %x, %w\n\
    %r: f32[64, 64] = all_reduce %a op=sum group=@all via=plain\n\
    %u: f32[64, 64] = matmul %r, %w\n\
    %i: f32[64, 64] = matmul %x, %w\n\
    %j: f32[64, 64] = matmul %i, %w\n\
    %z: f32[64, 64] = add %u, %j\nreturn %z\n";

#[test]
fn overlap_stays_within_the_budget() {
    let p = planned_with(vec![graph(INDEPENDENT)], &PlanConfig { slack: 0.05, ..PlanConfig::default() });
    let order: Vec<&str> = p.buckets[0].steps.iter().map(|s| s.node.as_str()).collect();
    // One product next to the collective takes the place that a user of both would take. Two products need a
    // third more memory.
    assert_eq!(order, ["a", "r", "i", "u", "j", "z"]);
}

#[test]
fn independent_work_runs_between_a_collective_and_its_user() {
    let p = planned_with(vec![graph(INDEPENDENT)], &PlanConfig { slack: 1.0, ..PlanConfig::default() });
    let order: Vec<&str> = p.buckets[0].steps.iter().map(|s| s.node.as_str()).collect();
    let position = |n: &str| order.iter().position(|s| *s == n).expect(n);
    assert!(position("r") < position("i") && position("i") < position("u"), "{order:?}");
    // The user of the collective waits, and the work between does not.
    for (s, step) in p.buckets[0].steps.iter().enumerate() {
        let expected = match order[s] {
            "r" => vec![position("a")],
            "u" => vec![position("r")],
            _ => vec![],
        };
        assert_eq!(step.waits, expected, "{}", steps(&p));
    }
    // The operand and result of the collective stay occupied while it may be in flight.
    let MemoryRef::Buffer(b) = place_of(&p, "a").memory else { panic!() };
    assert!(p.buckets[0].buffers[b].last + 1 >= position("u"), "{}", steps(&p));
}

/// Only the reduce-scatters of four products remain, and no step waits for them.
const UNAWAITED: &str = "arg %x: f32[64, 64]\nparam %w: f32[64, 64]\n\
    %a: f32[64, 64] = matmul %x, %w\n%ra: f32[16, 64] = reduce_scatter %a op=sum group=@all via=plain\n\
    %b: f32[64, 64] = matmul %x, %w\n%rb: f32[16, 64] = reduce_scatter %b op=sum group=@all via=plain\n\
    %c: f32[64, 64] = matmul %x, %w\n%rc: f32[16, 64] = reduce_scatter %c op=sum group=@all via=plain\n\
    %d: f32[64, 64] = matmul %x, %w\n%rd: f32[16, 64] = reduce_scatter %d op=sum group=@all via=plain\n\
    return %ra, %rb, %rc, %rd\n";

#[test]
fn unawaited_collectives_are_awaited_before_memory_reuse() {
    let with = |slack| planned_with(vec![graph(UNAWAITED)], &PlanConfig { slack, ..PlanConfig::default() });
    let bound = |p: &Plan| p.buckets[0].totals.ordinary_bound / (64 * 64 * 4);
    let concurrent = |p: &Plan| p.buckets[0].steps.iter().filter(|s| s.lane == Lane::Comm).count();
    // Each product takes the bytes of the one before, and waits until that is scattered.
    let (lean, half, free) = (with(0.0), with(1.0), with(3.0));
    assert_eq!((bound(&lean), concurrent(&lean)), (1, 0), "{}", steps(&lean));
    // With twice the memory the next product is computed meanwhile. With more memory more collectives are in
    // flight. No more memory is taken than helps.
    assert_eq!((bound(&half), concurrent(&half)), (2, 1), "{}", steps(&half));
    assert!(bound(&free) < 4 && concurrent(&free) > 1, "{}", steps(&free));
}

#[test]
fn decisions_stand_in_order_of_the_steps() {
    use symmc_plan::{Decision, DecisionAlternative};
    let alternative =
        DecisionAlternative { name: "plain".into(), us: 1.000_049_9, copy_us: 0.0, saved_us: 0.0 };
    let decided = |node: &str, blocks| CollectiveChoice {
        decision: Decision {
            collective: node.into(),
            nodes: vec![node.into()],
            chosen: "plain".into(),
            bytes: 1024,
            alternatives: vec![alternative.clone()],
            rules: vec![],
        },
        blocks: vec![blocks],
    };
    let g = graph(&chain(&["@all via=plain", "@all via=plain"]));
    let input =
        BucketInput { graph: g.clone(), decisions: vec![decided("r1", Some(8)), decided("r0", None)] };
    let p = plan(&g, &[input], &PlanConfig::default()).expect("plans");
    let order: Vec<&str> = p.buckets[0].decisions.iter().map(|d| d.collective.as_str()).collect();
    assert_eq!(order, ["r0", "r1"]);
    let launched = p.buckets[0].steps.iter().filter_map(|s| Some((s.node.as_str(), s.blocks?)));
    assert_eq!(launched.collect::<Vec<_>>(), [("r1", 8)], "launch sizes stand with the steps");
    assert_eq!(p.buckets[0].decisions[0].alternatives[0].us, 1.0, "kept to the nanosecond");
}

#[test]
fn unplannable_programs_are_rejected_by_name() {
    let error =
        |graphs: Vec<Graph>| try_plan(graphs, &PlanConfig::default()).expect_err("refused").to_string();
    let no_variant = graph("arg %x: f32[4]\n%r: f32[4] = all_reduce %x op=sum group=@all\nreturn %r\n");
    assert_eq!(error(vec![no_variant]), "%r: all_reduce has no variant; lower the program first");
    let wrong = graph("arg %x: f32[4]\n%r: f32[4] = all_reduce %x op=sum group=@all via=push\nreturn %r\n");
    assert_eq!(error(vec![wrong]), "%r: the variant push does not support all_reduce");
    let mut open = graph("arg %x: f32[4]\n%r: f32[4] = relu %x\nreturn %r\n");
    open.ranks = None;
    assert_eq!(error(vec![open]), "p: the number of ranks is open, expected a fixed number");
    let body = "symbol n in 1..=9007199254740992\narg %x: f32[n, 1]\nparam %w: f32[1, 1]\n%h: f32[n, 1] = relu %x\n\
                %r: f32[n, 1] = matmul %h, %w\nreturn %r\n";
    assert!(
        error(vec![graph(body)])
            .starts_with("%h: the size at the upper bounds of the symbols is 36028797018963968")
    );
    let body = "symbol n in 1..=1099511627776\narg %x: f32[n, 4096]\n\
                %r: f32[n, 4096] = all_reduce %x op=sum group=@all via=ll\nreturn %r\n";
    let landing = "%r: a landing zone for 18014398509481984 bytes from each of 4 ranks is too large, \
        expected at most 2^52 bytes";
    assert_eq!(error(vec![graph(body)]), landing);
    // Thousands of the largest possible values do not overflow intermediate sums.
    let mut huge = String::from("arg %x: f32[562949953421312, 2]\nparam %w: f32[2, 2]\n");
    for i in 0..5000 {
        let _ = writeln!(huge, "%a{i}: f32[562949953421312, 2] = matmul %x, %w");
        let _ = writeln!(
            huge,
            "%r{i}: f32[562949953421312, 2] = all_reduce %a{i} op=sum group=@all via=one_shot"
        );
    }
    let sums: Vec<String> = (0..5000).map(|i| format!("%r{i}")).collect();
    let _ = writeln!(huge, "%c: f32[2814749767106560000, 2] = concat {} axis=0\nreturn %r0", sums.join(", "));
    let message = error(vec![graph(&huge)]);
    assert!(message.starts_with("%c: the size at the upper bounds"), "{message}");
    let two = graph("symbol n in 1..=8\narg %x: f32[n]\n%h: f32[n] = relu %x\nreturn %h\n");
    let overlapping = narrowed(&two, &[(1, 4), (4, 8)]);
    assert_eq!(error(overlapping), "buckets 0 and 1 overlap: both serve n=4");
}
