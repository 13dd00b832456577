//! Large uploads through pinned memory.
//!
//! Data is copied in pieces through two pinned buffers, from memory or from a file that is read on the way.
//! While the device reads one buffer, threads fill the other.

use std::sync::{Arc, Mutex, PoisonError};

use symmc_runtime::RunError;
use symmc_runtime::exec::InputData;
use symmc_support::parallel::spawn_scoped;

use crate::device::driver::{Device, Event, PinnedBuffer, Stream};
use crate::device::launch::Address;
use crate::error::Result;

/// The size of a buffer in bytes.
const PIECE: usize = 16 << 20;
/// The number of threads that fill a buffer.
const THREADS: usize = 4;
/// The number of bytes that justify another thread.
const MIN_BYTES_PER_THREAD: usize = 1 << 20;

/// Uploads of at least this size use the pinned buffers.
const STAGING_THRESHOLD: usize = 4 << 20;

/// Copies host data to device addresses after earlier work on the stream, and waits for the end. The context
/// is current.
///
/// # Safety
/// Each address has room for its data, and nothing else uses this memory during the call.
pub(crate) unsafe fn upload(
    device: &Arc<Device>,
    stream: &Stream,
    all: &[(Address, InputData<'_>)],
) -> Result<(), RunError> {
    let mut staging = None;
    for &(to, data) in all {
        if data.size() < STAGING_THRESHOLD {
            let mut copy = Vec::new();
            let bytes = match data {
                InputData::Memory(bytes) => bytes,
                InputData::Source(source) => {
                    copy.resize(source.size(), 0);
                    source.read(0, &mut copy)?;
                    &copy
                }
            };
            // SAFETY: by the caller.
            unsafe { stream.upload(to, bytes)? };
            continue;
        }
        let staging = match &mut staging {
            Some(staging) => staging,
            none => none.insert(StagingBuffers::new(device, stream)?),
        };
        // SAFETY: by the caller; the end is waited for below.
        unsafe { staging.upload(to, data)? };
    }
    drop(staging);
    Ok(stream.synchronize()?)
}

/// The pinned buffers. Uploads may still read them when a call returns; dropping this value waits for them.
struct StagingBuffers<'a> {
    stream: &'a Stream,
    buffers: [(PinnedBuffer, Event); 2],
    next: usize,
}

impl<'a> StagingBuffers<'a> {
    /// Creates buffers for uploads on this stream.
    fn new(device: &Arc<Device>, stream: &'a Stream) -> Result<StagingBuffers<'a>> {
        let first = (PinnedBuffer::new(device, PIECE)?, Event::new()?);
        let second = (PinnedBuffer::new(device, PIECE)?, Event::new()?);
        Ok(StagingBuffers { stream, buffers: [first, second], next: 0 })
    }

    /// Copies to the device after earlier work on the stream.
    ///
    /// # Safety
    /// `to` has room for the data, and nothing else uses this memory until the stream is idle.
    unsafe fn upload(&mut self, to: Address, from: InputData<'_>) -> Result<(), RunError> {
        for start in (0..from.size()).step_by(PIECE) {
            let len = PIECE.min(from.size() - start);
            let (buffer, copied) = &self.buffers[self.next];
            copied.synchronize()?;
            // SAFETY: the buffer is at least as long as a piece, and the device has read its previous
            // content.
            let filled = unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr(), len) };
            copy_parallel(filled, from, start)?;
            // SAFETY: the buffer is not written before the event below was reached; the rest is up to the
            // caller.
            unsafe { self.stream.upload_pinned(to + start as Address, filled)? };
            copied.record(self.stream)?;
            self.next = 1 - self.next;
        }
        Ok(())
    }
}

impl Drop for StagingBuffers<'_> {
    fn drop(&mut self) {
        for (_, copied) in &self.buffers {
            let _ = copied.synchronize();
        }
    }
}

/// Copies the bytes from `start_at` on, with several threads if the system provides them. The source may be a
/// file.
fn copy_parallel(to: &mut [u8], from: InputData<'_>, start_at: usize) -> Result<(), RunError> {
    let share = to.len().div_ceil(THREADS).max(MIN_BYTES_PER_THREAD);
    let chunks: Vec<_> = (start_at..).step_by(share).zip(to.chunks_mut(share)).collect();
    let helpers = chunks.len().saturating_sub(1);
    let chunks = Mutex::new(chunks);
    let result = Mutex::new(Ok(()));
    let copy_parts = || loop {
        // The lock is released before the part is read.
        let next = chunks.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some((offset, chunk)) = next else { break };
        if let Err(error) = from.read(offset, chunk) {
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            if spawn_scoped(scope, copy_parts).is_err() {
                break;
            }
        }
        copy_parts();
    });
    result.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use symmc_runtime::exec::InputSource;

    use super::*;

    /// The bytes of a file that was shortened to a number of bytes, the second field.
    #[derive(Debug)]
    struct Shortened(Vec<u8>, usize);

    impl InputSource for Shortened {
        fn size(&self) -> usize {
            self.0.len()
        }

        fn read(&self, at: usize, into: &mut [u8]) -> Result<(), RunError> {
            let end = at + into.len();
            if end > self.1 {
                return Err(RunError::Invalid(format!("only {} bytes are left", self.1)));
            }
            into.copy_from_slice(&self.0[at..end]);
            Ok(())
        }
    }

    #[test]
    fn every_byte_is_copied_once() {
        for len in [
            0,
            1,
            MIN_BYTES_PER_THREAD,
            MIN_BYTES_PER_THREAD + 1,
            3 * MIN_BYTES_PER_THREAD + 5,
            THREADS * MIN_BYTES_PER_THREAD + 7,
        ] {
            let bytes: Vec<u8> = (0..len + 9).map(|i| (i * 31 % 251) as u8).collect();
            let source = Shortened(bytes.clone(), bytes.len());
            for from in [InputData::Memory(&bytes), InputData::Source(&source)] {
                let mut copy = vec![0; len];
                copy_parallel(&mut copy, from, 9).expect("all of it is there");
                assert!(copy == bytes[9..], "{len} bytes");
            }
        }
    }

    #[test]
    fn data_that_cannot_be_read_are_an_error_wherever_they_end() {
        let len = 3 * MIN_BYTES_PER_THREAD + 5;
        for left in [0, 1, MIN_BYTES_PER_THREAD, 2 * MIN_BYTES_PER_THREAD + 1, len - 1] {
            let source = Shortened(vec![1; len], left);
            let error =
                copy_parallel(&mut vec![0; len], InputData::Source(&source), 0).expect_err("it is shorter");
            assert!(error.to_string().contains(&format!("only {left} bytes")), "{error}");
        }
        let error = copy_parallel(&mut [0; 4], InputData::Memory(&[0; 5]), 2).expect_err("it is shorter");
        assert!(error.to_string().contains("shorter"), "{error}");
    }
}
