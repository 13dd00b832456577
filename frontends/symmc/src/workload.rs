//! The inputs of a run: the values of the symbols, every rank's inputs, and the expected outputs if they are known.

use std::sync::Arc;

use symmc_control::JoinTerm;
use symmc_ir::interp::{self, InterpError, SeedConfig, SeedScope as RankDraw, SeededInputs};
use symmc_ir::message::list_names;
use symmc_ir::{Graph, GraphInput, InputKind, SymbolBindings, SymbolId, Tensor, ValueId};

use crate::content::WeightContent;
use crate::error::{Error, format_rank_count as ranks_text};
use crate::memory;
use crate::parameters::{check_constant_matches, expect_distinct_names, find_parameter};
use crate::program::Program;
use crate::recorded_outputs::{self, ExpectedOutputs, RecordedOutputs, read_recorded_outputs};
use crate::tensors::TensorFile;
use crate::weights::Weights;

/// The inputs of one run on all ranks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Workload {
    /// The values of the program's symbols.
    pub bindings: SymbolBindings,
    /// One tensor for each rank and input.
    pub inputs: Vec<Vec<Arc<Tensor>>>,
    /// The expected outputs, if a file records them.
    pub expected: Option<ExpectedOutputs>,
    /// The reason why the recorded outputs of a file cannot be compared. `expected` is `None` then.
    pub incomparable: Option<String>,
    /// Notes for the user: inputs that were generated, sizes that were assumed.
    pub notes: Vec<String>,
    /// The sources of the inputs, by name. All ranks of a run must agree on them.
    pub settings: Vec<JoinTerm>,
}

/// The options for generating inputs that no file gives.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DrawConfig {
    /// The seed; equal seeds give equal inputs on every machine.
    pub seed: u64,
    /// Whether to generate the arguments even if a file records them.
    pub arguments: bool,
    /// Values of symbols by name, or by the name in the original file.
    pub symbols: Vec<(String, i64)>,
    /// Whether ranks get the same arguments. By default ranks get the same value for arguments that no collective takes as its
    /// operand.
    pub ranks: RankDraw,
}

impl DrawConfig {
    /// Sets the seed.
    pub fn with_seed(self, seed: u64) -> DrawConfig {
        DrawConfig { seed, ..self }
    }

    /// Sets whether arguments are generated even if a file records them.
    pub fn with_arguments(self, arguments: bool) -> DrawConfig {
        DrawConfig { arguments, ..self }
    }

    /// Sets which generated arguments differ by rank.
    pub fn with_ranks(self, ranks: RankDraw) -> DrawConfig {
        DrawConfig { ranks, ..self }
    }

    /// Sets the values of symbols, by name.
    pub fn with_symbols(self, symbols: impl IntoIterator<Item = (impl Into<String>, i64)>) -> DrawConfig {
        DrawConfig {
            symbols: symbols.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            ..self
        }
    }
}

/// The value of a symbol that nothing sets, clamped to its range.
const DEFAULT_EXTENT: i64 = 16;

impl Workload {
    /// A workload of the caller's own inputs: the values of the program's symbols, and for each rank one tensor for each input
    /// of the program, in its order. A run checks whether they fit.
    pub fn new(bindings: SymbolBindings, inputs: Vec<Vec<Arc<Tensor>>>) -> Self {
        Workload {
            bindings,
            inputs,
            expected: None,
            incomparable: None,
            notes: Vec::new(),
            settings: Vec::new(),
        }
    }

    /// Takes all inputs from a file of recorded tensors.
    ///
    /// # Errors
    /// As [`gather`](Self::gather). Also if the file records outputs that are not the program's.
    pub fn recorded(program: &Program, tensors: &TensorFile) -> Result<Self, Error> {
        let work = Workload::gather(&program.graph, &program.weights, Some(tensors), &DrawConfig::default())?;
        match work.incomparable {
            Some(why) => Err(Error::format(tensors.path(), why)),
            None => Ok(work),
        }
    }

    /// Collects the inputs of every rank of `graph`:
    /// - Constants come from the program.
    /// - Parameters come from `tensors`, if it has them or a tensor tied to them. Otherwise they come from `weights`, if these
    ///   are of all ranks or buffers. Without a file they are generated.
    /// - Arguments come from `tensors`, if it records them and `draw` does not ask for others. Otherwise they are generated.
    ///
    /// # Errors
    /// A weight or argument is missing or has the wrong dtype or shape. A symbol is unknown, out of its range, or without a
    /// value. The file is for another number of ranks or of arguments.
    pub fn gather(
        graph: &Graph,
        weights: &Weights,
        tensors: Option<&TensorFile>,
        draw: &DrawConfig,
    ) -> Result<Self, Error> {
        let ranks = graph.ranks.ok_or_else(|| Error::invalid_request("the number of ranks is open"))?;
        if let Some(file) = tensors.filter(|f| f.ranks() != ranks) {
            let file_ranks = file.ranks();
            return Err(Error::format(
                file.path(),
                format!("the program runs on {}, the file has tensors for {file_ranks}", ranks_text(ranks)),
            ));
        }
        if tensors.is_some() {
            expect_distinct_names(graph)?;
        }
        let mut notes = Vec::new();
        let set = resolve_set_symbols(graph, &draw.symbols)?;
        let source = find_argument_source(graph, tensors, draw, ranks, &set)?;
        let (bindings, recorded, drawn) = match source {
            ArgumentSource::Recorded(bindings, arguments) => (bindings, Some(arguments), None),
            ArgumentSource::Drawn(why) => (default_bindings(graph, &set, &mut notes), None, Some(why)),
            ArgumentSource::Nothing => {
                (default_bindings(graph, &set, &mut notes), Some(vec![vec![]; ranks as usize]), None)
            }
        };
        if tensors.is_none() || recorded.is_none() {
            // The weights of a file are mapped, not held in memory.
            memory::check_available_memory(graph, &bindings, |i| {
                i.kind == InputKind::Argument || tensors.is_none()
            })?;
        }
        let config = SeedConfig { arguments: draw.ranks, ..SeedConfig::new(draw.seed) };
        let seeds = SeededInputs::new(graph, &bindings, config);
        if drawn.is_some() {
            notes.push(format!(
                "arguments drawn from seed {}{}",
                draw.seed,
                describe_differing(graph, &seeds)
            ));
        }
        let recorded_arguments = recorded.as_deref();
        let sources = InputSources {
            graph,
            weights,
            tensors,
            recorded: recorded_arguments,
            bindings: &bindings,
            seeds,
        };
        let mut inputs = Vec::new();
        for rank in 0..ranks {
            inputs.push(sources.inputs_of_rank(rank, &mut notes)?);
        }
        notes.dedup();
        let RecordedOutputs { expected, incomparable, note } = match tensors {
            Some(file) => read_recorded_outputs(graph, weights, file, &bindings, drawn.as_deref())?,
            None => RecordedOutputs::default(),
        };
        notes.extend(note);
        let mut settings = collect_run_terms(tensors, draw, drawn.is_some(), &notes);
        let has_weight =
            |i| weights.weights_of_rank(0, ranks).is_some_and(|w| w.contains_key(graph.checkpoint_name(i)));
        if graph.inputs.values().any(has_weight) {
            settings.push(JoinTerm::content("weights", Arc::new(WeightContent(weights.clone()))));
        }
        Ok(Workload { bindings, inputs, expected, incomparable, notes, settings })
    }
}

/// The tensor file and the seed as terms on which ranks must agree, if inputs come from them.
fn collect_run_terms(
    tensors: Option<&TensorFile>,
    draw: &DrawConfig,
    arguments_drawn: bool,
    notes: &[String],
) -> Vec<JoinTerm> {
    let file = tensors.map(|file| JoinTerm::content("tensors", Arc::new(file.file_content())));
    let drawn = arguments_drawn || notes.iter().any(|n| n == WEIGHTS_DRAWN);
    let mut terms: Vec<JoinTerm> = file.into_iter().collect();
    if drawn {
        terms.push(JoinTerm::text("seed", draw.seed.to_string()));
    }
    if arguments_drawn {
        terms.push(JoinTerm::text("draw", format!("{:?}", draw.ranks)));
    }
    terms
}

/// The most arguments that a note names.
const NAMED: usize = 8;

/// The end of a note: which arguments differ by rank.
fn describe_differing(graph: &Graph, seeds: &SeededInputs<'_>) -> String {
    let arguments = graph.inputs.iter().filter(|(_, input)| input.kind == InputKind::Argument);
    let (differing, shared): (Vec<_>, Vec<_>) = arguments.partition(|(id, _)| seeds.differs_by_rank(*id));
    let names = differing.iter().map(|(_, input)| format!("%{}", graph.value_name(input.value)));
    match (differing.len(), shared.len()) {
        (0, _) => ", the same on all ranks".to_string(),
        (_, 0) => ", different on each rank".to_string(),
        _ => format!(", different on each rank for {}", list_names(&names.collect::<Vec<_>>(), NAMED)),
    }
}

/// The note for generated parameters.
const WEIGHTS_DRAWN: &str = "weights drawn from the seed";

fn argument_inputs(graph: &Graph) -> impl Iterator<Item = &GraphInput> {
    graph.inputs.values().filter(|i| i.kind == InputKind::Argument)
}

/// The values of all symbols of a program, from values that are set by name.
///
/// # Errors
/// A name is unknown, a value is out of range, or a symbol has no value.
pub fn resolve_bindings(graph: &Graph, set: &[(String, i64)]) -> Result<SymbolBindings, Error> {
    let mut bindings = SymbolBindings::new();
    resolve_set_symbols(graph, set)?.into_iter().for_each(|(id, value)| bindings.set(id, value));
    match graph.symbols.iter().find(|(id, _)| bindings.get(*id).is_none()) {
        Some((_, symbol)) => {
            Err(Error::invalid_request(format!("symbol {} has no value: set its size", symbol.name)))
        }
        None => Ok(bindings),
    }
}

/// The symbols that the caller set, with their values in range.
fn resolve_set_symbols(graph: &Graph, set: &[(String, i64)]) -> Result<Vec<(SymbolId, i64)>, Error> {
    set.iter()
        .map(|(name, value)| {
            let id = find_symbol(graph, name)?;
            let symbol = &graph.symbols[id];
            if let Some((_, other)) =
                set.iter().find(|(n, v)| v != value && find_symbol(graph, n).is_ok_and(|o| o == id))
            {
                return Err(Error::invalid_request(format!("{name} is set to both {value} and {other}")));
            }
            if (symbol.min..=symbol.max).contains(value) {
                Ok((id, *value))
            } else {
                let (min, max) = (symbol.min, symbol.max);
                Err(Error::invalid_request(format!(
                    "{name}={value} is out of range: expected {min} to {max}"
                )))
            }
        })
        .collect()
}

/// The symbol of this name, or of this name in the original file.
///
/// # Errors
/// There is no such symbol. The message lists the symbols.
pub(crate) fn find_symbol(graph: &Graph, name: &str) -> Result<SymbolId, Error> {
    let symbol = graph
        .symbols
        .iter()
        .find(|(_, s)| s.name == name)
        .or_else(|| graph.symbols.iter().find(|(_, s)| s.alias.as_deref() == Some(name)));
    symbol.map(|(id, _)| id).ok_or_else(|| {
        let names: Vec<&str> = graph.symbols.values().map(|s| s.name.as_str()).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        Error::invalid_request(format!("the program has no symbol {name}; it has: {names}"))
    })
}

/// The source of the arguments of a run.
enum ArgumentSource {
    /// The file, whose shapes imply these bindings.
    Recorded(SymbolBindings, Vec<Vec<Arc<Tensor>>>),
    /// A seed, with the reason why the file's outputs cannot be compared.
    Drawn(String),
    /// The program takes no arguments.
    Nothing,
}

fn find_argument_source(
    graph: &Graph,
    tensors: Option<&TensorFile>,
    draw: &DrawConfig,
    ranks: u32,
    set: &[(SymbolId, i64)],
) -> Result<ArgumentSource, Error> {
    let count = argument_inputs(graph).count();
    if count == 0 {
        return Ok(ArgumentSource::Nothing);
    }
    if draw.arguments {
        return Ok(ArgumentSource::Drawn("its outputs are not those of the generated arguments".into()));
    }
    let Some(file) = tensors.filter(|f| f.has_inputs()) else {
        return Ok(ArgumentSource::Drawn("the arguments of its outputs (rank<r>.in.<i>) are missing".into()));
    };
    let recorded = recorded_arguments(graph, file, ranks, count)?;
    let bindings = solve_recorded_bindings(graph, &recorded, file)?;
    let mismatch = set.iter().find_map(|&(s, v)| Some((s, bindings.get(s).filter(|&found| found != v)?, v)));
    if let Some((symbol, found, wanted)) = mismatch {
        let name = &graph.symbols[symbol].name;
        return Ok(ArgumentSource::Drawn(format!(
            "its outputs are those of {name}={found}, not of {name}={wanted}"
        )));
    }
    Ok(ArgumentSource::Recorded(complete_bindings(graph, bindings, set, file)?, recorded))
}

/// The recorded arguments of all ranks. The file must have exactly those of the program.
fn recorded_arguments(
    graph: &Graph,
    file: &TensorFile,
    ranks: u32,
    count: usize,
) -> Result<Vec<Vec<Arc<Tensor>>>, Error> {
    let takes = if count == 1 { "1 argument".into() } else { format!("{count} arguments") };
    let argument = |rank, index| {
        let missing = || {
            let text = format!("rank{rank}.in.{index} is missing; the program has {takes}");
            Error::format(file.path(), text)
        };
        file.input(rank, index)?.ok_or_else(missing)
    };
    let arguments_by_rank: Vec<Vec<_>> = (0..ranks)
        .map(|rank| (0..count).map(|index| argument(rank, index)).collect())
        .collect::<Result<_, Error>>()?;
    if let Some(surplus) = recorded_outputs::surplus_argument(file, ranks, count) {
        let symbols: Vec<&str> = graph.symbols.values().map(|s| s.name.as_str()).collect();
        let advice = if symbols.is_empty() {
            String::new()
        } else {
            format!(
                " that are tensors; integer arguments are symbols ({}), whose sizes are set by name",
                symbols.join(", ")
            )
        };
        return Err(Error::format(file.path(), format!("{surplus}: the program has {takes}{advice}")));
    }
    Ok(arguments_by_rank)
}

/// The bindings that the shapes of recorded arguments imply.
fn solve_recorded_bindings(
    graph: &Graph,
    recorded: &[Vec<Arc<Tensor>>],
    file: &TensorFile,
) -> Result<SymbolBindings, Error> {
    let values: Vec<ValueId> = argument_inputs(graph).map(|i| i.value).collect();
    let mut solved: Option<SymbolBindings> = None;
    for (rank, tensors) in recorded.iter().enumerate() {
        let pairs: Vec<(ValueId, &Tensor)> =
            values.iter().copied().zip(tensors.iter().map(Arc::as_ref)).collect();
        let bindings = interp::solve_bindings(graph, &pairs)
            .map_err(|e| Error::format(file.path(), argument_error(graph, rank, e)))?;
        if let Some(first) = solved.as_ref().filter(|&b| *b != bindings) {
            return Err(Error::invalid_request(format!(
                "the recorded arguments of rank {rank} have other sizes than those of rank 0: {bindings:?} and {first:?}"
            )));
        }
        solved = Some(bindings);
    }
    Ok(solved.unwrap_or_default())
}

/// The bindings that the arguments imply, together with those that the caller set. Recorded outputs belong to one value of each
/// symbol, so no value is assumed.
fn complete_bindings(
    graph: &Graph,
    mut bindings: SymbolBindings,
    set: &[(SymbolId, i64)],
    file: &TensorFile,
) -> Result<SymbolBindings, Error> {
    set.iter().for_each(|&(s, v)| bindings.set(s, v));
    match graph.symbols.iter().find(|(id, _)| bindings.get(*id).is_none()) {
        Some((_, symbol)) => {
            let name = &symbol.name;
            Err(Error::format(
                file.path(),
                format!("no shape of a recorded argument gives a value for symbol {name}: set its size"),
            ))
        }
        None => Ok(bindings),
    }
}

/// The error of a recorded argument, by its name in the file.
fn argument_error(graph: &Graph, rank: usize, error: InterpError) -> String {
    let (input, expected, found) = match error {
        InterpError::InputDType { input, expected, found, .. } => {
            (input, expected.to_string(), found.to_string())
        }
        InterpError::InputShape { input, dims, found, .. } => (input, dims, format!("{found:?}")),
        other => return format!("rank{rank}.in: {other}"),
    };
    let index = argument_inputs(graph).position(|i| graph.value_name(i.value) == input).unwrap_or_default();
    format!("rank{rank}.in.{index} (%{input}): expected {expected}, found {found}")
}

/// The bindings if no recorded argument gives them: those that the caller set, otherwise a default.
fn default_bindings(graph: &Graph, set: &[(SymbolId, i64)], notes: &mut Vec<String>) -> SymbolBindings {
    let mut bindings = SymbolBindings::new();
    for (id, symbol) in graph.symbols.iter() {
        let value = match set.iter().rev().find(|(s, _)| *s == id) {
            Some(&(_, value)) => value,
            None => {
                let value = DEFAULT_EXTENT.clamp(symbol.min, symbol.max);
                notes.push(format!(
                    "{}={value}, the default: set symbol {} for another size",
                    symbol.name, symbol.name
                ));
                value
            }
        };
        bindings.set(id, value);
    }
    bindings
}

struct InputSources<'a> {
    graph: &'a Graph,
    weights: &'a Weights,
    tensors: Option<&'a TensorFile>,
    recorded: Option<&'a [Vec<Arc<Tensor>>]>,
    bindings: &'a SymbolBindings,
    seeds: SeededInputs<'a>,
}

impl InputSources<'_> {
    fn inputs_of_rank(&self, rank: u32, notes: &mut Vec<String>) -> Result<Vec<Arc<Tensor>>, Error> {
        let draw =
            |id| self.seeds.generate_input(id, rank).map_err(|e| Error::invalid_request(e.to_string()));
        let mut out = Vec::new();
        let mut argument = 0;
        for (index, input) in self.graph.inputs.iter() {
            let tensor = match input.kind {
                InputKind::Constant => {
                    let data = draw(index)?;
                    self.check_constant_matches(rank, input, &data)?;
                    data
                }
                InputKind::Argument => {
                    argument += 1;
                    match self.recorded {
                        Some(recorded) => recorded[rank as usize][argument - 1].clone(),
                        None => draw(index)?,
                    }
                }
                InputKind::Parameter => match self.find_parameter(rank, input)? {
                    Some(tensor) => tensor,
                    None => {
                        if rank == 0 {
                            notes.push(WEIGHTS_DRAWN.to_string());
                        }
                        draw(index)?
                    }
                },
            };
            self.check_type(rank, input, argument, &tensor)?;
            out.push(tensor);
        }
        Ok(out)
    }

    fn find_parameter(&self, rank: u32, input: &GraphInput) -> Result<Option<Arc<Tensor>>, Error> {
        find_parameter(self.graph, self.weights, self.tensors, rank, input, &|| self.describe_type(input))
    }

    /// Refuses a file that gives a rank another value for a constant of the program.
    fn check_constant_matches(&self, rank: u32, input: &GraphInput, data: &Tensor) -> Result<(), Error> {
        self.tensors.map_or(Ok(()), |file| check_constant_matches(file, rank, input, data))
    }

    fn describe_type(&self, input: &GraphInput) -> String {
        let ty = self.graph.ty(input.value);
        match ty.concrete_shape(self.bindings) {
            Some(shape) => format!("{}{shape:?}", ty.dtype),
            None => ty.dtype.to_string(),
        }
    }

    /// Checks dtype and shape against the input's type.
    fn check_type(
        &self,
        rank: u32,
        input: &GraphInput,
        argument: usize,
        tensor: &Tensor,
    ) -> Result<(), Error> {
        let ty = self.graph.ty(input.value);
        if tensor.dtype() == ty.dtype && ty.concrete_shape(self.bindings).as_deref() == Some(tensor.shape()) {
            return Ok(());
        }
        let name = match input.kind {
            InputKind::Argument => format!("rank{rank}.in.{}", argument.saturating_sub(1)),
            _ => format!("rank{rank}.w.{}", self.graph.checkpoint_name(input)),
        };
        let (expected, found) =
            (self.describe_type(input), format!("{}{:?}", tensor.dtype(), tensor.shape()));
        Err(Error::invalid_request(format!(
            "{name} (%{}): expected {expected}, found {found}",
            self.graph.value_name(input.value)
        )))
    }
}
