//! Custom ops of a run: the kernel of one, with its operands and results on this rank and what it may touch on peers.

use super::bound::{BoundPeers, Located, PeerRegion};
use super::step::StepRun;
use crate::call::{PeerCall, PeerMemory};
use crate::custom::{CustomCall, Entry, Side, Written, invoke};
use crate::error::Result;
use crate::kernels::View;

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
    pub unsafe fn run(&self, step: &StepRun<'_>) -> Result<()> {
        let Some(peers) = self.peers else {
            let sides = [self.own(step)];
            let cell = [step.rank];
            // SAFETY: by the caller; one rank alone.
            let mut call =
                unsafe { CustomCall::new(self.name, &cell, 0, &self.kernel.signature, &sides, &|| ()) };
            return invoke(self.kernel, &mut call).map_err(|e| step.failed(e));
        };
        let call = PeerCall {
            step: step.index,
            name: step.node,
            op: self.op,
            cell: &peers.cell,
            group: peers.group,
        };
        let mut kernel = |memory: &dyn PeerMemory| {
            let number = peers.number;
            let side = |p| if p == number { Ok(self.own(step)) } else { self.on_peer(peers, p, memory) };
            let sides = (0..peers.cell.len()).map(side).collect::<Result<Vec<_>>>()?;
            let (signature, touch) = (&self.kernel.signature, || memory.touch());
            // SAFETY: by the caller; the barriers around the kernel order it with those of the peers.
            let mut call =
                unsafe { CustomCall::new(self.name, &peers.cell, number, signature, &sides, &touch) };
            invoke(self.kernel, &mut call).map_err(|e| step.failed(e))
        };
        // SAFETY: by the caller.
        unsafe { step.comm.custom(&call, &mut kernel) }
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
    fn on_peer(&self, peers: &BoundPeers, p: usize, memory: &dyn PeerMemory) -> Result<Side<'a>> {
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
            operands: self.operands.iter().zip(&peers.operands).map(view).collect::<Result<_>>()?,
            results: self.results.iter().zip(&peers.results).map(written).collect::<Result<_>>()?,
        })
    }
}
