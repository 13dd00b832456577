//! The dtypes that operators take (`dtypes.txt`, made by `tools/calls.py`): for each pair of dtypes a call gives the dtype that
//! PyTorch gives, stays opaque, or is refused where PyTorch raises.

use symmc_ir::{Graph, Op};
use symmc_torch::{ImportError, ImportOptions};

use crate::common::Fake;

/// The dtypes of rows and columns, with their letters.
const DTYPES: [(&str, char); 8] = [
    ("bool", 'b'),
    ("u8", 'u'),
    ("i32", 'i'),
    ("i64", 'l'),
    ("f16", 'h'),
    ("bf16", 'y'),
    ("f32", 'f'),
    ("f64", 'd'),
];

/// A line of the table.
struct Line<'t> {
    /// The dtype and the shape of each operand.
    operands: Vec<(&'t str, &'t str)>,
    target: &'t str,
    arguments: &'t str,
    list: bool,
    /// The shape of each result.
    results: Vec<&'t str>,
    /// The operand whose dtype the columns are.
    varied: usize,
    cells: Vec<Vec<&'t str>>,
}

/// The dtype and the shape of a type.
fn typed(word: &str) -> (&str, &str) {
    word.find('[').map(|at| word.split_at(at)).expect("a type")
}

fn line(text: &str) -> Line<'_> {
    let parts: Vec<&str> = text.split(" | ").collect();
    let [operands, call, results, varied, cells] = parts.as_slice() else { panic!("five parts: {text}") };
    let (target, arguments) = call.split_once(' ').expect("arguments");
    let (list, results) = match results.strip_prefix("list ") {
        Some(rest) => (true, rest),
        None => (false, *results),
    };
    Line {
        operands: operands.split(' ').map(typed).collect(),
        target,
        arguments,
        list,
        results: results.split(' ').collect(),
        varied: varied.parse().expect("a number"),
        cells: cells.split('/').map(|row| row.split('-').collect()).collect(),
    }
}

/// A call whose operands have one dtype, but for one of them.
fn program(line: &Line<'_>, main: &str, other: &str, results: &[String]) -> Fake {
    let first = line.operands[0].0;
    let mut fake = Fake::new();
    for (i, (dtype, shape)) in line.operands.iter().enumerate() {
        let dtype = match (i == line.varied, *dtype == first) {
            (true, _) => other,
            (false, true) => main,
            (false, false) => dtype,
        };
        fake = fake.input(&format!("t{i}"), &format!("{dtype}{shape}"));
    }
    let arguments = line.arguments.replace(":main", &format!(":{main}"));
    let names: Vec<String> = (0..results.len()).map(|i| format!("r{i}")).collect();
    let typed: Vec<(&str, &str)> =
        names.iter().map(String::as_str).zip(results.iter().map(String::as_str)).collect();
    fake = match line.list {
        true => fake.list_node(line.target, &arguments, &typed),
        false => fake.node(line.target, &arguments, &typed),
    };
    names.iter().fold(fake, |fake, name| fake.output(name))
}

fn import(fake: &Fake) -> Result<Graph, ImportError> {
    let options = ImportOptions { ranks: Some(1), ..ImportOptions::default() };
    symmc_torch::import(&fake.bytes(), &options).map(|imported| imported.graph)
}

fn is_opaque(graph: &Graph) -> bool {
    graph.nodes.values().any(|n| matches!(n.op, Op::Opaque { .. }))
}

/// What is wrong with a call that PyTorch gives results of these dtypes for.
fn accepted(line: &Line<'_>, main: &str, other: &str, cell: &str) -> Option<String> {
    let letter = |c: char| DTYPES.iter().find(|d| d.1 == c).map(|d| d.0);
    let dtypes: Option<Vec<&str>> = cell.chars().map(letter).collect();
    let results: Vec<String> = dtypes?.iter().zip(&line.results).map(|(d, s)| format!("{d}{s}")).collect();
    import(&program(line, main, other, &results)).err().map(|e| e.to_string())
}

/// What is wrong with a call for which PyTorch raises: it is imported, if only as another dtype than the program declares.
fn refused(line: &Line<'_>, main: &str, other: &str) -> Option<String> {
    let results: Vec<String> = line.results.iter().map(|s| format!("{main}{s}")).collect();
    match import(&program(line, main, other, &results)) {
        Ok(graph) if is_opaque(&graph) => None,
        Ok(_) => Some(format!("imported as {main}")),
        Err(error @ ImportError::Type { .. }) => Some(format!("imported as another: {error}")),
        Err(_) => None,
    }
}

#[test]
fn operators_take_the_dtypes_that_pytorch_takes() {
    let (mut cells, mut wrong) = (0, Vec::new());
    for text in include_str!("dtypes.txt").lines() {
        let line = line(text);
        for ((main, _), row) in DTYPES.iter().zip(&line.cells) {
            for ((other, _), cell) in DTYPES.iter().zip(row) {
                let found = match *cell {
                    cell if cell.contains(',') => None,
                    "." => refused(&line, main, other),
                    cell => accepted(&line, main, other, cell),
                };
                cells += 1;
                let at = line.varied;
                wrong.extend(found.map(|how| {
                    format!(
                        "{} {}, operands {main}, operand {at} {other}, PyTorch {cell}: {how}",
                        line.target, line.arguments
                    )
                }));
            }
        }
    }
    assert!(cells > 10_000 && wrong.is_empty(), "{} of {cells}:\n{}", wrong.len(), wrong.join("\n"));
}
