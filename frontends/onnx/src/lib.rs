//! Reads ONNX programs (`.onnx`), one file for each rank, into symmc graphs.
//!
//! ```text
//! files ──► protobuf ──► symbols, ranks ──► signature ──► lower, by ops/ ──► Graph, weights of each rank
//! ```
//!
//! What an import does beyond translating ops:
//! - **Ranks.** ONNX Runtime's collectives state how many ranks take part, and all take part. Each rank has a file of
//!   its own: the same program with its own weights. With the files of all ranks the weights of all are known; one
//!   file alone is a program whose weights are that rank's.
//! - **Stored tensors** (initializers) become parameters. Integers and single numbers, which are shapes, positions and
//!   factors, become constants where all files have the same. A `Constant` that differs between the files is a
//!   parameter, too.
//! - **Shapes that the program computes** (`Shape`, `Gather`, `Concat`, …) are followed as expressions of its symbols,
//!   and what constants give is computed.
//! - **Symbols** are the names of extents of arguments. Their bounds stand under PyTorch's names in the metadata that
//!   `torch.onnx` writes, and belong to a symbol where that is certain; else it gets what covers all that may be its,
//!   or [`ImportOptions::max_extent`] bounds it, with a note. A caller says more of them by [`ImportOptions::given`].
//! - **Functions** of the model and branches by constants are put in place of their calls.
//! - **Types.** Every result is held against the type that the program declares for it, if it does.
//! - **Unknown ops** become opaque, with a note, where the program declares their result types.
//!
//! A file is untrusted data: no input makes an import panic, nesting is bounded, and the memory that an import takes
//! is bounded by the sizes of the files. Data in files of their own are at paths that lead down from the model's
//! folder; links there are followed, wherever they lead, as caches of models need.

mod call;
mod compare;
mod data;
mod emit;
mod error;
mod evaluate;
mod fields;
mod file_buf;
mod fold;
pub mod fuzz;
mod inline;
mod known;
mod lower;
mod node;
mod ops;
mod parameters;
pub mod proto;
mod ranks;
mod scope;
mod signature;
mod symbols;
mod versions;
mod walk;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use indexmap::IndexMap;
use prost::Message;
use symmc_import::declared::verified;
use symmc_import::ranges::{Given, Questioned};
use symmc_ir::{Builder, Graph, Tensor};
use symmc_support::{Backing, Mapped};

pub use error::{ImportError, Reason};

use data::Beside;
use file_buf::FileBuf;
use lower::Lowering;
use node::normalised;
use parameters::Parameters;
use ranks::Ranks;
use scope::Scope;
use symbols::Symbols;

#[derive(Clone, Debug)]
pub struct ImportOptions {
    pub name: String,
    /// The number of ranks, if it is known otherwise than from the program.
    pub ranks: Option<u32>,
    /// What the caller says of symbols, and the shapes of recorded arguments.
    pub given: Given,
    /// The upper bound of symbols to which neither the program nor the caller gives one.
    pub max_extent: i64,
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions { name: "model".into(), ranks: None, given: Given::default(), max_extent: 1 << 20 }
    }
}

struct Contents(Arc<Mapped>);

impl AsRef<[u8]> for Contents {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// The size from which on a file is mapped, in bytes. Smaller ones are read: nobody can change them any more then.
const MAPPED: u64 = 16 << 20;

#[derive(Clone, Debug)]
pub struct Source {
    pub name: String,
    pub bytes: Bytes,
    /// The mapped file that the bytes are the contents of, if they are.
    pub file: Option<Arc<Mapped>>,
    /// Where the files of its data are; without it, data in files of their own are refused.
    pub folder: Option<PathBuf>,
}

impl Source {
    /// Opens a file. A large one is mapped: what is not looked at is not read.
    pub fn open(path: &Path) -> Result<Source, ImportError> {
        let name = path.display().to_string();
        // A pipe has no contents to map.
        let opened = match path.metadata() {
            Ok(kind) if kind.is_file() && kind.len() >= MAPPED => Mapped::open(path).map(|mapped| {
                let mapped = Arc::new(mapped);
                (Bytes::from_owner(Contents(mapped.clone())), Some(mapped))
            }),
            _ => std::fs::read(path).map(|bytes| (Bytes::from(bytes), None)),
        };
        match opened {
            Ok((bytes, file)) => {
                let folder = path.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
                Ok(Source { name, bytes, file, folder: folder.map(Path::to_path_buf) })
            }
            Err(e) => Err(Reason::Io(e).of(&name)),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Imported {
    pub graph: Graph,
    /// The data of its parameters by their source names, for each file.
    pub weights: Vec<IndexMap<String, Arc<Tensor>>>,
    /// What a user should know about the import, in sentences.
    pub notes: Vec<String>,
    /// The symbols to which neither the program nor the caller gives an upper bound.
    pub open: Vec<String>,
    pub data_files: Vec<PathBuf>,
}

/// Imports a program from the files of its ranks, that of rank 0 first, or from one of them.
pub fn import(files: &[Source], options: &ImportOptions) -> Result<Imported, ImportError> {
    let mut models = Vec::with_capacity(files.len());
    for file in files {
        models.push(decode(file).map_err(|reason| reason.of(&file.name))?);
    }
    let Some(first) = files.first() else {
        return Err(Reason::Ranks("expected a file for each rank, found none".into()).of(&options.name));
    };
    let beside: Vec<Beside> = files.iter().map(|f| Beside::new(f.folder.clone(), f.file.clone())).collect();
    let parameters = parameters::parameters(&models, &beside);
    let mut imported: Option<Imported> = None;
    for ((file, model), beside) in files.iter().zip(&models).zip(&beside) {
        let of_file = |reason: Reason| reason.of(&file.name);
        let ((graph, weights, notes), open) =
            convert(file, model, beside, &parameters, files.len(), options)?;
        beside.unchanged().map_err(|e| Reason::Io(e).of(&file.name))?;
        match &mut imported {
            None => {
                let (weights, data_files) = (vec![weights], beside.data_files());
                imported = Some(Imported { graph, weights, notes, open, data_files });
            }
            Some(all) => {
                all.data_files.extend(beside.data_files());
                let weights = compare::agree(&first.name, &all.graph, graph, weights).map_err(of_file)?;
                all.weights.push(weights);
            }
        }
    }
    if let (Some(all), Some(name)) = (&mut imported, repeated(files)) {
        all.notes.push(format!("{name} is given for several ranks, which have the same weights"));
    }
    imported.ok_or_else(|| Reason::Graph("there is none".into()).of(&first.name))
}

fn repeated(files: &[Source]) -> Option<&str> {
    let mut names = HashSet::new();
    files.iter().map(|f| f.name.as_str()).find(|name| !names.insert(*name))
}

pub fn import_files(paths: &[PathBuf], options: &ImportOptions) -> Result<Imported, ImportError> {
    let files = paths.iter().map(|p| Source::open(p)).collect::<Result<Vec<_>, _>>()?;
    import(&files, options)
}

/// Every ONNX op that is imported as more than an opaque one, with its domain if that is not ONNX's own, and what it
/// becomes.
pub fn supported_ops() -> Vec<(&'static str, &'static str)> {
    ops::supported()
}

/// Decodes a model. A mapped file is read by position: see [`FileBuf`].
fn decode(source: &Source) -> Result<proto::Model, Reason> {
    let Some(file) = &source.file else {
        return decode_from(&mut source.bytes.clone(), &mut source.bytes.clone());
    };
    let open = || FileBuf::new(file.clone(), source.bytes.clone());
    let (mut message, mut fields) = (open(), open());
    let model = decode_from(&mut message, &mut fields);
    // What is wrong with the file explains what is wrong with the model.
    message.finish().and_then(|()| fields.finish()).map_err(Reason::Io)?;
    model
}

/// Decodes a model from one buffer, and checks from another one of the same bytes that all its fields are known.
fn decode_from(message: &mut impl Buf, fields: &mut impl Buf) -> Result<proto::Model, Reason> {
    let (size, head) = (message.remaining(), message.chunk().iter().take(64).copied().collect::<Vec<u8>>());
    let model =
        proto::Model::decode(message).map_err(|e| Reason::Model(describe(&head, size, &e.to_string())))?;
    let Some(graph) = &model.graph else {
        return Err(Reason::Model(describe(&head, size, "no graph")));
    };
    if let Some(sparse) = graph.sparse_initializer.first() {
        let tensor = sparse.values.as_ref().map_or(String::new(), |v| v.name.clone());
        return Err(Reason::Tensor { tensor, message: "it is sparse, which is not read".into() });
    }
    versions::of_model(&model)?;
    fields::all_known(fields)?;
    Ok(model)
}

/// Describes a file that is no model by how it begins.
fn describe(head: &[u8], size: usize, why: &str) -> String {
    let kind = match head {
        [] => "an empty file",
        [b'P', b'K', ..] => "a zip archive",
        [b'{', ..] => "JSON",
        b if b.starts_with(b"version https://git-lfs") => "a pointer of Git LFS",
        b if b.iter().all(|c| c.is_ascii_graphic() || c.is_ascii_whitespace()) => "text",
        _ => return format!("{size} bytes that are not an ONNX model, or damaged: {why}"),
    };
    kind.to_string()
}

type Converted = (Graph, IndexMap<String, Arc<Tensor>>, Vec<String>);

fn convert<'p>(
    file: &Source,
    model: &'p proto::Model,
    beside: &'p Beside,
    parameters: &'p Parameters,
    files: usize,
    options: &ImportOptions,
) -> Result<(Converted, Vec<String>), ImportError> {
    let lowering = prepared(model, beside, parameters, files, options).map_err(|r| r.of(&file.name))?;
    let (table, open) = (lowering.symbols.table.clone(), lowering.symbols.open.clone());
    match lowered(model, files, lowering) {
        Ok(converted) => Ok((converted, open)),
        Err(reason) => {
            let symbols = Questioned::of(&reason.to_string(), &table, &open).map(Box::new);
            Err(ImportError { symbols, ..reason.of(&file.name) })
        }
    }
}

/// What lowers a program, before any node.
fn prepared<'p>(
    model: &'p proto::Model,
    beside: &'p Beside,
    parameters: &'p Parameters,
    files: usize,
    options: &ImportOptions,
) -> Result<Lowering<'p>, Reason> {
    let Some(graph) = &model.graph else { return Err(Reason::Model("no graph".into())) };
    let mut notes = Vec::new();
    let ranks = Ranks::new(options.ranks, files)?;
    let arguments = signature::arguments(graph);
    let metadata: Vec<proto::Entry> =
        graph.metadata_props.iter().chain(&model.metadata_props).cloned().collect();
    let symbols = Symbols::new(&arguments, &metadata, (&options.given, options.max_extent), &mut notes)?;
    let mut builder = Builder::new(options.name.clone(), ranks.known());
    builder.graph_mut().symbols = symbols.table.clone();
    let scope = Scope::new(String::new(), versions::by_domain(&model.opset_import)?);
    let mut lowering = Lowering::new(builder, symbols, scope, ranks, beside, parameters);
    lowering.notes = notes;
    for function in &model.functions {
        let key = (normalised(&function.domain), function.name.as_str(), function.overload.as_str());
        lowering.functions.insert(key, function);
    }
    Ok(lowering)
}

/// The program under its symbols.
fn lowered<'p>(
    model: &'p proto::Model,
    files: usize,
    mut lowering: Lowering<'p>,
) -> Result<Converted, Reason> {
    let Some(graph) = &model.graph else { return Err(Reason::Model("no graph".into())) };
    signature::inputs(&mut lowering, graph, &signature::arguments(graph))?;
    lowering.run(&graph.node)?;
    signature::outputs(&mut lowering, graph)?;
    let Lowering { builder, ranks, weights, mut notes, .. } = lowering;
    let mut graph = builder.finish();
    graph.ranks = ranks.settled();
    let graph = verified(graph).map_err(Reason::Graph)?;
    if let (1, Some(ranks @ 2..), false) = (files, graph.ranks, weights.is_empty()) {
        notes.push(format!(
            "the file holds the weights of one of {ranks} ranks; with one file for each rank, all are known"
        ));
    }
    Ok((graph, weights, notes))
}
