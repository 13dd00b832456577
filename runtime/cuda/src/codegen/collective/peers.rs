//! What a rank's kernels know of the run, and where its collectives find what is their own.

use symmc_ir::collective::ProtocolThresholds;

use super::blocks::VariantGrids;
use super::control::{self, ControlRegion};
use crate::device::driver::LinkAtomicity;
use crate::device::launch::{Address, DevicePtr};

/// What a rank's kernels know of the run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PeerContext {
    pub rank: u32,
    /// The number of the program in its session, modulo 256: reports of waits have it above the step.
    pub program: u8,
    /// Where the symmetric arena of each rank is mapped in this rank's context; this rank's is among them.
    pub arenas: Vec<Address>,
    /// The bytes of the plan's symmetric arena. The control region begins there, rounded up to 4096.
    pub arena: usize,
    pub control: ControlRegion,
    /// [`local_bytes`](super::local_bytes) bytes of device memory of this rank alone, at a multiple of 16.
    pub local: Address,
    /// [`STATUS_BYTES`](super::STATUS_BYTES) bytes of pinned memory, as the device sees them.
    pub status: Address,
    /// The longest wait for a peer, in nanoseconds.
    pub limit_ns: u64,
    /// The seed of random delays around every touch of a peer, if wanted.
    pub chaos: Option<u64>,
    /// The grids; equal on all ranks.
    pub blocks: VariantGrids,
    /// From which sizes on variants take another form; equal on all ranks.
    pub thresholds: ProtocolThresholds,
    /// What the links to peers promise.
    pub links: LinkAtomicity,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectivePointers {
    pub operand: DevicePtr,
    pub result: DevicePtr,
    pub sizes: Option<SplitPointers>,
}

impl CollectivePointers {
    /// Of a collective whose sizes are all known.
    pub fn new(operand: DevicePtr, result: DevicePtr) -> CollectivePointers {
        CollectivePointers { operand, result, sizes: None }
    }
}

/// A word of this rank's own memory that nobody reads.
pub fn unread(peers: &PeerContext) -> Address {
    peers.local + control::UNREAD as Address
}

/// Where the sizes lie on a rank: those that it sends, and those that it receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitPointers {
    pub sent: DevicePtr,
    pub received: DevicePtr,
}
