//! Estimated time of steps, from memory traffic, operations and the minimum time of a kernel.
//!
//! A step that computes takes the gap of each of its kernels ([`Throughput`]), and in addition the longer
//! of two times: moving the bytes that it reads and writes once, and its operations at the rates of the machine. Bytes move
//! as in copies ([`MachineProfile::copy_us`]; a copy moves each byte twice). Products mostly read, which is faster: they
//! move bytes at the rate at which a product of one row reads its weights. Their gap grows with K, which each block adds up
//! step by step. A step without kernels takes no time, for example a concatenation
//! whose operands are already in place.

use smallvec::SmallVec;

use super::throughput::{OperationCounts, ProductRate, Throughput};
use super::timeline::{TimedStep, us_to_ns};
use super::{MachineProfile, StepTraffic};
use crate::collective::Collective;
use crate::graph::{Graph, Node};
use crate::{Dim, NodeId, Op};

/// For profiles without a throughput: the number of operations that take as long as copying a byte.
const OPERATIONS_PER_BYTE: f64 = 512.0;

impl MachineProfile {
    /// The minimum nanoseconds between the end of a step and the start of a step of the other lane that waits
    /// for it.
    pub fn lane_crossing_ns(&self) -> u64 {
        self.throughput.map_or(0, |t| us_to_ns(t.crossing_us))
    }

    /// A step of these nodes, which move `moved` together, with its estimated time. `size` evaluates a dim, and
    /// `exit` is whether a droppable exit barrier is kept. A step with a collective takes the time of the
    /// collective, plus that of the bytes that its other nodes move. Their operations take no time, because they happen while
    /// it communicates. A collective without a curve takes 8
    /// µs plus 10 µs for each MB. A step with an opaque op takes no time: what it does is not known.
    pub fn timed_step(
        &self,
        graph: &Graph,
        nodes: impl Iterator<Item = NodeId>,
        moved: StepTraffic,
        exit: Option<bool>,
        size: impl Fn(&Dim) -> u64,
    ) -> TimedStep {
        let mut operations = OperationCounts::default();
        let mut rows: Option<u64> = None;
        let mut count: u64 = 0;
        let mut has_transposed_weights_only = true;
        let mut has_opaque = false;
        // The bytes of the operands and results of collectives.
        let mut collective_bytes = 0u64;
        let mut collectives: SmallVec<[(&Collective, u64); 1]> = SmallVec::new();
        for node in nodes.map(|n| &graph.nodes[n]) {
            let Op::Collective(c) = &node.op else {
                operations = operations.plus(OperationCounts::count_node(graph, node, &size));
                let reduced = last_axis_reduction_rows(graph, node).map(|numel| size(&numel));
                rows = rows.into_iter().chain(reduced).min();
                count += 1;
                has_opaque |= node.op.is_opaque();
                has_transposed_weights_only &= !node.op.is_matmul() || reads_transposed_weights(graph, node);
                continue;
            };
            let operands: SmallVec<[_; 3]> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
            let results: SmallVec<[_; 2]> = node.outputs.iter().map(|&v| graph.ty(v)).collect();
            let bytes = c.kind.estimated_bytes(&operands, &results).map_or(0, |bytes| size(&bytes));
            let stored = operands.iter().chain(&results).map(|ty| size(&ty.bytes()));
            collective_bytes = stored.fold(collective_bytes, u64::saturating_add);
            collectives.push((c, bytes));
        }
        if let Some(&(first, _)) = collectives.first() {
            let ranks = graph.group_size(first.group).unwrap_or(1).max(2);
            let bytes_by_kind: SmallVec<[_; 1]> =
                collectives.iter().map(|&(c, bytes)| (&c.kind, bytes)).collect();
            let measured = first.variant.and_then(|v| self.timed_collectives(&bytes_by_kind, v, exit, ranks));
            let bytes = bytes_by_kind.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
            let unknown = TimedStep { communicates: true, ..TimedStep::compute(8000 + bytes / 100) };
            let timed = measured.unwrap_or(unknown);
            // Its other nodes read and write more.
            let further_us =
                self.copy_us((moved.bytes.saturating_sub(collective_bytes) / 2).max(1)) - self.copy_us(1);
            return TimedStep { time: timed.time + us_to_ns(further_us), ..timed };
        }
        if moved.kernels == 0 || has_opaque {
            return TimedStep::compute(0);
        }
        // Products with other nodes are one kernel, and so are those of few rows whose weights lie as PyTorch stores them.
        let max_rows = self.dispatches.product.map_or(0, |limits| u64::from(limits.rows));
        if operations.products < count || (has_transposed_weights_only && operations.rows <= max_rows) {
            operations = operations.as_one_kernel();
        }
        let more_kernels_us = self.compute_us(0, OperationCounts::default()) * (moved.kernels - 1) as f64;
        let us = self.compute_us(moved.bytes, operations) + more_kernels_us;
        // A reduction that is the only node is divided into pieces if there are few rows.
        let rows = rows.filter(|_| count > 1);
        TimedStep::compute(us_to_ns(
            rows.map_or(us, |rows| us.max(self.row_kernel_us(Some(rows), moved.bytes))),
        ))
    }

    /// The estimated time in microseconds of a step that reads and writes `moved` bytes and does these
    /// operations.
    pub fn compute_us(&self, moved: u64, operations: OperationCounts) -> f64 {
        let OperationCounts { matmul_16bit, matmul, attention, attention_block, rows, .. } = operations;
        let Some(t) = &self.throughput else {
            let total = matmul_16bit.saturating_add(matmul).saturating_add(attention) as f64;
            return self.copy_us(moved / 2).max(self.copy_us((total / OPERATIONS_PER_BYTE) as u64));
        };
        let moving = if operations.products > 0 {
            self.product_traffic_us(moved)
        } else {
            self.kernel_traffic_us(moved)
        };
        let rates = &self.product_rates;
        let narrow = ProductRate::interpolate_rate(rates, rows, |r| r.matmul_16bit).unwrap_or(t.matmul_16bit);
        let wide = ProductRate::interpolate_rate(rates, rows, |r| r.matmul).unwrap_or(t.matmul);
        let of_block = operations_us(
            attention_block.saturating_mul(u64::from(self.multiprocessors.unwrap_or(1))),
            t.attention,
        );
        let attending = operations_us(attention, t.attention).max(of_block);
        let computing = operations_us(matmul_16bit, narrow) + operations_us(matmul, wide) + attending;
        Self::gaps_us(t, operations) + moving.max(computing)
    }

    /// The time of the kernels of a step in addition to its bytes and operations, in microseconds.
    fn gaps_us(t: &Throughput, operations: OperationCounts) -> f64 {
        let OperationCounts { products, k, attentions, .. } = operations;
        if products + attentions == 0 {
            return t.gap_us;
        }
        t.product_gap_us * products as f64
            + t.product_k_us * k as f64 / 1024.0
            + t.attention_gap_us * attentions as f64
    }

    /// The time in which a kernel moves these bytes; at least that of the smallest copy.
    fn kernel_traffic_us(&self, moved: u64) -> f64 {
        self.copy_us((moved / 2).max(1))
    }

    /// The time in which a product reads and writes these bytes. A product of one row and 16 bits has one
    /// operation for each byte of its weights, so its rate is that of reading.
    fn product_traffic_us(&self, moved: u64) -> f64 {
        match self.product_rates.first() {
            Some(one_row) if one_row.rows == 1 => operations_us(moved, one_row.matmul_16bit),
            _ => self.kernel_traffic_us(moved),
        }
    }
}

fn operations_us(operations: u64, rate: f64) -> f64 {
    // 10¹² operations per second are 10⁶ per microsecond.
    operations as f64 / (rate * 1e6)
}

/// Whether the right matrix of a product is the transpose of one that is stored.
fn reads_transposed_weights(graph: &Graph, node: &Node) -> bool {
    let right = node.inputs.get(1).and_then(|&v| graph.defining_node(v));
    right.is_some_and(|n| matches!(graph.nodes[n].op, Op::Permute { .. }))
}

fn last_axis_reduction_rows(graph: &Graph, node: &Node) -> Option<Dim> {
    let (Op::Reduce { axes, .. }, &[x], &[result]) = (&node.op, &node.inputs[..], &node.outputs[..]) else {
        return None;
    };
    (axes[..] == [graph.ty(x).rank().checked_sub(1)?]).then(|| graph.ty(result).numel())
}

#[cfg(test)]
mod tests {
    use super::super::MAX_SERIAL_K;
    use super::*;
    use crate::text;

    fn profile() -> MachineProfile {
        MachineProfile::builtin("h200x2").expect("a profile")
    }

    /// The operations of the last node of a program at 16 rows.
    fn operations(body: &str) -> OperationCounts {
        let text = format!("program \"p\" ranks 2\ngroup @g world\n{body}");
        let graph = text::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let node = graph.nodes.values().next_back().expect("a node");
        OperationCounts::count_node(&graph, node, |d| d.as_const().map_or(16, |c| c as u64))
    }

    #[test]
    fn operations_are_those_of_products_and_attention() {
        let product = |dtype: &str| {
            operations(&format!(
                "arg %a: {dtype}[8, 32]\narg %b: {dtype}[32, 4]\n%c: {dtype}[8, 4] = matmul %a, %b\nreturn %c\n"
            ))
        };
        let count = 2 * 8 * 32 * 4;
        assert_eq!(
            product("bf16"),
            OperationCounts {
                matmul_16bit: count,
                rows: 8,
                products: 1,
                k: 32,
                ..OperationCounts::default()
            }
        );
        let wide = OperationCounts { matmul: count, matmul_16bit: 0, ..product("bf16") };
        assert_eq!(product("f32"), wide);
        // Two products of all pairs, half of them under causal order; the gradient has five.
        let arguments = "arg %q: bf16[4, 16, 8]\narg %s: f32[4, 16]\n%y: bf16[4, 16, 8]";
        let gradient = operations(&format!(
            "{arguments}, %z: bf16[4, 16, 8], %w: bf16[4, 16, 8] = attention_gradient %q, %q, %s, %q, %q, %q causal=true scale=1.0\n\
             return %y\n"
        ));
        let pairs = 4 * 16 * 16 * (8 + 8) * 2;
        assert_eq!(
            gradient,
            OperationCounts {
                attention: pairs / 2 * 5 / 2,
                attention_block: 16 * 16 * (8 + 8) * 2 * 5 / 2,
                attentions: 1,
                ..OperationCounts::default()
            }
        );
        let sum = operations("arg %a: f32[8, 32]\n%c: f32[8, 32] = relu %a\nreturn %c\n");
        assert_eq!(sum, OperationCounts::default());
    }

    #[test]
    fn steps_take_a_gap_and_the_longer_of_bytes_and_operations() {
        let p = MachineProfile { product_rates: Vec::new(), ..profile() };
        let none = OperationCounts::default();
        let throughput = p.throughput.expect("stated");
        assert_eq!(p.compute_us(0, none), throughput.gap_us + p.copy_us(1));
        assert_eq!(p.compute_us(2 << 28, none), throughput.gap_us + p.copy_us(1 << 28));
        let million = OperationCounts { matmul_16bit: 690_000_000_000, products: 1, k: 2048, ..none };
        let gap_us = throughput.product_gap_us + 2.0 * throughput.product_k_us;
        let million_us = gap_us + 690e9 / (throughput.matmul_16bit * 1e6);
        assert_eq!(p.compute_us(1024, million), million_us);
        // Narrow products are faster than wide ones, and a profile without a throughput estimates from bytes.
        let wide = OperationCounts { matmul: 690_000_000_000, matmul_16bit: 0, ..million };
        assert!(p.compute_us(1024, wide) > p.compute_us(1024, million));
        let without = MachineProfile { throughput: None, ..p.clone() };
        assert_eq!(without.compute_us(1024, million), p.copy_us(690_000_000_000 / 512));
    }

    #[test]
    fn products_of_few_rows_have_rates_of_their_own() {
        let product_rates = [(1, 4.0), (101, 400.0)]
            .map(|(rows, rate)| ProductRate { rows, matmul_16bit: rate, matmul: rate / 4.0 })
            .to_vec();
        let p = MachineProfile { product_rates, ..profile() };
        let gap_us = p.throughput.expect("stated").product_gap_us;
        let product = |rows| OperationCounts { rows, products: 1, ..OperationCounts::default() };
        let narrow = |rows| p.compute_us(0, OperationCounts { matmul_16bit: 4_000_000_000, ..product(rows) });
        for (rows, expected) in [(1, 4.0), (26, 103.0), (101, 400.0), (5000, 400.0)] {
            assert!((narrow(rows) - gap_us - 4e9 / (expected * 1e6)).abs() < 1e-9, "{rows}");
        }
        let wide = p.compute_us(0, OperationCounts { matmul: 4_000_000_000, ..product(101) });
        assert!((wide - gap_us - 4.0 * (narrow(101) - gap_us)).abs() < 1e-9);
        // The rate of one row is that of reading.
        let one = OperationCounts { matmul_16bit: 1, ..product(101) };
        assert_eq!(p.compute_us(8_000_000, one), gap_us + 2.0);
    }

    #[test]
    fn products_of_one_kernel_have_one_gap() {
        let p = profile();
        let t = p.throughput.expect("stated");
        let gap_us = |rows: u64, weight: &str, residual: &str| {
            let text = format!(
                "program \"p\" ranks 2\ngroup @g world\narg %x: bf16[{rows}, 1024]\nparam %a: bf16[1024, 1024]\n\
                 param %b: bf16[1024, 1024]\n%ta: bf16[1024, 1024] = permute %a perm=[1, 0]\n\
                 %tb: bf16[1024, 1024] = permute %b perm=[1, 0]\n%y: bf16[{rows}, 1024] = matmul %x, %{weight}a\n\
                 %z: bf16[{rows}, 1024] = matmul %x, %{weight}b\n%s: bf16[{rows}, 1024] = mul %y, %z\nreturn %s\nreturn %z\n"
            );
            let graph = text::parse(&text).expect("a program");
            let names = ["y", "z"].into_iter().chain([residual].into_iter().filter(|r| !r.is_empty()));
            let nodes: Vec<NodeId> = names
                .map(|name| graph.nodes.keys().find(|&n| graph.node_name(n) == name).expect("a node"))
                .collect();
            let size = |d: &Dim| d.as_const().map_or(1, |c| c as u64);
            let moved = StepTraffic { bytes: 0, kernels: 1 };
            let us = p.timed_step(&graph, nodes.into_iter(), moved, None, size).time as f64 / 1000.0;
            let operations = 2.0 * 2.0 * rows as f64 * 1024.0 * 1024.0;
            let rate =
                ProductRate::interpolate_rate(&p.product_rates, rows, |r| r.matmul_16bit).expect("rates");
            us - operations / (rate * 1e6)
        };
        let one = t.product_gap_us + t.product_k_us;
        for (rows, weight, residual, gaps) in [
            (8, "t", "", 1.0),
            (8, "", "", 2.0),
            (512, "t", "", 2.0),
            (8, "", "s", 1.0),
            (512, "t", "s", 1.0),
        ] {
            let found = gap_us(rows, weight, residual);
            assert!(
                (found - gaps * one).abs() < 0.01,
                "{rows} {weight} {residual}: {found}, expected {gaps} of {one}"
            );
        }
    }

    /// Times of products are those of the text form's `matmul` with weights of `k` × `n`.
    #[test]
    fn products_of_more_rows_never_take_less_time() {
        for name in MachineProfile::builtin_names() {
            let p = MachineProfile::builtin(name).expect("a profile");
            for (k, n, bytes) in [(4096u64, 7168u64, 2u64), (8192, 1024, 2), (64, 64, 2), (4096, 4096, 4)] {
                let mut before_us = 0.0;
                for rows in (1..=300).chain((3..=96).map(|i| i * 128)) {
                    let done = 2 * rows * k * n;
                    let [matmul_16bit, matmul] = if bytes == 2 { [done, 0] } else { [0, done] };
                    let (products, serial_k) = (1, k.min(MAX_SERIAL_K));
                    let operations = OperationCounts {
                        matmul_16bit,
                        matmul,
                        rows,
                        products,
                        k: serial_k,
                        ..OperationCounts::default()
                    };
                    let us = p.compute_us(bytes * (k * n + rows * (k + n)), operations);
                    assert!(us >= before_us, "{name}: {rows} × {k} × {n}: {us} after {before_us}");
                    before_us = us;
                }
            }
        }
    }

    #[test]
    fn noise_in_rates_is_levelled_by_time() {
        let mut rates = [(1, 3.4), (16, 42.0), (64, 187.0), (256, 538.0)].map(|(rows, rate)| ProductRate {
            rows,
            matmul_16bit: rate,
            matmul: 40.0,
        });
        ProductRate::make_times_ascend(&mut rates);
        assert_eq!(rates.map(|r| r.matmul_16bit), [3.4, 46.75, 187.0, 538.0]);
        assert_eq!(rates.map(|r| r.matmul), [40.0; 4]);
    }

    #[test]
    fn throughputs_that_are_no_rates_are_refused_by_name() {
        for (field, value) in [
            ("attention", "0.0"),
            ("gap_us", "-1.0"),
            ("product_gap_us", "0"),
            ("product_k_us", "1e13"),
            ("attention_gap_us", "-0.5"),
            ("matmul", "0"),
        ] {
            let mut json: serde_json::Value = serde_json::from_str(&profile().to_json()).expect("JSON");
            json["throughput"][field] = serde_json::from_str(value).expect("a number");
            let error = MachineProfile::from_json(&json.to_string()).expect_err("refused").to_string();
            assert!(error.contains(&format!("throughput.{field}: expected 1e-6 to 1e12")), "{error}");
        }
    }
}
