//! A plan's programs beside the source that the plan carries, by numbers.

use std::path::Path;

use symmc::{BucketSpec, Config, OpenOptions, Plan, Program, SourceComparison};
use symmc_ir::text;

const PROGRAM: &str = r#"program "small" ranks 2
symbol t in 1..=64
group @w world
arg %x: f32[2*t, 8]
arg %ids: i64[t]
param %table: f32[16, 8]
%e: f32[t, 8] = take %table, %ids axis=0
%a: f32[2*t, 8] = concat %e, %e axis=0
%b: f32[2*t, 8] = add %a, %x
%r: f32[2*t, 8] = all_reduce %b op=sum group=@w
%n: f32[2*t, 8] = tanh %r
%s: f32[t, 8] = slice %n axis=0 start=t step=1
%m: f32[t] = reduce %s op=max axes=[1] keep=false
%i: i64[2*t] = argmax %n axis=1 keep=false
%p: f32[2*t, 8] = permute_ranks %x pairs=[0->1, 1->0] group=@w
return %m
return %i
return %p
"#;

fn plan(source: &str) -> Plan {
    let program = Program::from_graph(text::parse(source).expect("a program")).expect("verified");
    let bucket = BucketSpec::new("t", [4, 64]);
    let buckets = if source.contains("symbol t") { vec![bucket] } else { Vec::new() };
    symmc::compile(&program, &Config::default().with_buckets(buckets)).expect("a plan").into_plan()
}

fn compared(plan: Plan) -> SourceComparison {
    symmc::compare_with_source(&symmc::checked(plan).unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn a_plan_as_it_was_made_computes_what_its_source_does() {
    let found = compared(plan(PROGRAM));
    assert_eq!((found.buckets, found.compared), (2, 2), "{found:#?}");
    assert!(found.elements > 0 && found.left_out.is_empty() && found.differences.is_empty(), "{found:#?}");
}

#[test]
fn one_change_in_the_text_of_a_planned_program_is_found() {
    let plan = plan(PROGRAM);
    let mut tried = 0;
    for (from, to, output) in [
        ("op=sum", "op=max", "output 0 (%m)"),
        ("op=sum", "op=avg", "output 0 (%m)"),
        ("op=sum", "op=prod", "output 0 (%m)"),
        ("= tanh ", "= sigmoid ", "output 0 (%m)"),
        ("start=t", "start=0", "output 0 (%m)"),
        ("op=max axes", "op=min axes", "output 0 (%m)"),
        ("= argmax ", "= argmin ", "output 1 (%i)"),
        ("[0->1, 1->0]", "[0->0, 1->1]", "output 2 (%p)"),
        ("= add ", "= sub ", "output 0 (%m)"),
    ] {
        let mut changed = plan.clone();
        for program in &mut changed.programs {
            assert!(program.contains(from), "{from} in\n{program}");
            *program = program.replace(from, to);
        }
        let found = compared(changed);
        let named = |d: &String| d.contains(output) && d.contains("on rank ") && d.contains("t=");
        assert!(found.differences.iter().any(named), "{from} to {to}: {found:#?}");
        tried += 1;
    }
    assert_eq!(tried, 9);
}

/// Integers and floats, of one element each, of which few draws tell two programs apart.
fn seldom(offset: f64) -> String {
    format!(
        "program \"seldom\" ranks 2\ngroup @w world\narg %x: i64[1]\narg %f: f32[1]\n%n: i64[1] = neg %x\n\
         %r: i64[1] = relu %n\n%s: i64[1] = all_reduce %r op=sum group=@w\n%g: f32[1] = sub {offset:?}, %f\n\
         %a: f32[1] = relu %g\nreturn %s\nreturn %a\n"
    )
}

#[test]
fn what_has_no_floats_is_equal_in_every_draw() {
    let edited = |offset: f64, from: &str, to: &str| {
        let mut plan = plan(&seldom(offset));
        assert!(plan.programs[0].contains(from), "{from} in\n{}", plan.programs[0]);
        plan.programs[0] = plan.programs[0].replace(from, to);
        let found = compared(plan);
        assert!(found.compared == 1 && found.left_out.is_empty(), "{found:#?}");
        found
    };
    let found = edited(0.0, "= relu %n", "= abs %n");
    assert!(found.differences.iter().any(|d| d.contains("output 0 (%s)")), "{found:#?}");
    // Floats differ in all draws, or it is not decided.
    let all = (0..20).map(|i| edited(f64::from(i) * 0.05, "= relu %g", "= abs %g"));
    let [mut different, mut undecided] = [0, 0];
    for found in all {
        let named = found.differences.iter().chain(&found.undecided).all(|d| d.contains("output 1 (%a)"));
        assert!(named && found.differences.len() + found.undecided.len() <= 1, "{found:#?}");
        different += found.differences.len();
        undecided += found.undecided.len();
    }
    assert!(different > 0 && undecided > 0, "{different}, {undecided}");
}

#[test]
fn what_cannot_be_compared_is_named() {
    let custom = "program \"c\" ranks 2\ncustom \"my::op\" symmetric operands [] results []\narg %x: f32[4]\n\
        %y: f32[4] = custom \"my::op\" %x\nreturn %y\n";
    let large =
        "program \"l\" ranks 2\narg %x: f32[4096, 4096]\n%y: f32[4096, 4096] = matmul %x, %x\nreturn %y\n";
    for (source, reason) in [(custom, "my::op"), (large, "more elements would have to be computed")] {
        let found = compared(plan(source));
        assert_eq!((found.compared, found.elements), (0, 0), "{found:#?}");
        assert!(found.differences.is_empty() && found.left_out[0].0.contains(reason), "{found:#?}");
    }
}

#[test]
fn exported_programs_compute_what_their_sources_do() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    let mut compared_some = 0;
    for (name, ranks) in
        [("megatron_tp4_f32", 4), ("megatron_tp4_bf16", 4), ("hf_llama_tp2", 2), ("moe_ep4", 4)]
    {
        let options = OpenOptions::default().with_ranks(ranks);
        let program = Program::open(&folder.join(format!("{name}.pt2")), &options).expect(name);
        let plan = symmc::compile(&program, &Config::default()).expect(name);
        let found = symmc::compare_with_source(&plan);
        assert!(found.differences.is_empty(), "{name}: {found:#?}");
        compared_some += found.compared;
    }
    assert!(compared_some >= 2, "{compared_some}");
}
