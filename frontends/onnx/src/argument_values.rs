//! The values of arguments that are known at import, and the arguments that select branches.

use std::collections::{HashMap, HashSet};

use symmc_import::ranges::{SymbolConstraint, SymbolConstraints};
use symmc_ir::ValueId;

use crate::node::is_control_flow;
use crate::proto;
use crate::tensor_data;

/// The values of arguments that the caller states, and the recorded ones.
#[derive(Clone, Default)]
pub(crate) struct ArgumentValues {
    stated: HashMap<String, i64>,
    recorded: HashMap<String, i64>,
    switches: HashSet<String>,
}

/// An argument that is taken for a constant.
pub(crate) struct FixedArgument {
    pub value: ValueId,
    pub number: i64,
}

/// Whether an argument is one integer or bool.
fn is_single_integer(argument: &proto::ValueInfoProto) -> bool {
    let ty = argument.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
    let dtype = ty.and_then(|t| tensor_data::dtype_from_code(t.elem_type).ok());
    let is_single =
        ty.and_then(|t| t.shape.as_ref()).is_some_and(|s| s.dim.iter().all(|d| d.dim_value == Some(1)));
    dtype.is_some_and(|d| !d.is_float()) && is_single
}

impl ArgumentValues {
    /// Takes the constraints of integer arguments out of those of symbols. `recorded` are the values of the arguments of
    /// one integer, by their positions.
    pub fn new(
        graph: &proto::GraphProto,
        arguments: &[&proto::ValueInfoProto],
        recorded: &[Option<i64>],
        constraints: &mut SymbolConstraints,
    ) -> ArgumentValues {
        let mut values = ArgumentValues::default();
        for (i, argument) in arguments.iter().enumerate().filter(|(_, a)| is_single_integer(a)) {
            if let Some(Some(number)) = recorded.get(i) {
                values.recorded.insert(argument.name.clone(), *number);
            }
            constraints.constraints.retain(|(name, constraint)| match constraint {
                SymbolConstraint::Range { min: Some(min), max: Some(max) }
                    if min == max && *name == argument.name =>
                {
                    values.stated.insert(name.clone(), *min);
                    false
                }
                _ => true,
            });
        }
        values.switches = find_switches(graph, arguments);
        values
    }

    /// The value that an argument is taken for, if there is one, and whether the caller states it.
    pub fn value(&self, name: &str) -> Option<(i64, bool)> {
        let recorded = self.recorded.get(name).filter(|_| self.switches.contains(name));
        let stated = self.stated.get(name).map(|number| (*number, true));
        stated.or(recorded.map(|number| (*number, false)))
    }
}

/// The arguments of one integer on which, with constants, conditions and numbers of iterations depend.
fn find_switches(graph: &proto::GraphProto, arguments: &[&proto::ValueInfoProto]) -> HashSet<String> {
    let mut nodes = Vec::new();
    collect_nodes(graph, &mut nodes);
    let producers: HashMap<&str, &proto::NodeProto> =
        nodes.iter().flat_map(|n| n.output.iter().map(move |o| (o.as_str(), *n))).collect();
    let by_name: HashMap<&str, &proto::ValueInfoProto> =
        arguments.iter().map(|a| (a.name.as_str(), *a)).collect();
    let mut switches = HashSet::new();
    for node in nodes.iter().filter(|n| is_control_flow(n)) {
        let count = if node.op_type == "If" { 1 } else { 2 };
        for condition in node.input.iter().take(count).filter(|n| !n.is_empty()) {
            let mut found = HashSet::new();
            let mut visited = HashSet::new();
            let mut open = vec![condition.as_str()];
            let mut depends_on_others = false;
            while let Some(name) = open.pop() {
                if !visited.insert(name) || name.is_empty() {
                    continue;
                }
                match (by_name.get(name), producers.get(name)) {
                    (Some(argument), _) if is_single_integer(argument) => {
                        found.insert(name.to_string());
                    }
                    (Some(_), _) => depends_on_others = true,
                    (None, Some(producer)) => open.extend(producer.input.iter().map(String::as_str)),
                    // A stored tensor.
                    (None, None) => {}
                }
            }
            if !depends_on_others {
                switches.extend(found);
            }
        }
    }
    switches
}

fn collect_nodes<'g>(graph: &'g proto::GraphProto, nodes: &mut Vec<&'g proto::NodeProto>) {
    for node in &graph.node {
        nodes.push(node);
        for inner in node.attribute.iter().filter_map(|a| a.g.as_deref()) {
            collect_nodes(inner, nodes);
        }
    }
}
