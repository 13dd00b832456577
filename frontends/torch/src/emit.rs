//! What rules emit: nodes with one result, with the no-ops among them left out, and the dtype and shape
//! handling that PyTorch does implicitly.

use symmc_ir::collective::Collective;
use symmc_ir::dim::check_size;
use symmc_ir::{
    ArgOp, BinaryOp, CollectiveKind, DType, Dim, Float, GroupId, Op, Reduction, Scalar, Type, UnaryOp,
    ValueId,
};

use crate::call::{Call, Operand};
use crate::dtype::{self, Weight};
use crate::lower::{Lowered, Stop};

impl Call<'_, '_> {
    pub fn ty(&self, v: ValueId) -> &Type {
        self.lowering.builder.graph().ty(v)
    }

    pub fn dtype(&self, v: ValueId) -> DType {
        self.ty(v).dtype
    }

    pub fn shape(&self, v: ValueId) -> Vec<Dim> {
        self.ty(v).shape.clone()
    }

    pub fn rank(&self, v: ValueId) -> usize {
        self.ty(v).rank()
    }

    /// Bounds of a dim over the program's symbols.
    pub fn bounds(&self, d: &Dim) -> (i64, i64) {
        d.bounds(&self.lowering.symbols.table)
    }

    /// A node whose op fixes its result types.
    pub fn emit_all(&mut self, hint: &str, op: Op, inputs: &[ValueId]) -> Lowered<Vec<ValueId>> {
        let name = format!("{}.{hint}", self.label);
        let results = self.lowering.builder.node(&name, op, inputs)?;
        for &r in &results {
            check_size(&self.ty(r).shape).map_err(Stop::Broken)?;
        }
        Ok(results)
    }

    pub fn emit(&mut self, hint: &str, op: Op, inputs: &[ValueId]) -> Lowered<ValueId> {
        Ok(self.emit_all(hint, op, inputs)?[0])
    }

    /// A node with declared result types.
    pub fn emit_as(&mut self, hint: &str, op: Op, inputs: &[ValueId], ty: Type) -> Lowered<ValueId> {
        check_size(&ty.shape).map_err(Stop::Broken)?;
        let name = format!("{}.{hint}", self.label);
        Ok(self.lowering.builder.op_as(&name, op, inputs, ty)?)
    }

    // Dtypes.

    pub fn cast(&mut self, x: ValueId, dtype: DType) -> Lowered<ValueId> {
        if self.dtype(x) == dtype {
            return Ok(x);
        }
        let ty = Type::new(dtype, self.shape(x));
        self.emit_as("cast", Op::Cast, &[x], ty)
    }

    /// `x`, as the default float dtype if it holds integers or bools.
    pub fn floating(&mut self, x: ValueId) -> Lowered<ValueId> {
        if self.dtype(x).is_float() { Ok(x) } else { self.cast(x, dtype::DEFAULT_FLOAT) }
    }

    fn weight(&self, o: &Operand) -> (Weight, DType) {
        match o {
            Operand::Tensor(v) => {
                (if self.rank(*v) == 0 { Weight::NoAxes } else { Weight::Tensor }, self.dtype(*v))
            }
            Operand::Scalar(s) => (Weight::Scalar, dtype::of_scalar(*s)),
            Operand::Dim(_) => (Weight::Scalar, DType::I64),
        }
    }

    /// PyTorch's common dtype of these operands.
    pub fn common(&self, operands: &[&Operand]) -> DType {
        let weights: Vec<_> = operands.iter().map(|o| self.weight(o)).collect();
        dtype::result_type(&weights).unwrap_or(dtype::DEFAULT_FLOAT)
    }

    /// An operand as a tensor of this dtype; a number becomes a tensor without axes.
    pub fn as_tensor(&mut self, o: &Operand, dtype: DType) -> Lowered<ValueId> {
        match o {
            Operand::Tensor(v) => self.cast(*v, dtype),
            Operand::Scalar(s) => self.full(*s, dtype, vec![]),
            Operand::Dim(d) => self.dim_tensor(d, dtype),
        }
    }

    /// A tensor without axes that holds the value of a dim: an element of an iota that is one longer.
    pub fn dim_tensor(&mut self, d: &Dim, dtype: DType) -> Lowered<ValueId> {
        if let Some(i) = d.as_const() {
            return self.full(Scalar::Int(i), dtype, vec![]);
        }
        if self.bounds(d).0 < 0 {
            return Err(Stop::Opaque("an operand is a symbolic number that may be negative".into()));
        }
        let iota = self.iota(d.clone() + Dim::from(1), 0, 1, DType::I64)?;
        let one = self.slice(iota, 0, d.clone(), Dim::from(1), 1)?;
        let scalar = self.reshape(one, vec![])?;
        self.cast(scalar, dtype)
    }

    // Element-wise.

    pub fn unary(&mut self, op: UnaryOp, x: ValueId) -> Lowered<ValueId> {
        self.emit(op.name(), Op::Unary(op), &[x])
    }

    /// Two operands that have one dtype. Addition and multiplication of bools are `or` and `and`.
    pub fn binary(&mut self, op: BinaryOp, x: ValueId, y: ValueId) -> Lowered<ValueId> {
        let op = logical(op, self.dtype(x));
        self.emit(op.name(), Op::Binary(op), &[x, y])
    }

    /// `x op scalar`; the scalar takes the dtype of `x`.
    pub fn with_scalar(&mut self, op: BinaryOp, x: ValueId, s: Scalar) -> Lowered<ValueId> {
        self.scalar_op(op, x, s, false)
    }

    /// `scalar op x`; the scalar takes the dtype of `x`.
    pub fn scalar_with(&mut self, op: BinaryOp, s: Scalar, x: ValueId) -> Lowered<ValueId> {
        self.scalar_op(op, x, s, true)
    }

    fn scalar_op(&mut self, op: BinaryOp, x: ValueId, s: Scalar, scalar_left: bool) -> Lowered<ValueId> {
        let dtype = self.dtype(x);
        let op = logical(op, dtype);
        let scalar = dtype::convert(s, dtype);
        self.emit(op.name(), Op::BinaryScalar { op, scalar, scalar_left }, &[x])
    }

    /// A float of `f64` with `x`.
    pub fn with_float(&mut self, op: BinaryOp, x: ValueId, y: f64) -> Lowered<ValueId> {
        self.with_scalar(op, x, Scalar::Float(Float(y)))
    }

    /// Two operands of any kind, of which at least one is a tensor, after conversion to `dtype`.
    pub fn apply(&mut self, op: BinaryOp, a: &Operand, b: &Operand, dtype: DType) -> Lowered<ValueId> {
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

    pub fn select(&mut self, condition: ValueId, x: ValueId, y: ValueId) -> Lowered<ValueId> {
        self.emit("select", Op::Select, &[condition, x, y])
    }

    // Creation.

    pub fn full(&mut self, s: Scalar, dtype: DType, shape: Vec<Dim>) -> Lowered<ValueId> {
        self.emit_as("full", Op::Full(dtype::convert(s, dtype)), &[], Type::new(dtype, shape))
    }

    pub fn iota(&mut self, len: Dim, start: i64, step: i64, dtype: DType) -> Lowered<ValueId> {
        self.emit_as("iota", Op::Iota { start, step }, &[], Type::new(dtype, vec![len]))
    }

    /// The positions `start`, `start + step`, … as many as `len`.
    pub fn positions(&mut self, start: &Dim, step: i64, len: Dim) -> Lowered<ValueId> {
        if let Some(start) = start.as_const() {
            return self.iota(len, start, step, DType::I64);
        }
        let iota = self.iota(len, 0, step, DType::I64)?;
        let start = self.dim_tensor(start, DType::I64)?;
        self.binary(BinaryOp::Add, iota, start)
    }

    // Views.

    pub fn reshape(&mut self, x: ValueId, shape: Vec<Dim>) -> Lowered<ValueId> {
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        let ty = Type::new(self.dtype(x), shape);
        self.emit_as("reshape", Op::Reshape, &[x], ty)
    }

    pub fn permute(&mut self, x: ValueId, perm: Vec<usize>) -> Lowered<ValueId> {
        if perm.iter().copied().eq(0..self.rank(x)) {
            return Ok(x);
        }
        self.emit("permute", Op::Permute { perm }, &[x])
    }

    /// The matrix transpose: the last two axes swapped.
    pub fn transposed(&mut self, x: ValueId) -> Lowered<ValueId> {
        let mut perm: Vec<usize> = (0..self.rank(x)).collect();
        if let [.., a, b] = perm.as_mut_slice() {
            std::mem::swap(a, b);
        }
        self.permute(x, perm)
    }

    pub fn expand(&mut self, x: ValueId, shape: Vec<Dim>) -> Lowered<ValueId> {
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        let ty = Type::new(self.dtype(x), shape);
        self.emit_as("expand", Op::Expand, &[x], ty)
    }

    /// `len` elements of an axis from `start` on, `step` apart.
    pub fn slice(&mut self, x: ValueId, axis: usize, start: Dim, len: Dim, step: i64) -> Lowered<ValueId> {
        let mut shape = self.shape(x);
        if start.as_const() == Some(0) && step == 1 && shape.get(axis) == Some(&len) {
            return Ok(x);
        }
        match shape.get_mut(axis) {
            Some(d) => *d = len,
            None => {
                return Err(Stop::Broken(format!("expected an axis below {}, found {axis}", shape.len())));
            }
        }
        check_size(std::slice::from_ref(&start)).map_err(Stop::Broken)?;
        let ty = Type::new(self.dtype(x), shape);
        self.emit_as("slice", Op::Slice { axis, start, step }, &[x], ty)
    }

    pub fn unsqueeze(&mut self, x: ValueId, axis: usize) -> Lowered<ValueId> {
        let mut shape = self.shape(x);
        shape.insert(axis.min(shape.len()), Dim::from(1));
        self.reshape(x, shape)
    }

    /// `x` without an axis of extent 1.
    pub fn drop_axis(&mut self, x: ValueId, axis: usize) -> Lowered<ValueId> {
        let mut shape = self.shape(x);
        if axis < shape.len() {
            shape.remove(axis);
        }
        self.reshape(x, shape)
    }

    pub fn concat(&mut self, parts: &[ValueId], axis: usize) -> Lowered<ValueId> {
        match parts {
            [one] => Ok(*one),
            _ => self.emit("concat", Op::Concat { axis }, parts),
        }
    }

    // The rest.

    pub fn matmul(&mut self, x: ValueId, y: ValueId) -> Lowered<ValueId> {
        self.emit("matmul", Op::MatMul, &[x, y])
    }

    pub fn reduce(&mut self, op: Reduction, x: ValueId, axes: Vec<usize>, keep: bool) -> Lowered<ValueId> {
        self.emit(op.name(), Op::Reduce { op, axes, keep }, &[x])
    }

    pub fn arg_reduce(&mut self, op: ArgOp, x: ValueId, axis: usize, keep: bool) -> Lowered<ValueId> {
        self.emit(op.name(), Op::ArgReduce { op, axis, keep }, &[x])
    }

    pub fn collective(&mut self, kind: CollectiveKind, group: GroupId, x: ValueId) -> Lowered<ValueId> {
        let hint = kind.name();
        self.emit(hint, Op::Collective(Collective { kind, group, variant: None }), &[x])
    }

    /// Whether no element of an integer value can be negative, by how it is computed.
    pub fn is_non_negative(&self, v: ValueId) -> bool {
        self.non_negative(v, &mut 64)
    }

    /// `budget` bounds the number of values that are looked at.
    fn non_negative(&self, v: ValueId, budget: &mut usize) -> bool {
        let graph = self.lowering.builder.graph();
        let dtype = graph.ty(v).dtype;
        if matches!(dtype, DType::Bool | DType::U8) {
            return true;
        }
        let symmc_ir::Def::Node(node, result) = graph.values[v].def else { return false };
        if *budget == 0 {
            return false;
        }
        *budget -= 1;
        let node = &graph.nodes[node];
        let mut operand = |i: usize| node.inputs.get(i).is_some_and(|&x| self.non_negative(x, budget));
        match &node.op {
            Op::Iota { start, step } => *start >= 0 && *step >= 0,
            Op::Full(s) => s.as_f64() >= 0.0,
            Op::ArgReduce { .. } => true,
            Op::TopK { .. } | Op::Sort { .. } => result == 1 || operand(0),
            Op::Unary(UnaryOp::Abs | UnaryOp::Relu) => true,
            Op::BinaryScalar { op, scalar, scalar_left: false } => match op {
                BinaryOp::Add | BinaryOp::Mul | BinaryOp::FloorDiv => scalar.as_f64() >= 0.0 && operand(0),
                BinaryOp::Rem => scalar.as_f64() > 0.0,
                BinaryOp::Max => scalar.as_f64() >= 0.0 || operand(0),
                BinaryOp::Min => scalar.as_f64() >= 0.0 && operand(0),
                _ => false,
            },
            Op::Binary(BinaryOp::Add | BinaryOp::Mul | BinaryOp::Min | BinaryOp::FloorDiv) => {
                operand(0) && operand(1)
            }
            Op::Binary(BinaryOp::Max) => operand(0) || operand(1),
            Op::Select => operand(1) && operand(2),
            Op::Cast
            | Op::Copy
            | Op::Reshape
            | Op::Permute { .. }
            | Op::Slice { .. }
            | Op::Expand
            | Op::CumSum { .. }
            | Op::Reduce { .. }
            | Op::Take { .. }
            | Op::Index { .. }
            | Op::GatherElements { .. } => operand(0),
            Op::Concat { .. } => (0..node.inputs.len()).all(operand),
            Op::Collective(c) => matches!(c.kind, CollectiveKind::AllGather) && operand(0),
            _ => false,
        }
    }

    /// A group of the program.
    ///
    /// # Errors
    /// The call names none, or not by a string.
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

/// Arithmetic on bools as logic.
fn logical(op: BinaryOp, dtype: DType) -> BinaryOp {
    match (op, dtype) {
        (BinaryOp::Add, DType::Bool) => BinaryOp::Or,
        (BinaryOp::Mul, DType::Bool) => BinaryOp::And,
        _ => op,
    }
}
