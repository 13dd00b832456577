//! Memory of a session's device that belongs to the caller.

use std::ffi::{c_char, c_void};

use symmc::SessionBuffer;

use crate::error::{
    borrow_handle, create_handle, free_handle, guard, read_slice, read_text, symmc_status, write_bytes,
};
use crate::session::{borrow_session, symmc_session};

/// Memory of a device, the host or a GPU, that belongs to the caller: for weights, caches, activations and outputs.
pub struct symmc_buffer(SessionBuffer);

/// Allocates memory on the session's device: `bytes` bytes filled with zeros, aligned to 256 bytes. Every session of this
/// process on that device may bind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_allocate(
    session: *mut symmc_session,
    bytes: usize,
    out: *mut *mut symmc_buffer,
) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { create_handle(out, || borrow_session(session)?.session.allocate(bytes).map(symmc_buffer)) }
}

/// Allocates symmetric memory for the caller, from the bytes that `symmc_session_options_set_symmetric` reserved. All ranks
/// allocate the same sizes together. Each waits for its own runs and for the other ranks. A block is freed when the session
/// ends. An input that the plan holds in symmetric memory is read in place from such a buffer, if all ranks have bound the same
/// block. A session with such buffers cannot release its memory (`symmc_session_release`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_allocate_symmetric(
    session: *mut symmc_session,
    bytes: usize,
    out: *mut *mut symmc_buffer,
) -> symmc_status {
    let allocate = || {
        // SAFETY: the caller ensures it.
        let session = unsafe { borrow_session(session) }?;
        session.session.allocate_symmetric(bytes).map(symmc_buffer)
    };
    // SAFETY: the caller ensures it.
    unsafe { create_handle(out, allocate) }
}

/// As `symmc_session_bind`, for a whole buffer of the session's device. The session keeps the memory as long as a run may use
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_bind_buffer(
    session: *mut symmc_session,
    name: *const c_char,
    buffer: *const symmc_buffer,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let (session, name) = unsafe { (borrow_session(session)?, read_text(name, "the name")?) };
        // SAFETY: the caller ensures it.
        unsafe { session.session.bind_buffer(name, &borrow_handle(buffer, "buffer")?.0) }
    })
}

/// The address of the first byte on the device; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_buffer_address(buffer: *const symmc_buffer) -> *mut c_void {
    // SAFETY: the caller ensures it.
    unsafe { buffer.as_ref() }.map_or(std::ptr::null_mut(), |buffer| buffer.0.as_ptr().cast())
}

/// The number of bytes of a buffer; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_buffer_bytes(buffer: *const symmc_buffer) -> usize {
    // SAFETY: the caller ensures it.
    unsafe { buffer.as_ref() }.map_or(0, |buffer| buffer.0.bytes())
}

/// Copies `bytes` bytes of host memory into a buffer, from offset `at`. No run that uses these bytes may be in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_buffer_write(
    buffer: *const symmc_buffer,
    at: usize,
    data: *const c_void,
    bytes: usize,
) -> symmc_status {
    // SAFETY: the caller ensures it.
    guard(|| unsafe {
        borrow_handle(buffer, "buffer")?.0.write(at, read_slice(data.cast(), bytes, "the data")?)
    })
}

/// Copies `bytes` bytes of a buffer, from offset `at`, to host memory. No run that writes these bytes may be in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_buffer_read(
    buffer: *const symmc_buffer,
    at: usize,
    data: *mut c_void,
    bytes: usize,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let contents = unsafe { borrow_handle(buffer, "buffer") }?.0.read(at, bytes)?;
        // SAFETY: the caller ensures it.
        unsafe { write_bytes(data, bytes, &contents, "the buffer") }
    })
}

/// Frees a buffer. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_buffer_free(buffer: *mut symmc_buffer) {
    // SAFETY: the caller ensures it.
    unsafe { free_handle(buffer) }
}
