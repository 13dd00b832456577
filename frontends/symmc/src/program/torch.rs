//! `.pt2` archives of PyTorch.

use std::path::PathBuf;

use symmc_torch::{ImportError, ImportOptions};

use super::advice::{program_name, program_name_of_ranks, with_range_advice};
use super::import::{ImportedFiles, OpenOptions};
use crate::error::{Error, format_rank_count as ranks_text};
use crate::files::find_recorded_tensors;
use crate::tensors::TensorFile;
use crate::weights::Weights;

/// Imports a `.pt2` archive, or those of all ranks.
///
/// # Errors
/// An archive is broken, or its program cannot be represented.
pub(super) fn import_archives(
    paths: &[PathBuf],
    bytes: &[Vec<u8>],
    options: &OpenOptions,
) -> Result<ImportedFiles, Error> {
    let Some(path) = paths.first() else { return Err(Error::invalid_request("no file is named")) };
    let beside = match (&options.tensors, options.ranks) {
        (None, None) if paths.len() == 1 => {
            find_recorded_tensors(path).and_then(|file| TensorFile::open(&file).ok())
        }
        _ => None,
    };
    let tensors = options.tensors.as_deref().or(beside.as_ref());
    let import = ImportOptions {
        name: if paths.len() == 1 { program_name(path) } else { program_name_of_ranks(path) },
        ranks: options.ranks,
        assumed_ranks: tensors.map(TensorFile::ranks),
        groups: options.groups.iter().cloned().collect(),
        schemas: options.schemas.clone(),
        definitions: options.definitions.clone(),
        constraints: options.provided_extents(),
        ..ImportOptions::default()
    };
    let imported = match bytes {
        [one] => symmc_torch::import(one, &import),
        archives => {
            symmc_torch::import_ranks(&archives.iter().map(Vec::as_slice).collect::<Vec<_>>(), &import)
        }
    };
    let imported = imported.map_err(|e| {
        let (rank, e) = match e {
            ImportError::Rank { rank, source } => (rank, *source),
            e => (0, e),
        };
        Error::format_with_cause(paths.get(rank).unwrap_or(path), import_error_message(&e), e)
    })?;
    let mut notes = imported.notes;
    if let (Some(file), true) = (&beside, imported.ranks_assumed) {
        let ranks = ranks_text(file.ranks());
        notes.push(format!("{ranks}, as {} has tensors for", file.path().display()));
    }
    let ranks = std::iter::once(imported.weights).chain(imported.other_rank_weights).collect();
    let weights = Weights { ranks, buffers: imported.buffers, ties: imported.tied_names };
    let data_files = beside.iter().map(|file| file.path().to_path_buf()).collect();
    let assumed_sizes = imported.assumed_sizes;
    Ok(ImportedFiles { graph: imported.graph, weights, notes, assumed_sizes, data_files })
}

/// The message of an import error, with advice on the ranges of its symbols.
fn import_error_message(error: &ImportError) -> String {
    match error {
        ImportError::Extents { error: inner, symbols } => {
            let size = matches!(**inner, ImportError::Graph(_));
            with_range_advice(inner.to_string(), symbols, size)
        }
        other => other.to_string(),
    }
}
