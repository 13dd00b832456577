//! The allocator of the command. An allocation that fails ends the command with an error and exit code 2, as bad input does: the
//! memory of the machine or a limit of the user (`ulimit -v`, `ulimit -d`) is too small for the request. Rust's default would
//! abort the process.

use std::fmt::Write;

use symmc::unstable::control::{BoundedAllocator, exit_immediately};

#[global_allocator]
static ALLOCATOR: BoundedAllocator = BoundedAllocator(exit_out_of_memory);

/// Ends the command at once. It must not allocate, and no destructors run.
#[cold]
fn exit_out_of_memory(size: usize) -> ! {
    let mut text = FixedText { bytes: [0; 160], len: 0 };
    // The buffer is large enough for the longest number.
    let _ = writeln!(
        text,
        "error: {size} bytes of memory cannot be allocated: the machine or a limit (ulimit -v, ulimit -d) has no more"
    );
    exit_immediately(&text.bytes[..text.len], 2)
}

/// Text in a buffer of fixed size, without allocation.
struct FixedText {
    bytes: [u8; 160],
    len: usize,
}

impl Write for FixedText {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let room = self.bytes.get_mut(self.len..).and_then(|room| room.get_mut(..s.len()));
        room.ok_or(std::fmt::Error)?.copy_from_slice(s.as_bytes());
        self.len += s.len();
        Ok(())
    }
}
