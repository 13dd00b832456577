//! Errors of the interpreter.
//!
//! [`InterpError`] locates an error (rank, node, op, input); [`OpError`] describes what an op found. Graphs
//! that break the verifier's rules are not covered, with one exception: a node that does not type-check is
//! reported and not run.

use thiserror::Error;

use crate::types::DType;

/// The result of operations that fail with an [`OpError`], or with another error `E`.
pub type Result<T, E = OpError> = std::result::Result<T, E>;

#[derive(Debug, Clone, PartialEq, Error)]
pub enum InterpError {
    #[error("the number of ranks is open; set it before running")]
    OpenRanks,
    #[error("expected inputs for {expected} ranks, found inputs for {found}")]
    RankCount { expected: usize, found: usize },
    #[error(
        "group @{group}: expected cells of equal size that contain each of {ranks} ranks once, found {cells:?}"
    )]
    Cells { group: String, ranks: u32, cells: Vec<Vec<u32>> },
    #[error("rank {rank}: expected {expected} inputs, found {found}")]
    InputCount { rank: usize, expected: usize, found: usize },
    #[error("rank {rank}, input %{input}: expected {expected}, found {found}")]
    InputDType { rank: usize, input: String, expected: DType, found: DType },
    #[error("rank {rank}, input %{input}: expected the shape {expected:?} ({dims}), found {found:?}")]
    InputShape { rank: usize, input: String, expected: Vec<i64>, dims: String, found: Vec<usize> },
    #[error("the constant %{input} has no data")]
    NoData { input: String },
    #[error("the symbol {symbol} of %{value} has no value")]
    UnboundSymbol { symbol: String, value: String },
    #[error("the symbol {symbol} is {value}, expected {min} to {max}")]
    SymbolOutOfRange { symbol: String, value: i64, min: i64, max: i64 },
    /// A dim has no value under the bindings, or is no valid extent, or the size of the value overflows.
    #[error(
        "%{value}: the shape {dims} has no size under the bindings (negative, division by zero or overflow)"
    )]
    Extent { value: String, dims: String },
    #[error("%{value}: {elements} elements of 8 bytes do not fit into memory")]
    TooLarge { value: String, elements: usize },
    #[error("%{node} ({op}): {message}")]
    Type { node: String, op: &'static str, message: String },
    #[error("%{value} is used before it is defined")]
    Order { value: String },
    #[error("rank {rank}, %{node} ({op}): {error}")]
    Op { rank: usize, node: String, op: &'static str, error: OpError },
}

#[derive(Debug, Clone, PartialEq, Error)]
pub enum OpError {
    #[error("expected a {expected} operand, found {found}")]
    DType { expected: &'static str, found: DType },
    #[error(
        "the index {index} at position {position} of the indices is outside axis {axis}, which has extent {extent}"
    )]
    Index {
        index: i64,
        /// The position in the index operand, in row-major order.
        position: usize,
        axis: usize,
        extent: usize,
    },
    #[error("axis {axis}: {what}: expected at most {limit}, found {found}")]
    Extent { axis: usize, what: &'static str, limit: usize, found: usize },
    #[error(
        "the slice takes {count} elements from {start} in steps of {step} along axis {axis}, which has extent {extent}"
    )]
    Slice { axis: usize, start: i64, step: i64, count: usize, extent: usize },
    #[error("{what} has no value under the bindings")]
    Attribute { what: &'static str },
    #[error("{op} of no elements")]
    Empty { op: &'static str },
    #[error("integer division by zero at element {position}")]
    DivisionByZero { position: usize },
    #[error("group {group} of the rows ends at {end}: expected {start} to {rows}")]
    GroupEnd { group: usize, end: i64, start: usize, rows: usize },
    #[error("{what}: expected at most {capacity} rows in all and none negative, found {found:?}")]
    Splits { what: &'static str, capacity: usize, found: Vec<i64> },
    #[error("the id {id} of slot {slot} is no expert: expected 0 to {last}, or -1 for none")]
    ExpertId { id: i64, slot: usize, last: u32 },
    #[error("rank {rank} of the group receives {found} rows: expected at most {capacity}, the capacity")]
    Capacity { rank: usize, found: usize, capacity: usize },
    #[error("expert {expert} receives {found} rows: expected at most {capacity}, its share of the capacity")]
    ExpertCapacity { expert: usize, found: usize, capacity: usize },
    #[error("the {what} {found} at position {position} is out of range: expected at most {last}")]
    Row { what: &'static str, found: i64, position: usize, last: i64 },
    #[error("the op `{name}` is opaque: it can be planned but not run")]
    Opaque { name: String },
    #[error("no kernel is registered for the custom op `{name}`")]
    NoKernel { name: String },
    #[error("the custom op `{name}`: {message}")]
    Custom { name: String, message: String },
}
