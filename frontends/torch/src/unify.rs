//! Normalizes the slices of tensors that ranks take by their numbers, so that all ranks have the same form.
//!
//! A rank takes its slice of a tensor as a slice, as one of the results of a division (`chunk(n)[rank]`), or
//! by an index from the end (`x[-1 - rank]`). Each rank uses another result of a division, so its program
//! would differ from those of other ranks. Before programs are compared, this module makes four changes. A
//! division with one result that is read becomes the slice or the index of that result. `narrow` becomes a
//! slice. Indices from the end count from the start if the extent is known. Nodes that only compute sizes are
//! removed, because the program has their values as expressions.

use std::borrow::Cow;
use std::collections::HashSet;
use symmc_import::has_word;

use crate::effects::bare_target;
use crate::schema::{
    self, Argument, ExportedGraph, ExportedNode, ExportedProgram, JsonStr, NamedArgument, SymArgument,
    SymExpr, SymInt, TensorMeta,
};
use crate::scope::tensor_names;

/// The ops that divide a tensor along an axis into consecutive slices.
const DIVISIONS: &str = "aten.split aten.split_copy aten.split_with_sizes aten.split_with_sizes_copy aten.chunk \
     aten.unsafe_chunk aten.unsafe_split aten.unsafe_split_with_sizes aten.tensor_split aten.unbind \
     aten.unbind_copy";

/// Rewrites the slices in a program into the form that the programs of all ranks share.
pub(crate) fn unify_program(program: &mut ExportedProgram<'_>) {
    let specs = program.graph_module.signature.output_specs.iter().filter_map(schema::written_output);
    let returned = specs.map(|(_, name, _)| name.to_string()).collect();
    unify_graph(&mut program.graph_module.graph, returned);
}

fn unify_graph(graph: &mut ExportedGraph<'_>, mut read: HashSet<String>) {
    let arguments = graph.nodes.iter().flat_map(|n| &n.inputs).map(|i| &i.arg).chain(&graph.outputs);
    read.extend(arguments.flat_map(tensor_names).map(str::to_string));
    let nodes = std::mem::take(&mut graph.nodes);
    for mut node in nodes {
        if is_size_computation(graph, &node) {
            continue;
        }
        for input in &mut node.inputs {
            if let Argument::Graph(inner) = &mut input.arg {
                unify_graph(inner, HashSet::new());
            }
        }
        if let Some(slice) = division_as_slice(graph, &node, &read) {
            node = slice;
        }
        normalize_positions(graph, &mut node);
        graph.nodes.push(node);
    }
}

fn is_size_computation(graph: &ExportedGraph<'_>, node: &ExportedNode<'_>) -> bool {
    let target = &*node.target;
    let computes =
        ["_operator.", "math.", "torch.sym_", "aten.sym_"].iter().any(|p| bare_target(target).starts_with(p));
    let results = node.results();
    let are_known = results.iter().all(|name| {
        name.is_some_and(|name| {
            graph.sym_int_values.contains_key(name)
                || graph.sym_bool_values.contains_key(name)
                || graph.sym_float_values.contains_key(name)
        })
    });
    computes && !results.is_empty() && are_known
}

fn op_name<'n>(node: &'n ExportedNode<'_>) -> &'n str {
    let target = bare_target(&node.target);
    target.rsplit_once('.').map_or(target, |(op, _)| op)
}

fn argument<'n, 'p>(node: &'n ExportedNode<'p>, name: &str) -> Option<&'n Argument<'p>> {
    node.inputs.iter().find(|i| &*i.name == name).map(|i| &i.arg)
}

fn int_argument(node: &ExportedNode<'_>, name: &str) -> Option<i64> {
    match argument(node, name) {
        Some(Argument::Int(i)) => Some(*i),
        _ => None,
    }
}

fn owned_str<'p>(text: impl Into<String>) -> JsonStr<'p> {
    JsonStr(Cow::Owned(text.into()))
}

fn named_argument<'p>(name: &str, arg: Argument<'p>) -> NamedArgument<'p> {
    NamedArgument { name: owned_str(name), arg }
}

/// The axis argument of a node, counted from 0, for an operand of this rank.
fn axis_argument(node: &ExportedNode<'_>, rank: usize) -> Option<usize> {
    let axis = match argument(node, "dim") {
        None => 0,
        Some(_) => int_argument(node, "dim")?,
    };
    let axis = if axis < 0 { axis.checked_add(i64::try_from(rank).ok()?)? } else { axis };
    usize::try_from(axis).ok().filter(|a| *a < rank)
}

/// The tensor that a node divides, and its declared type.
fn divided_tensor<'g, 'p>(
    graph: &'g ExportedGraph<'p>,
    node: &ExportedNode<'p>,
) -> Option<(JsonStr<'p>, &'g TensorMeta<'p>)> {
    let Some(Argument::Tensor(name)) = node.inputs.first().map(|i| &i.arg) else { return None };
    Some((name.clone(), graph.tensor_values.get(&**name)?))
}

/// A division with one result that is read, or a `narrow`, as a slice or an index.
fn division_as_slice<'p>(
    graph: &mut ExportedGraph<'p>,
    node: &ExportedNode<'p>,
    read: &HashSet<String>,
) -> Option<ExportedNode<'p>> {
    let op = op_name(node);
    if op == "aten.narrow" {
        return narrow_as_slice(graph, node);
    }
    if !has_word(DIVISIONS, op) {
        return None;
    }
    let Some(Argument::Tensors(names)) = node.outputs.first() else { return None };
    let mut chosen = names.iter().enumerate().filter(|(_, name)| read.contains(&***name));
    let (index, name) = chosen.next()?;
    if names.len() < 2 || chosen.next().is_some() {
        return None;
    }
    let (tensor, meta) = divided_tensor(graph, node)?;
    let axis = axis_argument(node, meta.sizes.len())?;
    let mut inputs = vec![
        named_argument("self", Argument::Tensor(tensor)),
        named_argument("dim", Argument::Int(axis as i64)),
    ];
    let outputs = vec![Argument::Tensor(name.clone())];
    if op.starts_with("aten.unbind") {
        inputs.push(named_argument("index", Argument::Int(index as i64)));
        return Some(ExportedNode::new(
            owned_str("torch.ops.aten.select.int"),
            owned_str(&**name),
            inputs,
            outputs,
        ));
    }
    let sizes: Option<Vec<String>> =
        names.iter().map(|n| extent_expression(graph.tensor_values.get(&**n)?.sizes.get(axis)?)).collect();
    let sizes = sizes?;
    for (name_of, until) in [("start", index), ("end", index + 1)] {
        let position = sum_argument(graph, sizes.get(..until)?, &format!("{}.{name_of}", &**name));
        inputs.push(named_argument(name_of, position));
    }
    Some(ExportedNode::new(owned_str("torch.ops.aten.slice.Tensor"), owned_str(&**name), inputs, outputs))
}

fn sum_argument<'p>(graph: &mut ExportedGraph<'p>, extents: &[String], name: &str) -> Argument<'p> {
    let total: Option<i64> = extents.iter().try_fold(0i64, |sum, e| sum.checked_add(e.parse().ok()?));
    if let Some(total) = total {
        return Argument::Int(total);
    }
    let terms = extents.iter().map(|e| e.parse().map_or(e.clone(), |n: i64| format!("Integer({n})")));
    let terms: Vec<String> = terms.collect();
    let text = if terms.len() == 1 { terms.concat() } else { format!("Add({})", terms.join(", ")) };
    let value = SymInt { as_expr: Some(SymExpr { expr_str: owned_str(text) }), as_int: None };
    graph.sym_int_values.insert(owned_str(name), value);
    Argument::SymInt(SymArgument {
        as_name: Some(owned_str(name)),
        as_int: None,
        as_float: None,
        as_bool: None,
    })
}

/// An extent as the program's expression, or as a number.
fn extent_expression(size: &SymInt<'_>) -> Option<String> {
    match (&size.as_expr, size.as_int) {
        (Some(e), _) => Some(e.expr_str.to_string()),
        (None, Some(i)) => Some(i.to_string()),
        (None, None) => None,
    }
}

fn narrow_as_slice<'p>(graph: &ExportedGraph<'p>, node: &ExportedNode<'p>) -> Option<ExportedNode<'p>> {
    let (tensor, meta) = divided_tensor(graph, node)?;
    let axis = axis_argument(node, meta.sizes.len())?;
    let mut start = int_argument(node, "start")?;
    let length = int_argument(node, "length")?;
    if start < 0 {
        start = start.checked_add(meta.sizes.get(axis)?.as_int?)?;
    }
    let inputs = vec![
        named_argument("self", Argument::Tensor(tensor)),
        named_argument("dim", Argument::Int(axis as i64)),
        named_argument("start", Argument::Int(start)),
        named_argument("end", Argument::Int(start.checked_add(length)?)),
    ];
    let outputs = match node.outputs.first() {
        Some(Argument::Tensor(name)) => vec![Argument::Tensor(name.clone())],
        _ => return None,
    };
    Some(ExportedNode::new(owned_str("torch.ops.aten.slice.Tensor"), owned_str(node.name()), inputs, outputs))
}

/// Converts positions from the end of an axis of known extent to positions from its start.
fn normalize_positions(graph: &ExportedGraph<'_>, node: &mut ExportedNode<'_>) {
    let names: &[&str] = match op_name(node) {
        "aten.select" | "aten.select_copy" | "aten.select_scatter" => &["index"],
        "aten.slice" | "aten.slice_copy" | "aten.slice_scatter" => &["start", "end"],
        _ => return,
    };
    let Some((_, meta)) = divided_tensor(graph, node) else { return };
    let Some(extent) = axis_argument(node, meta.sizes.len()).and_then(|a| meta.sizes.get(a)?.as_int) else {
        return;
    };
    for input in &mut node.inputs {
        match &mut input.arg {
            Argument::Int(i) if *i < 0 && names.contains(&&*input.name) => *i = i.saturating_add(extent),
            _ => {}
        }
    }
}
