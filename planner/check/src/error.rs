//! What [`check`](super::check) finds wrong with a plan: one variant for each rule, naming the bucket, the
//! step and its node, what the rule expects and what the plan has.

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

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AccessMoment {
    /// The caller writes bound inputs.
    Start {
        bucket: usize,
    },
    Step(StepLocation),
    /// The caller reads the outputs.
    End {
        bucket: usize,
    },
}

impl fmt::Display for AccessMoment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessMoment::Start { bucket } => write!(f, "the start of a run of bucket {bucket}"),
            AccessMoment::Step(at) => write!(f, "{at}"),
            AccessMoment::End { bucket } => write!(f, "the end of a run of bucket {bucket}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Accessor {
    Own,
    Peers,
    Caller,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MemoryAccess {
    pub moment: AccessMoment,
    pub accessor: Accessor,
    pub write: bool,
    /// The name of the base value whose bytes are touched.
    pub value: String,
}

impl fmt::Display for MemoryAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.accessor {
            Accessor::Own => "the rank",
            Accessor::Peers => "its peers",
            Accessor::Caller => "the caller",
        };
        let verb = if self.write { "write" } else { "read" };
        write!(f, "the {verb} of %{} by {who} at {}", self.value, self.moment)
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
    #[error("the plan has version {found}, expected {expected}")]
    Version { expected: u32, found: u32 },
    #[error("the plan is for {found} ranks, expected 1 to {expected}")]
    Ranks { expected: u32, found: u32 },
    #[error("{program} does not parse: {error}")]
    Text { program: ProgramId, error: String },
    #[error("{program} is not valid: {violation}")]
    Invalid { program: ProgramId, violation: String },
    #[error("the text of the source has hash {found}, the plan says {expected}")]
    SourceHash { expected: String, found: String },
    #[error("{program} is for {found:?} ranks, the plan for {expected}")]
    ProgramRanks { program: ProgramId, expected: u32, found: Option<u32> },
    #[error("{program}: {what} is {found}, in the source it is {expected}")]
    Signature { program: ProgramId, what: String, expected: String, found: String },
    #[error("{program}: group {group} has other members than in {other}")]
    GroupMembers { program: ProgramId, group: String, other: ProgramId },
    #[error("{program}: custom op {custom:?} has {what} {found}, in the source it has {expected}")]
    CustomDeclaration {
        program: ProgramId,
        custom: String,
        what: &'static str,
        expected: String,
        found: String,
    },
    #[error("no bucket names program {program}")]
    ProgramUnused { program: usize },
    #[error("the plan names its source {found:?}, the text of the source has the name {expected:?}")]
    SourceName { expected: String, found: String },
    #[error("{what} has {found} bytes, expected at most {expected}")]
    TextTooLong { what: String, expected: usize, found: usize },

    #[error("the plan has {found} buckets, expected at least {expected}: it serves no sizes")]
    BucketsMissing { expected: usize, found: usize },
    #[error("the {arena:?} arena has {found} bytes, expected at most {expected}")]
    ArenaTooLarge { arena: ArenaKind, expected: u64, found: u64 },

    // Fixed memory.
    #[error("fixed memory {fixed} ends at byte {found} of a symmetric arena of {expected} bytes")]
    FixedOutside { fixed: usize, expected: u64, found: u64 },
    #[error("fixed memory {fixed} starts at byte {found}, expected a multiple of {expected}")]
    FixedMisaligned { fixed: usize, expected: u64, found: u64 },
    #[error("fixed memory {first} and {second} overlap")]
    FixedOverlap { first: usize, second: usize },
    #[error("fixed memory {first} and {second} have the same role")]
    FixedTwice { first: usize, second: usize },
    #[error("fixed memory {fixed} is for input {found}, the program has {expected}")]
    FixedInput { fixed: usize, expected: usize, found: usize },
    #[error(
        "fixed memory {fixed} is a landing zone of {found}, expected zone 0 or 1 of a group of the programs"
    )]
    FixedZone { fixed: usize, found: String },

    // Buckets.
    #[error("bucket {bucket} names program {found} of {expected}")]
    BucketProgram { bucket: usize, expected: usize, found: usize },
    #[error("bucket {bucket}: {error}")]
    Unresolved { bucket: usize, error: ResolveError },
    #[error("bucket {bucket} has {symbol} in {found:?}, expected a range within {expected:?}")]
    BucketRange { bucket: usize, symbol: String, expected: [i64; 2], found: [i64; 2] },
    #[error("buckets {first} and {second} serve the same sizes")]
    BucketsOverlap { first: usize, second: usize },

    // Buffers.
    #[error(
        "bucket {bucket}: buffer {buffer} ends at byte {found} of an {arena:?} arena of {expected} bytes"
    )]
    BufferOutside { bucket: usize, buffer: usize, arena: ArenaKind, expected: u64, found: u64 },
    #[error("bucket {bucket}: buffer {buffer} starts at byte {found}, expected a multiple of {expected}")]
    BufferMisaligned { bucket: usize, buffer: usize, expected: u64, found: u64 },
    #[error("bucket {bucket}: buffers {first} and {second} overlap and are alive together")]
    BuffersOverlap { bucket: usize, first: usize, second: usize },
    #[error("bucket {bucket}: buffer {buffer} overlaps fixed memory {fixed}")]
    BufferFixedOverlap { bucket: usize, buffer: usize, fixed: usize },
    #[error("bucket {bucket}: buffer {buffer} lives from step {first} to {last} of {steps}")]
    BufferSteps { bucket: usize, buffer: usize, first: usize, last: usize, steps: usize },
    #[error("{at}: %{value} is touched here, but its buffer {buffer} lives from step {first} to {last}")]
    Lifetime { at: StepLocation, value: String, buffer: usize, first: usize, last: usize },
    #[error("bucket {bucket}: buffer {buffer} has reach {found:?}, expected {expected:?}")]
    BufferReach { bucket: usize, buffer: usize, expected: PeerReach, found: PeerReach },
    #[error("bucket {bucket}: {total} is {found}, expected {expected}")]
    Total { bucket: usize, total: &'static str, expected: u64, found: u64 },

    // Places.
    #[error("bucket {bucket}: %{value} lies in {found:?}, which does not exist")]
    PlaceMemory { bucket: usize, value: String, found: MemoryRef },
    #[error("bucket {bucket}: %{value} takes bytes {low} to {high} of {memory:?}, which has {size}")]
    PlaceOutside { bucket: usize, value: String, memory: MemoryRef, low: i64, high: i64, size: u64 },
    #[error("bucket {bucket}: %{value} starts at {found}, expected a multiple of {expected} bytes")]
    PlaceMisaligned { bucket: usize, value: String, expected: u64, found: String },
    #[error("bucket {bucket}: %{value} is input {input} and lies in {found:?}, expected {expected:?} at 0")]
    PlaceOfInput { bucket: usize, value: String, input: usize, expected: MemoryRef, found: MemoryRef },
    #[error("bucket {bucket}: %{value} is output {output} and lies in {found:?}, expected {expected:?} at 0")]
    PlaceOfOutput { bucket: usize, value: String, output: usize, expected: MemoryRef, found: MemoryRef },
    #[error("bucket {bucket}: output {output} is %{value}, which is a view or an input")]
    OutputNotBase { bucket: usize, value: String, output: usize },
    #[error("bucket {bucket}: outputs {first} and {second} are both %{value}")]
    OutputTwice { bucket: usize, value: String, first: usize, second: usize },
    #[error("bucket {bucket}: %{value} is no input and lies in {found:?}, which is only read")]
    PlaceReadOnly { bucket: usize, value: String, found: MemoryRef },

    // Steps.
    #[error("{at}: the node already is step {first}")]
    StepTwice { at: StepLocation, first: usize },
    #[error("bucket {bucket}: %{node} has no step")]
    StepMissing { bucket: usize, node: String },
    #[error("{at}: operand %{operand} is defined at step {defined}, which is later")]
    StepOrder { at: StepLocation, operand: String, defined: usize },
    #[error("{at}: it waits for step {found}, expected an earlier one")]
    WaitNotEarlier { at: StepLocation, found: usize },
    #[error("{at}: it waits for step {found} of its own lane")]
    WaitOwnLane { at: StepLocation, found: usize },
    #[error("{at}: it waits for step {found} more than once")]
    WaitTwice { at: StepLocation, found: usize },
    #[error("{at}: {field} is {found}, expected {expected}")]
    StepField { at: StepLocation, field: &'static str, expected: &'static str, found: String },
    #[error("{at}: the collective has no variant that runs it")]
    VariantMissing { at: StepLocation },
    #[error("{at}: the plan does not say whether the exit barrier of {variant} stays")]
    ExitMissing { at: StepLocation, variant: String },
    #[error("{at}: the plan speaks of an exit barrier, which the step does not have or cannot drop")]
    ExitUnexpected { at: StepLocation },
    #[error("{at}: {side} %{value} lies in {found:?}, expected the symmetric arena")]
    NotSymmetric { at: StepLocation, side: ValueSide, value: String, found: MemoryRef },
    #[error("{at}: {side} %{value} starts at {found}, expected a multiple of {expected} bytes")]
    Misaligned { at: StepLocation, side: ValueSide, value: String, expected: u64, found: String },
    #[error(
        "{at}: {side} %{value} lies by rank in group {group}, expected one place in the window on all ranks of the cell"
    )]
    WindowUneven { at: StepLocation, side: ValueSide, value: String, group: String },
    #[error(
        "{at}: {side} %{value} of a reduction lies by rank in group {group}, expected one place on all ranks"
    )]
    ReductionUneven { at: StepLocation, side: ValueSide, value: String, group: String },
    #[error("{at}: operand %{value} of a collective is not stored contiguously")]
    NotContiguous { at: StepLocation, value: String },
    #[error("{at}: group {group} has no landing zone {zone}")]
    LandingMissing { at: StepLocation, group: String, zone: u32 },
    #[error("{at}: landing zone {zone} of group {group} has {found} bytes, expected at least {expected}")]
    LandingTooSmall { at: StepLocation, group: String, zone: u32, expected: u64, found: u64 },
    #[error("{at}: the result %{result} lies on the operand %{operand}, which this op does not allow there")]
    InPlace { at: StepLocation, operand: String, result: String },
    #[error("{at}: the results %{first} and %{second} overlap")]
    ResultsOverlap { at: StepLocation, first: String, second: String },
    #[error(
        "bucket {bucket}: the decision for %{collective} names %{found}, which the program does not have"
    )]
    DecisionNode { bucket: usize, collective: String, found: String },
    #[error(
        "bucket {bucket}: the decision for %{collective} chose {found}, which is none of its alternatives"
    )]
    DecisionChosen { bucket: usize, collective: String, found: String },
    #[error(
        "bucket {bucket}: the decision for %{collective} estimates {what} of {alternative} at {found}, expected 0 or more"
    )]
    DecisionTime { bucket: usize, collective: String, alternative: String, what: &'static str, found: String },
    #[error("bucket {bucket}: %{node} belongs to {found} decisions, expected at most 1")]
    DecisionTwice { bucket: usize, node: String, found: usize },
    #[error("bucket {bucket}: {what} of the copy %{node} is {expected}, the plan says {found}")]
    Copy { bucket: usize, node: String, what: &'static str, expected: String, found: String },

    // Time.
    #[error("nothing orders {second} after {first}, and they share bytes")]
    Race { first: MemoryAccess, second: MemoryAccess },
    #[error("{at}: landing zone of group {group} is written before {earlier} has read it on every rank")]
    LandingRace { at: StepLocation, group: String, earlier: StepLocation },
    #[error("{at}: nothing orders it after {earlier}, which runs on the same group {group}")]
    Unordered { at: StepLocation, group: String, earlier: StepLocation },
    #[error("{reader} reads %{value}, which {lost} wrote over")]
    Lost { reader: AccessMoment, value: String, lost: AccessMoment },

    // More than are kept.
    #[error("{count} more findings are not listed")]
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

impl CheckError {
    /// The name of the rule, the same for all plans that break it.
    pub fn kind(&self) -> String {
        if let CheckError::Unresolved { error, .. } = self {
            return error.kind().to_string();
        }
        let debug = format!("{self:?}");
        debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_string()
    }
}
