//! Every line of `ops.txt` is one op: operands with data, the call, and PyTorch's results. The call is
//! imported as a program of one node and run by the reference interpreter.

use std::sync::Arc;

use symmc_cases::{every_line, near};
use symmc_ir::{DType, Graph, Op, SymbolBindings, Tensor};
use symmc_torch::ImportError;

use crate::common::Fake;

pub(crate) struct CallCase<'t> {
    pub operands: Vec<(&'t str, &'t str, Vec<f64>)>,
    pub target: &'t str,
    pub arguments: &'t str,
    pub results: Vec<(&'t str, Vec<f64>)>,
    /// The result is a list of tensors.
    pub list: bool,
    /// PyTorch raises an error, although its types fit.
    raises: bool,
}

fn numbers(text: &str) -> Vec<f64> {
    let mut out = Vec::new();
    for word in text.split_whitespace() {
        match word.split_once("..") {
            Some((a, b)) => {
                let (a, b): (i64, i64) = (a.parse().unwrap(), b.parse().unwrap());
                out.extend((a..b).map(|i| i as f64));
            }
            None => out.push(match word {
                "true" => 1.0,
                "false" => 0.0,
                _ => word.parse().unwrap_or_else(|_| panic!("number {word}")),
            }),
        }
    }
    out
}

fn typed(text: &str) -> (&str, Vec<f64>) {
    let (ty, data) = text.split_once(':').unwrap_or((text, ""));
    (ty.trim(), numbers(data))
}

pub(crate) fn case(line: &str) -> CallCase<'_> {
    let fields: Vec<&str> = line.split('|').map(str::trim).collect();
    let [operands, call, results] = fields.as_slice() else { panic!("three parts: {line}") };
    let operand = |text| {
        let text: &str = text;
        let (name, rest) = text.trim().split_once('=').expect("name=type");
        let (ty, data) = typed(rest);
        (name, ty, data)
    };
    let (target, arguments) = call.split_once(' ').unwrap_or((call, ""));
    let (list, results) = match results.strip_prefix("list ") {
        Some(rest) => (true, rest),
        None => (false, *results),
    };
    let (raises, results) = match results.strip_prefix("raises ") {
        Some(rest) => (true, rest),
        None => (false, results),
    };
    CallCase {
        operands: operands.split(';').filter(|t| !t.trim().is_empty()).map(operand).collect(),
        target,
        arguments,
        results: results.split(';').map(typed).collect(),
        list,
        raises,
    }
}

pub(crate) fn tensor(ty: &str, data: &[f64]) -> Tensor {
    let (dtype, dims) = ty.strip_suffix(']').and_then(|t| t.split_once('[')).unwrap();
    let shape: Vec<usize> =
        dims.split(',').filter(|d| !d.trim().is_empty()).map(|d| d.trim().parse().unwrap()).collect();
    let dtype = DType::from_name(dtype).unwrap_or_else(|| panic!("dtype {dtype}"));
    Tensor::from_f64(dtype, shape, data).unwrap_or_else(|| panic!("{} numbers for {ty}", data.len()))
}

/// The outcome of a call.
pub(crate) enum CallOutcome {
    /// The results for which the line has numbers.
    Results(Vec<Tensor>),
    /// The op stays opaque.
    Opaque(String),
    Refused(ImportError),
}

/// The graph of a call, imported as a program of one node.
pub(crate) fn imported(case: &CallCase<'_>) -> Result<Graph, ImportError> {
    let mut fake = Fake::new();
    for (name, ty, _) in &case.operands {
        fake = fake.input(name, ty);
    }
    let names: Vec<String> = (0..case.results.len()).map(|i| format!("r{i}")).collect();
    let results: Vec<(&str, &str)> =
        names.iter().zip(&case.results).map(|(n, r)| (n.as_str(), r.0)).collect();
    fake = match case.list {
        true => fake.list_node(case.target, case.arguments, &results),
        false => fake.node(case.target, case.arguments, &results),
    };
    for (name, result) in names.iter().zip(&case.results) {
        // A result without data is declared and not read.
        if !result.1.is_empty() || result.0.contains("[0") {
            fake = fake.output(name);
        }
    }
    let options = symmc_torch::ImportOptions { ranks: Some(1), ..Default::default() };
    symmc_torch::import(&fake.bytes(), &options).map(|imported| imported.graph)
}

/// Imports a call as a program of one node, and runs it in the reference interpreter.
pub(crate) fn outcome(case: &CallCase<'_>) -> Result<CallOutcome, String> {
    let graph = match imported(case) {
        Ok(graph) => graph,
        Err(error) => return Ok(CallOutcome::Refused(error)),
    };
    if let Some(op) = graph.nodes.values().find(|n| matches!(n.op, Op::Opaque { .. })) {
        return Ok(CallOutcome::Opaque(format!("{:?}", op.op)));
    }
    let inputs: Vec<Arc<Tensor>> = case.operands.iter().map(|o| Arc::new(tensor(o.1, &o.2))).collect();
    let outputs =
        symmc_ir::interp::run(&graph, &SymbolBindings::new(), &[inputs]).map_err(|e| e.to_string())?;
    let outputs = outputs.into_iter().next().unwrap_or_default();
    Ok(CallOutcome::Results(outputs))
}

/// The results of a line for which it has numbers.
pub(crate) fn expected(case: &CallCase<'_>) -> Vec<Tensor> {
    let with_numbers = case.results.iter().filter(|r| !r.1.is_empty() || r.0.contains("[0"));
    with_numbers.map(|(ty, data)| tensor(ty, data)).collect()
}

fn check(line: &str) -> Result<(), String> {
    let case = case(line);
    let results = match outcome(&case)? {
        CallOutcome::Refused(ImportError::Dtypes { .. }) if case.raises => return Ok(()),
        _ if case.raises => return Err("it is imported, and PyTorch raises".into()),
        CallOutcome::Results(results) => results,
        CallOutcome::Opaque(op) => return Err(format!("it stays opaque: {op}")),
        CallOutcome::Refused(error) => return Err(error.to_string()),
    };
    for (actual, expected) in results.iter().zip(expected(&case)) {
        near(actual, &expected)?;
    }
    Ok(())
}

#[test]
fn special_values_go_where_pytorch_has_them() {
    every_line(include_str!("special.txt"), check);
}

#[test]
fn every_op_gives_what_pytorch_gives() {
    every_line(include_str!("ops.txt"), check);
}
