//! Exchanges of rows with the ranks of experts: what peers read of them, and until when.

use std::collections::BTreeSet;

use symmc_plan::{ExitBarrier, Lane, Plan};

use crate::rules::{DROPPED, KEPT, breaks_as_it_is, kinds, small, step};

/// Peers read `%h` in a dispatch and `%sent` in a combination. The bytes of `%h` are overwritten after a wait for
/// step `wait`.
fn rows_exchanged(exit: Option<ExitBarrier>, wait: usize, changed: &[(&str, &str)]) -> Plan {
    let text = "program \"rows\" ranks 2\ngroup @world world\n\narg %x: f32[4, 4]\narg %ids: i64[8, 1]\n\
        %h: f32[4, 4] = neg %x\n\
        %rows: i64[4, 1], %all: i64[8, 1], %slots: i64[8], %counts: i64[1], %ends: i64[1] = \
        route %ids experts=2 align=1 layout=expert group=@world\n\
        %sent: f32[8, 4] = dispatch_rows %h, %slots, %all group=@world via=pull\n\
        %y: f32[4, 4] = combine_rows %sent, %rows group=@world via=pull\n\
        %z: f32[4, 4] = exp %x\n\
        %w: f32[4, 4] = add %y, %z\n\nreturn %w\n";
    let steps = [
        step("h", Lane::Compute, &[], None),
        step("rows", Lane::Compute, &[], None),
        step("sent", Lane::Comm, &[1], exit),
        step("y", Lane::Comm, &[], KEPT),
        step("z", Lane::Compute, &[wait], None),
        step("w", Lane::Compute, &[3], None),
    ];
    let mut places = vec![
        ("h", "sym:0"),
        ("rows", "ord:0"),
        ("all", "ord:64"),
        ("slots", "ord:128"),
        ("counts", "ord:192"),
        ("ends", "ord:256"),
        ("sent", "sym:1024"),
        ("y", "ord:320"),
        ("z", "sym:0"),
    ];
    for &(name, at) in changed {
        let placed = places.iter_mut().find(|(other, _)| *other == name).expect("a placed value");
        placed.1 = at;
    }
    small(text, &places, &[&steps])
}

#[test]
fn exchanges_of_rows_share_their_first_operands_alone() {
    assert_eq!(kinds(&rows_exchanged(KEPT, 2, &[])), BTreeSet::new());
    // The combination meets the peers after their reads of the dispatch.
    assert_eq!(kinds(&rows_exchanged(DROPPED, 3, &[])), BTreeSet::new());
    breaks_as_it_is("Race", &rows_exchanged(DROPPED, 2, &[]));
    // Tables may lie in any memory, but what peers read is symmetric.
    assert_eq!(
        kinds(&rows_exchanged(KEPT, 2, &[("slots", "sym:2048"), ("rows", "sym:3072")])),
        BTreeSet::new()
    );
    breaks_as_it_is("NotSymmetric", &rows_exchanged(KEPT, 2, &[("h", "ord:1024")]));
    breaks_as_it_is("NotSymmetric", &rows_exchanged(KEPT, 2, &[("sent", "ord:1024")]));
    // Results lie on no operand.
    breaks_as_it_is("InPlace", &rows_exchanged(KEPT, 2, &[("y", "sym:1024")]));
    breaks_as_it_is("InPlace", &rows_exchanged(KEPT, 2, &[("y", "ord:0")]));
    breaks_as_it_is("InPlace", &rows_exchanged(KEPT, 2, &[("slots", "sym:1024")]));
    // Tables are read until the exchange ends.
    breaks_as_it_is("Race", &rows_exchanged(KEPT, 2, &[("z", "ord:0")]));
}

/// Peers write `%sums` and nothing else of a reduction. `%z` may use its bytes after the steps `waits`.
fn rows_reduced(waits: &[usize], changed: &[(&str, &str)]) -> Plan {
    let text = "program \"rows\" ranks 2\ngroup @world world\n\narg %x: f32[8, 4]\narg %rows: i64[8, 1]\n\
        %h: f32[8, 4] = neg %x\n\
        %y: f32[4, 4], %sums: f32[4, 4] = reduce_rows %h, %rows group=@world via=push\n\
        %z: f32[8, 4] = exp %x\n%u: f32[4, 4] = neg %y\n%w: f32[8, 4] = neg %z\n\nreturn %u\nreturn %w\n";
    let steps = [
        step("h", Lane::Compute, &[], None),
        step("y", Lane::Comm, &[0], None),
        step("z", Lane::Compute, waits, None),
        step("u", Lane::Compute, &[1], None),
        step("w", Lane::Compute, &[], None),
    ];
    let mut places = vec![("h", "ord:2048"), ("y", "ord:0"), ("sums", "sym:0"), ("z", "ord:1024")];
    for &(name, at) in changed {
        let placed = places.iter_mut().find(|(other, _)| *other == name).expect("a placed value");
        placed.1 = at;
    }
    small(text, &places, &[&steps])
}

#[test]
fn peers_write_the_sums_of_a_reduction_alone() {
    assert_eq!(kinds(&rows_reduced(&[], &[])), BTreeSet::new());
    assert_eq!(kinds(&rows_reduced(&[], &[("y", "sym:1024")])), BTreeSet::new());
    breaks_as_it_is("NotSymmetric", &rows_reduced(&[], &[("sums", "ord:512")]));
    breaks_as_it_is("ResultsOverlap", &rows_reduced(&[], &[("y", "sym:0")]));
    // The bytes of the sums are free after the reduction, and not while it runs.
    assert_eq!(kinds(&rows_reduced(&[1], &[("z", "sym:0")])), BTreeSet::new());
    breaks_as_it_is("Race", &rows_reduced(&[], &[("z", "sym:0")]));
    // Each rank reads its own rows until the end, also where peers write.
    breaks_as_it_is("InPlace", &rows_reduced(&[], &[("y", "ord:2048")]));
    breaks_as_it_is("InPlace", &rows_reduced(&[], &[("h", "sym:0")]));
    breaks_as_it_is("Race", &rows_reduced(&[], &[("z", "ord:2048")]));
    assert_eq!(kinds(&rows_reduced(&[1], &[("z", "ord:2048")])), BTreeSet::new());
}
