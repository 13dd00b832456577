//! Messages on standard error. Messages may quote untrusted files, so all of them pass [`printable`] here. Nothing else in this
//! crate writes to standard error, except the spinner.

use std::io::{Write, stderr};

use symmc::unstable::ir::message::{escaped_line, printable};

pub fn error(text: &str) {
    line(&format!("error: {text}"));
}

pub fn note(text: &str) {
    line(&format!("note: {text}"));
}

/// Writes a line without a prefix, such as a measurement.
pub fn line(text: &str) {
    // Without standard error there is no way to report the failure.
    let _ = writeln!(stderr(), "{}", printable(text));
}

/// Writes an error of the arguments, in colours if they need no escapes.
pub fn usage(error: &clap::Error) {
    let text = error.render().to_string();
    let is_plain = text.len() < 1 << 16 && text.lines().all(|line| escaped_line(line) == line);
    if !is_plain || error.print().is_err() {
        line(text.trim_end());
    }
}
