//! Standard output that may fail: a full disk is an error with a message, not a panic.

use std::io::Write;

use anyhow::{Context, Result};

/// Writes text to standard output.
pub fn put(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing to standard output")
}
