//! The reference interpreter: each op, whole programs and collectives.

mod bounds;
mod common;
mod elementwise;
mod runs;
mod structured;
