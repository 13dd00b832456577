//! Compiles a program into a checked plan, by the driver.

use std::path::Path;

use symmc_check::{CheckError, CheckReport, CheckedPlan};
use symmc_driver::CompileReport;
use symmc_ir::Graph;
use symmc_plan::Plan;

use crate::config::CompileConfig;
use crate::error::Error;
use crate::files::{decode_utf8, read_file};
use crate::program::{Program, program_format};

/// Compiles a program into a plan and checks the plan.
///
/// # Errors
/// The number of ranks is not fixed, an option does not fit the program, or the program cannot be planned. The kind is
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the machine of the profile is the cause, and
/// [`ErrorKind::Resources`](crate::ErrorKind::Resources) if memory is. If the check finds the plan unsafe, the error is an
/// [`ErrorKind::Defect`](crate::ErrorKind::Defect) with the [plan](Error::plan).
pub fn compile(program: &Program, config: &CompileConfig) -> Result<CheckedPlan, Error> {
    compile_with_report(program, config).map(|(plan, _)| plan)
}

/// As [`compile`]. Also returns a report of the compilation's stages.
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

/// Checks that GPUs can run every step of a plan. `gpus` is the GPU of each rank; if it is empty, rank `r` takes GPU `r`. Custom
/// and opaque ops are not checked.
///
/// # Errors
/// The first steps that they cannot run, with the reasons ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)).
#[cfg(feature = "cuda")]
pub fn check_gpu_support(plan: &CheckedPlan, gpus: &[u32]) -> Result<(), Error> {
    symmc_driver::expect_supported_by_gpus(plan, gpus).map_err(|e| Error::driver(&plan.source.name, e))
}

/// Proves a plan safe. Returns a report of the proof.
///
/// # Errors
/// The plan is not safe. The error lists every finding.
pub fn check(plan: &Plan) -> Result<CheckReport, Error> {
    symmc_check::check(plan).map_err(|e| check_error(&e))
}

/// Proves a plan safe and makes it one that can run.
///
/// # Errors
/// The plan is not safe. The error lists every finding.
pub fn into_checked_plan(plan: Plan) -> Result<CheckedPlan, Error> {
    CheckedPlan::new(plan).map_err(|e| check_error(&e))
}

fn check_error(errors: &[CheckError]) -> Error {
    Error::unsafe_plan(errors.iter().map(ToString::to_string).collect())
}

/// The expected content of a plan file, for messages.
const PLAN: &str = "a plan (JSON)";

/// Reads a plan from a file. [`into_checked_plan`] makes it one that can run.
///
/// # Errors
/// The file cannot be read, or is not a plan of this version.
pub fn read_plan(path: &Path) -> Result<Plan, Error> {
    let bytes = read_file(path, PLAN)?;
    if let Some(format) = program_format(&bytes) {
        let message = format!("this is {format}; expected {PLAN}: compile the program into a plan first");
        return Err(Error::format(path, message));
    }
    let text = decode_utf8(path, bytes, PLAN)?;
    Plan::from_json(&text).map_err(|e| Error::format_with_cause(path, e.to_string(), e))
}

/// Lowers a program: chooses a variant for each collective. Returns one graph for each bucket, with the ranges of its symbols.
///
/// These are the variants of the first choice. [`compile`] chooses again if a schedule overlaps less computation with
/// collectives than it could, or if another canonical form is faster in a bucket.
///
/// # Errors
/// As [`compile`].
pub fn lower_program(program: &Program, config: &CompileConfig) -> Result<Vec<Graph>, Error> {
    let options = config.resolve_options(program)?;
    symmc_driver::lower_graph(&program.graph, &options).map_err(|e| Error::driver(&program.graph.name, e))
}

/// Rewrites a program into its canonical form, with decomposed ops recognised.
///
/// # Errors
/// As [`compile`].
pub fn canonicalize_program(program: &Program) -> Result<Graph, Error> {
    symmc_driver::canonicalize_graph(&program.graph).map_err(|e| Error::driver(&program.graph.name, e))
}
