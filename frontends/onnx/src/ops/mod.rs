//! The rules, by domain and op. One table per theme; [`supported`] prints the tables that [`find`] searches.

mod activations;
mod attention;
mod collectives;
mod create;
mod elementwise;
mod index;
mod linear;
mod normalize;
mod pieces;
mod reduce;
pub(crate) mod schemas;
mod sequences;
mod views;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::call::Call;
use crate::lower::Lowered;
use crate::proto;
use schemas::Schema;

/// Emits the nodes of one call.
pub(crate) type Rule = for<'a, 'c, 'p> fn(&'a mut Call<'c, 'p>) -> Lowered;

/// A row of a table.
pub(crate) struct Row {
    /// The name, behind its domain and two colons if that is not ONNX's own.
    pub name: &'static str,
    /// The newest version of the op that the rule was written for. A later one that [`schemas`] knows is refused.
    pub up_to: i64,
    /// What it becomes, for people.
    pub becomes: &'static str,
    pub rule: Rule,
}

pub(crate) const fn row(name: &'static str, up_to: i64, becomes: &'static str, rule: Rule) -> Row {
    Row { name, up_to, becomes, rule }
}

fn tables() -> [&'static [Row]; 12] {
    [
        elementwise::ROWS,
        activations::ROWS,
        linear::ROWS,
        normalize::ROWS,
        attention::ROWS,
        reduce::ROWS,
        views::ROWS,
        pieces::ROWS,
        sequences::ROWS,
        index::ROWS,
        create::ROWS,
        collectives::ROWS,
    ]
}

/// All rows in the order of the themes.
fn rows() -> impl Iterator<Item = &'static Row> {
    tables().into_iter().flatten()
}

/// A domain by one name: ONNX's own has two.
pub(crate) fn normalised(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// The op of a node for people.
pub(crate) fn display_name(node: &proto::Node) -> String {
    match normalised(&node.domain) {
        "" => node.op_type.clone(),
        domain => format!("{domain}::{}", node.op_type),
    }
}

/// The rule of an op.
pub(crate) fn find(domain: &str, op: &str) -> Option<&'static Row> {
    static ROWS: OnceLock<HashMap<&'static str, &'static Row>> = OnceLock::new();
    let rows = ROWS.get_or_init(|| rows().map(|r| (r.name, r)).collect());
    match normalised(domain) {
        "" => rows.get(op).copied(),
        domain => rows.get(format!("{domain}::{op}").as_str()).copied(),
    }
}

/// The definition of an op in a version of its operator set.
///
/// # Errors
/// Its rule was not written for that version, or there is no such op in it.
pub(crate) fn definition(row: &Row, version: i64) -> Result<&'static Schema, String> {
    let known = schemas::versions(row.name);
    let Some(schema) = known.iter().filter(|s| s.since <= version).max_by_key(|s| s.since) else {
        let first = known.iter().map(|s| s.since).min().unwrap_or(1);
        return Err(format!("expected version {first} or newer of its operators, found version {version}"));
    };
    if schema.since > row.up_to && !schema.deprecated {
        return Err(format!(
            "expected version {} or older of the op, found version {}",
            row.up_to, schema.since
        ));
    }
    Ok(schema)
}

/// Every op with what it becomes, in the order of the themes.
pub(crate) fn supported() -> Vec<(&'static str, &'static str)> {
    rows().map(|r| (r.name, r.becomes)).collect()
}
