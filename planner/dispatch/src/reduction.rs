//! All-reduces whose kernel also adds the following residual, and normalises the rows of the sum.
//!
//! The residual is available when the all-reduce begins. If an addition shares its kernel with an adjacent
//! element-wise step or product, it costs nothing of its own. The fusion still saves storing and reading the
//! reduced value.
//!
//! With `ll`, the whole operand goes to each peer, unless it is so large that two rounds send less. In two
//! rounds the norm has its own kernel, because that costs less than the additional bytes of one round. Each
//! block receives a row, so a separate kernel also normalises few long rows faster. With `two_shot`, large
//! tensors are sent by stores only, and the kernel takes the addition.

use symmc_ir::collective::{CollectiveVariant, ProtocolThresholds};
use symmc_ir::machine::model::MAX_GPU_CELL_RANKS;
use symmc_ir::{BinaryOp, CollectiveKind, DType, Dim, NodeId, Op, TensorType, ValueId};

use crate::facts::DispatchFacts;
use crate::walk::{DispatchWalk, UnitAssignment, UnitKind};

/// The elements of a row if rows only divide the work among blocks.
const DIVIDING_ROW_ELEMENTS: i64 = 1024;

/// The variants whose kernels can add a residual.
pub const RESIDUAL_VARIANTS: [CollectiveVariant; 2] = [CollectiveVariant::Ll, CollectiveVariant::TwoShot];

pub fn assign_reduction(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let facts = walk.facts;
    facts.capabilities().reduction?;
    let node = facts.node(id);
    match &node.op {
        Op::Collective(_) => {
            has_fused_kernel(facts, id).then_some(UnitAssignment::Begins(UnitKind::Reduction))
        }
        Op::Binary(BinaryOp::Add) => {
            let x = node.inputs[0];
            let y = node.inputs[1];
            assign_residual_sum(walk, id, x, y).or_else(|| assign_residual_sum(walk, id, y, x))
        }
        Op::RmsNorm { axes: 1, .. } => assign_reduction_norm(walk, id),
        _ => None,
    }
}

/// The all-reduce of a unit.
struct FusedReduction {
    variant: CollectiveVariant,
    ranks: u64,
    /// The least and the greatest number of bytes.
    bytes: [u64; 2],
}

fn as_fused_reduction(facts: &DispatchFacts<'_>, id: NodeId) -> Option<FusedReduction> {
    let node = facts.node(id);
    let c = node.op.as_collective().filter(|c| matches!(c.kind, CollectiveKind::AllReduce(_)))?;
    let ranks = facts.graph.group_size(c.group).filter(|n| (2..=MAX_GPU_CELL_RANKS).contains(n))?;
    let bytes = facts.bounds(&facts.graph.ty(*node.outputs.first()?).bytes());
    Some(FusedReduction { variant: c.variant.or(facts.assumed)?, ranks: u64::from(ranks), bytes })
}

fn has_fused_kernel(facts: &DispatchFacts<'_>, id: NodeId) -> bool {
    let Some(FusedReduction { variant, ranks, bytes }) = as_fused_reduction(facts, id) else { return false };
    let ty = facts.graph.ty(facts.node(id).outputs[0]);
    let floats = matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16);
    let able = match variant {
        CollectiveVariant::Ll => bytes[0] > 0,
        // Smaller tensors are not sent by stores only, so their addition has its own kernel.
        CollectiveVariant::TwoShot => {
            ProtocolThresholds::default().uses_stores_only(bytes[1], ranks)
                && ty.bytes().is_divisible_by(16 * ranks as i64)
        }
        _ => false,
    };
    floats && able
}

/// Joins an addition to the unit whose all-reduce gives `reduced`.
fn assign_residual_sum(
    walk: &DispatchWalk<'_>,
    id: NodeId,
    reduced: ValueId,
    residual: ValueId,
) -> Option<UnitAssignment> {
    let facts = walk.facts;
    let unit = walk.open_producer(reduced, UnitKind::Reduction)?;
    let &[reduce] = &walk.units[unit].nodes[..] else { return None };
    let first = facts.skip_reshapes(reduced);
    let ty = facts.graph.ty(facts.node(id).outputs[0]);

    let fused = as_fused_reduction(facts, reduce)?;
    let rows = fused.variant == CollectiveVariant::TwoShot
        || ty.numel().is_divisible_by(DIVIDING_ROW_ELEMENTS)
        || fits_block_row(facts, &fused, ty.shape.last()?, ty.dtype);
    let fits = facts.graph.defining_node(first) == Some(reduce)
        && [reduced, residual].into_iter().all(|v| facts.graph.ty(v) == ty && facts.is_run(v))
        && facts.skip_reshapes(residual) != first
        && walk.is_before(residual, reduce)
        && rows;
    fits.then(|| UnitAssignment::Joins(unit, facts.reshapes(reduced)))
}

/// Joins a norm to the unit whose sum it reads.
fn assign_reduction_norm(walk: &DispatchWalk<'_>, id: NodeId) -> Option<UnitAssignment> {
    let facts = walk.facts;
    let node = facts.node(id);
    let &x = node.inputs.first()?;
    let weight = node.inputs.get(1);
    let unit = walk.open_producer(x, UnitKind::Reduction)?;
    let nodes = &walk.units[unit].nodes;
    let &reduce = nodes.first()?;
    let &sum = nodes.last()?;
    let fused = as_fused_reduction(facts, reduce)?;
    let ty = facts.graph.ty(x);
    let added = facts.skip_reshapes(x);
    let fits = fused.variant == CollectiveVariant::Ll
        && !ProtocolThresholds::default().uses_two_rounds(fused.bytes[0], fused.ranks)
        && facts.graph.defining_node(added) == Some(sum)
        && facts.node(sum).op == Op::Binary(BinaryOp::Add)
        && fits_block_row(facts, &fused, ty.shape.last()?, ty.dtype)
        && is_faster_fused(facts, ty)
        && facts.graph.ty(*node.outputs.first()?) == ty
        && weight.is_none_or(|&w| {
            let weight_ty = facts.graph.ty(w);
            weight_ty.dtype == ty.dtype
                && weight_ty.rank() == 1
                && facts.is_run(w)
                && walk.is_before(w, reduce)
        });
    fits.then(|| UnitAssignment::Joins(unit, facts.reshapes(x)))
}

/// Whether the norm of the rows of a sum is estimated to take no longer in the kernel of the all-reduce than
/// in a separate one, for the least and the greatest sizes together.
fn is_faster_fused(facts: &DispatchFacts<'_>, ty: &TensorType) -> bool {
    let Some((last, leading)) = ty.shape.split_last() else { return false };
    let rows = leading.iter().fold(Dim::from(1), |rows, n| rows * n.clone());
    let row = facts.bounds(last)[1].saturating_mul(ty.dtype.size() as u64);
    let us = facts.bounds(&rows).map(|rows| facts.profile.norm_after_reduction_us(rows, row));
    us[0][0] + us[1][0] <= us[0][1] + us[1][1]
}

/// Whether blocks can hold whole rows of this many elements.
fn fits_block_row(facts: &DispatchFacts<'_>, fused: &FusedReduction, elements: &Dim, dtype: DType) -> bool {
    let Some(bytes) = elements.as_const().and_then(|n| u64::try_from(n).ok()) else { return false };
    let bytes = bytes * dtype.size() as u64;
    let max_row_bytes = facts.capabilities().reduction.map_or(0, |r| u64::from(r.row));
    // Rows begin with a line of LL128, which has 120 bytes of data in 128 bytes. Short rows may need more
    // lines than landing zones have.
    let lines = bytes.div_ceil(120) * 128;
    (1..=max_row_bytes).contains(&bytes)
        && bytes.is_multiple_of(8)
        && (!fused.may_be_ll128() || lines * 15 <= bytes * 17)
}

impl FusedReduction {
    fn may_be_ll128(&self) -> bool {
        !ProtocolThresholds::default().uses_ll(self.bytes[1], self.ranks)
    }
}
