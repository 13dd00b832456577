//! Spans for the code of a rank, so that each line of the log names the rank.
//!
//! Events have the targets `symmc::join`, `symmc::session`, `symmc::gpu` and `symmc::run`, in whichever crate
//! their code is (docs/debugging.md). An event or span without a subscriber costs one load and formats
//! nothing.

use tracing::span::EnteredSpan;
use tracing::{Level, Span};

const NAME: &str = "rank";

/// Enters the span of a rank until the returned value is dropped. Does nothing if the thread is in such a
/// span already.
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
