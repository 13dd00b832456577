//! When memory that a step touched may be written again, on this rank and with regard to its peers.
//!
//! Everything here follows from the order of the steps and the contracts; it knows no buffers. A *release*
//! is the first step, in the order of the list, that may write bytes which an access used:
//! - A compute step releases what it read one step later.
//! - A collective may be in flight until a compute step waits for it. What it read or wrote is released at
//!   its *join*: at that step, so that reuse does not force a wait of its own, or before it where memory is worth
//!   more than overlap; then the step that reuses the bytes waits.
//! - What a sender writes into its receiver needs no more than that: it comes after the receiver's arrival
//!   and before its completion.
//! - An operand that peers read, with its exit barrier dropped, is released by the next collective in the
//!   order of the communication lane that meets the same peers: by the time that it has met, every peer has
//!   left the earlier one. A collective whose pairs meet is none that does. If its join is the very next
//!   step, and its contract has it write its results after the rendezvous, these may already take the bytes; its
//!   operands, which are written before it, may not.
//!
//! The next rendezvous may be that of the next run. Then the operand stays occupied through the end of the run
//! and on to that rendezvous, which must come before the operand is written again.

use std::collections::BTreeSet;

use symmc_ir::collective::{ExitBarrierPolicy, SyncScope};
use symmc_ir::entity::Entity;
use symmc_ir::{Graph, GroupId, InputKind, OutputKind, ValueId};
use symmc_plan::Lane;

use crate::steps::{BaseReaders, StepList, input_of};

/// The next collective that meets all peers of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextRendezvous {
    /// At this later step of the run.
    Later(u32),
    /// At this step of the next run, possibly the same step.
    NextRun(u32),
    Never,
}

/// What is decided about an exit barrier that can be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitChoice {
    /// The step has none that can be dropped.
    None,
    Kept,
    /// Dropped; the operand is occupied until the rendezvous.
    Dropped(NextRendezvous),
    /// Dropped if the operand's memory turns out to be free until this step of the next run.
    Pending(u32),
}

#[derive(Clone, Debug)]
pub struct Liveness {
    /// The first step, behind each, that may write bytes which it used ([`awaited`], [`at_once`], or between).
    pub joined: Vec<u32>,
    /// For a collective: whether it writes its results after its rendezvous.
    late: Vec<bool>,
    /// For each step, what is decided about its exit barrier.
    pub exits: Vec<ExitChoice>,
    /// The same if every barrier is dropped that lifetimes can stand in for.
    pub options: Vec<ExitChoice>,
    pub readers: BaseReaders,
    outputs: Vec<bool>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LivenessChoices {
    /// See [`Liveness::joined`].
    pub joined: Vec<u32>,
    /// The steps whose exit barriers run although lifetimes could stand in for them.
    pub kept: BTreeSet<u32>,
}

/// Whether a dropped exit may rely on a rendezvous of the next run. With several buckets it may not, because
/// the next run may be of another bucket, whose steps know nothing of this operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextRun {
    /// The next run has the same steps.
    Same,
    /// The next run may have others.
    Unknown,
}

impl Liveness {
    /// Analyses `steps`, with these inputs bound.
    pub fn new(
        graph: &Graph,
        steps: &StepList,
        bound: &BTreeSet<usize>,
        next_run: NextRun,
        choices: LivenessChoices,
    ) -> Liveness {
        let rendezvous = find_rendezvous(graph, steps);
        let mutated: BTreeSet<usize> = graph
            .outputs
            .iter()
            .filter_map(|o| match o.kind {
                OutputKind::Mutates(input) => Some(input.index()),
                OutputKind::Returned => None,
            })
            .collect();
        let exits = steps.list.iter().zip(&rendezvous).map(|(step, &rendezvous)| {
            let droppable =
                step.peers.is_some_and(|p| p.contract.exit_barrier == ExitBarrierPolicy::Droppable);
            if !droppable || step.reads.is_empty() {
                return ExitChoice::None;
            }
            // An input that is given once is never written again, unless its size changes between runs.
            let is_constant = |operand: ValueId| {
                input_of(graph, operand).is_some_and(|i| {
                    let fixed_size = graph.ty(operand).shape.iter().all(|d| d.as_const().is_some());
                    graph.inputs[i].kind != InputKind::Argument && !mutated.contains(&i.index()) && fixed_size
                })
            };
            let mut written =
                step.communicated_bases().iter().copied().filter(|&v| !is_constant(v)).peekable();
            let is_bound = |v: ValueId| input_of(graph, v).is_some_and(|i| bound.contains(&i.index()));
            match rendezvous {
                NextRendezvous::Later(_) => ExitChoice::Dropped(rendezvous),
                _ if written.peek().is_none() => ExitChoice::Dropped(NextRendezvous::Never),
                NextRendezvous::NextRun(y)
                    if next_run == NextRun::Same
                        && written.all(|v| !is_bound(v) && steps.def[v].is_some_and(|d| d > y)) =>
                {
                    ExitChoice::Pending(y)
                }
                _ => ExitChoice::Kept,
            }
        });
        let options: Vec<ExitChoice> = exits.collect();
        let mut exits = options.clone();
        for &s in &choices.kept {
            if matches!(exits[s as usize], ExitChoice::Dropped(_) | ExitChoice::Pending(_)) {
                exits[s as usize] = ExitChoice::Kept;
            }
        }
        let mut outputs = vec![false; graph.values.len()];
        for o in &graph.outputs {
            outputs[o.value.index()] = true;
        }
        let late = steps.list.iter().map(|s| s.peers.is_some_and(|p| p.contract.result_after_rendezvous));
        let (joined, late) = (choices.joined, late.collect());
        Liveness { joined, late, exits, options, readers: steps.readers(), outputs }
    }

    /// The number of steps, which stands for the end of the run.
    pub fn run_end(&self) -> u32 {
        self.joined.len() as u32
    }

    /// The release of an operand that a step read.
    pub fn read_release_step(&self, step: u32) -> u32 {
        let own = self.joined[step as usize];
        match self.exits[step as usize] {
            ExitChoice::Dropped(NextRendezvous::Later(y)) => self.rendezvous_release_step(y).max(own.min(y)),
            ExitChoice::Dropped(NextRendezvous::NextRun(_)) | ExitChoice::Pending(_) => self.run_end(),
            _ => own,
        }
    }

    /// The release of bytes that peers stop reading when `rendezvous` has met.
    pub fn rendezvous_release_step(&self, rendezvous: u32) -> u32 {
        match self.joined[rendezvous as usize] {
            join if join == rendezvous + 1 && self.late[rendezvous as usize] => rendezvous,
            join => join,
        }
    }

    /// The release of a base that the step `def` writes: the end of the run for outputs.
    pub fn release_step(&self, base: ValueId, def: u32) -> u32 {
        if self.outputs[base.index()] {
            return self.run_end();
        }
        let reads = self.readers.steps_reading(base).iter().map(|&s| self.read_release_step(s));
        reads.max().unwrap_or(0).max(self.joined[def as usize])
    }

    /// Whether `step` is the last to need a base: every other access releases it by then.
    pub fn dies_at(&self, base: ValueId, step: u32) -> bool {
        let last = self.readers.steps_reading(base).last() == Some(&step);
        last && !self.outputs[base.index()] && self.earlier_reads_released_at(base, step)
    }

    /// Whether every step before `step` that reads a base releases it by then.
    pub fn earlier_reads_released_at(&self, base: ValueId, step: u32) -> bool {
        let mut before = self.readers.steps_reading(base).iter().take_while(|&&s| s < step);
        before.all(|&s| self.read_release_step(s) <= step)
    }
}

/// Joins that force no wait: for a collective the first compute step that runs after it has completed, or the
/// number of steps; for a compute step the next one.
pub fn joins_at_first_use(steps: &StepList) -> Vec<u32> {
    let end = steps.list.len() as u32;
    let mut joined: Vec<u32> = (1..=end).collect();
    // Collectives that no compute step has waited for yet, in order.
    let mut open = std::collections::VecDeque::new();
    for (s, step) in steps.list.iter().enumerate() {
        match step.lane {
            Lane::Comm => open.push_back(s as u32),
            Lane::Compute => {
                let awaited = step.reads.iter().filter_map(|&v| steps.def[v]);
                let awaited = awaited.filter(|&d| steps.list[d as usize].lane == Lane::Comm).max();
                while let Some(&first) = open.front().filter(|&&c| Some(c) <= awaited) {
                    joined[first as usize] = s as u32;
                    open.pop_front();
                }
            }
        }
    }
    for c in open {
        joined[c as usize] = end;
    }
    joined
}

/// Joins that leave nothing in flight: for each step the next. Where a compute step writes over bytes of a collective,
/// it waits for that.
pub fn immediate_joins(steps: &StepList) -> Vec<u32> {
    (1..=steps.list.len() as u32).collect()
}

fn find_rendezvous(graph: &Graph, steps: &StepList) -> Vec<NextRendezvous> {
    let covers = GroupCoverage::new(graph);
    let mut next = vec![NextRendezvous::Never; graph.groups.len()];
    let mut out = vec![NextRendezvous::Never; steps.list.len()];
    let collectives =
        || steps.list.iter().enumerate().rev().filter_map(|(s, step)| Some((s, step.peers.as_ref()?)));
    let met = |next: &mut Vec<NextRendezvous>, group: GroupId, rendezvous| {
        for (g, known) in next.iter_mut().enumerate() {
            if covers.covers(group, g) {
                *known = rendezvous;
            }
        }
    };
    for (s, peers) in collectives() {
        if peers.contract.sync_scope == SyncScope::Group {
            met(&mut next, peers.group, NextRendezvous::NextRun(s as u32));
        }
    }
    for (s, peers) in collectives() {
        out[s] = next[peers.group.index()];
        if peers.contract.sync_scope == SyncScope::Group {
            met(&mut next, peers.group, NextRendezvous::Later(s as u32));
        }
    }
    out
}

/// Which groups meet all peers of which other groups.
struct GroupCoverage(Vec<Vec<bool>>);

impl GroupCoverage {
    fn new(graph: &Graph) -> GroupCoverage {
        // The cell of each rank, by group.
        let cell_of: Vec<Vec<usize>> = graph
            .groups
            .keys()
            .map(|g| {
                let mut cell_of = Vec::new();
                for (c, cell) in graph.cells(g).unwrap_or_default().iter().enumerate() {
                    for &rank in cell {
                        let rank = rank as usize;
                        if cell_of.len() <= rank {
                            cell_of.resize(rank + 1, usize::MAX);
                        }
                        cell_of[rank] = c;
                    }
                }
                cell_of
            })
            .collect();
        let within = |large: &Vec<usize>, cells: &[Vec<u32>]| {
            let of = |rank: &u32| large.get(*rank as usize);
            cells.iter().all(|cell| cell.iter().all(|r| of(r).is_some() && of(r) == of(&cell[0])))
        };
        let rows = cell_of.iter().map(|large| {
            let small = graph.groups.keys().map(|g| within(large, &graph.cells(g).unwrap_or_default()));
            small.collect()
        });
        GroupCoverage(rows.collect())
    }

    /// Whether a rendezvous of `group` is a rendezvous of all cells of the group with index `other`.
    fn covers(&self, group: GroupId, other: usize) -> bool {
        self.0[group.index()][other]
    }
}
