//! A resolved program whose inputs have other offsets in the symmetric arena than in the plan.
//!
//! Fixed memory of the plan holds one input and nothing else, in all buckets. All ranks may use other bytes
//! of their arenas for it if nothing else uses these bytes and they have the same offset on every rank. The
//! proof of the plan then still holds: it applies with these bytes renamed, in the same way on all ranks.

use std::ops::Range;
use std::sync::Arc;

use super::bucket::MemorySpace;
use super::resolved::{
    ExecutableStep, LocatedTensor, PeerRegion, ResolvedCollective, ResolvedDispatch, ResolvedInput,
    ResolvedMember, ResolvedPeers, ResolvedProgram, ResolvedRegion, StepWork,
};

/// Fixed memory with another offset, in bytes from the start of the symmetric arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelocatedRange {
    /// Its range in the plan.
    pub from: Range<usize>,
    /// Its start instead of that.
    pub to: usize,
}

/// The offset of a byte of the symmetric arena after these parts were moved.
pub(super) fn relocate_offset(moves: &[RelocatedRange], offset: usize) -> usize {
    let moved = moves.iter().find(|moved| moved.from.contains(&offset));
    moved.map_or(offset, |moved| moved.to + (offset - moved.from.start))
}

/// All moved parts.
struct Relocations<'a>(&'a [RelocatedRange]);

impl ResolvedProgram {
    /// This program with some of the fixed memory moved.
    pub fn with_relocations(&self, moves: &[RelocatedRange]) -> ResolvedProgram {
        let moves = Relocations(moves);
        ResolvedProgram {
            bucket: self.bucket,
            rank: self.rank,
            program: self.program,
            steps: self.steps.iter().map(|step| moves.relocate_step(step)).collect(),
            inputs: self.inputs.iter().map(|input| moves.relocate_input(input)).collect(),
            outputs: self.outputs.clone(),
            ordinary_bytes: self.ordinary_bytes,
            symmetric_bytes: self.symmetric_bytes,
            constants: self.constants.clone(),
        }
    }
}

impl Relocations<'_> {
    /// The offset of a byte of the symmetric arena after the move.
    fn relocated_offset(&self, offset: usize) -> usize {
        relocate_offset(self.0, offset)
    }

    fn relocate_offsets(&self, offsets: &Option<Arc<[usize]>>) -> Option<Arc<[usize]>> {
        offsets.as_ref().map(|offsets| offsets.iter().map(|&offset| self.relocated_offset(offset)).collect())
    }

    fn relocate_tensor(&self, value: &LocatedTensor) -> LocatedTensor {
        match value.space {
            MemorySpace::Symmetric => {
                LocatedTensor { offset: self.relocated_offset(value.offset), ..value.clone() }
            }
            _ => value.clone(),
        }
    }

    fn relocate_tensors(&self, values: &[LocatedTensor]) -> Vec<LocatedTensor> {
        values.iter().map(|value| self.relocate_tensor(value)).collect()
    }

    fn relocate_region(&self, region: &ResolvedRegion) -> ResolvedRegion {
        match region.space {
            MemorySpace::Symmetric => ResolvedRegion {
                space: region.space,
                offset: self.relocated_offset(region.offset),
                by_rank: self.relocate_offsets(&region.by_rank),
            },
            _ => region.clone(),
        }
    }

    fn relocate_input(&self, input: &ResolvedInput) -> ResolvedInput {
        ResolvedInput { fixed: input.fixed.map(|offset| self.relocated_offset(offset)), ..input.clone() }
    }

    fn relocate_step(&self, step: &ExecutableStep) -> ExecutableStep {
        let ExecutableStep { index, lane, waits, node, op_name, joins_previous, work } = step;
        ExecutableStep {
            index: *index,
            lane: *lane,
            waits: waits.clone(),
            node: node.clone(),
            op_name: op_name.clone(),
            joins_previous: *joins_previous,
            work: self.relocate_work(work),
        }
    }

    fn relocate_work(&self, work: &StepWork) -> StepWork {
        match work {
            StepWork::Kernel { op, operands, results } => StepWork::Kernel {
                op: op.clone(),
                operands: self.relocate_tensors(operands),
                results: self.relocate_tensors(results),
            },
            StepWork::Custom { name, kernel, operands, results, peers } => StepWork::Custom {
                name: name.clone(),
                kernel: kernel.clone(),
                operands: self.relocate_tensors(operands),
                results: self.relocate_tensors(results),
                peers: peers.as_ref().map(|peers| self.relocate_peers(peers)),
            },
            StepWork::Collective(call) => StepWork::Collective(self.relocate_collective(call)),
            StepWork::Dispatch(ResolvedDispatch { form, members, inner_bytes: inner }) => {
                let members = members.iter().map(|m| ResolvedMember {
                    node: m.node.clone(),
                    op_name: m.op_name.clone(),
                    work: self.relocate_work(&m.work),
                });
                let members = members.collect();
                StepWork::Dispatch(ResolvedDispatch { form: *form, members, inner_bytes: *inner })
            }
        }
    }

    fn relocate_collective(&self, call: &ResolvedCollective) -> ResolvedCollective {
        let splits = call.splits.as_ref();
        ResolvedCollective {
            operand: self.relocate_region(&call.operand),
            result: self.relocate_region(&call.result),
            landing: call.landing.map(|zones| zones.map(|zone| self.relocated_offset(zone))),
            splits: splits.map(|(a, b)| (self.relocate_region(a), self.relocate_region(b))),
            rows: call.rows.as_ref().map(|tables| tables.map(|region| self.relocate_region(region))),
            ..call.clone()
        }
    }

    fn relocate_peers(&self, peers: &ResolvedPeers) -> ResolvedPeers {
        ResolvedPeers {
            operands: self.relocate_peer_regions(&peers.operands),
            results: self.relocate_peer_regions(&peers.results),
            ..peers.clone()
        }
    }

    fn relocate_peer_regions(&self, regions: &[Option<PeerRegion>]) -> Vec<Option<PeerRegion>> {
        let relocated = regions.iter().map(|region| {
            let region = region.as_ref()?;
            Some(PeerRegion {
                offset: self.relocated_offset(region.offset),
                by_rank: self.relocate_offsets(&region.by_rank),
                ..region.clone()
            })
        });
        relocated.collect()
    }
}
