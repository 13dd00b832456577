//! What readers of formats are told, and what they give.

use std::path::PathBuf;
use std::sync::Arc;

use symmc_import::ranges::{SymbolConstraint, SymbolConstraints};
use symmc_ir::Graph;

#[cfg(not(all(feature = "torch", feature = "onnx")))]
use crate::error::{Error, ErrorKind};
use crate::tensors::TensorFile;
use crate::weights::Weights;

/// How to open a program: by what its files say, until a `with_…` says more.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The number of ranks. `None` takes what the program fixes.
    pub ranks: Option<u32>,
    /// The members of named groups, one list of ranks for each cell. A group of a `.pt2` without an entry is the world
    /// where its name or its size says so, else an error.
    pub groups: Vec<(String, Vec<Vec<u32>>)>,
    /// Schemas of custom ops of a `.pt2` in PyTorch's notation, as far as it does not tell what they write:
    /// `mylib::f(Tensor x, Tensor(a!) out) -> ()`.
    pub schemas: Vec<String>,
    /// The tensors that the program will run on. They tell the number of ranks where nothing else does, and which of
    /// its constants differ from what a rank has: these become parameters.
    pub tensors: Option<Arc<TensorFile>>,
    /// By name, ranges of symbols, and which symbols are expressions of others.
    pub extents: Vec<(String, SymbolConstraint)>,
    /// By name, upper bounds of symbols to which nothing else gives one.
    pub bounds: Vec<(String, i64)>,
    /// The shapes of the arguments that are recorded of a run, in their order: bounds of the same kind.
    pub recorded_shapes: Vec<Vec<usize>>,
}

impl OpenOptions {
    /// Sets the number of ranks.
    pub fn with_ranks(self, ranks: impl Into<Option<u32>>) -> OpenOptions {
        OpenOptions { ranks: ranks.into(), ..self }
    }

    /// Sets the members of named groups, one list of ranks for each cell.
    pub fn with_groups(
        self,
        groups: impl IntoIterator<Item = (impl Into<String>, Vec<Vec<u32>>)>,
    ) -> OpenOptions {
        let groups = groups.into_iter().map(|(name, cells)| (name.into(), cells));
        OpenOptions { groups: groups.collect(), ..self }
    }

    /// Sets schemas of custom ops of a `.pt2`.
    pub fn with_schemas(self, schemas: impl IntoIterator<Item = impl Into<String>>) -> OpenOptions {
        OpenOptions { schemas: schemas.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets the tensors that the program will run on.
    pub fn with_tensors(self, tensors: impl Into<Option<Arc<TensorFile>>>) -> OpenOptions {
        OpenOptions { tensors: tensors.into(), ..self }
    }

    /// Sets what is said of symbols by name.
    pub fn with_extents(
        self,
        extents: impl IntoIterator<Item = (impl Into<String>, SymbolConstraint)>,
    ) -> OpenOptions {
        let extents = extents.into_iter().map(|(name, extent)| (name.into(), extent));
        OpenOptions { extents: extents.collect(), ..self }
    }

    /// Sets upper bounds of symbols to which nothing else gives one.
    pub fn with_bounds(self, bounds: impl IntoIterator<Item = (impl Into<String>, i64)>) -> OpenOptions {
        OpenOptions { bounds: bounds.into_iter().map(|(name, bound)| (name.into(), bound)).collect(), ..self }
    }

    /// Sets the shapes of recorded arguments.
    pub fn with_recorded_shapes(self, recorded: Vec<Vec<usize>>) -> OpenOptions {
        OpenOptions { recorded_shapes: recorded, ..self }
    }

    pub(super) fn provided_extents(&self) -> SymbolConstraints {
        SymbolConstraints {
            constraints: self.extents.clone(),
            fallback_bounds: self.bounds.clone(),
            recorded_shapes: self.recorded_shapes.clone(),
        }
    }
}

/// What a reader of a format gives.
pub(super) struct ImportedFiles {
    pub graph: Graph,
    pub weights: Weights,
    pub notes: Vec<String>,
    /// Files of data that were read besides those of the program.
    pub data_files: Vec<PathBuf>,
}

/// The error of a file of a format that this build does not read.
#[cfg(not(all(feature = "torch", feature = "onnx")))]
pub(super) fn unread<T>(paths: &[PathBuf], what: &str, feature: &str, _: T) -> Result<ImportedFiles, Error> {
    let file = paths.first().map_or_else(String::new, |path| format!("{}: ", path.display()));
    let message = format!(
        "{file}this is {what}; this build of symmc was made without the feature `{feature}`, which reads it"
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}
