//! Orders and places a program: chooses the order of steps, and how long collectives may be in flight.
//!
//! Bytes that a collective uses are released in one of two ways. They can be free as soon as the collective has
//! started, and the step that takes the bytes then waits for it. Or they stay occupied until a step that reads
//! the collective's results waits anyway. The first way is the form *without overlap*, by which orders are
//! compared for memory.
//!
//! The chosen order and joins cost least: their estimated time, plus their memory at a price. Their memory is
//! limited relative to the leanest order without overlap.

use std::collections::BTreeSet;
use std::sync::Arc;
use symmc_ir::SymbolTable;

use symmc_dispatch::DispatchUnit;
use symmc_ir::machine::MachineProfile;
use symmc_plan::ArenaKind;

use crate::barriers::{self, load_by_step};
use crate::error::{PlanError, Result};
use crate::joins;
use crate::liveness::{Liveness, LivenessChoices, NextRun, immediate_joins, joins_at_first_use};
use crate::memory_classes::{BufferClasses, SeparateResults};
use crate::order::{
    self, ArenaDemand, OrderStrategy, OverlappedOrder, TaskGraph, improve, makespan, total_bytes, with_slack,
};
use crate::prepare::PreparedGraph;
use crate::scheduled::{PlacedSteps, ScheduledProgram, size_classes};
use crate::steps::StepList;

#[derive(Clone, Copy)]
pub struct ScheduleRules<'a> {
    pub bound: &'a BTreeSet<usize>,
    pub next_run: NextRun,
    pub order: OrderStrategy,
    /// The memory that an order may take above the leanest order, as a fraction.
    pub slack: f64,
    /// The bytes of which slack is a fraction, if the leanest order takes less.
    pub slack_base: u64,
    /// The nanoseconds of a run that a MiB of memory is worth.
    pub price: u64,
    pub effort: PlanningEffort,
    pub profile: Option<&'a MachineProfile>,
}

/// How many orders are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PlanningEffort {
    /// All that may give less time or memory.
    #[default]
    Full,
    /// A few, for a plan whose estimate is compared with others: no orders that are improved at their peaks, and fewer
    /// budgets of overlap.
    Sketch,
}

/// An order with its joins whose values are not placed yet.
struct EstimatedOrder {
    order: Vec<u32>,
    joined: Vec<u32>,
    /// The estimated time in nanoseconds.
    time: u64,
    /// The peak in bytes, by the model.
    peak: u64,
}

struct ScheduleCandidate {
    /// The steps by their numbers in program order.
    order: Vec<u32>,
    /// See [`Liveness::joined`].
    joined: Vec<u32>,
    apart: SeparateResults,
    demand: ArenaDemand,
    /// The estimated time in nanoseconds.
    time: u64,
}

impl ScheduleCandidate {
    fn bytes(&self) -> u64 {
        total_bytes(self.demand)
    }
}

pub fn schedule(prepared: &Arc<PreparedGraph>, rules: &ScheduleRules<'_>) -> Result<ScheduledProgram> {
    let symbols = prepared.graph.symbols.clone();
    let steps = StepList::new(&prepared.graph, &prepared.base)?;
    let tasks = TaskGraph::new(prepared, &steps, &symbols, rules.profile);
    let work = ScheduleSearch { prepared, steps: &steps, symbols: &symbols, tasks: &tasks, rules };
    let best = work.choose()?;
    let in_place = best.order.iter().enumerate().all(|(i, &s)| i == s as usize);
    let prepared = if in_place {
        prepared.clone()
    } else {
        let units: Vec<DispatchUnit> = best.order.iter().map(|&s| steps.list[s as usize].unit()).collect();
        Arc::new(prepared.reordered(&units))
    };
    let steps = StepList::new(&prepared.graph, &prepared.base)?;
    let choices = LivenessChoices { joined: best.joined, kept: BTreeSet::new() };
    let placed = place_steps(&prepared, steps, rules, choices, &best.apart);
    Ok(ScheduledProgram { prepared, placed, kept_barriers: BTreeSet::new(), separate: best.apart })
}

/// Keeps dropped exit barriers so that the symmetric arena holds at most `room` bytes at any step, without
/// fixed memory. If that is impossible, it keeps those that help. Returns whether it kept any.
pub fn keep_barriers(program: &mut ScheduledProgram, room: u64, rules: &ScheduleRules<'_>) -> Result<bool> {
    let new_barriers = barriers::select_barriers_to_keep(&program.placed, &program.sized_classes()?, room);
    if new_barriers.is_empty() {
        return Ok(false);
    }
    program.kept_barriers.extend(new_barriers);
    let choices =
        LivenessChoices { joined: program.placed.live.joined.clone(), kept: program.kept_barriers.clone() };
    let steps = program.placed.steps.clone();
    program.placed = place_steps(&program.prepared, steps, rules, choices, &program.separate);
    Ok(true)
}

struct ScheduleSearch<'a> {
    prepared: &'a PreparedGraph,
    steps: &'a StepList,
    symbols: &'a SymbolTable,
    tasks: &'a TaskGraph,
    rules: &'a ScheduleRules<'a>,
}

impl ScheduleSearch<'_> {
    fn choose(&self) -> Result<ScheduleCandidate> {
        if let Some(order) = order::build_order(self.tasks, self.rules.order) {
            let mut named = self.candidate_without_overlap(order)?;
            self.choose_separate_results(&mut named)?;
            return Ok(named);
        }
        let mut candidates = self.memory_candidates()?;
        let smallest =
            (0..candidates.len()).min_by_key(|&i| (candidates[i].bytes(), candidates[i].time)).unwrap_or(0);
        self.choose_separate_results(&mut candidates[smallest])?;
        if self.rules.order != OrderStrategy::Chosen {
            return Ok(candidates.swap_remove(smallest));
        }
        let lean = candidates[smallest].bytes();
        let limit = with_slack(lean, self.rules.slack, self.rules.slack_base);
        let within_limit = candidates.iter().enumerate().filter(|(_, c)| c.bytes() <= limit);
        let cheapest = within_limit.min_by_key(|(i, c)| (self.cost(c), c.bytes(), *i));
        let cheapest = cheapest.map_or(smallest, |(i, _)| i);
        // The leanest order and program order, which is the first candidate.
        let mut bases = vec![candidates[smallest].order.clone()];
        if smallest != 0 {
            bases.push(candidates[0].order.clone());
        }
        let best = candidates.swap_remove(cheapest);
        let mut overlapping = self.overlapping_orders(&bases, lean, limit, best.time);
        overlapping.push(self.join_at_first_use(best.order.clone()));
        overlapping.extend(candidates.into_iter().map(|c| self.join_at_first_use(c.order)));
        self.cheapest(best, overlapping, limit)
    }

    /// The cost of a candidate: its time, plus its memory at the price of the rules.
    fn cost(&self, candidate: &ScheduleCandidate) -> u64 {
        self.weighted_cost(candidate.time, candidate.bytes())
    }

    fn weighted_cost(&self, time: u64, bytes: u64) -> u64 {
        let memory = u128::from(bytes) * u128::from(self.rules.price) / (1 << 20);
        time.saturating_add(u64::try_from(memory).unwrap_or(u64::MAX))
    }

    /// Overlapped forms of the orders `bases`, with budgets between `lean` and `limit`, that are estimated to
    /// be faster than `time`.
    fn overlapping_orders(
        &self,
        bases: &[Vec<u32>],
        lean: u64,
        limit: u64,
        time: u64,
    ) -> Vec<EstimatedOrder> {
        let percents = match self.rules.effort {
            PlanningEffort::Full => &OVERLAP_PERCENTS[..],
            PlanningEffort::Sketch => &OVERLAP_PERCENTS[..2],
        };
        let mut out: Vec<EstimatedOrder> = Vec::new();
        for order in bases {
            let overlaps = order::OverlapVariants::new(self.tasks, order);
            for &percent in percents {
                let budget = lean.saturating_add((limit - lean) / 100 * percent);
                let before = out.len();
                for overlapped in overlaps.within_budget(budget) {
                    let OverlappedOrder { order, joined, peak } = overlapped;
                    let estimated =
                        EstimatedOrder { time: makespan(self.tasks, &order, &joined), peak, order, joined };
                    let is_duplicate =
                        out.iter().any(|o| o.order == estimated.order && o.joined == estimated.joined);
                    if estimated.time < time && !is_duplicate {
                        out.push(estimated);
                    }
                }
                if out.len() == before && percent == OVERLAP_PERCENTS[0] {
                    break;
                }
            }
        }
        out
    }

    /// An order whose collectives are in flight until their results are used.
    fn join_at_first_use(&self, order: Vec<u32>) -> EstimatedOrder {
        let joined = joins_at_first_use(&self.steps.permuted(&order));
        let peak = total_bytes(order::estimate_peak(self.tasks, &order));
        EstimatedOrder { time: makespan(self.tasks, &order, &joined), peak, order, joined }
    }

    /// The cheapest of `best` and the other orders that take at most `limit` bytes once they are placed.
    fn cheapest(
        &self,
        mut best: ScheduleCandidate,
        mut others: Vec<EstimatedOrder>,
        limit: u64,
    ) -> Result<ScheduleCandidate> {
        others.sort_by_key(|e| (self.weighted_cost(e.time, e.peak), e.peak));
        let mut overlaps = false;
        let mut placed = 0;
        for e in others {
            if e.time >= self.cost(&best) {
                continue;
            }
            if placed == MAX_PLACED_ORDERS {
                break;
            }
            placed += 1;
            let EstimatedOrder { order, joined, .. } = e;
            let mut attempts = vec![self.place_candidate(order.clone(), joined.clone())?];
            if attempts[0].bytes() > limit {
                attempts.extend(self.shorten_joins(order, &joined, limit)?);
            }
            for c in attempts {
                if c.bytes() <= limit && (self.cost(&c), c.bytes()) < (self.cost(&best), best.bytes()) {
                    (best, overlaps) = (c, true);
                }
            }
        }
        if overlaps {
            self.choose_separate_results(&mut best)?;
        }
        Ok(best)
    }

    /// The candidates for least memory, without overlap. Program order comes first.
    fn memory_candidates(&self) -> Result<Vec<ScheduleCandidate>> {
        let mut candidates: Vec<ScheduleCandidate> = Vec::new();
        let mut exact = false;
        let mut add_candidate = |candidates: &mut Vec<ScheduleCandidate>, order: Vec<u32>| {
            let peak = order::estimate_peak(self.tasks, &order);
            // If the model is exact, an order is placed only if the model finds it better than all others.
            let better = candidates.iter().all(|c| total_bytes(peak) < c.bytes());
            let worth = better || !exact || self.tasks.len() < MAX_UNFILTERED_STEPS;
            if worth && !candidates.iter().any(|c| c.order == order) {
                candidates.push(self.candidate_without_overlap(order)?);
                exact = candidates.iter().all(|c| c.demand == order::estimate_peak(self.tasks, &c.order));
            }
            Ok::<(), PlanError>(())
        };
        for &name in OrderStrategy::NAMED_ORDERS {
            if let Some(order) = order::build_order(self.tasks, name) {
                add_candidate(&mut candidates, order)?;
            }
        }
        for order in order::backward_orders(self.tasks) {
            add_candidate(&mut candidates, order)?;
        }
        if self.rules.effort == PlanningEffort::Sketch {
            return Ok(candidates);
        }
        let mut best: Vec<(u64, usize)> =
            candidates.iter().enumerate().map(|(i, c)| (c.bytes(), i)).collect();
        best.sort_unstable();
        for (_, i) in best.into_iter().take(MAX_IMPROVED_ORDERS) {
            let better = improve(self.tasks, &candidates[i].order);
            add_candidate(&mut candidates, better)?;
        }
        Ok(candidates)
    }

    fn candidate_without_overlap(&self, order: Vec<u32>) -> Result<ScheduleCandidate> {
        self.place_candidate(order, immediate_joins(self.steps))
    }

    /// The order with joins no later than `joined`, and as late as `limit` bytes allow.
    fn shorten_joins(
        &self,
        order: Vec<u32>,
        joined: &[u32],
        limit: u64,
    ) -> Result<Option<ScheduleCandidate>> {
        let placed = self.place_steps(
            self.steps.permuted(&order),
            immediate_joins(self.steps),
            &SeparateResults::default(),
        );
        let sized = size_classes(self.prepared, &placed, self.symbols)?;
        let demand = self.demand(&placed)?;
        let Some(room) = limit.checked_sub(total_bytes(demand)) else { return Ok(None) };
        // One arena may need all remaining bytes, or each arena half of them.
        for share in [room, room / 2] {
            let limits = demand.map(|b| b.saturating_add(share));
            let candidate = self.place_candidate(
                order.clone(),
                joins::latest_joins_within(&placed, &sized, joined, limits),
            )?;
            if candidate.bytes() <= limit {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }

    /// Places an order with these joins. Either all larger results enclose their parts or none does, whichever
    /// takes less.
    fn place_candidate(&self, order: Vec<u32>, joined: Vec<u32>) -> Result<ScheduleCandidate> {
        let steps = self.steps.permuted(&order);
        let mut separate = SeparateResults::default();
        let placed = self.place_steps(steps, joined.clone(), &separate);
        let mut demand = self.demand(&placed)?;
        let all_separate = SeparateResults(
            placed.classes.enclosing_results().filter_map(|(result, _)| placed.steps.def[result]).collect(),
        );
        if !all_separate.0.is_empty() {
            let without = self.place_steps(placed.steps, joined.clone(), &all_separate);
            let without = self.demand(&without)?;
            if total_bytes(without) < total_bytes(demand) {
                (separate, demand) = (all_separate, without);
            }
        }
        let time = makespan(self.tasks, &order, &joined);
        Ok(ScheduleCandidate { order, joined, apart: separate, demand, time })
    }

    /// Decides for each single larger result whether it encloses its parts. Only results that matter at a peak
    /// are considered.
    fn choose_separate_results(&self, candidate: &mut ScheduleCandidate) -> Result<()> {
        if self.rules.effort == PlanningEffort::Sketch {
            return Ok(());
        }
        let mut tried: BTreeSet<SeparateResults> = BTreeSet::from([candidate.apart.clone()]);
        let mut separate = candidate.apart.clone();
        let mut demand = candidate.demand;
        let mut changes = self.separation_changes(&self.place_separately(candidate, &separate), &separate)?;
        while tried.len() < MAX_PLACEMENTS {
            let Some(next) = changes.iter().find(|change| !tried.contains(change)).cloned() else { break };
            tried.insert(next.clone());
            let changed = self.place_separately(candidate, &next);
            let needed = self.demand(&changed)?;
            if total_bytes(needed) < total_bytes(demand) {
                changes = self.separation_changes(&changed, &next)?;
                separate = next;
                demand = needed;
            }
        }
        candidate.apart = separate;
        candidate.demand = demand;
        Ok(())
    }

    fn place_separately(&self, candidate: &ScheduleCandidate, apart: &SeparateResults) -> PlacedSteps {
        self.place_steps(self.steps.permuted(&candidate.order), candidate.joined.clone(), apart)
    }

    /// Changes of one larger result that can lower the peak of an arena. A result is written separately if its
    /// parts make it occupied at the peak before it is written. Its parts are placed inside if both are alive
    /// at the peak.
    fn separation_changes(
        &self,
        placed: &PlacedSteps,
        separate: &SeparateResults,
    ) -> Result<Vec<SeparateResults>> {
        let sized = size_classes(self.prepared, placed, self.symbols)?;
        let mut out = Vec::new();
        for arena in [ArenaKind::Ordinary, ArenaKind::Symmetric] {
            let load = load_by_step(&sized, placed.steps.list.len(), arena, |s| s.block);
            let peak_load = load.iter().max().copied().unwrap_or(0);
            let Some(peak) = load.iter().position(|&l| l == peak_load && l > 0) else { continue };
            for (result, class) in placed.classes.enclosing_results() {
                let first = placed.classes.list[class].first;
                let written = placed.steps.def[result];
                if let Some(step) = written.filter(|&w| (first as usize..w as usize).contains(&peak)) {
                    out.push(SeparateResults(separate.0.iter().copied().chain([step]).collect()));
                }
            }
            if separate.0.contains(&(peak as u32)) {
                out.push(SeparateResults(
                    separate.0.iter().copied().filter(|&s| s as usize != peak).collect(),
                ));
            }
        }
        Ok(out)
    }

    fn place_steps(&self, steps: StepList, joined: Vec<u32>, apart: &SeparateResults) -> PlacedSteps {
        place_steps(
            self.prepared,
            steps,
            self.rules,
            LivenessChoices { joined, kept: BTreeSet::new() },
            apart,
        )
    }

    /// The bound of each arena.
    fn demand(&self, placed: &PlacedSteps) -> Result<ArenaDemand> {
        let sized = size_classes(self.prepared, placed, self.symbols)?;
        Ok([ArenaKind::Ordinary, ArenaKind::Symmetric].map(|arena| {
            let blocks = sized.iter().filter(|s| s.arena == arena).map(|s| s.block);
            symmc_pack::load_bound(&blocks.collect::<Vec<symmc_pack::Block>>())
        }))
    }
}

/// The parts, in percent, of the memory available to overlap, for which schedules are tried.
const OVERLAP_PERCENTS: [u64; 4] = [100, 30, 10, 0];

/// The number of overlapped orders that are placed.
const MAX_PLACED_ORDERS: usize = 5;

/// The number of the leanest orders that are improved at their peaks.
const MAX_IMPROVED_ORDERS: usize = 3;

/// The number of placements of the parts of larger results that are tried for one order.
const MAX_PLACEMENTS: usize = 24;

/// The number of steps below which every order is placed, regardless of the model.
const MAX_UNFILTERED_STEPS: usize = 500;

fn place_steps(
    program: &PreparedGraph,
    steps: StepList,
    rules: &ScheduleRules<'_>,
    choices: LivenessChoices,
    apart: &SeparateResults,
) -> PlacedSteps {
    let graph = &program.graph;
    let live = Liveness::new(graph, &steps, rules.bound, rules.next_run, choices);
    let classes = BufferClasses::new(program, &steps, &live, apart);
    let mut placed = PlacedSteps { steps, live, classes };
    placed.resolve_pending_exits();
    placed
}
