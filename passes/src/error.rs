//! The errors of passes.

use symmc_ir::Graph;
use symmc_ir::verify::{self, Violation};
use thiserror::Error;

#[derive(Clone, PartialEq, Debug, Error)]
pub enum PassError {
    /// The graph breaks invariants. If `pass` is `input`, the caller's graph broke them; otherwise the pass
    /// did.
    #[error("{when} {pass}: the graph is invalid: {}", violations.join("; "))]
    Invalid {
        /// `before` or `after`.
        when: &'static str,
        pass: &'static str,
        violations: Vec<String>,
    },
    #[error("{pass}: program {program} has an open number of ranks: set the number of ranks first")]
    OpenRanks { pass: &'static str, program: String },
    #[error(
        "lower: expected a nonempty range of symbol {symbol} within {own_min}..={own_max}, found {min}..={max}"
    )]
    Range { symbol: String, min: i64, max: i64, own_min: i64, own_max: i64 },
    /// The profile has no curve for the plain variant, with which every other variant is compared.
    #[error("lower: %{node}: profile {profile} has no curve for the plain variant of {collective}")]
    NoPlain { node: String, collective: String, profile: String },
    /// The pass contradicts itself: a defect of this crate, for any program.
    #[error("internal error: {0}")]
    Internal(String),
}

pub(crate) fn verify_before(pass: &'static str, graph: &Graph) -> Result<(), PassError> {
    verify::verify(graph).map_err(|violations| invalid_graph_error("before", pass, &violations))
}

pub(crate) fn verify_after(pass: &'static str, graph: &Graph) -> Result<(), PassError> {
    verify::verify_derived(graph).map_err(|violations| invalid_graph_error("after", pass, &violations))
}

fn invalid_graph_error(when: &'static str, pass: &'static str, found: &[Violation]) -> PassError {
    PassError::Invalid { when, pass, violations: found.iter().map(ToString::to_string).collect() }
}
