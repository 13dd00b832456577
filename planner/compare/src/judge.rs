//! Compares two concrete regions: both run in the reference interpreter on drawn leaves.
//!
//! The first runs have all floats in f64. Both sides then differ only by the rounding of f64, so that the runs
//! find nearly any other difference, whatever the dtypes of the program are. The tolerance is measured: leaves
//! are moved by a part in 2^26, and rounding may move results as far as that moves the results of the source.
//!
//! The second runs have the dtypes of the program, and find roundings that only one side has. Results must be
//! within the tolerance of their rounding history ([`RoundingHistory`]), or no further apart than noise on every
//! rounding of the source moves them.
//!
//! If no op fuses or sums several roundings, there are only runs with the dtypes of the program, and results must
//! be equal to the bit.
//!
//! Errors are results: a plan must not fail on data on which its source runs. If only the source fails, the plan
//! may have left out elements that no result depends on. Its results must then be those of the source for any
//! indices within the axis in place of the indices that are not. Drawn and computed indices are replaced where
//! they are used. If the source fails even then, nothing is decided.

use std::collections::BTreeSet;
use std::sync::Arc;

use symmc_ir::interp::{
    NarrowDifferences, NoiseSpread, ReferenceKernelRegistry, RoundingHistory, RoundingNoise, RunCount,
    Tolerance, compare, compare_with_spread, output_histories, run, run_with_noise,
};
use symmc_ir::numerics::Numerics;
use symmc_ir::{BinaryOp, DType, Graph, Op, ReductionKind, SymbolBindings, Tensor};

use crate::concrete::{ConcreteRegion, LeafOfRank};
use crate::draw::{Draw, DrawChange, DrawKind, LeafDraws};
use crate::influence::{
    LeafInfluence, count_influence_runs, derive_influence, leaf_classes, restrict_to_reaching,
};
use crate::proof::EquationClass;

/// The relative shift of leaves that measures the effect of rounding.
const RELATIVE_SHIFT: f64 = 1.0 / (1u64 << 26) as f64;
/// The factor by which the planned results may differ more than the shifted source.
const SHIFT_TOLERANCE_FACTOR: f64 = 4.0;
/// The allowed relative difference of an element that does not move at all.
const RELATIVE_TOLERANCE: f64 = 1.5e-7;
/// The allowed difference, relative to the largest element.
const TOLERANCE_OF_LARGEST: f64 = 1e-12;
/// In the class `exact`, the number of elements of a narrow type for each that is rounded to another number must
/// be larger.
const MIN_ELEMENTS_PER_ROUNDING: usize = 128;
/// The number of draws with the dtypes of the program.
const DRAWS_OF_PROGRAM_DTYPES: u64 = 3;
/// The largest number of runs with noise for one draw.
const NOISY_RUNS: u64 = 4;
/// The number of root elements that all wide draws have together, and the largest number of these draws.
const WANTED_ROOT_ELEMENTS: i64 = 2048;
const MAX_DRAWS: i64 = 24;
/// The numbers that are added to indices outside of their axis, before they are taken modulo its extent.
const INDEX_SHIFTS: [i64; 3] = [1, 2, 5];
/// The largest number of draws in which the elements of a leaf are replaced.
const MAX_INFLUENCE_DRAWS: usize = 12;

#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// Proven equal, by equations of this class.
    Proven(EquationClass),
    /// Equal. This many elements were compared.
    Equal(u64),
    /// Equal in some draws only, as happens with ties and roundings.
    Undecided(String),
    /// Equal in all draws, but this leaf changed no result, so that a difference in its use would not show.
    NoInfluence(LeafOfRank),
    /// Different. The text describes the first difference.
    Differs(String),
    /// Not compared. The text is the reason.
    Unknown(String),
}

impl Verdict {
    /// Whether there is a proof, or the comparison ran and found no difference, or none in some draws.
    pub fn is_agreement(&self) -> bool {
        matches!(self, Verdict::Proven(_) | Verdict::Equal(_) | Verdict::Undecided(_))
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
    pub effort: DrawEffort,
}

/// How often a pair is drawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DrawEffort {
    /// One draw.
    Least,
    /// One draw of each kind that concerns the ops.
    Usual,
    /// Many draws.
    Thorough,
}

/// The verdict on a pair, and the leaves of the source that influenced the compared results.
#[derive(Clone, Debug)]
pub struct Judgement {
    pub verdict: Verdict,
    pub influence: LeafInfluence,
}

/// Judges a pair. The influence of leaves in `known` is not tried again.
pub fn judge(pair: &RegionPair, known: &BTreeSet<LeafOfRank>) -> Judgement {
    compare_pair(pair, known).unwrap_or_else(|reason| Judgement {
        verdict: Verdict::Unknown(reason),
        influence: LeafInfluence::default(),
    })
}

fn compare_pair(pair: &RegionPair, known: &BTreeSet<LeafOfRank>) -> Result<Judgement, String> {
    let drawing = LeafDraws::new([&pair.wide[0], &pair.wide[1]])?;
    let rounding = RoundingTolerance::from_pair(pair);
    let draws = choose_draws(&pair.wide, pair.effort, rounding.same_bits);
    let comparer = PairComparer { pair, drawing, rounding, floats: has_float_leaves(&pair.wide) };
    let mut verdict = comparer.compare_draws(&draws)?;
    if verdict.is_agreement() && !comparer.rounding.same_bits && comparer.floats {
        verdict = comparer.compare_rounded(&verdict)?;
    }
    let mut influence = LeafInfluence::default();
    if verdict.is_agreement() {
        match comparer.show_influence(&draws, known) {
            Ok(joined) => influence = joined,
            Err(difference) => verdict = Verdict::Differs(difference),
        }
    }
    Ok(Judgement { verdict, influence })
}

/// The results of both programs on one draw.
enum DrawnRuns {
    /// The source and the planned program ran.
    Ran { expected: Vec<Tensor>, found: Vec<Tensor> },
    /// Both fail, as they must.
    Failed,
    /// The source does not run on this draw, for this reason.
    NotRun(String),
    /// Only the source fails, for another reason than its indices.
    Undecided(String),
    /// Only one of them fails.
    Differs(String),
}

/// The comparison of the results on one draw.
enum DrawnComparison {
    /// The results are equal. These are the results of the source.
    Equal(Vec<Tensor>),
    Failed,
    NotRun(String),
    Undecided(String),
    Differs(String),
}

struct PairComparer<'a> {
    pair: &'a RegionPair,
    drawing: LeafDraws,
    rounding: RoundingTolerance,
    floats: bool,
}

impl PairComparer<'_> {
    /// The regions that run: with the dtypes of the program if every op gives the same bits wherever it stands,
    /// and with floats as f64 otherwise.
    fn sides(&self) -> [&ConcreteRegion; 2] {
        let sides = if self.rounding.same_bits { &self.pair.typed } else { &self.pair.wide };
        sides.each_ref()
    }

    fn run_both(&self, [source, planned]: [&ConcreteRegion; 2], draw: Draw, change: DrawChange) -> DrawnRuns {
        let run = |concrete: &ConcreteRegion, change| run_region(concrete, &self.drawing, draw, change);
        let has_edges = draw.kind == DrawKind::Edges;
        match (run(source, change), run(planned, change)) {
            (Ok(expected), Ok(found)) => DrawnRuns::Ran { expected, found },
            (Ok(_), Err(e)) => DrawnRuns::Differs(format!(
                "the source runs on drawn values, the planned program does not: {e}"
            )),
            (Err(_), Err(_)) if has_edges => DrawnRuns::Failed,
            (Err(e), Ok(found)) if has_edges => {
                // The planned program may leave out indices on which no result depends.
                let within = |shift| run(&source.with_indices_within_axes(shift), change);
                let Ok(runs) = INDEX_SHIFTS.into_iter().map(within).collect::<Result<Vec<_>, String>>()
                else {
                    return DrawnRuns::Undecided(format!(
                        "the planned program runs on drawn values, the source does not: {e}"
                    ));
                };
                let is_independent = runs.iter().all(|other| have_same_data(other, &runs[0]));
                match runs.into_iter().next() {
                    Some(expected) if is_independent => DrawnRuns::Ran { expected, found },
                    _ => DrawnRuns::Differs(format!(
                        "the planned program runs on drawn values, the source does not: {e}"
                    )),
                }
            }
            (Err(e), _) => DrawnRuns::NotRun(e),
        }
    }

    fn compare_draw(&self, draw: Draw, change: DrawChange) -> DrawnComparison {
        let (expected, found) = match self.run_both(self.sides(), draw, change) {
            DrawnRuns::Ran { expected, found } => (expected, found),
            DrawnRuns::Failed => return DrawnComparison::Failed,
            DrawnRuns::NotRun(reason) => return DrawnComparison::NotRun(reason),
            DrawnRuns::Undecided(doubt) => return DrawnComparison::Undecided(doubt),
            DrawnRuns::Differs(difference) => return DrawnComparison::Differs(difference),
        };
        let moves = self.floats && !self.rounding.same_bits;
        let shifted = || {
            run_region(
                &self.pair.wide[0],
                &self.drawing,
                draw,
                DrawChange { shift: RELATIVE_SHIFT, ..change },
            )
        };
        let moved = if moves { shifted().ok() } else { None };
        for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let difference = if self.rounding.same_bits {
                self.find_bit_difference(found, expected)
            } else {
                let moved = moved.as_ref().and_then(|m| m.get(rank));
                find_difference(found, expected, moved, draw.kind)
            };
            if let Some(difference) = difference {
                return DrawnComparison::Differs(format!("on rank {rank}: {difference}"));
            }
        }
        DrawnComparison::Equal(expected)
    }

    fn find_bit_difference(&self, found: &Tensor, expected: &Tensor) -> Option<String> {
        let result = compare(found, expected, self.rounding.tolerance(expected));
        if result.agrees() { find_other_zero(found, expected) } else { Some(result.to_string()) }
    }

    fn compare_draws(&self, draws: &[Draw]) -> Result<Verdict, String> {
        let mut elements = 0;
        let mut reason = None;
        let mut undecided = None;
        for &draw in draws {
            match self.compare_draw(draw, DrawChange::default()) {
                DrawnComparison::Equal(expected) => {
                    elements += expected.iter().map(|tensor| tensor.numel() as u64).sum::<u64>();
                }
                DrawnComparison::Differs(difference) => return Ok(Verdict::Differs(difference)),
                DrawnComparison::NotRun(e) => {
                    reason.get_or_insert(e);
                }
                DrawnComparison::Undecided(doubt) => {
                    undecided.get_or_insert(doubt);
                }
                DrawnComparison::Failed => {}
            }
        }
        match (reason, undecided) {
            (Some(e), _) if elements == 0 => {
                Err(format!("the interpreter does not run the source on drawn values: {e}"))
            }
            (_, Some(doubt)) => Ok(Verdict::Undecided(doubt)),
            _ => Ok(Verdict::Equal(elements)),
        }
    }

    /// The leaves that can influence results, and those that do: by the ops, or because other elements of that leaf
    /// on that rank give another result. Leaves in `known` are not tried. Fails if the programs then differ.
    fn show_influence(&self, draws: &[Draw], known: &BTreeSet<LeafOfRank>) -> Result<LeafInfluence, String> {
        let [source, _] = self.sides();
        let mut out = derive_influence(self.sides());
        let classes = leaf_classes(self.sides());
        if out.missing().any(|leaf| !known.contains(&leaf)) {
            restrict_to_reaching(&mut out, self.sides());
        }
        let mut missing: Vec<LeafOfRank> = out.missing().filter(|leaf| !known.contains(leaf)).collect();
        for &draw in draws.iter().take(MAX_INFLUENCE_DRAWS) {
            if missing.is_empty() {
                break;
            }
            let Ok(usual) = run_region(source, &self.drawing, draw, DrawChange::default()) else { continue };
            let mut still_missing = Vec::new();
            for (number, rank) in missing {
                let replaced = classes.get(&number).map(|&class| (class, rank));
                let is_shown = match self.compare_draw(draw, DrawChange { replaced, ..DrawChange::default() })
                {
                    DrawnComparison::Equal(changed) => !have_same_data(&changed, &usual),
                    DrawnComparison::Differs(difference) => return Err(difference),
                    DrawnComparison::NotRun(_) | DrawnComparison::Undecided(_) | DrawnComparison::Failed => {
                        false
                    }
                };
                if is_shown {
                    out.shown.insert((number, rank));
                } else {
                    still_missing.push((number, rank));
                }
            }
            missing = still_missing;
        }
        Ok(out)
    }

    /// Compares with the dtypes of the program, after draws with floats as f64 that had this verdict.
    fn compare_rounded(&self, verdict: &Verdict) -> Result<Verdict, String> {
        let mut difference = None;
        let mut reason = None;
        let mut ran = false;
        let mut agrees = false;
        let mut roundings = NarrowDifferences::default();
        for seed in 5..5 + DRAWS_OF_PROGRAM_DTYPES {
            let draw = Draw::new(DrawKind::Moderate, seed);
            let typed = self.pair.typed.each_ref();
            let (expected, found) = match self.run_both(typed, draw, DrawChange::default()) {
                DrawnRuns::Ran { expected, found } => (expected, found),
                DrawnRuns::Differs(difference) => return Ok(Verdict::Differs(difference)),
                DrawnRuns::NotRun(e) => {
                    reason
                        .get_or_insert(format!("the interpreter does not run the source in its dtypes: {e}"));
                    continue;
                }
                DrawnRuns::Failed | DrawnRuns::Undecided(_) => continue,
            };
            ran = true;
            if self.pair.numerics.is_exact() {
                found.iter().zip(&expected).for_each(|(found, expected)| roundings.count(found, expected));
            }
            if agrees {
                continue;
            }
            let mut ranks = found.iter().zip(&expected).enumerate();
            let mut first = ranks.find_map(|(rank, (found, expected))| {
                let result = compare(found, expected, self.rounding.tolerance(expected));
                (!result.agrees()).then(|| format!("on rank {rank}: {result}"))
            });
            if first.is_some() {
                let PairComparer { pair, drawing, rounding, .. } = self;
                let noisy = NoisyRuns { source: &pair.typed[0], drawing, draw, rounding };
                first = first.filter(|_| !noisy.explains(&found, &expected, pair.numerics));
            }
            // Results depend on roundings, so one draw without a difference is enough.
            agrees = first.is_none();
            difference = difference.or(first);
            if agrees && are_decided(roundings) {
                break;
            }
        }
        if let Some(excess) = find_excess(roundings) {
            return Ok(Verdict::Differs(excess));
        }
        match (difference, reason) {
            (_, Some(reason)) if !ran => Err(reason),
            (Some(difference), _) if agrees => Ok(Verdict::Undecided(difference)),
            (Some(difference), _) => Ok(Verdict::Differs(difference)),
            (None, _) => Ok(verdict.clone()),
        }
    }
}

fn have_same_data(a: &[Tensor], b: &[Tensor]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.data() == b.data())
}

/// The first zero with another sign.
fn find_other_zero(found: &Tensor, expected: &Tensor) -> Option<String> {
    if !expected.dtype().is_float() {
        return None;
    }
    let differing = (0..expected.numel()).find(|&i| {
        let (x, y) = (found.get_f64(i), expected.get_f64(i));
        x == 0.0 && y == 0.0 && x.is_sign_negative() != y.is_sign_negative()
    });
    differing
        .map(|i| format!("element {i} is {}, expected {}", found.element_text(i), expected.element_text(i)))
}

fn has_float_leaves(sides: &[ConcreteRegion; 2]) -> bool {
    sides.iter().flat_map(|side| &side.leaves).any(|leaf| leaf.dtype.is_float())
}

/// The draws for a pair. `same_bits` says that it has only runs with the dtypes of the program.
fn choose_draws(sides: &[ConcreteRegion; 2], effort: DrawEffort, same_bits: bool) -> Vec<Draw> {
    let graph = &sides[0].graph;
    let mut leaves = sides.iter().flat_map(|side| &side.leaves);
    let floats = has_float_leaves(sides);
    let integers = leaves.any(|leaf| !leaf.dtype.is_float() && leaf.dtype != DType::Bool);
    let selects = floats && sides.iter().any(|side| selects_floats(&side.graph));
    let main = if selects { DrawKind::Spread } else { DrawKind::Moderate };
    let mut out = vec![Draw::new(main, 1)];
    if effort == DrawEffort::Least {
        return out;
    }
    if effort == DrawEffort::Usual {
        if floats {
            out.push(Draw::new(DrawKind::Special, 200));
        }
        if floats && same_bits && !selects {
            out.push(Draw::new(DrawKind::Wide, 100));
        }
        if integers {
            // Only odd seeds draw indices outside of their axis.
            out.extend([300, 301].map(|seed| Draw::new(DrawKind::Edges, seed)));
        }
        return out;
    }
    let wide = wide_draws(graph);
    let special_count = if same_bits { wide.div_ceil(2) } else { wide.div_ceil(4) };
    if floats {
        out.push(Draw::new(DrawKind::Small, 2));
    }
    out.push(Draw::new(DrawKind::Moderate, 3));
    out.extend((0..wide).map(|k| Draw::new(DrawKind::Wide, 100 + k)));
    out.extend((0..special_count).map(|k| Draw::new(DrawKind::Special, 200 + k)));
    if integers {
        out.extend((0..special_count.max(2)).map(|k| Draw::new(DrawKind::Edges, 300 + k)));
    }
    out
}

/// Whether a region selects floats by their order.
pub fn selects_floats(graph: &Graph) -> bool {
    graph.nodes.values().any(|node| {
        let is_float = node.inputs.first().is_some_and(|&v| graph.ty(v).dtype.is_float());
        let selects = match &node.op {
            Op::ArgReduce { .. } | Op::TopK { .. } | Op::Sort { .. } => true,
            Op::Reduce { op: ReductionKind::Max | ReductionKind::Min, .. } => true,
            Op::Binary(BinaryOp::Max | BinaryOp::Min) => true,
            Op::Binary(op) => op.is_comparison(),
            _ => false,
        };
        is_float && selects
    })
}

fn root_elements(graph: &Graph) -> i64 {
    let shapes = graph.outputs.iter().map(|o| &graph.ty(o.value).shape);
    shapes.flatten().filter_map(symmc_ir::Dim::as_const).product()
}

fn wide_draws(graph: &Graph) -> u64 {
    (WANTED_ROOT_ELEMENTS / root_elements(graph).max(1)).clamp(2, MAX_DRAWS).unsigned_abs()
}

/// Estimates how often a comparison of a pair, with floats as f64, runs both regions. Leaves in `known` need no
/// runs that show their influence.
pub fn count_runs(
    sides: &[ConcreteRegion; 2],
    effort: DrawEffort,
    same_bits: bool,
    known: &BTreeSet<LeafOfRank>,
) -> u64 {
    let draws = choose_draws(sides, effort, same_bits).len() as u64;
    // The source also runs on moved leaves, and then both run with the dtypes of the program, usually on one draw.
    let of_draws = |draws: u64| if same_bits { draws } else { (3 * draws).div_ceil(2) };
    let rounded = u64::from(!same_bits);
    match effort {
        DrawEffort::Thorough => of_draws(draws) + rounded,
        _ => of_draws(draws + count_influence_runs(sides.each_ref(), known)) + rounded,
    }
}

/// Whether no more draws are needed. A draw of few elements may not have those that are rounded otherwise.
fn are_decided(roundings: NarrowDifferences) -> bool {
    let NarrowDifferences { elements, different } = roundings;
    elements == 0 || different == 0 && elements >= MIN_ELEMENTS_PER_ROUNDING
}

/// The difference if too many elements of narrow types are rounded otherwise than in the source, over several draws.
/// In the class `exact` a plan may only sum in another order. Sums have more digits than narrow types, so their order
/// moves few elements to another number of the type. One element of all draws always may be.
fn find_excess(roundings: NarrowDifferences) -> Option<String> {
    let NarrowDifferences { elements, different } = roundings;
    let is_excess = different > 1 && different * MIN_ELEMENTS_PER_ROUNDING >= elements;
    is_excess.then(|| format!("{different} of {elements} elements are rounded otherwise, in class exact"))
}

/// Runs of the source with noise on every rounding.
struct NoisyRuns<'a> {
    source: &'a ConcreteRegion,
    drawing: &'a LeafDraws,
    draw: Draw,
    rounding: &'a RoundingTolerance,
}

impl NoisyRuns<'_> {
    /// Whether noise moves the results as far as the planned results differ.
    fn explains(&self, found: &[Tensor], expected: &[Tensor], numerics: Numerics) -> bool {
        let mut spreads: Vec<NoiseSpread> = expected.iter().map(NoiseSpread::without_moves).collect();
        for seed in 0..NOISY_RUNS {
            let noise = RoundingNoise { seed, numerics };
            let Ok(noisy) = run_region_with_noise(
                self.source,
                self.drawing,
                self.draw,
                DrawChange::default(),
                Some(noise),
            ) else {
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
    draw: Draw,
    change: DrawChange,
) -> Result<Vec<Tensor>, String> {
    run_region_with_noise(concrete, drawing, draw, change, None)
}

fn run_region_with_noise(
    concrete: &ConcreteRegion,
    drawing: &LeafDraws,
    draw: Draw,
    change: DrawChange,
    noise: Option<RoundingNoise>,
) -> Result<Vec<Tensor>, String> {
    let graph: &Graph = &concrete.graph;
    let mut inputs = Vec::new();
    for rank in 0..graph.ranks.unwrap_or(1) {
        let mut leaves = Vec::with_capacity(concrete.leaves.len());
        for (k, leaf) in concrete.leaves.iter().enumerate() {
            leaves.push(Arc::new(drawing.tensor(graph, leaf, k, draw, rank, change)?));
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

/// The median distance between elements of both tensors. The moves of single elements may cancel.
fn median_move(moved: &Tensor, expected: &Tensor) -> f64 {
    let distances = (0..expected.numel()).map(|i| (moved.get_f64(i) - expected.get_f64(i)).abs());
    let mut finite: Vec<f64> = distances.filter(|distance| distance.is_finite()).collect();
    if finite.is_empty() {
        return 0.0;
    }
    let middle = (finite.len() - 1) / 2;
    *finite.select_nth_unstable_by(middle, f64::total_cmp).1
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
        let usual = moved.map_or(0.0, |moved| median_move(moved, expected));
        elements.find(|&i| {
            let x = found.get_f64(i);
            let y = expected.get_f64(i);
            let moves = moved.map_or(0.0, |m| (m.get_f64(i) - y).abs().max(usual / SHIFT_TOLERANCE_FACTOR));
            if x == y || x.is_nan() && y.is_nan() {
                return false;
            }
            if !(x.is_finite() && y.is_finite()) {
                return match kind {
                    // Values that overflow f64 are not compared.
                    DrawKind::Wide => false,
                    // A fused op may leave out an operand that is NaN, such as a masked element.
                    DrawKind::Special => !y.is_nan(),
                    _ => true,
                };
            }
            moves.is_finite()
                && (x - y).abs()
                    > RELATIVE_TOLERANCE * y.abs()
                        + SHIFT_TOLERANCE_FACTOR * moves
                        + TOLERANCE_OF_LARGEST * largest
        })
    } else {
        elements.find(|&i| {
            found.get_i64(i) != expected.get_i64(i)
                && moved.is_none_or(|m| m.get_i64(i) == expected.get_i64(i))
        })
    };
    first.map(|i| format!("element {i} is {}, expected {}", found.element_text(i), expected.element_text(i)))
}
