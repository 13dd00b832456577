//! The closed set of ops.
//!
//! Element-wise ops broadcast their operands as NumPy does. Ops whose result shape is a free parameter
//! (`reshape`, `expand`, `slice`, `full`, `iota`, `topk`, `pad`, opaque and custom ops) take it from the
//! declared result type; for all others [`crate::infer`] derives it. Axes count from 0 and are never
//! negative. Every op is pure.
//!
//! [`Op::facts`] is the table of what passes, planner and backends must know of each op. It has a row for every op and a
//! value in every column, so a new op does not compile without them. Facts are part of the contract of an op: kernels of
//! every backend keep them. The check of plans has its own rules for results that lie on operands, and does not read them.

use crate::attention::AttentionBound;
use crate::collective::{Collective, CollectiveKind, CollectiveReduceOp};
use crate::dim::Dim;
use crate::ids::{CustomId, GroupId};
use crate::named_enum;
use crate::numerics::RoundingEffect;
use crate::types::{DType, FloatAttribute, Scalar};

/// What a node computes. Operands are written `x`, `y`, … in the order of the node's inputs.
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
    /// `x op scalar`, or `scalar op x` when `scalar_left`. An integer is a value of the dtype of `x`.
    BinaryScalar {
        op: BinaryOp,
        scalar: Scalar,
        scalar_left: bool,
    },
    /// `cond ? x : y`, all three broadcast; `cond` is bool.
    Select,
    /// `x` converted to the dtype of the result: floats round to nearest even, float to integer truncates,
    /// to bool is `x != 0`. Beyond the range of i64 a float becomes its nearest end and NaN becomes 0, then
    /// narrower integers wrap.
    Cast,

    /// `x @ y` over the last two axes; leading axes broadcast. Accumulates in f32 (f64 for f64).
    MatMul,
    /// Matrix products of groups of rows, each with a matrix of its own, as a mixture of experts has them. Operands:
    /// `x [rows, k]`, `y [groups, k, n]` and the `ends [groups]` of the groups (i32 or i64): group `g` has the rows from
    /// `ends[g - 1]`, or 0 for the first, up to `ends[g]`, and each of them is `x @ y[g]` in the result `[rows, n]`,
    /// accumulated as in [`Op::MatMul`]. Groups may be empty; rows behind the last end are zero. An end below the one
    /// before it, or below 0, or beyond the rows, is an error of the run. With `x [m, k]` and `y [k, n]` the groups
    /// divide K: the result `[groups, m, n]` has the product of each group's columns of `x` and rows of `y`.
    GroupedMatMul,
    /// Reduction over `axes` (ascending); `keep` leaves them with extent 1.
    Reduce {
        op: ReductionKind,
        axes: Vec<usize>,
        keep: bool,
    },
    /// Arg-reduction: index (i64) of the largest or smallest element along `axis`, the first of equals.
    ArgReduce {
        op: ArgOp,
        axis: usize,
        keep: bool,
    },
    /// Inclusive cumulative sum along `axis`.
    CumSum {
        axis: usize,
    },
    /// Softmax along `axis`, computed in f32 or wider; its logarithm when `log`.
    Softmax {
        axis: usize,
        log: bool,
    },
    /// `x / sqrt(mean(x²) + eps)` over the last `axes` axes, computed in f32 or wider; an optional second
    /// operand of those axes' shape multiplies it. With `round_first` the normalised value is rounded to
    /// the dtype of the result before the weight multiplies it (Hugging Face), else after (PyTorch).
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
    /// Scaled dot-product attention: `q [.., h, l, e]`, `k [.., g, s, e]`, `v [.., g, s, f]`, `g` divides
    /// `h`. Scores are `q @ kᵀ * scale`, and with a `cap` then `cap * tanh(scores / cap)`. An optional
    /// operand after `v` is a bool mask (true attends) or a float that is added to the scores, and
    /// broadcasts to `[.., h, l, s]`. Behind it stands an i32 or i64 operand for each of the `bounds` that
    /// has one, which broadcasts to `[.., h, l, 1]`. A row sees the columns that the mask and all bounds let
    /// it see; see [`crate::attention`]. A row that sees nothing is zero; what a row does not see adds
    /// nothing to it, also where `v` is NaN there. With a `sink` the last operand, a float that broadcasts to
    /// `[.., h, l, 1]`, is one more score of each row, neither scaled nor hidden, whose value is zero. With
    /// `log_sum_exp` there is a second result `[.., h, l]`, f32 (f64 for f64): the natural logarithm of the sum of the
    /// exponentials of the scores that a row sees, its sink among them. It is minus infinity for a row that sees nothing.
    Attention {
        scale: FloatAttribute,
        cap: Option<FloatAttribute>,
        bounds: Vec<AttentionBound>,
        sink: bool,
        log_sum_exp: bool,
    },
    /// The gradients of [`Op::Attention`] without cap and sink, for its queries, keys and values: three results with the
    /// types of these. Operands: the gradient of the result, the result, the log-sum-exp, then the operands of the
    /// attention. With the weights `p = exp(scores - log_sum_exp)`, which are 0 where a row does not see the column and
    /// in rows whose log-sum-exp is minus infinity, `d = p * (gradient @ vᵀ - sum(gradient * result))`: the gradients are
    /// `scale * d @ k`, `scale * dᵀ @ q` and `pᵀ @ gradient`, the latter two summed over the query heads that share a head
    /// of keys. Operands that are not finite may make all gradients of their heads NaN, also where they are not seen.
    AttentionGradient {
        scale: FloatAttribute,
        bounds: Vec<AttentionBound>,
    },
    /// What `op` gives, stored with its axes in another order: axis `i` of the result is axis `perm[i]` of that. `op` is
    /// [`Op::Attention`], whose first result is permuted, or [`Op::AttentionGradient`], all of whose results are. Their
    /// kernels store through strides, so that a permuted result costs no copy.
    Permuted {
        op: Box<Op>,
        perm: Vec<usize>,
    },
    /// Rotary position embedding of `x [.., e]`: pairs of the first `width` elements of each row are turned by angles whose
    /// cosines and sines are given, the rest stays. Pair `i` is the elements `i` and `i + width / 2`, or `2i` and
    /// `2i + 1` where they are `interleaved`; `(a, b)` becomes `(a * cos - b * sin, b * cos + a * sin)`. Operands: `x`,
    /// `cos` and `sin`, of one shape, which have a number for each of the `width` elements or one for each pair, and whose
    /// leading axes broadcast to those of `x`. Their dtype is that of `x` or a wider one: each product and each sum is
    /// rounded to it, and the result to that of `x`, as where these are nodes of their own.
    RotaryEmbedding {
        width: usize,
        interleaved: bool,
    },

    /// `x` indexed along `axis` by an integer tensor of any rank, whose axes replace that axis. Here and in
    /// the ops below, an index that is negative or beyond its axis is an error of the run; where a framework
    /// lets indices count from the end, its frontend adds the extent to them.
    Take {
        axis: usize,
    },
    /// `x` indexed by several integer tensors that broadcast together, at `axis`, `axis + 1`, …; their
    /// broadcast axes replace those. Operands: `x`, then the indices.
    Index {
        axis: usize,
    },
    /// `result[i…] = x[i…]` with coordinate `axis` replaced by `y[i…]`.
    GatherElements {
        axis: usize,
    },
    /// `x` with `src[i…]` stored (or combined) at `i…` with coordinate `axis` replaced by `index[i…]`.
    /// Operands: `x`, `index`, `src`. On equal indices the last in row-major order wins a store.
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

    /// The `k` first elements along `axis` in sorted order and their positions (i64): two results, `k` is
    /// the extent of the results' axis. Equal elements keep their order.
    TopK {
        axis: usize,
        largest: bool,
    },
    /// All elements along `axis` sorted, and their positions (i64): two results. Stable.
    Sort {
        axis: usize,
        descending: bool,
    },

    /// All operands one after another along `axis`.
    Concat {
        axis: usize,
    },
    /// `x` with `low[i]` elements before and enough after each axis to fill the result, of value `value`.
    /// A negative `low` crops.
    Pad {
        low: Vec<Dim>,
        value: Scalar,
    },
    /// This rank's piece of `x`: `axis` is divided into as many equal pieces as a cell of the group has ranks, and a rank gets
    /// the piece of its position in its cell. Nothing is communicated, and the result has memory of its own.
    Shard {
        axis: usize,
        group: GroupId,
    },

    /// The same elements in row-major order under the result's shape. A view where the layout of `x`
    /// allows it (see [`crate::layout`]).
    Reshape,
    /// Axis `i` of the result is axis `perm[i]` of `x`. A view.
    Permute {
        perm: Vec<usize>,
    },
    /// `x[.., start, start + step, ..]` along `axis`, as many as the result has. A view.
    Slice {
        axis: usize,
        start: Dim,
        step: i64,
    },
    /// `x` broadcast to the shape of the result (new axes in front). A view.
    Expand,
    /// The same value, stored contiguously in memory of its own.
    Copy,

    Collective(Collective),

    /// An op that the importer does not know: planned, but not run. `attributes` is what is known of its
    /// non-tensor arguments, for people.
    Opaque {
        name: String,
        attributes: String,
    },
    Custom(CustomId),
}

impl Op {
    /// Whether the result shares the memory of the first operand wherever the layout allows it.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand)
    }
    /// Whether it may be the op of [`Op::Permuted`].
    pub fn is_permutable(&self) -> bool {
        self.permuted_results() > 0
    }
    /// How many of its results [`Op::Permuted`] permutes, from the first on.
    pub fn permuted_results(&self) -> usize {
        match self {
            Op::Attention { .. } => 1,
            Op::AttentionGradient { .. } => 3,
            _ => 0,
        }
    }
    /// Whether each element of the result is made of the elements of the operands at the same position, broadcast to
    /// its shape.
    pub fn is_element_wise(&self) -> bool {
        self.operand_use(0) == OperandUse::Element
    }
    pub fn is_opaque(&self) -> bool {
        self.operand_use(0) == OperandUse::Unknown
    }
    /// Whether it divides integers, where its result is of this dtype: a divisor of zero is an error of the run.
    pub fn divides_integers(&self, dtype: DType) -> bool {
        matches!(self.facts().rejected_data, RejectedData::ZeroDivisor { .. }) && !dtype.is_float()
    }
    /// Whether it can be a node of a [map](crate::DispatchForm::Map): it is element-wise, or gives the same at each position.
    pub fn fits_map(&self) -> bool {
        self.is_element_wise() || matches!(self, Op::Full(_))
    }

    /// The op with its number, if it has one, as a value of this dtype: integers wrap, so that every backend computes
    /// with the same one.
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

    /// The operands that index the first operand, by position, each with the axis that it indexes; of a node with this many
    /// operands.
    pub fn index_operands(&self, operands: usize) -> Vec<(usize, usize)> {
        let axis = |k: usize| match self.operand_use(k) {
            OperandUse::Index { axis, first } => Some((k, axis + k - first)),
            _ => None,
        };
        (0..operands).filter_map(axis).collect()
    }

    pub fn operand_use(&self, k: usize) -> OperandUse {
        self.facts().operands[k.min(2)]
    }

    pub fn facts(&self) -> OpFacts<'_> {
        use OperandUse::*;
        use RejectedData::*;
        use RoundingEffect::*;
        let row = |operands, rounding, results, cost, refuses| OpFacts {
            operands,
            rounding,
            results,
            cost,
            rejected_data: refuses,
        };
        let index = |axis: &usize, first| Index { axis: *axis, first };
        match self {
            Op::Full(_) | Op::Iota { .. } => row([Absent; 3], [Keeps; 2], 1, OpCost::Bytes, Nothing),
            Op::Unary(op) => row([Element; 3], [op.rounding(); 2], 1, OpCost::Bytes, Nothing),
            Op::Binary(op) => row([Element; 3], [op.rounding(); 2], 1, OpCost::Bytes, op.rejected_data(None)),
            Op::BinaryScalar { op, scalar, scalar_left } => {
                let divisor = (!scalar_left).then_some(*scalar);
                row([Element; 3], [op.rounding(); 2], 1, OpCost::Bytes, op.rejected_data(divisor))
            }
            Op::Select => row([Element; 3], [Keeps; 2], 1, OpCost::Bytes, Nothing),
            Op::Cast => row([Element; 3], [Converts; 2], 1, OpCost::Bytes, Nothing),

            Op::MatMul => row([Combined; 3], [Accumulates; 2], 1, OpCost::Product, Nothing),
            Op::GroupedMatMul => {
                row([Combined, Matrices, Counts], [Accumulates; 2], 1, OpCost::GroupedProduct, Positions)
            }
            Op::Reduce { op, axes, .. } => {
                row([Combined; 3], [op.rounding(); 2], 1, OpCost::Bytes, op.rejected_data(axes))
            }
            Op::ArgReduce { axis, .. } => row(
                [Combined; 3],
                [Steps; 2],
                1,
                OpCost::Bytes,
                NoElements { axes: std::slice::from_ref(axis) },
            ),
            Op::CumSum { .. } | Op::Softmax { .. } => {
                row([Row; 3], [Accumulates; 2], 1, OpCost::Bytes, Nothing)
            }
            Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::RotaryEmbedding { .. } => {
                row([Row, Combined, Combined], [Accumulates; 2], 1, OpCost::Bytes, Nothing)
            }
            Op::Attention { bounds, log_sum_exp, .. } => {
                let results = 1 + usize::from(*log_sum_exp);
                row([Combined; 3], [Accumulates; 2], results, OpCost::Attention { bounds }, Nothing)
            }
            Op::AttentionGradient { bounds, .. } => {
                row([Combined; 3], [Accumulates; 2], 3, OpCost::AttentionGradient { bounds }, Nothing)
            }
            Op::Permuted { op, .. } => op.facts(),

            Op::Take { axis } | Op::Index { axis } | Op::GatherElements { axis } => {
                let indices = index(axis, 1);
                row([Selected, indices, indices], [Keeps; 2], 1, OpCost::Bytes, Positions)
            }
            Op::ScatterElements { axis, combine } => {
                let (updated, rounding) =
                    (Updated { is_read: combine.is_some() }, combine.map_or(Keeps, ReductionKind::rounding));
                row([updated, index(axis, 1), Stored], [rounding; 2], 1, OpCost::Bytes, Positions)
            }
            Op::IndexAdd { axis } => {
                let updated = Updated { is_read: true };
                row([updated, index(axis, 1), Stored], [Accumulates; 2], 1, OpCost::Bytes, Positions)
            }
            Op::IndexPut { axis, accumulate } => {
                let rounding = if *accumulate { Accumulates } else { Keeps };
                let updated = Updated { is_read: *accumulate };
                row([updated, Stored, index(axis, 2)], [rounding; 2], 1, OpCost::Bytes, Positions)
            }

            // The values in sorted order are continuous in the operand, their positions are not.
            Op::TopK { .. } | Op::Sort { .. } => row([Combined; 3], [Keeps, Steps], 2, OpCost::Sort, Nothing),

            Op::Concat { .. } | Op::Pad { .. } => row([Moved; 3], [Keeps; 2], 1, OpCost::Bytes, Nothing),
            Op::Shard { .. } => row([Selected; 3], [Keeps; 2], 1, OpCost::Bytes, Nothing),
            Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand => {
                row([Moved; 3], [Keeps; 2], 1, OpCost::Bytes, Nothing)
            }
            Op::Copy => row([Kept; 3], [Keeps; 2], 1, OpCost::Bytes, Nothing),

            Op::Collective(c) => {
                let first = if c.kind.facts().reduces { Combined } else { Moved };
                let results = if c.kind.has_device_splits() { 2 } else { 1 };
                row([first, Counts, Counts], [c.kind.rounding(); 2], results, OpCost::Bytes, Nothing)
            }
            Op::Opaque { .. } | Op::Custom(_) => {
                row([OperandUse::Unknown; 3], [RoundingEffect::Unknown; 2], 1, OpCost::Bytes, Nothing)
            }
        }
    }

    /// The group whose cells its results depend on: that of a collective, or of a [`Op::Shard`].
    pub fn group(&self) -> Option<GroupId> {
        match self {
            Op::Collective(c) => Some(c.group),
            Op::Shard { group, .. } => Some(*group),
            _ => None,
        }
    }

    pub fn group_mut(&mut self) -> Option<&mut GroupId> {
        match self {
            Op::Collective(c) => Some(&mut c.group),
            Op::Shard { group, .. } => Some(group),
            _ => None,
        }
    }

    pub fn as_collective(&self) -> Option<&Collective> {
        match self {
            Op::Collective(c) => Some(c),
            _ => None,
        }
    }
}

/// What is known of an op, whatever the types of its operands are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OpFacts<'a> {
    /// How the elements of the first operand, of the second, and of each further one are used.
    pub operands: [OperandUse; 3],
    /// How the first result is rounded, and each further one.
    pub rounding: [RoundingEffect; 2],
    /// How many results it has. Programs may declare more for ops of which nothing is known.
    pub results: usize,
    pub cost: OpCost<'a>,
    pub rejected_data: RejectedData<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperandUse {
    Absent,
    /// Each makes the elements of the result at its position, and no others.
    Element,
    /// Each is the element of the result at its position.
    Kept,
    /// They are elements of the result, at other positions.
    Moved,
    /// As [`Moved`](Self::Moved), and only those are read that the result has.
    Selected,
    /// They are the elements of the result at their positions, except where those of a [`Stored`](Self::Stored) operand
    /// replace them, or change them if they are read.
    Updated {
        is_read: bool,
    },
    /// They replace or change elements of the [`Updated`](Self::Updated) operand.
    Stored,
    /// Operand `k` holds positions along the axis `axis + k - first` of the first operand.
    Index {
        axis: usize,
        first: usize,
    },
    /// They say how many rows of the first operand belong together.
    Counts,
    /// All of a row is read before the result has elements there, and these lie where those of the operand do.
    Row,
    /// Several of them make one element of the result, and may be read after others of it are written.
    Combined,
    /// As [`Combined`](Self::Combined); they are matrices, of which at most one is read for each row of the first operand.
    Matrices,
    Unknown,
}

impl OperandUse {
    /// Whether a result of the same shape and size of elements may lie on the operand, element on element.
    pub fn may_be_overwritten(self) -> bool {
        use OperandUse::*;
        match self {
            Element | Kept | Updated { .. } | Row => true,
            Absent | Moved | Selected | Stored | Index { .. } | Counts | Combined | Matrices | Unknown => {
                false
            }
        }
    }
}

/// What an op computes, besides the bytes that it moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpCost<'a> {
    /// Nothing that takes longer than moving its bytes.
    Bytes,
    Product,
    /// Products of groups of rows.
    GroupedProduct,
    Attention {
        bounds: &'a [AttentionBound],
    },
    /// The gradients of attention within these bounds, whose operands follow three others.
    AttentionGradient {
        bounds: &'a [AttentionBound],
    },
    Sort,
}

/// The data of operands that are an error of the run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RejectedData<'a> {
    Nothing,
    /// Positions or counts that are out of range.
    Positions,
    /// A divisor of zero, where the operands are integers. The divisor is an operand, or this scalar.
    ZeroDivisor {
        scalar: Option<Scalar>,
    },
    /// None, but axes without elements.
    NoElements {
        axes: &'a [usize],
    },
}

named_enum! {
    /// Element-wise functions of one operand. All keep the dtype, but `is_nan` and `is_finite`, which give
    /// bool. `not` is logical on bool and bitwise on integers. NaN gives NaN, but for `sign`, which is 0
    /// as in PyTorch.
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
    /// Element-wise functions of two operands of one dtype. Comparisons give bool; `and`, `or`, `xor` are
    /// logical on bool and bitwise on integers; `div` of integers is not defined (cast first, or
    /// `floor_div`); `rem` has the sign of the divisor. `floor_div` is the floor of the exact quotient, of
    /// zeros with the sign of the quotient; by zero it is the quotient of floats and an error of integers.
    /// `atan2` of `x` and `y` is the angle of the point `(y, x)`, which is the order of C and PyTorch.
    /// `max` and `min` are NaN where an operand is, and the first of equals.
    BinaryOp {
        Add = "add", Sub = "sub", Mul = "mul", Div = "div", FloorDiv = "floor_div", Rem = "rem",
        Pow = "pow", Atan2 = "atan2", Max = "max", Min = "min", And = "and", Or = "or", Xor = "xor",
        Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt", Ge = "ge",
    }
}

impl BinaryOp {
    pub fn supports_dtype(self, dtype: DType) -> bool {
        use BinaryOp::*;
        match self {
            And | Or | Xor => !dtype.is_float(),
            Div | Atan2 => dtype.is_float(),
            Max | Min | Eq | Ne | Lt | Le | Gt | Ge => true,
            Add | Sub | Mul | FloorDiv | Rem | Pow => dtype != DType::Bool,
        }
    }
    pub fn rounding(self) -> RoundingEffect {
        use BinaryOp::*;
        match self {
            Max | Min | And | Or | Xor => RoundingEffect::Keeps,
            Add | Sub | Mul | Div | Pow => RoundingEffect::Rounds,
            Rem | Atan2 => RoundingEffect::Jumps,
            FloorDiv | Eq | Ne | Lt | Le | Gt | Ge => RoundingEffect::Steps,
        }
    }
    /// What it refuses with this scalar as its divisor, or with an operand.
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
            // A product with a function that is rounded.
            Silu => RoundingEffect::Accumulates,
        }
    }
    /// Whether the result is bool whatever the operand is.
    pub fn is_predicate(self) -> bool {
        matches!(self, UnaryOp::IsNan | UnaryOp::IsFinite)
    }
}

named_enum! {
    /// How a reduction combines elements. `sum`, `mean` and `prod` of floats accumulate in f32 or wider;
    /// `sum` and `prod` of bool and small integers give i64; `any` and `all` give bool.
    ReductionKind { Sum = "sum", Mean = "mean", Prod = "prod", Max = "max", Min = "min", Any = "any", All = "all" }
}

impl CollectiveKind {
    pub fn rounding(&self) -> RoundingEffect {
        match self.reduce_op() {
            Some(CollectiveReduceOp::Sum | CollectiveReduceOp::Avg | CollectiveReduceOp::Prod) => {
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
    /// What it refuses along these axes: the largest of no elements.
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
    /// Which element an arg-reduction ([`Op::ArgReduce`]) looks for.
    ArgOp { Max = "argmax", Min = "argmin" }
}
