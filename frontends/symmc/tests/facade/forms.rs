//! Buckets of one program take the canonical form that is faster at their sizes.

use symmc::{BucketSpec, CompileConfig, Program, SourceStatus};
use symmc_ir::machine::MachineProfile;
use symmc_ir::{Graph, text};

/// A program whose logits are gathered for an argmax: of `t` rows, and of a fixed number of rows.
fn greedy(most: i64, fixed_rows: i64) -> Program {
    let head = |name: &str, rows: &str, parts: [&str; 3], all: &str| {
        let row = format!("f32[{rows}, 4096]");
        let [first, second, third] = parts;
        format!(
            "%{name}_m: {row} = matmul %{name}, %w\n%{name}_g: f32[{all}, 4096] = all_gather %{name}_m group=@w\n\
             %{name}_0: {row} = slice %{name}_g axis=0 start=0 step=1\n\
             %{name}_1: {row} = slice %{name}_g axis=0 start={first} step=1\n\
             %{name}_2: {row} = slice %{name}_g axis=0 start={second} step=1\n\
             %{name}_3: {row} = slice %{name}_g axis=0 start={third} step=1\n\
             %{name}_l: f32[{rows}, 16384] = concat %{name}_0, %{name}_1, %{name}_2, %{name}_3 axis=1\n\
             %{name}_y: i64[{rows}] = argmax %{name}_l axis=1 keep=false\n"
        )
    };
    let f = fixed_rows;
    let starts = [f, 2 * f, 3 * f].map(|start| start.to_string());
    let starts = [&*starts[0], &*starts[1], &*starts[2]];
    let text = format!(
        "program \"p\" ranks 4\nsymbol t in 1..={most}\ngroup @w world\narg %x: f32[t, 64]\narg %z: f32[{f}, 64]\n\
         param %w: f32[64, 4096]\n{}{}return %x_y\nreturn %z_y\n",
        head("x", "t", ["t", "2*t", "3*t"], "4*t"),
        head("z", &f.to_string(), starts, &(4 * f).to_string()),
    );
    Program::from_text(&text).expect("a program")
}

fn config(upper: &[i64]) -> CompileConfig {
    let profile = MachineProfile::builtin("h200x4").expect("it is built in");
    CompileConfig::default().with_profile(profile).with_buckets(vec![BucketSpec::new("t", upper)])
}

/// Whether the logits of `t` rows and those of fixed rows are gathered.
fn gathers(graph: &Graph) -> [bool; 2] {
    ["x", "z"].map(|head| graph.nodes.keys().any(|n| graph.node_name(n) == format!("{head}_g")))
}

#[test]
fn buckets_of_few_rows_gather_where_that_is_faster() {
    let plan = symmc::compile(&greedy(256, 512), &config(&[1, 256])).expect("a plan");
    let forms: Vec<[bool; 2]> = plan
        .buckets
        .iter()
        .map(|bucket| gathers(&text::parse(&plan.programs[bucket.program]).expect("a program")))
        .collect();
    // A reduction that saves bytes at all sizes is made in both.
    assert_eq!(forms, [[true, false], [false, false]]);
    assert_ne!(symmc::compare_with_source(&plan).status(), SourceStatus::Different);
    // Each bucket is about as fast as a plan for its sizes alone, which may drop more exit barriers, because only runs of itself follow.
    let profile = config(&[]).profile;
    let estimates = symmc::estimate(&plan, &profile).expect("estimates");
    for (estimate, rows) in estimates.iter().zip([1, 256]) {
        let single = symmc::compile(&greedy(rows, 512), &config(&[rows])).expect("a plan");
        let single = symmc::estimate(&single, &profile).expect("estimates");
        assert!(estimate.total_us <= 1.05 * single[0].total_us, "{rows} rows: {estimate:?} after {single:?}");
    }
}

#[test]
fn single_bucket_is_judged_at_its_largest_size() {
    let plan = symmc::compile(&greedy(256, 512), &config(&[256])).expect("a plan");
    let graph = text::parse(&plan.programs[plan.buckets[0].program]).expect("a program");
    assert_eq!(gathers(&graph), [false, false]);
}
