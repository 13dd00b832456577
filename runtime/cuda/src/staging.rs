//! Large uploads through pinned memory.
//!
//! Data in ordinary memory, which may be a mapped file that is read only now, are copied in pieces into pinned
//! buffers in turn: while the device takes one, threads fill the other.

use std::sync::{Arc, Mutex, PoisonError};

use symmc_ir::parallel::start;

use crate::driver::{Device, Event, Pinned, Stream};
use crate::error::CudaError;
use crate::launch::Address;

/// Bytes of a buffer.
const PIECE: usize = 16 << 20;
/// The threads that fill a buffer.
const THREADS: usize = 4;
/// Bytes that are worth a thread.
const SHARE: usize = 1 << 20;

/// From this size on an upload is worth the buffers.
const LARGE: usize = 4 << 20;

/// Copies data of the host to places of the device, behind what the stream holds, and waits for the end. The context is
/// current.
///
/// # Errors
/// A copy fails.
///
/// # Safety
/// Each place has as many bytes as its data, and nothing else uses them meanwhile.
pub(crate) unsafe fn upload(
    device: &Arc<Device>,
    stream: &Stream,
    all: &[(Address, &[u8])],
) -> Result<(), CudaError> {
    let mut staging = None;
    for &(to, data) in all {
        if data.len() < LARGE {
            // SAFETY: by the caller.
            unsafe { stream.upload(to, data)? };
            continue;
        }
        let staging = match &mut staging {
            Some(staging) => staging,
            none => none.insert(Staging::new(device, stream)?),
        };
        // SAFETY: by the caller; the end is waited for below.
        unsafe { staging.upload(to, data)? };
    }
    drop(staging);
    stream.synchronize()
}

/// The buffers. Uploads may still read them when a call returns; dropping this value waits for that.
struct Staging<'a> {
    stream: &'a Stream,
    buffers: [(Pinned, Event); 2],
    next: usize,
}

impl<'a> Staging<'a> {
    /// Buffers for uploads on this stream.
    ///
    /// # Errors
    /// The system has not as much memory to pin.
    fn new(device: &Arc<Device>, stream: &'a Stream) -> Result<Staging<'a>, CudaError> {
        let buffer = || Ok::<_, CudaError>((Pinned::new(device, PIECE)?, Event::new()?));
        Ok(Staging { stream, buffers: [buffer()?, buffer()?], next: 0 })
    }

    /// Copies to the device, behind what the stream holds.
    ///
    /// # Errors
    /// The copy fails.
    ///
    /// # Safety
    /// `to` has as many bytes, and nothing else uses them until the stream is idle.
    unsafe fn upload(&mut self, to: Address, from: &[u8]) -> Result<(), CudaError> {
        let mut at = to;
        for piece in from.chunks(PIECE) {
            let (buffer, taken) = &self.buffers[self.next];
            taken.synchronize()?;
            // SAFETY: the buffer is as long as the longest piece, and the device has taken what was there.
            let filled = unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr(), piece.len()) };
            fill(filled, piece);
            // SAFETY: the buffer is not written before the event below was reached; the rest by the caller.
            unsafe { self.stream.upload_pinned(at, filled)? };
            taken.record(self.stream)?;
            at += piece.len() as Address;
            self.next = 1 - self.next;
        }
        Ok(())
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        for (_, taken) in &self.buffers {
            let _ = taken.synchronize();
        }
    }
}

/// Copies on several threads, as far as the system gives them: what is copied may have to be read from a file first.
fn fill(to: &mut [u8], from: &[u8]) {
    let share = from.len().div_ceil(THREADS).max(SHARE);
    let parts: Vec<_> = to.chunks_mut(share).zip(from.chunks(share)).collect();
    let helpers = parts.len().saturating_sub(1);
    let parts = Mutex::new(parts);
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let copy = || {
        while let Some((to, from)) = next() {
            to.copy_from_slice(from);
        }
    };
    std::thread::scope(|scope| {
        (0..helpers).take_while(|_| start(scope, copy).is_ok()).for_each(drop);
        copy();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_once() {
        for len in [0, 1, SHARE, SHARE + 1, 3 * SHARE + 5, THREADS * SHARE + 7] {
            let from: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let mut to = vec![0; len];
            fill(&mut to, &from);
            assert!(to == from, "{len} bytes");
        }
    }
}
