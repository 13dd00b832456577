//! Scaled dot-product attention, for which ONNX has a single op.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported_if};
use symmc_ir::attention::{AttentionBound, BoundSide};
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, Scalar, ValueId};

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::proto::element_type as kind;

pub(super) const RULE_ROWS: &[RuleRow] = &[row("Attention", 25, "attention", attention)];

/// Reshapes `[batch, length, width]` to `[batch, heads, length, width / heads]`. An operand of four axes
/// already has this form.
pub(super) fn split_heads(c: &mut OpCall<'_, '_>, x: ValueId, heads: i64) -> EmitResult {
    match c.shape(x).as_slice() {
        [_, _, _, _] => Ok(x),
        [batch, length, width] => {
            let heads = Dim::from(heads);
            let each = width.exact_div(&heads).ok_or_else(|| {
                RuleFailure::Invalid(format!(
                    "expected {} heads to divide {}",
                    c.display_dim(&heads),
                    c.display_dim(width)
                ))
            })?;
            let x = c.reshape(x, vec![batch.clone(), length.clone(), heads, each])?;
            c.permute(x, vec![0, 2, 1, 3])
        }
        other => invalid!("expected three or four axes, found {}", other.len()),
    }
}

/// Joins the heads of `[batch, heads, length, size]` into the last axis.
pub(super) fn join_heads(c: &mut OpCall<'_, '_>, y: ValueId) -> EmitResult {
    let y = c.permute(y, vec![0, 2, 1, 3])?;
    let shape = c.shape(y);
    c.reshape(y, vec![shape[0].clone(), shape[1].clone(), shape[2].clone() * shape[3].clone()])
}

/// Appends keys or values to those of the past. The concatenation is also the result `result`.
pub(super) fn append_to_past(c: &mut OpCall<'_, '_>, x: ValueId, past: usize, result: usize) -> EmitResult {
    let present = match c.opt_tensor(past)? {
        Some(past) => c.concat(&[past, x], 2)?,
        None => x,
    };
    c.set_result(result, present);
    Ok(present)
}

/// The scores of attention over split heads, besides the products of queries and keys.
#[derive(Default)]
pub(super) struct AttentionScores {
    pub scale: Option<f64>,
    pub cap: Option<f64>,
    /// A bool selects elements, and a float is added.
    pub mask: Option<ValueId>,
    pub bounds: Vec<AttentionBound>,
    /// The operands of the bounds that have one, in their order.
    pub positions: Vec<ValueId>,
    /// One more score of each row, whose value is zero.
    pub sink: Option<ValueId>,
}

impl AttentionScores {
    /// Sets the scale and the cap, of which 0 is the default and no cap.
    pub fn with_scale(c: &OpCall<'_, '_>) -> RuleResult<AttentionScores> {
        Ok(AttentionScores {
            scale: c.opt_float("scale")?.filter(|s| *s != 0.0),
            cap: None,
            ..AttentionScores::default()
        })
    }

    /// Bounds the columns of row `i` by `i + add`, plus the number in `first` if there is one: the position of the first
    /// row. `Below` excludes the limit.
    pub fn bound_by_row(&mut self, side: BoundSide, add: Dim, first: Option<ValueId>) {
        self.bounds
            .push(AttentionBound { operand: first.is_some(), ..AttentionBound::relative_to_row(side, add) });
        self.positions.extend(first);
    }

    /// Excludes the columns from a length on.
    pub fn bound_by_length(&mut self, length: ValueId) {
        let bound = AttentionBound::relative_to_row(BoundSide::Below, 0);
        self.bounds.push(AttentionBound { row: false, operand: true, ..bound });
        self.positions.push(length);
    }

    pub fn emit(&self, c: &mut OpCall<'_, '_>, [q, k, v]: [ValueId; 3]) -> EmitResult {
        let scale = FloatAttribute(c.attention_scale(q, self.scale)?);
        let mut operands = vec![q, k, v];
        if let Some(mask) = self.mask {
            operands.push(if c.dtype(mask).is_float() { mask } else { c.cast(mask, DType::Bool)? });
        }
        operands.extend(&self.positions);
        operands.extend(self.sink);
        let cap = self.cap.map(FloatAttribute);
        let bounds = self.bounds.clone();
        let op = Op::Attention { scale, cap, bounds, sink: self.sink.is_some(), log_sum_exp: false };
        c.emit("attention", op, &operands)
    }

    /// Which columns the rows see by the bounds: `[…, rows, columns]`.
    fn visible(&self, c: &mut OpCall<'_, '_>, rows: &Dim, columns: &Dim) -> RuleResult<Option<ValueId>> {
        let mut positions = self.positions.iter();
        let mut visible: Option<ValueId> = None;
        for bound in &self.bounds {
            let mut limit = c.emit_dim(&bound.add, DType::I64)?;
            if bound.row {
                let row = c.iota(rows.clone(), 0, 1, DType::I64)?;
                let row = c.unsqueeze(row, 1)?;
                limit = c.binary(BinaryOp::Add, row, limit)?;
            }
            if let Some(position) = positions.next().copied().filter(|_| bound.operand) {
                let position = c.cast(position, DType::I64)?;
                limit = c.binary(BinaryOp::Add, position, limit)?;
            }
            let column = c.iota(columns.clone(), 0, 1, DType::I64)?;
            let op = if bound.side == BoundSide::Below { BinaryOp::Lt } else { BinaryOp::Ge };
            let side = c.binary(op, column, limit)?;
            visible = Some(match visible {
                Some(visible) => c.binary(BinaryOp::And, visible, side)?,
                None => side,
            });
        }
        Ok(visible)
    }

    /// The scores themselves at a stage: 0 for the products, 1 after the cap, 2 after the mask, 3 after the softmax.
    fn emit_scores(&self, c: &mut OpCall<'_, '_>, [q, k]: [ValueId; 2], stage: i64) -> EmitResult {
        let scale = c.attention_scale(q, self.scale)?;
        let heads = c.extent(q, 1);
        let [batch, groups, columns, size] = c
            .shape(k)
            .try_into()
            .map_err(|_| RuleFailure::Invalid("expected four axes of the keys".into()))?;
        let Some(repeats) = heads.exact_div(&groups) else {
            return invalid!(
                "expected {} heads of keys to divide {} heads",
                c.display_dim(&groups),
                c.display_dim(&heads)
            );
        };
        let k = c.unsqueeze(k, 2)?;
        let k = c.expand(k, vec![batch.clone(), groups, repeats, columns.clone(), size.clone()])?;
        let k = c.reshape(k, vec![batch, heads, columns.clone(), size])?;
        let k = c.permute(k, vec![0, 1, 3, 2])?;
        let mut scores = c.matmul(q, k)?;
        scores = c.binary_float(BinaryOp::Mul, scores, scale)?;
        if let Some(cap) = self.cap {
            scores = c.formula([scores], |[scores]| (scores / cap).tanh() * cap)?;
        }
        if stage < 2 {
            return Ok(scores);
        }
        let mut visible = self.visible(c, &c.extent(q, 2), &columns)?;
        match self.mask {
            Some(mask) if c.dtype(mask).is_float() => scores = c.binary(BinaryOp::Add, scores, mask)?,
            Some(mask) => {
                let mask = c.cast(mask, DType::Bool)?;
                visible = Some(match visible {
                    Some(visible) => c.binary(BinaryOp::And, visible, mask)?,
                    None => mask,
                });
            }
            None => {}
        }
        if let Some(visible) = visible {
            let never = c.full(Scalar::Float(FloatAttribute(f64::NEG_INFINITY)), c.dtype(scores), vec![])?;
            scores = c.select(visible, scores, never)?;
        }
        if stage == 2 {
            return Ok(scores);
        }
        let weights = c.emit("softmax", Op::Softmax { axis: 3, log: false }, &[scores])?;
        // A row that sees no column has zeros.
        c.formula([scores, weights], |[scores, weights]| {
            let largest = scores.reduce(symmc_ir::ReductionKind::Max, &[3], true);
            largest.eq(f64::NEG_INFINITY).select(0.0, weights)
        })
    }
}

/// A number for each entry of the batch, in the form that bounds of attention take.
pub(super) fn batch_positions(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let count = c.ty(x).numel();
    c.reshape(x, vec![count, 1.into(), 1.into(), 1.into()])
}

/// Operands: query, key, value, mask, past key, past value, number of keys of each sequence. Results: the values, both
/// present ones, and scores.
fn attention(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mut scores = AttentionScores::with_scale(c)?;
    // Scores are capped before the mask is added.
    scores.cap = Some(c.float_or("softcap", 0.0)?).filter(|cap| *cap > 0.0 && cap.is_finite());
    let [q, k, v] = c.first_tensors()?;
    // The softmax is computed in the requested precision or a higher one.
    let is_wide = c.opt_int("softmax_precision")? == Some(i64::from(kind::DOUBLE));
    let flat = c.rank(q) == 3;
    let heads = c.int_or("q_num_heads", 0)?;
    let key_heads = c.int_or("kv_num_heads", heads)?;
    let past = match c.opt_tensor(4)? {
        Some(past) => c.extent(past, 2),
        None => 0.into(),
    };
    let q = split_heads(c, q, heads)?;
    let k = split_heads(c, k, key_heads)?;
    let v = split_heads(c, v, key_heads)?;
    let k = append_to_past(c, k, 4, 1)?;
    let v = append_to_past(c, v, 5, 2)?;
    // The position of the first query is the length of the past or, in a cache that the caller keeps, the number of keys
    // before the queries.
    let lengths = c.opt_tensor(6)?;
    let mut first = None;
    if let Some(lengths) = lengths {
        invalid_if!(past.as_const() != Some(0), "expected the numbers of keys or a past, found both");
        let lengths = c.cast(lengths, DType::I64)?;
        let lengths = batch_positions(c, lengths)?;
        scores.bound_by_length(lengths);
        let queries = c.emit_dim(&c.extent(q, 2), DType::I64)?;
        first = Some(c.binary(BinaryOp::Sub, lengths, queries)?);
    }
    if c.flag("is_causal")? {
        scores.bound_by_row(BoundSide::Below, past.clone() + Dim::from(1), first);
    }
    let left = c.int_or("left_window_size", -1)?;
    let right = c.int_or("right_window_size", -1)?;
    invalid_if!(left < -1 || right < -1, "expected window sizes of -1 or more, found {left} and {right}");
    if left >= 0 {
        scores.bound_by_row(BoundSide::From, past.clone() - Dim::from(left.min(FAR)), first);
    }
    if right >= 0 {
        scores.bound_by_row(BoundSide::Below, past + Dim::from(right.min(FAR) + 1), first);
    }
    scores.mask = match c.opt_tensor(3)? {
        Some(mask) => Some(extend_mask(c, mask, &c.extent(k, 2))?),
        None => None,
    };
    let stage = c.int_or("qk_matmul_output_mode", 0)?;
    if c.is_result_read(3) {
        invalid_if!(!(0..=3).contains(&stage), "expected qk_matmul_output_mode from 0 to 3, found {stage}");
        unsupported_if!(
            stage == 0 && scores.cap.is_some(),
            "the output of scores before the cap is not supported"
        );
        let output = scores.emit_scores(c, [q, k], stage)?;
        c.set_result(3, output);
    }
    let dtype = c.dtype(q);
    let y = if is_wide && dtype != DType::F64 {
        let wide = [c.cast(q, DType::F64)?, c.cast(k, DType::F64)?, c.cast(v, DType::F64)?];
        if let Some(mask) = scores.mask.filter(|mask| c.dtype(*mask).is_float()) {
            scores.mask = Some(c.cast(mask, DType::F64)?);
        }
        let y = scores.emit(c, wide)?;
        c.cast(y, dtype)?
    } else {
        scores.emit(c, [q, k, v])?
    };
    if flat { join_heads(c, y) } else { Ok(y) }
}

/// A mask whose last axis may be shorter than the keys: it excludes the others.
fn extend_mask(c: &mut OpCall<'_, '_>, mask: ValueId, keys: &Dim) -> EmitResult {
    let mut shape = c.shape(mask);
    let axis = shape.len().saturating_sub(1);
    let missing = match shape.last() {
        Some(own) => (keys.clone() - own.clone()).as_const(),
        None => None,
    };
    let Some(missing @ 1..) = missing else { return Ok(mask) };
    let dtype = c.dtype(mask);
    let never =
        if dtype.is_float() { Scalar::Float(FloatAttribute(f64::NEG_INFINITY)) } else { Scalar::Int(0) };
    shape[axis] = Dim::from(missing);
    let padding = c.full(never, dtype, shape)?;
    c.concat(&[mask, padding], axis)
}

/// Windows of at least this width exclude nothing.
pub(super) const FAR: i64 = 1 << 40;
