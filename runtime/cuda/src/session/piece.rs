//! Memory of a session for its inputs and outputs.

use std::ops::Range;
use std::sync::Arc;

use crate::device::driver::Memory;
use crate::device::launch::Address;

/// Memory for an input or output: an allocation, or a part of one.
#[derive(Debug)]
pub(super) struct Piece {
    block: Arc<Memory>,
    /// In bytes from its start.
    range: Range<usize>,
}

impl Piece {
    /// These bytes of an allocation.
    pub fn of(block: &Arc<Memory>, range: Range<usize>) -> Piece {
        Piece { block: block.clone(), range }
    }

    pub fn address(&self) -> Address {
        self.block.address() + self.range.start as Address
    }

    pub fn len(&self) -> usize {
        self.range.len()
    }
}
