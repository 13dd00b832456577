//! What callers give as numbers and names: what does not fit is refused by the name of the argument.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::input_error;

/// A number that a caller gave for an argument, as a type that may not hold it. Python's have no bounds.
pub fn to_integer<T: TryFrom<i128>>(name: &str, number: i128) -> PyResult<T> {
    T::try_from(number).map_err(|_| {
        let expected = if number < 0 { "a number of at least 0" } else { "a smaller number" };
        input_error(format!("{name}: expected {expected}, found {number}"))
    })
}

/// Names that a caller gave one by one, or as one text that separates them by commas.
pub fn extract_names(name: &str, expected: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if let Ok(text) = given.extract::<String>() {
        return Ok(text.split(',').map(|one| one.trim().to_string()).collect());
    }
    given.extract().map_err(|_| argument_type_error(name, expected, given.as_borrowed()))
}

/// What a caller gave for an argument is of another type than those that are expected.
pub fn argument_type_error(name: &str, expected: &str, found: Borrowed<'_, '_, PyAny>) -> PyErr {
    match found.get_type().name() {
        Ok(kind) => PyTypeError::new_err(format!("{name}: expected {expected}, found {kind}")),
        Err(error) => error,
    }
}
