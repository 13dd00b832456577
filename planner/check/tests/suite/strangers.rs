//! Untrusted plans: groups that differ from those of the source, and rules that are broken many times.

use std::collections::BTreeSet;

use symmc_check::{CheckError, check};
use symmc_plan::Plan;

use crate::rules::{breaks, edit, good, hash, kinds};

#[test]
fn groups_are_those_of_the_source() {
    // All ranks may be written out, in their order.
    let mut plan = good();
    edit(&mut plan, "group @world world", "group @world [[0, 1]]");
    assert_eq!(kinds(&plan), BTreeSet::new());
    breaks("GroupMembers", |p| edit(p, "group @world world", "group @world [[1, 0]]"));
    breaks("GroupMembers", |p| {
        edit(p, "group @world world", "group @world world\ngroup @one [[0], [1]]");
        p.source.text =
            p.source.text.replace("group @world world", "group @world world\ngroup @one [[1], [0]]");
        p.source.hash = hash(&p.source.text);
    });
}

#[test]
fn findings_are_bounded_and_counted() {
    let stored_and_more = |plan: &Plan| match check(plan).expect_err("findings").as_slice() {
        [kept @ .., CheckError::More { count }] => (kept.len(), *count),
        all => (all.len(), 0),
    };
    let mut equal = good();
    equal.buckets = vec![equal.buckets[0].clone(); 4000];
    // A bucket is reported once, however many it equals.
    assert_eq!(
        stored_and_more(&equal),
        (symmc_check::MAX_STORED_FINDINGS, 3999 - symmc_check::MAX_STORED_FINDINGS)
    );
    let mut steps = good();
    let last_step = steps.buckets[0].steps[11].clone();
    steps.buckets[0].steps.extend(vec![last_step; 20_000]);
    // Each node has a step already, and each step accesses a buffer after its lifetime.
    assert_eq!(
        stored_and_more(&steps),
        (symmc_check::MAX_STORED_FINDINGS, 40_000 - symmc_check::MAX_STORED_FINDINGS)
    );
    let mut buffers = good();
    let first = buffers.buckets[0].buffers[2].clone();
    buffers.buckets[0].buffers.extend(vec![first; 40_000]);
    let (kept, rest) = stored_and_more(&buffers);
    // Each overlaps one that is alive.
    assert!(kept == symmc_check::MAX_STORED_FINDINGS && (39_900..=80_100).contains(&(kept + rest)), "{rest}");
    // The printed text covers only the stored findings.
    let texts: usize = check(&equal).expect_err("findings").iter().map(|e| e.to_string().len()).sum();
    assert!(texts < 10_000, "{texts}");
}
