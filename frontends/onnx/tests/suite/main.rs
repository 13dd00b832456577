//! The importer, in one binary, because each takes seconds to link.

mod common;
mod damage;
mod definitions;
mod dtypes;
mod extents;
mod import;
mod ops;
mod programs;
mod symbols;
