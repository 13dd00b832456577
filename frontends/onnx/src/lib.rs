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
//!   or [`ImportOptions::max_extent`] bounds it, with a note. A caller says more of them by [`ImportOptions::constraints`].
//! - **Functions** of the model and branches by constants are put in place of their calls.
//! - **Types.** Every result is held against the type that the program declares for it, if it does.
//! - **Unknown ops** become opaque, with a note, where the program declares their result types.
//!
//! A file is untrusted data: no input makes an import panic, nesting is bounded, and the memory that an import takes
//! is bounded by the sizes of the files. Data in files of their own are at paths that lead down from the model's
//! folder; links there are followed, wherever they lead, as caches of models need.

mod call;
mod compare_ranks;
mod emit;
mod error;
mod evaluate;
mod fields;
mod file_buf;
mod fold;
pub mod fuzz;
mod inline;
mod known_values;
mod lower;
mod lower_nodes;
mod node;
mod ops;
mod parameters;
pub mod proto;
mod ranks;
mod scope;
mod signature;
mod symbols;
mod tensor_data;
mod versions;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use indexmap::IndexMap;
use prost::Message;
use symmc_import::declared::verify_graph;
use symmc_import::ranges::{MentionedSymbols, SymbolConstraints};
use symmc_ir::{Graph, GraphBuilder, Tensor};
use symmc_support::{Backing, MappedFile};

pub use error::{FailureReason, ImportError};

use file_buf::FileBuf;
use lower::ImportLowering;
use node::normalize_domain;
use parameters::ParameterSet;
use ranks::RankCount;
use scope::NameScope;
use symbols::ProgramSymbols;
use tensor_data::TensorFiles;

#[derive(Clone, Debug)]
pub struct ImportOptions {
    pub name: String,
    /// The number of ranks, if it is known otherwise than from the program.
    pub ranks: Option<u32>,
    /// What the caller says of symbols, and the shapes of recorded arguments.
    pub constraints: SymbolConstraints,
    /// The upper bound of symbols to which neither the program nor the caller gives one.
    pub max_extent: i64,
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions {
            name: "model".into(),
            ranks: None,
            constraints: SymbolConstraints::default(),
            max_extent: 1 << 20,
        }
    }
}

struct MappedContents(Arc<MappedFile>);

impl AsRef<[u8]> for MappedContents {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// The size from which on a file is mapped, in bytes. Smaller ones are read: nobody can change them any more then.
const MAPPED: u64 = 16 << 20;

#[derive(Clone, Debug)]
pub struct ModelSource {
    pub name: String,
    pub bytes: Bytes,
    /// The mapped file that the bytes are the contents of, if they are.
    pub file: Option<Arc<MappedFile>>,
    /// Where the files of its data are; without it, data in files of their own are refused.
    pub folder: Option<PathBuf>,
}

impl ModelSource {
    /// Opens a file. A large one is mapped: what is not looked at is not read.
    pub fn open(path: &Path) -> Result<ModelSource, ImportError> {
        let name = path.display().to_string();
        // A pipe has no contents to map.
        let opened = match path.metadata() {
            Ok(kind) if kind.is_file() && kind.len() >= MAPPED => MappedFile::open(path).map(|mapped| {
                let mapped = Arc::new(mapped);
                (Bytes::from_owner(MappedContents(mapped.clone())), Some(mapped))
            }),
            _ => std::fs::read(path).map(|bytes| (Bytes::from(bytes), None)),
        };
        match opened {
            Ok((bytes, file)) => {
                let folder = path.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
                Ok(ModelSource { name, bytes, file, folder: folder.map(Path::to_path_buf) })
            }
            Err(e) => Err(FailureReason::Io(e).in_file(&name)),
        }
    }
}

#[derive(Clone, Debug)]
pub struct ImportOutput {
    pub graph: Graph,
    /// The data of its parameters by their source names, for each file.
    pub weights: Vec<IndexMap<String, Arc<Tensor>>>,
    /// What a user should know about the import, in sentences.
    pub notes: Vec<String>,
    /// The symbols to which neither the program nor the caller gives an upper bound.
    pub unbounded: Vec<String>,
    pub data_files: Vec<PathBuf>,
}

/// Imports a program from the files of its ranks, that of rank 0 first, or from one of them.
pub fn import(files: &[ModelSource], options: &ImportOptions) -> Result<ImportOutput, ImportError> {
    let mut models = Vec::with_capacity(files.len());
    for file in files {
        models.push(decode_model(file).map_err(|reason| reason.in_file(&file.name))?);
    }
    let Some(first) = files.first() else {
        return Err(
            FailureReason::Ranks("expected a file for each rank, found none".into()).in_file(&options.name)
        );
    };
    let beside: Vec<TensorFiles> =
        files.iter().map(|f| TensorFiles::new(f.folder.clone(), f.file.clone())).collect();
    let parameters = parameters::find_parameters(&models, &beside);
    let mut imported: Option<ImportOutput> = None;
    for ((file, model), beside) in files.iter().zip(&models).zip(&beside) {
        let of_file = |reason: FailureReason| reason.in_file(&file.name);
        let ((graph, weights, notes), open) =
            convert_model(file, model, beside, &parameters, files.len(), options)?;
        beside.check_unchanged().map_err(|e| FailureReason::Io(e).in_file(&file.name))?;
        match &mut imported {
            None => {
                let (weights, data_files) = (vec![weights], beside.data_files());
                imported = Some(ImportOutput { graph, weights, notes, unbounded: open, data_files });
            }
            Some(all) => {
                all.data_files.extend(beside.data_files());
                let weights = compare_ranks::compare_with_first(&first.name, &all.graph, graph, weights)
                    .map_err(of_file)?;
                all.weights.push(weights);
            }
        }
    }
    if let (Some(all), Some(name)) = (&mut imported, find_repeated_file(files)) {
        all.notes.push(format!("{name} is given for several ranks, which have the same weights"));
    }
    imported.ok_or_else(|| FailureReason::Graph("there is none".into()).in_file(&first.name))
}

fn find_repeated_file(files: &[ModelSource]) -> Option<&str> {
    let mut names = HashSet::new();
    files.iter().map(|f| f.name.as_str()).find(|name| !names.insert(*name))
}

pub fn import_files(paths: &[PathBuf], options: &ImportOptions) -> Result<ImportOutput, ImportError> {
    let files = paths.iter().map(|p| ModelSource::open(p)).collect::<Result<Vec<_>, _>>()?;
    import(&files, options)
}

/// Every ONNX op that is imported as more than an opaque one, with its domain if that is not ONNX's own, and what it
/// becomes.
pub fn supported_ops() -> Vec<(&'static str, &'static str)> {
    ops::supported()
}

/// Decodes a model. A mapped file is read by position: see [`FileBuf`].
fn decode_model(source: &ModelSource) -> Result<proto::ModelProto, FailureReason> {
    let Some(file) = &source.file else {
        return decode_from(&mut source.bytes.clone(), &mut source.bytes.clone());
    };
    let open = || FileBuf::new(file.clone(), source.bytes.clone());
    let (mut message, mut fields) = (open(), open());
    let model = decode_from(&mut message, &mut fields);
    // What is wrong with the file explains what is wrong with the model.
    message.check_unchanged().and_then(|()| fields.check_unchanged()).map_err(FailureReason::Io)?;
    model
}

/// Decodes a model from one buffer, and checks from another one of the same bytes that all its fields are known.
fn decode_from(message: &mut impl Buf, fields: &mut impl Buf) -> Result<proto::ModelProto, FailureReason> {
    let (size, head) = (message.remaining(), message.chunk().iter().take(64).copied().collect::<Vec<u8>>());
    let model = proto::ModelProto::decode(message)
        .map_err(|e| FailureReason::Model(describe_other_file(&head, size, &e.to_string())))?;
    let Some(graph) = &model.graph else {
        return Err(FailureReason::Model(describe_other_file(&head, size, "no graph")));
    };
    if let Some(sparse) = graph.sparse_initializer.first() {
        let tensor = sparse.values.as_ref().map_or(String::new(), |v| v.name.clone());
        return Err(FailureReason::Tensor { tensor, message: "it is sparse, which is not read".into() });
    }
    versions::check_model_versions(&model)?;
    fields::check_known_fields(fields)?;
    Ok(model)
}

/// Describes a file that is no model by how it begins.
fn describe_other_file(head: &[u8], size: usize, why: &str) -> String {
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

type ConvertedModel = (Graph, IndexMap<String, Arc<Tensor>>, Vec<String>);

fn convert_model<'p>(
    file: &ModelSource,
    model: &'p proto::ModelProto,
    beside: &'p TensorFiles,
    parameters: &'p ParameterSet,
    files: usize,
    options: &ImportOptions,
) -> Result<(ConvertedModel, Vec<String>), ImportError> {
    let lowering =
        prepare_lowering(model, beside, parameters, files, options).map_err(|r| r.in_file(&file.name))?;
    let (table, open) = (lowering.symbols.table.clone(), lowering.symbols.unbounded.clone());
    match lower_model(model, files, lowering) {
        Ok(converted) => Ok((converted, open)),
        Err(reason) => {
            let symbols = MentionedSymbols::find_in_message(&reason.to_string(), &table, &open).map(Box::new);
            Err(ImportError { symbols, ..reason.in_file(&file.name) })
        }
    }
}

/// What lowers a program, before any node.
fn prepare_lowering<'p>(
    model: &'p proto::ModelProto,
    beside: &'p TensorFiles,
    parameters: &'p ParameterSet,
    files: usize,
    options: &ImportOptions,
) -> Result<ImportLowering<'p>, FailureReason> {
    let Some(graph) = &model.graph else { return Err(FailureReason::Model("no graph".into())) };
    let mut notes = Vec::new();
    let ranks = RankCount::new(options.ranks, files)?;
    let arguments = signature::caller_inputs(graph);
    let metadata: Vec<proto::StringStringEntryProto> =
        graph.metadata_props.iter().chain(&model.metadata_props).cloned().collect();
    let symbols =
        ProgramSymbols::new(&arguments, &metadata, (&options.constraints, options.max_extent), &mut notes)?;
    let mut builder = GraphBuilder::new(options.name.clone(), ranks.count_so_far());
    builder.graph_mut().symbols = symbols.table.clone();
    let scope = NameScope::new(String::new(), versions::opset_versions(&model.opset_import)?);
    let mut lowering = ImportLowering::new(builder, symbols, scope, ranks, beside, parameters);
    lowering.notes = notes;
    for function in &model.functions {
        let key = (normalize_domain(&function.domain), function.name.as_str(), function.overload.as_str());
        lowering.functions.insert(key, function);
    }
    Ok(lowering)
}

/// The program under its symbols.
fn lower_model<'p>(
    model: &'p proto::ModelProto,
    files: usize,
    mut lowering: ImportLowering<'p>,
) -> Result<ConvertedModel, FailureReason> {
    let Some(graph) = &model.graph else { return Err(FailureReason::Model("no graph".into())) };
    signature::lower_inputs(&mut lowering, graph, &signature::caller_inputs(graph))?;
    lowering.lower_program_nodes(&graph.node)?;
    signature::lower_outputs(&mut lowering, graph)?;
    let ImportLowering { builder, ranks, weights, mut notes, .. } = lowering;
    let mut graph = builder.finish();
    graph.ranks = ranks.final_count();
    let graph = verify_graph(graph).map_err(FailureReason::Graph)?;
    if let (1, Some(ranks @ 2..), false) = (files, graph.ranks, weights.is_empty()) {
        notes.push(format!(
            "the file holds the weights of one of {ranks} ranks; with one file for each rank, all are known"
        ));
    }
    Ok((graph, weights, notes))
}
