//! The findings of [`check`](super::check): one variant for each rule that a plan can break.
//!
//! A finding names the bucket, the step and its node, the state that the rule expects and the state that the
//! plan has. Messages speak of the plan only. They suggest no remedy, because the plan may come from any
//! planner.

use std::fmt;

use symmc_plan::{ArenaKind, MemoryRef, PeerReach, ResolveError};
use thiserror::Error;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StepLocation {
    pub bucket: usize,
    pub step: usize,
    pub node: String,
}

impl fmt::Display for StepLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bucket {}, step {} (%{})", self.bucket, self.step, self.node)
    }
}

/// The point of a run at which an access happens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AccessMoment {
    /// The start of a run: the caller writes bound inputs.
    Start {
        bucket: usize,
    },
    Step(StepLocation),
    /// The end of a run: the caller reads the outputs.
    End {
        bucket: usize,
    },
}

impl fmt::Display for AccessMoment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessMoment::Start { bucket } => write!(f, "the start of a run of bucket {bucket}"),
            AccessMoment::Step(step) => write!(f, "{step}"),
            AccessMoment::End { bucket } => write!(f, "the end of a run of bucket {bucket}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Accessor {
    /// The rank that the memory belongs to.
    Own,
    Peers,
    Caller,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MemoryAccess {
    pub moment: AccessMoment,
    pub accessor: Accessor,
    pub write: bool,
    /// The name of the base value whose bytes are accessed.
    pub value: String,
}

impl fmt::Display for MemoryAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accessor = match self.accessor {
            Accessor::Own => "the rank",
            Accessor::Peers => "its peers",
            Accessor::Caller => "the caller",
        };
        let verb = if self.write { "write" } else { "read" };
        write!(f, "the {verb} of %{} by {accessor} at {}", self.value, self.moment)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ValueSide {
    Operand,
    Result,
}

impl fmt::Display for ValueSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueSide::Operand => "operand",
            ValueSide::Result => "result",
        })
    }
}

#[derive(Clone, PartialEq, Debug, Error)]
pub enum CheckError {
    // The plan as a whole.
    #[error("the plan has format version {found}, expected version {expected}")]
    Version { expected: u32, found: u32 },
    #[error("the plan is for {found} ranks, expected 1 to {expected} ranks")]
    Ranks { expected: u32, found: u32 },
    #[error("{program} does not parse: {error}")]
    Text { program: ProgramId, error: String },
    #[error("{program} is not valid: {violation}")]
    Invalid { program: ProgramId, violation: String },
    #[error("the plan gives hash {expected} for the text of the source, but the text has hash {found}")]
    SourceHash { expected: String, found: String },
    #[error("{program} declares {}, expected {expected} ranks as in the plan", rank_count(*.found))]
    ProgramRanks { program: ProgramId, expected: u32, found: Option<u32> },
    #[error("{program}: {what} is {found}, expected {expected} as in the source")]
    Signature { program: ProgramId, what: String, expected: String, found: String },
    #[error("{program}: the members of group {group} differ from those in {other}")]
    GroupMembers { program: ProgramId, group: String, other: ProgramId },
    #[error("{program}: custom op {custom:?}: {what} is {found}, expected {expected} as in the source")]
    CustomDeclaration {
        program: ProgramId,
        custom: String,
        what: &'static str,
        expected: String,
        found: String,
    },
    #[error("program {program} is not used by any bucket")]
    ProgramUnused { program: usize },
    #[error("the plan names its source {found:?}, expected {expected:?}, the name in the text of the source")]
    SourceName { expected: String, found: String },
    #[error("the text of {what} has {found} bytes, expected at most {expected}")]
    TextTooLong { what: String, expected: usize, found: usize },

    #[error("the plan has {found} buckets, expected at least {expected}")]
    BucketsMissing { expected: usize, found: usize },
    #[error("the {} arena has {found} bytes, expected at most {expected}", arena_name(*.arena))]
    ArenaTooLarge { arena: ArenaKind, expected: u64, found: u64 },

    // Fixed memory.
    #[error("fixed memory {fixed} ends at byte {found}, outside of the symmetric arena of {expected} bytes")]
    FixedOutside { fixed: usize, expected: u64, found: u64 },
    #[error("fixed memory {fixed} starts at byte {found}, expected a multiple of {expected}")]
    FixedMisaligned { fixed: usize, expected: u64, found: u64 },
    #[error("the bytes of fixed memory {first} and fixed memory {second} overlap")]
    FixedOverlap { first: usize, second: usize },
    #[error("fixed memory {first} and fixed memory {second} have the same role")]
    FixedTwice { first: usize, second: usize },
    #[error("fixed memory {fixed} is bound to input {found}, but the source has {expected} inputs")]
    FixedInput { fixed: usize, expected: usize, found: usize },
    #[error(
        "fixed memory {fixed} is a landing zone of group {found}, expected zone 0 or 1 of a group of the programs"
    )]
    FixedZone { fixed: usize, found: String },

    // Buckets.
    #[error("bucket {bucket} uses program {found}, but the plan has {expected} programs")]
    BucketProgram { bucket: usize, expected: usize, found: usize },
    #[error("bucket {bucket}: {error}")]
    Unresolved { bucket: usize, error: ResolveError },
    #[error("bucket {bucket}: symbol {symbol} has the range {found:?}, expected a range within {expected:?}")]
    BucketRange { bucket: usize, symbol: String, expected: [i64; 2], found: [i64; 2] },
    #[error("the ranges of buckets {first} and {second} overlap: some sizes belong to both")]
    BucketsOverlap { first: usize, second: usize },

    // Buffers.
    #[error(
        "bucket {bucket}: buffer {buffer} ends at byte {found}, outside of the {} arena of {expected} bytes",
        arena_name(*.arena)
    )]
    BufferOutside { bucket: usize, buffer: usize, arena: ArenaKind, expected: u64, found: u64 },
    #[error("bucket {bucket}: buffer {buffer} starts at byte {found}, expected a multiple of {expected}")]
    BufferMisaligned { bucket: usize, buffer: usize, expected: u64, found: u64 },
    #[error("bucket {bucket}: buffers {first} and {second} share bytes while both are alive")]
    BuffersOverlap { bucket: usize, first: usize, second: usize },
    #[error("bucket {bucket}: buffer {buffer} shares bytes with fixed memory {fixed}")]
    BufferFixedOverlap { bucket: usize, buffer: usize, fixed: usize },
    #[error(
        "bucket {bucket}: buffer {buffer} lives from step {first} to step {last}, but the bucket has {steps} steps"
    )]
    BufferSteps { bucket: usize, buffer: usize, first: usize, last: usize, steps: usize },
    #[error("{at}: accesses %{value}, but its buffer {buffer} lives from step {first} to step {last}")]
    Lifetime { at: StepLocation, value: String, buffer: usize, first: usize, last: usize },
    #[error(
        "bucket {bucket}: buffer {buffer} has reach `{}`, expected `{}`",
        reach_name(*.found), reach_name(*.expected)
    )]
    BufferReach { bucket: usize, buffer: usize, expected: PeerReach, found: PeerReach },
    #[error("bucket {bucket}: {total} is {found}, expected {expected}")]
    Total { bucket: usize, total: &'static str, expected: u64, found: u64 },

    // Places.
    #[error("bucket {bucket}: %{value} is placed in {}, which does not exist", memory_name(*.found))]
    PlaceMemory { bucket: usize, value: String, found: MemoryRef },
    #[error(
        "bucket {bucket}: %{value} takes bytes {low} to {high} of {}, \
        expected bytes within its {size} bytes for all sizes",
        memory_name(*.memory)
    )]
    PlaceOutside { bucket: usize, value: String, memory: MemoryRef, low: i64, high: i64, size: u64 },
    #[error("bucket {bucket}: %{value} starts at {found}, expected a multiple of {expected} bytes")]
    PlaceMisaligned { bucket: usize, value: String, expected: u64, found: String },
    #[error(
        "bucket {bucket}: %{value} is input {input} and is placed in {}, expected byte 0 of {} on all ranks",
        memory_name(*.found), memory_name(*.expected)
    )]
    PlaceOfInput { bucket: usize, value: String, input: usize, expected: MemoryRef, found: MemoryRef },
    #[error(
        "bucket {bucket}: %{value} is output {output} and is placed in {}, expected byte 0 of {} on all ranks",
        memory_name(*.found), memory_name(*.expected)
    )]
    PlaceOfOutput { bucket: usize, value: String, output: usize, expected: MemoryRef, found: MemoryRef },
    #[error(
        "bucket {bucket}: output {output} is %{value}, which is a view or an input; expected a base value that a step writes"
    )]
    OutputNotBase { bucket: usize, value: String, output: usize },
    #[error("bucket {bucket}: outputs {first} and {second} are both %{value}")]
    OutputTwice { bucket: usize, value: String, first: usize, second: usize },
    #[error(
        "bucket {bucket}: %{value} is written by a step but is placed in {}, which steps may only read",
        memory_name(*.found)
    )]
    PlaceReadOnly { bucket: usize, value: String, found: MemoryRef },

    // Steps.
    #[error("{at}: the node is already run by step {first}")]
    StepTwice { at: StepLocation, first: usize },
    #[error("bucket {bucket}: node %{node} has no step")]
    StepMissing { bucket: usize, node: String },
    #[error("{at}: reads operand %{operand}, which step {defined} defines; expected an earlier step")]
    StepOrder { at: StepLocation, operand: String, defined: usize },
    #[error("{at}: waits for step {found}, expected an earlier step")]
    WaitNotEarlier { at: StepLocation, found: usize },
    #[error("{at}: waits for step {found} of its own lane, expected a step of the other lane")]
    WaitOwnLane { at: StepLocation, found: usize },
    #[error("{at}: waits for step {found} more than once")]
    WaitTwice { at: StepLocation, found: usize },
    #[error("{at}: {field} is {found}, expected {expected}")]
    StepField { at: StepLocation, field: &'static str, expected: &'static str, found: String },
    #[error("{at}: the collective has no variant, or one that does not support it")]
    VariantMissing { at: StepLocation },
    #[error("{at}: `exit` is missing, expected `kept` or `dropped` for the exit barrier of {variant}")]
    ExitMissing { at: StepLocation, variant: String },
    #[error("{at}: `exit` is given, but the step has no exit barrier that can be dropped")]
    ExitUnexpected { at: StepLocation },
    #[error("{at}: {side} %{value} is placed in {}, expected the symmetric arena", memory_name(*.found))]
    NotSymmetric { at: StepLocation, side: ValueSide, value: String, found: MemoryRef },
    #[error("{at}: {side} %{value} starts at {found}, expected a multiple of {expected} bytes")]
    Misaligned { at: StepLocation, side: ValueSide, value: String, expected: u64, found: String },
    #[error(
        "{at}: {side} %{value} is placed by rank in group {group}, \
        expected the same place in the window on all ranks of the cell"
    )]
    WindowUneven { at: StepLocation, side: ValueSide, value: String, group: String },
    #[error(
        "{at}: {side} %{value} of a reduction is placed by rank in group {group}, \
        expected the same place on all ranks"
    )]
    ReductionUneven { at: StepLocation, side: ValueSide, value: String, group: String },
    #[error("{at}: %{value} is not contiguous, as collectives and reductions require")]
    NotContiguous { at: StepLocation, value: String },
    #[error("{at}: landing zone {zone} of group {group} is missing from the fixed memory")]
    LandingMissing { at: StepLocation, group: String, zone: u32 },
    #[error("{at}: landing zone {zone} of group {group} has {found} bytes, expected at least {expected}")]
    LandingTooSmall { at: StepLocation, group: String, zone: u32, expected: u64, found: u64 },
    #[error("{at}: result %{result} overlaps operand %{operand} in a way that the op does not allow")]
    InPlace { at: StepLocation, operand: String, result: String },
    #[error("{at}: results %{first} and %{second} share bytes")]
    ResultsOverlap { at: StepLocation, first: String, second: String },
    #[error("bucket {bucket}: the decision for %{collective} names %{found}, which does not exist")]
    DecisionNode { bucket: usize, collective: String, found: String },
    #[error(
        "bucket {bucket}: the decision for %{collective} chose {found}, expected one of its alternatives"
    )]
    DecisionChosen { bucket: usize, collective: String, found: String },
    #[error(
        "bucket {bucket}: the decision for %{collective} gives {what} of {alternative} as {found}, \
        expected a finite number of 0 or more"
    )]
    DecisionTime { bucket: usize, collective: String, alternative: String, what: &'static str, found: String },
    #[error("bucket {bucket}: node %{node} belongs to {found} decisions, expected at most 1")]
    DecisionTwice { bucket: usize, node: String, found: usize },
    #[error("bucket {bucket}: in the entry for the copy %{node}, {what} is {found}, expected {expected}")]
    Copy { bucket: usize, node: String, what: &'static str, expected: String, found: String },

    // Order of accesses and steps.
    #[error("data race: {second} is not ordered after {first}, and both access the same bytes")]
    Race { first: MemoryAccess, second: MemoryAccess },
    #[error("{at}: writes a landing zone of group {group} that {earlier} may still be reading on some rank")]
    LandingRace { at: StepLocation, group: String, earlier: StepLocation },
    #[error("{at}: is not ordered after {earlier}, which uses the same group {group}")]
    Unordered { at: StepLocation, group: String, earlier: StepLocation },
    #[error("{reader} reads %{value}, which was overwritten at {lost}")]
    Lost { reader: AccessMoment, value: String, lost: AccessMoment },

    /// The number of findings beyond the first [`MAX_STORED_FINDINGS`](crate::MAX_STORED_FINDINGS).
    #[error("and {count} more findings")]
    More { count: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ProgramId {
    Source,
    Planned(usize),
}

impl fmt::Display for ProgramId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramId::Source => f.write_str("the source"),
            ProgramId::Planned(p) => write!(f, "program {p}"),
        }
    }
}

fn arena_name(arena: ArenaKind) -> &'static str {
    match arena {
        ArenaKind::Ordinary => "ordinary",
        ArenaKind::Symmetric => "symmetric",
    }
}

/// The reach as the plan file writes it.
fn reach_name(reach: PeerReach) -> &'static str {
    match reach {
        PeerReach::Local => "local",
        PeerReach::Read => "read",
        PeerReach::Written => "written",
    }
}

fn memory_name(memory: MemoryRef) -> String {
    match memory {
        MemoryRef::Buffer(buffer) => format!("buffer {buffer}"),
        MemoryRef::Fixed(fixed) => format!("fixed memory {fixed}"),
        MemoryRef::Input(input) => format!("the memory of input {input}"),
        MemoryRef::Output(output) => format!("the memory of output {output}"),
    }
}

fn rank_count(ranks: Option<u32>) -> String {
    ranks.map_or("no number of ranks".to_string(), |ranks| format!("{ranks} ranks"))
}

impl CheckError {
    /// The name of the rule: the name of the variant, or that of the [`ResolveError`].
    pub fn kind(&self) -> String {
        if let CheckError::Unresolved { error, .. } = self {
            return error.kind().to_string();
        }
        let debug = format!("{self:?}");
        debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_string()
    }
}
