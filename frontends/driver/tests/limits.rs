//! Plans under limits of symmetric memory.

use std::path::Path;

use symmc_check::CheckedPlan;
use symmc_driver::{CompileOptions, DriverError, compile, estimate};
use symmc_ir::machine::MachineProfile;
use symmc_ir::{Graph, text};
use symmc_plan::PAGE;

/// Programs whose collectives need symmetric memory in different ways: landing zones, operands that peers
/// read, results that peers write, coalesced and joined collectives, several buckets.
const PROGRAMS: &[&str] = &[
    "bucket_fsdp_gathers",
    "bucket_two_all_reduces",
    "mesh2d",
    "moe_payload_and_scale",
    "sequence_parallel",
];

fn program(name: &str) -> Graph {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/optimised");
    let file = std::fs::read_to_string(folder.join(name).with_extension("symm"));
    text::parse(&file.expect("a program")).expect("it parses")
}

fn options(machine: &str, limit: Option<u64>) -> CompileOptions {
    let profile = MachineProfile::builtin(machine).expect("it is built in");
    CompileOptions { symm_limit: limit, ..CompileOptions::new(profile) }
}

/// The estimated microseconds of a run of all buckets.
fn total_us(plan: &CheckedPlan, options: &CompileOptions) -> f64 {
    estimate(plan, &options.profile).expect("it reads").iter().map(|e| e.total_us).sum()
}

#[test]
fn smaller_limits_are_kept_and_never_give_faster_plans() {
    let mut slower = 0;
    for machine in ["host", "h200x4"] {
        for name in PROGRAMS {
            let graph = program(name);
            let mut options = options(machine, None);
            let (free, _) = compile(&graph, &options).expect("a plan");
            // All limits use the buckets of the plan without a limit.
            for (symbol, upper) in graph.symbols.iter().map(|(id, s)| (id, &s.name)) {
                let mut upper: Vec<i64> = free.buckets.iter().map(|b| b.symbols[upper][1]).collect();
                upper.sort_unstable();
                upper.dedup();
                options.buckets.insert(symbol, upper);
            }
            let (free, _) = compile(&graph, &options).expect("a plan");
            let peak = free.arenas.symmetric;
            let mut before = 0.0;
            for eighths in [8, 6, 4, 1, 0] {
                let limit = peak / 8 * eighths;
                options.symm_limit = Some(limit);
                let label = format!("{name} on {machine}, {limit} of {peak} bytes");
                let (plan, _) = compile(&graph, &options).unwrap_or_else(|e| panic!("{label}: {e}"));
                assert!(plan.arenas.symmetric <= limit, "{label}: {} bytes", plan.arenas.symmetric);
                let us = total_us(&plan, &options);
                let is_worth = eighths < 8 || us <= total_us(&free, &options);
                assert!(is_worth, "{label}: {us} µs, and {} without a limit", total_us(&free, &options));
                assert!(us >= before, "{label}: {us} µs, and {before} with more memory");
                slower += usize::from(before > 0.0 && us > before);
                before = us;
            }
        }
    }
    assert!(slower > 10, "limits make {slower} plans slower");
}

/// Small all-reduces that become one, and a large gather.
const COALESCED: &str = "program \"p\" ranks 4\ngroup @w world\narg %x: bf16[16, 512]\narg %y: bf16[16, 512]\n\
    arg %z: bf16[512, 4096]\n%a: bf16[16, 512] = neg %x\n%b: bf16[16, 512] = neg %y\n%c: bf16[512, 4096] = neg %z\n\
    %r: bf16[16, 512] = all_reduce %a op=sum group=@w\n%s: bf16[16, 512] = all_reduce %b op=sum group=@w\n\
    %g: bf16[2048, 4096] = all_gather %c group=@w\n%t: bf16[16, 512] = exp %r\n%u: bf16[16, 512] = exp %s\n\
    %h: bf16[2048, 4096] = exp %g\nreturn %t\nreturn %u\nreturn %h\n";

fn is_coalesced(plan: &CheckedPlan) -> bool {
    plan.buckets[0].decisions.iter().any(|d| d.chosen == "absorbed")
}

#[test]
fn collectives_are_coalesced_within_a_limit() {
    let graph = text::parse(COALESCED).expect("a graph");

    let (free, _) = compile(&graph, &options("h200x4", None)).expect("a plan");
    assert!(is_coalesced(&free));
    let needed = free.arenas.symmetric;
    for limit in [needed, needed - PAGE] {
        let (limited, _) = compile(&graph, &options("h200x4", Some(limit))).expect("a plan");
        assert!(is_coalesced(&limited) && limited.arenas.symmetric <= limit, "{limit} of {needed}");
    }
}

#[test]
fn a_limit_that_nothing_fits_says_what_is_needed() {
    let text = "program \"p\" ranks 2\ngroup @w world\n\
        custom \"my::next\" symmetric operands [0] results [] group @w\narg %x: f32[64, 8]\n\
        %y: f32[64, 8] = custom \"my::next\" %x\nreturn %y\n";
    let graph = text::parse(text).expect("a graph");
    let error = compile(&graph, &options("host", Some(64))).expect_err("%x has 2048 bytes");
    let DriverError::SymmLimit { limit: 64, least, fixed: 0 } = error else { panic!("{error}") };
    let (plan, _) = compile(&graph, &options("host", Some(least))).expect("the least is enough");
    assert_eq!(plan.arenas.symmetric, least);
    // Bound inputs stay in the symmetric arena.
    let bound = CompileOptions { bound: graph.inputs.keys().collect(), ..options("host", Some(64)) };
    let text = compile(&graph, &bound).expect_err("%x is bound").to_string();
    assert!(text.contains("2048 of them for landing zones and bound inputs; the limit is 64"), "{text}");
}
