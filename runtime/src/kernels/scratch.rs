//! Memory that kernels need while they run, kept from one kernel to the next.

use super::element::Number;

/// Buffers to reuse. One thread at a time uses it.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) f32s: Vec<Vec<f32>>,
    pub(super) f64s: Vec<Vec<f64>>,
    pub(super) i64s: Vec<Vec<i64>>,
}

impl Scratch {
    /// No memory yet.
    pub fn new() -> Self {
        Scratch::default()
    }

    /// A buffer of `n` numbers of unspecified value.
    pub(super) fn take<C: Number>(&mut self, n: usize) -> Vec<C> {
        let mut buffer = C::pool(self).pop().unwrap_or_default();
        buffer.resize(n, C::default());
        buffer
    }

    /// Gives a buffer back.
    pub(super) fn give<C: Number>(&mut self, buffer: Vec<C>) {
        C::pool(self).push(buffer);
    }
}
