//! Every rule, called with unusual arguments: tensors without axes and without elements, axes and indices out
//! of range, the limits of the integers. Each call is imported or rejected, without a panic, and no argument
//! of an op's schema is ignored. Imported programs are run on data if the data is small.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use symmc_ir::{Graph, SymbolBindings, Tensor};
use symmc_torch::ImportOptions;

use crate::common::Fake;

/// Numbers that are the same in every run of the test.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % below
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.next(from.len())]
    }
}

/// An argument of a schema: its type and its name.
struct SchemaArgument<'t> {
    ty: &'t str,
    name: &'t str,
}

/// Splits at commas outside brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    parts.retain(|p| !p.is_empty());
    parts
}

/// The target, the arguments and the types of the results of a line of `schemas.txt`.
fn schema(line: &str) -> (String, Vec<SchemaArgument<'_>>, Vec<&str>) {
    let (head, results) = line.rsplit_once(" -> ").expect("results");
    let (name, arguments) =
        head.strip_suffix(')').and_then(|h| h.split_once('(')).unwrap_or_else(|| panic!("arguments: {line}"));
    let name = name.replace("::", ".");
    let target = if name.matches('.').count() == 1 { format!("{name}.default") } else { name };
    let arguments = split(arguments)
        .into_iter()
        .filter(|p| !matches!(*p, "*" | "..."))
        .map(|p| {
            let (ty, name) = p
                .split('=')
                .next()
                .unwrap_or(p)
                .rsplit_once(' ')
                .unwrap_or_else(|| panic!("type and name: {line}"));
            SchemaArgument { ty, name }
        })
        .collect();
    let results = results.strip_prefix('(').and_then(|r| r.strip_suffix(')')).map_or(vec![results], split);
    (target, arguments, results)
}

const TENSOR_SHAPES: [&str; 12] =
    ["[]", "[]", "[0]", "[1]", "[2]", "[4]", "[2,3]", "[3,3]", "[0,3]", "[2,0,3]", "[2,3,4]", "[1,2,2,4]"];
/// Shapes that most ops accept.
const COMMON_SHAPES: [&str; 5] = ["[2,3]", "[3,3]", "[3]", "[2,4,3]", "[2,2,3,3]"];
const INT_VALUES: [&str; 12] =
    ["0", "1", "-1", "2", "-2", "3", "-3", "4", "5", "-100", "9223372036854775807", "-9223372036854775808"];
const LIST_VALUES: [&str; 12] = [
    "[]",
    "[0]",
    "[-1]",
    "[1]",
    "[0,1]",
    "[0,0]",
    "[2,3]",
    "[-1,-1]",
    "[100]",
    "[-100,2]",
    "[1,1,1,1]",
    "[9223372036854775807]",
];
const NUMBER_VALUES: [&str; 8] = ["0.0", "1.0", "-1.0", "0.5", "2", "-3", "inf", "-inf"];
const STRING_VALUES: [&str; 10] = [
    "'sum'",
    "'none'",
    "'tanh'",
    "'mean'",
    "'floor'",
    "'trunc'",
    "'constant'",
    "'ij'",
    "'ab,bc->ac'",
    "'amax'",
];
const TENSOR_DTYPES: [&str; 6] = ["f32", "f32", "f64", "i64", "bool", "bf16"];

/// A value for an argument. Tensors become inputs of the program. `None` omits the argument.
fn value(
    fake: &mut Fake,
    calm: bool,
    shapes: &[&str],
    of: &SchemaArgument<'_>,
    rng: &mut RandomNumbers,
) -> Option<String> {
    let bare = of.ty.split(['(', '[', '?']).next().unwrap_or(of.ty);
    let list = of.ty.contains("[]") || of.ty.ends_with(']') || of.ty.ends_with("]?");
    let tensor = |fake: &mut Fake, rng: &mut RandomNumbers| {
        let name = format!("t{}", fake.inputs.len());
        let dtype = match (calm, of.name) {
            (true, "index" | "indices" | "target") => "i64",
            (true, _) => "f32",
            _ => rng.pick(&TENSOR_DTYPES),
        };
        let ty = format!("{dtype}{}", rng.pick(shapes));
        *fake = std::mem::replace(fake, Fake::new()).input(&name, &ty);
        format!("%{name}")
    };
    if of.ty.contains('?') && rng.next(3) == 0 {
        return None;
    }
    Some(match (bare, list) {
        ("Tensor", true) => {
            let count = if calm { 2 } else { rng.next(4) };
            let items: Vec<String> = (0..count).map(|_| tensor(fake, rng)).collect();
            format!("[{}]", items.join(","))
        }
        ("Tensor", false) => tensor(fake, rng),
        ("int" | "SymInt", true) if calm && of.name == "normalized_shape" => "[3]".into(),
        ("int" | "SymInt", true) if calm => rng.pick(&["[0]", "[1]", "[2,3]", "[-1]", "[1,1]"]).into(),
        ("int" | "SymInt", false) if calm => rng.pick(&["0", "1", "-1", "1"]).into(),
        ("Scalar" | "number" | "float", true) => "[1,2]".into(),
        ("int" | "SymInt", true) => rng.pick(&LIST_VALUES).into(),
        ("int" | "SymInt", false) => rng.pick(&INT_VALUES).into(),
        ("float", false) => rng.pick(&NUMBER_VALUES).into(),
        ("number" | "Scalar", false) if rng.next(2) == 0 => rng.pick(&INT_VALUES).into(),
        ("number" | "Scalar", false) => rng.pick(&NUMBER_VALUES).into(),
        ("bool", true) => "[true,false,true]".into(),
        ("bool", false) => rng.pick(&["true", "false"]).into(),
        ("ScalarType", false) => format!(":{}", rng.pick(&TENSOR_DTYPES)),
        ("str", false) => rng.pick(&STRING_VALUES).into(),
        ("Any", false) if of.name.contains("group") => "'0'".into(),
        ("Any", false) => "'sum'".into(),
        _ => return None,
    })
}

/// A program that calls an op once.
fn call(line: &str, rng: &mut RandomNumbers) -> (Fake, String, Vec<String>) {
    let (target, arguments, results) = schema(line);
    let mut fake = Fake::new();
    // One shape is often used for all tensors, so that more calls are valid.
    let calm = rng.next(2) == 0;
    let single = [rng.pick(if calm { &COMMON_SHAPES } else { &TENSOR_SHAPES })];
    let shapes: &[&str] = if calm || rng.next(3) > 0 { &single } else { &TENSOR_SHAPES };
    let mut values = Vec::new();
    for argument in &arguments {
        if let Some(value) = value(&mut fake, calm, shapes, argument, rng) {
            values.push(format!("{}={value}", argument.name));
        }
    }
    let count: usize =
        results.iter().map(|r| usize::from(r.starts_with("Tensor")) << usize::from(r.contains("[]"))).sum();
    let names = (0..count).map(|i| format!("r{i}")).collect();
    (fake, format!("{target} {}", values.join(" ")), names)
}

/// Imports a call. If only the declared types of the results are wrong, imports it again with the types
/// found.
fn import(fake: &Fake, call: &str, names: &[String]) -> Result<Graph, String> {
    let (target, arguments) = call.split_once(' ').unwrap_or((call, ""));
    let mut types = vec!["f32[]".to_string(); names.len()];
    let options = ImportOptions { ranks: Some(2), ..ImportOptions::default() };
    for _ in 0..=2 * names.len() {
        let results: Vec<(&str, &str)> =
            names.iter().map(String::as_str).zip(types.iter().map(String::as_str)).collect();
        let list = target.contains("_foreach_") || target.contains("coalesced");
        let mut program = match list {
            true => fake.clone().list_node(target, arguments, &results),
            false => fake.clone().node(target, arguments, &results),
        };
        for name in names {
            program = program.output(name);
        }
        let error = match symmc_torch::import(&program.bytes(), &options) {
            Ok(imported) => return Ok(imported.graph),
            Err(e) => e.to_string(),
        };
        let message = error.split_once("` for `").map_or(error.as_str(), |(_, rest)| rest);
        let Some((ty, i)) = names.iter().enumerate().find_map(|(i, n)| {
            let tail = message.split_once(&format!("for `{n}`, found "))?.1;
            Some((tail.to_string(), i))
        }) else {
            return Err(error);
        };
        types[i] = ty;
    }
    Err("its results".into())
}

fn run(graph: &Graph) {
    let tensor = |ty: &symmc_ir::TensorType| {
        let shape = ty.concrete_shape(&SymbolBindings::new())?;
        let count: usize = shape.iter().product();
        (count <= 1000).then_some(())?;
        Tensor::from_f64(ty.dtype, shape, &vec![1.0; count]).map(Arc::new)
    };
    let small = graph.values.values().all(|v| {
        let numel = v.ty.concrete_shape(&SymbolBindings::new()).map(|s| s.iter().product::<usize>());
        numel.is_some_and(|n| n <= 1000)
    });
    let inputs: Option<Vec<_>> = graph.inputs.values().map(|i| tensor(graph.ty(i.value))).collect();
    if let Some(inputs) = inputs.filter(|_| small) {
        let _ = symmc_ir::interp::run(graph, &SymbolBindings::new(), &[inputs.clone(), inputs]);
    }
}

#[test]
fn every_rule_takes_odd_arguments_or_refuses_them() {
    let lines: Vec<&str> = include_str!("schemas.txt").lines().collect();
    assert!(lines.len() > 650, "{}", lines.len());
    let mut failures = Vec::new();
    let (mut imported, mut refused, mut never) = (0, 0, 0);
    for line in &lines {
        let mut rng = RandomNumbers(line.bytes().fold(7, |h, b| h * 31 % 1_000_003 + u64::from(b)));
        let mut ever = false;
        for _ in 0..CALLS_PER_SCHEMA {
            let (fake, call, names) = call(line, &mut rng);
            let done = catch_unwind(AssertUnwindSafe(|| {
                let graph = import(&fake, &call, &names);
                if let Ok(graph) = &graph {
                    run(graph);
                }
                graph
            }));
            match done {
                Err(_) => failures.push(format!("panic: {call}")),
                Ok(Err(e)) if e.contains("the argument `") => failures.push(format!("{call}: {e}")),
                Ok(Err(_)) => refused += 1,
                Ok(Ok(_)) => (imported, ever) = (imported + 1, true),
            }
        }
        never += usize::from(!ever);
    }
    // The test is only meaningful if enough calls are valid.
    assert!(
        imported > refused && never * 5 < lines.len(),
        "{imported} imported, {refused} refused, {never} ops never imported"
    );
    failures.sort();
    failures.dedup();
    assert!(failures.is_empty(), "{} calls:\n{}", failures.len(), failures.join("\n"));
}

/// The number of calls of each schema.
const CALLS_PER_SCHEMA: usize = 24;
