//! The rules, by target, in one table per theme. [`supported`] lists the rows that [`find_rule`] searches.
//!
//! A row names an op (`aten.add`), which covers all its overloads, or one overload (`aten.max.dim`), which
//! takes precedence. Ops that write (`aten.add_`, `aten.add.out`) use the row of their functional counterpart
//! ([`crate::inplace`]). Ops without a counterpart have separate rows, whose results are the new contents of
//! what they write.

mod activations;
mod attention;
mod backward;
mod collectives;
pub(crate) mod complex;
mod convolution;
mod create;
mod elementwise;
mod embedding_bag;
mod exchanges;
mod facts;
mod foreach;
mod index;
mod linear;
mod loss;
mod normalize;
mod reduce;
mod scatter;
pub(crate) mod slicing;
mod strided;
mod triangular;
mod views;
mod windows;

use symmc_import::RuleTables;

pub(crate) use crate::call::{OpRule, RuleRow, row, row_of_results};
use crate::effects::bare_target;

static TABLES: RuleTables<OpRule> = RuleTables::new(&[
    elementwise::ROWS,
    activations::ROWS,
    linear::ROWS,
    normalize::ROWS,
    attention::ROWS,
    reduce::ROWS,
    views::ROWS,
    slicing::ROWS,
    index::ROWS,
    scatter::ROWS,
    create::ROWS,
    loss::ROWS,
    backward::ROWS,
    collectives::ROWS,
    collectives::WRITING,
    exchanges::ROWS,
    exchanges::WRITING,
    foreach::ROWS,
    facts::ROWS,
    complex::ROWS,
    complex::TRANSFORMS,
    convolution::ROWS,
    windows::ROWS,
    strided::ROWS,
    embedding_bag::ROWS,
    triangular::ROWS,
]);

pub(crate) fn find_rule(target: &str) -> Option<OpRule> {
    let target = bare_target(target);
    let row = TABLES.find_row(target).or_else(|| TABLES.find_row(target.rsplit_once('.')?.0));
    row.map(|r| r.rule)
}

/// The rule of an op that writes and has no functional counterpart. Its results are the new contents.
pub(crate) fn find_writing(target: &str) -> Option<OpRule> {
    let op = bare_target(target).rsplit_once('.')?.0;
    let rows = collectives::WRITING.iter().chain(exchanges::WRITING);
    rows.into_iter().find(|r| r.name == op).map(|r| r.rule)
}

/// Every target with the ops that it becomes, in the order of the themes.
pub(crate) fn supported() -> Vec<(&'static str, &'static str)> {
    TABLES.supported()
}
