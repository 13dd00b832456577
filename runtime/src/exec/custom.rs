//! Custom ops of a run: calls the kernel with its operands and results on this rank, and the memory of peers
//! that it may access.

use super::resolved::{LocatedTensor, ResolvedPeers};
use super::step::StepRun;
use crate::call::{PeerCall, PeerMemory};
use crate::custom::{CustomCall, KernelEntry, RankTensors, ResultMemory, invoke_kernel};
use crate::error::Result;
use crate::kernels::TensorView;

pub(super) struct CustomStep<'a> {
    pub name: &'a str,
    pub op: &'a str,
    pub kernel: &'a KernelEntry,
    pub operands: &'a [LocatedTensor],
    pub results: &'a [LocatedTensor],
    pub peers: Option<&'a ResolvedPeers>,
}

impl<'a> CustomStep<'a> {
    /// Runs the kernel. If it touches peers, the barriers of its contract surround it.
    ///
    /// # Safety
    /// The operands and results were resolved against memory that exists, and the plan orders the step.
    pub unsafe fn run(&self, step: &StepRun<'_>) -> Result<()> {
        let Some(peers) = self.peers else {
            let sides = [self.own_tensors(step)];
            let cell = [step.rank];
            // SAFETY: by the caller; the cell has one rank.
            let mut call =
                unsafe { CustomCall::new(self.name, &cell, 0, &self.kernel.signature, &sides, &|| ()) };
            return invoke_kernel(self.kernel, &mut call).map_err(|e| step.step_error(e));
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
            let sides = (0..peers.cell.len())
                .map(|p| {
                    if p == number { Ok(self.own_tensors(step)) } else { self.peer_tensors(peers, p, memory) }
                })
                .collect::<Result<Vec<_>>>()?;
            let signature = &self.kernel.signature;
            let touch = || memory.on_peer_access();
            // SAFETY: by the caller; the barriers around the kernel order it with those of the peers.
            let mut call =
                unsafe { CustomCall::new(self.name, &peers.cell, number, signature, &sides, &touch) };
            invoke_kernel(self.kernel, &mut call).map_err(|e| step.step_error(e))
        };
        // SAFETY: by the caller.
        unsafe { step.comm.run_custom(&call, &mut kernel) }
    }

    /// All operands and results of this rank.
    fn own_tensors(&self, step: &StepRun<'_>) -> RankTensors<'a> {
        RankTensors {
            operands: self.operands.iter().map(|x| Some(step.view(x))).collect(),
            results: self
                .results
                .iter()
                .map(|y| Some(ResultMemory { dtype: y.dtype, shape: &y.shape, ptr: step.address(y) }))
                .collect(),
        }
    }

    /// The tensors that the kernel may touch on rank number `p`.
    fn peer_tensors(
        &self,
        peers: &ResolvedPeers,
        p: usize,
        memory: &dyn PeerMemory,
    ) -> Result<RankTensors<'a>> {
        let mut operands = Vec::with_capacity(self.operands.len());
        for (x, region) in self.operands.iter().zip(&peers.operands) {
            let Some(region) = region else {
                operands.push(None);
                continue;
            };
            let ptr = region.peer_address(memory, &peers.cell, p)?;
            // SAFETY: the view lies within its base at the same offset on every rank, and the base in the
            // arena of the peer; the contract of the op lets this rank read it.
            operands.push(Some(unsafe { TensorView::new(x.dtype, &x.shape, &x.strides, ptr) }));
        }
        let mut results = Vec::with_capacity(self.results.len());
        for (y, region) in self.results.iter().zip(&peers.results) {
            let Some(region) = region else {
                results.push(None);
                continue;
            };
            let ptr = region.peer_address(memory, &peers.cell, p)?;
            results.push(Some(ResultMemory { dtype: y.dtype, shape: &y.shape, ptr }));
        }
        Ok(RankTensors { operands, results })
    }
}
