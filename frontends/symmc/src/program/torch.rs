//! `.pt2` archives of PyTorch.

use std::path::PathBuf;

use symmc_torch::{ImportError, ImportOptions, UndescribedGroup};

use super::advice::{advised, noted, stem, stem_of_ranks};
use super::import::{Imported, OpenOptions};
use crate::error::{Error, ranks as ranks_text};
use crate::files::beside;
use crate::tensors::TensorFile;
use crate::weights::Weights;

/// Imports a `.pt2` archive, or those of all ranks.
///
/// # Errors
/// An archive is broken, or its program cannot be represented.
pub(super) fn import(paths: &[PathBuf], bytes: &[Vec<u8>], options: &OpenOptions) -> Result<Imported, Error> {
    let Some(path) = paths.first() else { return Err(Error::request("no file is named")) };
    let beside = match (&options.tensors, options.ranks) {
        (None, None) if paths.len() == 1 => beside(path).and_then(|file| TensorFile::open(&file).ok()),
        _ => None,
    };
    let tensors = options.tensors.as_deref().or(beside.as_ref());
    let import = ImportOptions {
        name: if paths.len() == 1 { stem(path) } else { stem_of_ranks(path) },
        ranks: options.ranks,
        assumed_ranks: tensors.map(TensorFile::ranks),
        groups: options.groups.iter().cloned().collect(),
        schemas: options.schemas.clone(),
        given: options.given(),
        ..ImportOptions::default()
    };
    let imported = match bytes {
        [one] => symmc_torch::import(one, &import),
        all => symmc_torch::import_ranks(&all.iter().map(Vec::as_slice).collect::<Vec<_>>(), &import),
    };
    let imported = imported.map_err(|e| {
        let (rank, e) = match e {
            ImportError::Rank { rank, source } => (rank, *source),
            e => (0, e),
        };
        let message = format!("{}{}", message(&e), advice(&e));
        Error::misread(paths.get(rank).unwrap_or(path), message, e)
    })?;
    let mut notes = noted(imported.notes, &imported.open);
    if let (Some(file), true) = (&beside, imported.ranks_assumed) {
        let ranks = ranks_text(file.ranks());
        notes.push(format!("{ranks}, as {} has tensors for", file.path().display()));
    }
    let ranks = std::iter::once(imported.weights).chain(imported.others).collect();
    let (buffers, ties) = (imported.buffers, imported.ties);
    let weights = Weights { ranks, buffers, ties };
    let data_files = beside.iter().map(|file| file.path().to_path_buf()).collect();
    Ok(Imported { graph: imported.graph, weights, notes, data_files })
}

/// What is wrong with an archive of PyTorch, and what may be said of its symbols.
fn message(error: &ImportError) -> String {
    match error {
        ImportError::Extents { error: inner, symbols } => {
            let size = matches!(**inner, ImportError::Graph(_));
            advised(inner.to_string(), symbols, size)
        }
        other => other.to_string(),
    }
}

/// What helps where an archive cannot be imported; empty or starting with a separator.
fn advice(error: &ImportError) -> String {
    let ImportError::Undescribed { groups, ranks } = error else { return String::new() };
    let example = |g: &UndescribedGroup| format!(" --group '{}={}'", g.name, cells(g.size, *ranks));
    let given: String = groups.iter().map(example).collect();
    let all = match groups.as_slice() {
        [UndescribedGroup { size: Some(n), .. }] if ranks.is_none() => {
            format!(", or --ranks {n} if it is all ranks")
        }
        _ => String::new(),
    };
    format!("; give the ranks of each cell, such as{given}{all}")
}

/// Cells of so many ranks each, as `--group` takes them; two cells where the number of ranks is not known.
fn cells(size: Option<u32>, ranks: Option<u32>) -> String {
    const SHOWN: u32 = 16;
    let size = size.unwrap_or(2).clamp(1, SHOWN);
    let ranks = ranks.filter(|n| n.is_multiple_of(size)).unwrap_or(2 * size).min(SHOWN.max(size));
    let cell = |c: u32| (c * size..(c + 1) * size).map(|r| r.to_string()).collect::<Vec<_>>().join(",");
    (0..ranks / size).map(cell).collect::<Vec<_>>().join(";")
}
