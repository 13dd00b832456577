//! The compute throughput of a machine, and the operation counts of nodes.

use serde::{Deserialize, Serialize};

use super::curve::ALLOWED_NUMBERS;
use crate::attention::AttentionBound;
use crate::graph::{Graph, Node};
use crate::op::OpCost;
use crate::{Dim, ValueId};

/// The throughput of a machine, in 10¹² operations per second. A multiplication and an addition count as two
/// operations.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throughput {
    /// Matrix products of floats of 16 bits or less.
    pub matmul_16bit: f64,
    /// Matrix products of wider types.
    pub matmul: f64,
    pub attention: f64,
    /// The time of a kernel in addition to that of a copy of as many bytes, in microseconds.
    pub gap_us: f64,
    /// The time of a product in addition to its bytes and operations, in microseconds: from the end of the kernel before it
    /// until it moves bytes at full speed, and its end.
    pub product_gap_us: f64,
    /// The time that a product takes in addition for each 1024 of K, up to [`MAX_SERIAL_K`], in microseconds.
    pub product_k_us: f64,
    /// The time of attention in addition to its bytes and operations, in microseconds.
    pub attention_gap_us: f64,
    /// The minimum time between the end of a step and the start of a step of the other lane that waits for it,
    /// in microseconds.
    pub crossing_us: f64,
}

impl Throughput {
    /// The first field that is not an [allowed number](ALLOWED_NUMBERS), with its value.
    pub(super) fn find_invalid_field(&self) -> Option<(&'static str, f64)> {
        let fields = [
            ("matmul_16bit", self.matmul_16bit),
            ("matmul", self.matmul),
            ("attention", self.attention),
            ("gap_us", self.gap_us),
            ("product_gap_us", self.product_gap_us),
            ("product_k_us", self.product_k_us),
            ("attention_gap_us", self.attention_gap_us),
            ("crossing_us", self.crossing_us),
        ];
        fields.into_iter().find(|(_, value)| !ALLOWED_NUMBERS.contains(value))
    }
}

pub(super) fn describe_allowed_numbers() -> String {
    format!("{:e} to {:e}", ALLOWED_NUMBERS.start(), ALLOWED_NUMBERS.end())
}

/// The rates of products whose results have this number of rows, in 10¹² operations per second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductRate {
    pub rows: u64,
    pub matmul_16bit: f64,
    pub matmul: f64,
}

impl ProductRate {
    /// The problem of this entry, if any, where `after` is the number of rows of the previous entry.
    pub(super) fn validation_error(&self, after: u64) -> Option<String> {
        if self.rows <= after {
            return Some(format!("rows: expected more than {after}, found {}", self.rows));
        }
        let rates = [("matmul_16bit", self.matmul_16bit), ("matmul", self.matmul)];
        let invalid = rates.into_iter().find(|(_, rate)| !ALLOWED_NUMBERS.contains(rate));
        invalid
            .map(|(field, rate)| format!("{field}: expected {}, found {rate:e}", describe_allowed_numbers()))
    }

    /// Raises the rates of few rows until a product of more rows never takes less time than one of fewer.
    /// Measurements contain noise, and the kernels of few rows may be slower than those of more.
    pub fn make_times_ascend(points: &mut [ProductRate]) {
        for i in (1..points.len()).rev() {
            let after = points[i];
            let before = &mut points[i - 1];
            let share = before.rows as f64 / after.rows as f64;
            before.matmul_16bit = before.matmul_16bit.max(after.matmul_16bit * share);
            before.matmul = before.matmul.max(after.matmul * share);
        }
    }

    /// The rate at this number of rows: linear in the rows between two points, because a product of few rows
    /// takes as long as reading its weights, and constant beyond the ends. `None` without points.
    pub(super) fn interpolate_rate(
        points: &[ProductRate],
        rows: u64,
        rate: impl Fn(&ProductRate) -> f64,
    ) -> Option<f64> {
        let above = points.partition_point(|p| p.rows < rows);
        let before = above.checked_sub(1).and_then(|b| points.get(b));
        let after = points.get(above);
        let (Some(before), Some(after)) = (before, after) else { return before.or(after).map(rate) };
        let fraction = (rows - before.rows) as f64 / (after.rows - before.rows) as f64;
        Some(rate(before) + fraction * (rate(after) - rate(before)))
    }
}

/// The operation counts of nodes, by limiting resource.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OperationCounts {
    pub matmul_16bit: u64,
    pub matmul: u64,
    pub attention: u64,
    /// The attention operations of the block of rows with the most. One multiprocessor computes it, even if
    /// others are idle.
    pub attention_block: u64,
    /// The maximum number of rows of the result of a product.
    pub rows: u64,
    /// The number of products.
    pub products: u64,
    /// The sum of the K of the products, each up to [`MAX_SERIAL_K`].
    pub k: u64,
    /// The number of attentions with several queries for each head, and of their gradients.
    pub attentions: u64,
}

/// The K from which on a product divides its sums: a larger K takes no more time besides that of its bytes and operations.
pub const MAX_SERIAL_K: u64 = 4096;

impl OperationCounts {
    /// The operations of a node, where `size` evaluates a dim. If the groups of a grouped product divide K, all
    /// groups are assumed equal. Attention with a bound relative to the row is counted as half of all pairs.
    pub fn count_node(graph: &Graph, node: &Node, size: impl Fn(&Dim) -> u64) -> OperationCounts {
        let mut out = OperationCounts::default();
        let elements = |shape: &[Dim]| shape.iter().map(&size).fold(1, u64::saturating_mul);
        let [Some(&first), Some(&result)] = [node.inputs.first(), node.outputs.first()] else { return out };
        let operand = graph.ty(first);
        let result = graph.ty(result);
        match node.op.facts().cost {
            cost @ (OpCost::Product | OpCost::GroupedProduct) => {
                let is_grouped = cost == OpCost::GroupedProduct;
                let k = operand.shape.last().map_or(1, &size);
                let terms = match &result.shape[..] {
                    [groups, _, _] if is_grouped => k.div_ceil(size(groups).max(1)),
                    _ => k,
                };
                let operations = elements(&result.shape).saturating_mul(terms).saturating_mul(2);
                let narrow = operand.dtype.size() <= 2 && operand.dtype.is_float();
                *(if narrow { &mut out.matmul_16bit } else { &mut out.matmul }) = operations;
                out.products = 1;
                out.k = terms.min(MAX_SERIAL_K);
                out.rows = match &result.shape[..] {
                    [.., rows, _]
                        if !is_grouped
                            && node.inputs.get(1).is_some_and(|&w| graph.ty(w).shape.len() > 2) =>
                    {
                        size(rows)
                    }
                    [rows @ .., _] => elements(rows),
                    _ => 1,
                };
            }
            OpCost::Attention { bounds } => {
                [out.attention, out.attention_block, out.attentions] =
                    count_attention(graph, &node.inputs, bounds, &size);
            }
            // The gradient recomputes the weights and has four more products: two and a half times the
            // operations.
            OpCost::AttentionGradient { bounds } => {
                let forward = node.inputs.get(3..).unwrap_or_default();
                let [operations, block, tiled] = count_attention(graph, forward, bounds, &size);
                out.attention = operations.saturating_mul(5) / 2;
                out.attention_block = block.saturating_mul(5) / 2;
                out.attentions = tiled;
            }
            OpCost::Bytes | OpCost::Sort => {}
        }
        out
    }

    /// The counts if one kernel computes all products: one gap, with the mean of their K.
    pub fn as_one_kernel(self) -> OperationCounts {
        let OperationCounts { products, k, .. } = self;
        OperationCounts { products: products.min(1), k: k / products.max(1), ..self }
    }

    pub fn plus(self, other: OperationCounts) -> OperationCounts {
        OperationCounts {
            matmul_16bit: self.matmul_16bit.saturating_add(other.matmul_16bit),
            matmul: self.matmul.saturating_add(other.matmul),
            attention: self.attention.saturating_add(other.attention),
            attention_block: self.attention_block.saturating_add(other.attention_block),
            rows: self.rows.max(other.rows),
            products: self.products.saturating_add(other.products),
            k: self.k.saturating_add(other.k),
            attentions: self.attentions.saturating_add(other.attentions),
        }
    }
}

/// The rows of queries that kernels of attention assign to one block of threads, by the width of heads.
fn rows_per_block(width: u64) -> u64 {
    if width > 128 { 64 } else { 128 }
}

/// The operations of attention, in total and for the largest block: queries by keys, and weights by values. The third number
/// is 1 if there are several queries for each head.
/// With one bound relative to the row, rows see half of the keys on average, but the last block of rows sees
/// all of them. With several, as in a window, no block sees more than others.
fn count_attention(
    graph: &Graph,
    inputs: &[ValueId],
    bounds: &[AttentionBound],
    size: &impl Fn(&Dim) -> u64,
) -> [u64; 3] {
    let [q, k, v, ..] = inputs[..] else { return [0; 3] };
    let [q, k, v] = [q, k, v].map(|x| &graph.ty(x).shape[..]);
    let (Some((width, rows)), Some(value), [.., keys, _]) = (q.split_last(), v.last(), k) else {
        return [0; 3];
    };
    let rows_of_head = rows.last().map_or(1, size);
    let rows = rows.iter().map(size).fold(1, u64::saturating_mul);
    let of_row = size(width).saturating_add(size(value)).saturating_mul(2).saturating_mul(size(keys));
    let total = rows.saturating_mul(of_row);
    let block = rows_of_head.min(rows_per_block(size(width))).saturating_mul(of_row);
    match bounds.iter().filter(|b| b.row).count() {
        _ if rows_of_head <= 1 => [total, 0, 0],
        0 => [total, block, 1],
        1 => [total / 2, block, 1],
        _ => [total / 2, 0, 1],
    }
}
