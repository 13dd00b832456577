//! A domain: the ranks that share memory by load and store, and this memory as one process maps it.
//!
//! All ranks of a run are in one domain today, on one host. A run on several hosts would have a domain for
//! each. Joining, supervision and agreement exchange messages, and would need another transport between
//! hosts. Collectives, announcements and aborts use words of the domain, and would need a part between
//! domains. Code that takes a [`SharedRunMemory`] states thereby that its ranks share memory.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::control::ControlSegment;
use crate::error::Result;
use crate::memory::MemorySegment;

/// Bytes of one chunk of staging.
pub const CHUNK: usize = 256 << 10;

/// Bytes of staging of one rank in one group.
pub const PER_RANK: usize = 2 * CHUNK;

/// The shared memory of a run, as mapped by one process.
#[derive(Clone, Debug)]
pub struct SharedRunMemory {
    pub arenas: Vec<Arc<MemorySegment>>,
    pub control: ControlSegment,
    /// Staging of the plain variant; [`SharedRunMemory::staging_size`] bytes.
    pub staging: Arc<MemorySegment>,
}

impl SharedRunMemory {
    /// The bytes of staging for this many ranks and groups; a size that no segment has if the number does not fit.
    /// Untouched pages cost nothing.
    pub fn staging_size(ranks: u32, groups: usize) -> usize {
        groups.saturating_mul(ranks as usize).saturating_mul(PER_RANK)
    }

    /// A rank's part of the memory that the ranks share in addition to their arenas.
    pub fn bytes_per_rank(ranks: u32, groups: usize) -> usize {
        let control = ControlSegment::segment_bytes(ranks, groups);
        let total = control.saturating_add(SharedRunMemory::staging_size(ranks, groups));
        total.div_ceil(ranks.max(1) as usize)
    }

    /// New memory for `ranks` ranks with symmetric arenas of `arena` bytes. Counters and the epochs of LL start
    /// at `first`: 0 except in tests of their wrap-around.
    pub fn create(ranks: u32, groups: usize, arena: usize, first: u32) -> Result<SharedRunMemory> {
        let control = Arc::new(MemorySegment::create(
            "the control segment",
            ControlSegment::segment_bytes(ranks, groups),
        )?);
        let control = ControlSegment::new(control, ranks, groups)?;
        control.preset_counters(first);
        let arenas = (0..ranks).map(|_| MemorySegment::create("the symmetric arena", arena).map(Arc::new));
        Ok(SharedRunMemory {
            arenas: arenas.collect::<Result<_, _>>()?,
            control,
            staging: Arc::new(MemorySegment::create(
                "the staging memory",
                SharedRunMemory::staging_size(ranks, groups),
            )?),
        })
    }

    /// The descriptors of all segments: control, staging, then the arenas.
    pub(crate) fn fds(&self) -> Vec<Option<BorrowedFd<'_>>> {
        let first = [self.control.segment().fd(), self.staging.fd()];
        first.into_iter().chain(self.arenas.iter().map(|a| a.fd())).collect()
    }
}
