//! Attention and its gradients in the form of cuDNN: four axes, a band of visible columns per row, a bias.
//!
//! The library has a variant whose gradients have the same bits in each run. It stores the gradient of the
//! scores. To bound this memory for any number of heads, heads are divided into parts that run one after
//! another.

use symmc_ir::DType;

use crate::device::launch::DevicePtr;

/// An operand or the result, `[batch, heads, rows, elements]`, with contiguous elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionTensor {
    /// The first element, at a multiple of 16.
    pub at: DevicePtr,
    /// The distances in elements between neighbours along the first three axes.
    pub strides: [i64; 3],
}

/// The term that is added to the scores, `[batch or 1, heads or 1, rows or 1, columns]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionBias {
    /// The first element.
    pub at: DevicePtr,
    pub dtype: DType,
    pub extents: [i64; 4],
    /// The distances in elements between neighbours.
    pub strides: [i64; 4],
}

/// The visible columns of each row: row `i` sees the columns below `i + below` and from `i + from` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VisibleBand {
    /// The upper end.
    pub below: Option<i64>,
    /// The lower end.
    pub from: Option<i64>,
}

/// The gradients of an attention, in place of its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionGradient {
    /// The gradient of the result.
    pub of_r: AttentionTensor,
    /// The first element of memory for one f32 number per row.
    pub means: DevicePtr,
    /// The gradients of the queries, keys and values.
    pub of_q: AttentionTensor,
    pub of_k: AttentionTensor,
    pub of_v: AttentionTensor,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CudnnAttention {
    /// The dtype of operands and result: bf16 or f16.
    pub dtype: DType,
    /// The number of sequences.
    pub batch: usize,
    /// The number of query heads.
    pub heads: usize,
    /// The number of heads of keys and values, which divides `heads`.
    pub key_heads: usize,
    /// The number of rows.
    pub queries: usize,
    /// The number of columns.
    pub keys: usize,
    /// The number of elements of a query and of a key.
    pub e: usize,
    /// The number of elements of a value.
    pub f: usize,
    pub scale: f32,
    pub cap: Option<f32>,
    pub band: VisibleBand,
    pub bias: Option<AttentionBias>,
    pub q: AttentionTensor,
    pub k: AttentionTensor,
    pub v: AttentionTensor,
    /// The result; for the gradients, an operand.
    pub r: AttentionTensor,
    /// The log-sum-exp of each row in f32, as rows of one element: a result, or an operand of the gradients.
    pub sums: Option<AttentionTensor>,
    pub gradient: Option<AttentionGradient>,
}

pub fn workspace() -> usize {
    8 << 20
}

/// The largest workspace in bytes of one library call for a gradient, if a part can be that small.
const MAX_WORKSPACE_BYTES: usize = 256 << 20;

/// An estimate of the workspace in bytes for gradients of `heads` heads: the gradient of the scores in 16
/// bits, and the gradients of keys and values per query head. The extents are queries, keys, and elements of
/// keys and of values.
fn gradient_bytes(heads: usize, [queries, keys, e, f]: [usize; 4]) -> usize {
    let [rows, columns] = [queries, keys].map(|n| n.next_multiple_of(128));
    heads.saturating_mul(columns).saturating_mul(2 * (rows + e + f))
}

/// The number of parts into which key heads are divided, if all of them together need `bytes` bytes.
fn part_count(bytes: usize, key_heads: usize) -> usize {
    (1..=key_heads)
        .find(|&count| key_heads.is_multiple_of(count) && bytes / count <= MAX_WORKSPACE_BYTES)
        .unwrap_or(key_heads.max(1))
}

/// The workspace in bytes for gradients of this many query heads and key heads, counted over the batch. The
/// extents are in the order of `gradient_bytes`.
pub(crate) fn gradient_workspace(heads: usize, key_heads: usize, extents: [usize; 4]) -> usize {
    let bytes = gradient_bytes(heads, extents);
    bytes / part_count(bytes, key_heads) + workspace()
}

impl CudnnAttention {
    /// The attention without addresses: the properties that a plan of the library depends on.
    pub(crate) fn without_addresses(&self) -> CudnnAttention {
        CudnnAttention {
            q: self.q.without_address(),
            k: self.k.without_address(),
            v: self.v.without_address(),
            r: self.r.without_address(),
            bias: self.bias.map(|b| AttentionBias { at: keep_alignment(b.at), ..b }),
            sums: self.sums.map(|s| AttentionTensor { at: keep_alignment(s.at), ..s }),
            gradient: self.gradient.map(|g| AttentionGradient {
                of_r: g.of_r.without_address(),
                means: DevicePtr::NULL,
                of_q: g.of_q.without_address(),
                of_k: g.of_k.without_address(),
                of_v: g.of_v.without_address(),
            }),
            ..*self
        }
    }

    /// The addresses of its results.
    pub(crate) fn results(&self) -> Vec<DevicePtr> {
        match &self.gradient {
            None => self.sums.iter().map(|s| s.at).chain([self.r.at]).collect(),
            Some(g) => vec![g.of_q.at, g.of_k.at, g.of_v.at],
        }
    }

    pub(crate) fn pointers(&self) -> impl Iterator<Item = DevicePtr> {
        let tensors = [self.q, self.k, self.v, self.r].map(|tensor| tensor.at);
        let gradients = self
            .gradient
            .map(|g| [g.of_r.at, g.means, g.of_q.at, g.of_k.at, g.of_v.at])
            .into_iter()
            .flatten();
        let optional = self.bias.map(|bias| bias.at).into_iter().chain(self.sums.map(|sums| sums.at));
        tensors.into_iter().chain(optional).chain(gradients)
    }

    /// The attention in parts, each with some of the heads, such that the library's memory for each part is
    /// within [`MAX_WORKSPACE_BYTES`] if possible.
    pub(crate) fn split_heads(&self) -> Vec<CudnnAttention> {
        let count = match &self.gradient {
            None => 1,
            Some(_) => {
                let extents = [self.queries, self.keys, self.e, self.f];
                part_count(gradient_bytes(self.batch * self.heads, extents), self.key_heads)
            }
        };
        (0..count).map(|number| self.head_part(number, count)).collect()
    }

    fn head_part(&self, number: usize, count: usize) -> CudnnAttention {
        if count == 1 {
            return *self;
        }
        let heads = self.heads / count;
        let key_heads = self.key_heads / count;
        let first = number * heads;
        let first_key = number * key_heads;
        let size = self.dtype.size();
        CudnnAttention {
            heads,
            key_heads,
            q: self.q.skip_heads(first, size),
            k: self.k.skip_heads(first_key, size),
            v: self.v.skip_heads(first_key, size),
            r: self.r.skip_heads(first, size),
            sums: self.sums.map(|s| s.skip_heads(first, 4)),
            gradient: self.gradient.map(|g| AttentionGradient {
                of_r: g.of_r.skip_heads(first, size),
                of_q: g.of_q.skip_heads(first, size),
                of_k: g.of_k.skip_heads(first_key, size),
                of_v: g.of_v.skip_heads(first_key, size),
                ..g
            }),
            ..*self
        }
    }

    /// The properties that the choice depends on, as text.
    pub(crate) fn key(&self) -> String {
        format!("{:?}", self.without_addresses())
    }
}

impl AttentionTensor {
    fn without_address(self) -> AttentionTensor {
        AttentionTensor { at: DevicePtr::NULL, ..self }
    }

    fn skip_heads(self, count: usize, element_size: usize) -> AttentionTensor {
        let bytes = self.strides[1].unsigned_abs() * (count * element_size) as u64;
        AttentionTensor { at: self.at + bytes, ..self }
    }
}

/// Only the part of a pointer that determines its alignment is kept.
fn keep_alignment(at: DevicePtr) -> DevicePtr {
    DevicePtr::from(at.alignment(16) % 16)
}
