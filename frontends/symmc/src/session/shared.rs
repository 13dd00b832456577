//! The tensors that a session reads where they lie.

use std::sync::Arc;

use symmc_ir::Tensor;

/// Held as long as runs may read them.
#[derive(Default)]
pub(super) struct Shared {
    /// For each input that has one.
    held: Vec<(usize, Arc<Tensor>)>,
    /// Those that runs in progress may still read.
    retired: Vec<Arc<Tensor>>,
}

impl Shared {
    /// Holds the tensor of an input in place of another one.
    pub fn hold(&mut self, input: usize, tensor: Arc<Tensor>) {
        if let Some(at) = self.held.iter().position(|(i, _)| *i == input) {
            self.retired.push(self.held.swap_remove(at).1);
        }
        self.held.push((input, tensor));
    }

    /// Lets go of those that no input has any more: no run is in progress.
    pub fn let_go(&mut self) {
        self.retired.clear();
    }
}
