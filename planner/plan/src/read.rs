//! A plan with its programs as graphs. The plan check returns it, and runtimes execute it.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use symmc_ir::Graph;
use symmc_ir::interp::{RoundingHistory, RunCount, output_histories};
use symmc_ir::text::{self, ParseError};
use thiserror::Error;

use crate::{ParsedProgram, Plan, ProgramReadError};

/// A plan with its programs as graphs. Each program is parsed once, on first use. Clones share everything.
#[derive(Clone, Debug)]
pub struct ParsedPlan {
    plan: Arc<Plan>,
    source: Arc<Graph>,
    programs: Arc<[OnceLock<Result<ParsedProgram, ProgramReadError>>]>,
}

/// A text in a plan that is no valid program, or a missing program.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum PlanProgramError {
    #[error("the imported program of the plan: {0}")]
    Source(ParseError),
    #[error("program {0} of the plan: {1}")]
    Program(usize, ProgramReadError),
    /// The plan has no program with this index.
    #[error("the plan has no program {0}")]
    Missing(usize),
}

impl ParsedPlan {
    /// Parses the imported program of a plan. The planned programs are parsed on first use.
    pub fn parse(plan: Arc<Plan>) -> Result<ParsedPlan, PlanProgramError> {
        let source = Arc::new(text::parse(&plan.source.text).map_err(PlanProgramError::Source)?);
        let programs = plan.programs.iter().map(|_| OnceLock::new()).collect();
        Ok(ParsedPlan { plan, source, programs })
    }

    /// A plan with programs that the caller has already parsed: the imported program, and the planned ones in
    /// order.
    pub fn from_parts(plan: Arc<Plan>, source: Graph, programs: Vec<ParsedProgram>) -> ParsedPlan {
        let programs = programs.into_iter().map(|program| OnceLock::from(Ok(program))).collect();
        ParsedPlan { plan, source: Arc::new(source), programs }
    }

    pub fn source_program(&self) -> &Graph {
        &self.source
    }

    /// Fails if there is no program with this index, or if its text is no valid program.
    pub fn program(&self, index: usize) -> Result<&ParsedProgram, PlanProgramError> {
        let (Some(cell), Some(text)) = (self.programs.get(index), self.plan.programs.get(index)) else {
            return Err(PlanProgramError::Missing(index));
        };
        cell.get_or_init(|| ParsedProgram::parse(text))
            .as_ref()
            .map_err(|e| PlanProgramError::Program(index, e.clone()))
    }

    /// The rounding history of each output, for comparisons with a planned program: the history in the source,
    /// extended by the effects that the numerics classes of the plan allow.
    pub fn output_histories(
        &self,
        program: usize,
        runs: RunCount,
    ) -> Result<Vec<RoundingHistory>, PlanProgramError> {
        let planned = output_histories(&self.program(program)?.graph, runs);
        let source = output_histories(&self.source, runs).into_iter();
        Ok(source
            .zip(&planned)
            .map(|(source, planned)| source.with_numerics(self.plan.numerics, planned))
            .collect())
    }

    /// The planned programs in order, each with its parse result.
    pub fn programs(&self) -> impl Iterator<Item = Result<&ParsedProgram, PlanProgramError>> {
        (0..self.programs.len()).map(|index| self.program(index))
    }

    /// The wire form of the plan, for modification.
    pub fn into_plan(self) -> Plan {
        Arc::unwrap_or_clone(self.plan)
    }

    /// The plan with the bytes that GPUs use in each bucket in addition to the arenas
    /// ([`BucketTotals::workspace`](crate::BucketTotals::workspace)). Nothing else in the plan depends on them.
    pub fn with_workspaces(mut self, bytes: &[u64]) -> ParsedPlan {
        let plan = Arc::make_mut(&mut self.plan);
        plan.buckets.iter_mut().zip(bytes).for_each(|(bucket, &bytes)| bucket.totals.workspace = bytes);
        self
    }
}

impl Deref for ParsedPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}
