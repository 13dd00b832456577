//! Compares the programs of all ranks. They may differ only in the data of parameters and in names.

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::{Graph, Tensor, text};

use crate::error::FailureReason;

/// Compares the program of a rank with that of rank 0. Returns the rank's weights under the names of rank 0.
pub(crate) fn compare_with_first(
    first: &str,
    expected: &Graph,
    mut found: Graph,
    mut weights: IndexMap<String, Arc<Tensor>>,
) -> Result<IndexMap<String, Arc<Tensor>>, FailureReason> {
    let mut out = IndexMap::new();
    let same_counts =
        found.values.len() == expected.values.len() && found.inputs.len() == expected.inputs.len();
    // Values and inputs that both programs have get the names of rank 0.
    for (id, value) in expected.values.iter().take(found.values.len()) {
        found.values[id].name.clone_from(&value.name);
    }
    for (id, input) in expected.inputs.iter().take(found.inputs.len()) {
        if let Some(data) = weights.swap_remove(&found.inputs[id].source).filter(|_| same_counts) {
            out.insert(input.source.clone(), data);
        }
        found.inputs[id].source.clone_from(&input.source);
    }
    if found.symbols.len() == expected.symbols.len() {
        for (id, symbol) in expected.symbols.iter() {
            found.symbols[id].name.clone_from(&symbol.name);
            found.symbols[id].alias.clone_from(&symbol.alias);
        }
    }
    if found == *expected {
        return Ok(out);
    }
    let (expected, found) = first_difference(&text::print(expected), &text::print(&found));
    Err(FailureReason::Difference { first: first.into(), expected, found })
}

/// The first lines that differ. Inputs are compared first, then symbols, nodes, and the rest.
fn first_difference(expected: &str, actual: &str) -> (String, String) {
    for part in [Some(0), Some(1), Some(2), None] {
        let expected: Vec<&str> = expected.lines().filter(|line| line_part(line) == part).collect();
        let actual: Vec<&str> = actual.lines().filter(|line| line_part(line) == part).collect();
        for i in 0..expected.len().max(actual.len()) {
            let x = expected.get(i).copied().unwrap_or("none");
            let y = actual.get(i).copied().unwrap_or("none");
            if expected.get(i) != actual.get(i) {
                return (x.into(), y.into());
            }
        }
    }
    ("a program".into(), "another".into())
}

fn line_part(line: &str) -> Option<usize> {
    const PARTS: [&[&str]; 3] = [&["arg ", "param ", "const "], &["symbol "], &["%", "return"]];
    PARTS.iter().position(|starts| starts.iter().any(|start| line.starts_with(start)))
}
