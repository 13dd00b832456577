//! Ops that read several elements of their operands, by the table of their axes ([`Op::axes`]).
//!
//! Axes along which an op computes each position independently are those of the request. All others are axes of
//! lambdas, and positions at which the result is read.

use symmc_ir::text::forms::op_dims_mut;
use symmc_ir::{Dim, Op, OperandAxis, ReductionKind, ResultAxis};

use super::evaluate::{
    Evaluated, NodeRef, Place, ProofTables, RegionEvaluator, Stop, ValueRef, reshape_index,
};
use super::index::Index;
use super::term::{Lambda, OpShape, Term, TermId};

impl RegionEvaluator<'_, '_> {
    /// An op that reads several elements of its operands, by the table of its axes.
    pub fn bind(
        &mut self,
        tables: &mut ProofTables<'_>,
        node: &NodeRef,
        result: usize,
        place: &Place,
    ) -> Evaluated<TermId> {
        let op = &node.node.op;
        if op.is_opaque() || op.group().is_some() {
            return Err(Stop::Unknown("the op is not known, or exchanges elements"));
        }
        let operand_shapes: Vec<Vec<Dim>> = node.operands().into_iter().map(|v| self.shape(v)).collect();
        let result_shapes: Vec<Vec<Dim>> = node.results().into_iter().map(|v| self.shape(v)).collect();
        let map = op.axes(
            &operand_shapes.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            &result_shapes.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        );
        let has_one_shape = result_shapes.iter().all(|shape| *shape == result_shapes[0]);
        let is_free = |axis: usize| has_one_shape && map.results.get(axis) == Some(&ResultAxis::Independent);
        let joint: Vec<usize> = (0..place.index.len()).filter(|&axis| !is_free(axis)).collect();
        let mut op = op.clone();
        op_dims_mut(&mut op).into_iter().for_each(|dim| *dim = self.map_dim(node, dim));
        let form = OpForm::of(&op, &joint, &map.operands, place.index.len());
        let mut args = Vec::new();
        for (x, axes) in node.operands().into_iter().zip(&map.operands) {
            args.push(self.operand_lambda(tables, x, axes, &is_free, form.is_flat, place)?);
        }
        if matches!(form.op, Op::Take { .. } | Op::Index { .. })
            && let Some(positions) = known_positions(tables, &args)
        {
            let mut positions = positions.into_iter();
            let index = map.operands[0].iter().map(|kind| match kind {
                OperandAxis::Aligned(result_axis) => Some(place.index[*result_axis].clone()),
                OperandAxis::Broadcast => Some(Index::constant(Dim::from(0))),
                OperandAxis::Outer(_) | OperandAxis::Whole => positions.next(),
            });
            if let Some(index) = index.collect() {
                return self.element(tables, node.operand(0), &place.with_index(index));
            }
        }
        let sums = matches!(form.op, Op::CumSum { .. } | Op::Reduce { op: ReductionKind::Sum, .. });
        let dtype = self.ty(node.result(result)).dtype;
        if sums && !dtype.is_float() && args.iter().all(|x| has_zeros(tables, x)) {
            return tables.scalar((dtype, 0));
        }
        let of_result = &result_shapes[result];
        let joint_extents: Vec<Dim> = joint.iter().map(|&axis| of_result[axis].clone()).collect();
        let mut at: Vec<Index> = joint.iter().map(|&axis| place.index[axis].clone()).collect();
        let mut extents = joint_extents.clone();
        if form.is_flat && !joint.is_empty() {
            let flat = [joint_extents.iter().fold(Dim::from(1), |count, extent| count * extent.clone())];
            at = reshape_index(&mut tables.axes, &joint_extents, &flat, &at)?;
            extents = flat.to_vec();
        }
        let shape = OpShape { extents, axes: form.axes };
        tables.intern(dtype, Term::Bind { op: form.op, result, shape, at, args })
    }

    /// The elements of an operand along the axes that an op reads whole. Along the others, the position is that of the
    /// result.
    fn operand_lambda(
        &mut self,
        tables: &mut ProofTables<'_>,
        x: ValueRef,
        axes: &[OperandAxis],
        is_free: &dyn Fn(usize) -> bool,
        is_flat: bool,
        place: &Place,
    ) -> Evaluated<Lambda> {
        let shape = self.shape(x);
        let is_bound = |axis: &usize| match axes[*axis] {
            OperandAxis::Aligned(result_axis) => !is_free(result_axis),
            OperandAxis::Broadcast => false,
            OperandAxis::Outer(_) | OperandAxis::Whole => true,
        };
        let bound: Vec<usize> = (0..axes.len()).filter(is_bound).collect();
        let extents: Vec<Dim> = bound.iter().map(|&axis| shape[axis].clone()).collect();
        let flat = [extents.iter().fold(Dim::from(1), |count, extent| count * extent.clone())];
        let lambda_extents = if is_flat { &flat[..] } else { &extents[..] };
        self.lambda(tables, lambda_extents, |this, tables, params| {
            let params = reshape_index(&mut tables.axes, lambda_extents, &extents, params)?;
            let mut params = params.into_iter();
            let index = axes.iter().enumerate().map(|(axis, kind)| match kind {
                OperandAxis::Aligned(result_axis) if is_free(*result_axis) => {
                    Some(place.index[*result_axis].clone())
                }
                OperandAxis::Broadcast => Some(Index::constant(Dim::from(0))),
                _ if is_bound(&axis) => params.next(),
                _ => None,
            });
            let index =
                index.collect::<Option<Vec<Index>>>().ok_or(Stop::Unknown("an axis has no position"))?;
            this.element(tables, x, &place.with_index(index))
        })
    }
}

/// Whether all elements are 0 or false.
fn has_zeros(tables: &ProofTables<'_>, lambda: &Lambda) -> bool {
    lambda.pieces.iter().all(|piece| *tables.terms.term(piece.body) == Term::Scalar(0))
}

/// The positions that indices have, if these are known and within the axes that they index.
fn known_positions(tables: &ProofTables<'_>, args: &[Lambda]) -> Option<Vec<Index>> {
    let (x, indices) = args.split_first()?;
    let zero = Dim::from(0);
    let mut positions = indices.iter().zip(&x.extents).map(|(index, extent)| {
        let [piece] = &index.pieces[..] else { return None };
        let index = tables.as_index(piece.body)?;
        tables.axes.is_within(&index, &zero, extent).then_some(index)
    });
    (indices.len() == x.extents.len()).then(|| positions.by_ref().collect())?
}

/// An op without the axes that it does not compute together.
struct OpForm {
    op: Op,
    /// Whether the op reads its axes in row-major order, however they are divided.
    is_flat: bool,
    /// As [`OpShape::axes`].
    axes: Vec<Vec<usize>>,
}

impl OpForm {
    fn of(op: &Op, joint: &[usize], operands: &[Vec<OperandAxis>], result_rank: usize) -> OpForm {
        let one = |op| OpForm { op, is_flat: false, axes: Vec::new() };
        let flat = |op| OpForm { op, is_flat: true, axes: Vec::new() };
        match op {
            Op::MatMul { .. } => one(op.clone()),
            Op::Reduce { op, .. } => flat(Op::Reduce { op: *op, axes: Vec::new(), keep: false }),
            Op::ArgReduce { op, .. } => one(Op::ArgReduce { op: *op, axis: 0, keep: false }),
            Op::CumSum { .. } if joint.len() == 1 => one(Op::CumSum { axis: 0 }),
            Op::Softmax { log, .. } if joint.len() == 1 => one(Op::Softmax { axis: 0, log: *log }),
            Op::TopK { largest, .. } if joint.len() == 1 => one(Op::TopK { axis: 0, largest: *largest }),
            Op::Sort { descending, .. } if joint.len() == 1 => {
                one(Op::Sort { axis: 0, descending: *descending })
            }
            Op::RmsNorm { eps, round_first, .. } => {
                flat(Op::RmsNorm { axes: 1, eps: *eps, round_first: *round_first })
            }
            Op::LayerNorm { eps, .. } => flat(Op::LayerNorm { axes: 1, eps: *eps }),
            Op::Take { .. } | Op::GatherElements { .. } if joint.is_empty() => one(Op::Take { axis: 0 }),
            Op::Index { .. } if joint.is_empty() && operands.len() == 2 => one(Op::Take { axis: 0 }),
            Op::Index { .. } if joint.is_empty() => one(Op::Index { axis: 0 }),
            _ => {
                // What the op means depends on which of its axes are computed together.
                let of_operand = |axes: &Vec<OperandAxis>| {
                    let bound = |axis: &usize| axes[*axis] != OperandAxis::Broadcast;
                    std::iter::once(axes.len()).chain((0..axes.len()).filter(bound)).collect()
                };
                let mut axes: Vec<Vec<usize>> = operands.iter().map(of_operand).collect();
                axes.push(std::iter::once(result_rank).chain(joint.iter().copied()).collect());
                OpForm { op: op.clone(), is_flat: false, axes }
            }
        }
    }
}
