//! A domain: the ranks that share load and store, and their memory as one process maps it.
//!
//! All ranks of a run are in one domain today, on one host. A run on several hosts would have a domain for each. Joining, supervision
//! and agreement exchange messages, and would need another transport between hosts. Collectives, announcements and aborts use words of
//! the domain, and would need a part between domains. Code that takes a [`Domain`] states thereby that its ranks share memory.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::control::Control;
use crate::error::Result;
use crate::memory::Segment;

/// Bytes of one chunk of staging.
pub const CHUNK: usize = 256 << 10;

/// Bytes of staging of one rank in one group.
pub const PER_RANK: usize = 2 * CHUNK;

/// The shared memory of a run, as one process maps it.
#[derive(Clone, Debug)]
pub struct Domain {
    pub arenas: Vec<Arc<Segment>>,
    pub control: Control,
    /// Staging of the plain variant; [`Domain::staging_size`] bytes.
    pub staging: Arc<Segment>,
}

impl Domain {
    /// The bytes of staging for this many ranks and groups. Untouched parts cost nothing.
    pub fn staging_size(ranks: u32, groups: usize) -> usize {
        groups * ranks as usize * PER_RANK
    }

    /// A rank's part of what the ranks have together beside their arenas.
    pub fn part(ranks: u32, groups: usize) -> usize {
        let all = Control::size(ranks, groups) + Domain::staging_size(ranks, groups);
        all.div_ceil(ranks.max(1) as usize)
    }

    /// Fresh memory for `ranks` ranks with symmetric arenas of `arena` bytes. Counters and epochs of LL
    /// start at `first`, as those of the communicators.
    pub fn create(ranks: u32, groups: usize, arena: usize, first: u32) -> Result<Domain> {
        let control = Arc::new(Segment::create("the control segment", Control::size(ranks, groups))?);
        let control = Control::new(control, ranks, groups)?;
        control.preset(first);
        let arenas = (0..ranks).map(|_| Segment::create("the symmetric arena", arena).map(Arc::new));
        Ok(Domain {
            arenas: arenas.collect::<Result<_, _>>()?,
            control,
            staging: Arc::new(Segment::create("the staging memory", Domain::staging_size(ranks, groups))?),
        })
    }

    /// The descriptors of all segments: control, staging, then the arenas.
    pub(crate) fn fds(&self) -> Vec<Option<BorrowedFd<'_>>> {
        let first = [self.control.segment().fd(), self.staging.fd()];
        first.into_iter().chain(self.arenas.iter().map(|a| a.fd())).collect()
    }
}
