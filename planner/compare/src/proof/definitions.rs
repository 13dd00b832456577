//! Fused ops as programs of simpler ops.
//!
//! A definition has the operands and results of its op. Tests compare both in the interpreter.

use symmc_ir::{
    BinaryOp, Dim, FloatAttribute, Graph, GraphOutput, InputKind, Op, OutputKind, ReductionKind, Scalar,
    TensorType,
};
use symmc_ir::{DType, UnaryOp, ValueId};

use super::equations::EquationClass;

/// The program of a fused op for operands and results of these types.
pub struct Definition {
    pub graph: Graph,
    pub class: EquationClass,
}

pub fn define(op: &Op, operands: &[TensorType], results: &[TensorType]) -> Option<Definition> {
    let mut writer = DefinitionWriter { graph: Graph::new("definition") };
    let inputs: Vec<ValueId> = operands.iter().map(|ty| writer.input(ty)).collect();
    let (outputs, class) = match op {
        Op::Permuted { op, perm } => (writer.permuted(op, perm, &inputs, results), EquationClass::Bits),
        Op::RotaryEmbedding { width, interleaved } => {
            (vec![writer.rotary(*width, *interleaved, &inputs)?], EquationClass::Bits)
        }
        Op::RmsNorm { axes, eps, round_first } => {
            (vec![writer.rms_norm(*axes, eps.0, *round_first, &inputs)], EquationClass::Rounding)
        }
        Op::Softmax { axis, log } => (vec![writer.softmax(*axis, *log, inputs[0])], EquationClass::Rounding),
        Op::Unary(UnaryOp::Silu) if operands[0].dtype.is_narrow_float() => {
            let wide = writer.cast(inputs[0], DType::F32);
            let wide = writer.unary(UnaryOp::Silu, wide);
            (vec![writer.cast(wide, operands[0].dtype)], EquationClass::Rounding)
        }
        _ => return None,
    };
    let mut graph = writer.graph;
    graph.outputs =
        outputs.into_iter().map(|value| GraphOutput { value, kind: OutputKind::Returned }).collect();
    Some(Definition { graph, class })
}

struct DefinitionWriter {
    graph: Graph,
}

impl DefinitionWriter {
    fn input(&mut self, ty: &TensorType) -> ValueId {
        let name = format!("v{}", self.graph.values.len());
        self.graph.add_input(InputKind::Argument, name, "", ty.clone(), None)
    }

    fn shape(&self, x: ValueId) -> Vec<Dim> {
        self.graph.ty(x).shape.clone()
    }

    fn dtype(&self, x: ValueId) -> DType {
        self.graph.ty(x).dtype
    }

    fn add(&mut self, op: Op, inputs: &[ValueId], dtype: DType, shape: Vec<Dim>) -> ValueId {
        let name = format!("v{}", self.graph.values.len());
        let n = self.graph.add_node(op, inputs.to_vec(), vec![(name, TensorType::new(dtype, shape))]);
        self.graph.nodes[n].outputs[0]
    }

    fn cast(&mut self, x: ValueId, dtype: DType) -> ValueId {
        if self.dtype(x) == dtype { x } else { self.add(Op::Cast, &[x], dtype, self.shape(x)) }
    }

    fn unary(&mut self, op: UnaryOp, x: ValueId) -> ValueId {
        self.add(Op::Unary(op), &[x], self.dtype(x), self.shape(x))
    }

    /// An op on two operands, of which the second broadcasts to the first.
    fn binary(&mut self, op: BinaryOp, x: ValueId, y: ValueId) -> ValueId {
        self.add(Op::Binary(op), &[x, y], self.dtype(x), self.shape(x))
    }

    fn reduce(&mut self, op: ReductionKind, axes: Vec<usize>, x: ValueId) -> ValueId {
        let mut shape = self.shape(x);
        axes.iter().for_each(|&axis| shape[axis] = Dim::from(1));
        self.add(Op::Reduce { op, axes, keep: true }, &[x], self.dtype(x), shape)
    }

    fn slice(&mut self, x: ValueId, axis: usize, start: usize, count: usize) -> ValueId {
        let mut shape = self.shape(x);
        shape[axis] = Dim::from(count as i64);
        let op = Op::Slice { axis, start: Dim::from(start as i64), step: 1 };
        self.add(op, &[x], self.dtype(x), shape)
    }

    fn concat(&mut self, axis: usize, parts: &[ValueId]) -> ValueId {
        let mut shape = self.shape(parts[0]);
        shape[axis] = parts.iter().fold(Dim::from(0), |sum, &x| sum + self.shape(x)[axis].clone());
        self.add(Op::Concat { axis }, parts, self.dtype(parts[0]), shape)
    }

    fn permuted(
        &mut self,
        op: &Op,
        perm: &[usize],
        inputs: &[ValueId],
        results: &[TensorType],
    ) -> Vec<ValueId> {
        let inner: Vec<(String, TensorType)> = results
            .iter()
            .enumerate()
            .map(|(k, ty)| {
                let mut ty = ty.clone();
                if k < op.permuted_results() {
                    let stored = ty.shape.clone();
                    perm.iter().zip(stored).for_each(|(&axis, extent)| ty.shape[axis] = extent);
                }
                (format!("r{k}"), ty)
            })
            .collect();
        let n = self.graph.add_node(op.clone(), inputs.to_vec(), inner);
        let outputs = self.graph.nodes[n].outputs.clone();
        let permute = |(k, x): (usize, ValueId)| {
            if k >= op.permuted_results() {
                return x;
            }
            let TensorType { dtype, shape } = results[k].clone();
            self.add(Op::Permute { perm: perm.to_vec() }, &[x], dtype, shape)
        };
        outputs.into_iter().enumerate().map(permute).collect()
    }

    fn rms_norm(&mut self, axes: usize, eps: f64, round_first: bool, inputs: &[ValueId]) -> ValueId {
        let dtype = self.dtype(inputs[0]);
        let wide_type = dtype.compute_dtype();
        let wide = self.cast(inputs[0], wide_type);
        let rank = self.shape(wide).len();
        let square = self.binary(BinaryOp::Mul, wide, wide);
        let mean = self.reduce(ReductionKind::Mean, (rank - axes..rank).collect(), square);
        let add = Op::BinaryScalar {
            op: BinaryOp::Add,
            scalar: Scalar::Float(FloatAttribute(eps)),
            scalar_left: false,
        };
        let sum = self.add(add, &[mean], wide_type, self.shape(mean));
        let scale = self.unary(UnaryOp::Rsqrt, sum);
        let normed = self.binary(BinaryOp::Mul, wide, scale);
        let Some(&weight) = inputs.get(1) else { return self.cast(normed, dtype) };
        if round_first {
            let normed = self.cast(normed, dtype);
            return self.binary(BinaryOp::Mul, normed, weight);
        }
        let weight = self.cast(weight, wide_type);
        let product = self.binary(BinaryOp::Mul, normed, weight);
        self.cast(product, dtype)
    }

    fn softmax(&mut self, axis: usize, log: bool, x: ValueId) -> ValueId {
        let dtype = self.dtype(x);
        let wide = self.cast(x, dtype.compute_dtype());
        let max = self.reduce(ReductionKind::Max, vec![axis], wide);
        let shifted = self.binary(BinaryOp::Sub, wide, max);
        let exp = self.unary(UnaryOp::Exp, shifted);
        let sum = self.reduce(ReductionKind::Sum, vec![axis], exp);
        let out = if log {
            let sum = self.unary(UnaryOp::Log, sum);
            self.binary(BinaryOp::Sub, shifted, sum)
        } else {
            self.binary(BinaryOp::Div, exp, sum)
        };
        self.cast(out, dtype)
    }

    fn rotary(&mut self, width: usize, interleaved: bool, inputs: &[ValueId]) -> Option<ValueId> {
        let &[x, cos, sin] = inputs else { return None };
        let dtype = self.dtype(x);
        let wide = self.cast(x, self.dtype(cos));
        let axis = self.shape(x).len() - 1;
        let extent = usize::try_from(self.shape(x)[axis].as_const()?).ok()?;
        let [a, b] = self.pair_parts(wide, width, interleaved)?;
        let [cos_a, cos_b] = self.pair_parts(cos, width, interleaved)?;
        let [sin_a, sin_b] = self.pair_parts(sin, width, interleaved)?;
        let products = [(a, cos_a), (b, sin_a), (b, cos_b), (a, sin_b)];
        let [ac, bs, bc, a_s] = products.map(|(x, y)| self.binary(BinaryOp::Mul, x, y));
        let first = self.binary(BinaryOp::Sub, ac, bs);
        let second = self.binary(BinaryOp::Add, bc, a_s);
        let mut rotated = if interleaved {
            let pairs = self.concat(axis + 1, &[first, second]);
            let mut shape = self.shape(x);
            shape[axis] = Dim::from(width as i64);
            self.add(Op::Reshape, &[pairs], self.dtype(pairs), shape)
        } else {
            self.concat(axis, &[first, second])
        };
        if extent > width {
            let others = self.slice(wide, axis, width, extent - width);
            rotated = self.concat(axis, &[rotated, others]);
        }
        Some(self.cast(rotated, dtype))
    }

    /// The first and the second elements of all pairs. If pairs are neighbours, the results have another axis of
    /// extent 1. Numbers that both elements of a pair share are returned twice.
    fn pair_parts(&mut self, x: ValueId, width: usize, interleaved: bool) -> Option<[ValueId; 2]> {
        let mut shape = self.shape(x);
        let axis = shape.len() - 1;
        let is_shared = shape[axis].as_const() == Some(width as i64 / 2) && width > 0;
        let dtype = self.dtype(x);
        if !interleaved {
            let half = width / 2;
            let both = |this: &mut Self| [0, half].map(|start| this.slice(x, axis, start, half));
            return Some(if is_shared { [x, x] } else { both(self) });
        }
        shape[axis] = Dim::from(width as i64 / 2);
        if is_shared {
            shape.push(Dim::from(1));
            let numbers = self.add(Op::Reshape, &[x], dtype, shape);
            return Some([numbers, numbers]);
        }
        let rotated = self.slice(x, axis, 0, width);
        shape.push(Dim::from(2));
        let pairs = self.add(Op::Reshape, &[rotated], dtype, shape);
        Some([0, 1].map(|start| self.slice(pairs, axis + 1, start, 1)))
    }
}
