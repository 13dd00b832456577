//! The types and constants of NCCL's C interface that symmc uses.
//!
//! Every number is NCCL's own, from `nccl.h`. Enums of the header are integers: NCCL may return values that
//! this file does not list.

use std::ffi::{c_char, c_int, c_void};

/// The result of a call (`ncclResult_t`); the values are in [`result_code`].
pub type ResultCode = c_int;
/// The element type of a buffer (`ncclDataType_t`); the values are in [`data_type`].
pub type DataType = c_int;
/// A reduction (`ncclRedOp_t`); the values are in [`red_op`].
pub type RedOp = c_int;
/// A CUDA stream (`cudaStream_t`, which is also `CUstream`).
pub type Stream = *mut c_void;

/// A communicator: an opaque address, alive from its creation to `ncclCommDestroy` or `ncclCommAbort`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Comm(pub *mut c_void);

/// A registered window: an opaque address, alive until it is deregistered or its communicator ends.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window(pub *mut c_void);

impl Comm {
    pub const NULL: Comm = Comm(std::ptr::null_mut());
}

impl Window {
    /// No window; registration that is not supported may also return this.
    pub const NULL: Window = Window(std::ptr::null_mut());
}

// SAFETY: a handle is an address that this crate never dereferences; every call that takes one is unsafe, and
// its caller is responsible for the order of the calls on that handle.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}
// SAFETY: as above.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

/// The name under which ranks find each other: one rank creates it, and all ranks of the communicator get it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    /// The bytes, which only NCCL interprets.
    pub internal: [c_char; UniqueId::BYTES],
}

impl UniqueId {
    pub const BYTES: usize = 128;

    /// An id received from the rank that created it.
    pub fn from_bytes(bytes: [u8; UniqueId::BYTES]) -> UniqueId {
        UniqueId { internal: bytes.map(|b| b as c_char) }
    }

    /// The bytes to send to the other ranks.
    pub fn to_bytes(self) -> [u8; UniqueId::BYTES] {
        self.internal.map(|c| c as u8)
    }
}

pub mod result_code {
    use super::ResultCode;

    /// Done, or enqueued on the stream.
    pub const SUCCESS: ResultCode = 0;
    pub const UNHANDLED_CUDA_ERROR: ResultCode = 1;
    pub const SYSTEM_ERROR: ResultCode = 2;
    pub const INTERNAL_ERROR: ResultCode = 3;
    pub const INVALID_ARGUMENT: ResultCode = 4;
    /// The call is not allowed in this context.
    pub const INVALID_USAGE: ResultCode = 5;
    pub const REMOTE_ERROR: ResultCode = 6;
    /// A call on a nonblocking communicator continues in the background.
    pub const IN_PROGRESS: ResultCode = 7;
    /// A wait exceeded its timeout (newer versions).
    pub const TIMEOUT: ResultCode = 8;

    /// The name that `nccl.h` gives to a code; `None` for a code that is not listed here.
    pub fn name(code: ResultCode) -> Option<&'static str> {
        Some(match code {
            SUCCESS => "ncclSuccess",
            UNHANDLED_CUDA_ERROR => "ncclUnhandledCudaError",
            SYSTEM_ERROR => "ncclSystemError",
            INTERNAL_ERROR => "ncclInternalError",
            INVALID_ARGUMENT => "ncclInvalidArgument",
            INVALID_USAGE => "ncclInvalidUsage",
            REMOTE_ERROR => "ncclRemoteError",
            IN_PROGRESS => "ncclInProgress",
            TIMEOUT => "ncclTimeout",
            _ => return None,
        })
    }
}

pub mod data_type {
    use super::DataType;

    pub const I8: DataType = 0;
    pub const U8: DataType = 1;
    pub const I32: DataType = 2;
    pub const U32: DataType = 3;
    pub const I64: DataType = 4;
    pub const F16: DataType = 6;
    pub const F32: DataType = 7;
    pub const F64: DataType = 8;
    pub const BF16: DataType = 9;
}

pub mod red_op {
    use super::RedOp;

    pub const SUM: RedOp = 0;
    pub const PROD: RedOp = 1;
    pub const MAX: RedOp = 2;
    pub const MIN: RedOp = 3;
    /// Mean over the ranks.
    pub const AVG: RedOp = 4;
}

/// Flags and alignment of windows.
pub mod window {
    use std::ffi::c_int;

    /// No guarantee about offsets.
    pub const DEFAULT: c_int = 0;
    /// Operands have the same offset in the window on all ranks: the symmetric kernels may run.
    pub const COLL_SYMMETRIC: c_int = 1;
    /// A window starts at a multiple of this many bytes within its allocation.
    pub const ALIGNMENT: usize = 4096;
}

/// Values of `NcclConfig::cta_policy`: the use of the GPU's multiprocessors by a communicator.
pub mod cta_policy {
    use std::ffi::c_int;

    /// As many as are fastest.
    pub const DEFAULT: c_int = 0;
    /// None if possible: the copy engines move the data (2.28 or newer).
    pub const ZERO: c_int = 2;
}
