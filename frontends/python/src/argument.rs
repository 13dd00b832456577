//! What callers give as numbers and names: what does not fit is refused by the name of the argument.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::refused;

/// A number that a caller gave for an argument, as a type that may not hold it. Python's have no bounds.
pub fn whole<T: TryFrom<i128>>(name: &str, number: i128) -> PyResult<T> {
    T::try_from(number).map_err(|_| {
        let expected = if number < 0 { "a number of at least 0" } else { "a smaller number" };
        refused(format!("{name}: expected {expected}, found {number}"))
    })
}

/// What a caller gave for an argument is of another type than those that are expected.
pub fn mistyped(name: &str, expected: &str, found: Borrowed<'_, '_, PyAny>) -> PyErr {
    match found.get_type().name() {
        Ok(kind) => PyTypeError::new_err(format!("{name}: expected {expected}, found {kind}")),
        Err(error) => error,
    }
}
