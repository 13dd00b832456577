//! What the command says on standard error. Messages quote files of others: all of them pass [`printable`] here, and nothing
//! else in this crate writes to standard error but the spinner.

use std::io::{Write, stderr};

use symmc::unstable::ir::message::{escaped_line, printable};

/// Says why the command fails.
pub fn error(text: &str) {
    line(&format!("error: {text}"));
}

/// Says what a user should know.
pub fn note(text: &str) {
    line(&format!("note: {text}"));
}

/// Says a line, as of a measurement.
pub fn line(text: &str) {
    // Where standard error is gone, nobody reads it.
    let _ = writeln!(stderr(), "{}", printable(text));
}

/// Says what is wrong with the arguments, in colours where these are safe to print.
pub fn usage(error: &clap::Error) {
    let text = error.render().to_string();
    let is_plain = text.len() < 1 << 16 && text.lines().all(|line| escaped_line(line) == line);
    if !is_plain || error.print().is_err() {
        line(text.trim_end());
    }
}
