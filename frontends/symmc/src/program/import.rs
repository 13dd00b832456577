//! The options and the results of the readers of file formats.

use std::path::PathBuf;
use std::sync::Arc;

use symmc_import::ranges::{SymbolConstraint, SymbolConstraints};
use symmc_ir::Graph;

#[cfg(not(all(feature = "torch", feature = "onnx")))]
use crate::error::{Error, ErrorKind};
use crate::tensors::TensorFile;
use crate::weights::Weights;

/// The options of opening a program. The default takes everything from the files; `with_…` methods change fields.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The number of ranks. `None` takes the number that the program fixes.
    pub ranks: Option<u32>,
    /// The members of named groups, one list of ranks for each cell. A group of a `.pt2` that is not listed is the group of all
    /// ranks if its name or its size says so; otherwise opening the program fails.
    pub groups: Vec<(String, Vec<Vec<u32>>)>,
    /// Schemas of custom ops of a `.pt2` in PyTorch's notation, if the archive does not say which operands they write:
    /// `mylib::f(Tensor x, Tensor(a!) out) -> ()`.
    pub schemas: Vec<String>,
    /// Definitions of custom ops of a `.pt2`: programs in the text form of symmc, each with the schema of the op as its name.
    /// They replace the calls of the op.
    pub definitions: Vec<String>,
    /// The tensors that the program will run on. They give the number of ranks if nothing else does. Constants of the program
    /// that have another value on some rank become parameters.
    pub tensors: Option<Arc<TensorFile>>,
    /// Constraints of symbols, by name: ranges, or expressions of other symbols.
    pub extents: Vec<(String, SymbolConstraint)>,
    /// Upper bounds, by name, of symbols to which nothing else gives one.
    pub bounds: Vec<(String, i64)>,
    /// The shapes of the recorded arguments of a run, in their order. They give upper bounds in the same way.
    pub recorded_shapes: Vec<Vec<usize>>,
    /// The sizes of the run that the program is opened for, by the names of symbols. What is assumed of symbols does not
    /// contradict them.
    pub run_sizes: Vec<(String, i64)>,
    /// Whether opening fails if a program is valid for some sizes only and does not state them. Otherwise they are assumed
    /// ([`Program::assumed_sizes`](super::Program::assumed_sizes)).
    pub refuses_assumptions: bool,
}

impl OpenOptions {
    /// Sets the number of ranks. `None` takes the number that the program fixes.
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

    /// Sets schemas of custom ops of a `.pt2`, in PyTorch's notation.
    pub fn with_schemas(self, schemas: impl IntoIterator<Item = impl Into<String>>) -> OpenOptions {
        OpenOptions { schemas: schemas.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets definitions of custom ops of a `.pt2`, as text.
    pub fn with_definitions(self, definitions: impl IntoIterator<Item = impl Into<String>>) -> OpenOptions {
        OpenOptions { definitions: definitions.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets the tensors that the program will run on.
    pub fn with_tensors(self, tensors: impl Into<Option<Arc<TensorFile>>>) -> OpenOptions {
        OpenOptions { tensors: tensors.into(), ..self }
    }

    /// Sets constraints of symbols, by name.
    pub fn with_extents(
        self,
        extents: impl IntoIterator<Item = (impl Into<String>, SymbolConstraint)>,
    ) -> OpenOptions {
        let extents = extents.into_iter().map(|(name, extent)| (name.into(), extent));
        OpenOptions { extents: extents.collect(), ..self }
    }

    /// Sets upper bounds, by name, of symbols to which nothing else gives one.
    pub fn with_bounds(self, bounds: impl IntoIterator<Item = (impl Into<String>, i64)>) -> OpenOptions {
        OpenOptions { bounds: bounds.into_iter().map(|(name, bound)| (name.into(), bound)).collect(), ..self }
    }

    /// Sets the shapes of recorded arguments.
    pub fn with_recorded_shapes(self, recorded: Vec<Vec<usize>>) -> OpenOptions {
        OpenOptions { recorded_shapes: recorded, ..self }
    }

    /// Sets the sizes of the run that the program is opened for.
    pub fn with_run_sizes(self, sizes: impl IntoIterator<Item = (impl Into<String>, i64)>) -> OpenOptions {
        OpenOptions { run_sizes: sizes.into_iter().map(|(name, size)| (name.into(), size)).collect(), ..self }
    }

    /// Sets whether sizes may be assumed if a program is valid for some sizes only and does not state them.
    pub fn with_assumptions(self, allowed: bool) -> OpenOptions {
        OpenOptions { refuses_assumptions: !allowed, ..self }
    }

    pub(super) fn provided_extents(&self) -> SymbolConstraints {
        SymbolConstraints {
            constraints: self.extents.clone(),
            fallback_bounds: self.bounds.clone(),
            recorded_shapes: self.recorded_shapes.clone(),
            run_sizes: self.run_sizes.clone(),
            refuses_assumptions: self.refuses_assumptions,
        }
    }
}

/// The result of a reader of a file format.
pub(super) struct ImportedFiles {
    pub graph: Graph,
    pub weights: Weights,
    pub notes: Vec<String>,
    pub assumed_sizes: Vec<(String, SymbolConstraint)>,
    /// Data files that were read in addition to the files of the program.
    pub data_files: Vec<PathBuf>,
}

/// The error for a file format that this build does not read.
#[cfg(not(all(feature = "torch", feature = "onnx")))]
pub(super) fn unread<T>(paths: &[PathBuf], what: &str, feature: &str, _: T) -> Result<ImportedFiles, Error> {
    let file = paths.first().map_or_else(String::new, |path| format!("{}: ", path.display()));
    let message = format!(
        "{file}this is {what}; reading it needs the feature `{feature}`, which this build of symmc does not have"
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}
