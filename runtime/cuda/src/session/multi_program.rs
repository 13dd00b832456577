//! Several programs in one session. They take turns in one execution context, which is reallocated when a
//! program is added.
//!
//! A session keeps inputs, outputs and the last recording per program. Everything else is shared: arenas,
//! flags, communicators and their windows, workspace, streams, and the cached recordings, whose keys include
//! the program number.

use symmc_check::CheckedPlan;
use symmc_runtime::RunError;
use symmc_runtime::error::session_ended_error;
use symmc_runtime::exec::{CustomKernelRegistry, ExecConfig, Executor};
use symmc_runtime::session::{
    Port, SessionLayout, SessionPorts, arenas_released_error, check_proposals, encode_proposal,
};

use super::context::ContextSizes;
use super::cuda_session::{CudaSession, LastRun, ParkedProgram};
use super::gpu::ALIGN;
use super::lru_cache::LruCache;
use crate::codegen::unsupported::check_supported;
use crate::device::driver::DeviceBuffer;

/// The data of an input in symmetric memory, saved while that memory is reallocated.
struct SavedInput {
    program: usize,
    input: usize,
    data: Vec<u8>,
}

impl CudaSession {
    pub(super) fn add_program(&mut self, plan: &CheckedPlan) -> Result<usize, RunError> {
        self.wait_for_runs(None)?;
        let prepared = self.prepare_program(plan);
        let proposals = self.comm()?.exchange_bytes(&encode_proposal(plan, prepared.as_ref().err()));
        let proposals = proposals.map_err(|error| self.fail_session(error))?;
        let agreed = check_proposals(&proposals);
        let (ports, arrangement) = prepared?;
        agreed?;
        let number = arrangement.program_count() - 1;
        self.arrangement = arrangement;
        self.parked.push(Some(ParkedProgram { ports, last: LastRun::Unknown }));
        self.reallocate_context().map_err(|error| self.fail_session(error))?;
        Ok(number)
    }

    fn prepare_program(
        &self,
        plan: &CheckedPlan,
    ) -> Result<(SessionPorts<DeviceBuffer>, SessionLayout), RunError> {
        let ranks = self.ports.plan().ranks;
        if plan.ranks != ranks {
            let text = format!("the session has {ranks} ranks, the plan is for {}", plan.ranks);
            return Err(RunError::Invalid(text));
        }
        if self.config.callers > 0 {
            let text = "a session of several programs cannot have symmetric memory for the caller";
            return Err(RunError::Invalid(text.into()));
        }
        if !self.context()?.resources.programs.captured.is_empty() {
            let text =
                "the arenas cannot be reallocated: a graph of the caller contains a run of the session";
            return Err(RunError::Invalid(text.into()));
        }
        check_supported(plan, &[])?;
        let executor =
            Executor::new(plan, self.comm()?.rank(), &CustomKernelRegistry::new(), ExecConfig::default())?;
        let mut arrangement = self.arrangement.clone();
        arrangement.add_program(plan, None)?;
        Ok((SessionPorts::new(executor, (ALIGN, 0))?, arrangement))
    }

    /// Reallocates the arenas for all programs. All ranks call this together, after all of their runs have
    /// ended.
    fn reallocate_context(&mut self) -> Result<(), RunError> {
        let saved = self.save_inputs()?;
        self.forget_last_runs();
        self.choices = LruCache::new(self.gpu.cached_recordings);
        self.pending_runs.clear();
        self.context = None;
        self.comm()?.exchange_bytes(&[0])?;
        for program in 0..self.arrangement.program_count() {
            let placement = self.arrangement.program_placement(program);
            if let Some(ports) = self.ports_of_program(program) {
                ports.invalidate_symmetric();
                ports.set_placement(placement)?;
            }
        }
        let context = self.make_context(&self.context_sizes()?, self.comm()?)?;
        self.context = Some(context);
        saved.into_iter().try_for_each(|input| self.restore_input(&input))
    }

    /// Saves the data that was written to inputs in symmetric memory.
    fn save_inputs(&mut self) -> Result<Vec<SavedInput>, RunError> {
        let mut saved = Vec::new();
        for program in 0..self.arrangement.program_count() {
            let mut fixed_inputs = Vec::new();
            if let Some(ports) = self.ports_of_program(program) {
                let Ok(bound) = ports.sized_program().map(|sized| sized.program.clone()) else { continue };
                for (input, of_bound) in bound.inputs.iter().enumerate() {
                    let port = Port::Input(input);
                    let is_kept = ports.state(port).has_data()
                        && ports.state(port).binding().is_none()
                        && bound.constant_data(input).is_none();
                    if let Some(offset) = ports.fixed_offset(input).filter(|_| is_kept && of_bound.bytes > 0)
                    {
                        fixed_inputs.push((input, offset, of_bound.bytes));
                    }
                }
            }
            for (input, offset, bytes) in fixed_inputs {
                let mut data = vec![0; bytes];
                let context = self.context()?;
                // SAFETY: the input has that many bytes there, and no run is in progress.
                unsafe { context.resources.streams.compute.download(&mut data, context.symmetric(offset))? };
                saved.push(SavedInput { program, input, data });
            }
        }
        Ok(saved)
    }

    fn restore_input(&mut self, saved: &SavedInput) -> Result<(), RunError> {
        let port = Port::Input(saved.input);
        let Some(offset) =
            self.ports_of_program(saved.program).and_then(|ports| ports.fixed_offset(saved.input))
        else {
            return Ok(());
        };
        let destination = self.context.as_ref().ok_or_else(arenas_released_error)?.symmetric(offset);
        self.upload(destination, &saved.data)?;
        if let Some(ports) = self.ports_of_program(saved.program) {
            ports.state_mut(port).set_data();
        }
        Ok(())
    }

    fn ports_of_program(&mut self, program: usize) -> Option<&mut SessionPorts<DeviceBuffer>> {
        if program == self.program {
            self.arrangement.is_open(program).then_some(&mut self.ports)
        } else {
            self.parked.get_mut(program)?.as_mut().map(|parked| &mut parked.ports)
        }
    }

    pub(super) fn forget_last_runs(&mut self) {
        self.last_run = LastRun::Unknown;
        self.parked.iter_mut().flatten().for_each(|parked| parked.last = LastRun::Unknown);
    }

    /// The sizes of the context for all open programs.
    pub(super) fn context_sizes(&self) -> Result<ContextSizes, RunError> {
        let current = self.ports.plan();
        let rank = self.comm()?.rank();
        if self.arrangement.program_count() == 1 {
            return ContextSizes::for_plan(current, rank).with_callers(current, self.config.callers);
        }
        let parked = self.parked.iter().enumerate();
        let parked = parked.filter_map(|(number, parked)| Some((number, parked.as_ref()?.ports.plan())));
        let active = self.arrangement.is_open(self.program).then_some((self.program, current));
        let placed =
            parked.chain(active).map(|(number, plan)| (plan, self.arrangement.program_placement(number)));
        Ok(ContextSizes::for_programs(
            placed,
            [self.arrangement.ordinary_bytes(), self.arrangement.symmetric_bytes()],
            rank,
        ))
    }

    pub(super) fn select_program(&mut self, program: usize) -> Result<(), RunError> {
        if program == self.program {
            return Ok(());
        }
        let next = self.parked.get_mut(program).and_then(Option::take).ok_or_else(session_ended_error)?;
        let ports = std::mem::replace(&mut self.ports, next.ports);
        let last_run = std::mem::replace(&mut self.last_run, next.last);
        if self.arrangement.is_open(self.program) {
            self.parked[self.program] = Some(ParkedProgram { ports, last: last_run });
        }
        self.program = program;
        Ok(())
    }

    /// Closes a program. Its recordings are evicted when others need their slots.
    pub(super) fn end_program(&mut self, program: usize) -> Result<(), RunError> {
        self.wait_for_runs(None)?;
        self.arrangement.close_program(program);
        if let Some(parked) = self.parked.get_mut(program) {
            *parked = None;
        }
        Ok(())
    }
}
