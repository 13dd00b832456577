//! libnccl, loaded at first use.
//!
//! [`Nccl::load`] finds the library (`search`), opens it, queries its version and fills a table of the
//! functions that symmc calls (`functions`). Nothing is linked: a program with this crate starts on a machine
//! without NCCL, and only `load` fails there, with a list of its attempts.
//!
//! Invariants:
//! - A loaded library is 2.27 or newer, has every function that 2.27 has, and is never closed.
//! - Numbers that NCCL returns (result codes, versions) are integers here, not enums: a newer library may
//!   have more of them.
//! - A handle (`Comm`, `Window`) is an address. Callers are responsible for its lifetime. Most of the table
//!   is therefore unsafe to call, and safe methods exist only where no handle is passed.
//!
//! Deliberately absent: streams and devices (callers set the current CUDA device), the device-side API, whose
//! structs change size with every release, and shared ownership of communicators.

mod config;
mod error;
mod functions;
mod library;
mod search;
pub mod trust;
mod types;
mod version;

pub use config::NcclConfig;
pub use error::{LoadAttempt, LoadError, LoadFailure, MissingFunction, NcclError};
pub use functions::Functions;
pub use library::Nccl;
pub use search::{LibraryNames, LibrarySearch, NCCL, PATH_VARIABLE};
pub use types::{
    Comm, DataType, RedOp, ResultCode, Stream, UniqueId, Window, cta_policy, data_type, red_op, result_code,
    window,
};
pub use version::Version;
