//! Random programs through the planner: plans pass the check, and the explorer, which decides by brute force,
//! finds no errors in them.

use std::collections::{BTreeMap, BTreeSet};

use symmc_check::{CheckError, check};
use symmc_ir::{CollectiveKind, CollectiveVariant, DispatchForm, Op, text};
use symmc_plan::{ArenaKind, Bucket, Lane, Plan};
use symmc_support::parallel;
use symmc_support::random::SplitMix;

use crate::common::corrupt::{damage, flatten, mend};
use crate::common::explore::{explore, sequences};
use crate::common::{RandomProgramConfig, planned, program};

fn config(rng: &mut SplitMix) -> RandomProgramConfig {
    let cells = rng.one_in(3);
    RandomProgramConfig {
        ranks: if cells { 4 } else { rng.pick(&[2, 3]) },
        cells,
        symbols: rng.pick(&[0, 1, 1, 2]),
        nodes: 4 + rng.below(16),
        gathers: rng.one_in(2),
        exchanges: rng.one_in(3),
        sharded: rng.one_in(3),
    }
}

/// The largest number of collectives of a bucket that have begun and for which no compute step has waited.
fn in_flight(bucket: &Bucket) -> usize {
    let (mut issued, mut awaited, mut most) = (0, 0, 0);
    let mut number = vec![0; bucket.steps.len()];
    for (s, step) in bucket.steps.iter().enumerate() {
        if step.lane == Lane::Comm {
            issued += 1;
            number[s] = issued;
        } else {
            // The lane runs them one after another.
            awaited = step.waits.iter().map(|&w| number[w]).fold(awaited, usize::max);
            most = most.max(issued - awaited);
        }
    }
    most
}

/// Whether values of an arena that are not alive at once share bytes.
fn reuses(bucket: &Bucket, arena: ArenaKind) -> bool {
    let of_arena = bucket.buffers.iter().filter(|b| b.arena == arena && b.size > 0);
    let mut ranges: Vec<(u64, u64)> = of_arena.map(|b| (b.offset, b.offset + b.size)).collect();
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[1].0 < pair[0].1)
}

/// Counts of properties that random plans share with plans of real programs.
#[derive(Default, Debug)]
struct PlanCoverage {
    /// Plans with three or more collectives in flight.
    in_flight: usize,
    /// Plans among these with three or more variants.
    variants: usize,
    /// Plans with three or more collectives in flight in which values of the symmetric arena share memory.
    reuse: usize,
    /// The kinds of collectives with their variants.
    ways: BTreeSet<(&'static str, CollectiveVariant)>,
    /// Plans in which the pieces of an exchange are summed.
    sums: usize,
    /// Plans with collectives that run as one step.
    sets: usize,
}

impl PlanCoverage {
    fn add(&mut self, plan: &Plan) {
        let mut variants = BTreeSet::new();
        for bucket in &plan.buckets {
            let graph = text::parse(&plan.programs[bucket.program]).expect("parses");
            let collectives = graph.nodes.values().filter_map(|n| n.op.as_collective());
            let ways = collectives.filter_map(|c| Some((c.kind.name(), c.variant?)));
            let ways: BTreeSet<_> = ways.collect();
            variants.extend(ways.iter().map(|way| way.1));
            self.ways.extend(ways);
        }
        let flying = plan.buckets.iter().any(|b| in_flight(b) >= 3);
        let shared = plan.buckets.iter().any(|b| reuses(b, ArenaKind::Symmetric));
        self.in_flight += usize::from(flying);
        self.variants += usize::from(flying && variants.len() >= 3);
        self.reuse += usize::from(flying && shared);
        self.sums += usize::from(plan.programs.iter().any(|t| t.contains("%sum")));
        self.sets += usize::from(plan.programs.iter().any(|t| t.contains("dispatch collectives")));
    }

    fn merge(&mut self, other: PlanCoverage) {
        self.in_flight += other.in_flight;
        self.variants += other.variants;
        self.reuse += other.reuse;
        self.sums += other.sums;
        self.sets += other.sets;
        self.ways.extend(other.ways);
    }

    /// The combinations of kinds and variants that have not run, except exchanges whose sizes are known on the
    /// device only.
    fn missing(&self) -> Vec<(&'static str, CollectiveVariant)> {
        let kinds = CollectiveKind::sample_kinds(2);
        let kinds = kinds.iter().filter(|k| !k.moves_by_data());
        let ways = kinds.flat_map(|kind| {
            let able = CollectiveVariant::ALL.iter().filter(|v| v.contract(kind).is_some());
            able.map(|&v| (kind.name(), v))
        });
        ways.filter(|way| !self.ways.contains(way)).collect()
    }
}

#[test]
fn planned_programs_pass() {
    let mut forms: BTreeMap<DispatchForm, usize> = BTreeMap::new();
    for seed in 0..400 {
        let mut rng = SplitMix(seed);
        let config = config(&mut rng);
        let graph = program(&mut rng, &config);
        let plan = planned(&graph, config.sharded, &mut rng);
        let errors = check(&plan).err().unwrap_or_default();
        let errors: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
        for runs in sequences(&plan, 2, SEQUENCES, &mut rng) {
            let findings = explore(&plan, &runs);
            assert!(
                findings.is_empty(),
                "seed {seed}, {config:?}, {runs:?}:\n{errors:#?}\n{findings:#?}\n{}",
                plan.to_json()
            );
        }
        assert!(errors.is_empty(), "seed {seed}, {config:?}:\n{errors:#?}\n{}", plan.to_json());
        let programs = plan.programs.iter().map(|t| text::parse(t).expect("parses"));
        programs.for_each(|g| g.dispatches.iter().for_each(|d| *forms.entry(d.form).or_default() += 1));
    }
    let often = |form: DispatchForm| forms.get(&form).is_some_and(|&n| n >= 10);
    assert!(DispatchForm::ALL.iter().all(|&form| often(form)), "{forms:?}");
}

/// Errors that the explorer can find too.
fn over_time(error: &CheckError) -> bool {
    use CheckError::*;
    matches!(
        error,
        Race { .. }
            | Lost { .. }
            | LandingRace { .. }
            | Unordered { .. }
            | InPlace { .. }
            | ResultsOverlap { .. }
    )
}

/// Whether a planned program copies or concatenates values.
fn copies(plan: &Plan) -> bool {
    let copies = |op: &Op| matches!(op, Op::Copy | Op::Concat { .. });
    plan.programs.iter().any(|t| text::parse(t).expect("parses").nodes.values().any(|n| copies(&n.op)))
}

/// The largest number of sequences of runs of one length that the explorer examines per plan.
const SEQUENCES: usize = 16;

/// The outcomes of damaged plans.
#[derive(Default, Debug)]
struct DamageTally {
    /// The check accepts the plan, and the explorer finds nothing.
    accepted: usize,
    /// The number among these that have symbols.
    accepted_with_symbols: usize,
    /// The check rejects the plan, and the explorer finds an error.
    rejected: usize,
    /// The check rejects the plan, and the explorer finds nothing. Extents are symbols or places depend on the
    /// rank, so that the check knows bounds where the explorer knows bytes; or bytes are equal although values
    /// differ.
    unconfirmed: usize,
    /// Plans that are invalid in a way that the explorer does not examine.
    other: usize,
    /// The rules that rejected plans violate.
    kinds: BTreeSet<String>,
    /// The properties of the plans before they were damaged.
    coverage: PlanCoverage,
}

/// The errors of a plan in some sequences of two or three runs.
fn findings(plan: &Plan, rng: &mut SplitMix) -> BTreeSet<String> {
    let lengths: &[u32] = if plan.buckets.len() == 1 { &[2, 3] } else { &[2] };
    let errors = lengths.iter().flat_map(|&length| {
        let sequences = sequences(plan, length, SEQUENCES, &mut SplitMix(rng.next()));
        sequences.into_iter().map(|runs| explore(plan, &runs)).find(|found| !found.is_empty())
    });
    errors.take(1).flatten().collect()
}

/// Damages one random plan and compares the check with the explorer. The check must be right whenever it
/// accepts a plan. If extents are constant and no place depends on the rank, it must also be right when it
/// rejects one: it then knows all bytes exactly.
fn compare(seed: u64) -> DamageTally {
    let mut rng = SplitMix(seed ^ 0xdead);
    let config = config(&mut rng);
    let exact = rng.one_in(4);
    compare_one(seed, config, exact, rng)
}

/// The same for a training step whose collectives may begin together.
fn compare_sharded(seed: u64) -> DamageTally {
    let mut rng = SplitMix(seed ^ 0xf1e1d);
    let config = RandomProgramConfig { sharded: true, ..config(&mut rng) };
    compare_one(seed, config, false, rng)
}

fn compare_one(seed: u64, config: RandomProgramConfig, exact: bool, mut rng: SplitMix) -> DamageTally {
    let mut tally = DamageTally::default();
    let symbols = if exact { 0 } else { config.symbols.max(1) };
    let sharded = config.sharded && !exact;
    let config =
        RandomProgramConfig { nodes: config.nodes.min(12), symbols, gathers: !exact, sharded, ..config };
    let graph = program(&mut rng, &config);
    let original = planned(&graph, config.sharded, &mut rng);
    tally.coverage.add(&original);
    let mut plan = flatten(&original, 16384);
    let mut story: Vec<String> = (0..1 + rng.below(3)).filter_map(|_| damage(&mut plan, &mut rng)).collect();
    mend(&mut plan);
    let errors = check(&plan).err().unwrap_or_default();
    if !errors.iter().all(over_time) {
        tally.other += 1;
        return tally;
    }
    story.extend(errors.iter().map(|e| e.to_string()));
    let findings = findings(&plan, &mut rng);
    // The explorer also recognises values by the values of which they are copies.
    let about_bytes = |e: &CheckError| matches!(e, CheckError::Lost { .. } | CheckError::InPlace { .. });
    let same_bytes = || errors.iter().all(about_bytes) && copies(&plan);
    let agree = match (errors.is_empty(), findings.is_empty()) {
        (true, safe) => safe,
        (false, true) => !exact || same_bytes(),
        (false, false) => true,
    };
    assert!(agree, "seed {seed}, {config:?}:\n{story:#?}\n{findings:#?}\n{}", plan.to_json());
    match (errors.is_empty(), findings.is_empty()) {
        (true, _) => tally.accepted += 1,
        (false, false) => tally.rejected += 1,
        (false, true) => tally.unconfirmed += 1,
    }
    tally.accepted_with_symbols += usize::from(errors.is_empty() && !exact);
    tally.kinds.extend(errors.iter().map(CheckError::kind));
    tally
}

/// Compares at least `least` damaged plans, or `PROPTEST_CASES` if that is more.
fn compare_all(least: u64, compare: impl Fn(u64) -> DamageTally + Sync) -> DamageTally {
    let requested = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    let seeds = (0..requested.unwrap_or(0).max(least)).collect();
    let mut tally = DamageTally::default();
    for one in parallel::map(seeds, usize::MAX, compare) {
        tally.accepted += one.accepted;
        tally.accepted_with_symbols += one.accepted_with_symbols;
        tally.rejected += one.rejected;
        tally.unconfirmed += one.unconfirmed;
        tally.other += one.other;
        tally.kinds.extend(one.kinds);
        tally.coverage.merge(one.coverage);
    }
    println!("{tally:?}");
    tally
}

#[test]
fn check_and_explorer_agree_on_collectives_in_flight() {
    let tally = compare_all(70, compare_sharded);
    let PlanCoverage { in_flight, variants, reuse, .. } = tally.coverage;
    assert!(in_flight >= 25 && variants >= 25 && reuse >= 20, "{tally:?}");
    assert!(tally.accepted >= 10 && tally.rejected >= 5, "{tally:?}");
}

#[test]
fn check_and_explorer_agree_on_damaged_plans() {
    let tally = compare_all(360, compare);
    assert!(tally.accepted > 50 && tally.accepted_with_symbols > 30 && tally.rejected > 30, "{tally:?}");
    let expected = ["InPlace", "Lost", "Race", "Unordered"];
    assert!(expected.iter().all(|&k| tally.kinds.contains(k)), "{tally:?}");
    let PlanCoverage { in_flight, variants, reuse, sums, sets, .. } = tally.coverage;
    assert!(in_flight >= 40 && variants >= 40 && reuse >= 25 && sums >= 25 && sets >= 20, "{tally:?}");
    assert_eq!(tally.coverage.missing(), [], "{tally:?}");
}

/// Replaces one number or text of a JSON value by another. Returns false if there is none.
fn replace_leaf(value: &mut serde_json::Value, rng: &mut SplitMix) -> bool {
    use serde_json::Value;
    match value {
        Value::Array(list) if !list.is_empty() => {
            let index = rng.below(list.len());
            match rng.below(12) {
                0 => drop(list.remove(index)),
                1 => list.push(list[index].clone()),
                _ => return replace_leaf(&mut list[index], rng),
            }
            true
        }
        Value::Object(map) if !map.is_empty() => {
            let key = map.keys().nth(rng.below(map.len())).cloned().unwrap_or_default();
            map.get_mut(&key).is_some_and(|v| replace_leaf(v, rng))
        }
        Value::Number(_) => {
            let extremes = [0, 1, 2, 3, 7, 64, 4096, 1 << 32, i64::MAX as u64, u64::MAX - 63, u64::MAX];
            *value = rng.pick(&extremes).into();
            true
        }
        Value::String(_) => {
            let texts =
                ["", "0", "-64", "rows", "64*rows", "9223372036854775807", "div(rows, 0)", "in0", "world"];
            *value = rng.pick(&texts).into();
            true
        }
        _ => false,
    }
}

#[test]
fn no_plan_makes_the_check_panic() {
    let mut read = 0;
    for seed in 0..1500 {
        let mut rng = SplitMix(seed % 60);
        let config = config(&mut rng);
        let graph = program(&mut rng, &config);
        let plan = planned(&graph, config.sharded, &mut rng);
        let mut rng = SplitMix(seed ^ 0xfeed);
        let mut json: serde_json::Value = serde_json::from_str(&plan.to_json()).expect("JSON");
        for _ in 0..1 + rng.below(3) {
            replace_leaf(&mut json, &mut rng);
        }
        if let Ok(plan) = Plan::from_json(&json.to_string()) {
            let _ = check(&plan);
            read += 1;
        }
    }
    assert!(read > 500, "{read} of the plans could be read");
}
