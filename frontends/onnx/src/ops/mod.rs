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
mod sequences;
mod views;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::call::Call;
use crate::lower::Lowered;
use crate::proto;

/// Emits the nodes of one call.
pub(crate) type Rule = for<'a, 'c, 'p> fn(&'a mut Call<'c, 'p>) -> Lowered;

/// A row of a table.
pub(crate) struct Row {
    /// The name, behind its domain and two colons if that is not ONNX's own.
    pub name: &'static str,
    /// What it becomes, for people.
    pub becomes: &'static str,
    pub rule: Rule,
}

pub(crate) const fn row(name: &'static str, becomes: &'static str, rule: Rule) -> Row {
    Row { name, becomes, rule }
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
pub(crate) fn find(domain: &str, op: &str) -> Option<Rule> {
    static RULES: OnceLock<HashMap<&'static str, Rule>> = OnceLock::new();
    let rules = RULES.get_or_init(|| tables().into_iter().flatten().map(|r| (r.name, r.rule)).collect());
    match normalised(domain) {
        "" => rules.get(op).copied(),
        domain => rules.get(format!("{domain}::{op}").as_str()).copied(),
    }
}

/// Every op with what it becomes, in the order of the themes.
pub(crate) fn supported() -> Vec<(&'static str, &'static str)> {
    tables().into_iter().flatten().map(|r| (r.name, r.becomes)).collect()
}
