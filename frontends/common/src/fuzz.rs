//! What fuzzing checks of a reader.

use std::fmt::Display;

use symmc_ir::{Graph, verify};

/// Holds what a reader made of some input against what it promises. Returns whether that was a program.
///
/// # Panics
/// The graph does not verify, or an error says nothing.
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
