//! An opened program: its graph, the weights that came with it, and the files that it was read from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_import::ranges::{self, SymbolConstraint};
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

/// The expected content of a program file, for messages.
const PROGRAM: &str = "a .pt2 archive, an .onnx model or a program as .symm text";

/// A program that was opened from files or built in memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Program {
    /// The file of the program; the name of the graph if the program was built in memory.
    pub path: PathBuf,
    /// The imported graph. Its number of ranks may not be fixed yet.
    pub graph: Graph,
    /// The weights that came with the program.
    pub weights: Weights,
    /// Notes of the importer for the user.
    pub notes: Vec<String>,
    /// What the importer assumes of symbols that neither the file nor the options determine: bounds, and sizes that are equal in
    /// every run. [`OpenOptions::extents`] states others.
    pub assumed_sizes: Vec<(String, SymbolConstraint)>,
    /// All files that the program was read from: its own, those of the other ranks, and data files that they name.
    pub files: Vec<PathBuf>,
    /// Solutions of regions that compilations of this program share.
    pub(crate) solutions: SolutionCache,
}

impl Program {
    /// Opens a `.pt2` archive, the `.onnx` model of one rank or a `.symm` text. The content decides which it is.
    ///
    /// # Errors
    /// The file cannot be read, has none of these formats, is corrupt, breaks an invariant of the IR, or fixes another
    /// number of ranks than `options` asks for.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        let (head, file) = read_head(path, PROGRAM)?;
        let is_archive = is_archive(path, &head);
        if !is_archive {
            reject_definitions(path, options)?;
        }
        if !is_archive && is_onnx(path, &head) {
            // The importer reads the file itself.
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
        let path = path.to_path_buf();
        let program = Program { path, graph, weights, notes, assumed_sizes: Vec::new(), files, solutions };
        // The importers verify the graphs that they return. A parsed text is verified here.
        program.verify()?;
        program.apply_tensors(options)
    }

    /// A program from a reader of a file format, which has verified the graph.
    fn from_import(paths: &[PathBuf], imported: ImportedFiles, options: &OpenOptions) -> Result<Self, Error> {
        let ImportedFiles { graph, weights, notes, assumed_sizes, data_files } = imported;
        let path = paths.first().cloned().unwrap_or_default();
        let files = paths.iter().cloned().chain(data_files).collect();
        let solutions = SolutionCache::default();
        Program { path, graph, weights, notes, assumed_sizes, files, solutions }.apply_tensors(options)
    }

    /// Uses the tensors that the program will run on: they fix an open number of ranks, and turn constants into parameters if
    /// a rank has another value for them.
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

    /// Opens the file of a program, or the `.onnx` models or `.pt2` archives of all its ranks, starting with rank 0.
    ///
    /// # Errors
    /// As [`open`](Self::open). Also if several files are not all ONNX models or all archives, or do not form one program.
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
        if let Some(path) = paths.first() {
            reject_definitions(path, options)?;
        }
        Program::from_import(paths, read_onnx_models(paths, options)?, options)
    }

    /// Parses a program in text form.
    ///
    /// # Errors
    /// The text cannot be parsed, or the program breaks an invariant of the IR.
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
        let program = Program { path, graph, weights, notes, assumed_sizes: Vec::new(), files, solutions };
        program.verify()?;
        Ok(program)
    }

    /// The parameters of a rank by the names under which they are stored, loaded into memory, for
    /// [`Session::share`](crate::Session::share). They come from `tensors` if the file has them, otherwise from the weights of
    /// the program.
    ///
    /// # Errors
    /// The program has no such rank, a parameter is missing or cannot be read, or the file has another value for a constant of
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

    /// Fixes an open number of ranks from the tensors recorded next to the program (`model.safetensors` for
    /// `model.pt2`). Returns that file, or `None` if the number was fixed already or there is no such file.
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

    /// Fixes an open number of ranks.
    ///
    /// # Errors
    /// The number is fixed to another value, or the program does not fit this one.
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

/// The format of a program by its content, for messages; `None` if the content is not that of a program.
pub(crate) fn program_format(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(b"PK") {
        Some("a .pt2 archive")
    } else if bytes.starts_with(&[0x08]) {
        Some("an ONNX model")
    } else if bytes.trim_ascii_start().starts_with(b"program ") {
        Some("a program as .symm text")
    } else {
        None
    }
}

/// Reads `.pt2` archives, one of all ranks or one for each rank.
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

/// Reads ONNX models, one for each rank.
fn read_onnx_models(paths: &[PathBuf], options: &OpenOptions) -> Result<ImportedFiles, Error> {
    #[cfg(feature = "onnx")]
    return onnx::import_models(paths, options);
    #[cfg(not(feature = "onnx"))]
    import::unread(paths, "an ONNX model", "onnx", options)
}

/// Rejects definitions of ops for a file that is no archive.
fn reject_definitions(path: &Path, options: &OpenOptions) -> Result<(), Error> {
    if options.definitions.is_empty() {
        return Ok(());
    }
    Err(Error::format(path, "expected a .pt2 archive, because definitions of its ops are given"))
}

fn parse_text_form(path: &Path, bytes: Vec<u8>, options: &OpenOptions) -> Result<Graph, Error> {
    let text = decode_utf8(path, bytes, PROGRAM)?;
    let mut graph = text::parse(&text).map_err(|e| Error::format_with_cause(path, e.to_string(), e))?;
    for (name, cells) in &options.groups {
        let names: Vec<&str> = graph.groups.values().map(|g| g.name.as_str()).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        let none = || Error::format(path, format!("the program has no group {name}; it has: {names}"));
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
