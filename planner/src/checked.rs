//! A plan together with its proof: what runs.
//!
//! [`CheckedPlan::new`] is the only way to make one, and nothing changes a plan inside of one, so whoever takes
//! a [`CheckedPlan`] need not check it again. A plan from a file is a plain [`Plan`].

use std::ops::Deref;

use crate::check::{CheckError, Report, check};
use crate::plan::Plan;

/// A plan that [`check`] has proved safe.
#[derive(Clone, Debug)]
pub struct CheckedPlan {
    plan: Plan,
    report: Report,
}

impl CheckedPlan {
    /// Checks a plan.
    ///
    /// # Errors
    /// Every finding.
    pub fn new(plan: Plan) -> Result<Self, Vec<CheckError>> {
        let report = check(&plan)?;
        Ok(CheckedPlan { plan, report })
    }

    /// What the proof looked at.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The plan, to be changed; it counts as unchecked then.
    pub fn into_plan(self) -> Plan {
        self.plan
    }
}

impl Deref for CheckedPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}
