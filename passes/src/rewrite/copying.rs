//! Helpers of passes that build a changed copy of a graph.

use symmc_ir::{EntityMap, Graph, GraphOutput, Node, NodeId, Op, ValueId};

/// For each value of a graph, its replacement in the copy, once there is one.
pub type ValueMap = EntityMap<ValueId, Option<ValueId>>;

/// A graph with the inputs of another and without nodes.
pub fn copy_inputs(graph: &Graph) -> (Graph, ValueMap) {
    let mut to = graph.without_nodes();
    let mut map: ValueMap = EntityMap::filled(None, graph.values.len());
    for input in graph.inputs.values() {
        let value = &graph.values[input.value];
        let new = to.add_input(
            input.kind,
            value.name.clone(),
            input.source.clone(),
            value.ty.clone(),
            input.data.clone(),
        );
        map[input.value] = Some(new);
    }
    (to, map)
}

/// Copies a node whose operands have been copied. `None` if one has not.
pub fn copy_node(from: &Graph, node: &Node, to: &mut Graph, map: &mut ValueMap) -> Option<NodeId> {
    let inputs = node.inputs.iter().map(|&v| map[v]).collect::<Option<Vec<_>>>()?;
    let results = node.outputs.iter().map(|&v| &from.values[v]);
    let results = results.map(|v| (v.name.clone(), v.ty.clone())).collect();
    let new = to.add_node(node.op.clone(), inputs, results);
    for (&old, &new) in node.outputs.iter().zip(&to.nodes[new].outputs) {
        map[old] = Some(new);
    }
    Some(new)
}

/// The outputs of a graph as outputs of its copy. `None` if a value is missing there, because the outputs
/// would change.
pub fn copy_outputs(graph: &Graph, map: &ValueMap) -> Option<Vec<GraphOutput>> {
    graph.outputs.iter().map(|o| Some(GraphOutput { value: map[o.value]?, kind: o.kind })).collect()
}

/// Whether an op may have effects other than its results.
pub fn keeps_effects(op: &Op) -> bool {
    op.is_opaque()
}

/// Whether an op is a collective of one operand that only moves elements.
pub fn moves_elements(op: &Op) -> bool {
    op.as_collective().is_some_and(|c| !c.kind.facts().reduces && !c.kind.moves_by_data())
}
