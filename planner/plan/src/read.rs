//! A plan whose programs are read: what the check leaves behind and what runs.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use symmc_ir::Graph;
use symmc_ir::interp::{RoundingHistory, Runs, output_histories};
use symmc_ir::text::{self, ParseError};
use thiserror::Error;

use crate::{Plan, ReadProgram, Unread};

/// A plan as it is written, with its programs as graphs: each is read once, by whoever asks for it first. A clone shares
/// all of it.
#[derive(Clone, Debug)]
pub struct ReadPlan {
    plan: Arc<Plan>,
    source: Arc<Graph>,
    programs: Arc<[OnceLock<Result<ReadProgram, Unread>>]>,
}

/// A text of a plan that is no program.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum UnreadPlan {
    #[error("the imported program of the plan: {0}")]
    Source(ParseError),
    #[error("program {0} of the plan: {1}")]
    Program(usize, Unread),
    /// A planned program that the plan does not have.
    #[error("the plan has no program {0}")]
    Missing(usize),
}

impl ReadPlan {
    /// Reads the imported program of a plan; the planned ones are read when they are asked for.
    pub fn read(plan: Arc<Plan>) -> Result<ReadPlan, UnreadPlan> {
        let source = Arc::new(text::parse(&plan.source.text).map_err(UnreadPlan::Source)?);
        let programs = plan.programs.iter().map(|_| OnceLock::new()).collect();
        Ok(ReadPlan { plan, source, programs })
    }

    /// A plan with what whoever read it found: the imported program, and the planned ones in their order.
    pub fn of(plan: Arc<Plan>, source: Graph, programs: Vec<ReadProgram>) -> ReadPlan {
        let programs = programs.into_iter().map(|program| OnceLock::from(Ok(program))).collect();
        ReadPlan { plan, source: Arc::new(source), programs }
    }

    pub fn source_program(&self) -> &Graph {
        &self.source
    }

    /// Fails if there is none of this index, or its text is no valid program.
    pub fn program(&self, index: usize) -> Result<&ReadProgram, UnreadPlan> {
        let missing = || UnreadPlan::Missing(index);
        let cell = self.programs.get(index).ok_or_else(missing)?;
        let text = self.plan.programs.get(index).ok_or_else(missing)?;
        cell.get_or_init(|| ReadProgram::read(text))
            .as_ref()
            .map_err(|e| UnreadPlan::Program(index, e.clone()))
    }

    /// The rounding history of each output for comparisons with a planned program: that of the source, extended by what
    /// the numerics classes of the plan allow.
    pub fn output_histories(&self, program: usize, runs: Runs) -> Result<Vec<RoundingHistory>, UnreadPlan> {
        let planned = output_histories(&self.program(program)?.graph, runs);
        let source = output_histories(&self.source, runs).into_iter();
        Ok(source
            .zip(&planned)
            .map(|(source, planned)| source.allowing(self.plan.numerics, planned))
            .collect())
    }

    /// The planned programs, each with whether its text is one.
    pub fn programs(&self) -> impl Iterator<Item = Result<&ReadProgram, UnreadPlan>> {
        (0..self.programs.len()).map(|index| self.program(index))
    }

    /// The plan as it is written, to be changed.
    pub fn into_written(self) -> Plan {
        Arc::unwrap_or_clone(self.plan)
    }

    /// The plan with the bytes that GPUs use in each bucket beside the arenas
    /// ([`Totals::workspace`](crate::Totals::workspace)), which nothing else of it depends on.
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
