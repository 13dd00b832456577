//! Scaled dot-product attention, whole and in the forms that PyTorch decomposes it to for its kernels.
//!
//! Only the first result is computed. The others (log-sum-exp, random state) serve PyTorch's own backward
//! kernels; a call of which they are used stays opaque.

use symmc_import::Emit;
use symmc_ir::attention::causal_if;
use symmc_ir::{Scalar, ValueId};

use super::{Row, row};
use crate::call::Call;
use crate::effects;
use crate::lower::{Lowered, Stop};

pub(super) const ROWS: &[Row] = &[
    row("aten.scaled_dot_product_attention", "attention", |c| attention(c, Some("attn_mask"))),
    row("aten._scaled_dot_product_attention_math", "attention", |c| attention(c, Some("attn_mask"))),
    row("aten._scaled_dot_product_flash_attention", "attention", |c| attention(c, None)),
    row("aten._scaled_dot_product_flash_attention_for_cpu", "attention", |c| attention(c, Some("attn_mask"))),
    row("aten._scaled_dot_product_efficient_attention", "attention", |c| attention(c, Some("attn_bias"))),
    row("aten._scaled_dot_product_cudnn_attention", "attention", |c| attention(c, Some("attn_bias"))),
    row("aten._scaled_dot_product_fused_attention_overrideable", "attention", |c| {
        attention(c, Some("attn_bias"))
    }),
];

fn attention(c: &mut Call<'_, '_>, mask: Option<&str>) -> Lowered {
    c.only(1)?;
    // Heads are grouped where their numbers say so; the others are about results that are not read.
    c.ignore(&["enable_gqa", "compute_log_sumexp", "compute_logsumexp", "return_debug_mask"]);
    if c.float_or("dropout_p", 0.0)? != 0.0 {
        return Err(Stop::Broken(effects::DRAWS.into()));
    }
    let (q, k, v) = (c.tensor("query")?, c.tensor("key")?, c.tensor("value")?);
    let mask = mask.map(|name| c.opt_tensor(name)).transpose()?.flatten();
    let causal = c.bool_or("is_causal", false)?;
    let rank = c.rank(q);
    if rank < 2 {
        return Err(Stop::Broken(format!("expected a query of two axes or more, found {rank}")));
    }
    let scale = c.attention_scale(q, c.opt_scalar("scale")?.map(Scalar::as_f64))?;
    let operands = [heads(c, q, q, rank)?, heads(c, k, q, rank)?, heads(c, v, q, rank)?];
    let y = c.attend(operands, mask, scale, (None, causal_if(causal)))?;
    let y = if rank == 2 { c.drop_axis(y, 0)? } else { y };
    c.done(y)
}

/// An operand with a heads axis, and with the batch extents of the query where it broadcasts.
fn heads(c: &mut Call<'_, '_>, x: ValueId, q: ValueId, rank: usize) -> Lowered<ValueId> {
    if rank == 2 {
        return c.unsqueeze(x, 0);
    }
    let (own, mut shape) = (c.shape(x), c.shape(q));
    if own.len() > rank {
        return Err(Stop::Opaque("key or value has more axes than the query".into()));
    }
    let new = rank - own.len();
    for (axis, d) in own.iter().enumerate() {
        if axis + new + 3 >= rank || d.as_const() != Some(1) {
            shape[axis + new] = d.clone();
        }
    }
    c.expand(x, shape)
}
