//! Attention that cuDNN may compute, beside the kernels that compute it otherwise.
//!
//! The library multiplies what a row does not see with 0, which is not 0 where a value is infinite or not a number, and
//! gives rows that see nothing 0 / 0. Where something may be hidden, a kernel behind it looks at the result and computes
//! those blocks again that such a number came into.
//!
//! It takes no mask of bools. In front of it a kernel makes numbers of those, 0 and minus infinity, at the end of the
//! workspace.

use symmc_ir::DType;
use symmc_runtime::exec::Located;

use super::space::{Axis, Strides, broadcast, collapse};
use super::text::{offset, stored};
use super::{Lowering, text};
use crate::cudnn::{Attention, Band, Bias, Tensor};
use crate::launch::{Address, Kernel};

/// An attention in both forms.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidates {
    /// As the library takes it.
    pub attention: Attention,
    /// The bytes of the workspace that are the library's.
    pub room: usize,
    /// What is in front of it there.
    pub numbers: Option<Kernel>,
    /// What follows it there.
    pub amend: Option<Kernel>,
    /// The kernels that compute it without the library.
    pub own: Vec<Kernel>,
}

impl Candidates {
    /// What tells them apart, as far as a choice for them depends on it.
    pub(crate) fn key(&self) -> String {
        let bools = if self.numbers.is_some() { " with a mask of bools" } else { "" };
        format!("{}{bools}", self.attention.key())
    }
}

/// What an attention is but for where its operands lie.
pub(super) struct Form {
    pub scale: f64,
    pub cap: Option<f64>,
    pub band: Band,
    /// The keys that exist.
    pub keys: usize,
}

/// The most elements of a head that the library is asked for.
const MOST_ELEMENTS: usize = 256;

/// The most bytes of numbers that a mask of bools becomes.
const MOST_NUMBERS: usize = 32 << 20;

/// A mask with its first address.
#[derive(Clone, Copy)]
pub(super) struct Mask<'a> {
    pub at: Address,
    pub mask: &'a Located,
}

/// The numbers of a mask of bools, as many for each row as there are columns, in rows at multiples of 16 bytes; none for
/// other masks, and where they are too many.
pub(super) fn numbers(mask: &Located, columns: usize, dtype: DType) -> Option<Located> {
    if mask.dtype != DType::Bool || mask.shape.is_empty() || dtype.size() != 2 {
        return None;
    }
    let mut numbers = Located { dtype, ..mask.clone() };
    let mut stride = columns.next_multiple_of(8);
    let (outer, last) = (mask.shape.len() - 1, numbers.shape.last_mut()?);
    *last = columns;
    numbers.strides[outer] = 1;
    for axis in (0..outer).rev() {
        numbers.strides[axis] = isize::try_from(stride).ok()?;
        stride = stride.checked_mul(mask.shape[axis])?;
    }
    stride
        .checked_mul(dtype.size())
        .is_some_and(|bytes| (1..=MOST_NUMBERS).contains(&bytes))
        .then_some(numbers)
}

/// The bytes that such numbers take at the end of the workspace.
pub(super) fn numbers_bytes(numbers: &Located) -> usize {
    let rows: usize = numbers.shape.iter().rev().skip(1).product();
    let pitch = numbers.shape.last().map_or(0, |columns| columns.next_multiple_of(8));
    (rows * pitch * numbers.dtype.size()).next_multiple_of(256)
}

/// The kernel that makes the numbers of a mask.
pub(super) fn make_numbers(mask: Mask<'_>, numbers: Mask<'_>, l: &mut Lowering<'_>) -> Kernel {
    let outer = mask.mask.shape.len().saturating_sub(1);
    let axis = |a: usize| Axis { n: mask.mask.shape[a], stride: mask.mask.strides[a] };
    let rows: Vec<Axis> = (0..outer).map(axis).collect();
    let columns = numbers.mask.shape[outer];
    let step = if axis(outer).n == 1 { 0 } else { axis(outer).stride };
    let pitch = columns.next_multiple_of(8);
    let all = rows.iter().map(|a| a.n).product::<usize>() * pitch;
    let (of_row, to) = (offset("row", &rows), stored(numbers.mask.dtype));
    l.preludes();
    l.source.prelude(text::ATTENTION);
    let text = format!(
        "namespace sc {{ struct @_L {{\n{of_row}}}; }}\n\
         extern \"C\" __global__ void __launch_bounds__(256) @(const void *mask, void *numbers) {{\n    symmc_enter();\n    \
         const sc::i64 at = (sc::i64)blockIdx.x * 256 + threadIdx.x, column = at % {pitch};\n    \
         if (at >= {all}ll) return;\n    const sc::u8 *row = (const sc::u8 *)mask + sc::@_L::row(at / {pitch});\n    \
         const bool seen = column >= {columns} || row[column * {step}ll] != 0;\n    \
         ((sc::{to} *)numbers)[at] = sc::Put<sc::{to}>::of(seen ? 0.0f : sc::minus_infinity(0.0f));\n}}\n"
    );
    Kernel {
        entry: l.source.function("attention_numbers", text),
        grid: [all.div_ceil(256) as u32, 1, 1],
        block: [256, 1, 1],
        cluster: 1,
        shared: 0,
        params: vec![mask.at.into(), numbers.at.into()],
    }
}

/// The attention as the library takes it, if it does: bf16 or f16, in rows without gaps at multiples of 16 bytes, with a mask
/// of floats or none. `at` gives addresses.
pub(super) fn attention(
    form: &Form,
    [q, k, v, r]: [&Located; 4],
    mask: Option<Mask<'_>>,
    at: &dyn Fn(&Located) -> Address,
) -> Option<Attention> {
    let rank = q.shape.len();
    let head = |x: &Located| x.shape[rank - 3];
    let (e, f) = (q.shape[rank - 1], v.shape[rank - 1]);
    let sizes = [q.shape[rank - 2], k.shape[rank - 2], head(q), q.shape[..rank - 3].iter().product()];
    let fits = matches!(q.dtype, DType::BF16 | DType::F16)
        && [e, f].iter().all(|n| n.is_multiple_of(8) && (8..=MOST_ELEMENTS).contains(n))
        && sizes.iter().all(|n| (1..1 << 24).contains(n));
    if !fits {
        return None;
    }
    let mut scores = q.shape.to_vec();
    scores[rank - 1] = k.shape[rank - 2];
    let mask_strides = mask.map(|Mask { mask: m, .. }| broadcast(&scores, &m.shape, &m.strides));
    // Leading axes are one.
    let mut batch = q.shape[..rank - 3].to_vec();
    let outer = |strides: &[isize]| Strides::from_slice(&strides[..rank - 3]);
    let mut outers = [q, k, v, r].map(|x| outer(&x.strides)).to_vec();
    outers.extend(mask_strides.as_ref().map(|s| outer(s)));
    collapse(&mut batch, &mut outers.iter_mut().collect::<Vec<_>>());
    let batch = match batch[..] {
        [] => 1,
        [n] => n,
        _ => return None,
    };
    let along = |i: usize| outers.get(i).and_then(|s| s.first()).copied().unwrap_or(0);
    let tensor = |i: usize, x: &Located| {
        let axis = |a: usize| Axis { n: x.shape[a], stride: x.strides[a] };
        let axes = [Axis { n: batch, stride: along(i) }, axis(rank - 3), axis(rank - 2)];
        tensor(at(x), axes, x.shape[rank - 1], x.strides[rank - 1])
    };
    let bias = match (mask, &mask_strides) {
        (Some(Mask { at, mask: m }), Some(strides)) => {
            let axes = [batch, head(q), q.shape[rank - 2], form.keys];
            let strides = [along(4), strides[rank - 3], strides[rank - 2], strides[rank - 1]];
            Some(bias(at, m.dtype, q.dtype, axes, strides)?)
        }
        _ => None,
    };
    Some(Attention {
        dtype: q.dtype,
        batch,
        heads: head(q),
        key_heads: head(k),
        queries: q.shape[rank - 2],
        keys: form.keys,
        e,
        f,
        scale: form.scale as f32,
        cap: form.cap.map(|c| c as f32),
        band: form.band,
        bias,
        q: tensor(0, q)?,
        k: tensor(1, k)?,
        v: tensor(2, v)?,
        r: tensor(3, r)?,
    })
}

/// An operand of these outer axes with `n` elements side by side.
fn tensor(at: Address, axes: [Axis; 3], n: usize, step: isize) -> Option<Tensor> {
    // The distance along an axis of one is no distance.
    let whole = axes.iter().map(|a| a.n as i64).product::<i64>() * n as i64;
    let stride = |a: Axis| if a.n == 1 { whole } else { a.stride as i64 };
    let strides = axes.map(stride);
    let fits = step == 1 && at.is_multiple_of(16) && strides.iter().all(|s| *s > 0 && s % 8 == 0);
    fits.then_some(Tensor { at, strides })
}

fn bias(at: Address, dtype: DType, of: DType, extents: [usize; 4], strides: [isize; 4]) -> Option<Bias> {
    if dtype != of && dtype != DType::F32 || strides[3] != 1 || strides.iter().any(|&s| s < 0) {
        return None;
    }
    let one = |i: usize| if strides[i] == 0 { 1 } else { extents[i] as i64 };
    let extents = [one(0), one(1), one(2), one(3)];
    let dense = extents.iter().product::<i64>();
    let strides = [0, 1, 2, 3].map(|i| if extents[i] == 1 { dense } else { strides[i] as i64 });
    Some(Bias { at, dtype, extents, strides: [strides[0], strides[1], strides[2], 1] })
}
