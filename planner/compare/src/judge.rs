//! Compares two concrete regions: both run in the reference interpreter on drawn leaves.
//!
//! The first runs have all floats in f64. Both sides then differ only by the rounding of f64, so that the runs
//! find nearly any other difference, whatever the dtypes of the program are. The tolerance is measured: leaves
//! are moved by a part in 2^26, and rounding may move results as far as that moves the results of the source.
//!
//! The second runs have the dtypes of the program, and find roundings that only one side has. Results must be
//! equal to the bit if no op fuses or sums several roundings. Otherwise they must be within the tolerance of
//! their rounding history ([`RoundingHistory`]), or no further apart than noise on every rounding of the source
//! moves them.

use std::sync::Arc;

use symmc_ir::interp::{
    NoiseSpread, ReferenceKernelRegistry, RoundingHistory, RoundingNoise, RunCount, Tolerance, compare,
    compare_with_spread, output_histories, run, run_with_noise,
};
use symmc_ir::numerics::Numerics;
use symmc_ir::{DType, Graph, SymbolBindings, Tensor};

use crate::concrete::ConcreteRegion;
use crate::draw::{DrawKind, LeafDraws};

/// The relative shift of leaves that measures the effect of rounding.
const SHIFT: f64 = 1.0 / (1u64 << 26) as f64;
/// The factor by which the planned results may differ more than the shifted source.
const TIMES: f64 = 4.0;
/// The allowed relative difference of an element that does not move at all.
const RELATIVE: f64 = 1.5e-7;
/// The allowed difference, relative to the largest element.
const OF_LARGEST: f64 = 1e-12;
/// The number of draws with the dtypes of the program.
const DRAWS: u64 = 3;
/// The largest number of runs with noise for one draw.
const NOISY_RUNS: u64 = 4;
/// The number of root elements that all wide draws have together, and the largest number of these draws.
const ENOUGH: i64 = 2048;
const MOST_DRAWS: i64 = 24;

#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// Equal. This many elements were compared.
    Equal(u64),
    /// Equal in some draws only, as happens with ties and roundings.
    Undecided(String),
    /// Different. The text describes the first difference.
    Differs(String),
    /// Not compared. The text is the reason.
    Unknown(String),
}

impl Verdict {
    /// Whether the comparison ran and found no difference, or none in some draws.
    pub fn is_agreement(&self) -> bool {
        matches!(self, Verdict::Equal(_) | Verdict::Undecided(_))
    }
}

pub struct RegionPair {
    /// The part of the source and of the planned program, with floats as f64.
    pub wide: [ConcreteRegion; 2],
    /// The same parts with the dtypes of the programs.
    pub typed: [ConcreteRegion; 2],
    /// Whether no op fuses or sums several roundings.
    pub same_bits: bool,
    pub numerics: Numerics,
    /// Whether to draw more often than the minimum.
    pub thorough: bool,
}

pub fn judge(pair: &RegionPair) -> Verdict {
    match compare_pair(pair) {
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Unknown(reason),
    }
}

fn compare_pair(pair: &RegionPair) -> Result<Verdict, String> {
    let drawing = LeafDraws::new([&pair.wide[0], &pair.wide[1]])?;
    let floats = pair.wide[0].leaves.iter().chain(&pair.wide[1].leaves).any(|l| l.dtype.is_float());
    let mut elements = 0;
    let mut reason = None;
    for (kind, seed) in draws(pair) {
        if kind == DrawKind::Small && !floats {
            continue;
        }
        let run = |concrete: &ConcreteRegion, shift| run_region(concrete, &drawing, (kind, seed), shift);
        let expected = match run(&pair.wide[0], 0.0) {
            Ok(expected) => expected,
            Err(e) => {
                reason.get_or_insert(format!("the interpreter does not run the source on drawn values: {e}"));
                continue;
            }
        };
        let found = match run(&pair.wide[1], 0.0) {
            Ok(found) => found,
            Err(e) => {
                return Ok(Verdict::Differs(format!(
                    "the source runs on drawn values, the planned program does not: {e}"
                )));
            }
        };
        let moved = if floats { run(&pair.wide[0], SHIFT).ok() } else { None };
        for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let moved = moved.as_ref().and_then(|m| m.get(rank));
            if let Some(difference) = find_difference(found, expected, moved, kind) {
                return Ok(Verdict::Differs(format!("on rank {rank}: {difference}")));
            }
            elements += expected.numel() as u64;
        }
    }
    if elements == 0
        && let Some(reason) = reason
    {
        return Err(reason);
    }
    if !floats {
        return Ok(Verdict::Equal(elements));
    }
    compare_rounded(pair, &drawing, elements)
}

/// The kinds and seeds of draws. Small regions are drawn more often.
fn draws(pair: &RegionPair) -> Vec<(DrawKind, u64)> {
    let mut out = vec![(DrawKind::Moderate, 1)];
    if pair.thorough {
        let often = wide_draws(&pair.wide[0].graph);
        out.extend([(DrawKind::Small, 2), (DrawKind::Moderate, 3)]);
        out.extend((0..often).map(|k| (DrawKind::Wide, 100 + k)));
    }
    out
}

fn wide_draws(graph: &Graph) -> u64 {
    let shapes = graph.outputs.iter().map(|o| &graph.ty(o.value).shape);
    let elements: i64 = shapes.flatten().filter_map(symmc_ir::Dim::as_const).product();
    (ENOUGH / elements.max(1)).clamp(2, MOST_DRAWS).unsigned_abs()
}

/// Estimates how often a comparison runs both regions. `graph` is one of them.
pub fn count_runs(graph: &Graph, thorough: bool) -> u64 {
    // In f64 the source runs twice. With the dtypes of the program there is usually one draw.
    let draws = if thorough { 3 + wide_draws(graph) } else { 1 };
    (3 * draws).div_ceil(2) + 1
}

fn compare_rounded(pair: &RegionPair, drawing: &LeafDraws, elements: u64) -> Result<Verdict, String> {
    let rounding = RoundingTolerance::from_pair(pair);
    let mut difference = None;
    let mut reason = None;
    let mut ran = false;
    for seed in 5..5 + DRAWS {
        let kind = if rounding.same_bits && seed > 5 { DrawKind::Wide } else { DrawKind::Moderate };
        let expected = match run_region(&pair.typed[0], drawing, (kind, seed), 0.0) {
            Ok(expected) => expected,
            Err(e) => {
                reason.get_or_insert(format!("the interpreter does not run the source in its dtypes: {e}"));
                continue;
            }
        };
        let found = match run_region(&pair.typed[1], drawing, (kind, seed), 0.0) {
            Ok(found) => found,
            Err(e) => {
                return Ok(Verdict::Differs(format!(
                    "the source runs on drawn values, the planned program does not: {e}"
                )));
            }
        };
        ran = true;
        let mut ranks = found.iter().zip(&expected).enumerate();
        let mut first = ranks.find_map(|(rank, (found, expected))| {
            let result = compare(found, expected, rounding.tolerance(expected));
            (!result.agrees()).then(|| format!("on rank {rank}: {result}"))
        });
        if first.is_some() && !rounding.same_bits {
            let noisy =
                NoisyRuns { source: &pair.typed[0], drawing, draw: (kind, seed), rounding: &rounding };
            first = first.filter(|_| !noisy.explains(&found, &expected, pair.numerics));
        }
        match (first, rounding.same_bits) {
            (Some(found), true) => return Ok(Verdict::Differs(found)),
            (Some(found), false) => difference = difference.or(Some(found)),
            (None, true) => {}
            // If results depend on roundings, one draw without a difference is enough.
            (None, false) => {
                return Ok(difference.map_or(Verdict::Equal(elements), Verdict::Undecided));
            }
        }
    }
    if let (false, Some(reason)) = (ran, reason) {
        return Err(reason);
    }
    Ok(difference.map_or(Verdict::Equal(elements), Verdict::Differs))
}

/// Runs of the source with noise on every rounding.
struct NoisyRuns<'a> {
    source: &'a ConcreteRegion,
    drawing: &'a LeafDraws,
    draw: (DrawKind, u64),
    rounding: &'a RoundingTolerance,
}

impl NoisyRuns<'_> {
    /// Whether noise moves the results as far as the planned results differ.
    fn explains(&self, found: &[Tensor], expected: &[Tensor], numerics: Numerics) -> bool {
        let mut spreads: Vec<NoiseSpread> = expected.iter().map(NoiseSpread::without_moves).collect();
        for seed in 0..NOISY_RUNS {
            let noise = RoundingNoise { seed, numerics };
            let Ok(noisy) = run_region_with_noise(self.source, self.drawing, self.draw, 0.0, Some(noise))
            else {
                return false;
            };
            for ((spread, expected), noisy) in spreads.iter_mut().zip(expected).zip(&noisy) {
                spread.widen(expected, noisy);
            }
            let mut ranks = found.iter().zip(expected).zip(&spreads);
            if ranks.all(|((found, expected), spread)| {
                compare_with_spread(found, expected, self.rounding.tolerance(expected), spread).agrees()
            }) {
                return true;
            }
        }
        false
    }
}

/// The tolerance of results with the dtypes of the program. All decisions about it are made here.
struct RoundingTolerance {
    /// The types to which the root of the source was rounded, and the numerics classes that the plan allows.
    history: RoundingHistory,
    same_bits: bool,
}

impl RoundingTolerance {
    fn from_pair(pair: &RegionPair) -> RoundingTolerance {
        let [source, planned] = pair.typed.each_ref().map(|concrete| {
            let histories = output_histories(&concrete.graph, RunCount::One);
            histories.first().copied().unwrap_or(RoundingHistory::EXACT)
        });
        let history = source.with_numerics(pair.numerics, &planned);
        RoundingTolerance { history, same_bits: pair.same_bits && history == source }
    }

    fn tolerance(&self, expected: &Tensor) -> Tolerance {
        if !expected.dtype().is_float() {
            return Tolerance::EXACT;
        }
        if self.same_bits {
            // Powers and quotients of f64 cannot be computed in a wider type.
            let relative = if expected.dtype() == DType::F64 { 1e-14 } else { 0.0 };
            return Tolerance { relative, ..Tolerance::EXACT };
        }
        // Parts that sum in another order differ even if all summands are exact.
        let history = if self.history.is_exact() {
            RoundingHistory::rounded_to(expected.dtype())
        } else {
            self.history
        };
        Tolerance::for_history(&history, expected)
    }
}

/// The root on each rank.
pub(crate) fn run_region(
    concrete: &ConcreteRegion,
    drawing: &LeafDraws,
    draw: (DrawKind, u64),
    shift: f64,
) -> Result<Vec<Tensor>, String> {
    run_region_with_noise(concrete, drawing, draw, shift, None)
}

fn run_region_with_noise(
    concrete: &ConcreteRegion,
    drawing: &LeafDraws,
    (kind, seed): (DrawKind, u64),
    shift: f64,
    noise: Option<RoundingNoise>,
) -> Result<Vec<Tensor>, String> {
    let graph: &Graph = &concrete.graph;
    let mut inputs = Vec::new();
    for rank in 0..graph.ranks.unwrap_or(1) {
        let mut leaves = Vec::with_capacity(concrete.leaves.len());
        for (k, leaf) in concrete.leaves.iter().enumerate() {
            leaves.push(Arc::new(drawing.tensor(graph, leaf, k, (kind, seed), rank, shift)?));
        }
        inputs.push(leaves);
    }
    let outputs = match noise {
        Some(noise) => {
            run_with_noise(graph, &SymbolBindings::new(), &inputs, &ReferenceKernelRegistry::new(), noise)
        }
        None => run(graph, &SymbolBindings::new(), &inputs),
    };
    let outputs = outputs.map_err(|e| e.to_string())?;
    Ok(outputs.into_iter().flatten().collect())
}

/// The first element that differs from the expected one by more than rounding in f64 explains.
fn find_difference(
    found: &Tensor,
    expected: &Tensor,
    moved: Option<&Tensor>,
    kind: DrawKind,
) -> Option<String> {
    if found.dtype() != expected.dtype() || found.shape() != expected.shape() {
        return Some(format!(
            "found {}{:?}, expected {}{:?}",
            found.dtype(),
            found.shape(),
            expected.dtype(),
            expected.shape()
        ));
    }
    let mut elements = 0..expected.numel();
    let first = if expected.dtype().is_float() {
        let finite = elements.clone().map(|i| expected.get_f64(i).abs()).filter(|x| x.is_finite());
        let largest = finite.fold(0.0, f64::max);
        elements.find(|&i| {
            let x = found.get_f64(i);
            let y = expected.get_f64(i);
            let moves = moved.map_or(0.0, |m| (m.get_f64(i) - y).abs());
            if x == y || x.is_nan() && y.is_nan() {
                return false;
            }
            if !(x.is_finite() && y.is_finite()) {
                // Values that overflow f64 are not compared.
                return kind != DrawKind::Wide;
            }
            moves.is_finite() && (x - y).abs() > RELATIVE * y.abs() + TIMES * moves + OF_LARGEST * largest
        })
    } else {
        elements.find(|&i| {
            found.get_i64(i) != expected.get_i64(i)
                && moved.is_none_or(|m| m.get_i64(i) == expected.get_i64(i))
        })
    };
    first.map(|i| format!("element {i} is {}, expected {}", found.element_text(i), expected.element_text(i)))
}
