//! Dead code removal: keeps the nodes that outputs need, with unique names.
//!
//! All inputs stay. If an earlier value has the same name, a number is appended to a value's name.

use symmc_ir::copying::UniqueNames;
use symmc_ir::{EntityMap, Graph, GraphOutput, NodeId, TensorType, ValueId};

/// A graph of the nodes that the outputs of `graph` need, in the same order.
pub fn compact(graph: &Graph) -> Graph {
    let live = live_nodes(graph);
    let mut out = graph.without_nodes();
    let mut names = UniqueNames::default();
    let mut map: EntityMap<ValueId, Option<ValueId>> = EntityMap::filled(None, graph.values.len());
    for input in graph.inputs.values() {
        let value = &graph.values[input.value];
        let name = names.unique(&value.name);
        let new = out.add_input(input.kind, name, input.source.clone(), value.ty.clone(), input.data.clone());
        map[input.value] = Some(new);
    }
    for (_, node) in graph.nodes.iter().filter(|(n, _)| live[*n]) {
        let inputs = node.inputs.iter().filter_map(|&v| map[v]).collect();
        let results: Vec<(String, TensorType)> = node
            .outputs
            .iter()
            .map(|&v| (names.unique(&graph.values[v].name), graph.values[v].ty.clone()))
            .collect();
        let new = out.add_node(node.op.clone(), inputs, results);
        for (&old, &new) in node.outputs.iter().zip(&out.nodes[new].outputs) {
            map[old] = Some(new);
        }
    }
    let outputs =
        graph.outputs.iter().filter_map(|o| Some(GraphOutput { value: map[o.value]?, kind: o.kind }));
    out.outputs = outputs.collect();
    out
}

fn live_nodes(graph: &Graph) -> EntityMap<NodeId, bool> {
    let mut live: EntityMap<NodeId, bool> = EntityMap::filled(false, graph.nodes.len());
    for output in &graph.outputs {
        if let Some(n) = graph.defining_node(output.value) {
            live[n] = true;
        }
    }
    let order: Vec<NodeId> = graph.nodes.keys().collect();
    for &n in order.iter().rev() {
        if live[n] {
            graph.nodes[n].inputs.iter().filter_map(|&v| graph.defining_node(v)).for_each(|d| live[d] = true);
        }
    }
    live
}
