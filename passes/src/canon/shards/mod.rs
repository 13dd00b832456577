//! Reductions of gathered shards: each rank reduces its own shard, and only the results are communicated.
//!
//! A vocabulary-parallel head computes logits in shards, gathers them along the vocabulary and reduces them
//! along it: an argmax, a top-k, a cross-entropy. The gathered logits take megabytes, the results kilobytes.
//!
//! - `analysis` finds values that are concatenated shards (`gathered`), in any form that a program can have,
//!   and follows them through views and element-wise ops.
//! - Element-wise ops move to the shards. If an operand is the same on all ranks ([`symmc_ir::Replication`])
//!   and varies along the axis, each rank takes its piece. If an operand may differ between ranks, such as a
//!   temperature per row, it is gathered, and each rank computes for all of them.
//! - `reductions` and `picks` build the replacements for readers of such values, as `terms`. Terms become
//!   nodes only if the all_gather disappears and if that saves enough bytes.
//!
//! The pass depends on all readers of a value, so it is not a rule of the rewriter.
//!
//! Results keep their bits, except that sums of floats are added in another order: each rank's partial sum
//! is rounded to f32 (f64 for f64) once, and so is each step of the sum over ranks. If an all_gather has
//! another reader, it stays, and so do its reductions.

mod analysis;
mod gathered;
mod picks;
mod reductions;
mod sizes;
mod terms;

use std::collections::{HashMap, HashSet};

use symmc_ir::{EntityMap, Graph, NodeId, ValueId};

use crate::rewrite::{
    ReplacedCollective, UniqueNames, compact, copy_inputs, copy_node, copy_outputs, keeps_effects,
};
use analysis::{ShardAnalysis, ShardReplacement, large_gathers};
pub use sizes::JudgedSizes;
use terms::{EmittedTerms, TermId, VisitedTerms};

/// The bytes of all_gathers that each collective of the replacement must save. A small collective and the
/// few small kernels around it take about 5 µs. The links of a current GPU carry about 1 MiB in that time.
pub const WORTH_A_COLLECTIVE: i64 = 1 << 20;

/// A replacement may communicate at most one byte per this many gathered bytes. A gather of early values may
/// run concurrently with computation, while the replacement waits for the shards. Saving a small part of
/// many bytes may therefore save no time.
const LEAST_REDUCTION: i64 = 4;

#[derive(Clone, Copy, Debug)]
pub struct ShardsConfig {
    /// The bytes of all_gathers that each collective of the replacement must save.
    pub bytes: i64,
    pub sizes: JudgedSizes,
}

pub struct ReducedShards {
    pub graph: Graph,
    pub replaced: Vec<ReplacedCollective>,
    /// Whether all of these reductions also pay at the smallest sizes.
    pub at_all_sizes: bool,
}

/// Returns the graph with reductions of shards, or `None` if none pays.
pub fn reduce_shards(graph: &Graph, config: ShardsConfig) -> Option<ReducedShards> {
    let mut bases = large_gathers(graph, config.bytes, config.sizes);
    loop {
        if bases.is_empty() {
            return None;
        }
        let analysis = ShardAnalysis::new(graph, &bases);
        let live = live_values(graph, &analysis);
        let mut kept: HashSet<NodeId> =
            bases.iter().copied().filter(|&b| live[graph.nodes[b].outputs[0]]).collect();
        if kept.is_empty() {
            kept = unprofitable_gathers(graph, &analysis, &bases, &live, config);
        }
        if kept.is_empty() {
            let smallest = ShardsConfig { sizes: JudgedSizes::Smallest, ..config };
            let at_all_sizes = unprofitable_gathers(graph, &analysis, &bases, &live, smallest).is_empty();
            let (graph, replaced) = rebuild_graph(graph, &analysis, &bases, &live)?;
            return Some(ReducedShards { graph, replaced, at_all_sizes });
        }
        bases.retain(|base| !kept.contains(base));
    }
}

/// The values that are computed if all replacements are made.
fn live_values(graph: &Graph, analysis: &ShardAnalysis<'_>) -> EntityMap<ValueId, bool> {
    let mut live = EntityMap::filled(false, graph.values.len());
    graph.outputs.iter().for_each(|o| live[o.value] = true);
    let mut visited = VisitedTerms::default();
    for node in graph.nodes.values().rev() {
        if keeps_effects(&node.op)
            || node.outputs.iter().any(|&v| live[v] && analysis.replacements[v].is_none())
        {
            node.inputs.iter().for_each(|&v| live[v] = true);
        }
        let terms = node.outputs.iter().filter(|&&v| live[v]).filter_map(|&v| analysis.replacements[v]);
        let terms: Vec<TermId> = terms.map(|r| r.term).collect();
        let sources = analysis.terms.unvisited_sources(&terms, &mut visited);
        sources.into_iter().for_each(|v| live[v] = true);
    }
    live
}

/// Groups the replacements by the all_gathers that they replace.
fn group_by_gather(
    graph: &Graph,
    analysis: &ShardAnalysis<'_>,
    live: &EntityMap<ValueId, bool>,
) -> HashMap<NodeId, Vec<TermId>> {
    let mut found: HashMap<NodeId, Vec<TermId>> = HashMap::new();
    for v in graph.values.keys().filter(|&v| live[v]) {
        if let Some(ShardReplacement { term, base }) = analysis.replacements[v] {
            found.entry(analysis.leader(base)).or_default().push(term);
        }
    }
    found
}

/// The all_gathers whose replacement saves too few bytes.
fn unprofitable_gathers(
    graph: &Graph,
    analysis: &ShardAnalysis<'_>,
    bases: &HashSet<NodeId>,
    live: &EntityMap<ValueId, bool>,
    config: ShardsConfig,
) -> HashSet<NodeId> {
    let replacements = group_by_gather(graph, analysis, live);
    let mut before: HashMap<NodeId, i64> = HashMap::new();
    for &base in bases {
        let all = before.entry(analysis.leader(base)).or_default();
        *all = all.saturating_add(config.sizes.bytes(graph, graph.ty(graph.nodes[base].outputs[0])));
    }
    let mut unprofitable = HashSet::new();
    for &base in bases {
        let leader = analysis.leader(base);
        let Some(terms) = replacements.get(&leader) else {
            unprofitable.insert(base);
            continue;
        };
        let communicated = analysis.terms.communicated(terms);
        let collectives = communicated.len() as i64;
        let mut after = 0i64;
        for ty in communicated {
            after = after.saturating_add(config.sizes.bytes(graph, ty));
        }
        let before = before.get(&leader).copied().unwrap_or_default();
        let is_less = after.saturating_mul(LEAST_REDUCTION) <= before;
        if !is_less || before.saturating_sub(after) < config.bytes.saturating_mul(collectives) {
            unprofitable.insert(base);
        }
    }
    unprofitable
}

/// Builds the graph with the replacements and without nodes that are no longer needed.
fn rebuild_graph(
    graph: &Graph,
    analysis: &ShardAnalysis<'_>,
    bases: &HashSet<NodeId>,
    live: &EntityMap<ValueId, bool>,
) -> Option<(Graph, Vec<ReplacedCollective>)> {
    let (mut to, mut map) = copy_inputs(graph);
    let mut emitted = EmittedTerms::default();
    for node in graph.nodes.values() {
        if keeps_effects(&node.op)
            || node.outputs.iter().any(|&v| live[v] && analysis.replacements[v].is_none())
        {
            copy_node(graph, node, &mut to, &mut map)?;
        }
        for &v in node.outputs.iter().filter(|&&v| live[v]) {
            if let Some(ShardReplacement { term, .. }) = analysis.replacements[v] {
                let value = emitted.value(&analysis.terms, term, graph.value_name(v), &mut to, |v| map[v])?;
                map[v] = Some(value);
            }
        }
    }
    to.outputs = copy_outputs(graph, &map)?;
    // Values of the terms of one reader share a name.
    let mut names = UniqueNames::default();
    to.values.values_mut().for_each(|value| value.name = names.unique(&value.name));
    let by_gather = group_by_gather(graph, analysis, live);
    let mut replaced = Vec::with_capacity(bases.len());
    for &base in bases {
        let terms = by_gather.get(&analysis.leader(base)).map_or(&[][..], Vec::as_slice);
        replaced.push(ReplacedCollective {
            collective: graph.node_name(base).to_string(),
            rule: "reduce_shards_first",
            what: "each rank reduces its own shard, and only the results are communicated".into(),
            by: emitted.collective_names(&analysis.terms, terms, &to),
        });
    }
    replaced.sort_by(|a, b| a.collective.cmp(&b.collective));
    Some((compact(&to), replaced))
}
