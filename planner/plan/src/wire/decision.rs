//! How collectives were chosen: what the passes decide, and the plan says of it to people.
//!
//! Nothing of safety rests on these.

use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// The collective of the imported program: the name of its result. One that a pass added has the name of a value of that program
    /// and a suffix.
    pub collective: String,
    /// The nodes of the planned program that run it, by the names of their first results, each in one decision; none if
    /// others make it unnecessary.
    pub nodes: Vec<String>,
    /// The name of what was chosen, as in `alternatives`.
    pub chosen: String,
    /// Bytes that the estimates are for: the tensor of an all-reduce or all-to-all, the result of an
    /// all-gather, the operand of a reduce-scatter.
    pub bytes: u64,
    /// Every way that was considered, cheapest first, the chosen one among them; plain always is.
    pub alternatives: Vec<DecisionAlternative>,
    /// The rules that led from the imported collective to the chosen form, in order.
    pub rules: Vec<AppliedRule>,
}

/// A rule on the way from an imported collective to the form that was chosen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppliedRule {
    pub name: String,
    /// Estimated microseconds of what it put in place, copies included; none while that is a form that does
    /// not say how it is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
}

/// What became of a collective before the ways to run collectives were considered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveReplacement {
    /// The collective of the imported program: the name of its result.
    pub collective: String,
    /// The rule or pass that replaced it.
    pub rule: String,
    /// What that did, in words.
    pub what: String,
    /// The bytes of the tensor of an all-reduce or all-to-all, the result of an all-gather, or the operand of a reduce-scatter, at the upper
    /// ends of all symbols.
    pub bytes: u64,
    /// The collectives that do what is left of its work, by the names of their results. Each may have been replaced in turn. None if
    /// nothing is left to communicate.
    pub by: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionAlternative {
    /// Its name: a variant, or two joined with ` + `.
    pub name: String,
    /// Estimated microseconds that it adds to a run, copies included: its time, or, where compute can run beside it, what of
    /// its time that does not hide and what it takes from the compute ([`symmc_ir::machine`]).
    pub us: f64,
    /// The part of `us` that copies cost.
    pub copy_us: f64,
    /// How much less `us` is because the step that follows is part of the kernel, on a machine that fuses the two.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub saved_us: f64,
}

fn is_zero(us: &f64) -> bool {
    *us == 0.0
}
