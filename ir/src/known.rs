//! What is known of the elements of a value without running the program.
//!
//! Masks and positions are built from `full`, `iota` and a few integer ops. Instead of their elements, which
//! would need static shapes, two closed forms are carried along: every element is one scalar, or element
//! `i` of an integer tensor is `start + Σ step[a] * i[a]`. Both work for symbolic extents. A comparison of
//! two such values is known when their difference has one sign over all positions.
//!
//! Invariants: a scalar is stored as the dtype stores it, and is not NaN; an affine value fits its dtype everywhere, has
//! a step for each axis, 0 along axes of extent 1, and at least one that is not 0.

pub mod scalar;

use crate::collective::{CollectiveKind, ReduceOp, Splits};
use crate::dim::Dim;
use crate::entity::Table;
use crate::graph::{Def, Graph};
use crate::ids::ValueId;
use crate::op::{BinaryOp, Op, Reduction, UnaryOp};
use crate::symbol::Symbols;
use crate::tensor::Tensor;
use crate::types::{DType, Float, Scalar, Type};

pub use scalar::{exact, stored};

/// The elements of a value in closed form (see the [module](self)).
#[derive(Clone, PartialEq, Debug)]
pub enum Known {
    Full(Scalar),
    /// The element at position `i` is `start + Σ step[a] * i[a]`.
    Affine(Affine),
}

/// An integer tensor that is affine in the position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Affine {
    pub start: i64,
    /// What one step along each axis adds.
    pub step: Vec<i64>,
}

/// Constants up to this many elements are looked at.
const MAX_ELEMENTS: usize = 1 << 16;

#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub graph: &'a Graph,
    pub known: &'a Table<ValueId, Option<Known>>,
}

impl<'a> Context<'a> {
    fn known(self, value: ValueId) -> Option<&'a Known> {
        self.known[value].as_ref()
    }
}

impl Known {
    pub fn of_graph(graph: &Graph) -> Table<ValueId, Option<Known>> {
        let mut known = Table::new();
        for value in graph.values.values() {
            let found = match value.def {
                Def::Input(input) => {
                    graph.inputs[input].data.as_ref().and_then(|data| Known::of_tensor(data))
                }
                Def::Node(node, 0) if graph.nodes[node].outputs.len() == 1 => {
                    let node = &graph.nodes[node];
                    Known::of_node(Context { graph, known: &known }, &node.op, &node.inputs, &value.ty)
                }
                Def::Node(..) => None,
            };
            known.push(found);
        }
        known
    }

    /// The least and the greatest element of an integer tensor of this shape, if it has elements.
    pub fn ends(&self, shape: &[Dim]) -> Option<(Dim, Dim)> {
        let affine = match self {
            Known::Full(Scalar::Int(i)) => return Some((Dim::from(*i), Dim::from(*i))),
            Known::Full(_) => return None,
            Known::Affine(affine) => affine,
        };
        let (mut first, mut last) = (Dim::from(affine.start), Dim::from(affine.start));
        for (&step, extent) in affine.step.iter().zip(shape) {
            let moved = (extent.clone() - Dim::from(1)) * Dim::from(step);
            let end = if step < 0 { &mut first } else { &mut last };
            *end = end.clone() + moved;
        }
        Some((first, last))
    }

    pub fn full(&self) -> Option<Scalar> {
        match self {
            Known::Full(s) => Some(*s),
            Known::Affine(_) => None,
        }
    }

    /// The elements of a constant: all equal, or an integer series along the last axis.
    pub fn of_tensor(tensor: &Tensor) -> Option<Known> {
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
            return Some(Known::Full(match tensor.dtype() {
                DType::Bool => Scalar::Bool(x != 0.0),
                d if d.is_float() => Scalar::Float(Float(x)),
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
        series.then_some(Known::Affine(Affine { start: elements[0], step: steps }))
    }

    pub fn of_node(cx: Context<'_>, op: &Op, inputs: &[ValueId], ty: &Type) -> Option<Known> {
        let known = |i: usize| inputs.get(i).and_then(|&v| cx.known(v));
        let full = |i: usize| known(i).and_then(Known::full);
        let symbols = &cx.graph.symbols;
        match op {
            Op::Full(s) => Some(Known::Full(stored(ty.dtype, *s)?)),
            Op::Iota { start, step } => affine(*start, vec![*step], ty, symbols),
            Op::Copy => known(0).cloned(),
            Op::Shard { axis, .. } => match known(0)? {
                Known::Affine(a) if a.step.get(*axis) == Some(&0) => {
                    affine(a.start, a.step.clone(), ty, symbols)
                }
                Known::Affine(_) => None,
                Known::Full(s) => Some(Known::Full(*s)),
            },
            Op::Collective(c) => collective(&c.kind, known(0)?, ty, (cx.graph.group_size(c.group)?, symbols)),
            Op::Cast => cast(known(0)?, ty, symbols),
            Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand => {
                let x = *inputs.first()?;
                match cx.known(x)? {
                    Known::Full(s) => Some(Known::Full(*s)),
                    Known::Affine(a) => a.viewed(op, cx.graph.ty(x), ty, symbols),
                }
            }
            Op::Take { .. } | Op::Index { .. } | Op::GatherElements { .. } => {
                let x = full(0)?;
                stays_inside(cx, op, inputs).then_some(Known::Full(x))
            }
            Op::Pad { value, .. } => {
                let x = full(0)?;
                (stored(ty.dtype, *value) == Some(x)).then_some(Known::Full(x))
            }
            Op::Concat { axis } => concat(cx, *axis, inputs, ty),
            Op::Unary(op) => unary(*op, known(0)?, ty, symbols),
            Op::Binary(op) => {
                let operands = [inputs[0], inputs[1]].map(|v| (cx.known(v), cx.graph.ty(v)));
                binary(*op, operands, ty, symbols)
            }
            Op::BinaryScalar { op, scalar, scalar_left } => {
                let x = (known(0), cx.graph.ty(inputs[0]));
                let s = Known::Full(scalar::operand(*op, *scalar, x.1.dtype)?);
                let of_scalar = Type::new(x.1.dtype, vec![]);
                let y = (Some(&s), &of_scalar);
                binary(*op, if *scalar_left { [y, x] } else { [x, y] }, ty, symbols)
            }
            Op::Select => {
                let branch = if full(0)? == Scalar::Bool(true) { 1 } else { 2 };
                broadcast(known(branch)?, ty)
            }
            Op::CumSum { axis } => {
                let step = match full(0)? {
                    Scalar::Float(x) => return (x.0 == 0.0).then_some(Known::Full(Scalar::Float(x))),
                    s => s.as_i64(),
                };
                let mut steps = vec![0; ty.rank()];
                *steps.get_mut(*axis)? = step;
                affine(step, steps, ty, symbols)
            }
            Op::Reduce { op, axes, .. } => reduce(*op, full(0)?, cx.graph.ty(inputs[0]), axes, symbols),
            _ => None,
        }
    }

    /// As an affine value of this many axes, if it is an integer tensor.
    fn as_affine(&self, rank: usize) -> Option<Affine> {
        match self {
            Known::Full(Scalar::Int(start)) => Some(Affine { start: *start, step: vec![0; rank] }),
            Known::Full(_) => None,
            // Broadcasting adds axes in front.
            Known::Affine(a) => {
                let mut step = vec![0; rank.checked_sub(a.step.len())?];
                step.extend(&a.step);
                Some(Affine { start: a.start, step })
            }
        }
    }
}

/// Whether indices from `first` to `last` lie within an axis for all values of the symbols.
pub fn is_within(first: &Dim, last: &Dim, extent: &Dim, symbols: &Symbols) -> bool {
    let end = extent.clone() - Dim::from(1);
    let inside = |dim: &Dim| Dim::from(0).provably_le(dim, symbols) && dim.provably_le(&end, symbols);
    inside(first) && inside(last)
}

/// Whether every index of a node is known and lies within its axis for all values of the symbols.
fn stays_inside(cx: Context<'_>, op: &Op, inputs: &[ValueId]) -> bool {
    op.index_operands(inputs.len()).into_iter().all(|(position, axis)| {
        let index = inputs[position];
        let ends = cx.known(index).and_then(|known| known.ends(&cx.graph.ty(index).shape));
        let extent = &cx.graph.ty(inputs[0]).shape[axis];
        ends.is_some_and(|(first, last)| is_within(&first, &last, extent, &cx.graph.symbols))
    })
}

impl Affine {
    /// Bounds of the elements of a tensor of this shape, never too narrow; `None` if an extent or an element
    /// is out of range.
    pub fn bounds(&self, shape: &[Dim], symbols: &Symbols) -> Option<(i64, i64)> {
        let mut out = (self.start, self.start);
        for (&step, extent) in self.step.iter().zip(shape) {
            if step != 0 {
                let last = extent.upper(symbols).checked_sub(1)?.max(0);
                let end = step.checked_mul(last)?;
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

    fn viewed(&self, op: &Op, x: &Type, ty: &Type, symbols: &Symbols) -> Option<Known> {
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
            // Only where axes of extent 1 come and go do the others keep their steps.
            Op::Reshape => {
                let steps: Vec<i64> = non_unit(&x.shape).map(|(a, _)| self.step[a]).collect();
                let same = non_unit(&x.shape).map(|(_, d)| d).eq(non_unit(&ty.shape).map(|(_, d)| d));
                let mut step = vec![0; ty.rank()];
                non_unit(&ty.shape).zip(steps).for_each(|((a, _), s)| step[a] = s);
                same.then_some(step)?
            }
            _ => return None,
        };
        affine(start, step, ty, symbols)
    }
}

/// The axes whose extent is not 1, with their extents.
pub fn non_unit(shape: &[Dim]) -> impl Iterator<Item = (usize, &Dim)> {
    shape.iter().enumerate().filter(|(_, d)| d.as_const() != Some(1))
}

/// An integer tensor of this type, if its elements fit the dtype.
fn affine(start: i64, mut step: Vec<i64>, ty: &Type, symbols: &Symbols) -> Option<Known> {
    for (s, extent) in step.iter_mut().zip(&ty.shape) {
        if extent.as_const() == Some(1) {
            *s = 0;
        }
    }
    let value = Affine { start, step };
    let (min, max) = value.bounds(&ty.shape, symbols)?;
    let (low, high) = match ty.dtype {
        DType::I64 => (i64::MIN, i64::MAX),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::U8 => (0, 255),
        _ => return None,
    };
    let fits = low <= min && max <= high;
    let full = value.step.iter().all(|&s| s == 0);
    fits.then_some(if full { Known::Full(Scalar::Int(start)) } else { Known::Affine(value) })
}

fn cast(x: &Known, ty: &Type, symbols: &Symbols) -> Option<Known> {
    match x {
        Known::Full(s) => scalar::cast(*s, ty.dtype).map(Known::Full),
        Known::Affine(a) => affine(a.start, a.step.clone(), ty, symbols),
    }
}

fn broadcast(x: &Known, ty: &Type) -> Option<Known> {
    match x {
        Known::Full(s) => Some(Known::Full(*s)),
        Known::Affine(_) => x.as_affine(ty.rank()).map(Known::Affine),
    }
}

fn unary(op: UnaryOp, x: &Known, ty: &Type, symbols: &Symbols) -> Option<Known> {
    match (op, x) {
        (UnaryOp::Not, Known::Full(Scalar::Bool(b))) => Some(Known::Full(Scalar::Bool(!b))),
        (UnaryOp::Neg, _) if !ty.dtype.is_float() => {
            let a = x.as_affine(ty.rank())?;
            let step = a.step.iter().map(|s| s.checked_neg()).collect::<Option<Vec<i64>>>()?;
            affine(a.start.checked_neg()?, step, ty, symbols)
        }
        _ => None,
    }
}

fn binary(op: BinaryOp, xy: [(Option<&Known>, &Type); 2], ty: &Type, symbols: &Symbols) -> Option<Known> {
    let bool_of = |i: usize| match xy[i].0 {
        Some(Known::Full(Scalar::Bool(b))) => Some(*b),
        _ => None,
    };
    // One side may decide alone.
    for side in [bool_of(0), bool_of(1)] {
        match (op, side) {
            (BinaryOp::And, Some(false)) => return Some(Known::Full(Scalar::Bool(false))),
            (BinaryOp::Or, Some(true)) => return Some(Known::Full(Scalar::Bool(true))),
            _ => {}
        }
    }
    let (x, y) = (xy[0].0?, xy[1].0?);
    if let (Known::Full(a), Known::Full(b)) = (x, y)
        && let Some(s) = scalar::binary(op, *a, *b, xy[0].1.dtype)
    {
        return Some(Known::Full(s));
    }
    let (a, b) = (x.as_affine(ty.rank())?, y.as_affine(ty.rank())?);
    let combine = |f: fn(i64, i64) -> Option<i64>| -> Option<(i64, Vec<i64>)> {
        let steps = a.step.iter().zip(&b.step).map(|(&s, &t)| f(s, t)).collect::<Option<_>>()?;
        Some((f(a.start, b.start)?, steps))
    };
    let scaled = |a: &Affine, by: i64| -> Option<Known> {
        let steps = a.step.iter().map(|s| s.checked_mul(by)).collect::<Option<Vec<i64>>>()?;
        affine(a.start.checked_mul(by)?, steps, ty, symbols)
    };
    match (op, x, y) {
        (BinaryOp::Add, ..) => combine(i64::checked_add).and_then(|(s, t)| affine(s, t, ty, symbols)),
        (BinaryOp::Sub, ..) => combine(i64::checked_sub).and_then(|(s, t)| affine(s, t, ty, symbols)),
        (BinaryOp::Mul, _, Known::Full(s)) => scaled(&a, s.as_i64()),
        (BinaryOp::Mul, Known::Full(s), _) => scaled(&b, s.as_i64()),
        _ if op.is_comparison() => {
            let (start, step) = combine(i64::checked_sub)?;
            let difference = Affine { start, step }.bounds(&ty.shape, symbols)?;
            compare(op, difference).map(|b| Known::Full(Scalar::Bool(b)))
        }
        _ => None,
    }
}

/// The outcome of a comparison whose difference lies within bounds, if they decide it.
fn compare(op: BinaryOp, (min, max): (i64, i64)) -> Option<bool> {
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

fn reduce(op: Reduction, s: Scalar, x: &Type, axes: &[usize], symbols: &Symbols) -> Option<Known> {
    if axes.iter().any(|&a| x.shape[a].bounds(symbols).0 < 1) {
        return None;
    }
    let any = || s.as_f64() != 0.0;
    match op {
        Reduction::Max | Reduction::Min => Some(Known::Full(s)),
        Reduction::Any | Reduction::All => Some(Known::Full(Scalar::Bool(any()))),
        Reduction::Sum if !x.dtype.is_float() => {
            let n = axes.iter().try_fold(1_i64, |n, &a| n.checked_mul(x.shape[a].as_const()?))?;
            Some(Known::Full(Scalar::Int(s.as_i64().checked_mul(n)?)))
        }
        _ => None,
    }
}

/// The result of a collective on cells of `ranks` ranks, which all have the same operand.
fn collective(
    kind: &CollectiveKind,
    x: &Known,
    ty: &Type,
    (ranks, symbols): (u32, &Symbols),
) -> Option<Known> {
    match (kind, x) {
        (CollectiveKind::Broadcast { .. }, _) => Some(x.clone()),
        (CollectiveKind::AllReduce(ReduceOp::Max | ReduceOp::Min), _) => Some(x.clone()),
        // A rank to which nobody sends has zeros.
        (CollectiveKind::Permute { pairs }, _) => {
            (0..ranks).all(|rank| pairs.iter().any(|(_, to)| *to == rank)).then(|| x.clone())
        }
        (CollectiveKind::AllGather | CollectiveKind::AllToAll(Splits::Even), Known::Full(_)) => {
            Some(x.clone())
        }
        (CollectiveKind::AllReduce(op) | CollectiveKind::ReduceScatter(op), Known::Full(s)) => {
            scalar::reduced(*op, *s, ty.dtype, ranks).map(Known::Full)
        }
        (CollectiveKind::AllReduce(ReduceOp::Sum), Known::Affine(Affine { start, step })) => {
            let times = |n: &i64| n.checked_mul(i64::from(ranks));
            affine(times(start)?, step.iter().map(times).collect::<Option<_>>()?, ty, symbols)
        }
        _ => None,
    }
}

/// Pieces that continue one another. A piece of extent 1 fits any step along the axis.
fn concat(cx: Context<'_>, axis: usize, inputs: &[ValueId], ty: &Type) -> Option<Known> {
    let pieces: Vec<(&Known, &Dim)> =
        inputs.iter().map(|&v| Some((cx.known(v)?, &cx.graph.ty(v).shape[axis]))).collect::<Option<_>>()?;
    if let Some(Known::Full(s)) = pieces.first().map(|p| p.0)
        && pieces.iter().all(|p| *p.0 == Known::Full(*s))
    {
        return Some(Known::Full(*s));
    }
    let unit = |extent: &Dim| extent.as_const() == Some(1);
    let steps = |k: &Known| k.as_affine(ty.rank()).map(|a| a.step[axis]);
    let along = pieces.iter().find(|p| !unit(p.1)).and_then(|p| steps(p.0)).unwrap_or(0);
    let mut whole: Option<Affine> = None;
    let mut offset = Some(0_i64);
    for (known, extent) in pieces {
        let mut piece = known.as_affine(ty.rank())?;
        if unit(extent) {
            piece.step[axis] = along;
        }
        piece.start = piece.start.checked_sub(piece.step[axis].checked_mul(offset?)?)?;
        if *whole.get_or_insert_with(|| piece.clone()) != piece {
            return None;
        }
        offset = extent.as_const().and_then(|e| offset?.checked_add(e));
    }
    let whole = whole?;
    affine(whole.start, whole.step, ty, &cx.graph.symbols)
}
