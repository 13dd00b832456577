//! Moves casts next to collectives if views separate them.
//!
//! The e-graph moves a cast across a collective to the side with fewer bytes, but it has no views. This pass
//! moves views out of the way. If every reader of a collective's result casts it to one narrower type,
//! possibly after views or concatenations, the cast moves directly after the collective. If the operand of a
//! collective is a view of widened values, the values are widened directly before the collective. The number
//! of cast elements stays the same, or grows by elements that a slice leaves out; these then cost fewer
//! bytes in the collective.
//!
//! This is not a rule of the rewriter, because the rewriter sees a node before its readers.

use std::collections::BTreeSet;

use symmc_ir::{CollectiveKind, DType, EntityMap, Graph, NodeId, Op, TensorType, ValueId};

use crate::rewrite::{ValueMap, copy_inputs, copy_outputs, moves_elements};

/// Returns the graph with casts next to collectives, or `None` if there are none to move.
pub fn move_casts_to_collectives(graph: &Graph) -> Option<Graph> {
    if !graph.nodes.values().any(|node| moves_elements(&node.op) || scatters(&node.op)) {
        return None;
    }
    let narrowed = find_narrowed_types(graph);
    let widened = find_widened_collectives(graph);
    let is_found = !widened.is_empty() || narrowed.values().any(Option::is_some);
    is_found.then(|| rebuild_with_moved_casts(graph, &narrowed, &widened))?
}

fn scatters(op: &Op) -> bool {
    matches!(op.as_collective().map(|c| &c.kind), Some(CollectiveKind::ReduceScatter(_)))
}

/// Whether the result consists of elements of the operands.
fn rearranges(op: &Op) -> bool {
    op.is_view() || matches!(op, Op::Concat { .. })
}

/// The narrower type to which each value can be cast earlier. Only results of collectives that are not cast
/// directly, and rearrangements of these results, have one.
fn find_narrowed_types(graph: &Graph) -> EntityMap<ValueId, Option<DType>> {
    // The operands of a concatenation are all cast earlier, or none is.
    let mut kept_nodes: BTreeSet<NodeId> = BTreeSet::new();
    loop {
        let read_as = find_read_types(graph, &kept_nodes);
        let mut out: EntityMap<ValueId, Option<DType>> = EntityMap::filled(None, graph.values.len());
        let mut is_stable = true;
        for (id, node) in graph.nodes.iter() {
            let &[result] = &node.outputs[..] else { continue };
            let Some(dtype) = read_as[result] else { continue };
            if moves_elements(&node.op) {
                out[result] = Some(dtype);
            } else if rearranges(&node.op) {
                let casts = node.inputs.iter().filter(|&&v| out[v] == Some(dtype)).count();
                if casts == node.inputs.len() {
                    out[result] = Some(dtype);
                } else if casts > 0 {
                    is_stable = false;
                    kept_nodes.insert(id);
                }
            }
        }
        if is_stable {
            drop_direct_casts(graph, &mut out);
            return out;
        }
    }
}

/// The single narrower type to which all readers of a value cast it, possibly after rearrangements.
fn find_read_types(graph: &Graph, kept_nodes: &BTreeSet<NodeId>) -> EntityMap<ValueId, Option<DType>> {
    let mut out: EntityMap<ValueId, Option<DType>> = EntityMap::filled(None, graph.values.len());
    let mut differs: EntityMap<ValueId, bool> = EntityMap::filled(false, graph.values.len());
    graph.outputs.iter().for_each(|output| differs[output.value] = true);
    for (id, node) in graph.nodes.iter().rev() {
        let narrowed = match (&node.op, &node.outputs[..]) {
            (Op::Cast, &[result]) => Some(graph.ty(result).dtype),
            (op, &[result]) if rearranges(op) && !kept_nodes.contains(&id) => out[result],
            _ => None,
        };
        for &v in &node.inputs {
            match narrowed.filter(|narrowed| narrowed.size() < graph.ty(v).dtype.size()) {
                Some(narrowed) if out[v].is_none_or(|other| other == narrowed) && !differs[v] => {
                    out[v] = Some(narrowed)
                }
                _ => {
                    differs[v] = true;
                    out[v] = None;
                }
            }
        }
    }
    out
}

/// Leaves out collectives whose readers are all casts.
fn drop_direct_casts(graph: &Graph, narrowed: &mut EntityMap<ValueId, Option<DType>>) {
    let mut is_rearranged = EntityMap::filled(false, graph.values.len());
    for node in graph.nodes.values().filter(|node| rearranges(&node.op)) {
        node.inputs.iter().for_each(|&v| is_rearranged[v] = true);
    }
    for node in graph.nodes.values().filter(|node| moves_elements(&node.op)) {
        node.outputs.iter().filter(|&&v| !is_rearranged[v]).for_each(|&v| narrowed[v] = None);
    }
}

/// The collectives whose operand rearranges values that were all widened from one type and have no other
/// readers.
fn find_widened_collectives(graph: &Graph) -> BTreeSet<NodeId> {
    let mut readers: EntityMap<ValueId, usize> = EntityMap::filled(0, graph.values.len());
    graph.nodes.values().flat_map(|node| &node.inputs).for_each(|&v| readers[v] += 1);
    graph.outputs.iter().for_each(|output| readers[output.value] += 1);
    let mut sources: EntityMap<ValueId, Option<DType>> = EntityMap::filled(None, graph.values.len());
    let mut out = BTreeSet::new();
    for (id, node) in graph.nodes.iter() {
        let (Some(&x), &[result]) = (node.inputs.first(), &node.outputs[..]) else { continue };

        match &node.op {
            Op::Cast => {
                let from = graph.ty(x).dtype;
                let widens = from.size() < graph.ty(result).dtype.size();
                sources[result] = widens.then_some(from);
            }
            // A cast after an expansion would process more elements than one in front of it.
            op if rearranges(op) && *op != Op::Expand => {
                let all_widened = sources[x].is_some()
                    && node.inputs.iter().all(|&v| sources[v] == sources[x] && readers[v] == 1);
                sources[result] = if all_widened { sources[x] } else { None };
            }
            op if moves_elements(op) || scatters(op) => {
                let is_rearranged =
                    graph.defining_node(x).is_some_and(|def| rearranges(&graph.nodes[def].op));
                if is_rearranged && sources[x].is_some() && readers[x] == 1 {
                    out.insert(id);
                }
            }
            _ => {}
        }
    }
    out
}

/// Builds the graph with casts moved. Returns `None` if a value is missing, because the outputs would
/// change.
fn rebuild_with_moved_casts(
    graph: &Graph,
    narrowed: &EntityMap<ValueId, Option<DType>>,
    widened: &BTreeSet<NodeId>,
) -> Option<Graph> {
    let (mut to, mut map) = copy_inputs(graph);
    for (id, node) in graph.nodes.iter() {
        if let (Op::Cast, &[x], &[result]) = (&node.op, &node.inputs[..], &node.outputs[..])
            && narrowed[x] == Some(graph.ty(result).dtype)
        {
            map[result] = map[x];
            continue;
        }
        let inputs = if widened.contains(&id) {
            let &x = node.inputs.first()?;
            let narrow = emit_unwidened(graph, x, &map, &mut to)?;
            vec![add_cast(&mut to, narrow, graph.ty(x).dtype, graph.value_name(x))]
        } else {
            node.inputs.iter().map(|&v| map[v]).collect::<Option<Vec<_>>>()?
        };
        let is_moved = moves_elements(&node.op);
        let results = node.outputs.iter().map(|&v| {
            let ty = graph.ty(v);
            let dtype = narrowed[v].filter(|_| !is_moved).unwrap_or(ty.dtype);
            (graph.value_name(v).to_string(), TensorType::new(dtype, ty.shape.clone()))
        });
        let new = to.add_node(node.op.clone(), inputs, results.collect());
        for (k, &old) in node.outputs.iter().enumerate() {
            let value = to.nodes[new].outputs[k];
            let narrow = narrowed[old].filter(|_| is_moved);
            map[old] =
                Some(narrow.map_or(value, |dtype| add_cast(&mut to, value, dtype, graph.value_name(old))));
        }
    }
    to.outputs = copy_outputs(graph, &map)?;
    Some(to)
}

/// Emits a rearrangement of widened values as a rearrangement of the values before widening.
fn emit_unwidened(graph: &Graph, v: ValueId, map: &ValueMap, to: &mut Graph) -> Option<ValueId> {
    let node = &graph.nodes[graph.defining_node(v)?];
    if node.op == Op::Cast {
        return map[*node.inputs.first()?];
    }
    let inputs: Option<Vec<ValueId>> =
        node.inputs.iter().map(|&x| emit_unwidened(graph, x, map, to)).collect();
    let inputs = inputs?;
    let ty = TensorType::new(to.ty(*inputs.first()?).dtype, graph.ty(v).shape.clone());
    let name = format!("{}.narrow", graph.value_name(v));
    let new = to.add_node(node.op.clone(), inputs, vec![(name, ty)]);
    to.nodes[new].outputs.first().copied()
}

fn add_cast(to: &mut Graph, x: ValueId, dtype: DType, near: &str) -> ValueId {
    let ty = TensorType::new(dtype, to.ty(x).shape.clone());
    let new = to.add_node(Op::Cast, vec![x], vec![(format!("{near}.cast"), ty)]);
    to.nodes[new].outputs[0]
}
