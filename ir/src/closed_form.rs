//! Closed forms: facts about the elements of a value without running the program.
//!
//! Masks and positions are built from `full`, `iota` and a few integer ops. Their elements would need static
//! shapes, so two closed forms represent them instead: every element is one scalar, or element `i` of an
//! integer tensor is `start + Σ step[a] * i[a]`. Both work for symbolic extents. A comparison of two such
//! values is known if their difference has one sign over all positions.
//!
//! Invariants: a scalar is stored as its dtype represents it, and is not NaN. The elements of an affine value
//! fit its dtype. It has one step per axis, which is 0 along axes of extent 1, and at least one step is not 0.

pub mod scalar;

use crate::collective::{AllToAllSplits, CollectiveKind, CollectiveReduceOp};
use crate::dim::Dim;
use crate::entity::EntityMap;
use crate::graph::{Graph, ValueDef};
use crate::ids::ValueId;
use crate::op::{BinaryOp, Op, ReductionKind, UnaryOp};
use crate::symbol::SymbolTable;
use crate::tensor::Tensor;
use crate::types::{DType, FloatAttribute, Scalar, TensorType};

pub use scalar::{as_stored, is_stored_exactly};

/// The elements of a value in closed form (see the [module](self)).
#[derive(Clone, PartialEq, Debug)]
pub enum ClosedForm {
    Full(Scalar),
    /// The element at position `i` is `start + Σ step[a] * i[a]`.
    Affine(AffineForm),
}

/// An integer tensor that is affine in the position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AffineForm {
    pub start: i64,
    /// The increment along each axis.
    pub step: Vec<i64>,
}

/// The maximum number of elements of a constant that is examined.
const MAX_ELEMENTS: usize = 1 << 16;

#[derive(Clone, Copy)]
pub struct ClosedFormContext<'a> {
    pub graph: &'a Graph,
    pub known: &'a EntityMap<ValueId, Option<ClosedForm>>,
}

impl<'a> ClosedFormContext<'a> {
    fn closed_form(self, value: ValueId) -> Option<&'a ClosedForm> {
        self.known[value].as_ref()
    }
}

impl ClosedForm {
    pub fn of_graph(graph: &Graph) -> EntityMap<ValueId, Option<ClosedForm>> {
        let mut forms = EntityMap::new();
        for value in graph.values.values() {
            let form = match value.def {
                ValueDef::Input(input) => {
                    graph.inputs[input].data.as_ref().and_then(|data| ClosedForm::from_tensor(data))
                }
                ValueDef::Node(node, 0) if graph.nodes[node].outputs.len() == 1 => {
                    let node = &graph.nodes[node];
                    ClosedForm::of_node(
                        ClosedFormContext { graph, known: &forms },
                        &node.op,
                        &node.inputs,
                        &value.ty,
                    )
                }
                ValueDef::Node(..) => None,
            };
            forms.push(form);
        }
        forms
    }

    /// The least and the greatest element of an integer tensor of this shape, if it has elements.
    pub fn value_range(&self, shape: &[Dim]) -> Option<(Dim, Dim)> {
        let affine = match self {
            ClosedForm::Full(Scalar::Int(i)) => return Some((Dim::from(*i), Dim::from(*i))),
            ClosedForm::Full(_) => return None,
            ClosedForm::Affine(affine) => affine,
        };
        let mut min = Dim::from(affine.start);
        let mut max = min.clone();
        for (&step, extent) in affine.step.iter().zip(shape) {
            let moved = (extent.clone() - Dim::from(1)) * Dim::from(step);
            let end = if step < 0 { &mut min } else { &mut max };
            *end = end.clone() + moved;
        }
        Some((min, max))
    }

    pub fn as_full(&self) -> Option<Scalar> {
        match self {
            ClosedForm::Full(s) => Some(*s),
            ClosedForm::Affine(_) => None,
        }
    }

    /// The closed form of a constant: all elements equal, or an integer series along the last axis.
    pub fn from_tensor(tensor: &Tensor) -> Option<ClosedForm> {
        let n = tensor.numel();
        if n == 0 || n > MAX_ELEMENTS {
            return None;
        }
        let size = tensor.dtype().size();
        let first = &tensor.data()[..size];
        if tensor.data().chunks_exact(size).all(|e| e == first) {
            let x = tensor.get_f64(0);
            if x.is_nan() {
                return None;
            }
            return Some(ClosedForm::Full(match tensor.dtype() {
                DType::Bool => Scalar::Bool(x != 0.0),
                d if d.is_float() => Scalar::Float(FloatAttribute(x)),
                _ => Scalar::Int(tensor.to_i64()[0]),
            }));
        }
        if tensor.dtype().is_float() || tensor.dtype() == DType::Bool || tensor.shape().last() != Some(&n) {
            return None;
        }
        let elements = tensor.to_i64();
        let step = elements[1].checked_sub(elements[0])?;
        let series = elements.windows(2).all(|w| w[1].checked_sub(w[0]) == Some(step));
        let mut steps = vec![0; tensor.shape().len()];
        *steps.last_mut()? = step;
        series.then_some(ClosedForm::Affine(AffineForm { start: elements[0], step: steps }))
    }

    pub fn of_node(
        cx: ClosedFormContext<'_>,
        op: &Op,
        inputs: &[ValueId],
        ty: &TensorType,
    ) -> Option<ClosedForm> {
        let operand_form = |i: usize| inputs.get(i).and_then(|&v| cx.closed_form(v));
        let full = |i: usize| operand_form(i).and_then(ClosedForm::as_full);
        let symbols = &cx.graph.symbols;
        match op {
            Op::Full(s) => Some(ClosedForm::Full(as_stored(ty.dtype, *s)?)),
            Op::Iota { start, step } => affine_of_type(*start, vec![*step], ty, symbols),
            Op::Copy => operand_form(0).cloned(),
            Op::Shard { axis, .. } => match operand_form(0)? {
                ClosedForm::Affine(a) if a.step.get(*axis) == Some(&0) => {
                    affine_of_type(a.start, a.step.clone(), ty, symbols)
                }
                ClosedForm::Affine(_) => None,
                ClosedForm::Full(s) => Some(ClosedForm::Full(*s)),
            },
            Op::Collective(c) => {
                fold_collective(&c.kind, operand_form(0)?, ty, (cx.graph.group_size(c.group)?, symbols))
            }
            Op::Cast => fold_cast(operand_form(0)?, ty, symbols),
            Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand => {
                let x = *inputs.first()?;
                match cx.closed_form(x)? {
                    ClosedForm::Full(s) => Some(ClosedForm::Full(*s)),
                    ClosedForm::Affine(a) => a.apply_view(op, cx.graph.ty(x), ty, symbols),
                }
            }
            Op::Take { .. } | Op::Index { .. } | Op::GatherElements { .. } => {
                let x = full(0)?;
                is_index_in_bounds(cx, op, inputs).then_some(ClosedForm::Full(x))
            }
            Op::Pad { value, .. } => {
                let x = full(0)?;
                (as_stored(ty.dtype, *value) == Some(x)).then_some(ClosedForm::Full(x))
            }
            Op::Concat { axis } => fold_concat(cx, *axis, inputs, ty),
            Op::Unary(op) => fold_unary(*op, operand_form(0)?, ty, symbols),
            Op::Binary(op) => {
                let operands = [inputs[0], inputs[1]].map(|v| (cx.closed_form(v), cx.graph.ty(v)));
                fold_binary(*op, operands, ty, symbols)
            }
            Op::BinaryScalar { op, scalar, scalar_left } => {
                let x = (operand_form(0), cx.graph.ty(inputs[0]));
                let s = ClosedForm::Full(scalar::scalar_operand(*op, *scalar, x.1.dtype)?);
                let of_scalar = TensorType::new(x.1.dtype, vec![]);
                let y = (Some(&s), &of_scalar);
                fold_binary(*op, if *scalar_left { [y, x] } else { [x, y] }, ty, symbols)
            }
            Op::Select => {
                let branch = if full(0)? == Scalar::Bool(true) { 1 } else { 2 };
                fold_broadcast(operand_form(branch)?, ty)
            }
            Op::CumSum { axis } => {
                let step = match full(0)? {
                    Scalar::Float(x) => return (x.0 == 0.0).then_some(ClosedForm::Full(Scalar::Float(x))),
                    s => s.as_i64(),
                };
                let mut steps = vec![0; ty.rank()];
                *steps.get_mut(*axis)? = step;
                affine_of_type(step, steps, ty, symbols)
            }
            Op::Reduce { op, axes, .. } => fold_reduce(*op, full(0)?, cx.graph.ty(inputs[0]), axes, symbols),
            _ => None,
        }
    }

    /// The value as an affine form over this many axes, if it is an integer tensor.
    fn as_affine(&self, rank: usize) -> Option<AffineForm> {
        match self {
            ClosedForm::Full(Scalar::Int(start)) => Some(AffineForm { start: *start, step: vec![0; rank] }),
            ClosedForm::Full(_) => None,
            // Broadcasting adds axes in front.
            ClosedForm::Affine(a) => {
                let mut step = vec![0; rank.checked_sub(a.step.len())?];
                step.extend(&a.step);
                Some(AffineForm { start: a.start, step })
            }
        }
    }
}

/// Whether indices from `first` to `last` lie within an axis for all values of the symbols.
pub fn is_range_within_axis(first: &Dim, last: &Dim, extent: &Dim, symbols: &SymbolTable) -> bool {
    let end = extent.clone() - Dim::from(1);
    [first, last]
        .into_iter()
        .all(|dim| Dim::from(0).provably_le(dim, symbols) && dim.provably_le(&end, symbols))
}

/// Whether every index of a node is known and lies within its axis for all values of the symbols.
fn is_index_in_bounds(cx: ClosedFormContext<'_>, op: &Op, inputs: &[ValueId]) -> bool {
    op.index_operands(inputs.len()).into_iter().all(|(position, axis)| {
        let index = inputs[position];
        let ends = cx.closed_form(index).and_then(|form| form.value_range(&cx.graph.ty(index).shape));
        let extent = &cx.graph.ty(inputs[0]).shape[axis];
        ends.is_some_and(|(first, last)| is_range_within_axis(&first, &last, extent, &cx.graph.symbols))
    })
}

impl AffineForm {
    /// Bounds of the elements of a tensor of this shape, never too narrow; `None` if an extent or an element
    /// is out of range.
    pub fn bounds(&self, shape: &[Dim], symbols: &SymbolTable) -> Option<(i64, i64)> {
        let mut out = (self.start, self.start);
        for (&step, extent) in self.step.iter().zip(shape) {
            if step != 0 {
                let last_index = extent.upper_bound(symbols).checked_sub(1)?.max(0);
                let end = step.checked_mul(last_index)?;
                out = (out.0.checked_add(end.min(0))?, out.1.checked_add(end.max(0))?);
            }
        }
        Some(out)
    }

    pub fn only_axis(&self) -> Option<(usize, i64)> {
        let mut axes = self.step.iter().enumerate().filter(|(_, s)| **s != 0);
        match (axes.next(), axes.next()) {
            (Some((axis, &step)), None) => Some((axis, step)),
            _ => None,
        }
    }

    fn apply_view(
        &self,
        op: &Op,
        x: &TensorType,
        ty: &TensorType,
        symbols: &SymbolTable,
    ) -> Option<ClosedForm> {
        let mut start = self.start;
        let step = match op {
            Op::Permute { perm } => perm.iter().map(|&p| self.step[p]).collect(),
            Op::Expand => {
                let mut step = vec![0; ty.rank().checked_sub(x.rank())?];
                step.extend(&self.step);
                step
            }
            Op::Slice { axis, start: from, step: by } => {
                let mut step = self.step.clone();
                if step[*axis] != 0 {
                    start = start.checked_add(step[*axis].checked_mul(from.as_const()?)?)?;
                    step[*axis] = step[*axis].checked_mul(*by)?;
                }
                step
            }
            // The steps are known only if the reshape just adds or removes axes of extent 1.
            Op::Reshape => {
                let steps: Vec<i64> = non_unit_axes(&x.shape).map(|(a, _)| self.step[a]).collect();
                let same_extents =
                    non_unit_axes(&x.shape).map(|(_, d)| d).eq(non_unit_axes(&ty.shape).map(|(_, d)| d));
                let mut step = vec![0; ty.rank()];
                non_unit_axes(&ty.shape).zip(steps).for_each(|((a, _), s)| step[a] = s);
                same_extents.then_some(step)?
            }
            _ => return None,
        };
        affine_of_type(start, step, ty, symbols)
    }
}

/// The axes whose extent is not 1, with their extents.
pub fn non_unit_axes(shape: &[Dim]) -> impl Iterator<Item = (usize, &Dim)> {
    shape.iter().enumerate().filter(|(_, d)| d.as_const() != Some(1))
}

/// The closed form of an integer tensor of this type, if its elements fit the dtype.
fn affine_of_type(
    start: i64,
    mut step: Vec<i64>,
    ty: &TensorType,
    symbols: &SymbolTable,
) -> Option<ClosedForm> {
    for (s, extent) in step.iter_mut().zip(&ty.shape) {
        if extent.as_const() == Some(1) {
            *s = 0;
        }
    }
    let value = AffineForm { start, step };
    let (min, max) = value.bounds(&ty.shape, symbols)?;
    let (low, high) = ty.dtype.integer_bounds()?;
    let fits = low <= min && max <= high;
    let full = value.step.iter().all(|&s| s == 0);
    fits.then_some(if full { ClosedForm::Full(Scalar::Int(start)) } else { ClosedForm::Affine(value) })
}

fn fold_cast(x: &ClosedForm, ty: &TensorType, symbols: &SymbolTable) -> Option<ClosedForm> {
    match x {
        ClosedForm::Full(s) => scalar::convert_scalar(*s, ty.dtype).map(ClosedForm::Full),
        ClosedForm::Affine(a) => affine_of_type(a.start, a.step.clone(), ty, symbols),
    }
}

fn fold_broadcast(x: &ClosedForm, ty: &TensorType) -> Option<ClosedForm> {
    match x {
        ClosedForm::Full(s) => Some(ClosedForm::Full(*s)),
        ClosedForm::Affine(_) => x.as_affine(ty.rank()).map(ClosedForm::Affine),
    }
}

fn fold_unary(op: UnaryOp, x: &ClosedForm, ty: &TensorType, symbols: &SymbolTable) -> Option<ClosedForm> {
    match (op, x) {
        (UnaryOp::Not, ClosedForm::Full(Scalar::Bool(b))) => Some(ClosedForm::Full(Scalar::Bool(!b))),
        (UnaryOp::Neg, _) if !ty.dtype.is_float() => {
            let a = x.as_affine(ty.rank())?;
            let step = a.step.iter().map(|s| s.checked_neg()).collect::<Option<Vec<i64>>>()?;
            affine_of_type(a.start.checked_neg()?, step, ty, symbols)
        }
        _ => None,
    }
}

fn fold_binary(
    op: BinaryOp,
    xy: [(Option<&ClosedForm>, &TensorType); 2],
    ty: &TensorType,
    symbols: &SymbolTable,
) -> Option<ClosedForm> {
    // One operand alone may decide the result.
    for (operand, _) in xy {
        let Some(ClosedForm::Full(Scalar::Bool(side))) = operand else { continue };
        match (op, side) {
            (BinaryOp::And, false) => return Some(ClosedForm::Full(Scalar::Bool(false))),
            (BinaryOp::Or, true) => return Some(ClosedForm::Full(Scalar::Bool(true))),
            _ => {}
        }
    }
    let x = xy[0].0?;
    let y = xy[1].0?;
    if let (ClosedForm::Full(a), ClosedForm::Full(b)) = (x, y)
        && let Some(s) = scalar::fold_binary(op, *a, *b, xy[0].1.dtype)
    {
        return Some(ClosedForm::Full(s));
    }
    let a = x.as_affine(ty.rank())?;
    let b = y.as_affine(ty.rank())?;
    let combine = |f: fn(i64, i64) -> Option<i64>| -> Option<(i64, Vec<i64>)> {
        let steps = a.step.iter().zip(&b.step).map(|(&s, &t)| f(s, t)).collect::<Option<_>>()?;
        Some((f(a.start, b.start)?, steps))
    };
    match (op, x, y) {
        (BinaryOp::Add, ..) => combine(i64::checked_add).and_then(|(s, t)| affine_of_type(s, t, ty, symbols)),
        (BinaryOp::Sub, ..) => combine(i64::checked_sub).and_then(|(s, t)| affine_of_type(s, t, ty, symbols)),
        (BinaryOp::Mul, _, ClosedForm::Full(s)) => scale_affine(&a, s.as_i64(), ty, symbols),
        (BinaryOp::Mul, ClosedForm::Full(s), _) => scale_affine(&b, s.as_i64(), ty, symbols),
        _ if op.is_comparison() => {
            let (start, step) = combine(i64::checked_sub)?;
            let difference = AffineForm { start, step }.bounds(&ty.shape, symbols)?;
            decide_comparison(op, difference).map(|b| ClosedForm::Full(Scalar::Bool(b)))
        }
        _ => None,
    }
}

fn scale_affine(
    form: &AffineForm,
    factor: i64,
    ty: &TensorType,
    symbols: &SymbolTable,
) -> Option<ClosedForm> {
    let steps = form.step.iter().map(|step| step.checked_mul(factor)).collect::<Option<Vec<i64>>>()?;
    affine_of_type(form.start.checked_mul(factor)?, steps, ty, symbols)
}

/// The outcome of a comparison, given bounds of the difference of its operands, if they decide it.
fn decide_comparison(op: BinaryOp, (min, max): (i64, i64)) -> Option<bool> {
    let (always, never) = match op {
        BinaryOp::Eq => ((min, max) == (0, 0), min > 0 || max < 0),
        BinaryOp::Ne => (min > 0 || max < 0, (min, max) == (0, 0)),
        BinaryOp::Lt => (max < 0, min >= 0),
        BinaryOp::Le => (max <= 0, min > 0),
        BinaryOp::Gt => (min > 0, max <= 0),
        BinaryOp::Ge => (min >= 0, max < 0),
        _ => return None,
    };
    if always { Some(true) } else { never.then_some(false) }
}

fn fold_reduce(
    op: ReductionKind,
    s: Scalar,
    x: &TensorType,
    axes: &[usize],
    symbols: &SymbolTable,
) -> Option<ClosedForm> {
    if axes.iter().any(|&a| x.shape[a].bounds(symbols).0 < 1) {
        return None;
    }
    match op {
        ReductionKind::Max | ReductionKind::Min => Some(ClosedForm::Full(s)),
        ReductionKind::Any | ReductionKind::All => Some(ClosedForm::Full(Scalar::Bool(s.as_f64() != 0.0))),
        ReductionKind::Sum if !x.dtype.is_float() => {
            let n = axes.iter().try_fold(1_i64, |n, &a| n.checked_mul(x.shape[a].as_const()?))?;
            Some(ClosedForm::Full(Scalar::Int(s.as_i64().checked_mul(n)?)))
        }
        _ => None,
    }
}

/// The result of a collective on cells of `ranks` ranks whose operands are all equal.
fn fold_collective(
    kind: &CollectiveKind,
    x: &ClosedForm,
    ty: &TensorType,
    (ranks, symbols): (u32, &SymbolTable),
) -> Option<ClosedForm> {
    match (kind, x) {
        (CollectiveKind::Broadcast { .. }, _) => Some(x.clone()),
        (CollectiveKind::AllReduce(CollectiveReduceOp::Max | CollectiveReduceOp::Min), _) => Some(x.clone()),
        // The result of a rank without a sender is zero.
        (CollectiveKind::Permute { pairs }, _) => {
            (0..ranks).all(|rank| pairs.iter().any(|(_, to)| *to == rank)).then(|| x.clone())
        }
        (CollectiveKind::AllGather | CollectiveKind::AllToAll(AllToAllSplits::Even), ClosedForm::Full(_)) => {
            Some(x.clone())
        }
        (CollectiveKind::AllReduce(op) | CollectiveKind::ReduceScatter(op), ClosedForm::Full(s)) => {
            scalar::reduce_copies(*op, *s, ty.dtype, ranks).map(ClosedForm::Full)
        }
        (CollectiveKind::AllReduce(CollectiveReduceOp::Sum), ClosedForm::Affine(form)) => {
            scale_affine(form, i64::from(ranks), ty, symbols)
        }
        _ => None,
    }
}

/// The closed form of a concatenation, if each piece continues the previous one. A piece of extent 1 fits any
/// step along the axis.
fn fold_concat(
    cx: ClosedFormContext<'_>,
    axis: usize,
    inputs: &[ValueId],
    ty: &TensorType,
) -> Option<ClosedForm> {
    let pieces: Vec<(&ClosedForm, &Dim)> = inputs
        .iter()
        .map(|&v| Some((cx.closed_form(v)?, &cx.graph.ty(v).shape[axis])))
        .collect::<Option<_>>()?;
    if let Some(ClosedForm::Full(s)) = pieces.first().map(|p| p.0)
        && pieces.iter().all(|p| *p.0 == ClosedForm::Full(*s))
    {
        return Some(ClosedForm::Full(*s));
    }
    let first_long = pieces.iter().find(|(_, extent)| extent.as_const() != Some(1));
    let along = first_long.and_then(|(form, _)| form.as_affine(ty.rank())).map_or(0, |a| a.step[axis]);
    let mut joined: Option<AffineForm> = None;
    let mut offset = Some(0_i64);
    for (form, extent) in pieces {
        let mut piece = form.as_affine(ty.rank())?;
        if extent.as_const() == Some(1) {
            piece.step[axis] = along;
        }
        piece.start = piece.start.checked_sub(piece.step[axis].checked_mul(offset?)?)?;
        if *joined.get_or_insert_with(|| piece.clone()) != piece {
            return None;
        }
        offset = extent.as_const().and_then(|e| offset?.checked_add(e));
    }
    let joined = joined?;
    affine_of_type(joined.start, joined.step, ty, &cx.graph.symbols)
}
