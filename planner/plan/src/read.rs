//! A plan whose programs have been read: what the check leaves behind and what runs.

use std::ops::Deref;
use std::sync::Arc;

use symmc_ir::Graph;
use thiserror::Error;

use crate::{Plan, Program, Unread};

/// A plan as it is written, with its programs as graphs, each read once. A clone shares all of it.
#[derive(Clone, Debug)]
pub struct ReadPlan {
    plan: Arc<Plan>,
    source: Arc<Graph>,
    programs: Arc<[Program]>,
}

/// A text of a plan that is no program.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum UnreadPlan {
    /// That of the imported program.
    #[error("the imported program of the plan: {0}")]
    Source(Unread),
    /// That of a planned program.
    #[error("program {0} of the plan: {1}")]
    Program(usize, Unread),
}

impl ReadPlan {
    /// Reads the programs of a plan.
    ///
    /// # Errors
    /// A text is no valid program.
    pub fn read(plan: Arc<Plan>) -> Result<ReadPlan, UnreadPlan> {
        let source = Program::read(&plan.source.text).map_err(UnreadPlan::Source)?;
        let one = |(p, text): (usize, &String)| Program::read(text).map_err(|e| UnreadPlan::Program(p, e));
        let programs = plan.programs.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
        Ok(ReadPlan::of(plan, source.graph, programs))
    }

    /// A plan with what whoever read it found: the imported program, and the planned ones in their order.
    pub fn of(plan: Arc<Plan>, source: Graph, programs: Vec<Program>) -> ReadPlan {
        ReadPlan { plan, source: Arc::new(source), programs: programs.into() }
    }

    /// The imported program.
    pub fn source_program(&self) -> &Graph {
        &self.source
    }

    /// The planned programs.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The plan as it is written.
    pub fn written(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The plan as it is written, to be changed.
    pub fn into_written(self) -> Plan {
        Arc::unwrap_or_clone(self.plan)
    }

    /// The plan with the bytes that GPUs use in each bucket beside the arenas ([`Totals::workspace`](crate::Totals::workspace)),
    /// which nothing else of it depends on.
    pub fn with_workspaces(mut self, bytes: &[u64]) -> ReadPlan {
        let plan = Arc::make_mut(&mut self.plan);
        plan.buckets.iter_mut().zip(bytes).for_each(|(bucket, &bytes)| bucket.totals.workspace = bytes);
        self
    }
}

impl Deref for ReadPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}
