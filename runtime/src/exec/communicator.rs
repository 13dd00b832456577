//! The interface between the walk of steps and the backend that moves data between ranks.

use crate::call::{CollectiveCall, PeerCall, PeerMemory};
use crate::error::{Result, RunError};

/// Moves data between ranks, for one rank.
pub trait Communicator: Sync {
    fn begin_step(&self, step: usize) {
        let _ = step;
    }

    /// Runs one collective to its completion on this rank. Fails if a peer failed, hung or left, or the
    /// communicator cannot serve the call.
    ///
    /// # Safety
    /// `Private` regions point to memory of this rank as large as the call says. Nothing else touches the
    /// call's memory in ways that the contract of its variant does not order.
    unsafe fn run_collective(&self, call: &CollectiveCall<'_>) -> Result<()>;

    /// Runs `kernel`, which is that of a custom op, between an entry and an exit barrier of its cell. Fails
    /// as [`run_collective`](Self::run_collective), with the error of the kernel, or if this communicator
    /// does not support it.
    ///
    /// # Safety
    /// Nothing touches the memory that the kernel touches in ways that the two barriers do not order.
    unsafe fn run_custom(
        &self,
        call: &PeerCall<'_>,
        kernel: &mut dyn FnMut(&dyn PeerMemory) -> Result<()>,
    ) -> Result<()> {
        let _ = kernel;
        let PeerCall { name, op, .. } = call;
        Err(RunError::Invalid(format!(
            "%{name} ({op}): it accesses peers, which this backend does not support"
        )))
    }

    /// Notifies the peers that this rank ends with `error`, and also another thread of this rank that is
    /// inside [`run_collective`](Self::run_collective).
    fn abort(&self, error: &RunError) {
        let _ = error;
    }
}
