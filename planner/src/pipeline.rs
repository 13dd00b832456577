//! Turns lowered graphs into the plan: prepares, forms dispatches, orders, places, packs and writes.
//!
//! Buckets with equal planned programs share one entry of [`Plan::programs`], one order and one placement. They
//! differ in sizes, offsets and waits.
//!
//! [`plan()`] makes one plan. Callers with a limit of symmetric memory use a [`Planner`]. It can schedule the
//! same programs in several ways, and keep exit barriers step by step ([`ProgramSchedules::keep_barriers`]).
//! The limit itself is deliberately absent here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use symmc_ir::machine::MachineProfile;
use symmc_ir::machine::timeline::us_to_ns;
use symmc_ir::verify::verify_derived;
use symmc_ir::{Graph, InputId, Numerics, Op, text};
use symmc_plan::{
    ArenaSizes, Bucket, FixedRegion, MAX_SIZE, PAGE, ParsedProgram, Plan, SourceProgram, VERSION, sha256_hex,
};
use symmc_support::parallel;

use crate::barriers::symmetric_load;
use crate::bucket::{CollectiveChoice, build_bucket};
use crate::error::{PlanError, Result};
use crate::fixed_memory::{FixedMemoryLayout, lay_out_fixed_memory};
use crate::liveness::NextRun;
use crate::order::OrderStrategy;
use crate::prepare::{PreparedGraph, bound_inputs, prepare};
use crate::schedule::{PlanningEffort, ScheduleRules, keep_barriers, schedule};
use crate::scheduled::ScheduledProgram;
use crate::views::ValueViews;

/// A program for one range of the symbols.
#[derive(Clone, Debug)]
pub struct BucketInput {
    /// The lowered program. Every collective has a variant, and the symbols have the ranges of the bucket.
    pub graph: Graph,
    /// The decisions for its collectives, in any order.
    pub decisions: Vec<CollectiveChoice>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct PlanConfig {
    /// The name of the machine profile by which variants were chosen.
    pub machine: String,
    /// The arguments that callers write into the symmetric arena if a collective needs them there. Parameters
    /// and constants are always bound in this way.
    pub bind: BTreeSet<InputId>,
    /// The profile that estimates the times of steps. Their order depends on these times. `None` selects the
    /// built-in profile named `machine`, and constant times if there is none.
    pub profile: Option<MachineProfile>,
    pub order: OrderStrategy,
    /// The memory that an order may take above the leanest order in order to overlap communication with
    /// computation, as a fraction.
    pub slack: f64,
    /// The bytes of which `slack` is a fraction, if the leanest order takes less.
    pub slack_base: u64,
    /// The microseconds by which a run must become faster for each MiB of memory that overlap takes.
    pub memory_price: f64,
    /// The buckets, by position, that get an order of their own. Other buckets with equal programs share one
    /// order, which is made for the upper bounds of all of them.
    pub own_orders: BTreeSet<usize>,
    /// Whether runs of buckets of another plan may follow. These buckets are then treated as some of several.
    pub among_others: bool,
    pub pack: symmc_pack::Config,
    pub effort: PlanningEffort,
    /// The numerics classes that the passes were allowed to use. The plan states them.
    pub numerics: Numerics,
}

impl Default for PlanConfig {
    fn default() -> Self {
        PlanConfig {
            machine: "host".to_string(),
            bind: BTreeSet::new(),
            profile: None,
            order: OrderStrategy::Chosen,
            slack: 1.0,
            slack_base: 0,
            memory_price: 0.05,
            own_orders: BTreeSet::new(),
            among_others: false,
            pack: symmc_pack::Config {
                work: 60_000,
                rounds: 32,
                enough: 0.0,
                exact: 400_000,
                capacity: None,
            },
            effort: PlanningEffort::Full,
            numerics: Numerics::EXACT,
        }
    }
}

/// Plans the program `source`. `lowered` has one bucket for each of several disjoint ranges of its symbols.
/// Fails if the buckets do not match the source, are not lowered, or need more memory than can be addressed.
pub fn plan(source: &Graph, lowered: &[BucketInput], config: &PlanConfig) -> Result<Plan> {
    Planner::new(source, lowered, config)?.plan()
}

pub struct Planner<'a> {
    source: &'a Graph,
    ranks: u32,
    lowered: &'a [BucketInput],
    prepared: Vec<Arc<PreparedGraph>>,
    /// The index of the program of each bucket.
    program_of: Vec<usize>,
    bound: BTreeSet<usize>,
    profile: Option<MachineProfile>,
    fixed: Vec<FixedRegion>,
    fixed_memory: FixedMemoryLayout,
    nodes: usize,
    config: &'a PlanConfig,
}

impl<'a> Planner<'a> {
    /// Prepares the buckets `lowered` of the program `source`, which cover disjoint ranges of its symbols.
    pub fn new(source: &'a Graph, lowered: &'a [BucketInput], config: &'a PlanConfig) -> Result<Planner<'a>> {
        let ranks = source.ranks.ok_or_else(|| PlanError::OpenRanks { program: source.name.clone() })?;
        check_buckets(source, lowered)?;
        let mut bound = BTreeSet::new();
        let views = shared_views(lowered);
        let nodes = lowered.iter().map(|b| b.graph.nodes.len()).sum();
        for (b, views) in lowered.iter().zip(&views) {
            bound.extend(bound_inputs(&b.graph, views, &config.bind)?);
        }
        let profile = config.profile.clone().or_else(|| MachineProfile::builtin(&config.machine));
        let prepared = parallel::map(lowered.iter().zip(&views).collect(), nodes, |(b, views)| {
            let prepared = prepare(&b.graph, views, &bound)?;
            Ok(match &profile {
                Some(profile) => prepared.with_dispatches(profile),
                None => prepared,
            })
        });
        let (prepared, program_of) = deduplicate_programs(prepared, &config.own_orders)?;
        let prepared = prepared.into_iter().map(Arc::new).collect();
        let (fixed, fixed_memory) = lay_out_fixed_memory(lowered.iter().map(|b| &b.graph), &bound)?;
        Ok(Planner {
            source,
            ranks,
            lowered,
            prepared,
            program_of,
            bound,
            profile,
            fixed,
            fixed_memory,
            nodes,
            config,
        })
    }

    /// The bytes of the symmetric arena that landing zones and bound inputs take.
    pub fn fixed_bytes(&self) -> u64 {
        self.fixed_memory.end
    }

    /// Landing zones and bound inputs, which have one place for all buckets.
    pub fn fixed_regions(&self) -> &[FixedRegion] {
        &self.fixed
    }

    /// The number of different programs of the buckets.
    pub fn program_count(&self) -> usize {
        self.prepared.len()
    }

    /// The number of nodes of the lowered programs.
    pub fn node_count(&self) -> usize {
        self.nodes
    }

    /// The assumptions about the next run that dropped exit barriers may make, the cheaper one first.
    pub fn next_runs(&self) -> &'static [NextRun] {
        let is_alone = self.lowered.len() == 1 && !self.config.among_others;
        if is_alone { &[NextRun::Same, NextRun::Unknown] } else { &[NextRun::Unknown] }
    }

    pub fn plan(&self) -> Result<Plan> {
        let (schedules, buckets) = self.best_schedules()?;
        schedules.write(buckets)
    }

    /// The buckets of [`plan`](Self::plan), without its texts.
    pub fn place(&self) -> Result<PlacedPrograms> {
        let (schedules, buckets) = self.best_schedules()?;
        Ok(schedules.resolve(buckets))
    }

    fn best_schedules(&self) -> Result<(ProgramSchedules<'_>, Vec<Bucket>)> {
        let next_runs = self.next_runs();
        let schedules = self.schedule(self.config.order, next_runs[0])?;
        let buckets = schedules.buckets()?;
        if !next_runs.contains(&NextRun::Same) || !has_costly_wraparound(&buckets[0]) {
            return Ok((schedules, buckets));
        }
        // Lifetimes that wrap around the end of the run may need more than their bound. Without dropped exit
        // barriers that rely on the next run no lifetime wraps.
        let on_a_line = self.schedule(self.config.order, NextRun::Unknown)?;
        let line_buckets = on_a_line.buckets()?;
        let needs_less = symmetric_peak(&line_buckets) < symmetric_peak(&buckets);
        Ok(if needs_less { (on_a_line, line_buckets) } else { (schedules, buckets) })
    }

    /// Orders and places the programs. Every exit barrier is dropped that lifetimes can replace.
    pub fn schedule(&self, order: OrderStrategy, next_run: NextRun) -> Result<ProgramSchedules<'_>> {
        self.schedule_programs(0..self.prepared.len(), order, next_run)
    }

    /// Like [`schedule`](Self::schedule), for one of the programs with its buckets.
    /// [`join`](ProgramSchedules::join) joins the schedules of all programs.
    pub fn schedule_program(
        &self,
        program: usize,
        order: OrderStrategy,
        next_run: NextRun,
    ) -> Result<ProgramSchedules<'_>> {
        self.schedule_programs(program..program + 1, order, next_run)
    }

    fn schedule_programs(
        &self,
        indices: Range<usize>,
        order: OrderStrategy,
        next_run: NextRun,
    ) -> Result<ProgramSchedules<'_>> {
        let rules = ScheduleRules {
            bound: &self.bound,
            next_run,
            order,
            slack: self.config.slack,
            slack_base: self.config.slack_base,
            price: us_to_ns(self.config.memory_price),
            effort: self.config.effort,
            profile: self.profile.as_ref(),
        };
        let prepared = indices.filter_map(|p| Some((p, self.prepared.get(p)?))).collect();
        let programs =
            parallel::map(prepared, self.nodes, |(p, prepared)| Ok((p, schedule(prepared, &rules)?)));
        let programs = programs.into_iter().collect::<Result<BTreeMap<usize, ScheduledProgram>>>()?;
        Ok(ProgramSchedules { planner: self, rules, programs })
    }
}

/// Placed buckets with their programs, in resolved form.
pub struct PlacedPrograms {
    pub buckets: Vec<Bucket>,
    /// The programs by their index in the plan.
    pub programs: BTreeMap<usize, ParsedProgram>,
}

impl PlacedPrograms {
    /// The bytes of the symmetric arena that the buckets use. The arena is a multiple of [`PAGE`].
    pub fn symmetric_peak(&self) -> u64 {
        symmetric_peak(&self.buckets)
    }
}

/// The schedules of all programs of a planner, or of some of them with their buckets.
pub struct ProgramSchedules<'p> {
    planner: &'p Planner<'p>,
    rules: ScheduleRules<'p>,
    /// The schedules by the index of the program.
    programs: BTreeMap<usize, ScheduledProgram>,
}

impl ProgramSchedules<'_> {
    /// A lower bound of the bytes that the symmetric arena takes, for any offsets of blocks.
    pub fn symmetric_bound(&self) -> Result<u64> {
        Ok(self.planner.fixed_bytes().saturating_add(self.load()?))
    }

    /// The largest number of bytes in blocks that the symmetric arena holds at any step.
    fn load(&self) -> Result<u64> {
        self.programs.values().try_fold(0, |max: u64, program| Ok(max.max(symmetric_load(program)?)))
    }

    /// Whether dropped exit barriers rely on the next run having the same steps. If none does, then schedules
    /// for other next runs are equal.
    pub fn rely_on_next_run(&self) -> bool {
        self.programs.values().any(|program| program.placed.relies_on_next_run())
    }

    /// Keeps dropped exit barriers at the steps where the symmetric arena holds the most. Once that lowers
    /// nothing any more, keeps all that free memory at any step. Returns whether it kept any.
    pub fn keep_barriers(&mut self) -> Result<bool> {
        let load = self.load()?;
        for room in [load.saturating_sub(1), 0] {
            let mut any = false;
            for program in self.programs.values_mut() {
                any |= keep_barriers(program, room, &self.rules)?;
            }
            if any {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub fn plan(&self) -> Result<Plan> {
        self.write(self.buckets()?)
    }

    /// The buckets of [`plan`](Self::plan), without its texts.
    pub fn place(&self) -> Result<PlacedPrograms> {
        Ok(self.resolve(self.buckets()?))
    }

    fn resolve(&self, buckets: Vec<Bucket>) -> PlacedPrograms {
        let programs = self.programs.iter();
        let programs = programs.map(|(&p, s)| (p, ParsedProgram::from_graph(s.prepared.graph.clone())));
        PlacedPrograms { buckets, programs: programs.collect() }
    }

    fn buckets(&self) -> Result<Vec<Bucket>> {
        let Planner { lowered, program_of, nodes, fixed_memory, config, profile, .. } = self.planner;
        let inputs = lowered.iter().zip(program_of);
        let inputs = inputs.filter_map(|(b, p)| Some((b, *p, self.programs.get(p)?))).collect();
        // Buckets share the budget of the exact search.
        let exact = config.pack.exact / lowered.len().max(1) as u64;
        let pack = symmc_pack::Config { exact, ..config.pack };
        let buckets = parallel::map(inputs, *nodes, |(b, p, program)| {
            build_bucket(program, p, &b.graph.symbols, fixed_memory, &b.decisions, &pack, profile.as_ref())
        });
        buckets.into_iter().collect()
    }

    /// Joins the schedules of different programs of one planner, and their placed buckets, for [`write`](Self::write). `None` if
    /// there are no schedules.
    pub fn join(parts: Vec<(Self, Vec<Bucket>)>) -> Option<(Self, Vec<Bucket>)> {
        let mut buckets: Vec<(usize, Bucket)> = Vec::new();
        let mut joined: Option<Self> = None;
        for (schedules, placed) in parts {
            let positions = schedules.planner.program_of.iter().enumerate();
            let positions = positions.filter(|(_, p)| schedules.programs.contains_key(p)).map(|(b, _)| b);
            buckets.extend(positions.zip(placed));
            match &mut joined {
                Some(joined) => joined.programs.extend(schedules.programs),
                None => joined = Some(schedules),
            }
        }
        buckets.sort_by_key(|(position, _)| *position);
        Some((joined?, buckets.into_iter().map(|(_, bucket)| bucket).collect()))
    }

    /// Writes the plan of placed buckets. It needs the schedules of all programs.
    pub fn write(&self, buckets: Vec<Bucket>) -> Result<Plan> {
        debug_assert_eq!(self.programs.len(), self.planner.prepared.len());
        let Planner { source, ranks, nodes, fixed, config, .. } = self.planner;
        let programs = self.programs.values().map(|p| &p.prepared.graph);
        let mut texts = parallel::map([*source].into_iter().chain(programs).collect(), *nodes, text::print);
        let text = texts.remove(0);
        let plan = Plan {
            version: VERSION,
            source: SourceProgram { name: source.name.clone(), hash: sha256_hex(text.as_bytes()), text },
            machine: config.machine.clone(),
            ranks: *ranks,
            numerics: config.numerics,
            programs: texts,
            replacements: Vec::new(),
            arenas: arena_sizes(&buckets)?,
            fixed: fixed.clone(),
            buckets,
        };
        Ok(plan.with_short_texts())
    }
}

fn symmetric_peak(buckets: &[Bucket]) -> u64 {
    buckets.iter().map(|b| b.totals.symmetric_peak).max().unwrap_or(0)
}

/// Whether memory that is occupied from one run to the next may be the reason why the peak exceeds the bound.
fn has_costly_wraparound(b: &Bucket) -> bool {
    let above = b.totals.symmetric_peak - b.totals.symmetric_bound;
    above * 100 > b.totals.symmetric_bound && b.buffers.iter().any(|b| b.last < b.first)
}

/// Checks that the lowered programs have the inputs, outputs, groups and symbols of the source, and disjoint
/// ranges.
fn check_buckets(source: &Graph, lowered: &[BucketInput]) -> Result<()> {
    if lowered.is_empty() {
        return Err(PlanError::NoBucket);
    }
    for (bucket, b) in lowered.iter().enumerate() {
        let counts = [
            ("inputs", source.inputs.len(), b.graph.inputs.len()),
            ("outputs", source.outputs.len(), b.graph.outputs.len()),
            ("symbols", source.symbols.len(), b.graph.symbols.len()),
            ("ranks", source.ranks.unwrap_or(0) as usize, b.graph.ranks.unwrap_or(0) as usize),
        ];
        for (what, expected, found) in counts {
            if expected != found {
                return Err(PlanError::Mismatch { bucket, what, expected, found });
            }
        }
    }
    for (second, b) in lowered.iter().enumerate() {
        for (first, a) in lowered[..second].iter().enumerate() {
            let pairs = a.graph.symbols.values().zip(b.graph.symbols.values());
            if pairs.clone().all(|(x, y)| x.min <= y.max && y.min <= x.max) {
                let example: Vec<String> =
                    pairs.map(|(x, y)| format!("{}={}", x.name, x.min.max(y.min))).collect();
                return Err(PlanError::Overlap { first, second, example: example.join(", ") });
            }
        }
    }
    Ok(())
}

/// The views of each lowered program. Programs that differ only in variants share them.
fn shared_views(lowered: &[BucketInput]) -> Vec<Arc<ValueViews>> {
    let mut out: Vec<Arc<ValueViews>> = Vec::with_capacity(lowered.len());
    for b in lowered {
        let equal_program =
            lowered.iter().zip(&out).find(|(a, _)| equal_except_collectives(&a.graph, &b.graph));
        let views =
            equal_program.map_or_else(|| Arc::new(ValueViews::new(&b.graph)), |(_, views)| views.clone());
        out.push(views);
    }
    out
}

/// Whether two graphs have the same values, and the same nodes except collectives.
fn equal_except_collectives(a: &Graph, b: &Graph) -> bool {
    a.nodes.len() == b.nodes.len()
        && a.values == b.values
        && a.nodes.values().zip(b.nodes.values()).all(|(x, y)| {
            x.inputs == y.inputs
                && x.outputs == y.outputs
                && (x.op == y.op || matches!((&x.op, &y.op), (Op::Collective(_), Op::Collective(_))))
        })
}

/// The distinct planned programs, and for each bucket the index of its program. A shared program has the
/// smallest ranges of symbols that contain the ranges of its buckets. Equal programs stay separate if they are
/// only valid over their own ranges. Buckets of `own_orders` share with no other bucket.
fn deduplicate_programs(
    prepared: Vec<Result<PreparedGraph>>,
    own_orders: &BTreeSet<usize>,
) -> Result<(Vec<PreparedGraph>, Vec<usize>)> {
    let mut programs: Vec<PreparedGraph> = Vec::new();
    let mut program_of: Vec<usize> = Vec::with_capacity(prepared.len());
    let mut owned = BTreeSet::new();
    for (b, p) in prepared.into_iter().enumerate() {
        let mut p = p?;
        let own = p.graph.symbols.clone();
        let own_order = own_orders.contains(&b);
        if own_order {
            owned.insert(programs.len());
        }
        let shared = programs.iter().enumerate().filter(|(i, _)| !own_order && !owned.contains(i));
        let equal_program = shared.map(|(i, q)| (i, &q.graph.symbols)).find_map(|(i, symbols)| {
            p.graph.symbols.clone_from(symbols);
            (p == programs[i]).then_some(i)
        });
        for (s, range) in own.iter() {
            let hull = &mut p.graph.symbols[s];
            (hull.min, hull.max) = (hull.min.min(range.min), hull.max.max(range.max));
        }
        match equal_program.filter(|_| verify_derived(&p.graph).is_ok()) {
            Some(i) => {
                programs[i].graph.symbols = p.graph.symbols;
                program_of.push(i);
            }
            None => {
                p.graph.symbols = own;
                program_of.push(programs.len());
                programs.push(p);
            }
        }
    }
    Ok((programs, program_of))
}

fn arena_sizes(buckets: &[Bucket]) -> Result<ArenaSizes> {
    Ok(ArenaSizes {
        ordinary: arena_size(buckets, "ordinary", |b| b.totals.ordinary_peak)?,
        symmetric: arena_size(buckets, "symmetric", |b| b.totals.symmetric_peak)?,
    })
}

fn arena_size(buckets: &[Bucket], arena: &'static str, peak: fn(&Bucket) -> u64) -> Result<u64> {
    let bytes = buckets.iter().map(peak).max().unwrap_or(0);
    if bytes > MAX_SIZE {
        return Err(PlanError::ArenaTooLarge { arena, bytes });
    }
    Ok(bytes.next_multiple_of(PAGE))
}
