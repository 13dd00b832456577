//! Queries to the backend of a profile: whether it can run each step of a plan, and how much memory the
//! steps need in addition to the arenas. If the feature of a backend is disabled, the driver does not query
//! it; the machine that runs the plan does.

use symmc_check::CheckedPlan;
#[cfg(feature = "cuda")]
use symmc_cuda::codegen::unsupported::{self, UnsupportedStep};
use symmc_ir::machine::Backend;
use symmc_plan::ParsedPlan;

#[cfg(feature = "cuda")]
use crate::error::DriverError;
use crate::error::Result;

/// Lowers the plan for its backend, and adds the memory that its steps need besides the arenas.
///
/// # Errors
/// Returns the first steps that the backend cannot run.
pub fn lower_for_backend(plan: CheckedPlan, backend: Backend) -> Result<CheckedPlan> {
    match backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda => {
            let support = unsupported::check_gpu_support(&plan);
            refuse(&support.unsupported)?;
            Ok(plan.with_workspaces(&support.workspaces))
        }
        #[cfg(not(feature = "cuda"))]
        Backend::Cuda => Ok(plan),
        Backend::Host => Ok(plan),
    }
}

/// Checks that a backend can run every step of a plan.
///
/// # Errors
/// Returns the first steps that it cannot run.
pub fn expect_supported(
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables))] plan: &ParsedPlan,
    backend: Backend,
) -> Result<()> {
    match backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda => expect_supported_by_gpus(plan, &[]),
        #[cfg(not(feature = "cuda"))]
        Backend::Cuda => Ok(()),
        Backend::Host => Ok(()),
    }
}

/// Checks that GPUs can run every step of a plan. `gpus` is the GPU of each rank; if it is empty, each rank
/// has its own. Custom and opaque ops are not checked.
///
/// # Errors
/// Returns the first steps that GPUs cannot run, and why.
#[cfg(feature = "cuda")]
pub fn expect_supported_by_gpus(plan: &ParsedPlan, gpus: &[u32]) -> Result<()> {
    refuse(&unsupported::find_unsupported(plan, gpus))
}

/// The most unsupported steps that an error names.
#[cfg(feature = "cuda")]
const NAMED: usize = 5;

#[cfg(feature = "cuda")]
fn refuse(refusals: &[UnsupportedStep]) -> Result<()> {
    let Some(first) = refusals.first() else { return Ok(()) };
    let named: Vec<String> = refusals.iter().take(NAMED).map(UnsupportedStep::to_string).collect();
    let suffix = match refusals.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("\nand {more} more"),
    };
    let message = named.join("\n") + &suffix;
    Err(DriverError::Unsupported { node: first.node.clone(), op: first.op.to_string(), message })
}
