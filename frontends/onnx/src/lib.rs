//! Imports ONNX programs (`.onnx`), one file per rank, as symmc graphs.
//!
//! ```text
//! files ──► protobuf ──► symbols, ranks ──► signature ──► lower, by ops/ ──► Graph, weights of each rank
//! ```
//!
//! Besides translating ops, an import does the following:
//! - **Ranks.** ONNX Runtime's collectives state the number of ranks and span all of them. Each rank has its
//!   own file: the same program with other weights. With the files of all ranks, the weights of all ranks are
//!   known. A single file gives the weights of one rank.
//! - **Stored tensors** (initializers) become parameters. Integers and single numbers are shapes, positions
//!   and factors: they become constants if all files agree. A `Constant` that differs between the files also
//!   becomes a parameter.
//! - **Computed shapes** (`Shape`, `Gather`, `Concat`, …) are tracked as expressions of the program's
//!   symbols. Nodes with constant operands are evaluated.
//! - **Symbols** are the names of extents of arguments. `torch.onnx` writes their bounds into the metadata,
//!   under PyTorch's names. Where the match is certain, a symbol gets its bounds. Otherwise it gets a range
//!   that covers all candidates, or [`ImportOptions::max_extent`] bounds it, with a note. Callers constrain
//!   symbols with [`ImportOptions::constraints`].
//! - **Functions** of the model are inlined, and so are branches and loops (`control_flow`).
//! - **Arguments that select branches** are taken for constants if their values are known (`switches`).
//! - **Types.** Every result is checked against its declared type, if there is one.
//! - **Unsupported ops** become opaque, with one note for all of them, if the program or the schema of the op
//!   gives the number of axes of their results. Extents that neither gives are symbols.
//!
//! A file is untrusted data: no input makes an import panic, nesting is bounded, and memory is bounded by the
//! sizes of the files. The path of an external data file must lead down from the model's folder. Symbolic
//! links on that path are followed wherever they lead, because caches of models link to their files.

mod argument_values;
mod call;
mod compare_ranks;
mod control_flow;
mod counted;
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
mod opaque;
mod ops;
mod parameters;
pub mod proto;
mod ranks;
mod result_types;
mod schemas;
mod scope;
mod signature;
mod switches;
mod symbols;
mod tensor_data;
mod versions;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use indexmap::IndexMap;
use prost::Message;
use symmc_import::assumed_sizes::{
    ExtentFailure, SizeAssumption, bound_open_sizes, import_with_assumed_sizes,
};
use symmc_import::declared::verify_graph;
use symmc_import::ranges::{MentionedSymbols, SymbolConstraints};
use symmc_ir::{Graph, GraphBuilder, Tensor};
use symmc_support::{Backing, MappedFile};

pub use error::{FailureReason, ImportError};

use argument_values::ArgumentValues;
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
    /// The number of ranks, if the caller knows it.
    pub ranks: Option<u32>,
    /// The caller's constraints on symbols, and the shapes of recorded arguments.
    /// A constraint to one value may also name an argument of one integer, which is then taken for that constant.
    pub constraints: SymbolConstraints,
    /// The recorded values of the arguments that are one integer, by their positions. An argument that selects branches is
    /// taken for its recorded value.
    pub recorded_integers: Vec<Option<i64>>,
    /// The largest bound of symbols for which neither the program nor the caller gives one.
    pub max_extent: i64,
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions {
            name: "model".into(),
            ranks: None,
            constraints: SymbolConstraints::default(),
            recorded_integers: Vec::new(),
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

/// Files of at least this many bytes are mapped. Smaller ones are read at once, so later changes do not
/// matter.
const MAPPED: u64 = 16 << 20;

#[derive(Clone, Debug)]
pub struct ModelSource {
    pub name: String,
    pub bytes: Bytes,
    /// The mapped file whose contents `bytes` are, if the file is mapped.
    pub file: Option<Arc<MappedFile>>,
    /// The folder of external data files. Without it, external data is rejected.
    pub folder: Option<PathBuf>,
}

impl ModelSource {
    /// Opens a file. A large file is mapped, so that unused parts are not read.
    pub fn open(path: &Path) -> Result<ModelSource, ImportError> {
        let name = path.display().to_string();
        // A pipe cannot be mapped.
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
    /// The data of the parameters by their source names, for each file.
    pub weights: Vec<IndexMap<String, Arc<Tensor>>>,
    /// Remarks for the user about the import, in sentences.
    pub notes: Vec<String>,
    /// What the import assumes of sizes that neither the program nor the caller determines.
    pub assumed_sizes: Vec<SizeAssumption>,
    pub data_files: Vec<PathBuf>,
}

/// Imports a program from the files of all ranks, rank 0 first, or from the file of one rank.
pub fn import(files: &[ModelSource], options: &ImportOptions) -> Result<ImportOutput, ImportError> {
    let mut models = Vec::with_capacity(files.len());
    for file in files {
        models.push(decode_model(file).map_err(|reason| reason.in_file(&file.name))?);
    }
    if files.is_empty() {
        return Err(
            FailureReason::Ranks("expected a file for each rank, found none".into()).in_file(&options.name)
        );
    }
    let tensor_files: Vec<TensorFiles> =
        files.iter().map(|f| TensorFiles::new(f.folder.clone(), f.file.clone())).collect();
    let parameters = parameters::find_parameters(&models, &tensor_files);
    let import = |constraints: &SymbolConstraints| {
        let options = ImportOptions { constraints: constraints.clone(), ..options.clone() };
        convert_models(files, &models, &tensor_files, &parameters, &options)
    };
    let (mut imported, assumed) = import_with_assumed_sizes(
        &options.constraints,
        import,
        |error| {
            let place = match &error.reason {
                FailureReason::Node { node, .. } => node.clone(),
                _ => String::new(),
            };
            let message = error.reason.to_string();
            Some(ExtentFailure { place, message, symbols: error.symbols.as_deref()? })
        },
        |error, suggested| {
            if let Some(symbols) = &mut error.symbols {
                symbols.suggested = suggested;
            }
        },
    )?;
    imported.assumed_sizes.extend(assumed);
    if let Some(name) = find_repeated_file(files) {
        imported.notes.push(format!("{name} is given for several ranks: they have the same weights"));
    }
    Ok(imported)
}

/// Converts the models of all ranks to one program.
fn convert_models(
    files: &[ModelSource],
    models: &[proto::ModelProto],
    tensor_files: &[TensorFiles],
    parameters: &ParameterSet,
    options: &ImportOptions,
) -> Result<ImportOutput, ImportError> {
    let mut imported: Option<ImportOutput> = None;
    for ((file, model), tensor_files) in files.iter().zip(models).zip(tensor_files) {
        let ConvertedModel { graph, weights, notes, assumed_sizes } =
            convert_model(file, model, tensor_files, parameters, files.len(), options)?;
        tensor_files.check_unchanged().map_err(|e| FailureReason::Io(e).in_file(&file.name))?;
        match &mut imported {
            None => {
                let weights = vec![weights];
                let data_files = tensor_files.data_files();
                imported = Some(ImportOutput { graph, weights, notes, assumed_sizes, data_files });
            }
            Some(program) => {
                program.data_files.extend(tensor_files.data_files());
                let first = files.first().map_or("", |file| file.name.as_str());
                let weights = compare_ranks::compare_with_first(first, &program.graph, graph, weights)
                    .map_err(|reason| reason.in_file(&file.name))?;
                program.weights.push(weights);
            }
        }
    }
    imported.ok_or_else(|| FailureReason::Graph("no program was imported".into()).in_file(&options.name))
}

fn find_repeated_file(files: &[ModelSource]) -> Option<&str> {
    let mut names = HashSet::new();
    files.iter().map(|f| f.name.as_str()).find(|name| !names.insert(*name))
}

pub fn import_files(paths: &[PathBuf], options: &ImportOptions) -> Result<ImportOutput, ImportError> {
    let files = paths.iter().map(|p| ModelSource::open(p)).collect::<Result<Vec<_>, _>>()?;
    import(&files, options)
}

/// Every ONNX op that has a rule, with its domain if it is not ONNX's own, and the ops that it becomes.
pub fn supported_ops() -> Vec<(&'static str, &'static str)> {
    ops::supported()
}

/// Decodes a model. A mapped file is read by position, see [`FileBuf`].
fn decode_model(source: &ModelSource) -> Result<proto::ModelProto, FailureReason> {
    let Some(file) = &source.file else {
        return decode_from(&mut source.bytes.clone(), &mut source.bytes.clone());
    };
    let mut message = FileBuf::new(file.clone(), source.bytes.clone());
    let mut fields = FileBuf::new(file.clone(), source.bytes.clone());
    let model = decode_from(&mut message, &mut fields);
    // A read error explains any decoding error, so it is reported first.
    message.check_unchanged().and_then(|()| fields.check_unchanged()).map_err(FailureReason::Io)?;
    model
}

/// Decodes a model from one buffer, and checks from another one of the same bytes that all its fields are known.
fn decode_from(message: &mut impl Buf, fields: &mut impl Buf) -> Result<proto::ModelProto, FailureReason> {
    let size = message.remaining();
    let head: Vec<u8> = message.chunk().iter().take(64).copied().collect();
    let model = proto::ModelProto::decode(message)
        .map_err(|e| FailureReason::Model(describe_other_file(&head, size, &e.to_string())))?;
    let Some(graph) = &model.graph else {
        return Err(FailureReason::Model(describe_other_file(&head, size, "no graph")));
    };
    if let Some(sparse) = graph.sparse_initializer.first() {
        let tensor = sparse.values.as_ref().map_or(String::new(), |v| v.name.clone());
        return Err(FailureReason::Tensor { tensor, message: "sparse tensors are not supported".into() });
    }
    versions::check_model_versions(&model)?;
    fields::check_known_fields(fields)?;
    Ok(model)
}

/// Describes a file that is not a model, by its first bytes.
fn describe_other_file(head: &[u8], size: usize, why: &str) -> String {
    let kind = match head {
        [] => "an empty file",
        [b'P', b'K', ..] => "a zip archive",
        [b'{', ..] => "JSON",
        b if b.starts_with(b"version https://git-lfs") => "a Git LFS pointer",
        b if b.iter().all(|c| c.is_ascii_graphic() || c.is_ascii_whitespace()) => "text",
        _ => return format!("{size} bytes that are not an ONNX model, or damaged: {why}"),
    };
    kind.to_string()
}

struct ConvertedModel {
    graph: Graph,
    weights: IndexMap<String, Arc<Tensor>>,
    notes: Vec<String>,
    assumed_sizes: Vec<SizeAssumption>,
}

fn convert_model<'p>(
    file: &ModelSource,
    model: &'p proto::ModelProto,
    tensor_files: &'p TensorFiles,
    parameters: &'p ParameterSet,
    files: usize,
    options: &ImportOptions,
) -> Result<ConvertedModel, ImportError> {
    let lowering = prepare_lowering(model, tensor_files, parameters, files, options)
        .map_err(|r| r.in_file(&file.name))?;
    let table = lowering.symbols.table.clone();
    let open = lowering.symbols.open.clone();
    lower_model(model, files, lowering).map_err(|reason| {
        let symbols = MentionedSymbols::find_in_message(&reason.to_string(), &table, &open);
        ImportError { symbols: symbols.map(Box::new), ..reason.in_file(&file.name) }
    })
}

/// The state of the import before any node is lowered.
fn prepare_lowering<'p>(
    model: &'p proto::ModelProto,
    tensor_files: &'p TensorFiles,
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
    let mut constraints = options.constraints.clone();
    let argument_values =
        ArgumentValues::new(graph, &arguments, &options.recorded_integers, &mut constraints);
    let results: Vec<&proto::ValueInfoProto> = graph.value_info.iter().chain(&graph.output).collect();
    let symbols =
        ProgramSymbols::new(&arguments, &results, &metadata, &constraints, options.max_extent, &mut notes)?;
    let mut builder = GraphBuilder::new(options.name.clone(), ranks.count_so_far());
    builder.graph_mut().symbols = symbols.table.clone();
    let scope = NameScope::new(String::new(), versions::opset_versions(&model.opset_import)?);
    let mut lowering = ImportLowering::new(builder, symbols, scope, ranks, tensor_files, parameters);
    lowering.notes = notes;
    lowering.argument_values = argument_values;
    for function in &model.functions {
        let key = (normalize_domain(&function.domain), function.name.as_str(), function.overload.as_str());
        lowering.functions.insert(key, function);
    }
    Ok(lowering)
}

/// Lowers the inputs, nodes and outputs of the program, and verifies the graph.
fn lower_model<'p>(
    model: &'p proto::ModelProto,
    files: usize,
    mut lowering: ImportLowering<'p>,
) -> Result<ConvertedModel, FailureReason> {
    let Some(graph) = &model.graph else { return Err(FailureReason::Model("no graph".into())) };
    signature::lower_inputs(&mut lowering, graph, &signature::caller_inputs(graph))?;
    lowering.lower_program_nodes(&graph.node)?;
    signature::lower_outputs(&mut lowering, graph)?;
    let ImportLowering { builder, compositions, symbols, ranks, weights, mut notes, .. } = lowering;
    let mut graph = builder.finish();
    graph.ranks = ranks.final_count();
    let mut graph = compositions.widen(graph);
    let assumed_sizes = bound_open_sizes(&mut graph, &symbols.open.with_default);
    let graph = verify_graph(graph).map_err(FailureReason::Graph)?;
    if let (1, Some(ranks @ 2..), false) = (files, graph.ranks, weights.is_empty()) {
        notes.push(format!(
            "the file has the weights of one of {ranks} ranks; give one file per rank to import the weights of all"
        ));
    }
    Ok(ConvertedModel { graph, weights, notes, assumed_sizes })
}
