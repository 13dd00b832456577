//! A plan together with its proof. Runtimes accept only checked plans.
//!
//! A [`CheckedPlan`] can only be made by the check, and its checked parts are immutable. Code that receives one
//! need not check it again. A plan that was read from a file is a plain [`Plan`].

use std::ops::Deref;
use std::sync::Arc;

use symmc_plan::{ParsedPlan, Plan};

use crate::error::CheckError;
use crate::prove::prove;
use crate::report::CheckReport;

/// A plan that the [check](crate) has proved safe, with its parsed programs. Clones share the data.
#[derive(Clone, Debug)]
pub struct CheckedPlan {
    plan: ParsedPlan,
    report: Arc<CheckReport>,
}

impl CheckedPlan {
    pub fn new(plan: Plan) -> Result<Self, Vec<CheckError>> {
        CheckedPlan::try_new(plan).map_err(|refused| refused.1)
    }

    /// Like [`CheckedPlan::new`], but returns the plan together with the findings if the check fails.
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

    /// Gives up the proof and returns the plan, which can then be changed.
    pub fn into_plan(self) -> Plan {
        self.plan.into_plan()
    }

    /// [`ParsedPlan::with_workspaces`]. The proof stays valid because the check does not read workspace sizes.
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
