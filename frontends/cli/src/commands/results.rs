//! What `symmc run` says of the results.

use std::ops::Range;

use anyhow::Result;
use symmc::ir::interp::{self, Tolerance};
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
