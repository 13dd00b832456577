//! Owners of the memory that a session uses and does not own: tensors and buffers.

use std::any::Any;
use std::sync::Arc;

use symmc_runtime::session::Port;

/// A value that keeps memory allocated.
pub(super) type Owner = Arc<dyn Any + Send + Sync>;

/// The owners, held as long as runs may use their memory.
#[derive(Default)]
pub(super) struct HeldMemory {
    /// The owner for each input or output that has one.
    held: Vec<(Port, Owner)>,
    /// Former owners whose memory runs in progress may still use.
    retired: Vec<Owner>,
}

impl HeldMemory {
    /// Replaces the owner of the memory of an input or output. Returns whether there was one before.
    pub fn hold_owner(&mut self, port: Port, owner: Option<Owner>) -> bool {
        let old = self.held.iter().position(|(other, _)| *other == port);
        let old = old.map(|index| self.held.swap_remove(index).1);
        self.held.extend(owner.map(|owner| (port, owner)));
        let existed = old.is_some();
        self.retired.extend(old);
        existed
    }

    /// Drops former owners. The caller ensures that no run is in progress.
    pub fn release_retired(&mut self) {
        self.retired.clear();
    }
}
