//! The LL protocol between ranks of the host: data with its flag.
//!
//! A line has 64 bytes: 60 bytes of data, then a 4-byte flag, the epoch of the collective. The flag is stored
//! after the data (release) and read before it (acquire), so a reader that sees the epoch has the data of the
//! line, and no barrier is needed. Both lie in one cache line, so they travel together. The unused rest of a
//! message's last line is not written.

use std::sync::atomic::{AtomicU32, Ordering};

pub const LINE: usize = 64;
/// Bytes of data in a line.
pub const DATA: usize = 60;

#[inline]
pub fn line_count(bytes: usize) -> usize {
    bytes.div_ceil(DATA)
}

/// Stores `bytes` bytes from `from` as lines of `epoch` at `to`.
///
/// `from` holds the bytes; `to` is a multiple of 4 with room for [`line_count`] lines. Nothing reads their
/// data before it has seen their flags, and nothing else writes them.
pub unsafe fn store_lines(to: *mut u8, from: *const u8, bytes: usize, epoch: u32) {
    let full_lines = bytes / DATA;
    // SAFETY: by the caller; the last line takes only what remains.
    unsafe {
        for i in 0..full_lines {
            let line = to.add(LINE * i);
            std::ptr::copy_nonoverlapping(from.add(DATA * i), line, DATA);
            line_flag(line).store(epoch, Ordering::Release);
        }
        if full_lines * DATA < bytes {
            let line = to.add(LINE * full_lines);
            std::ptr::copy_nonoverlapping(from.add(DATA * full_lines), line, bytes - full_lines * DATA);
            line_flag(line).store(epoch, Ordering::Release);
        }
    }
}

/// Copies data out of the lines of `epoch` at `from`, from line `first` on, until one has not arrived.
/// Returns the number of lines that have arrived, the first ones included. `bytes` and `to` are those of the
/// whole message.
///
/// # Safety
/// `to` has room for `bytes` bytes; `from` is a multiple of 4 with [`line_count`] lines.
pub unsafe fn load_lines(to: *mut u8, from: *const u8, bytes: usize, epoch: u32, first: usize) -> usize {
    let full_lines = bytes / DATA;
    let mut done = first;
    // SAFETY: by the caller; the last line fills only what remains.
    unsafe {
        while done < full_lines {
            let line = from.add(LINE * done);
            if line_flag(line).load(Ordering::Acquire) != epoch {
                return done;
            }
            std::ptr::copy_nonoverlapping(line, to.add(DATA * done), DATA);
            done += 1;
        }
        if done * DATA < bytes && has_line_arrived(from, done, epoch) {
            let remaining = bytes - done * DATA;
            std::ptr::copy_nonoverlapping(from.add(LINE * done), to.add(DATA * done), remaining);
            done += 1;
        }
    }
    done
}

/// Whether line `i` of the message at `from` has arrived.
///
/// # Safety
/// As for [`load_lines`], and the message has such a line.
#[inline]
pub unsafe fn has_line_arrived(from: *const u8, i: usize, epoch: u32) -> bool {
    // SAFETY: by the caller.
    unsafe { line_flag(from.add(LINE * i)).load(Ordering::Acquire) == epoch }
}

/// Requests ownership of the cache lines of `bytes` bytes at `at`, which are to be written soon.
#[inline]
pub fn prefetch_for_stores(at: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for i in 0..bytes / LINE {
        let line = at.wrapping_add(LINE * i);
        // SAFETY: a hint; it has no effect that the program can observe, and never faults.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly))
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, bytes);
}

#[inline(always)]
unsafe fn line_flag<'a>(line: *const u8) -> &'a AtomicU32 {
    // SAFETY: by the caller the line lies in a landing zone, aligned, and its flag is only accessed as an
    // atomic.
    unsafe { AtomicU32::from_ptr(line.add(DATA).cast_mut().cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_loaded() {
        for bytes in [1usize, 3, 59, 60, 61, 100, 120, 1000, 4099] {
            let data: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
            let total = line_count(bytes);
            let mut zone = vec![0u32; total * LINE / 4];
            let lines = zone.as_mut_ptr().cast::<u8>();
            let mut out = vec![0xee; bytes + 8];
            // SAFETY: the zone has room for the lines, `out` for the bytes.
            unsafe {
                assert_eq!(load_lines(out.as_mut_ptr(), lines, bytes, 9, 0), 0, "nothing has arrived");
                store_lines(lines, data.as_ptr(), bytes, 9);
                assert_eq!(load_lines(out.as_mut_ptr(), lines, bytes, 10, 0), 0, "another epoch");
                let missing = lines.add(LINE * (total / 2) + DATA).cast::<u32>();
                missing.write(5);
                assert_eq!(
                    load_lines(out.as_mut_ptr(), lines, bytes, 9, 0),
                    total / 2,
                    "one has not arrived"
                );
                missing.write(9);
                assert_eq!(load_lines(out.as_mut_ptr(), lines, bytes, 9, total / 2), total, "the rest");
            }
            assert_eq!(out[..bytes], data);
            assert!(out[bytes..].iter().all(|&b| b == 0xee), "nothing beyond the message is written");
        }
    }
}
