//! The estimated time of the computation of a program.

use symmc_ir::machine::{OperationCounts, TrafficModel};
use symmc_ir::{Graph, Node, NodeId, Op};

use super::context::LowerContext;

/// The estimated time of all computation of a program, in microseconds, one node after another.
pub fn computation_us(graph: &Graph, context: &LowerContext) -> f64 {
    graph.nodes.keys().map(|id| node_computation_us(graph, id, context)).sum()
}

/// The estimated time of a node in microseconds; 0 for views and collectives.
pub fn node_computation_us(graph: &Graph, node: NodeId, context: &LowerContext) -> f64 {
    if computes(&graph.nodes[node]) { compute_us(graph, node, context) } else { 0.0 }
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
