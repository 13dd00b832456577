//! An allocator for commands: a failed allocation ends the process with a message instead of an abort.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator. On failure it calls the function with the number of requested bytes. The function
/// must not allocate ([`exit_immediately`]).
#[derive(Debug)]
pub struct BoundedAllocator(pub fn(usize) -> !);

// SAFETY: every call goes to the system's allocator unchanged; a failed allocation is never returned.
unsafe impl GlobalAlloc for BoundedAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller.
        self.expect_allocated(unsafe { System.alloc(layout) }, layout.size())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller.
        self.expect_allocated(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: by the caller.
        self.expect_allocated(unsafe { System.realloc(ptr, layout, size) }, size)
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

impl BoundedAllocator {
    #[inline]
    fn expect_allocated(&self, ptr: *mut u8, size: usize) -> *mut u8 {
        if ptr.is_null() {
            self.0(size);
        }
        ptr
    }
}

/// Writes a text to standard error and ends the process, without allocating anything or unwinding.
pub fn exit_immediately(text: &[u8], code: i32) -> ! {
    // SAFETY: the text is valid for its length; nothing of this process runs after the second call.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        libc::_exit(code)
    }
}
