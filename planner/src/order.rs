//! The order of the steps.
//!
//! Memory and overlap pull apart: a collective that starts early and is waited for late keeps its operand
//! and its result for longer. So candidates are made, each a topological order, and the caller keeps the
//! one with the least estimated time among those that need little more memory than the leanest:
//! - *program*: the order of the nodes;
//! - *late*: each step directly before its first user;
//! - *overlap* of each: list scheduling on two lanes in estimated time. The compute lane takes the first
//!   step, in the order it starts from, whose operands have arrived; the communication lane starts a
//!   collective as soon as its operands are there. Both keep to a budget of live bytes, and at most
//!   [`IN_FLIGHT`] collectives run ahead of their users, so that an early one does not hold up an urgent one.
//!
//! Estimates decide nothing but the order, and all arithmetic is on integers, so every rank agrees. Each
//! candidate takes time near linear in the number of steps and operands.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use symmc_ir::entity::Entity;
use symmc_ir::machine::Profile;
use symmc_ir::{Op, Table, ValueId};

use crate::bucket::Symbols;
use crate::plan::{CopyReason, Lane};
use crate::prepare::Prepared;
use crate::steps::{StepInfo, Steps};

/// How many collectives may be started before a step that uses the first of them.
const IN_FLIGHT: usize = 4;

/// What ordering needs to know about the steps, in program order.
pub struct Tasks {
    lane: Vec<Lane>,
    /// For each step the steps that define its operands, ascending, each once.
    before: Lists,
    after: Lists,
    /// For each step the bases in arenas that it reads, and how many bytes it writes there.
    reads: Lists,
    writes: Vec<u64>,
    /// Bytes of each base in an arena, and how many steps read it.
    bytes: Vec<u64>,
    readers: Vec<u32>,
    /// For each step the bases that it writes.
    defines: Lists,
    /// Estimated nanoseconds.
    time: Vec<u64>,
}

/// Lists of indices in one vector.
struct Lists {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    fn from_rows(rows: impl Iterator<Item = Vec<u32>>) -> Lists {
        let (mut start, mut items) = (vec![0], Vec::new());
        for row in rows {
            items.extend(row);
            start.push(items.len() as u32);
        }
        Lists { start, items }
    }

    fn of(&self, row: usize) -> &[u32] {
        &self.items[self.start[row] as usize..self.start[row + 1] as usize]
    }

    /// The rows that hold each index below `len`.
    fn transposed(&self, len: usize) -> Lists {
        let mut rows = vec![Vec::new(); len];
        for row in 0..self.start.len() - 1 {
            for &i in self.of(row) {
                rows[i as usize].push(row as u32);
            }
        }
        Lists::from_rows(rows.into_iter())
    }
}

impl Tasks {
    /// The tasks of `steps` with sizes at the upper bounds of `symbols` and times from `profile`.
    pub fn new(program: &Prepared, steps: &Steps, symbols: &Symbols, profile: Option<&Profile>) -> Tasks {
        let graph = &program.graph;
        let sizes: Vec<u64> =
            program.bytes.values().map(|d| d.upper(symbols).clamp(0, 1 << 52) as u64).collect();
        // Inputs take no arena memory, outputs none either.
        let mut bytes: Vec<u64> =
            steps.def.iter().map(|(v, def)| if def.is_some() { sizes[v.index()] } else { 0 }).collect();
        for o in &graph.outputs {
            bytes[o.value.index()] = 0;
        }
        let mut readers = vec![0; bytes.len()];
        for v in steps.list.iter().flat_map(|s| &s.reads) {
            readers[v.index()] += 1;
        }
        let indices = |values: &[ValueId]| values.iter().map(|v| v.index() as u32).collect::<Vec<_>>();
        let mut before: Vec<Vec<u32>> =
            steps.list.iter().map(|s| s.reads.iter().filter_map(|&v| steps.def[v]).collect()).collect();
        returns_last(program, steps, &mut before);
        for row in &mut before {
            row.sort_unstable();
            row.dedup();
        }
        let before = Lists::from_rows(before.into_iter());
        let written = |s: &StepInfo| s.writes.iter().map(|v| bytes[v.index()]).fold(0, u64::saturating_add);
        let writes = steps.list.iter().map(written).collect();
        let time = steps.list.iter().map(|s| time(program, &sizes, s, symbols, profile)).collect();
        Tasks {
            lane: steps.list.iter().map(|s| s.lane).collect(),
            after: before.transposed(steps.list.len()),
            before,
            reads: Lists::from_rows(steps.list.iter().map(|s| indices(&s.reads))),
            defines: Lists::from_rows(steps.list.iter().map(|s| indices(&s.writes))),
            writes,
            bytes,
            readers,
            time,
        }
    }

    fn len(&self) -> usize {
        self.lane.len()
    }

    /// Each step directly before the first step, in program order, that uses it.
    pub fn late(&self) -> Vec<u32> {
        let mut out = Vec::with_capacity(self.len());
        let mut done = vec![false; self.len()];
        let ends = (0..self.len()).filter(|&s| self.after.of(s).is_empty());
        let mut stack: Vec<u32> = Vec::new();
        for end in ends {
            stack.push(end as u32);
            while let Some(&s) = stack.last() {
                let open = self.before.of(s as usize).iter().rev().filter(|&&b| !done[b as usize]);
                let height = stack.len();
                let open: Vec<u32> = open.copied().collect();
                stack.extend(open);
                if stack.len() == height {
                    stack.pop();
                    if !std::mem::replace(&mut done[s as usize], true) {
                        out.push(s);
                    }
                }
            }
        }
        out
    }

    /// The estimated time of an order, in nanoseconds, when the lanes run side by side.
    pub fn makespan(&self, order: &[u32]) -> u64 {
        let mut end = vec![0u64; self.len()];
        let mut lanes = [0u64; 2];
        for &s in order {
            let s = s as usize;
            let ready = self.before.of(s).iter().map(|&b| end[b as usize]).max().unwrap_or(0);
            let lane = &mut lanes[self.lane[s] as usize];
            *lane = (*lane).max(ready).saturating_add(self.time[s]);
            end[s] = *lane;
        }
        lanes[0].max(lanes[1])
    }

    /// The largest sum of live bytes in an order, without regard to what shares memory.
    pub fn peak(&self, order: &[u32]) -> u64 {
        let mut memory = Memory::new(self);
        let mut peak = 0;
        for &s in order {
            memory.start(self, s as usize);
            peak = peak.max(memory.live);
            memory.end(self, s as usize);
        }
        peak
    }

    /// Overlaps communication with computation, starting from `order` and keeping to `budget` live bytes
    /// where the order itself does.
    pub fn overlap(&self, order: &[u32], budget: u64) -> Vec<u32> {
        Scheduler::new(self, order, budget).run()
    }
}

/// Lets a copy into an output follow the other readers of what it copies: their memory can then be the
/// output's, and the copy moves nothing.
fn returns_last(program: &Prepared, steps: &Steps, before: &mut [Vec<u32>]) {
    let returns = program.copies.iter().filter(|c| c.reason == CopyReason::Output);
    let returns: Vec<(ValueId, u32)> = returns
        .filter(|c| program.whole[c.of])
        .filter_map(|c| Some((program.base[c.of], steps.def[c.value]?)))
        .collect();
    if returns.is_empty() {
        return;
    }
    let readers = steps.readers();
    for (base, copy) in returns {
        if steps.def[base].is_some() && !program.symmetric[base] {
            before[copy as usize].extend(readers.of(base).iter().filter(|&&s| s < copy));
        }
    }
}

/// The estimated time of a step: what it moves (views count as their bases) at the speed of a copy,
/// arithmetic at 256 operations for each byte of that, a collective as its profile says.
fn time(
    program: &Prepared,
    sizes: &[u64],
    step: &StepInfo,
    symbols: &Symbols,
    profile: Option<&Profile>,
) -> u64 {
    let graph = &program.graph;
    let node = &graph.nodes[step.node];
    let size = |v: &ValueId| sizes[v.index()];
    let (read, written): (u64, u64) = (step.reads.iter().map(size).sum(), step.writes.iter().map(size).sum());
    let nanoseconds = |us: f64| (us * 1000.0).clamp(0.0, 1e12) as u64;
    let copy = |bytes: u64| match profile {
        Some(p) => nanoseconds(p.copy_us(bytes)),
        None => 1000 + bytes / 1000,
    };
    match &node.op {
        Op::Collective(c) => {
            let bytes = read.max(written);
            let ranks = graph.group_size(c.group).unwrap_or(1).max(2);
            let known = c.variant.and_then(|v| profile?.estimate(&c.kind, v, Some(false), bytes, ranks));
            known.map_or(8000 + bytes / 100, nanoseconds)
        }
        Op::MatMul => {
            let inner = node.inputs.first().and_then(|&x| graph.ty(x).shape.last().map(|d| d.upper(symbols)));
            let work = (written / 2).saturating_mul(inner.unwrap_or(1).max(1) as u64) / 256;
            copy(read.saturating_add(written).max(work.min(1 << 52)))
        }
        _ => copy(read.saturating_add(written) / 2),
    }
}

/// Live bytes while an order runs.
struct Memory {
    live: u64,
    left: Vec<u32>,
}

impl Memory {
    fn new(tasks: &Tasks) -> Memory {
        Memory { live: 0, left: tasks.readers.clone() }
    }

    fn start(&mut self, tasks: &Tasks, s: usize) {
        self.live = self.live.saturating_add(tasks.writes[s]);
    }

    fn end(&mut self, tasks: &Tasks, s: usize) {
        for &v in tasks.reads.of(s) {
            let left = &mut self.left[v as usize];
            *left -= 1;
            if *left == 0 {
                self.live = self.live.saturating_sub(tasks.bytes[v as usize]);
            }
        }
        for &v in tasks.defines.of(s) {
            if tasks.readers[v as usize] == 0 {
                self.live = self.live.saturating_sub(tasks.bytes[v as usize]);
            }
        }
    }
}

/// List scheduling (see the [module](self)).
struct Scheduler<'a> {
    tasks: &'a Tasks,
    budget: u64,
    /// The position of each step in the order that it starts from.
    rank: Table<StepId, u32>,
    missing: Vec<u32>,
    /// When each scheduled step ends, in estimated time.
    end: Vec<u64>,
    now: [u64; 2],
    memory: Memory,
    /// Compute steps whose operands have arrived, by rank; and those whose operands will, by time and rank.
    ready: BinaryHeap<Reverse<(u32, u32)>>,
    later: BinaryHeap<Reverse<(u64, u32, u32)>>,
    collectives: BinaryHeap<Reverse<(u32, u32)>>,
    /// Collectives that no step has used yet.
    in_flight: usize,
    used: Vec<bool>,
    out: Vec<u32>,
}

symmc_ir::entity!(
    /// A step in program order.
    StepId,
    "s"
);

impl<'a> Scheduler<'a> {
    fn new(tasks: &'a Tasks, order: &[u32], budget: u64) -> Self {
        let mut rank = Table::filled(0, tasks.len());
        for (i, &s) in order.iter().enumerate() {
            rank[StepId::new(s as usize)] = i as u32;
        }
        Scheduler {
            tasks,
            budget,
            rank,
            missing: (0..tasks.len()).map(|s| tasks.before.of(s).len() as u32).collect(),
            end: vec![0; tasks.len()],
            now: [0; 2],
            memory: Memory::new(tasks),
            ready: BinaryHeap::new(),
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
        let fits = self.memory.live.saturating_add(self.tasks.writes[s as usize]) <= self.budget;
        if !fits || self.in_flight >= IN_FLIGHT {
            return false;
        }
        self.collectives.pop();
        self.schedule(s as usize);
        true
    }

    /// The next compute step: the first whose operands have arrived, if it fits the budget; else the first
    /// of all.
    fn compute(&mut self) -> Option<usize> {
        self.arrive();
        if self.ready.is_empty() {
            let Reverse((time, ..)) = *self.later.peek()?;
            self.now[Lane::Compute as usize] = time;
            self.arrive();
        }
        let Reverse((rank, s)) = self.ready.pop()?;
        if self.memory.live.saturating_add(self.tasks.writes[s as usize]) <= self.budget {
            return Some(s as usize);
        }
        match self.later.iter().map(|Reverse((_, rank, s))| (*rank, *s)).min() {
            Some((other, t)) if other < rank => {
                self.ready.push(Reverse((rank, s)));
                self.later.retain(|Reverse((_, _, x))| *x != t);
                Some(t as usize)
            }
            _ => Some(s as usize),
        }
    }

    /// Moves the steps whose operands have arrived by now.
    fn arrive(&mut self) {
        while let Some(&Reverse((time, rank, s))) = self.later.peek() {
            if time > self.now[Lane::Compute as usize] {
                break;
            }
            self.later.pop();
            self.ready.push(Reverse((rank, s)));
        }
    }

    fn enable(&mut self, s: usize) {
        let rank = self.rank[StepId::new(s)];
        match self.tasks.lane[s] {
            Lane::Comm => self.collectives.push(Reverse((rank, s as u32))),
            Lane::Compute => {
                let time = self.tasks.before.of(s).iter().map(|&b| self.end[b as usize]).max().unwrap_or(0);
                self.later.push(Reverse((time, rank, s as u32)));
            }
        }
    }

    fn schedule(&mut self, s: usize) {
        let ready = self.tasks.before.of(s).iter().map(|&b| self.end[b as usize]).max().unwrap_or(0);
        let lane = &mut self.now[self.tasks.lane[s] as usize];
        *lane = (*lane).max(ready).saturating_add(self.tasks.time[s]);
        self.end[s] = *lane;
        self.memory.start(self.tasks, s);
        self.memory.end(self.tasks, s);
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
