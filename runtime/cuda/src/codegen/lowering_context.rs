//! The context in which the steps of a rank are lowered: the addresses of memory, and the target machine.
//!
//! A session has its own. Without a device, `DeviceFreeContext` provides one for a GPU like those of the
//! built-in profiles.

use symmc_runtime::exec::ResolvedProgram;

use crate::codegen::addresses::AddressMap;
use crate::codegen::collective::{PeerContext, control_of};
use crate::codegen::compute::{AlgorithmSelection, GEMM_WORKSPACE, KernelTarget};
use crate::codegen::workspace;
use crate::device::launch::Address;
use crate::nccl::Communicators;

#[derive(Clone, Copy, Debug)]
pub struct LoweringContext<'a> {
    pub addresses: &'a AddressMap,
    pub peers: &'a PeerContext,
    pub machine: &'a KernelTarget,
    pub nccl: &'a Communicators,
    /// A word that holds one more than the step of the last NCCL collective that began; `None` if progress is
    /// not reported.
    pub progress: Option<Address>,
}

/// The lowering context without a device.
#[derive(Debug)]
pub(crate) struct DeviceFreeContext {
    pub addresses: AddressMap,
    pub peers: PeerContext,
    pub machine: KernelTarget,
    pub nccl: Communicators,
}

impl DeviceFreeContext {
    /// A context for the steps of one of `ranks` ranks, in memory at these fictitious addresses: the
    /// symmetric arena of rank `r` is at `addresses.symmetric` plus `r` × 2^36 bytes.
    pub fn new(
        bound: &ResolvedProgram,
        ranks: u32,
        addresses: AddressMap,
        attention: AlgorithmSelection,
    ) -> DeviceFreeContext {
        let machine = KernelTarget { attention, ..KernelTarget::PROFILE_GPU };
        let workspace_bytes = workspace::bytes_of_steps(bound.steps.iter(), &machine).max(GEMM_WORKSPACE);
        let peers = PeerContext {
            rank: bound.rank(),
            arenas: (0..u64::from(ranks)).map(|rank| addresses.symmetric + (rank << 36)).collect(),
            arena: bound.symmetric_bytes,
            control: control_of(&bound.steps),
            local: 1 << 20,
            status: 1 << 16,
            ..PeerContext::default()
        };
        let nccl = Communicators::placeholders(&bound.steps);
        DeviceFreeContext { addresses, peers, machine: KernelTarget { workspace_bytes, ..machine }, nccl }
    }

    pub fn context(&self) -> LoweringContext<'_> {
        let DeviceFreeContext { addresses, peers, machine, nccl } = self;
        LoweringContext { addresses, peers, machine, nccl, progress: None }
    }
}
