//! A resolved program that shares its session with other programs.
//!
//! Its parts of the symmetric arena and its groups have other offsets and numbers than in its plan, the same
//! on all ranks. A barrier of all ranks precedes its steps: the program that ran before has ended on every
//! rank before a step of this one begins. Accesses of different programs are therefore ordered whatever their
//! plans are. Consecutive runs of one program are ordered as the plan says. The barrier is part of every run,
//! because callers may replay recordings in any order.

use symmc_ir::{CollectiveKind, CollectiveVariant, DType};
use symmc_plan::{ExitBarrier, Lane};

use super::bucket::MemorySpace;
use super::relocation::{RelocatedRange, relocate_offset};
use super::resolved::{
    ExecutableStep, ResolvedCollective, ResolvedDispatch, ResolvedMember, ResolvedProgram, ResolvedRegion,
    StepWork,
};

/// The placement of a program in a session, and the numbers of its groups there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProgramPlacement {
    /// The number of the program in the session.
    pub program: usize,
    /// The parts of the symmetric arena whose offsets differ from the plan. Together they are the whole
    /// arena.
    pub relocations: Vec<RelocatedRange>,
    /// The bytes of the symmetric arena of the session.
    pub symmetric_bytes: usize,
    pub ranks: u32,
    /// For each group of the plan its number in the session.
    pub groups: Vec<usize>,
    /// The group of all ranks for the barrier before each run, if the session has other programs.
    pub barrier: Option<usize>,
}

impl ProgramPlacement {
    /// The offset in the session of a byte of the plan's symmetric arena.
    pub fn session_offset(&self, offset: usize) -> usize {
        relocate_offset(&self.relocations, offset)
    }

    fn session_group(&self, group: usize) -> usize {
        self.groups.get(group).copied().unwrap_or(group)
    }

    /// The step in which all ranks meet: a collective without elements.
    fn barrier_step(&self, group: usize, lane: Lane) -> ExecutableStep {
        let meeting = ResolvedCollective {
            kind: CollectiveKind::AllGather,
            variant: CollectiveVariant::Pull,
            exit: Some(ExitBarrier::Dropped),
            cell: (0..self.ranks).collect(),
            group,
            dtype: DType::U8,
            elements: 0,
            row_elements: 1,
            operand: ResolvedRegion::uniform(MemorySpace::Symmetric, 0),
            result: ResolvedRegion::uniform(MemorySpace::Symmetric, 0),
            blocks: None,
            landing: None,
            splits: None,
            rows: None,
        };
        ExecutableStep {
            index: 0,
            lane,
            waits: Vec::new(),
            node: "(all ranks)".into(),
            op_name: "barrier between programs".into(),
            joins_previous: false,
            work: StepWork::Collective(meeting),
        }
    }

    fn renumber_groups(&self, work: &mut StepWork) {
        match work {
            StepWork::Collective(call) => call.group = self.session_group(call.group),
            StepWork::Custom { peers: Some(peers), .. } => peers.group = self.session_group(peers.group),
            StepWork::Dispatch(ResolvedDispatch { members, .. }) => {
                members.iter_mut().for_each(|ResolvedMember { work, .. }| self.renumber_groups(work));
            }
            StepWork::Custom { peers: None, .. } | StepWork::Kernel { .. } => {}
        }
    }
}

impl ResolvedProgram {
    /// This program with the placement that it has in a session.
    pub fn with_placement(&self, placement: &ProgramPlacement) -> ResolvedProgram {
        let mut bound = self.with_relocations(&placement.relocations);
        bound.program = placement.program;
        bound.symmetric_bytes = placement.symmetric_bytes;
        bound.steps.iter_mut().for_each(|step| placement.renumber_groups(&mut step.work));
        let Some(group) = placement.barrier else { return bound };
        for step in &mut bound.steps {
            step.index += 1;
            step.waits.iter_mut().for_each(|earlier| *earlier += 1);
        }
        // Steps of the barrier's lane follow the barrier. In the other lane the first step waits for it.
        let lane = bound.steps.first().map_or(Lane::Compute, |step| step.lane);
        if let Some(first) = bound.steps.iter_mut().find(|step| step.lane != lane) {
            first.waits.push(0);
        }
        bound.steps.insert(0, placement.barrier_step(group, lane));
        bound
    }
}
