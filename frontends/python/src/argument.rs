//! Conversions of arguments from Python. Errors name the argument, what was expected and what was found.

use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::input_error;

/// Converts the number of an argument. Python's integers have no bounds, so it may not fit the type.
pub fn to_integer<T: TryFrom<i128>>(name: &str, number: i128) -> PyResult<T> {
    T::try_from(number).map_err(|_| {
        let expected = if number < 0 { "a number of at least 0" } else { "a smaller number" };
        input_error(format!("{name}: expected {expected}, found {number}"))
    })
}

/// Names of an argument, from a list of texts or from one text in which commas separate them.
pub fn extract_names(name: &str, expected: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if let Ok(text) = given.extract::<String>() {
        return Ok(text.split(',').map(|one| one.trim().to_string()).collect());
    }
    given.extract().map_err(|_| argument_type_error(name, expected, given.as_borrowed()))
}

/// The error for an argument of another type than expected.
pub fn argument_type_error(name: &str, expected: &str, found: Borrowed<'_, '_, PyAny>) -> PyErr {
    match found.get_type().name() {
        Ok(kind) => PyTypeError::new_err(format!("{name}: expected {expected}, found {kind}")),
        Err(error) => error,
    }
}

/// The longest wait of an argument `timeout`, in seconds.
pub fn to_timeout(seconds: f64) -> PyResult<Duration> {
    let limit = Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero());
    limit.ok_or_else(|| {
        input_error(format!("timeout: expected a positive number of seconds, found {seconds}"))
    })
}
