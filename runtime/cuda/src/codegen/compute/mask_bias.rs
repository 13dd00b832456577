//! A bias for the library in place of unsupported masks and bounds: 0 for visible columns, minus infinity for
//! hidden ones.
//!
//! The bias replaces a mask of bools, and bounds by data that are the same for all rows and heads of a
//! sequence, such as lengths and leading padding. A kernel before the library call writes it at the end of
//! the workspace.

use symmc_ir::attention::{AttentionBound, AttentionOperands};
use symmc_ir::{BoundSide, DType};
use symmc_runtime::exec::LocatedTensor;

use super::bounds::{self, BoundPosition};
use super::library_attention::TimingFill;
use super::lowering::KernelLowering;
use super::machine::KernelTarget;
use super::space::{HeadRows, IterationAxis, broadcast};
use super::text::{self, offset_function, stored_type};
use crate::device::launch::{DevicePtr, KernelLaunch};

/// The largest size of a bias in bytes.
const MAX_BIAS_BYTES: usize = 32 << 20;

const THREADS: usize = 256;

/// Whether an attention has a mask or bounds that the library takes only as numbers.
pub(super) fn needs_bias(o: &AttentionOperands<'_, LocatedTensor>, bounds: &[AttentionBound]) -> bool {
    o.mask.is_some_and(|m| m.dtype == DType::Bool) || bounds.iter().any(|b| b.operand)
}

/// The layout of the bias, `[.., heads or 1, rows or 1, columns]` in rows at multiples of 16 bytes. `None` if
/// a bias cannot express the mask and the bounds by data, or is too large. The caller determines its place.
pub(super) fn bias_layout(
    o: &AttentionOperands<'_, LocatedTensor>,
    bounds: &[AttentionBound],
    columns: usize,
) -> Option<LocatedTensor> {
    let rank = o.q.shape.len();
    let batch = o.q.shape.get(..rank.checked_sub(3)?)?;
    // After the batch axes, an operand of a bound has one element.
    let are_per_sequence = o.positions.iter().all(|p| p.shape.iter().rev().take(3).all(|&n| n == 1));
    let fits = o.q.dtype.size() == 2
        && o.mask.is_none_or(|m| m.dtype == DType::Bool && m.shape.len() <= rank)
        && bounds.iter().all(|b| !b.operand || !b.row)
        && are_per_sequence;
    if !fits {
        return None;
    }
    let mut shape = vec![1; rank];
    if bounds.iter().any(|b| b.operand) {
        shape[..batch.len()].copy_from_slice(batch);
    }
    let of_mask = o.mask.map_or(&[][..], |m| &m.shape);
    for (n, &extent) in shape.iter_mut().rev().zip(of_mask.iter().rev()) {
        *n = extent.max(*n);
    }
    shape[rank - 1] = columns;
    let mut strides = vec![1; rank];
    let mut stride = columns.next_multiple_of(8);
    for axis in (0..rank - 1).rev() {
        strides[axis] = isize::try_from(stride).ok()?;
        stride = stride.checked_mul(shape[axis])?;
    }
    let max_elements = MAX_BIAS_BYTES / o.q.dtype.size();
    let numbers = LocatedTensor { shape: shape.into(), strides: strides.into(), ..o.q.clone() };
    (1..=max_elements).contains(&stride).then_some(numbers)
}

/// The number of elements, including the gaps between rows.
fn element_count(numbers: &LocatedTensor) -> usize {
    let rows: usize = numbers.shape.iter().rev().skip(1).product();
    rows * pitch(numbers)
}

/// The distance from one row to the next, in elements.
fn pitch(numbers: &LocatedTensor) -> usize {
    numbers.shape.last().map_or(0, |columns| columns.next_multiple_of(8))
}

/// Its size at the end of the workspace in bytes.
pub(super) fn bytes(numbers: &LocatedTensor) -> usize {
    (element_count(numbers) * numbers.dtype.size()).next_multiple_of(256)
}

/// Its address, and the size of the workspace before it.
pub(super) fn place_bias(numbers: &LocatedTensor, machine: &KernelTarget) -> Option<(DevicePtr, usize)> {
    let room = (machine.workspace_bytes & !255).checked_sub(bytes(numbers))?;
    Some((DevicePtr::from(machine.workspace) + room as u64, room))
}

/// The kernel that writes it at an address. `limits` are the bounds by data.
pub(super) fn kernel(
    o: &AttentionOperands<'_, LocatedTensor>,
    limits: &[(&AttentionBound, i64)],
    numbers: &LocatedTensor,
    destination: DevicePtr,
    l: &mut KernelLowering<'_>,
) -> KernelLaunch {
    let outer = numbers.shape.len().saturating_sub(1);
    let columns = numbers.shape[outer];
    let mut one_column = numbers.shape.to_vec();
    one_column[outer] = 1;
    let mut positions: Vec<BoundPosition> = Vec::with_capacity(o.positions.len());
    for p in o.positions {
        let head = broadcast_axes(p, &one_column);
        let rows = HeadRows { at: l.address_of(p), head, row: vec![], step: 0 };
        positions.push(BoundPosition { at: rows, dtype: p.dtype });
    }
    let mut layout = format!("static const i64 S = {columns}, Q = 1;\n");
    layout.push_str(&bounds::layout(limits, &positions));
    let mut condition = "column >= from && column < below".to_string();
    if let Some(mask) = o.mask {
        let axes = broadcast_axes(mask, &numbers.shape);
        layout.push_str(&offset_function("m_row", &axes[..outer]));
        let step = axes[outer].stride;
        condition
            .push_str(&format!(" && ((const sc::u8 *)mask)[sc::@_L::m_row(row) + column * {step}ll] != 0"));
    }
    let names: Vec<String> = (0..positions.len()).map(|i| format!("b{i}")).collect();
    let parameters: String = names.iter().map(|b| format!(", const void *{b}")).collect();
    let elements = if names.is_empty() { "0".into() } else { names.join(", ") };
    let element = stored_type(numbers.dtype);
    let pitch = pitch(numbers);
    let count = element_count(numbers);
    let text = format!(
        "namespace sc {{ struct @_L {{\n{layout}}}; }}\n\
         extern \"C\" __global__ void __launch_bounds__({THREADS}) @(const void *mask, void *numbers{parameters}) {{\n    \
         symmc_enter();\n    const void *const given[] = {{{elements}}};\n    \
         const sc::i64 at = (sc::i64)blockIdx.x * {THREADS} + threadIdx.x, row = at / {pitch}, column = at % {pitch};\n    \
         if (at >= {count}ll) return;\n    sc::i64 from, below;\n    \
         sc::@_L::span(given, row, 0, from, below);\n    const bool seen = {condition};\n    \
         ((sc::{element} *)numbers)[at] = sc::Put<sc::{element}>::of(seen ? 0.0f : sc::minus_infinity(0.0f));\n}}\n"
    );
    let addresses = [o.mask.map_or(DevicePtr::NULL, |m| l.address_of(m)), destination].into_iter();
    let addresses = addresses.chain(positions.iter().map(|p| p.at.at));
    let params = addresses.map(Into::into).collect();
    l.preludes();
    l.source.prelude(text::ATTENTION_SOURCE);
    let entry = l.source.function("attention_numbers", text);
    KernelLaunch::flat(entry, count.div_ceil(THREADS), THREADS, params)
}

fn broadcast_axes(value: &LocatedTensor, shape: &[usize]) -> Vec<IterationAxis> {
    let strides = broadcast(shape, &value.shape, &value.strides);
    shape.iter().zip(strides).map(|(&n, stride)| IterationAxis { n, stride }).collect()
}

/// A byte whose repetition is a small finite number in every dtype of floats.
const FINITE: u8 = 0x3c;

/// The fills that make all operands finite and all columns visible. `more` are the operands of gradients.
pub(super) fn timing_fills(
    o: &AttentionOperands<'_, LocatedTensor>,
    limits: &[(&AttentionBound, i64)],
    more: &[&LocatedTensor],
    at: &dyn Fn(&LocatedTensor) -> DevicePtr,
) -> Vec<TimingFill> {
    let floats = [o.q, o.k, o.v].into_iter().chain(more.iter().copied()).map(|x| (x, FINITE));
    let positions = o.positions.iter().zip(limits).map(|(p, (bound, _))| {
        // About a billion, and about minus a billion, in 32 bits.
        (p, if bound.side == BoundSide::Below { 0x3f } else { 0xc0 })
    });
    let mask = o.mask.map(|mask| (mask, u8::from(mask.dtype == DType::Bool)));
    floats.chain(positions).chain(mask).filter_map(|(x, byte)| fill_all(x, byte, at)).collect()
}

fn fill_all(x: &LocatedTensor, byte: u8, at: &dyn Fn(&LocatedTensor) -> DevicePtr) -> Option<TimingFill> {
    let reach = x.shape.iter().zip(&x.strides).map(|(&n, s)| n.saturating_sub(1) * s.unsigned_abs());
    let bytes = (1 + reach.sum::<usize>()) * x.dtype.size();
    x.strides.iter().all(|&s| s >= 0).then(|| TimingFill { at: at(x), bytes, byte })
}

#[cfg(test)]
mod tests {
    use symmc_ir::Dim;
    use symmc_runtime::exec::MemorySpace;

    use super::super::space::dense;
    use super::*;

    fn located(dtype: DType, shape: &[usize]) -> LocatedTensor {
        let strides = dense(shape).to_vec().into();
        LocatedTensor {
            space: MemorySpace::Ordinary,
            offset: 0,
            by_rank: 0,
            dtype,
            shape: shape.into(),
            strides,
        }
    }

    /// The shape of the bias for attention of two sequences with eight heads, 30 rows and 41 columns.
    fn numbers(mask: Option<LocatedTensor>, bounds: &[(bool, &[usize])]) -> Option<Vec<usize>> {
        let [q, k] = [30, 41].map(|n| located(DType::BF16, &[2, 8, n, 64]));
        let positions: Vec<LocatedTensor> =
            bounds.iter().map(|(_, shape)| located(DType::I32, shape)).collect();
        let o = AttentionOperands {
            q: &q,
            k: &k,
            v: &k,
            mask: mask.as_ref(),
            positions: &positions[..],
            sink: None,
        };
        let bounds = bounds.iter().map(|(row, _)| AttentionBound {
            side: BoundSide::Below,
            row: *row,
            add: Dim::from(0),
            chunk: None,
            operand: true,
        });
        let bounds: Vec<AttentionBound> = bounds.collect();
        bias_layout(&o, &bounds, 41).map(|n| {
            assert!(n.strides.iter().rev().skip(1).all(|s| s % 8 == 0), "{:?}", n.strides);
            n.shape.to_vec()
        })
    }

    #[test]
    fn lengths_and_bools_are_numbers_and_what_moves_with_rows_is_not() {
        let lengths = (false, &[2, 1, 1, 1][..]);
        assert_eq!(numbers(None, &[lengths]), Some(vec![2, 1, 1, 41]));
        assert_eq!(numbers(None, &[lengths, (false, &[])]), Some(vec![2, 1, 1, 41]));
        let mask = located(DType::Bool, &[30, 41]);
        assert_eq!(numbers(Some(mask), &[]), Some(vec![1, 1, 30, 41]));
        let mask = located(DType::Bool, &[8, 1, 1]);
        assert_eq!(numbers(Some(mask), &[lengths]), Some(vec![2, 8, 1, 41]));
        // A limit per row, positions of rows, and a mask that is already numeric.
        assert_eq!(numbers(None, &[(true, &[2, 1, 1, 1])]), None);
        assert_eq!(numbers(None, &[(false, &[30, 1])]), None);
        assert_eq!(numbers(Some(located(DType::BF16, &[30, 41])), &[lengths]), None);
    }

    #[test]
    fn all_operands_are_filled_with_finite_values_before_they_are_timed() {
        let [q, k, v] = [64, 128, 192].map(|n| located(DType::BF16, &[2, 8, 30, n]));
        let limit = located(DType::I32, &[2, 1, 1, 1]);
        let sums = located(DType::F32, &[2, 8, 30]);
        let bound = AttentionBound {
            side: BoundSide::From,
            row: false,
            add: Dim::from(0),
            chunk: None,
            operand: true,
        };
        // Each tensor is at the address that is its number of bytes.
        let bytes = |x: &LocatedTensor| x.shape.iter().product::<usize>() * x.dtype.size();
        let address_of = |x: &LocatedTensor| DevicePtr::from(bytes(x) as u64);
        for (dtype, visible) in [(DType::Bool, 1), (DType::BF16, 0), (DType::F32, 0)] {
            let mask = located(dtype, &[30, 41]);
            let positions = [limit.clone()];
            let o = AttentionOperands {
                q: &q,
                k: &k,
                v: &v,
                mask: Some(&mask),
                positions: &positions,
                sink: None,
            };
            let floats = [&q, &k, &v, &sums].map(|x| (x, FINITE));
            let expected: Vec<TimingFill> = (floats.into_iter().chain([(&limit, 0xc0), (&mask, visible)]))
                .map(|(x, byte)| TimingFill { at: address_of(x), bytes: bytes(x), byte })
                .collect();
            assert_eq!(timing_fills(&o, &[(&bound, 0)], &[&sums], &address_of), expected);
        }
        assert!(f32::from_ne_bytes([FINITE; 4]).is_finite());
        // The exponents of f16 and bf16 have 5 and 8 bits.
        let bits = u16::from_ne_bytes([FINITE; 2]);
        assert!(bits >> 10 & 0x1f < 0x1f && bits >> 7 & 0xff < 0xff);
    }
}
