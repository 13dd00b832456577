//! The host as a device: collectives through shared memory, and sessions.
//!
//! [`HostSession`] runs plans on a rank that has joined the others (`symmc-control`). The modules from the
//! bottom up: `reduce` and `ll` move elements; `collective` runs collectives for a
//! [`RankCommunicator`](symmc_control::RankCommunicator), each of which passes the points that
//! docs/design/collectives.md lists. `running` has the regions of a call, and `direct` (pull, push, one- and
//! two-shot), `put`, `landing` (`ll`), `staged` (plain), `splits`, `rows` and `row_sums` the variants. `queue`
//! holds the runs of a session.

mod collective;
mod copy;
mod direct;
mod landing;
mod ll;
mod put;
mod queue;
mod reduce;
mod row_sums;
mod rows;
mod running;
mod session;
mod splits;
mod staged;

pub use session::HostSession;
