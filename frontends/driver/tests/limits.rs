//! Plans under limits of symmetric memory.

use std::path::Path;

use symmc_check::CheckedPlan;
use symmc_driver::{CompileOptions, CompileReport, DriverError, compile, estimate};
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

/// A program whose buckets compete for the symmetric arena.
struct SharedArenaCase {
    machine: &'static str,
    /// The upper ends of the buckets.
    upper: &'static [i64],
    /// Whether callers write the arguments into the arena.
    is_bound: bool,
    text: &'static str,
}

/// Landing zones of small buckets next to large blocks of others, zones of two groups, parameters in the arena of some
/// buckets, and operands that need the arena in every plan.
const SHARED_ARENA_CASES: &[SharedArenaCase] = &[
    SharedArenaCase { machine: "h200x2", upper: &[16, 64, 256, 4096], is_bound: false, text: ALL_REDUCE },
    SharedArenaCase { machine: "h200x2", upper: &[16, 4096], is_bound: true, text: ALL_REDUCE },
    SharedArenaCase { machine: "h200x4", upper: &[16, 128, 2048], is_bound: false, text: TWO_GROUPS },
    SharedArenaCase { machine: "h200x4", upper: &[16, 128, 1024, 4096], is_bound: false, text: PARAMETERS },
    SharedArenaCase { machine: "h200x2", upper: &[64, 4096], is_bound: false, text: CUSTOM_OP },
    SharedArenaCase { machine: "h200x2", upper: &[64, 4096], is_bound: true, text: CUSTOM_OP },
    SharedArenaCase { machine: "host", upper: &[64, 512, 4096], is_bound: false, text: CUSTOM_OP },
];

const ALL_REDUCE: &str = "program \"p\" ranks 2\nsymbol t in 1..=4096\ngroup @w world\narg %x: bf16[t, 1024]\n\
    %a: bf16[t, 1024] = neg %x\n%r: bf16[t, 1024] = all_reduce %a op=sum group=@w\n\
    %y: bf16[t, 1024] = exp %r\nreturn %y\n";

const TWO_GROUPS: &str = "program \"p\" ranks 4\nsymbol t in 1..=2048\ngroup @row [[0, 1], [2, 3]]\n\
    group @col [[0, 2], [1, 3]]\narg %x: bf16[t, 1024]\narg %z: bf16[t, 512]\nparam %w: bf16[1024, 1024]\n\
    %h: bf16[t, 1024] = matmul %x, %w\n%r: bf16[t, 1024] = all_reduce %h op=sum group=@row\n\
    %n: bf16[t, 512] = neg %z\n%s: bf16[t, 512] = all_reduce %n op=sum group=@col\n\
    %y: bf16[t, 1024] = exp %r\n%u: bf16[t, 512] = exp %s\nreturn %y\nreturn %u\n";

const PARAMETERS: &str = "program \"p\" ranks 4\nsymbol t in 1..=4096\ngroup @all world\narg %x: bf16[t, 1024]\n\
    param %w: bf16[1024, 1024]\nparam %v: bf16[256, 1024]\n%g: bf16[1024, 1024] = all_gather %v group=@all\n\
    %h: bf16[t, 1024] = matmul %x, %w\n%y: bf16[t, 1024] = all_reduce %h op=sum group=@all\n\
    %z: bf16[t, 1024] = add %x, %y\n%i: bf16[t, 1024] = matmul %z, %g\n\
    %u: bf16[t, 1024] = all_reduce %i op=sum group=@all\n%o: bf16[t, 1024] = add %u, %z\nreturn %o\n";

const CUSTOM_OP: &str = "program \"p\" ranks 2\nsymbol t in 1..=4096\ngroup @w world\n\
    custom \"my::next\" symmetric operands [0] results [] group @w\narg %x: bf16[t, 256]\n\
    arg %k: bf16[4096, 512]\n%n: bf16[t, 256] = custom \"my::next\" %x\n\
    %m: bf16[t, 256] = all_reduce %n op=sum group=@w\n%y: bf16[t, 256] = exp %m\n%l: bf16[4096, 512] = neg %k\n\
    %p: bf16[8192, 512] = all_gather %l group=@w\n%q: bf16[8192, 512] = exp %p\nreturn %y\nreturn %q\n";

#[test]
fn buckets_share_every_limit_from_the_least() {
    let mut fits_by_fixed_memory = 0;
    for case in SHARED_ARENA_CASES {
        let graph = text::parse(case.text).expect("a graph");
        let mut options = options(case.machine, None);
        options.buckets = graph.symbols.keys().map(|symbol| (symbol, case.upper.to_vec())).collect();
        options.bound = graph.inputs.keys().filter(|_| case.is_bound).collect();
        let (free, free_report) = compile(&graph, &options).expect("a plan");
        let fixed = |plan: &CheckedPlan| plan.fixed.iter().map(|region| region.size).sum::<u64>();
        let mut compile_within = |limit: u64| {
            options.symm_limit = Some(limit);
            compile(&graph, &options).map(|(plan, report)| {
                let tried = |report: &CompileReport| report.tried.iter().map(Vec::len).sum::<usize>();
                let [tried, free_tried] = [&report, &free_report].map(tried);
                assert!(tried <= 3 * free_tried, "{tried} attempts, and {free_tried} without a limit");
                let us = total_us(&plan, &options);
                (plan, us)
            })
        };
        let least = match compile_within(0) {
            Ok(_) => 0,
            Err(DriverError::SymmLimit { limit: 0, least, .. }) => least,
            Err(error) => panic!("{error}"),
        };
        let label = format!("{:?} on {}, at least {least}", case.upper, case.machine);
        for limit in [least / 2, least.saturating_sub(PAGE), least.saturating_sub(1)] {
            if limit < least {
                let error = compile_within(limit).expect_err(&label);
                let DriverError::SymmLimit { least: reported, .. } = error else {
                    panic!("{label}: {error}")
                };
                assert_eq!(reported, least, "{label}");
            }
        }
        let peak = free.arenas.symmetric;
        let mut limits: Vec<u64> = (0..=16).map(|i| least + (peak - least) / 16 * i).chain([peak]).collect();
        let mut before = 0.0;
        while let Some(limit) = limits.pop() {
            let label = format!("{label}, {limit} of {peak} bytes");
            let (plan, us) = compile_within(limit).unwrap_or_else(|e| panic!("{label}: {e}"));
            assert!(plan.arenas.symmetric <= limit, "{label}: {} bytes", plan.arenas.symmetric);
            // Some candidates are chosen by their sketches.
            assert!(us >= 0.995 * before, "{label}: {us} µs, and {before} with more memory");
            before = us.max(before);
            fits_by_fixed_memory += usize::from(fixed(&plan) < fixed(&free) && fixed(&plan) > 0);
            // The size of a plan is a limit as well, and so is the next smaller one.
            let size = plan.arenas.symmetric;
            let near = [size.saturating_sub(PAGE), size];
            if limits.last().is_some_and(|next| near.iter().all(|size| next < size)) && near[0] > least {
                limits.extend(near);
            }
        }
    }
    assert!(fits_by_fixed_memory > 20, "{fits_by_fixed_memory} plans have smaller landing zones");
}
