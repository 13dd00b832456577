//! Reads `torch.export` programs (`.pt2`) into symmc graphs.
//!
//! ```text
//! archive (zip) ──► schema (JSON) ──► symbols, groups ──► signature ──► lower, by ops/ ──► Graph
//! ```
//!
//! What an import does beyond translating ops:
//! - **Symbols.** PyTorch keeps only generated names such as `s23`. The only symbol of a program is called
//!   `tokens`; with several, the symbol of the last axis of the first integer argument is `tokens` and that
//!   of its axis 0, if another, `batch`. Others keep their names. PyTorch's name stays as the symbol's
//!   alias. A symbol without an upper bound gets [`ImportOptions::max_extent`], with a note.
//! - **Ranks.** A `.pt2` does not say how many ranks run it. Collectives of the default group that state a size fix
//!   it, [`ImportOptions::ranks`] gives it otherwise; it stays open if neither does. Nor does it say who belongs to a
//!   group: see [`ImportOptions::groups`].
//! - **Types.** Implicit conversions become casts, and every result is held against the type that the
//!   program declares for it.
//! - **Ops that write** become functional ones; writing an input becomes an output that mutates it. What an op writes
//!   is known from PyTorch's schemas, from [`ImportOptions::schemas`], or from the program, if it says that it is
//!   functional; an op of which nothing tells is refused where it could matter. Ops that draw random numbers are
//!   refused.
//! - **Assertions** that can be decided are checked; all vanish.
//! - **Unknown ops** that write nothing become opaque, with a note.
//!
//! An archive is untrusted data: no input makes an import panic, pickles are refused by name, and what is
//! unpacked is bounded by the size of the file. Sample inputs and traces are not read.

mod archive;
mod argument;
mod by_rank;
mod call;
mod declared;
mod dtype;
mod effects;
mod emit;
mod error;
mod functionalised;
pub mod fuzz;
mod groups;
mod inline;
mod inplace;
mod lower;
mod numbers;
mod operands;
mod ops;
mod options;
mod parts;
mod ratios;
mod schema;
mod scope;
mod shards;
mod sharing;
mod signature;
mod stored;
mod symbols;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_import::declared::verified;
use symmc_import::ranges::Questioned;
use symmc_ir::{Builder, Graph, Members, Tensor};

pub use error::{ImportError, UndescribedGroup};
pub use options::ImportOptions;

use archive::Archive;
use effects::Effects;
use lower::Lowering;
use schema::{Program, VersionOnly};
use signature::Stores;
use stored::Store;
use symbols::Symbols;

#[derive(Clone, Debug)]
pub struct Imported {
    pub graph: Graph,
    /// The data of its parameters by their source names, as far as the archive holds it: that of the rank
    /// that exported it.
    pub weights: IndexMap<String, Arc<Tensor>>,
    /// That of the ranks after the first, where each gave an archive. Numbers that differ between the programs of ranks
    /// are parameters, too.
    pub others: Vec<IndexMap<String, Arc<Tensor>>>,
    /// Those of them that PyTorch calls buffers: state that is no parameter.
    pub buffers: Vec<String>,
    /// The names of tensors that have several: tied weights.
    pub ties: Vec<Vec<String>>,
    /// Whether [`ImportOptions::assumed_ranks`] gave the number of ranks.
    pub ranks_assumed: bool,
    /// What a user should know about the import, in sentences.
    pub notes: Vec<String>,
    /// The symbols to which neither the program nor the caller gives an upper bound.
    pub open: Vec<String>,
}

pub fn import(bytes: &[u8], options: &ImportOptions) -> Result<Imported, ImportError> {
    let (mut archive, model, text) = open(bytes, options)?;
    let program = parse(&format!("models/{model}.json"), &text)?;
    let stores = stores(&mut archive, &model, None)?;
    convert(&program, &mut [stores], options)
}

/// Imports a program from the archives of all its ranks, that of rank 0 first. They may differ in names and data, and in
/// numbers that stand where a tensor may: each such number becomes a parameter without axes. Groups that ranks call by
/// different names have the ranks of one name as a cell. [`ImportError::Rank`] tells the archive at fault, if it is not
/// the first.
pub fn import_ranks(files: &[&[u8]], options: &ImportOptions) -> Result<Imported, ImportError> {
    let of = |rank: usize| move |e: ImportError| e.of_rank(rank);
    let mut opened = Vec::with_capacity(files.len());
    for (i, bytes) in files.iter().enumerate() {
        opened.push(open(bytes, options).map_err(of(i))?);
    }
    let mut options = options.clone();
    let count = u32::try_from(files.len()).unwrap_or(u32::MAX);
    if let Some(ranks) = options.ranks.filter(|n| *n != count) {
        return Err(groups::another_count(ranks, count));
    }
    options.ranks = Some(count);
    let (mut archives, mut models, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for (archive, model, text) in opened {
        archives.push(archive);
        models.push(model);
        texts.push(text);
    }
    let mut programs = Vec::with_capacity(files.len());
    for (i, (model, text)) in models.iter().zip(&texts).enumerate() {
        programs.push(parse(&format!("models/{model}.json"), text).map_err(of(i))?);
    }
    let merged = by_rank::merge(&mut programs)?;
    for (name, cells) in merged.groups {
        options.groups.entry(name).or_insert(cells);
    }
    let mut all = Vec::with_capacity(files.len());
    let names = std::iter::once(None).chain(merged.names.iter().map(|n| Some(&n.stored)));
    for (i, ((archive, model), names)) in archives.iter_mut().zip(&models).zip(names).enumerate() {
        all.push(stores(archive, model, names).map_err(of(i))?);
    }
    let first = programs.first().ok_or_else(|| ImportError::Graph("there is no archive".into()))?;
    convert(first, &mut all, &options)
}

type Opened<'b> = (Archive<'b>, String, String);

fn open<'b>(bytes: &'b [u8], options: &ImportOptions) -> Result<Opened<'b>, ImportError> {
    let mut archive = Archive::open(bytes)?;
    let (model, text) = archive.program(&options.name)?;
    Ok((archive, model, text))
}

/// The stored tensors of an archive, called what rank 0 calls them.
fn stores<'s, 'a>(
    archive: &'s mut Archive<'a>,
    model: &str,
    names: Option<&HashMap<String, String>>,
) -> Result<Stores<'s, 'a>, ImportError> {
    let weights = Store::new("weights", archive.config("weights", model)?);
    let constants = Store::new("constants", archive.config("constants", model)?);
    Ok(match names {
        Some(names) => {
            Stores { archive, weights: weights.renamed(names), constants: constants.renamed(names) }
        }
        None => Stores { archive, weights, constants },
    })
}

/// Every PyTorch op that is imported as more than an opaque one: its target (`aten.add`, which stands for
/// all its overloads, or one overload such as `aten.max.dim`) and what it becomes.
pub fn supported_ops() -> Vec<(&'static str, &'static str)> {
    ops::supported()
}

/// The version of the ops of aten whose meaning the rules have; all programs of schema 8 have it.
const ATEN_OPSET: i64 = 10;

fn parse<'t>(entry: &str, text: &'t str) -> Result<Program<'t>, ImportError> {
    let schema = |v: schema::SchemaVersion| ImportError::Schema {
        entry: entry.to_string(),
        found: format!("{}.{}", v.major, v.minor),
    };
    match serde_json::from_str::<Program<'t>>(text) {
        Ok(program) if program.schema_version.major == 8 => match program.opset_version.get("aten") {
            Some(version) if *version != ATEN_OPSET => Err(ImportError::Content {
                entry: entry.to_string(),
                expected: format!("version {ATEN_OPSET} of the ops of aten"),
                found: version.to_string(),
            }),
            _ => Ok(program),
        },
        Ok(program) => Err(schema(program.schema_version)),
        // Another version may have another structure; its number says more than where they differ.
        Err(e) => match serde_json::from_str::<VersionOnly>(text) {
            Ok(v) if v.schema_version.major != 8 => Err(schema(v.schema_version)),
            _ => Err(ImportError::Entry { entry: entry.to_string(), message: e.to_string() }),
        },
    }
}

fn convert(
    program: &Program<'_>,
    stores: &mut [Stores<'_, '_>],
    options: &ImportOptions,
) -> Result<Imported, ImportError> {
    let ranks = groups::settle(program, options)?;
    let mut notes = ranks.notes;
    let range = |name: &str| program.range_constraints.get(name).copied();
    let symbols =
        Symbols::new(&signature::sizes(program), &range, (&options.given, options.max_extent), &mut notes)?;
    let (table, open) = (symbols.table.clone(), symbols.open.clone());
    let assumed = ranks.assumed;
    let mut builder = Builder::new(options.name.clone(), ranks.ranks);
    builder.graph_mut().symbols = table.clone();
    let effects = Effects::new(&options.schemas, &program.verifiers)?;
    effects.all_used(&program.graph_module.graph)?;
    let mut lowering = Lowering::new(builder, &program.graph_module.graph, symbols, effects);
    lowering.notes = notes;
    lowered(program, stores, lowering, ranks.groups)
        .map(|imported| Imported { open: open.clone(), ranks_assumed: assumed, ..imported })
        .map_err(|error| match Questioned::of(&error.to_string(), &table, &open) {
            Some(symbols) => ImportError::Extents { error: Box::new(error), symbols },
            None => error,
        })
}

fn lowered<'p>(
    program: &'p Program<'p>,
    stores: &mut [Stores<'_, '_>],
    mut lowering: Lowering<'p>,
    groups: IndexMap<String, Members>,
) -> Result<Imported, ImportError> {
    for (name, members) in groups {
        let id = lowering.builder.group(&name, members);
        lowering.groups.insert(name, id);
    }
    signature::mark_outputs(&mut lowering, program);
    let inputs = signature::inputs(&mut lowering, program, stores)?;
    let numbers = signature::numbers_by_rank(&mut lowering, program);
    lowering.run()?;
    signature::outputs(&mut lowering, program, &inputs)?;
    let Lowering { builder, weights: written, buffers, notes, rank_pieces, .. } = lowering;
    let mut graph = builder.finish();
    shards::make_shards(&mut graph, rank_pieces);
    let graph = verified(graph).map_err(ImportError::Graph)?;
    let mut of_ranks = Vec::with_capacity(stores.len());
    for (rank, of_rank) in stores.iter_mut().enumerate() {
        let mut weights = written.clone();
        weights.extend(signature::weights(&inputs, of_rank).map_err(|e| e.of_rank(rank))?);
        let number = |n: &&numbers::ByRank| Some((n.name.clone(), Arc::new(n.numbers.of(rank)?)));
        weights.extend(numbers.iter().filter_map(number));
        of_ranks.push(weights);
    }
    let ties = stores.first().map_or_else(Vec::new, Stores::ties);
    let mut of_ranks = of_ranks.into_iter();
    let weights = of_ranks.next().unwrap_or_default();
    let others = of_ranks.collect();
    Ok(Imported { graph, weights, others, buffers, ties, ranks_assumed: false, notes, open: Vec::new() })
}
