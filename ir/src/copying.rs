//! Helpers for functions that build a changed copy of a graph.

use std::collections::{HashMap, HashSet};

use crate::entity::EntityMap;
use crate::graph::{Graph, GraphOutput, Node};
use crate::ids::{NodeId, ValueId};

/// For each value of a graph, its replacement in the copy, once there is one.
pub type ValueMap = EntityMap<ValueId, Option<ValueId>>;

/// A graph with the inputs of another and without nodes.
pub fn copy_inputs(graph: &Graph) -> (Graph, ValueMap) {
    let mut copy = graph.without_nodes();
    let mut map: ValueMap = EntityMap::filled(None, graph.values.len());
    for input in graph.inputs.values() {
        let value = &graph.values[input.value];
        let new = copy.add_input(
            input.kind,
            value.name.clone(),
            input.source.clone(),
            value.ty.clone(),
            input.data.clone(),
        );
        map[input.value] = Some(new);
    }
    (copy, map)
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

/// Names of values that are not taken yet.
#[derive(Default)]
pub struct UniqueNames {
    taken: HashSet<String>,
    next: HashMap<String, usize>,
}

impl UniqueNames {
    pub fn reserve(&mut self, name: &str) {
        self.taken.insert(name.to_string());
    }

    /// `wanted`, or `wanted` followed by the smallest free number from 1 on.
    pub fn unique(&mut self, wanted: &str) -> String {
        if !self.taken.contains(wanted) {
            self.taken.insert(wanted.to_string());
            return wanted.to_string();
        }
        let next = self.next.entry(wanted.to_string()).or_insert(0);
        loop {
            *next += 1;
            let name = format!("{wanted}.{next}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}
