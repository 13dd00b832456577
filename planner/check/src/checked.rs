//! A plan together with its proof: what runs.
//!
//! Checking is the only way to make one, and nothing changes a plan inside of one, so whoever takes
//! a [`CheckedPlan`] need not check it again. A plan from a file is a plain [`Plan`].

use std::ops::Deref;
use std::sync::Arc;

use symmc_ir::Graph;
use symmc_plan::{Plan, Program};

use crate::error::CheckError;
use crate::prove::{Proof, prove};
use crate::report::Report;

/// A plan that the [check](crate) has proved safe. A clone shares it.
#[derive(Clone, Debug)]
pub struct CheckedPlan {
    plan: Arc<Plan>,
    proof: Arc<Proof>,
}

impl CheckedPlan {
    /// Checks a plan.
    ///
    /// # Errors
    /// Every finding.
    pub fn new(plan: Plan) -> Result<Self, Vec<CheckError>> {
        CheckedPlan::or_back(plan).map_err(|refused| refused.1)
    }

    /// Checks a plan; gives it back if it does not check.
    ///
    /// # Errors
    /// The plan and every finding.
    pub fn or_back(plan: Plan) -> Result<Self, Box<(Plan, Vec<CheckError>)>> {
        match prove(&plan) {
            Ok(proof) => Ok(CheckedPlan { plan: Arc::new(plan), proof: Arc::new(proof) }),
            Err(findings) => Err(Box::new((plan, findings))),
        }
    }

    /// What the proof looked at.
    pub fn report(&self) -> &Report {
        &self.proof.report
    }

    /// The imported program, as the check read it.
    pub fn source_program(&self) -> &Graph {
        &self.proof.source
    }

    /// The planned programs, as the check read them.
    pub fn programs(&self) -> &[Program] {
        &self.proof.programs
    }

    /// The plan, to be changed; it counts as unchecked then.
    pub fn into_plan(self) -> Plan {
        Arc::unwrap_or_clone(self.plan)
    }

    /// The plan, shared with whoever keeps it for longer.
    pub fn shared(&self) -> Arc<Plan> {
        self.plan.clone()
    }
}

impl Deref for CheckedPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}
