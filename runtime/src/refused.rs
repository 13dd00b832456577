//! Errors of plans and sizes as errors of runs.

use symmc_ir::OutOfBounds;
use symmc_plan::UnreadPlan;

use crate::error::RunError;

/// The error of a run whose plan cannot be read. Plans are checked before they run.
pub fn unread_plan(unread: UnreadPlan) -> RunError {
    RunError::Defect(format!("the plan cannot run: {unread}"))
}

/// The error of a run whose sizes lead outside of an axis.
pub(crate) fn out_of_bounds(found: OutOfBounds) -> RunError {
    let OutOfBounds { node, op, message: detail } = found;
    RunError::Bounds { node, op: op.to_string(), detail }
}
