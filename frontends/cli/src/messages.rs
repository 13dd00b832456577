//! Messages on standard error. Messages may quote untrusted files, so [`escape_message`] escapes all of them here. Nothing else
//! in this crate writes to standard error, except the spinner.

use std::io::{Write, stderr};

use symmc::unstable::ir::message::{escape_message, escaped_line};

pub fn error(text: &str) {
    print_line(&format!("error: {text}"));
}

pub fn note(text: &str) {
    print_line(&format!("note: {text}"));
}

/// Writes a line without a prefix, such as a measurement.
pub fn print_line(text: &str) {
    // Without standard error there is no way to report the failure.
    let _ = writeln!(stderr(), "{}", escape_message(text));
}

/// Writes an error of the arguments. It has clap's colours unless it has characters to escape.
pub fn usage_error(error: &clap::Error) {
    let text = error.render().to_string();
    let is_plain = text.len() < 1 << 16 && text.lines().all(|line| escaped_line(line) == line);
    if !is_plain || error.print().is_err() {
        print_line(text.trim_end());
    }
}
