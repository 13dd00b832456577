//! Estimates how much computation can run concurrently with each region.
//!
//! A node that computes can run concurrently with a region if neither depends on the other. A node that is
//! concurrent with several regions counts for each with an equal part, because it hides only one at a time.
//! Once there is a schedule, the computation that it runs concurrently with the collectives of a region
//! counts instead ([`Overlap::Scheduled`]). [`symmc_ir::machine`] explains the use of these amounts, and the
//! cost of running next to computation.
//!
//! Nodes more than [`MAX_NODE_DISTANCE`] nodes before or after a region are not counted: moving a node that
//! far would keep its memory occupied all the way. The work of this analysis therefore grows with the
//! program, not with the product of nodes and regions.
//!
//! Estimates of computation are rough, so amounts are rounded down to three binary digits of microseconds.
//! Amounts of a few microseconds become 0, because lanes rarely start at the same time. Regions that differ
//! by less stay equal.

use symmc_ir::entity::Entity;
use symmc_ir::machine::{OperationCounts, TrafficModel};
use symmc_ir::{Graph, Node, NodeId, Op};

use super::context::{AssumedSchedule, LowerContext, Overlap};

/// The least amount that counts, in microseconds.
const MIN_COUNTED_US: u64 = 8;
/// The number of regions that one word of bits describes.
const REGIONS_PER_WORD: usize = 64;
/// The most nodes between a region and a node that is concurrent with it.
const MAX_NODE_DISTANCE: usize = 1 << 13;

/// For each region, given by its nodes, the microseconds of computation that can run concurrently with it.
/// The result is 0 on machines that do not model how communication slows computation.
pub fn concurrent_compute_us(
    graph: &Graph,
    regions: &[&[NodeId]],
    context: &LowerContext,
    schedule: &AssumedSchedule,
) -> Vec<u64> {
    if context.profile.multiprocessors.is_none() {
        return vec![0; regions.len()];
    }
    if let Overlap::Scheduled(overlap_us) = &schedule.overlap {
        let mut out = Vec::with_capacity(regions.len());
        for nodes in regions {
            let scheduled_us =
                nodes.iter().map(|&n| overlap_us.get(graph.node_name(n)).copied().unwrap_or(0.0));
            out.push(round_down_us(scheduled_us.sum::<f64>() as u64));
        }
        return out;
    }
    let before: Vec<Vec<usize>> = graph.nodes.values().map(|node| operands(graph, node)).collect();
    let words = group_into_words(regions);
    let mut inside = vec![false; graph.nodes.len()];
    regions.iter().flat_map(|nodes| nodes.iter()).for_each(|n| inside[n.index()] = true);
    // Sums and casts in regions may disappear by rewriting, so they are not counted as hiding anything.
    let hides: Vec<bool> = graph.nodes.iter().map(|(id, n)| computes(n) && !inside[id.index()]).collect();
    let mut among = vec![0u32; graph.nodes.len()];
    for word in &words {
        for (n, bits) in independent_nodes(&before, regions, word).filter(|&(n, _)| hides[n]) {
            among[n] += bits.count_ones();
        }
    }
    let us: Vec<f64> = graph.nodes.keys().map(|id| share_us(graph, id, among[id.index()], context)).collect();
    let mut out = vec![0.0; regions.len()];
    for word in &words {
        for (n, mut bits) in independent_nodes(&before, regions, word).filter(|&(n, _)| hides[n]) {
            while bits != 0 {
                out[word[bits.trailing_zeros() as usize]] += us[n];
                bits &= bits - 1;
            }
        }
    }
    out.into_iter().map(|us: f64| round_down_us(us as u64)).collect()
}

/// The microseconds that a node hides of each of `among` regions.
fn share_us(graph: &Graph, node: NodeId, among: u32, context: &LowerContext) -> f64 {
    if among == 0 { 0.0 } else { compute_us(graph, node, context) / f64::from(among) }
}

/// Groups the regions into words, so that regions in one word are near each other in the program.
fn group_into_words(regions: &[&[NodeId]]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..regions.len()).collect();
    order.sort_by_key(|&r| regions[r].iter().min().copied());
    order.chunks(REGIONS_PER_WORD).map(<[usize]>::to_vec).collect()
}

/// The estimated time of all computation of a program, in microseconds, one node after another.
pub fn computation_us(graph: &Graph, context: &LowerContext) -> f64 {
    graph.nodes.keys().map(|id| node_computation_us(graph, id, context)).sum()
}

/// The estimated time of a node in microseconds; 0 for views and collectives.
pub fn node_computation_us(graph: &Graph, node: NodeId, context: &LowerContext) -> f64 {
    if computes(&graph.nodes[node]) { compute_us(graph, node, context) } else { 0.0 }
}

/// Yields each node near these regions, at most as many as a word has bits, with the regions that neither
/// need it nor are needed by it. `before` gives the nodes that each node reads.
fn independent_nodes(
    before: &[Vec<usize>],
    regions: &[&[NodeId]],
    word: &[usize],
) -> impl Iterator<Item = (usize, u64)> + use<> {
    let nodes = word.iter().flat_map(|&r| regions[r]).map(|n| n.index());
    let near = nodes.clone().min().map_or(0..0, |first| {
        let last_node = nodes.max().unwrap_or(first);
        first.saturating_sub(MAX_NODE_DISTANCE)
            ..last_node.saturating_add(MAX_NODE_DISTANCE + 1).min(before.len())
    });
    let region_bits = if word.len() < REGIONS_PER_WORD { (1 << word.len()) - 1 } else { u64::MAX };
    let mut needs = vec![0u64; near.len()];
    for (bit, &r) in word.iter().enumerate() {
        regions[r].iter().for_each(|n| needs[n.index() - near.start] |= 1 << bit);
    }
    // All nodes on a dependency path lie between its ends, so nodes outside the window do not matter.
    let mut needed = needs.clone();
    for n in near.clone() {
        for d in before[n].iter().filter(|d| near.contains(d)) {
            needs[n - near.start] |= needs[d - near.start];
        }
    }
    for n in near.clone().rev() {
        let bits = needed[n - near.start];
        for d in before[n].iter().filter(|d| near.contains(d)) {
            needed[d - near.start] |= bits;
        }
    }
    near.zip(needs).zip(needed).map(move |((n, needs), needed)| (n, region_bits & !(needs | needed)))
}

fn operands(graph: &Graph, node: &Node) -> Vec<usize> {
    node.inputs.iter().filter_map(|&v| graph.defining_node(v)).map(|n| n.index()).collect()
}

fn computes(node: &Node) -> bool {
    !node.op.is_view() && node.op.as_collective().is_none()
}

fn compute_us(graph: &Graph, node: NodeId, context: &LowerContext) -> f64 {
    let memory = TrafficModel {
        base: |v| v,
        bytes: |v| context.bytes(graph.ty(v)),
        in_place: |n: NodeId, _| match graph.nodes[n].op {
            Op::Concat { axis } => is_outermost(graph, n, axis),
            _ => true,
        },
    };
    let operands = (0..graph.nodes[node].inputs.len()).map(|k| (node, k));
    let results = graph.nodes[node].outputs.iter().copied();
    let moved = memory.step_traffic(graph, [node].into_iter(), operands, results);
    if moved.kernels == 0 {
        return 0.0;
    }
    let operations = OperationCounts::count_node(graph, &graph.nodes[node], |d| context.upper_bound(d));
    context.profile.compute_us(moved.bytes, operations)
}

/// Whether operands of a concatenation are contiguous pieces of the result.
fn is_outermost(graph: &Graph, node: NodeId, axis: usize) -> bool {
    let shape = graph.nodes[node].outputs.first().map_or(&[][..], |&v| &graph.ty(v).shape);
    shape.iter().take(axis).all(|d| d.as_const() == Some(1))
}

/// Rounds down to three binary digits, or to 0 below [`MIN_COUNTED_US`].
fn round_down_us(us: u64) -> u64 {
    if us < MIN_COUNTED_US {
        return 0;
    }
    let dropped = (u64::BITS - us.leading_zeros()).saturating_sub(3);
    us >> dropped << dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_kept_of_what_counts() {
        assert_eq!([0, 7, 8, 9, 15, 17, 1334].map(round_down_us), [0, 0, 8, 8, 14, 16, 1280]);
    }
}
