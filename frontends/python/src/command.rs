//! The `symmc` command in the package, and the output files of the package.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use symmc_cli::SelfCommand;

use crate::error::to_exception;

/// Writes an output file of the user, by the same rules as all output files.
#[pyfunction]
pub fn write_file(py: Python<'_>, path: PathBuf, text: &str) -> PyResult<()> {
    py.detach(|| symmc::write_file(&path, text.as_bytes())).map_err(to_exception)
}

/// Runs the command with these arguments, the first of which is its name. Returns its exit code. `own` starts the command again:
/// a program, and the arguments before those of the command.
#[pyfunction]
pub fn command(py: Python<'_>, arguments: Vec<OsString>, own: (PathBuf, Vec<String>)) -> u8 {
    let own = SelfCommand { program: own.0, args: own.1 };
    // An `ExitCode` is made from a byte, but does not return it. It is found by comparison.
    let code = py.detach(|| symmc_cli::run(arguments, &own));
    (0..=u8::MAX).find(|&n| code == std::process::ExitCode::from(n)).unwrap_or(1)
}
