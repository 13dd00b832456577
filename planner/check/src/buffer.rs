//! The rules for the buffers of a bucket: bounds, alignment, lifetimes, reach, and the totals of the bucket.
//!
//! Decisions and copies are checked here too. These rules compare the derived fields of a plan with its steps.
//! Freedom from races does not rest on them: [`time`](super::time) proves it from the accesses alone.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use symmc_ir::{Op, ValueId};
use symmc_plan::{ALIGN, ArenaKind, Bucket, BucketTotals, Buffer, ExitBarrier, MemoryRef, PeerReach, Plan};

use super::error::CheckError;
use super::findings::Findings;
use super::fixed_memory::FixedMemoryIndex;
use super::step::BucketSchedule;

/// Checks the buffers of a bucket as they are declared. Each lies within its arena and is aligned. It shares no
/// bytes with fixed memory or with a buffer that is alive at the same step.
pub fn check_declared_buffers(
    plan: &Plan,
    fixed: &FixedMemoryIndex,
    index: usize,
    bucket: &Bucket,
    errors: &mut Findings,
) {
    let steps = bucket.steps.len();
    for (i, b) in bucket.buffers.iter().enumerate() {
        let expected = arena_size(plan, b.arena);
        let end = b.offset.saturating_add(b.size);
        if end > expected {
            let arena = b.arena;
            errors.push(CheckError::BufferOutside { bucket: index, buffer: i, arena, expected, found: end });
        }
        if b.offset % ALIGN != 0 {
            let offset = b.offset;
            errors.push(CheckError::BufferMisaligned {
                bucket: index,
                buffer: i,
                expected: ALIGN,
                found: offset,
            });
        }
        if b.first >= steps || b.last >= steps {
            let Buffer { first, last, .. } = *b;
            errors.push(CheckError::BufferSteps { bucket: index, buffer: i, first, last, steps });
        }
        let may_overlap_fixed = b.arena == ArenaKind::Symmetric && b.size > 0;
        if let Some(fixed) = fixed.find_overlapping(b.offset, end).filter(|_| may_overlap_fixed) {
            errors.push(CheckError::BufferFixedOverlap { bucket: index, buffer: i, fixed });
        }
    }
    for arena in [ArenaKind::Ordinary, ArenaKind::Symmetric] {
        check_live_overlaps(index, bucket, arena, errors);
    }
}

fn arena_size(plan: &Plan, arena: ArenaKind) -> u64 {
    match arena {
        ArenaKind::Ordinary => plan.arenas.ordinary,
        ArenaKind::Symmetric => plan.arenas.symmetric,
    }
}

fn alive_at(b: &Buffer, step: usize) -> bool {
    if b.first <= b.last { (b.first..=b.last).contains(&step) } else { step >= b.first || step <= b.last }
}

/// The begin and the end of each lifetime of a buffer of an arena, by step: `(step, ends, buffer)`. At equal
/// steps all begins come before all ends, because a buffer is still occupied in its last step.
fn lifetime_events(bucket: &Bucket, arena: ArenaKind) -> Vec<(usize, bool, usize)> {
    let mut events = Vec::new();
    for (i, b) in bucket.buffers.iter().enumerate().filter(|(_, b)| b.arena == arena) {
        if b.first <= b.last {
            events.extend([(b.first, false, i), (b.last, true, i)]);
        } else {
            let last_step = b.first.max(bucket.steps.len().saturating_sub(1));
            events.extend([(0, false, i), (b.last, true, i), (b.first, false, i), (last_step, true, i)]);
        }
    }
    events.sort_unstable();
    events
}

/// Checks that buffers that are alive at one step are disjoint, in a sweep over the steps.
///
/// `alive` holds the live buffers by offset. They are disjoint, so a new buffer can only overlap its neighbours.
/// A buffer that overlaps is reported and not added, so that this stays true.
fn check_live_overlaps(index: usize, bucket: &Bucket, arena: ArenaKind, errors: &mut Findings) {
    let mut alive: BTreeMap<u64, usize> = BTreeMap::new();
    let mut reported: HashSet<(usize, usize)> = HashSet::new();
    for (_, ends, i) in lifetime_events(bucket, arena) {
        let b = &bucket.buffers[i];
        if b.size == 0 {
            continue;
        }
        if ends {
            if alive.get(&b.offset) == Some(&i) {
                alive.remove(&b.offset);
            }
            continue;
        }
        let end = b.offset.saturating_add(b.size);
        let below = alive
            .range(..=b.offset)
            .next_back()
            .map(|(_, &j)| j)
            .filter(|&j| bucket.buffers[j].offset.saturating_add(bucket.buffers[j].size) > b.offset);
        let above = alive.range(b.offset..).next().filter(|&(&offset, _)| offset < end).map(|(_, &j)| j);
        match below.or(above) {
            Some(j) if j != i => {
                let first = i.min(j);
                let second = i.max(j);
                if reported.insert((first, second)) {
                    errors.push(CheckError::BuffersOverlap { bucket: index, first, second });
                }
            }
            _ => {
                alive.insert(b.offset, i);
            }
        }
    }
}

/// Checks that steps access buffers only during their lifetimes, and that peers reach them as `reach` declares.
pub fn check_buffer_uses(schedule: &BucketSchedule<'_>, errors: &mut Findings) {
    let bucket = schedule.bucket;
    let mut reach = vec![PeerReach::Local; bucket.buffers.len()];
    let buffer_of = |v: ValueId| match schedule.locations[v].as_ref().map(|h| h.range.memory) {
        Some(MemoryRef::Buffer(b)) => Some(b),
        _ => None,
    };
    for (s, step) in schedule.steps.iter().enumerate() {
        for &v in step.reads.iter().chain(&step.writes) {
            let Some(i) = buffer_of(v) else { continue };
            let b = &bucket.buffers[i];
            if !alive_at(b, s) {
                errors.push(CheckError::Lifetime {
                    at: schedule.step_location(s),
                    value: schedule.program.graph.value_name(v).to_string(),
                    buffer: i,
                    first: b.first,
                    last: b.last,
                });
            }
        }
        for b in step.peer_reads.iter().filter_map(|&v| buffer_of(v)) {
            if reach[b] == PeerReach::Local {
                reach[b] = PeerReach::Read;
            }
        }
        for b in step.peer_writes.iter().filter_map(|&v| buffer_of(v)) {
            reach[b] = PeerReach::Written;
        }
    }
    for (buffer, (&expected, b)) in reach.iter().zip(&bucket.buffers).enumerate() {
        if expected != b.reach {
            let bucket = schedule.index;
            errors.push(CheckError::BufferReach { bucket, buffer, expected, found: b.reach });
        }
    }
}

/// Compares the totals of a bucket with sums over its buffers, copies and steps. `barrier_bytes` and `workspace`
/// are estimates of the planner and of the device compiler, and are not checked.
pub fn check_totals(plan: &Plan, schedule: &BucketSchedule<'_>, errors: &mut Findings) {
    let bucket = schedule.bucket;
    let (ordinary_peak, ordinary_bound) = peak_and_bound(bucket, ArenaKind::Ordinary);
    let (symmetric_peak, symmetric_bound) = peak_and_bound(bucket, ArenaKind::Symmetric);
    let fixed_end = plan.fixed.iter().map(|f| f.offset.saturating_add(f.size)).max().unwrap_or(0);
    let fixed_sum = plan.fixed.iter().fold(0u64, |n, f| n.saturating_add(f.size));
    let expected = BucketTotals {
        ordinary_peak,
        ordinary_bound,
        symmetric_peak: symmetric_peak.max(fixed_end),
        symmetric_bound: symmetric_bound.saturating_add(fixed_sum),
        copies: bucket.copies.len() as u64,
        copied: bucket.copies.iter().fold(0, |n: u64, c| n.saturating_add(c.bytes)),
        barriers_dropped: count_exits(bucket, ExitBarrier::Dropped),
        barriers_kept: count_exits(bucket, ExitBarrier::Kept),
        barrier_bytes: bucket.totals.barrier_bytes,
        workspace: bucket.totals.workspace,
    };
    let totals = &bucket.totals;
    for (total, expected, actual) in [
        ("ordinary_peak", expected.ordinary_peak, totals.ordinary_peak),
        ("ordinary_bound", expected.ordinary_bound, totals.ordinary_bound),
        ("symmetric_peak", expected.symmetric_peak, totals.symmetric_peak),
        ("symmetric_bound", expected.symmetric_bound, totals.symmetric_bound),
        ("copies", expected.copies, totals.copies),
        ("copied", expected.copied, totals.copied),
        ("barriers_dropped", expected.barriers_dropped, totals.barriers_dropped),
        ("barriers_kept", expected.barriers_kept, totals.barriers_kept),
    ] {
        if expected != actual {
            errors.push(CheckError::Total { bucket: schedule.index, total, expected, found: actual });
        }
    }
}

fn count_exits(bucket: &Bucket, exit: ExitBarrier) -> u64 {
    bucket.steps.iter().filter(|s| s.exit == Some(exit)).count() as u64
}

/// The highest end of a buffer of an arena, and the largest sum of buffers that are alive at one step.
fn peak_and_bound(bucket: &Bucket, arena: ArenaKind) -> (u64, u64) {
    let of_arena = bucket.buffers.iter().filter(|b| b.arena == arena);
    let peak = of_arena.map(|b| b.offset.saturating_add(b.size)).max().unwrap_or(0);
    let mut alive = 0u64;
    let mut bound = 0u64;
    for (_, ends, i) in lifetime_events(bucket, arena) {
        let size = bucket.buffers[i].size;
        if ends {
            alive = alive.saturating_sub(size);
        } else {
            alive = alive.saturating_add(size);
            bound = bound.max(alive);
        }
    }
    (peak, bound)
}

/// Checks that decisions name values of the source and nodes of the program, that each node belongs to at most
/// one decision, that the chosen alternative exists, and that times are finite and not negative.
pub fn check_decisions(schedule: &BucketSchedule<'_>, sources: &HashSet<&str>, errors: &mut Findings) {
    let bucket = schedule.index;
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for d in &schedule.bucket.decisions {
        let mut unknown = |node: &String| {
            let collective = d.collective.clone();
            let node = node.clone();
            errors.push(CheckError::DecisionNode { bucket, collective, found: node });
        };
        if !is_named_after(sources, &d.collective) {
            unknown(&d.collective);
        }
        for node in &d.nodes {
            match schedule.program.value_by_name(node) {
                Some(_) => *count.entry(node.as_str()).or_default() += 1,
                None => unknown(node),
            }
        }
        for a in &d.alternatives {
            let times = [("us", a.us), ("copy_us", a.copy_us), ("saved_us", a.saved_us)];
            for (what, us) in times.into_iter().filter(|(_, us)| !us.is_finite() || *us < 0.0) {
                let collective = d.collective.clone();
                let alternative = a.name.clone();
                let time = us.to_string();
                errors.push(CheckError::DecisionTime { bucket, collective, alternative, what, found: time });
            }
        }
        if d.alternatives.iter().all(|a| a.name != d.chosen) {
            let collective = d.collective.clone();
            let chosen = d.chosen.clone();
            errors.push(CheckError::DecisionChosen { bucket, collective, found: chosen });
        }
    }
    for (node, occurrences) in count.into_iter().filter(|(_, n)| *n > 1) {
        errors.push(CheckError::DecisionTwice { bucket, node: node.to_string(), found: occurrences });
    }
}

/// Whether this is the name of a value of the source, or such a name with suffixes that begin with `.`. A suffix
/// marks a collective that a pass added in order to compute that value.
fn is_named_after(sources: &HashSet<&str>, name: &str) -> bool {
    std::iter::successors(Some(name), |name| Some(name.rsplit_once('.')?.0))
        .any(|name| sources.contains(name))
}

/// Checks the list of copies: each entry describes one `copy` node of the program, and no node is listed twice.
pub fn check_copies(schedule: &BucketSchedule<'_>, errors: &mut Findings) {
    let program = schedule.program;
    let graph = &schedule.program.graph;
    let mut listed = BTreeSet::new();
    for copy in &schedule.bucket.copies {
        let mut differs = |what: &'static str, expected: String, found: String| {
            if expected != found {
                let bucket = schedule.index;
                let node = copy.node.clone();
                errors.push(CheckError::Copy { bucket, node, what, expected, found });
            }
        };
        let value = program.value_by_name(&copy.node);
        let node =
            value.and_then(|v| graph.defining_node(v)).map(|n| &graph.nodes[n]).filter(|n| n.op == Op::Copy);
        let (Some(value), Some(node)) = (value, node) else {
            differs("the op", "copy".into(), "missing or another op".into());
            continue;
        };
        if !listed.insert(value) {
            differs("the number of entries", "1".into(), "2".into());
        }
        let operand = node.inputs.first().map_or("", |&v| graph.value_name(v));
        differs("the operand", format!("%{operand}"), format!("%{}", copy.of));
        let bytes = graph.ty(value).bytes().upper_bound(&schedule.symbols);
        differs("the number of bytes", bytes.to_string(), copy.bytes.to_string());
        if let Some(bind) = copy.bind.filter(|&b| b >= graph.inputs.len()) {
            let expected = format!("an index less than {}", graph.inputs.len());
            differs("the input to bind", expected, bind.to_string());
        }
    }
}
