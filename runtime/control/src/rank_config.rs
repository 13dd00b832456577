//! How the ranks of a plan run together, on any device.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a rank runs a plan together with the others, in a session or a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankConfig {
    /// The timeout of every wait. A rank that makes no progress for this long ends the run.
    pub limit: Duration,
    /// The seed of random delays around every access to a peer, if they are requested. On the host, ranks then
    /// run their lanes on one thread each, so that every order that the plan allows can occur.
    pub chaos: Option<u64>,
    /// Bytes of symmetric memory for the caller of a session, in addition to the plan's.
    pub callers: usize,
    /// Whether other programs may be opened in a session of the host, which then reserves addresses and
    /// groups for them.
    pub extendable: bool,
}

impl Default for RankConfig {
    fn default() -> Self {
        RankConfig { limit: Duration::from_secs(30), chaos: None, callers: 0, extendable: false }
    }
}
