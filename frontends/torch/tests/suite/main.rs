//! The importer, in one binary, because each takes seconds to link.

mod archive;
mod calls;
mod common;
mod complex;
mod damage;
mod data_counts;
mod definitions;
mod dtensors;
mod dtypes;
mod exchanges;
mod experts;
mod import;
mod ops;
mod packed_rows;
mod programs;
mod ranks;
mod reference;
mod sizes;
mod sweep;
mod writes;
