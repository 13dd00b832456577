//! The C interface: opaque handles, status codes, and the text of the last error of each thread.
//!
//! Every function is documented here; `include/symmc.h` is made of these sources, comments included, and
//! a test holds it against them. No panic crosses the border: it is a status of its own kind, as any other defect. What
//! strings and memory a function takes are read before it returns, unless it says otherwise.
//!
//! # Safety
//! All unsafe functions have the contract at the head of `symmc.h`; a function documents only requirements beyond it. A handle
//! came from this library and was not freed. No other thread uses it meanwhile, unless its type allows that; none uses it after the
//! function that frees it. A text ends with a NUL. Memory and arrays have as many bytes and elements as the call says, and
//! `out` and other pointers for results take one. NULL in place of any of these is an error, or what the function says.

#![allow(non_camel_case_types)]
// One contract for all functions stands above.
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

/// The version of this interface: what `SYMMC_ABI_VERSION` is in the header of the library that is loaded. Programs that
/// were compiled with another one do not fit it.
pub const SYMMC_ABI_VERSION: u32 = 2;

/// The `SYMMC_ABI_VERSION` of this library.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_abi_version() -> u32 {
    SYMMC_ABI_VERSION
}

/// The version of symmc, as `0.1.0`. The text is the library's and stays.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_version() -> *const std::ffi::c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
