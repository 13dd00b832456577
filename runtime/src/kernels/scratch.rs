//! Memory that kernels need while they run, kept from one kernel to the next.
//!
//! Code that knows the ops in advance states their needs ([`ScratchNeeds`], computed by `needs` in this
//! folder): the buffers then never exceed these in total, whatever the order in which ops request them.
//! Nothing is allocated before a kernel requests it.

use std::ops::{Deref, DerefMut};

/// Buffers to reuse. One thread at a time uses them.
#[derive(Debug, Default)]
pub struct Scratch {
    f32s: Vec<PooledBuffer<f32>>,
    f64s: Vec<PooledBuffer<f64>>,
    i64s: Vec<PooledBuffer<i64>>,
}

/// A buffer, and the number of numbers to which it is meant to grow.
#[derive(Debug, Default)]
pub(super) struct PooledBuffer<C> {
    target_len: usize,
    all: Vec<C>,
}

/// A type of numbers for which there are buffers.
pub(super) trait PooledNumber: Copy + Default + 'static {
    fn pool(scratch: &mut Scratch) -> &mut Vec<PooledBuffer<Self>>;
    fn sizes(needs: &mut ScratchNeeds) -> &mut Vec<usize>;
}

macro_rules! pooled {
    ($($t:ty, $pool:ident;)*) => { $(
        impl PooledNumber for $t {
            fn pool(scratch: &mut Scratch) -> &mut Vec<PooledBuffer<Self>> { &mut scratch.$pool }
            fn sizes(needs: &mut ScratchNeeds) -> &mut Vec<usize> { &mut needs.$pool }
        }
    )* };
}

pooled! {
    f32, f32s;
    f64, f64s;
    i64, i64s;
}

/// The first `n` numbers of a buffer that may be longer.
#[derive(Debug)]
pub(super) struct ScratchBuffer<C> {
    slot: PooledBuffer<C>,
    n: usize,
}

impl<C> Deref for ScratchBuffer<C> {
    type Target = [C];
    fn deref(&self) -> &[C] {
        &self.slot.all[..self.n]
    }
}

impl<C> DerefMut for ScratchBuffer<C> {
    fn deref_mut(&mut self) -> &mut [C] {
        &mut self.slot.all[..self.n]
    }
}

/// Memory for values of any type.
#[derive(Debug)]
pub struct ScratchBytes(ScratchBuffer<i64>);

impl ScratchBytes {
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl Scratch {
    pub fn new() -> Self {
        Scratch::default()
    }

    /// Empty scratch memory for ops that need no more than this.
    pub fn with_needs(needs: &ScratchNeeds) -> Self {
        fn empty_buffers<C: PooledNumber>(sizes: &[usize]) -> Vec<PooledBuffer<C>> {
            sizes.iter().map(|&room| PooledBuffer { target_len: room, all: Vec::new() }).collect()
        }
        Scratch {
            f32s: empty_buffers(&needs.f32s),
            f64s: empty_buffers(&needs.f64s),
            i64s: empty_buffers(&needs.i64s),
        }
    }

    pub fn bytes(&self) -> usize {
        fn pool_bytes<C>(slots: &[PooledBuffer<C>]) -> usize {
            slots.iter().map(|slot| slot.all.capacity() * size_of::<C>()).sum()
        }
        pool_bytes(&self.f32s) + pool_bytes(&self.f64s) + pool_bytes(&self.i64s)
    }

    /// Memory of `bytes` bytes with unspecified contents, aligned to 8.
    pub fn allocate_bytes(&mut self, bytes: usize) -> ScratchBytes {
        ScratchBytes(self.allocate::<i64>(bytes.div_ceil(8)))
    }

    pub fn return_bytes(&mut self, bytes: ScratchBytes) {
        self.return_buffer(bytes.0);
    }

    /// A buffer of `n` numbers with unspecified contents. The smallest sufficient buffer is used, which
    /// leaves the larger ones for the op's other requests.
    pub(super) fn allocate<C: PooledNumber>(&mut self, n: usize) -> ScratchBuffer<C> {
        let pool = C::pool(self);
        let indices = 0..pool.len();
        let fits = indices.clone().filter(|&i| pool[i].target_len >= n).min_by_key(|&i| pool[i].target_len);
        let chosen = fits.or_else(|| indices.max_by_key(|&i| pool[i].target_len));
        let mut slot =
            chosen.map_or_else(|| PooledBuffer { target_len: 0, all: Vec::new() }, |i| pool.swap_remove(i));
        slot.target_len = slot.target_len.max(n);
        let has = slot.all.len();
        if has < n {
            // A buffer that grows a little in every run is not reallocated in every run.
            slot.all.reserve_exact((2 * has).clamp(n, slot.target_len) - has);
            slot.all.resize(n, C::default());
        }
        ScratchBuffer { slot, n }
    }

    pub(super) fn return_buffer<C: PooledNumber>(&mut self, buffer: ScratchBuffer<C>) {
        C::pool(self).push(buffer.slot);
    }
}

/// The buffers that an op uses at once, or the maximum over several ops: the number of numbers of each type,
/// the largest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScratchNeeds {
    f32s: Vec<usize>,
    f64s: Vec<usize>,
    i64s: Vec<usize>,
}

impl ScratchNeeds {
    pub(super) fn add<C: PooledNumber>(&mut self, n: usize) {
        let sizes = C::sizes(self);
        let position = sizes.partition_point(|&other| other > n);
        sizes.insert(position, n);
    }

    /// Adds `bytes` bytes to the needs.
    pub fn add_bytes(&mut self, bytes: usize) {
        self.add::<i64>(bytes.div_ceil(8));
    }

    /// The needs that cover both, one after the other.
    pub fn merge(&mut self, other: &ScratchNeeds) {
        merge_sizes(&mut self.f32s, &other.f32s);
        merge_sizes(&mut self.f64s, &other.f64s);
        merge_sizes(&mut self.i64s, &other.i64s);
    }

    pub fn bytes(&self) -> usize {
        let [f32s, f64s, i64s] = [&self.f32s, &self.f64s, &self.i64s]
            .map(|sizes| sizes.iter().fold(0usize, |sum, &n| sum.saturating_add(n)));
        f32s.saturating_mul(4).saturating_add(f64s.saturating_add(i64s).saturating_mul(8))
    }
}

fn merge_sizes(sizes: &mut Vec<usize>, other: &[usize]) {
    sizes.resize(sizes.len().max(other.len()), 0);
    sizes.iter_mut().zip(other).for_each(|(size, &other)| *size = (*size).max(other));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_take_no_more_than_ops_need_in_whatever_order_they_ask() {
        let ops: [&[usize]; 4] = [&[100, 1], &[60, 100], &[1, 30, 7], &[50, 50]];
        let mut needs = ScratchNeeds::default();
        for op in ops {
            let mut op_needs = ScratchNeeds::default();
            op.iter().for_each(|&n| op_needs.add::<f32>(n));
            needs.merge(&op_needs);
        }
        assert_eq!((&needs.f32s[..], needs.bytes()), (&[100, 60, 1][..], 644));
        let mut scratch = Scratch::with_needs(&needs);
        for op in ops.iter().chain(ops.iter().rev()) {
            let buffers: Vec<ScratchBuffer<f32>> = op.iter().map(|&n| scratch.allocate(n)).collect();
            assert!(buffers.iter().zip(*op).all(|(buffer, &n)| buffer.len() == n));
            buffers.into_iter().for_each(|buffer| scratch.return_buffer(buffer));
            assert!(scratch.bytes() <= needs.bytes(), "{scratch:?}");
        }
        assert!(scratch.bytes() > 600);
    }
}
