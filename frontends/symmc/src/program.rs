//! A program as it was opened: its graph, the weights that came with it, and where it came from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_import::ranges;
use symmc_ir::{Graph, GraphInput, GroupMembers, InputKind, Tensor, text, verify};
use symmc_passes::SolutionCache;

use crate::error::{Error, format_rank_count as ranks_text};
use crate::files::{decode_utf8, find_recorded_tensors, read_head, read_rest};
use crate::parameters;
use crate::tensors::TensorFile;
use crate::weights::Weights;

#[cfg(any(feature = "torch", feature = "onnx"))]
mod advice;
mod import;
#[cfg(feature = "onnx")]
mod onnx;
#[cfg(feature = "torch")]
mod torch;

use import::ImportedFiles;
pub use import::OpenOptions;

/// What a file with a program holds.
const PROGRAM: &str = "a .pt2 archive, an .onnx model or a program as .symm text";

/// An opened program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Program {
    /// The file it came from.
    pub path: PathBuf,
    /// The graph as it was imported; the number of ranks may be open.
    pub graph: Graph,
    /// What came with the program besides the graph.
    pub weights: Weights,
    /// What the importer wants people to know.
    pub notes: Vec<String>,
    /// All files that the program was read from: its own, those of the other ranks, and files of data that they name.
    pub files: Vec<PathBuf>,
    /// Solutions of regions that compilations of this program share.
    pub(crate) solutions: SolutionCache,
}

impl Program {
    /// Opens a `.pt2` archive, the `.onnx` model of one rank or a `.symm` text, told apart by content.
    ///
    /// # Errors
    /// The file cannot be read, is neither, is broken, breaks an invariant of the IR, or fixes another
    /// number of ranks than `options` asks for.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        let (head, file) = read_head(path, PROGRAM)?;
        let is_archive = is_archive(path, &head);
        if !is_archive && is_onnx(path, &head) {
            // The importer reads it.
            let paths = [path.to_path_buf()];
            return Program::from_import(&paths, read_onnx_models(&paths, options)?, options);
        }
        let bytes = read_rest(path, head, file)?;
        if is_archive {
            let paths = [path.to_path_buf()];
            return Program::from_import(&paths, read_archives(&paths, &[bytes], options)?, options);
        }
        let (mut graph, weights, mut notes) =
            (parse_text_form(path, bytes, options)?, Weights::default(), Vec::new());
        ranges::narrow_ranges(&mut graph.symbols, &options.provided_extents(), &mut notes)
            .map_err(|e| Error::format_with_cause(path, e.to_string(), e))?;
        let files = vec![path.to_path_buf()];
        let solutions = SolutionCache::default();
        let program = Program { path: path.to_path_buf(), graph, weights, notes, files, solutions };
        // The importers verify what they give.
        program.verify()?;
        program.apply_tensors(options)
    }

    /// A program that a reader of its format gives, which verified it.
    fn from_import(paths: &[PathBuf], imported: ImportedFiles, options: &OpenOptions) -> Result<Self, Error> {
        let ImportedFiles { graph, weights, notes, data_files } = imported;
        let path = paths.first().cloned().unwrap_or_default();
        let files = paths.iter().cloned().chain(data_files).collect();
        let solutions = SolutionCache::default();
        Program { path, graph, weights, notes, files, solutions }.apply_tensors(options)
    }

    /// Takes from the tensors that the program will run on what it leaves open.
    fn apply_tensors(mut self, options: &OpenOptions) -> Result<Self, Error> {
        let Some(file) = &options.tensors else { return Ok(self) };
        if self.graph.ranks.is_none() {
            self.set_ranks(file.ranks())?;
        }
        let stored = |i: &&mut GraphInput| i.kind == InputKind::Constant && !i.source.is_empty();
        for input in self.graph.inputs.values_mut().filter(stored) {
            let Some(data) = input.data.clone() else { continue };
            if file.find_differing_rank(&input.source, &data)?.is_none() {
                continue;
            }
            input.kind = InputKind::Parameter;
            input.data = None;
            if self.weights.ranks.is_empty() {
                self.weights.ranks.push(IndexMap::new());
            }
            for rank in &mut self.weights.ranks {
                rank.insert(input.source.clone(), data.clone());
            }
            self.weights.buffers.push(input.source.clone());
        }
        Ok(self)
    }

    /// Opens the file of a program, or the `.onnx` models or the `.pt2` archives of all its ranks, that of rank 0 first.
    ///
    /// # Errors
    /// As [`open`](Self::open); several files are not all ONNX models or all archives, or not one program.
    pub fn open_files(paths: &[PathBuf], options: &OpenOptions) -> Result<Self, Error> {
        if let [path] = paths {
            return Program::open(path, options);
        }
        if paths.is_empty() {
            return Err(Error::invalid_request("no file is named"));
        }
        let mut archives = Vec::new();
        for (i, path) in paths.iter().enumerate() {
            let (head, file) = read_head(path, PROGRAM)?;
            let (onnx, archive) = (is_onnx(path, &head), is_archive(path, &head));
            if archive && archives.len() == i {
                archives.push(read_rest(path, head, file)?);
            } else if !onnx || archive || !archives.is_empty() {
                let expected = if archives.is_empty() { "an ONNX model" } else { "a .pt2 archive" };
                return Err(Error::format(
                    path,
                    format!("expected {expected}: all ranks have a file of one kind; found another"),
                ));
            }
        }
        if !archives.is_empty() {
            return Program::from_import(paths, read_archives(paths, &archives, options)?, options);
        }
        Program::from_import(paths, read_onnx_models(paths, options)?, options)
    }

    /// A program in text form; its name stands for a file.
    ///
    /// # Errors
    /// The text is not that of a program, or the program breaks an invariant of the IR.
    pub fn from_text(text: &str) -> Result<Self, Error> {
        Program::from_graph(
            text::parse(text).map_err(|e| Error::format_with_cause("text".as_ref(), e.to_string(), e))?,
        )
    }

    /// The program in text form.
    pub fn to_text(&self) -> String {
        text::print(&self.graph)
    }

    /// A program that was built in memory.
    ///
    /// # Errors
    /// The graph breaks an invariant of the IR.
    pub fn from_graph(graph: Graph) -> Result<Self, Error> {
        let path = PathBuf::from(&graph.name);
        let (weights, notes, files) = (Weights::default(), Vec::new(), Vec::new());
        let solutions = SolutionCache::default();
        let program = Program { path, graph, weights, notes, files, solutions };
        program.verify()?;
        Ok(program)
    }

    /// The parameters of a rank by the names under which they are stored, read into memory, for
    /// [`Session::share`](crate::Session::share): from `tensors` where it has them, else what came with the program.
    ///
    /// # Errors
    /// The program has no such rank; a parameter is missing, or cannot be read; the file has another value of a constant of
    /// the program.
    pub fn parameters(
        &self,
        rank: u32,
        tensors: Option<&TensorFile>,
    ) -> Result<Vec<(String, Arc<Tensor>)>, Error> {
        if let Some(ranks) = self.graph.ranks.filter(|&ranks| rank >= ranks) {
            let program = self.path.display();
            return Err(Error::invalid_request(format!(
                "{program}: the program is for {}, found rank {rank}",
                ranks_text(ranks)
            )));
        }
        parameters::load_parameters(&self.graph, &self.weights, tensors, rank)
    }

    /// Fixes an open number of ranks by the tensors recorded beside the program (`model.safetensors` for
    /// `model.pt2`), if there are any. Returns the file that decided; without one the number stays open.
    ///
    /// # Errors
    /// The file cannot be read, or the program does not fit its number of ranks.
    pub fn infer_ranks(&mut self) -> Result<Option<PathBuf>, Error> {
        if self.graph.ranks.is_some() {
            return Ok(None);
        }
        let Some(beside) = find_recorded_tensors(&self.path) else { return Ok(None) };
        self.set_ranks(TensorFile::open(&beside)?.ranks())?;
        self.files.push(beside.clone());
        Ok(Some(beside))
    }

    /// Fixes the number of ranks.
    ///
    /// # Errors
    /// The program is for another number of ranks, or does not fit this one.
    pub fn set_ranks(&mut self, ranks: u32) -> Result<(), Error> {
        match self.graph.ranks {
            Some(fixed) if fixed != ranks => Err(Error::invalid_request(format!(
                "{}: the program is for {}, found {ranks}",
                self.path.display(),
                ranks_text(fixed)
            ))),
            Some(_) => Ok(()),
            None => {
                self.graph.ranks = Some(ranks);
                self.verify()
            }
        }
    }

    fn verify(&self) -> Result<(), Error> {
        verify::verify(&self.graph).map_err(|violations| {
            let list: Vec<String> = violations.iter().map(|v| format!("\n  - {v}")).collect();
            Error::format(&self.path, format!("the program is not valid:{}", list.concat()))
        })
    }
}

/// Whether a file is a `.pt2` archive.
fn is_archive(path: &Path, head: &[u8]) -> bool {
    head.starts_with(b"PK") || path.extension().is_some_and(|e| e == "pt2")
}

/// Whether a file is an ONNX model: by its name, or by its first field, the version of the format.
fn is_onnx(path: &Path, head: &[u8]) -> bool {
    head.starts_with(&[0x08]) || path.extension().is_some_and(|e| e == "onnx")
}

/// Reads `.pt2` archives.
fn read_archives(
    paths: &[PathBuf],
    bytes: &[Vec<u8>],
    options: &OpenOptions,
) -> Result<ImportedFiles, Error> {
    #[cfg(feature = "torch")]
    return torch::import_archives(paths, bytes, options);
    #[cfg(not(feature = "torch"))]
    import::unread(paths, "a .pt2 archive", "torch", (bytes, options))
}

/// Reads ONNX models.
fn read_onnx_models(paths: &[PathBuf], options: &OpenOptions) -> Result<ImportedFiles, Error> {
    #[cfg(feature = "onnx")]
    return onnx::import_models(paths, options);
    #[cfg(not(feature = "onnx"))]
    import::unread(paths, "an ONNX model", "onnx", options)
}

fn parse_text_form(path: &Path, bytes: Vec<u8>, options: &OpenOptions) -> Result<Graph, Error> {
    let text = decode_utf8(path, bytes, PROGRAM)?;
    let mut graph = text::parse(&text).map_err(|e| Error::format_with_cause(path, e.to_string(), e))?;
    for (name, cells) in &options.groups {
        let known: Vec<&str> = graph.groups.values().map(|g| g.name.as_str()).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        let none = || Error::format(path, format!("the program has no group {name}; it has: {known}"));
        let group = graph.groups.values_mut().find(|g| g.name == *name).ok_or_else(none)?;
        group.members = GroupMembers::Cells(cells.clone());
    }
    match (graph.ranks, options.ranks) {
        (Some(fixed), Some(ranks)) if fixed != ranks => {
            Err(Error::format(path, format!("the program is for {}, found {ranks}", ranks_text(fixed))))
        }
        (None, Some(ranks)) => {
            graph.ranks = Some(ranks);
            Ok(graph)
        }
        _ => Ok(graph),
    }
}
