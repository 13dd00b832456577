//! The plan as JSON.
//!
//! Writing is canonical: equal plans give equal bytes, so [`Plan::hash`] identifies a plan. Every entry of a
//! bucket's tables (a step, a buffer, a place) is on its own line, so that line-based tools can compare plans.
//!
//! Reading rejects other versions, unknown fields and missing fields, with their names. It checks the form
//! only. The plan check verifies that indices exist and that memory is safe.

use std::io;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::wire::{Plan, VERSION};

/// A text that is no plan of this version.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanReadError {
    #[error("the plan has version {found}; this program reads version {VERSION}")]
    Version { found: u64 },
    #[error("line {line}, column {column}: {message}")]
    Form {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The problem, with the name of the field.
        message: String,
    },
}

#[derive(Deserialize)]
struct PlanHeader {
    version: u64,
}

impl Plan {
    /// The plan as JSON, ending in a line break.
    pub fn to_json(&self) -> String {
        let mut out = Vec::new();
        let mut writer = serde_json::Serializer::with_formatter(&mut out, PlanFormatter::default());
        // Every key of a plan is a string and writing to memory does not fail.
        let written = self.serialize(&mut writer);
        debug_assert!(written.is_ok());
        out.push(b'\n');
        String::from_utf8(out).unwrap_or_default()
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    pub fn from_json(text: &str) -> Result<Plan, PlanReadError> {
        let header: PlanHeader = serde_json::from_str(text).map_err(format_error)?;
        if header.version != u64::from(VERSION) {
            return Err(PlanReadError::Version { found: header.version });
        }
        serde_json::from_str(text).map_err(format_error)
    }

    /// SHA-256 of [`to_json`](Self::to_json), in hexadecimal.
    pub fn hash(&self) -> String {
        sha256_hex(self.to_json().as_bytes())
    }
}

pub fn sha256_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn format_error(error: serde_json::Error) -> PlanReadError {
    let text = error.to_string();
    // serde_json appends the position, which has its own fields here.
    let message = match text.rfind(" at line ") {
        Some(end) => text[..end].to_string(),
        None => text,
    };
    PlanReadError::Form { line: error.line(), column: error.column(), message }
}

/// The nesting depth to which lines are broken: plan, buckets, bucket, table.
const MAX_BROKEN_DEPTH: usize = 4;

/// The formatter of [`Plan::to_json`].
#[derive(Default)]
struct PlanFormatter {
    depth: usize,
    /// For each open level, whether it has an entry yet.
    filled: Vec<bool>,
}

impl PlanFormatter {
    fn open_bracket<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled.push(false);
        writer.write_all(bracket)
    }

    fn close_bracket<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        let broken = self.depth <= MAX_BROKEN_DEPTH && self.filled.pop() == Some(true);
        if self.depth > MAX_BROKEN_DEPTH {
            self.filled.pop();
        }
        self.depth -= 1;
        if broken {
            self.break_line(writer)?;
        }
        writer.write_all(bracket)
    }

    fn begin_entry<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        if let Some(filled) = self.filled.last_mut() {
            *filled = true;
        }
        if self.depth <= MAX_BROKEN_DEPTH {
            self.break_line(writer)
        } else if first {
            Ok(())
        } else {
            writer.write_all(b" ")
        }
    }

    fn break_line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(b" "))
    }
}

impl serde_json::ser::Formatter for PlanFormatter {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open_bracket(writer, b"[")
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close_bracket(writer, b"]")
    }
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_entry(writer, first)
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open_bracket(writer, b"{")
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close_bracket(writer, b"}")
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_entry(writer, first)
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
