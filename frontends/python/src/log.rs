//! The log of the package: `SYMMC_LOG` configures it at import, and `set_log` later.

use std::ffi::CString;

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;

use crate::error::input_error;

/// Starts the log from the environment variables. An invalid filter gives a warning, so that the import does not fail.
pub fn init(py: Python<'_>) -> PyResult<()> {
    let Err(error) = symmc_log::init_from_env() else { return Ok(()) };
    let text = CString::new(format!("symmc writes no log: {error}")).unwrap_or_default();
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)
}

/// Sets which events are written to standard error: a filter as in `SYMMC_LOG`, or `None` for no events.
#[pyfunction]
pub fn set_log(filter: Option<&str>) -> PyResult<()> {
    symmc_log::set_filter("filter", filter.unwrap_or("off")).map_err(|error| input_error(error.to_string()))
}
