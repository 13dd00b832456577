//! Compares checked plans with their sources.

use symmc_check::CheckedPlan;
use symmc_compare::{SourceComparison, SourceDifferences};

use crate::error::{Error, ErrorKind};

/// Compares the programs of a plan with its source, node by node. Parts that differ are proven equal, or compared on
/// random values.
pub fn compare_with_source(plan: &CheckedPlan) -> SourceComparison {
    symmc_compare::compare(plan)
}

/// Requires that a comparison without differences covers every part at all sizes that matter.
///
/// # Errors
/// Some part was not compared ([`ErrorKind::Check`]). The message names it.
pub fn require_full_comparison(compared: &SourceComparison) -> Result<(), Error> {
    if compared.is_complete() {
        return Ok(());
    }
    let text = compared.to_string();
    let message = format!("the plan was not compared with its source at all sizes: {}", text.trim_end());
    Err(Error::new(ErrorKind::Check, message))
}

/// An error of kind [`ErrorKind::Check`] that lists the differences.
impl From<SourceDifferences> for Error {
    fn from(differences: SourceDifferences) -> Error {
        Error::differs_from_source(differences.0)
    }
}
