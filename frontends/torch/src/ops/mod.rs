//! The rules, by target, in one table per theme. [`supported`] lists the rows that [`find_rule`] searches.
//!
//! A row names ops (`aten.add`), with all their overloads, or single overloads (`aten.max.dim`), which take
//! precedence. Ops that write (`aten.add_`, `aten.add.out`) use the row of their functional counterpart
//! ([`crate::inplace`]). Ops without a counterpart have separate rows, whose results are the new contents of
//! what they write.

mod activations;
mod attention;
mod backward;
mod batch_norm;
mod collectives;
pub(crate) mod complex;
mod convolution;
mod counted;
mod create;
mod elementwise;
mod embedding_bag;
mod exchanges;
mod facts;
mod foreach;
mod functions;
mod index;
mod linear;
mod loss;
mod normalize;
mod padding;
mod quantised;
mod recurrent;
mod reduce;
mod resample;
mod scatter;
pub(crate) mod slicing;
mod statistics;
mod strided;
mod triangular;
mod views;
mod windows;

use symmc_import::RuleTables;

pub(crate) use crate::call::{OpRule, RuleRow, row, row_of_results};
use crate::effects::bare_target;

static RULE_TABLES: RuleTables<OpRule> = RuleTables::new(&[
    elementwise::RULE_ROWS,
    functions::RULE_ROWS,
    activations::RULE_ROWS,
    linear::RULE_ROWS,
    normalize::RULE_ROWS,
    attention::RULE_ROWS,
    reduce::RULE_ROWS,
    statistics::RULE_ROWS,
    views::RULE_ROWS,
    slicing::RULE_ROWS,
    index::RULE_ROWS,
    scatter::RULE_ROWS,
    counted::RULE_ROWS,
    create::RULE_ROWS,
    loss::RULE_ROWS,
    recurrent::RULE_ROWS,
    backward::RULE_ROWS,
    collectives::RULE_ROWS,
    collectives::WRITING_RULE_ROWS,
    exchanges::RULE_ROWS,
    exchanges::WRITING_RULE_ROWS,
    foreach::RULE_ROWS,
    facts::RULE_ROWS,
    complex::RULE_ROWS,
    complex::TRANSFORMS,
    convolution::RULE_ROWS,
    windows::RULE_ROWS,
    batch_norm::RULE_ROWS,
    resample::RULE_ROWS,
    padding::RULE_ROWS,
    strided::RULE_ROWS,
    embedding_bag::RULE_ROWS,
    triangular::RULE_ROWS,
    quantised::RULE_ROWS,
]);

pub(crate) fn find_rule(target: &str) -> Option<OpRule> {
    let target = bare_target(target);
    let row = RULE_TABLES.find_row(target).or_else(|| RULE_TABLES.find_row(target.rsplit_once('.')?.0));
    row.map(|r| r.rule)
}

/// The rule of an op that writes and has no functional counterpart. Its results are the new contents.
pub(crate) fn find_writing(target: &str) -> Option<OpRule> {
    let op = bare_target(target).rsplit_once('.')?.0;
    let rows = collectives::WRITING_RULE_ROWS.iter().chain(exchanges::WRITING_RULE_ROWS);
    let rows = rows.chain(batch_norm::RULE_ROWS);
    rows.into_iter().find(|r| r.has_name(op)).map(|r| r.rule)
}

/// Every target with the ops that it becomes, in the order of the themes.
pub(crate) fn supported() -> Vec<(&'static str, &'static str)> {
    RULE_TABLES.supported()
}
