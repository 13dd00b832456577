//! The intermediate representation of symmc.
//!
//! A [`Graph`] is one tensor program in single-assignment form that every rank runs. It has values with a
//! [`TensorType`] (a dtype and symbolic dims) and nodes with one [`Op`] of a closed set. Collectives are
//! ordinary functional nodes that name their group.
//!
//! This crate also holds the definitions that all later stages share: the [`CollectiveVariant`]s with their
//! [`Contract`]s, the [`machine`] profiles, the [`layout`] of views, the `.symm` [`text`] form, the [`verify`]
//! pass and the reference interpreter [`interp`].
//!
//! In the workspace it depends only on `symmc-support`.

pub mod attention;
pub mod axes;
pub mod bounds;
pub mod builder;
pub mod collective;
pub mod copying;
pub mod dim;
pub mod dispatch;
mod dispatch_form;
pub mod entity;
pub mod float8;
#[doc(hidden)]
pub mod fuzz;
pub mod graph;
pub mod ids;
pub mod infer;
pub mod interp;
pub mod layout;
pub mod machine;
pub mod message;
mod named;
pub mod numerics;
pub mod op;
mod output_lengths;
pub mod positions;
mod quote;
pub mod replication;
pub mod route;
pub mod symbol;
pub mod tensor;
pub mod text;
pub mod types;
pub mod verify;

pub use attention::{AttentionBound, BoundSide};
pub use axes::{AxisMap, OperandAxis, ResultAxis};
pub use bounds::{BoundsChecks, OutOfBounds};
pub use builder::GraphBuilder;
pub use collective::{
    AllToAllSplits, Collective, CollectiveFacts, CollectiveKind, CollectiveName, CollectiveReduceOp,
    CollectiveVariant, Contract, ExitBarrierPolicy, ResultDistribution, SyncScope,
};
pub use dim::{Dim, SymbolBindings};
pub use dispatch::OverwriteRule;
pub use dispatch_form::{Dispatch, DispatchForm};
pub use entity::EntityMap;
pub use graph::{
    CustomOp, Graph, GraphInput, GraphOutput, GroupDef, GroupMembers, InputKind, Node, OutputKind, Value,
    ValueDef,
};
pub use ids::{CustomId, GroupId, InputId, NodeId, ValueId};
pub use numerics::{Numerics, NumericsClass, RoundingEffect};
pub use op::{
    ArgOp, BinaryOp, Op, OpCost, OpFacts, OperandUse, ProductResult, ReductionKind, RejectedData, UnaryOp,
};
pub use replication::Replication;
pub use route::{Route, RouteLayout, RouteScope};
pub use symbol::{Symbol, SymbolId, SymbolTable};
pub use tensor::Tensor;
pub use types::{DType, DTypeFacts, FloatAttribute, FloatPrecision, Scalar, TensorType};
