//! Memory that cannot be had ends the command with an error and exit code 2, as bad input does: the limits of the
//! machine or of the user (`ulimit -v`, `ulimit -d`) are too low for what was asked. A plain allocation would abort.

use std::fmt::Write;

use symmc::unstable::control::{BoundedAllocator, exit_immediately};

#[global_allocator]
static ALLOCATOR: BoundedAllocator = BoundedAllocator(exit_out_of_memory);

/// Ends the command without allocating, and without running what was in progress.
#[cold]
fn exit_out_of_memory(size: usize) -> ! {
    let mut text = FixedText { bytes: [0; 160], len: 0 };
    // The text fits.
    let _ = writeln!(
        text,
        "error: {size} bytes of memory cannot be allocated: the machine or a limit (ulimit -v, ulimit -d) has no more"
    );
    exit_immediately(&text.bytes[..text.len], 2)
}

/// Text of bounded length in place.
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
