//! Buckets as files may have them: the blocks of a kernel stand with its step, or with the decision on its collective.

use std::collections::HashMap;

use indexmap::IndexMap;
use serde::Deserialize;

use super::{Alternative, AppliedRule, Buffer, ForcedCopy, Place, Step, Totals};

/// The fields of [`super::Bucket`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    symbols: IndexMap<String, [i64; 2]>,
    program: usize,
    buffers: Vec<Buffer>,
    places: IndexMap<String, Place>,
    steps: Vec<Step>,
    decisions: Vec<Decision>,
    copies: Vec<ForcedCopy>,
    totals: Totals,
}

/// The fields of [`super::Decision`], and the blocks of each of its nodes; 0 is none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decision {
    collective: String,
    nodes: Vec<String>,
    #[serde(default)]
    blocks: Vec<u32>,
    chosen: String,
    bytes: u64,
    alternatives: Vec<Alternative>,
    rules: Vec<AppliedRule>,
}

impl From<Bucket> for super::Bucket {
    fn from(read: Bucket) -> super::Bucket {
        let Bucket { symbols, program, buffers, places, mut steps, decisions, copies, totals } = read;
        let decided = decisions.iter().flat_map(|d| d.nodes.iter().zip(&d.blocks));
        let blocks: HashMap<&str, u32> =
            decided.filter(|(_, b)| **b > 0).map(|(n, &b)| (n.as_str(), b)).collect();
        for step in &mut steps {
            step.blocks = step.blocks.or(blocks.get(step.node.as_str()).copied());
        }
        let decisions = decisions.into_iter().map(|d| {
            let Decision { collective, nodes, blocks: _, chosen, bytes, alternatives, rules } = d;
            super::Decision { collective, nodes, chosen, bytes, alternatives, rules }
        });
        let decisions = decisions.collect();
        super::Bucket { symbols, program, buffers, places, steps, decisions, copies, totals }
    }
}
