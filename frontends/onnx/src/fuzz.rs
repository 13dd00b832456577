//! What fuzzing checks, shared by the fuzz target `onnx` and the tests.

use crate::{ImportOptions, Source, import};

/// Imports bytes as a file. Returns whether they are a program.
///
/// # Panics
/// The importer panics, or gives a graph that does not verify.
pub fn check(bytes: &[u8]) -> bool {
    let file = Source { name: "fuzz".into(), bytes: bytes.to_vec().into(), file: None, folder: None };
    match import(&[file], &ImportOptions::default()) {
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
