//! Attention that cuDNN can compute, together with the kernels that compute it otherwise.
//!
//! The library multiplies hidden values by 0. The product is not 0 if a value is infinite or not a number.
//! Rows that see nothing become 0 / 0. If something may be hidden, a kernel after the library call checks the
//! result, and recomputes the blocks that such a value leaked into.
//!
//! Masks and bounds that the library takes only as numbers are converted before it by
//! [`mask_bias`](super::mask_bias).

use symmc_ir::DType;
use symmc_runtime::exec::LocatedTensor;

use super::space::{IterationAxis, Strides, broadcast, collapse};
use crate::cudnn::{AttentionBias, AttentionGradient, AttentionTensor, CudnnAttention, VisibleBand};
use crate::device::launch::{DevicePtr, KernelLaunch};

/// An attention in both forms.
#[derive(Clone, PartialEq, Debug)]
pub struct AttentionCandidates {
    pub attention: CudnnAttention,
    /// The workspace bytes that the library may use.
    pub library_workspace_bytes: usize,
    /// The kernel before the library call, which writes the bias.
    pub numbers: Option<KernelLaunch>,
    /// Memory that is filled before both forms are timed.
    pub filled: Vec<TimingFill>,
    /// The kernel after the library call.
    pub amend: Option<KernelLaunch>,
    /// The kernels that compute it without the library.
    pub kernels: Vec<KernelLaunch>,
}

impl AttentionCandidates {
    /// The properties that the choice depends on, as text.
    pub(crate) fn key(&self) -> String {
        let suffix = if self.numbers.is_some() { " with numbers in front" } else { "" };
        format!("{}{suffix}", self.attention.key())
    }
}

/// Memory that is filled before kernels and the library are timed, so that all columns are visible and all
/// operands are finite. Rows that are not finite are computed again after the library, which takes long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimingFill {
    pub at: DevicePtr,
    /// Its length in bytes.
    pub bytes: usize,
    /// The value of each of its bytes.
    pub byte: u8,
}

/// The form of an attention, without the locations of its operands.
pub(super) struct AttentionForm {
    pub scale: f64,
    pub cap: Option<f64>,
    pub band: VisibleBand,
    /// The number of keys.
    pub keys: usize,
}

/// The largest number of elements of a head for which the library is used.
const MAX_HEAD_ELEMENTS: usize = 256;

/// The operands and results of an attention, except its mask.
#[derive(Clone, Copy)]
pub(super) struct AttentionTensors<'a> {
    pub q: &'a LocatedTensor,
    pub k: &'a LocatedTensor,
    pub v: &'a LocatedTensor,
    pub r: &'a LocatedTensor,
    pub sums: Option<&'a LocatedTensor>,
    /// For the gradients: those of the result, queries, keys and values, and memory for one number per row.
    pub gradients: Option<([&'a LocatedTensor; 4], DevicePtr)>,
}

#[derive(Clone, Copy)]
pub(super) struct PlacedMask<'a> {
    pub at: DevicePtr,
    pub mask: &'a LocatedTensor,
}

/// The attention in the library's form, if the library supports it: bf16 or f16, in rows without gaps at
/// multiples of 16 bytes, with a mask of floats or none. `address_of` returns addresses.
pub(super) fn attention(
    form: &AttentionForm,
    tensors: &AttentionTensors<'_>,
    mask: Option<PlacedMask<'_>>,
    address_of: &dyn Fn(&LocatedTensor) -> DevicePtr,
) -> Option<CudnnAttention> {
    let AttentionTensors { q, k, v, r, sums, gradients } = *tensors;
    let rank = q.shape.len();
    let head = |x: &LocatedTensor| x.shape[rank - 3];
    let e = q.shape[rank - 1];
    let f = v.shape[rank - 1];
    let sizes = [q.shape[rank - 2], k.shape[rank - 2], head(q), q.shape[..rank - 3].iter().product()];
    let fits = matches!(q.dtype, DType::BF16 | DType::F16)
        && [e, f].iter().all(|n| n.is_multiple_of(8) && (8..=MAX_HEAD_ELEMENTS).contains(n))
        && sizes.iter().all(|n| (1..1 << 24).contains(n));
    if !fits {
        return None;
    }
    let mut scores = q.shape.to_vec();
    scores[rank - 1] = k.shape[rank - 2];
    let mask_strides = mask.map(|PlacedMask { mask: m, .. }| broadcast(&scores, &m.shape, &m.strides));
    // Leading axes must form one axis.
    let mut batch = q.shape[..rank - 3].to_vec();
    let with_gradients = gradients.iter().flat_map(|(group, _)| group.iter().copied());
    let all_tensors: Vec<&LocatedTensor> =
        [q, k, v, r].into_iter().chain(sums).chain(with_gradients).collect();
    let all_strides = all_tensors.iter().map(|x| &x.strides[..]).chain(mask_strides.as_deref());
    let mut outers: Vec<Strides> = all_strides.map(|s| Strides::from_slice(&s[..rank - 3])).collect();
    collapse(&mut batch, &mut outers.iter_mut().collect::<Vec<_>>());
    let batch = match batch[..] {
        [] => 1,
        [n] => n,
        _ => return None,
    };
    let batch_stride = |i: usize| outers.get(i).and_then(|s| s.first()).copied().unwrap_or(0);
    let axes_of = |i: usize, x: &LocatedTensor| {
        let batch_axis = IterationAxis { n: batch, stride: batch_stride(i) };
        [batch_axis, IterationAxis::from_tensor(x, rank - 3), IterationAxis::from_tensor(x, rank - 2)]
    };
    let tensor_of = |i: usize, x: &LocatedTensor| {
        tensor(address_of(x), axes_of(i, x), x.shape[rank - 1], x.strides[rank - 1])
    };
    let bias = match (mask, &mask_strides) {
        (Some(PlacedMask { at: address, mask: m }), Some(strides)) => {
            let axes = [batch, head(q), q.shape[rank - 2], form.keys];
            let strides =
                [batch_stride(all_tensors.len()), strides[rank - 3], strides[rank - 2], strides[rank - 1]];
            Some(bias(address, m.dtype, q.dtype, axes, strides)?)
        }
        _ => None,
    };
    let sums = match sums {
        None => None,
        Some(x) => {
            // An axis of one element follows the rows.
            Some(log_sum_exp_tensor(address_of(x), axes_of(4, x))?)
        }
    };
    let gradient = match gradients {
        None => None,
        Some((tensors, means)) => {
            let first = all_tensors.len() - tensors.len();
            let [of_r, of_q, of_k, of_v] = [0, 1, 2, 3].map(|i| tensor_of(first + i, tensors[i]));
            Some(AttentionGradient { of_r: of_r?, means, of_q: of_q?, of_k: of_k?, of_v: of_v? })
        }
    };
    Some(CudnnAttention {
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
        q: tensor_of(0, q)?,
        k: tensor_of(1, k)?,
        v: tensor_of(2, v)?,
        r: tensor_of(3, r)?,
        sums,
        gradient,
    })
}

/// The log-sum-exp of rows along these axes.
fn log_sum_exp_tensor(address: DevicePtr, axes: [IterationAxis; 3]) -> Option<AttentionTensor> {
    let elements = axes.iter().map(|a| a.n as i64).product::<i64>();
    let strides = axes.map(|a| if a.n == 1 { elements } else { a.stride as i64 });
    strides.iter().all(|s| *s > 0).then_some(AttentionTensor { at: address, strides })
}

/// An operand with these outer axes and `n` adjacent elements.
fn tensor(address: DevicePtr, axes: [IterationAxis; 3], n: usize, step: isize) -> Option<AttentionTensor> {
    // The stride of an axis of one element has no meaning.
    let elements = axes.iter().map(|a| a.n as i64).product::<i64>() * n as i64;
    let strides = axes.map(|a| if a.n == 1 { elements } else { a.stride as i64 });
    let fits = step == 1 && address.is_multiple_of(16) && strides.iter().all(|s| *s > 0 && s % 8 == 0);
    fits.then_some(AttentionTensor { at: address, strides })
}

fn bias(
    at: DevicePtr,
    dtype: DType,
    query_dtype: DType,
    extents: [usize; 4],
    strides: [isize; 4],
) -> Option<AttentionBias> {
    if dtype != query_dtype && dtype != DType::F32 || strides[3] != 1 || strides.iter().any(|&s| s < 0) {
        return None;
    }
    let extents = [0, 1, 2, 3].map(|i| if strides[i] == 0 { 1 } else { extents[i] as i64 });
    let dense = extents.iter().product::<i64>();
    let strides = [0, 1, 2, 3].map(|i| if extents[i] == 1 { dense } else { strides[i] as i64 });
    Some(AttentionBias { at, dtype, extents, strides: [strides[0], strides[1], strides[2], 1] })
}
