//! Names and strings of the text form: which names need no quotes, and how other names and strings are quoted.
//! Characters that would change the display of a terminal are written as escapes, as in messages.

use crate::message::is_escaped;

/// Whether a value or a group can be written without quotes.
pub(crate) fn is_bare(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'.')
}

/// Whether a symbol can be written without quotes.
pub(crate) fn is_identifier(name: &str) -> bool {
    is_bare(name) && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Writes `text` as a string literal.
pub(crate) fn write_string(out: &mut impl std::fmt::Write, text: &str) -> std::fmt::Result {
    out.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if is_escaped(c) => write!(out, "\\u{{{:x}}}", u32::from(c))?,
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}
