//! The plan: what the planner writes, what the check proves and what a runtime executes.
//!
//! A [`Plan`] is the plan as it is written (`wire.rs`, as JSON in `json.rs`): it names programs, values, nodes and
//! groups by text, so that it can be kept, compared and read elsewhere. A [`ParsedPlan`] has its programs as graphs
//! (`read.rs`), each read once, when it is asked for; against those whoever works with it resolves what it says
//! (`resolve.rs`): ids, dims and dispatches. What a bucket takes by a machine profile is in `estimate.rs`.
//!
//! Not here: how plans are made, and whether they are safe.

mod estimate;
mod json;
mod read;
mod resolve;
mod wire;

pub use estimate::{BucketEstimate, CommunicationEstimate};
pub use json::{PlanReadError, sha256_hex};
pub use read::{ParsedPlan, PlanProgramError};
pub use resolve::{ParsedProgram, ProgramReadError, ResolveError, ResolvedPlacement, StepNodes};
pub use wire::{
    ALIGN, AppliedRule, ArenaKind, ArenaSizes, Bucket, BucketTotals, Buffer, CollectiveReplacement,
    CopyReason, Decision, DecisionAlternative, ExitBarrier, FixedRegion, FixedRole, ForcedCopy, Lane,
    MAX_SIZE, MemoryRef, PAGE, PEER_ALIGN, PeerReach, PerRankOffset, Plan, SourceProgram, Step,
    UnservedSizes, VERSION, ValuePlacement,
};
