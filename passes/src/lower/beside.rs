//! How much compute can run beside each region.
//!
//! A node that computes is beside a region if no node of the region needs it and it needs none of them. A node beside
//! several regions counts for each with an equal part: it hides only one at a time. Once there is a schedule, what it has beside
//! the collectives of a region counts instead ([`Overlap::Scheduled`]). What that is for, and what it
//! costs to be beside compute, is told in [`symmc_ir::machine`].
//!
//! Estimates of compute are rough, so amounts are rounded down to three binary digits of microseconds, and few
//! microseconds, in which lanes hardly start side by side, are none; regions that differ in less stay equal.

use symmc_ir::entity::Entity;
use symmc_ir::machine::{Memory, Operations};
use symmc_ir::{Graph, Node, NodeId};

use super::context::{Context, Overlap};

/// The least that counts, in microseconds.
const LEAST: u64 = 8;
/// Regions that one word of bits tells of.
const WORD: usize = 64;

/// For each region, given by its nodes, the microseconds of compute that can run beside it, on a machine that tells what
/// communication takes from compute; on others nothing is known to.
pub fn beside(graph: &Graph, regions: &[&[NodeId]], context: &Context) -> Vec<u64> {
    if context.profile.multiprocessors.is_none() {
        return vec![0; regions.len()];
    }
    if let Overlap::Scheduled(beside) = &context.overlap {
        let of = |n: &NodeId| beside.get(graph.node_name(*n)).copied().unwrap_or(0.0);
        return regions.iter().map(|nodes| rounded(nodes.iter().map(of).sum::<f64>() as u64)).collect();
    }
    let mut member: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    for (r, nodes) in regions.iter().enumerate() {
        nodes.iter().for_each(|n| member[n.index()] = Some(r));
    }
    let words: Vec<Vec<u64>> =
        (0..regions.len().div_ceil(WORD)).map(|w| apart(graph, &member, w * WORD, regions.len())).collect();
    let mut out = vec![0.0; regions.len()];
    for (id, _) in graph.nodes.iter().filter(|(_, node)| computes(node)) {
        let n = id.index();
        // Sums and casts of regions may go as they are rewritten: they hide nothing for sure.
        if member[n].is_some() {
            continue;
        }
        let among = f64::from(words.iter().map(|w| w[n].count_ones()).sum::<u32>());
        let us = compute_us(graph, id, context) / among;
        for (w, word) in words.iter().enumerate() {
            let mut bits = word[n];
            while bits != 0 {
                out[w * WORD + bits.trailing_zeros() as usize] += us;
                bits &= bits - 1;
            }
        }
    }
    out.into_iter().map(|us: f64| rounded(us as u64)).collect()
}

/// The estimated microseconds of all computation of a program, one node after another.
pub fn computation_us(graph: &Graph, context: &Context) -> f64 {
    let computing = graph.nodes.iter().filter(|(_, node)| computes(node));
    computing.map(|(id, _)| compute_us(graph, id, context)).sum()
}

/// For each node the regions from `first` on, as many as a word has bits, that it neither needs nor is needed by.
fn apart(graph: &Graph, member: &[Option<usize>], first: usize, regions: usize) -> Vec<u64> {
    let all = if regions - first < WORD { (1 << (regions - first)) - 1 } else { u64::MAX };
    let own =
        |n: usize| member[n].and_then(|r| r.checked_sub(first)).filter(|r| *r < WORD).map_or(0, |r| 1 << r);
    let mut needs: Vec<u64> = (0..member.len()).map(own).collect();
    let mut needed = needs.clone();
    let before = |node: &Node| node.inputs.iter().filter_map(|&v| graph.def_node(v)).collect::<Vec<_>>();
    for (n, node) in graph.nodes.iter() {
        needs[n.index()] |= before(node).iter().fold(0, |bits, d| bits | needs[d.index()]);
    }
    for (n, node) in graph.nodes.iter().rev() {
        before(node).iter().for_each(|d| needed[d.index()] |= needed[n.index()]);
    }
    needs.iter().zip(&needed).map(|(a, b)| all & !(a | b)).collect()
}

fn computes(node: &Node) -> bool {
    !node.op.is_view() && node.op.as_collective().is_none()
}

/// The time of a node that computes.
fn compute_us(graph: &Graph, node: NodeId, context: &Context) -> f64 {
    let memory = Memory { base: |v| v, bytes: |v| context.bytes(graph.ty(v)), in_place: |_, _| true };
    let operands = (0..graph.nodes[node].inputs.len()).map(|k| (node, k));
    let moved = memory.moved(graph, operands, graph.nodes[node].outputs.iter().copied());
    let operations = Operations::of(graph, &graph.nodes[node], |d| context.upper(d));
    context.profile.compute_us(moved, operations)
}

/// Rounded down to three binary digits, or to nothing.
fn rounded(us: u64) -> u64 {
    if us < LEAST {
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
        assert_eq!([0, 7, 8, 9, 15, 17, 1334].map(rounded), [0, 0, 8, 8, 14, 16, 1280]);
    }
}
