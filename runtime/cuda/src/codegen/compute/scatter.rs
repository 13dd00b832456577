//! Stores at positions from data: scatter, index-add and index-put.
//!
//! The first operand is copied unless it is already in the result's place. Then the sources are stored, or
//! combined, in the order of their positions. Several index-puts are one kernel with separate blocks for each
//! ([`lower_together`]).

use std::fmt::Write as _;

use symmc_ir::{Op, ReductionKind};
use symmc_runtime::exec::LocatedTensor;

use super::lowering::{BoundOperation, KernelLowering, arity, mismatch_error, no_kernel};
use super::movement::{common_shape, copy};
use super::space::{IterationAxis, broadcast, collapsed_axes};
use super::text::{self, offset_function, stored_type};
use crate::codegen::command::{Commands, GpuCommand};
use crate::device::launch::{CudaStruct, DevicePtr, KernelLaunch, KernelParam, plain};
use crate::error::Result;

fn combine_name(combine: Option<ReductionKind>) -> &'static str {
    match combine {
        None => "STORE",
        Some(ReductionKind::Sum) => "SUM",
        Some(ReductionKind::Mean) => "MEAN",
        Some(ReductionKind::Prod) => "PROD",
        Some(ReductionKind::Max) => "MAX",
        Some(ReductionKind::Min) => "MIN",
        Some(ReductionKind::Any) => "ANY",
        Some(ReductionKind::All) => "ALL",
    }
}

/// The operands are `x`, the index and the source.
pub(super) fn lower_scatter_elements(
    axis: usize,
    combine: Option<ReductionKind>,
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let x = &operands[0];
    let index = &operands[1];
    let src = &operands[2];
    let fits = axis < x.shape.len()
        && x.shape == result.shape
        && index.shape == src.shape
        && index.shape.len() == x.shape.len()
        && x.dtype == src.dtype
        && (0..x.shape.len()).all(|a| a == axis || index.shape[a] <= x.shape[a]);
    if !fits {
        return Err(mismatch_error("the index of scatter", &x.shape, &index.shape));
    }
    let mut out = copy(x, result, l)?;
    let n: usize = index.shape.iter().product();
    if n == 0 {
        return Ok(out);
    }
    let along = index.shape[axis];
    let mut layout = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T; typedef {} I;\nstatic const i64 N = {n}, ALONG = {along}, LINES = {}, EXTENT = {};\n",
        stored_type(x.dtype),
        stored_type(index.dtype),
        n / along,
        x.shape[axis]
    );
    for (name, value) in [("i", index), ("s", src), ("d", result)] {
        let line: Vec<IterationAxis> = (0..x.shape.len())
            .filter(|&a| a != axis)
            .map(|a| IterationAxis { n: index.shape[a], stride: value.strides[a] })
            .collect();
        layout.push_str(&offset_function(&format!("{name}_line"), &line));
        let _ = writeln!(layout, "static const i64 {name}_step = {}ll;", value.strides[axis]);
    }
    let _ = writeln!(
        layout,
        "}}; }}\nextern \"C\" __global__ void __launch_bounds__(256) @(const void *i, const void *s, void *d, void *status, unsigned assertion) {{\n    symmc_enter();\n    \
         sc::scatter_elements<sc::@_L, sc::{}>(i, s, d, status, assertion);\n}}",
        combine_name(combine)
    );
    l.preludes();
    l.source.prelude(text::SCATTER);
    let assertion = l.index_assertion(axis, x.shape[axis]);
    let entry = l.source.function("scatter", layout);
    let mut params: Vec<KernelParam> = [index, src, result].map(|value| l.address_of(value).into()).to_vec();
    params.extend([l.machine.status.into(), assertion.into()]);
    out.push(GpuCommand::Kernel(KernelLaunch::flat(entry, n.div_ceil(256), 256, params)));
    Ok(out)
}

struct IndexPutPart {
    layout: String,
    how: &'static str,
    blocks: usize,
    params: [KernelParam; 3],
}

/// Stores pieces of `src` in `x` at the places that the indices select on its axes from `axis` on.
pub(super) fn lower_index_put(
    axis: usize,
    combine: Option<ReductionKind>,
    [x, src]: [&LocatedTensor; 2],
    indices: &[LocatedTensor],
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let mut out = copy(x, result, l)?;
    let part = index_put_part(axis, combine, [x, src], indices, result, 0, l)?;
    out.extend(part.map(|part| launch(vec![part], l)));
    Ok(out)
}

/// Lowers index-puts: at most one kernel, after the copies of operands that are not in their result's place.
pub fn lower_together(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Commands {
    let mut out = Vec::new();
    let mut parts = Vec::with_capacity(steps.len());
    for step in steps {
        let (&Op::IndexPut { axis, accumulate }, [x, src, indices @ ..]) = (step.op, step.operands) else {
            return Err(no_kernel(step.op));
        };
        arity(step.op, step.operands.len(), step.results.len())?;
        let add = accumulate.then_some(ReductionKind::Sum);
        let result = &step.results[0];
        out.extend(copy(x, result, l)?);
        parts.extend(index_put_part(axis, add, [x, src], indices, result, parts.len(), l)?);
    }
    if !parts.is_empty() {
        out.push(launch(parts, l));
    }
    Ok(out)
}

/// The part of a kernel for one index-put, with the number of its layout; `None` if nothing is stored.
fn index_put_part(
    axis: usize,
    combine: Option<ReductionKind>,
    [x, src]: [&LocatedTensor; 2],
    indices: &[LocatedTensor],
    result: &LocatedTensor,
    number: usize,
    l: &mut KernelLowering<'_>,
) -> Result<Option<IndexPutPart>> {
    let end = axis + indices.len();
    if end > x.shape.len() || x.shape != result.shape || x.dtype != src.dtype {
        return Err(mismatch_error("the result of an indexed store", &x.shape, &result.shape));
    }
    let at = common_shape(indices);
    let shape = [&x.shape[..axis], &at, &x.shape[end..]].concat();
    let skip = shape.len().checked_sub(src.shape.len());
    if !skip.is_some_and(|s| src.shape.iter().zip(&shape[s..]).all(|(a, b)| a == b || *a == 1)) {
        return Err(mismatch_error("the source of an indexed store", &shape, &src.shape));
    }
    let places: usize = at.iter().product();
    let piece: usize = x.shape[end..].iter().product();
    let before: usize = x.shape[..axis].iter().product();
    if places * piece * before == 0 {
        return Ok(None);
    }
    let from = broadcast(&shape, &src.shape, &src.strides);
    let mut layout = format!(
        "namespace sc {{ struct @_L{number} {{\ntypedef {} T;\nstatic const i64 N = {places}, BEFORE = {before}, PIECE = {piece};\n",
        stored_type(x.dtype)
    );
    let parts = [
        ("s_before", collapsed_axes(&shape[..axis], &from[..axis])),
        ("s_at", collapsed_axes(&at, &from[axis..axis + at.len()])),
        ("s_piece", collapsed_axes(&x.shape[end..], &from[axis + at.len()..])),
        ("d_before", collapsed_axes(&x.shape[..axis], &result.strides[..axis])),
        ("d_piece", collapsed_axes(&x.shape[end..], &result.strides[end..])),
    ];
    parts.iter().for_each(|(name, axes)| layout.push_str(&offset_function(name, axes)));
    places_text(&mut layout, axis, x, indices, &at, result);
    layout.push_str("}; }\n");
    let blocks = places * piece.div_ceil(1024) * before;
    let params = [indices_param(axis, x, indices, l)?, l.address_of(src).into(), l.address_of(result).into()];
    Ok(Some(IndexPutPart { layout, how: combine_name(combine), blocks, params }))
}

fn launch(parts: Vec<IndexPutPart>, l: &mut KernelLowering<'_>) -> GpuCommand {
    l.preludes();
    l.source.prelude(text::SCATTER);
    let layouts: String = parts.iter().map(|p| p.layout.as_str()).collect();
    let declared: Vec<String> =
        (0..parts.len()).map(|i| format!("sc::@_L{i}::Indices i{i}, const void *s{i}, void *d{i}")).collect();
    let mut body = String::new();
    let mut first = 0;
    for (i, part) in parts.iter().enumerate() {
        let end = first + part.blocks;
        let _ = writeln!(
            body,
            "    if (blockIdx.x >= {first}u && blockIdx.x < {end}u) sc::scatter_pieces<sc::@_L{i}, sc::{}>(i{i}, s{i}, d{i}, blockIdx.x - {first}u);",
            part.how
        );
        first = end;
    }
    let function = format!(
        "{layouts}extern \"C\" __global__ void __launch_bounds__(256) @({}) {{\n    symmc_enter();\n{body}}}\n",
        declared.join(", ")
    );
    let entry = l.source.function("index_put", function);
    GpuCommand::Kernel(KernelLaunch::flat(
        entry,
        first,
        256,
        parts.into_iter().flat_map(|p| p.params).collect(),
    ))
}

/// The largest number of index tensors of one step.
const MOST_INDICES: usize = 6;

plain! {
    /// The kernel's parameters for the indices; only the first words are used.
    struct Indices {
        status: u64,
        at: [DevicePtr; MOST_INDICES],
        assertions: [u64; MOST_INDICES],
    }
}

fn indices_param(
    axis: usize,
    x: &LocatedTensor,
    indices: &[LocatedTensor],
    l: &mut KernelLowering<'_>,
) -> Result<KernelParam> {
    if indices.len() > MOST_INDICES {
        return Err(mismatch_error(
            "an indexed store",
            format!("at most {MOST_INDICES} indices"),
            indices.len(),
        ));
    }
    let mut out = Indices {
        status: l.machine.status,
        at: [DevicePtr::NULL; MOST_INDICES],
        assertions: [0; MOST_INDICES],
    };
    for (k, index) in indices.iter().enumerate() {
        out.at[k] = l.address_of(index);
        out.assertions[k] = u64::from(l.index_assertion(axis + k, x.shape[axis + k]));
    }
    Ok(KernelParam::from_value(&out))
}

/// Emits the function `place`, which maps element j of the indices to its position on the indexed axes, and
/// the function that returns the offset of such a position.
fn places_text(
    out: &mut String,
    axis: usize,
    x: &LocatedTensor,
    indices: &[LocatedTensor],
    at: &[usize],
    result: &LocatedTensor,
) {
    out.push_str(&Indices::declaration());
    for (k, index) in indices.iter().enumerate() {
        out.push_str(&offset_function(
            &format!("i_{k}"),
            &collapsed_axes(at, &broadcast(at, &index.shape, &index.strides)),
        ));
    }
    out.push_str("SC_FN i64 place(const Indices &indices, i64 j, bool say) { i64 place = 0;\n");
    for (k, index) in indices.iter().enumerate() {
        let kind = stored_type(index.dtype);
        let extent = x.shape[axis + k];
        let _ = writeln!(
            out,
            "{{ i64 given = get(((const {kind} *)indices.at[{k}])[i_{k}(j)]), p = position(given, {extent}ll);\n\
             if (p < 0) {{ if (say && threadIdx.x == 0) report((void *)indices.status, (u32)indices.assertions[{k}], given); return -1; }}\n\
             place = place * {extent}ll + p; }}"
        );
    }
    out.push_str("return place; }\n");
    let end = axis + indices.len();
    let axes: Vec<IterationAxis> =
        (axis..end).map(|a| IterationAxis { n: x.shape[a], stride: result.strides[a] }).collect();
    out.push_str(&offset_function("d_place", &axes));
}
