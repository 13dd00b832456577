//! Lays out the memory of the symmetric arena that has the same place in all buckets: landing zones and bound
//! inputs.
//!
//! All collectives of a group by `ll` share two zones. Each zone is as large as the largest of these
//! collectives needs in any bucket. A bound input has the size of its largest bucket. Zones come first, in
//! order of the groups' names, each at a multiple of [`LL128_LINE`]. Inputs follow in order of their index.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use symmc_ir::collective::{LL128_LINE, PeerAccess};
use symmc_ir::entity::Entity;
use symmc_ir::{Graph, InputId, Op};
use symmc_plan::{FixedRegion, FixedRole, MAX_SIZE};

use crate::error::{PlanError, Result};
use crate::scheduled::aligned_upper_bytes;

#[derive(Default)]
pub struct FixedMemoryLayout {
    /// The end of the fixed memory in the symmetric arena, in bytes.
    pub end: u64,
    /// The fixed memory of each bound input, by index of the input.
    pub bound: IndexMap<usize, usize>,
}

pub fn lay_out_fixed_memory<'a>(
    lowered: impl Iterator<Item = &'a Graph> + Clone,
    bound: &BTreeSet<usize>,
) -> Result<(Vec<FixedRegion>, FixedMemoryLayout)> {
    let mut fixed = Vec::new();
    let mut memory = FixedMemoryLayout::default();
    for (group, size) in landing_zone_sizes(lowered.clone())? {
        for zone in 0..2 {
            let role = FixedRole::Landing { group: group.clone(), zone };
            append_region(&mut fixed, &mut memory, role, size.next_multiple_of(LL128_LINE));
        }
    }
    for &input in bound {
        let mut bytes = 0;
        for graph in lowered.clone() {
            let value = graph.inputs[InputId::new(input)].value;
            bytes = bytes.max(aligned_upper_bytes(
                &graph.ty(value).bytes(),
                &graph.symbols,
                graph.value_name(value),
            )?);
        }
        let region = append_region(&mut fixed, &mut memory, FixedRole::Bound { input }, bytes);
        memory.bound.insert(input, region);
    }
    if memory.end > MAX_SIZE {
        return Err(PlanError::FixedTooLarge { bytes: memory.end });
    }
    Ok((fixed, memory))
}

/// Appends a region at the end of the fixed memory and returns its index.
fn append_region(
    fixed: &mut Vec<FixedRegion>,
    memory: &mut FixedMemoryLayout,
    role: FixedRole,
    size: u64,
) -> usize {
    fixed.push(FixedRegion { role, offset: memory.end, size });
    memory.end = memory.end.saturating_add(size);
    fixed.len() - 1
}

/// The size of a landing zone for each group with collectives by `ll`, in order of the groups' names.
fn landing_zone_sizes<'a>(lowered: impl Iterator<Item = &'a Graph>) -> Result<IndexMap<String, u64>> {
    let mut zones: IndexMap<String, u64> = IndexMap::new();
    for graph in lowered {
        for (id, node) in graph.nodes.iter() {
            let Op::Collective(c) = &node.op else { continue };
            let (Some(variant), Some(&operand)) = (c.variant, node.inputs.first()) else { continue };
            if variant.contract(&c.kind).is_none_or(|c| c.peer_access != PeerAccess::WriteLanding) {
                continue;
            }
            let bytes = graph.ty(operand).bytes().upper_bound(&graph.symbols).max(0) as u64;
            let ranks = u64::from(graph.group_size(c.group).unwrap_or(1));
            if bytes.checked_mul(ranks).is_none_or(|total| total > MAX_SIZE) {
                let node = graph.node_name(id).to_string();
                return Err(PlanError::LandingTooLarge { node, bytes, ranks });
            }
            let zone_bytes = zones.entry(graph.groups[c.group].name.clone()).or_insert(0);
            // An empty operand sends no line, but its step still names the zones.
            *zone_bytes = (*zone_bytes).max(variant.landing_bytes(&c.kind, bytes, ranks)).max(1);
        }
    }
    zones.sort_unstable_keys();
    Ok(zones)
}
