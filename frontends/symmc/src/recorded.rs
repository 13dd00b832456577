//! What a file of recorded tensors says of a run's outputs, and which of its tensors the run has no use for.
//!
//! Outputs are compared, or there is a reason why they cannot be: none is passed over in silence. A tensor that the
//! program does not know is named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use symmc_ir::{Bindings, Graph, InputKind, Output, OutputKind, Tensor};

use crate::error::Error;
use crate::tensors::TensorFile;
use crate::weights::Weights;

/// The most names that one note lists.
const NAMED: usize = 24;

/// The expected value of each rank's outputs, where it is known.
pub type Expected = Vec<Vec<Option<Arc<Tensor>>>>;

/// The recorded outputs of a program.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// What each rank's outputs should be.
    pub expected: Option<Expected>,
    /// Why the file's outputs cannot be compared with, if it has any.
    pub incomparable: Option<String>,
    /// What the file has besides.
    pub note: Option<String>,
}

/// What the file records for the run of `graph` under these bindings. `arguments` is why the run has other
/// arguments than the file's, where it has.
///
/// # Errors
/// A recorded output has a dtype that symmc does not know.
pub(crate) fn recording(
    graph: &Graph,
    weights: &Weights,
    file: &TensorFile,
    bindings: &Bindings,
    arguments: Option<&str>,
) -> Result<Recording, Error> {
    let names = Names::of(graph, weights, file);
    let mut out = Recording { note: names.note(), ..Recording::default() };
    let recorded = !names.outputs.is_empty() || !names.surplus.is_empty();
    // A name of another form may be meant for an output, unless all outputs are there.
    if !recorded && (names.strange.is_empty() || names.returned == 0 || arguments.is_some()) {
        return Ok(out);
    }
    match arguments.map(str::to_string).or_else(|| names.incomplete(graph)) {
        Some(why) => out.incomparable = Some(why),
        None => match expected(graph, file, bindings)? {
            Ok(expected) => out.expected = Some(expected),
            Err(why) => out.incomparable = Some(why),
        },
    }
    Ok(out)
}

/// The names of a file's tensors, by what the program has for them.
struct Names {
    /// The number of outputs that the program returns.
    returned: usize,
    ranks: u32,
    /// Outputs that the program returns.
    outputs: BTreeSet<String>,
    /// Outputs that it does not return.
    surplus: Vec<String>,
    /// Weights and arguments that it does not take.
    idle: Vec<String>,
    /// Names of another form.
    strange: Vec<String>,
}

impl Names {
    fn of(graph: &Graph, weights: &Weights, file: &TensorFile) -> Names {
        let ranks = graph.ranks.unwrap_or_default();
        let returned = graph.outputs.iter().filter(|o| returns(o)).count();
        let arguments = graph.inputs.values().filter(|i| i.kind == InputKind::Argument).count();
        let taken = graph.inputs.values().filter(|i| i.kind != InputKind::Argument);
        let sources: BTreeSet<&str> = taken.map(|i| graph.stored_name(i)).collect();
        let is_weight =
            |name: &str| sources.contains(name) || weights.tied(name).any(|n| sources.contains(n));
        let mut out = Names {
            returned,
            ranks,
            outputs: BTreeSet::new(),
            surplus: vec![],
            idle: vec![],
            strange: vec![],
        };
        for name in file.names() {
            let (kind, rest) = parts(&name, ranks).unwrap_or_default();
            let (known, list) = match (kind, number(rest)) {
                ("out", Some(i)) if i < returned => {
                    out.outputs.insert(name);
                    continue;
                }
                ("out", Some(_)) => (false, &mut out.surplus),
                ("in", Some(i)) => (i < arguments, &mut out.idle),
                ("w", _) => (is_weight(rest), &mut out.idle),
                _ => (false, &mut out.strange),
            };
            if !known {
                list.push(name);
            }
        }
        [&mut out.surplus, &mut out.idle, &mut out.strange].into_iter().for_each(|names| names.sort());
        out
    }

    /// Names of tensors that nothing uses, for people.
    fn note(&self) -> Option<String> {
        let idle: Vec<&String> = self.idle.iter().chain(&self.strange).collect();
        (!idle.is_empty()).then(|| format!("the tensor file has more than the program uses: {}", list(&idle)))
    }

    /// Why the file's outputs are not those of the program.
    fn incomplete(&self, graph: &Graph) -> Option<String> {
        let all = (0..self.ranks).flat_map(|r| (0..self.returned).map(move |i| format!("rank{r}.out.{i}")));
        if let Some(missing) = all.into_iter().find(|name| !self.outputs.contains(name)) {
            let found: Vec<&String> = self.surplus.iter().chain(&self.strange).collect();
            let found = match found.is_empty() {
                true => "the file has other outputs".into(),
                false => format!("found {}", list(&found)),
            };
            return Some(format!("{missing} is missing; {found}; expected names as rank<r>.out.<i>"));
        }
        let surplus: Vec<&String> = self.surplus.iter().collect();
        (!surplus.is_empty()).then(|| {
            let outputs =
                if self.returned == 1 { "1 output".into() } else { format!("{} outputs", self.returned) };
            format!("{} returns {outputs}, found {}", graph.name, list(&surplus))
        })
    }
}

/// The first argument in the file beyond the `count` that a program takes.
pub(crate) fn surplus_argument(file: &TensorFile, ranks: u32, count: usize) -> Option<String> {
    let surplus = |name: &String| match parts(name, ranks) {
        Some(("in", rest)) => number(rest).is_some_and(|i| i >= count),
        _ => false,
    };
    file.names().filter(surplus).min()
}

/// `rank{r}.{kind}.{rest}` of a rank that there is, as kind and rest.
fn parts(name: &str, ranks: u32) -> Option<(&str, &str)> {
    let (rank, rest) = name.strip_prefix("rank")?.split_once('.')?;
    number(rank).filter(|&r| r < ranks as usize)?;
    rest.split_once('.')
}

/// A number as these names write it, without zeros in front.
fn number(text: &str) -> Option<usize> {
    let number: usize = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn returns(output: &Output) -> bool {
    output.kind == OutputKind::Returned
}

/// Names with the ranks that have them: `rank0..3.w.bias, rank1.w.scale`.
fn list(names: &[&String]) -> String {
    let mut ranks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut others: Vec<String> = Vec::new();
    for name in names {
        let split = name.strip_prefix("rank").and_then(|n| n.split_once('.'));
        match split.and_then(|(rank, rest)| Some((number(rank)?, rest))) {
            Some((rank, rest)) => ranks.entry(rest).or_default().push(rank),
            None => others.push((*name).clone()),
        }
    }
    for (rest, mut of) in ranks {
        of.sort_unstable();
        match (of.first(), of.last()) {
            (Some(first), Some(last)) if last - first + 1 == of.len() && first != last => {
                others.push(format!("rank{first}..{last}.{rest}"));
            }
            _ => others.extend(of.iter().map(|r| format!("rank{r}.{rest}"))),
        }
    }
    let more = others.len().saturating_sub(NAMED);
    others.truncate(NAMED);
    if more > 0 {
        others.push(format!("and {more} more"));
    }
    others.join(", ")
}

/// The recorded value of each output, or what does not fit; the file counts the returned ones alone.
fn expected(
    graph: &Graph,
    file: &TensorFile,
    bindings: &Bindings,
) -> Result<Result<Expected, String>, Error> {
    let mut all = Expected::new();
    for rank in 0..graph.ranks.unwrap_or_default() {
        let mut of_rank: Vec<Option<Arc<Tensor>>> = Vec::new();
        let mut returned = 0..;
        for output in &graph.outputs {
            if !returns(output) {
                of_rank.push(None);
                continue;
            }
            let name = format!("rank{rank}.out.{}", returned.next().unwrap_or_default());
            let Some(tensor) = file.get(&name)? else { return Ok(Err(format!("{name} is missing"))) };
            let ty = graph.ty(output.value);
            let shape = ty.concrete(bindings);
            if tensor.dtype() != ty.dtype || shape.as_deref().is_some_and(|s| s != tensor.shape()) {
                let value = graph.name_of(output.value);
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
        all.push(of_rank);
    }
    Ok(Ok(all))
}
