//! All-gathers whose kernel stores the gathered values along an axis other than the first.
//!
//! A gather along any axis is written as an all-gather along the first axis, a permutation of axes, and a
//! copy. Each rank's operand is divided into rows, and row `r` of all ranks comes before row `r + 1` of any.
//! The kernel stores the rows at these positions directly.

use symmc_ir::collective::{CollectiveKind, CollectiveVariant};
use symmc_ir::machine::model::MAX_GPU_CELL_RANKS;
use symmc_ir::{Dim, NodeId, Op, ValueId};

use crate::facts::DispatchFacts;
use crate::walk::{DispatchWalk, UnitAssignment, UnitKind};

/// The variants whose kernels store rows.
pub const ROW_STORE_VARIANTS: [CollectiveVariant; 2] = [CollectiveVariant::Ll, CollectiveVariant::Pull];

pub fn assign_gather(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let facts = walk.facts;
    let unit = i64::from(facts.capabilities().gather?.unit);
    let node = facts.node(id);
    match (&node.op, &node.inputs[..]) {
        (Op::Collective(_), _) => ranks(facts, id).map(|_| UnitAssignment::Begins(UnitKind::Gather)),
        (Op::Reshape | Op::Copy, &[x]) => {
            let producer = walk.open_producer(x, UnitKind::Gather)?;
            let &[gather] = &walk.units[producer].nodes[..] else { return None };
            let views = views_between(facts, gather, id)?;
            let row = row(facts, x, ranks(facts, gather)?)?;
            let bytes = row * Dim::from(facts.graph.ty(x).dtype.size() as i64);
            bytes.is_divisible_by(unit).then_some(UnitAssignment::Joins(producer, views))
        }
        _ => None,
    }
}

/// The number of ranks of an all-gather that has such a kernel.
fn ranks(facts: &DispatchFacts<'_>, id: NodeId) -> Option<i64> {
    let collective = facts.node(id).op.as_collective()?;
    let variant = collective.variant.or(facts.assumed)?;
    let able = collective.kind == CollectiveKind::AllGather && ROW_STORE_VARIANTS.contains(&variant);
    let ranks = facts.graph.group_size(collective.group).filter(|n| (2..=MAX_GPU_CELL_RANKS).contains(n))?;
    able.then_some(i64::from(ranks))
}

/// The views between an all-gather and a copy of its result, if they have no other readers.
fn views_between(facts: &DispatchFacts<'_>, gather: NodeId, copy: NodeId) -> Option<Vec<NodeId>> {
    let mut views = Vec::new();
    let mut reader = copy;
    loop {
        let &[value] = &facts.node(reader).inputs[..] else { return None };
        if facts.users[value][..] != [reader] || facts.returned[value] {
            return None;
        }
        reader = facts.graph.defining_node(value)?;
        if reader == gather {
            views.reverse();
            return Some(views);
        }
        if !matches!(facts.node(reader).op, Op::Reshape | Op::Permute { .. }) {
            return None;
        }
        views.push(reader);
    }
}

/// The number of elements in a row, if a view of the gathered value of `ranks` ranks has the rows of all
/// ranks interleaved.
fn row(facts: &DispatchFacts<'_>, view: ValueId, ranks: i64) -> Option<Dim> {
    let shape = &facts.graph.ty(view).shape;
    let strides = facts.layout(view)?.strides;
    // Contiguously nested axes count as one, with their total extent and the stride of the innermost.
    let mut axes: Vec<(Dim, Dim)> = Vec::new();
    for (extent, stride) in shape.iter().zip(strides).filter(|(extent, _)| extent.as_const() != Some(1)) {
        match axes.last_mut() {
            Some((count, inner)) if *inner == stride.clone() * extent.clone() => {
                (*count, *inner) = (count.clone() * extent.clone(), stride);
            }
            _ => axes.push((extent.clone(), stride)),
        }
    }
    let [(rows, to_row), (number, to_rank), (row, one)] = &axes[..] else { return None };
    let fits = number.as_const() == Some(ranks)
        && one.as_const() == Some(1)
        && to_row == row
        && *to_rank == rows.clone() * row.clone();
    fits.then(|| row.clone())
}
