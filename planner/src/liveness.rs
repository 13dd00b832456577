//! Decides when memory that a step accessed may be overwritten, on this rank and with regard to its peers.
//!
//! This module uses only the order of the steps and the contracts, and knows nothing about buffers. The
//! *release* of an access is the first step in the list that may write the accessed bytes:
//! - A compute step releases its operands one step later.
//! - A collective may be in flight until a compute step waits for it. The bytes that it read or wrote are
//!   released at its *join*. The join is that compute step, so that reuse causes no wait of its own. It can
//!   also be earlier, if memory is worth more than overlap. The step that reuses the bytes then waits.
//! - A write of a sender into its receiver needs no further rule. It comes after the receiver's arrival and
//!   before the receiver's completion.
//! - An operand that peers read, with its exit barrier dropped, is released by the next collective of the
//!   communication lane that meets the same peers. After that rendezvous every peer has left the earlier
//!   collective. A collective in which only pairs meet does not count.
//! - The join of that next collective may be the very next step, and its contract may write the results after
//!   the rendezvous. Its results may then take the released bytes. Its operands are written earlier and may
//!   not.
//!
//! The next rendezvous may belong to the next run. The operand then stays occupied through the end of the run
//! and up to that rendezvous, which must come before the operand is written again.

use std::collections::BTreeSet;

use indexmap::IndexSet;
use symmc_ir::collective::{ExitBarrierPolicy, SyncScope};
use symmc_ir::entity::Entity;
use symmc_ir::{Graph, GroupId, InputKind, OutputKind, ValueId};
use symmc_plan::Lane;

use crate::steps::{BaseReaders, StepList, input_of};

/// The next collective that meets all peers of a given collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextRendezvous {
    /// A later step of the same run.
    Later(u32),
    /// A step of the next run, possibly the same step.
    NextRun(u32),
    Never,
}

/// The decision about a droppable exit barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitChoice {
    /// The step has no droppable exit barrier.
    None,
    Kept,
    /// The barrier is dropped. The operand is occupied until the rendezvous.
    Dropped(NextRendezvous),
    /// The barrier is dropped if the operand's memory turns out to be free until this step of the next run.
    Pending(u32),
}

#[derive(Clone, Debug)]
pub struct Liveness {
    /// The join of each step: the first later step that may write bytes which the step used. It lies between
    /// [`immediate_joins`] and [`joins_at_first_use`].
    pub joined: Vec<u32>,
    /// For each step whether it is a collective that writes its results after its rendezvous.
    late: Vec<bool>,
    /// The decision about each step's exit barrier.
    pub exits: Vec<ExitChoice>,
    /// The same decisions if every barrier is dropped that lifetimes can replace.
    pub options: Vec<ExitChoice>,
    pub readers: BaseReaders,
    outputs: Vec<bool>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LivenessChoices {
    /// See [`Liveness::joined`].
    pub joined: Vec<u32>,
    /// The steps whose exit barriers run although lifetimes could replace them.
    pub kept: BTreeSet<u32>,
}

/// Whether a dropped exit barrier may rely on a rendezvous of the next run. With several buckets it may not:
/// the next run may be of another bucket, whose steps are unrelated to this operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextRun {
    /// The next run has the same steps.
    Same,
    /// The next run may have other steps.
    Unknown,
}

impl Liveness {
    /// Analyses `steps`. `bound` are the indices of the bound inputs.
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
                OutputKind::Returned | OutputKind::Length { .. } => None,
            })
            .collect();
        let exits = steps.list.iter().zip(&rendezvous).map(|(step, &rendezvous)| {
            let droppable =
                step.peers.is_some_and(|p| p.contract.exit_barrier == ExitBarrierPolicy::Droppable);
            if !droppable || step.reads.is_empty() {
                return ExitChoice::None;
            }
            let communicated = step.communicated_bases();
            let mut written =
                communicated.iter().copied().filter(|&v| !is_constant(graph, &mutated, v)).peekable();
            match rendezvous {
                NextRendezvous::Later(_) => ExitChoice::Dropped(rendezvous),
                _ if written.peek().is_none() => ExitChoice::Dropped(NextRendezvous::Never),
                NextRendezvous::NextRun(y)
                    if next_run == NextRun::Same
                        && written.all(|v| {
                            let is_bound = input_of(graph, v).is_some_and(|i| bound.contains(&i.index()));
                            !is_bound && steps.def[v].is_some_and(|d| d > y)
                        }) =>
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
        let joined = choices.joined;
        let late = late.collect();
        Liveness { joined, late, exits, options, readers: steps.readers(), outputs }
    }

    /// The number of steps. As a release it means the end of the run.
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

    /// The release of a base that the step `def` writes. Outputs are released at the end of the run.
    pub fn release_step(&self, base: ValueId, def: u32) -> u32 {
        if self.outputs[base.index()] {
            return self.run_end();
        }
        let reads = self.readers.steps_reading(base).iter().map(|&s| self.read_release_step(s));
        reads.max().unwrap_or(0).max(self.joined[def as usize])
    }

    /// Whether `step` is the last reader of a base and every other access releases the base by then.
    pub fn dies_at(&self, base: ValueId, step: u32) -> bool {
        let is_last_reader = self.readers.steps_reading(base).last() == Some(&step);
        is_last_reader && !self.outputs[base.index()] && self.earlier_reads_released_at(base, step)
    }

    /// Whether every step before `step` that reads a base releases it by then.
    pub fn earlier_reads_released_at(&self, base: ValueId, step: u32) -> bool {
        let mut before = self.readers.steps_reading(base).iter().take_while(|&&s| s < step);
        before.all(|&s| self.read_release_step(s) <= step)
    }
}

/// Joins that cause no wait. For a collective the join is the first compute step that runs after its
/// completion, or the number of steps. For a compute step it is the next step.
pub fn joins_at_first_use(steps: &StepList) -> Vec<u32> {
    let end = steps.list.len() as u32;
    let mut joined: Vec<u32> = (1..=end).collect();
    // Collectives for which no compute step has waited yet, in order.
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

/// Joins that leave no collective in flight: the join of each step is the next step. A compute step that
/// overwrites bytes of a collective waits for the collective.
pub fn immediate_joins(steps: &StepList) -> Vec<u32> {
    (1..=steps.list.len() as u32).collect()
}

/// Whether the operand is an input that is written once. Such an input is never overwritten, unless its size
/// changes between runs.
fn is_constant(graph: &Graph, mutated: &BTreeSet<usize>, operand: ValueId) -> bool {
    input_of(graph, operand).is_some_and(|i| {
        let fixed_size = graph.ty(operand).shape.iter().all(|d| d.as_const().is_some());
        graph.inputs[i].kind != InputKind::Argument && !mutated.contains(&i.index()) && fixed_size
    })
}

fn find_rendezvous(graph: &Graph, steps: &StepList) -> Vec<NextRendezvous> {
    let coverage = GroupCoverage::new(graph, steps);
    let mut next = vec![NextRendezvous::Never; coverage.classes.len()];
    let mut out = vec![NextRendezvous::Never; steps.list.len()];
    for (s, step) in steps.list.iter().enumerate().rev() {
        let Some(peers) = &step.peers else { continue };
        if peers.contract.sync_scope == SyncScope::Group {
            coverage.set_covered(&mut next, peers.group, NextRendezvous::NextRun(s as u32));
        }
    }
    for (s, step) in steps.list.iter().enumerate().rev() {
        let Some(peers) = &step.peers else { continue };
        out[s] = next[coverage.class_of[peers.group.index()]];
        if peers.contract.sync_scope == SyncScope::Group {
            coverage.set_covered(&mut next, peers.group, NextRendezvous::Later(s as u32));
        }
    }
    out
}

/// Which of the groups that steps use meet all peers of which others. Groups that divide the ranks in the same way
/// form one class.
struct GroupCoverage {
    /// The class of each group that a step uses, by the index of the group.
    class_of: Vec<usize>,
    /// For each class and each rank, the first rank of its cell.
    classes: IndexSet<Vec<u32>>,
}

impl GroupCoverage {
    fn new(graph: &Graph, steps: &StepList) -> GroupCoverage {
        let mut class_of = vec![usize::MAX; graph.groups.len()];
        let mut classes = IndexSet::new();
        for peers in steps.list.iter().filter_map(|step| step.peers.as_ref()) {
            let class = &mut class_of[peers.group.index()];
            if *class == usize::MAX {
                *class = classes.insert_full(first_ranks_of_cells(graph, peers.group)).0;
            }
        }
        GroupCoverage { class_of, classes }
    }

    /// Sets the rendezvous of each class whose cells each lie within one cell of `group`: a rendezvous of `group`
    /// is one of all these cells.
    fn set_covered(&self, next: &mut [NextRendezvous], group: GroupId, rendezvous: NextRendezvous) {
        let Some(large) = self.classes.get_index(self.class_of[group.index()]) else { return };
        for (small, reach) in self.classes.iter().zip(next) {
            let mut firsts = small.iter().zip(large);
            if firsts.all(|(&first, large_first)| large.get(first as usize) == Some(large_first)) {
                *reach = rendezvous;
            }
        }
    }
}

/// For each rank the smallest rank of its cell. Every rank is in a cell.
fn first_ranks_of_cells(graph: &Graph, group: GroupId) -> Vec<u32> {
    let mut out = vec![0; graph.ranks.unwrap_or(0) as usize];
    for cell in graph.cells(group).unwrap_or_default() {
        let first = cell.iter().copied().min().unwrap_or(0);
        for rank in cell {
            if let Some(slot) = out.get_mut(rank as usize) {
                *slot = first;
            }
        }
    }
    out
}
