//! The rank of a process in a run that another launcher started, and the address where the ranks meet.

use std::fmt;

use nix::sys::socket::UnixAddr;
use nix::unistd::getuid;

use crate::error::{Result, RunError};

/// The rank of this process in a run that another launcher started.
#[derive(Clone, PartialEq, Eq)]
pub struct Membership {
    pub rank: u32,
    pub ranks: u32,
    /// Distinguishes this run from others of the user.
    pub run: String,
}

/// Prefix of the names of runs that their ranks drew at random: such a name is a secret of the ranks.
pub(crate) const DRAWN: &str = "bootstrap ";

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Membership { rank, ranks, run: _ } = self;
        let mut out = f.debug_struct("Membership");
        out.field("rank", rank).field("ranks", ranks).field("run", &self.public_run_name()).finish()
    }
}

impl Membership {
    /// The name of the run for messages, without a secret.
    pub(crate) fn public_run_name(&self) -> &str {
        if self.run.starts_with(DRAWN) { "a group that exchanged a secret name" } else { &self.run }
    }

    pub(crate) fn address(&self) -> Result<UnixAddr> {
        let name = format!("symmc-{}-{:016x}", getuid(), fnv_hash(self.run.as_bytes()));
        UnixAddr::new_abstract(name.as_bytes())
            .map_err(|e| RunError::from_system_call("naming the rendezvous point", "bind", e))
    }
}

/// FNV-1a (Fowler, Noll, Vo), 64 bits.
fn fnv_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}
