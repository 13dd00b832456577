//! Result types from an op and its operand types.
//!
//! [`check_types`] is the one place that knows the typing rule of each op: the verifier calls it with the
//! declared result types, the [`Builder`](crate::GraphBuilder) with the ones it is about to declare, and
//! [`infer_types`] derives result types where the op fixes them.

mod attention;
mod checks;

use std::collections::HashSet;

use self::attention::{
    check_attention_attributes, check_rotary, infer_attention, infer_attention_gradient, log_sum_exp_type,
};
pub use self::checks::broadcast_shapes;
use self::checks::{check_float, check_same_dtype, check_same_rank, ensure};
use crate::attention::AttentionOperands;
use crate::collective::{AllToAllSplits, CollectiveKind};
use crate::dim::{Dim, MAX_ATOMS};
use crate::op::{BinaryOp, Op, OperandUse, ProductResult, ReductionKind};
use crate::route::{Route, RouteScope};
use crate::text::forms;
use crate::types::{DType, TensorType};

/// The result types of `op` for operands of these types, on groups of `n` ranks. `Ok(None)` if the result types
/// must be declared.
pub fn infer_types(
    op: &Op,
    operands: &[&TensorType],
    n: Option<u32>,
) -> Result<Option<Vec<TensorType>>, String> {
    check_operand_count(op, operands.len())?;
    check_storage_floats(op, operands)?;
    let x = operands.first().copied();
    let first = || x.cloned().ok_or_else(|| "it needs an operand".to_string());
    match op {
        Op::Full(_)
        | Op::Iota { .. }
        | Op::Reshape
        | Op::Expand
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Route(_)
        | Op::TopK { .. }
        | Op::Cast
        | Op::Bitcast
        | Op::Opaque { .. }
        | Op::Custom(_) => Ok(None),
        Op::Unary(u) => {
            let mut ty = first()?;
            ensure(u.supports_dtype(ty.dtype), || format!("{u} is not defined on {}", ty.dtype))?;
            if u.is_predicate() {
                ty.dtype = DType::Bool;
            }
            single_result(ty)
        }
        Op::Binary(b) => {
            check_same_dtype(&operands[..2])?;
            let dtype = binary_result_dtype(*b, operands[0].dtype)?;
            single_result(TensorType::new(
                dtype,
                broadcast_shapes(&[&operands[0].shape, &operands[1].shape])?,
            ))
        }
        Op::BinaryScalar { op, .. } => {
            let ty = first()?;
            single_result(TensorType::new(binary_result_dtype(*op, ty.dtype)?, ty.shape))
        }
        Op::Select => single_result(infer_select(operands)?),
        Op::MatMul { result } => single_result(infer_matmul(*result, operands[0], operands[1])?),
        Op::GroupedMatMul => single_result(infer_grouped_matmul(operands[0], operands[1], operands[2])?),
        Op::Reduce { op, axes, keep } => single_result(infer_reduce(*op, axes, *keep, operands[0])?),
        Op::ArgReduce { axis, keep, .. } => {
            let x = first()?;
            check_axis(*axis, &x)?;
            single_result(TensorType::new(DType::I64, reduced_shape(&x.shape, &[*axis], *keep)))
        }
        Op::CumSum { axis } => {
            let mut x = first()?;
            check_axis(*axis, &x)?;
            if !x.dtype.is_float() {
                x.dtype = DType::I64;
            }
            single_result(x)
        }
        Op::Softmax { axis, .. } => {
            let x = first()?;
            check_axis(*axis, &x)?;
            check_float(&x)?;
            single_result(x)
        }
        Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. } => {
            check_norm(operands, *axes)?;
            single_result(first()?)
        }
        Op::Attention { cap, bounds, sink, log_sum_exp, .. } => {
            check_attention_attributes(*cap, bounds)?;
            let attention_operands = AttentionOperands::from_operands(bounds, *sink, operands)
                .ok_or("it needs queries, keys and values")?;
            let result = infer_attention(&attention_operands)?;
            let sums = log_sum_exp.then(|| log_sum_exp_type(attention_operands.q));
            Ok(Some([result].into_iter().chain(sums).collect()))
        }
        Op::AttentionGradient { bounds, .. } => infer_attention_gradient(bounds, operands).map(Some),
        Op::Permuted { op, perm } => {
            ensure(op.is_permutable(), || "only attention and its gradient permute their results".into())?;
            let mut types = infer_types(op, operands, n)?
                .ok_or("the result types of the permuted op cannot be inferred")?;
            for ty in types.iter_mut().take(op.permuted_results()) {
                *ty = infer_permute(ty, perm)?;
            }
            Ok(Some(types))
        }
        Op::RotaryEmbedding { width, .. } => {
            check_rotary(operands, *width)?;
            single_result(first()?)
        }
        Op::Take { axis } => single_result(infer_take(operands, *axis)?),
        Op::Index { axis } => {
            let x = first()?;
            single_result(TensorType::new(x.dtype, indexed_shape(&x, &operands[1..], *axis)?))
        }
        Op::GatherElements { axis } => {
            let x = first()?;
            check_axis(*axis, &x)?;
            check_index_dtype(operands[1])?;
            check_same_rank(&x, operands[1])?;
            single_result(TensorType::new(x.dtype, operands[1].shape.clone()))
        }
        Op::ScatterElements { axis, .. } => {
            check_scatter(operands, *axis)?;
            single_result(first()?)
        }
        Op::IndexAdd { axis } => {
            check_index_add(operands, *axis)?;
            single_result(first()?)
        }
        Op::IndexPut { axis, .. } => {
            check_index_put(operands, *axis)?;
            single_result(first()?)
        }
        Op::Sort { axis, .. } => {
            let x = first()?;
            check_axis(*axis, &x)?;
            let positions = TensorType::new(DType::I64, x.shape.clone());
            Ok(Some(vec![x, positions]))
        }
        Op::Concat { axis } => single_result(infer_concat(operands, *axis)?),
        Op::Permute { perm } => single_result(infer_permute(operands[0], perm)?),
        Op::Copy => single_result(first()?),
        Op::Shard { axis, .. } => {
            let x = first()?;
            check_axis(*axis, &x)?;
            single_result(shard_type(&x, *axis, n)?)
        }
        Op::Collective(c) => infer_collective(&c.kind, operands, n).map(Some),
    }
}

/// Checks that operands whose elements can only be moved, compared and cast are used so.
fn check_storage_floats(op: &Op, operands: &[&TensorType]) -> Result<(), String> {
    for (k, operand) in operands.iter().enumerate().filter(|(_, operand)| operand.dtype.is_storage_float()) {
        // Element-wise ops have their own table of dtypes.
        let is_element = matches!(op.operand_use(k), OperandUse::Element | OperandUse::Unknown);
        let is_factor = op.is_matmul() && operand.dtype.is_stored_factor(operands[0].dtype);
        ensure(is_factor || is_element || op.operand_use(k).is_moved(), || {
            format!(
                "it is not defined on {0}: expected a cast of the {0} operand to a wider float",
                operand.dtype
            )
        })?;
    }
    Ok(())
}

fn single_result(ty: TensorType) -> Result<Option<Vec<TensorType>>, String> {
    Ok(Some(vec![ty]))
}

pub fn check_types(
    op: &Op,
    operands: &[&TensorType],
    results: &[&TensorType],
    n: Option<u32>,
) -> Result<(), String> {
    if let Some(expected) = infer_types(op, operands, n)? {
        ensure(expected.len() == results.len(), || {
            format!("it gives {} results, found {}", expected.len(), results.len())
        })?;
        for (e, r) in expected.iter().zip(results) {
            ensure(e == *r, || {
                format!("the result must be {}{:?}, found {}{:?}", e.dtype, e.shape, r.dtype, r.shape)
            })?;
        }
        return Ok(());
    }
    if op.is_opaque() {
        return ensure(!results.is_empty(), || "it needs a result".into());
    }
    let count = op.facts().results;
    ensure(results.len() == count, || format!("it gives {count} results, found {}", results.len()))?;
    let r = results[0];
    let check_same_dtype_as = |x: &TensorType| {
        ensure(x.dtype == r.dtype, || format!("the result must be {}, found {}", x.dtype, r.dtype))
    };
    match op {
        Op::Full(_) => Ok(()),
        Op::Iota { .. } => {
            ensure(r.rank() == 1 && r.dtype != DType::Bool && !r.dtype.is_storage_float(), || {
                "the result must have one axis and a number type".into()
            })
        }
        Op::Cast => ensure(operands[0].shape == r.shape, || {
            format!("the shape must stay {:?}, found {:?}", operands[0].shape, r.shape)
        }),
        Op::Bitcast => {
            let x = operands[0];
            ensure(x.shape == r.shape && x.dtype.size() == r.dtype.size(), || {
                let bytes = x.dtype.size();
                format!("expected a dtype of {bytes} bytes{:?}, found {}{:?}", x.shape, r.dtype, r.shape)
            })?;
            ensure(x.dtype != DType::Bool && r.dtype != DType::Bool, || "it is not defined on bool".into())
        }
        Op::Reshape => {
            check_same_dtype_as(operands[0])?;
            ensure(operands[0].numel() == r.numel(), || {
                format!("{:?} elements do not fit {:?}", operands[0].numel(), r.shape)
            })
        }
        Op::Expand => {
            check_same_dtype_as(operands[0])?;
            ensure(broadcast_shapes(&[&operands[0].shape, &r.shape]).as_deref() == Ok(&r.shape), || {
                format!("{:?} does not expand to {:?}", operands[0].shape, r.shape)
            })
        }
        Op::Slice { axis, step, .. } => {
            check_same_dtype_as(operands[0])?;
            check_axis(*axis, operands[0])?;
            check_same_rank(operands[0], r)?;
            ensure(*step >= 1, || format!("the step must be at least 1, found {step}"))?;
            check_same_except_axis(operands[0], r, *axis)
        }
        Op::Pad { low, .. } => {
            check_same_dtype_as(operands[0])?;
            check_same_rank(operands[0], r)?;
            ensure(low.len() == r.rank(), || {
                format!("`low` must have one entry per axis: expected {}, found {}", r.rank(), low.len())
            })
        }
        Op::TopK { axis, .. } => {
            check_same_dtype_as(operands[0])?;
            check_axis(*axis, operands[0])?;
            check_same_rank(operands[0], r)?;
            check_same_except_axis(operands[0], r, *axis)?;
            ensure(results[1].dtype == DType::I64 && results[1].shape == r.shape, || {
                format!(
                    "the positions must be i64{:?}, found {}{:?}",
                    r.shape, results[1].dtype, results[1].shape
                )
            })
        }
        Op::Route(route) => check_route(route, operands[0], results, n),
        _ => Err("the declared result types of this op have no typing rule".into()),
    }
}

fn check_route(
    route: &Route,
    ids: &TensorType,
    results: &[&TensorType],
    n: Option<u32>,
) -> Result<(), String> {
    ensure(!matches!(route.scope, RouteScope::Position { .. }), || {
        "expected a group or no group, found the position of a rank".into()
    })?;
    let ranks = route.rank_count(n).ok_or("the number of ranks is open")?;
    ensure(matches!(ids.dtype, DType::I64 | DType::I32) && ids.rank() == 2, || {
        format!("the ids must be i64 or i32 with two axes, found {}{:?}", ids.dtype, ids.shape)
    })?;
    ensure(route.experts > 0 && route.experts.is_multiple_of(ranks), || {
        format!("the number of experts must be a multiple of {ranks} ranks, found {}", route.experts)
    })?;
    ensure(route.align > 0, || "the alignment must be at least 1, found 0".into())?;
    let own = shard_type(&TensorType::new(DType::I64, ids.shape.clone()), 0, Some(ranks))?;
    let sections = TensorType::new(DType::I64, vec![Dim::from(i64::from(route.section_count(ranks)))]);
    let all_rows = TensorType::new(DType::I64, ids.shape.clone());
    let expected =
        [("rows", 0, own), ("all rows", 1, all_rows), ("counts", 3, sections.clone()), ("ends", 4, sections)];
    for (name, position, expected) in expected {
        let result = results[position];
        ensure(*result == expected, || {
            format!(
                "the {name} must be {}{:?}, found {}{:?}",
                expected.dtype, expected.shape, result.dtype, result.shape
            )
        })?;
    }
    let slots = results[2];
    ensure(slots.dtype == DType::I64 && slots.rank() == 1, || {
        format!("the slots must be i64 with one axis, found {}{:?}", slots.dtype, slots.shape)
    })
}

/// The minimum and the maximum number of operands of an op.
pub fn operand_counts(op: &Op) -> (usize, usize) {
    forms::head(op).1
}

pub fn check_operand_and_result_counts(op: &Op, operands: usize, results: usize) -> Result<(), String> {
    let (min, max) = operand_counts(op);
    let min_results = op.facts().results;
    ensure((min..=max).contains(&operands) && results >= min_results, || {
        format!("{min} to {max} operands and {min_results} results")
    })
}

fn check_operand_count(op: &Op, found: usize) -> Result<(), String> {
    let (min, max) = operand_counts(op);
    ensure((min..=max).contains(&found), || match (min == max, max) {
        (true, _) => format!("it takes {min} operands, found {found}"),
        (false, usize::MAX) => format!("it takes at least {min} operands, found {found}"),
        _ => format!("it takes {min} to {max} operands, found {found}"),
    })
}

fn check_axis(axis: usize, x: &TensorType) -> Result<(), String> {
    ensure(axis < x.rank(), || format!("axis {axis} is out of range: the operand has {} axes", x.rank()))
}

fn check_same_except_axis(x: &TensorType, r: &TensorType, axis: usize) -> Result<(), String> {
    for a in (0..x.rank()).filter(|&a| a != axis) {
        ensure(x.shape[a] == r.shape[a], || {
            format!("the extent of axis {a} must stay {:?}, found {:?}", x.shape[a], r.shape[a])
        })?;
    }
    Ok(())
}

fn check_index_dtype(x: &TensorType) -> Result<(), String> {
    ensure(matches!(x.dtype, DType::I32 | DType::I64 | DType::U8), || {
        format!("an index must be an integer tensor, found {}", x.dtype)
    })
}

fn binary_result_dtype(op: BinaryOp, dtype: DType) -> Result<DType, String> {
    ensure(op.supports_dtype(dtype), || format!("{op} is not defined on {dtype}"))?;
    Ok(if op.is_comparison() { DType::Bool } else { dtype })
}

fn reduced_shape(shape: &[Dim], axes: &[usize], keep: bool) -> Vec<Dim> {
    shape
        .iter()
        .enumerate()
        .filter_map(|(a, d)| match (axes.contains(&a), keep) {
            (false, _) => Some(d.clone()),
            (true, true) => Some(Dim::from(1)),
            (true, false) => None,
        })
        .collect()
}

fn infer_matmul(result: ProductResult, x: &TensorType, y: &TensorType) -> Result<TensorType, String> {
    if !y.dtype.is_stored_factor(x.dtype) {
        check_same_dtype(&[x, y])?;
    }
    let dtype = match result {
        ProductResult::Rounded => x.dtype,
        ProductResult::Unrounded => x.dtype.compute_dtype(),
    };
    ensure(result == ProductResult::Rounded || x.dtype.is_narrow_float(), || {
        format!("the operands of an unrounded product must be f16 or bf16, found {}", x.dtype)
    })?;
    ensure(x.rank() >= 2 && y.rank() >= 2, || {
        format!("both operands need two axes or more, found {} and {}", x.rank(), y.rank())
    })?;
    let (bx, mx) = x.shape.split_at(x.rank() - 2);
    let (by, my) = y.shape.split_at(y.rank() - 2);
    ensure(mx[1] == my[0], || format!("the inner extents differ: {:?} and {:?}", mx[1], my[0]))?;
    let mut shape = broadcast_shapes(&[bx, by])?;
    shape.extend([mx[0].clone(), my[1].clone()]);
    Ok(TensorType::new(dtype, shape))
}

fn infer_grouped_matmul(x: &TensorType, y: &TensorType, ends: &TensorType) -> Result<TensorType, String> {
    check_same_dtype(&[x, y])?;
    check_float(x)?;
    let declared_groups = match &ends.shape[..] {
        [groups] if matches!(ends.dtype, DType::I32 | DType::I64) => Some(groups),
        _ => None,
    };
    let (k, inner, shape) = match (&x.shape[..], &y.shape[..]) {
        ([rows, k], [groups, inner, n]) => {
            ensure(declared_groups.is_none_or(|g| g == groups) && declared_groups.is_some(), || {
                let TensorType { dtype, shape } = ends;
                format!("the ends of the groups must be i32 or i64 [{groups:?}], found {dtype}{shape:?}")
            })?;
            (k, inner, vec![rows.clone(), n.clone()])
        }
        ([m, k], [inner, n]) => {
            let groups = declared_groups.ok_or_else(|| {
                let TensorType { dtype, shape } = ends;
                format!("the ends of the groups must be i32 or i64 [groups], found {dtype}{shape:?}")
            })?;
            (k, inner, vec![groups.clone(), m.clone(), n.clone()])
        }
        _ => {
            let expected = "[rows, k] and [groups, k, n], or [m, k] and [k, n]";
            return Err(format!("expected {expected}, found {:?} and {:?}", x.shape, y.shape));
        }
    };
    ensure(k == inner, || format!("the inner extents differ: {k:?} and {inner:?}"))?;
    Ok(TensorType::new(x.dtype, shape))
}

fn infer_select(operands: &[&TensorType]) -> Result<TensorType, String> {
    ensure(operands[0].dtype == DType::Bool, || {
        format!("the condition must be bool, found {}", operands[0].dtype)
    })?;
    check_same_dtype(&operands[1..])?;
    let shapes: Vec<&[Dim]> = operands.iter().map(|t| t.shape.as_slice()).collect();
    Ok(TensorType::new(operands[1].dtype, broadcast_shapes(&shapes)?))
}

fn infer_reduce(op: ReductionKind, axes: &[usize], keep: bool, x: &TensorType) -> Result<TensorType, String> {
    for (i, &a) in axes.iter().enumerate() {
        check_axis(a, x)?;
        ensure(i == 0 || axes[i - 1] < a, || "the axes must ascend".into())?;
    }
    let dtype = match op {
        ReductionKind::Any | ReductionKind::All => DType::Bool,
        ReductionKind::Sum | ReductionKind::Prod if !x.dtype.is_float() => DType::I64,
        ReductionKind::Mean if !x.dtype.is_float() => {
            return Err(format!("mean needs a floating-point operand, found {}", x.dtype));
        }
        _ => x.dtype,
    };
    Ok(TensorType::new(dtype, reduced_shape(&x.shape, axes, keep)))
}

/// Checks the operands of a norm over the last `axes` axes.
fn check_norm(operands: &[&TensorType], axes: usize) -> Result<(), String> {
    let x = operands[0];
    check_float(x)?;
    ensure(axes >= 1 && axes <= x.rank(), || {
        format!("the number of normalised axes must be 1 to {}, found {axes}", x.rank())
    })?;
    let tail = &x.shape[x.rank() - axes..];
    for w in &operands[1..] {
        ensure(w.shape == tail && w.dtype == x.dtype, || {
            format!("weight and bias must be {}{tail:?}, found {}{:?}", x.dtype, w.dtype, w.shape)
        })?;
    }
    Ok(())
}

fn infer_take(operands: &[&TensorType], axis: usize) -> Result<TensorType, String> {
    let x = operands[0];
    let index = operands[1];
    check_axis(axis, x)?;
    check_index_dtype(index)?;
    let mut shape = x.shape[..axis].to_vec();
    shape.extend(index.shape.iter().cloned());
    shape.extend(x.shape[axis + 1..].iter().cloned());
    Ok(TensorType::new(x.dtype, shape))
}

fn check_scatter(operands: &[&TensorType], axis: usize) -> Result<(), String> {
    let x = operands[0];
    let index = operands[1];
    check_axis(axis, x)?;
    check_index_dtype(index)?;
    check_same_rank(x, index)?;
    check_scatter_source(x.dtype, &index.shape, operands[2])
}

/// Checks the operands of `index_add`.
fn check_index_add(operands: &[&TensorType], axis: usize) -> Result<(), String> {
    let x = operands[0];
    let index = operands[1];
    check_axis(axis, x)?;
    check_index_dtype(index)?;
    ensure(index.rank() == 1, || "the index must have one axis".into())?;
    let mut shape = x.shape.clone();
    shape[axis] = index.shape[0].clone();
    check_scatter_source(x.dtype, &shape, operands[2])
}

/// Checks that `src` has this dtype and shape.
fn check_scatter_source(dtype: DType, shape: &[Dim], src: &TensorType) -> Result<(), String> {
    ensure(src.shape == shape && src.dtype == dtype, || {
        format!("src must be {dtype}{shape:?}, found {}{:?}", src.dtype, src.shape)
    })
}

/// Checks the operands of `index_put`.
fn check_index_put(operands: &[&TensorType], axis: usize) -> Result<(), String> {
    let x = operands[0];
    let src = operands[1];
    let target_shape = indexed_shape(x, &operands[2..], axis)?;
    ensure(src.dtype == x.dtype && broadcast_shapes(&[&src.shape, &target_shape])? == target_shape, || {
        format!("src must broadcast to {}{target_shape:?}, found {}{:?}", x.dtype, src.dtype, src.shape)
    })
}

fn infer_concat(operands: &[&TensorType], axis: usize) -> Result<TensorType, String> {
    let x = operands[0];
    check_axis(axis, x)?;
    check_same_dtype(operands)?;
    let mut shape = x.shape.clone();
    for y in &operands[1..] {
        check_same_rank(x, y)?;
        for (a, d) in shape.iter_mut().enumerate() {
            if a == axis {
                *d = d.clone() + y.shape[a].clone();
                ensure(d.atom_count() <= MAX_ATOMS, || "the sum of the extents is too complex".into())?;
            } else {
                ensure(*d == y.shape[a], || {
                    format!("extents of axis {a} differ: {d:?} and {:?}", y.shape[a])
                })?;
            }
        }
    }
    Ok(TensorType::new(x.dtype, shape))
}

fn infer_permute(x: &TensorType, perm: &[usize]) -> Result<TensorType, String> {
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    ensure(sorted.iter().copied().eq(0..x.rank()), || {
        format!("{perm:?} is not a permutation of {} axes", x.rank())
    })?;
    Ok(TensorType::new(x.dtype, perm.iter().map(|&p| x.shape[p].clone()).collect::<Vec<_>>()))
}

fn indexed_shape(x: &TensorType, indices: &[&TensorType], axis: usize) -> Result<Vec<Dim>, String> {
    ensure(axis.saturating_add(indices.len()) <= x.rank(), || {
        format!("{} indices from axis {axis} on exceed an operand with {} axes", indices.len(), x.rank())
    })?;
    for i in indices {
        check_index_dtype(i)?;
    }
    let shapes: Vec<&[Dim]> = indices.iter().map(|t| t.shape.as_slice()).collect();
    let mut shape = x.shape[..axis].to_vec();
    shape.extend(broadcast_shapes(&shapes)?);
    shape.extend(x.shape[axis + indices.len()..].iter().cloned());
    Ok(shape)
}

fn require_rank_count(n: Option<u32>) -> Result<Dim, String> {
    n.map(|n| Dim::from(i64::from(n))).ok_or("the number of ranks is open".to_string())
}

/// The type of one piece of a value whose axis is divided into equal pieces, one per rank.
fn shard_type(x: &TensorType, axis: usize, n: Option<u32>) -> Result<TensorType, String> {
    let n = require_rank_count(n)?;
    let d = &x.shape[axis];
    let len = d.exact_div(&n).ok_or_else(|| {
        let extent =
            if axis == 0 { format!("leading extent {d:?}") } else { format!("extent {d:?} of axis {axis}") };
        format!("the {extent} is not a multiple of {n:?} ranks")
    })?;
    let mut ty = x.clone();
    ty.shape[axis] = len;
    Ok(ty)
}

/// Operands: `x [t, d]`, the slots `[c]` and all rows `[n*t, k]`.
fn infer_dispatch_rows(operands: &[&TensorType], n: Dim) -> Result<TensorType, String> {
    let [x, slots, all_rows] = operands[..] else { return Err("it takes three operands".into()) };
    ensure(x.rank() == 2, || format!("the tokens must have two axes, found {:?}", x.shape))?;
    ensure(slots.dtype == DType::I64 && slots.rank() == 1, || {
        format!("the slots must be i64 with one axis, found {}{:?}", slots.dtype, slots.shape)
    })?;
    let tokens = x.shape[0].clone() * n;
    ensure(all_rows.dtype == DType::I64 && all_rows.rank() == 2 && all_rows.shape[0] == tokens, || {
        format!(
            "the rows of all tokens must be i64[{tokens:?}, ..], found {}{:?}",
            all_rows.dtype, all_rows.shape
        )
    })?;
    Ok(TensorType::new(x.dtype, vec![slots.shape[0].clone(), x.shape[1].clone()]))
}

/// Operands: `x [c, d]`, the rows `[t, k]` and optionally the weights `[t, k]`.
fn infer_combine_rows(operands: &[&TensorType]) -> Result<TensorType, String> {
    let (x, rows) = (operands[0], operands[1]);
    check_float(x)?;
    ensure(x.rank() == 2, || format!("the rows must have two axes, found {:?}", x.shape))?;
    ensure(rows.dtype == DType::I64 && rows.rank() == 2, || {
        format!("the positions of rows must be i64 with two axes, found {}{:?}", rows.dtype, rows.shape)
    })?;
    if let Some(weights) = operands.get(2) {
        ensure(weights.dtype.is_float() && weights.shape == rows.shape, || {
            format!("the weights must be floats{:?}, found {}{:?}", rows.shape, weights.dtype, weights.shape)
        })?;
    }
    Ok(TensorType::new(x.dtype, vec![rows.shape[0].clone(), x.shape[1].clone()]))
}

/// Operands: `x [c, d]`, the rows `[n*t, k]` of all ranks and optionally their weights `[n*t, k]`.
fn infer_reduce_rows(operands: &[&TensorType], n: Dim) -> Result<Vec<TensorType>, String> {
    let mut result = infer_combine_rows(operands)?;
    let tokens_of_all = result.shape[0].clone();
    let Some(tokens) = tokens_of_all.exact_div(&n) else {
        return Err(format!("the rows of all tokens must be a multiple of {n:?}, found {tokens_of_all:?}"));
    };
    let sums = TensorType::new(
        result.dtype.compute_dtype(),
        vec![tokens_of_all - tokens.clone(), result.shape[1].clone()],
    );
    result.shape[0] = tokens;
    Ok(vec![result, sums])
}

fn infer_collective(
    kind: &CollectiveKind,
    operands: &[&TensorType],
    n: Option<u32>,
) -> Result<Vec<TensorType>, String> {
    let x = operands[0];
    let leading =
        |name: &str| x.shape.first().cloned().ok_or_else(|| format!("{name} needs an operand with an axis"));
    Ok(match kind {
        CollectiveKind::AllReduce(_) => {
            ensure(x.dtype != DType::Bool, || "it is not defined on bool".into())?;
            vec![x.clone()]
        }
        CollectiveKind::AllGather => {
            let extent = leading("all_gather")? * require_rank_count(n)?;
            let mut ty = x.clone();
            ty.shape[0] = extent;
            vec![ty]
        }
        CollectiveKind::ReduceScatter(_) => {
            ensure(x.dtype != DType::Bool, || "it is not defined on bool".into())?;
            leading("reduce_scatter")?;
            vec![shard_type(x, 0, n)?]
        }
        CollectiveKind::AllToAll(AllToAllSplits::Even) => {
            leading("all_to_all")?;
            shard_type(x, 0, n)?;
            vec![x.clone()]
        }
        CollectiveKind::AllToAll(AllToAllSplits::Device) => {
            leading("all_to_all")?;
            let splits = TensorType::new(DType::I64, vec![require_rank_count(n)?]);
            ensure(*operands[1] == splits, || {
                format!(
                    "the split sizes must be i64{:?}, found {}{:?}",
                    splits.shape, operands[1].dtype, operands[1].shape
                )
            })?;
            vec![x.clone(), splits]
        }
        CollectiveKind::Broadcast { root } => {
            check_rank_in_group("the root", *root, n)?;
            vec![x.clone()]
        }
        CollectiveKind::Permute { pairs } => {
            let mut senders = HashSet::new();
            let mut receivers = HashSet::new();
            for &(from, to) in pairs {
                check_rank_in_group("the sender", from, n)?;
                check_rank_in_group("the receiver", to, n)?;
                ensure(senders.insert(from), || format!("rank {from} sends twice"))?;
                ensure(receivers.insert(to), || format!("rank {to} receives twice"))?;
            }
            vec![x.clone()]
        }
        CollectiveKind::DispatchRows => vec![infer_dispatch_rows(operands, require_rank_count(n)?)?],
        CollectiveKind::CombineRows => vec![infer_combine_rows(operands)?],
        CollectiveKind::ReduceRows => infer_reduce_rows(operands, require_rank_count(n)?)?,
    })
}

/// Checks that a rank is in a group of `n` ranks, unless `n` is open.
fn check_rank_in_group(what: &str, rank: u32, n: Option<u32>) -> Result<(), String> {
    match n {
        Some(n) if rank >= n => Err(format!("{what} {rank} is not in a group of {n} ranks")),
        _ => Ok(()),
    }
}
