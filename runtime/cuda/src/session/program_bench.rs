//! Measures a plan on its GPU: several runs per graph, timed on the device, with inputs that are generated
//! there.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use symmc_ir::SymbolBindings;
use symmc_ir::interp::{SeedConfig, SeededInputs};
use symmc_runtime::RunError;
use symmc_runtime::job::{SessionRequest, trace};
use symmc_runtime::session::{DeviceSession, Port, PortDevice, PortStorage};

use super::cuda_session::CudaSession;
use super::recording::Recording;
use super::wait;
use crate::device::driver::{Event, ExecutableGraph};
use crate::device::launch::Address;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramBench {
    /// Replays that are counted.
    pub replays: u32,
    /// Runs in one graph.
    pub runs: u32,
    /// If set, the file for the step times of one more run.
    pub trace: Option<PathBuf>,
}

/// Warm-up replays, which are not counted.
const WARM: u32 = 3;

struct RecordedRuns {
    recording: Arc<Recording>,
    /// The graph of several runs; `None` for one run, which uses the graph of the recording.
    graph: Option<ExecutableGraph>,
    count: u32,
}

/// The number of generated floats before they repeat. It is prime, so that rows of matrices differ.
const SAMPLE: usize = 262_139;

impl CudaSession {
    /// Measures a plan as [`measure_program`](crate::bench::measure_program).
    pub(crate) fn measure_program(
        &mut self,
        request: &SessionRequest<'_>,
        bench: &ProgramBench,
    ) -> Result<[f64; 3], RunError> {
        // A failure ends the session, so that peers are notified and leave.
        self.measure(request, bench).map_err(|error| self.fail_session(error))
    }

    /// Ranks synchronize before each replay.
    fn measure(&mut self, request: &SessionRequest<'_>, bench: &ProgramBench) -> Result<[f64; 3], RunError> {
        let _context = self.enter_device()?;
        let rank = request.rank;
        let comm = request.rank.comm();
        self.draw_inputs(request.plan.source_program(), request.bindings)?;
        let runs = self.record_runs(bench.runs)?;
        rank.start()?;
        let mut times = Vec::with_capacity(bench.replays as usize);
        for replay in 0..WARM + bench.replays {
            comm.exchange_bytes(&[0])?;
            let time = self.replay_runs(&runs)?;
            if replay >= WARM {
                times.push(time / f64::from(bench.runs.max(1)));
            }
        }
        if let Some(path) = &bench.trace {
            let steps = self.run_traced()?;
            trace::write_trace(path, &steps, comm)?;
        }
        Ok(wait::min_median_max(times))
    }

    /// Generates the data of all inputs. Large inputs repeat the generated sample; constants keep their
    /// values. The data matters because the time of a matrix product depends on it. Fails if inputs cannot be
    /// generated, there is no memory, or the device failed.
    fn draw_inputs(&mut self, source: &symmc_ir::Graph, bindings: &SymbolBindings) -> Result<(), RunError> {
        let seeds = SeededInputs::new(source, bindings, SeedConfig::new(1));
        let bound = self.ports.sized_program()?.program.clone();
        for (index, (id, input)) in source.inputs.keys().zip(&bound.inputs).enumerate() {
            let memory = self.expose_port(Port::Input(index))?;
            if matches!(memory.storage, PortStorage::Program(_)) {
                continue;
            }
            let address = memory.range.address;
            let compute = &self.context()?.resources.streams.compute;
            let sample = seeds.generate_sample(id, bound.rank(), SAMPLE);
            let sample = sample.map_err(|e| RunError::Invalid(format!("inputs cannot be generated: {e}")))?;
            let mut done = input.bytes.min(sample.data().len());
            if done == 0 {
                continue;
            }
            // SAFETY: the input's memory is at least that large; no run is in progress.
            unsafe { compute.upload(address, &sample.data()[..done])? };
            // The filled part is doubled until it fills the input.
            while done < input.bytes {
                let copied = done.min(input.bytes - done);
                // SAFETY: as above; the ranges do not overlap.
                unsafe { compute.copy(address + done as Address, address, copied)? };
                done += copied;
            }
        }
        Ok(self.context()?.resources.streams.compute.synchronize()?)
    }

    /// Records `count` runs into one graph; all ranks call this together. Fails if an input has no data,
    /// peers run with other sizes, or the driver refuses a launch.
    fn record_runs(&mut self, count: u32) -> Result<RecordedRuns, RunError> {
        let recording = self.next_recording()?;
        let resources = &self.context()?.resources;
        let graph = if count == 1 {
            None
        } else {
            Some(resources.streams.compute.capture(|| {
                (0..count).try_for_each(|_| recording.enqueue(&resources.streams, &resources.nccl))
            })?)
        };
        Ok(RecordedRuns { recording, graph, count })
    }

    /// Runs a graph and waits for its end. Returns its time on the device in microseconds.
    fn replay_runs(&mut self, runs: &RecordedRuns) -> Result<f64, RunError> {
        let [begin, end] = [Event::timed()?, Event::timed()?];
        // A rank that announces a run waits until its peers have announced the run 64 runs earlier.
        for run in self.runs..self.runs + u64::from(runs.count) {
            self.announce(run)?;
        }
        begin.record(&self.context()?.resources.streams.compute)?;
        let graph = runs.graph.as_ref().unwrap_or(&runs.recording.executable.graph);
        let launched = self.launch(&runs.recording, None, graph, runs.count);
        launched.map_err(|error| self.fail_session(error.into()))?;
        self.runs += u64::from(runs.count);
        end.record(&self.context()?.resources.streams.compute)?;
        self.wait_for_runs(None)?;
        end.synchronize()?;
        Ok(begin.microseconds_to(&end)?)
    }
}
