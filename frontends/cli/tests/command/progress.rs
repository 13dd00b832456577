//! Progress on a terminal.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::process::Stdio;

use crate::common::{output, symmc, write};
use nix::pty::{OpenptyResult, openpty};

/// A table of buffers that takes much longer to pack than the first frame of a spinner takes to appear.
fn large_table() -> String {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut table = String::from("id,lower,upper,size\n");
    for id in 0..8000 {
        let lower = random(4000);
        let upper = lower + 1 + random(200);
        let _ = writeln!(table, "{id},{lower},{upper},{}", 64 * (1 + random(1000)));
    }
    table
}

#[test]
fn packing_shows_progress_on_a_terminal_and_nothing_elsewhere() {
    let dir = tempfile::tempdir().expect("a folder");
    let line = format!("pack {}", write(dir.path(), "large.csv", large_table().as_bytes()));
    let OpenptyResult { master, slave } = openpty(None, None).expect("a terminal");
    let mut child =
        symmc(&line).stdout(Stdio::null()).stderr(Stdio::from(slave)).spawn().expect("symmc starts");
    // The terminal gives an error to its reader when the last writer has closed it.
    let mut shown = Vec::new();
    let _ = File::from(master).read_to_end(&mut shown);
    assert!(child.wait().expect("it ends").success());
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("packing (0s)") && shown.ends_with("\r\u{1b}[2K"), "{shown:?}");
    assert!(output(&mut symmc(&line)).stderr.is_empty());
}
