//! The rules, by target. One table per theme; [`supported`] prints the tables that [`find`] searches.
//!
//! A row names an op (`aten.add`), which covers all its overloads, or one overload (`aten.max.dim`), which
//! takes precedence. Ops that write (`aten.add_`, `aten.add.out`) go by the row of their functional counterpart
//! ([`crate::inplace`]); those that have none have rows of their own, whose results are the new contents of what they
//! write.

mod activations;
mod attention;
mod backward;
mod bags;
mod collectives;
pub(crate) mod complex;
mod convolution;
mod create;
mod elementwise;
mod facts;
mod foreach;
mod index;
mod linear;
mod loss;
mod normalize;
pub(crate) mod pieces;
mod reduce;
mod scatter;
mod strided;
mod triangular;
mod views;
mod windows;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::call::Call;
use crate::effects::bare;
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

/// Why an op that draws random numbers is refused.
pub(crate) const DRAWS: &str = "it draws random numbers, which a program cannot: export the model in evaluation mode, \
                                or make the numbers an argument";

fn tables() -> [&'static [Row]; 24] {
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
        collectives::WRITING,
        foreach::ROWS,
        facts::ROWS,
        complex::ROWS,
        complex::TRANSFORMS,
        convolution::ROWS,
        windows::ROWS,
        strided::ROWS,
        bags::ROWS,
        triangular::ROWS,
    ]
}

/// The rule of a target of the program (`torch.ops.aten.add.Tensor`).
pub(crate) fn find(target: &str) -> Option<Rule> {
    static RULES: OnceLock<HashMap<&'static str, Rule>> = OnceLock::new();
    let rules = RULES.get_or_init(|| tables().into_iter().flatten().map(|r| (r.target, r.rule)).collect());
    let target = bare(target);
    rules.get(target).or_else(|| rules.get(target.rsplit_once('.')?.0)).copied()
}

/// The rule of an op that writes and has no functional counterpart: its results are the new contents.
pub(crate) fn find_writing(target: &str) -> Option<Rule> {
    let op = bare(target).rsplit_once('.')?.0;
    collectives::WRITING.iter().find(|r| r.target == op).map(|r| r.rule)
}

/// Every target with what it becomes, in the order of the themes.
pub(crate) fn supported() -> Vec<(&'static str, &'static str)> {
    tables().into_iter().flatten().map(|r| (r.target, r.becomes)).collect()
}
