//! A resolved program whose inputs lie elsewhere in the symmetric arena than the plan says.
//!
//! Fixed memory of the plan holds one input and nothing else, in all buckets. Where all ranks take other bytes of their
//! arenas for it, which nothing else uses and which have the same offset on every rank, what was proved of the plan
//! holds as before: every access to these bytes has another name, the same on all ranks.

use std::ops::Range;
use std::sync::Arc;

use super::bound::{
    Bound, BoundCollective, BoundDispatch, BoundInput, BoundPeers, BoundRegion, BoundStep, Located, Member,
    PeerRegion, Work,
};
use super::bucket::MemorySpace;

/// Fixed memory that lies elsewhere, in bytes from the start of the symmetric arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Where the plan has it.
    pub from: Range<usize>,
    /// Where it starts instead.
    pub to: usize,
}

/// Where a byte of the symmetric arena lies, of which these parts lie elsewhere.
pub(super) fn moved_offset(moves: &[Moved], offset: usize) -> usize {
    let moved = moves.iter().find(|moved| moved.from.contains(&offset));
    moved.map_or(offset, |moved| moved.to + (offset - moved.from.start))
}

/// All that lies elsewhere.
struct Moves<'a>(&'a [Moved]);

impl Bound {
    /// The same with some of the fixed memory elsewhere.
    pub fn moved(&self, moves: &[Moved]) -> Bound {
        let moves = Moves(moves);
        Bound {
            bucket: self.bucket,
            rank: self.rank,
            program: self.program,
            steps: self.steps.iter().map(|step| moves.step(step)).collect(),
            inputs: self.inputs.iter().map(|input| moves.input(input)).collect(),
            outputs: self.outputs.clone(),
            ordinary: self.ordinary,
            symmetric: self.symmetric,
            constants: self.constants.clone(),
        }
    }
}

impl Moves<'_> {
    /// Where a byte of the symmetric arena lies.
    fn offset(&self, offset: usize) -> usize {
        moved_offset(self.0, offset)
    }

    fn by_rank(&self, offsets: &Option<Arc<[usize]>>) -> Option<Arc<[usize]>> {
        offsets.as_ref().map(|offsets| offsets.iter().map(|&offset| self.offset(offset)).collect())
    }

    fn located(&self, value: &Located) -> Located {
        match value.space {
            MemorySpace::Symmetric => Located { offset: self.offset(value.offset), ..value.clone() },
            _ => value.clone(),
        }
    }

    fn all(&self, values: &[Located]) -> Vec<Located> {
        values.iter().map(|value| self.located(value)).collect()
    }

    fn region(&self, region: &BoundRegion) -> BoundRegion {
        match region.space {
            MemorySpace::Symmetric => BoundRegion {
                space: region.space,
                offset: self.offset(region.offset),
                by_rank: self.by_rank(&region.by_rank),
            },
            _ => region.clone(),
        }
    }

    fn input(&self, input: &BoundInput) -> BoundInput {
        BoundInput { fixed: input.fixed.map(|offset| self.offset(offset)), ..input.clone() }
    }

    fn step(&self, step: &BoundStep) -> BoundStep {
        let BoundStep { index, lane, waits, node, op_name, work } = step;
        let (waits, node, op_name) = (waits.clone(), node.clone(), op_name.clone());
        BoundStep { index: *index, lane: *lane, waits, node, op_name, work: self.work(work) }
    }

    fn work(&self, work: &Work) -> Work {
        match work {
            Work::Kernel { op, operands, results } => {
                Work::Kernel { op: op.clone(), operands: self.all(operands), results: self.all(results) }
            }
            Work::Custom { name, kernel, operands, results, peers } => Work::Custom {
                name: name.clone(),
                kernel: kernel.clone(),
                operands: self.all(operands),
                results: self.all(results),
                peers: peers.as_ref().map(|peers| self.peers(peers)),
            },
            Work::Collective(call) => Work::Collective(self.collective(call)),
            Work::Dispatch(BoundDispatch { form, members, inner }) => {
                let member = |m: &Member| Member {
                    node: m.node.clone(),
                    op_name: m.op_name.clone(),
                    work: self.work(&m.work),
                };
                let members = members.iter().map(member).collect();
                Work::Dispatch(BoundDispatch { form: *form, members, inner: *inner })
            }
        }
    }

    fn collective(&self, call: &BoundCollective) -> BoundCollective {
        let both = |(a, b): &(BoundRegion, BoundRegion)| (self.region(a), self.region(b));
        BoundCollective {
            operand: self.region(&call.operand),
            result: self.region(&call.result),
            landing: call.landing.map(|zones| zones.map(|zone| self.offset(zone))),
            splits: call.splits.as_ref().map(both),
            ..call.clone()
        }
    }

    fn peers(&self, peers: &BoundPeers) -> BoundPeers {
        let region = |region: &PeerRegion| PeerRegion {
            offset: self.offset(region.offset),
            by_rank: self.by_rank(&region.by_rank),
            ..region.clone()
        };
        let all = |regions: &[Option<PeerRegion>]| regions.iter().map(|r| r.as_ref().map(region)).collect();
        BoundPeers { operands: all(&peers.operands), results: all(&peers.results), ..peers.clone() }
    }
}
