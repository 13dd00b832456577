//! Every line of `ops.txt` is one op: the call, operands with data, and the results of ONNX's reference
//! evaluator or ONNX Runtime. The call is imported as a program of one node and run by the reference
//! interpreter.

use std::sync::Arc;

use symmc_cases::{every_line, near};
use symmc_ir::{InputKind, Op, SymbolBindings, Tensor};

use crate::common::{Fake, run, stored, tensor};

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

#[test]
fn packed_operands_of_attention_are_those_apart() {
    // ONNX Runtime has no kernels for them on CPUs.
    let numbers = |n: usize, factor: f64| (0..n).map(|i| (i as f64 * factor).sin()).collect::<Vec<_>>();
    let (q, kv) = (numbers(24, 1.3), numbers(80, 0.7));
    let part = |from: &[f64], parts: usize, i: usize| -> Vec<f64> {
        from.chunks(4).skip(i).step_by(parts).flatten().copied().collect()
    };
    let apart = |length: i64| {
        Fake::new(20)
            .input("q", "f32[1,3,8]")
            .input("k", &format!("f32[1,{length},8]"))
            .input("v", &format!("f32[1,{length},8]"))
            .node("com.microsoft::MultiHeadAttention num_heads=2", &["q", "k", "v"], &["y"])
            .output("y")
    };
    let packed_keys = Fake::new(20)
        .input("q", "f32[1,3,8]")
        .input("kv", "f32[1,5,2,2,4]")
        .node("com.microsoft::MultiHeadAttention num_heads=2", &["q", "kv"], &["y"])
        .output("y");
    let keys = part(&kv, 2, 0);
    let values = part(&kv, 2, 1);
    let expected = run(
        &apart(5),
        &[],
        &[tensor("f32[1,3,8]", &q), tensor("f32[1,5,8]", &keys), tensor("f32[1,5,8]", &values)],
    );
    let actual = run(&packed_keys, &[], &[tensor("f32[1,3,8]", &q), tensor("f32[1,5,2,2,4]", &kv)]);
    assert_eq!(actual, expected);
    let packed = Fake::new(20)
        .input("x", "f32[1,3,2,3,4]")
        .node("com.microsoft::MultiHeadAttention num_heads=2", &["x"], &["y"])
        .output("y");
    let x = numbers(72, 0.9);
    let each: Vec<Tensor> = (0..3).map(|i| tensor("f32[1,3,8]", &part(&x, 3, i))).collect();
    let actual = run(&packed, &[], &[tensor("f32[1,3,2,3,4]", &x)]);
    assert_eq!(actual, run(&apart(3), &[], &each));
}

#[test]
fn recurrent_layers_of_variable_length_are_those_of_each_length() {
    let numbers = |n: usize, factor: f64| (0..n).map(|i| (i as f64 * factor + 0.2).sin()).collect::<Vec<_>>();
    for (op, gates, results) in [("RNN", 1, 2), ("LSTM", 4, 3), ("GRU", 3, 2)] {
        for lengths in ["", "lengths"] {
            let layer = |steps: &str| {
                let fake = Fake::new(22)
                    .input("x", &format!("f32[{steps},2,3]"))
                    .input("w", &format!("f32[2,{},3]", gates * 2))
                    .input("r", &format!("f32[2,{},2]", gates * 2))
                    .input("lengths", "i32[2]")
                    .node(
                        &format!("{op} hidden_size=2 direction='bidirectional'"),
                        &["x", "w", "r", "", lengths],
                        &["y0", "y1", "y2"][..results],
                    );
                let mut fake = (0..results).fold(fake, |fake, i| fake.output(&format!("y{i}")));
                fake.max_extent = 5;
                fake
            };
            for steps in 0..=5 {
                let arguments = [
                    tensor(&format!("f32[{steps},2,3]"), &numbers(steps * 6, 0.7)),
                    tensor(&format!("f32[2,{},3]", gates * 2), &numbers(gates * 12, 1.3)),
                    tensor(&format!("f32[2,{},2]", gates * 2), &numbers(gates * 8, 1.9)),
                    tensor("i32[2]", &[steps as f64, steps.min(2) as f64]),
                ];
                let expected = run(&layer(&steps.to_string()), &[], &arguments);
                assert_eq!(run(&layer("n"), &[steps as i64], &arguments), expected, "{op} {steps} {lengths}");
            }
        }
    }
    let long = Fake::new(22)
        .input("x", "f32[n,2,3]")
        .input("w", "f32[1,2,3]")
        .input("r", "f32[1,2,2]")
        .declared("y", "f32[n,1,2,2]")
        .node("RNN hidden_size=2", &["x", "w", "r"], &["y"])
        .output("y");
    let notes = long.import().expect("an opaque op").notes.join("; ");
    assert!(notes.contains("up to 1048576 steps are not supported, at most 1024 are"), "{notes}");
}
