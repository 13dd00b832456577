//! The property that the fuzz target `onnx` and the tests check.

use crate::{ImportOptions, ModelSource, import};

/// Imports bytes as a model file. Returns whether they are a program.
///
/// # Panics
/// The importer panics, or returns a graph that does not verify.
pub fn check_bytes(bytes: &[u8]) -> bool {
    let file = ModelSource { name: "fuzz".into(), bytes: bytes.to_vec().into(), file: None, folder: None };
    symmc_import::fuzz::check_import(
        import(&[file], &ImportOptions::default()).map(|imported| imported.graph),
    )
}
