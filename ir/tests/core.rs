//! The core of the IR: dims, typing rules, layouts of views, the builder and the verifier.

#[path = "core/builder.rs"]
mod builder;
#[path = "core/dim.rs"]
mod dim;
#[path = "core/infer.rs"]
mod infer;
#[path = "core/layout.rs"]
mod layout;
#[path = "core/outliers.rs"]
mod outliers;
#[path = "core/output_lengths.rs"]
mod output_lengths;
#[path = "core/replication.rs"]
mod replication;
#[path = "core/verify.rs"]
mod verify;
