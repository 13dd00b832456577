//! Orders and places a program: which order, and how long its collectives may be in flight.
//!
//! What a collective uses is either free as soon as it has started, so that whoever takes the bytes waits for it, or
//! stays occupied until a step that reads its results waits anyway. The first is the form *without overlap*, by
//! which orders are compared for memory. The order and the joins of collectives that are taken cost least: their estimated
//! time, and their memory at a price, within a limit over the leanest order without overlap.

use std::collections::BTreeSet;
use std::sync::Arc;
use symmc_ir::Symbols;

use symmc_dispatch::Unit;
use symmc_ir::machine::Profile;
use symmc_plan::ArenaKind;

use crate::barriers::{self, load};
use crate::error::{PlanError, Result};
use crate::flight;
use crate::liveness::{Choices, Liveness, NextRun, at_once, awaited};
use crate::order::{self, Demand, Order, Overlapped, Tasks, bytes, improve, makespan, more};
use crate::place::{Apart, Classes};
use crate::placed::{Placed, ScheduledProgram, sized};
use crate::prepare::Prepared;
use crate::steps::Steps;

#[derive(Clone, Copy)]
pub struct Rules<'a> {
    pub bound: &'a BTreeSet<usize>,
    pub next_run: NextRun,
    pub order: Order,
    /// How much more memory than the leanest order an order may take at most, as a fraction.
    pub slack: f64,
    /// How many nanoseconds of the run a MiB of memory is worth.
    pub price: u64,
    pub profile: Option<&'a Profile>,
}

/// An order with its joins that is not placed yet.
struct Estimated {
    order: Vec<u32>,
    joined: Vec<u32>,
    /// Estimated nanoseconds.
    time: u64,
    /// Bytes by the model.
    peak: u64,
}

struct Candidate {
    /// The steps, as they are numbered in program order.
    order: Vec<u32>,
    /// See [`Liveness::joined`].
    joined: Vec<u32>,
    apart: Apart,
    demand: Demand,
    /// Estimated nanoseconds.
    time: u64,
}

impl Candidate {
    fn bytes(&self) -> u64 {
        bytes(self.demand)
    }
}

pub fn schedule(prepared: &Arc<Prepared>, rules: &Rules<'_>) -> Result<ScheduledProgram> {
    let symbols = prepared.graph.symbols.clone();
    let steps = Steps::new(&prepared.graph, &prepared.base)?;
    let tasks = Tasks::new(prepared, &steps, &symbols, rules.profile);
    let work = Work { prepared, steps: &steps, symbols: &symbols, tasks: &tasks, rules };
    let best = work.choose()?;
    let in_place = best.order.iter().enumerate().all(|(i, &s)| i == s as usize);
    let prepared = match in_place {
        true => prepared.clone(),
        false => {
            let units: Vec<Unit> = best.order.iter().map(|&s| steps.list[s as usize].unit()).collect();
            Arc::new(prepared.reordered(&units))
        }
    };
    let steps = Steps::new(&prepared.graph, &prepared.base)?;
    let choices = Choices { joined: best.joined, kept: BTreeSet::new() };
    let placed = place(&prepared, steps, rules, choices, &best.apart);
    Ok(ScheduledProgram { prepared, placed, kept: BTreeSet::new(), apart: best.apart })
}

/// Keeps exit barriers that are dropped, so that the symmetric arena holds at most `room` bytes at any step besides fixed memory, as
/// far as that helps. Returns whether any more are kept.
pub fn keep_barriers(program: &mut ScheduledProgram, room: u64, rules: &Rules<'_>) -> Result<bool> {
    let more = barriers::keep(&program.placed, &program.sized()?, room);
    if more.is_empty() {
        return Ok(false);
    }
    program.kept.extend(more);
    let choices = Choices { joined: program.placed.live.joined.clone(), kept: program.kept.clone() };
    let steps = program.placed.steps.clone();
    program.placed = place(&program.prepared, steps, rules, choices, &program.apart);
    Ok(true)
}

struct Work<'a> {
    prepared: &'a Prepared,
    steps: &'a Steps,
    symbols: &'a Symbols,
    tasks: &'a Tasks,
    rules: &'a Rules<'a>,
}

impl Work<'_> {
    fn choose(&self) -> Result<Candidate> {
        if let Some(order) = order::named(self.tasks, self.rules.order) {
            let mut named = self.alone(order)?;
            self.take_apart(&mut named)?;
            return Ok(named);
        }
        let mut found = self.memory()?;
        let least = (0..found.len()).min_by_key(|&i| (found[i].bytes(), found[i].time)).unwrap_or(0);
        self.take_apart(&mut found[least])?;
        if self.rules.order != Order::Chosen {
            return Ok(found.swap_remove(least));
        }
        let lean = found[least].bytes();
        let limit = more(lean, self.rules.slack);
        let mut best = found.iter().enumerate().filter(|(_, c)| c.bytes() <= limit);
        let best = best.by_ref().min_by_key(|(i, c)| (self.cost(c), c.bytes(), *i)).map_or(least, |(i, _)| i);
        let bases: Vec<Vec<u32>> = if least == 0 { vec![least] } else { vec![least, 0] }
            .into_iter()
            .map(|i| found[i].order.clone())
            .collect();
        let best = found.swap_remove(best);
        let mut overlapping = self.overlapping(&bases, lean, limit, best.time);
        overlapping.extend(found.into_iter().map(|c| self.in_flight_as_long_as_used(c.order)));
        self.cheapest(best, overlapping, limit)
    }

    /// What a candidate costs: its time, and its memory at the price of the rules.
    fn cost(&self, candidate: &Candidate) -> u64 {
        self.priced(candidate.time, candidate.bytes())
    }

    fn priced(&self, time: u64, bytes: u64) -> u64 {
        let memory = u128::from(bytes) * u128::from(self.rules.price) / (1 << 20);
        time.saturating_add(u64::try_from(memory).unwrap_or(u64::MAX))
    }

    /// Overlapped forms of some orders, with the memory between `lean` and `limit`, that are faster than `time` by estimate.
    fn overlapping(&self, bases: &[Vec<u32>], lean: u64, limit: u64, time: u64) -> Vec<Estimated> {
        let mut out: Vec<Estimated> = Vec::new();
        for order in bases {
            let overlaps = order::Overlaps::new(self.tasks, order);
            for part in PARTS {
                let budget = lean.saturating_add((limit - lean) / 100 * part);
                let before = out.len();
                for overlapped in overlaps.within(budget) {
                    let Overlapped { order, joined, peak } = overlapped;
                    let estimated =
                        Estimated { time: makespan(self.tasks, &order, &joined), peak, order, joined };
                    let known =
                        out.iter().any(|o| o.order == estimated.order && o.joined == estimated.joined);
                    if estimated.time < time && !known {
                        out.push(estimated);
                    }
                }
                if out.len() == before && part == PARTS[0] {
                    break;
                }
            }
        }
        out
    }

    /// An order whose collectives are in flight until their results are used.
    fn in_flight_as_long_as_used(&self, order: Vec<u32>) -> Estimated {
        let joined = awaited(&self.steps.permuted(&order));
        let peak = bytes(order::peak(self.tasks, &order));
        Estimated { time: makespan(self.tasks, &order, &joined), peak, order, joined }
    }

    /// The cheapest of `best` and others that take at most `limit` bytes once they are placed.
    fn cheapest(&self, mut best: Candidate, mut others: Vec<Estimated>, limit: u64) -> Result<Candidate> {
        others.sort_by_key(|e| (self.priced(e.time, e.peak), e.peak));
        let mut overlaps = false;
        let mut placed = 0;
        for e in others {
            if e.time >= self.cost(&best) {
                continue;
            }
            if placed == PLACED {
                break;
            }
            placed += 1;
            let Estimated { order, joined, .. } = e;
            let mut found = vec![self.candidate(order.clone(), joined.clone())?];
            if found[0].bytes() > limit {
                found.extend(self.shortened(order, &joined, limit)?);
            }
            for c in found {
                if c.bytes() <= limit && (self.cost(&c), c.bytes()) < (self.cost(&best), best.bytes()) {
                    (best, overlaps) = (c, true);
                }
            }
        }
        if overlaps {
            self.take_apart(&mut best)?;
        }
        Ok(best)
    }

    /// The orders that are looked at for memory, without overlap; program order first.
    fn memory(&self) -> Result<Vec<Candidate>> {
        let mut found: Vec<Candidate> = Vec::new();
        let mut exact = false;
        let mut add = |found: &mut Vec<Candidate>, order: Vec<u32>| {
            let peak = order::peak(self.tasks, &order);
            // Where the model is right, an order that it finds no better is not placed.
            let better = found.iter().all(|c| bytes(peak) < c.bytes());
            let worth = better || !exact || self.tasks.len() < SMALL;
            if worth && !found.iter().any(|c| c.order == order) {
                found.push(self.alone(order)?);
                exact = found.iter().all(|c| c.demand == order::peak(self.tasks, &c.order));
            }
            Ok::<(), PlanError>(())
        };
        for &name in Order::NAMED {
            if let Some(order) = order::named(self.tasks, name) {
                add(&mut found, order)?;
            }
        }
        for order in order::backwards(self.tasks) {
            add(&mut found, order)?;
        }
        let mut best: Vec<(u64, usize)> = found.iter().enumerate().map(|(i, c)| (c.bytes(), i)).collect();
        best.sort_unstable();
        for (_, i) in best.into_iter().take(IMPROVED) {
            let better = improve(self.tasks, &found[i].order);
            add(&mut found, better)?;
        }
        Ok(found)
    }

    fn alone(&self, order: Vec<u32>) -> Result<Candidate> {
        self.candidate(order, at_once(self.steps))
    }

    /// The order with its collectives in flight no longer than `joined` and as long as so many bytes allow.
    fn shortened(&self, order: Vec<u32>, joined: &[u32], limit: u64) -> Result<Option<Candidate>> {
        let placed = self.place(self.steps.permuted(&order), at_once(self.steps), &Apart::default());
        let sized = sized(self.prepared, &placed, self.symbols)?;
        let least = self.demand(&placed)?;
        let Some(left) = limit.checked_sub(bytes(least)) else { return Ok(None) };
        // What is left for both arenas may be needed in one of them.
        for share in [left, left / 2] {
            let limits = least.map(|b| b.saturating_add(share));
            let found = self.candidate(order.clone(), flight::joins(&placed, &sized, joined, limits))?;
            if found.bytes() <= limit {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// An order with these joins; its larger results all with their parts inside or all apart, whichever takes less.
    fn candidate(&self, order: Vec<u32>, joined: Vec<u32>) -> Result<Candidate> {
        let steps = self.steps.permuted(&order);
        let mut apart = Apart::default();
        let placed = self.place(steps, joined.clone(), &apart);
        let mut demand = self.demand(&placed)?;
        let all = Apart(placed.classes.wholes().filter_map(|(whole, _)| placed.steps.def[whole]).collect());
        if !all.0.is_empty() {
            let without = self.place(placed.steps, joined.clone(), &all);
            let without = self.demand(&without)?;
            if bytes(without) < bytes(demand) {
                (apart, demand) = (all, without);
            }
        }
        let time = makespan(self.tasks, &order, &joined);
        Ok(Candidate { order, joined, apart, demand, time })
    }

    /// Decides for each larger result by itself, among those that matter where memory peaks, whether its parts are inside.
    fn take_apart(&self, candidate: &mut Candidate) -> Result<()> {
        let place = |apart: &Apart| {
            self.place(self.steps.permuted(&candidate.order), candidate.joined.clone(), apart)
        };
        let mut tried: BTreeSet<Apart> = BTreeSet::from([candidate.apart.clone()]);
        let (mut apart, mut demand) = (candidate.apart.clone(), candidate.demand);
        let mut changes = self.changes(&place(&apart), &apart)?;
        while tried.len() < PLACEMENTS {
            let Some(next) = changes.iter().find(|apart| !tried.contains(apart)).cloned() else { break };
            tried.insert(next.clone());
            let changed = place(&next);
            let needed = self.demand(&changed)?;
            if bytes(needed) < bytes(demand) {
                changes = self.changes(&changed, &next)?;
                (apart, demand) = (next, needed);
            }
        }
        (candidate.apart, candidate.demand) = (apart, demand);
        Ok(())
    }

    /// Ways to change one larger result where an arena peaks: to write it apart if its parts have it occupied there before
    /// it is written, and to have its parts inside if both are alive there.
    fn changes(&self, placed: &Placed, apart: &Apart) -> Result<Vec<Apart>> {
        let sized = sized(self.prepared, placed, self.symbols)?;
        let mut out = Vec::new();
        for arena in [ArenaKind::Ordinary, ArenaKind::Symmetric] {
            let load = load(&sized, placed.steps.list.len(), arena, |s| s.block);
            let most = load.iter().max().copied().unwrap_or(0);
            let Some(peak) = load.iter().position(|&l| l == most && l > 0) else { continue };
            for (whole, class) in placed.classes.wholes() {
                let (first, written) = (placed.classes.list[class].first, placed.steps.def[whole]);
                if let Some(step) = written.filter(|&w| (first as usize..w as usize).contains(&peak)) {
                    out.push(Apart(apart.0.iter().copied().chain([step]).collect()));
                }
            }
            if apart.0.contains(&(peak as u32)) {
                out.push(Apart(apart.0.iter().copied().filter(|&s| s as usize != peak).collect()));
            }
        }
        Ok(out)
    }

    fn place(&self, steps: Steps, joined: Vec<u32>, apart: &Apart) -> Placed {
        place(self.prepared, steps, self.rules, Choices { joined, kept: BTreeSet::new() }, apart)
    }

    /// The bound of each arena.
    fn demand(&self, placed: &Placed) -> Result<Demand> {
        let sized = sized(self.prepared, placed, self.symbols)?;
        let of = |arena| {
            let blocks = sized.iter().filter(|s| s.arena == arena).map(|s| s.block);
            symmc_pack::bound(&blocks.collect::<Vec<symmc_pack::Block>>())
        };
        Ok([of(ArenaKind::Ordinary), of(ArenaKind::Symmetric)])
    }
}

/// The parts, in percent, of the memory that overlap may take at most, with which schedules are tried.
const PARTS: [u64; 4] = [100, 30, 10, 0];

/// How many overlapped orders are placed.
const PLACED: usize = 5;

/// How many of the leanest orders are improved where they peak.
const IMPROVED: usize = 3;

/// How many ways to place the parts of larger results are tried for one order.
const PLACEMENTS: usize = 24;

/// The number of steps below which every order is placed, whatever the model says.
const SMALL: usize = 500;

fn place(program: &Prepared, steps: Steps, rules: &Rules<'_>, choices: Choices, apart: &Apart) -> Placed {
    let graph = &program.graph;
    let live = Liveness::new(graph, &steps, rules.bound, rules.next_run, choices);
    let classes = Classes::new(program, &steps, &live, apart);
    let mut placed = Placed { steps, live, classes };
    placed.settle();
    placed
}
