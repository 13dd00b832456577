//! Whether the programs of all ranks are one: they may differ in the data of parameters and in names.

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::{Graph, Tensor, text};

use crate::error::Reason;

/// Holds the program of a rank against that of rank 0; returns the rank's weights by the names of rank 0.
pub(crate) fn agree(
    first: &str,
    expected: &Graph,
    mut found: Graph,
    mut weights: IndexMap<String, Arc<Tensor>>,
) -> Result<IndexMap<String, Arc<Tensor>>, Reason> {
    let mut out = IndexMap::new();
    if found.values.len() == expected.values.len() && found.inputs.len() == expected.inputs.len() {
        for (id, value) in expected.values.iter() {
            found.values[id].name.clone_from(&value.name);
        }
        for (id, input) in expected.inputs.iter() {
            if let Some(data) = weights.swap_remove(&found.inputs[id].source) {
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
    }
    if found == *expected {
        return Ok(out);
    }
    let (expected, found) = (text::print(expected), text::print(&found));
    let mut lines = expected.lines().zip(found.lines()).filter(|(e, f)| e != f);
    let (expected, found) = lines.next().unwrap_or(("a program of its length", "another"));
    Err(Reason::Difference { first: first.into(), expected: expected.into(), found: found.into() })
}
