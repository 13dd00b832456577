//! Values with a number of elements along an axis that data determines: results of `NonZero`, `Compress` and `Unique`.
//!
//! In the graph such a value has as many elements as there can be. Those of the program come first, and what follows them is
//! unspecified. The rules of [`ALLOWED`] read no extents of such an axis. Around the nodes that they emit, this module keeps the
//! meaning: it notes the axis of the results, replaces unspecified elements of indices and where a node combines elements, and
//! leaves nodes opaque for which it knows neither. Operators with other rules, and those that run graphs, stay opaque.

use symmc_import::{Emit, has_word, unsupported, unsupported_if};
use symmc_ir::{
    BinaryOp, DType, Dim, FloatAttribute, Op, OperandAxis, OperandUse, ReductionKind, ResultAxis, Scalar,
    TensorType, ValueId,
};

use crate::call::OpCall;
use crate::lower::{CountedAxis, EmitResult, ImportLowering, RuleResult};
use crate::proto;
use crate::scope::NameBinding;

/// The operators whose operands may have such an axis.
const ALLOWED: &str = "Identity Cast Abs Neg Exp Log Sqrt Reciprocal Relu LeakyRelu Sigmoid Tanh Erf Gelu Floor Ceil Round Sign \
     Not Sin Cos Add Sub Mul Div Pow Mod Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Where Transpose \
     Unsqueeze Squeeze Gather GatherND ScatterND MatMul ReduceSum ReduceMax ReduceMin ReduceProd ReduceMean \
     ReduceL1 ReduceL2 ReduceSumSquare Concat Clip Min Max NonZero";

impl ImportLowering<'_> {
    /// Fails as opaque if an operand of a node has an axis whose number of elements is data.
    pub fn check_no_counted_operands(&self, node: &proto::NodeProto) -> RuleResult {
        let is_counted = |name: &String| match self.find_binding(name) {
            Some((.., NameBinding::Value(value))) => self.counted.contains_key(&value),
            _ => false,
        };
        match node.input.iter().find(|name| is_counted(name)) {
            Some(name) => unsupported!("`{name}` has a number of elements that depends on data"),
            None => Ok(()),
        }
    }
}

impl OpCall<'_, '_> {
    pub fn counted_axis(&self, value: ValueId) -> Option<CountedAxis> {
        if self.lowering.scratch { None } else { self.lowering.counted.get(&value).copied() }
    }

    pub fn set_counted(&mut self, value: ValueId, counted: CountedAxis) {
        self.lowering.counted.insert(value, counted);
    }

    /// Fails as opaque if an operand has an axis whose number of elements is data, and the operator is not allowed to.
    pub fn check_counted_operands(&mut self) -> RuleResult {
        if self.lowering.counted.is_empty() || has_word(ALLOWED, &self.node.op_type) {
            return Ok(());
        }
        self.lowering.check_no_counted_operands(self.node)
    }

    /// Emits a node that may have operands with such an axis. `None` if no operand has one.
    pub fn emit_counted(
        &mut self,
        hint: &str,
        op: &Op,
        inputs: &[ValueId],
        types: Option<&[TensorType]>,
    ) -> RuleResult<Option<Vec<ValueId>>> {
        if self.lowering.counted.is_empty() || inputs.iter().all(|v| self.counted_axis(*v).is_none()) {
            return Ok(None);
        }
        unsupported_if!(op.group().is_some(), "an operand has a number of elements that depends on data");
        if let Op::IndexPut { axis, accumulate } = op {
            return self.put_counted(*axis, *accumulate, inputs).map(|y| Some(vec![y]));
        }
        if let (Op::Reduce { op: kind, axes, keep }, [x]) = (op, inputs)
            && let Some(counted) = self.counted_axis(*x).filter(|counted| axes.contains(&counted.axis))
        {
            return self.reduce_counted(*kind, axes, *keep, *x, counted).map(|y| Some(vec![y]));
        }
        self.emit_aligned(hint, op, inputs, types).map(Some)
    }

    /// A node that computes an element of its results from the same element of the counted axes.
    fn emit_aligned(
        &mut self,
        hint: &str,
        op: &Op,
        inputs: &[ValueId],
        types: Option<&[TensorType]>,
    ) -> RuleResult<Vec<ValueId>> {
        let (results, axes) = self.typed_axes(op, inputs, types)?;
        let refuse =
            || unsupported!("`{}` of a number of elements that depends on data", symmc_ir::text::op_name(op));
        let mut of_results: Option<CountedAxis> = None;
        let mut given = inputs.to_vec();
        for (operand, &value) in inputs.iter().enumerate() {
            let Some(counted) = self.counted_axis(value) else { continue };
            let axis = match axes.operands.get(operand).and_then(|axes| axes.get(counted.axis)) {
                Some(OperandAxis::Aligned(axis)) if axes.results.get(*axis) != Some(&ResultAxis::Joint) => {
                    *axis
                }
                Some(OperandAxis::Outer(axis))
                    if results.first().and_then(|ty| ty.shape.get(*axis))
                        == Some(&self.extent(value, counted.axis)) =>
                {
                    *axis
                }
                _ => return refuse(),
            };
            let of_result = CountedAxis { axis, count: counted.count };
            if of_results.is_some_and(|other| other != of_result) {
                return refuse();
            }
            of_results = Some(of_result);
            if matches!(op.operand_use(operand), OperandUse::Index { .. }) {
                given[operand] = self.fill_uncounted(value, counted, Scalar::Int(0))?;
            }
        }
        let Some(counted) = of_results else { return refuse() };
        for (operand, &value) in inputs.iter().enumerate() {
            let axis = axes.operand_axis(operand, counted.axis);
            let is_fixed = self.counted_axis(value).is_none()
                && axis.is_some_and(|axis| self.extent(value, axis).as_const() != Some(1));
            if is_fixed {
                return refuse();
            }
        }
        let emitted = self.emit_plain(hint, op.clone(), &given, types)?;
        emitted.iter().for_each(|value| self.set_counted(*value, counted));
        Ok(emitted)
    }

    /// A reduction over elements whose number depends on data.
    fn reduce_counted(
        &mut self,
        kind: ReductionKind,
        axes: &[usize],
        keep: bool,
        x: ValueId,
        counted: CountedAxis,
    ) -> EmitResult {
        let dtype = self.dtype(x);
        let neutral = match kind {
            ReductionKind::Sum | ReductionKind::Any | ReductionKind::Mean => Scalar::Int(0),
            ReductionKind::Prod | ReductionKind::All => Scalar::Int(1),
            ReductionKind::Max => extreme(dtype, false),
            ReductionKind::Min => extreme(dtype, true),
        };
        let filled = self.fill_uncounted(x, counted, neutral)?;
        if kind != ReductionKind::Mean {
            return self.reduce(kind, filled, axes.to_vec(), keep);
        }
        let wide = self.cast(filled, dtype.compute_dtype())?;
        let sum = self.reduce(ReductionKind::Sum, wide, axes.to_vec(), keep)?;
        let others = axes.iter().filter(|axis| **axis != counted.axis).map(|axis| self.extent(x, *axis));
        let others = others.fold(Dim::from(1), |product, extent| product * extent);
        let number = self.binary_dim(BinaryOp::Mul, counted.count, &others)?;
        let number = self.cast(number, dtype.compute_dtype())?;
        let mean = self.binary(BinaryOp::Div, sum, number)?;
        self.cast(mean, dtype)
    }

    /// Elements that are stored by index. Those that do not count go to one more row, which is cut off.
    fn put_counted(&mut self, axis: usize, accumulate: bool, inputs: &[ValueId]) -> EmitResult {
        let &[base, source, first, ..] = inputs else { return unsupported!("an index is missing") };
        let counted = self.counted_axis(first);
        let is_like_first = |value: &ValueId| self.counted_axis(*value) == counted;
        unsupported_if!(
            counted.is_none()
                || self.counted_axis(base).is_some()
                || !inputs[2..].iter().all(is_like_first)
                || self.counted_axis(source).is_some_and(|of_source| Some(of_source) != counted)
                || self.counted_axis(source).is_none() && self.rank(source) > 0
                || axis > 0
                || inputs[2..].iter().any(|index| self.rank(*index) != 1),
            "elements are stored whose number depends on data, but not that of the indices"
        );
        let Some(counted) = counted else { return unsupported!("an index is missing") };
        let extent = self.extent(base, axis);
        let mut ty = self.ty(base).clone();
        ty.shape[axis] = extent.clone() + Dim::from(1);
        let low = vec![Dim::from(0); self.rank(base)];
        let value = Scalar::Int(0).convert_to(ty.dtype);
        let mut operands = inputs.to_vec();
        operands[0] = self.emit_plain("wider", Op::Pad { low, value }, &[base], Some(&[ty]))?[0];
        let end = self.emit_dim(&extent, self.dtype(first))?;
        let mask = self.counted_mask(first, counted)?;
        operands[2] = self.emit_plain("index", Op::Select, &[mask, first, end], None)?[0];
        for operand in &mut operands[3..] {
            *operand = self.fill_uncounted(*operand, counted, Scalar::Int(0))?;
        }
        let y = self.emit_plain("put", Op::IndexPut { axis, accumulate }, &operands, None)?[0];
        let ty = self.ty(base).clone();
        let op = Op::Slice { axis, start: 0.into(), step: 1 };
        Ok(self.emit_plain("kept", op, &[y], Some(&[ty]))?[0])
    }

    /// A bool for each element of the axis, with as many axes of extent 1 after it as `x` has.
    fn counted_mask(&mut self, x: ValueId, counted: CountedAxis) -> EmitResult {
        let n = self.extent(x, counted.axis);
        let all = self.iota(n, 0, 1, DType::I64)?;
        let mask = self.binary(BinaryOp::Lt, all, counted.count)?;
        self.mask_along(mask, x, counted.axis)
    }

    /// `x` with the elements that do not count, if there are any, replaced by a number.
    pub fn without_uncounted(&mut self, x: ValueId, value: Scalar) -> EmitResult {
        match self.counted_axis(x) {
            Some(counted) => self.fill_uncounted(x, counted, value),
            None => Ok(x),
        }
    }

    /// `x` with the elements of a counted axis that do not count replaced by a number.
    fn fill_uncounted(&mut self, x: ValueId, counted: CountedAxis, value: Scalar) -> EmitResult {
        let mask = self.counted_mask(x, counted)?;
        let value = self.full(value, self.dtype(x), vec![])?;
        self.emit_plain("fill", Op::Select, &[mask, x, value], None).map(|results| results[0])
    }
}

/// The largest or the smallest value of a dtype.
fn extreme(dtype: DType, largest: bool) -> Scalar {
    if dtype.is_float() {
        return Scalar::Float(FloatAttribute(if largest { f64::INFINITY } else { f64::NEG_INFINITY }));
    }
    match dtype {
        DType::Bool => Scalar::Bool(largest),
        _ => Scalar::Int(if largest { i64::MAX } else { i64::MIN }).saturate_to(dtype),
    }
}
