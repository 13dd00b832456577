//! Larger results enclose their parts only if that takes no more memory.

use symmc_check::check;
use symmc_ir::text;
use symmc_plan::{ExitBarrier, Plan};
use symmc_planner::{BucketInput, OrderStrategy, PlanConfig, plan};

/// Plans a program of one rank in program order.
fn planned(body: &str) -> Plan {
    planned_on(1, body)
}

/// The same on several ranks.
fn planned_on(ranks: u32, body: &str) -> Plan {
    let text = format!("program \"p\" ranks {ranks}\n{body}");
    let graph = text::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let bucket = BucketInput { graph: graph.clone(), decisions: Vec::new() };
    let config = PlanConfig { order: OrderStrategy::Program, ..PlanConfig::default() };
    let plan = plan(&graph, &[bucket], &config).unwrap_or_else(|e| panic!("{e}"));
    check(&plan).unwrap_or_else(|errors| panic!("{errors:#?}"));
    plan
}

/// The reason for the place of a value.
fn why<'p>(plan: &'p Plan, value: &str) -> &'p str {
    &plan.buckets[0].places[value].why
}

#[test]
fn early_piece_gets_separate_memory_at_the_peak() {
    // With %early inside, 4352 bytes of %all would be occupied together with the 8192 bytes of %big.
    let body = "arg %x: f32[64]\narg %y: f32[2048]\n%early: f32[64] = neg %x\n\
        %big: f32[2048] = exp %y\n%bigger: f32[2048] = cumsum %big axis=0\n%sum: f32[] = reduce %bigger op=sum axes=[0] keep=false\n\
        %wide: f32[1024] = expand %sum\n%late: f32[1024] = exp %wide\n%all: f32[1088] = concat %early, %late axis=0\n\
        %r: f32[] = reduce %all op=max axes=[0] keep=false\n\
        %spread: f32[1024] = expand %r\n%a: f32[1024] = exp %spread\n%b: f32[1024] = neg %spread\n\
        %second: f32[2048] = concat %a, %b axis=0\n%s: f32[] = reduce %second op=max axes=[0] keep=false\nreturn %s\n";
    let plan = planned(body);
    // The peak is where %all is written: it and both its pieces are alive.
    assert_eq!(plan.buckets[0].totals.ordinary_bound, 2 * 1088 * 4, "{}", plan.to_json());
    assert_ne!(why(&plan, "early"), "a piece of %all");
    assert_eq!(why(&plan, "a"), "a piece of %second");
}

#[test]
fn pieces_need_a_proof_that_they_end_within_outputs() {
    // Both symbols decide whether one row lies within all rows: an output's memory is as large as the output is
    // in that run.
    let row = "symbol m in 2..=16\nsymbol n in 2..=16\narg %x: f32[m, n]\n%first: f32[1, n] = slice %x axis=0 start=0 step=1\n\
        %row: f32[1, n] = add %first, 1.0\n%rest: f32[m - 1, n] = slice %x axis=0 start=1 step=1\n\
        %all: f32[m, n] = concat %row, %rest axis=0\n";
    for end in [
        "return %all\n",
        "%y: f32[m, n] = mul %all, 2.0\nmutate %x = %all\nreturn %y\n",
        // The result is written over all rows, which has the first one inside.
        "%y: f32[m, n] = mul %all, 2.0\nreturn %y\n",
        "%y: f32[m, n] = mul %all, 2.0\nmutate %x = %y\n",
    ] {
        planned(&format!("{row}{end}"));
    }
    // The last rows end where all rows end.
    let plan = planned(
        "symbol m in 2..=16\narg %x: f32[m, 8]\n%first: f32[1, 8] = slice %x axis=0 start=0 step=1\n\
         %row: f32[1, 8] = add %first, 1.0\n%more: f32[m, 8] = exp %x\n%all: f32[m + 1, 8] = concat %row, %more axis=0\nreturn %all\n",
    );
    assert_eq!([why(&plan, "row"), why(&plan, "more")], ["a piece of %all"; 2]);
}

#[test]
fn piece_that_peers_read_does_not_delay_another_piece() {
    // Peers read %b until the all-gather has met. Meanwhile %c is placed next to it in %all.
    let body = "group @g world\narg %x: f32[6, 4]\n%s: f32[6, 4] = neg %x\n\
        %p: f32[6, 4] = broadcast %s root=0 group=@g via=plain\n%b: f32[6, 4] = mul %p, %x\n\
        %r: f32[6, 4] = all_reduce %b op=sum group=@g via=one_shot\n%t: f32[6, 4] = add %p, %r\n\
        %c: f32[12, 4] = concat %p, %t axis=0\n%g: f32[18, 4] = all_gather %t group=@g via=copy_engine\n\
        %all: f32[18, 4] = concat %c, %b axis=0\n%u: f32[18, 4] = all_reduce %all op=sum group=@g via=two_shot\n\
        %z: f32[18, 4] = add %g, %u\nreturn %z\n";
    let plan = planned_on(3, body);
    assert_eq!([why(&plan, "c"), why(&plan, "b")].map(|w| w.split(';').next()), [Some("a piece of %all"); 2]);
    assert_eq!(plan.buckets[0].steps[3].exit, Some(ExitBarrier::Dropped));
}

#[test]
fn pieces_need_a_proof_that_they_begin_within_values() {
    // The last part begins at 416 t - 128 t u, whose lower bound is negative.
    for output in ["return %all\n", "%n: f32[12*t, 13 - 4*u] = exp %all\nreturn %n\n"] {
        let plan = planned(&format!(
            "symbol t in 0..=6\nsymbol u in 1..=3\narg %x: f32[4*t, 13 - 4*u]\n\
             %a: f32[4*t, 13 - 4*u] = neg %x\n%b: f32[4*t, 13 - 4*u] = exp %x\n%c: f32[4*t, 13 - 4*u] = abs %x\n\
             %all: f32[12*t, 13 - 4*u] = concat %a, %b, %c axis=0\n{output}"
        ));
        assert_ne!(why(&plan, "c"), "a piece of %all");
    }
}
