//! Compares the names in a file of recorded tensors with a program: the expected outputs, and tensors that the run ignores.
//!
//! Outputs are compared, or the user gets the reason why they cannot be. No output is skipped silently. Tensors that the
//! program does not know are named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use symmc_ir::{Graph, GraphOutput, InputKind, OutputKind, SymbolBindings, Tensor};

use crate::error::Error;
use crate::tensors::TensorFile;
use crate::weights::Weights;

/// The most names that one note lists.
const NAMED: usize = 24;

/// The expected value of each rank's outputs; `None` for outputs whose value is not recorded.
pub type ExpectedOutputs = Vec<Vec<Option<Arc<Tensor>>>>;

/// The recorded outputs of a program.
#[derive(Debug, Default)]
pub(crate) struct RecordedOutputs {
    /// The expected outputs of each rank.
    pub expected: Option<ExpectedOutputs>,
    /// The reason why the file's outputs cannot be compared, if it has any.
    pub incomparable: Option<String>,
    /// A note that names tensors of the file which the run ignores.
    pub note: Option<String>,
}

/// The outputs that a file records for the run of `graph` under these bindings. `arguments` is the reason why the run has
/// other arguments than the file's, if it does.
///
/// # Errors
/// A recorded output has a dtype that symmc does not know.
pub(crate) fn read_recorded_outputs(
    graph: &Graph,
    weights: &Weights,
    file: &TensorFile,
    bindings: &SymbolBindings,
    arguments: Option<&str>,
) -> Result<RecordedOutputs, Error> {
    let names = RecordedNames::classify_names(graph, weights, file);
    let mut out = RecordedOutputs { note: names.unused_names_note(), ..RecordedOutputs::default() };
    let recorded = !names.outputs.is_empty() || !names.surplus.is_empty();
    // A name of another form may be meant for an output. It is ignored if the program returns none.
    if !recorded && (names.unrecognized.is_empty() || names.returned == 0 || arguments.is_some()) {
        return Ok(out);
    }
    match arguments.map(str::to_string).or_else(|| names.mismatch_reason(graph)) {
        Some(why) => out.incomparable = Some(why),
        None => match read_expected_outputs(graph, file, bindings)? {
            Ok(expected) => out.expected = Some(expected),
            Err(why) => out.incomparable = Some(why),
        },
    }
    Ok(out)
}

/// The names of a file's tensors, by their use in the program.
struct RecordedNames {
    /// The number of outputs that the program returns.
    returned: usize,
    ranks: u32,
    /// Outputs that the program returns.
    outputs: BTreeSet<String>,
    /// Outputs that it does not return.
    surplus: Vec<String>,
    /// Weights and arguments that it does not take.
    unused: Vec<String>,
    /// Names of another form.
    unrecognized: Vec<String>,
}

impl RecordedNames {
    fn classify_names(graph: &Graph, weights: &Weights, file: &TensorFile) -> RecordedNames {
        let ranks = graph.ranks.unwrap_or_default();
        let returned = graph.outputs.iter().filter(|o| is_returned(o)).count();
        let arguments = graph.inputs.values().filter(|i| i.kind == InputKind::Argument).count();
        let stored = graph.inputs.values().filter(|i| i.kind != InputKind::Argument);
        let sources: BTreeSet<&str> = stored.map(|i| graph.checkpoint_name(i)).collect();
        let is_weight =
            |name: &str| sources.contains(name) || weights.tied_names(name).any(|n| sources.contains(n));
        let mut out = RecordedNames {
            returned,
            ranks,
            outputs: BTreeSet::new(),
            surplus: vec![],
            unused: vec![],
            unrecognized: vec![],
        };
        for name in file.names() {
            let (kind, rest) = split_tensor_name(&name, ranks).unwrap_or_default();
            let (is_expected, list) = match (kind, parse_index(rest)) {
                ("out", Some(i)) if i < returned => {
                    out.outputs.insert(name);
                    continue;
                }
                ("out", Some(_)) => (false, &mut out.surplus),
                ("in", Some(i)) => (i < arguments, &mut out.unused),
                ("w", _) => (is_weight(rest), &mut out.unused),
                _ => (false, &mut out.unrecognized),
            };
            if !is_expected {
                list.push(name);
            }
        }
        [&mut out.surplus, &mut out.unused, &mut out.unrecognized].into_iter().for_each(|names| names.sort());
        out
    }

    /// A note that names the tensors without a use.
    fn unused_names_note(&self) -> Option<String> {
        let idle: Vec<&String> = self.unused.iter().chain(&self.unrecognized).collect();
        (!idle.is_empty()).then(|| {
            format!("the tensor file contains tensors that the program does not use: {}", format_names(&idle))
        })
    }

    /// The reason why the file's outputs are not those of the program, if they are not.
    fn mismatch_reason(&self, graph: &Graph) -> Option<String> {
        let expected =
            (0..self.ranks).flat_map(|r| (0..self.returned).map(move |i| format!("rank{r}.out.{i}")));
        if let Some(missing) = expected.into_iter().find(|name| !self.outputs.contains(name)) {
            let actual: Vec<&String> = self.surplus.iter().chain(&self.unrecognized).collect();
            let actual = if actual.is_empty() {
                "the file has other outputs".into()
            } else {
                format!("found {}", format_names(&actual))
            };
            return Some(format!("{missing} is missing; {actual}; expected names as rank<r>.out.<i>"));
        }
        let surplus: Vec<&String> = self.surplus.iter().collect();
        (!surplus.is_empty()).then(|| {
            let outputs =
                if self.returned == 1 { "1 output".into() } else { format!("{} outputs", self.returned) };
            format!("{} returns {outputs}, found {}", graph.name, format_names(&surplus))
        })
    }
}

/// The first argument in the file beyond the `count` that a program takes.
pub(crate) fn surplus_argument(file: &TensorFile, ranks: u32, count: usize) -> Option<String> {
    let surplus = |name: &String| match split_tensor_name(name, ranks) {
        Some(("in", rest)) => parse_index(rest).is_some_and(|i| i >= count),
        _ => false,
    };
    file.names().filter(surplus).min()
}

/// Splits `rank{r}.{kind}.{rest}` into kind and rest, if the program has rank `r`.
fn split_tensor_name(name: &str, ranks: u32) -> Option<(&str, &str)> {
    let (rank, rest) = name.strip_prefix("rank")?.split_once('.')?;
    parse_index(rank).filter(|&r| r < ranks as usize)?;
    rest.split_once('.')
}

/// Parses a number as these names write it, without leading zeros.
fn parse_index(text: &str) -> Option<usize> {
    let number: usize = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn is_returned(output: &GraphOutput) -> bool {
    output.kind == OutputKind::Returned
}

/// Names with the ranks that have them: `rank0..3.w.bias, rank1.w.scale`.
fn format_names(names: &[&String]) -> String {
    let mut ranks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut entries: Vec<String> = Vec::new();
    for name in names {
        let split = name.strip_prefix("rank").and_then(|n| n.split_once('.'));
        match split.and_then(|(rank, rest)| Some((parse_index(rank)?, rest))) {
            Some((rank, rest)) => ranks.entry(rest).or_default().push(rank),
            None => entries.push((*name).clone()),
        }
    }
    for (rest, mut ranks_of_name) in ranks {
        ranks_of_name.sort_unstable();
        match (ranks_of_name.first(), ranks_of_name.last()) {
            (Some(first), Some(last)) if last - first + 1 == ranks_of_name.len() && first != last => {
                entries.push(format!("rank{first}..{last}.{rest}"));
            }
            _ => entries.extend(ranks_of_name.iter().map(|r| format!("rank{r}.{rest}"))),
        }
    }
    let omitted = entries.len().saturating_sub(NAMED);
    entries.truncate(NAMED);
    if omitted > 0 {
        entries.push(format!("and {omitted} more"));
    }
    entries.join(", ")
}

/// The recorded value of each output, or the reason why one does not fit. The file numbers returned outputs only.
fn read_expected_outputs(
    graph: &Graph,
    file: &TensorFile,
    bindings: &SymbolBindings,
) -> Result<Result<ExpectedOutputs, String>, Error> {
    let mut outputs_by_rank = ExpectedOutputs::new();
    for rank in 0..graph.ranks.unwrap_or_default() {
        let mut of_rank: Vec<Option<Arc<Tensor>>> = Vec::new();
        let mut returned = 0..;
        for (position, output) in graph.outputs.iter().enumerate() {
            if !is_returned(output) {
                of_rank.push(None);
                continue;
            }
            let name = format!("rank{rank}.out.{}", returned.next().unwrap_or_default());
            let Some(tensor) = file.get(&name)? else { return Ok(Err(format!("{name} is missing"))) };
            let ty = graph.ty(output.value);
            let shape = ty.concrete_shape(bindings);
            let is_counted = |axis: usize| graph.output_lengths(position).any(|(counted, _)| counted == axis);
            let has_extents = |extents: &[usize]| {
                let mut axes = extents.iter().zip(tensor.shape()).enumerate();
                extents.len() == tensor.shape().len()
                    && axes
                        .all(|(axis, (extent, found))| found == extent || found < extent && is_counted(axis))
            };
            if tensor.dtype() != ty.dtype || shape.as_deref().is_some_and(|extents| !has_extents(extents)) {
                let value = graph.value_name(output.value);
                let wanted = shape.map_or_else(String::new, |s| format!("{s:?}"));
                return Ok(Err(format!(
                    "{name} (%{value}): expected {}{wanted}, found {}{:?}",
                    ty.dtype,
                    tensor.dtype(),
                    tensor.shape()
                )));
            }
            of_rank.push(Some(tensor));
        }
        outputs_by_rank.push(of_rank);
    }
    Ok(Ok(outputs_by_rank))
}
