//! A plan together with its proof: what runs.
//!
//! Checking is the only way to make one, and nothing that was checked changes inside of one, so whoever takes
//! a [`CheckedPlan`] need not check it again. A plan from a file is a plain [`Plan`].

use std::ops::Deref;
use std::sync::Arc;

use symmc_plan::{ParsedPlan, Plan};

use crate::error::CheckError;
use crate::prove::prove;
use crate::report::CheckReport;

/// A plan that the [check](crate) has proved safe, with its programs as the check read them. A clone shares it.
#[derive(Clone, Debug)]
pub struct CheckedPlan {
    plan: ParsedPlan,
    report: Arc<CheckReport>,
}

impl CheckedPlan {
    pub fn new(plan: Plan) -> Result<Self, Vec<CheckError>> {
        CheckedPlan::try_new(plan).map_err(|refused| refused.1)
    }

    pub fn try_new(plan: Plan) -> Result<Self, Box<(Plan, Vec<CheckError>)>> {
        match prove(&plan) {
            Ok(proof) => {
                let plan = ParsedPlan::from_parts(Arc::new(plan), proof.source, proof.programs);
                Ok(CheckedPlan { plan, report: Arc::new(proof.report) })
            }
            Err(findings) => Err(Box::new((plan, findings))),
        }
    }

    pub fn report(&self) -> &CheckReport {
        &self.report
    }

    /// The plan, to be changed; it counts as unchecked then.
    pub fn into_plan(self) -> Plan {
        self.plan.into_plan()
    }

    /// [`ParsedPlan::with_workspaces`]: the check does not ask for these.
    pub fn with_workspaces(self, bytes: &[u64]) -> CheckedPlan {
        CheckedPlan { plan: self.plan.with_workspaces(bytes), ..self }
    }
}

impl Deref for CheckedPlan {
    type Target = ParsedPlan;

    fn deref(&self) -> &ParsedPlan {
        &self.plan
    }
}
