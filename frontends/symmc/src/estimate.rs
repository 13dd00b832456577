//! Estimates of the time of plans, by the driver.

use symmc_check::CheckedPlan;
use symmc_ir::SymbolBindings;
use symmc_ir::machine::MachineProfile;
use symmc_plan::BucketEstimate;

use crate::config::CompileConfig;
use crate::error::Error;
use crate::program::Program;

/// Estimates the time of one run for each bucket of a plan, at the upper ends of the bucket's ranges. Times are in microseconds.
///
/// # Errors
/// A program of the plan cannot be read, which is a defect, since the plan was checked.
pub fn estimate(plan: &CheckedPlan, profile: &MachineProfile) -> Result<Vec<BucketEstimate>, Error> {
    symmc_driver::estimate(plan, profile).map_err(|e| Error::driver(&plan.source.name, e))
}

/// Estimates the time of one run of a plan at these sizes, with the bucket that serves them. Times are in microseconds.
///
/// # Errors
/// A symbol has no value, no bucket serves the sizes, or a program of the plan cannot be read, which is a defect.
pub fn estimate_at(
    plan: &CheckedPlan,
    profile: &MachineProfile,
    sizes: &SymbolBindings,
) -> Result<BucketEstimate, Error> {
    symmc_driver::estimate_at(plan, profile, sizes).map_err(|e| Error::driver(&plan.source.name, e))
}

/// Plans the same program for the same buckets with plain collectives only, and estimates the time of one run for each bucket in
/// microseconds. `None` stands for a bucket whose ranges are not those of the program's symbols.
///
/// # Errors
/// As [`compile`](crate::compile).
pub fn estimate_plain(
    program: &Program,
    plan: &CheckedPlan,
    config: &CompileConfig,
) -> Result<Vec<Option<f64>>, Error> {
    let options = config.resolve_options(program)?;
    let estimates = symmc_driver::estimate_plain(&program.graph, plan, &options);
    estimates.map_err(|e| Error::driver(&program.graph.name, e))
}
