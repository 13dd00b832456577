//! A resolved program that shares its session with other programs.
//!
//! Its parts of the symmetric arena and its groups have other places and numbers than in its plan, the same on all ranks. A barrier of
//! all ranks precedes its steps: whatever program ran before has ended on every rank before a step of this one begins, so that
//! accesses of different programs are ordered whatever their plans are. Runs of one program after each other are ordered as the plan
//! says. The barrier is part of every run, because recordings of callers are replayed in an order that nobody knows.

use symmc_ir::{CollectiveKind, DType, Variant};
use symmc_plan::{ExitBarrier, Lane};

use super::bound::{Bound, BoundCollective, BoundDispatch, BoundRegion, BoundStep, Member, Work};
use super::bucket::MemorySpace;
use super::moved::{Moved, moved_offset};

/// Where a program of a session lies, and what its groups are called there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// The number of the program in the session.
    pub program: usize,
    /// The parts of the symmetric arena that lie elsewhere than in the plan. Together they are all of it.
    pub moves: Vec<Moved>,
    /// The bytes of the symmetric arena of the session.
    pub symmetric: usize,
    pub ranks: u32,
    /// For each group of the plan its number in the session.
    pub groups: Vec<usize>,
    /// The group of all ranks that meets before each run, if the session has other programs.
    pub barrier: Option<usize>,
}

impl Placement {
    /// Where a byte of the symmetric arena of the plan lies.
    pub fn offset(&self, offset: usize) -> usize {
        moved_offset(&self.moves, offset)
    }

    fn group(&self, group: usize) -> usize {
        self.groups.get(group).copied().unwrap_or(group)
    }

    /// The step in which all ranks meet: a collective without elements.
    fn barrier(&self, group: usize, lane: Lane) -> BoundStep {
        let nothing = || BoundRegion::even(MemorySpace::Symmetric, 0);
        let meeting = BoundCollective {
            kind: CollectiveKind::AllGather,
            variant: Variant::Pull,
            exit: Some(ExitBarrier::Dropped),
            cell: (0..self.ranks).collect(),
            group,
            dtype: DType::U8,
            elements: 0,
            row: 1,
            operand: nothing(),
            result: nothing(),
            blocks: None,
            landing: None,
            splits: None,
        };
        BoundStep {
            index: 0,
            lane,
            waits: Vec::new(),
            node: "(all ranks)".into(),
            op_name: "barrier between programs".into(),
            work: Work::Collective(meeting),
        }
    }

    fn renumber_groups(&self, work: &mut Work) {
        match work {
            Work::Collective(call) => call.group = self.group(call.group),
            Work::Custom { peers: Some(peers), .. } => peers.group = self.group(peers.group),
            Work::Dispatch(BoundDispatch { members, .. }) => {
                members.iter_mut().for_each(|Member { work, .. }| self.renumber_groups(work));
            }
            Work::Custom { peers: None, .. } | Work::Kernel { .. } => {}
        }
    }
}

impl Bound {
    /// The same where a session has it.
    pub fn placed(&self, placement: &Placement) -> Bound {
        let mut bound = self.moved(&placement.moves);
        (bound.program, bound.symmetric) = (placement.program, placement.symmetric);
        bound.steps.iter_mut().for_each(|step| placement.renumber_groups(&mut step.work));
        let Some(group) = placement.barrier else { return bound };
        for step in &mut bound.steps {
            step.index += 1;
            step.waits.iter_mut().for_each(|earlier| *earlier += 1);
        }
        // Steps of the barrier's lane follow it; of the other lane, those after the first follow that one.
        let lane = bound.steps.first().map_or(Lane::Compute, |step| step.lane);
        if let Some(first) = bound.steps.iter_mut().find(|step| step.lane != lane) {
            first.waits.push(0);
        }
        bound.steps.insert(0, placement.barrier(group, lane));
        bound
    }
}
