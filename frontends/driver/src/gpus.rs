//! Plans for GPUs: whether these can run each step, and what the steps take besides the arenas.

use symmc_check::CheckedPlan;
use symmc_cuda::codegen::refusal::{self, Refusal};
use symmc_plan::ReadPlan;

use crate::error::DriverError;

/// How many steps that GPUs cannot run are named.
const NAMED: usize = 5;

/// A plan of which GPUs can run every step, with what these take besides the arenas.
pub fn lower_for_gpus(plan: CheckedPlan) -> Result<CheckedPlan, DriverError> {
    let found = refusal::on_gpus(&plan);
    refuse(&found.refusals)?;
    Ok(plan.with_workspaces(&found.workspaces))
}

/// Refuses a plan of which GPUs cannot run every step. `gpus` is the GPU of each rank, one each if it is empty. Custom and
/// opaque ops are not looked at.
pub fn refuse_for_gpus(plan: &ReadPlan, gpus: &[u32]) -> Result<(), DriverError> {
    refuse(&refusal::refusals(plan, gpus))
}

fn refuse(refusals: &[Refusal]) -> Result<(), DriverError> {
    let Some(first) = refusals.first() else { return Ok(()) };
    let named: Vec<String> = refusals.iter().take(NAMED).map(Refusal::to_string).collect();
    let more = match refusals.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("\nand {more} more"),
    };
    let message = named.join("\n") + &more;
    Err(DriverError::Unsupported { node: first.node.clone(), op: first.op.to_string(), message })
}
