//! The implicit dtype conversions of PyTorch, and groups by name. The other emitting methods are those of
//! [`symmc_import::emit`].

use symmc_import::{Compositions, Emit, RuleCall, invalid};
use symmc_ir::{BinaryOp, DType, GraphBuilder, GroupId, Op, TensorType, ValueDef, ValueId};

use crate::call::{CallOperand, OpCall};
use crate::dtype::{self, PromotionPriority};
use crate::error::ImportError;
use crate::float_expr;
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::packed;
use crate::shards::RankShard;

impl RuleCall for OpCall<'_, '_> {
    fn set_result(&mut self, result: usize, value: ValueId) {
        if result >= self.result_values.len() {
            self.result_values.resize(result + 1, None);
        }
        if let Some(slot) = self.result_values.get_mut(result) {
            *slot = Some(value);
        }
    }

    fn compositions_mut(&mut self) -> &mut Compositions {
        &mut self.lowering.compositions
    }
}

impl Emit for OpCall<'_, '_> {
    type Error = ImportError;

    fn builder(&self) -> &GraphBuilder {
        &self.lowering.builder
    }

    fn builder_mut(&mut self) -> &mut GraphBuilder {
        &mut self.lowering.builder
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn guard(&self) -> Option<ValueId> {
        self.lowering.guard
    }

    fn emit_adapted(
        &mut self,
        hint: &str,
        op: &Op,
        inputs: &[ValueId],
        types: Option<&[TensorType]>,
    ) -> RuleResult<Option<Vec<ValueId>>> {
        packed::emit_packed(self, hint, op, inputs, types)
    }
}

impl OpCall<'_, '_> {
    /// `x`, converted to the default float dtype if it holds integers or bools.
    pub fn cast_to_float(&mut self, x: ValueId) -> EmitResult {
        if self.dtype(x).is_float() { Ok(x) } else { self.cast(x, dtype::DEFAULT_FLOAT) }
    }

    fn promotion_priority(&self, o: &CallOperand) -> (PromotionPriority, DType) {
        match o {
            // The input of a number that differs between ranks promotes like a number.
            CallOperand::Tensor(v) if self.lowering.per_rank_inputs.values().any(|n| n == v) => {
                let float = self.dtype(*v).is_float();
                (PromotionPriority::Scalar, if float { dtype::DEFAULT_FLOAT } else { DType::I64 })
            }
            CallOperand::Tensor(v) if self.lowering.packed.is_count(*v) => {
                (PromotionPriority::Scalar, DType::I64)
            }
            CallOperand::Tensor(v) => (
                if self.rank(*v) == 0 { PromotionPriority::NoAxes } else { PromotionPriority::Tensor },
                self.dtype(*v),
            ),
            CallOperand::Scalar(s) => (PromotionPriority::Scalar, dtype::scalar_dtype(*s)),
            CallOperand::Dim(_) => (PromotionPriority::Scalar, DType::I64),
            CallOperand::FloatExpr(_) => (PromotionPriority::Scalar, dtype::DEFAULT_FLOAT),
        }
    }

    /// PyTorch's common dtype of these operands.
    pub fn common_dtype(&self, operands: &[&CallOperand]) -> DType {
        let weights: Vec<_> = operands.iter().map(|o| self.promotion_priority(o)).collect();
        dtype::result_type(&weights).unwrap_or(dtype::DEFAULT_FLOAT)
    }

    /// An operand as a tensor of this dtype. A number becomes a tensor without axes.
    pub fn as_tensor(&mut self, o: &CallOperand, dtype: DType) -> EmitResult {
        match o {
            CallOperand::Tensor(v) => self.cast(*v, dtype),
            CallOperand::Scalar(s) => self.full(*s, dtype, vec![]),
            CallOperand::Dim(d) => self.emit_dim(d, dtype),
            CallOperand::FloatExpr(text) => {
                let value = float_expr::emit_float_expr(self, text)?;
                self.cast(value, dtype)
            }
        }
    }

    /// A binary op of two operands after conversion to `dtype`. At least one of them is a tensor.
    pub fn emit_binary(
        &mut self,
        op: BinaryOp,
        a: &CallOperand,
        b: &CallOperand,
        dtype: DType,
    ) -> EmitResult {
        match (a, b) {
            (CallOperand::Tensor(x), CallOperand::Scalar(s)) => {
                let x = self.cast(*x, dtype)?;
                self.binary_scalar(op, x, *s)
            }
            (CallOperand::Scalar(s), CallOperand::Tensor(x)) => {
                let x = self.cast(*x, dtype)?;
                self.scalar_binary(op, *s, x)
            }
            _ => {
                let x = self.as_tensor(a, dtype)?;
                let y = self.as_tensor(b, dtype)?;
                self.binary(op, x, y)
            }
        }
    }

    /// The rows of an axis that a rank takes. In programs with ops that write, the result is a view.
    /// `positions` are those of the ranks if their slices are equal pieces of the axis.
    pub fn take_rank_slice(
        &mut self,
        x: ValueId,
        axis: usize,
        index: ValueId,
        positions: Option<Vec<usize>>,
    ) -> EmitResult {
        let y = self.emit("take", Op::Take { axis }, &[x, index])?;
        if let ValueDef::Node(node, _) = self.lowering.builder.graph().values[y].def {
            self.lowering.rank_slice_nodes.insert(node);
            self.lowering.rank_shards.extend(positions.map(|positions| RankShard { node, axis, positions }));
        }
        Ok(y)
    }

    /// The group that the call names. Fails if the call does not name one with a string, or the group is
    /// unknown.
    pub fn resolve_group(&self) -> RuleResult<GroupId> {
        let group = match self.opt_string("group_name") {
            Ok(None) => self.opt_string("group"),
            found => found,
        };
        let name = match group {
            Ok(Some(name)) => name,
            Ok(None) => return invalid!("expected the name of a group, found none"),
            Err(RuleFailure::Invalid(m)) => return invalid!("the group must be a name: {m}"),
            Err(e) => return Err(e),
        };
        self.lowering
            .groups
            .get(name)
            .copied()
            .ok_or_else(|| RuleFailure::Invalid(format!("expected a known group, found `{name}`")))
    }
}
