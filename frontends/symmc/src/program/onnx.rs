//! ONNX models, one for each rank.

use std::path::PathBuf;

use symmc_onnx::{ImportError, ImportOptions, Reason};

use super::advice::{advised, noted, stem_of_ranks};
use super::import::{Imported, OpenOptions};
use crate::error::Error;
use crate::files::is_stream;
use crate::weights::Weights;

/// Imports the model of one rank, or those of all ranks.
///
/// # Errors
/// A model is broken, or its program cannot be represented.
pub(super) fn import(paths: &[PathBuf], options: &OpenOptions) -> Result<Imported, Error> {
    let Some(first) = paths.first() else { return Err(Error::request("no file is named")) };
    if let Some(path) = paths.iter().find(|path| is_stream(path)) {
        // Its beginning has been read.
        return Err(Error::format(
            path,
            "this is a device, a pipe or a socket; expected a file with an ONNX model",
        ));
    }
    if let Some((group, _)) = options.groups.first() {
        return Err(Error::format(first, format!("an ONNX model names no groups, found {group}")));
    }
    let options = ImportOptions {
        name: stem_of_ranks(first),
        ranks: options.ranks,
        given: options.given(),
        ..ImportOptions::default()
    };
    let imported = symmc_onnx::import_files(paths, &options).map_err(|e| {
        let path = PathBuf::from(&e.file);
        Error::misread(&path, message(&e), e)
    })?;
    Ok(Imported {
        graph: imported.graph,
        weights: Weights { ranks: imported.weights, ..Weights::default() },
        notes: noted(imported.notes, &imported.open),
        data_files: imported.data_files,
    })
}

/// What is wrong with a model, and what may be said of its symbols.
fn message(error: &ImportError) -> String {
    let size = matches!(error.reason, Reason::Graph(_));
    match &error.symbols {
        Some(symbols) => advised(error.reason.to_string(), symbols, size),
        None => error.reason.to_string(),
    }
}
