//! The reference interpreter: each op, whole programs and collectives.

mod common;
mod draws;
mod elementwise;
mod runs;
mod structured;
