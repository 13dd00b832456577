//! The run's context for a rank's kernels.

use symmc_ir::collective::ProtocolThresholds;

use super::blocks::VariantGrids;
use super::control::{self, ControlRegion};
use crate::device::driver::LinkAtomicity;
use crate::device::launch::Address;

/// The run's context for a rank's kernels.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PeerContext {
    pub rank: u32,
    /// The program number in its session, modulo 256. Reports of waits hold it above the step.
    pub program: u8,
    /// The address of each rank's symmetric arena in this rank's context, including this rank's own.
    pub arenas: Vec<Address>,
    /// The size of the plan's symmetric arena in bytes. The control region begins after it, at the next
    /// multiple of 4096.
    pub arena: usize,
    pub control: ControlRegion,
    /// [`local_bytes`](super::local_bytes) bytes of device memory that only this rank uses, at a multiple of
    /// 16.
    pub local: Address,
    /// The device address of [`STATUS_BYTES`](super::STATUS_BYTES) bytes of pinned memory.
    pub status: Address,
    /// The longest wait for a peer, in nanoseconds.
    pub limit_ns: u64,
    /// The seed of random delays around every access to a peer, if enabled.
    pub chaos: Option<u64>,
    /// The grids; equal on all ranks.
    pub blocks: VariantGrids,
    /// The sizes from which variants take another form; equal on all ranks.
    pub thresholds: ProtocolThresholds,
    /// The atomicity of the links to peers.
    pub links: LinkAtomicity,
}

/// A word of this rank's own memory that is never read.
pub fn unread(peers: &PeerContext) -> Address {
    peers.local + control::UNREAD_WORD_OFFSET as Address
}
