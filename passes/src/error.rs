//! Why a pass gives up.

use symmc_ir::Graph;
use symmc_ir::verify::{self, Violation};
use thiserror::Error;

/// A program that a pass cannot work on.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum PassError {
    /// The graph breaks invariants: the caller's when `pass` is `input`, else those that the pass must keep.
    #[error("{when} {pass}: {}", violations.join("; "))]
    Invalid {
        /// `before` or `after`.
        when: &'static str,
        /// The pass.
        pass: &'static str,
        /// Every broken invariant.
        violations: Vec<String>,
    },
    /// The program leaves the number of ranks open.
    #[error("{pass}: program {program} leaves the number of ranks open; close it first")]
    OpenRanks {
        /// The pass.
        pass: &'static str,
        /// The program.
        program: String,
    },
    /// A range given for a symbol is empty or leaves the symbol's own bounds.
    #[error(
        "lower: the range {min}..={max} of symbol {symbol} must be a nonempty part of {own_min}..={own_max}"
    )]
    Range {
        /// The symbol.
        symbol: String,
        /// The lower end given.
        min: i64,
        /// The upper end given.
        max: i64,
        /// The symbol's own lower bound.
        own_min: i64,
        /// The symbol's own upper bound.
        own_max: i64,
    },
    /// The profile cannot estimate plain, which every collective must have to be compared with.
    #[error("lower: %{node}: {collective}: profile {profile} has no curve for plain")]
    NoPlain {
        /// The collective.
        node: String,
        /// Its kind.
        collective: String,
        /// The profile.
        profile: String,
    },
    /// The pass contradicts itself; a mistake of this crate, whatever the program.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Verifies a graph before a pass.
pub(crate) fn verified_before(pass: &'static str, graph: &Graph) -> Result<(), PassError> {
    verify::verify(graph).map_err(|found| invalid("before", pass, &found))
}

/// Verifies what a pass gives.
pub(crate) fn verified_after(pass: &'static str, graph: &Graph) -> Result<(), PassError> {
    verify::verify_derived(graph).map_err(|found| invalid("after", pass, &found))
}

fn invalid(when: &'static str, pass: &'static str, found: &[Violation]) -> PassError {
    PassError::Invalid { when, pass, violations: found.iter().map(ToString::to_string).collect() }
}
