//! One rank's program on its GPU: memory, streams, the compiled program, and the runs.
//!
//! A session is made by all ranks together. Between runs the caller writes inputs and reads outputs; a run is
//! the replay of a graph. Kernels that wait for peers watch a word of pinned memory through which the host
//! ends them, and report there what they missed; no wait is without a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symmc_ir::Tensor;
use symmc_planner::plan::Lane;
use symmc_runtime::RunError;
use symmc_runtime::exec::{Bound, BoundInput, BoundStep, Work as StepWork};

use crate::arena::{Exchange, SymmetricArena};
use crate::collective::{self, BlockCounts, Peers};
use crate::compute::{self, Machine};
use crate::driver::{Device, Event, Graph, Memory, Pinned};
use crate::error::CudaError;
use crate::homes::Homes;
use crate::launch::Address;
use crate::nccl::Communicators;
use crate::program::{Parts, Program, Streams};
use crate::watch;

/// How a session runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionConfig {
    /// The GPU of this rank, among those that the process sees.
    pub gpu: u32,
    /// No wait takes longer.
    pub limit: Duration,
    /// Delays ranks at random around every touch of a peer, from this seed.
    pub chaos: Option<u64>,
}

/// A step as it ran.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TracedStep {
    /// The name of its first result.
    pub node: String,
    /// Its op.
    pub op: String,
    /// The lane that ran it.
    pub lane: Lane,
    /// When it began, in microseconds from the start of the run.
    pub start_us: f64,
    /// How long it took.
    pub us: f64,
}

/// One rank's program, ready to run.
pub struct Session {
    // Fields are dropped in this order: first what uses memory, then the memory.
    program: Program,
    streams: Streams,
    nccl: Communicators,
    bound: Arc<Bound>,
    homes: Homes,
    _arena: SymmetricArena,
    status: Pinned,
    /// The ordinary arena, the counters, then the memory of inputs and outputs.
    _private: Memory,
    limit: Duration,
    /// Runs begun, for reports.
    runs: AtomicU64,
    /// Whether a run failed: then nothing on the device is waited for.
    failed: AtomicBool,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.failed.load(Ordering::Relaxed) {
            // The library's kernels may wait for a peer that has left; nothing can be freed before they end.
            self.nccl.abort();
        }
    }
}

/// The words of pinned memory: first the collectives', then those of compute kernels.
const STATUS: usize = 4096;
const COMPUTE_STATUS: usize = 2048;

impl Session {
    /// Allocates, shares, compiles and loads. All ranks of the plan call this at the same time.
    ///
    /// # Errors
    /// The machine lacks a library, a GPU, memory, or peer access; an op has no form on a GPU; a peer failed.
    pub fn new(
        bound: Arc<Bound>,
        exchange: &dyn Exchange,
        config: &SessionConfig,
    ) -> Result<Session, CudaError> {
        let device = Device::open(config.gpu)?;
        let groups = groups_of(&bound);
        let symmetric = bound.symmetric.next_multiple_of(4096);
        let shared = symmetric + collective::control_bytes(groups);
        let arena = SymmetricArena::new(&device, exchange, shared)?;
        let counters = collective::local_bytes(groups);
        let scratch = scratch_bytes(&bound, &device);
        let Private { memory, homes, counters: local, scratch: workspace } =
            lay_out(&device, &bound, arena.address(), [counters, scratch])?;
        let status = Pinned::new(&device, STATUS)?;
        let peers = Peers {
            rank: exchange.rank(),
            arenas: arena.addresses(),
            arena: symmetric,
            local,
            status: status.address(),
            limit_ns: u64::try_from(config.limit.as_nanos()).unwrap_or(u64::MAX),
            chaos: config.chaos,
            blocks: BlockCounts::default(),
        };
        let nccl = Communicators::new(&bound.steps, exchange)?;
        let machine = Machine {
            multiprocessors: device.multiprocessors(),
            status: status.address() + COMPUTE_STATUS as Address,
            workspace,
            workspace_bytes: scratch,
        };
        let parts = Parts { device: &device, homes: &homes, peers: &peers, machine: &machine, nccl: &nccl };
        let program = Program::new(bound.rank(), &bound.steps, &parts)?;
        let streams = Streams::new(&device)?;
        // SAFETY: the range was laid out above; nothing uses it yet.
        unsafe { streams.compute.fill(local, 0, counters)? };
        streams.compute.synchronize()?;
        let limit = config.limit;
        Ok(Session {
            program,
            streams,
            nccl,
            bound,
            homes,
            _arena: arena,
            status,
            _private: memory,
            limit,
            runs: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        })
    }

    /// Writes the data of some inputs: the caller's, else that of a constant.
    ///
    /// # Errors
    /// The data of an input has another size than the program says.
    pub fn write_inputs<'d>(
        &self,
        data: impl Fn(usize) -> Option<&'d [u8]>,
        which: impl Fn(usize) -> bool,
    ) -> Result<(), CudaError> {
        for (index, input) in self.bound.inputs.iter().enumerate().filter(|(i, _)| which(*i)) {
            let Some(bytes) = data(index).or_else(|| self.bound.constant(index)) else { continue };
            if bytes.len() != input.bytes {
                return Err(CudaError::Unsupported(format!(
                    "input {index} (%{}): expected {} bytes, found {}",
                    input.name,
                    input.bytes,
                    bytes.len()
                )));
            }
            // SAFETY: the input's memory was laid out as large; no run is in progress.
            unsafe { self.streams.compute.upload(self.homes.inputs[index], bytes)? };
        }
        Ok(())
    }

    /// Draws the data of all inputs on the device: floats of a few hundredths on either side of zero, other
    /// numbers zero, constants as they are.
    ///
    /// # Errors
    /// The device failed.
    pub fn draw_inputs(&self) -> Result<(), CudaError> {
        let sample: Vec<f64> = (0..SAMPLE).map(|i| ((i * 7919 % 8191) as f64 - 4095.0) / 1e5).collect();
        for (index, input) in self.bound.inputs.iter().enumerate() {
            let at = self.homes.inputs[index];
            // SAFETY: the input's memory was laid out as large; no run is in progress.
            unsafe { self.streams.compute.fill(at, 0, input.bytes)? };
            let sample = Tensor::from_f64(input.dtype, vec![SAMPLE], &sample);
            let Some(sample) = sample.filter(|_| input.dtype.is_float()) else { continue };
            let mut done = input.bytes.min(sample.data().len());
            // SAFETY: as above.
            unsafe { self.streams.compute.upload(at, &sample.data()[..done])? };
            // What is there doubles until it fills the input.
            while done < input.bytes {
                let more = done.min(input.bytes - done);
                // SAFETY: as above; the ranges do not overlap.
                unsafe { self.streams.compute.copy(at + done as Address, at, more)? };
                done += more;
            }
        }
        self.streams.compute.synchronize()?;
        self.write_inputs(|_| None, |_| true)
    }

    /// Reads an output.
    ///
    /// # Errors
    /// The copy fails.
    pub fn read_output(&self, index: usize, to: &mut [u8]) -> Result<(), CudaError> {
        let len = self.bound.outputs[index].bytes.min(to.len());
        // SAFETY: the output's memory was laid out as large; no run is in progress.
        unsafe { self.streams.compute.download(&mut to[..len], self.homes.outputs[index]) }
    }

    /// Copies outputs that mutate inputs to them, after a run.
    ///
    /// # Errors
    /// The copy fails.
    pub fn write_back(&self) -> Result<(), CudaError> {
        for (index, output) in self.bound.outputs.iter().enumerate() {
            let Some(input) = output.mutates else { continue };
            let (to, from) = (self.homes.inputs[input], self.homes.outputs[index]);
            if to != from && self.bound.inputs[input].bytes == output.bytes {
                // SAFETY: both were laid out as large, and apart; no run is in progress.
                unsafe { self.streams.compute.copy(to, from, output.bytes)? };
            }
        }
        self.streams.compute.synchronize()
    }

    /// Records `runs` runs into one graph.
    ///
    /// # Errors
    /// The driver refuses a launch.
    pub fn record(&self, runs: u32) -> Result<Graph, CudaError> {
        self.program.record(&self.streams, &self.nccl, runs)
    }

    /// Replays a graph; returns when it has ended, with its time on the device in microseconds. `alive` is
    /// asked now and then; when it fails the kernels that wait for peers are told to end.
    ///
    /// # Errors
    /// `alive` failed, a kernel reported something, or the device failed.
    pub fn replay(&self, graph: &Graph, alive: &dyn Fn() -> Result<(), RunError>) -> Result<f64, CudaError> {
        let time = self.noting_failure(|| {
            // SAFETY: the session holds everything that its graphs use.
            let time = unsafe { watch::replay(&self.streams.compute, graph, &self.status, alive)? };
            self.reported().map(|()| time)
        })?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(time)
    }

    /// Runs once, step by step, and takes the time of each; `alive` as for [`replay`](Self::replay).
    ///
    /// # Errors
    /// As [`replay`](Self::replay).
    pub fn trace(&self, alive: &dyn Fn() -> Result<(), RunError>) -> Result<Vec<TracedStep>, CudaError> {
        let start = Event::timed()?;
        start.record(&self.streams.compute)?;
        let events = self.noting_failure(|| {
            let events = self.program.enqueue_timed(&self.streams, &self.nccl)?;
            watch::until_idle(&self.streams.compute, &self.status, alive)?;
            self.reported().map(|()| events)
        })?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        let traced = |(step, [begin, end]): (&BoundStep, &[Event; 2])| {
            Ok(TracedStep {
                node: step.node.clone(),
                op: step.op_name.clone(),
                lane: step.lane,
                start_us: start.microseconds_to(begin)?,
                us: begin.microseconds_to(end)?,
            })
        };
        self.bound.steps.iter().zip(&events).map(traced).collect()
    }

    /// Does something that leaves work on the device; remembers if that fails.
    fn noting_failure<T>(&self, work: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        work().inspect_err(|_| self.failed.store(true, Ordering::Relaxed))
    }

    /// What kernels reported.
    fn reported(&self) -> Result<(), CudaError> {
        if let Some(missed) = collective::missed(&self.status) {
            return Err(self.missed(missed).into());
        }
        // SAFETY: the words lie within the pinned memory, aligned; the streams are idle.
        let word = |i: usize| unsafe {
            self.status.as_ptr().add(COMPUTE_STATUS).cast::<u64>().add(i).read_volatile()
        };
        match self.program.sites().failure([word(0), word(1)]) {
            Some((step, error)) => Err(self.unfit(step, error.to_string()).into()),
            None => Ok(()),
        }
    }

    /// A peer that did not come, as the host's ranks report it.
    fn missed(&self, missed: collective::Missed) -> RunError {
        let (node, op) = self.name_of(missed.step);
        RunError::Limit {
            rank: self.bound.rank(),
            peers: vec![missed.peer],
            step: missed.step,
            node,
            op,
            run: self.runs.load(Ordering::Relaxed),
            limit_ms: self.limit.as_millis() as u64,
        }
    }

    /// Data that a step does not take.
    fn unfit(&self, step: usize, detail: String) -> RunError {
        let (node, op) = self.name_of(step);
        RunError::Data { rank: self.bound.rank(), step, node, op, detail }
    }

    fn name_of(&self, step: usize) -> (String, String) {
        let step = self.bound.steps.get(step);
        step.map_or_else(Default::default, |s| (s.node.clone(), s.op_name.to_string()))
    }
}

/// Numbers that are drawn before they repeat.
const SAMPLE: usize = 8191;

/// One more than the highest group that the program communicates on.
fn groups_of(bound: &Bound) -> usize {
    let group = |step: &BoundStep| match &step.work {
        StepWork::Collective(call) => call.group + 1,
        _ => 0,
    };
    bound.steps.iter().map(group).max().unwrap_or(0)
}

/// The workspace that the program's compute steps share.
fn scratch_bytes(bound: &Bound, device: &Device) -> usize {
    let step = |step: &BoundStep| match &step.work {
        StepWork::Kernel { op, operands, results } => {
            compute::workspace(op, operands, results, device.multiprocessors())
        }
        _ => 0,
    };
    bound.steps.iter().map(step).max().unwrap_or(0)
}

/// What only one rank reaches.
struct Private {
    memory: Memory,
    homes: Homes,
    counters: Address,
    scratch: Address,
}

/// Allocates what only this rank reaches, with so many bytes of counters and scratch. Inputs that the plan
/// holds in fixed memory lie in the arena; an output that mutates an input has memory of its own, because the
/// program may read the input after it wrote the output.
fn lay_out(
    device: &Arc<Device>,
    bound: &Bound,
    arena: Address,
    [counters, scratch]: [usize; 2],
) -> Result<Private, CudaError> {
    let mut end = 0usize;
    let mut place = |bytes: usize| {
        let at = end;
        let next = end.checked_add(bytes).and_then(|e| e.checked_next_multiple_of(256));
        end = next.ok_or_else(|| CudaError::Unsupported("the program's memory has no size".into()))?;
        Ok::<Address, CudaError>(at as Address)
    };
    let ordinary = place(bound.ordinary)?;
    let counters = place(counters)?;
    let scratch = place(scratch)?;
    let inputs = bound.inputs.iter().map(|i| if i.fixed.is_some() { Ok(0) } else { place(i.bytes) });
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let outputs = bound.outputs.iter().map(|o| place(o.bytes)).collect::<Result<Vec<_>, _>>()?;
    let memory = Memory::new(device, "the ordinary arena, inputs and outputs", end)?;
    let base = memory.address();
    let input = |(at, input): (Address, &BoundInput)| match input.fixed {
        Some(offset) => arena + offset as Address,
        None => base + at,
    };
    let homes = Homes {
        ordinary: base + ordinary,
        symmetric: arena,
        inputs: inputs.into_iter().zip(&bound.inputs).map(input).collect(),
        outputs: outputs.into_iter().map(|at| base + at).collect(),
    };
    Ok(Private { memory, homes, counters: base + counters, scratch: base + scratch })
}
