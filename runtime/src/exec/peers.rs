//! What a custom op may touch on its peers, resolved: the memory of each operand and result that its signature
//! names, on every rank of the cell.

use std::sync::Arc;

use symmc_ir::entity::Entity;
use symmc_ir::{CustomId, NodeId, ValueId};

use super::bind::{Binder, Located, offset_on};
use super::program::Home;
use super::run::StepRun;
use crate::call::{PeerCall, PeerMemory};
use crate::custom::{CustomCall, Entry, Side, Written, invoke};
use crate::error::RunError;
use crate::kernels::View;

/// The peers of a custom op.
#[derive(Clone, Debug)]
pub struct BoundPeers {
    /// The ranks of this rank's cell, in the order of the group.
    pub cell: Vec<u32>,
    /// This rank's number within the cell.
    pub number: usize,
    /// The index of the group.
    pub group: usize,
    /// Where each operand lies in the arenas of the cell; `None` for one that peers do not read.
    pub operands: Vec<Option<PeerRegion>>,
    /// Where each result lies in the arenas of the cell; `None` for one that peers do not write.
    pub results: Vec<Option<PeerRegion>>,
}

/// A value in the symmetric arenas of a cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerRegion {
    /// Bytes from the start of the arena to its base, on every rank that `by_rank` does not tell of.
    pub offset: usize,
    /// Where its base starts on each rank of the run, if it lies elsewhere on each.
    pub by_rank: Option<Arc<[usize]>>,
    /// The size of its base.
    pub bytes: usize,
    /// Bytes from the start of its base to its first element.
    pub first: usize,
}

impl PeerRegion {
    /// The first element on the rank of this number in the cell.
    fn on(&self, memory: &dyn PeerMemory, cell: &[u32], number: usize) -> Result<*mut u8, RunError> {
        let offset = offset_on(self.offset, self.by_rank.as_deref(), cell[number]);
        let base = memory.at(number, offset, self.bytes)?;
        Ok(base.wrapping_add(self.first))
    }
}

impl Binder<'_> {
    /// The peers of a custom op; `None` for an op without a group.
    pub(super) fn peers(&self, id: NodeId, custom: CustomId) -> Result<Option<BoundPeers>, RunError> {
        let (node, op) = (&self.graph.nodes[id], &self.graph.customs[custom]);
        let Some(group) = op.group else { return Ok(None) };
        let cells = self.graph.cells(group).unwrap_or_default();
        let cell = cells.iter().find(|cell| cell.contains(&self.program.rank)).cloned();
        let cell = cell.ok_or_else(|| self.invalid(node.outputs[0], "this rank is not in its group"))?;
        let number = cell.iter().position(|&r| r == self.program.rank).unwrap_or(0);
        let all = |values: &[ValueId], named: &[usize]| {
            let of = |(i, &v): (usize, &ValueId)| named.contains(&i).then(|| self.on_peers(v));
            values.iter().enumerate().map(|value| of(value).transpose()).collect::<Result<Vec<_>, _>>()
        };
        let operands = all(&node.inputs, &op.symmetric_operands)?;
        let results = all(&node.outputs, &op.symmetric_results)?;
        Ok(Some(BoundPeers { group: group.index(), cell, number, operands, results }))
    }

    fn on_peers(&self, value: ValueId) -> Result<PeerRegion, RunError> {
        let at = self.located(value)?;
        if at.home != Home::Symmetric {
            return Err(self.invalid(value, "peers touch it, but it does not lie in the symmetric arena"));
        }
        let base = self.program.layouts[value].base;
        let own = self.located(base)?;
        let (first, bytes) = (at.offset - own.offset, self.bytes(base)?);
        Ok(PeerRegion { offset: own.offset, by_rank: self.by_rank(base, &own)?, bytes, first })
    }
}

/// A custom op on one rank, ready to run.
pub(super) struct CustomStep<'a> {
    pub name: &'a str,
    pub op: &'a str,
    pub kernel: &'a Entry,
    pub operands: &'a [Located],
    pub results: &'a [Located],
    pub peers: Option<&'a BoundPeers>,
}

impl<'a> CustomStep<'a> {
    /// Runs the kernel, between the barriers of its contract if it touches peers.
    ///
    /// # Safety
    /// The operands and results were resolved against memory that is there, and the plan orders the step.
    pub unsafe fn run(&self, step: &StepRun<'_>) -> Result<(), RunError> {
        let Some(peers) = self.peers else {
            let sides = [self.own(step)];
            let cell = [step.rank()];
            // SAFETY: by the caller; one rank alone.
            let mut call =
                unsafe { CustomCall::new(self.name, &cell, 0, &self.kernel.signature, &sides, &|| ()) };
            return invoke(self.kernel, &mut call).map_err(|e| step.failed(e));
        };
        let call = PeerCall {
            step: step.index(),
            name: step.node(),
            op: self.op,
            cell: &peers.cell,
            group: peers.group,
        };
        let mut kernel = |memory: &dyn PeerMemory| {
            let number = peers.number;
            let side = |p| if p == number { Ok(self.own(step)) } else { self.on_peer(peers, p, memory) };
            let sides = (0..peers.cell.len()).map(side).collect::<Result<Vec<_>, RunError>>()?;
            let (signature, touch) = (&self.kernel.signature, || memory.touch());
            // SAFETY: by the caller; the barriers around the kernel order it with those of the peers.
            let mut call =
                unsafe { CustomCall::new(self.name, &peers.cell, number, signature, &sides, &touch) };
            invoke(self.kernel, &mut call).map_err(|e| step.failed(e))
        };
        // SAFETY: by the caller.
        unsafe { step.communicator().custom(&call, &mut kernel) }
    }

    /// All operands and results of this rank.
    fn own(&self, step: &StepRun<'_>) -> Side<'a> {
        let written = |y: &'a Located| Written { dtype: y.dtype, shape: &y.shape, ptr: step.address(y) };
        Side {
            operands: self.operands.iter().map(|x| Some(step.view(x))).collect(),
            results: self.results.iter().map(|y| Some(written(y))).collect(),
        }
    }

    /// What the kernel may touch on the rank of number `p`.
    fn on_peer(&self, peers: &BoundPeers, p: usize, memory: &dyn PeerMemory) -> Result<Side<'a>, RunError> {
        let view = |(x, region): (&'a Located, &Option<PeerRegion>)| {
            let Some(region) = region else { return Ok(None) };
            let ptr = region.on(memory, &peers.cell, p)?;
            // SAFETY: the view lies within its base on every rank alike, and the base in the arena of the peer;
            // the contract of the op lets this rank read it.
            Ok(Some(unsafe { View::new(x.dtype, &x.shape, &x.strides, ptr) }))
        };
        let written = |(y, region): (&'a Located, &Option<PeerRegion>)| {
            let Some(region) = region else { return Ok(None) };
            Ok(Some(Written { dtype: y.dtype, shape: &y.shape, ptr: region.on(memory, &peers.cell, p)? }))
        };
        Ok(Side {
            operands: self.operands.iter().zip(&peers.operands).map(view).collect::<Result<_, RunError>>()?,
            results: self.results.iter().zip(&peers.results).map(written).collect::<Result<_, RunError>>()?,
        })
    }
}
