//! Copies between ranks' memory.
//!
//! Results that are too large for the caches bypass them (non-temporal stores): the processor then does not
//! read the destination first.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreMode {
    Cached,
    /// Bypassing the caches.
    Streamed,
}

/// Tensors of this many bytes and more do not stay in the caches until they are used.
const LARGE: usize = 4 << 20;

impl StoreMode {
    /// The mode for a result of `bytes` bytes.
    pub fn for_size(bytes: usize) -> StoreMode {
        #[cfg(target_arch = "x86_64")]
        if bytes >= LARGE && is_x86_feature_detected!("avx2") {
            return StoreMode::Streamed;
        }
        let _ = bytes;
        StoreMode::Cached
    }

    /// Orders streamed stores before all later ones.
    #[inline]
    pub fn fence(self) {
        #[cfg(target_arch = "x86_64")]
        if self == StoreMode::Streamed {
            // SAFETY: every x86-64 processor has this instruction.
            unsafe { std::arch::x86_64::_mm_sfence() };
        }
    }
}

/// Copies `bytes` bytes; does nothing if source and destination are equal. After streamed stores
/// [`StoreMode::fence`] must run before the result is made visible to other threads.
///
/// # Safety
/// Both hold `bytes` bytes and are the same or do not overlap; nothing else writes the source or touches the
/// destination meanwhile. `Streamed` comes from [`StoreMode::for_size`].
#[inline]
pub unsafe fn copy_bytes(to: *mut u8, from: *const u8, bytes: usize, stores: StoreMode) {
    if std::ptr::eq(to, from) {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if stores == StoreMode::Streamed {
        // SAFETY: by the caller; `StoreMode::for_size` has checked that the processor has AVX2.
        return unsafe { stream_bytes(to, from, bytes) };
    }
    let _ = stores;
    // SAFETY: by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream_bytes(to: *mut u8, from: *const u8, bytes: usize) {
    use std::arch::x86_64::*;
    let head = to.align_offset(32).min(bytes);
    let vectors = (bytes - head) / 128;
    let tail = head + vectors * 128;
    // SAFETY: by the caller; head, vectors and tail cover the bytes once, and the vectors are aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let from_mid = from.add(head);
        let to_mid = to.add(head);
        for i in 0..vectors {
            let from = from_mid.add(128 * i).cast::<__m256i>();
            let destination = to_mid.add(128 * i).cast::<__m256i>();
            let x = [0, 1, 2, 3].map(|k| _mm256_loadu_si256(from.add(k)));
            (0..4).for_each(|k| _mm256_stream_si256(destination.add(k), x[k]));
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_copies_are_copies() {
        let from: Vec<u8> = (0..5000u32).map(|i| (i * 7 % 253) as u8).collect();
        for (at, bytes) in [(0, 0), (1, 10), (3, 127), (0, 128), (5, 160), (31, 4000), (7, 4993)] {
            let mut destination = vec![0; 5100];
            let stores = StoreMode::for_size(LARGE);
            // SAFETY: both hold the range.
            unsafe { copy_bytes(destination.as_mut_ptr().add(at), from.as_ptr().add(7), bytes, stores) };
            stores.fence();
            assert_eq!(destination[at..at + bytes], from[7..7 + bytes]);
            assert!(destination[..at].iter().chain(&destination[at + bytes..]).all(|&b| b == 0));
        }
    }
}
