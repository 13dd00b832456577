//! Configuration of plans that run on the ranks of this machine.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use symmc_control::SpinConfig;
use symmc_plan::{ParsedPlan, Plan};

use super::comm::CommConfig;
use crate::error::{Result, RunError};
use crate::exec::{ExecConfig, Lanes, Timing};
use crate::session::{CallerArena, SessionLayout};

/// The configuration of a plan that runs on the ranks of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostConfig {
    /// The timeout of every wait. A rank that makes no progress for this long ends the run.
    pub limit: Duration,
    /// The seed of random delays around every access to a peer, if they are requested.
    pub chaos: Option<u64>,
    /// Whether a rank runs its lanes on one thread or on one each.
    pub threads: LaneThreads,
    /// The first value of counters and epochs of LL. 0 except in tests of their wrap-around.
    pub first: u32,
    /// Bytes of symmetric memory for the caller of a session, in addition to the plan's.
    pub callers: usize,
    /// Whether other programs may be opened in a session of the host, which then reserves addresses and
    /// groups for them.
    pub extendable: bool,
}

/// The number of groups that a session reserves in addition to those of its first program, if it may have
/// others.
const SPARE_GROUPS: usize = 32;

/// The threads on which a rank runs its lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum LaneThreads {
    /// One thread runs all steps in the order of the plan.
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
        if self.extendable {
            return Ok(SessionLayout::reserved_capacity(plan));
        }
        Ok(CallerArena::new(plan, self.callers)?.end())
    }

    /// The number of groups of a session that begins with this plan.
    pub(crate) fn session_groups(&self, plan: &ParsedPlan) -> usize {
        count_groups(plan) + if self.extendable { SPARE_GROUPS } else { 0 }
    }

    /// The configuration of a rank's walk of steps.
    pub(super) fn exec_config(&self) -> ExecConfig {
        let lanes = match self.threads {
            LaneThreads::One => Lanes::Inline,
            LaneThreads::Each => Lanes::Threads,
        };
        ExecConfig { lanes, timing: Timing::Off }
    }
}

/// The number of groups with separate flags: those of the plan, and one for other exchanges between ranks.
pub(super) fn count_groups(plan: &ParsedPlan) -> usize {
    let planned = plan.programs().map(|p| p.map_or(0, |p| p.graph.groups.len()));
    planned.fold(plan.source_program().groups.len(), usize::max) + 1
}

pub(super) fn arena_size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|e| RunError::system(format!("an arena of {bytes} bytes"), e))
}
