//! The findings of a check: the first [`MAX_STORED_FINDINGS`] of them, and the total number.
//!
//! An untrusted plan may break a rule at each of its entries, so the number of stored and printed findings is
//! bounded.

use super::error::CheckError;

/// The largest number of findings that are stored.
pub const MAX_STORED_FINDINGS: usize = 100;

#[derive(Debug, Default)]
pub struct Findings {
    kept: Vec<CheckError>,
    count: usize,
}

impl Findings {
    pub fn push(&mut self, finding: CheckError) {
        self.count += 1;
        if self.kept.len() < MAX_STORED_FINDINGS {
            self.kept.push(finding);
        }
    }

    pub fn extend(&mut self, findings: impl IntoIterator<Item = CheckError>) {
        findings.into_iter().for_each(|finding| self.push(finding));
    }

    pub fn append(&mut self, other: Findings) {
        let room = MAX_STORED_FINDINGS - self.kept.len();
        self.kept.extend(other.kept.into_iter().take(room));
        self.count += other.count;
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The stored findings, followed by [`CheckError::More`] if there are others.
    pub fn into_errors(self) -> Vec<CheckError> {
        let Findings { kept: mut errors, count } = self;
        let count = count - errors.len();
        if count > 0 {
            errors.push(CheckError::More { count });
        }
        errors
    }
}
