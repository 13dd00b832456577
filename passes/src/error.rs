//! The errors of passes.

use symmc_ir::Graph;
use symmc_ir::verify::{self, Violation};
use thiserror::Error;

#[derive(Clone, PartialEq, Debug, Error)]
pub enum PassError {
    /// The graph breaks invariants. If `pass` is `input`, the caller's graph broke them; otherwise the pass
    /// did.
    #[error("{when} {pass}: {}", violations.join("; "))]
    Invalid {
        /// `before` or `after`.
        when: &'static str,
        pass: &'static str,
        violations: Vec<String>,
    },
    #[error("{pass}: program {program} leaves the number of ranks open; close it first")]
    OpenRanks { pass: &'static str, program: String },
    #[error(
        "lower: the range {min}..={max} of symbol {symbol} must be a nonempty part of {own_min}..={own_max}"
    )]
    Range { symbol: String, min: i64, max: i64, own_min: i64, own_max: i64 },
    /// The profile has no curve for the plain variant, with which every other variant is compared.
    #[error("lower: %{node}: {collective}: profile {profile} has no curve for plain")]
    NoPlain { node: String, collective: String, profile: String },
    /// The pass contradicts itself: a defect of this crate, for any program.
    #[error("internal error: {0}")]
    Internal(String),
}

pub(crate) fn verify_before(pass: &'static str, graph: &Graph) -> Result<(), PassError> {
    verify::verify(graph).map_err(|found| invalid_graph_error("before", pass, &found))
}

pub(crate) fn verify_after(pass: &'static str, graph: &Graph) -> Result<(), PassError> {
    verify::verify_derived(graph).map_err(|found| invalid_graph_error("after", pass, &found))
}

fn invalid_graph_error(when: &'static str, pass: &'static str, found: &[Violation]) -> PassError {
    PassError::Invalid { when, pass, violations: found.iter().map(ToString::to_string).collect() }
}
