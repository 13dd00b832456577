//! The seam between the walk of steps and what moves data between ranks.

use crate::call::{CollectiveCall, PeerCall, PeerMemory};
use crate::error::{Result, RunError};

/// Moves data between ranks, for one rank.
pub trait Communicator: Sync {
    fn begin_step(&self, step: usize) {
        let _ = step;
    }

    /// Runs one collective to its completion on this rank. Fails if a peer failed, hung or left, or the call does not
    /// fit the communicator.
    ///
    /// # Safety
    /// `Private` regions point to memory of this rank as large as the call says. Nobody else touches the
    /// call's memory in ways that the contract of its variant does not order.
    unsafe fn run_collective(&self, call: &CollectiveCall<'_>) -> Result<()>;

    /// Runs `kernel`, that of a custom op, between an entry and an exit barrier of its cell. Fails as
    /// [`collective`](Self::run_collective), with the error of the kernel, or if this communicator cannot.
    ///
    /// # Safety
    /// Nobody touches what the kernel touches in ways that the two barriers do not order.
    unsafe fn run_custom(
        &self,
        call: &PeerCall<'_>,
        kernel: &mut dyn FnMut(&dyn PeerMemory) -> Result<()>,
    ) -> Result<()> {
        let _ = kernel;
        let PeerCall { name, op, .. } = call;
        Err(RunError::Invalid(format!("%{name} ({op}): it touches peers, which this backend cannot")))
    }

    /// Tells the peers, and another thread of this rank that is inside
    /// [`collective`](Self::run_collective), that this rank ends with `error`.
    fn abort(&self, error: &RunError) {
        let _ = error;
    }
}
