//! Tests that a comparison reports what it does not cover.

use crate::common::{compared, outcome};
use symmc_compare::{LimitKind, MAX_LISTED_ENTRIES, SourceComparison, SourceStatus};

/// The limits of all parts.
fn limits(all: &SourceComparison) -> Vec<(LimitKind, &str)> {
    all.parts.iter().flat_map(|part| &part.limits).map(|limit| (limit.kind, limit.at.as_str())).collect()
}

const LONG: &str = "program \"p\" ranks 2\nsymbol t in 1..=4096\narg %q: f32[2, t, 16]\n";

fn masked(seen: &str) -> String {
    format!(
        "{LONG}%k: f32[2, 16, t] = permute %q perm=[0, 2, 1]\n%s: f32[2, t, t] = matmul %q, %k\n\
         %c: f32[2, t, t] = mul %s, 0.25\n%i: i64[t] = iota start=0 step=1\n%r: i64[t, 1] = reshape %i\n\
         %m: bool[t, t] = le %i, %r\n%w: i64[t, 1] = sub %r, 2000\n%n: bool[t, t] = {seen} %i, %w\n\
         %o: bool[t, t] = and %m, %n\n%f: f32[] = full value=-inf\n%d: f32[2, t, t] = select %o, %c, %f\n\
         %p: f32[2, t, t] = softmax %d axis=2 log=false\n%y: f32[2, t, 16] = matmul %p, %q\nreturn %y\n"
    )
}

fn fused_attention(bounds: &str) -> String {
    format!("{LONG}%y: f32[2, t, 16] = attention %q, %q, %q bounds=[{bounds}] scale=0.25\nreturn %y\n")
}

/// Attention over thousands of positions takes too long as a whole, so samples of its rows are compared at the upper end.
#[test]
fn long_attention_is_sampled_at_the_largest_sizes() {
    let (source, planned) = (masked("gt"), fused_attention("below row + (1), from row + (-1999)"));
    let comparison = compared(&source, &planned);
    assert!(comparison.is_complete(), "{comparison:#?}");
    assert_eq!(comparison.status(), SourceStatus::EqualByParts);
    let sampled = limits(&comparison).into_iter().find(|(kind, _)| *kind == LimitKind::Sampled);
    let (_, at) = sampled.unwrap_or_else(|| panic!("{comparison:#?}"));
    for part in ["bucket 0 (t=4096)", "0..4", "4092..4096", "1998..2002", "of 4096"] {
        assert!(at.contains(part), "{part} in {at}");
    }
    assert!(comparison.to_string().contains(at), "{comparison}");
    // A difference in few rows or columns of long inputs is found.
    for bounds in
        ["below row + (1)", "below row + (1), from row + (-1998)", "below row + (1), from row + (-2000)"]
    {
        let comparison = compared(&source, &fused_attention(bounds));
        assert_eq!(comparison.status(), SourceStatus::Different, "{bounds}: {comparison:#?}");
    }
}

/// Nothing can be sampled along an axis that is sorted.
#[test]
fn sizes_that_take_too_long_are_named() {
    let source = |op: &str| {
        format!(
            "program \"p\" ranks 1\nsymbol t in 1..=900000000\narg %x: f32[t]\n%a: f32[t] = {op}\n\
             %y: f32[t] = cumsum %a axis=0\nreturn %y\n"
        )
    };
    let comparison = compared(&source("pow %x, 2.0"), &source("mul %x, %x"));
    // The prefix sum has equal numbers in both programs, so only the power is compared.
    assert!(comparison.is_complete(), "{comparison:#?}");
    let sorted = |op: &str| {
        format!(
            "program \"p\" ranks 1\nsymbol t in 1..=900000000\narg %x: f32[t]\n{op}%y: f32[t] = exp %b\nreturn %y\n"
        )
    };
    let comparison = compared(
        &sorted("%b: f32[t], %j: i64[t] = sort %x axis=0 descending=false\n"),
        &sorted(
            "%n: f32[t] = neg %x\n%c: f32[t], %j: i64[t] = sort %n axis=0 descending=true\n%b: f32[t] = neg %c\n",
        ),
    );
    assert_eq!(
        (comparison.status(), comparison.is_complete()),
        (SourceStatus::EqualByParts, false),
        "{comparison:#?}"
    );
    let kinds: Vec<LimitKind> = limits(&comparison).into_iter().map(|(kind, _)| kind).collect();
    assert!(kinds.contains(&LimitKind::UpTo), "{comparison:#?}");
    assert!(comparison.to_string().contains("larger sizes take too long"), "{comparison}");
}

/// A part whose form changes at more sizes than are run.
#[test]
fn conditions_that_are_not_tried_are_counted() {
    let program = |many: usize, name: &str, start: &dyn Fn(usize) -> String| -> String {
        let slice = |k: usize| {
            format!("%{name}{k}: f32[1, 16] = slice %x axis=0 start={} step=1\n", start(37 * k + 10))
        };
        let slices: String = (0..many).map(slice).collect();
        let names: Vec<String> = (0..many).map(|k| format!("%{name}{k}")).collect();
        let names = names.join(", ");
        format!(
            "{slices}%{name}: f32[{many}, 16] = concat {names} axis=0\n%y: f32[{many}, 16] = exp %{name}\nreturn %y\n"
        )
    };
    for (many, is_complete) in [(4, true), (100, false)] {
        let source = program(many, "s", &|at| format!("min(t - 1, {at})"));
        let planned = program(many, "p", &|at| format!("t - 1 - max(0, t - 1 - {at})"));
        let (status, comparison) = outcome(&source, &planned);
        assert_eq!(
            (status, comparison.is_complete()),
            (SourceStatus::EqualByParts, is_complete),
            "{comparison:#?}"
        );
        let limit = comparison.parts[0].limits.iter().find(|limit| limit.kind == LimitKind::Conditions);
        assert_eq!(limit.is_none(), is_complete, "{comparison:#?}");
        assert!(limit.is_none_or(|limit| limit.sizes > 100), "{comparison:#?}");
        assert_eq!(
            comparison.to_string().contains("other sizes where a condition may change"),
            !is_complete,
            "{comparison}"
        );
    }
}

/// Sizes at which the source reads outside of an axis are no sizes of a run.
#[test]
fn sizes_that_the_source_rejects_are_not_chosen() {
    let program = |op: &str| {
        format!(
            "program \"p\" ranks 1\nsymbol t in 1..=5000\nsymbol u in 1..=5000\narg %x: f32[t, 16]\n\
             arg %z: f32[u, 16]\n%a: f32[t, 16] = slice %z axis=0 start=10 step=1\n%b: f32[t, 16] = add %a, %x\n\
             %y: f32[t, 16] = {op}\nreturn %y\n"
        )
    };
    // At t = u, the slice ends after the axis.
    let comparison = compared(&program("pow %b, 2.0"), &program("mul %b, %b"));
    assert!(comparison.is_complete() && comparison.parts.len() == 1, "{comparison:#?}");
    let sliced = |from: &str| {
        format!(
            "program \"p\" ranks 1\nsymbol t in 1..=5000\narg %x: f32[t, 16]\n{from}%y: f32[8, 16] = exp %b\nreturn %y\n"
        )
    };
    let within = "%b: f32[8, 16] = slice %x axis=0 start=100 step=1\n";
    let two = "%a: f32[16, 16] = slice %x axis=0 start=92 step=1\n%b: f32[8, 16] = slice %a axis=0 start=8 step=1\n";
    let comparison = compared(&sliced(within), &sliced(two));
    assert!(comparison.status() <= SourceStatus::EqualByParts && comparison.is_complete(), "{comparison:#?}");
    let wrong = two.replace("start=8", "start=7");
    let comparison = compared(&sliced(within), &sliced(&wrong));
    assert_eq!(comparison.status(), SourceStatus::Different, "{comparison:#?}");
    // The upper end is rejected.
    let backwards = |start: &str| {
        format!(
            "program \"p\" ranks 1\nsymbol t in 1..=5000\narg %x: f32[4000, 16]\n\
             %b: f32[1, 16] = slice %x axis=0 start={start} step=1\n%y: f32[1, 16] = exp %b\nreturn %y\n"
        )
    };
    let comparison = compared(&backwards("t - 1"), &backwards("min(t - 1, 3998)"));
    assert_eq!(comparison.status(), SourceStatus::Different, "{comparison:#?}");
    let comparison = compared(&backwards("t - 1"), &backwards("min(t - 1, 3999)"));
    assert!(comparison.is_complete(), "{comparison:#?}");
    let bounded = limits(&comparison).into_iter().find(|(kind, _)| *kind == LimitKind::Bounded);
    assert!(bounded.is_some_and(|(_, at)| at.contains("t=4000")), "{comparison:#?}");
}

/// Every part that was not compared is counted, also those whose reasons are not listed.
#[test]
fn every_part_that_is_left_out_is_counted() {
    let many = MAX_LISTED_ENTRIES + 50;
    let ops = |attributes: &str| -> String {
        let opaque_part = |k: usize| {
            format!(
                "%o{k}: f32[t, 16] = opaque \"ns.f{k}\" %x attributes=\"{attributes}\"\n%y{k}: f32[t, 16] = exp %o{k}\n"
            )
        };
        let returned = (0..many).map(|k| format!("return %y{k}\n"));
        (0..many).map(opaque_part).chain(returned).collect()
    };
    let (status, comparison) = outcome(&ops(""), &ops("a"));
    assert_eq!(status, SourceStatus::NotCompared);
    let listed: usize = comparison.left_out.iter().map(|(_, n)| n).sum();
    assert_eq!(
        (comparison.left_out.len(), listed + comparison.more_left_out),
        (MAX_LISTED_ENTRIES, many),
        "{comparison:#?}"
    );
    assert!(
        comparison.to_string().starts_with(&format!("not compared with its source in {many} parts")),
        "{comparison}"
    );
}
