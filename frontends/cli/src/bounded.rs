//! Memory that cannot be had ends the command with an error and exit code 2, as bad input does: the limits of the
//! machine or of the user (`ulimit -v`, `ulimit -d`) are too low for what was asked. A plain allocation would abort.

use std::fmt::Write;

use symmc::unstable::control::{Bounded, exit_at_once};

#[global_allocator]
static ALLOCATOR: Bounded = Bounded(refused);

/// Ends the command without allocating, and without running what was in progress.
#[cold]
fn refused(size: usize) -> ! {
    let mut text = Text { bytes: [0; 160], len: 0 };
    // The text fits.
    let _ = writeln!(
        text,
        "error: {size} bytes of memory cannot be allocated: the machine or a limit (ulimit -v, ulimit -d) has no more"
    );
    exit_at_once(&text.bytes[..text.len], 2)
}

/// Text of bounded length in place.
struct Text {
    bytes: [u8; 160],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let room = self.bytes.get_mut(self.len..).and_then(|room| room.get_mut(..s.len()));
        room.ok_or(std::fmt::Error)?.copy_from_slice(s.as_bytes());
        self.len += s.len();
        Ok(())
    }
}
