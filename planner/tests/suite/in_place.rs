//! The planner places results by the table of facts of ops, and the check uses rules of its own. Both must
//! agree on every op.

use std::collections::{BTreeSet, HashMap};

use symmc_check::check;
use symmc_ir::text::forms::{EXAMPLE_PRELUDE, forms};
use symmc_ir::text::{op_name, parse};
use symmc_ir::{Graph, GraphOutput, Node, NodeId, Op, OutputKind, TensorType, ValueId};
use symmc_planner::{BucketInput, PlanConfig, plan};

use crate::common::corrupt::{flatten, mend};

/// The operands of a node, copied before it, and a returned copy of each of its results.
fn of_copies(examples: &Graph, target: NodeId) -> (Graph, Node) {
    let mut needed: BTreeSet<NodeId> = [target].into();
    let mut open = vec![target];
    while let Some(node) = open.pop() {
        let defined = examples.nodes[node].inputs.iter().filter_map(|&v| examples.defining_node(v));
        open.extend(defined.filter(|&n| needed.insert(n)));
    }
    let mut graph = Graph::new("copies");
    (graph.ranks, graph.symbols) = (examples.ranks, examples.symbols.clone());
    (graph.groups, graph.customs) = (examples.groups.clone(), examples.customs.clone());
    let mut new: HashMap<ValueId, ValueId> = HashMap::new();
    for input in examples.inputs.values() {
        let ty = examples.ty(input.value).clone();
        new.insert(input.value, graph.add_input(input.kind, examples.value_name(input.value), "", ty, None));
    }
    let copy = |graph: &mut Graph, v: ValueId, name: String| {
        let ty = graph.ty(v).clone();
        let node = graph.add_node(Op::Copy, vec![v], vec![(name, ty)]);
        graph.nodes[node].outputs[0]
    };
    let mut id = target;
    for n in needed {
        let node = &examples.nodes[n];
        let mut inputs: Vec<ValueId> = node.inputs.iter().map(|v| new[v]).collect();
        if n == target {
            let operands = inputs.iter_mut().enumerate();
            operands.for_each(|(k, v)| *v = copy(&mut graph, *v, format!("operand{k}")));
        }
        let types =
            node.outputs.iter().map(|&v| (examples.value_name(v).to_string(), examples.ty(v).clone()));
        id = graph.add_node(node.op.clone(), inputs, types.collect());
        new.extend(node.outputs.iter().copied().zip(graph.nodes[id].outputs.iter().copied()));
    }
    let node = graph.nodes[id].clone();
    for (k, &v) in node.outputs.iter().enumerate() {
        let value = copy(&mut graph, v, format!("end{k}"));
        graph.outputs.push(GraphOutput { value, kind: OutputKind::Returned });
    }
    (graph, node)
}

#[test]
fn results_alias_operands_exactly_where_op_facts_allow() {
    let (mut seen, mut left): (BTreeSet<&str>, BTreeSet<&str>) = Default::default();
    let mut compared = 0;
    let lines: Vec<&str> = forms().map(|form| form.example).collect();
    let examples =
        parse(&format!("{EXAMPLE_PRELUDE}\n{}\n", lines.join("\n"))).unwrap_or_else(|e| panic!("{e}"));
    for (target, example) in examples.nodes.iter() {
        let name = op_name(&example.op);
        if example.op.is_view() || example.op.as_collective().is_some() {
            continue;
        }
        let (graph, node) = of_copies(&examples, target);
        let bucket = BucketInput { graph: graph.clone(), decisions: Vec::new() };
        let good = plan(&graph, &[bucket], &PlanConfig::default()).unwrap_or_else(|e| panic!("{e}"));
        let good = flatten(&good, 0);
        let same_size = |v: ValueId, r: ValueId| graph.ty(v).dtype.size() == graph.ty(r).dtype.size();
        let may = node
            .inputs
            .iter()
            .enumerate()
            .any(|(k, &v)| node.op.operand_use(k).may_be_overwritten() && same_size(v, node.outputs[0]));
        if may && !seen.contains(name) {
            left.insert(name);
        }
        let same_layout =
            |a: &TensorType, b: &TensorType| a.shape == b.shape && a.dtype.size() == b.dtype.size();
        for (k, &x) in node.inputs.iter().enumerate() {
            for &result in node.outputs.iter().filter(|&&r| same_layout(graph.ty(r), graph.ty(x))) {
                let mut plan = good.clone();
                let places = &mut plan.buckets[0].places;
                let operand = places[graph.value_name(x)].clone();
                places.insert(graph.value_name(result).to_string(), operand);
                mend(&mut plan);
                let outcome = check(&plan);
                let expected = node.op.operand_use(k).may_be_overwritten();
                assert_eq!(outcome.is_ok(), expected, "{} on operand {k}: {outcome:?}", name);
                left.remove(name);
                seen.insert(name);
                compared += 1;
            }
        }
    }
    assert!(left.is_empty(), "examples without an operand of the type of the result: {left:?}");
    assert!(compared > 60, "{compared} results");
}
