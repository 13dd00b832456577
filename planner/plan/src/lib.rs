//! The plan: what the planner writes, what the check proves and what a runtime executes.
//!
//! A [`Plan`] is the plan as it is written (`wire.rs`, as JSON in `json.rs`): it names programs, values, nodes and
//! groups by text, so that it can be kept, compared and read elsewhere. A [`ReadPlan`] has its programs as graphs
//! (`read.rs`), each read once, when it is asked for; against those whoever works with it resolves what it says
//! (`resolve.rs`): ids, dims and dispatches. What a bucket takes by a machine profile is in `estimate.rs`.
//!
//! Not here: how plans are made, and whether they are safe.

mod estimate;
mod json;
mod read;
mod resolve;
mod wire;

pub use estimate::{CommunicationEstimate, Estimate};
pub use json::{PlanReadError, sha256};
pub use read::{ReadPlan, UnreadPlan};
pub use resolve::{Placed, ReadProgram, Run, Unread, Unresolved};
pub use wire::{
    ALIGN, Alternative, AppliedRule, ArenaKind, Arenas, Bucket, Buffer, ByRank, CopyReason, Decision,
    ExitBarrier, Fixed, ForcedCopy, Lane, MAX_SIZE, Memory, PAGE, PEER_ALIGN, Place, Plan, Reach,
    Replacement, Role, SourceProgram, Step, Totals, Unserved, VERSION,
};
