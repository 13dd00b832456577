//! The property that fuzz targets of importers check.

use std::fmt::Display;

use symmc_ir::{Graph, verify};

/// Checks the result of an import: the graph verifies, or the error has a message. Returns whether the input
/// was a program.
///
/// # Panics
/// The graph does not verify, or the error message is empty.
pub fn check_import(imported: Result<Graph, impl Display>) -> bool {
    match imported {
        Err(e) => {
            assert!(!e.to_string().is_empty());
            false
        }
        Ok(graph) => {
            if let Err(violations) = verify::verify(&graph) {
                panic!("{}", violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
            }
            true
        }
    }
}
