//! libnccl, loaded when first used.
//!
//! [`Nccl::load`] finds the library (`search`), opens it, asks its version and fills a table of the functions
//! that symmc calls (`functions`). Nothing is linked: a program that holds this crate starts on a machine
//! without NCCL, and only `load` fails there, saying what was tried.
//!
//! Invariants:
//! - A loaded library is 2.27 or newer, has every function that 2.27 has, and is never closed.
//! - Numbers that NCCL hands out (result codes, versions) are integers here, not enums: a newer library may
//!   know more of them.
//! - A handle (`Comm`, `Window`) is an address. Who passes it on answers for its being alive; hence most of the
//!   table is unsafe to call, and safe methods exist only where no handle is passed.
//!
//! Deliberately not here: streams and devices (the current CUDA device is the caller's matter), the device-side
//! API, whose structs change size with every release, and shared ownership of communicators.

mod acl;
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
