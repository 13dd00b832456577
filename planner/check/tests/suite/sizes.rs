//! Sizes may differ between two runs: tests that the check compares two runs under independent sizes.

use std::collections::BTreeSet;

use symmc_plan::{ExitBarrier, Lane, Plan};

use crate::rules::{DROPPED, KEPT, breaks_as_it_is, kinds, small, step};
use crate::sums::sums;

/// Peers may still read `%b` when the next run writes `%a`. They have finished when it writes `%b`, because the ranks
/// have met before.
fn behind_each_other(a: &str, b: &str, exit: Option<ExitBarrier>) -> Plan {
    let text = "program \"sizes\" ranks 2\nsymbol t in 1..=8\ngroup @world world\n\narg %x: f32[t, 4]\n\
        arg %y: f32[t, 4]\n\
        %a: f32[t, 4] = neg %x\n\
        %r: f32[t, 4] = all_reduce %y op=sum group=@world via=plain\n\
        %b: f32[t, 4] = neg %r\n\
        %m: f32[t, 4] = add %a, %b\n\
        %g: f32[2*t, 4] = all_gather %b group=@world via=pull\n\nreturn %m\nreturn %g\n";
    let steps = [
        step("a", Lane::Compute, &[], None),
        step("r", Lane::Comm, &[], None),
        step("b", Lane::Compute, &[1], None),
        step("m", Lane::Compute, &[], None),
        step("g", Lane::Comm, &[2], exit),
    ];
    let mut plan = small(text, &[("a", a), ("r", "ord:0"), ("b", b)], &[&steps]);
    plan.buckets[0].symbols["t"] = [1, 8];
    sums(&mut plan);
    plan
}

#[test]
fn places_of_consecutive_runs_use_independent_sizes() {
    let plans = |exit| {
        // With t=1 and then t=8, `%a` takes bytes that peers still read as `%b`. Both are disjoint within each run,
        // but may overlap between two runs.
        let behind = behind_each_other("sym:0", "sym:16*t", exit);
        let before = behind_each_other("sym:16*t", "sym:0", exit);
        let further = behind_each_other("sym:0", "sym:16*t + 64", exit);
        // After the end of the largest `%a` they overlap for no sizes.
        let distant = behind_each_other("sym:0", "sym:16*t + 128", exit);
        ([behind, before, further], distant)
    };
    let (kept, apart) = plans(KEPT);
    kept.iter().chain([&apart]).for_each(|plan| assert_eq!(kinds(plan), BTreeSet::new()));
    let (dropped, apart) = plans(DROPPED);
    assert_eq!(kinds(&apart), BTreeSet::new());
    dropped.iter().for_each(|plan| breaks_as_it_is("Race", plan));
}

/// A bound parameter of `n` rows that is pulled without exit barrier: one bucket and program for each size.
#[test]
fn parameter_that_varies_by_bucket_is_written_between_runs() {
    let text = |range: &str, rows: &str| {
        format!(
            "program \"bound\" ranks 2\nsymbol n in {range}\ngroup @world world\n\nparam %x: f32[{rows}, 4]\n\
            %b: f32[{rows}, 4] = all_reduce %x op=sum group=@world via=one_shot\n\nreturn %b\n"
        )
    };
    let plan = |exit| {
        let steps = [step("b", Lane::Comm, &[], exit)];
        let mut plan = small(&text("1..=2", "n"), &[("x", "fix")], &[&steps, &steps]);
        plan.programs = vec![text("1..=1", "1"), text("2..=2", "2")];
        plan.buckets[1].program = 1;
        sums(&mut plan);
        plan
    };
    assert_eq!(kinds(&plan(KEPT)), BTreeSet::new());
    breaks_as_it_is("Race", &plan(DROPPED));
}
