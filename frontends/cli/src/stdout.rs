//! Output of commands. Standard output may fail: a full disk is an error with a message, not a panic.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use symmc::unstable::ir::message::escaped_line;

/// Writes text for people to standard output. Control characters are escaped, because the text may quote untrusted files.
pub fn print_text(text: &str) -> Result<()> {
    print_exact(&text.split('\n').map(escaped_line).collect::<Vec<_>>().join("\n"))
}

/// Writes machine-readable text to standard output, without escapes.
pub fn print_exact(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing to standard output")
}

/// Refuses an output file that is one of the files that the command reads.
pub fn refuse_overwrite(output: Option<&Path>, inputs: &[PathBuf]) -> Result<()> {
    Ok(output.map_or(Ok(()), |path| symmc::refuse_overwrite(path, inputs))?)
}
