//! What a run needs besides the plan: the values of the symbols, every rank's inputs, and the outputs that
//! are expected, if they are known.

use std::sync::Arc;

use symmc_control::Term;
use symmc_ir::interp::{self, Draw as RankDraw, InterpError, SeedConfig, Seeds};
use symmc_ir::message::listed;
use symmc_ir::{Bindings, Graph, Input, InputKind, SymbolId, Tensor, ValueId};

use crate::content::WeightContent;
use crate::error::{Error, ranks as ranks_text};
use crate::memory;
use crate::parameters::{expect_distinct_names, hold_constant, parameter};
use crate::program::Program;
use crate::recorded::{self, Expected, Recording, recording};
use crate::tensors::TensorFile;
use crate::weights::Weights;

/// The inputs of one run on all ranks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Workload {
    /// The values of the program's symbols.
    pub bindings: Bindings,
    /// One tensor for each rank and input.
    pub inputs: Vec<Vec<Arc<Tensor>>>,
    /// The expected outputs, if a file records them.
    pub expected: Option<Expected>,
    /// Why the outputs that a file records cannot be compared with, where it records some and `expected` has none.
    pub incomparable: Option<String>,
    /// What was drawn or assumed, for people.
    pub notes: Vec<String>,
    /// Where the inputs come from, by name: what ranks of one run must have alike.
    pub settings: Vec<Term>,
}

/// How inputs that no file gives are made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Draw {
    /// The seed; equal seeds give equal inputs on every machine.
    pub seed: u64,
    /// Draw the arguments even if a file records them.
    pub arguments: bool,
    /// Values of symbols by name (or by the name in the original file).
    pub symbols: Vec<(String, i64)>,
    /// Whether ranks get the same arguments. By default only those that no collective takes as operand.
    pub ranks: RankDraw,
}

impl Draw {
    /// Sets the seed.
    pub fn with_seed(self, seed: u64) -> Draw {
        Draw { seed, ..self }
    }

    /// Sets whether the arguments are drawn even if a file records them.
    pub fn with_arguments(self, arguments: bool) -> Draw {
        Draw { arguments, ..self }
    }

    /// Sets which drawn arguments differ by rank.
    pub fn with_ranks(self, ranks: RankDraw) -> Draw {
        Draw { ranks, ..self }
    }

    /// Sets the values of symbols by name.
    pub fn with_symbols(self, symbols: impl IntoIterator<Item = (impl Into<String>, i64)>) -> Draw {
        Draw { symbols: symbols.into_iter().map(|(name, value)| (name.into(), value)).collect(), ..self }
    }
}

/// A symbol that nothing fixes is this, clamped to its range.
const DEFAULT_EXTENT: i64 = 16;

impl Workload {
    /// Inputs of the caller's own: the values of the program's symbols, and for each rank one tensor for each input of
    /// the program, in its order. Whether they fit is asked when they run.
    pub fn new(bindings: Bindings, inputs: Vec<Vec<Arc<Tensor>>>) -> Self {
        let (notes, settings) = (Vec::new(), Vec::new());
        Workload { bindings, inputs, expected: None, incomparable: None, notes, settings }
    }

    /// Everything from a file of recorded tensors.
    ///
    /// # Errors
    /// See [`gather`](Self::gather); or the file records outputs that are not the program's.
    pub fn recorded(program: &Program, tensors: &TensorFile) -> Result<Self, Error> {
        let work = Workload::gather(&program.graph, &program.weights, Some(tensors), &Draw::default())?;
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
        draw: &Draw,
    ) -> Result<Self, Error> {
        let ranks = graph.ranks.ok_or_else(|| Error::request("the number of ranks is open"))?;
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
        let set = requested(graph, &draw.symbols)?;
        let given = given(graph, tensors, draw, ranks, &set)?;
        let (bindings, recorded, drawn) = match given {
            Given::Recorded(bindings, arguments) => (bindings, Some(arguments), None),
            Given::Drawn(why) => (chosen(graph, &set, &mut notes), None, Some(why)),
            Given::Nothing => (chosen(graph, &set, &mut notes), Some(vec![vec![]; ranks as usize]), None),
        };
        if tensors.is_none() || recorded.is_none() {
            // A file's weights are mapped.
            let held = |i: &Input| i.kind == InputKind::Argument || tensors.is_none();
            memory::check_room(graph, &bindings, held)?;
        }
        let config = SeedConfig { arguments: draw.ranks, ..SeedConfig::new(draw.seed) };
        let seeds = Seeds::new(graph, &bindings, config);
        if drawn.is_some() {
            notes.push(format!("arguments drawn from seed {}{}", draw.seed, differing(graph, &seeds)));
        }
        let recorded_arguments = recorded.as_deref();
        let sources =
            Sources { graph, weights, tensors, recorded: recorded_arguments, bindings: &bindings, seeds };
        let mut inputs = Vec::new();
        for rank in 0..ranks {
            inputs.push(sources.of_rank(rank, &mut notes)?);
        }
        notes.dedup();
        let Recording { expected, incomparable, note } = match tensors {
            Some(file) => recording(graph, weights, file, &bindings, drawn.as_deref())?,
            None => Recording::default(),
        };
        notes.extend(note);
        let mut settings = settings(tensors, draw, drawn.is_some(), &notes);
        let has_weight = |i| weights.of(0, ranks).is_some_and(|w| w.contains_key(graph.stored_name(i)));
        if graph.inputs.values().any(has_weight) {
            settings.push(Term::content("weights", Arc::new(WeightContent(weights.clone()))));
        }
        Ok(Workload { bindings, inputs, expected, incomparable, notes, settings })
    }
}

/// The names of the tensor file and of the seed, as far as inputs come from there.
fn settings(tensors: Option<&TensorFile>, draw: &Draw, arguments_drawn: bool, notes: &[String]) -> Vec<Term> {
    let file = tensors.map(|file| Term::content("tensors", Arc::new(file.content())));
    let drawn = arguments_drawn || notes.iter().any(|n| n == WEIGHTS_DRAWN);
    let mut terms: Vec<Term> = file.into_iter().collect();
    if drawn {
        terms.push(Term::text("seed", draw.seed.to_string()));
    }
    if arguments_drawn {
        terms.push(Term::text("draw", format!("{:?}", draw.ranks)));
    }
    terms
}

/// The most arguments that a note names.
const NAMED: usize = 8;

/// The arguments that differ by rank, as the end of a note.
fn differing(graph: &Graph, seeds: &Seeds<'_>) -> String {
    let arguments = graph.inputs.iter().filter(|(_, input)| input.kind == InputKind::Argument);
    let (differing, shared): (Vec<_>, Vec<_>) = arguments.partition(|(id, _)| seeds.differs_by_rank(*id));
    let names = differing.iter().map(|(_, input)| format!("%{}", graph.name_of(input.value)));
    match (differing.len(), shared.len()) {
        (0, _) => ", alike on all ranks".to_string(),
        (_, 0) => ", others on each rank".to_string(),
        _ => format!(", others on each rank for {}", listed(&names.collect::<Vec<_>>(), NAMED)),
    }
}

/// Noted where a parameter is drawn.
const WEIGHTS_DRAWN: &str = "weights drawn from the seed";

fn arguments(graph: &Graph) -> impl Iterator<Item = &Input> {
    graph.inputs.values().filter(|i| i.kind == InputKind::Argument)
}

/// The values of all symbols of a program, from those that are set by name.
///
/// # Errors
/// A name is unknown, a value is out of range, or a symbol has none.
pub fn bindings(graph: &Graph, set: &[(String, i64)]) -> Result<Bindings, Error> {
    let mut bindings = Bindings::new();
    requested(graph, set)?.into_iter().for_each(|(id, value)| bindings.set(id, value));
    match graph.symbols.iter().find(|(id, _)| bindings.get(*id).is_none()) {
        Some((_, symbol)) => Err(Error::request(format!("the symbol {} has no value: set one", symbol.name))),
        None => Ok(bindings),
    }
}

/// The symbols that the caller set, with their values in range.
fn requested(graph: &Graph, set: &[(String, i64)]) -> Result<Vec<(SymbolId, i64)>, Error> {
    set.iter()
        .map(|(name, value)| {
            let id = find_symbol(graph, name)?;
            let symbol = &graph.symbols[id];
            if let Some((_, other)) =
                set.iter().find(|(n, v)| v != value && find_symbol(graph, n).is_ok_and(|o| o == id))
            {
                return Err(Error::request(format!("{name} is set to both {value} and {other}")));
            }
            if (symbol.min..=symbol.max).contains(value) {
                Ok((id, *value))
            } else {
                let (min, max) = (symbol.min, symbol.max);
                Err(Error::request(format!("{name}={value} is out of range: expected {min} to {max}")))
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
        Error::request(format!("the program has no symbol {name}; it has: {known}"))
    })
}

/// Where the arguments of a run come from.
enum Given {
    /// The file, which implies these bindings.
    Recorded(Bindings, Vec<Vec<Arc<Tensor>>>),
    /// A seed; why not the file's.
    Drawn(String),
    /// The program takes none.
    Nothing,
}

fn given(
    graph: &Graph,
    tensors: Option<&TensorFile>,
    draw: &Draw,
    ranks: u32,
    set: &[(SymbolId, i64)],
) -> Result<Given, Error> {
    let count = arguments(graph).count();
    if count == 0 {
        return Ok(Given::Nothing);
    }
    if draw.arguments {
        return Ok(Given::Drawn("its outputs are not those of arguments that a seed draws".into()));
    }
    let Some(file) = tensors.filter(|f| f.has_inputs()) else {
        return Ok(Given::Drawn("the arguments of its outputs (rank<r>.in.<i>) are missing".into()));
    };
    let recorded = recorded_arguments(graph, file, ranks, count)?;
    let bindings = solve(graph, &recorded, file)?;
    let other = set.iter().find_map(|&(s, v)| Some((s, bindings.get(s).filter(|&found| found != v)?, v)));
    if let Some((symbol, found, wanted)) = other {
        let name = &graph.symbols[symbol].name;
        return Ok(Given::Drawn(format!("its outputs are those of {name}={found}, not of {name}={wanted}")));
    }
    Ok(Given::Recorded(completed(graph, bindings, set, file)?, recorded))
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
    if let Some(surplus) = recorded::surplus_argument(file, ranks, count) {
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
fn solve(graph: &Graph, recorded: &[Vec<Arc<Tensor>>], file: &TensorFile) -> Result<Bindings, Error> {
    let values: Vec<ValueId> = arguments(graph).map(|i| i.value).collect();
    let mut solved: Option<Bindings> = None;
    for (rank, tensors) in recorded.iter().enumerate() {
        let pairs: Vec<(ValueId, &Tensor)> =
            values.iter().copied().zip(tensors.iter().map(Arc::as_ref)).collect();
        let bindings = interp::solve_bindings(graph, &pairs)
            .map_err(|e| Error::format(file.path(), argument_error(graph, rank, e)))?;
        if let Some(first) = solved.as_ref().filter(|&b| *b != bindings) {
            return Err(Error::request(format!(
                "the recorded arguments of rank {rank} have other extents than those of rank 0: {bindings:?} and {first:?}"
            )));
        }
        solved = Some(bindings);
    }
    Ok(solved.unwrap_or_default())
}

/// What arguments imply and what the caller set. What was recorded is the outcome of one value of each symbol, so none
/// is assumed.
fn completed(
    graph: &Graph,
    mut bindings: Bindings,
    set: &[(SymbolId, i64)],
    file: &TensorFile,
) -> Result<Bindings, Error> {
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
    let index = arguments(graph).position(|i| graph.name_of(i.value) == input).unwrap_or_default();
    format!("rank{rank}.in.{index} (%{input}): expected {expected}, found {found}")
}

/// Bindings where no recorded argument decides: what the caller set, else a default.
fn chosen(graph: &Graph, set: &[(SymbolId, i64)], notes: &mut Vec<String>) -> Bindings {
    let mut bindings = Bindings::new();
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

struct Sources<'a> {
    graph: &'a Graph,
    weights: &'a Weights,
    tensors: Option<&'a TensorFile>,
    recorded: Option<&'a [Vec<Arc<Tensor>>]>,
    bindings: &'a Bindings,
    seeds: Seeds<'a>,
}

impl Sources<'_> {
    fn of_rank(&self, rank: u32, notes: &mut Vec<String>) -> Result<Vec<Arc<Tensor>>, Error> {
        let draw = |id| self.seeds.input(id, rank).map_err(|e| Error::request(e.to_string()));
        let mut out = Vec::new();
        let mut argument = 0;
        for (index, input) in self.graph.inputs.iter() {
            let tensor = match input.kind {
                InputKind::Constant => {
                    let data = draw(index)?;
                    self.hold_constant(rank, input, &data)?;
                    data
                }
                InputKind::Argument => {
                    argument += 1;
                    match self.recorded {
                        Some(recorded) => recorded[rank as usize][argument - 1].clone(),
                        None => draw(index)?,
                    }
                }
                InputKind::Parameter => match self.parameter(rank, input)? {
                    Some(tensor) => tensor,
                    None => {
                        if rank == 0 {
                            notes.push(WEIGHTS_DRAWN.to_string());
                        }
                        draw(index)?
                    }
                },
            };
            self.fits(rank, input, argument, &tensor)?;
            out.push(tensor);
        }
        Ok(out)
    }

    fn parameter(&self, rank: u32, input: &Input) -> Result<Option<Arc<Tensor>>, Error> {
        parameter(self.graph, self.weights, self.tensors, rank, input, &|| self.describe(input))
    }

    /// Refuses a file that gives a rank another value of what is a constant of the program.
    fn hold_constant(&self, rank: u32, input: &Input, data: &Tensor) -> Result<(), Error> {
        self.tensors.map_or(Ok(()), |file| hold_constant(file, rank, input, data))
    }

    fn describe(&self, input: &Input) -> String {
        let ty = self.graph.ty(input.value);
        match ty.concrete(self.bindings) {
            Some(shape) => format!("{}{shape:?}", ty.dtype),
            None => ty.dtype.to_string(),
        }
    }

    /// Checks dtype and shape against the input's type.
    fn fits(&self, rank: u32, input: &Input, argument: usize, tensor: &Tensor) -> Result<(), Error> {
        let ty = self.graph.ty(input.value);
        if tensor.dtype() == ty.dtype && ty.concrete(self.bindings).as_deref() == Some(tensor.shape()) {
            return Ok(());
        }
        let name = match input.kind {
            InputKind::Argument => format!("rank{rank}.in.{}", argument.saturating_sub(1)),
            _ => format!("rank{rank}.w.{}", self.graph.stored_name(input)),
        };
        let (expected, found) = (self.describe(input), format!("{}{:?}", tensor.dtype(), tensor.shape()));
        Err(Error::request(format!(
            "{name} (%{}): expected {expected}, found {found}",
            self.graph.name_of(input.value)
        )))
    }
}
