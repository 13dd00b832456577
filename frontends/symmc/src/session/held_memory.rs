//! What keeps the memory that a session uses and does not own: tensors and buffers.

use std::any::Any;
use std::sync::Arc;

use symmc_runtime::session::Port;

/// Something that keeps memory there.
pub(super) type Owner = Arc<dyn Any + Send + Sync>;

/// Held as long as runs may use their memory.
#[derive(Default)]
pub(super) struct HeldMemory {
    /// For each input or output that has one.
    held: Vec<(Port, Owner)>,
    /// Those whose memory runs in progress may still use.
    retired: Vec<Owner>,
}

impl HeldMemory {
    /// Holds the owner of the memory of an input or output, or none, in place of another one. Whether there was one.
    pub fn hold_owner(&mut self, port: Port, owner: Option<Owner>) -> bool {
        let old = self.held.iter().position(|(other, _)| *other == port);
        let old = old.map(|at| self.held.swap_remove(at).1);
        self.held.extend(owner.map(|owner| (port, owner)));
        let found = old.is_some();
        self.retired.extend(old);
        found
    }

    /// Lets go of those whose memory no input or output has any more: no run is in progress.
    pub fn release_retired(&mut self) {
        self.retired.clear();
    }
}
