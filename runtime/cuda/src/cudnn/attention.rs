//! Attention and its gradients as cuDNN takes them: four axes, a band of columns around each row, a bias.
//!
//! The variant of the library whose gradients have the same bits in each run stores the gradient of the scores. So that this
//! does not grow with the number of heads, heads are divided into parts, one after the other.

use symmc_ir::DType;

use crate::device::launch::DevicePtr;

/// An operand or the result, `[batch, heads, rows, elements]`, with neighbouring elements side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionTensor {
    /// The first element, at a multiple of 16.
    pub at: DevicePtr,
    /// Elements between neighbours along the first three axes.
    pub strides: [i64; 3],
}

/// What is added to the scores, `[batch or 1, heads or 1, rows or 1, columns]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionBias {
    /// The first element.
    pub at: DevicePtr,
    pub dtype: DType,
    pub extents: [i64; 4],
    /// Elements between neighbours.
    pub strides: [i64; 4],
}

/// Which columns a row sees: row `i` those below `i + below` and from `i + from` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VisibleBand {
    /// Where they end.
    pub below: Option<i64>,
    /// Where they begin.
    pub from: Option<i64>,
}

/// The gradients of an attention, in place of its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionGradient {
    /// That of the result.
    pub of_r: AttentionTensor,
    /// The first element of memory for a number in f32 for each row.
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
    /// Sequences.
    pub batch: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, a divisor of those.
    pub key_heads: usize,
    /// Rows.
    pub queries: usize,
    /// Columns.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub e: usize,
    /// Elements of a value.
    pub f: usize,
    pub scale: f32,
    pub cap: Option<f32>,
    pub band: VisibleBand,
    pub bias: Option<AttentionBias>,
    pub q: AttentionTensor,
    pub k: AttentionTensor,
    pub v: AttentionTensor,
    /// The result; an operand of the gradients.
    pub r: AttentionTensor,
    /// Where the log-sum-exp of each row is, in f32, as of rows of one element: a result, and an operand of the gradients.
    pub sums: Option<AttentionTensor>,
    pub gradient: Option<AttentionGradient>,
}

pub fn workspace() -> usize {
    8 << 20
}

/// The most bytes of workspace that a gradient is given in one call of the library, if it can do with that.
const MOST_WORKSPACE: usize = 256 << 20;

/// The bytes of workspace of gradients of so many heads with so many queries, keys, and elements of keys and of values, about:
/// the gradient of the scores in 16 bits, and the gradients of keys and values of each query head.
fn gradient_bytes(heads: usize, [queries, keys, e, f]: [usize; 4]) -> usize {
    let [rows, columns] = [queries, keys].map(|n| n.next_multiple_of(128));
    heads.saturating_mul(columns).saturating_mul(2 * (rows + e + f))
}

/// Into how many parts heads of keys are divided, where all of them want so many bytes.
fn part_count(bytes: usize, key_heads: usize) -> usize {
    let fits = |count: &usize| key_heads.is_multiple_of(*count) && bytes / count <= MOST_WORKSPACE;
    (1..=key_heads).find(fits).unwrap_or(key_heads.max(1))
}

/// The bytes of workspace that gradients may want of so many heads, over the batch, and so many heads of keys; by the extents in
/// the order of `gradient_bytes`.
pub(crate) fn gradient_workspace(heads: usize, key_heads: usize, extents: [usize; 4]) -> usize {
    let bytes = gradient_bytes(heads, extents);
    bytes / part_count(bytes, key_heads) + workspace()
}

impl CudnnAttention {
    /// The same wherever it lies: what a plan of the library depends on.
    pub(crate) fn without_addresses(&self) -> CudnnAttention {
        let nowhere = |t: AttentionTensor| AttentionTensor { at: DevicePtr::NULL, ..t };
        // As much of a pointer as alignment depends on.
        let aligned = |at: DevicePtr| DevicePtr::from(at.alignment(16) % 16);
        let bias = self.bias.map(|b| AttentionBias { at: aligned(b.at), ..b });
        CudnnAttention {
            q: nowhere(self.q),
            k: nowhere(self.k),
            v: nowhere(self.v),
            r: nowhere(self.r),
            bias,
            sums: self.sums.map(|s| AttentionTensor { at: aligned(s.at), ..s }),
            gradient: self.gradient.map(|g| AttentionGradient {
                of_r: nowhere(g.of_r),
                means: DevicePtr::NULL,
                of_q: nowhere(g.of_q),
                of_k: nowhere(g.of_k),
                of_v: nowhere(g.of_v),
            }),
            ..*self
        }
    }

    /// Where what it computes lies.
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
        let others = self.bias.map(|bias| bias.at).into_iter().chain(self.sums.map(|sums| sums.at));
        tensors.into_iter().chain(others).chain(gradients)
    }

    /// The same attention in parts, each of some of the heads, such that the memory that the library uses for each part is
    /// within [`MOST_WORKSPACE`] where that is possible.
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
        let (heads, key_heads) = (self.heads / count, self.key_heads / count);
        let moved = |t: AttentionTensor, first: usize, size: usize| {
            let bytes = t.strides[1].unsigned_abs() * (first * size) as u64;
            AttentionTensor { at: t.at + bytes, ..t }
        };
        let (of_queries, of_keys) = (number * heads, number * key_heads);
        let size = self.dtype.size();
        CudnnAttention {
            heads,
            key_heads,
            q: moved(self.q, of_queries, size),
            k: moved(self.k, of_keys, size),
            v: moved(self.v, of_keys, size),
            r: moved(self.r, of_queries, size),
            sums: self.sums.map(|s| moved(s, of_queries, 4)),
            gradient: self.gradient.map(|g| AttentionGradient {
                of_r: moved(g.of_r, of_queries, size),
                of_q: moved(g.of_q, of_queries, size),
                of_k: moved(g.of_k, of_keys, size),
                of_v: moved(g.of_v, of_keys, size),
                ..g
            }),
            ..*self
        }
    }

    /// What tells attentions apart, as far as a choice for them depends on it.
    pub(crate) fn key(&self) -> String {
        format!("{:?}", self.without_addresses())
    }
}
