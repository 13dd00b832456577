//! The importer, in one binary, because each takes seconds to link.

mod programs;
