//! The comparison of one pair of regions at the selected sizes of all buckets of a planned program.
//!
//! A pair runs as a whole if that is cheap enough. Otherwise samples of the positions run, in windows
//! ([`crate::windows`]) along axes whose positions are not computed uniformly. The windows lie at the ends, in
//! the middle, and around numbers with which positions are compared. Everything that does not run becomes a
//! [`PartLimit`].

use std::collections::{HashMap, HashSet};

use symmc_ir::bounds::BoundsChecks;
use symmc_ir::numerics::{Numerics, NumericsClass};
use symmc_ir::text::forms::op_dims_mut;
use symmc_ir::{Graph, Replication, SymbolBindings, SymbolTable, ValueId, text};
use symmc_plan::Bucket;

use crate::axes::AxisSets;
use crate::comparison::{LimitKind, PartLimit, SourceComparison, add_limit};
use crate::concrete::{
    ConcreteRegion, LeafOfRank, RegionLeaf, RegionPrecision, RegionTemplate, bindings, estimate_work,
};
use crate::elements::ElementClass;
use crate::influence::LeafInfluence;
use crate::judge::{DrawEffort, Judgement, RegionPair, Verdict, count_runs, judge, selects_floats};
use crate::number::NumberedProgram;
use crate::proof::{EquationClass, ProofPrograms};
use crate::region::{ComparedRegion, PairedRegions};
use crate::sizes::{NamedSizes, SizeConditions};
use crate::windows::{AxisSpan, ValueWindow};

/// The largest number of elements that one comparison may compute, over all of its draws.
const MAX_COMPARISON_WORK: u128 = 1 << 26;
/// The same for a comparison of samples, and for parts that select elements of several ranks.
const MAX_SAMPLED_WORK: u128 = 1 << 28;
/// Comparisons of more elements run on samples if these are much cheaper.
const MAX_UNSAMPLED_WORK: u128 = 1 << 24;
/// Comparisons draw more often if they then compute at most this many elements.
const MAX_THOROUGH_WORK: u128 = 1 << 23;
/// The number of positions of a sample along one axis, and the smallest extent that is sampled.
const SAMPLED_POSITIONS: i64 = 4;
const MIN_SAMPLED_EXTENT: i64 = 32;
/// The largest number of numbers around which samples are taken.
const MAX_SAMPLED_NUMBERS: usize = 4;

const TOO_MUCH: &str = "the comparison would have to compute too many elements";

/// The state that the comparisons of all programs of a plan share.
pub struct ComparisonState {
    /// The result so far.
    pub comparison: SourceComparison,
    /// The judgements on pairs of regions that were run, by their text at the sizes.
    pub judgements: HashMap<String, Judgement>,
    /// The outcomes of pairs of regions of the planned program that is compared, by their text over symbols.
    pub outcomes: HashMap<String, PartOutcome>,
    /// The pairs of regions, by their text over symbols, that ran and agreed for one of the planned programs.
    pub agreeing: HashSet<String>,
    /// The parts, by their text at the least sizes of the source.
    pub parts: HashMap<String, usize>,
    pub numerics: Numerics,
    /// Whether pairs of regions are proven where that is possible.
    pub proves: bool,
    /// The elements that may still be computed.
    pub remaining_work: u128,
    /// The source and its bounds checks.
    pub source: Graph,
    pub bounds: BoundsChecks,
}

#[derive(Clone, Debug)]
pub struct PartOutcome {
    pub verdict: Verdict,
    /// The bucket and sizes of a difference.
    pub at: String,
    pub limits: Vec<PartLimit>,
    pub elements: u64,
    /// The text of the pair at the least sizes of the source. Equal parts of different programs have equal texts.
    pub canonical_text: Option<String>,
}

impl PartOutcome {
    fn unknown(reason: String) -> PartOutcome {
        PartOutcome::without_decision(Verdict::Unknown(reason))
    }

    fn without_decision(verdict: Verdict) -> PartOutcome {
        PartOutcome { verdict, at: String::new(), limits: Vec::new(), elements: 0, canonical_text: None }
    }
}

pub struct ProgramPair<'p, 'a> {
    pub source: &'p NumberedProgram<'a>,
    pub planned: &'p NumberedProgram<'a>,
    pub symbols: &'p SymbolTable,
    pub buckets: &'p [(usize, &'a Bucket)],
    pub ranks: u32,
    /// For each class the ranks that hold the same bits of its elements.
    pub replication: &'p HashMap<ElementClass, Replication>,
}

impl<'p, 'a> ProgramPair<'p, 'a> {
    /// Compares two regions at the selected sizes. Equal regions of one program run once. Limits and elements
    /// are counted in the first outcome only.
    pub fn compare(&self, regions: &'p PairedRegions, shared: &mut ComparisonState) -> PartOutcome {
        let PairedRegions { of_source, of_planned, same_bits } = regions;
        let meaning = of_source.uninterpretable_reason(self.source);
        if let Some(reason) = meaning.or_else(|| of_planned.uninterpretable_reason(self.planned)) {
            return PartOutcome::unknown(reason);
        }
        let text = self.symbolic_text(regions);
        if let Some(outcome) = shared.outcomes.get(&text) {
            return outcome.clone();
        }
        let ranks = self.ranks_of(regions);
        let sides = [(self.source, of_source), (self.planned, of_planned)];
        let class_numbers = self.class_numbers(regions);
        let templates = sides.map(|(program, region)| RegionTemplate {
            program,
            region,
            axes: AxisSets::new(program, region),
            ranks,
            replication: self.replication,
            class_numbers: &class_numbers,
        });
        let proof = if shared.proves { self.prove(regions, shared.numerics).ok() } else { None };
        let mut conditions = SizeConditions::default();
        sides.into_iter().for_each(|(program, region)| conditions.add(program, region));
        let comparison = ComparisonPart::new(templates, conditions, *same_bits);
        let outcome = match proof {
            Some(class) => PartOutcome {
                canonical_text: comparison.canonical_text(self.source.graph),
                ..PartOutcome::without_decision(Verdict::Proven(class))
            },
            None => self.run_part(&comparison, &text, shared),
        };
        shared.outcomes.insert(text, PartOutcome { limits: Vec::new(), elements: 0, ..outcome.clone() });
        outcome
    }

    fn prove(&self, regions: &PairedRegions, numerics: Numerics) -> Result<EquationClass, &'static str> {
        let ProgramPair { source, planned, symbols, ranks, replication, .. } = *self;
        let reassociates = numerics.allows(NumericsClass::Reassociate);
        ProofPrograms { source, planned, symbols, ranks, replication, reassociates }.prove(regions)
    }

    /// The number of ranks on which two regions run.
    fn ranks_of(&self, regions: &PairedRegions) -> u32 {
        let of_source = regions.of_source.depends_on_ranks(self.source);
        let of_planned = regions.of_planned.depends_on_ranks(self.planned);
        if of_source || of_planned { self.ranks } else { 1 }
    }

    /// The numbers of the classes of leaves, in the order in which the regions read them.
    fn class_numbers(&self, regions: &PairedRegions) -> HashMap<ElementClass, usize> {
        let mut out = HashMap::new();
        for (program, region) in [(self.source, &regions.of_source), (self.planned, &regions.of_planned)] {
            for elements in region.leaves.iter().filter_map(|&v| program.elements[v].as_ref()) {
                let next = out.len();
                out.entry(elements.class).or_insert(next);
            }
        }
        out
    }

    /// The reason why regions are not compared, if this leaf has no influence. Regions with equal texts have one
    /// verdict, but leaves with different names.
    pub fn describe_missing_influence(&self, regions: &PairedRegions, (number, rank): LeafOfRank) -> String {
        let class_numbers = self.class_numbers(regions);
        let of_source = regions.of_source.leaves.iter().map(|&v| (self.source, v));
        let mut leaves = of_source.chain(regions.of_planned.leaves.iter().map(|&v| (self.planned, v)));
        let leaf = leaves.find(|(program, v)| {
            let elements = program.elements[*v].as_ref();
            elements.is_some_and(|elements| class_numbers.get(&elements.class) == Some(&number))
        });
        let name = leaf.map_or("", |(program, v)| program.graph.value_name(v));
        let of_rank = if self.ranks_of(regions) > 1 { format!(" of rank {rank}") } else { String::new() };
        format!("no drawn value of %{name}{of_rank} changes a result")
    }

    fn run_part(&self, part: &ComparisonPart<'_>, text: &str, shared: &mut ComparisonState) -> PartOutcome {
        let influence = LeafInfluence::default();
        let mut run = PartRun { part, shared, elements: 0, limits: Vec::new(), influence, ran: false };
        let mut undecided = None;
        for &(index, bucket) in self.buckets {
            for (sizes, verdict) in run.compare_in_bucket(self.symbols, index, bucket) {
                match verdict {
                    Verdict::Equal(_) => {}
                    Verdict::Undecided(doubt) => undecided = undecided.or(Some((doubt, sizes))),
                    verdict => {
                        let PartRun { elements, limits, .. } = run;
                        return PartOutcome { verdict, at: sizes, limits, elements, canonical_text: None };
                    }
                }
            }
        }
        let PartRun { elements, limits, influence, ran, .. } = run;
        // All sizes of these buckets may be too large. The part still counts as compared if it ran at smaller
        // sizes for another program.
        if !ran && !limits.is_empty() && !shared.agreeing.contains(text) {
            return PartOutcome::unknown(TOO_MUCH.into());
        }
        if let Some(leaf) = influence.missing().next() {
            return PartOutcome::without_decision(Verdict::NoInfluence(leaf));
        }
        if ran && undecided.is_none() {
            shared.agreeing.insert(text.to_string());
        }
        let (verdict, sizes) = match undecided {
            Some((doubt, sizes)) => (Verdict::Undecided(doubt), sizes),
            None => (Verdict::Equal(elements), String::new()),
        };
        PartOutcome {
            verdict,
            at: sizes,
            limits,
            elements,
            canonical_text: part.canonical_text(self.source.graph),
        }
    }

    /// The text of a pair of regions over symbols. Besides the buckets, the outcome depends only on it.
    fn symbolic_text(&self, regions: &PairedRegions) -> String {
        let mut numbers: HashMap<ElementClass, usize> = HashMap::new();
        let mut out = format!("{}\n", regions.same_bits);
        for (program, region) in [(self.source, &regions.of_source), (self.planned, &regions.of_planned)] {
            let mut values: HashMap<ValueId, usize> = HashMap::new();
            for &leaf in &region.leaves {
                let next = values.len();
                values.insert(leaf, next);
                out.push_str(&format!("{:?} ", program.types[leaf]));
                if let Some(elements) = &program.elements[leaf] {
                    let next = numbers.len();
                    let number = numbers.entry(elements.class).or_insert(next);
                    // The class represents the data of the program, which may be large.
                    let class = ComparedRegion::is_constant(program, leaf).then_some(elements.class);
                    let offset = &elements.offset;
                    let strides = &elements.strides;
                    let replication =
                        self.replication.get(&elements.class).filter(|replication| !replication.is_none());
                    out.push_str(&format!("{number} {offset:?} {strides:?} {class:?} {replication:?}\n"));
                }
            }
            for &n in &region.nodes {
                let node = &program.graph.nodes[n];
                let mut op = node.op.clone();
                op_dims_mut(&mut op).into_iter().for_each(|dim| *dim = program.map_dim(dim));
                let operands: Vec<Option<&usize>> = node.inputs.iter().map(|v| values.get(v)).collect();
                out.push_str(&format!("{op:?} {operands:?}"));
                for &v in &node.outputs {
                    out.push_str(&format!(
                        " {:?} {} {}",
                        program.types[v], program.closed[v], program.constant[v]
                    ));
                    let next = values.len();
                    values.insert(v, next);
                }
                out.push('\n');
            }
            out.push_str(&format!("root {:?}\n", values.get(&region.root)));
        }
        out
    }
}

/// A pair of regions before sizes are chosen.
struct ComparisonPart<'a> {
    templates: [RegionTemplate<'a>; 2],
    conditions: SizeConditions,
    /// For each axis of the root whether both regions compute all its positions uniformly.
    alike_axes: Vec<bool>,
    same_bits: bool,
}

/// A window of the root, with a description of the positions that it leaves out.
struct WindowSample {
    windows: Vec<ValueWindow>,
    /// The axes and positions of the windows, if the windows do not have all positions that may differ.
    positions: Option<String>,
}

impl<'a> ComparisonPart<'a> {
    fn new(
        templates: [RegionTemplate<'a>; 2],
        conditions: SizeConditions,
        same_bits: bool,
    ) -> ComparisonPart<'a> {
        let [a, b] = [0, 1].map(|side: usize| templates[side].free_root_axes());
        let alike_axes = a.iter().zip(&b).map(|(a, b)| a.is_some() && b.is_some()).collect();
        ComparisonPart { templates, conditions, alike_axes, same_bits }
    }

    /// The numbers of positions to compare along uniform axes. They are larger if there are few such axes, and
    /// then smaller if the rest is large.
    fn uniform_extents(&self) -> [i64; 2] {
        let max_extent = match self.alike_axes.iter().filter(|alike| **alike).count() {
            0 | 1 => 128,
            2 => 16,
            3 => 8,
            _ => 4,
        };
        [max_extent, 2]
    }

    /// The sample with all positions, except along uniform axes.
    fn full_sample(&self, extent: i64) -> WindowSample {
        let spans = self.alike_axes.iter().map(|alike| alike.then_some(AxisSpan { start: 0, count: extent }));
        WindowSample { windows: vec![spans.collect()], positions: None }
    }

    /// A sample of the positions along the other axes as well. `None` if these axes are short.
    fn sample(&self, shape: &[i64]) -> Option<WindowSample> {
        let axes: Vec<usize> = (0..shape.len())
            .filter(|&axis| !self.alike_axes[axis] && shape[axis] >= MIN_SAMPLED_EXTENT)
            .collect();
        let longest = axes.iter().map(|&axis| shape[axis]).max()?;
        let count = self.sample_starts(longest).len();
        let mut windows: Vec<ValueWindow> =
            (0..count).map(|k| self.sample_window(shape, &axes, |_| k)).collect();
        if axes.len() > 1 {
            // Combine the start of one axis with the end of another.
            let mixed =
                axes.iter().map(|&first| self.sample_window(shape, &axes, |axis| usize::from(axis == first)));
            windows.extend(mixed);
        }
        let positions = axes.iter().map(|&axis| {
            let starts = self.sample_starts(shape[axis]);
            let spans: Vec<String> =
                starts.iter().map(|start| format!("{start}..{}", start + SAMPLED_POSITIONS)).collect();
            format!("positions {} of {} along axis {axis}", spans.join(", "), shape[axis])
        });
        let positions = positions.collect::<Vec<_>>().join("; ");
        Some(WindowSample { windows, positions: Some(positions) })
    }

    /// The window in which each sampled axis begins at the start with the index that `choose_start` returns.
    fn sample_window(
        &self,
        shape: &[i64],
        sampled: &[usize],
        choose_start: impl Fn(usize) -> usize,
    ) -> ValueWindow {
        let spans = (0..shape.len()).map(|axis| {
            let starts = self.sample_starts(shape[axis]);
            let start = starts[choose_start(axis) % starts.len()];
            match (sampled.contains(&axis), self.alike_axes[axis]) {
                (true, _) => Some(AxisSpan { start, count: SAMPLED_POSITIONS }),
                (false, true) => Some(AxisSpan { start: 0, count: self.uniform_extents()[1] }),
                (false, false) => None,
            }
        });
        spans.collect()
    }

    fn sample_starts(&self, extent: i64) -> Vec<i64> {
        let last_start = extent - SAMPLED_POSITIONS;
        let near = self.conditions.compared_numbers().filter_map(|n| n.checked_sub(SAMPLED_POSITIONS / 2));
        let near = near.filter(|start| (1..last_start).contains(start)).take(MAX_SAMPLED_NUMBERS);
        [0, last_start, last_start / 2].into_iter().chain(near).collect()
    }

    fn instantiate(
        &self,
        sizes: &SymbolBindings,
        window: &ValueWindow,
        precision: RegionPrecision,
    ) -> Result<[ConcreteRegion; 2], String> {
        let [a, b] = &self.templates;
        Ok([a.instantiate(sizes, window, precision)?, b.instantiate(sizes, window, precision)?])
    }

    fn canonical_text(&self, source: &Graph) -> Option<String> {
        let sizes = SymbolBindings::at_lower_bounds(&source.symbols);
        let window = self.full_sample(2).windows.pop()?;
        let pair = self.instantiate(&sizes, &window, RegionPrecision::Typed).ok()?;
        Some(comparison_key(&pair, self.same_bits))
    }
}

/// A sample at given sizes, with floats as f64.
struct PreparedSample {
    pairs: Vec<(ValueWindow, [ConcreteRegion; 2])>,
    positions: Option<String>,
    effort: DrawEffort,
    cost: u128,
}

struct PartRun<'p, 'a, 's> {
    part: &'p ComparisonPart<'a>,
    shared: &'s mut ComparisonState,
    elements: u64,
    limits: Vec<PartLimit>,
    /// The leaves that influenced results, at all sizes so far.
    influence: LeafInfluence,
    ran: bool,
}

impl PartRun<'_, '_, '_> {
    /// The verdicts at the sizes of a bucket at which the pair ran, up to the first verdict that is not equal.
    fn compare_in_bucket(
        &mut self,
        symbols: &SymbolTable,
        index: usize,
        bucket: &Bucket,
    ) -> Vec<(String, Verdict)> {
        let shared = &*self.shared;
        let chosen =
            self.part.conditions.choose_sizes(symbols, bucket, &|sizes| is_valid_in(shared, symbols, sizes));
        let mut out = Vec::new();
        if chosen.sizes.is_empty() {
            let reason =
                format!("found no sizes of bucket {index} that the bounds checks of the source accept");
            out.push((format!("bucket {index}"), Verdict::Unknown(reason)));
            return out;
        }
        if chosen.left_out > 0 {
            let limit = PartLimit::new(LimitKind::Conditions, format!("bucket {index}"));
            self.record_limit(PartLimit { sizes: chosen.left_out, ..limit }, true);
        }
        for (i, sizes) in chosen.sizes.iter().enumerate() {
            let is_upper = Some(i) == chosen.upper;
            let text = describe_sizes(index, sizes);
            if is_upper && chosen.is_bounded {
                self.record_limit(PartLimit::new(LimitKind::Bounded, text.clone()), true);
            }
            let mut verdict = self.compare_at(&bindings(symbols, sizes), &text, is_upper);
            if is_too_much(&verdict) {
                let smaller = (1..48).map(|k| scaled(sizes, bucket, k)).filter(|_| is_upper);
                let smaller: Vec<NamedSizes> =
                    smaller.filter(|sizes| is_valid_in(self.shared, symbols, sizes)).collect();
                let affordable = smaller.into_iter().find_map(|sizes| {
                    let text = describe_sizes(index, &sizes);
                    let verdict = self.compare_at(&bindings(symbols, &sizes), &text, true);
                    (!is_too_much(&verdict)).then_some((text, verdict))
                });
                let Some((up_to, affordable)) = affordable else {
                    self.record_limit(PartLimit::new(LimitKind::TooLong, text), is_upper);
                    continue;
                };
                self.record_limit(PartLimit::new(LimitKind::UpTo, up_to), true);
                verdict = affordable;
            }
            self.ran |= !matches!(verdict, Verdict::Unknown(_));
            let goes_on = matches!(verdict, Verdict::Equal(_) | Verdict::Undecided(_));
            out.push((text, verdict));
            if !goes_on {
                break;
            }
        }
        out
    }

    fn record_limit(&mut self, limit: PartLimit, replaces: bool) {
        add_limit(&mut self.limits, limit, replaces);
    }

    fn compare_at(&mut self, sizes: &SymbolBindings, text: &str, is_upper: bool) -> Verdict {
        let prepared = match self.prepare(sizes) {
            Ok(prepared) => prepared,
            Err(reason) => return Verdict::Unknown(reason),
        };
        let Some(PreparedSample { pairs, positions, effort, .. }) = prepared else {
            return Verdict::Unknown(TOO_MUCH.into());
        };
        let mut elements = 0;
        let mut undecided = None;
        for (window, wide) in pairs {
            match self.judge_window(sizes, &window, wide, effort) {
                Verdict::Equal(n) => elements += n,
                Verdict::Undecided(doubt) => undecided = undecided.or(Some(doubt)),
                other => return other,
            }
        }
        self.elements += elements;
        if let Some(positions) = positions {
            let limit = PartLimit::new(LimitKind::Sampled, format!("{text}: {positions}"));
            self.record_limit(limit, is_upper);
        }
        let draws = match effort {
            DrawEffort::Least => Some(LimitKind::OneDraw),
            DrawEffort::Usual => Some(LimitKind::FewDraws),
            DrawEffort::Thorough => None,
        };
        if let Some(kind) = draws {
            self.record_limit(PartLimit::new(kind, text.to_string()), is_upper);
        }
        undecided.map_or(Verdict::Equal(elements), Verdict::Undecided)
    }

    /// The sample to run at given sizes. `None` if all candidates take too long.
    fn prepare(&self, sizes: &SymbolBindings) -> Result<Option<PreparedSample>, String> {
        let [large_extent, small_extent] = self.part.uniform_extents();
        let large = self.cost_sample(sizes, self.part.full_sample(large_extent))?;
        if large.effort == DrawEffort::Thorough {
            return Ok(Some(large));
        }
        let small = self.cost_sample(sizes, self.part.full_sample(small_extent))?;
        if small.effort == DrawEffort::Thorough {
            return Ok(Some(small));
        }
        let unsampled = if large.cost <= MAX_UNSAMPLED_WORK { large } else { small };
        if unsampled.effort == DrawEffort::Usual || unsampled.cost <= MAX_UNSAMPLED_WORK {
            return Ok(Some(unsampled));
        }
        let shape = self.part.templates[0].root_shape(sizes)?;
        let sampled = self.part.sample(&shape).map(|sample| self.cost_sample(sizes, sample)).transpose()?;
        let sampled = sampled.filter(|s| s.cost <= MAX_SAMPLED_WORK && s.cost < unsampled.cost / 2);
        Ok(sampled.or(Some(unsampled).filter(|unsampled| unsampled.cost <= MAX_COMPARISON_WORK)))
    }

    fn cost_sample(&self, sizes: &SymbolBindings, sample: WindowSample) -> Result<PreparedSample, String> {
        let mut pairs = Vec::new();
        // By effort.
        let mut costs = [(DrawEffort::Thorough, 0u128), (DrawEffort::Usual, 0), (DrawEffort::Least, 0)];
        for window in sample.windows {
            let pair = self.part.instantiate(sizes, &window, RegionPrecision::Wide)?;
            for (effort, cost) in &mut costs {
                *cost = cost.saturating_add(self.estimate_cost(&pair, *effort));
            }
            pairs.push((window, pair));
        }
        let merges = |side: &ConcreteRegion| side.graph.ranks > Some(1) && selects_floats(&side.graph);
        let is_merge = pairs.iter().flat_map(|(_, pair)| pair).any(merges);
        let max_work =
            [MAX_THOROUGH_WORK, if is_merge { MAX_SAMPLED_WORK } else { MAX_UNSAMPLED_WORK }, u128::MAX];
        let affordable = costs.into_iter().zip(max_work).find(|((_, cost), max)| cost <= max);
        let (effort, cost) = affordable.map_or(costs[2], |(chosen, _)| chosen);
        Ok(PreparedSample { pairs, positions: sample.positions, effort, cost })
    }

    /// Estimates the number of elements that the comparison of a pair computes.
    fn estimate_cost(&self, pair: &[ConcreteRegion; 2], effort: DrawEffort) -> u128 {
        let together = estimate_work(&pair[0].graph).saturating_add(estimate_work(&pair[1].graph));
        let runs = count_runs(pair, effort, self.part.same_bits, &self.influence.shown);
        together.saturating_mul(u128::from(runs))
    }

    fn judge_window(
        &mut self,
        sizes: &SymbolBindings,
        window: &ValueWindow,
        wide: [ConcreteRegion; 2],
        effort: DrawEffort,
    ) -> Verdict {
        let typed = match self.part.instantiate(sizes, window, RegionPrecision::Typed) {
            Ok(typed) => typed,
            Err(reason) => return Verdict::Unknown(reason),
        };
        let same_bits = self.part.same_bits;
        let key = comparison_key(&typed, same_bits);
        if let Some(judgement) = self.shared.judgements.get(&key) {
            // A leaf that was not tried because it had influenced a result at other sizes may have to be tried here.
            let mut missing = judgement.influence.missing();
            if missing.all(|leaf| self.influence.shown.contains(&leaf)) {
                self.influence.extend(&judgement.influence);
                return match &judgement.verdict {
                    Verdict::Equal(_) => Verdict::Equal(0),
                    verdict => verdict.clone(),
                };
            }
        }
        let cost = self.estimate_cost(&wide, effort);
        if cost > self.shared.remaining_work {
            return Verdict::Unknown(TOO_MUCH.into());
        }
        self.shared.remaining_work -= cost;
        let numerics = self.shared.numerics;
        let pair = RegionPair { wide, typed, same_bits, numerics, effort };
        let judgement = judge(&pair, &self.influence.shown);
        self.influence.extend(&judgement.influence);
        let verdict = judgement.verdict.clone();
        self.shared.judgements.insert(key, judgement);
        verdict
    }
}

fn is_valid_in(shared: &ComparisonState, symbols: &SymbolTable, sizes: &NamedSizes) -> bool {
    shared.bounds.is_empty() || shared.bounds.evaluate(&shared.source, &bindings(symbols, sizes)).is_ok()
}

fn is_too_much(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Unknown(reason) if reason == TOO_MUCH)
}

/// The text of everything on which a comparison depends. Classes are numbered in the order in which they are
/// first read.
fn comparison_key(pair: &[ConcreteRegion; 2], same_bits: bool) -> String {
    let mut numbers: HashMap<ElementClass, usize> = HashMap::new();
    let mut out = format!("{same_bits}\n");
    for concrete in pair {
        out.push_str(&text::print(&concrete.graph));
        for leaf in &concrete.leaves {
            let next = numbers.len();
            let number = numbers.entry(leaf.class).or_insert(next);
            // The class represents the data of the program, which may be large.
            let class = leaf.data.as_ref().map(|_| leaf.class);
            let replication = leaf.replication.as_ref().filter(|replication| !replication.is_none());
            let RegionLeaf { offset, strides, number: of_region, .. } = leaf;
            out.push_str(&format!("{number} {of_region} {offset} {strides:?} {class:?} {replication:?}\n"));
        }
    }
    out
}

fn describe_sizes(bucket: usize, sizes: &NamedSizes) -> String {
    let sizes: Vec<String> = sizes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if sizes.is_empty() {
        format!("bucket {bucket}")
    } else {
        format!("bucket {bucket} ({})", sizes.join(", "))
    }
}

/// Sizes at a distance from the lower end of a bucket that is divided by a power of two.
fn scaled(sizes: &NamedSizes, bucket: &Bucket, by: u32) -> NamedSizes {
    let smaller = sizes.iter().map(|(name, value)| {
        let low = bucket.symbols.get(name).map_or(*value, |range| range[0]);
        (name.clone(), low + ((value - low) >> by))
    });
    smaller.collect()
}
