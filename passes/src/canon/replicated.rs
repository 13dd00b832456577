//! Removes collectives of values that have the same bits on all ranks of a cell.
//!
//! [`symmc_ir::Replication`] says which ranks hold the same bits. Groups are compared by their cells. Every
//! rule keeps all bits, except for orders of summation that a collective chooses: a sum of equal values
//! becomes a product only if adding rank by rank gives the same bits.

use std::collections::{HashMap, HashSet};

use symmc_ir::{
    BinaryOp, Collective, CollectiveKind, CollectiveReduceOp, DType, Dim, FloatAttribute, GroupId, Op,
    ResultDistribution, Scalar, TensorType, ValueId,
};

use crate::rewrite::{CandidateNode, Rewrite, RewriteRule, Rewriter};

pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "collective_of_replicated",
        equation: "a collective of a value x that is the same on all ranks of a cell = x, n * x, x n times, or pieces of these",
        apply: collective_of_replicated,
    },
    RewriteRule {
        name: "gather_of_shards",
        equation: "all_gather(f(shard(x), reduce_scatter(y))) = f(x, all_reduce(y)) along the leading axis of one group, if all \
                   ranks of a cell have x, f works element by element, and y is small",
        apply: gather_of_shards,
    },
];

/// The most bytes of a reduced value for which one all-reduce replaces a reduce_scatter and an all_gather.
/// Up to this size, latency dominates the time of a message, and element-wise work on all pieces takes no
/// longer than on one.
const MAX_REDUCED_BYTES: i64 = 256 << 10;

fn collective_of_replicated(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Collective(Collective { kind, group, .. }), &[x]) = (&node.op, &node.inputs[..]) else {
        return None;
    };
    let ranks = cx.graph().group_size(*group).filter(|&n| n > 1)?;
    if !cx.replication(x).is_uniform_within_cells(&cx.graph().cells(*group)?) {
        return None;
    }
    let facts = kind.facts();
    // A rank without a sender receives zeros.
    let lacks_sender = facts.result_distribution == ResultDistribution::FromSender
        && (0..ranks).any(|rank| kind.sender_to(rank).is_none());
    if kind.moves_by_data() || lacks_sender {
        return None;
    }
    let repeated = match kind.reduce_op() {
        Some(op) => Some(RepeatedReduction::new(op, node.ty.dtype, ranks)?),
        None => None,
    };
    let mut local = x;
    if facts.operand_pieces {
        let mut ty = node.ty.clone();
        if facts.result_pieces {
            ty.shape[0] = ty.shape[0].exact_div(&Dim::from(i64::from(ranks)))?;
        }
        local = cx.emit("own", Op::Shard { axis: 0, group: *group }, &[x], ty);
    }
    Some(match repeated {
        Some(repeated) => repeated.emit_reduction(cx, local),
        None if facts.result_pieces => copies(cx, local, ranks),
        None => Rewrite::Value(local),
    })
}

/// How one of several equal values gives their reduction with the same bits.
#[derive(Clone, Copy, PartialEq, Debug)]
enum RepeatedReduction {
    Same,
    /// The value multiplied by this number.
    Times(u32),
    /// The value multiplied and then divided by this number, in f32 if the value is narrower.
    Average(u32),
}

impl RepeatedReduction {
    /// The reduction of `ranks` equal values of a dtype.
    ///
    /// Ranks add one after another in f32, or in f64 for f64. The sum of n equal numbers is then n * x,
    /// rounded once, for n up to five: 2x and 4x are exact, and adding x to 3x undoes the rounding of 3x.
    /// The sum of six is different: adding x to the rounded 5x differs from 6x. Numbers of 8 or 11
    /// significant bits are summed in f32 without rounding while the number of ranks has few enough bits.
    fn new(op: CollectiveReduceOp, dtype: DType, ranks: u32) -> Option<RepeatedReduction> {
        let exact = match dtype {
            DType::F32 | DType::F64 => ranks <= 5,
            DType::BF16 => ranks <= 1 << 8,
            DType::F16 => ranks <= 1 << 11,
            _ => true,
        };
        match op {
            CollectiveReduceOp::Max | CollectiveReduceOp::Min => Some(RepeatedReduction::Same),
            CollectiveReduceOp::Sum if exact && dtype != DType::Bool => Some(RepeatedReduction::Times(ranks)),
            // Sums of f16 stay far below the largest f32.
            CollectiveReduceOp::Avg if exact && dtype == DType::F16 => Some(RepeatedReduction::Same),
            CollectiveReduceOp::Avg if exact && dtype.is_float() => Some(RepeatedReduction::Average(ranks)),
            CollectiveReduceOp::Sum | CollectiveReduceOp::Avg | CollectiveReduceOp::Prod => None,
        }
    }

    fn emit_reduction(self, cx: &mut Rewriter, x: ValueId) -> Rewrite {
        let ty = cx.ty(x).clone();
        match self {
            RepeatedReduction::Same => Rewrite::Value(x),
            RepeatedReduction::Times(n) => Rewrite::Node(by_number(BinaryOp::Mul, n, ty.dtype), vec![x]),
            RepeatedReduction::Average(n) if ty.dtype == DType::BF16 => {
                let wide = TensorType::new(DType::F32, ty.shape.clone());
                let wider = cx.emit("wide", Op::Cast, &[x], wide.clone());
                let sum = cx.emit("sum", by_number(BinaryOp::Mul, n, ty.dtype), &[wider], wide.clone());
                let average = cx.emit("average", by_number(BinaryOp::Div, n, ty.dtype), &[sum], wide);
                Rewrite::Node(Op::Cast, vec![average])
            }
            RepeatedReduction::Average(n) => {
                let sum = cx.emit("sum", by_number(BinaryOp::Mul, n, ty.dtype), &[x], ty.clone());
                Rewrite::Node(by_number(BinaryOp::Div, n, ty.dtype), vec![sum])
            }
        }
    }
}

/// An op that combines values of a dtype with a number.
fn by_number(op: BinaryOp, n: u32, dtype: DType) -> Op {
    let scalar = if dtype.is_float() {
        Scalar::Float(FloatAttribute(f64::from(n)))
    } else {
        Scalar::Int(i64::from(n)).wrap_to(dtype)
    };
    Op::BinaryScalar { op, scalar, scalar_left: false }
}

fn copies(cx: &mut Rewriter, x: ValueId, n: u32) -> Rewrite {
    let mut shape = cx.shape(x).to_vec();
    shape.insert(0, Dim::from(1));
    let single = cx.reshape(x, shape.clone());
    shape[0] = Dim::from(i64::from(n));
    let several = cx.expand(single, shape);
    Rewrite::Node(Op::Reshape, vec![several])
}

fn gather_of_shards(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Collective(Collective { kind: CollectiveKind::AllGather, group, .. }), &[x]) =
        (&node.op, &node.inputs[..])
    else {
        return None;
    };
    if matches!(cx.def(x), Some((Op::Collective(_), _))) {
        // A gather of unchanged scattered sums is a question of cost, which the lowering decides.
        return None;
    }
    let cells = cx.graph().cells(*group)?;
    let ranks = cx.graph().group_size(*group)?;
    let gathered = GatherOfPieces { group: *group, cells, ranks };
    gathered.emit_whole(cx, x).map(Rewrite::Value)
}

/// The most values that are computed whole to replace one gather.
const MAX_WHOLE_VALUES: usize = 32;

/// A gather of pieces that is computed from whole values.
struct GatherOfPieces {
    group: GroupId,
    cells: Vec<Vec<u32>>,
    ranks: u32,
}

impl GatherOfPieces {
    fn has_cells_of(&self, cx: &Rewriter, group: GroupId) -> bool {
        cx.graph().have_same_cells(self.group, group)
    }

    /// The values that each rank of a cell computes whole to have `x` of all these ranks, in dependency
    /// order. `None` if one cannot be computed whole, or if there are too many.
    fn values_to_compute(&self, cx: &Rewriter, x: ValueId) -> Option<Vec<ValueId>> {
        let mut order = Vec::new();
        let mut visited = HashSet::new();
        // The stack of values to visit, each with a flag that its operands are already listed.
        let mut open = vec![(x, false)];
        while let Some((v, is_ready)) = open.pop() {
            if is_ready {
                order.push(v);
            } else if visited.insert(v) {
                if visited.len() > MAX_WHOLE_VALUES {
                    return None;
                }
                open.push((v, true));
                open.extend(self.divided_operands(cx, v)?.into_iter().map(|operand| (operand, false)));
            }
        }
        Some(order)
    }

    /// The operands that are needed whole to compute `x` whole; `None` if `x` cannot be computed whole.
    fn divided_operands(&self, cx: &Rewriter, x: ValueId) -> Option<Vec<ValueId>> {
        let (op, inputs) = cx.def(x)?;
        match op {
            Op::Shard { axis: 0, group } => {
                let is_known = self.has_cells_of(cx, *group)
                    && cx.replication(inputs[0]).is_uniform_within_cells(&self.cells);
                is_known.then(Vec::new)
            }
            Op::Collective(Collective { kind: CollectiveKind::ReduceScatter(_), group, .. }) => {
                let is_small = cx.ty(inputs[0]).bytes().upper_bound(cx.symbols()) <= MAX_REDUCED_BYTES;
                (is_small && self.has_cells_of(cx, *group) && !cx.is_shared(x)).then(Vec::new)
            }
            op if op.is_element_wise() && !op.divides_integers(cx.ty(x).dtype) && !cx.is_shared(x) => {
                let divided: Vec<ValueId> =
                    inputs.iter().copied().filter(|&v| !self.is_same_for_all_pieces(cx, v, x)).collect();
                // An operand that broadcasts along the leading axis would no longer do so if it were whole.
                let result = cx.shape(x);
                let all_span = divided.iter().all(|&v| {
                    let shape = cx.shape(v);
                    shape.len() == result.len() && shape.first() == result.first()
                });
                all_span.then_some(divided)
            }
            _ => None,
        }
    }

    /// Whether an element-wise operand of `result` has no leading axis and the same bits on all ranks of a
    /// cell.
    fn is_same_for_all_pieces(&self, cx: &Rewriter, operand: ValueId, result: ValueId) -> bool {
        let shape = cx.shape(operand);
        let is_broadcast =
            shape.len() < cx.shape(result).len() || shape.first().is_some_and(|d| d.as_const() == Some(1));
        is_broadcast && cx.replication(operand).is_uniform_within_cells(&self.cells)
    }

    /// Emits `x` of all ranks of a cell, computed from whole values.
    fn emit_whole(&self, cx: &mut Rewriter, x: ValueId) -> Option<ValueId> {
        let mut whole_values: HashMap<ValueId, ValueId> = HashMap::new();
        for v in self.values_to_compute(cx, x)? {
            let divided = self.divided_operands(cx, v)?;
            let (op, inputs) = cx.def(v)?;
            let op = op.clone();
            let inputs = inputs.to_vec();
            let mut ty = cx.ty(v).clone();
            ty.shape[0] = ty.shape[0].clone() * Dim::from(i64::from(self.ranks));
            let whole_value = match op {
                Op::Shard { .. } => *inputs.first()?,
                Op::Collective(Collective { kind: CollectiveKind::ReduceScatter(op), group, .. }) => {
                    let kind = CollectiveKind::AllReduce(op);
                    let collective = Collective { kind, group, variant: None };
                    cx.emit("reduced", Op::Collective(collective), &inputs, ty)
                }
                op => {
                    let mut operands = inputs;
                    for operand in &mut operands {
                        if divided.contains(operand) {
                            *operand = *whole_values.get(operand)?;
                        }
                    }
                    cx.emit("whole", op, &operands, ty)
                }
            };
            whole_values.insert(v, whole_value);
        }
        whole_values.get(&x).copied()
    }
}
