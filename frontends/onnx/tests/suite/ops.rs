//! Every line of `ops.txt` is one op: the call, operands with data, and the results of ONNX's reference
//! evaluator or ONNX Runtime. The call is imported as a program of one node and run by the reference
//! interpreter.

use std::sync::Arc;

use symmc_cases::{every_line, near};
use symmc_ir::{InputKind, Op, SymbolBindings, Tensor};

use crate::common::{Fake, stored, tensor};

fn numbers(text: &str) -> Vec<f64> {
    let number = |word: &str| match word {
        "true" => 1.0,
        "false" => 0.0,
        _ => word.parse().unwrap_or_else(|_| panic!("number {word}")),
    };
    text.split_whitespace().map(number).collect()
}

pub fn typed(text: &str) -> (&str, Tensor) {
    let (ty, data) = text.split_once(':').unwrap_or_else(|| panic!("a type and numbers: {text}"));
    let (ty, numbers) = (ty.trim(), numbers(data));
    // 64-bit integers are compared without rounding.
    let exact: Option<Vec<i64>> = data.split_whitespace().map(|w| w.parse().ok()).collect();
    match exact.filter(|_| ty.starts_with("i64")) {
        Some(exact) => {
            let shape: Vec<usize> = tensor(ty, &numbers).shape().to_vec();
            (ty, Tensor::from_i64(symmc_ir::DType::I64, shape, &exact).expect("as many"))
        }
        None => (ty, tensor(ty, &numbers)),
    }
}

fn borrowed(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// The program of a line, its arguments, and its expected results.
pub fn program(line: &str) -> (Fake, Vec<Arc<Tensor>>, Vec<Tensor>) {
    let fields: Vec<&str> = line.split(" | ").map(str::trim).collect();
    let [call, operands, results] = fields.as_slice() else { panic!("three parts: {line}") };
    let (version, call) = call.split_once(' ').expect("a version and a call");
    let mut fake = Fake::new(version.parse().expect("a version"));
    let (mut names, mut inputs) = (Vec::new(), Vec::new());
    for (i, operand) in operands.split(';').map(str::trim).enumerate() {
        names.push(if operand == "-" { String::new() } else { format!("x{i}") });
        if let Some(constant) = operand.strip_prefix("const ") {
            fake = fake.held(stored(&names[i], &typed(constant).1));
        } else if operand != "-" {
            let (ty, data) = typed(operand);
            fake = fake.input(&names[i], ty);
            inputs.push(Arc::new(data));
        }
    }
    let expected: Vec<Tensor> = results.split(';').map(|r| typed(r).1).collect();
    let outputs: Vec<String> = (0..expected.len()).map(|i| format!("r{i}")).collect();
    fake = fake.node(call, &borrowed(&names), &borrowed(&outputs));
    (outputs.iter().fold(fake, |fake, name| fake.output(name)), inputs, expected)
}

fn check(line: &str) -> Result<(), String> {
    let (fake, inputs, expected) = program(line);
    let graph = fake.import().map_err(|e| e.to_string())?.graph;
    if let Some(op) = graph.nodes.values().find(|n| matches!(n.op, Op::Opaque { .. })) {
        return Err(format!("it stays opaque: {:?}", op.op));
    }
    let mut arguments = inputs.into_iter();
    let inputs = graph.inputs.values().map(|input| match input.kind {
        InputKind::Argument => arguments.next().expect("an argument"),
        InputKind::Constant => input.data.clone().expect("a constant"),
        InputKind::Parameter => panic!("constants are integers and single numbers: {line}"),
    });
    let outputs = symmc_ir::interp::run(&graph, &SymbolBindings::new(), &[inputs.collect()])
        .map_err(|e| e.to_string())?;
    outputs[0].iter().zip(&expected).try_for_each(|(actual, expected)| near(actual, expected))
}

#[test]
fn every_op_gives_what_the_reference_evaluator_gives() {
    every_line(include_str!("ops.txt"), check);
}

#[test]
fn log_sum_exp_of_zeros_is_minus_infinity() {
    // ONNX's reference evaluator gives NaN; ONNX Runtime and NumPy give these values.
    let line =
        "20 ReduceLogSumExp keepdims=0 | f32[2,2]: -inf -inf 0 inf; const i64[1]: 1 | f32[2]: -inf inf";
    assert_eq!(check(line), Ok(()));
}
