//! What `symmc run` says of the results.

use std::ops::Range;

use anyhow::Result;
use symmc::unstable::ir::interp::{self, Tolerance};
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
    /// How far an output may be from this one.
    fn of(self, expected: &Tensor) -> Tolerance {
        if !expected.dtype().is_float() {
            return Tolerance::EXACT;
        }
        let default = Tolerance::of(expected);
        Tolerance {
            absolute: self.absolute.unwrap_or(default.absolute),
            relative: self.relative.unwrap_or(default.relative),
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

/// Prints a line for each output of each rank; whether all agree.
pub fn report(
    graph: &Graph,
    with: Compare,
    ranks: Range<usize>,
    outputs: &[Vec<Tensor>],
    expected: &Expected,
    tolerances: Tolerances,
) -> Result<bool> {
    let what = if with == Compare::Interpreter { "the interpreter" } else { "the recorded outputs" };
    let mut text = format!("{}: compared with {what}\n", graph.name);
    let mut agreed = true;
    for (rank, found) in ranks.zip(outputs) {
        let Some(expected) = expected.get(rank) else { continue };
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            // A state that an output replaces is not recorded.
            let Some(expected) = expected else { continue };
            let tolerance = tolerances.of(expected);
            let c = interp::compare(found, expected, tolerance);
            agreed &= c.agrees();
            let line = match (c.agrees(), &c.type_mismatch) {
                (_, Some(what)) => format!("FAILED: {what}"),
                (false, None) => format!("FAILED: {c} (allowed {tolerance})"),
                (true, None) => format!("{c} (allowed {tolerance})"),
            };
            text.push_str(&format!("  rank {rank} output {index}: {line}\n"));
        }
    }
    put(&text)?;
    Ok(agreed)
}
