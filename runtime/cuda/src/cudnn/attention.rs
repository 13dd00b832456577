//! Attention as cuDNN takes it: four axes, a band of columns around each row, a bias.

use symmc_ir::DType;

use crate::launch::Address;

/// An operand or the result, `[batch, heads, rows, elements]`, with neighbouring elements side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// The first element, at a multiple of 16.
    pub at: Address,
    /// Elements between neighbours along the first three axes.
    pub strides: [i64; 3],
}

/// What is added to the scores, `[batch or 1, heads or 1, rows or 1, columns]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bias {
    /// The first element.
    pub at: Address,
    /// Its type.
    pub dtype: DType,
    /// Its extents.
    pub extents: [i64; 4],
    /// Elements between neighbours.
    pub strides: [i64; 4],
}

/// Which columns a row sees: row `i` those below `i + below` and from `i + from` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Band {
    /// Where they end.
    pub below: Option<i64>,
    /// Where they begin.
    pub from: Option<i64>,
}

/// An attention.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
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
    /// What scores are multiplied with.
    pub scale: f32,
    /// What scores are capped at.
    pub cap: Option<f32>,
    /// What the rows see.
    pub band: Band,
    /// What is added to the scores.
    pub bias: Option<Bias>,
    /// The queries.
    pub q: Tensor,
    /// The keys.
    pub k: Tensor,
    /// The values.
    pub v: Tensor,
    /// The result.
    pub r: Tensor,
}

/// The bytes of workspace that an attention may want.
pub fn workspace() -> usize {
    8 << 20
}

impl Attention {
    /// The same wherever it lies: what a plan of the library depends on.
    pub(crate) fn shape(&self) -> Attention {
        let nowhere = |t: Tensor| Tensor { at: 0, ..t };
        let bias = self.bias.map(|b| Bias { at: b.at % 16, ..b });
        Attention {
            q: nowhere(self.q),
            k: nowhere(self.k),
            v: nowhere(self.v),
            r: nowhere(self.r),
            bias,
            ..*self
        }
    }

    /// What tells attentions apart, as far as a choice for them depends on it.
    pub(crate) fn key(&self) -> String {
        format!("{:?}", self.shape())
    }
}
