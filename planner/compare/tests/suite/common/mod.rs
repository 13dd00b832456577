//! Compares pairs of small programs. The second program of a pair takes the role of the planned one.

// Each test binary uses its part of this module.
#![allow(dead_code)]

use symmc_compare::{CompareConfig, SourceComparison, SourceStatus, compare_with};
use symmc_ir::{Numerics, text};
use symmc_plan::{ArenaSizes, Bucket, BucketTotals, ParsedPlan, Plan, SourceProgram, VERSION};

/// Compares two programs over the ranges of the symbols of the second.
pub fn compared(source: &str, planned: &str) -> SourceComparison {
    compared_with(source, planned, &CompareConfig::default())
}

pub fn compared_with(source: &str, planned: &str, config: &CompareConfig) -> SourceComparison {
    compared_in_class(source, planned, Numerics::EXACT, config)
}

/// Compares two programs of a plan of these numerics classes.
pub fn compared_in_class(
    source: &str,
    planned: &str,
    numerics: Numerics,
    config: &CompareConfig,
) -> SourceComparison {
    let graph = text::parse(planned).unwrap_or_else(|e| panic!("{e}\n{planned}"));
    let bucket = Bucket {
        symbols: graph.symbols.values().map(|s| (s.name.clone(), [s.min, s.max])).collect(),
        program: 0,
        buffers: Vec::new(),
        places: Default::default(),
        steps: Vec::new(),
        decisions: Vec::new(),
        copies: Vec::new(),
        totals: BucketTotals::default(),
    };
    let plan = Plan {
        version: VERSION,
        source: SourceProgram { name: "p".into(), hash: String::new(), text: source.into() },
        machine: "host".into(),
        numerics,
        ranks: graph.ranks.unwrap_or(1),
        programs: vec![planned.into()],
        replacements: Vec::new(),
        arenas: ArenaSizes { ordinary: 0, symmetric: 0 },
        fixed: Vec::new(),
        buckets: vec![bucket],
    };
    let plan = ParsedPlan::parse(plan.into()).unwrap_or_else(|e| panic!("{e}\n{source}"));
    compare_with(&plan, config)
}

/// A program without nodes.
pub const HEAD: &str = "program \"p\" ranks 2\nsymbol t in 1..=5000\ngroup @w world\ngroup @one [[0], [1]]\n\
    arg %x: f32[t, 16]\narg %h: bf16[t, 16]\narg %n: i64[t]\narg %q: f32[2, t, 8]\nparam %w: f32[16, 16] source \"w\"\nparam %g: f32[16] source \"g\"\n\
    param %gh: bf16[16] source \"gh\"\n";

/// Compares two programs that both start with [`HEAD`].
pub fn outcome(source: &str, planned: &str) -> (SourceStatus, SourceComparison) {
    let comparison = compared(&format!("{HEAD}{source}"), &format!("{HEAD}{planned}"));
    (comparison.buckets[0], comparison)
}

/// As [`outcome`], by drawn values alone.
pub fn drawn_outcome(source: &str, planned: &str) -> (SourceStatus, SourceComparison) {
    let config = CompareConfig::without_proofs();
    let comparison = compared_with(&format!("{HEAD}{source}"), &format!("{HEAD}{planned}"), &config);
    (comparison.buckets[0], comparison)
}
