//! From the steps of a dispatch to the body of one loop nest.
//!
//! A value passes from step to step in a register, rounded to its dtype as if it had been stored. The bits therefore
//! equal those of separate steps. Values that other steps read are stored. A step whose result is broadcast is computed
//! at each position that reads it.

use std::iter::repeat_n;

use smallvec::SmallVec;
use symmc_ir::{DType, Op};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use super::super::lowering::{BoundOperation, KernelLowering, arity, mismatch_error};
use super::super::space::{Strides, broadcast, common_shape, strides_within};
use super::super::text::stored_type;
use super::body::{IndexTerm, LoopBody, LoopValue};
use super::element;
use super::reduction::ReductionList;
use crate::error::Result;

/// Builds the body of a loop nest over `shape`. `axis` is the reduced axis: the last one, or the one before.
pub(in super::super) struct LoopBuilder<'a> {
    pub body: LoopBody,
    pub(super) shape: &'a [usize],
    /// The reduced axis.
    pub(super) axis: Option<usize>,
    pub(super) reductions: ReductionList,
    /// The results so far: where each would be stored, its strides over the space, and its value.
    results: Vec<(&'a LocatedTensor, Strides, LoopValue)>,
}

impl<'a> LoopBuilder<'a> {
    pub fn new(shape: &'a [usize], axis: Option<usize>) -> LoopBuilder<'a> {
        let body = LoopBody::over_shape(shape);
        LoopBuilder { body, shape, axis, reductions: ReductionList::default(), results: Vec::new() }
    }

    /// Adds a step; returns whether it can be part of the loop.
    pub fn add(&mut self, step: &BoundOperation<'a>, l: &mut KernelLowering<'_>) -> Result<bool> {
        let BoundOperation { index, op, operands, results } = *step;
        arity(op, operands.len(), results.len())?;
        l.step = index;
        let result = &results[0];
        let value = match op {
            Op::Take { axis: 0 } => match self.take(operands, result, l) {
                Some(value) => value,
                None => return Ok(false),
            },
            Op::Reduce { op, axes, .. } => {
                let fits = self.axis.is_some_and(|axis| axes[..] == [axis]) && self.is_full(&operands[0]);
                if !fits || !self.is_reduced(result) {
                    return Ok(false);
                }
                let operand = self.operand(&operands[0], self.shape, l)?;
                self.reductions.reduce(&mut self.body, *op, operand, operands[0].dtype, result.dtype)
            }
            Op::RmsNorm { axes: 1, .. } | Op::LayerNorm { axes: 1, .. } => {
                let is_last = self.axis.is_some_and(|axis| axis + 1 == self.shape.len());
                if !is_last || !self.is_full(result) || !self.is_full(&operands[0]) {
                    return Ok(false);
                }
                self.norm_of(op, operands, l)?
            }
            op if op.fits_map() => {
                let is_broadcast = self.axis.is_none_or(|axis| axis + 1 == self.shape.len())
                    && result.space == MemorySpace::Inner
                    && broadcasts(&result.shape, self.shape);
                if !self.is_full(result) && !self.is_reduced(result) && !is_broadcast {
                    return Ok(false);
                }
                let mut values: SmallVec<[(LoopValue, DType); 3]> = SmallVec::new();
                for x in operands {
                    values.push((self.operand(x, &result.shape, l)?, x.dtype));
                }
                element::op_value(&mut self.body, op, &values, result.dtype, l)?
            }
            _ => return Ok(false),
        };
        self.define(result, value);
        Ok(true)
    }

    /// The norm of these operands: the elements of the rows, and weight and bias if there are any.
    pub fn norm_of(
        &mut self,
        op: &Op,
        operands: &[LocatedTensor],
        l: &KernelLowering<'_>,
    ) -> Result<LoopValue> {
        let dtype = operands[0].dtype;
        let mut values = Vec::with_capacity(operands.len());
        for x in operands {
            if x.dtype != dtype {
                return Err(mismatch_error("the weight or bias of a norm", dtype, x.dtype));
            }
            values.push(self.operand(x, self.shape, l)?);
        }
        self.reductions.norm(&mut self.body, op, &values, dtype)
    }

    /// Declares that later steps read this value in place of a result.
    pub fn define(&mut self, result: &'a LocatedTensor, value: LoopValue) {
        let strides = self.strides_over_space(result, &result.shape);
        self.results.push((result, strides, value));
    }

    fn is_full(&self, value: &LocatedTensor) -> bool {
        value.shape[..] == *self.shape
    }

    /// Whether a value has one element for each result of a reduction.
    fn is_reduced(&self, value: &LocatedTensor) -> bool {
        let Some(axis) = self.axis else { return false };
        let (before, after) = (&self.shape[..axis], &self.shape[axis + 1..]);
        let is_kept = value.shape[..] == [before, &[1], after].concat();
        is_kept || !after.is_empty() && value.shape[..] == [before, after].concat()
    }

    /// The strides over the space of an operand of a node whose result has this shape.
    fn strides_over_space(&self, x: &LocatedTensor, shape: &[usize]) -> Strides {
        let mut out = broadcast(shape, &x.shape, &x.strides);
        let missing = self.shape.len() - shape.len().min(self.shape.len());
        match self.axis {
            Some(axis) if missing == 1 && axis + 1 < self.shape.len() => out.insert(axis, 0),
            _ => out.insert_many(0, repeat_n(0, missing)),
        }
        out
    }

    /// The value of an operand of a node whose result has this shape: the result of an earlier step, or a load.
    pub fn operand(
        &mut self,
        x: &LocatedTensor,
        shape: &[usize],
        l: &KernelLowering<'_>,
    ) -> Result<LoopValue> {
        if !broadcasts(&x.shape, shape) {
            return Err(mismatch_error("an operand", shape, &x.shape));
        }
        let strides = self.strides_over_space(x, shape);
        let computed = self
            .results
            .iter()
            .rev()
            .find(|(r, over_space, _)| same_elements(r, x) && *over_space == strides);
        Ok(match computed {
            Some((_, _, value)) => *value,
            None => self.body.load(l.address_of(x), stored_type(x.dtype), strides),
        })
    }

    /// The elements of rows that a step takes along the first axis.
    fn take(
        &mut self,
        operands: &[LocatedTensor],
        result: &LocatedTensor,
        l: &mut KernelLowering<'_>,
    ) -> Option<LoopValue> {
        let [x, index] = operands else { return None };
        let index_shape = common_shape(std::slice::from_ref(index));
        let inner_rank = x.shape.len().checked_sub(1)?;
        if !self.is_full(result) || result.shape[..] != [&index_shape[..], &x.shape[1..]].concat() {
            return None;
        }
        let strides = strides_within(broadcast(&index_shape, &index.shape, &index.strides), 0, inner_rank);
        let position = self.body.load(l.address_of(index), stored_type(index.dtype), strides);
        let strides = repeat_n(0, index_shape.len()).chain(x.strides[1..].iter().copied()).collect();
        let extent = x.shape[0];
        let assertion = l.index_assertion(0, extent);
        let term = IndexTerm { index: position, extent, stride: x.strides[0], assertion };
        Some(self.body.gather(l.address_of(x), stored_type(x.dtype), strides, vec![term]))
    }

    /// Stores the results that have memory, unless a later one overwrites them.
    pub fn store_results(&mut self, l: &KernelLowering<'_>) {
        for (k, (result, strides, value)) in self.results.iter().enumerate() {
            let is_overwritten = self.results[k + 1..]
                .iter()
                .any(|(later, over_space, _)| same_elements(later, result) && over_space == strides);
            if result.space != MemorySpace::Inner && !is_overwritten {
                self.body.stores.push(super::body::Store {
                    at: l.address_of(result),
                    strides: self.stored_strides(result),
                    value: *value,
                    is_reduced: !self.is_full(result),
                });
            }
        }
    }

    /// The strides of a stored result over the space. Axes of extent 1 keep theirs.
    fn stored_strides(&self, result: &LocatedTensor) -> Strides {
        if self.is_full(result) {
            Strides::from_slice(&result.strides)
        } else {
            self.strides_over_space(result, &result.shape)
        }
    }
}

/// Whether an operand of these extents broadcasts to a shape.
fn broadcasts(extents: &[usize], shape: &[usize]) -> bool {
    let mut pairs = extents.iter().rev().zip(shape.iter().rev());
    extents.len() <= shape.len() && pairs.all(|(own, full)| own == full || *own == 1)
}

/// Whether two tensors with the same strides over the space have the same elements.
fn same_elements(x: &LocatedTensor, y: &LocatedTensor) -> bool {
    (x.space, x.offset, x.by_rank, x.dtype) == (y.space, y.offset, y.by_rank, y.dtype)
}

/// Whether `x` reads the elements of the result `r` at the same positions of a space.
pub(in super::super) fn reads_same_elements(r: &LocatedTensor, x: &LocatedTensor, shape: &[usize]) -> bool {
    same_elements(r, x) && broadcast(shape, &r.shape, &r.strides) == broadcast(shape, &x.shape, &x.strides)
}
