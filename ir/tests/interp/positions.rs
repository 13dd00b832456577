//! Facts about elements agree with the interpreter: forms at every position, and ranges, for random programs
//! on integers and bools, at several sizes.
//!
//! Programs with extreme numbers check exact forms and ranges. Forms that refer to elements of other values
//! assume that integers are far from the ends of 64 bits, so only programs with small numbers check them.

use std::sync::Arc;

use symmc_ir::entity::Entity;
use symmc_ir::positions::{
    AtomKind, AxisIndex, ElementForm, ElementRef, IndexExpr, LinearExpr, MaskCondition, PositionCache,
};
use symmc_ir::{
    BinaryOp, DType, Dim, GraphBuilder, InputKind, Op, ReductionKind, Scalar, SymbolBindings, Tensor,
    TensorType, UnaryOp, ValueId, interp,
};
use symmc_support::random::SplitMix;

const EXTREME_NUMBERS: &[i64] =
    &[0, 1, -1, 2, 3, -7, 255, i32::MAX as i64, i32::MIN as i64, 1 << 60, i64::MAX, i64::MIN, i64::MIN + 1];
const SMALL_NUMBERS: &[i64] = &[0, 1, -1, 2, 3, -3, 5, -7];
const INTEGERS: &[DType] = &[DType::I64, DType::I64, DType::I32, DType::U8];

struct ProgramWriter {
    random: SplitMix,
    builder: GraphBuilder,
    numbers: &'static [i64],
    /// The extents of all programs: rows, columns and 1.
    extents: [Dim; 3],
    values: Vec<ValueId>,
}

impl ProgramWriter {
    fn number(&mut self) -> i64 {
        self.random.pick(self.numbers)
    }

    fn value(&mut self) -> ValueId {
        self.random.pick(&self.values)
    }

    fn shape(&mut self) -> Vec<Dim> {
        let [rows, columns, unit] = self.extents.clone();
        self.random.pick(&[
            vec![rows.clone(), columns.clone()],
            vec![columns.clone()],
            vec![rows, unit],
            vec![],
        ])
    }

    fn ty(&self, value: ValueId) -> TensorType {
        self.builder.graph().ty(value).clone()
    }

    /// Adds a node, unless its operands do not fit the op.
    fn add(&mut self, op: Op, inputs: &[ValueId], ty: Option<TensorType>) {
        let added = match ty {
            Some(ty) => self.builder.op_as("v", op, inputs, ty),
            None => self.builder.op("v", op, inputs),
        };
        self.values.extend(added.ok());
    }

    fn add_source(&mut self) {
        let dtype = self.random.pick(INTEGERS);
        if self.random.one_in(2) {
            let scalar = Scalar::Int(self.number()).wrap_to(dtype);
            let ty = TensorType::new(dtype, self.shape());
            return self.add(Op::Full(scalar), &[], Some(ty));
        }
        let op = Op::Iota { start: self.number(), step: self.number() };
        let extent = self.random.pick(&self.extents);
        let ty = TensorType::new(dtype, vec![extent.clone()]);
        self.add(op, &[], Some(ty));
        if self.random.one_in(2) {
            let shape =
                if self.random.one_in(2) { vec![extent, Dim::from(1)] } else { vec![Dim::from(1), extent] };
            let x = *self.values.last().unwrap();
            self.add(Op::Reshape, &[x], Some(TensorType::new(dtype, shape)));
        }
    }

    fn add_arithmetic(&mut self) {
        use BinaryOp::*;
        let x = self.value();
        let op = self.random.pick(&[Add, Sub, Mul, Max, Min, FloorDiv, Rem, Eq, Lt, Ge, Gt, And, Or, Xor]);
        if self.random.one_in(2) {
            let y = self.value();
            if !matches!(op, FloorDiv | Rem | Mul) {
                self.add(Op::Binary(op), &[x, y], None);
            }
            return;
        }
        let dtype = self.ty(x).dtype;
        let number = self.number();
        let divides = matches!(op, FloorDiv | Rem);
        let scalar = match dtype {
            DType::Bool => Scalar::Bool(number % 2 == 0),
            _ => Scalar::Int(number).wrap_to(dtype),
        };
        let scalar = if divides && scalar.as_i64() == 0 { Scalar::Int(3) } else { scalar };
        let scalar_left = !divides && self.random.one_in(3);
        self.add(Op::BinaryScalar { op, scalar, scalar_left }, &[x], None);
    }

    fn add_other(&mut self) {
        let x = self.value();
        let ty = self.ty(x);
        let axis = self.random.below(ty.rank().max(1));
        match self.random.below(9) {
            0 => self.add(
                Op::Unary(self.random.clone().pick(&[UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Not])),
                &[x],
                None,
            ),
            1 => {
                let to = self.random.pick(&[DType::I64, DType::I32, DType::U8, DType::Bool]);
                self.add(Op::Cast, &[x], Some(TensorType::new(to, ty.shape)));
            }
            2 => {
                let conditions = self.values.iter().copied().filter(|&v| self.ty(v).dtype == DType::Bool);
                let conditions: Vec<ValueId> = conditions.collect();
                let y = self.value();
                if !conditions.is_empty() {
                    let c = self.random.pick(&conditions);
                    self.add(Op::Select, &[c, x, y], None);
                }
            }
            3 => self.add(Op::Permute { perm: (0..ty.rank()).rev().collect() }, &[x], None),
            4 => {
                let shape = self.shape();
                self.add(Op::Expand, &[x], Some(TensorType::new(ty.dtype, shape)));
            }
            5 if ty.rank() > 0 => {
                let mut shape = ty.shape.clone();
                let Some(extent) = shape[axis].as_const().filter(|n| *n > 0) else { return };
                let step = self.random.pick(&[1, 2]);
                let start = self.random.below(extent as usize) as i64;
                shape[axis] = Dim::from((extent - start + step - 1) / step);
                let op = Op::Slice { axis, start: Dim::from(start), step };
                self.add(op, &[x], Some(TensorType::new(ty.dtype, shape)));
            }
            6 if ty.rank() > 0 => {
                let index = TensorType::new(DType::I64, vec![ty.shape[axis].clone()]);
                self.add(Op::Iota { start: 0, step: 1 }, &[], Some(index));
                let index = *self.values.last().unwrap();
                self.add(Op::Take { axis }, &[x, index], None);
            }
            7 if ty.rank() > 0 => self.add(Op::CumSum { axis }, &[x], None),
            8 if ty.rank() > 0 => {
                let y = self.value();
                // The maximum of nothing is an error.
                let has_elements = ty.shape[axis].as_const().is_some_and(|n| n > 0);
                let op = if has_elements && self.random.one_in(2) {
                    ReductionKind::Max
                } else {
                    ReductionKind::Sum
                };
                self.add(Op::Reduce { op, axes: vec![axis], keep: true }, &[x], None);
                self.add(Op::Concat { axis }, &[x, y], None);
            }
            _ => {}
        }
    }
}

/// The elements of all values of a run.
struct Elements<'a> {
    tensors: &'a [Tensor],
    bindings: &'a SymbolBindings,
}

impl Elements<'_> {
    fn dim(&self, dim: &Dim) -> i128 {
        dim.eval(self.bindings).expect("a bound dim").into()
    }

    fn element(&self, leaf: &ElementRef, position: &[usize]) -> i128 {
        let tensor = &self.tensors[leaf.value.index()];
        let mut offset = 0;
        for (index, &extent) in leaf.axis_indices.iter().zip(tensor.shape()) {
            let index = match index {
                AxisIndex::Fixed(index) => self.dim(index),
                AxisIndex::Along { axis, start } => self.dim(start) + position[*axis] as i128,
            };
            offset = offset * extent + usize::try_from(index).expect("an index");
        }
        tensor.get_i64(offset).into()
    }

    fn linear(&self, x: &LinearExpr, position: &[usize]) -> i128 {
        let steps = x.steps.iter().zip(position).map(|(&step, &i)| i128::from(step) * i as i128);
        let terms = x.terms.iter().map(|(times, leaf)| i128::from(*times) * self.element(leaf, position));
        self.dim(&x.constant) + steps.chain(terms).sum::<i128>()
    }

    fn number(&self, number: &IndexExpr, position: &[usize]) -> i128 {
        let linear = |x: &LinearExpr| self.linear(x, position);
        let quotient = |x: &LinearExpr, by: i64| linear(x).div_euclid(by.into());
        match number {
            IndexExpr::Linear(x) => linear(x),
            IndexExpr::Max(operands) => operands.iter().map(linear).max().expect("an operand"),
            IndexExpr::Min(operands) => operands.iter().map(linear).min().expect("an operand"),
            IndexExpr::Floor(x, by) => quotient(x, *by),
            IndexExpr::Floors(x, y, by) => quotient(x, *by) - quotient(y, *by),
        }
    }

    fn holds(&self, condition: &MaskCondition, position: &[usize]) -> bool {
        let all = condition.atoms.iter().all(|atom| match &atom.kind {
            AtomKind::AtLeastZero(x) => self.linear(x, position) >= 0,
            AtomKind::ChunkAtLeast { a, b, by } => {
                let quotient = |x: &LinearExpr| self.linear(x, position).div_euclid((*by).into());
                quotient(a) >= quotient(b)
            }
            AtomKind::Opaque => (self.element(&atom.witness.leaf, position) != 0) != atom.witness.negated,
        });
        all != condition.negated
    }

    fn form(&self, form: &ElementForm, position: &[usize]) -> i128 {
        match form {
            ElementForm::Full(s) => s.as_i64().into(),
            ElementForm::Number(number) => self.number(number, position),
            ElementForm::Condition(condition) => self.holds(condition, position).into(),
            ElementForm::Select(condition, [first, second]) => {
                if self.holds(condition, position) {
                    first.as_i64().into()
                } else {
                    second.as_i64().into()
                }
            }
        }
    }
}

/// The position of an element in a shape.
fn position_of(mut index: usize, shape: &[usize]) -> Vec<usize> {
    let mut position = vec![0; shape.len()];
    for (at, &extent) in position.iter_mut().zip(shape).rev() {
        *at = index % extent;
        index /= extent;
    }
    position
}

/// Checks the facts about a random program, and returns the number of forms that are no scalar.
fn check(seed: u64) -> usize {
    let mut builder = GraphBuilder::new("p", Some(1));
    let is_extreme = seed.is_multiple_of(2);
    let extents = match seed % 3 {
        0 => [Dim::from(3), Dim::from(4)],
        1 => [Dim::from(0), Dim::from(2)],
        _ => [Dim::from(builder.symbol("r", 0, 3)), Dim::from(builder.symbol("c", 1, 4))],
    };
    let [rows, columns] = extents;
    let shape = vec![rows.clone(), columns.clone()];
    let x = builder.input(InputKind::Argument, "x", "", TensorType::new(DType::I64, shape), None);
    let numbers = if is_extreme { EXTREME_NUMBERS } else { SMALL_NUMBERS };
    let extents = [rows, columns, Dim::from(1)];
    let mut writer = ProgramWriter { random: SplitMix(seed), builder, numbers, extents, values: vec![x] };
    for _ in 0..14 {
        match writer.random.below(4) {
            0 => writer.add_source(),
            1 | 2 => writer.add_arithmetic(),
            _ => writer.add_other(),
        }
    }
    let mut random = writer.random.clone();
    let mut graph = writer.builder.finish();
    let values: Vec<ValueId> = graph.values.keys().collect();
    for &value in &values {
        let kind = symmc_ir::OutputKind::Returned;
        graph.outputs.push(symmc_ir::GraphOutput { value, kind });
    }
    let cache = PositionCache::of_graph(&graph);
    let facts = cache.facts(&graph);
    let mut forms = 0;
    for (r, c) in [(0, 1), (1, 3), (3, 4)] {
        let mut bindings = SymbolBindings::new();
        for (symbol, size) in graph.symbols.keys().zip([r, c]) {
            bindings.set(symbol, size);
        }
        let shape = graph.ty(x).shape.iter().map(|d| d.eval(&bindings).unwrap() as usize).collect::<Vec<_>>();
        let data: Vec<i64> = (0..shape.iter().product()).map(|_| random.pick(numbers)).collect();
        let data = Arc::new(Tensor::from_i64(DType::I64, shape, &data).unwrap());
        let tensors = interp::run(&graph, &bindings, &[vec![data]]).expect("a run").remove(0);
        let elements = Elements { tensors: &tensors, bindings: &bindings };
        for &value in &values {
            let tensor = &tensors[value.index()];
            let assumed = facts.form(value).filter(|_| !is_extreme);
            let known = facts.exact(value).into_iter().chain(assumed.as_deref());
            let range = facts.range(value);
            for form in known {
                forms += usize::from(form.as_full().is_none());
                for index in 0..tensor.numel() {
                    let position = position_of(index, tensor.shape());
                    let found = elements.form(form, &position);
                    let expected = i128::from(tensor.get_i64(index));
                    assert_eq!(
                        found,
                        expected,
                        "seed {seed}, %{} at {position:?}: {form:?}",
                        graph.value_name(value)
                    );
                }
            }
            if let Some(range) = range {
                let bounds = elements.dim(&range.least)..=elements.dim(&range.greatest);
                let is_inside = tensor.to_i64().iter().all(|&x| bounds.contains(&x.into()));
                assert!(is_inside, "seed {seed}, %{}: {bounds:?}", graph.value_name(value));
            }
        }
    }
    forms
}

#[test]
fn facts_about_positions_agree_with_runs() {
    let forms: usize = (0..3000).map(check).sum();
    assert!(forms > 20_000, "{forms}");
}
