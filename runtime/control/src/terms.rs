//! What must be alike on ranks that joined by themselves, besides plan, sizes and number of runs.
//!
//! A term is a text, or content that is too large to be read only to be compared: a file of tensors. Of content,
//! ranks first compare what the system says identifies it, the same file of the same age on one machine. Only where
//! that differs does every rank read all of it, and digests of every byte are compared.

use std::fmt;
use std::sync::Arc;

use crate::error::{Result, RunError};

/// Bytes that ranks must have alike.
pub trait Content: Send + Sync {
    /// What identifies the content without reading it. Contents of one identity are equal; others may be.
    fn identity(&self) -> std::io::Result<String>;

    /// A digest of every byte.
    fn digest(&self) -> std::io::Result<String>;
}

#[derive(Clone)]
pub struct Term {
    /// Its name: `seed`, `tensors`.
    pub name: String,
    pub value: TermValue,
}

#[derive(Clone)]
pub enum TermValue {
    Text(String),
    Content(Arc<dyn Content>),
}

impl Term {
    pub fn text(name: impl Into<String>, value: impl Into<String>) -> Term {
        Term { name: name.into(), value: TermValue::Text(value.into()) }
    }

    pub fn content(name: impl Into<String>, content: Arc<dyn Content>) -> Term {
        Term { name: name.into(), value: TermValue::Content(content) }
    }

    /// The name, and what is compared first.
    pub(crate) fn first(&self) -> Result<(String, String)> {
        let value = match &self.value {
            TermValue::Text(text) => text.clone(),
            TermValue::Content(content) => content.identity().map_err(|e| self.unread(&e))?,
        };
        Ok((self.name.clone(), value))
    }

    pub(crate) fn digest(&self) -> Result<Option<(String, String)>> {
        match &self.value {
            TermValue::Text(_) => Ok(None),
            TermValue::Content(content) => {
                let digest = content.digest().map_err(|e| self.unread(&e))?;
                Ok(Some((self.name.clone(), digest)))
            }
        }
    }

    pub(crate) fn is_content(&self) -> bool {
        matches!(self.value, TermValue::Content(_))
    }

    fn unread(&self, error: &std::io::Error) -> RunError {
        RunError::Invalid(format!("{}: {error}", self.name))
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            TermValue::Text(text) => write!(f, "{}={text}", self.name),
            TermValue::Content(_) => write!(f, "{} (content)", self.name),
        }
    }
}
