//! Packets: data and flag in one store.
//!
//! A packet is an aligned 8-byte word: four bytes of data below a four-byte flag, the epoch of the
//! collective. A word is stored at once, so a reader that sees the epoch has the data, and no barrier is
//! needed. The last packet of a message is padded with zeros.
//!
//! On x86-64 with AVX2 words move four at a time: the processor performs every aligned 8-byte part of a
//! vector move as one access. These moves are inline assembly, which the compiler neither splits, repeats
//! nor moves across other accesses to memory.

use std::sync::atomic::{AtomicU64, Ordering};

/// Packets that carry `bytes` bytes.
pub fn count(bytes: usize) -> usize {
    bytes.div_ceil(4)
}

/// Stores `bytes` bytes from `from` as packets of `epoch` at `to`.
///
/// # Safety
/// `from` holds the bytes; `to` is a multiple of 8 with room for [`count`] packets, and whoever else
/// touches them does so as packets.
pub unsafe fn store(to: *mut u8, from: *const u8, bytes: usize, epoch: u32) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if bytes >= 32 && is_x86_feature_detected!("avx2") {
        done = bytes / 32 * 8;
        // SAFETY: by the caller, for as many packets as whole vectors fill.
        unsafe { x86::store(to, from, bytes / 32, epoch) };
    }
    for i in done..count(bytes) {
        // SAFETY: by the caller; the last packet reads only what remains.
        unsafe {
            let data = read_padded(from.add(4 * i), bytes - 4 * i);
            word(to, i).store(u64::from(epoch) << 32 | u64::from(data), Ordering::Relaxed);
        }
    }
}

/// Copies data out of the packets of `epoch` at `from`, from packet `first` on, until one has not arrived;
/// the number of packets that have, `first` included. `bytes` and `to` are those of the whole message.
///
/// # Safety
/// `to` has room for `bytes` bytes; `from` is a multiple of 8 with [`count`] packets that peers touch only
/// as packets.
pub unsafe fn load(to: *mut u8, from: *const u8, bytes: usize, epoch: u32, first: usize) -> usize {
    let total = count(bytes);
    let mut done = first;
    #[cfg(target_arch = "x86_64")]
    if bytes >= 32 && is_x86_feature_detected!("avx2") {
        let vectors = bytes.saturating_sub(4 * done) / 32;
        // SAFETY: by the caller; only whole vectors of packets that carry whole words.
        done += 8 * unsafe { x86::load(to.wrapping_add(4 * done), from.add(8 * done), vectors, epoch) };
    }
    while done < total {
        // SAFETY: by the caller; the last packet writes only what remains.
        unsafe {
            let packet = word(from.cast_mut(), done).load(Ordering::Relaxed);
            if (packet >> 32) as u32 != epoch {
                break;
            }
            let data = (packet as u32).to_le_bytes();
            let rest = (bytes - 4 * done).min(4);
            std::ptr::copy_nonoverlapping(data.as_ptr(), to.add(4 * done), rest);
        }
        done += 1;
    }
    done
}

/// Whether packet `i` of the message at `from` has arrived.
///
/// # Safety
/// As for [`load`], and the message has such a packet.
#[inline]
pub unsafe fn arrived(from: *const u8, i: usize, epoch: u32) -> bool {
    // SAFETY: by the caller.
    let packet = unsafe { word(from.cast_mut(), i) }.load(Ordering::Acquire);
    (packet >> 32) as u32 == epoch
}

#[inline(always)]
unsafe fn word<'a>(base: *mut u8, i: usize) -> &'a AtomicU64 {
    // SAFETY: by the caller, aligned and only accessed as packets.
    unsafe { AtomicU64::from_ptr(base.cast::<u64>().add(i)) }
}

#[inline(always)]
unsafe fn read_padded(from: *const u8, rest: usize) -> u32 {
    let mut data = [0; 4];
    // SAFETY: by the caller there are `rest` bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), rest.min(4)) };
    u32::from_le_bytes(data)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;

    /// Stores `vectors` times 32 bytes as 8 packets each.
    #[target_feature(enable = "avx2")]
    pub unsafe fn store(to: *mut u8, from: *const u8, vectors: usize, epoch: u32) {
        let flag = _mm256_set1_epi32(epoch as i32);
        for i in 0..vectors {
            // SAFETY: by the caller, 32 bytes are read and 64 written for each vector.
            unsafe {
                let data = _mm256_loadu_si256(from.add(32 * i).cast());
                let data = _mm256_permute4x64_epi64::<0b11_01_10_00>(data);
                let low = _mm256_unpacklo_epi32(data, flag);
                let high = _mm256_unpackhi_epi32(data, flag);
                let at = to.add(64 * i);
                asm!("vmovdqu [{at}], {low}", "vmovdqu [{at} + 32], {high}",
                    at = in(reg) at, low = in(ymm_reg) low, high = in(ymm_reg) high,
                    options(nostack, preserves_flags));
            }
        }
    }

    /// Copies out of groups of 8 packets until one is incomplete; the number of complete groups.
    #[target_feature(enable = "avx2")]
    pub unsafe fn load(to: *mut u8, from: *const u8, vectors: usize, epoch: u32) -> usize {
        let flag = _mm256_set1_epi32(epoch as i32);
        for i in 0..vectors {
            // SAFETY: by the caller, 64 bytes are read and 32 written for each vector.
            unsafe {
                let at = from.add(64 * i);
                let (low, high): (__m256i, __m256i);
                asm!("vmovdqu {low}, [{at}]", "vmovdqu {high}, [{at} + 32]",
                    at = in(reg) at, low = out(ymm_reg) low, high = out(ymm_reg) high,
                    options(nostack, preserves_flags));
                let (a, b) = (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high));
                let flags = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
                if _mm256_movemask_epi8(_mm256_cmpeq_epi32(flags, flag)) != -1 {
                    return i;
                }
                let data = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
                let data = _mm256_permute4x64_epi64::<0b11_01_10_00>(data);
                _mm256_storeu_si256(to.add(32 * i).cast(), data);
            }
        }
        vectors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_loaded() {
        for bytes in [1usize, 3, 4, 5, 31, 32, 33, 64, 100, 1000, 4099] {
            let data: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
            let mut zone = vec![0u64; count(bytes)];
            let at = zone.as_mut_ptr().cast::<u8>();
            let mut out = vec![0xee; bytes + 8];
            // SAFETY: the zone has room for the packets, `out` for the bytes.
            unsafe {
                assert_eq!(load(out.as_mut_ptr(), at, bytes, 9, 0), 0, "nothing has arrived");
                store(at, data.as_ptr(), bytes, 9);
                assert_eq!(load(out.as_mut_ptr(), at, bytes, 10, 0), 0, "another epoch");
                let total = count(bytes);
                zone[total / 2] = 5 << 32;
                assert_eq!(load(out.as_mut_ptr(), at, bytes, 9, 0), total / 2, "one has not arrived");
                store(at, data.as_ptr(), bytes, 9);
                let mut done = 0;
                while done < total {
                    done = load(out.as_mut_ptr(), at, bytes, 9, done);
                }
                assert_eq!(done, total);
            }
            assert_eq!(out[..bytes], data);
            assert!(out[bytes..].iter().all(|&b| b == 0xee), "nothing beyond the message is written");
        }
    }
}
