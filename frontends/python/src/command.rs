//! The `symmc` command within the package, and the files that it and the package write.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use symmc_cli::SelfCommand;

use crate::error::to_exception;

/// Writes a file of the user as all output files are written.
#[pyfunction]
pub fn write_file(py: Python<'_>, path: PathBuf, text: &str) -> PyResult<()> {
    py.detach(|| symmc::write_file(&path, text.as_bytes())).map_err(to_exception)
}

/// Runs the command with these arguments, the first of which is its name, and gives its exit code. `own` starts it again:
/// a program, and what stands before the arguments.
#[pyfunction]
pub fn command(py: Python<'_>, arguments: Vec<OsString>, own: (PathBuf, Vec<String>)) -> u8 {
    let own = SelfCommand { program: own.0, args: own.1 };
    // An exit code is made of a byte, which it does not give back.
    let code = py.detach(|| symmc_cli::run(arguments, &own));
    (0..=u8::MAX).find(|&n| code == std::process::ExitCode::from(n)).unwrap_or(1)
}
