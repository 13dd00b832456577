//! The outputs of `symmc run`: how they are printed, and how they are compared with expected ones.

use std::ops::Range;

use anyhow::Result;
use symmc::unstable::ir::OutputKind;
use symmc::unstable::ir::interp::{self, NoiseSpread, RoundingHistory, TensorComparison, Tolerance};
use symmc::{ExpectedOutputs, Graph, Tensor};

use crate::args::CompareMode;

/// The tolerances of the command line. Missing ones are the defaults of each output.
#[derive(Clone, Copy, Debug)]
pub struct Tolerances {
    pub absolute: Option<f64>,
    pub relative: Option<f64>,
}

impl Tolerances {
    fn are_default(self) -> bool {
        self.absolute.is_none() && self.relative.is_none()
    }

    /// The tolerance of an output with this rounding history.
    fn tolerance_for(self, history: &RoundingHistory, expected: &Tensor) -> Tolerance {
        if !expected.dtype().is_float() {
            return Tolerance::EXACT;
        }
        let default = Tolerance::for_history(history, expected);
        Tolerance {
            absolute: self.absolute.unwrap_or(default.absolute),
            relative: self.relative.unwrap_or(default.relative),
            ..default
        }
    }
}

/// The most elements that are printed one by one.
const SMALL: usize = 64;

/// The outputs as text: all elements of small ones; minimum, maximum and mean of others.
pub fn format_outputs(graph: &Graph, ranks: Range<usize>, outputs: &[Vec<Tensor>]) -> String {
    let mut text = String::new();
    for (rank, outputs) in ranks.zip(outputs) {
        for (index, (output, tensor)) in graph.outputs.iter().zip(outputs).enumerate() {
            if matches!(output.kind, OutputKind::Length { .. }) {
                continue;
            }
            let value = graph.value_name(output.value);
            let dtype = tensor.dtype();
            let shape = tensor.shape();
            text += &format!("rank {rank} output {index} (%{value}): {dtype}{shape:?}");
            text += &match tensor.numel() {
                0..=SMALL => format!("\n  {}\n", format!("{tensor:#}").replace('\n', "\n  ")),
                _ => format!(", {}\n", summarize_tensor(tensor)),
            };
        }
    }
    text
}

/// Minimum, maximum and mean of the finite elements, and the number of other elements.
fn summarize_tensor(tensor: &Tensor) -> String {
    let mut min_index = None;
    let mut max_index = None;
    let mut sum = 0.0;
    let mut finite = 0usize;
    for i in 0..tensor.numel() {
        let x = tensor.get_f64(i);
        if !x.is_finite() {
            continue;
        }
        finite += 1;
        sum += x;
        if min_index.is_none_or(|index| x < tensor.get_f64(index)) {
            min_index = Some(i);
        }
        if max_index.is_none_or(|index| x > tensor.get_f64(index)) {
            max_index = Some(i);
        }
    }
    let nonfinite = tensor.numel() - finite;
    let nonfinite = if nonfinite == 0 { String::new() } else { format!(", {nonfinite} NaN or infinite") };
    match (min_index, max_index) {
        (Some(min_index), Some(max_index)) => {
            let (min, max) = (tensor.element_text(min_index), tensor.element_text(max_index));
            format!("min {min}, max {max}, mean {:.4e}{nonfinite}", sum / finite as f64)
        }
        _ => nonfinite.trim_start_matches(", ").to_string(),
    }
}

pub struct ReferenceOutputs<'a> {
    pub with: CompareMode,
    /// The expected outputs, by rank and output.
    pub expected: &'a ExpectedOutputs,
    /// The rounding histories, by output.
    pub histories: &'a [RoundingHistory],
    pub tolerances: Tolerances,
    /// Runs the interpreter with random noise on every rounding, from a seed. Returns the outputs by rank.
    pub with_noise: &'a dyn Fn(u64) -> Result<Vec<Vec<Tensor>>>,
}

struct ComparedOutput<'a> {
    rank: usize,
    index: usize,
    found: &'a Tensor,
    expected: &'a Tensor,
    tolerance: Tolerance,
    /// The widest tolerance that runs with noise may lead to.
    limit: Tolerance,
    /// How far noise moves the elements that were beyond the tolerance; `None` if there are no such elements.
    spread: Option<NoiseSpread>,
}

impl ComparedOutput<'_> {
    fn compare(&self) -> TensorComparison {
        match &self.spread {
            Some(spread) => interp::compare_with_spread(self.found, self.expected, self.tolerance, spread),
            None => interp::compare(self.found, self.expected, self.tolerance),
        }
    }

    /// Widens the tolerance and the spread by the output of one run with noise.
    fn widen_by_noise(&mut self, noisy: &Tensor) {
        if let Some(spread) = &mut self.spread {
            self.tolerance = self.tolerance.widened_by_noise(self.expected, noisy, self.limit);
            spread.widen(self.expected, noisy);
        }
    }

    fn count_unexplained(&self) -> usize {
        let Some(spread) = &self.spread else { return 0 };
        interp::count_unexplained(spread, self.found, self.expected, self.tolerance)
    }

    fn comparison_line(&self, c: &TensorComparison) -> String {
        let tolerance = self.tolerance;
        match (c.agrees(), &c.type_mismatch) {
            (_, Some(reason)) => format!("FAILED: {reason}"),
            (false, None) => format!("FAILED: {c} (allowed {tolerance})"),
            (true, None) if c.is_equal() => c.to_string(),
            (true, None) => format!("{c} (allowed {tolerance})"),
        }
    }
}

/// The comparison of the outputs of all ranks.
pub struct ComparisonReport {
    /// A line for each output of each rank.
    pub text: String,
    /// Whether all outputs agree.
    pub agrees: bool,
}

/// Compares each output of each rank with the expected one.
pub fn compare_outputs(
    graph: &Graph,
    ranks: Range<usize>,
    outputs: &[Vec<Tensor>],
    reference: &ReferenceOutputs<'_>,
) -> Result<ComparisonReport> {
    // Noise only widens default tolerances, and only the interpreter can run with noise.
    let has_noise = reference.with == CompareMode::Interpreter && reference.tolerances.are_default();
    let mut compared = Vec::new();
    for (rank, actual) in ranks.zip(outputs) {
        let Some(expected) = reference.expected.get(rank) else { continue };
        let outputs = actual.iter().zip(expected).zip(reference.histories).enumerate();
        compared.extend(outputs.filter_map(|(index, ((found, expected), history))| {
            // Outputs that replace an input are not recorded.
            let expected = expected.as_deref()?;
            let limit = reference.tolerances.tolerance_for(history, expected);
            let tolerance = if has_noise { Tolerance::for_stored_type(history, expected) } else { limit };
            Some(ComparedOutput { rank, index, found, expected, tolerance, limit, spread: None })
        }));
    }
    if has_noise {
        measure_sensitivity(&mut compared, reference.with_noise)?;
    }
    let reference_name =
        if reference.with == CompareMode::Interpreter { "the interpreter" } else { "the recorded outputs" };
    let mut text = format!("{}: compared with {reference_name}\n", graph.name);
    let mut agrees = true;
    for output in &compared {
        let comparison = output.compare();
        agrees &= comparison.agrees();
        let line = output.comparison_line(&comparison);
        text.push_str(&format!("  rank {} output {}: {line}\n", output.rank, output.index));
    }
    Ok(ComparisonReport { text, agrees })
}

const NOISY_RUNS: u64 = 8;
/// The search stops after this many runs with noise in a row that explain no further element. One run is not enough: where
/// sums leave the range of their type, runs with different seeds give different infinities.
const IDLE_RUNS: u64 = 4;

/// Measures how far noise on every rounding moves the outputs that differ by more than their tolerance. Each run with noise
/// is a run of the interpreter. So there are no runs if all outputs agree, and few if noise explains nothing. Elements
/// within the tolerance are not examined again.
fn measure_sensitivity(
    compared: &mut [ComparedOutput<'_>],
    with_noise: &dyn Fn(u64) -> Result<Vec<Vec<Tensor>>>,
) -> Result<()> {
    for output in compared.iter_mut() {
        let spread = interp::spread_of_beyond(output.found, output.expected, output.tolerance);
        output.spread = Some(spread).filter(|spread| spread.elements().next().is_some());
    }
    let mut unexplained = count_all_unexplained(compared);
    let mut idle = 0;
    for seed in 0..NOISY_RUNS {
        if unexplained == 0 || idle == IDLE_RUNS {
            break;
        }
        let noisy = with_noise(seed)?;
        for output in compared.iter_mut() {
            let noisy = noisy.get(output.rank).and_then(|outputs| outputs.get(output.index));
            // Noise may change the number of elements of an output.
            if let Some(noisy) = noisy.filter(|noisy| noisy.shape() == output.expected.shape()) {
                output.widen_by_noise(noisy);
            }
        }
        let now = count_all_unexplained(compared);
        idle = if now < unexplained { 0 } else { idle + 1 };
        unexplained = now;
    }
    Ok(())
}

fn count_all_unexplained(compared: &[ComparedOutput<'_>]) -> usize {
    compared.iter().map(|output| output.count_unexplained()).sum()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use symmc::unstable::ir::text;
    use symmc::{DType, NumericsClass};

    use super::*;

    const PROGRAM: &str = "program \"p\" ranks 1\narg %x: f32[2]\n%y: f32[2] = exp %x\nreturn %y\n";

    fn f32s(elements: [f64; 2]) -> Tensor {
        Tensor::from_f64(DType::F32, vec![2], &elements).expect("two elements")
    }

    /// Compares `found` with an expected output of ones, where runs with noise give `noisy`. Returns whether it passes, and
    /// the number of runs with noise.
    fn passes(found: [f64; 2], noisy: [f64; 2], history: RoundingHistory) -> (bool, u64) {
        let graph = text::parse(PROGRAM).expect("a program");
        let expected = vec![vec![Some(Arc::new(f32s([1.0, 1.0])))]];
        let runs = Cell::new(0);
        let with_noise = |_| {
            runs.set(runs.get() + 1);
            Ok(vec![vec![f32s(noisy)]])
        };
        let reference = ReferenceOutputs {
            with: CompareMode::Interpreter,
            expected: &expected,
            histories: &[history],
            tolerances: Tolerances { absolute: None, relative: None },
            with_noise: &with_noise,
        };
        let report = compare_outputs(&graph, 0..1, &[vec![f32s(found)]], &reference).expect("a report");
        (report.agrees, runs.get())
    }

    #[test]
    fn elements_that_are_not_finite_must_be_explained_by_noise() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let f32s = RoundingHistory::rounded_to(DType::F32);
        let f16s = RoundingHistory::rounded_to(DType::F16);
        let narrow = f32s.with_numerics(NumericsClass::NarrowF16.into(), &f16s);
        assert!(narrow.may_overflow());
        for history in [f32s, f16s, narrow] {
            assert_eq!(passes([nan, nan], [1.0, 1.0], history), (false, IDLE_RUNS));
            assert_eq!(passes([nan, 1.0], [1.0, nan], history), (false, IDLE_RUNS));
            assert_eq!(passes([inf, inf], [inf, inf], history), (true, 1));
            assert_eq!(passes([1.0, 1.0], [nan, nan], history), (true, 0));
        }
    }

    #[test]
    fn an_output_of_a_finer_type_than_its_history_is_compared_by_noise() {
        let bf16s = RoundingHistory::rounded_to(DType::BF16);
        // Noise that moves the output by a thousandth allows four of them, although bf16 allows 4 %.
        assert_eq!(passes([1.003, 1.0], [1.001, 1.001], bf16s), (true, 1));
        assert!(!passes([1.02, 1.0], [1.001, 1.001], bf16s).0);
        // Within the tolerance of the output's own type no noise is needed. Noise never allows more than the tolerance of bf16.
        assert_eq!(passes([1.00001, 1.0], [1.5, 1.5], bf16s), (true, 0));
        assert!(passes([1.05, 1.0], [1.03, 1.03], bf16s).0);
        assert!(!passes([1.5, 1.0], [1.03, 1.03], bf16s).0);
    }
}
