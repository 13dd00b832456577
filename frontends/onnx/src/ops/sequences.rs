//! Sequences of tensors. They exist only at import.

use std::sync::Arc;

use symmc_import::{Emit, invalid, unsupported, unsupported_if};
use symmc_ir::{DType, Dim, Tensor, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::known_values::KnownValue;
use crate::lower::{RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("SequenceConstruct", 11, "(a sequence)", |c| {
        let tensors = c.tensors()?;
        c.set_sequence(tensors);
        Ok(())
    }),
    row_of_results("SequenceEmpty", 11, "(a sequence)", |c| {
        // Elements have their own dtypes.
        c.ignore(&["dtype"]);
        c.set_sequence(Vec::new());
        Ok(())
    }),
    row_of_results("SequenceInsert", 11, "(a sequence)", |c| {
        let mut tensors = c.sequence(0)?;
        let tensor = c.tensor(1)?;
        let end = tensors.len();
        let position = position(c, 2, end, end)?.unwrap_or(end);
        tensors.insert(position, tensor);
        c.set_sequence(tensors);
        Ok(())
    }),
    row_of_results("SequenceErase", 11, "(a sequence)", |c| {
        let mut tensors = c.sequence(0)?;
        let Some(last) = tensors.len().checked_sub(1) else {
            return invalid!("expected at least one element, found none");
        };
        let position = position(c, 1, last, tensors.len())?.unwrap_or(last);
        tensors.remove(position);
        c.set_sequence(tensors);
        Ok(())
    }),
    row_of_results("SequenceLength", 11, "(a constant)", |c| {
        let count = c.sequence(0)?.len() as i64;
        set_constant(c, DType::I64, count)
    }),
    row_of_results("OptionalHasElement", 28, "(a constant)", |c| {
        let is_present = c.operand_name(0).is_some();
        set_constant(c, DType::Bool, i64::from(is_present))
    }),
    row_of_results("OptionalGetElement", 28, "(the element)", |c| c.forward_operand(0)),
    row_of_results("SplitToSequence", 24, "slice, reshape", split),
    row("SequenceAt", 11, "(an element)", |c| {
        let tensors = c.sequence(0)?;
        let index = c.opt_consts(1, "the position")?.and_then(|i| i.first().copied()).unwrap_or(0);
        let position = if index < 0 { index.saturating_add(tensors.len() as i64) } else { index };
        let element = usize::try_from(position).ok().and_then(|index| tensors.get(index).copied());
        element.ok_or_else(|| {
            RuleFailure::Invalid(format!(
                "expected a position within {} elements, found {index}",
                tensors.len()
            ))
        })
    }),
    row("ConcatFromSequence", 11, "reshape, concat", |c| {
        let mut tensors = c.sequence(0)?;
        let Some(&first) = tensors.first() else {
            return invalid!("expected at least one element, found none");
        };
        let new = c.flag("new_axis")?;
        let axis = c.resolve_axis(c.int("axis")?, c.rank(first) + usize::from(new))?;
        for tensor in tensors.iter_mut().filter(|_| new) {
            *tensor = c.unsqueeze(*tensor, axis)?;
        }
        c.concat(&tensors, axis)
    }),
];

/// A position of 0 to `last` in an optional operand. A negative one counts from `count`.
fn position(c: &mut OpCall<'_, '_>, i: usize, last: usize, count: usize) -> RuleResult<Option<usize>> {
    let Some(index) = c.opt_consts(i, "the position")?.and_then(|p| p.first().copied()) else {
        return Ok(None);
    };
    let from_start = if index < 0 { index.saturating_add(count as i64) } else { index };
    match usize::try_from(from_start).ok().filter(|position| *position <= last) {
        Some(position) => Ok(Some(position)),
        None => invalid!("expected a position from -{count} to {last}, found {index}"),
    }
}

fn set_constant(c: &mut OpCall<'_, '_>, dtype: DType, number: i64) -> RuleResult {
    let Some(data) = Tensor::from_i64(dtype, vec![], &[number]) else {
        return invalid!("expected a number of {dtype}, found {number}");
    };
    c.set_known(0, KnownValue::Data(Arc::new(data)));
    Ok(())
}

const MAX_PIECES: i64 = 4096;

/// Splits by lengths, by one length for all slices except the last, or into single elements.
fn split(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.tensor(0)?;
    let axis = c.axis_or("axis", 0, c.rank(x))?;
    let n = c.extent(x, axis);
    let lengths = c.opt_ints(1, "the lengths")?;
    let keep = c.int_or("keepdims", 1)? != 0;
    let single = lengths.is_none() && !keep;
    let lengths = match lengths {
        Some(ints) if !ints.shape.is_empty() => ints.dims,
        other => {
            let each = other.map_or(Some(1), |i| i.dims.first().and_then(Dim::as_const));
            let (Some(n), Some(each @ 1..)) = (n.as_const(), each) else {
                return unsupported!("the number of slices is symbolic");
            };
            unsupported_if!(n / each >= MAX_PIECES, "more than {MAX_PIECES} slices are not supported");
            (0..(n + each - 1) / each).map(|i| Dim::from(each.min(n - i * each))).collect()
        }
    };
    let mut start = Dim::from(0);
    let mut pieces: Vec<ValueId> = Vec::with_capacity(lengths.len());
    for len in lengths {
        let piece = c.slice(x, axis, start.clone(), len.clone(), 1)?;
        pieces.push(if single { c.drop_axis(piece, axis)? } else { piece });
        start = start + len;
    }
    c.set_sequence(pieces);
    Ok(())
}
