//! What `symmc run` says of the results.

use std::ops::Range;

use anyhow::Result;
use symmc::unstable::ir::interp::{self, Comparison, RoundingHistory, Spread, Tolerance};
use symmc::{Expected, Graph, Tensor};

use crate::args::Compare;
use crate::out::put;

/// The tolerances that the caller gives; the others are the defaults of each output.
#[derive(Clone, Copy, Debug)]
pub struct Tolerances {
    pub absolute: Option<f64>,
    pub relative: Option<f64>,
}

impl Tolerances {
    fn are_default(self) -> bool {
        self.absolute.is_none() && self.relative.is_none()
    }

    /// How far an output with this history may be from this one.
    fn of(self, history: &RoundingHistory, expected: &Tensor) -> Tolerance {
        if !expected.dtype().is_float() {
            return Tolerance::EXACT;
        }
        let default = Tolerance::of_history(history, expected);
        Tolerance {
            absolute: self.absolute.unwrap_or(default.absolute),
            relative: self.relative.unwrap_or(default.relative),
            ..default
        }
    }
}

/// The most elements that are printed one by one.
const SMALL: usize = 64;

/// The outputs for people: the elements of small ones, extremes and mean of others.
pub fn printed(graph: &Graph, ranks: Range<usize>, outputs: &[Vec<Tensor>]) -> String {
    let mut text = String::new();
    for (rank, outputs) in ranks.zip(outputs) {
        for (index, (output, tensor)) in graph.outputs.iter().zip(outputs).enumerate() {
            let (value, dtype, shape) = (graph.name_of(output.value), tensor.dtype(), tensor.shape());
            text += &format!("rank {rank} output {index} (%{value}): {dtype}{shape:?}");
            text += &match tensor.numel() {
                0..=SMALL => format!("\n  {}\n", format!("{tensor:#}").replace('\n', "\n  ")),
                _ => format!(", {}\n", summary(tensor)),
            };
        }
    }
    text
}

/// Extremes and mean of the finite elements, and how many are not.
fn summary(tensor: &Tensor) -> String {
    let (mut least, mut most, mut sum, mut finite) = (None, None, 0.0, 0usize);
    for i in 0..tensor.numel() {
        let x = tensor.get_f64(i);
        if !x.is_finite() {
            continue;
        }
        finite += 1;
        sum += x;
        if least.is_none_or(|at| x < tensor.get_f64(at)) {
            least = Some(i);
        }
        if most.is_none_or(|at| x > tensor.get_f64(at)) {
            most = Some(i);
        }
    }
    let others = tensor.numel() - finite;
    let others = if others == 0 { String::new() } else { format!(", {others} NaN or infinite") };
    match (least, most) {
        (Some(least), Some(most)) => {
            let (least, most) = (tensor.element_text(least), tensor.element_text(most));
            format!("min {least}, max {most}, mean {:.4e}{others}", sum / finite as f64)
        }
        _ => others.trim_start_matches(", ").to_string(),
    }
}

/// What outputs are compared with, and how.
pub struct Reference<'a> {
    pub with: Compare,
    /// By rank and output.
    pub expected: &'a Expected,
    /// By output.
    pub histories: &'a [RoundingHistory],
    pub tolerances: Tolerances,
    /// The outputs of the interpreter, by rank, with noise on every rounding, drawn from a seed.
    pub with_noise: &'a dyn Fn(u64) -> Result<Vec<Vec<Tensor>>>,
}

/// An output of a rank and what it is compared with.
struct ComparedOutput<'a> {
    rank: usize,
    index: usize,
    found: &'a Tensor,
    expected: &'a Tensor,
    tolerance: Tolerance,
    /// How far noise moves its elements, where that was asked for.
    spread: Option<Spread>,
}

impl ComparedOutput<'_> {
    fn compare(&self) -> Comparison {
        match &self.spread {
            Some(spread) => interp::compare_with_spread(self.found, self.expected, self.tolerance, spread),
            None => interp::compare(self.found, self.expected, self.tolerance),
        }
    }

    fn line(&self) -> String {
        let (c, tolerance) = (self.compare(), self.tolerance);
        match (c.agrees(), &c.type_mismatch) {
            (_, Some(what)) => format!("FAILED: {what}"),
            (false, None) => format!("FAILED: {c} (allowed {tolerance})"),
            (true, None) if c.is_equal() => c.to_string(),
            (true, None) => format!("{c} (allowed {tolerance})"),
        }
    }
}

/// Prints a line for each output of each rank; whether all agree.
pub fn report(
    graph: &Graph,
    ranks: Range<usize>,
    outputs: &[Vec<Tensor>],
    reference: &Reference<'_>,
) -> Result<bool> {
    let mut compared = Vec::new();
    for (rank, found) in ranks.zip(outputs) {
        let Some(expected) = reference.expected.get(rank) else { continue };
        let outputs = found.iter().zip(expected).zip(reference.histories).enumerate();
        compared.extend(outputs.filter_map(|(index, ((found, expected), history))| {
            // A state that an output replaces is not recorded.
            let expected = expected.as_deref()?;
            let tolerance = reference.tolerances.of(history, expected);
            Some(ComparedOutput { rank, index, found, expected, tolerance, spread: None })
        }));
    }
    // Tolerances that the caller states are kept as they are, and recorded outputs are not those of the interpreter.
    if reference.with == Compare::Interpreter && reference.tolerances.are_default() {
        measure_sensitivity(&mut compared, reference.with_noise)?;
    }
    let what =
        if reference.with == Compare::Interpreter { "the interpreter" } else { "the recorded outputs" };
    let mut text = format!("{}: compared with {what}\n", graph.name);
    for output in &compared {
        text.push_str(&format!("  rank {} output {}: {}\n", output.rank, output.index, output.line()));
    }
    put(&text)?;
    Ok(compared.iter().all(|output| output.compare().agrees()))
}

/// The most runs with noise.
const NOISY_RUNS: u64 = 8;
/// After this many runs with noise that explain no further element, there are no more.
const IDLE_RUNS: u64 = 2;

/// Where outputs differ by more than their tolerance, finds out how far noise on every rounding moves them. Each run with
/// noise is one of the interpreter, so there are none where everything agrees, and few where noise explains nothing.
fn measure_sensitivity(
    compared: &mut [ComparedOutput<'_>],
    with_noise: &dyn Fn(u64) -> Result<Vec<Vec<Tensor>>>,
) -> Result<()> {
    let beyond = |compared: &[ComparedOutput<'_>]| compared.iter().map(|o| o.compare().beyond).sum::<usize>();
    let mut left = beyond(compared);
    let mut idle = 0;
    for seed in 0..NOISY_RUNS {
        if left == 0 || idle == IDLE_RUNS {
            break;
        }
        let noisy = with_noise(seed)?;
        for output in compared.iter_mut() {
            let Some(noisy) = noisy.get(output.rank).and_then(|outputs| outputs.get(output.index)) else {
                continue;
            };
            output.spread.get_or_insert_with(|| Spread::none(output.expected)).widen(output.expected, noisy);
        }
        let now = beyond(compared);
        idle = if now < left { 0 } else { idle + 1 };
        left = now;
    }
    Ok(())
}
