//! The canonical form of a program.
//!
//! [`canonicalize`] rewrites by the tables of [`RULES`] and drops dead code. In canonical form:
//! - Values whose elements are known without running are a `full` or an `iota` under views ([`constants`]).
//! - Integers are compared and limited only where their range requires it, and not computed in floats
//!   ([`integers`]).
//! - The sort of the ids of experts is a `route`, together with its inverse and its counts ([`routing`]).
//! - Permutations of rows that undo each other are gone ([`permutations`]).
//! - A chain of views is one view if one can express it, and absent if it changes nothing ([`views`]).
//! - Casts, scalar ops and copies that change nothing are gone ([`identities`]).
//! - Operands are not expanded if the op broadcasts them itself ([`broadcasts`]).
//! - Products keep the axes of their operand instead of flattening them ([`products`]).
//! - `rms_norm`, `softmax`, `silu`, rotary embeddings and attention are single ops again ([`norms`],
//!   [`activations`], [`rotary`]). Attention has bounds instead of masks over positions ([`masks`]), and its
//!   heads are grouped ([`attention`]).
//! - Gradients of attention take heads of keys that are not repeated ([`gradient_heads`]).
//! - Values that are used only in part are computed only in part ([`demanded`]), and element-wise values that
//!   are read only by slices are computed slice by slice ([`split_maps`]).
//! - Reductions of gathered shards are reductions of shards ([`shards`]).
//! - Casts are adjacent to collectives, with no views in between ([`cast_motion`]).
//! - Attention and its gradients store their results in the order in which they are read
//!   ([`result_layouts`]).
//! - Collectives of values that ranks already have are gone ([`replicated`]).
//! - The same collective on groups with the same cells runs once, and gathers over the rows and columns of a
//!   mesh are one ([`groups`]).
//! - The pieces that ranks take of values are computed from pieces, and communicated alone ([`pieces`]).
//! - Adjacent slices of a value are communicated as one ([`sliced_collectives`]).
//! - Collectives on a single rank, of constants, and pairs that undo each other are gone. Collectives whose
//!   results are concatenated or combined element by element are one ([`collectives`]).
//! - Equal nodes exist once.
//!
//! No rule changes a result by more than the rounding of intermediate values that a fused op avoids. All
//! rules except those that recognise ops give the same bits.

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
pub mod integers;
pub mod masks;
pub mod norms;
pub mod permutations;
pub mod pieces;
pub mod products;
pub mod replicated;
pub mod result_layouts;
pub mod rotary;
pub mod routing;
pub mod shards;
pub mod sliced_collectives;
pub mod split_maps;
pub mod views;

use symmc_ir::{BoundsChecks, Graph, Op};

use crate::error::PassError;
use crate::rewrite::{ReplacedCollective, RewriteReport, RewriteRule, rewrite};
use shards::{JudgedSizes, ShardsConfig};

/// The rules of the canonical form, by theme, in the order in which they are tried.
pub const RULES: &[&[RewriteRule]] = &[
    constants::RULES,
    identities::RULES,
    integers::RULES,
    views::RULES,
    permutations::RULES,
    broadcasts::RULES,
    products::RULES,
    routing::RULES,
    norms::RULES,
    activations::RULES,
    rotary::RULES,
    attention::RULES,
    groups::RULES,
    replicated::RULES,
    pieces::RULES,
    collectives::RULES,
];

/// Rules that run last, because they remove slices and concatenations that other rules match.
pub const LAST_RULES: &[RewriteRule] = views::LAST_RULES;

/// The most times that a program is rewritten again because of the readers of its values.
const MAX_REPEATS: usize = 12;

/// Rewrites a graph once more and adds the outcome to a report.
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
    canonicalize_for_sizes(graph, JudgedSizes::Largest).map(|canonical| (canonical.graph, canonical.report))
}

/// The canonical forms of a program; either can be the faster one, depending on sizes.
#[derive(Clone, Debug)]
pub struct CanonicalForms {
    /// The result of [`canonicalize`]: rewriting that depends on sizes is judged at the upper ends of
    /// symbols.
    pub default_form: Graph,
    /// The form without those reductions of shards that do not pay at the smallest sizes, if it differs.
    pub for_small_sizes: Option<Graph>,
    /// The collectives that `default_form` replaced, in the order in which passes recorded them.
    pub replaced: Vec<ReplacedCollective>,
}

/// Returns the canonical forms of a program. The driver knows the sizes and the machine, and chooses one.
pub fn canonical_forms(graph: &Graph) -> Result<CanonicalForms, PassError> {
    let usual = canonicalize_for_sizes(graph, JudgedSizes::Largest)?;
    let for_small_sizes = if usual.depends_on_sizes {
        Some(canonicalize_for_sizes(graph, JudgedSizes::Smallest)?.graph).filter(|g| *g != usual.graph)
    } else {
        None
    };
    Ok(CanonicalForms { default_form: usual.graph, for_small_sizes, replaced: usual.report.replaced })
}

struct CanonicalizedGraph {
    graph: Graph,
    report: RewriteReport,
    /// Whether some rewrite does not pay at the smallest sizes.
    depends_on_sizes: bool,
}

fn canonicalize_for_sizes(graph: &Graph, sizes: JudgedSizes) -> Result<CanonicalizedGraph, PassError> {
    crate::error::verify_before("canonicalize", graph)?;
    let (mut out, mut report) = rewrite(graph, RULES, &BoundsChecks::derive(graph));
    let mut met_shared = report.met_shared;
    let mut depends_on_sizes = false;
    let config = ShardsConfig { bytes: shards::WORTH_A_COLLECTIVE, sizes };
    for _ in 0..MAX_REPEATS {
        // Each of these changes can enable another.
        let changed = gradient_heads::group_gradient_heads(&out)
            .or_else(|| demanded::narrow_to_demanded(&out))
            .or_else(|| {
                let reduced = shards::reduce_shards(&out, config)?;
                depends_on_sizes |= !reduced.at_all_sizes;
                report.replaced.extend(reduced.replaced);
                Some(reduced.graph)
            })
            .or_else(|| {
                let joined = sliced_collectives::join_sliced_collectives(&out)?;
                report.replaced.extend(joined.replaced);
                Some(joined.graph)
            })
            .or_else(|| routing::recognise_routes(&out))
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
    if let Some(split) = split_maps::split_maps(&out) {
        out = rewrite_again(&split, RULES, &mut report).0;
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
