//! Several programs in one session: they take turns in one execution context, which is made anew where another program is opened.
//!
//! A session keeps inputs, outputs and the last recording of each program apart. Everything else is shared: arenas, flags,
//! communicators and their windows, workspace, streams, and the kept recordings, whose keys have the number of the program.

use symmc_check::CheckedPlan;
use symmc_runtime::RunError;
use symmc_runtime::exec::{ExecConfig, Executor, Registry};
use symmc_runtime::session::{Arrangement, Port, Ports, ended, expect_agreement, gave_back, proposal};

use super::context::Sizes;
use super::cuda_session::{CudaSession, LastRun, ParkedProgram};
use super::gpu::ALIGN;
use super::recent::Recent;
use crate::codegen::refusal::accept;
use crate::device::driver::Memory;

/// The data of an input in symmetric memory, while that is allocated anew.
struct KeptInput {
    program: usize,
    input: usize,
    data: Vec<u8>,
}

impl CudaSession {
    pub(super) fn add_program(&mut self, plan: &CheckedPlan) -> Result<usize, RunError> {
        self.until_idle(None)?;
        let made = self.prepare_program(plan);
        let said = self.comm()?.exchange(&proposal(plan, made.as_ref().err()));
        let said = said.map_err(|error| self.fail(error))?;
        let agreed = expect_agreement(&said);
        let (ports, arrangement) = made?;
        agreed?;
        let number = arrangement.count() - 1;
        self.arrangement = arrangement;
        self.parked.push(Some(ParkedProgram { ports, last: LastRun::Unknown }));
        self.make_room().map_err(|error| self.fail(error))?;
        Ok(number)
    }

    fn prepare_program(&self, plan: &CheckedPlan) -> Result<(Ports<Memory>, Arrangement), RunError> {
        let invalid = |text: String| Err(RunError::Invalid(text));
        let ranks = self.ports.plan().ranks;
        if plan.ranks != ranks {
            return invalid(format!("the session has {ranks} ranks, the plan is for {}", plan.ranks));
        }
        if self.config.callers > 0 {
            return invalid("symmetric memory for the caller: a session of several programs has none".into());
        }
        if !self.context()?.resources.programs.captured.is_empty() {
            return invalid(
                "a graph of the caller holds a run of the session: its arenas cannot be allocated anew"
                    .into(),
            );
        }
        accept(plan, &[])?;
        let executor = Executor::new(plan, self.comm()?.rank(), &Registry::new(), ExecConfig::default())?;
        let mut arrangement = self.arrangement.clone();
        arrangement.add(plan, None)?;
        Ok((Ports::new(executor, (ALIGN, 0))?, arrangement))
    }

    /// Takes arenas that serve all programs. All ranks call this together, and have ended all runs.
    fn make_room(&mut self) -> Result<(), RunError> {
        let kept = self.kept_inputs()?;
        self.drop_recordings();
        self.settled = Recent::new(self.gpu.kept);
        self.flight.clear();
        self.context = None;
        self.comm()?.exchange(&[0])?;
        for program in 0..self.arrangement.count() {
            let placement = self.arrangement.placement(program);
            if let Some(ports) = self.ports_of(program) {
                ports.lose_symmetric();
                ports.place(placement)?;
            }
        }
        let context = self.make_context(&self.sizes()?, self.comm()?)?;
        self.context = Some(context);
        kept.into_iter().try_for_each(|input| self.restore_input(&input))
    }

    /// What was written to inputs in symmetric memory.
    fn kept_inputs(&mut self) -> Result<Vec<KeptInput>, RunError> {
        let mut kept = Vec::new();
        for program in 0..self.arrangement.count() {
            let mut found = Vec::new();
            if let Some(ports) = self.ports_of(program) {
                let Ok(bound) = ports.sized().map(|sized| sized.bound.clone()) else { continue };
                for (input, of_bound) in bound.inputs.iter().enumerate() {
                    let port = Port::Input(input);
                    let is_kept = ports.state(port).given
                        && ports.state(port).bound.is_none()
                        && bound.constant(input).is_none();
                    if let Some(offset) = ports.fixed(input).filter(|_| is_kept && of_bound.bytes > 0) {
                        found.push((input, offset, of_bound.bytes));
                    }
                }
            }
            for (input, offset, bytes) in found {
                let (mut data, context) = (vec![0; bytes], self.context()?);
                // SAFETY: the input has as many bytes there, and no run is in progress.
                unsafe { context.resources.streams.compute.download(&mut data, context.symmetric(offset))? };
                kept.push(KeptInput { program, input, data });
            }
        }
        Ok(kept)
    }

    fn restore_input(&mut self, kept: &KeptInput) -> Result<(), RunError> {
        let port = Port::Input(kept.input);
        let Some(offset) = self.ports_of(kept.program).and_then(|ports| ports.fixed(kept.input)) else {
            return Ok(());
        };
        let to = self.context.as_ref().ok_or_else(gave_back)?.symmetric(offset);
        self.upload(to, &kept.data)?;
        if let Some(ports) = self.ports_of(kept.program) {
            ports.state_mut(port).given = true;
        }
        Ok(())
    }

    fn ports_of(&mut self, program: usize) -> Option<&mut Ports<Memory>> {
        match program == self.program {
            true => self.arrangement.is_open(program).then_some(&mut self.ports),
            false => self.parked.get_mut(program)?.as_mut().map(|parked| &mut parked.ports),
        }
    }

    pub(super) fn drop_recordings(&mut self) {
        self.last = LastRun::Unknown;
        self.parked.iter_mut().flatten().for_each(|parked| parked.last = LastRun::Unknown);
    }

    /// How large everything is for all open programs.
    pub(super) fn sizes(&self) -> Result<Sizes, RunError> {
        let (own, rank) = (self.ports.plan(), self.comm()?.rank());
        if self.arrangement.count() == 1 {
            return Sizes::of(own, rank).with_callers(own, self.config.callers);
        }
        let parked = self.parked.iter().enumerate();
        let parked = parked.filter_map(|(number, parked)| Some((number, parked.as_ref()?.ports.plan())));
        let active = self.arrangement.is_open(self.program).then_some((self.program, own));
        let placed = parked.chain(active).map(|(number, plan)| (plan, self.arrangement.placement(number)));
        Ok(Sizes::of_programs(placed, [self.arrangement.ordinary(), self.arrangement.symmetric()], rank))
    }

    pub(super) fn activate(&mut self, program: usize) -> Result<(), RunError> {
        if program == self.program {
            return Ok(());
        }
        let next = self.parked.get_mut(program).and_then(Option::take).ok_or_else(ended)?;
        let ports = std::mem::replace(&mut self.ports, next.ports);
        let last = std::mem::replace(&mut self.last, next.last);
        if self.arrangement.is_open(self.program) {
            self.parked[self.program] = Some(ParkedProgram { ports, last });
        }
        self.program = program;
        Ok(())
    }

    /// Ends a program. Its recordings go when others need their place.
    pub(super) fn end_program(&mut self, program: usize) -> Result<(), RunError> {
        self.until_idle(None)?;
        self.arrangement.close(program);
        if let Some(parked) = self.parked.get_mut(program) {
            *parked = None;
        }
        Ok(())
    }
}
