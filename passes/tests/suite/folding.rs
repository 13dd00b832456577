//! Folding changes no bit: every op, on every dtype, with constants in every position, gives the same as the
//! interpreter gives for the original program.
//!
//! One program for each op and dtype holds a node for each combination of operands. Constants are a `full`,
//! a constant input of equal elements, or an expanded one. All other operands are arguments with all the
//! special values.

use std::sync::Arc;

use symmc_ir::interp;
use symmc_ir::{
    ArgOp, BinaryOp, DType, Dim, FloatAttribute, Graph, GraphBuilder, InputKind, Op, ReductionKind, Scalar,
    SymbolBindings, Tensor, TensorType, UnaryOp, ValueId,
};
use symmc_passes::canonicalize;

/// The number of elements of every operand.
const N: usize = 2;

/// Numbers of a dtype that rules could get wrong.
pub(crate) fn specials(dtype: DType) -> Vec<Scalar> {
    let floats = |of: &[f64]| of.iter().map(|&x| Scalar::Float(FloatAttribute(x))).collect();
    let ints = |of: &[i64]| of.iter().map(|&x| Scalar::Int(x)).collect();
    match dtype {
        DType::Bool => vec![Scalar::Bool(false), Scalar::Bool(true)],
        DType::U8 => ints(&[0, 1, 2, 7, 128, 255]),
        DType::U16 => ints(&[0, 1, 255, 65535]),
        DType::U32 => ints(&[0, 1, 65536, u32::MAX.into()]),
        DType::I8 => ints(&[0, 1, -1, 127, -128]),
        DType::I16 => ints(&[0, 1, -8, i16::MAX.into(), i16::MIN.into()]),
        DType::I32 => ints(&[0, 1, -1, 2, 3, -8, i32::MAX.into(), i32::MIN.into()]),
        DType::I64 => ints(&[0, 1, -1, 3, -8, (1 << 53) + 1, i64::MAX, i64::MIN]),
        DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0 => {
            floats(&[0.0, -0.0, 1.0, -2.0, 0.3, 448.0, 1e-3, 1e-40, 1e9, f64::INFINITY, f64::NAN])
        }
        _ => floats(&[
            0.0,
            -0.0,
            1.0,
            -1.0,
            2.0,
            0.1,
            0.3,
            -2.5,
            3.0,
            65504.0,
            1e-7,
            6e-8,
            1e-40,
            5e-324,
            3.4e38,
            1e300,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ]),
    }
}

/// Numbers of scalar ops, some of which the dtype cannot hold.
fn numbers(dtype: DType) -> Vec<Scalar> {
    let mut scalars = specials(dtype);
    if dtype != DType::Bool {
        scalars.extend([Scalar::Int(2), Scalar::Int(300), Scalar::Float(FloatAttribute(0.7))]);
    }
    scalars
}

/// A program under construction: every combination that type-checks and runs is an output.
struct FoldingSweep {
    builder: GraphBuilder,
    arguments: Vec<Arc<Tensor>>,
    outputs: Vec<String>,
}

impl FoldingSweep {
    fn new() -> Self {
        FoldingSweep {
            builder: GraphBuilder::new("folding", Some(1)),
            arguments: Vec::new(),
            outputs: Vec::new(),
        }
    }

    fn tensor(dtype: DType, elements: &[Scalar]) -> Tensor {
        let n = vec![elements.len()];
        let tensor = if dtype.is_float() {
            Tensor::from_f64(dtype, n, &elements.iter().map(|s| s.as_f64()).collect::<Vec<_>>())
        } else {
            Tensor::from_i64(dtype, n, &elements.iter().map(|s| s.as_i64()).collect::<Vec<_>>())
        };
        tensor.expect("it has these elements")
    }

    fn input(&mut self, kind: InputKind, tensor: Tensor) -> ValueId {
        let shape: Vec<Dim> = tensor.shape().iter().map(|&n| Dim::from(n as i64)).collect();
        let (ty, tensor) = (TensorType::new(tensor.dtype(), shape), Arc::new(tensor));
        let data = (kind == InputKind::Constant).then(|| tensor.clone());
        let name = format!("in{}", self.arguments.len());
        self.arguments.push(tensor);
        self.builder.input(kind, &name, "", ty, data)
    }

    /// The same constant in each form.
    fn constants(&mut self, dtype: DType, s: Scalar) -> Vec<ValueId> {
        let ty = |n: i64| TensorType::new(dtype, vec![Dim::from(n)]);
        let full = self.builder.op_as("full", Op::Full(s), &[], ty(N as i64)).expect("a full");
        let constant = self.input(InputKind::Constant, FoldingSweep::tensor(dtype, &[s; N]));
        let element = self.input(InputKind::Constant, FoldingSweep::tensor(dtype, &[s]));
        let expanded =
            self.builder.op_as("expanded", Op::Expand, &[element], ty(N as i64)).expect("an expand");
        vec![full, constant, expanded]
    }

    /// Adds a node, if it type-checks.
    fn node(&mut self, op: Op, operands: &[ValueId], result: Option<TensorType>, what: String) {
        let added = match result {
            Some(ty) => self.builder.node_as("y", op, operands, vec![ty]),
            None => self.builder.node("y", op, operands),
        };
        for value in added.unwrap_or_default() {
            self.builder.output(value);
            self.outputs.push(what.clone());
        }
    }

    /// Compares the program with its canonical form, element by element.
    fn check(self) -> usize {
        let graph = self.builder.finish();
        if graph.outputs.is_empty() {
            return 0;
        }
        symmc_ir::verify::verify(&graph).unwrap_or_else(|e| panic!("{}", e[0]));
        let run = |graph: &Graph| {
            interp::run(graph, &SymbolBindings::new(), std::slice::from_ref(&self.arguments))
                .map(|mut ranks| ranks.remove(0))
        };
        let expected = run(&graph).unwrap_or_else(|e| panic!("{e}"));
        let actual = run(&canonicalize(&graph).unwrap().0).unwrap_or_else(|e| panic!("{e}"));
        for ((what, found), expected) in self.outputs.iter().zip(&actual).zip(&expected) {
            assert_eq!(
                bits(found),
                bits(expected),
                "{what}: {:?}, expected {:?}",
                found.to_f64(),
                expected.to_f64()
            );
        }
        expected.len()
    }
}

/// The bits of each element; those of NaN are not defined.
fn bits(t: &Tensor) -> Vec<u64> {
    match t.dtype() {
        d if d.is_float() => {
            t.to_f64().iter().map(|x| if x.is_nan() { u64::MAX } else { x.to_bits() }).collect()
        }
        _ => t.to_i64().iter().map(|&i| i as u64).collect(),
    }
}

/// Whether an integer op of these operands ends the run.
fn divides_by_zero(op: BinaryOp, dtype: DType, by: Scalar) -> bool {
    !dtype.is_float() && matches!(op, BinaryOp::FloorDiv | BinaryOp::Rem) && by.as_i64() == 0
}

#[test]
fn scalar_ops() {
    let mut nodes = 0;
    for &dtype in DType::ALL {
        for &op in BinaryOp::ALL {
            let mut sweep = FoldingSweep::new();
            let data = sweep.input(InputKind::Argument, FoldingSweep::tensor(dtype, &specials(dtype)));
            for scalar in numbers(dtype) {
                for scalar_left in [false, true] {
                    let label_of =
                        |x: &str| format!("{op} of {x} ({dtype}) and {scalar:?}, scalar left: {scalar_left}");
                    let op_of = || Op::BinaryScalar { op, scalar, scalar_left };
                    // The data contain a 0.
                    let by = if scalar_left { Scalar::Int(0) } else { scalar.wrap_to(dtype) };
                    if !divides_by_zero(op, dtype, by) {
                        sweep.node(op_of(), &[data], None, label_of("data"));
                    }
                    for s in specials(dtype) {
                        let by = if scalar_left { s } else { scalar.wrap_to(dtype) };
                        if divides_by_zero(op, dtype, by) {
                            continue;
                        }
                        for x in sweep.constants(dtype, s) {
                            sweep.node(op_of(), &[x], None, label_of(&format!("{s:?}")));
                        }
                    }
                }
            }
            nodes += sweep.check();
        }
    }
    assert!(nodes > 50_000, "{nodes}");
}

#[test]
fn ops_of_two() {
    let mut nodes = 0;
    for &dtype in DType::ALL {
        for &op in BinaryOp::ALL {
            let mut sweep = FoldingSweep::new();
            let nonzero: Vec<Scalar> =
                specials(dtype).into_iter().filter(|s| !divides_by_zero(op, dtype, *s)).collect();
            let data = sweep.input(InputKind::Argument, FoldingSweep::tensor(dtype, &specials(dtype)));
            let divisors = sweep.input(InputKind::Argument, FoldingSweep::tensor(dtype, &nonzero));
            for a in specials(dtype) {
                let dividend = sweep.input(InputKind::Constant, FoldingSweep::tensor(dtype, &[a]));
                sweep.node(
                    Op::Binary(op),
                    &[dividend, divisors],
                    None,
                    format!("{op} of {a:?} and data ({dtype})"),
                );
                if divides_by_zero(op, dtype, a) {
                    continue;
                }
                sweep.node(
                    Op::Binary(op),
                    &[data, dividend],
                    None,
                    format!("{op} of data and {a:?} ({dtype})"),
                );
                let right = sweep.constants(dtype, a);
                for b in specials(dtype) {
                    let lefts = sweep.constants(dtype, b);
                    let label = format!("{op} of {b:?} and {a:?} ({dtype})");
                    sweep.node(Op::Binary(op), &[lefts[0], right[1]], None, label.clone());
                    sweep.node(Op::Binary(op), &[lefts[2], right[0]], None, label);
                }
            }
            nodes += sweep.check();
        }
    }
    assert!(nodes > 10_000, "{nodes}");
}

#[test]
fn ops_of_one_and_casts() {
    let mut nodes = 0;
    for &dtype in DType::ALL {
        let mut sweep = FoldingSweep::new();
        let ty = |dtype, n: i64| TensorType::new(dtype, vec![Dim::from(n)]);
        let data = sweep.input(InputKind::Argument, FoldingSweep::tensor(dtype, &specials(dtype)));
        let count = specials(dtype).len() as i64;
        for &op in UnaryOp::ALL {
            sweep.node(Op::Unary(op), &[data], None, format!("{op} of data ({dtype})"));
        }
        for s in numbers(dtype) {
            for x in sweep.constants(dtype, s) {
                for &op in UnaryOp::ALL {
                    sweep.node(Op::Unary(op), &[x], None, format!("{op} of {s:?} ({dtype})"));
                }
                for &to in DType::ALL {
                    sweep.node(Op::Cast, &[x], Some(ty(to, N as i64)), format!("{s:?} ({dtype}) as {to}"));
                    for &through in DType::ALL {
                        let y = sweep
                            .builder
                            .op_as("cast", Op::Cast, &[x], ty(through, N as i64))
                            .expect("a cast");
                        let label = format!("{s:?} ({dtype}) through {through} as {to}");
                        sweep.node(Op::Cast, &[y], Some(ty(to, N as i64)), label);
                    }
                }
            }
        }
        for &to in DType::ALL {
            sweep.node(Op::Cast, &[data], Some(ty(to, count)), format!("data ({dtype}) as {to}"));
        }
        nodes += sweep.check();
    }
    assert!(nodes > 10_000, "{nodes}");
}

/// Selections, reductions and sorts of a constant.
fn add_reductions(sweep: &mut FoldingSweep, x: ValueId, conditions: &[ValueId], data: ValueId, name: &str) {
    for &condition in conditions {
        for operands in [[condition, x, data], [condition, data, x], [condition, x, x]] {
            sweep.node(Op::Select, &operands, None, format!("select of {name}"));
        }
    }
    for (op, keep) in ReductionKind::ALL.iter().flat_map(|&op| [(op, false), (op, true)]) {
        sweep.node(Op::Reduce { op, axes: vec![0], keep }, &[x], None, format!("{op} of {name}"));
    }
    for op in [ArgOp::Max, ArgOp::Min] {
        sweep.node(Op::ArgReduce { op, axis: 0, keep: false }, &[x], None, format!("{op} of {name}"));
    }
    let ops = [
        Op::CumSum { axis: 0 },
        Op::Softmax { axis: 0, log: false },
        Op::Sort { axis: 0, descending: true },
        Op::Copy,
    ];
    for op in ops {
        let label = format!("{op:?} of {name}");
        sweep.node(op, &[x], None, label);
    }
}

/// Pads, concatenations, slices, and reads and writes at known positions.
fn add_movement(sweep: &mut FoldingSweep, x: ValueId, positions: &[ValueId], data: ValueId, name: &str) {
    let dtype = sweep.builder.graph().ty(x).dtype;
    let ty = |n: i64| TensorType::new(dtype, vec![Dim::from(n)]);
    for value in specials(dtype) {
        let op = Op::Pad { low: vec![Dim::from(1)], value };
        sweep.node(op, &[x], Some(ty(N as i64 + 2)), format!("pad of {name} with {value:?}"));
        let constants = sweep.constants(dtype, value);
        sweep.node(
            Op::Concat { axis: 0 },
            &[x, constants[1]],
            None,
            format!("concat of {name} and {value:?}"),
        );
    }
    for &index in positions {
        for op in [Op::Take { axis: 0 }, Op::GatherElements { axis: 0 }] {
            sweep.node(op, &[x, index], None, format!("elements of {name}"));
        }
        for combine in [None, Some(ReductionKind::Sum), Some(ReductionKind::Max)] {
            let op = Op::ScatterElements { axis: 0, combine };
            sweep.node(op, &[x, index, data], None, format!("scatter into {name}"));
        }
    }
    let slice = Op::Slice { axis: 0, start: Dim::from(1), step: 1 };
    sweep.node(slice, &[x], Some(ty(1)), format!("slice of {name}"));
}

#[test]
fn selections_reductions_and_movement() {
    let mut nodes = 0;
    for &dtype in DType::ALL {
        let mut sweep = FoldingSweep::new();
        let data = sweep.input(InputKind::Argument, FoldingSweep::tensor(dtype, &specials(dtype)[..N]));
        let conditions: Vec<ValueId> =
            [false, true].into_iter().flat_map(|b| sweep.constants(DType::Bool, Scalar::Bool(b))).collect();
        let positions = sweep.constants(DType::I64, Scalar::Int(1));
        for s in specials(dtype) {
            let name = format!("{s:?} ({dtype})");
            for x in sweep.constants(dtype, s) {
                add_reductions(&mut sweep, x, &conditions, data, &name);
                add_movement(&mut sweep, x, &positions, data, &name);
            }
        }
        nodes += sweep.check();
    }
    assert!(nodes > 5_000, "{nodes}");
}

#[test]
fn series() {
    let mut nodes = 0;
    for dtype in [DType::U8, DType::I32, DType::I64] {
        let mut sweep = FoldingSweep::new();
        let ty = |dtype| TensorType::new(dtype, vec![Dim::from(5)]);
        let far = [0, 1, -3, 250, i64::from(i32::MAX) - 2, i64::MAX - 3, i64::MIN + 1];
        for (start, step) in far.into_iter().flat_map(|start| [-2, 0, 1, 7].map(|step| (start, step))) {
            let name = format!("{start} by {step} ({dtype})");
            let x = sweep.builder.op_as("iota", Op::Iota { start, step }, &[], ty(dtype)).expect("an iota");
            for (&op, scalar) in
                BinaryOp::ALL.iter().flat_map(|op| numbers(dtype).into_iter().map(move |s| (op, s)))
            {
                for scalar_left in [false, true] {
                    // The series may contain a 0.
                    let by = if scalar_left { Scalar::Int(0) } else { scalar.wrap_to(dtype) };
                    if !divides_by_zero(op, dtype, by) {
                        let op_of = Op::BinaryScalar { op, scalar, scalar_left };
                        sweep.node(
                            op_of,
                            &[x],
                            None,
                            format!("{op} of {name} and {scalar:?}, left: {scalar_left}"),
                        );
                    }
                }
            }
            for &op in UnaryOp::ALL {
                sweep.node(Op::Unary(op), &[x], None, format!("{op} of {name}"));
            }
            for &to in DType::ALL {
                sweep.node(Op::Cast, &[x], Some(ty(to)), format!("{name} as {to}"));
            }
            sweep.node(Op::CumSum { axis: 0 }, &[x], None, format!("cumsum of {name}"));
            for &op in ReductionKind::ALL {
                sweep.node(
                    Op::Reduce { op, axes: vec![0], keep: false },
                    &[x],
                    None,
                    format!("{op} of {name}"),
                );
            }
        }
        nodes += sweep.check();
    }
    assert!(nodes > 5_000, "{nodes}");
}
