//! Memory that kernels need while they run, kept from one kernel to the next.

use std::ops::{Deref, DerefMut};

use super::element::Number;

/// Buffers to reuse. One thread at a time uses it.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) f32s: Vec<Vec<f32>>,
    pub(super) f64s: Vec<Vec<f64>>,
    pub(super) i64s: Vec<Vec<i64>>,
}

/// The first `n` numbers of a buffer that may be longer.
#[derive(Debug)]
pub(super) struct Buffer<C> {
    all: Vec<C>,
    n: usize,
}

impl<C> Deref for Buffer<C> {
    type Target = [C];
    fn deref(&self) -> &[C] {
        &self.all[..self.n]
    }
}

impl<C> DerefMut for Buffer<C> {
    fn deref_mut(&mut self) -> &mut [C] {
        &mut self.all[..self.n]
    }
}

impl Scratch {
    /// No memory yet.
    pub fn new() -> Self {
        Scratch::default()
    }

    /// A buffer of `n` numbers of unspecified value.
    pub(super) fn take<C: Number>(&mut self, n: usize) -> Buffer<C> {
        let mut all = C::pool(self).pop().unwrap_or_default();
        if all.len() < n {
            all.resize(n, C::default());
        }
        Buffer { all, n }
    }

    /// Gives a buffer back.
    pub(super) fn give<C: Number>(&mut self, buffer: Buffer<C>) {
        C::pool(self).push(buffer.all);
    }
}
