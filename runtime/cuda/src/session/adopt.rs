//! What an embedding engine lends to a session: its stream and its communicator.
//!
//! The session's runs then begin and end on the engine's stream: put there to run, or, while the engine captures
//! the stream, recorded into the engine's graph ([`DeviceSession::enqueue`](symmc_runtime::session::DeviceSession::enqueue)). Plain
//! collectives run on the engine's communicator in place of one of the session's own. Neither is ever ended here.
//!
//! Both come as the raw handles that engines hold; what their owner promises stands at the constructors.

use crate::device::driver::LentStream;
use crate::nccl::Lent;

/// What a session takes from its caller instead of making it. By default nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Adopted {
    /// The stream where runs begin and end.
    pub stream: Option<LentStream>,
    /// A communicator for plain collectives.
    pub communicator: Option<Lent>,
}
