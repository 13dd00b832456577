//! Random damage to plans.
//!
//! A plan is first brought into a form in which only places, waits, order, variants and barriers decide about
//! its safety: one buffer for each arena, alive all the time. Damage is then invisible to the rules about
//! lifetimes and buffers, and only the proof over time can find it.

use std::collections::BTreeSet;

use symmc_check::CheckError;
use symmc_ir::dispatch::shared_contract;
use symmc_ir::{Collective, CollectiveVariant, DispatchForm, Graph, NodeId, Op, text};
use symmc_plan::{ArenaKind, Buffer, ExitBarrier, FixedRole, Lane, MemoryRef, PeerReach, Plan};
use symmc_support::random::SplitMix;

use super::sums::{mend_sum, repeat};

/// The extra bytes of a flattened arena, beyond the room in which values are moved, for [`stack`].
const ROOM: u64 = 1 << 14;

/// The same places in one buffer for each arena, with some extra room. Fixed memory follows, with two landing
/// zones of `zone` bytes for every group.
pub fn flatten(plan: &Plan, zone: u64) -> Plan {
    let mut plan = plan.clone();
    plan.arenas.ordinary += 256 + ROOM;
    plan.arenas.symmetric += 256 + ROOM;
    let (ordinary, symmetric) = (plan.arenas.ordinary, plan.arenas.symmetric);
    add_zones(&mut plan, zone);
    for bucket in &mut plan.buckets {
        let last_step = bucket.steps.len().saturating_sub(1);
        for place in bucket.places.values_mut() {
            let MemoryRef::Buffer(b) = place.memory else { continue };
            let old = &bucket.buffers[b];
            place.memory = MemoryRef::Buffer(usize::from(old.arena == ArenaKind::Symmetric));
            place.offset = match place.offset.parse::<u64>() {
                Ok(offset) => (offset + old.offset).to_string(),
                Err(_) => format!("{} + {}", place.offset, old.offset),
            };
        }
        let buffer = |arena, size| Buffer {
            arena,
            offset: 0,
            size,
            first: 0,
            last: last_step,
            reach: PeerReach::Local,
        };
        bucket.buffers = vec![buffer(ArenaKind::Ordinary, ordinary), buffer(ArenaKind::Symmetric, symmetric)];
    }
    plan
}

/// Repairs totals, reach and the presence of barriers.
pub fn mend(plan: &mut Plan) {
    repeat(plan, |plan, error| {
        match error {
            CheckError::ExitMissing { at, .. } => {
                plan.buckets[at.bucket].steps[at.step].exit = Some(ExitBarrier::Dropped);
            }
            CheckError::ExitUnexpected { at } => plan.buckets[at.bucket].steps[at.step].exit = None,
            _ => return mend_sum(plan, error),
        }
        true
    });
}

/// Moves fixed memory to the end, and gives every group two landing zones of `size` bytes, so that variants can
/// be exchanged.
fn add_zones(plan: &mut Plan, size: u64) {
    let groups: BTreeSet<String> = plan
        .programs
        .iter()
        .flat_map(|t| {
            text::parse(t).expect("parses").groups.values().map(|g| g.name.clone()).collect::<Vec<_>>()
        })
        .collect();
    plan.fixed.retain(|f| !matches!(f.role, FixedRole::Landing { .. }));
    // The remaining entries are renumbered.
    let bound: Vec<usize> = plan
        .fixed
        .iter()
        .filter_map(|f| match f.role {
            FixedRole::Bound { input } => Some(input),
            FixedRole::Landing { .. } => None,
        })
        .collect();
    let base = plan.arenas.symmetric;
    let mut end = base;
    for f in &mut plan.fixed {
        f.offset = end;
        end += f.size.next_multiple_of(64);
    }
    for group in groups {
        for zone in 0..2 {
            let role = FixedRole::Landing { group: group.clone(), zone };
            plan.fixed.push(symmc_plan::FixedRegion { role, offset: end, size });
            end += size;
        }
    }
    plan.arenas.symmetric = end;
    let programs: Vec<_> = plan.programs.iter().map(|t| text::parse(t).expect("parses")).collect();
    for bucket in &mut plan.buckets {
        let graph = &programs[bucket.program];
        for (i, &input) in bound.iter().enumerate() {
            let value = graph.inputs.values().nth(input).expect("the input exists").value;
            bucket.places[graph.value_name(value)].memory = MemoryRef::Fixed(i);
        }
    }
}

/// Damages a flattened plan in one way. Returns a description, or `None` if the damage was not possible.
pub fn damage(plan: &mut Plan, rng: &mut SplitMix) -> Option<String> {
    let b = rng.below(plan.buckets.len());
    let steps = plan.buckets[b].steps.len();
    match rng.below(9) {
        0 | 1 => move_value(plan, b, rng),
        7 | 8 => stack(plan, b, rng),
        2 => {
            let s = rng.below(steps);
            let waits = &mut plan.buckets[b].steps[s].waits;
            (!waits.is_empty()).then(|| {
                let w = waits.remove(rng.below(waits.len()));
                format!("step {s} of bucket {b} does not wait for {w}")
            })
        }
        3 => {
            let s = rng.below(steps);
            let step = &mut plan.buckets[b].steps[s];
            step.exit = match step.exit? {
                ExitBarrier::Kept => Some(ExitBarrier::Dropped),
                ExitBarrier::Dropped => Some(ExitBarrier::Kept),
            };
            Some(format!("step {s} of bucket {b} has exit {:?}", step.exit))
        }
        4 => change_variant(plan, b, rng),
        5 => {
            let s = rng.below(steps.max(2) - 1);
            let list = &mut plan.buckets[b].steps;
            if s + 1 >= list.len() {
                return None;
            }
            list.swap(s, s + 1);
            for w in list.iter_mut().flat_map(|step| &mut step.waits) {
                *w = match *w {
                    w if w == s => s + 1,
                    w if w == s + 1 => s,
                    w => w,
                };
            }
            Some(format!("steps {s} and {} of bucket {b} are exchanged", s + 1))
        }
        _ => {
            let s = rng.below(steps);
            let step = &mut plan.buckets[b].steps[s];
            step.lane = if step.lane == Lane::Comm { Lane::Compute } else { Lane::Comm };
            let list = &mut plan.buckets[b].steps;
            let lanes: Vec<Lane> = list.iter().map(|s| s.lane).collect();
            for (s, step) in list.iter_mut().enumerate() {
                step.waits.retain(|&w| lanes[w] != lanes[s]);
            }
            Some(format!("step {s} of bucket {b} changes its lane"))
        }
    }
}

/// The size of a value as a plan writes it.
fn bytes(graph: &Graph, name: &str) -> String {
    let bytes = graph.ty(graph.values_by_name()[name]).bytes();
    bytes.display(&graph.symbols).to_string()
}

/// Moves a value within its arena, usually onto another value or directly after it.
fn move_value(plan: &mut Plan, b: usize, rng: &mut SplitMix) -> Option<String> {
    let bucket = &mut plan.buckets[b];
    let in_buffer: Vec<String> = bucket
        .places
        .iter()
        .filter(|(_, p)| matches!(p.memory, MemoryRef::Buffer(_)))
        .map(|(name, _)| name.clone())
        .collect();
    if in_buffer.is_empty() {
        return None;
    }
    let name = rng.pick(&in_buffer);
    let graph = text::parse(&plan.programs[bucket.program]).expect("parses");
    let node = graph.values_by_name().get(name.as_str()).and_then(|&v| graph.defining_node(v));
    // All nodes of the step count.
    let step = node.map_or(vec![], |n| {
        let dispatch = graph.dispatches.iter().find(|d| d.contains(n));
        dispatch.map_or(vec![n], |d| d.nodes().collect())
    });
    let operands =
        step.iter().flat_map(|&n| &graph.nodes[n].inputs).map(|&x| graph.value_name(x).to_string());
    let operands: Vec<String> = operands.filter(|x| in_buffer.contains(x)).collect();
    let candidates = if operands.is_empty() || rng.one_in(2) { &in_buffer } else { &operands };
    let other_name = rng.pick(candidates);
    let target = bucket.places[&other_name].clone();
    let size = match bucket.places[&name].memory {
        MemoryRef::Buffer(m) => bucket.buffers[m].size - ROOM,
        _ => return None,
    };
    let behind = format!("{} + {}", target.offset, bytes(&graph, &other_name));
    let placement = &mut bucket.places[&name];
    placement.by_rank = None;
    placement.offset = match rng.below(4) {
        0 | 1 if target.memory == placement.memory => target.offset,
        2 if target.memory == placement.memory => behind,
        _ => (rng.below(size as usize / 16) * 16).to_string(),
    };
    Some(format!("%{name} of bucket {b} lies at {}", placement.offset))
}

/// Places the values of an arena directly after one another, in a random order. They are disjoint in every run,
/// but may overlap between two runs of different sizes. Usually also drops the barriers that can be dropped.
fn stack(plan: &mut Plan, b: usize, rng: &mut SplitMix) -> Option<String> {
    let bucket = &mut plan.buckets[b];
    let arena = usize::from(!rng.one_in(4));
    let graph = text::parse(&plan.programs[bucket.program]).expect("parses");
    let in_arena = bucket.places.iter().filter(|(_, p)| p.memory == MemoryRef::Buffer(arena));
    let mut names: Vec<String> = in_arena.map(|(name, _)| name.clone()).collect();
    let mut offset = "0".to_string();
    let order: Vec<String> = (0..names.len()).map(|_| names.swap_remove(rng.below(names.len()))).collect();
    for name in &order {
        let behind = format!("{offset} + {}", bytes(&graph, name));
        let placement = &mut bucket.places[name];
        (placement.offset, placement.by_rank) = (std::mem::replace(&mut offset, behind), None);
    }
    if !rng.one_in(3) {
        let exits = bucket.steps.iter_mut().filter_map(|s| s.exit.as_mut());
        exits.for_each(|exit| *exit = ExitBarrier::Dropped);
    }
    (order.len() > 1).then(|| format!("bucket {b} has {order:?} of arena {arena} in a stack"))
}

fn change_variant(plan: &mut Plan, b: usize, rng: &mut SplitMix) -> Option<String> {
    let p = plan.buckets[b].program;
    let mut graph = text::parse(&plan.programs[p]).expect("parses");
    let nodes: Vec<_> = graph.nodes.keys().filter(|&n| graph.nodes[n].op.as_collective().is_some()).collect();
    if nodes.is_empty() {
        return None;
    }
    let n = rng.pick(&nodes);
    let name = graph.node_name(n).to_string();
    // Collectives that run as one step have one variant.
    let set = graph.dispatches.iter().find(|d| d.form == DispatchForm::Collectives && d.contains(n));
    let changed = set.map_or(vec![n], |d| d.nodes().collect());
    let runs = |variant: CollectiveVariant, n: &NodeId| {
        let Op::Collective(c) = &graph.nodes[*n].op else { return false };
        let by_it = Collective { variant: Some(variant), ..c.clone() };
        let able = if set.is_some() { shared_contract(&by_it) } else { variant.contract(&c.kind) };
        able.is_some() && c.variant != Some(variant)
    };
    let able = CollectiveVariant::ALL.iter().copied().filter(|&v| changed.iter().all(|n| runs(v, n)));
    let able: Vec<CollectiveVariant> = able.collect();
    if able.is_empty() {
        return None;
    }
    let variant = rng.pick(&able);
    for n in changed {
        if let Op::Collective(c) = &mut graph.nodes[n].op {
            c.variant = Some(variant);
        }
    }
    plan.programs[p] = text::print(&graph);
    Some(format!("%{name} of program {p} runs as {variant}"))
}
