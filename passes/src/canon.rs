//! The canonical form of a program.
//!
//! [`canonicalize`] rewrites by the tables of [`RULES`] and drops dead code. In canonical form
//! - what is known without running is a `full` or an `iota` under views ([`constants`]),
//! - chains of views are one view where one can express them, and none where nothing changes ([`views`]),
//! - casts, scalar ops and copies that change nothing are gone ([`identities`]),
//! - operands are not expanded where the op broadcasts by itself ([`broadcasts`]),
//! - products keep the axes of their operand instead of flattening them ([`products`]),
//! - `rms_norm`, `softmax`, `silu`, rotary embeddings and attention are whole again ([`norms`], [`activations`],
//!   [`rotary`]), attention has bounds instead of masks that say what positions see ([`masks`]), and its heads are grouped
//!   ([`attention`]),
//! - gradients of attention take heads of keys that are not repeated ([`gradient_heads`]),
//! - values of which only a part is used are computed in part ([`demanded`]),
//! - reductions of gathered shards are reductions of shards ([`shards`]),
//! - casts stand next to collectives instead of behind views of these ([`cast_motion`]),
//! - attention and its gradients store their results in the order in which they are read ([`result_layouts`]),
//! - collectives of values that ranks have already are gone, and pieces of gathers and sums are taken without these ([`replicated`]),
//! - the same collective on groups with the same cells runs once, and gathers over the rows and columns of a mesh are one ([`groups`]),
//! - collectives between one rank, of constants and that undo one another are gone, and those that are concatenated or
//!   combined element by element are one ([`collectives`]),
//! - equal nodes exist once.
//!
//! No rule changes a result by more than the rounding of intermediate values that a fused op avoids; all but the
//! recognised ops give the same bits.

pub mod activations;
pub mod attention;
pub mod broadcasts;
pub mod cast_motion;
pub mod collectives;
pub mod constants;
pub mod demanded;
pub mod gradient_heads;
pub mod groups;
pub mod identities;
pub mod masks;
pub mod norms;
pub mod products;
pub mod replaced_collectives;
pub mod replicated;
pub mod result_layouts;
pub mod rotary;
pub mod shards;
pub mod views;

use symmc_ir::{BoundsChecks, Graph, Op};

use crate::error::PassError;
use crate::rewrite::{RewriteReport, RewriteRule, rewrite};
use replaced_collectives::ReplacedCollective;
use shards::{JudgedSizes, ShardsConfig};

/// The rules of the canonical form, by theme, in the order in which they are tried.
pub const RULES: &[&[RewriteRule]] = &[
    constants::RULES,
    identities::RULES,
    views::RULES,
    broadcasts::RULES,
    products::RULES,
    norms::RULES,
    activations::RULES,
    rotary::RULES,
    attention::RULES,
    groups::RULES,
    replicated::RULES,
    collectives::RULES,
];

/// Rules that run last, because they remove slices and concatenations that other rules match.
pub const LAST_RULES: &[RewriteRule] = views::LAST_RULES;

/// Times that a program is rewritten again because of what reads its values.
const MOST_REPEATS: usize = 12;

/// Rewrites once more, and adds to a report what that did.
fn rewrite_again(
    graph: &Graph,
    rules: &[&[RewriteRule]],
    report: &mut RewriteReport,
) -> (Graph, RewriteReport) {
    let (out, more) = rewrite(graph, rules, &BoundsChecks::default());
    for (&rule, count) in &more.fired {
        *report.fired.entry(rule).or_default() += count;
    }
    report.replaced.extend(more.replaced.iter().cloned());
    report.nodes_after = more.nodes_after;
    (out, more)
}

pub fn canonicalize(graph: &Graph) -> Result<(Graph, RewriteReport), PassError> {
    canonicalize_for_sizes(graph, JudgedSizes::Largest).map(|found| (found.graph, found.report))
}

/// The canonical forms of a program of which one can be faster at some sizes and the other at others.
#[derive(Clone, Debug)]
pub struct CanonicalForms {
    /// The one of [`canonicalize`]: rewriting that depends on sizes is judged at the upper ends of symbols.
    pub default_form: Graph,
    /// The one without reductions of shards that are not worth it at the smallest sizes, if that differs.
    pub for_small_sizes: Option<Graph>,
    /// What became of collectives in the usual one, as passes recorded it one after another.
    pub replaced: Vec<ReplacedCollective>,
}

/// The canonical forms of a program. The driver knows the sizes and the machine, and chooses.
pub fn canonical_forms(graph: &Graph) -> Result<CanonicalForms, PassError> {
    let usual = canonicalize_for_sizes(graph, JudgedSizes::Largest)?;
    let for_small_sizes = match usual.depends_on_sizes {
        true => {
            Some(canonicalize_for_sizes(graph, JudgedSizes::Smallest)?.graph).filter(|g| *g != usual.graph)
        }
        false => None,
    };
    Ok(CanonicalForms { default_form: usual.graph, for_small_sizes, replaced: usual.report.replaced })
}

struct CanonicalizedGraph {
    graph: Graph,
    report: RewriteReport,
    /// Whether something was rewritten that is not worth it at the smallest sizes.
    depends_on_sizes: bool,
}

fn canonicalize_for_sizes(graph: &Graph, sizes: JudgedSizes) -> Result<CanonicalizedGraph, PassError> {
    crate::error::verify_before("canonicalize", graph)?;
    let (mut out, mut report) = rewrite(graph, RULES, &BoundsChecks::derive(graph));
    let mut met_shared = report.met_shared;
    let mut depends_on_sizes = false;
    let config = ShardsConfig { bytes: shards::WORTH_A_COLLECTIVE, sizes };
    for _ in 0..MOST_REPEATS {
        // Each of these changes can enable another.
        let changed = gradient_heads::group_gradient_heads(&out)
            .or_else(|| demanded::narrow_to_demanded(&out))
            .or_else(|| {
                let reduced = shards::reduce_shards(&out, config)?;
                depends_on_sizes |= !reduced.at_all_sizes;
                report.replaced.extend(reduced.replaced);
                Some(reduced.graph)
            })
            .or_else(|| cast_motion::move_casts_to_collectives(&out))
            .or_else(|| result_layouts::store_as_read(&out));
        if changed.is_none() && !met_shared {
            break;
        }
        let by_readers = changed.is_some();
        let (next, more) = rewrite_again(changed.as_ref().unwrap_or(&out), RULES, &mut report);
        out = next;
        // A value that several nodes needed in the source may be needed by one now.
        met_shared = more.met_shared && (by_readers || !more.fired.is_empty());
    }
    if out.nodes.values().any(|node| matches!(node.op, Op::Concat { .. })) {
        let rules: Vec<&[RewriteRule]> = RULES.iter().copied().chain([LAST_RULES]).collect();
        out = rewrite_again(&out, &rules, &mut report).0;
    }
    if cfg!(debug_assertions) {
        crate::error::verify_after("canonicalize", &out)?;
    }
    Ok(CanonicalizedGraph { graph: out, report, depends_on_sizes })
}
