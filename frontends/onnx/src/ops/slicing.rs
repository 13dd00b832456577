//! Slices, splits, concatenation, repetition, padding.

use symmc_import::padding::{AxisPadding, PaddingMode, pad_with_elements, pad_with_number};
use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported};
use symmc_ir::{DType, Dim, FloatAttribute, Op, Scalar, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::known_values::SymbolicInts;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("Slice", 13, "slice; take for negative steps", slice),
    row_of_results("Split", 18, "slice", split),
    row("Concat", 13, "concat", |c| {
        let tensors = c.tensors()?;
        let axis = c.resolve_axis(c.int("axis")?, c.rank(tensors[0]))?;
        c.concat(&tensors, axis)
    }),
    row("Tile", 13, "reshape, expand, reshape", |c| {
        let x = c.tensor(0)?;
        let repeats = c.ints(1, "the repeats")?.dims;
        c.repeat(x, &repeats)
    }),
    row("Pad", 25, "pad; take", pad),
    row("CenterCropPad", 18, "slice, pad", center_crop_pad),
    row("DepthToSpace", 28, "reshape, permute, reshape", |c| {
        let x = c.tensor(0)?;
        let block = Dim::from(block_size(c)?);
        let [n, channels, h, w] = require_four_axes(&c.shape(x))?;
        let less = divide_exactly(c, &channels, &(block.clone() * block.clone()))?;
        let (split, perm) = match c.opt_string("mode")? {
            Some("CRD") => ([less.clone(), block.clone(), block.clone()], vec![0, 1, 4, 2, 5, 3]),
            None | Some("DCR") => ([block.clone(), block.clone(), less.clone()], vec![0, 3, 4, 1, 5, 2]),
            Some(other) => return invalid!("expected mode DCR or CRD, found `{other}`"),
        };
        let [a, b, d] = split;
        let y = c.reshape(x, vec![n.clone(), a, b, d, h.clone(), w.clone()])?;
        let y = c.permute(y, perm)?;
        c.reshape(y, vec![n, less, h * block.clone(), w * block])
    }),
    row("SpaceToDepth", 28, "reshape, permute, reshape", |c| {
        let x = c.tensor(0)?;
        let block = Dim::from(block_size(c)?);
        let [n, channels, h, w] = require_four_axes(&c.shape(x))?;
        let rows = divide_exactly(c, &h, &block)?;
        let columns = divide_exactly(c, &w, &block)?;
        let perm = match c.opt_string("mode")? {
            Some("CRD") => vec![0, 1, 3, 5, 2, 4],
            None | Some("DCR") => vec![0, 3, 5, 1, 2, 4],
            Some(other) => return invalid!("expected mode DCR or CRD, found `{other}`"),
        };
        let split =
            vec![n.clone(), channels.clone(), rows.clone(), block.clone(), columns.clone(), block.clone()];
        let y = c.reshape(x, split)?;
        let y = c.permute(y, perm)?;
        c.reshape(y, vec![n, channels * block.clone() * block, rows, columns])
    }),
];

fn require_four_axes(shape: &[Dim]) -> RuleResult<[Dim; 4]> {
    <[Dim; 4]>::try_from(shape.to_vec())
        .map_err(|shape| RuleFailure::Invalid(format!("expected four axes, found {}", shape.len())))
}

fn block_size(c: &OpCall<'_, '_>) -> RuleResult<i64> {
    let block = c.int("blocksize")?;
    invalid_if!(!(1..1 << 31).contains(&block), "expected a blocksize of at least 1, found {block}");
    Ok(block)
}

fn divide_exactly(c: &OpCall<'_, '_>, extent: &Dim, divisor: &Dim) -> RuleResult<Dim> {
    extent.exact_div(divisor).ok_or_else(|| {
        RuleFailure::Invalid(format!(
            "expected a multiple of {}, found {}",
            c.display_dim(divisor),
            c.display_dim(extent)
        ))
    })
}

/// Ends of at least this magnitude mean the end of the axis.
const FAR: i64 = 1 << 31;

struct SliceBounds {
    start: Dim,
    end: Dim,
    axis: i64,
    step: i64,
}

/// The bounds of a slice along each of its axes. They are operands, or attributes before version 10.
fn slice_bounds(c: &mut OpCall<'_, '_>) -> RuleResult<Vec<SliceBounds>> {
    let starts = slice_operand(c, 1, "starts")?;
    let ends = slice_operand(c, 2, "ends")?;
    let axes = slice_operand(c, 3, "axes")?;
    let steps = slice_operand(c, 4, "steps")?;
    let (Some(starts), Some(ends)) = (starts, ends) else {
        return invalid!("expected starts and ends, found none");
    };
    let n = starts.len();
    let lengths = [ends.len(), axes.as_ref().map_or(n, Vec::len), steps.as_ref().map_or(n, Vec::len)];
    invalid_if!(lengths.iter().any(|l| *l != n), "expected {n} ends, axes and steps, found {lengths:?}");
    let mut bounds = Vec::with_capacity(n);
    for (i, (start, end)) in starts.into_iter().zip(ends).enumerate() {
        let axis = constant_at(&axes, i, "axes")?.unwrap_or(i as i64);
        let step = constant_at(&steps, i, "steps")?.unwrap_or(1);
        bounds.push(SliceBounds { start, end, axis, step });
    }
    Ok(bounds)
}

fn slice_operand(c: &mut OpCall<'_, '_>, i: usize, name: &str) -> RuleResult<Option<Vec<Dim>>> {
    Ok(match c.opt_ints(i, name)? {
        Some(SymbolicInts { dims, .. }) => Some(dims),
        None => c.opt_attribute_ints(name)?.map(|v| v.iter().map(|&d| Dim::from(d)).collect()),
    })
}

fn constant_at(list: &Option<Vec<Dim>>, i: usize, what: &str) -> RuleResult<Option<i64>> {
    let Some(list) = list else { return Ok(None) };
    match list[i].as_const() {
        Some(constant) => Ok(Some(constant)),
        None => unsupported!("the {what} are symbolic"),
    }
}

fn slice(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mut y = c.tensor(0)?;
    for SliceBounds { start, end, axis, step } in slice_bounds(c)? {
        let axis = c.resolve_axis(axis, c.rank(y))?;
        y = match step {
            0 => return invalid!("expected a step other than 0, found 0"),
            1.. => {
                let end = (end.as_const().is_none_or(|e| e < FAR)).then_some(end);
                let (start, len) = c.slice_range(&c.extent(y, axis), start, end, step);
                c.slice(y, axis, start, len, step)?
            }
            _ => slice_backwards(c, y, axis, (start, end), step)?,
        };
    }
    Ok(y)
}

/// A slice with a negative step, as a gather by index.
fn slice_backwards(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    axis: usize,
    (start, end): (Dim, Dim),
    step: i64,
) -> EmitResult {
    let n = c.extent(x, axis);
    let last_index = n.clone() - Dim::from(1);
    let start = match start.as_const() {
        Some(s) if s >= FAR || s == -1 => last_index,
        _ => match c.index_from_start(start, &n) {
            s if c.dim_bounds(&(last_index.clone() - s.clone())).0 >= 0 => s,
            s => s.min_with(&last_index),
        },
    };
    // The end is exclusive, so -1 includes the first element.
    let end = match end.as_const() {
        Some(e) if e <= -FAR => Dim::from(-1),
        _ => match c.index_from_start(end, &n) {
            e if c.dim_bounds(&e).0 >= 0 => e,
            e => e.max_with(&(-1).into()),
        },
    };
    let index = c.range(&start, &end, step, DType::I64)?;
    c.emit("take", Op::Take { axis }, &[x, index])
}

/// The lengths are an operand or an attribute. By default all slices have the same length, except that the
/// last may be shorter.
fn split(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.tensor(0)?;
    let axis = c.axis_or("axis", 0, c.rank(x))?;
    let n = c.extent(x, axis);
    let count = c.result_count() as i64;
    let lengths = match (c.opt_ints(1, "the lengths")?, c.opt_attribute_ints("split")?) {
        (Some(ints), _) => ints.dims,
        (None, Some(list)) => list.iter().map(|&d| Dim::from(d)).collect(),
        (None, None) => {
            let pieces = c.int_or("num_outputs", count)?;
            invalid_if!(pieces != count || count == 0, "expected {pieces} results, found {count}");
            let each = match n.exact_div(&count.into()) {
                Some(each) => each,
                None => (n.clone() + Dim::from(count - 1)).floor_div(&count.into()),
            };
            let mut lengths = vec![each.clone(); count as usize];
            if let Some(last) = lengths.last_mut() {
                *last = n.clone() - each * Dim::from(count - 1);
            }
            lengths
        }
    };
    invalid_if!(lengths.len() as i64 != count, "expected {} results, found {count}", lengths.len());
    let pieces = c.split_by_lengths(x, axis, lengths)?;
    c.set_results(pieces)
}

/// The pads are all numbers before the axes, then all numbers after them. Negative numbers remove elements.
fn pad(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mode = match c.opt_string("mode")? {
        None | Some("constant") => None,
        Some("reflect") => Some(PaddingMode::Reflect),
        Some("edge") => Some(PaddingMode::Edge),
        Some("wrap") => Some(PaddingMode::Wrap),
        Some(other) => return invalid!("expected mode constant, reflect, edge or wrap, found `{other}`"),
    };
    let x = c.tensor(0)?;
    let rank = c.rank(x);
    let pads = match (c.opt_ints(1, "the pads")?, c.opt_attribute_ints("pads")?) {
        (Some(ints), _) => ints.dims,
        (None, Some(list)) => list.iter().map(|&d| Dim::from(d)).collect(),
        (None, None) => return invalid!("expected pads, found none"),
    };
    let axes = match c.opt_consts(3, "axes")? {
        Some(axes) => axes.into_iter().map(|a| c.resolve_axis(a, rank)).collect::<RuleResult<Vec<_>>>()?,
        None => (0..rank).collect(),
    };
    invalid_if!(pads.len() != 2 * axes.len(), "expected {} pads, found {}", 2 * axes.len(), pads.len());
    let (before, after) = pads.split_at(axes.len());
    let paddings = axes.into_iter().zip(before.iter().zip(after));
    let paddings: Vec<AxisPadding> = paddings
        .map(|(axis, (before, after))| AxisPadding { axis, before: before.clone(), after: after.clone() })
        .collect();
    if let Some(mode) = mode {
        // Only constants have a value.
        c.operand_name(2);
        c.ignore(&["value"]);
        return pad_with_elements(c, x, &paddings, mode);
    }
    let value = match (c.operand_name(2), c.scalar(2)?) {
        (Some(_), None) => {
            let value = c.tensor(2)?;
            let number = c.reshape(value, vec![])?;
            return pad_with_data(c, x, &paddings, number);
        }
        (_, Some(value)) => value,
        (None, None) => Scalar::Float(FloatAttribute(c.float_or("value", 0.0)?)),
    };
    pad_with_number(c, x, &paddings, value)
}

/// Pads with a number that depends on data.
fn pad_with_data(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    paddings: &[AxisPadding],
    number: ValueId,
) -> EmitResult {
    let inside = c.full(Scalar::Int(1), DType::U8, c.shape(x))?;
    let inside = pad_with_number(c, inside, paddings, Scalar::Int(0))?;
    let padded = pad_with_number(c, x, paddings, Scalar::Int(0))?;
    c.formula([inside, padded, number], |[inside, padded, number]| inside.ne(0).select(padded, number))
}

/// Crops or pads axes to the extents in operand 1. Of an odd difference, the end has one more.
fn center_crop_pad(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mut y = c.tensor(0)?;
    let rank = c.rank(y);
    let axes = match c.opt_attribute_ints("axes")? {
        Some(axes) => axes.iter().map(|a| c.resolve_axis(*a, rank)).collect::<RuleResult<Vec<_>>>()?,
        None => (0..rank).collect(),
    };
    let extents = c.ints(1, "the extents")?.dims;
    invalid_if!(axes.len() != extents.len(), "expected {} extents, found {}", axes.len(), extents.len());
    for (axis, extent) in axes.into_iter().zip(extents) {
        let difference = extent.clone() - c.extent(y, axis);
        let (low, high) = c.dim_bounds(&difference);
        let half = |d: Dim| d.floor_div(&2.into());
        if high <= 0 {
            y = c.slice(y, axis, half(Dim::from(0) - difference), extent, 1)?;
        } else if low >= 0 {
            let before = half(difference.clone());
            let padding = AxisPadding { axis, after: difference - before.clone(), before };
            y = pad_with_number(c, y, &[padding], Scalar::Int(0))?;
        } else {
            return unsupported!("an axis may be cropped or padded, depending on its extent");
        }
    }
    Ok(y)
}
