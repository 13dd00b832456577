//! Runs that are recorded, each at some sizes in some memory, and those of them that are on streams.

use std::sync::Arc;

use symmc_runtime::exec::Bound;

use super::recent::Recent;
use crate::driver::{Event, Graph, Memory};
use crate::error::CudaError;
use crate::homes::Homes;
use crate::launch::Address;
use crate::nccl::Communicators;
use crate::program::{Program, Streams};

/// Bytes that are copied in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    pub to: Address,
    pub from: Address,
    pub bytes: usize,
}

/// Sizes in words, where everything lies, and what is copied: what tells recordings apart.
pub(super) type Key = (Arc<str>, Homes, [Vec<Move>; 2]);

/// A run at some sizes in some memory, recorded. Fields are dropped in this order.
pub(super) struct Recording {
    pub graph: Graph,
    pub program: Program,
    pub bound: Arc<Bound>,
    /// What is copied before the steps, and behind them.
    pub moves: [Vec<Move>; 2],
    /// Held as long as the recording may run.
    pub _memory: Vec<Arc<Memory>>,
}

// SAFETY: handles of the driver and of the vendor's libraries may be used from any thread; one session has the recording, and
// uses it from one thread at a time.
unsafe impl Send for Recording {}
// SAFETY: as above.
unsafe impl Sync for Recording {}

/// Puts one run on streams: what is copied before, the steps, and what is copied behind them.
pub(super) fn put(
    program: &Program,
    [before, after]: &[Vec<Move>; 2],
    streams: &Streams,
    nccl: &Communicators,
) -> Result<(), CudaError> {
    // SAFETY: the ranges exist and are apart: memory of the session, or lent for as many bytes.
    let copy = |m: &Move| unsafe { streams.compute.copy(m.to, m.from, m.bytes) };
    before.iter().try_for_each(copy)?;
    program.enqueue(streams, nccl)?;
    after.iter().try_for_each(copy)
}

/// The programs of a session.
pub(super) struct Programs {
    pub recent: Recent<Key, Arc<Recording>>,
    /// What had to go while it may still run.
    pub retired: Vec<Arc<Recording>>,
    /// What the caller's graphs hold.
    pub captured: Vec<Arc<Recording>>,
}

impl Programs {
    /// None yet, of which so many are to be kept.
    pub fn new(kept: usize) -> Programs {
        Programs { recent: Recent::new(kept), retired: Vec::new(), captured: Vec::new() }
    }
}

/// The runs that were put on streams.
pub(super) struct Flight {
    pub end: Event,
    /// The driver's handle of the stream of the last run.
    pub stream: Option<usize>,
    pub pending: bool,
    /// The number of the first run that may not have ended.
    pub first: u64,
    /// What may run now; the oldest first.
    pub recordings: Vec<Arc<Recording>>,
}

impl Flight {
    pub fn new(end: Event) -> Flight {
        Flight { end, stream: None, pending: false, first: 0, recordings: Vec::new() }
    }

    pub fn clear(&mut self) {
        (self.pending, self.recordings) = (false, Vec::new());
    }

    pub fn add(&mut self, recording: &Arc<Recording>, run: u64) {
        if !self.pending {
            (self.pending, self.first) = (true, run);
        }
        if self.recordings.last().is_none_or(|last| !Arc::ptr_eq(last, recording)) {
            self.recordings.push(recording.clone());
        }
    }
}
