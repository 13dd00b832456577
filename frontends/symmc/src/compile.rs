//! From a program to a checked plan, by the driver.

use std::path::Path;

use symmc_check::{CheckError, CheckedPlan, Report};
use symmc_driver::CompileReport;
use symmc_ir::Graph;
use symmc_plan::Plan;

use crate::config::Config;
use crate::error::Error;
use crate::files::{read, utf8};
use crate::program::Program;

/// Compiles a program into a plan, and checks that.
///
/// # Errors
/// The number of ranks is open, a request does not fit the program, the program cannot be planned
/// ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the machine of the profile is why,
/// [`ErrorKind::Resources`](crate::ErrorKind::Resources) where memory is), or the check finds the plan unsafe
/// ([`ErrorKind::Defect`](crate::ErrorKind::Defect), with the [plan](Error::plan)).
pub fn compile(program: &Program, config: &Config) -> Result<CheckedPlan, Error> {
    compile_with_report(program, config).map(|(plan, _)| plan)
}

/// [`compile`], and what the compilation did.
///
/// # Errors
/// As [`compile`].
pub fn compile_with_report(
    program: &Program,
    config: &Config,
) -> Result<(CheckedPlan, CompileReport), Error> {
    let options = config.resolve(program)?;
    symmc_driver::compile(&program.graph, &options).map_err(|e| Error::driver(&program.graph.name, e))
}

/// Refuses a plan of which GPUs cannot run every step. `gpus` is the GPU of each rank, one each if it is empty. Custom and
/// opaque ops are not looked at.
///
/// # Errors
/// The first steps that they cannot run, and why ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)).
#[cfg(feature = "cuda")]
pub fn refuse_for_gpus(plan: &CheckedPlan, gpus: &[u32]) -> Result<(), Error> {
    symmc_driver::refuse_for_gpus(plan, gpus).map_err(|e| Error::driver(&plan.source.name, e))
}

/// Proves a plan safe.
///
/// # Errors
/// Every finding.
pub fn check(plan: &Plan) -> Result<Report, Error> {
    symmc_check::check(plan).map_err(|e| findings(&e))
}

/// Proves a plan safe, so that it can run.
///
/// # Errors
/// Every finding.
pub fn checked(plan: Plan) -> Result<CheckedPlan, Error> {
    CheckedPlan::new(plan).map_err(|e| findings(&e))
}

fn findings(errors: &[CheckError]) -> Error {
    Error::unsafe_plan(errors.iter().map(ToString::to_string).collect())
}

/// What a file with a plan holds.
const PLAN: &str = "a plan (JSON)";

/// Reads a plan from a file; [`checked`] makes it one that can run.
///
/// # Errors
/// The file cannot be read or is no plan of this version.
pub fn read_plan(path: &Path) -> Result<Plan, Error> {
    let text = utf8(path, read(path, PLAN)?, PLAN)?;
    Plan::from_json(&text).map_err(|e| Error::misread(path, e.to_string(), e))
}

/// The program with a variant for each collective: one graph for each bucket, with the ranges of its symbols. These are the
/// variants that are chosen first; [`compile`] chooses again where a schedule has less computation beside collectives than could
/// be there, and where another canonical form is faster in a bucket.
///
/// # Errors
/// As [`compile`].
pub fn lowered(program: &Program, config: &Config) -> Result<Vec<Graph>, Error> {
    let options = config.resolve(program)?;
    symmc_driver::lowered(&program.graph, &options).map_err(|e| Error::driver(&program.graph.name, e))
}

/// The program in canonical form, with decomposed ops recognised.
///
/// # Errors
/// As [`compile`].
pub fn canonical(program: &Program) -> Result<Graph, Error> {
    symmc_driver::canonical(&program.graph).map_err(|e| Error::driver(&program.graph.name, e))
}
