//! The plan: the planner writes it, the plan check verifies it, and a runtime executes it.
//!
//! A [`Plan`] is the wire form (`wire.rs`, as JSON in `json.rs`). It refers to programs, values, nodes and
//! groups by text, so that it can be stored, compared and read elsewhere. A [`ParsedPlan`] holds the programs
//! as graphs (`read.rs`); each is parsed once, on first use. Code that works with a plan resolves its names
//! against these graphs (`resolve.rs`): ids, dims and dispatches. `estimate.rs` estimates the time of a bucket
//! with a machine profile.
//!
//! How plans are made, and whether they are safe, belongs to other crates.
//! Not here: how plans are made, and whether they are safe.

mod estimate;
mod json;
mod read;
mod resolve;
mod texts;
mod wire;

pub use estimate::{BucketEstimate, CommunicationEstimate};
pub use json::{PlanReadError, sha256_hex};
pub use read::{ParsedPlan, PlanProgramError};
pub use resolve::{ParsedProgram, ProgramReadError, ResolveError, ResolvedPlacement, StepNodes};
pub use texts::MAX_TEXT_BYTES;
pub use wire::{
    ALIGN, AppliedRule, ArenaKind, ArenaSizes, Bucket, BucketTotals, Buffer, CollectiveReplacement,
    CopyReason, Decision, DecisionAlternative, ExitBarrier, FixedRegion, FixedRole, ForcedCopy, Lane,
    MAX_SIZE, MemoryRef, PAGE, PEER_ALIGN, PeerReach, PerRankOffset, Plan, SourceProgram, Step,
    UnservedSizes, VERSION, ValuePlacement,
};
