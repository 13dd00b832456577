//! The intermediate representation of symmc.
//!
//! A [`Graph`] is one tensor program in single-assignment form that every rank runs: values with a
//! [`Type`] (a dtype and symbolic dims), nodes with one [`Op`] of a closed set, and collectives that
//! are ordinary functional nodes naming their group. This crate also holds what all later stages
//! share: the [`Variant`]s of the collectives with their [`Contract`]s, the [`machine`] profiles, the
//! [`layout`] of views, the `.symm` [`text`] form, the [`verify`] pass and the reference [`interp`].
//!
//! Of the workspace it uses `symmc-support` alone.

pub mod attention;
pub mod bounds;
pub mod builder;
pub mod collective;
pub mod dim;
pub mod dispatch;
pub mod entity;
pub mod graph;
pub mod ids;
pub mod infer;
pub mod interp;
pub mod known;
pub mod layout;
pub mod machine;
pub mod message;
mod named;
pub mod numerics;
pub mod op;
pub mod replication;
pub mod symbol;
pub mod tensor;
pub mod text;
pub mod types;
pub mod verify;

pub use attention::{Bound, Side};
pub use bounds::{BoundsChecks, OutOfBounds};
pub use builder::Builder;
pub use collective::{
    Collective, CollectiveFacts, CollectiveKind, CollectiveName, Contract, Exit, Gives, Meets, ReduceOp,
    Splits, Variant,
};
pub use dim::{Bindings, Dim};
pub use dispatch::{Dispatch, Form, Overwriting};
pub use entity::Table;
pub use graph::{CustomOp, Def, Graph, Group, Input, InputKind, Members, Node, Output, OutputKind, Value};
pub use ids::{CustomId, GroupId, InputId, NodeId, ValueId};
pub use numerics::{Numerics, NumericsClass, Rounding};
pub use op::{ArgOp, BinaryOp, Op, OpCost, OpFacts, OperandUse, Reduction, RefusedData, UnaryOp};
pub use replication::Replication;
pub use symbol::{Symbol, SymbolId, Symbols};
pub use tensor::Tensor;
pub use types::{DType, DTypeFacts, Float, Precision, Scalar, Type};
