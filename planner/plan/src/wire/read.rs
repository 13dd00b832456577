//! Buckets as files may have them: the blocks of a kernel stand with its step, or with the decision on its collective.

use indexmap::IndexMap;
use serde::Deserialize;

use super::entries::{Alternative, AppliedRule, Buffer, ForcedCopy, Place, Step, Totals};

/// The fields of [`super::Bucket`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    pub symbols: IndexMap<String, [i64; 2]>,
    pub program: usize,
    pub buffers: Vec<Buffer>,
    pub places: IndexMap<String, Place>,
    pub steps: Vec<Step>,
    pub decisions: Vec<Decision>,
    pub copies: Vec<ForcedCopy>,
    pub totals: Totals,
}

/// The fields of [`super::Decision`], and the blocks of each of its nodes; 0 is none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    pub collective: String,
    pub nodes: Vec<String>,
    #[serde(default)]
    pub blocks: Vec<u32>,
    pub chosen: String,
    pub bytes: u64,
    pub alternatives: Vec<Alternative>,
    pub rules: Vec<AppliedRule>,
}
