//! From a program to a checked plan, by the driver.

use std::path::Path;

use symmc_check::{CheckError, CheckReport, CheckedPlan};
use symmc_driver::CompileReport;
use symmc_ir::Graph;
use symmc_plan::Plan;

use crate::config::CompileConfig;
use crate::error::Error;
use crate::files::{decode_utf8, read_file};
use crate::program::Program;

/// Compiles a program into a plan, and checks that.
///
/// # Errors
/// The number of ranks is open, a request does not fit the program, the program cannot be planned
/// ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the machine of the profile is why,
/// [`ErrorKind::Resources`](crate::ErrorKind::Resources) where memory is), or the check finds the plan unsafe
/// ([`ErrorKind::Defect`](crate::ErrorKind::Defect), with the [plan](Error::plan)).
pub fn compile(program: &Program, config: &CompileConfig) -> Result<CheckedPlan, Error> {
    compile_with_report(program, config).map(|(plan, _)| plan)
}

/// [`compile`], and what the compilation did.
///
/// # Errors
/// As [`compile`].
pub fn compile_with_report(
    program: &Program,
    config: &CompileConfig,
) -> Result<(CheckedPlan, CompileReport), Error> {
    let options = config.resolve_options(program)?;
    symmc_driver::compile(&program.graph, &options).map_err(|e| Error::driver(&program.graph.name, e))
}

/// Refuses a plan of which GPUs cannot run every step. `gpus` is the GPU of each rank, one each if it is empty. Custom and
/// opaque ops are not looked at.
///
/// # Errors
/// The first steps that they cannot run, and why ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)).
#[cfg(feature = "cuda")]
pub fn check_gpu_support(plan: &CheckedPlan, gpus: &[u32]) -> Result<(), Error> {
    symmc_driver::expect_supported_by_gpus(plan, gpus).map_err(|e| Error::driver(&plan.source.name, e))
}

/// Proves a plan safe.
///
/// # Errors
/// Every finding.
pub fn check(plan: &Plan) -> Result<CheckReport, Error> {
    symmc_check::check(plan).map_err(|e| check_error(&e))
}

/// Proves a plan safe, so that it can run.
///
/// # Errors
/// Every finding.
pub fn into_checked_plan(plan: Plan) -> Result<CheckedPlan, Error> {
    CheckedPlan::new(plan).map_err(|e| check_error(&e))
}

fn check_error(errors: &[CheckError]) -> Error {
    Error::unsafe_plan(errors.iter().map(ToString::to_string).collect())
}

/// What a file with a plan holds.
const PLAN: &str = "a plan (JSON)";

/// Reads a plan from a file; [`into_checked_plan`] makes it one that can run.
///
/// # Errors
/// The file cannot be read or is no plan of this version.
pub fn read_plan(path: &Path) -> Result<Plan, Error> {
    let text = decode_utf8(path, read_file(path, PLAN)?, PLAN)?;
    Plan::from_json(&text).map_err(|e| Error::format_with_cause(path, e.to_string(), e))
}

/// The program with a variant for each collective: one graph for each bucket, with the ranges of its symbols. These are the
/// variants that are chosen first; [`compile`] chooses again where a schedule has less computation beside collectives than could
/// be there, and where another canonical form is faster in a bucket.
///
/// # Errors
/// As [`compile`].
pub fn lower_program(program: &Program, config: &CompileConfig) -> Result<Vec<Graph>, Error> {
    let options = config.resolve_options(program)?;
    symmc_driver::lower_graph(&program.graph, &options).map_err(|e| Error::driver(&program.graph.name, e))
}

/// The program in canonical form, with decomposed ops recognised.
///
/// # Errors
/// As [`compile`].
pub fn canonicalize_program(program: &Program) -> Result<Graph, Error> {
    symmc_driver::canonicalize_graph(&program.graph).map_err(|e| Error::driver(&program.graph.name, e))
}
