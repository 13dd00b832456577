//! The lifetime of a value's memory: which steps and peers access it, from when to when its buffer is occupied and why, and
//! which values use the same bytes before and after.

use std::fmt::Write;

use symmc::unstable::ir::collective::{Contract, SyncScope};
use symmc::unstable::ir::{Node, Op, ValueId};
use symmc::unstable::plan::{
    ArenaKind, Bucket, Buffer, ExitBarrier, Lane, MemoryRef, PeerReach, ValuePlacement,
};

use crate::planned_bucket::PlannedBucket;

/// An access of a step to a value, by one of the step's nodes.
struct ValueAccess<'a> {
    step: usize,
    node: &'a Node,
    reads: bool,
    writes: bool,
    /// Whether it is an operand that peers read with variants that read operands of peers.
    is_shared_operand: bool,
    /// Whether it is a result that peers write with variants that write results of peers.
    is_shared_result: bool,
}

pub fn lifetime_text(planned: &PlannedBucket<'_>, base: ValueId, place: &ValuePlacement) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "  {text}");
    };
    let accesses = value_accesses(planned, base);
    match step_names(planned, accesses.iter().filter(|access| access.writes)).as_slice() {
        [] => line("written by the caller before each run, or once if it is a parameter".into()),
        writers => line(format!("written by {}", writers.join(", "))),
    }
    match step_names(planned, accesses.iter().filter(|access| access.reads)).as_slice() {
        [] => line("no step reads it".into()),
        readers => line(format!("read by {}", abbreviate(readers))),
    }
    let peers: Vec<String> = accesses.iter().filter_map(|access| peer_access_text(planned, access)).collect();
    match place.memory {
        MemoryRef::Buffer(i) => {
            let Some(b) = planned.bucket.buffers.get(i) else { return out };
            line(occupancy_text(planned, b, &accesses));
            line(match (b.reach, peers.is_empty()) {
                (PeerReach::Local, _) => "peers do not access it".into(),
                (_, false) => abbreviate(&peers),
                (PeerReach::Read, true) => {
                    "peers do not access this value, but read other values in its buffer".into()
                }
                (PeerReach::Written, true) => {
                    "peers do not access this value, but write other values in its buffer".into()
                }
            });
            neighbour_texts(planned, i, base).into_iter().for_each(line);
        }
        MemoryRef::Fixed(_) => match peers.as_slice() {
            [] => line("peers do not access it".into()),
            peers => line(abbreviate(peers)),
        },
        MemoryRef::Input(_) => line("peers do not access it, and no step writes it".into()),
        MemoryRef::Output(_) => {
            line("peers do not access it; it is kept until the caller has read it".into())
        }
    }
    out
}

/// The names of the steps of these accesses, each once.
fn step_names<'a>(
    planned: &PlannedBucket<'_>,
    accesses: impl Iterator<Item = &'a ValueAccess<'a>>,
) -> Vec<String> {
    let mut steps: Vec<usize> = accesses.map(|access| access.step).collect();
    steps.dedup();
    steps.into_iter().map(|step| step_name(planned.bucket, step)).collect()
}

/// All accesses to a value and its views, in the order of the steps.
fn value_accesses<'a>(planned: &PlannedBucket<'a>, base: ValueId) -> Vec<ValueAccess<'a>> {
    let is_view_of_base = |v: &ValueId| planned.program.base(*v) == base;
    let steps = 0..planned.bucket.steps.len();
    let nodes = steps.flat_map(|step| planned.nodes_of_step(step).map(move |node| (step, node)));
    nodes
        .filter_map(|(step, node)| {
            let writes = node.outputs.contains(&base);
            // A step does not read a value that it defines, even if one of its nodes does.
            let reads = node.inputs.iter().any(is_view_of_base) && planned.step_of_value(base) != Some(step);
            let kind = node.op.as_collective().map(|c| &c.kind);
            let is_shared_operand = reads
                && kind.is_some_and(|k| node.inputs.iter().take(k.shared_operands()).any(is_view_of_base));
            let result = node.outputs.iter().position(|&result| result == base);
            let is_shared_result = result
                .zip(kind)
                .is_some_and(|(operand, k)| k.shared_results(node.outputs.len()).contains(&operand));
            (reads || writes).then_some(ValueAccess {
                step,
                node,
                reads,
                writes,
                is_shared_operand,
                is_shared_result,
            })
        })
        .collect()
}

fn step_name(bucket: &Bucket, s: usize) -> String {
    bucket.steps.get(s).map_or_else(|| format!("step {s}"), |step| format!("step {s} (%{})", step.node))
}

/// A list for people. Long lists are cut to the first and the last two items.
fn abbreviate(items: &[String]) -> String {
    match items {
        [a, b, .., y, z] if items.len() > 6 => format!("{a}, {b}, … {} more …, {y}, {z}", items.len() - 4),
        _ => items.join(", "),
    }
}

/// The contract of a collective with its variant, the name of its group, and the name of the variant. `None` for other nodes.
fn collective_contract<'a>(
    planned: &PlannedBucket<'a>,
    node: &Node,
) -> Option<(Contract, &'a str, &'static str)> {
    let Op::Collective(c) = &node.op else { return None };
    let variant = c.variant?;
    Some((variant.contract(&c.kind)?, &planned.graph.groups[c.group].name, variant.name()))
}

fn communicates(planned: &PlannedBucket<'_>, s: usize) -> bool {
    let nodes = planned.runs.get(s).into_iter().flat_map(|run| run.nodes());
    nodes.map(|n| &planned.graph.nodes[n]).any(|node| node.op.as_collective().is_some())
}

/// How peers access the value in a step, if they do.
fn peer_access_text(planned: &PlannedBucket<'_>, access: &ValueAccess<'_>) -> Option<String> {
    let step = step_name(planned.bucket, access.step);
    if let Op::Custom(_) = access.node.op {
        return Some(format!("the kernel of {step} may access it on peers"));
    }
    let (contract, group, variant) = collective_contract(planned, access.node)?;
    let verb = if access.is_shared_result && contract.peer_access.writes_result() {
        "write"
    } else if access.is_shared_operand && contract.peer_access.reads_operand() {
        "read"
    } else {
        return None;
    };
    Some(format!("peers of group {group} {verb} it in {step}, which runs as {variant}"))
}

/// The steps during which a buffer is occupied, and the reason for the end.
fn occupancy_text(planned: &PlannedBucket<'_>, b: &Buffer, accesses: &[ValueAccess<'_>]) -> String {
    let bucket = planned.bucket;
    let wraps = if b.last < b.first { " of the next run" } else { "" };
    let mut out =
        format!("occupied from {} to {}{wraps}", step_name(bucket, b.first), step_name(bucket, b.last));
    let is_within = |s: usize| b.last < b.first || s <= b.last;
    let dropped = accesses.iter().rev().find(|access| {
        access.is_shared_operand
            && bucket.steps[access.step].exit == Some(ExitBarrier::Dropped)
            && collective_contract(planned, access.node).is_some_and(|(c, ..)| c.peer_access.reads_operand())
    });
    let last_access = accesses.last().map(|access| access.step);
    let by_rendezvous =
        dropped.and_then(|access| Some((access.step, next_rendezvous(planned, access.step)?)));
    if let Some((s, y)) = by_rendezvous.filter(|(s, y)| b.last < b.first || (y >= s && *y + 1 >= b.last)) {
        let next = if y <= s { " of the next run" } else { "" };
        let _ = write!(
            out,
            ": {} has no exit barrier, so peers may still read until all ranks have met in {}{next}",
            step_name(bucket, s),
            step_name(bucket, y)
        );
    } else if let Some(s) = last_access.filter(|&s| is_within(s) && s < b.last && communicates(planned, s)) {
        let reason = match bucket.steps[s].lane {
            Lane::Comm => "may still be running",
            // Values are placed before collectives move to the compute lane.
            Lane::Compute => "counted as running when values were placed",
        };
        let _ = write!(out, ": until then {} {reason}", step_name(bucket, s));
    } else if last_access == Some(b.last) {
        out.push_str(", its last use");
    } else {
        out.push_str(", because of other values in the buffer");
    }
    out
}

/// The next collective after step `s` in which all ranks of its group wait for each other. The group is the same, or all
/// ranks. If no later step is such a collective, the search goes on with the steps of the next run.
fn next_rendezvous(planned: &PlannedBucket<'_>, s: usize) -> Option<usize> {
    let graph = planned.graph;
    let group_of = |node: &Node| match &node.op {
        Op::Collective(c) => Some(c.group),
        _ => None,
    };
    let has_all_ranks = |group| graph.group_size(group).is_some_and(|size| Some(size) == graph.ranks);
    let first_node = |step: usize| planned.runs.get(step).map(|run| &graph.nodes[run.first]);
    let group = group_of(first_node(s)?)?;
    let later_steps = s + 1..planned.bucket.steps.len();
    later_steps.chain(0..=s).find(|&step| {
        let Some(node) = first_node(step) else { return false };
        let is_rendezvous =
            collective_contract(planned, node).is_some_and(|(c, ..)| c.sync_scope == SyncScope::Group);
        let includes_group = |other| other == group || (!has_all_ranks(group) && has_all_ranks(other));
        is_rendezvous && group_of(node).is_some_and(includes_group)
    })
}

/// Lines that name the other values in a buffer, and the values that use its bytes before and after.
fn neighbour_texts(planned: &PlannedBucket<'_>, index: usize, base: ValueId) -> Vec<String> {
    let bucket = planned.bucket;
    let buffer = &bucket.buffers[index];
    let mut out = Vec::new();
    let other_values = values_in_buffer(planned, index, base);
    if !other_values.is_empty() {
        out.push(format!("in the same buffer: {}", abbreviate(&other_values)));
    }
    let end = |b: &Buffer| b.offset + b.size;
    let overlapping: Vec<(usize, &Buffer)> = bucket
        .buffers
        .iter()
        .enumerate()
        .filter(|(i, other)| {
            *i != index
                && other.arena == buffer.arena
                && other.offset < end(buffer)
                && buffer.offset < end(other)
        })
        .collect();
    let before = overlapping.iter().filter(|(_, b)| b.last < buffer.first).max_by_key(|(_, b)| b.last);
    if let Some((i, b)) = before {
        let values = abbreviate(&values_in_buffer(planned, *i, base));
        out.push(format!("bytes of its buffer hold {values} before, until {}", step_name(bucket, b.last)));
    }
    let after = overlapping.iter().filter(|(_, b)| b.first > buffer.last).min_by_key(|(_, b)| b.first);
    if let Some((i, b)) = after {
        let values = abbreviate(&values_in_buffer(planned, *i, base));
        out.push(format!("bytes of its buffer hold {values} after, from {}", step_name(bucket, b.first)));
    }
    if buffer.arena == ArenaKind::Symmetric && out.is_empty() {
        out.push("no other value uses these bytes in this bucket".into());
    }
    out
}

/// The values in a buffer, except for `base`.
fn values_in_buffer(planned: &PlannedBucket<'_>, index: usize, base: ValueId) -> Vec<String> {
    let base_name = planned.graph.value_name(base);
    let places = planned.bucket.places.iter();
    let in_buffer = places.filter(|(name, p)| p.memory == MemoryRef::Buffer(index) && *name != base_name);
    in_buffer.map(|(name, _)| format!("%{name}")).collect()
}
