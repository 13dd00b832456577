//! The dtype handling that PyTorch does implicitly, and groups by name. What rules emit is [`symmc_import::emit`]'s.

use symmc_import::{Emit, RuleCall};
use symmc_ir::{BinaryOp, Builder, DType, Def, GroupId, Op, ValueId};

use crate::call::{Call, Operand};
use crate::dtype::{self, Weight};
use crate::error::ImportError;
use crate::lower::{Emitted, Lowered, Stop};
use crate::ratios;
use crate::shards::RankPiece;

impl RuleCall for Call<'_, '_> {
    type Error = ImportError;

    fn finish(&mut self, value: ValueId) -> Lowered {
        self.done(value)
    }
}

impl Emit for Call<'_, '_> {
    type Error = ImportError;

    fn builder(&self) -> &Builder {
        &self.lowering.builder
    }

    fn builder_mut(&mut self) -> &mut Builder {
        &mut self.lowering.builder
    }

    fn label(&self) -> &str {
        &self.label
    }
}

impl Call<'_, '_> {
    /// `x`, as the default float dtype if it holds integers or bools.
    pub fn floating(&mut self, x: ValueId) -> Emitted {
        if self.dtype(x).is_float() { Ok(x) } else { self.cast(x, dtype::DEFAULT_FLOAT) }
    }

    fn weight(&self, o: &Operand) -> (Weight, DType) {
        match o {
            // It stands where a number stood.
            Operand::Tensor(v) if self.lowering.by_rank.values().any(|n| n == v) => {
                let float = self.dtype(*v).is_float();
                (Weight::Scalar, if float { dtype::DEFAULT_FLOAT } else { DType::I64 })
            }
            Operand::Tensor(v) => {
                (if self.rank(*v) == 0 { Weight::NoAxes } else { Weight::Tensor }, self.dtype(*v))
            }
            Operand::Scalar(s) => (Weight::Scalar, dtype::of_scalar(*s)),
            Operand::Dim(_) => (Weight::Scalar, DType::I64),
            Operand::Ratio(_) => (Weight::Scalar, dtype::DEFAULT_FLOAT),
        }
    }

    /// PyTorch's common dtype of these operands.
    pub fn common(&self, operands: &[&Operand]) -> DType {
        let weights: Vec<_> = operands.iter().map(|o| self.weight(o)).collect();
        dtype::result_type(&weights).unwrap_or(dtype::DEFAULT_FLOAT)
    }

    /// An operand as a tensor of this dtype; a number becomes a tensor without axes.
    pub fn as_tensor(&mut self, o: &Operand, dtype: DType) -> Emitted {
        match o {
            Operand::Tensor(v) => self.cast(*v, dtype),
            Operand::Scalar(s) => self.full(*s, dtype, vec![]),
            Operand::Dim(d) => self.dim_tensor(d, dtype),
            Operand::Ratio(text) => {
                let value = ratios::value(self, text)?;
                self.cast(value, dtype)
            }
        }
    }

    /// An operand of a composite that is computed in a wider dtype than that of the op: a tensor takes the dtype of the op first.
    pub fn widened(&mut self, o: Operand, dtype: DType, wide: DType) -> Lowered<Operand> {
        Ok(match o {
            Operand::Tensor(v) => {
                let v = self.cast(v, dtype)?;
                Operand::Tensor(self.cast(v, wide)?)
            }
            other => other,
        })
    }

    /// Two operands of any kind, of which at least one is a tensor, after conversion to `dtype`.
    pub fn apply(&mut self, op: BinaryOp, a: &Operand, b: &Operand, dtype: DType) -> Emitted {
        match (a, b) {
            (Operand::Tensor(x), Operand::Scalar(s)) => {
                let x = self.cast(*x, dtype)?;
                self.with_scalar(op, x, *s)
            }
            (Operand::Scalar(s), Operand::Tensor(x)) => {
                let x = self.cast(*x, dtype)?;
                self.scalar_with(op, *s, x)
            }
            _ => {
                let x = self.as_tensor(a, dtype)?;
                let y = self.as_tensor(b, dtype)?;
                self.binary(op, x, y)
            }
        }
    }

    /// The rows of an axis that a rank takes: a view, in programs with ops that write. `positions` are those of the ranks if these are
    /// equal pieces.
    pub fn part(
        &mut self,
        x: ValueId,
        axis: usize,
        index: ValueId,
        positions: Option<Vec<usize>>,
    ) -> Emitted {
        let y = self.emit("take", Op::Take { axis }, &[x, index])?;
        if let Def::Node(node, _) = self.lowering.builder.graph().values[y].def {
            self.lowering.parts.insert(node);
            self.lowering.rank_pieces.extend(positions.map(|positions| RankPiece { node, axis, positions }));
        }
        Ok(y)
    }

    /// A group of the program. Fails if the call names none, or not by a string.
    pub fn group(&self) -> Lowered<GroupId> {
        let group = match self.opt_string("group_name") {
            Ok(None) => self.opt_string("group"),
            found => found,
        };
        let name = match group {
            Ok(Some(name)) => name,
            Ok(None) => return Err(Stop::Broken("expected the name of a group, found none".into())),
            Err(Stop::Broken(m)) => return Err(Stop::Broken(format!("the group must be a name: {m}"))),
            Err(e) => return Err(e),
        };
        self.lowering
            .groups
            .get(name)
            .copied()
            .ok_or_else(|| Stop::Broken(format!("expected a known group, found `{name}`")))
    }
}
