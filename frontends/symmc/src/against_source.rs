//! The comparison of a plan with its source, over checked plans.

use symmc_check::CheckedPlan;
use symmc_compare::{SourceComparison, SourceDifferences};

use crate::error::Error;

/// Compares the programs of a plan with its source, node by node, and on drawn values where the nodes differ.
pub fn compare_with_source(plan: &CheckedPlan) -> SourceComparison {
    symmc_compare::compare(plan)
}

/// An error of kind [`ErrorKind::Check`](crate::ErrorKind::Check) that lists the differences.
impl From<SourceDifferences> for Error {
    fn from(differences: SourceDifferences) -> Error {
        Error::unlike_source(differences.0)
    }
}
