//! All-reduces whose kernel adds the residual behind them, and normalises the rows of the sum.
//!
//! The residual is there when the all-reduce begins. An addition that shares its kernel with an element-wise step or a
//! product next to it costs none of its own, but the reduction that is not stored and read again is saved all the same.
//!
//! By `ll` the operand goes to each peer as a whole, unless it is so large that two rounds send less; then the norm has a
//! kernel of its own, as it costs less than what one round would send more. A block receives a row, so few long rows are normalised
//! faster by a kernel of its own as well. In two shots large tensors go by stores alone, and take the addition.

use symmc_ir::collective::{Thresholds, Variant};
use symmc_ir::machine::model::GPU_CELL;
use symmc_ir::{BinaryOp, CollectiveKind, DType, Dim, Form, NodeId, Op, Type, ValueId};

use crate::facts::Facts;
use crate::walk::{Place, Walk};

/// The elements of a row where rows only divide the work among blocks.
const ROW: i64 = 1024;

/// The variants whose kernels add something.
pub const VARIANTS: [Variant; 2] = [Variant::Ll, Variant::TwoShot];

pub fn place(walk: &Walk<'_>, id: NodeId) -> Option<Place> {
    let facts = walk.facts;
    facts.capabilities().reduction?;
    let node = facts.node(id);
    match &node.op {
        Op::Collective(_) => reduces(facts, id).then_some(Place::Begins(Form::Reduction)),
        Op::Binary(BinaryOp::Add) => {
            let (x, y) = (node.inputs[0], node.inputs[1]);
            sum(walk, id, x, y).or_else(|| sum(walk, id, y, x))
        }
        Op::RmsNorm { axes: 1, .. } => norm(walk, id),
        _ => None,
    }
}

/// The all-reduce that a unit is so far.
struct Reduction {
    variant: Variant,
    ranks: u64,
    /// The least and the most bytes.
    bytes: [u64; 2],
}

fn reduction(facts: &Facts<'_>, id: NodeId) -> Option<Reduction> {
    let node = facts.node(id);
    let c = node.op.as_collective().filter(|c| matches!(c.kind, CollectiveKind::AllReduce(_)))?;
    let ranks = facts.graph.group_size(c.group).filter(|n| (2..=GPU_CELL).contains(n))?;
    let bytes = facts.bounds(&facts.graph.ty(*node.outputs.first()?).bytes());
    Some(Reduction { variant: c.variant.or(facts.assumed)?, ranks: u64::from(ranks), bytes })
}

fn reduces(facts: &Facts<'_>, id: NodeId) -> bool {
    let Some(Reduction { variant, ranks, bytes }) = reduction(facts, id) else { return false };
    let ty = facts.graph.ty(facts.node(id).outputs[0]);
    let floats = matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16);
    let able = match variant {
        Variant::Ll => bytes[0] > 0,
        // Where smaller ones are not by stores alone, the addition has a kernel of its own.
        Variant::TwoShot => {
            Thresholds::default().stores(bytes[1], ranks) && ty.bytes().divisible_by(16 * ranks as i64)
        }
        _ => false,
    };
    floats && able
}

/// The unit whose all-reduce gives `reduced`, if an addition joins it.
fn sum(walk: &Walk<'_>, id: NodeId, reduced: ValueId, residual: ValueId) -> Option<Place> {
    let facts = walk.facts;
    let unit = walk.giver(reduced, Form::Reduction)?;
    let &[reduce] = &walk.units[unit].nodes[..] else { return None };
    let first = facts.unshaped(reduced);
    let ty = facts.graph.ty(facts.node(id).outputs[0]);
    let whole = |v: ValueId| facts.graph.ty(v) == ty && facts.is_run(v);
    let of = reduction(facts, reduce)?;
    let rows = of.variant == Variant::TwoShot
        || ty.numel().divisible_by(ROW)
        || is_row(facts, &of, ty.shape.last()?, ty.dtype);
    let fits = facts.graph.def_node(first) == Some(reduce)
        && whole(reduced)
        && whole(residual)
        && facts.unshaped(residual) != first
        && walk.is_before(residual, reduce)
        && rows;
    fits.then(|| Place::Joins(unit, facts.reshapes(reduced)))
}

/// The unit whose sum a norm reads, if the norm joins it.
fn norm(walk: &Walk<'_>, id: NodeId) -> Option<Place> {
    let facts = walk.facts;
    let node = facts.node(id);
    let (&x, weight) = (node.inputs.first()?, node.inputs.get(1));
    let unit = walk.giver(x, Form::Reduction)?;
    let nodes = &walk.units[unit].nodes;
    let (&reduce, &sum) = (nodes.first()?, nodes.last()?);
    let of = reduction(facts, reduce)?;
    let (ty, added) = (facts.graph.ty(x), facts.unshaped(x));
    let fits = of.variant == Variant::Ll
        && !Thresholds::default().two_rounds(of.bytes[0], of.ranks)
        && facts.graph.def_node(added) == Some(sum)
        && facts.node(sum).op == Op::Binary(BinaryOp::Add)
        && is_row(facts, &of, ty.shape.last()?, ty.dtype)
        && is_faster_fused(facts, ty)
        && facts.graph.ty(*node.outputs.first()?) == ty
        && weight.is_none_or(|&w| {
            let of = facts.graph.ty(w);
            of.dtype == ty.dtype && of.rank() == 1 && facts.is_run(w) && walk.is_before(w, reduce)
        });
    fits.then(|| Place::Joins(unit, facts.reshapes(x)))
}

/// Whether the norm of the rows of a sum is estimated to take no longer in the kernel of the all-reduce than in one of its own, at the
/// least and at the greatest sizes together.
fn is_faster_fused(facts: &Facts<'_>, ty: &Type) -> bool {
    let Some((last, leading)) = ty.shape.split_last() else { return false };
    let rows = leading.iter().fold(Dim::from(1), |all, n| all * n.clone());
    let row = facts.bounds(last)[1].saturating_mul(ty.dtype.size() as u64);
    let us = facts.bounds(&rows).map(|rows| facts.profile.norm_after_reduction_us(rows, row));
    us[0][0] + us[1][0] <= us[0][1] + us[1][1]
}

/// Whether blocks can have whole rows of so many elements.
fn is_row(facts: &Facts<'_>, of: &Reduction, elements: &Dim, dtype: DType) -> bool {
    let Some(bytes) = elements.as_const().and_then(|n| u64::try_from(n).ok()) else { return false };
    let bytes = bytes * dtype.size() as u64;
    let most = facts.capabilities().reduction.map_or(0, |r| u64::from(r.row));
    // Rows begin with a line of LL128, 128 bytes of which 120 are data: short ones may need more lines than landing zones have.
    let lines = bytes.div_ceil(120) * 128;
    (1..=most).contains(&bytes) && bytes.is_multiple_of(8) && (!of.may_be_ll128() || lines * 15 <= bytes * 17)
}

impl Reduction {
    fn may_be_ll128(&self) -> bool {
        !Thresholds::default().is_ll(self.bytes[1], self.ranks)
    }
}
