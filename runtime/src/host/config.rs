//! How the ranks of this machine run plans.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use symmc_control::SpinConfig;
use symmc_plan::{ParsedPlan, Plan};

use super::comm::CommConfig;
use crate::error::{Result, RunError};
use crate::exec::{ExecConfig, Lanes, Timing};
use crate::session::{CallerArena, SessionLayout};

/// How a plan runs on the ranks of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostConfig {
    /// No wait takes longer. A rank that makes no progress for this long ends the run.
    pub limit: Duration,
    /// Delays ranks at random around every touch of a peer, from this seed.
    pub chaos: Option<u64>,
    /// Whether a rank runs its lanes on one thread or on one each.
    pub threads: LaneThreads,
    /// Where counters and epochs of LL start. 0 but in tests of their wrap-around.
    pub first: u32,
    /// Bytes of symmetric memory for the caller of a session, beside what the plan needs.
    pub callers: usize,
    /// Whether other programs may be opened in a session of the host, which reserves addresses and groups for them.
    pub extendable: bool,
}

/// The groups that a session has room for beside those of its first program, if it may have others.
const SPARE_GROUPS: usize = 32;

/// Which threads of a rank run its lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum LaneThreads {
    /// One runs all steps in the order of the plan.
    #[default]
    One,
    Each,
}

impl Default for HostConfig {
    fn default() -> Self {
        HostConfig {
            limit: Duration::from_secs(30),
            chaos: None,
            threads: LaneThreads::One,
            first: 0,
            callers: 0,
            extendable: false,
        }
    }
}

impl HostConfig {
    pub fn comm_config(&self, ranks: u32) -> CommConfig {
        let lanes = if self.threads == LaneThreads::Each { 2 } else { 1 };
        let spin = SpinConfig::for_threads(ranks as usize * lanes);
        CommConfig { limit: self.limit, chaos: self.chaos, spin, first: self.first }
    }

    pub(crate) fn symmetric_bytes(&self, plan: &Plan) -> Result<usize> {
        match self.extendable {
            true => Ok(SessionLayout::reserved_capacity(plan)),
            false => Ok(CallerArena::new(plan, self.callers)?.end()),
        }
    }

    /// The groups of a session that begins with a plan.
    pub(crate) fn session_groups(&self, plan: &ParsedPlan) -> usize {
        count_groups(plan) + if self.extendable { SPARE_GROUPS } else { 0 }
    }

    /// How a rank walks its steps.
    pub(super) fn exec_config(&self) -> ExecConfig {
        let lanes = match self.threads {
            LaneThreads::One => Lanes::Inline,
            LaneThreads::Each => Lanes::Threads,
        };
        ExecConfig { lanes, timing: Timing::Off }
    }
}

/// The groups of ranks that have flags of their own: those of the plan, and one for what ranks exchange besides.
pub(super) fn count_groups(plan: &ParsedPlan) -> usize {
    let planned = plan.programs().map(|p| p.map_or(0, |p| p.graph.groups.len()));
    planned.fold(plan.source_program().groups.len(), usize::max) + 1
}

pub(super) fn arena_size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|e| RunError::system(format!("an arena of {bytes} bytes"), e))
}
