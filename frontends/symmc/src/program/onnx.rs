//! ONNX models, one for each rank.

use std::path::PathBuf;

use symmc_onnx::{FailureReason, ImportError, ImportOptions};

use super::advice::{program_name_of_ranks, with_range_advice};
use super::import::{ImportedFiles, OpenOptions};
use crate::error::Error;
use crate::files::is_stream;
use crate::weights::Weights;

/// Imports the model of one rank, or those of all ranks.
///
/// # Errors
/// A model is broken, or its program cannot be represented.
pub(super) fn import_models(paths: &[PathBuf], options: &OpenOptions) -> Result<ImportedFiles, Error> {
    let Some(first) = paths.first() else { return Err(Error::invalid_request("no file is named")) };
    if let Some(path) = paths.iter().find(|path| is_stream(path)) {
        // The importer would not see the bytes that have been read already.
        return Err(Error::format(
            path,
            "this is a device, a pipe or a socket; expected a file with an ONNX model",
        ));
    }
    if let Some((group, _)) = options.groups.first() {
        return Err(Error::format(first, format!("an ONNX model names no groups, found {group}")));
    }
    let options = ImportOptions {
        name: program_name_of_ranks(first),
        ranks: options.ranks,
        constraints: options.provided_extents(),
        recorded_integers: recorded_integers(options)?,
        ..ImportOptions::default()
    };
    let imported = symmc_onnx::import_files(paths, &options).map_err(|e| {
        let path = PathBuf::from(&e.file);
        Error::format_with_cause(&path, import_error_message(&e), e)
    })?;
    Ok(ImportedFiles {
        graph: imported.graph,
        weights: Weights { ranks: imported.weights, ..Weights::default() },
        notes: imported.notes,
        assumed_sizes: imported.assumed_sizes,
        data_files: imported.data_files,
    })
}

/// The recorded arguments of one integer on the first rank.
fn recorded_integers(options: &OpenOptions) -> Result<Vec<Option<i64>>, Error> {
    let Some(tensors) = &options.tensors else { return Ok(Vec::new()) };
    let mut integers = Vec::new();
    for (i, shape) in tensors.argument_shapes().iter().enumerate() {
        let is_single = shape.iter().all(|extent| *extent == 1);
        let tensor = if is_single { tensors.input(0, i)? } else { None };
        integers.push(tensor.filter(|t| !t.dtype().is_float()).and_then(|t| t.to_i64().first().copied()));
    }
    Ok(integers)
}

/// The message of an import error, with advice on the ranges of its symbols.
fn import_error_message(error: &ImportError) -> String {
    let size = matches!(error.reason, FailureReason::Graph(_));
    match &error.symbols {
        Some(symbols) => with_range_advice(error.reason.to_string(), symbols, size),
        None => error.reason.to_string(),
    }
}
