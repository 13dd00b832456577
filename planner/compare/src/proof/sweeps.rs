//! Both sides of equations and definitions in the interpreter: all dtypes that are claimed, zeros of both signs,
//! infinities, NaN, subnormal numbers, and numbers at the ends of the range.

use std::sync::Arc;

use symmc_ir::interp;
use symmc_ir::{
    AttentionBound, BinaryOp, DType, Dim, FloatAttribute, Graph, GraphOutput, InputKind, Op, OutputKind,
    Scalar, SymbolBindings, Tensor, TensorType, UnaryOp, ValueId,
};
use symmc_support::random::SplitMix;

use super::definitions::define;
use super::equations::{EquationClass, EquationTypes, ParsedEquation, Pattern, parsed_equations};

const DTYPES: &[DType] = DType::ALL;

const SPECIAL: [f64; 26] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    -2.0,
    0.5,
    3.0,
    0.1,
    -0.3,
    1e-3,
    7.5,
    100.0,
    -100.0,
    127.0,
    255.0,
    65504.0,
    70000.0,
    1e-7,
    6e-8,
    1e-40,
    1e30,
    3e38,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

fn elements(dtype: DType, count: usize, r: &mut SplitMix) -> Vec<f64> {
    let one = |k: usize, r: &mut SplitMix| {
        let number =
            if k % 3 < 2 { SPECIAL[r.below(SPECIAL.len())] } else { r.below(4000) as f64 / 333.0 - 6.0 };
        match dtype {
            DType::Bool => (r.below(2)) as f64,
            dtype if dtype.is_float() => number,
            _ => {
                if number.is_finite() {
                    number.clamp(-300.0, 300.0).round()
                } else {
                    r.below(256) as f64 - 128.0
                }
            }
        }
    };
    (0..count).map(|k| one(k, r)).collect()
}

fn draw(ty: &TensorType, r: &mut SplitMix) -> Arc<Tensor> {
    let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_const().expect("a number") as usize).collect();
    let count = shape.iter().product();
    let tensor = Tensor::from_f64(DType::F64, shape.clone(), &elements(ty.dtype, count, r)).expect("floats");
    let mut graph = Graph::new("cast");
    let x =
        graph.add_input(InputKind::Argument, "x", "", TensorType::new(DType::F64, ty.shape.clone()), None);
    let y = add(&mut graph, Op::Cast, &[x], ty.dtype, &ty.shape);
    Arc::new(run(graph, &[y], &[Arc::new(tensor)]).remove(0))
}

fn add(graph: &mut Graph, op: Op, inputs: &[ValueId], dtype: DType, shape: &[Dim]) -> ValueId {
    let name = format!("n{}", graph.values.len());
    let n = graph.add_node(op, inputs.to_vec(), vec![(name, TensorType::new(dtype, shape.to_vec()))]);
    graph.nodes[n].outputs[0]
}

fn run(mut graph: Graph, outputs: &[ValueId], inputs: &[Arc<Tensor>]) -> Vec<Tensor> {
    graph.ranks = Some(1);
    graph.outputs = outputs.iter().map(|&value| GraphOutput { value, kind: OutputKind::Returned }).collect();
    let results = interp::run(&graph, &SymbolBindings::new(), &[inputs.to_vec()]);
    results.unwrap_or_else(|e| panic!("{e}\n{}", symmc_ir::text::print(&graph))).remove(0)
}

/// The bits of all elements; all NaN are equal.
fn bits(tensor: &Tensor) -> Vec<u64> {
    let is_float = tensor.dtype().is_float();
    let of_float = |x: f64| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() };
    (0..tensor.numel())
        .map(|i| if is_float { of_float(tensor.get_f64(i)) } else { tensor.get_i64(i) as u64 })
        .collect()
}

fn assert_agree(class: EquationClass, left: &Tensor, right: &Tensor, what: &str) {
    assert_eq!((left.dtype(), left.shape()), (right.dtype(), right.shape()), "{what}");
    match class {
        EquationClass::Bits => assert_eq!(bits(left), bits(right), "{what}"),
        EquationClass::Rounding | EquationClass::Reassociate => {
            let relative = match left.dtype() {
                DType::F64 => 1e-13,
                DType::F32 => 2e-6,
                DType::F16 => 2e-3,
                _ => 1.6e-2,
            };
            let largest = (0..right.numel())
                .map(|i| right.get_f64(i).abs())
                .filter(|x| x.is_finite())
                .fold(0.0, f64::max);
            for i in 0..left.numel() {
                let [a, b] = [left, right].map(|tensor| tensor.get_f64(i));
                // Sums near the end of the range may be infinite on one side only.
                let overflows = a.abs().max(b.abs()) > 1e15 || a.is_nan() || b.is_nan();
                let is_near = (a - b).abs() <= relative * (a.abs() + 1e-3 * largest.min(1e3)) + 1e-30;
                assert!(is_near || overflows, "{what}: {a} and {b}");
            }
        }
    }
}

/// Adds one side of an equation. The dtype of the operand of a cast is `inner`.
fn build(
    graph: &mut Graph,
    pattern: &Pattern,
    operands: &[(char, ValueId)],
    dtype: DType,
    inner: DType,
) -> ValueId {
    let shape = graph.ty(operands[0].1).shape.clone();
    match pattern {
        Pattern::Operand(name) => operands.iter().find(|(n, _)| n == name).expect("an operand").1,
        Pattern::Truth(truth) => add(graph, Op::Full(Scalar::Bool(*truth)), &[], DType::Bool, &shape),
        Pattern::Number(_) => unreachable!("numbers are operands of binary ops"),
        Pattern::Apply(Op::Binary(op), args) => {
            let of_number = |pattern: &Pattern| match pattern {
                Pattern::Number(number) if dtype.is_float() => Some(Scalar::Float(FloatAttribute(*number))),
                Pattern::Number(number) => Some(Scalar::Int(*number as i64)),
                _ => None,
            };
            let (op, args) = match (of_number(&args[0]), of_number(&args[1])) {
                (Some(scalar), _) => (Op::BinaryScalar { op: *op, scalar, scalar_left: true }, &args[1..]),
                (_, Some(scalar)) => (Op::BinaryScalar { op: *op, scalar, scalar_left: false }, &args[..1]),
                _ => (Op::Binary(*op), &args[..]),
            };
            let args: Vec<ValueId> =
                args.iter().map(|arg| build(graph, arg, operands, dtype, inner)).collect();
            add(graph, op, &args, dtype, &shape)
        }
        Pattern::Apply(op, args) => {
            let of_args = if *op == Op::Cast { inner } else { dtype };
            let args: Vec<ValueId> =
                args.iter().map(|arg| build(graph, arg, operands, of_args, inner)).collect();
            add(graph, op.clone(), &args, dtype, &shape)
        }
    }
}

fn has_cast(pattern: &Pattern) -> bool {
    matches!(pattern, Pattern::Apply(op, args) if *op == Op::Cast || args.iter().any(has_cast))
}

/// Whether the ops of a side are defined on its dtype, and on that of the operand of its cast.
fn supports(pattern: &Pattern, dtype: DType, inner: DType) -> bool {
    let Pattern::Apply(op, args) = pattern else { return true };
    let of_args = if *op == Op::Cast { inner } else { dtype };
    let own = match op {
        Op::Unary(op) => op.supports_dtype(dtype),
        Op::Binary(op) => op.supports_dtype(dtype),
        _ => true,
    };
    own && args.iter().all(|arg| supports(arg, of_args, inner))
}

#[test]
fn equations_hold_for_all_dtypes_that_they_name() {
    let mut r = SplitMix(1);
    for ParsedEquation { equation, left, right } in parsed_equations() {
        let mut tried = 0;
        for dtype in DTYPES.iter().copied().filter(|&dtype| equation.types.contain(dtype)) {
            for inner in DTYPES.iter().copied().filter(|&inner| equation.types.contain(inner)) {
                let is_supported = [left, right].into_iter().all(|side| supports(side, dtype, inner));
                if !has_cast(left) && inner != dtype || !is_supported {
                    continue;
                }
                let shape = [Dim::from(800)];
                let mut graph = Graph::new("equation");
                let operands = ['x', 'y', 'c'].map(|name| {
                    let dtype = if name == 'c' { DType::Bool } else { inner };
                    let ty = TensorType::new(dtype, shape.to_vec());
                    (name, graph.add_input(InputKind::Argument, name.to_string(), "", ty, None))
                });
                let inputs = operands.map(|(_, v)| draw(graph.ty(v), &mut r));
                let sides = [left, right].map(|side| build(&mut graph, side, &operands, dtype, inner));
                let results = run(graph, &sides, &inputs);
                let what = format!("{} from {inner} to {dtype}", equation.name);
                assert_agree(equation.class, &results[0], &results[1], &what);
                tried += 1;
            }
        }
        assert!(tried > 0, "{}", equation.name);
    }
    assert_eq!(parsed_equations().len(), super::equations::EQUATIONS.len(), "an equation is not read");
    assert!(EquationTypes::All.contain(DType::Bool));
}

#[test]
fn widening_casts_lose_nothing() {
    let mut r = SplitMix(2);
    for &from in DTYPES {
        for middle in DTYPES.iter().copied().filter(|middle| middle.represents(from)) {
            for &to in DTYPES {
                let mut graph = Graph::new("casts");
                let shape = [Dim::from(400)];
                let ty = TensorType::new(from, shape.to_vec());
                let x = graph.add_input(InputKind::Argument, "x", "", ty.clone(), None);
                let wide = add(&mut graph, Op::Cast, &[x], middle, &shape);
                let twice = add(&mut graph, Op::Cast, &[wide], to, &shape);
                let once = add(&mut graph, Op::Cast, &[x], to, &shape);
                let results = run(graph, &[twice, once], &[draw(&ty, &mut r)]);
                assert_eq!(bits(&results[0]), bits(&results[1]), "{from} to {middle} to {to}");
            }
        }
    }
}

/// The elements without finite ones whose squares exceed the range of f32.
fn moderate(tensor: &Tensor) -> Tensor {
    let of_element = |x: f64| if x.is_finite() && x.abs() > 1e5 { 3.0 } else { x };
    let elements: Vec<f64> = (0..tensor.numel()).map(|i| of_element(tensor.get_f64(i))).collect();
    Tensor::from_f64(tensor.dtype(), tensor.shape().to_vec(), &elements).expect("as many elements")
}

fn assert_defined(op: &Op, operands: &[TensorType], results: &[TensorType], r: &mut SplitMix) {
    let definition = define(op, operands, results).unwrap_or_else(|| panic!("{op:?} has no definition"));
    symmc_ir::verify::verify(&Graph { ranks: Some(1), ..definition.graph.clone() })
        .unwrap_or_else(|e| panic!("{op:?}: {e:?}\n{}", symmc_ir::text::print(&definition.graph)));
    let mut graph = Graph::new("op");
    let inputs: Vec<ValueId> = operands
        .iter()
        .enumerate()
        .map(|(k, ty)| graph.add_input(InputKind::Argument, format!("x{k}"), "", ty.clone(), None))
        .collect();
    let types = results.iter().enumerate().map(|(k, ty)| (format!("y{k}"), ty.clone())).collect();
    let n = graph.add_node(op.clone(), inputs, types);
    let outputs = graph.nodes[n].outputs.clone();
    for _ in 0..8 {
        let mut drawn: Vec<Arc<Tensor>> = operands.iter().map(|ty| draw(ty, r)).collect();
        if definition.class == EquationClass::Rounding {
            drawn.iter_mut().for_each(|tensor| *tensor = Arc::new(moderate(tensor)));
        }
        let expected = run(graph.clone(), &outputs, &drawn);
        let of_definition: Vec<ValueId> = definition.graph.outputs.iter().map(|o| o.value).collect();
        let found = run(definition.graph.clone(), &of_definition, &drawn);
        for (found, expected) in found.iter().zip(&expected) {
            assert_agree(definition.class, found, expected, &format!("{op:?} of {operands:?}"));
        }
    }
}

fn ty(dtype: DType, shape: &[i64]) -> TensorType {
    TensorType::new(dtype, shape.iter().map(|&d| Dim::from(d)).collect::<Vec<_>>())
}

#[test]
fn definitions_are_their_ops() {
    let mut r = SplitMix(3);
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for (axes, shape) in [(1, vec![5, 7]), (2, vec![3, 2, 5]), (1, vec![9])] {
            for round_first in [false, true] {
                let op = Op::RmsNorm { axes, eps: FloatAttribute(1e-5), round_first };
                let x = ty(dtype, &shape);
                let weight = ty(dtype, &shape[shape.len() - axes..]);
                assert_defined(&op, std::slice::from_ref(&x), std::slice::from_ref(&x), &mut r);
                assert_defined(&op, &[x.clone(), weight], &[x], &mut r);
            }
        }
        for (axis, log) in [(0, false), (1, false), (1, true), (2, false)] {
            let x = ty(dtype, &[2, 3, 5]);
            assert_defined(
                &Op::Softmax { axis, log },
                std::slice::from_ref(&x),
                std::slice::from_ref(&x),
                &mut r,
            );
        }
        if dtype.is_narrow_float() {
            let x = ty(dtype, &[200]);
            assert_defined(
                &Op::Unary(UnaryOp::Silu),
                std::slice::from_ref(&x),
                std::slice::from_ref(&x),
                &mut r,
            );
        }
        for wide in [dtype, dtype.compute_dtype()] {
            for (extent, width, numbers) in [(8, 8, 8), (8, 8, 4), (10, 6, 6), (10, 6, 3)] {
                for (interleaved, lead) in [(false, &[2, 3][..]), (true, &[2, 3]), (false, &[3]), (true, &[])]
                {
                    let op = Op::RotaryEmbedding { width, interleaved };
                    let x = ty(dtype, &[2, 3, extent]);
                    let numbers = ty(wide, &[lead, &[numbers]].concat());
                    assert_defined(&op, &[x.clone(), numbers.clone(), numbers], &[x], &mut r);
                }
            }
        }
        let op = Op::Attention {
            scale: FloatAttribute(0.5),
            cap: None,
            bounds: vec![AttentionBound::causal()],
            sink: false,
            log_sum_exp: true,
        };
        let op = Op::Permuted { op: Box::new(op), perm: vec![0, 2, 1, 3] };
        let [q, k] = [ty(dtype, &[2, 4, 5, 3]), ty(dtype, &[2, 2, 5, 3])];
        let results = [ty(dtype, &[2, 5, 4, 3]), ty(dtype.compute_dtype(), &[2, 4, 5])];
        assert_defined(&op, &[q, k.clone(), k], &results, &mut r);
    }
}

/// A sum over ranks is the sum of the elements of each rank, in order.
#[test]
fn sums_over_ranks_are_sums_of_their_elements() {
    let mut r = SplitMix(4);
    for ranks in [2, 3, 5, 8] {
        let numbers = DTYPES.iter().copied().filter(|&dtype| dtype != DType::Bool);
        for dtype in numbers.filter(|dtype| !dtype.is_storage_float()) {
            for reduce in ["sum", "avg"] {
                if reduce == "avg" && !dtype.is_float() {
                    continue;
                }
                let wide = if dtype.is_float() { dtype.compute_dtype() } else { dtype };
                let mut text = format!(
                    "program \"p\" ranks {ranks}\ngroup @w world\narg %x: {dtype}[64]\n\
                     %y: {dtype}[64] = all_reduce %x op={reduce} group=@w\n\
                     %g: {dtype}[{}] = all_gather %x group=@w\n",
                    ranks * 64
                );
                let mut sum = String::new();
                for rank in 0..ranks {
                    text += &format!("%p{rank}: {dtype}[64] = slice %g axis=0 start={} step=1\n", rank * 64);
                    text += &format!("%c{rank}: {wide}[64] = cast %p{rank}\n");
                    if rank > 0 {
                        text += &format!("%s{rank}: {wide}[64] = add %{sum}, %c{rank}\n");
                    }
                    sum = if rank == 0 { "c0".into() } else { format!("s{rank}") };
                }
                if reduce == "avg" {
                    text += &format!("%d: {wide}[64] = div %{sum}, {ranks}.0\n");
                    sum = "d".into();
                }
                text += &format!("%z: {dtype}[64] = cast %{sum}\nreturn %y\nreturn %z\n");
                let graph = symmc_ir::text::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
                let inputs: Vec<Vec<Arc<Tensor>>> =
                    (0..ranks).map(|_| vec![draw(&ty(dtype, &[64]), &mut r)]).collect();
                let results = interp::run(&graph, &SymbolBindings::new(), &inputs).expect("a run");
                for of_rank in results {
                    assert_eq!(bits(&of_rank[0]), bits(&of_rank[1]), "{reduce} of {dtype} on {ranks} ranks");
                }
            }
        }
    }
}

#[test]
fn operands_that_commute_give_the_same_bits() {
    let mut r = SplitMix(5);
    for op in BinaryOp::ALL.iter().filter(|op| super::simplify::commutes(&Op::Binary(**op))) {
        for dtype in DTYPES.iter().copied().filter(|&dtype| op.supports_dtype(dtype)) {
            let of_operand = ty(dtype, &[900]);
            let result = if op.is_comparison() { DType::Bool } else { dtype };
            let mut graph = Graph::new("pair");
            let [x, y] = ["x", "y"]
                .map(|name| graph.add_input(InputKind::Argument, name, "", of_operand.clone(), None));
            let sides = [[x, y], [y, x]]
                .map(|operands| add(&mut graph, Op::Binary(*op), &operands, result, &of_operand.shape));
            let results = run(graph, &sides, &[draw(&of_operand, &mut r), draw(&of_operand, &mut r)]);
            assert_eq!(bits(&results[0]), bits(&results[1]), "{op} of {dtype}");
        }
    }
}
