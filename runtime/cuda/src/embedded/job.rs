//! What jobs do with a session besides: several runs in one graph with their time on the device, runs step by step, inputs
//! that are drawn on the device.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use symmc_ir::Bindings;
use symmc_ir::interp::{SeedConfig, Seeds};
use symmc_runtime::RunError;
use symmc_runtime::exec::{BoundStep, ExecConfig, Executor, InputData, Registry};
use symmc_runtime::host::RankRun;
use symmc_runtime::session::{DeviceSession, Owner, Port, Whose, gave_back};

use super::context::Sizes;
use super::gpu::Gpu;
use super::piece::Piece;
use super::ranks::Ranks;
use super::recording::Recording;
use super::session::CudaSession;
use crate::driver::{Device, Event, Graph, Memory};
use crate::error::CudaError;
use crate::launch::Address;
use crate::trace::TracedStep;

/// Runs of a session that are recorded into one graph.
pub(crate) struct Runs {
    recording: Arc<Recording>,
    /// That of the recording, if it is one run.
    graph: Option<Graph>,
    count: u32,
}

/// What memory within an allocation is aligned to.
const UNIT: usize = 256;

/// Floats that are drawn before they repeat: a prime number, so that rows of matrices differ.
const SAMPLE: usize = 262_139;

impl<'c> CudaSession<'c> {
    /// The session of a rank of a job, at the sizes of the job alone. All ranks of the job call this together.
    ///
    /// # Errors
    /// GPUs cannot run a step, there is no such GPU, a library or memory is missing, or a peer failed.
    pub(crate) fn of_job(run: &RankRun<'c>, gpu: &Gpu) -> Result<CudaSession<'c>, RunError> {
        let device = Device::open(gpu.ordinal.unwrap_or(run.comm.rank()))?;
        let executor = Executor::new(run.plan, run.comm.rank(), &Registry::new(), ExecConfig::default())?;
        let mut session = CudaSession::build(executor, gpu, run.config, device)?;
        session.ports.set(run.bindings)?;
        let sizes = Sizes::at(&session.ports.sized()?.bound);
        let mut session = session.with_context(&sizes, run.comm)?;
        session.lay_out()?;
        session.ranks = Some(Ranks::Job(run.comm));
        Ok(session)
    }
}

impl CudaSession<'_> {
    /// Lays out the memory of all inputs and outputs in one allocation, alike on all ranks.
    ///
    /// # Errors
    /// There is not as much memory.
    fn lay_out(&mut self) -> Result<(), RunError> {
        let bound = self.ports.sized()?.bound.clone();
        let ports =
            (0..bound.inputs.len()).map(Port::Input).chain((0..bound.outputs.len()).map(Port::Output));
        let (mut places, mut end) = (Vec::new(), 0usize);
        for port in ports {
            let location = self.ports.location(port)?;
            if location.port == port && matches!(location.memory, Whose::Session | Whose::Program(None)) {
                let range = end..end.saturating_add(location.bytes);
                end = range.end.saturating_add(UNIT - 1) / UNIT * UNIT;
                places.push((port, range));
            }
        }
        let block = Arc::new(Memory::new(&self.device, "the memory of inputs and outputs", end)?);
        for (port, range) in places {
            self.ports.held_mut(port).memory = Some(Arc::new(Piece::of(&block, range)));
        }
        Ok(())
    }

    /// Copies the data of inputs to where they lie. Constants have theirs.
    ///
    /// # Errors
    /// As [`DeviceSession::write`].
    pub(crate) fn write_all<'d>(
        &mut self,
        all: impl Iterator<Item = (usize, InputData<'d>)>,
    ) -> Result<(), RunError> {
        let mut places = Vec::new();
        for (port, data) in all.map(|(input, data)| (Port::Input(input), data)) {
            let spot = self.spot(port)?;
            self.expect_access(port, data.size())?;
            if spot.owner != Owner::Program {
                places.push((spot.extent.address, data));
            }
        }
        self.upload_all(&places)
    }

    /// Draws the data of all inputs; large ones repeat what was drawn. Constants are as they are. How long a product of
    /// matrices takes depends on its data.
    ///
    /// # Errors
    /// Inputs cannot be drawn, there is no memory, or the device failed.
    pub(crate) fn draw_inputs(
        &mut self,
        source: &symmc_ir::Graph,
        bindings: &Bindings,
    ) -> Result<(), RunError> {
        let seeds = Seeds::new(source, bindings, SeedConfig::new(1));
        let bound = self.ports.sized()?.bound.clone();
        for (index, (id, input)) in source.inputs.keys().zip(&bound.inputs).enumerate() {
            let spot = self.spot(Port::Input(index))?;
            if spot.owner == Owner::Program {
                continue;
            }
            let (at, compute) = (spot.extent.address, &self.context()?.resources.streams.compute);
            let sample = seeds.sample(id, bound.rank(), SAMPLE);
            let sample = sample.map_err(|e| RunError::Invalid(format!("inputs cannot be drawn: {e}")))?;
            let mut done = input.bytes.min(sample.data().len());
            if done == 0 {
                continue;
            }
            // SAFETY: the input's memory is as large; no run is in progress.
            unsafe { compute.upload(at, &sample.data()[..done])? };
            // What is there doubles until it fills the input.
            while done < input.bytes {
                let more = done.min(input.bytes - done);
                // SAFETY: as above; the ranges do not overlap.
                unsafe { compute.copy(at + done as Address, at, more)? };
                done += more;
            }
        }
        Ok(self.context()?.resources.streams.compute.synchronize()?)
    }

    /// Records so many runs into one graph; together with all ranks.
    ///
    /// # Errors
    /// An input has no data, peers run with other sizes, or the driver refuses a launch.
    pub(crate) fn record_runs(&mut self, count: u32) -> Result<Runs, RunError> {
        let recording = self.next()?;
        let resources = &self.context()?.resources;
        let one = |_| recording.put(&resources.streams, &resources.nccl);
        let several = || resources.streams.compute.capture(|| (0..count).try_for_each(one));
        let graph = (count != 1).then(several).transpose()?;
        Ok(Runs { recording, graph, count })
    }

    /// Runs a graph, and waits for its end; its time on the device in microseconds.
    ///
    /// # Errors
    /// As [`DeviceSession::run`].
    pub(crate) fn replay(&mut self, runs: &Runs) -> Result<f64, RunError> {
        let [begin, end] = [Event::timed()?, Event::timed()?];
        begin.record(&self.context()?.resources.streams.compute)?;
        let graph = (runs.graph.as_ref().unwrap_or(&runs.recording.executable.graph), runs.count);
        self.launch(&runs.recording, None, graph).map_err(|error| self.fail(error.into()))?;
        self.runs += u64::from(runs.count);
        end.record(&self.context()?.resources.streams.compute)?;
        self.until_idle(None)?;
        end.synchronize()?;
        Ok(begin.microseconds_to(&end)?)
    }

    /// Runs once, step by step, and takes the time of each.
    ///
    /// # Errors
    /// As [`DeviceSession::run`].
    pub(crate) fn trace(&mut self, runs: &Runs) -> Result<Vec<TracedStep>, RunError> {
        let (recording, start) = (&runs.recording, Event::timed()?);
        let events = self.put_timed(recording, &start).map_err(|error| self.fail(error.into()))?;
        self.runs += 1;
        self.until_idle(None)?;
        let traced = |(step, [begin, end]): (&BoundStep, &[Event; 2])| {
            Ok(TracedStep {
                node: step.node.clone(),
                op: step.op_name.clone(),
                lane: step.lane,
                start_us: start.microseconds_to(begin)?,
                us: begin.microseconds_to(end)?,
            })
        };
        recording.executable.bound.steps.iter().zip(&events).map(traced).collect()
    }

    /// Puts one run on the session's streams step by step, behind `start`.
    fn put_timed(&mut self, recording: &Arc<Recording>, start: &Event) -> Result<Vec<[Event; 2]>, CudaError> {
        let Some(context) = &self.context else { return Err(gave_back().into()) };
        context.progress().store(0, Ordering::Relaxed);
        let resources = &context.resources;
        start.record(&resources.streams.compute)?;
        let events = recording.put_timed(&resources.streams, &resources.nccl)?;
        self.flight.put(&resources.streams.compute, &recording.executable, self.runs, 1)?;
        Ok(events)
    }
}
