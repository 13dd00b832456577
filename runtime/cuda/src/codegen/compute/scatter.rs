//! Stores at positions from data: scatter, index-add and index-put.
//!
//! The first operand is copied unless it is already in the result's place. Then the sources are stored, or
//! combined, in the order of their positions. Several index-puts are one kernel with separate blocks for each
//! ([`lower_together`]).
//!
//! Many sources are first sorted by their destination (`radix.rs`), which needs workspace.

use std::fmt::Write as _;
use std::ops::Range;

use symmc_ir::{Op, ReductionKind};
use symmc_runtime::exec::LocatedTensor;

use super::lowering::{BoundOperation, KernelLowering, arity, mismatch_error, no_kernel};
use super::movement::copy;
use super::radix::{self, RadixSort};
use super::space::{IterationAxis, broadcast, collapsed_axes, common_shape};
use super::text::{self, calling_kernel, offset_function, stored_type};
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
    let Some(sizes) = ElementSizes::of(axis, x, index) else { return Ok(out) };
    let ElementSizes { along, lines, .. } = sizes;
    let n = sizes.elements();
    let mut layout = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T; typedef {} I;\nstatic const i64 N = {n}, ALONG = {along}, LINES = {}, EXTENT = {};\n",
        stored_type(x.dtype),
        stored_type(index.dtype),
        lines,
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
    layout.push_str("}; }\n");
    let assertion = l.index_assertion(axis, x.shape[axis]);
    let addresses = [index, src, result].map(|value| l.address_of(value));
    let kernels = ElementKernels { layout, how: combine_name(combine), addresses, assertion };
    l.preludes();
    l.source.prelude(text::SCATTER_SOURCE);
    match sizes.sorted_lines() {
        Some(lines) => kernels.sort_and_store(&sizes, lines, &mut out, l)?,
        None => out.push(kernels.store(n, l)),
    }
    Ok(out)
}

/// The sizes of a scatter of elements.
struct ElementSizes {
    /// The elements along the axis of the scatter.
    along: usize,
    /// The lines along that axis.
    lines: usize,
    /// The elements of a line of the result.
    extent: usize,
}

impl ElementSizes {
    /// `None` if nothing is scattered.
    fn of(axis: usize, x: &LocatedTensor, index: &LocatedTensor) -> Option<ElementSizes> {
        let along = *index.shape.get(axis)?;
        let lines = index.shape.iter().product::<usize>().checked_div(along)?;
        (lines > 0).then_some(ElementSizes { along, lines, extent: *x.shape.get(axis)? })
    }

    fn elements(&self) -> usize {
        self.lines * self.along
    }

    /// How many lines are sorted at a time, if elements are sorted by destination. If they are not, each element
    /// compares its index with those of its whole line.
    fn sorted_lines(&self) -> Option<usize> {
        let lines = (MAX_SORTED_ELEMENTS / self.along).clamp(1, self.lines);
        let sorts = self.along > MAX_COMPARED_ELEMENTS && self.extent > 0;
        (sorts && radix::can_sort(lines * self.along, lines * self.extent)).then_some(lines)
    }
}

/// The kernels of a scatter of elements.
struct ElementKernels {
    layout: String,
    how: &'static str,
    /// The addresses of index, source and result.
    addresses: [DevicePtr; 3],
    assertion: u32,
}

impl ElementKernels {
    /// The layout, and a kernel that calls a function.
    fn text(&self, parameters: &str, call: &str) -> String {
        self.layout.clone() + &calling_kernel(THREADS_PER_BLOCK, parameters, call)
    }

    fn store(&self, elements: usize, l: &mut KernelLowering<'_>) -> GpuCommand {
        let parameters = "const void *i, const void *s, void *d, void *status, unsigned assertion";
        let call = format!("scatter_elements<sc::@_L, sc::{}>(i, s, d, status, assertion)", self.how);
        let entry = l.source.function("scatter", self.text(parameters, &call));
        let mut params: Vec<KernelParam> = self.addresses.map(KernelParam::from).to_vec();
        params.extend([l.machine.status.into(), self.assertion.into()]);
        GpuCommand::Kernel(KernelLaunch::flat(
            entry,
            elements.div_ceil(THREADS_PER_BLOCK),
            THREADS_PER_BLOCK,
            params,
        ))
    }

    /// Sorts and stores `lines` lines at a time.
    fn sort_and_store(
        &self,
        sizes: &ElementSizes,
        lines: usize,
        out: &mut Vec<GpuCommand>,
        l: &mut KernelLowering<'_>,
    ) -> Result<()> {
        for first in (0..sizes.lines).step_by(lines) {
            self.sort_and_store_lines(sizes, first..sizes.lines.min(first + lines), out, l)?;
        }
        Ok(())
    }

    fn sort_and_store_lines(
        &self,
        sizes: &ElementSizes,
        lines: Range<usize>,
        out: &mut Vec<GpuCommand>,
        l: &mut KernelLowering<'_>,
    ) -> Result<()> {
        let first = lines.start as u64;
        let count = lines.len();
        let elements = count * sizes.along;
        let sort = RadixSort::new("a scatter", elements, count * sizes.extent, l)?;
        let blocks = elements.div_ceil(THREADS_PER_BLOCK);
        let [index, source, result] = self.addresses;
        let parameters = "const void *i, void *k, void *status, unsigned assertion, long long first";
        let call = format!("element_keys<sc::@_L, {count}>(i, k, status, assertion, first)");
        let entry = l.source.function("scatter_keys", self.text(parameters, &call));
        let status = l.machine.status;
        let params =
            vec![index.into(), sort.keys().into(), status.into(), self.assertion.into(), first.into()];
        out.push(GpuCommand::Kernel(KernelLaunch::flat(entry, blocks, THREADS_PER_BLOCK, params)));
        let sorted = sort.sort(out, l);
        let parameters = "const void *k, const void *p, const void *s, void *d, long long first";
        let call = format!("scatter_sorted_elements<sc::@_L, sc::{}, {count}>(k, p, s, d, first)", self.how);
        let entry = l.source.function("scatter", self.text(parameters, &call));
        let addresses = [sorted.keys, sorted.positions, source, result];
        let mut params: Vec<KernelParam> = addresses.map(KernelParam::from).to_vec();
        params.push(first.into());
        out.push(GpuCommand::Kernel(KernelLaunch::flat(entry, blocks, THREADS_PER_BLOCK, params)));
        Ok(())
    }
}

/// The threads of a block.
const THREADS_PER_BLOCK: usize = 256;
/// The most elements of a line whose indices are compared with each other.
const MAX_COMPARED_ELEMENTS: usize = 256;
/// The most elements that are sorted at a time, if that is at least a line: 16 MiB of keys and positions.
const MAX_SORTED_ELEMENTS: usize = 1 << 20;
/// The most places whose indices are compared with each other.
const MAX_COMPARED_PLACES: usize = 1024;

/// An upper bound for the bytes of workspace that a scatter, index-add or index-put needs, which grows with the
/// sizes: at the upper ends of ranges it is sufficient for all sizes.
pub(super) fn workspace(op: &Op, operands: &[LocatedTensor]) -> usize {
    match (op, operands) {
        (&Op::ScatterElements { axis, .. }, [x, index, _]) => {
            let sizes = ElementSizes::of(axis, x, index);
            let sorted = sizes.filter(|sizes| sizes.along > MAX_COMPARED_ELEMENTS);
            sorted.map_or(0, |s| radix::workspace(s.elements().min(MAX_SORTED_ELEMENTS).max(s.along)))
        }
        (Op::IndexAdd { .. }, [_, index, _]) => piece_workspace(std::slice::from_ref(index)),
        (Op::IndexPut { .. }, [_, _, indices @ ..]) => piece_workspace(indices),
        _ => 0,
    }
}

fn piece_workspace(indices: &[LocatedTensor]) -> usize {
    let places = common_shape(indices).iter().product();
    if places > MAX_COMPARED_PLACES { radix::workspace(places) } else { 0 }
}

/// Whether places are sorted by destination.
fn sorts_places(places: usize, destinations: usize) -> bool {
    places > MAX_COMPARED_PLACES && radix::can_sort(places, destinations)
}

struct IndexPutPart {
    layout: String,
    /// The number of the layout among those of the kernel.
    number: usize,
    how: &'static str,
    blocks: usize,
    places: usize,
    destinations: usize,
    indices: KernelParam,
    source: DevicePtr,
    result: DevicePtr,
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
    let index_put = index_put_part(axis, combine, [x, src], indices, result, 0, l)?;
    launch(index_put.into_iter().collect(), &mut out, l)?;
    Ok(out)
}

/// Lowers index-puts: at most one kernel for those with few places, after the copies of operands that are not in
/// their result's place.
pub fn lower_together(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Commands {
    let mut out = Vec::new();
    let mut index_puts = Vec::with_capacity(steps.len());
    for step in steps {
        let (&Op::IndexPut { axis, accumulate }, [x, src, indices @ ..]) = (step.op, step.operands) else {
            return Err(no_kernel(step.op));
        };
        arity(step.op, step.operands.len(), step.results.len())?;
        let add = accumulate.then_some(ReductionKind::Sum);
        let result = &step.results[0];
        out.extend(copy(x, result, l)?);
        index_puts.extend(index_put_part(axis, add, [x, src], indices, result, index_puts.len(), l)?);
    }
    launch(index_puts, &mut out, l)?;
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
    let index_shape = common_shape(indices);
    let shape = [&x.shape[..axis], &index_shape, &x.shape[end..]].concat();
    let skip = shape.len().checked_sub(src.shape.len());
    if !skip.is_some_and(|s| src.shape.iter().zip(&shape[s..]).all(|(a, b)| a == b || *a == 1)) {
        return Err(mismatch_error("the source of an indexed store", &shape, &src.shape));
    }
    let places: usize = index_shape.iter().product();
    let piece: usize = x.shape[end..].iter().product();
    let before: usize = x.shape[..axis].iter().product();
    if places * piece * before == 0 {
        return Ok(None);
    }
    let from = broadcast(&shape, &src.shape, &src.strides);
    let destinations: usize = x.shape[axis..end].iter().product();
    let offset_axes = [
        ("s_before", collapsed_axes(&shape[..axis], &from[..axis])),
        ("s_at", collapsed_axes(&index_shape, &from[axis..axis + index_shape.len()])),
        ("d_before", collapsed_axes(&x.shape[..axis], &result.strides[..axis])),
        ("s_piece", collapsed_axes(&x.shape[end..], &from[axis + index_shape.len()..])),
        ("d_piece", collapsed_axes(&x.shape[end..], &result.strides[end..])),
    ];
    let (outer, pieces) = offset_axes.split_at(3);
    let starts = outer.iter().flat_map(|(_, axes)| axes).map(|a| a.stride);
    // A piece that is contiguous, and starts at a multiple of 4 elements, is accessed 4 elements at a time.
    let is_wide = piece.is_multiple_of(4)
        && pieces.iter().all(|(_, axes)| axes.iter().all(|a| a.stride == 1))
        && starts.chain(result.strides[axis..end].iter().copied()).all(|stride| stride % 4 == 0)
        && [src, result].iter().all(|v| l.address_of(v).is_multiple_of((4 * v.dtype.size()).min(16) as u64));
    let mut layout = format!(
        "namespace sc {{ struct @_L{number} {{\ntypedef {} T;\nstatic const i64 N = {places}, BEFORE = {before}, PIECE = {piece}, PLACES = {destinations};\n\
         static const bool WIDE = {is_wide};\n",
        stored_type(x.dtype)
    );
    offset_axes.iter().for_each(|(name, axes)| layout.push_str(&offset_function(name, axes)));
    places_text(&mut layout, axis, x, indices, &index_shape, result);
    layout.push_str("}; }\n");
    Ok(Some(IndexPutPart {
        layout,
        number,
        how: combine_name(combine),
        blocks: places * piece.div_ceil(1024) * before,
        places,
        destinations,
        indices: indices_param(axis, x, indices, l)?,
        source: l.address_of(src),
        result: l.address_of(result),
    }))
}

/// Adds the kernels of these parts.
fn launch(
    index_puts: Vec<IndexPutPart>,
    out: &mut Vec<GpuCommand>,
    l: &mut KernelLowering<'_>,
) -> Result<()> {
    l.preludes();
    l.source.prelude(text::SCATTER_SOURCE);
    let (many, few): (Vec<_>, Vec<_>) =
        index_puts.into_iter().partition(|part| sorts_places(part.places, part.destinations));
    if !few.is_empty() {
        out.push(launch_together(few, l));
    }
    many.into_iter().try_for_each(|part| part.sort_and_store(out, l))
}

fn launch_together(index_puts: Vec<IndexPutPart>, l: &mut KernelLowering<'_>) -> GpuCommand {
    let layouts: String = index_puts.iter().map(|p| p.layout.as_str()).collect();
    let declared: Vec<String> = index_puts
        .iter()
        .map(|p| format!("sc::@_L{0}::Indices i{0}, const void *s{0}, void *d{0}", p.number))
        .collect();
    let mut body = String::new();
    let mut first = 0;
    for part in &index_puts {
        let i = part.number;
        let end = first + part.blocks;
        let _ = writeln!(
            body,
            "    if (blockIdx.x >= {first}u && blockIdx.x < {end}u) sc::scatter_pieces<sc::@_L{i}, sc::{}>(i{i}, s{i}, d{i}, blockIdx.x - {first}u);",
            part.how
        );
        first = end;
    }
    let function = format!(
        "{layouts}extern \"C\" __global__ void __launch_bounds__({THREADS_PER_BLOCK}) @({}) {{\n    symmc_enter();\n{body}}}\n",
        declared.join(", ")
    );
    let entry = l.source.function("index_put", function);
    let params = index_puts.into_iter().flat_map(|p| [p.indices, p.source.into(), p.result.into()]).collect();
    GpuCommand::Kernel(KernelLaunch::flat(entry, first, THREADS_PER_BLOCK, params))
}

impl IndexPutPart {
    fn sort_and_store(self, out: &mut Vec<GpuCommand>, l: &mut KernelLowering<'_>) -> Result<()> {
        let sort = RadixSort::new("an indexed store", self.places, self.destinations, l)?;
        let layout = format!("sc::@_L{}", self.number);
        let keys = calling_kernel(
            THREADS_PER_BLOCK,
            &format!("{layout}::Indices i, void *k"),
            &format!("place_keys<{layout}>(i, k)"),
        );
        let entry = l.source.function("index_put_keys", self.layout.clone() + &keys);
        let params = vec![self.indices, sort.keys().into()];
        let blocks = self.places.div_ceil(THREADS_PER_BLOCK);
        out.push(GpuCommand::Kernel(KernelLaunch::flat(entry, blocks, THREADS_PER_BLOCK, params)));
        let sorted = sort.sort(out, l);
        let store = calling_kernel(
            THREADS_PER_BLOCK,
            "const void *k, const void *p, const void *s, void *d",
            &format!("scatter_sorted_pieces<{layout}, sc::{}>(k, p, s, d, blockIdx.x)", self.how),
        );
        let entry = l.source.function("index_put", self.layout + &store);
        let params =
            [sorted.keys, sorted.positions, self.source, self.result].map(KernelParam::from).to_vec();
        out.push(GpuCommand::Kernel(KernelLaunch::flat(entry, self.blocks, THREADS_PER_BLOCK, params)));
        Ok(())
    }
}

/// The largest number of index tensors of one step.
const MAX_INDICES: usize = 6;

plain! {
    /// The kernel's parameters for the indices; only the first words are used.
    struct Indices {
        status: u64,
        at: [DevicePtr; MAX_INDICES],
        assertions: [u64; MAX_INDICES],
    }
}

fn indices_param(
    axis: usize,
    x: &LocatedTensor,
    indices: &[LocatedTensor],
    l: &mut KernelLowering<'_>,
) -> Result<KernelParam> {
    if indices.len() > MAX_INDICES {
        return Err(mismatch_error(
            "an indexed store",
            format!("at most {MAX_INDICES} indices"),
            indices.len(),
        ));
    }
    let mut out = Indices {
        status: l.machine.status,
        at: [DevicePtr::NULL; MAX_INDICES],
        assertions: [0; MAX_INDICES],
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
    out.push_str("SC_FN i64 place(const Indices &indices, i64 j, bool reports) { i64 place = 0;\n");
    for (k, index) in indices.iter().enumerate() {
        let kind = stored_type(index.dtype);
        let extent = x.shape[axis + k];
        let _ = writeln!(
            out,
            "{{ i64 given = get(((const {kind} *)indices.at[{k}])[i_{k}(j)]), p = position(given, {extent}ll);\n\
             if (p < 0) {{ if (reports) report((void *)indices.status, (u32)indices.assertions[{k}], given); return -1; }}\n\
             place = place * {extent}ll + p; }}"
        );
    }
    out.push_str("return place; }\n");
    let end = axis + indices.len();
    let axes: Vec<IterationAxis> =
        (axis..end).map(|a| IterationAxis { n: x.shape[a], stride: result.strides[a] }).collect();
    out.push_str(&offset_function("d_place", &axes));
}
