//! The facade, in one binary, because each takes seconds to link.

#[cfg(feature = "torch")]
mod against_source;
mod bad_data;
mod buffer;
mod coalesce;
mod definition;
mod divided;
mod errors;
mod features;
mod forms;
mod gathers;
#[cfg(feature = "torch")]
mod generate;
mod groups;
mod interpreter;
mod machine;
mod numerics;
#[cfg(unix)]
mod outputs;
mod packing;
mod replaced;
mod row_sums;
mod several;
mod share;
mod sizes;
#[cfg(feature = "torch")]
mod symmetric;
mod threads;
mod workload;
