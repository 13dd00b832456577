//! The rules, by target. One table per theme; [`supported`] prints the tables that [`find`] searches.
//!
//! A row names an op (`aten.add`), which covers all its overloads, or one overload (`aten.max.dim`), which
//! takes precedence. In-place ops (`aten.add_`) go by the row of their functional counterpart
//! ([`crate::inplace`]). Overloads that write into an `out` argument are not covered.

mod activations;
mod attention;
mod backward;
mod collectives;
mod create;
mod elementwise;
mod facts;
mod index;
mod linear;
mod loss;
mod normalize;
mod pieces;
mod reduce;
mod scatter;
mod views;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::call::Call;
use crate::lower::Lowered;

/// Emits the nodes of one call.
pub(crate) type Rule = for<'a, 'c, 'p> fn(&'a mut Call<'c, 'p>) -> Lowered;

/// A row of a table.
pub(crate) struct Row {
    /// The target without `torch.ops.`.
    pub target: &'static str,
    /// What it becomes, for people.
    pub becomes: &'static str,
    pub rule: Rule,
}

pub(crate) const fn row(target: &'static str, becomes: &'static str, rule: Rule) -> Row {
    Row { target, becomes, rule }
}

fn tables() -> [&'static [Row]; 15] {
    [
        elementwise::ROWS,
        activations::ROWS,
        linear::ROWS,
        normalize::ROWS,
        attention::ROWS,
        reduce::ROWS,
        views::ROWS,
        pieces::ROWS,
        index::ROWS,
        scatter::ROWS,
        create::ROWS,
        loss::ROWS,
        backward::ROWS,
        collectives::ROWS,
        facts::ROWS,
    ]
}

/// The rule of a target of the program (`torch.ops.aten.add.Tensor`).
pub(crate) fn find(target: &str) -> Option<Rule> {
    static RULES: OnceLock<HashMap<&'static str, Rule>> = OnceLock::new();
    let rules = RULES.get_or_init(|| tables().into_iter().flatten().map(|r| (r.target, r.rule)).collect());
    let target = target.strip_prefix("torch.ops.").unwrap_or(target);
    if let Some(rule) = rules.get(target) {
        return Some(*rule);
    }
    let (op, overload) = target.rsplit_once('.')?;
    if overload == "out" || overload.ends_with("_out") {
        return None;
    }
    rules.get(op).copied()
}

/// The rule of the functional counterpart of an in-place op (`aten.add.Tensor` for `aten.add_.Tensor`).
pub(crate) fn find_functional(target: &str) -> Option<Rule> {
    let (op, overload) = target.rsplit_once('.')?;
    find(&format!("{}.{overload}", op.strip_suffix('_')?))
}

/// Every target with what it becomes, in the order of the themes.
pub(crate) fn supported() -> Vec<(&'static str, &'static str)> {
    tables().into_iter().flatten().map(|r| (r.target, r.becomes)).collect()
}
