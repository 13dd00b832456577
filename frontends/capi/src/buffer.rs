//! Memory of a session's device that belongs to the caller.

use std::ffi::{c_char, c_void};

use symmc::SessionBuffer;

use crate::error::{
    borrow_handle, borrow_handle_mut, create_handle, free_handle, guard, read_slice, read_text, symmc_status,
    write_bytes,
};
use crate::session::symmc_session;

/// Memory of a device, the host or a GPU, that belongs to the caller: for weights, caches, activations and outputs. Any number
/// of threads may use it at once.
pub struct symmc_buffer(SessionBuffer);

/// Memory of the session's device, full of zeros, at a multiple of 256 bytes. Every session of this process on that device may
/// have it bound. It is the caller's, freed by `symmc_buffer_free`; it outlives the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_allocate(
    session: *mut symmc_session,
    bytes: usize,
    out: *mut *mut symmc_buffer,
) -> symmc_status {
    // SAFETY: by the caller.
    unsafe {
        create_handle(out, || borrow_handle(session, "session")?.session.allocate(bytes).map(symmc_buffer))
    }
}

/// Symmetric memory of the session for the caller, of what `symmc_session_options_set_symmetric` said. All ranks allocate the
/// same, together; each waits for its runs and for the others. A block stays taken until the session ends. An input that the
/// plan holds in symmetric memory is read where it lies in such a buffer, if all ranks have the same block bound for it. The
/// buffer is the caller's, freed by `symmc_buffer_free`; a session that has given one does not give its memory back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_allocate_symmetric(
    session: *mut symmc_session,
    bytes: usize,
    out: *mut *mut symmc_buffer,
) -> symmc_status {
    let allocate = || {
        // SAFETY: by the caller.
        let session = unsafe { borrow_handle_mut(session, "session") }?;
        session.session.allocate_symmetric(bytes).map(symmc_buffer)
    };
    // SAFETY: by the caller.
    unsafe { create_handle(out, allocate) }
}

/// As `symmc_session_bind`, for all of a buffer of the session's device. The session keeps the memory as long as a run may use
/// it: the caller may free the buffer at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_bind_buffer(
    session: *mut symmc_session,
    name: *const c_char,
    buffer: *const symmc_buffer,
) -> symmc_status {
    guard(|| {
        // SAFETY: by the caller.
        let (session, name) =
            unsafe { (borrow_handle_mut(session, "session")?, read_text(name, "the name")?) };
        // SAFETY: by the caller.
        unsafe { session.session.bind_buffer(name, &borrow_handle(buffer, "buffer")?.0) }
    })
}

/// The first byte, as a pointer of the device; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_buffer_address(buffer: *const symmc_buffer) -> *mut c_void {
    // SAFETY: by the caller.
    unsafe { buffer.as_ref() }.map_or(std::ptr::null_mut(), |buffer| buffer.0.as_ptr().cast())
}

/// The number of bytes; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_buffer_bytes(buffer: *const symmc_buffer) -> usize {
    // SAFETY: by the caller.
    unsafe { buffer.as_ref() }.map_or(0, |buffer| buffer.0.bytes())
}

/// Copies memory of the host to the bytes from `at` on. No run that uses them may be in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_buffer_write(
    buffer: *const symmc_buffer,
    at: usize,
    data: *const c_void,
    bytes: usize,
) -> symmc_status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        borrow_handle(buffer, "buffer")?.0.write(at, read_slice(data.cast(), bytes, "the data")?)
    })
}

/// Copies so many bytes from `at` on to memory of the host. No run that writes them may be in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_buffer_read(
    buffer: *const symmc_buffer,
    at: usize,
    data: *mut c_void,
    bytes: usize,
) -> symmc_status {
    guard(|| {
        // SAFETY: by the caller.
        let found = unsafe { borrow_handle(buffer, "buffer") }?.0.read(at, bytes)?;
        // SAFETY: by the caller.
        unsafe { write_bytes(data, bytes, &found, "the buffer") }
    })
}

/// Frees a buffer. Sessions that have it bound keep its memory. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_buffer_free(buffer: *mut symmc_buffer) {
    // SAFETY: by the caller.
    unsafe { free_handle(buffer) }
}
