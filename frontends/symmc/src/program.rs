//! A program as it was opened: its graph, the weights that came with it, and where it came from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::ranges::{self, Given, Questioned};
use symmc_ir::{Graph, InputKind, Members, text, verify};
use symmc_torch::{ImportError, ImportOptions, UndescribedGroup};

use crate::error::{Error, head, ranks as ranks_text, read_on, utf8};
use crate::tensors::TensorFile;
use crate::weights::Weights;

/// What a file with a program holds.
const PROGRAM: &str = "a .pt2 archive, an .onnx model or a program as .symm text";

/// How to open a program.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The number of ranks. `None` takes what the program fixes.
    pub ranks: Option<u32>,
    /// The members of named groups, one list of ranks for each cell. A group of a `.pt2` without an entry is the world
    /// where its name or its size says so, else an error.
    pub groups: IndexMap<String, Vec<Vec<u32>>>,
    /// Schemas of custom ops of a `.pt2` in PyTorch's notation, as far as it does not tell what they write:
    /// `mylib::f(Tensor x, Tensor(a!) out) -> ()`.
    pub schemas: Vec<String>,
    /// The tensors that the program will run on. They tell the number of ranks where nothing else does, and which of
    /// its constants differ from what a rank has: these become parameters.
    pub tensors: Option<Arc<TensorFile>>,
    /// Ranges of symbols, and which symbols are expressions of others.
    pub given: Given,
}

/// An opened program.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file it came from.
    pub path: PathBuf,
    /// The graph as it was imported; the number of ranks may be open.
    pub graph: Graph,
    /// What came with the program besides the graph.
    pub weights: Weights,
    /// What the importer wants people to know.
    pub notes: Vec<String>,
}

impl Program {
    /// Opens a `.pt2` archive, the `.onnx` model of one rank or a `.symm` text, told apart by content.
    ///
    /// # Errors
    /// The file cannot be read, is neither, is broken, breaks an invariant of the IR, or fixes another
    /// number of ranks than `options` asks for.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        let (head, file) = head(path, PROGRAM)?;
        let is_archive = is_archive(path, &head);
        if !is_archive && is_onnx(path, &head) {
            // The importer reads it.
            return Program::onnx(&[path.to_path_buf()], options)?.on_tensors(options);
        }
        let bytes = read_on(path, head, file)?;
        if is_archive {
            return Program::archives(&[path.to_path_buf()], &[bytes], options)?.on_tensors(options);
        }
        let (mut graph, weights, mut notes) = (parse(path, bytes, options)?, Weights::default(), Vec::new());
        ranges::narrow_all(&mut graph.symbols, &options.given, &mut notes)
            .map_err(|e| Error::format(path, e))?;
        let program = Program { path: path.to_path_buf(), graph, weights, notes };
        // The importers verify what they give.
        program.verify()?;
        program.on_tensors(options)
    }

    /// Imports a `.pt2` archive, or those of all ranks.
    fn archives(paths: &[PathBuf], bytes: &[Vec<u8>], options: &OpenOptions) -> Result<Self, Error> {
        let Some(path) = paths.first() else { return Err(Error::Request("no file is named".into())) };
        let beside = match (&options.tensors, options.ranks) {
            (None, None) if paths.len() == 1 => beside(path).and_then(|file| TensorFile::open(&file).ok()),
            _ => None,
        };
        let tensors = options.tensors.as_deref().or(beside.as_ref());
        let import = ImportOptions {
            name: if paths.len() == 1 { stem(path) } else { stem_of_ranks(path) },
            ranks: options.ranks,
            assumed_ranks: tensors.map(TensorFile::ranks),
            groups: options.groups.clone(),
            schemas: options.schemas.clone(),
            given: options.given.clone(),
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
            Error::format(paths.get(rank).unwrap_or(path), format!("{}{}", of_torch(&e), advice(&e)))
        })?;
        let mut notes = noted(imported.notes, &imported.open);
        if let (Some(file), true) = (&beside, imported.ranks_assumed) {
            let ranks = ranks_text(file.ranks());
            notes.push(format!("{ranks}, as {} has tensors for", file.path().display()));
        }
        let ranks = std::iter::once(imported.weights).chain(imported.others).collect();
        let (buffers, ties) = (imported.buffers, imported.ties);
        let weights = Weights { ranks, buffers, ties };
        Ok(Program { path: path.to_path_buf(), graph: imported.graph, weights, notes })
    }

    /// Takes from the tensors that the program will run on what it leaves open.
    fn on_tensors(mut self, options: &OpenOptions) -> Result<Self, Error> {
        let Some(file) = &options.tensors else { return Ok(self) };
        if self.graph.ranks.is_none() {
            self.set_ranks(file.ranks())?;
        }
        for input in self.graph.inputs.values_mut().filter(|i| i.kind == InputKind::Constant) {
            let Some(data) = input.data.clone() else { continue };
            if file.contradicts(&input.source, &data)?.is_none() {
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
        let mut archives = Vec::new();
        for (i, path) in paths.iter().enumerate() {
            let (head, file) = head(path, PROGRAM)?;
            let (onnx, archive) = (is_onnx(path, &head), is_archive(path, &head));
            if archive && archives.len() == i {
                archives.push(read_on(path, head, file)?);
            } else if !onnx || archive || !archives.is_empty() {
                let expected = if archives.is_empty() { "an ONNX model" } else { "a .pt2 archive" };
                return Err(Error::format(
                    path,
                    format!("expected {expected}: all ranks have a file of one kind; found another"),
                ));
            }
        }
        if !archives.is_empty() {
            return Program::archives(paths, &archives, options)?.on_tensors(options);
        }
        Program::onnx(paths, options)?.on_tensors(options)
    }

    fn onnx(paths: &[PathBuf], options: &OpenOptions) -> Result<Self, Error> {
        let Some(first) = paths.first() else { return Err(Error::Request("no file is named".into())) };
        if let Some((group, _)) = options.groups.first() {
            return Err(Error::format(first, format!("an ONNX model names no groups, found {group}")));
        }
        let options = symmc_onnx::ImportOptions {
            name: stem_of_ranks(first),
            ranks: options.ranks,
            given: options.given.clone(),
            ..symmc_onnx::ImportOptions::default()
        };
        let imported = symmc_onnx::import_files(paths, &options)
            .map_err(|e| Error::Format { message: of_onnx(&e), path: e.file })?;
        Ok(Program {
            path: first.clone(),
            graph: imported.graph,
            weights: Weights { ranks: imported.weights, ..Weights::default() },
            notes: noted(imported.notes, &imported.open),
        })
    }

    /// A program that was built in memory.
    ///
    /// # Errors
    /// The graph breaks an invariant of the IR.
    pub fn from_graph(graph: Graph) -> Result<Self, Error> {
        let path = PathBuf::from(&graph.name);
        let program = Program { path, graph, weights: Weights::default(), notes: Vec::new() };
        program.verify()?;
        Ok(program)
    }

    /// Fixes an open number of ranks by the tensors recorded beside the program (`model.safetensors` for
    /// `model.pt2`), if there are any. Returns the file that decided.
    ///
    /// # Errors
    /// The number of ranks stays open.
    pub fn close_ranks(&mut self) -> Result<Option<PathBuf>, Error> {
        if self.graph.ranks.is_some() {
            return Ok(None);
        }
        if let Some(beside) = beside(&self.path) {
            self.set_ranks(TensorFile::open(&beside)?.ranks())?;
            return Ok(Some(beside));
        }
        Err(Error::Request(format!(
            "{}: nothing in the program fixes the number of ranks; say it with --ranks N",
            self.path.display()
        )))
    }

    /// Fixes the number of ranks.
    ///
    /// # Errors
    /// The program is for another number of ranks, or does not fit this one.
    pub fn set_ranks(&mut self, ranks: u32) -> Result<(), Error> {
        match self.graph.ranks {
            Some(fixed) if fixed != ranks => Err(Error::Request(format!(
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

/// The tensors recorded beside a program, if there is a file of them.
fn beside(path: &Path) -> Option<PathBuf> {
    Some(path.with_extension("safetensors")).filter(|p| p.is_file())
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

/// The notes of an import, with what may be said of the symbols that nobody bounds.
fn noted(mut notes: Vec<String>, open: &[String]) -> Vec<String> {
    if !open.is_empty() {
        notes.push(format!("{} would bound {}", ranged(open), if open.len() == 1 { "it" } else { "them" }));
    }
    notes
}

/// The options that give symbols a range.
fn ranged(symbols: &[String]) -> String {
    symbols.iter().map(|s| format!("--dim {s}=MIN..MAX")).collect::<Vec<_>>().join(" ")
}

/// What is wrong with an archive of PyTorch, and what may be said of its symbols.
fn of_torch(error: &symmc_torch::ImportError) -> String {
    match error {
        symmc_torch::ImportError::Extents { error: inner, symbols } => {
            let size = matches!(**inner, symmc_torch::ImportError::Graph(_));
            advised(inner.to_string(), symbols, size)
        }
        other => other.to_string(),
    }
}

/// The same of an ONNX model.
fn of_onnx(error: &symmc_onnx::ImportError) -> String {
    let size = matches!(error.reason, symmc_onnx::Reason::Graph(_));
    match &error.symbols {
        Some(symbols) => advised(error.reason.to_string(), symbols, size),
        None => error.reason.to_string(),
    }
}

/// A message about extents, and what may be said of their symbols: that they have a range, or, where it is not about
/// their size, that some are equal.
fn advised(message: String, symbols: &Questioned, size: bool) -> String {
    let narrow = if size && symbols.open.is_empty() { &symbols.named } else { &symbols.open };
    let mut out = message;
    if !narrow.is_empty() {
        let (what, which) = match (symbols.open.is_empty(), narrow.len()) {
            (true, _) => ("narrower ", narrow.join(", ")),
            (false, 1) => ("", format!("{}, which has no upper bound in the program", narrow[0])),
            (false, _) => ("", format!("{}, which have no upper bound in the program", narrow.join(", "))),
        };
        out.push_str(&format!("; give a {what}range to {which}: {}", ranged(narrow)));
    }
    if let (false, [first, others @ ..]) = (size, symbols.named.as_slice())
        && !others.is_empty()
    {
        let same: Vec<String> = others.iter().map(|s| format!("--dim {s}={first}")).collect();
        out.push_str(&format!("; if extents are equal in every run, say so, as with {}", same.join(" ")));
    }
    out
}

/// The name of a program by its file.
fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "program".into(), |s| s.to_string_lossy().into_owned())
}

/// The name of a program by the file of its rank 0.
fn stem_of_ranks(path: &Path) -> String {
    let stem = stem(path);
    stem.strip_suffix("_rank0").unwrap_or(&stem).to_string()
}

/// Whether a file is a `.pt2` archive.
fn is_archive(path: &Path, head: &[u8]) -> bool {
    head.starts_with(b"PK") || path.extension().is_some_and(|e| e == "pt2")
}

/// Whether a file is an ONNX model: by its name, or by its first field, the version of the format.
fn is_onnx(path: &Path, head: &[u8]) -> bool {
    head.starts_with(&[0x08]) || path.extension().is_some_and(|e| e == "onnx")
}

fn parse(path: &Path, bytes: Vec<u8>, options: &OpenOptions) -> Result<Graph, Error> {
    let text = utf8(path, bytes, PROGRAM)?;
    let mut graph = text::parse(&text).map_err(|e| Error::format(path, e))?;
    for (name, cells) in &options.groups {
        let known: Vec<&str> = graph.groups.values().map(|g| g.name.as_str()).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        let none = || Error::format(path, format!("the program has no group {name}; it has: {known}"));
        let group = graph.groups.values_mut().find(|g| g.name == *name).ok_or_else(none)?;
        group.members = Members::Cells(cells.clone());
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
