//! The C interface: opaque handles, status codes, and the text of the last error of each thread.
//!
//! The doc comments of all functions are copied into `include/symmc.h`, which is generated from these sources; a test compares
//! the two. No panic crosses the interface: it becomes the status `SYMMC_ERROR_DEFECT`.
//!
//! # Safety
//! All unsafe functions have the contract at the head of `symmc.h`; a function documents only requirements beyond it. Memory and
//! arrays have as many bytes and elements as the call says, and `out` and other pointers for results can be written. NULL in
//! place of any of these is an error, or has the effect that the function documents.

#![allow(non_camel_case_types)]
// The module documentation states one contract for all functions.
#![allow(clippy::missing_safety_doc)]

mod buffer;
mod error;
mod group;
mod options;
mod plan;
mod program;
mod session;
mod values;

pub use buffer::*;
pub use error::*;
pub use group::*;
pub use options::*;
pub use plan::*;
pub use program::*;
pub use session::*;
pub use values::*;

/// The version of this interface. It equals the result of `symmc_abi_version` if the header fits the loaded library. Programs
/// that were compiled with another version are not compatible.
pub const SYMMC_ABI_VERSION: u32 = 3;

/// The `SYMMC_ABI_VERSION` of the loaded library.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_abi_version() -> u32 {
    SYMMC_ABI_VERSION
}

/// The version of symmc, such as `0.1.0`. The library owns the text, which is always valid.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_version() -> *const std::ffi::c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
