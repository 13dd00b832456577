//! Rotary embeddings of ONNX and ONNX Runtime.

use symmc_import::{Emit, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{BinaryOp, Dim, Op, ValueId};

use super::attention::split_heads;
use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::EmitResult;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("RotaryEmbedding", 23, "rotary_embedding", |c| {
        let positions = c.opt_tensor(3)?;
        lower_rotary(c, positions, (1, 2))
    }),
    row("com.microsoft::RotaryEmbedding", 1, "rotary_embedding", |c| {
        let positions = c.tensor(1)?;
        lower_rotary(c, Some(positions), (2, 3))
    }),
];

/// Rotates pairs of elements by angles. A pair is an element of the first half of the rotated elements and
/// its counterpart in the second half or, if interleaved, two neighbours. `caches` are the operands with the
/// cosines and sines, which `positions` index if they are given.
fn lower_rotary(c: &mut OpCall<'_, '_>, positions: Option<ValueId>, caches: (usize, usize)) -> EmitResult {
    let x = c.tensor(0)?;
    let extents = c.shape(x);
    let cos = c.tensor(caches.0)?;
    let sin = c.tensor(caches.1)?;
    let half = c.extent(cos, c.rank(cos).saturating_sub(1));
    let turned = half.clone() * Dim::from(2);
    let stated = c.int_or("rotary_embedding_dim", 0)?;
    invalid_if!(
        stated != 0 && turned.as_const().is_none_or(|n| n != stated),
        "expected rotary_embedding_dim to be twice the {} angles, found {stated}",
        c.display_dim(&half)
    );
    unsupported_if!(
        c.flag("is_packed_batching")? || c.float_or("scale", 1.0)? != 1.0,
        "packed batches and scaled angles are not supported"
    );
    let heads = match c.int_or("num_heads", 0)? {
        0 if extents.len() == 3 => match extents[2].exact_div(&turned).and_then(|h| h.as_const()) {
            Some(heads) => heads,
            None => {
                return invalid!(
                    "expected {} to divide {}",
                    c.display_dim(&turned),
                    c.display_dim(&extents[2])
                );
            }
        },
        heads => heads,
    };
    let x = split_heads(c, x, heads)?;
    let interleaved = c.flag("interleaved")?;
    let mut y = rotate(c, x, positions, [cos, sin], interleaved)?;
    if extents.len() == 3 {
        y = c.permute(y, vec![0, 2, 1, 3])?;
        y = c.reshape(y, extents)?;
    }
    Ok(y)
}

/// The positions of `length` elements. A single position is that of the first element.
fn expand_positions(c: &mut OpCall<'_, '_>, positions: ValueId, length: Dim) -> EmitResult {
    if c.rank(positions) == 1 && c.extent(positions, 0).as_const() == Some(1) {
        let offsets = c.iota(length, 0, 1, c.dtype(positions))?;
        return c.binary(BinaryOp::Add, offsets, positions);
    }
    Ok(positions)
}

/// Rotates `[batch, heads, length, size]` by angles, given by their cosines and sines at the positions.
pub(super) fn rotate(
    c: &mut OpCall<'_, '_>,
    x: ValueId,
    positions: Option<ValueId>,
    mut angles: [ValueId; 2],
    interleaved: bool,
) -> EmitResult {
    let length = c.extent(x, 2);
    let half = c.extent(angles[0], c.rank(angles[0]).saturating_sub(1));
    for angle in &mut angles {
        if let Some(positions) = positions {
            let expanded = expand_positions(c, positions, length.clone())?;
            *angle = c.emit("take", Op::Take { axis: 0 }, &[*angle, expanded])?;
        }
        if c.rank(*angle) == 2 {
            *angle = c.unsqueeze(*angle, 0)?;
        }
        *angle = c.unsqueeze(*angle, 1)?;
    }
    let Some(width) = half.as_const().and_then(|n| usize::try_from(n.checked_mul(2)?).ok()) else {
        return unsupported!("the number of angles is symbolic");
    };
    let op = Op::RotaryEmbedding { width, interleaved };
    c.emit("rotary_embedding", op, &[x, angles[0], angles[1]])
}
