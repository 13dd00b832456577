//! What an embedding engine lends to a session: its stream and its communicator.
//!
//! The session's runs then begin and end on the engine's stream: put there to run, or, while the engine captures
//! the stream, recorded into the engine's graph ([`DeviceSession::enqueue`](symmc_runtime::session::DeviceSession::enqueue)). Plain
//! collectives run on the engine's communicator in place of one of the session's own. Neither is ever ended here.
//!
//! Both come as the raw handles that engines hold; what their owner promises stands at the constructors.

use std::ffi::c_void;

use cudarc::driver::sys::CUstream;

use crate::nccl::Lent;

/// What a session takes from its caller instead of making it. By default nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Adopted {
    /// The stream where runs begin and end.
    pub stream: Option<LentStream>,
    /// A communicator for plain collectives.
    pub communicator: Option<Lent>,
}

/// A stream of somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LentStream(CUstream);

// SAFETY: streams may be used from any thread.
unsafe impl Send for LentStream {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for LentStream {}

impl LentStream {
    /// A `cudaStream_t` (`CUstream`) that was created; the default streams cannot be captured.
    ///
    /// # Safety
    /// - It belongs to the primary context of the session's GPU.
    /// - It exists, and is not captured, when the session is made and when it is dropped, and until then. What its
    ///   owner put on it has ended by the time the session is dropped.
    /// - While the session uses it nobody else does, and what the owner puts there does not touch the session's
    ///   memory.
    pub unsafe fn new(stream: *mut c_void) -> LentStream {
        LentStream(stream.cast())
    }

    /// The driver's handle.
    pub(crate) fn handle(self) -> CUstream {
        self.0
    }
}
