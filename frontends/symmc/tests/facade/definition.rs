//! Examples of the rules in docs/plan-spec.md: values that follow from the text of the page are those of plans.

use std::path::{Path, PathBuf};

use symmc::{CompileConfig, MachineProfile, Plan, Program};
use symmc_check::{AccessMoment, CheckError};
use symmc_ir::{DispatchForm, Graph, text};
use symmc_plan::{FixedRole, MemoryRef};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/definition").join(name)
}

fn planned(name: &str, machine: &str, variants: Option<Vec<symmc::CollectiveVariant>>) -> Plan {
    let text = std::fs::read_to_string(file(name)).expect(name);
    let program = Program::from_text(&text).unwrap_or_else(|e| panic!("{e}"));
    let profile = MachineProfile::builtin(machine).expect("built in");
    let config = CompileConfig::default().with_profile(profile).with_variants(variants);
    symmc::compile(&program, &config).unwrap_or_else(|e| panic!("{e}")).into_plan()
}

fn findings(plan: &Plan) -> Vec<CheckError> {
    symmc_check::check(plan).err().unwrap_or_default()
}

/// The bytes of a landing zone, as the page has it, for the largest message of `b` bytes to each of `n` ranks.
fn zone(b: u64, n: u64) -> u64 {
    let words = |b: u64| (n * (8 * b.div_ceil(4)).max(64)).next_multiple_of(128);
    if b <= 131_072 / n { words(b) } else { words(131_072 / n) + 128 * n * b.div_ceil(120) }
}

#[test]
fn reduce_scatter_landing_zones_hold_one_piece_per_peer() {
    let plan = planned("rs.symm", "h200x4", Some(vec![symmc::CollectiveVariant::Ll]));
    assert!(plan.programs[0].contains("via=ll"), "{}", plan.programs[0]);
    // %m has 4 * 64 rows of 64 floats, of which each of four peers gets a quarter.
    let (operand, ranks) = (4 * 64 * 64 * 4, 4);
    let expected = zone(operand / ranks, ranks);
    assert_eq!(expected, 131_072);
    let zones: Vec<usize> =
        (0..plan.fixed.len()).filter(|&f| matches!(plan.fixed[f].role, FixedRole::Landing { .. })).collect();
    assert!(zones.iter().all(|&f| plan.fixed[f].size == expected), "{:?}", plan.fixed);
    for f in zones {
        let mut small = plan.clone();
        small.fixed[f].size -= 128;
        let errors = findings(&small);
        assert!(errors.iter().any(|e| matches!(e, CheckError::LandingTooSmall { .. })), "{errors:?}");
    }
}

#[test]
fn summed_residual_has_a_place_even_within_a_dispatch() {
    let plan = planned("mi.symm", "h200x4", None);
    let graph: Graph = text::parse(&plan.programs[0]).expect("it reads");
    let reduction = graph.dispatches.iter().find(|d| d.form == DispatchForm::Reduction).expect("a reduction");
    let names: Vec<&str> = reduction.nodes().map(|n| graph.node_name(n)).collect();
    assert_eq!(names, ["r", "add", "n"]);
    let bucket = &plan.buckets[0];
    // A dispatch is named by the first result of its first node.
    assert!(bucket.steps.iter().any(|s| s.node == "r") && bucket.steps.iter().all(|s| s.node != "add"));
    assert!(bucket.places.contains_key("add") && !bucket.places.contains_key("r"), "{:?}", bucket.places);
    let mut without = plan.clone();
    without.buckets[0].places.shift_remove("add");
    let errors = findings(&without);
    assert!(errors.iter().any(|e| e.kind() == "PlaceMissing"), "{errors:?}");
    let mut inner = plan;
    let placement = inner.buckets[0].places["add"].clone();
    inner.buckets[0].places.insert("r".into(), placement);
    let errors = findings(&inner);
    assert!(errors.iter().any(|e| e.kind() == "PlaceUnknown"), "{errors:?}");
}

#[test]
fn results_of_a_reduction_are_written_after_the_rendezvous() {
    let text = std::fs::read_to_string(file("reduction_add_after_rendezvous.json")).expect("a file");
    let plan = Plan::from_json(&text).expect("a plan");
    let places = &plan.buckets[0].places;
    // Peers may read the operand of the first all-reduce until the second meets; the sum lies on it.
    assert_eq!((places["p"].memory, &places["p"].offset), (places["add"].memory, &places["add"].offset));
    assert_eq!(findings(&plan), []);
    // A variant of the library writes its results from the arrival.
    let mut early = plan;
    early.programs[0] = early.programs[0].replace("via=ll", "via=plain");
    let errors = findings(&early);
    let race = |e: &CheckError| matches!(e, CheckError::Race { second, .. } if second.value == "add" && matches!(second.moment, AccessMoment::Step(_)));
    assert!(errors.iter().any(race), "{errors:?}");
}

#[test]
fn inputs_in_fixed_memory_lie_at_its_first_byte() {
    let text = "program \"p\" ranks 2\ngroup @w world\nparam %x: f32[131072] source \"x\"\n\
        %y: f32[131072] = all_reduce %x op=sum group=@w\nreturn %y\n";
    let program = Program::from_text(text).unwrap_or_else(|e| panic!("{e}"));
    let config = CompileConfig::default().with_variants(vec![symmc::CollectiveVariant::TwoShot]);
    let plan = symmc::compile(&program, &config).unwrap_or_else(|e| panic!("{e}")).into_plan();
    let MemoryRef::Fixed(f) = plan.buckets[0].places["x"].memory else {
        panic!("{:?}", plan.buckets[0].places)
    };
    let mut moved = plan;
    moved.fixed[f].size += 64;
    moved.buckets[0].places["x"].offset = "64".into();
    let errors = findings(&moved);
    assert!(errors.iter().any(|e| matches!(e, CheckError::PlaceOfInput { .. })), "{errors:?}");
}
