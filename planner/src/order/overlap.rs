//! Overlap: communication beside computation, by list scheduling on two lanes in estimated time.
//!
//! The compute lane takes the first step, in the order it starts from, whose operands have arrived; the
//! communication lane starts a collective as soon as its operands are there. Both keep to a budget of live bytes
//! in each arena, and a few collectives at most run ahead of their users, so that an early one does not hold up an
//! urgent one.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use symmc_plan::Lane;

use super::memory::{Bytes, Memory};
use super::model::Tasks;

/// Limits of an overlapped order.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The live bytes of each arena, kept where the order itself keeps them.
    pub budget: Bytes,
    /// How many collectives may be started before a step that uses the first of them.
    pub in_flight: usize,
}

/// Overlaps communication with computation, starting from `order`.
pub fn overlap(tasks: &Tasks, order: &[u32], limits: Limits) -> Vec<u32> {
    Scheduler::new(tasks, order, limits).run()
}

/// The estimated time of an order whose collectives are in flight for as long as their users do not need them.
pub fn fastest(tasks: &Tasks, order: &[u32]) -> u64 {
    makespan(tasks, order, &vec![tasks.len() as u32; tasks.len()])
}

/// The estimated time of an order, in nanoseconds, when the lanes run side by side and the compute lane waits for
/// each collective at its join (see [`crate::liveness::Liveness::joined`]).
pub fn makespan(tasks: &Tasks, order: &[u32], joined: &[u32]) -> u64 {
    let mut end = vec![0u64; tasks.len()];
    let mut lanes = [0u64; 2];
    // For each position what has been joined there.
    let mut due = vec![0u64; tasks.len() + 1];
    let mut met = 0;
    for (at, &s) in order.iter().enumerate() {
        let s = s as usize;
        met = met.max(due[at]);
        let mut ready = tasks.before.of(s).iter().map(|&b| end[b as usize]).max().unwrap_or(0);
        if tasks.lane[s] == Lane::Compute {
            ready = ready.max(met);
        }
        let lane = &mut lanes[tasks.lane[s] as usize];
        *lane = (*lane).max(ready).saturating_add(tasks.time[s]);
        end[s] = *lane;
        if tasks.lane[s] == Lane::Comm {
            let due = &mut due[joined[at] as usize];
            *due = (*due).max(end[s]);
        }
    }
    lanes[0].max(lanes[1])
}

/// List scheduling (see the [module](self)).
struct Scheduler<'a> {
    tasks: &'a Tasks,
    limits: Limits,
    /// The position of each step in the order that it starts from.
    rank: Vec<u32>,
    missing: Vec<u32>,
    /// When each scheduled step ends, in estimated time.
    end: Vec<u64>,
    now: [u64; 2],
    memory: Memory<'a>,
    /// Compute steps whose operands have arrived, by rank.
    ready: BinaryHeap<Reverse<(u32, u32)>>,
    /// Compute steps whose operands will arrive, by rank; and by time, with some that are not among these any more.
    waiting: BTreeSet<(u32, u32)>,
    later: BinaryHeap<Reverse<(u64, u32, u32)>>,
    collectives: BinaryHeap<Reverse<(u32, u32)>>,
    /// Collectives that no step has used yet.
    in_flight: usize,
    used: Vec<bool>,
    out: Vec<u32>,
}

impl<'a> Scheduler<'a> {
    fn new(tasks: &'a Tasks, order: &[u32], limits: Limits) -> Self {
        let mut rank = vec![0; tasks.len()];
        for (i, &s) in order.iter().enumerate() {
            rank[s as usize] = i as u32;
        }
        Scheduler {
            tasks,
            limits,
            rank,
            missing: (0..tasks.len()).map(|s| tasks.before.of(s).len() as u32).collect(),
            end: vec![0; tasks.len()],
            now: [0; 2],
            memory: Memory::new(tasks),
            ready: BinaryHeap::new(),
            waiting: BTreeSet::new(),
            later: BinaryHeap::new(),
            collectives: BinaryHeap::new(),
            in_flight: 0,
            used: vec![false; tasks.len()],
            out: Vec::with_capacity(tasks.len()),
        }
    }

    fn run(mut self) -> Vec<u32> {
        for s in 0..self.tasks.len() {
            if self.missing[s] == 0 {
                self.enable(s);
            }
        }
        while self.out.len() < self.tasks.len() {
            if self.communicate() {
                continue;
            }
            match self.compute() {
                Some(s) => self.schedule(s),
                None => match self.collectives.pop() {
                    Some(Reverse((_, s))) => self.schedule(s as usize),
                    None => break,
                },
            }
        }
        self.out
    }

    /// Starts the first collective if it fits.
    fn communicate(&mut self) -> bool {
        let Some(&Reverse((_, s))) = self.collectives.peek() else { return false };
        if !self.fits(s as usize) || self.in_flight >= self.limits.in_flight {
            return false;
        }
        self.collectives.pop();
        self.schedule(s as usize);
        true
    }

    /// Whether a step fits the budget if it comes next.
    fn fits(&self, s: usize) -> bool {
        let added = self.memory.added(s);
        (0..2).all(|a| added[a] == 0 || self.memory.live[a].saturating_add(added[a]) <= self.limits.budget[a])
    }

    /// The next compute step: the first whose operands have arrived, if it fits the budget; else the first
    /// of all.
    fn compute(&mut self) -> Option<usize> {
        self.arrive();
        let Reverse((rank, s)) = self.ready.pop()?;
        if self.fits(s as usize) {
            return Some(s as usize);
        }
        match self.waiting.first() {
            Some(&(other, t)) if other < rank => {
                self.ready.push(Reverse((rank, s)));
                self.waiting.pop_first();
                Some(t as usize)
            }
            _ => Some(s as usize),
        }
    }

    /// Moves the steps whose operands have arrived by now, or, if there is none at all, by the time that some have.
    fn arrive(&mut self) {
        let now = &mut self.now[Lane::Compute as usize];
        while let Some(&Reverse((time, rank, s))) = self.later.peek() {
            let waits = self.waiting.contains(&(rank, s));
            if waits && time > *now {
                if !self.ready.is_empty() {
                    break;
                }
                *now = time;
            }
            self.later.pop();
            if self.waiting.remove(&(rank, s)) {
                self.ready.push(Reverse((rank, s)));
            }
        }
    }

    fn enable(&mut self, s: usize) {
        let rank = self.rank[s];
        match self.tasks.lane[s] {
            Lane::Comm => self.collectives.push(Reverse((rank, s as u32))),
            Lane::Compute => {
                let time = self.tasks.before.of(s).iter().map(|&b| self.end[b as usize]).max().unwrap_or(0);
                self.later.push(Reverse((time, rank, s as u32)));
                self.waiting.insert((rank, s as u32));
            }
        }
    }

    fn schedule(&mut self, s: usize) {
        let ready = self.tasks.before.of(s).iter().map(|&b| self.end[b as usize]).max().unwrap_or(0);
        let lane = &mut self.now[self.tasks.lane[s] as usize];
        *lane = (*lane).max(ready).saturating_add(self.tasks.time[s]);
        self.end[s] = *lane;
        self.memory.run(s);
        for &b in self.tasks.before.of(s) {
            if self.tasks.lane[b as usize] == Lane::Comm
                && !std::mem::replace(&mut self.used[b as usize], true)
            {
                self.in_flight -= 1;
            }
        }
        if self.tasks.lane[s] == Lane::Comm && !self.tasks.after.of(s).is_empty() {
            self.in_flight += 1;
        }
        self.out.push(s as u32);
        for &a in self.tasks.after.of(s) {
            self.missing[a as usize] -= 1;
            if self.missing[a as usize] == 0 {
                self.enable(a as usize);
            }
        }
    }
}
