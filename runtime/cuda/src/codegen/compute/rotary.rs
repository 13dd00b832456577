//! Rotary position embeddings, several of them as one kernel.
//!
//! Queries and keys have consecutive embeddings with the same cosines. Each alone occupies few
//! multiprocessors, so both share one launch, with separate blocks for each ([`lower_together`]).

use std::fmt::Write as _;

use symmc_ir::Op;
use symmc_runtime::exec::LocatedTensor;

use super::lowering::{BoundOperation, KernelLowering, mismatch_error};
use super::space::{IterationAxis, Strides, broadcast, by_stride, collapsed_axes, is_contiguous};
use super::text::{self, offset_function, stored_type};
use crate::codegen::command::{Commands, GpuCommand};
use crate::device::launch::{DevicePtr, KernelLaunch, KernelParam};
use crate::error::Result;

const THREADS: usize = 256;

/// The rows of one operand: their location, and the distance of neighbours within a row.
struct RotaryRows {
    at: DevicePtr,
    size: usize,
    row: Vec<IterationAxis>,
    step: isize,
}

impl RotaryRows {
    /// The rows of `value`, whose leading axes broadcast to `rows`.
    fn from_operand(value: &LocatedTensor, rows: &[usize], l: &KernelLowering<'_>) -> RotaryRows {
        let last_axis = value.shape.len() - 1;
        let strides = broadcast(rows, &value.shape[..last_axis], &value.strides[..last_axis]);
        let row = collapsed_axes(rows, &Strides::from_slice(&strides));
        RotaryRows { at: l.address_of(value), size: value.dtype.size(), row, step: value.strides[last_axis] }
    }

    /// Whether accesses to `width` neighbours are aligned.
    fn allows(&self, width: usize) -> bool {
        self.step == 1
            && self.at.is_multiple_of((width * self.size) as u64)
            && self.row.iter().all(|axis| axis.has_stride_multiple_of(width))
    }
}

/// The part of a kernel that computes one step.
struct RotaryPart {
    layout: String,
    blocks: usize,
    params: [DevicePtr; 4],
}

pub(super) fn lower(
    width: usize,
    interleaved: bool,
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let rotary = rotary_part(width, interleaved, operands, result, 0, l)?;
    Ok(rotary.map(|p| launch(&[p], l)).into_iter().collect())
}

/// Lowers steps to one kernel.
pub fn lower_together(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Commands {
    let mut rotaries = Vec::with_capacity(steps.len());
    for step in steps {
        let &Op::RotaryEmbedding { width, interleaved } = step.op else {
            return Err(super::lowering::no_kernel(step.op));
        };
        super::lowering::arity(step.op, step.operands.len(), step.results.len())?;
        let number = rotaries.len();
        rotaries.extend(rotary_part(width, interleaved, step.operands, &step.results[0], number, l)?);
    }
    Ok(if rotaries.is_empty() { Vec::new() } else { vec![launch(&rotaries, l)] })
}

/// The part of a kernel for one step, with the number of its layout; `None` if there are no rows.
fn rotary_part(
    width: usize,
    interleaved: bool,
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    number: usize,
    l: &KernelLowering<'_>,
) -> Result<Option<RotaryPart>> {
    check_operands(width, operands, result)?;
    let [x, cos, sin] = operands else { return Err(mismatch_error("a rotary embedding", 3, operands.len())) };
    let Some((&e, lead)) = x.shape.split_last() else { return Ok(None) };
    let count: usize = lead.iter().product();
    if count == 0 {
        return Ok(None);
    }
    let operand_rows = [x, cos, sin, result].map(|v| RotaryRows::from_operand(v, lead, l));
    let mut vector_width = 16 / cos.dtype.size();
    while vector_width > 1 {
        let allowed = (width / 2).is_multiple_of(vector_width)
            && (e - width).is_multiple_of(vector_width)
            && operand_rows.iter().all(|r| r.allows(vector_width));
        if allowed {
            break;
        }
        vector_width /= 2;
    }
    let items = count * (width / 2 + e - width) / vector_width;
    let each = cos.shape.last() == Some(&width);
    let position = if items < 1 << 30 { "u32" } else { "u64" };
    let mut layout = format!(
        "namespace sc {{ struct @_L{number} {{\ntypedef {} X; typedef {} C; typedef {position} I;\nstatic const I ROWS = {count};\nstatic const int E = {e}, WIDTH = {width}, V = {vector_width};\nstatic const bool INTERLEAVED = {interleaved}, EACH = {each};\n",
        stored_type(x.dtype),
        stored_type(cos.dtype),
    );
    for (name, rows) in ["x", "c", "s", "r"].into_iter().zip(&operand_rows) {
        layout.push_str(&offset_function(&format!("{name}_row"), &rows.row));
        let _ = writeln!(layout, "static const i64 {name}_step = {}ll;", rows.step);
    }
    layout.push_str("}; }\n");
    let blocks = items.div_ceil(THREADS).clamp(1, l.machine.multiprocessors as usize * 16);
    Ok(Some(RotaryPart { layout, blocks, params: operand_rows.map(|r| r.at) }))
}

fn check_operands(width: usize, operands: &[LocatedTensor], result: &LocatedTensor) -> Result<()> {
    let [x, cos, sin] = operands else { return Err(mismatch_error("a rotary embedding", 3, operands.len())) };
    let (Some((&e, lead)), Some((&numbers, rows))) = (x.shape.split_last(), cos.shape.split_last()) else {
        return Err(mismatch_error("a rotary embedding", "rows", (&x.shape, &cos.shape)));
    };
    let skip = lead.len().checked_sub(rows.len());
    let broadcasts = skip.is_some_and(|s| rows.iter().zip(&lead[s..]).all(|(a, b)| a == b || *a == 1));
    let fits = broadcasts
        && x.shape == result.shape
        && x.dtype == result.dtype
        && (cos.dtype, &cos.shape) == (sin.dtype, &sin.shape)
        && [x.dtype, cos.dtype].into_iter().all(|d| d.is_float())
        && cos.dtype.size() >= x.dtype.size()
        && width.is_multiple_of(2)
        && (2..=e).contains(&width)
        && (numbers == width || 2 * numbers == width);
    if fits {
        Ok(())
    } else {
        Err(mismatch_error("a rotary embedding", &x.shape, (&cos.shape, &sin.shape, &result.shape)))
    }
}

/// A rotary embedding in the epilogue of the product whose columns it rotates.
pub(super) struct RotaryEpilogue {
    /// The text before the kernel, with the number of the product.
    pub layout: String,
    /// The distance between the columns of a pair.
    pub half: usize,
    /// The cosines, the sines and the result.
    pub params: [DevicePtr; 3],
}

/// The rotary embedding of a product's result, head by head; `None` if it rotates another value.
pub(super) fn rotary_epilogue(
    step: &BoundOperation<'_>,
    product: &LocatedTensor,
    number: usize,
    l: &KernelLowering<'_>,
) -> Result<Option<RotaryEpilogue>> {
    let &Op::RotaryEmbedding { width, interleaved } = step.op else { return Ok(None) };
    let ([x, cos, sin], [r]) = (step.operands, step.results) else { return Ok(None) };
    check_operands(width, step.operands, r)?;
    let Some([rows, heads]) = row_and_head_axes(x, product).filter(|_| x.shape.last() == Some(&width)) else {
        return Ok(None);
    };
    let lead = &x.shape[..x.shape.len() - 1];
    let mut layout = format!(
        "namespace sc {{ struct @_R{number} {{\ntypedef {} X; typedef {} C;\nstatic const int WIDTH = {width};\nstatic const bool INTERLEAVED = {interleaved}, EACH = {};\n",
        stored_type(x.dtype),
        stored_type(cos.dtype),
        cos.shape.last() == Some(&width),
    );
    for (name, value) in [("c", cos), ("s", sin), ("r", r)] {
        let last_axis = value.shape.len() - 1;
        let strides = broadcast(lead, &value.shape[..last_axis], &value.strides[..last_axis]);
        for (axis_kind, chosen) in [("row", &rows), ("head", &heads)] {
            let along: Vec<IterationAxis> =
                chosen.iter().map(|&a| IterationAxis { n: lead[a], stride: strides[a] }).collect();
            layout.push_str(&offset_function(&format!("{name}_{axis_kind}"), &along));
        }
        let _ = writeln!(layout, "static const i64 {name}_step = {}ll;", value.strides[last_axis]);
    }
    layout.push_str("}; }\n");
    let half = if interleaved { 1 } else { width / 2 };
    Ok(Some(RotaryEpilogue { layout, half, params: [cos, sin, r].map(|v| l.address_of(v)) }))
}

/// The leading axes of `x` that are rows of a matrix, and those that are heads (ranges of adjacent columns),
/// both in the order of the matrix; `None` if `x` is not all of the matrix.
fn row_and_head_axes(x: &LocatedTensor, matrix: &LocatedTensor) -> Option<[Vec<usize>; 2]> {
    let (&head, lead) = x.shape.split_last()?;
    let (&columns, rows) = matrix.shape.split_last()?;
    let is_whole_matrix = (x.space, x.by_rank, x.offset, x.dtype)
        == (matrix.space, matrix.by_rank, matrix.offset, matrix.dtype);
    if !is_whole_matrix || !is_contiguous(matrix) || x.strides.last() != Some(&1) {
        return None;
    }
    let order = by_stride(lead, &x.strides[..lead.len()]);
    let (of_rows, of_heads): (Vec<_>, Vec<_>) =
        order.into_iter().partition(|&a| x.strides[a] >= columns as isize);
    let rows = rows.iter().product::<usize>();
    let fits = are_dense(x, &of_heads, head, columns) && are_dense(x, &of_rows, columns, rows * columns);
    fits.then_some([of_rows, of_heads])
}

/// Whether these axes of `x` join into one axis of this stride, which ends after `end` elements.
fn are_dense(x: &LocatedTensor, axes: &[usize], mut stride: usize, end: usize) -> bool {
    for &a in axes.iter().rev() {
        if x.strides[a] != stride as isize {
            return false;
        }
        stride *= x.shape[a];
    }
    stride == end
}

fn launch(parts: &[RotaryPart], l: &mut KernelLowering<'_>) -> GpuCommand {
    l.preludes();
    l.source.prelude(text::ROTARY_SOURCE);
    let layouts: String = parts.iter().map(|p| p.layout.as_str()).collect();
    let declared: Vec<String> = (0..parts.len())
        .map(|i| format!("const void *x{i}, const void *c{i}, const void *s{i}, void *r{i}"))
        .collect();
    let mut body = String::new();
    let mut first = 0;
    for (i, part) in parts.iter().enumerate() {
        let blocks = part.blocks;
        let end = first + part.blocks;
        let _ = writeln!(
            body,
            "    if (blockIdx.x >= {first}u && blockIdx.x < {end}u) sc::turn<sc::@_L{i}>(x{i}, c{i}, s{i}, r{i}, blockIdx.x - {first}u, {blocks}u, {THREADS}u);"
        );
        first = end;
    }
    let function = format!(
        "{layouts}extern \"C\" __global__ void __launch_bounds__({THREADS}) @({}) {{\n    symmc_enter();\n{body}}}\n",
        declared.join(", ")
    );
    let entry = l.source.function("rotary", function);
    let params = parts.iter().flat_map(|p| p.params).map(KernelParam::from).collect();
    GpuCommand::Kernel(KernelLaunch::flat(entry, first, THREADS, params))
}
