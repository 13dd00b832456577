//! The bytes that a step reads and writes.
//!
//! For a value that is read several times only the largest read counts. A read through a view moves the
//! elements of the view. A table lookup reads the elements that it selects, not the table; a shard reads its
//! piece; a grouped product reads at most as many matrices as there are rows. A store into a value in the
//! memory of its result (a cache) moves only the stored elements.
//!
//! A concatenation moves the operands that are not yet in place in the result, several operands of one shape by
//! one kernel.

use std::collections::{BTreeMap, HashMap};

use crate::graph::{Graph, Node};
use crate::op::OperandUse;
use crate::{NodeId, Op, TensorType, ValueId};

/// The maximum number of operands of a concatenation that one kernel moves, all of one shape.
pub const MAX_CONCAT_OPERANDS_PER_KERNEL: usize = 8;
/// The size in bytes from which on a contiguous operand is copied separately.
pub const MIN_SEPARATE_COPY_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepTraffic {
    pub bytes: u64,
    /// The number of kernels that move them, one after another.
    pub kernels: u64,
}

impl StepTraffic {
    pub fn single_kernel(bytes: u64) -> StepTraffic {
        StepTraffic { bytes, kernels: 1 }
    }
}

/// The properties besides the graph that determine the bytes of a step.
pub struct TrafficModel<Base, Bytes, InPlace> {
    /// The value whose memory a value is a view of, or itself.
    pub base: Base,
    pub bytes: Bytes,
    /// Whether an operand, by its position among the inputs of a node, lies at the bytes of its elements in the
    /// node's first result. It is called only for values that are stored into and for operands of
    /// concatenations.
    pub in_place: InPlace,
}

impl<Base, Bytes, InPlace> TrafficModel<Base, Bytes, InPlace>
where
    Base: Fn(ValueId) -> ValueId,
    Bytes: Fn(ValueId) -> u64,
    InPlace: Fn(NodeId, usize) -> bool,
{
    /// The traffic of a step that consists of these nodes. `reads` and `writes` are as for
    /// [`traffic_bytes`](Self::traffic_bytes).
    pub fn step_traffic(
        &self,
        graph: &Graph,
        mut nodes: impl Iterator<Item = NodeId>,
        reads: impl Iterator<Item = (NodeId, usize)>,
        writes: impl Iterator<Item = ValueId>,
    ) -> StepTraffic {
        let single = nodes.next().filter(|_| nodes.next().is_none());
        match single.map(|n| (n, &graph.nodes[n].op)) {
            Some((n, Op::Concat { axis })) => self.concat_traffic(graph, n, *axis),
            _ => StepTraffic::single_kernel(self.traffic_bytes(graph, reads, writes)),
        }
    }

    fn concat_traffic(&self, graph: &Graph, n: NodeId, axis: usize) -> StepTraffic {
        let node = &graph.nodes[n];
        let outer = node.outputs.first().map_or(&[][..], |&v| &graph.ty(v).shape).iter().take(axis);
        let in_runs = outer.into_iter().all(|d| d.as_const() == Some(1));
        let mut moved = StepTraffic::default();
        // The number of operands of each shape that kernels move.
        let mut by_shape: HashMap<&TensorType, usize> = HashMap::new();
        for (k, &value) in node.inputs.iter().enumerate() {
            let bytes = (self.bytes)(value);
            if bytes == 0 || (self.in_place)(n, k) {
                continue;
            }
            moved.bytes = moved.bytes.saturating_add(bytes.saturating_mul(2));
            if in_runs && bytes >= MIN_SEPARATE_COPY_BYTES {
                moved.kernels += 1;
            } else {
                *by_shape.entry(graph.ty(value)).or_default() += 1;
            }
        }
        moved.kernels +=
            by_shape.values().map(|count| count.div_ceil(MAX_CONCAT_OPERANDS_PER_KERNEL) as u64).sum::<u64>();
        moved
    }

    /// The bytes of a step that reads these operands, each given by its position among the inputs of a node,
    /// and writes these values.
    pub fn traffic_bytes(
        &self,
        graph: &Graph,
        reads: impl Iterator<Item = (NodeId, usize)>,
        writes: impl Iterator<Item = ValueId>,
    ) -> u64 {
        let mut read: BTreeMap<ValueId, u64> = BTreeMap::new();
        for (n, k) in reads {
            let node = &graph.nodes[n];
            let Some(&value) = node.inputs.get(k) else { continue };
            let base = (self.base)(value);
            let max_bytes = read.entry(base).or_default();
            *max_bytes =
                (*max_bytes).max(self.operand_read_bytes(graph, node, k, value).min((self.bytes)(base)));
        }
        let written = writes.map(|v| match graph.defining_node(v).map(|n| &graph.nodes[n]) {
            Some(node) => self.in_place_store_bytes(graph, node).unwrap_or_else(|| (self.bytes)(v)),
            None => (self.bytes)(v),
        });
        read.into_values().chain(written).fold(0, u64::saturating_add)
    }

    fn operand_read_bytes(&self, graph: &Graph, node: &Node, k: usize, value: ValueId) -> u64 {
        let all_bytes = (self.bytes)(value);
        use OperandUse::*;
        match node.op.operand_use(k) {
            Selected => node.outputs.first().map_or(all_bytes, |&result| (self.bytes)(result)),
            Matrices => self
                .grouped_matrix_bytes(graph, node)
                .map_or(all_bytes, |matrix_bytes| all_bytes.min(matrix_bytes)),
            Updated { is_read } => {
                let stored = self.in_place_store_bytes(graph, node);
                stored.map_or(all_bytes, |stored| if is_read { stored } else { 0 })
            }
            Absent
            | Element
            | Kept
            | Moved
            | Stored
            | Index { .. }
            | Counts
            | ExpertIds { .. }
            | Row
            | Combined
            | Unknown => all_bytes,
        }
    }

    /// The bytes of one matrix of a grouped product for each row of the first operand.
    fn grouped_matrix_bytes(&self, graph: &Graph, node: &Node) -> Option<u64> {
        let [x, y, ..] = node.inputs[..] else { return None };
        let [_, k, n] = &graph.ty(y).shape[..] else { return None };
        let [row, matrix] = [&graph.ty(x).shape[1..], &[k.clone(), n.clone()]].map(|shape| shape.to_vec());
        let row = static_numel(&row)?;
        let matrix = static_numel(&matrix)?;
        let x = graph.ty(x);
        let size = graph.ty(y).dtype.size() as u64;
        let rows = (self.bytes)(node.inputs[0]) / (row * x.dtype.size() as u64).max(1);
        Some(rows.saturating_mul(matrix).saturating_mul(size))
    }

    /// The bytes that a node stores into the memory of its first operand. `None` unless its result lies there.
    fn in_place_store_bytes(&self, graph: &Graph, node: &Node) -> Option<u64> {
        let source = (0..node.inputs.len()).find(|&k| node.op.operand_use(k) == OperandUse::Stored)?;
        let n = graph.defining_node(*node.outputs.first()?)?;
        let &source = node.inputs.get(source)?;
        (self.in_place)(n, 0).then(|| (self.bytes)(source))
    }
}

/// The number of elements of a shape without symbols.
fn static_numel(shape: &[crate::Dim]) -> Option<u64> {
    shape
        .iter()
        .map(|d| u64::try_from(d.as_const()?).ok())
        .try_fold(1u64, |count, d| Some(count.saturating_mul(d?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    /// The bytes that the last node of a program moves, at 16 of each symbol.
    fn moved(body: &str, in_place: bool) -> u64 {
        let text = format!("program \"p\" ranks 4\nsymbol t in 1..=16\n{body}");
        let graph = text::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let (n, node) = graph.nodes.iter().next_back().expect("a node");
        let memory = TrafficModel {
            base: |v| v,
            bytes: |v| u64::try_from(graph.ty(v).bytes().upper_bound(&graph.symbols)).expect("bytes"),
            in_place: |_, _| in_place,
        };
        memory.traffic_bytes(&graph, (0..node.inputs.len()).map(|k| (n, k)), node.outputs.iter().copied())
    }

    #[test]
    fn lookups_read_the_selected_elements() {
        let rows = 16 * 64 * 2;
        let take =
            "param %e: bf16[1000, 64]\narg %i: i64[t]\n%y: bf16[t, 64] = take %e, %i axis=0\nreturn %y\n";
        assert_eq!(moved(take, false), 2 * rows + 16 * 8);
        let index =
            "arg %x: bf16[1000, 64]\narg %i: i64[t]\n%y: bf16[t, 64] = index %x, %i axis=0\nreturn %y\n";
        assert_eq!(moved(index, false), 2 * rows + 16 * 8);
        let gather = "arg %x: bf16[16, 9000]\narg %i: i64[16, 4]\n%y: bf16[16, 4] = gather_elements %x, %i axis=1\nreturn %y\n";
        assert_eq!(moved(gather, false), 16 * 4 * (2 + 2 + 8));
        let shard = "group @w world\narg %x: bf16[1000, 64]\n%y: bf16[1000, 16] = shard %x axis=1 group=@w\nreturn %y\n";
        assert_eq!(moved(shard, false), 2 * 1000 * 16 * 2);
        // A table that is smaller than the selection is read once.
        let small =
            "param %e: bf16[2, 64]\narg %i: i64[t]\n%y: bf16[t, 64] = take %e, %i axis=0\nreturn %y\n";
        assert_eq!(moved(small, false), rows + 2 * 64 * 2 + 16 * 8);
    }

    #[test]
    fn in_place_stores_move_the_stored_elements() {
        let program = "arg %c: bf16[4096, 64]\narg %s: bf16[t, 64]\narg %i: i64[t]\n\
            %y: bf16[4096, 64] = index_put %c, %s, %i axis=0 accumulate=false\nreturn %y\n";
        let source = 16 * 64 * 2;
        let cache = 4096 * 64 * 2;
        assert_eq!(moved(program, true), 2 * source + 16 * 8);
        assert_eq!(moved(program, false), 2 * cache + source + 16 * 8);
        assert_eq!(moved(&program.replace("=false", "=true"), true), 3 * source + 16 * 8);
    }

    #[test]
    fn concatenations_move_the_operands_that_do_not_lie_in_place() {
        let moved = |body: &str, in_place: &[usize]| {
            let text = format!(
                "program \"p\" ranks 1\narg %a: f32[1, 4]\narg %b: f32[1, 16]\narg %e: f32[1, 0]\n\
                arg %h: f32[512, 1024]\n{body}return %y\n"
            );
            let graph = text::parse(&text).unwrap_or_else(|e| panic!("{e}"));
            let (n, node) = graph.nodes.iter().next().expect("a node");
            let memory = TrafficModel {
                base: |v| v,
                bytes: |v| u64::try_from(graph.ty(v).bytes().upper_bound(&graph.symbols)).expect("bytes"),
                in_place: |_, k| in_place.contains(&k),
            };
            let reads = (0..node.inputs.len()).map(|k| (n, k));
            memory.step_traffic(&graph, [n].into_iter(), reads, node.outputs.iter().copied())
        };
        let three = "%y: f32[1, 20] = concat %a, %b, %e axis=1\n";
        assert_eq!(moved(three, &[]), StepTraffic { bytes: 2 * (16 + 64), kernels: 2 });
        assert_eq!(moved(three, &[1]), StepTraffic { bytes: 2 * 16, kernels: 1 });
        assert_eq!(moved(three, &[0, 1]), StepTraffic { bytes: 0, kernels: 0 });
        // Nine operands of one shape are more than one kernel moves.
        let nine = format!("%y: f32[1, 36] = concat {} axis=1\n", ["%a"; 9].join(", "));
        assert_eq!(moved(&nine, &[]), StepTraffic { bytes: 2 * 9 * 16, kernels: 2 });
        assert_eq!(moved(&nine, &[3]), StepTraffic { bytes: 2 * 8 * 16, kernels: 1 });
        // Large contiguous operands are copied one by one.
        let operand_bytes = 512 * 1024 * 4;
        assert_eq!(
            moved("%y: f32[1024, 1024] = concat %h, %h axis=0\n", &[]),
            StepTraffic { bytes: 4 * operand_bytes, kernels: 2 }
        );
        assert_eq!(
            moved("%y: f32[512, 2048] = concat %h, %h axis=1\n", &[]),
            StepTraffic { bytes: 4 * operand_bytes, kernels: 1 }
        );
    }

    #[test]
    fn grouped_products_read_at_most_a_matrix_for_each_row() {
        let product = "arg %x: bf16[2, 32]\nparam %w: bf16[8, 32, 64]\narg %e: i64[8]\n\
            %y: bf16[2, 64] = grouped_matmul %x, %w, %e\nreturn %y\n";
        let matrix = 32 * 64 * 2;
        assert_eq!(moved(product, false), 2 * 32 * 2 + 2 * matrix + 8 * 8 + 2 * 64 * 2);
        let many = product.replace("[2, ", "[200, ");
        assert_eq!(moved(&many, false), 200 * 32 * 2 + 8 * matrix + 8 * 8 + 200 * 64 * 2);
    }
}
