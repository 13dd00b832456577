//! Parse errors: where a text is not a graph, and why.

use std::fmt;

use thiserror::Error;

use crate::message::escaped_line;

/// The maximum number of characters of a line that an error carries.
const MAX_LINE_CHARS: usize = 120;

/// A parse error. It displays the text of the line, with a caret below the position.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    pub message: String,
    /// The text of the line; of a long line, the part around the column with `…` at its cut ends.
    pub text: String,
    /// The number of characters of `text` before the position.
    caret: usize,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "line {}, column {}: {}", self.line, self.column, self.message)?;
        writeln!(f, "  | {}", escaped_line(&self.text))?;
        f.write_str("  | ")?;
        // The caret is below the position in the escaped line.
        let before: String = self.text.chars().take(self.caret).collect();
        for c in escaped_line(&before).chars() {
            f.write_str(if c == '\t' { "\t" } else { " " })?;
        }
        f.write_str("^")
    }
}

#[derive(Debug)]
pub(super) struct ParseFailure {
    /// The byte position in the text.
    pub at: usize,
    pub message: String,
}

impl ParseFailure {
    pub fn new(at: usize, message: impl Into<String>) -> Self {
        ParseFailure { at, message: message.into() }
    }

    pub fn locate(self, text: &str) -> ParseError {
        let mut position = self.at.min(text.len());
        while !text.is_char_boundary(position) {
            position -= 1;
        }
        let start = text[..position].rfind('\n').map_or(0, |i| i + 1);
        let end = text[position..].find('\n').map_or(text.len(), |i| position + i);
        let line = text[..start].bytes().filter(|&c| c == b'\n').count() + 1;
        let before = text[start..position].chars().count();
        let full_line = text[start..end].trim_end_matches('\r');
        let (text, caret) = clip_line(full_line, before);
        ParseError { line, column: before + 1, message: self.message, text, caret }
    }
}

/// The part of a line around a character, and the number of characters before that character in the part.
fn clip_line(line: &str, caret: usize) -> (String, usize) {
    let skip = if caret <= MAX_LINE_CHARS * 2 / 3 { 0 } else { caret - MAX_LINE_CHARS / 2 };
    let mut chars = line.chars().skip(skip);
    let mut out = String::new();
    let lead = usize::from(skip > 0);
    if skip > 0 {
        out.push('…');
    }
    out.extend(chars.by_ref().take(MAX_LINE_CHARS));
    if chars.next().is_some() {
        out.push('…');
    }
    (out, caret - skip + lead)
}

/// A piece of text, quoted for an error message: at most 40 characters.
pub(super) fn quote(text: &str) -> String {
    let mut out: String = text.chars().take(40).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    format!("`{out}`")
}
