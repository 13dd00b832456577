//! The importer, in one binary, because each takes seconds to link.

mod common;
mod control_flow;
mod counted;
mod damage;
mod definitions;
mod dtypes;
mod extents;
mod import;
mod opaque;
mod ops;
mod programs;
mod symbols;
