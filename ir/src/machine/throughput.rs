//! Estimated time of steps: memory traffic, operations and the least time of a kernel.
//!
//! A step that computes takes the longest of three times: moving the bytes that it reads and writes once ([`Profile::copy_us`]; a copy moves
//! each byte twice), its operations at the [`Throughput`] of the machine, and the least time of a kernel.

use serde::{Deserialize, Serialize};

use super::Profile;
use super::timeline::{TimedStep, nanoseconds};
use crate::collective::CollectiveKind;
use crate::graph::{Graph, Node};
use crate::{Dim, NodeId, Op};

/// How fast a machine computes, in 10¹² operations per second. A multiplication and an addition are two operations.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throughput {
    /// Matrix products of floats of 16 bits or less.
    pub matmul_16bit: f64,
    /// Matrix products of wider types.
    pub matmul: f64,
    /// Attention.
    pub attention: f64,
    /// The least time of a kernel, in microseconds.
    pub kernel_us: f64,
}

impl Throughput {
    /// The first field that is not a positive finite number, with its value.
    pub(super) fn invalid(&self) -> Option<(&'static str, f64)> {
        let fields = [
            ("matmul_16bit", self.matmul_16bit),
            ("matmul", self.matmul),
            ("attention", self.attention),
            ("kernel_us", self.kernel_us),
        ];
        fields.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0))
    }
}

/// For profiles that do not state it: operations that take as long as copying a byte.
const OPERATIONS_PER_BYTE: f64 = 512.0;

/// The operations of nodes, by what limits them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Operations {
    /// Of matrix products of floats of 16 bits or less.
    pub matmul_16bit: u64,
    /// Of other matrix products.
    pub matmul: u64,
    /// Of attention.
    pub attention: u64,
}

impl Operations {
    /// The operations of a node, by the size of a dim. Of a grouped product: where the groups divide K, each group like the
    /// others. Of attention with a bound that moves with the row: half of all pairs.
    pub fn of(graph: &Graph, node: &Node, size: impl Fn(&Dim) -> u64) -> Operations {
        let mut out = Operations::default();
        let elements = |shape: &[Dim]| shape.iter().map(&size).fold(1, u64::saturating_mul);
        let [Some(&first), Some(&result)] = [node.inputs.first(), node.outputs.first()] else { return out };
        let (of, result) = (graph.ty(first), graph.ty(result));
        match &node.op {
            Op::MatMul | Op::GroupedMatMul => {
                let k = of.shape.last().map_or(1, &size);
                let terms = match (&node.op, &result.shape[..]) {
                    (Op::GroupedMatMul, [groups, _, _]) => k.div_ceil(size(groups).max(1)),
                    _ => k,
                };
                let operations = elements(&result.shape).saturating_mul(terms).saturating_mul(2);
                let narrow = of.dtype.size() <= 2 && of.dtype.is_float();
                *(if narrow { &mut out.matmul_16bit } else { &mut out.matmul }) = operations;
            }
            Op::Attention { bounds, .. } => out.attention = attention(graph, node, bounds.iter().any(|b| b.row), &size),
            Op::Permuted { op, .. } => {
                if let Op::Attention { bounds, .. } = &**op {
                    out.attention = attention(graph, node, bounds.iter().any(|b| b.row), &size);
                }
            }
            _ => {}
        }
        out
    }

    /// The operations of both.
    pub fn plus(self, other: Operations) -> Operations {
        Operations {
            matmul_16bit: self.matmul_16bit.saturating_add(other.matmul_16bit),
            matmul: self.matmul.saturating_add(other.matmul),
            attention: self.attention.saturating_add(other.attention),
        }
    }
}

/// The operations of attention: queries by keys, and weights by values.
fn attention(graph: &Graph, node: &Node, halved: bool, size: &impl Fn(&Dim) -> u64) -> u64 {
    let [q, k, v, ..] = node.inputs[..] else { return 0 };
    let [q, k, v] = [q, k, v].map(|x| &graph.ty(x).shape[..]);
    let (Some((width, rows)), Some(value), [.., keys, _]) = (q.split_last(), v.last(), k) else { return 0 };
    let rows = rows.iter().map(size).fold(1, u64::saturating_mul);
    let each = size(width).saturating_add(size(value)).saturating_mul(2);
    let all = rows.saturating_mul(size(keys)).saturating_mul(each);
    if halved && rows > 0 && q.len() > 1 && size(&q[q.len() - 2]) > 1 { all / 2 } else { all }
}

impl Profile {
    /// A step of these nodes, which read and write so many bytes together, with its estimated time; `size` is the size of a
    /// dim, and `exit` says whether a droppable exit barrier is kept. A step with a collective takes the time of that: what it
    /// computes besides is done while it communicates. A collective without a curve takes 8 µs and 10 µs for each MB.
    pub fn timed_step(
        &self,
        graph: &Graph,
        nodes: impl Iterator<Item = NodeId>,
        moved: u64,
        exit: Option<bool>,
        size: impl Fn(&Dim) -> u64,
    ) -> TimedStep {
        let mut operations = Operations::default();
        for node in nodes.map(|n| &graph.nodes[n]) {
            let Op::Collective(c) = &node.op else {
                operations = operations.plus(Operations::of(graph, node, &size));
                continue;
            };
            let of = if c.kind == CollectiveKind::AllGather { &node.outputs } else { &node.inputs };
            let bytes = of.first().map_or(0, |&v| size(&graph.ty(v).bytes()));
            let ranks = graph.group_size(c.group).unwrap_or(1).max(2);
            let known = c.variant.and_then(|v| self.timed_collective(&c.kind, v, exit, bytes, ranks));
            let unknown = TimedStep { communicates: true, ..TimedStep::compute(8000 + bytes / 100) };
            return known.unwrap_or(unknown);
        }
        TimedStep::compute(nanoseconds(self.compute_us(moved, operations)))
    }

    /// The estimated time in microseconds of a step that reads and writes so many bytes and does these operations.
    pub fn compute_us(&self, moved: u64, operations: Operations) -> f64 {
        let moving = self.copy_us(moved / 2);
        let Operations { matmul_16bit, matmul, attention } = operations;
        let Some(t) = &self.throughput else {
            let all = matmul_16bit.saturating_add(matmul).saturating_add(attention) as f64;
            return moving.max(self.copy_us((all / OPERATIONS_PER_BYTE) as u64));
        };
        // 10¹² operations per second are 10⁶ per microsecond.
        let us = |operations: u64, rate: f64| operations as f64 / (rate * 1e6);
        let computing = us(matmul_16bit, t.matmul_16bit) + us(matmul, t.matmul) + us(attention, t.attention);
        moving.max(computing).max(t.kernel_us)
    }
}
