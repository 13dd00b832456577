//! Settings that must be equal on ranks of another launcher, in addition to plan, sizes and number of runs.
//!
//! A term is a text, or content that is too large to be read only for a comparison: a file of tensors. Ranks
//! first compare what identifies the content according to the system: on one machine, the same file with the
//! same modification time. Only if that differs does every rank read all of it and send a digest of every
//! byte.

use std::fmt;
use std::sync::Arc;

use symmc_support::shorten_middle;

use crate::error::{Result, RunError};

const MAX_NAME_BYTES: usize = 256;

/// Bytes that must be equal on all ranks.
pub trait TermContent: Send + Sync {
    /// Identifies the content without reading it. Contents with the same identity are equal; contents with
    /// different identities may be.
    fn identity(&self) -> std::io::Result<String>;

    /// A digest of every byte.
    fn digest(&self) -> std::io::Result<String>;
}

#[derive(Clone)]
pub struct JoinTerm {
    /// Its name: `seed`, `tensors`.
    pub name: String,
    pub value: JoinTermValue,
}

#[derive(Clone)]
pub enum JoinTermValue {
    Text(String),
    Content(Arc<dyn TermContent>),
}

impl JoinTerm {
    pub fn text(name: impl Into<String>, value: impl Into<String>) -> JoinTerm {
        JoinTerm { name: bounded_name(name.into()), value: JoinTermValue::Text(value.into()) }
    }

    pub fn content(name: impl Into<String>, content: Arc<dyn TermContent>) -> JoinTerm {
        JoinTerm { name: bounded_name(name.into()), value: JoinTermValue::Content(content) }
    }

    /// The name, and the value that is compared first.
    pub(crate) fn compared_value(&self) -> Result<(String, String)> {
        let value = match &self.value {
            JoinTermValue::Text(text) => text.clone(),
            JoinTermValue::Content(content) => content.identity().map_err(|e| self.read_error(&e))?,
        };
        Ok((self.name.clone(), value))
    }

    pub(crate) fn digest(&self) -> Result<Option<(String, String)>> {
        match &self.value {
            JoinTermValue::Text(_) => Ok(None),
            JoinTermValue::Content(content) => {
                let digest = content.digest().map_err(|e| self.read_error(&e))?;
                Ok(Some((self.name.clone(), digest)))
            }
        }
    }

    pub(crate) fn is_content(&self) -> bool {
        matches!(self.value, JoinTermValue::Content(_))
    }

    fn read_error(&self, error: &std::io::Error) -> RunError {
        RunError::Invalid(format!("{}: {error}", self.name))
    }
}

/// The name of a term in messages, which have a maximum size. It may be that of a symbol.
fn bounded_name(name: String) -> String {
    shorten_middle(&name, MAX_NAME_BYTES)
}

impl fmt::Debug for JoinTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            JoinTermValue::Text(text) => write!(f, "{}={text}", self.name),
            JoinTermValue::Content(_) => write!(f, "{} (content)", self.name),
        }
    }
}
