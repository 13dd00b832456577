//! The reference interpreter: each op, whole programs and collectives.

mod attention_gradient;
mod axes;
mod bounds;
mod common;
mod draws;
mod elementwise;
mod noise;
mod positions;
mod rounding;
mod route;
mod runs;
mod structured;
