//! Records of collectives that the canonical form no longer has, or has only in part.
//!
//! Passes record them as they rewrite. If a rule of the rewriter replaces a collective, or replaces a reader
//! of collectives by a collective, the record is derived from the values before and after the rule.

use std::collections::{BTreeMap, BTreeSet};

use symmc_ir::{Dim, Graph, Node, Op, TensorType, ValueId};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplacedCollective {
    /// The name of the collective's result in the source program.
    pub collective: String,
    pub rule: &'static str,
    pub what: String,
    /// The names of the results of the collectives that do the rest of its work.
    pub by: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CollectiveChange {
    pub replaced: ReplacedCollective,
    /// Its bytes in the source program: those of the result for an all-gather, those of the operand
    /// otherwise.
    pub bytes: Dim,
}

/// The name of the reason that no node needs a collective any more.
const UNUSED_REASON: &str = "unused";
/// The name of the reason that only a part of a collective is computed.
const IN_PART: &str = "only_what_is_used";

/// The collective whose result, or a view of whose result, a value is.
pub fn find_collective(graph: &Graph, mut value: ValueId) -> Option<ValueId> {
    loop {
        let node = &graph.nodes[graph.defining_node(value)?];
        match &node.op {
            Op::Collective(_) => return Some(value),
            op if op.is_view() => value = *node.inputs.first()?,
            _ => return None,
        }
    }
}

/// The collectives of `source` that `canonical` no longer has, or has only in part, with the reasons from
/// the passes' records.
pub fn collective_changes(
    source: &Graph,
    canonical: &Graph,
    recorded: Vec<ReplacedCollective>,
) -> Vec<CollectiveChange> {
    let remaining: BTreeMap<&str, &TensorType> =
        collectives(canonical).map(|(name, node)| (name, result(canonical, node))).collect();
    let mut last_records: BTreeMap<String, ReplacedCollective> = BTreeMap::new();
    for record in recorded {
        // A collective does not replace itself.
        let by = record.by.into_iter().filter(|name| *name != record.collective).collect();
        last_records.insert(record.collective.clone(), ReplacedCollective { by, ..record });
    }
    let mut open: Vec<String> = Vec::new();
    let mut listed: BTreeSet<String> = BTreeSet::new();
    let mut out = Vec::new();
    for (name, node) in collectives(source) {
        let bytes = communicated_bytes(source, node);
        let replaced = match remaining.get(name) {
            Some(&ty) if ty == result(source, node) => continue,
            Some(&ty) => ReplacedCollective {
                collective: name.into(),
                rule: IN_PART,
                what: partial_use_text(
                    &ty.display(&canonical.symbols).to_string(),
                    &result(source, node).display(&source.symbols).to_string(),
                ),
                by: vec![name.into()],
            },
            None => last_records.get(name).cloned().unwrap_or_else(|| unused(name)),
        };
        open.extend(replaced.by.iter().cloned());
        out.push(CollectiveChange { replaced, bytes });
    }
    // Leaves out collectives that a pass added and a later pass replaced.
    let of_source: BTreeSet<&str> = collectives(source).map(|(name, _)| name).collect();
    while let Some(name) = open.pop() {
        if remaining.contains_key(&name[..]) || of_source.contains(&name[..]) || !listed.insert(name.clone())
        {
            continue;
        }
        let replaced = last_records.get(&name).cloned().unwrap_or_else(|| unused(&name));
        open.extend(replaced.by.iter().cloned());
        out.push(CollectiveChange { replaced, bytes: Dim::from(0) });
    }
    out
}

/// The longest type, in bytes, that a text shows.
const MAX_SHOWN_TYPE_BYTES: usize = 500;

fn partial_use_text(part: &str, whole: &str) -> String {
    let explanation = "only the used part is communicated";
    if part.len() + whole.len() > MAX_SHOWN_TYPE_BYTES {
        explanation.into()
    } else {
        format!("{explanation}: {part} of {whole}")
    }
}

fn unused(name: &str) -> ReplacedCollective {
    let explanation = "its result is no longer needed".to_string();
    ReplacedCollective { collective: name.into(), rule: UNUSED_REASON, what: explanation, by: Vec::new() }
}

fn collectives(graph: &Graph) -> impl Iterator<Item = (&str, &Node)> {
    let nodes = graph.nodes.iter().filter(|(_, node)| node.op.as_collective().is_some());
    nodes.map(|(id, node)| (graph.node_name(id), node))
}

fn result<'g>(graph: &'g Graph, node: &Node) -> &'g TensorType {
    graph.ty(node.outputs[0])
}

fn communicated_bytes(graph: &Graph, node: &Node) -> Dim {
    let gathers = node.op.as_collective().is_some_and(|c| c.kind == symmc_ir::CollectiveKind::AllGather);
    let values = if gathers { &node.outputs } else { &node.inputs };
    values.first().map_or(Dim::from(0), |&v| graph.ty(v).bytes())
}
