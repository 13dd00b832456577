//! The choices for collectives: records of the passes' decisions, for people.
//!
//! Safety does not depend on them.

use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// The collective of the imported program: the name of its result. For a collective that a pass added, the
    /// name of a value of that program and a suffix.
    pub collective: String,
    /// The nodes of the planned program that implement it, by the names of their first results. Each node is in
    /// one decision. Empty if other collectives make it unnecessary.
    pub nodes: Vec<String>,
    /// The name of the chosen alternative, as in `alternatives`.
    pub chosen: String,
    /// The bytes that the estimates use: the tensor of an all-reduce or all-to-all, the result of an
    /// all-gather, the operand of a reduce-scatter.
    pub bytes: u64,
    /// All alternatives that were considered, cheapest first, including the chosen one; plain always is among
    /// them.
    pub alternatives: Vec<DecisionAlternative>,
    /// The rules that led from the imported collective to the chosen form, in order.
    pub rules: Vec<AppliedRule>,
}

/// A rule that was applied between an imported collective and the chosen form.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppliedRule {
    pub name: String,
    /// The estimated microseconds of the form after this rule, copies included. Absent while that form has no
    /// variants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
}

/// A collective that was replaced before the choice of variants.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveReplacement {
    /// The collective of the imported program: the name of its result.
    pub collective: String,
    /// The rule or pass that replaced it.
    pub rule: String,
    /// The effect of the rule, in words.
    pub what: String,
    /// The bytes of the tensor of an all-reduce or all-to-all, the result of an all-gather, or the operand of a
    /// reduce-scatter, at the upper bounds of all symbols.
    pub bytes: u64,
    /// The collectives that do the remaining work, by the names of their results. Each may have been replaced
    /// in turn. Empty if no communication remains.
    pub by: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionAlternative {
    /// The name: a variant, or two joined with ` + `.
    pub name: String,
    /// The estimated microseconds that it adds to a run, copies included. If compute can overlap it, this is
    /// the exposed part of its time plus the slowdown of the compute ([`symmc_ir::machine`]).
    pub us: f64,
    /// The part of `us` that copies cost.
    pub copy_us: f64,
    /// The reduction of `us` because the following step is part of the kernel, on a machine that fuses the two.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub saved_us: f64,
}

fn is_zero(us: &f64) -> bool {
    *us == 0.0
}
