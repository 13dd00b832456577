//! The closed set of ops.
//!
//! Element-wise ops broadcast their operands as NumPy does. The result shape of some ops is a free parameter
//! (`reshape`, `expand`, `slice`, `full`, `iota`, `topk`, `pad`, opaque and custom ops): the declared result
//! type gives it. For all other ops [`crate::infer`] derives it. Axes count from 0 and are never negative.
//! Every op is pure.
//!
//! [`Op::facts`] is the table of the facts that passes, planner and backends need about each op. It has a row
//! for every op and a value in every column, so a new op does not compile without them. Facts are part of the
//! contract of an op: kernels of every backend comply with them. The plan check has its own rules for results
//! that overwrite operands, and does not read this table.

use crate::attention::AttentionBound;
use crate::collective::{Collective, CollectiveKind, CollectiveReduceOp};
use crate::dim::Dim;
use crate::ids::{CustomId, GroupId};
use crate::named_enum;
use crate::numerics::RoundingEffect;
use crate::route::{Route, RouteScope};
use crate::types::{DType, FloatAttribute, Scalar};

/// The operation of a node. Operands are written `x`, `y`, … in the order of the node's inputs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Every element is the scalar. No operand.
    Full(Scalar),
    /// `start + i * step` along the one axis of the result. No operand.
    Iota {
        start: i64,
        step: i64,
    },

    Unary(UnaryOp),
    /// Two operands of one dtype, broadcast.
    Binary(BinaryOp),
    /// `x op scalar`, or `scalar op x` when `scalar_left`. An integer scalar is a value of the dtype of `x`.
    BinaryScalar {
        op: BinaryOp,
        scalar: Scalar,
        scalar_left: bool,
    },
    /// `cond ? x : y`, all three broadcast; `cond` is bool.
    Select,
    /// `x` converted to the dtype of the result. Floats round to nearest even, float to integer truncates, and
    /// the conversion to bool is `x != 0`. A float outside the range of i64 becomes the nearest end of that
    /// range, and NaN becomes 0; narrower integers then wrap.
    Cast,
    /// The bits of `x` as another dtype of the same size. Neither dtype is bool, whose bits are restricted.
    Bitcast,

    /// `x @ y` over the last two axes; leading axes broadcast. Accumulates in f32 (f64 for f64). Next to `x` of f16 or bf16,
    /// `y` may be a stored factor ([`DType::is_stored_factor`]), whose numbers are those of its cast to the dtype of `x`.
    MatMul {
        result: ProductResult,
    },
    /// Matrix products of groups of rows, each group with its own matrix, as in a mixture of experts. Operands:
    /// `x [rows, k]`, `y [groups, k, n]` and the `ends [groups]` of the groups (i32 or i64). Group `g` has the
    /// rows from `ends[g - 1]`, or 0 for the first group, up to `ends[g]`. Each row of it is `x @ y[g]` in the
    /// result `[rows, n]`, accumulated as in [`Op::MatMul`]. Groups may be empty, and rows after the last end
    /// are zero. An end that is below its predecessor, below 0 or above the number of rows is a run-time error.
    /// With `x [m, k]` and `y [k, n]` the groups divide K: the result `[groups, m, n]` has the product of each
    /// group's columns of `x` and rows of `y`.
    GroupedMatMul,
    /// The routing of tokens to experts ([`crate::route`]). Operand: the `ids [n*t, k]` (i32 or i64) of the
    /// experts of all tokens of all ranks, in order of rank. An id that is not below the number of experts is a
    /// run-time error, and so is a rank that would receive more rows than its capacity.
    ///
    /// Results, all i64:
    /// - `rows [t, k]`: the global row of each slot of this rank's tokens; -1 for slots without a row.
    /// - `all_rows [n*t, k]`: the same for the tokens of all ranks.
    /// - `slots [c]`: the global slot of each row of this rank; -1 for rows without one. Its extent is the
    ///   capacity.
    /// - `counts [s]`: the number of rows of each section.
    /// - `ends [s]`: the end of each section, a multiple of the alignment, or in the layout `batched` the end of
    ///   its last row. [`Op::GroupedMatMul`] takes those of the layout `expert`.
    Route(Route),
    /// Reduction over `axes` (ascending). `keep` leaves these axes with extent 1.
    Reduce {
        op: ReductionKind,
        axes: Vec<usize>,
        keep: bool,
    },
    /// Index (i64) of the largest or smallest element along `axis`; the first index among equal elements.
    ArgReduce {
        op: ArgOp,
        axis: usize,
        keep: bool,
    },
    /// Inclusive cumulative sum along `axis`.
    CumSum {
        axis: usize,
    },
    /// Softmax along `axis`, computed in f32 or wider; the logarithm of it if `log` is set.
    Softmax {
        axis: usize,
        log: bool,
    },
    /// `x / sqrt(mean(x²) + eps)` over the last `axes` axes, computed in f32 or wider. An optional second
    /// operand, the weight, has the shape of those axes and multiplies the result. With `round_first` the
    /// normalised value is rounded to the dtype of the result before this product (Hugging Face), else after it
    /// (PyTorch).
    RmsNorm {
        axes: usize,
        eps: FloatAttribute,
        round_first: bool,
    },
    /// `(x - mean) / sqrt(var + eps)` over the last `axes` axes, then `* weight`, then `+ bias`: one to
    /// three operands.
    LayerNorm {
        axes: usize,
        eps: FloatAttribute,
    },
    /// Scaled dot-product attention: `q [.., h, l, e]`, `k [.., g, s, e]`, `v [.., g, s, f]`, where `g` divides
    /// `h`.
    ///
    /// Scores are `q @ kᵀ * scale`. With a `cap` they are then `cap * tanh(scores / cap)`. An optional operand
    /// after `v` is the mask, which broadcasts to `[.., h, l, s]`: a bool (true attends) or a float that is
    /// added to the scores. After it follows one i32 or i64 operand for each of the `bounds` that has one; it
    /// broadcasts to `[.., h, l, 1]`. A row sees the columns that the mask and all bounds admit
    /// ([`crate::attention`]). A row that sees no column is zero. Columns that a row does not see do not
    /// contribute to it, even where `v` is NaN.
    ///
    /// With a `sink` the last operand, a float that broadcasts to `[.., h, l, 1]`, is one more score of each
    /// row, neither scaled nor masked, whose value is zero. With `log_sum_exp` there is a second result `[..,
    /// h, l]`, f32 (f64 for f64): the natural logarithm of the sum of the exponentials of the scores that a row
    /// sees, its sink included. It is minus infinity for a row that sees no column.
    Attention {
        scale: FloatAttribute,
        cap: Option<FloatAttribute>,
        bounds: Vec<AttentionBound>,
        sink: bool,
        log_sum_exp: bool,
    },
    /// The gradients of [`Op::Attention`] without cap and sink with respect to its queries, keys and values:
    /// three results with the types of these.
    ///
    /// Operands: the gradient of the result, the result, the log-sum-exp, then the operands of the attention.
    /// Let `p = exp(scores - log_sum_exp)` be the weights, which are 0 where a row does not see the column and
    /// in rows whose log-sum-exp is minus infinity. Let `d = p * (gradient @ vᵀ - sum(gradient * result))`. The
    /// gradients are `scale * d @ k`, `scale * dᵀ @ q` and `pᵀ @ gradient`. The latter two are summed over the
    /// query heads that share a head of keys. Operands that are not finite may make all gradients of their
    /// heads NaN, even in columns that are not seen.
    AttentionGradient {
        scale: FloatAttribute,
        bounds: Vec<AttentionBound>,
    },
    /// The results of `op`, stored with their axes in another order: axis `i` of the result is axis `perm[i]`
    /// of the result of `op`. `op` is [`Op::Attention`], whose first result is permuted, or
    /// [`Op::AttentionGradient`], all of whose results are. Kernels store through strides, so a permuted result
    /// costs no copy.
    Permuted {
        op: Box<Op>,
        perm: Vec<usize>,
    },
    /// Rotary position embedding of `x [.., e]`: pairs of the first `width` elements of each row are rotated by
    /// angles with the given cosines and sines. The other elements are unchanged. Pair `i` is the elements `i`
    /// and `i + width / 2`, or `2i` and `2i + 1` if `interleaved`. `(a, b)` becomes `(a * cos - b * sin, b *
    /// cos + a * sin)`.
    ///
    /// Operands: `x`, `cos` and `sin`. The latter two have one shape, with a number for each of the `width`
    /// elements or one for each pair, and their leading axes broadcast to those of `x`. Their dtype is that of
    /// `x` or a wider one. Each product and each sum is rounded to that dtype, and the result to the dtype of
    /// `x`, as if these were separate nodes.
    RotaryEmbedding {
        width: usize,
        interleaved: bool,
    },

    /// `x` indexed along `axis` by an integer tensor of any rank, whose axes replace that axis. Here and in the
    /// ops below, an index that is negative or beyond its axis is a run-time error. If a framework lets indices
    /// count from the end, its frontend adds the extent to them.
    Take {
        axis: usize,
    },
    /// `x` indexed at `axis`, `axis + 1`, … by several integer tensors that broadcast together. Their broadcast
    /// axes replace the indexed axes. Operands: `x`, then the indices.
    Index {
        axis: usize,
    },
    /// `result[i…] = x[i…]` with coordinate `axis` replaced by `y[i…]`.
    GatherElements {
        axis: usize,
    },
    /// `x` with `src[i…]` stored (or combined) at `i…` with coordinate `axis` replaced by `index[i…]`.
    /// Operands: `x`, `index`, `src`. Where indices are equal, the last element in row-major order is stored.
    ScatterElements {
        axis: usize,
        combine: Option<ReductionKind>,
    },
    /// `x` with `src` added at the rows `index` (one axis) along `axis`. Operands: `x`, `index`, `src`.
    IndexAdd {
        axis: usize,
    },
    /// `x` with `src` stored (added when `accumulate`) at the positions that [`Op::Index`] with the same
    /// indices reads. Operands: `x`, `src`, then the indices.
    IndexPut {
        axis: usize,
        accumulate: bool,
    },

    /// The `k` first elements along `axis` in sorted order, and their positions (i64): two results. `k` is the
    /// extent of that axis in the results. Equal elements keep their order.
    TopK {
        axis: usize,
        largest: bool,
    },
    /// All elements along `axis` in sorted order, and their positions (i64): two results. Stable.
    Sort {
        axis: usize,
        descending: bool,
    },

    /// All operands concatenated along `axis`.
    Concat {
        axis: usize,
    },
    /// `x` with `low[i]` elements of value `value` before axis `i`, and as many after it as the result needs. A
    /// negative `low` crops.
    Pad {
        low: Vec<Dim>,
        value: Scalar,
    },
    /// This rank's piece of `x`: `axis` is divided into one equal piece for each rank of a cell of the group,
    /// and a rank gets the piece of its position in its cell. There is no communication, and the result has its
    /// own memory.
    Shard {
        axis: usize,
        group: GroupId,
    },

    /// The same elements in row-major order, in the result's shape. A view where the layout of `x` allows it
    /// ([`crate::layout`]).
    Reshape,
    /// Axis `i` of the result is axis `perm[i]` of `x`. A view.
    Permute {
        perm: Vec<usize>,
    },
    /// `x[.., start, start + step, ..]` along `axis`. The result gives the number of elements. A view.
    Slice {
        axis: usize,
        start: Dim,
        step: i64,
    },
    /// `x` broadcast to the shape of the result (new axes in front). A view.
    Expand,
    /// The same value, stored contiguously in its own memory.
    Copy,

    Collective(Collective),

    /// An op that the importer does not support. It can be planned but not run. `attributes` describes its
    /// non-tensor arguments, for people.
    Opaque {
        name: String,
        attributes: String,
    },
    Custom(CustomId),
}

/// The dtype of the result of [`Op::MatMul`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProductResult {
    /// The dtype of the operands: the sums are rounded.
    Rounded,
    /// The accumulation dtype f32, for operands of f16 or bf16. A bias or a factor can be applied to the sums
    /// before they are rounded.
    Unrounded,
}

impl Op {
    /// A matrix product whose result has the dtype of its operands.
    pub const MATMUL: Op = Op::MatMul { result: ProductResult::Rounded };
    /// A matrix product of f16 or bf16 whose sums stay in f32.
    pub const MATMUL_UNROUNDED: Op = Op::MatMul { result: ProductResult::Unrounded };

    pub fn is_matmul(&self) -> bool {
        matches!(self, Op::MatMul { .. })
    }
    /// Whether the result shares the memory of the first operand wherever the layout allows it.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand)
    }
    /// Whether [`Op::Permuted`] can contain this op.
    pub fn is_permutable(&self) -> bool {
        self.permuted_results() > 0
    }
    /// The number of results that [`Op::Permuted`] permutes, counted from the first.
    pub fn permuted_results(&self) -> usize {
        match self {
            Op::Attention { .. } => 1,
            Op::AttentionGradient { .. } => 3,
            _ => 0,
        }
    }
    /// Whether each element of the result depends only on the elements of the operands at the same position,
    /// after broadcasting.
    pub fn is_element_wise(&self) -> bool {
        self.operand_use(0) == OperandUse::Element
    }
    pub fn is_opaque(&self) -> bool {
        self.operand_use(0) == OperandUse::Unknown
    }
    /// Whether it divides integers if its result has this dtype; a zero divisor is then a run-time error.
    pub fn divides_integers(&self, dtype: DType) -> bool {
        matches!(self.facts().rejected_data, RejectedData::ZeroDivisor { .. }) && !dtype.is_float()
    }
    /// Whether it is a map node of a [loop](crate::DispatchForm::Loop): it is element-wise, or constant over all
    /// positions.
    pub fn fits_map(&self) -> bool {
        self.is_element_wise() || matches!(self, Op::Full(_))
    }

    /// The op with its scalar, if it has one, as a value of this dtype. Integers wrap, so that every backend
    /// uses the same value.
    pub(crate) fn with_scalar_dtype(self, dtype: DType) -> Op {
        match self {
            Op::Full(s) => Op::Full(s.wrap_to(dtype)),
            Op::BinaryScalar { op, scalar, scalar_left } => {
                Op::BinaryScalar { op, scalar: scalar.wrap_to(dtype), scalar_left }
            }
            Op::Pad { low, value } => Op::Pad { low, value: value.wrap_to(dtype) },
            op => op,
        }
    }

    /// The operands that index the first operand, for a node with `operands` operands: pairs of the operand's
    /// position and the axis that it indexes.
    pub fn index_operands(&self, operands: usize) -> Vec<(usize, usize)> {
        let indices = (0..operands).filter_map(|k| match self.operand_use(k) {
            OperandUse::Index { axis, first } => Some((k, axis + k - first)),
            _ => None,
        });
        indices.collect()
    }

    /// The operands whose elements are the elements of the results, for a node with `operands` operands. `None`
    /// if the op computes elements. The value of an [`Op::Pad`], and the zeros of a collective, are of no operand.
    pub fn moved_operands(&self, operands: usize) -> Option<Vec<usize>> {
        let others = |k: &usize| !matches!(self.operand_use(*k), OperandUse::Index { .. });
        let moved: Vec<usize> = (0..operands).filter(others).collect();
        moved.iter().all(|&k| self.operand_use(k).is_moved()).then_some(moved)
    }

    pub fn operand_use(&self, k: usize) -> OperandUse {
        self.facts().operands[k.min(2)]
    }

    pub fn facts(&self) -> OpFacts<'_> {
        use ExtentRule::*;
        use OperandUse::*;
        use RejectedData::*;
        use RoundingEffect::*;
        let row = |operands, rounding, results, cost, rejected_data, extents| OpFacts {
            operands,
            rounding,
            results,
            cost,
            rejected_data,
            extents,
            group: None,
        };
        let single = |operands, rounding, rejected_data, extents| {
            row(operands, [rounding; 2], 1, OpCost::Bytes, rejected_data, extents)
        };
        let in_group = |group, facts| OpFacts { group, ..facts };
        let index = |axis: &usize, first| Index { axis: *axis, first };
        match self {
            Op::Full(_) | Op::Iota { .. } => single([Absent; 3], Keeps, Nothing, Any),
            Op::Unary(op) => single([Element; 3], op.rounding(), Nothing, Any),
            Op::Binary(op) => single([Element; 3], op.rounding(), op.rejected_data(None), Any),
            Op::BinaryScalar { op, scalar, scalar_left } => {
                let divisor = (!scalar_left).then_some(*scalar);
                single([Element; 3], op.rounding(), op.rejected_data(divisor), Any)
            }
            Op::Select => single([Element; 3], Keeps, Nothing, Any),
            Op::Cast => single([Element; 3], Converts, Nothing, Any),
            // Adjacent numbers may have bits that stand for distant numbers of the other dtype.
            Op::Bitcast => single([Element; 3], Steps, Nothing, Any),

            Op::MatMul { .. } => row([Combined; 3], [Accumulates; 2], 1, OpCost::Product, Nothing, Any),
            Op::GroupedMatMul => {
                row([Combined, Matrices, Counts], [Accumulates; 2], 1, OpCost::GroupedProduct, Positions, Any)
            }
            Op::Route(route) => {
                let ids = ExpertIds { experts: route.experts };
                let facts = row([ids, Absent, Absent], [Steps; 2], 5, OpCost::Sort, Positions, Any);
                in_group(route.group(), facts)
            }
            Op::Reduce { op, axes, .. } => single([Combined; 3], op.rounding(), op.rejected_data(axes), Any),
            Op::ArgReduce { axis, .. } => {
                single([Combined; 3], Steps, NoElements { axes: std::slice::from_ref(axis) }, Any)
            }
            Op::CumSum { .. } | Op::Softmax { .. } => single([Row; 3], Accumulates, Nothing, Any),
            Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::RotaryEmbedding { .. } => {
                single([Row, Combined, Combined], Accumulates, Nothing, Any)
            }
            Op::Attention { bounds, log_sum_exp, .. } => {
                let results = 1 + usize::from(*log_sum_exp);
                row([Combined; 3], [Accumulates; 2], results, OpCost::Attention { bounds }, Nothing, Any)
            }
            Op::AttentionGradient { bounds, .. } => {
                row([Combined; 3], [Accumulates; 2], 3, OpCost::AttentionGradient { bounds }, Nothing, Any)
            }
            Op::Permuted { op, .. } => op.facts(),

            Op::Take { axis } | Op::Index { axis } => {
                let indices = index(axis, 1);
                single([Selected, indices, indices], Keeps, Positions, Any)
            }
            Op::GatherElements { axis } => {
                let operands = [Selected, index(axis, 1), Absent];
                let extents = IndexAtMostOperand { except: *axis };
                single(operands, Keeps, Positions, extents)
            }
            Op::ScatterElements { axis, combine } => {
                let updated = Updated { is_read: combine.is_some() };
                let rounding = combine.map_or(Keeps, ReductionKind::rounding);
                let operands = [updated, index(axis, 1), Stored];
                let extents = IndexAtMostOperand { except: *axis };
                single(operands, rounding, Positions, extents)
            }
            Op::IndexAdd { axis } => {
                let updated = Updated { is_read: true };
                single([updated, index(axis, 1), Stored], Accumulates, Positions, Any)
            }
            Op::IndexPut { axis, accumulate } => {
                let rounding = if *accumulate { Accumulates } else { Keeps };
                let updated = Updated { is_read: *accumulate };
                single([updated, Stored, index(axis, 2)], rounding, Positions, Any)
            }

            // The sorted values are continuous in the operand; their positions are not.
            Op::TopK { axis, .. } => {
                row([Combined; 3], [Keeps, Steps], 2, OpCost::Sort, Nothing, AtMostOperand { axis: *axis })
            }
            Op::Sort { .. } => row([Combined; 3], [Keeps, Steps], 2, OpCost::Sort, Nothing, Any),

            Op::Concat { .. } | Op::Pad { .. } => single([Moved; 3], Keeps, Nothing, Any),
            Op::Shard { group, .. } => in_group(Some(*group), single([Selected; 3], Keeps, Nothing, Any)),
            Op::Reshape | Op::Permute { .. } | Op::Expand => single([Moved; 3], Keeps, Nothing, Any),
            Op::Slice { axis, start, step } => {
                let read = PositionsOfOperand { axis: *axis, start, step: *step };
                single([Moved; 3], Keeps, Nothing, read)
            }
            Op::Copy => single([Kept; 3], Keeps, Nothing, Any),

            Op::Collective(c) => {
                let first = if c.kind.facts().reduces { Combined } else { Moved };
                let two = c.kind.has_device_splits() || c.kind == CollectiveKind::ReduceRows;
                let results = if two { 2 } else { 1 };
                let weighted = matches!(c.kind, CollectiveKind::CombineRows | CollectiveKind::ReduceRows);
                let third = if weighted { Combined } else { Counts };
                let refuses = if c.kind.moves_by_data() { Positions } else { Nothing };
                let operands = [first, Counts, third];
                let facts = row(operands, [c.kind.rounding(); 2], results, OpCost::Bytes, refuses, Any);
                in_group(Some(c.group), facts)
            }
            Op::Opaque { .. } | Op::Custom(_) => {
                single([OperandUse::Unknown; 3], RoundingEffect::Unknown, Nothing, Any)
            }
        }
    }

    /// The group whose cells its results depend on: the group of a collective, an [`Op::Shard`] or an
    /// [`Op::Route`].
    pub fn group(&self) -> Option<GroupId> {
        self.facts().group
    }

    pub fn group_mut(&mut self) -> Option<&mut GroupId> {
        let group = self.group();
        match self {
            Op::Collective(c) => Some(&mut c.group),
            Op::Shard { group, .. } | Op::Route(Route { scope: RouteScope::Group(group), .. }) => Some(group),
            _ => {
                debug_assert_eq!(group, None, "the op has a group that cannot be changed");
                None
            }
        }
    }

    pub fn as_collective(&self) -> Option<&Collective> {
        match self {
            Op::Collective(c) => Some(c),
            _ => None,
        }
    }
}

/// The facts about an op that do not depend on the types of its operands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OpFacts<'a> {
    /// How the elements of the first operand, the second operand, and all further operands are used.
    pub operands: [OperandUse; 3],
    /// How the first result, and all further results, are rounded.
    pub rounding: [RoundingEffect; 2],
    /// The number of results. Programs may declare more for opaque and custom ops.
    pub results: usize,
    pub cost: OpCost<'a>,
    pub rejected_data: RejectedData<'a>,
    pub extents: ExtentRule<'a>,
    /// As [`Op::group`].
    pub group: Option<GroupId>,
}

/// How the elements of an operand are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperandUse {
    Absent,
    /// Each element affects only the element of the result at its position.
    Element,
    /// Each element is the element of the result at its position.
    Kept,
    /// The elements are elements of the result, at other positions.
    Moved,
    /// As [`Moved`](Self::Moved), but only the elements that are in the result are read.
    Selected,
    /// The elements are the elements of the result at their positions, except where elements of a
    /// [`Stored`](Self::Stored) operand replace them, or modify them if `is_read`.
    Updated {
        is_read: bool,
    },
    /// The elements replace or modify elements of the [`Updated`](Self::Updated) operand.
    Stored,
    /// Operand `k` holds positions along the axis `axis + k - first` of the first operand.
    Index {
        axis: usize,
        first: usize,
    },
    /// The elements are the numbers of rows of the first operand that belong together, or positions of rows.
    Counts,
    /// The elements are the numbers of experts, below `experts`.
    ExpertIds {
        experts: u32,
    },
    /// All of a row is read before elements of the same row of the result are written. Rows of operand and
    /// result have the same positions.
    Row,
    /// Several elements affect one element of the result, and may be read after other elements of the result
    /// are written.
    Combined,
    /// As [`Combined`](Self::Combined). The elements form matrices, of which at most one is read for each row
    /// of the first operand.
    Matrices,
    Unknown,
}

impl OperandUse {
    /// Whether the elements are elements of the result, unless they are left out or replaced.
    pub fn is_moved(self) -> bool {
        use OperandUse::*;
        match self {
            Kept | Moved | Selected | Stored | Updated { is_read: false } => true,
            Absent
            | Element
            | Updated { is_read: true }
            | Index { .. }
            | Counts
            | ExpertIds { .. }
            | Row
            | Combined
            | Matrices
            | Unknown => false,
        }
    }

    /// Whether a result with the same shape and element size may lie on the operand, element on element.
    pub fn may_be_overwritten(self) -> bool {
        use OperandUse::*;
        match self {
            Element | Kept | Updated { .. } | Row => true,
            Absent
            | Moved
            | Selected
            | Stored
            | Index { .. }
            | Counts
            | ExpertIds { .. }
            | Combined
            | Matrices
            | Unknown => false,
        }
    }
}

/// The computation of an op, for cost estimates, in addition to the bytes that it moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpCost<'a> {
    /// Nothing that takes longer than moving the bytes.
    Bytes,
    Product,
    /// Products of groups of rows.
    GroupedProduct,
    Attention {
        bounds: &'a [AttentionBound],
    },
    /// The gradients of attention within these bounds. The operands of the attention follow three other
    /// operands.
    AttentionGradient {
        bounds: &'a [AttentionBound],
    },
    Sort,
}

/// The values of operands that are a run-time error.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RejectedData<'a> {
    Nothing,
    /// Positions or counts that are out of range.
    Positions,
    /// A zero divisor, if the operands are integers. The divisor is an operand, or this scalar.
    ZeroDivisor {
        scalar: Option<Scalar>,
    },
    /// No value is an error, but a reduction over axes without elements is.
    NoElements {
        axes: &'a [usize],
    },
}

/// The extents that are an error although they satisfy the typing rule, because the op would read outside of
/// its first operand. Whether they do may depend on the sizes of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ExtentRule<'a> {
    Any,
    /// Every position of the result along `axis` reads the position `start + i * step` of the operand.
    PositionsOfOperand {
        axis: usize,
        start: &'a Dim,
        step: i64,
    },
    /// The results have at most as many positions along `axis` as the operand.
    AtMostOperand {
        axis: usize,
    },
    /// The second operand has at most as many positions as the first along all axes but one.
    IndexAtMostOperand {
        except: usize,
    },
}

named_enum! {
    /// Element-wise functions of one operand. All keep the dtype, except `is_nan` and `is_finite`, whose result
    /// is bool. `not` is logical on bool and bitwise on integers. NaN gives NaN, except for `sign`, which is 0
    /// as in PyTorch. `relu` keeps the sign of zero.
    UnaryOp {
        Neg = "neg", Abs = "abs", Sign = "sign", Not = "not",
        Exp = "exp", Log = "log", Sqrt = "sqrt", Rsqrt = "rsqrt", Reciprocal = "reciprocal",
        Sin = "sin", Cos = "cos", Tanh = "tanh", Erf = "erf",
        Floor = "floor", Ceil = "ceil", Round = "round", Trunc = "trunc",
        Relu = "relu", Sigmoid = "sigmoid", Silu = "silu",
        /// With the error function.
        Gelu = "gelu",
        GeluTanh = "gelu_tanh",
        IsNan = "is_nan", IsFinite = "is_finite",
    }
}

named_enum! {
    /// Element-wise functions of two operands of one dtype. The result of comparisons is bool. `and`, `or`,
    /// `xor` are logical on bool and bitwise on integers. `div` of integers is not defined (cast first, or use
    /// `floor_div`). `rem` has the sign of the divisor. `floor_div` is the floor of the exact quotient; a zero
    /// result has the sign of the quotient. `floor_div` by zero is the quotient for floats and an error for
    /// integers. `atan2` of `x` and `y` is the angle of the point `(y, x)`, which is the argument order of C
    /// and PyTorch. `max` and `min` are NaN if an operand is, and the first of equal operands. `shl` drops bits
    /// and `shr` keeps the sign: they are the product and the floored quotient of `x` and 2 to the power of `y`.
    /// A negative `y` counts as the number of bits, as in PyTorch.
    BinaryOp {
        Add = "add", Sub = "sub", Mul = "mul", Div = "div", FloorDiv = "floor_div", Rem = "rem",
        Pow = "pow", Atan2 = "atan2", Max = "max", Min = "min", And = "and", Or = "or", Xor = "xor",
        Shl = "shl", Shr = "shr",
        Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt", Ge = "ge",
    }
}

impl BinaryOp {
    pub fn supports_dtype(self, dtype: DType) -> bool {
        use BinaryOp::*;
        match self {
            And | Or | Xor => !dtype.is_float(),
            Eq | Ne | Lt | Le | Gt | Ge => true,
            _ if dtype.is_storage_float() => false,
            Div | Atan2 => dtype.is_float(),
            Max | Min => true,
            Shl | Shr => !dtype.is_float() && dtype != DType::Bool,
            Add | Sub | Mul | FloorDiv | Rem | Pow => dtype != DType::Bool,
        }
    }
    pub fn rounding(self) -> RoundingEffect {
        use BinaryOp::*;
        match self {
            Max | Min | And | Or | Xor | Shl | Shr => RoundingEffect::Keeps,
            Add | Sub | Mul | Div | Pow => RoundingEffect::Rounds,
            Rem | Atan2 => RoundingEffect::Jumps,
            FloorDiv | Eq | Ne | Lt | Le | Gt | Ge => RoundingEffect::Steps,
        }
    }
    /// The rejected values of the divisor: this scalar, or an operand if `None`.
    fn rejected_data(self, scalar: Option<Scalar>) -> RejectedData<'static> {
        match self {
            BinaryOp::FloorDiv | BinaryOp::Rem => RejectedData::ZeroDivisor { scalar },
            _ => RejectedData::Nothing,
        }
    }
    /// Whether the result is bool whatever the operands are.
    pub fn is_comparison(self) -> bool {
        use BinaryOp::*;
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }
}

impl UnaryOp {
    pub fn supports_dtype(self, dtype: DType) -> bool {
        use UnaryOp::*;
        match self {
            Not => !dtype.is_float(),
            IsNan | IsFinite => dtype.is_float(),
            _ if dtype.is_storage_float() => false,
            Neg | Abs | Sign | Relu => dtype != DType::Bool,
            _ => dtype.is_float(),
        }
    }
    pub fn rounding(self) -> RoundingEffect {
        use UnaryOp::*;
        match self {
            Neg | Abs | Not | Relu => RoundingEffect::Keeps,
            Sign | Floor | Ceil | Round | Trunc | IsNan | IsFinite => RoundingEffect::Steps,
            Exp | Log | Sqrt | Rsqrt | Reciprocal | Sin | Cos | Tanh | Erf | Sigmoid | Gelu | GeluTanh => {
                RoundingEffect::Rounds
            }
            // The product of the operand with a rounded function of it.
            Silu => RoundingEffect::Accumulates,
        }
    }
    /// Whether the result is bool whatever the operand is.
    pub fn is_predicate(self) -> bool {
        matches!(self, UnaryOp::IsNan | UnaryOp::IsFinite)
    }
}

named_enum! {
    /// How a reduction combines elements. `sum`, `mean` and `prod` of floats accumulate in f32 or wider. `sum`
    /// and `prod` of bool and small integers give i64. `any` and `all` give bool.
    ReductionKind { Sum = "sum", Mean = "mean", Prod = "prod", Max = "max", Min = "min", Any = "any", All = "all" }
}

impl CollectiveKind {
    pub fn rounding(&self) -> RoundingEffect {
        match self.reduce_op() {
            Some(CollectiveReduceOp::Sum | CollectiveReduceOp::Avg | CollectiveReduceOp::Prod) => {
                RoundingEffect::Accumulates
            }
            None if matches!(self, CollectiveKind::CombineRows | CollectiveKind::ReduceRows) => {
                RoundingEffect::Accumulates
            }
            Some(CollectiveReduceOp::Max | CollectiveReduceOp::Min) | None => RoundingEffect::Keeps,
        }
    }
}

impl ReductionKind {
    pub fn rounding(self) -> RoundingEffect {
        match self {
            ReductionKind::Sum | ReductionKind::Mean | ReductionKind::Prod => RoundingEffect::Accumulates,
            ReductionKind::Max | ReductionKind::Min => RoundingEffect::Keeps,
            ReductionKind::Any | ReductionKind::All => RoundingEffect::Steps,
        }
    }
    /// The extremum of no elements is an error.
    fn rejected_data(self, axes: &[usize]) -> RejectedData<'_> {
        match self {
            ReductionKind::Max | ReductionKind::Min => RejectedData::NoElements { axes },
            ReductionKind::Sum
            | ReductionKind::Mean
            | ReductionKind::Prod
            | ReductionKind::Any
            | ReductionKind::All => RejectedData::Nothing,
        }
    }
}

named_enum! {
    /// The element that an arg-reduction ([`Op::ArgReduce`]) selects.
    ArgOp { Max = "argmax", Min = "argmin" }
}
