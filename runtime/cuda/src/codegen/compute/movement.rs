//! Ops that move elements: copies, concat, pad, and gathers at positions from data.

use std::collections::HashMap;
use std::iter::repeat_n;

use symmc_ir::machine::{MAX_CONCAT_OPERANDS_PER_KERNEL, MIN_SEPARATE_COPY_BYTES};
use symmc_ir::{Dim, Op, Scalar};
use symmc_runtime::exec::LocatedTensor;

use super::loops::{IndexTerm, LoopBody, lower_elements};
use super::lowering::{KernelLowering, mismatch_error};
use super::space::{Strides, broadcast, collapsed_axes, common_shape, dense, strides_within};
use super::text::{moved_type, stored_type};
use crate::codegen::command::{Commands, GpuCommand};
use crate::device::launch::DevicePtr;
use crate::error::CudaError;

#[derive(Clone)]
struct StridedRegion {
    at: DevicePtr,
    shape: Vec<usize>,
    strides: Strides,
}

impl StridedRegion {
    fn from_value(value: &LocatedTensor, l: &KernelLowering<'_>) -> StridedRegion {
        StridedRegion {
            at: l.address_of(value),
            shape: value.shape.to_vec(),
            strides: Strides::from_slice(&value.strides),
        }
    }

    fn dense(at: DevicePtr, shape: &[usize]) -> StridedRegion {
        StridedRegion { at, shape: shape.to_vec(), strides: dense(shape) }
    }

    /// Restricts an axis to `n` positions from `start` on.
    fn narrow(&mut self, axis: usize, start: usize, n: usize, size: usize) {
        self.shape[axis] = n;
        self.at = self.at.offset_by((self.strides[axis] * start as isize * size as isize) as i64);
    }

    fn is_dense(&self) -> bool {
        matches!(
            collapsed_axes(&self.shape, &self.strides)[..],
            [] | [super::space::IterationAxis { stride: 1, .. }]
        )
    }
}

/// Whether the elements of a region are in the same place as those of another of the same shape, or there are
/// none.
fn is_in_place(from: &StridedRegion, to: &StridedRegion) -> bool {
    to.shape.contains(&0)
        || from.at == to.at
            && (0..to.shape.len()).all(|a| to.shape[a] == 1 || from.strides[a] == to.strides[a])
}

/// Copies the elements of one region, in row-major order, to another of the same shape; no work if they are
/// in place.
fn transfer(
    from: &StridedRegion,
    to: &StridedRegion,
    kind: &'static str,
    size: usize,
    l: &mut KernelLowering<'_>,
) -> Option<GpuCommand> {
    if is_in_place(from, to) {
        return None;
    }
    if let Some(bytes) = contiguous_bytes(from, to, size) {
        return Some(GpuCommand::Copy { to: to.at, from: from.at, bytes });
    }
    let mut map = LoopBody::over_shape(&to.shape);
    let value = map.load(from.at, kind, from.strides.clone());
    map.store(to.at, to.strides.clone(), value);
    map.finish("copy", l)
}

/// The bytes of a region that is copied as one run of memory, without a kernel.
fn contiguous_bytes(from: &StridedRegion, to: &StridedRegion, size: usize) -> Option<usize> {
    let bytes = to.shape.iter().product::<usize>() * size;
    (from.is_dense() && to.is_dense() && bytes as u64 >= MIN_SEPARATE_COPY_BYTES).then_some(bytes)
}

/// Copies regions to others of the same shape, with one kernel for up to [`PARTS_OF_KERNEL`] regions of one
/// shape. Sources and destinations do not overlap.
fn transfer_all(
    transfers: Vec<(StridedRegion, StridedRegion)>,
    kind: &'static str,
    size: usize,
    l: &mut KernelLowering<'_>,
) -> Vec<GpuCommand> {
    let mut out = Vec::new();
    // The kernels with the number of parts of each, and the last one for each shape.
    let mut kernels: Vec<(LoopBody, usize)> = Vec::new();
    let mut kernel_of_shape: HashMap<Vec<usize>, usize> = HashMap::new();
    for (from, to) in transfers.into_iter().filter(|(from, to)| !is_in_place(from, to)) {
        if let Some(bytes) = contiguous_bytes(&from, &to, size) {
            out.push(GpuCommand::Copy { to: to.at, from: from.at, bytes });
            continue;
        }
        let reusable = kernel_of_shape
            .get(&to.shape)
            .copied()
            .filter(|&k| kernels[k].1 < MAX_CONCAT_OPERANDS_PER_KERNEL);
        let k = reusable.unwrap_or_else(|| {
            kernels.push((LoopBody::over_shape(&to.shape), 0));
            kernel_of_shape.insert(to.shape.clone(), kernels.len() - 1);
            kernels.len() - 1
        });
        let (map, count) = &mut kernels[k];
        let value = map.load(from.at, kind, from.strides);
        map.store(to.at, to.strides, value);
        *count += 1;
    }
    out.extend(kernels.into_iter().filter_map(|(map, _)| map.finish("copy", l)));
    out
}

/// Copies the elements of `x` in row-major order to the shape of the result.
pub(super) fn copy(x: &LocatedTensor, result: &LocatedTensor, l: &mut KernelLowering<'_>) -> Commands {
    let n: usize = x.shape.iter().product();
    if n != result.shape.iter().product::<usize>() || x.dtype != result.dtype {
        return Err(mismatch_error("the result of a copy", &x.shape, &result.shape));
    }
    let from = StridedRegion::from_value(x, l);
    let destination = StridedRegion::from_value(result, l);
    let kind = moved_type(x.dtype);
    let size = x.dtype.size();
    let work = if x.shape == result.shape {
        vec![transfer(&from, &destination, kind, size, l)]
    } else if destination.is_dense() {
        vec![transfer(&from, &StridedRegion::dense(destination.at, &from.shape), kind, size, l)]
    } else if from.is_dense() {
        vec![transfer(&StridedRegion::dense(from.at, &destination.shape), &destination, kind, size, l)]
    } else {
        let room = l.workspace_for("a reshape between two strided layouts", n * size)?;
        let first = transfer(&from, &StridedRegion::dense(room, &from.shape), kind, size, l);
        vec![first, transfer(&StridedRegion::dense(room, &destination.shape), &destination, kind, size, l)]
    };
    Ok(work.into_iter().flatten().collect())
}

/// Concatenates all operands along `axis`. An operand that is already in place is not moved.
pub(super) fn concat(
    axis: usize,
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let destination = StridedRegion::from_value(result, l);
    let mut start = 0;
    let mut transfers = Vec::with_capacity(operands.len());
    for x in operands {
        let rank = result.shape.len();
        let fits = axis < rank
            && x.shape.len() == rank
            && x.dtype == result.dtype
            && start + x.shape[axis] <= result.shape[axis]
            && (0..rank).all(|a| a == axis || x.shape[a] == result.shape[a]);
        if !fits {
            return Err(mismatch_error("an operand of concat", &result.shape, &x.shape));
        }
        let mut piece = destination.clone();
        piece.narrow(axis, start, x.shape[axis], x.dtype.size());
        transfers.push((StridedRegion::from_value(x, l), piece));
        start += x.shape[axis];
    }
    Ok(transfer_all(transfers, moved_type(result.dtype), result.dtype.size(), l))
}

/// Pads `x` with `value`.
pub(super) fn pad(
    low: &[Dim],
    value: Scalar,
    x: &LocatedTensor,
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let rank = result.shape.len();
    if low.len() != rank || x.shape.len() != rank || x.dtype != result.dtype {
        return Err(mismatch_error("the result of pad", &x.shape, &result.shape));
    }
    let mut from = StridedRegion::from_value(x, l);
    let mut destination = StridedRegion::from_value(result, l);
    for (axis, low) in low.iter().enumerate() {
        let Some(low) = low.as_const() else {
            return Err(CudaError::Unsupported("a padding has no concrete value".into()));
        };
        let skip = usize::try_from(low.saturating_neg()).unwrap_or(0).min(x.shape[axis]);
        let start = usize::try_from(low).unwrap_or(0).min(result.shape[axis]);
        let n = (x.shape[axis] - skip).min(result.shape[axis] - start);
        from.narrow(axis, skip, n, x.dtype.size());
        destination.narrow(axis, start, n, x.dtype.size());
    }
    let mut out = Vec::new();
    if destination.shape[..] != result.shape[..] {
        out = lower_elements(&Op::Full(value), &[], result, l)?;
    }
    out.extend(transfer(&from, &destination, moved_type(x.dtype), x.dtype.size(), l));
    Ok(out)
}

/// Reads `x` at the indices, which replace its axes from `axis` on. Operands: `x`, then the indices.
pub(super) fn index(
    axis: usize,
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let x = &operands[0];
    let indices = &operands[1..];
    let end = axis + indices.len();
    if end > x.shape.len() {
        return Err(mismatch_error("indexing", format!("an operand with at least {end} axes"), &x.shape));
    }
    let index_shape = common_shape(indices);
    let shape = [&x.shape[..axis], &index_shape, &x.shape[end..]].concat();
    if result.shape[..] != shape[..] || result.dtype != x.dtype {
        return Err(mismatch_error("the result of indexing", &shape, &result.shape));
    }
    let mut map = LoopBody::over_shape(&shape);
    let mut terms = Vec::with_capacity(indices.len());
    for (k, index) in indices.iter().enumerate() {
        let strides =
            strides_within(broadcast(&index_shape, &index.shape, &index.strides), axis, x.shape.len() - end);
        let value = map.load(l.address_of(index), stored_type(index.dtype), strides);
        let extent = x.shape[axis + k];
        let assertion = l.index_assertion(axis + k, extent);
        terms.push(IndexTerm { index: value, extent, stride: x.strides[axis + k], assertion });
    }
    let zeros = repeat_n(0, index_shape.len());
    let strides =
        x.strides[..axis].iter().copied().chain(zeros).chain(x.strides[end..].iter().copied()).collect();
    finish_gather(map, x, strides, terms, result, l)
}

/// Reads `x` with the coordinate on `axis` replaced by the index. Operands: `x`, the index.
pub(super) fn gather(
    axis: usize,
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let x = &operands[0];
    let index = &operands[1];
    let fits = axis < x.shape.len()
        && index.shape.len() == x.shape.len()
        && result.shape == index.shape
        && result.dtype == x.dtype
        && (0..x.shape.len()).all(|a| a == axis || index.shape[a] <= x.shape[a]);
    if !fits {
        return Err(mismatch_error("the index of gather", &x.shape, &index.shape));
    }
    let mut map = LoopBody::over_shape(&result.shape);
    let value = map.load(l.address_of(index), stored_type(index.dtype), Strides::from_slice(&index.strides));
    let assertion = l.index_assertion(axis, x.shape[axis]);
    let mut strides = Strides::from_slice(&x.strides);
    let stride = std::mem::take(&mut strides[axis]);
    let term = IndexTerm { index: value, extent: x.shape[axis], stride, assertion };
    finish_gather(map, x, strides, vec![term], result, l)
}

fn finish_gather(
    mut map: LoopBody,
    x: &LocatedTensor,
    strides: Strides,
    terms: Vec<IndexTerm>,
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let value = map.gather(l.address_of(x), moved_type(x.dtype), strides, terms);
    map.store(l.address_of(result), Strides::from_slice(&result.strides), value);
    Ok(map.finish("gather", l).into_iter().collect())
}
