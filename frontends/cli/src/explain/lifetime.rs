//! When a value's memory is occupied, why that long, who touches it, and who has it before and after.

use std::fmt::Write;

use symmc::unstable::ir::collective::{Contract, SyncScope};
use symmc::unstable::ir::{Node, Op, ValueId};
use symmc::unstable::plan::{
    ArenaKind, Bucket, Buffer, ExitBarrier, Lane, MemoryRef, PeerReach, ValuePlacement,
};

use crate::planned_bucket::PlannedBucket;

struct ValueAccess<'a> {
    step: usize,
    node: &'a Node,
    reads: bool,
    writes: bool,
}

pub fn lifetime_text(planned: &PlannedBucket<'_>, base: ValueId, place: &ValuePlacement) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "  {text}");
    };
    let touches = value_accesses(planned, base);
    let names = |wanted: fn(&ValueAccess<'_>) -> bool| -> Vec<String> {
        let mut steps: Vec<usize> = touches.iter().filter(|t| wanted(t)).map(|t| t.step).collect();
        steps.dedup();
        steps.into_iter().map(|s| step_name(planned.bucket, s)).collect()
    };
    match names(|t| t.writes).as_slice() {
        [] => line("its caller writes it before each run, or once if it is a parameter".into()),
        writers => line(format!("written by {}", writers.join(", "))),
    }
    match names(|t| t.reads).as_slice() {
        [] => line("no step reads it".into()),
        readers => line(format!("read by {}", abbreviate(readers))),
    }
    let peers: Vec<String> = touches.iter().filter_map(|t| peer_access_text(planned, t)).collect();
    match place.memory {
        MemoryRef::Buffer(i) => {
            let Some(b) = planned.bucket.buffers.get(i) else { return out };
            line(occupancy_text(planned, b, &touches));
            line(match (b.reach, peers.is_empty()) {
                (PeerReach::Local, _) => "peers do not touch it".into(),
                (_, false) => abbreviate(&peers),
                (PeerReach::Read, true) => {
                    "peers do not touch this value, but read others in its buffer".into()
                }
                (PeerReach::Written, true) => {
                    "peers do not touch this value, but write others in its buffer".into()
                }
            });
            neighbour_texts(planned, i, base).into_iter().for_each(line);
        }
        MemoryRef::Fixed(_) => match peers.as_slice() {
            [] => line("peers do not touch it".into()),
            peers => line(abbreviate(peers)),
        },
        MemoryRef::Input(_) => line("peers do not touch it, and no step writes it".into()),
        MemoryRef::Output(_) => line("peers do not touch it; it stays until the caller has read it".into()),
    }
    out
}

fn value_accesses<'a>(planned: &PlannedBucket<'a>, base: ValueId) -> Vec<ValueAccess<'a>> {
    let of = |v: &ValueId| planned.program.base(*v) == base;
    let steps = 0..planned.bucket.steps.len();
    let nodes = steps.flat_map(|step| planned.nodes_of_step(step).map(move |node| (step, node)));
    nodes
        .filter_map(|(step, node)| {
            let writes = node.outputs.contains(&base);
            // What a step defines it does not read, though one of its nodes may.
            let reads = node.inputs.iter().any(of) && planned.step_of_value(base) != Some(step);
            (reads || writes).then_some(ValueAccess { step, node, reads, writes })
        })
        .collect()
}

fn step_name(bucket: &Bucket, s: usize) -> String {
    bucket.steps.get(s).map_or_else(|| format!("step {s}"), |step| format!("step {s} (%{})", step.node))
}

/// The first and the last few of many.
fn abbreviate(items: &[String]) -> String {
    match items {
        [a, b, .., y, z] if items.len() > 6 => format!("{a}, {b}, … {} more …, {y}, {z}", items.len() - 4),
        _ => items.join(", "),
    }
}

/// What a collective is, between whom.
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

fn peer_access_text(planned: &PlannedBucket<'_>, touch: &ValueAccess<'_>) -> Option<String> {
    let step = step_name(planned.bucket, touch.step);
    if let Op::Custom(_) = touch.node.op {
        return Some(format!("the kernel of {step} may touch it on peers"));
    }
    let (contract, group, variant) = collective_contract(planned, touch.node)?;
    let does = match () {
        () if touch.writes && contract.peer_access.writes_result() => "write",
        () if touch.reads && contract.peer_access.reads_operand() => "read",
        () => return None,
    };
    Some(format!("peers of group {group} {does} it in {step}, which runs as {variant}"))
}

/// From when to when a buffer is occupied, and why it ends then.
fn occupancy_text(planned: &PlannedBucket<'_>, b: &Buffer, touches: &[ValueAccess<'_>]) -> String {
    let bucket = planned.bucket;
    let wraps = if b.last < b.first { " of the next run" } else { "" };
    let mut out =
        format!("occupied from {} to {}{wraps}", step_name(bucket, b.first), step_name(bucket, b.last));
    let within = |s: usize| b.last < b.first || s <= b.last;
    let dropped = touches.iter().rev().find(|t| {
        t.reads
            && bucket.steps[t.step].exit == Some(ExitBarrier::Dropped)
            && collective_contract(planned, t.node).is_some_and(|(c, ..)| c.peer_access.reads_operand())
    });
    let last = touches.last().map(|t| t.step);
    let by_rendezvous = dropped.and_then(|t| Some((t.step, next_rendezvous(planned, t.step)?)));
    if let Some((s, y)) = by_rendezvous.filter(|(s, y)| b.last < b.first || (y >= s && *y + 1 >= b.last)) {
        let next = if y <= s { " of the next run" } else { "" };
        let _ = write!(
            out,
            ": {} leaves without an exit barrier, so peers may read on until {}{next} has met",
            step_name(bucket, s),
            step_name(bucket, y)
        );
    } else if let Some(s) = last.filter(|&s| within(s) && s < b.last && communicates(planned, s)) {
        let what = match bucket.steps[s].lane {
            Lane::Comm => "may be in flight",
            // Values are placed before collectives move to the compute lane.
            Lane::Compute => "was placed as if in flight",
        };
        let _ = write!(out, ": until then {} {what}", step_name(bucket, s));
    } else if last == Some(b.last) {
        out.push_str(", its last use");
    } else {
        out.push_str(", with what else lies in the buffer");
    }
    out
}

/// The next collective after `s` of the same group, or of all ranks, that meets; it may be one of the next run.
fn next_rendezvous(planned: &PlannedBucket<'_>, s: usize) -> Option<usize> {
    let group = |node: &Node| match &node.op {
        Op::Collective(c) => Some(c.group),
        _ => None,
    };
    let node = |s: usize| planned.runs.get(s).map(|run| &planned.graph.nodes[run.first]);
    let own = group(node(s)?)?;
    let world = planned.graph.group_size(own).is_some_and(|n| Some(n) == planned.graph.ranks);
    let n = planned.bucket.steps.len();
    (s + 1..n).chain(0..=s).find(|&y| {
        let Some(other) = node(y) else { return false };
        let meets =
            collective_contract(planned, other).is_some_and(|(c, ..)| c.sync_scope == SyncScope::Group);
        let all = |g| planned.graph.group_size(g).is_some_and(|n| Some(n) == planned.graph.ranks);
        meets && group(other).is_some_and(|g| g == own || (!world && all(g)))
    })
}

/// Who else lies in a buffer, and who has its bytes before and after.
fn neighbour_texts(planned: &PlannedBucket<'_>, buffer: usize, base: ValueId) -> Vec<String> {
    let bucket = planned.bucket;
    let own = planned.graph.value_name(base);
    let of = |i: usize| -> Vec<String> {
        let places = bucket.places.iter().filter(|(_, p)| p.memory == MemoryRef::Buffer(i));
        places.filter(|(name, _)| *name != own).map(|(name, _)| format!("%{name}")).collect()
    };
    let mut out = Vec::new();
    let others = of(buffer);
    if !others.is_empty() {
        out.push(format!("in the same buffer: {}", abbreviate(&others)));
    }
    let b = &bucket.buffers[buffer];
    let end = |b: &Buffer| b.offset + b.size;
    let meets = |c: &Buffer| c.arena == b.arena && c.offset < end(b) && b.offset < end(c);
    let near = || bucket.buffers.iter().enumerate().filter(|(i, c)| *i != buffer && meets(c));
    let before = near().filter(|(_, c)| c.last < b.first).max_by_key(|(_, c)| c.last);
    let after = near().filter(|(_, c)| c.first > b.last).min_by_key(|(_, c)| c.first);
    for (at, found, when) in [("before", before, "until"), ("after", after, "from")] {
        if let Some((i, c)) = found {
            let s = if at == "before" { c.last } else { c.first };
            out.push(format!(
                "{at} it, bytes of it hold {} {when} {}",
                abbreviate(&of(i)),
                step_name(bucket, s)
            ));
        }
    }
    if b.arena == ArenaKind::Symmetric && out.is_empty() {
        out.push("nothing else ever lies there in this bucket".into());
    }
    out
}
