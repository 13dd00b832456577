//! Imports `torch.export` programs (`.pt2`) as symmc graphs.
//!
//! ```text
//! archive (zip) ──► schema (JSON) ──► symbols, groups ──► signature ──► lower, by ops/ ──► Graph
//! ```
//!
//! Besides translating ops, an import does the following:
//! - **Symbols.** PyTorch stores only generated names such as `s23`. The only symbol of a program is called
//!   `tokens`. If there are several, the symbol of the last axis of the first integer argument is called
//!   `tokens`, and that of its axis 0, if it is another, `batch`. Other symbols keep their names. PyTorch's
//!   name becomes the symbol's alias. A symbol without an upper bound gets [`ImportOptions::max_extent`],
//!   with a note.
//! - **Ranks.** A `.pt2` does not state how many ranks run it. Collectives of the default group that state a
//!   size determine the number, or [`ImportOptions::ranks`] gives it. Otherwise it stays unknown. The file
//!   does not state the members of groups either, see [`ImportOptions::groups`].
//! - **Types.** Implicit conversions become casts, and every result is checked against its declared type.
//! - **Ops that write** become functional ones, and writing an input becomes an output that mutates it.
//!   PyTorch's schemas, [`ImportOptions::schemas`], or the program, if it states that it is functional, say
//!   what an op writes. An op without this information is rejected if a write could be observed. Ops that
//!   draw random numbers are rejected.
//! - **Assertions** that can be decided are checked. All assertions are then removed.
//! - **Custom ops** with a definition ([`ImportOptions::definitions`]) are replaced by it.
//! - **Unsupported ops** that write nothing become opaque, with a note.
//!
//! An archive is untrusted data: no input makes an import panic, nothing in a pickle is executed, and
//! the unpacked size is bounded by the size of the file. Sample inputs and traces are not read.

mod aliasing;
mod archive;
mod argument;
mod auto_functionalized;
mod branches;
mod call;
mod custom_schema;
mod data_sizes;
mod definition;
mod dtype;
mod effects;
mod emit;
mod error;
mod expand;
mod float_expr;
pub mod fuzz;
mod groups;
mod inline;
mod inplace;
mod literal;
mod lower;
mod lower_nodes;
mod merge_ranks;
mod operand_dtypes;
mod ops;
mod options;
mod packed;
mod packed_rows;
mod per_rank;
mod pickle;
mod schema;
mod scope;
mod shards;
mod signature;
mod stored_tensors;
mod subclasses;
mod symbols;
mod unify;

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_import::assumed_sizes::{
    ExtentFailure, SizeAssumption, bound_open_sizes, import_with_assumed_sizes,
};
use symmc_import::declared::verify_graph;
use symmc_import::ranges::{MentionedSymbols, SymbolConstraints};
use symmc_ir::{Graph, GraphBuilder, GroupMembers, Tensor};

pub use definition::{DefinedOp, read_defined_op};
pub use error::{ImportError, UndescribedGroup};
pub use options::ImportOptions;

use archive::Archive;
use definition::OpDefinitions;
use effects::EffectAnalysis;
use lower::ImportLowering;
use schema::{ExportedProgram, VersionOnly};
use signature::ArchiveTensors;
use stored_tensors::TensorStore;
use symbols::ProgramSymbols;

#[derive(Clone, Debug)]
pub struct ImportOutput {
    pub graph: Graph,
    /// The data of the parameters by their source names, as far as the archive contains it. It is that of the
    /// rank that exported the archive.
    pub weights: IndexMap<String, Arc<Tensor>>,
    /// The same for the ranks after the first, if each has an archive. Numbers that differ between the
    /// programs of ranks are parameters, too.
    pub other_rank_weights: Vec<IndexMap<String, Arc<Tensor>>>,
    /// The names of those weights that PyTorch calls buffers: state other than parameters.
    pub buffers: Vec<String>,
    /// The names of tensors that have several names: tied weights.
    pub tied_names: Vec<Vec<String>>,
    /// Whether [`ImportOptions::assumed_ranks`] gave the number of ranks.
    pub ranks_assumed: bool,
    /// Remarks for the user about the import, in sentences.
    pub notes: Vec<String>,
    /// What the import assumes of sizes that neither the program nor the caller determines.
    pub assumed_sizes: Vec<SizeAssumption>,
}

pub fn import(bytes: &[u8], options: &ImportOptions) -> Result<ImportOutput, ImportError> {
    let OpenedArchive { mut archive, model, text } = open_archive(bytes, options)?;
    let program = parse_program(&format!("models/{model}.json"), &text)?;
    let stores = open_tensors(&mut archive, &model, None)?;
    import_program(&program, &mut [stores], options)
}

/// Imports a program from the archives of all its ranks, rank 0 first. The programs may differ in names and
/// data, and in numbers in places where a tensor is possible: each such number becomes a parameter without
/// axes. If ranks call a group by different names, the ranks that use one name form a cell.
/// [`ImportError::Rank`] names the archive at fault, unless it is the first.
pub fn import_ranks(files: &[&[u8]], options: &ImportOptions) -> Result<ImportOutput, ImportError> {
    let mut opened = Vec::with_capacity(files.len());
    for (i, bytes) in files.iter().enumerate() {
        opened.push(open_archive(bytes, options).map_err(|e| e.with_rank(i))?);
    }
    let mut options = options.clone();
    let count = u32::try_from(files.len()).unwrap_or(u32::MAX);
    if let Some(ranks) = options.ranks.filter(|n| *n != count) {
        return Err(groups::rank_count_mismatch(ranks, count));
    }
    options.ranks = Some(count);
    let mut archives = Vec::new();
    let mut models = Vec::new();
    let mut texts = Vec::new();
    for OpenedArchive { archive, model, text } in opened {
        archives.push(archive);
        models.push(model);
        texts.push(text);
    }
    let mut programs = Vec::with_capacity(files.len());
    for (i, (model, text)) in models.iter().zip(&texts).enumerate() {
        let program = parse_program(&format!("models/{model}.json"), text);
        programs.push(program.map_err(|e| e.with_rank(i))?);
    }
    let merged = merge_ranks::merge_programs(&mut programs)?;
    for (name, cells) in merged.groups {
        options.groups.entry(name).or_insert(cells);
    }
    let mut rank_tensors = Vec::with_capacity(files.len());
    let names = std::iter::once(None).chain(merged.names.iter().map(|n| Some(&n.stored)));
    for (i, ((archive, model), names)) in archives.iter_mut().zip(&models).zip(names).enumerate() {
        rank_tensors.push(open_tensors(archive, model, names).map_err(|e| e.with_rank(i))?);
    }
    let first = programs.first().ok_or_else(|| ImportError::Graph("no archive was given".into()))?;
    import_program(first, &mut rank_tensors, &options)
}

/// Converts a program, with assumptions on the sizes that it leaves open.
fn import_program(
    program: &ExportedProgram<'_>,
    stores: &mut [ArchiveTensors<'_, '_>],
    options: &ImportOptions,
) -> Result<ImportOutput, ImportError> {
    let import = |constraints: &SymbolConstraints| {
        convert_program(
            program,
            stores,
            &ImportOptions { constraints: constraints.clone(), ..options.clone() },
        )
    };
    let (mut imported, assumed) = import_with_assumed_sizes(
        &options.constraints,
        import,
        |error| match error {
            ImportError::Extents { error, symbols } => {
                let place = error.node().map_or_else(String::new, |(node, _)| node.to_string());
                Some(ExtentFailure { place, message: error.to_string(), symbols })
            }
            _ => None,
        },
        |error, suggested| {
            if let ImportError::Extents { symbols, .. } = error {
                symbols.suggested = suggested;
            }
        },
    )?;
    imported.assumed_sizes.extend(assumed);
    Ok(imported)
}

struct OpenedArchive<'b> {
    archive: Archive<'b>,
    /// The name of the program in the archive.
    model: String,
    /// The JSON text of the program.
    text: String,
}

fn open_archive<'b>(bytes: &'b [u8], options: &ImportOptions) -> Result<OpenedArchive<'b>, ImportError> {
    let mut archive = Archive::open(bytes)?;
    let (model, text) = archive.program(&options.name)?;
    Ok(OpenedArchive { archive, model, text })
}

/// The stored tensors of an archive, under the names of rank 0.
fn open_tensors<'s, 'a>(
    archive: &'s mut Archive<'a>,
    model: &str,
    names: Option<&HashMap<String, String>>,
) -> Result<ArchiveTensors<'s, 'a>, ImportError> {
    let weights = TensorStore::new("weights", archive.config("weights", model)?);
    let constants = TensorStore::new("constants", archive.config("constants", model)?);
    Ok(match names {
        Some(names) => ArchiveTensors {
            archive,
            weights: weights.with_names(names),
            constants: constants.with_names(names),
        },
        None => ArchiveTensors { archive, weights, constants },
    })
}

/// Every PyTorch op that has a rule, and the ops that it becomes. A target is an op (`aten.add`), with all
/// its overloads, or one overload (`aten.max.dim`).
pub fn supported_ops() -> Vec<(&'static str, &'static str)> {
    ops::supported()
}

/// The version of the aten ops that the rules implement. All programs of schema 8 have it.
const ATEN_OPSET: i64 = 10;

fn parse_program<'t>(entry: &str, text: &'t str) -> Result<ExportedProgram<'t>, ImportError> {
    match serde_json::from_str::<ExportedProgram<'t>>(text) {
        Ok(mut program) if program.schema_version.major == 8 => match program.opset_version.get("aten") {
            Some(version) if *version != ATEN_OPSET => Err(ImportError::Content {
                entry: entry.to_string(),
                expected: format!("version {ATEN_OPSET} of the aten operators"),
                found: version.to_string(),
            }),
            _ => {
                subclasses::use_local_tensors(&mut program);
                Ok(program)
            }
        },
        Ok(program) => Err(schema_error(entry, program.schema_version)),
        // Another version may have another structure. Its number is a better error than the first difference.
        Err(e) => match serde_json::from_str::<VersionOnly>(text) {
            Ok(v) if v.schema_version.major != 8 => Err(schema_error(entry, v.schema_version)),
            _ => Err(ImportError::Entry { entry: entry.to_string(), message: e.to_string() }),
        },
    }
}

fn schema_error(entry: &str, version: schema::SchemaVersion) -> ImportError {
    ImportError::Schema { entry: entry.to_string(), found: format!("{}.{}", version.major, version.minor) }
}

fn convert_program(
    program: &ExportedProgram<'_>,
    stores: &mut [ArchiveTensors<'_, '_>],
    options: &ImportOptions,
) -> Result<ImportOutput, ImportError> {
    let definitions = OpDefinitions::parse(&options.definitions)?;
    let ranks = groups::resolve_groups(program, &definitions, options)?;
    let mut notes = ranks.notes;
    let mut symbols = ProgramSymbols::new(
        &signature::argument_sizes(program),
        &|name| program.range_constraints.get(name).copied(),
        &options.constraints,
        options.max_extent,
        &mut notes,
    )?;
    symbols.add_data_sizes(&program.graph_module.graph, &|name| program.range_constraints.get(name).copied());
    let table = symbols.table.clone();
    let open = symbols.open.clone();
    let assumed = ranks.assumed;
    let mut builder = GraphBuilder::new(options.name.clone(), ranks.ranks);
    builder.graph_mut().symbols = table.clone();
    let effects = EffectAnalysis::new(&options.schemas, &definitions, &program.verifiers)?;
    effects.check_all_used(&program.graph_module.graph)?;
    let mut lowering = ImportLowering::new(builder, &program.graph_module.graph, symbols, effects);
    lowering.definitions = definitions;
    lowering.notes = notes;
    lower_program(program, stores, lowering, ranks.groups)
        .map(|imported| ImportOutput { ranks_assumed: assumed, ..imported })
        .map_err(|error| match MentionedSymbols::find_in_message(&error.to_string(), &table, &open) {
            Some(symbols) => ImportError::Extents { error: Box::new(error), symbols: Box::new(symbols) },
            None => error,
        })
}

fn lower_program<'p>(
    program: &'p ExportedProgram<'p>,
    stores: &mut [ArchiveTensors<'_, '_>],
    mut lowering: ImportLowering<'p>,
    groups: IndexMap<String, GroupMembers>,
) -> Result<ImportOutput, ImportError> {
    for (name, members) in groups {
        let id = lowering.builder.group(&name, members);
        lowering.groups.insert(name, id);
    }
    signature::mark_outputs(&mut lowering, program);
    let inputs = signature::lower_inputs(&mut lowering, program, stores)?;
    let numbers = signature::add_per_rank_inputs(&mut lowering, program);
    lowering.lower_program_nodes()?;
    signature::lower_outputs(&mut lowering, program, &inputs)?;
    let ImportLowering { builder, compositions, symbols, weights, buffers, notes, rank_shards, .. } =
        lowering;
    let mut graph = builder.finish();
    shards::make_shards(&mut graph, rank_shards);
    let mut graph = compositions.widen(graph);
    let assumed_sizes = bound_open_sizes(&mut graph, &symbols.open.with_default);
    let graph = verify_graph(graph).map_err(ImportError::Graph)?;
    let mut weights_by_rank = Vec::with_capacity(stores.len());
    for (rank, store) in stores.iter_mut().enumerate() {
        let mut weights = weights.clone();
        weights.extend(signature::load_weights(&inputs, store).map_err(|e| e.with_rank(rank))?);
        weights.extend(
            numbers.iter().filter_map(|n| Some((n.name.clone(), Arc::new(n.numbers.tensor_of_rank(rank)?)))),
        );
        weights_by_rank.push(weights);
    }
    let tied_names = stores.first().map_or_else(Vec::new, ArchiveTensors::tied_names);
    let mut weights_by_rank = weights_by_rank.into_iter();
    let weights = weights_by_rank.next().unwrap_or_default();
    let other_rank_weights = weights_by_rank.collect();
    Ok(ImportOutput {
        graph,
        weights,
        other_rank_weights,
        buffers,
        tied_names,
        ranks_assumed: false,
        notes,
        assumed_sizes,
    })
}
