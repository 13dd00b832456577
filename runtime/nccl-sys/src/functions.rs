//! The table of functions, by their names in `nccl.h` without the prefix.
//!
//! The first part is in every accepted version and must be present. The second part came later; each entry
//! states its version. The prototypes were compared with the headers of 2.27.7, 2.28.9, 2.29.7 and 2.32.3.

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::Library;

use crate::config::NcclConfig;
use crate::error::LoadFailure;
use crate::types::{Comm, DataType, RedOp, ResultCode, Stream, UniqueId, Window};
use crate::version::Version;

/// Declares the table, the code that fills it, and the symbol and first version of each later function.
macro_rules! functions {
    (
        always { $($field:ident = $symbol:literal ($($arg:ty),*) -> $answer:ty;)* }
        later { $($late:ident = $late_symbol:literal since ($major:literal, $minor:literal, $patch:literal)
                  ($($late_arg:ty),*) -> $late_answer:ty;)* }
    ) => {
        /// The functions of a loaded library. Calling one is unsafe: handles and buffers must be alive, and
        /// buffers as large as the count says, until the stream has run the call.
        #[derive(Clone, Debug)]
        pub struct Functions {
            $(#[doc = concat!("`", $symbol, "`")] pub $field: unsafe extern "C" fn($($arg),*) -> $answer,)*
            $(
                #[doc = concat!("`", $late_symbol, "`, since ", $major, ".", $minor, ".", $patch)]
                pub $late: Option<unsafe extern "C" fn($($late_arg),*) -> $late_answer>,
            )*
        }

        impl Functions {
            /// Looks every function up.
            ///
            /// # Safety
            /// The library is NCCL, stays open as long as the table is used, and its functions have the types
            /// declared here.
            pub(crate) unsafe fn of(library: &Library) -> Result<Functions, LoadFailure> {
                Ok(Functions {
                    $(
                        // SAFETY: the caller's promise.
                        $field: *unsafe { library.get($symbol) }.map_err(|_| LoadFailure::NoSymbol($symbol))?,
                    )*
                    $(
                        // SAFETY: the caller's promise.
                        $late: unsafe { library.get($late_symbol) }.ok().map(|function| *function),
                    )*
                })
            }
        }

        /// The symbols of the functions that came after the oldest accepted version, and their versions.
        pub(crate) mod later {
            use super::Version;
            $(
                #[allow(non_upper_case_globals)]
                pub(crate) const $late: (&str, Version) =
                    ($late_symbol, Version::new($major, $minor, $patch));
            )*
        }
    };
}

functions! {
    always {
        get_version = "ncclGetVersion" (*mut c_int) -> ResultCode;
        get_error_string = "ncclGetErrorString" (ResultCode) -> *const c_char;
        get_last_error = "ncclGetLastError" (Comm) -> *const c_char;
        get_unique_id = "ncclGetUniqueId" (*mut UniqueId) -> ResultCode;

        comm_init_rank_config = "ncclCommInitRankConfig"
            (*mut Comm, c_int, UniqueId, c_int, *mut NcclConfig) -> ResultCode;
        comm_split = "ncclCommSplit" (Comm, c_int, c_int, *mut Comm, *mut NcclConfig) -> ResultCode;
        comm_finalize = "ncclCommFinalize" (Comm) -> ResultCode;
        comm_destroy = "ncclCommDestroy" (Comm) -> ResultCode;
        comm_abort = "ncclCommAbort" (Comm) -> ResultCode;
        comm_get_async_error = "ncclCommGetAsyncError" (Comm, *mut ResultCode) -> ResultCode;
        comm_count = "ncclCommCount" (Comm, *mut c_int) -> ResultCode;
        comm_user_rank = "ncclCommUserRank" (Comm, *mut c_int) -> ResultCode;

        all_reduce = "ncclAllReduce"
            (*const c_void, *mut c_void, usize, DataType, RedOp, Comm, Stream) -> ResultCode;
        all_gather = "ncclAllGather" (*const c_void, *mut c_void, usize, DataType, Comm, Stream) -> ResultCode;
        reduce_scatter = "ncclReduceScatter"
            (*const c_void, *mut c_void, usize, DataType, RedOp, Comm, Stream) -> ResultCode;
        broadcast = "ncclBroadcast"
            (*const c_void, *mut c_void, usize, DataType, c_int, Comm, Stream) -> ResultCode;
        send = "ncclSend" (*const c_void, usize, DataType, c_int, Comm, Stream) -> ResultCode;
        recv = "ncclRecv" (*mut c_void, usize, DataType, c_int, Comm, Stream) -> ResultCode;
        group_start = "ncclGroupStart" () -> ResultCode;
        group_end = "ncclGroupEnd" () -> ResultCode;

        mem_alloc = "ncclMemAlloc" (*mut *mut c_void, usize) -> ResultCode;
        mem_free = "ncclMemFree" (*mut c_void) -> ResultCode;
        comm_register = "ncclCommRegister" (Comm, *mut c_void, usize, *mut *mut c_void) -> ResultCode;
        comm_deregister = "ncclCommDeregister" (Comm, *mut c_void) -> ResultCode;
        comm_window_register = "ncclCommWindowRegister"
            (Comm, *mut c_void, usize, *mut Window, c_int) -> ResultCode;
        comm_window_deregister = "ncclCommWindowDeregister" (Comm, Window) -> ResultCode;
    }
    later {
        all_to_all = "ncclAlltoAll" since (2, 28, 0)
            (*const c_void, *mut c_void, usize, DataType, Comm, Stream) -> ResultCode;
        get_lsa_device_pointer = "ncclGetLsaDevicePointer" since (2, 29, 2)
            (Window, usize, c_int, *mut *mut c_void) -> ResultCode;
    }
}
