//! Dispatches: which nodes of a bucket run as one step, in which form, and what that saves.

use std::collections::BTreeMap;
use std::fmt::Write;

use symmc::unstable::ir::dim::SymbolBindings;
use symmc::unstable::ir::{Dispatch, NodeId, ValueId};

use crate::planned_bucket::PlannedBucket;
use crate::units::{format_bytes, format_count};

/// The nodes of a dispatch that would be steps if each ran alone: all except views.
fn step_nodes(planned: &PlannedBucket<'_>, dispatch: &Dispatch) -> Vec<NodeId> {
    dispatch.nodes().filter(|&n| !planned.program.is_view(n)).collect()
}

fn largest_sizes(planned: &PlannedBucket<'_>) -> SymbolBindings {
    planned
        .program
        .resolve_symbols(planned.bucket)
        .map(|symbols| SymbolBindings::at_upper_bounds(&symbols))
        .unwrap_or_default()
}

/// The values that only the nodes of a dispatch use, each with its bytes at these sizes. They have no memory.
fn inner_values(
    planned: &PlannedBucket<'_>,
    dispatch: &Dispatch,
    sizes: &SymbolBindings,
) -> Vec<(ValueId, u64)> {
    let graph = planned.graph;
    let size = |v: ValueId| graph.ty(v).bytes().eval(sizes).and_then(|n| u64::try_from(n).ok());
    let values = dispatch.nodes().flat_map(|n| &graph.nodes[n].outputs);
    values.filter(|v| planned.program.is_dispatch_internal(**v)).map(|&v| (v, size(v).unwrap_or(0))).collect()
}

/// A line on the steps of a bucket that run several nodes. Empty if there are none.
pub fn dispatch_summary(planned: &PlannedBucket<'_>) -> String {
    let dispatches = &planned.graph.dispatches;
    if dispatches.is_empty() {
        return String::new();
    }
    let mut forms: BTreeMap<&str, u64> = BTreeMap::new();
    dispatches.iter().for_each(|d| *forms.entry(d.form.name()).or_default() += 1);
    let forms: Vec<String> = forms.iter().map(|(form, n)| format!("{n} {form}")).collect();
    let nodes: usize = dispatches.iter().map(|d| step_nodes(planned, d).len()).sum();
    let sizes = largest_sizes(planned);
    let saved_bytes: u64 =
        dispatches.iter().flat_map(|d| inner_values(planned, d, &sizes)).map(|(_, bytes)| bytes).sum();
    let nodes = format_count(nodes as u64, "node");
    let steps = format_count(dispatches.len() as u64, "step");
    let saved = match saved_bytes {
        0 => String::new(),
        bytes => format!("; this saves storing and reading {} in each run", format_bytes(bytes)),
    };
    format!("  dispatches: {}: {nodes} in {steps}{saved}\n", forms.join(", "))
}

/// Lines on the dispatch that contains a node, with its form and what it saves. Empty if there is none.
pub fn dispatch_text(planned: &PlannedBucket<'_>, node: NodeId, machine: &str) -> String {
    let mut out = String::new();
    let Some(dispatch) = planned.graph.dispatches.iter().find(|d| d.contains(node)) else { return out };
    let names = |nodes: &[NodeId]| {
        let names: Vec<String> = nodes.iter().map(|&n| format!("%{}", planned.graph.node_name(n))).collect();
        names.join(", ")
    };
    let nodes = step_nodes(planned, dispatch);
    let _ = writeln!(out, "  one step with others: {}", names(&nodes));
    let _ = writeln!(out, "    {machine} has one kernel for them: a dispatch of the form {}", dispatch.form);
    let kernels = format_count(nodes.len().saturating_sub(1) as u64, "kernel");
    let inner = inner_values(planned, dispatch, &largest_sizes(planned));
    let stored: Vec<String> = inner
        .iter()
        .map(|(v, n)| format!("%{} of {}", planned.graph.value_name(*v), format_bytes(*n)))
        .collect();
    let stored = match stored.as_slice() {
        [] => String::new(),
        names => format!(", and storing and reading {}", names.join(", ")),
    };
    let _ = writeln!(out, "    saves {kernels}{stored}");
    out
}
