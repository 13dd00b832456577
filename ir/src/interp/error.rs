//! What can go wrong when a program is interpreted.
//!
//! [`InterpError`] says where (rank, node, op, input); [`OpError`] says what an op found. Nothing here is
//! about graphs that break the verifier's rules, with one exception: a node that does not type-check is
//! reported rather than run.

use thiserror::Error;

use crate::types::DType;

/// A program that cannot be run, or not on these inputs.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum InterpError {
    /// The number of ranks is still open.
    #[error("the program leaves its number of ranks open; close it before running")]
    OpenRanks,
    /// The caller gave inputs for another number of ranks.
    #[error("expected inputs for {expected} ranks, found them for {found}")]
    RankCount {
        /// The ranks of the program.
        expected: usize,
        /// The ranks that have inputs.
        found: usize,
    },
    /// The cells of a group do not partition the ranks.
    #[error(
        "group @{group}: expected cells of one size in which each of {ranks} ranks stands once, found {cells:?}"
    )]
    Cells {
        /// The group.
        group: String,
        /// The ranks of the program.
        ranks: u32,
        /// What was found.
        cells: Vec<Vec<u32>>,
    },
    /// The caller gave another number of inputs.
    #[error("rank {rank}: expected {expected} inputs, found {found}")]
    InputCount {
        /// The rank.
        rank: usize,
        /// The inputs of the program.
        expected: usize,
        /// The inputs given.
        found: usize,
    },
    /// An input has another dtype.
    #[error("rank {rank}, input %{input}: expected {expected}, found {found}")]
    InputDType {
        /// The rank.
        rank: usize,
        /// The input's name.
        input: String,
        /// The dtype of its type.
        expected: DType,
        /// The dtype given.
        found: DType,
    },
    /// An input has a shape that its type does not have under the bindings.
    #[error("rank {rank}, input %{input}: expected the shape {expected:?} ({dims}), found {found:?}")]
    InputShape {
        /// The rank.
        rank: usize,
        /// The input's name.
        input: String,
        /// The shape under the bindings.
        expected: Vec<i64>,
        /// The dims of its type.
        dims: String,
        /// The shape given.
        found: Vec<usize>,
    },
    /// A constant has no data.
    #[error("the constant %{input} has no data")]
    NoData {
        /// The input's name.
        input: String,
    },
    /// A symbol that a type or an op needs has no value.
    #[error("the symbol {symbol} of %{value} has no value")]
    UnboundSymbol {
        /// The symbol.
        symbol: String,
        /// The value whose type or op needs it.
        value: String,
    },
    /// A symbol's value is outside its bounds.
    #[error("the symbol {symbol} is {value}, expected {min} to {max}")]
    SymbolOutOfRange {
        /// The symbol.
        symbol: String,
        /// The value given.
        value: i64,
        /// The smallest value allowed.
        min: i64,
        /// The largest value allowed.
        max: i64,
    },
    /// A dim has no value under the bindings, or one that is no extent, or the size of the value overflows.
    #[error(
        "%{value}: the shape {dims} has no size under the bindings (negative, division by zero or overflow)"
    )]
    Extent {
        /// The value.
        value: String,
        /// Its dims.
        dims: String,
    },
    /// A value does not fit into memory.
    #[error("%{value}: {elements} elements of 8 bytes do not fit into memory")]
    TooLarge {
        /// The value.
        value: String,
        /// Its number of elements.
        elements: usize,
    },
    /// A node does not type-check.
    #[error("%{node} ({op}): {message}")]
    Type {
        /// The node.
        node: String,
        /// Its op.
        op: &'static str,
        /// Which rule is broken.
        message: String,
    },
    /// An operand or output is not defined by an input or an earlier node.
    #[error("%{value} is used before it is defined")]
    Order {
        /// The value.
        value: String,
    },
    /// An op failed on a rank.
    #[error("rank {rank}, %{node} ({op}): {error}")]
    Op {
        /// The rank.
        rank: usize,
        /// The node.
        node: String,
        /// Its op.
        op: &'static str,
        /// What it found.
        error: OpError,
    },
}

/// What an op found when it ran.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum OpError {
    /// An operand has the wrong kind of dtype.
    #[error("expected a {expected} operand, found {found}")]
    DType {
        /// The kind of dtype.
        expected: &'static str,
        /// The dtype.
        found: DType,
    },
    /// An index is outside its axis.
    #[error(
        "the index {index} at position {position} of the indices is outside axis {axis}, which has extent {extent}"
    )]
    Index {
        /// The index as it was given.
        index: i64,
        /// Its position in the index operand, row-major.
        position: usize,
        /// The axis of the operand it counts along.
        axis: usize,
        /// The extent of that axis.
        extent: usize,
    },
    /// Two extents do not fit together.
    #[error("axis {axis}: {what}: expected at most {limit}, found {found}")]
    Extent {
        /// The axis.
        axis: usize,
        /// What is compared.
        what: &'static str,
        /// The largest extent that fits.
        limit: usize,
        /// The extent found.
        found: usize,
    },
    /// A slice reaches outside its operand.
    #[error(
        "the slice takes {count} elements from {start} in steps of {step} along axis {axis}, which has extent {extent}"
    )]
    Slice {
        /// The axis.
        axis: usize,
        /// The first position.
        start: i64,
        /// The step.
        step: i64,
        /// The number of elements.
        count: usize,
        /// The extent of the axis.
        extent: usize,
    },
    /// A dim that is an attribute of the op has no value under the bindings.
    #[error("{what} has no value under the bindings")]
    Attribute {
        /// The attribute.
        what: &'static str,
    },
    /// A maximum, a minimum or an arg-reduction of no elements.
    #[error("{op} of no elements")]
    Empty {
        /// The reduction.
        op: &'static str,
    },
    /// An integer divided by zero.
    #[error("integer division by zero at element {position}")]
    DivisionByZero {
        /// The element of the result, row-major.
        position: usize,
    },
    /// A group of rows ends before it begins or beyond the rows.
    #[error("group {group} of the rows ends at {end}: expected {start} to {rows}")]
    GroupEnd {
        /// The group.
        group: usize,
        /// Its end as it was given.
        end: i64,
        /// Where it begins.
        start: usize,
        /// The number of rows.
        rows: usize,
    },
    /// Split sizes that do not fit the operand or the result.
    #[error("{what}: expected at most {capacity} rows in all and none negative, found {found:?}")]
    Splits {
        /// Rows sent or rows received.
        what: &'static str,
        /// The rows that there is room for.
        capacity: usize,
        /// The split sizes.
        found: Vec<i64>,
    },
    /// An op that the importer did not know.
    #[error("the op `{name}` is opaque: it can be planned, not run")]
    Opaque {
        /// Its name.
        name: String,
    },
    /// A custom op without a kernel.
    #[error("no kernel is registered for the custom op `{name}`")]
    NoKernel {
        /// Its name.
        name: String,
    },
    /// A custom op's kernel failed or gave results of other types.
    #[error("the custom op `{name}`: {message}")]
    Custom {
        /// Its name.
        name: String,
        /// What it says.
        message: String,
    },
}
