//! What a run needs besides the plan: the values of the symbols, every rank's inputs, and the outputs that
//! are expected, if they are known.

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
    /// Why the outputs that a file records cannot be compared with, where it records some and `expected` has none.
    pub incomparable: Option<String>,
    /// What was drawn or assumed, for people.
    pub notes: Vec<String>,
    /// Where the inputs come from, by name: what ranks of one run must have alike.
    pub settings: Vec<JoinTerm>,
}

/// How inputs that no file gives are made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DrawConfig {
    /// The seed; equal seeds give equal inputs on every machine.
    pub seed: u64,
    /// Draw the arguments even if a file records them.
    pub arguments: bool,
    /// Values of symbols by name (or by the name in the original file).
    pub symbols: Vec<(String, i64)>,
    /// Whether ranks get the same arguments. By default only those that no collective takes as operand.
    pub ranks: RankDraw,
}

impl DrawConfig {
    /// Sets the seed.
    pub fn with_seed(self, seed: u64) -> DrawConfig {
        DrawConfig { seed, ..self }
    }

    /// Sets whether the arguments are drawn even if a file records them.
    pub fn with_arguments(self, arguments: bool) -> DrawConfig {
        DrawConfig { arguments, ..self }
    }

    /// Sets which drawn arguments differ by rank.
    pub fn with_ranks(self, ranks: RankDraw) -> DrawConfig {
        DrawConfig { ranks, ..self }
    }

    /// Sets the values of symbols by name.
    pub fn with_symbols(self, symbols: impl IntoIterator<Item = (impl Into<String>, i64)>) -> DrawConfig {
        DrawConfig {
            symbols: symbols.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            ..self
        }
    }
}

/// A symbol that nothing fixes is this, clamped to its range.
const DEFAULT_EXTENT: i64 = 16;

impl Workload {
    /// Inputs of the caller's own: the values of the program's symbols, and for each rank one tensor for each input of
    /// the program, in its order. Whether they fit is asked when they run.
    pub fn new(bindings: SymbolBindings, inputs: Vec<Vec<Arc<Tensor>>>) -> Self {
        let (notes, settings) = (Vec::new(), Vec::new());
        Workload { bindings, inputs, expected: None, incomparable: None, notes, settings }
    }

    /// Everything from a file of recorded tensors.
    ///
    /// # Errors
    /// See [`gather`](Self::gather); or the file records outputs that are not the program's.
    pub fn recorded(program: &Program, tensors: &TensorFile) -> Result<Self, Error> {
        let work = Workload::gather(&program.graph, &program.weights, Some(tensors), &DrawConfig::default())?;
        match work.incomparable {
            Some(why) => Err(Error::format(tensors.path(), why)),
            None => Ok(work),
        }
    }

    /// Collects the inputs of every rank of `graph`: constants from the program; parameters from `tensors`
    /// where it has them or a tensor tied to them, else from `weights` where these are of all ranks or buffers, else, without a file, drawn; arguments from `tensors` where
    /// it records them and nothing asks for other ones, else drawn.
    ///
    /// # Errors
    /// A weight or argument is missing or has the wrong dtype or shape, a symbol is unknown or out of its
    /// range or told by nothing, or the file is for another number of ranks or another number of arguments.
    pub fn gather(
        graph: &Graph,
        weights: &Weights,
        tensors: Option<&TensorFile>,
        draw: &DrawConfig,
    ) -> Result<Self, Error> {
        let ranks = graph.ranks.ok_or_else(|| Error::invalid_request("the number of ranks is open"))?;
        if let Some(file) = tensors.filter(|f| f.ranks() != ranks) {
            let found = file.ranks();
            return Err(Error::format(
                file.path(),
                format!("the program runs on {}, the file is for {found}", ranks_text(ranks)),
            ));
        }
        if tensors.is_some() {
            expect_distinct_names(graph)?;
        }
        let mut notes = Vec::new();
        let set = resolve_set_symbols(graph, &draw.symbols)?;
        let given = find_argument_source(graph, tensors, draw, ranks, &set)?;
        let (bindings, recorded, drawn) = match given {
            ArgumentSource::Recorded(bindings, arguments) => (bindings, Some(arguments), None),
            ArgumentSource::Drawn(why) => (default_bindings(graph, &set, &mut notes), None, Some(why)),
            ArgumentSource::Nothing => {
                (default_bindings(graph, &set, &mut notes), Some(vec![vec![]; ranks as usize]), None)
            }
        };
        if tensors.is_none() || recorded.is_none() {
            // A file's weights are mapped.
            let held = |i: &GraphInput| i.kind == InputKind::Argument || tensors.is_none();
            memory::check_available_memory(graph, &bindings, held)?;
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

/// The names of the tensor file and of the seed, as far as inputs come from there.
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

/// The arguments that differ by rank, as the end of a note.
fn describe_differing(graph: &Graph, seeds: &SeededInputs<'_>) -> String {
    let arguments = graph.inputs.iter().filter(|(_, input)| input.kind == InputKind::Argument);
    let (differing, shared): (Vec<_>, Vec<_>) = arguments.partition(|(id, _)| seeds.differs_by_rank(*id));
    let names = differing.iter().map(|(_, input)| format!("%{}", graph.value_name(input.value)));
    match (differing.len(), shared.len()) {
        (0, _) => ", alike on all ranks".to_string(),
        (_, 0) => ", others on each rank".to_string(),
        _ => format!(", others on each rank for {}", list_names(&names.collect::<Vec<_>>(), NAMED)),
    }
}

/// Noted where a parameter is drawn.
const WEIGHTS_DRAWN: &str = "weights drawn from the seed";

fn argument_inputs(graph: &Graph) -> impl Iterator<Item = &GraphInput> {
    graph.inputs.values().filter(|i| i.kind == InputKind::Argument)
}

/// The values of all symbols of a program, from those that are set by name.
///
/// # Errors
/// A name is unknown, a value is out of range, or a symbol has none.
pub fn resolve_bindings(graph: &Graph, set: &[(String, i64)]) -> Result<SymbolBindings, Error> {
    let mut bindings = SymbolBindings::new();
    resolve_set_symbols(graph, set)?.into_iter().for_each(|(id, value)| bindings.set(id, value));
    match graph.symbols.iter().find(|(id, _)| bindings.get(*id).is_none()) {
        Some((_, symbol)) => {
            Err(Error::invalid_request(format!("the symbol {} has no value: set one", symbol.name)))
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
/// There is none; the message lists those there are.
pub(crate) fn find_symbol(graph: &Graph, name: &str) -> Result<SymbolId, Error> {
    let found = graph
        .symbols
        .iter()
        .find(|(_, s)| s.name == name)
        .or_else(|| graph.symbols.iter().find(|(_, s)| s.alias.as_deref() == Some(name)));
    found.map(|(id, _)| id).ok_or_else(|| {
        let known: Vec<&str> = graph.symbols.values().map(|s| s.name.as_str()).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        Error::invalid_request(format!("the program has no symbol {name}; it has: {known}"))
    })
}

/// Where the arguments of a run come from.
enum ArgumentSource {
    /// The file, which implies these bindings.
    Recorded(SymbolBindings, Vec<Vec<Arc<Tensor>>>),
    /// A seed; why not the file's.
    Drawn(String),
    /// The program takes none.
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
        return Ok(ArgumentSource::Drawn("its outputs are not those of arguments that a seed draws".into()));
    }
    let Some(file) = tensors.filter(|f| f.has_inputs()) else {
        return Ok(ArgumentSource::Drawn("the arguments of its outputs (rank<r>.in.<i>) are missing".into()));
    };
    let recorded = recorded_arguments(graph, file, ranks, count)?;
    let bindings = solve_recorded_bindings(graph, &recorded, file)?;
    let other = set.iter().find_map(|&(s, v)| Some((s, bindings.get(s).filter(|&found| found != v)?, v)));
    if let Some((symbol, found, wanted)) = other {
        let name = &graph.symbols[symbol].name;
        return Ok(ArgumentSource::Drawn(format!(
            "its outputs are those of {name}={found}, not of {name}={wanted}"
        )));
    }
    Ok(ArgumentSource::Recorded(complete_bindings(graph, bindings, set, file)?, recorded))
}

/// Recorded arguments of all ranks, which are those of the program and no more.
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
    let all: Vec<Vec<_>> = (0..ranks)
        .map(|rank| (0..count).map(|index| argument(rank, index)).collect())
        .collect::<Result<_, Error>>()?;
    if let Some(surplus) = recorded_outputs::surplus_argument(file, ranks, count) {
        let symbols: Vec<&str> = graph.symbols.values().map(|s| s.name.as_str()).collect();
        let advice = match symbols.is_empty() {
            true => String::new(),
            false => format!(
                " that are tensors; integer ones are symbols ({}), set with --set",
                symbols.join(", ")
            ),
        };
        return Err(Error::format(file.path(), format!("{surplus}: the program has {takes}{advice}")));
    }
    Ok(all)
}

/// The bindings that recorded arguments imply.
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
                "the recorded arguments of rank {rank} have other extents than those of rank 0: {bindings:?} and {first:?}"
            )));
        }
        solved = Some(bindings);
    }
    Ok(solved.unwrap_or_default())
}

/// What arguments imply and what the caller set. What was recorded is the outcome of one value of each symbol, so none
/// is assumed.
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
                format!("no recorded argument has an extent that tells {name} (set it with --set {name}=N)"),
            ))
        }
        None => Ok(bindings),
    }
}

/// What is wrong with a recorded argument, by the name it has in the file.
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

/// Bindings where no recorded argument decides: what the caller set, else a default.
fn default_bindings(graph: &Graph, set: &[(SymbolId, i64)], notes: &mut Vec<String>) -> SymbolBindings {
    let mut bindings = SymbolBindings::new();
    for (id, symbol) in graph.symbols.iter() {
        let value = match set.iter().rev().find(|(s, _)| *s == id) {
            Some(&(_, value)) => value,
            None => {
                let value = DEFAULT_EXTENT.clamp(symbol.min, symbol.max);
                notes.push(format!("{}={value} (set it with --set {}=N)", symbol.name, symbol.name));
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

    /// Refuses a file that gives a rank another value of what is a constant of the program.
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
