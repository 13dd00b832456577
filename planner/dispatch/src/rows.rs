//! Groups reductions of rows and the element-wise nodes before, between and after them into one kernel:
//! norms and their gradients, softmax and its gradient, as exporters decompose them. RMS norms join if
//! element-wise nodes read their result or compute their weight.
//!
//! The kernel reads each row once, even if the rest of the computation needs a reduction of the row first.
//! Nodes have the shape of the rows, or one element per row.
//!
//! # Method
//! A reduction over the last axis turns the map that computes its operand into a unit of rows.
//! Element-wise nodes that read its results join, together with the other open units that they read. Open
//! units can be merged because they do not depend on each other: a unit is closed when another reads it. At
//! the end, maps join that only the nodes of one unit read.
//!
//! A block of threads computes a row, so few rows use few multiprocessors. If the separate steps are
//! estimated to be faster for that reason, the reductions stay separate ([`unprofitable_reductions`]).

use std::collections::BTreeSet;

use symmc_ir::dispatch::{LoopSpace, loop_space};
use symmc_ir::machine::RowLimits;
use symmc_ir::{Dim, NodeId, Op, ValueId};

use crate::facts::DispatchFacts;
use crate::product::reports;
use crate::walk::{DispatchWalk, Unit, UnitAssignment, UnitIndex, UnitKind};

/// Assigns a node. Reductions in `refused` stay separate.
pub fn assign_rows(
    walk: &DispatchWalk<'_>,
    id: NodeId,
    refused: &BTreeSet<NodeId>,
) -> Option<UnitAssignment> {
    let facts = walk.facts;
    let limits = facts.capabilities().loops?.rows?;
    let row = match &facts.node(id).op {
        Op::Reduce { .. } if !refused.contains(&id) => reduced_row_shape(facts, id, &limits)?,
        Op::RmsNorm { .. } if norm_fits_rows(facts, id) => {
            &facts.graph.ty(facts.node(id).inputs[0]).shape[..]
        }
        op if op.fits_map() && !reports(facts, id) => {
            let mut row_units = candidates(walk, id).filter(|&u| walk.units[u].kind == Some(UnitKind::Rows));
            row_of(facts, &walk.units[row_units.next()?])?
        }
        _ => return None,
    };
    let mut units: Vec<usize> = Vec::new();
    let mut count = 1;
    for unit in candidates(walk, id) {
        let nodes = &walk.units[unit].nodes;
        let joins = !units.contains(&unit) && unit_fits_rows(facts, &walk.units[unit], row);
        if joins && count + nodes.len() <= limits.nodes as usize {
            count += nodes.len();
            units.push(unit);
        }
    }
    // The first unit is one that the node reads.
    while units.len() > 1 && walk.delays_users(&units, id) {
        units.pop();
    }
    let fits = fits_rows_unit(facts, id, row, &|v| {
        let source = facts.defining_node(v);
        source.is_some_and(|n| units.iter().any(|&u| walk.units[u].nodes.contains(&n)))
    });
    if !fits {
        return None;
    }
    let reduces = !facts.node(id).op.fits_map();
    let already = units.iter().any(|&u| walk.units[u].kind == Some(UnitKind::Rows));
    (reduces || already).then_some(UnitAssignment::Merges(units, UnitKind::Rows))
}

/// Assigns a norm of the rows that a map computes: a residual is stored and not read again.
pub fn assign_norm(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let facts = walk.facts;
    let max_row = facts.capabilities().loops?.rows?.normed;
    let node = facts.node(id);
    if !matches!(node.op, Op::RmsNorm { axes: 1, .. } | Op::LayerNorm { axes: 1, .. }) {
        return None;
    }
    let (&x, other_operands) = node.inputs.split_first()?;
    let unit = walk.open_producer(x, UnitKind::Map)?;
    let nodes = &walk.units[unit].nodes;
    let shape = facts.result_shape(id);
    let row = facts.graph.ty(x).shape.last()?.as_const()?;
    let fits = facts.base[x] == x
        && (1..=i64::from(max_row)).contains(&row)
        && nodes.iter().all(|&n| facts.result_shape(n) == shape && !reports(facts, n))
        && other_operands.iter().all(|&v| facts.defining_node(v).is_none_or(|n| !nodes.contains(&n)));
    fits.then_some(UnitAssignment::Ends(unit, UnitKind::Norm))
}

/// The open units that a node may join: first those that it reads, then those that wait for the same
/// collectives and read one of its operands.
fn candidates<'a>(walk: &'a DispatchWalk<'_>, id: NodeId) -> impl Iterator<Item = usize> + 'a {
    let read = walk.units_read_by(id);
    let open = read.into_iter().filter(|&unit| {
        walk.is_open(unit) && matches!(walk.units[unit].kind, Some(UnitKind::Map | UnitKind::Rows))
    });
    open.chain(walk.units_sharing_operand(UnitKind::Rows, id))
}

/// The shape of the rows that a node reduces over the last axis, if units of rows support it.
fn reduced_row_shape<'a>(facts: &DispatchFacts<'a>, id: NodeId, limits: &RowLimits) -> Option<&'a [Dim]> {
    let node = facts.node(id);
    let (Op::Reduce { axes, keep: true, .. }, &[x]) = (&node.op, &node.inputs[..]) else { return None };
    let shape = &facts.graph.ty(x).shape[..];
    let (n, leading) = shape.split_last()?;
    let [min, max] = facts.bounds(n);
    let fits = axes[..] == [leading.len()] && min >= 2 && max <= u64::from(limits.reduced);
    fits.then_some(shape)
}

/// Whether an RMS norm of rows is part of a unit of this kind: if an element-wise node reads its result, or
/// element-wise nodes compute its weight. Otherwise it ends a unit of kind `Norm`.
fn norm_fits_rows(facts: &DispatchFacts<'_>, id: NodeId) -> bool {
    let Some(limits) = facts.capabilities().loops.and_then(|l| l.rows) else { return false };
    let node = facts.node(id);
    let (Op::RmsNorm { axes: 1, .. }, Some(&x), &[result]) =
        (&node.op, node.inputs.first(), &node.outputs[..])
    else {
        return false;
    };
    let row = &facts.graph.ty(x).shape[..];
    let Some(n) = row.last() else { return false };
    let [min, max] = facts.bounds(n);
    let reader_is_map = || {
        facts.users[result].iter().any(|&user| {
            let same_rows = facts.result_shape(user) == Some(row);
            facts.node(user).op.fits_map() && !reports(facts, user) && same_rows
        })
    };
    let weight_is_computed = || {
        let weight = node.inputs.get(1).and_then(|&w| facts.defining_node(w));
        weight.is_some_and(|n| facts.node(n).op.fits_map() && !reports(facts, n))
    };
    min >= 2 && max <= u64::from(limits.reduced) && (reader_is_map() || weight_is_computed())
}

fn row_of<'a>(facts: &DispatchFacts<'a>, unit: &Unit) -> Option<&'a [Dim]> {
    loop_space(facts.graph, unit.nodes.iter().copied()).map(|space| space.shape)
}

/// Whether a shape has one element per row.
fn has_element_per_row(shape: &[Dim], row: &[Dim]) -> bool {
    LoopSpace { shape: row, reduced_axis: row.len().checked_sub(1) }.is_reduced_shape(shape)
}

/// Whether all nodes of a unit can be part of a unit of these rows.
fn unit_fits_rows(facts: &DispatchFacts<'_>, unit: &Unit, row: &[Dim]) -> bool {
    unit.nodes.iter().all(|&n| {
        !reports(facts, n)
            && fits_rows_unit(facts, n, row, &|v| {
                facts.defining_node(v).is_some_and(|source| unit.nodes.contains(&source))
            })
    })
}

/// Whether a shape is that of a single row, which all rows read.
fn is_single_row(shape: &[Dim], row: &[Dim]) -> bool {
    let unit = Dim::from(1);
    let has_unit_outer = shape.len() <= row.len() && shape.iter().rev().skip(1).all(|n| *n == unit);
    shape != row && shape.last() == row.last() && has_unit_outer
}

/// Whether all nodes of a unit compute a single row, which all rows read. The kernel repeats that
/// computation for each row.
fn computes_single_row(facts: &DispatchFacts<'_>, unit: &Unit, row: &[Dim]) -> bool {
    unit.nodes.iter().all(|&n| {
        let node = facts.node(n);
        facts.result_shape(n).is_some_and(|shape| is_single_row(shape, row))
            && node.op.fits_map()
            && !reports(facts, n)
            && node.inputs.iter().all(|&v| is_contiguous_along_rows(facts, v))
    })
}

/// Whether a node can be part of a unit of these rows; `inside` says which values the unit computes.
fn fits_rows_unit(
    facts: &DispatchFacts<'_>,
    id: NodeId,
    row: &[Dim],
    inside: &dyn Fn(ValueId) -> bool,
) -> bool {
    let node = facts.node(id);
    let Some(result) = facts.result_shape(id) else { return false };
    if let Op::Reduce { .. } = node.op {
        let x = node.inputs[0];
        return facts.graph.ty(x).shape[..] == *row
            && (facts.base[x] == x || !inside(x))
            && is_contiguous_along_rows(facts, x);
    }
    if let (Op::RmsNorm { .. }, Some((&x, weight))) = (&node.op, node.inputs.split_first()) {
        return result == row
            && (facts.base[x] == x || !inside(x))
            && is_contiguous_along_rows(facts, x)
            && weight.iter().all(|&w| !inside(w) && is_contiguous_along_rows(facts, w));
    }
    if !node.op.fits_map() || !(result == row || has_element_per_row(result, row)) {
        return false;
    }
    node.inputs.iter().all(|&v| {
        if !inside(v) {
            return is_contiguous_along_rows(facts, v);
        }
        let shape = &facts.graph.ty(v).shape[..];
        facts.base[v] == v && (has_element_per_row(shape, row) || (result == row && shape == row))
    })
}

/// Whether the elements of a row are adjacent in memory, or one element. Threads that share a row read other
/// layouts slowly.
fn is_contiguous_along_rows(facts: &DispatchFacts<'_>, value: ValueId) -> bool {
    if facts.graph.ty(value).shape.last().is_none_or(|n| *n == Dim::from(1)) {
        return true;
    }
    let Some(layout) = facts.layout(value) else { return false };
    layout.strides.last().and_then(Dim::as_const).is_some_and(|step| (0..=1).contains(&step))
}

/// Joins maps to the unit of rows whose nodes are their only readers.
pub fn join_maps(facts: &DispatchFacts<'_>, units: &mut [Unit]) {
    let Some(limits) = facts.capabilities().loops.and_then(|l| l.rows) else { return };
    let mut unit_of = UnitIndex::new(facts, units);
    // Later units first, so that maps of maps join as well.
    for u in (0..units.len()).rev() {
        let Some(to) = sole_reader_unit(facts, &units[u], &unit_of) else { continue };
        let Some(row) = row_of(facts, &units[to]).filter(|_| units[to].kind == Some(UnitKind::Rows)) else {
            continue;
        };
        let count = units[to].nodes.len() + units[u].nodes.len();
        let are_maps = units[u].kind == Some(UnitKind::Map);
        let fits = unit_fits_rows(facts, &units[u], row) || computes_single_row(facts, &units[u], row);
        if are_maps && count <= limits.nodes as usize && fits {
            unit_of.join(units, u, to, UnitKind::Rows);
        }
    }
}

/// The unit whose nodes are the only readers of another unit's results, without views in between.
fn sole_reader_unit(facts: &DispatchFacts<'_>, unit: &Unit, unit_of: &UnitIndex) -> Option<usize> {
    let mut sole_reader = None;
    for &v in unit.nodes.iter().flat_map(|&n| &facts.node(n).outputs) {
        if facts.returned[v] || facts.communicated[v] {
            return None;
        }
        for reader in facts.users[v].iter().filter(|n| !unit.nodes.contains(n)) {
            let unit = unit_of.of(*reader)?;
            if *sole_reader.get_or_insert(unit) != unit {
                return None;
            }
        }
    }
    sole_reader
}

/// The reductions of units that are estimated to take longer than the steps in `separate_units`, in which
/// reductions are in no units of rows. RMS norms are in such units in both.
pub fn unprofitable_reductions(
    facts: &DispatchFacts<'_>,
    units: &[Unit],
    separate_units: &[Unit],
) -> Vec<NodeId> {
    let part_of = UnitIndex::new(facts, separate_units);
    let mut out = Vec::new();
    for unit in units.iter().filter(|unit| unit.kind == Some(UnitKind::Rows) && unit.nodes.len() > 1) {
        let parts: BTreeSet<usize> = unit.nodes.iter().filter_map(|&n| part_of.of(n)).collect();
        let is_slower = (0..2).any(|end| {
            let split: f64 = parts.iter().map(|&p| unit_us(facts, &separate_units[p], end)).sum();
            unit_us(facts, unit, end) > split
        });
        if is_slower {
            out.extend(unit.nodes.iter().filter(|&&n| matches!(facts.node(n).op, Op::Reduce { .. })));
        }
    }
    out
}

/// The estimated time of the computation of a unit at the least (0) or the greatest (1) sizes.
fn unit_us(facts: &DispatchFacts<'_>, unit: &Unit, end: usize) -> f64 {
    let mut moved = 0u64;
    let mut rows = None;
    let mut read = BTreeSet::new();
    for &id in &unit.nodes {
        let node = facts.node(id);
        for &v in &node.inputs {
            if facts.defining_node(v).is_none_or(|n| !unit.nodes.contains(&n)) && read.insert(v) {
                moved = moved.saturating_add(bytes_at_end(facts, v, end));
            }
        }
        for &v in &node.outputs {
            if facts.returned[v] || facts.users[v].iter().any(|n| !unit.nodes.contains(n)) {
                moved = moved.saturating_add(bytes_at_end(facts, v, end));
            }
        }
        // A separate reduction works in pieces if rows are few.
        if let (Op::Reduce { .. }, Some(&v), 2..) = (&node.op, node.outputs.first(), unit.nodes.len()) {
            rows = Some(facts.bounds(&facts.graph.ty(v).numel())[end]);
        }
    }
    facts.profile.row_kernel_us(rows, moved)
}

/// The bytes of a value at the least (0) or the greatest (1) sizes.
fn bytes_at_end(facts: &DispatchFacts<'_>, value: ValueId, end: usize) -> u64 {
    facts.bounds(&facts.graph.ty(value).bytes())[end]
}
