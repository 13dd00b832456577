//! The rules, by domain and op, in one table per theme. [`supported`] lists the rows that [`find_rule`]
//! searches.

mod activations;
mod attention;
mod attention_runtime;
mod collectives;
mod counted;
mod create;
mod elementwise;
mod index;
mod linear;
mod linear_attention;
mod loss;
mod normalize;
mod quantised;
mod recurrent;
mod reduce;
mod resize;
mod rotary;
mod sequences;
mod slicing;
mod views;
mod windows;

use symmc_import::RuleTables;

use crate::call::VersionedRule;
pub(crate) use crate::call::{RuleRow, row, row_of_results};
use crate::node::normalize_domain;
use crate::schemas::{self, OpSchema};

static RULE_TABLES: RuleTables<VersionedRule> = RuleTables::new(&[
    elementwise::RULE_ROWS,
    activations::RULE_ROWS,
    linear::RULE_ROWS,
    linear_attention::RULE_ROWS,
    loss::RULE_ROWS,
    normalize::RULE_ROWS,
    recurrent::RULE_ROWS,
    attention::RULE_ROWS,
    attention_runtime::RULE_ROWS,
    rotary::RULE_ROWS,
    reduce::RULE_ROWS,
    views::RULE_ROWS,
    slicing::RULE_ROWS,
    sequences::RULE_ROWS,
    index::RULE_ROWS,
    counted::RULE_ROWS,
    create::RULE_ROWS,
    windows::RULE_ROWS,
    quantised::RULE_ROWS,
    resize::RULE_ROWS,
    collectives::RULE_ROWS,
]);

pub(crate) fn find_rule(domain: &str, op: &str) -> Option<&'static RuleRow> {
    match normalize_domain(domain) {
        "" => RULE_TABLES.find_row(op),
        domain => RULE_TABLES.find_row(&format!("{domain}::{op}")),
    }
}

/// The schema of an op in a version of its operator set. Fails if the operator set does not have the op, or
/// its rule does not support that version.
pub(crate) fn find_definition(row: &RuleRow, version: i64) -> Result<&'static OpSchema, String> {
    let versions = schemas::op_versions(row.names);
    let Some(schema) = versions.iter().filter(|s| s.since <= version).max_by_key(|s| s.since) else {
        let first = versions.iter().map(|s| s.since).min().unwrap_or(1);
        return Err(format!(
            "expected version {first} or newer of the operator set, found version {version}"
        ));
    };
    if schema.since > row.rule.up_to && !schema.deprecated {
        return Err(format!(
            "expected version {} or older of the op, found version {}",
            row.rule.up_to, schema.since
        ));
    }
    Ok(schema)
}

pub(crate) fn supported() -> Vec<(&'static str, &'static str)> {
    RULE_TABLES.supported().into_iter().chain(crate::control_flow::SUPPORTED.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemas::{is_standard, newest_opset, op_versions};

    #[test]
    fn every_rule_is_of_a_version_that_is_known() {
        for row in RULE_TABLES.rows() {
            let versions = op_versions(row.names);
            assert!(versions.iter().any(|s| s.since == row.rule.up_to), "{}: {versions:?}", row.names);
            assert!(versions.iter().all(|s| s.since <= newest_opset()), "{}", row.names);
        }
        assert!(is_standard("Conv") && is_standard("Relu") && !is_standard("Convolution"));
    }

    #[test]
    fn what_is_newer_than_a_rule_is_refused() {
        let old = row_of_results("Clip", 11, "", |_| Ok(()));
        assert_eq!(find_definition(&old, 11).map(|s| s.since), Ok(11));
        let error = find_definition(&old, 12).expect_err("a newer version");
        assert_eq!(error, "expected version 11 or older of the op, found version 12");
        let error =
            find_definition(&row_of_results("Gelu", 20, "", |_| Ok(())), 19).expect_err("an older one");
        assert_eq!(error, "expected version 20 or newer of the operator set, found version 19");
    }
}
