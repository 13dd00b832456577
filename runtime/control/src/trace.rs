//! The spans in which code of a rank runs, so that each line of the log names the rank.
//!
//! Events have the targets `symmc::join`, `symmc::session`, `symmc::gpu` and `symmc::run`, wherever their code lies (docs/debugging.md).
//! An event or span that no subscriber wants costs one load, and nothing is formatted for it.

use tracing::span::EnteredSpan;
use tracing::{Level, Span};

const NAME: &str = "rank";

/// Enters the span of a rank for as long as the value lives, unless the thread is in one.
pub fn enter_rank_span(rank: u32) -> Option<EnteredSpan> {
    if !tracing::span_enabled!(target: "symmc::rank", Level::ERROR) {
        return None;
    }
    let is_inside = Span::current().metadata().is_some_and(|metadata| metadata.name() == NAME);
    (!is_inside).then(|| tracing::error_span!(target: "symmc::rank", NAME, rank).entered())
}

pub(crate) fn enter_coordinator_span() -> EnteredSpan {
    tracing::error_span!(target: "symmc::rank", "coordinator").entered()
}
