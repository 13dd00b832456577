//! A plan's programs beside the source that the plan carries.

use std::path::Path;

use symmc::{BucketSpec, CompileConfig, OpenOptions, Plan, Program, SourceComparison, SourceStatus};
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
    symmc::compile(&program, &CompileConfig::default().with_buckets(buckets)).expect("a plan").into_plan()
}

fn compare_plan(plan: Plan) -> SourceComparison {
    symmc::compare_with_source(&symmc::into_checked_plan(plan).unwrap_or_else(|e| panic!("{e}")))
}

/// A plan with one text of its programs replaced by another.
fn edit_program(plan: &Plan, from: &str, to: &str) -> Plan {
    let mut changed = plan.clone();
    for program in &mut changed.programs {
        assert!(program.contains(from), "{from} in\n{program}");
        *program = program.replace(from, to);
    }
    changed
}

#[test]
fn a_plan_as_it_was_made_is_its_source() {
    let comparison = compare_plan(plan(PROGRAM));
    assert_eq!(comparison.buckets, [SourceStatus::Equal, SourceStatus::Equal], "{comparison:#?}");
    assert!(
        comparison.left_out.is_empty() && comparison.parts.is_empty() && comparison.elements == 0,
        "{comparison:#?}"
    );
}

#[test]
fn each_edit_of_a_planned_program_is_detected() {
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
        let comparison = compare_plan(edit_program(&plan, from, to));
        let named = |d: &String| d.contains(output) && d.contains("on rank ") && d.contains("t=");
        assert!(comparison.differences.iter().any(named), "{from} to {to}: {comparison:#?}");
        assert_eq!(comparison.status(), SourceStatus::Different);
        // One change is one difference of each bucket.
        assert_eq!(comparison.differences.len(), 2, "{from} to {to}: {comparison:#?}");
        tried += 1;
    }
    assert_eq!(tried, 9);
}

/// Ops of one operand that differ little, seldom, or only for some magnitudes, in each dtype.
#[test]
fn small_and_rare_changes_are_found_in_every_dtype() {
    let program = |dtype: &str, op: &str| {
        format!(
            "program \"small\" ranks 2\nsymbol t in 1..=64\ngroup @w world\narg %x: {dtype}[t, 64]\n\
             %a: {dtype}[t, 64] = all_reduce %x op=sum group=@w\n%z: {dtype}[t, 64] = {op}\n\
             %y: {dtype}[t, 64] = neg %z\nreturn %y\n"
        )
    };
    let floats = [
        ("mul %a, 0.5", "mul %a, 0.500001"),
        ("mul %a, 0.5", "mul %a, 0.52"),
        ("add %a, 0.001", "add %a, 0.00101"),
        ("min %a, 1000.0", "min %a, 100.0"),
        // Numbers of bf16 near 1000 are multiples of 4.
        ("min %a, 1000.0", "min %a, 996.0"),
        ("max %a, -1000.0", "max %a, -1004.0"),
        ("gelu %a", "gelu_tanh %a"),
        ("rem %a, 3.0", "rem %a, 3.0001"),
        ("rms_norm %a axes=1 eps=1e-5 round_first=false", "rms_norm %a axes=1 eps=1e-6 round_first=false"),
        ("rms_norm %a axes=1 eps=1e-5 round_first=false", "rms_norm %a axes=1 eps=1.01e-5 round_first=false"),
        ("layer_norm %a axes=1 eps=1e-5", "layer_norm %a axes=1 eps=1e-6"),
        ("softmax %a axis=1 log=false", "softmax %a axis=1 log=true"),
        ("softmax %a axis=1 log=false", "softmax %a axis=0 log=false"),
        ("floor %a", "trunc %a"),
        ("round %a", "floor %a"),
        ("silu %a", "relu %a"),
    ];
    let integers = [
        ("floor_div %a, 1000000", "floor_div %a, 1000001"),
        ("rem %a, 1000", "rem %a, 1001"),
        ("min %a, 1000000", "min %a, 999999"),
        ("relu %a", "abs %a"),
        ("add %a, 1", "add %a, 2"),
        ("and %a, 255", "and %a, 511"),
    ];
    let mut tried = 0;
    let combinations = |dtypes: &[&'static str], changes: &[(&'static str, &'static str)]| {
        let combined = dtypes.iter().flat_map(|&d| changes.iter().map(move |&(from, to)| (d, from, to)));
        combined.collect::<Vec<_>>()
    };
    for (dtype, from, to) in combinations(&["f64", "f32", "bf16", "f16"], &floats)
        .into_iter()
        .chain(combinations(&["i64", "i32"], &integers))
    {
        let plan = plan(&program(dtype, from));
        let unchanged = compare_plan(plan.clone());
        assert_eq!(unchanged.status(), SourceStatus::Equal, "{dtype} {from}: {unchanged:#?}");
        let mut changed = plan;
        for program in &mut changed.programs {
            let graph = text::parse(program).expect("a program");
            assert!(graph.nodes.len() >= 3);
            *program = program.replace(&format!("= {from}"), &format!("= {to}"));
        }
        let comparison = compare_plan(changed);
        assert_eq!(comparison.status(), SourceStatus::Different, "{dtype}: {from} to {to}: {comparison:#?}");
        tried += 1;
    }
    assert_eq!(tried, 4 * floats.len() + 2 * integers.len());
}

#[test]
fn roundings_that_are_dropped_or_added_are_found() {
    let program = |middle: &str| {
        format!(
            "program \"r\" ranks 2\ngroup @w world\narg %x: f32[8, 64]\n\
             %a: f32[8, 64] = all_reduce %x op=sum group=@w\n{middle}%y: f32[8, 64] = neg %z\nreturn %y\n"
        )
    };
    let rounded = "%b: bf16[8, 64] = cast %a\n%z: f32[8, 64] = cast %b\n";
    let rounding = plan(&program(rounded));
    assert_eq!(compare_plan(rounding.clone()).status(), SourceStatus::Equal);
    let dropped = edit_program(&rounding, rounded, "%z: f32[8, 64] = copy %a\n");
    assert!(symmc::into_checked_plan(dropped.clone()).is_err(), "steps change with the nodes");
    let narrower = edit_program(&rounding, "%b: bf16[8, 64] = cast %a", "%b: f16[8, 64] = cast %a");
    let narrower = edit_program(&narrower, "%z: f32[8, 64] = cast %b", "%z: f32[8, 64] = cast %b");
    assert_eq!(compare_plan(narrower).status(), SourceStatus::Different);
}

#[test]
fn changes_that_act_at_some_sizes_alone_are_found() {
    let source = "program \"s\" ranks 2\nsymbol t in 1..=8192\ngroup @w world\narg %x: f32[t, 16]\n\
        %a: f32[t, 16] = all_reduce %x op=sum group=@w\n%z: f32[1, 16] = slice %a axis=0 start=t - 1 step=1\n\
        %y: f32[1, 16] = neg %z\nreturn %y\n";
    let program = Program::from_text(source).expect("a program");
    for upper in [vec![8192], vec![17, 8192]] {
        let config = CompileConfig::default().with_buckets([BucketSpec::new("t", upper)]);
        let plan = symmc::compile(&program, &config).expect("a plan").into_plan();
        for start in [
            "min(t - 1, 1)",
            "min(t - 1, 17)",
            "min(t - 1, 4000)",
            "min(t - 1, 8190)",
            "t - 1 - div(t, 8192)",
        ] {
            let comparison = compare_plan(edit_program(&plan, "start=t - 1", &format!("start={start}")));
            assert_eq!(comparison.status(), SourceStatus::Different, "{start}: {comparison:#?}");
        }
        // The same at all sizes.
        let comparison = compare_plan(edit_program(&plan, "start=t - 1", "start=min(t - 1, 8191)"));
        // The plan reduces the last row alone: at 8192 rows it is compared by parts.
        let is_equal = comparison.status() <= SourceStatus::EqualByParts;
        assert!(is_equal, "{comparison:#?}");
    }
}

#[test]
fn opaque_and_custom_ops_are_compared_by_their_operands() {
    let custom = "program \"c\" ranks 2\ngroup @w world\ncustom \"my::op\" symmetric operands [] results []\narg %x: f32[4, 8]\n\
        %a: f32[4, 8] = all_reduce %x op=sum group=@w\n%y: f32[4, 8] = custom \"my::op\" %a\n\
        %o: f32[4, 8] = opaque \"ns::f\" %y attributes=\"dim=1\"\n%z: f32[4, 8] = exp %o\nreturn %z\nreturn %a\n";
    let plan = plan(custom);
    assert_eq!(compare_plan(plan.clone()).status(), SourceStatus::Equal);
    for (from, to) in [("op=sum", "op=max"), ("dim=1", "dim=0"), ("ns::f", "ns::g"), ("= exp ", "= tanh ")] {
        let comparison = compare_plan(edit_program(&plan, from, to));
        assert_ne!(comparison.status(), SourceStatus::Equal, "{from}: {comparison:#?}");
        let expected = if from == "op=sum" || from == "= exp " {
            SourceStatus::Different
        } else {
            SourceStatus::NotCompared
        };
        assert_eq!(comparison.status(), expected, "{from}: {comparison:#?}");
    }
}

#[test]
fn large_programs_are_compared() {
    let large = "program \"l\" ranks 2\ngroup @w world\narg %x: f32[4096, 4096]\n%y: f32[4096, 4096] = matmul %x, %x\n\
        %r: f32[4096, 4096] = all_reduce %y op=sum group=@w\nreturn %r\n";
    let plan = plan(large);
    assert_eq!(compare_plan(plan.clone()).status(), SourceStatus::Equal);
    assert_eq!(compare_plan(edit_program(&plan, "op=sum", "op=max")).status(), SourceStatus::Different);
}

#[test]
fn exported_programs_are_proven_equal_to_their_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    for (name, ranks) in [
        ("megatron_tp4_f32", 4),
        ("megatron_tp4_bf16", 4),
        ("hf_llama_tp2", 2),
        ("moe_ep4", 4),
        ("llama70b_tp8_graph", 8),
    ] {
        let options = OpenOptions::default().with_ranks(ranks);
        let program = Program::open(&folder.join(format!("{name}.pt2")), &options).expect(name);
        let plan = symmc::compile(&program, &CompileConfig::default()).expect(name);
        let comparison = symmc::compare_with_source(&plan);
        assert!(comparison.status() <= SourceStatus::EqualByProof, "{name}: {comparison:#?}");
    }
}

/// Both programs round what depends on no input as the program says, also where ranks have different parts of it.
#[test]
fn shards_of_computed_constants_are_equal_to_their_source() {
    for (dtype, op) in
        ["bf16", "f16", "f32"].into_iter().flat_map(|d| ["tanh", "exp", "rsqrt"].map(|op| (d, op)))
    {
        for (group, rows) in [("@w", 4), ("@rows", 8)] {
            let text = format!(
                "program \"p\" ranks 4\ngroup @w world\ngroup @rows [[0, 1], [2, 3]]\narg %x: {dtype}[{rows}, 1]\n\
                 %f: {dtype}[16, 1] = full value=1.5\n%e: {dtype}[16, 1] = {op} %f\n\
                 %d: {dtype}[{rows}, 1] = shard %e axis=0 group={group}\n%g: {dtype}[{rows}, 1] = {op} %d\n\
                 %y: {dtype}[{rows}, 1] = mul %x, %g\nreturn %d\nreturn %g\nreturn %y\n"
            );
            let program = Program::from_text(&text).unwrap_or_else(|e| panic!("{e}"));
            let plan = symmc::compile(&program, &CompileConfig::default()).unwrap_or_else(|e| panic!("{e}"));
            let compared = symmc::compare_with_source(&plan);
            assert!(compared.differences.is_empty(), "{text}{compared:?}");
        }
    }
}
