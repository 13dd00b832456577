//! Values with rows whose number depends on data.
//!
//! In the graph such a value has a capacity of rows along one axis ([`crate::data_sizes`]). The rows of the
//! program come first, and what follows them is unspecified. Rules emit nodes for the whole capacity, as for
//! any value. Around each node, [`emit`] keeps the meaning: it replaces the unspecified rows of operands where
//! the node mixes rows, notes which axis of the results is packed, and refuses nodes for which it knows
//! neither.

use symmc_import::{Emit, invalid};
use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, TensorType, ValueId};

use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::packed_rows::PackedRows;

mod emit;
mod sizes;

pub(crate) use emit::emit_packed;
pub(crate) use sizes::emit_output_length;

impl OpCall<'_, '_> {
    /// The length of a packed axis, if `axis` is the packed one.
    pub fn packed_length(&self, x: ValueId, axis: usize) -> Option<Dim> {
        let rows = self.lowering.packed.rows(x).filter(|rows| rows.axis == axis);
        rows.map(|rows| rows.length.clone())
    }

    /// The number of elements of an axis, over the symbols of [`crate::data_sizes`].
    pub fn length(&self, x: ValueId, axis: usize) -> Dim {
        self.packed_length(x, axis).unwrap_or_else(|| self.extent(x, axis))
    }

    /// An index into an axis of `x`, counted from 0. Negative elements count from the end.
    pub fn wrap_index(&mut self, index: ValueId, x: ValueId, axis: usize) -> EmitResult {
        let length = self.length(x, axis);
        if !self.is_data_size(&length) || self.is_non_negative(index) {
            return self.wrap_negative_index(index, &self.extent(x, axis));
        }
        let length = self.emit_size(&length)?;
        let length = self.cast(length, self.dtype(index))?;
        let from_end = self.binary(BinaryOp::Add, index, length)?;
        let negative = self.binary_scalar(BinaryOp::Lt, index, Scalar::Int(0))?;
        self.select(negative, from_end, index)
    }

    /// The number of elements of a value, as a number without axes.
    pub fn emit_numel(&mut self, x: ValueId, dtype: DType) -> EmitResult {
        let lengths = (0..self.rank(x)).map(|axis| self.length(x, axis));
        let numel = lengths.fold(Dim::from(1), |numel, length| numel * length);
        if !self.is_data_size(&numel) {
            return self.emit_dim(&numel, dtype);
        }
        let numel = self.emit_size(&numel)?;
        self.cast(numel, dtype)
    }

    /// Whether a size depends on data.
    pub fn is_data_size(&self, length: &Dim) -> bool {
        let data = &self.lowering.symbols.data;
        data.depends_on_data(&data.normalize(length))
    }

    /// Says that the first rows of a value are those of the program.
    pub fn set_packed(&mut self, x: ValueId, axis: usize, length: &Dim) {
        let length = self.lowering.symbols.data.normalize(length);
        if self.lowering.symbols.data.depends_on_data(&length) {
            self.lowering.packed.set(x, PackedRows { axis, length });
        }
    }

    /// Refuses a node that no known rule represents for packed rows.
    pub fn refuse_packed<T>(&self, what: &str, length: &Dim) -> RuleResult<T> {
        let rows = self.lowering.symbols.data.display(length);
        invalid!("{what}, which is not supported: the number of rows is `{rows}`, which depends on data")
    }

    pub fn capacity(&self, length: &Dim) -> RuleResult<Dim> {
        self.lowering.symbols.data.capacity(length).map_err(RuleFailure::Invalid)
    }

    /// A size that may depend on data, as an integer without axes.
    pub fn emit_size(&mut self, length: &Dim) -> EmitResult {
        let length = self.lowering.symbols.data.normalize(length);
        self.emit_terms(&length)
    }

    /// A size as the program states it, whatever it is known to equal.
    pub fn emit_terms(&mut self, length: &Dim) -> EmitResult {
        sizes::emit_terms(self.lowering, &self.label, length)
    }

    /// A bool for each of `capacity` rows: whether it is one of the first `length`.
    fn emit_mask(&mut self, length: &Dim, capacity: &Dim) -> EmitResult {
        let key = (length.clone(), capacity.clone());
        if let Some(known) = self.lowering.packed.masks.get(&key) {
            return Ok(*known);
        }
        let count = self.emit_size(length)?;
        let all = self.iota(capacity.clone(), 0, 1, DType::I64)?;
        let mask = self.binary(BinaryOp::Lt, all, count)?;
        self.lowering.packed.masks.insert(key, mask);
        Ok(mask)
    }

    /// `x` with its unspecified rows replaced by a number.
    pub fn fill_rest(&mut self, x: ValueId, rows: &PackedRows, value: Scalar) -> EmitResult {
        let mask = self.emit_mask(&rows.length, &self.extent(x, rows.axis))?;
        let mask = self.mask_along(mask, x, rows.axis)?;
        let dtype = self.dtype(x);
        let value = self.full(value, dtype, vec![])?;
        self.emit_plain("fill_rest", Op::Select, &[mask, x, value], None).map(|r| r[0])
    }

    /// An integer without axes that is 0, or an error of the run if `violated` holds.
    pub fn emit_check(&mut self, violated: ValueId) -> EmitResult {
        let index = self.cast(violated, DType::I64)?;
        let zero = self.full(Scalar::Int(0), DType::I64, vec![1.into()])?;
        self.emit("check", Op::Take { axis: 0 }, &[zero, index])
    }

    /// `x` with `zero` added, a value without axes of [`Self::emit_check`], so that the check is part of it.
    pub fn add_check(&mut self, x: ValueId, zero: Option<ValueId>) -> EmitResult {
        let Some(zero) = zero else { return Ok(x) };
        let zero = self.cast(zero, self.dtype(x))?;
        self.binary(BinaryOp::Add, x, zero)
    }

    /// Whether a size is at most another for all sizes of a run. Neither depends on data.
    pub fn is_at_most(&self, size: &Dim, limit: &Dim) -> bool {
        self.lowering.symbols.data.provably_at_most(size, limit)
    }

    /// Says that `count`, an integer without axes that is at most `bound`, is the declared number of rows `length`. A symbol
    /// that has no value yet gets it. Returns a check ([`Self::emit_check`]) of a length that is known otherwise.
    pub fn bind_length(&mut self, length: &Dim, count: ValueId, bound: &Dim) -> RuleResult<Option<ValueId>> {
        let data = &self.lowering.symbols.data;
        let symbol = length.as_symbol().filter(|id| data.is_data(*id) && data.normalize(length) == *length);
        let Some(id) = symbol.filter(|id| !self.lowering.packed.symbols.contains_key(id)) else {
            let expected = self.emit_size(length)?;
            let differs = self.binary(BinaryOp::Ne, count, expected)?;
            return self.emit_check(differs).map(Some);
        };
        let least = data.least(id);
        let limit = self.capacity(length)?;
        let mut value = count;
        if !self.is_at_most(bound, &limit) {
            let above = self.binary_dim(BinaryOp::Gt, count, &limit)?;
            let zero = self.emit_check(above)?;
            value = self.add_check(value, Some(zero))?;
        }
        if least > 0 {
            let below = self.binary_scalar(BinaryOp::Lt, count, Scalar::Int(least))?;
            let zero = self.emit_check(below)?;
            value = self.add_check(value, Some(zero))?;
        }
        self.lowering.packed.bind_symbol(id, value);
        Ok(None)
    }

    /// `x` with its unspecified rows, if it has any, replaced by a number.
    pub fn without_rest(&mut self, x: ValueId, value: Scalar) -> EmitResult {
        match self.lowering.packed.rows(x).cloned() {
            Some(rows) => self.fill_rest(x, &rows, value),
            None => Ok(x),
        }
    }

    /// Rows of an axis from a position on that may depend on data.
    pub fn slice_rows(&mut self, x: ValueId, axis: usize, start: &Dim, length: &Dim) -> EmitResult {
        let extent = self.extent(x, axis);
        let capacity = self.capacity(length)?;
        let fits = self.lowering.symbols.data.provably_at_most(&capacity, &extent);
        let mut shape = self.shape(x);
        if let Some(rows) = shape.get_mut(axis) {
            *rows = capacity.clone();
        }
        let first = start.as_const() == Some(0) && fits;
        let y = if first {
            let ty = TensorType::new(self.dtype(x), shape);
            let same = *self.ty(x) == ty;
            let op = if same { Op::Copy } else { Op::Slice { axis, start: 0.into(), step: 1 } };
            self.emit_plain("rows", op, &[x], Some(&[ty]))?[0]
        } else {
            let first = self.emit_size(start)?;
            let all = self.iota(capacity, 0, 1, DType::I64)?;
            let index = self.binary(BinaryOp::Add, all, first)?;
            let last = extent - Dim::from(1);
            let last = self.emit_dim(&last, DType::I64)?;
            let index = self.binary(BinaryOp::Min, index, last)?;
            self.emit_plain("rows", Op::Take { axis }, &[x, index], None)?[0]
        };
        match self.lowering.packed.rows(x).filter(|rows| rows.axis != axis).cloned() {
            None => self.set_packed(y, axis, length),
            Some(_) if self.lowering.symbols.data.depends_on_data(length) => {
                return self.refuse_packed("two axes of a value depend on data", length);
            }
            Some(rows) => self.lowering.packed.set(y, rows),
        }
        Ok(y)
    }
}
