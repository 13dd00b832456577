//! All-gathers as gathers along a new axis.
//!
//! `all_gather` of `[t, ..]` gives `[n*t, ..]`. A position along the first axis is that of a rank and of an element
//! of its operand at once, so a region that divides this axis computes no axis uniformly. Here the op becomes an
//! all-gather of `[1, t, ..]` to `[n, t, ..]`, whose second axis is uniform, and a reshape. Reshapes of the
//! result, and slices of the parts of ranks, become those of the value with the new axis. Only views change, so
//! all values keep their bits. Both programs are brought into this form.
//!
//! A product that reads its right matrix as it is stored becomes one of its cast, which has the same bits by definition.

use std::collections::HashMap;

use symmc_ir::{CollectiveKind, DType, Dim, Graph, GraphOutput, Node, Op, TensorType, ValueId};

/// The program in this form, without its dispatches.
pub fn separate_gathered_axes(graph: &Graph) -> Graph {
    let mut separator = GatherSeparator {
        source: graph,
        graph: graph.without_nodes(),
        map: HashMap::new(),
        gathered: HashMap::new(),
    };
    for input in graph.inputs.values() {
        let ty = graph.ty(input.value).clone();
        let name = graph.value_name(input.value);
        let value = separator.graph.add_input(input.kind, name, &input.source, ty, input.data.clone());
        separator.map.insert(input.value, value);
    }
    for node in graph.nodes.values() {
        let is_separate = separator.separate_gather(node) || separator.read_separate_gather(node);
        if !is_separate {
            separator.copy_node(node);
        }
    }
    let GatherSeparator { graph: mut separate, map, .. } = separator;
    let outputs = graph.outputs.iter();
    separate.outputs =
        outputs.map(|output| GraphOutput { value: map[&output.value], ..output.clone() }).collect();
    separate
}

/// The result of an all-gather along a new axis.
#[derive(Clone)]
struct GatheredValue {
    value: ValueId,
    /// The extent of the second axis.
    extent: Dim,
}

struct GatherSeparator<'a> {
    source: &'a Graph,
    graph: Graph,
    /// The values of the new program.
    map: HashMap<ValueId, ValueId>,
    /// By the result of the all-gather in the source.
    gathered: HashMap<ValueId, GatheredValue>,
}

impl GatherSeparator<'_> {
    fn cast_factor(&mut self, factor: ValueId, dtype: DType) -> ValueId {
        let TensorType { dtype: stored, shape } = self.graph.ty(factor).clone();
        if stored == dtype {
            return factor;
        }
        let name = format!("{}.cast", self.graph.value_name(factor));
        let cast = self.graph.add_node(Op::Cast, vec![factor], vec![(name, TensorType::new(dtype, shape))]);
        self.graph.nodes[cast].outputs[0]
    }

    fn copy_node(&mut self, node: &Node) {
        let mut inputs: Vec<ValueId> = node.inputs.iter().map(|v| self.map[v]).collect();
        if let (true, &mut [left, ref mut right]) = (node.op.is_matmul(), &mut inputs[..]) {
            *right = self.cast_factor(*right, self.graph.ty(left).dtype);
        }
        let results = node.outputs.iter().map(|&v| self.result(v)).collect();
        let n = self.graph.add_node(node.op.clone(), inputs, results);
        let outputs = self.graph.nodes[n].outputs.clone();
        self.map.extend(node.outputs.iter().copied().zip(outputs));
    }

    fn result(&self, value: ValueId) -> (String, TensorType) {
        (self.source.value_name(value).to_string(), self.source.ty(value).clone())
    }

    fn add(&mut self, op: Op, input: ValueId, result: (String, TensorType)) -> ValueId {
        let n = self.graph.add_node(op, vec![input], vec![result]);
        self.graph.nodes[n].outputs[0]
    }

    /// Adds an all-gather along a new axis for one along the first axis.
    fn separate_gather(&mut self, node: &Node) -> bool {
        let (Op::Collective(c), &[x], &[result]) = (&node.op, &node.inputs[..], &node.outputs[..]) else {
            return false;
        };
        let ty = self.source.ty(x);
        let ranks = self.source.group_size(c.group).filter(|ranks| *ranks > 1);
        let (Some(ranks), Some(extent)) = (ranks, ty.shape.first().cloned()) else { return false };
        if c.kind != CollectiveKind::AllGather || extent.as_const() == Some(1) {
            return false;
        }
        let with_axis = |leading: i64| {
            let shape = std::iter::once(Dim::from(leading)).chain(ty.shape.iter().cloned());
            TensorType::new(ty.dtype, shape.collect::<Vec<_>>())
        };
        let name = self.source.value_name(result);
        let operand = self.add(Op::Reshape, self.map[&x], (format!("{name}.operand"), with_axis(1)));
        let gathered = (format!("{name}.separate"), with_axis(i64::from(ranks)));
        let value = self.add(node.op.clone(), operand, gathered);
        let reshaped = self.add(Op::Reshape, value, self.result(result));
        self.map.insert(result, reshaped);
        self.gathered.insert(result, GatheredValue { value, extent });
        true
    }

    /// Adds a reshape of a separate all-gather, or a slice of the parts of some ranks.
    fn read_separate_gather(&mut self, node: &Node) -> bool {
        let (&[x], &[result]) = (&node.inputs[..], &node.outputs[..]) else { return false };
        let Some(GatheredValue { value, extent }) = self.gathered.get(&x).cloned() else { return false };
        let mut read = value;
        match &node.op {
            Op::Reshape => {}
            Op::Slice { axis: 0, start, step: 1 } => {
                let mut ty = self.graph.ty(value).clone();
                let ranks = ty.shape[0].as_const().unwrap_or(0);
                let find_multiple = |dim: &Dim| (0..=ranks).find(|&k| *dim == extent.clone() * Dim::from(k));
                let count = self.source.ty(result).shape.first().and_then(find_multiple);
                let (Some(first), Some(count)) = (find_multiple(start), count) else { return false };
                ty.shape[0] = Dim::from(count);
                let name = format!("{}.separate", self.source.value_name(result));
                let slice = Op::Slice { axis: 0, start: Dim::from(first), step: 1 };
                read = self.add(slice, value, (name, ty));
            }
            _ => return false,
        }
        let new = self.add(Op::Reshape, read, self.result(result));
        self.map.insert(result, new);
        true
    }
}
