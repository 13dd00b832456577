//! What fuzzing checks, shared by the fuzz target and the tests.

use crate::{ImportOptions, import};

/// Imports bytes; whether they are a program.
///
/// # Panics
/// The importer panics, or gives a graph that does not verify.
pub fn check(bytes: &[u8]) -> bool {
    match import(bytes, &ImportOptions::default()) {
        Err(e) => {
            assert!(!e.to_string().is_empty());
            false
        }
        Ok(imported) => {
            if let Err(violations) = symmc_ir::verify::verify(&imported.graph) {
                panic!("{}", violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
            }
            true
        }
    }
}
