//! A communicator that an application owns and provides to a session.

use std::ffi::{c_int, c_void};

use nccl_sys::{Comm, Nccl};

use crate::error::{CudaError, Result};

/// A caller's communicator. The session runs the plain collectives of its ranks on it and never destroys it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BorrowedCommunicator {
    comm: Comm,
    ranks: Vec<u32>,
}

impl BorrowedCommunicator {
    /// Borrows an `ncclComm_t`; `ranks` gives the plan's rank for each of its ranks, in order. Groups of
    /// exactly these ranks in this order use it. Either every rank of the run provides one, or none does.
    ///
    /// # Safety
    /// - The communicator was created by the library that [`Nccl::load`] finds: the process has loaded it
    ///   under the name `libnccl.so.2`, or `SYMMC_NCCL_PATH` names it.
    /// - The communicator exists, on the GPU of the session, until the session and everything recorded from it are dropped.
    /// - While the session makes a call, records or runs, no other code makes a call on it. Its owner's calls
    ///   are in the same order relative to the session's calls on all ranks.
    pub unsafe fn new(comm: *mut c_void, ranks: Vec<u32>) -> BorrowedCommunicator {
        BorrowedCommunicator { comm: Comm(comm), ranks }
    }

    /// The plan's ranks, in the order of the communicator.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// The communicator, if it has the declared number of ranks, and this rank at the declared place.
    pub(super) fn check_ranks(&self, nccl: &Nccl, rank: u32) -> Result<Comm> {
        let mut count: c_int = 0;
        let mut number: c_int = 0;
        let f = nccl.functions();
        // SAFETY: the communicator exists by the promise of `new`; the functions write one integer each.
        unsafe {
            nccl.check_code("ncclCommCount", (f.comm_count)(self.comm, &mut count))?;
            nccl.check_code("ncclCommUserRank", (f.comm_user_rank)(self.comm, &mut number))?;
        }
        let there = usize::try_from(number).ok().and_then(|n| self.ranks.get(n));
        if usize::try_from(count) == Ok(self.ranks.len()) && there == Some(&rank) {
            return Ok(self.comm);
        }
        Err(CudaError::Unsupported(format!(
            "the caller's communicator has {count} ranks, and this process is its rank {number}: expected rank \
             {rank} of the plan in {:?}",
            self.ranks
        )))
    }
}
