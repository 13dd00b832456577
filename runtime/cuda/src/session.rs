//! One rank's program on its GPU: memory, streams, the compiled program, and the runs.
//!
//! A session is made by all ranks together, for one or several bindings of the program's symbols: they share the
//! arenas, the parameters and the memory of inputs and outputs, so a run may have another binding than the one
//! before it, of the same bucket or of another. Between runs the caller writes inputs and reads outputs; a run is
//! the replay of a graph that was recorded once. Kernels that wait for peers watch a word of pinned memory through
//! which the host ends them, and report there what they missed; none waits beyond the limit. NCCL's kernels know no
//! limit: a run that has them ends when what the caller passes as `alive` says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symmc_ir::Tensor;
use symmc_planner::plan::Lane;
use symmc_runtime::RunError;
use symmc_runtime::exec::{Bound, BoundStep, Home, Work as StepWork};

use crate::adopt::Adopted;
use crate::arena::{Exchange, Source, SymmetricArena};
use crate::collective::{self, Peers};
use crate::compute::search::{Products, Search};
use crate::compute::{Attentions, InputUse, Machine};
use crate::cudnn;
use crate::driver::{Device, Event, Graph, Memory, Pinned, Stream};
use crate::error::CudaError;
use crate::homes::{Homes, Layout};
use crate::launch::Address;
use crate::lowered::Distances;
use crate::nccl::{Communicators, Making};
use crate::program::{Parts, Program, Streams};
use crate::report::Report;
use crate::rig::{self, Rig};
use crate::scratch;
use crate::staging::{LARGE, Staging};
use crate::watch;

/// How a session runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionConfig {
    /// The GPU of this rank, among those that the process sees.
    pub gpu: u32,
    /// No wait of symmc's own takes longer; NCCL's collectives end by the `alive` of a run.
    pub limit: Duration,
    /// Delays ranks at random around every touch of a peer, from this seed.
    pub chaos: Option<u64>,
    /// Who allocates the symmetric arena.
    pub arena: Source,
    /// What the caller lends.
    pub adopted: Adopted,
    /// How algorithms of matrix products are chosen.
    pub products: Products,
    /// Whether the host can ask how far a run is.
    pub progress: Progress,
}

impl SessionConfig {
    /// On this GPU, with no wait longer than this; all else as by default.
    pub fn new(gpu: u32, limit: Duration) -> SessionConfig {
        SessionConfig {
            gpu,
            limit,
            chaos: None,
            products: Products::default(),
            progress: Progress::default(),
            arena: Source::default(),
            adopted: Adopted::default(),
        }
    }

    /// How algorithms of products are chosen.
    fn search<'a>(
        &self,
        exchange: &'a dyn Exchange,
        device: &'a Arc<Device>,
        stream: &'a Stream,
    ) -> Search<'a> {
        Search { exchange, products: self.products, device, stream, limit: self.limit, kept: &[] }
    }

    /// Who computes attention. cuDNN is one who measures may choose.
    fn attention(&self) -> Attentions {
        match self.products {
            Products::Measured if cudnn::version().is_ok() => Attentions::Chosen,
            Products::Measured | Products::Heuristic => Attentions::Kernels,
        }
    }

    /// What it says of waits for peers; addresses are left out.
    fn peers(&self) -> Peers {
        Peers {
            limit_ns: u64::try_from(self.limit.as_nanos()).unwrap_or(u64::MAX),
            chaos: self.chaos,
            ..Peers::default()
        }
    }
}

/// Whether the host can ask how far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Progress {
    /// It can: each collective of NCCL is preceded by a store, which takes a microsecond or two.
    #[default]
    Told,
    /// It cannot.
    Untold,
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
    rig: Rig,
    bounds: Vec<Arc<Bound>>,
    /// The memories, as the steps of each binding take them.
    homes: Vec<Homes>,
    limit: Duration,
    /// Runs begun, for reports.
    runs: AtomicU64,
}

/// Runs of one binding of a session, recorded into a graph.
pub struct Recorded<'s> {
    session: &'s Session,
    binding: usize,
    runs: u32,
    graph: Graph,
}

/// The words of pinned memory: first the collectives', then those of compute kernels, then that of progress.
pub(crate) const STATUS: usize = 4096;
pub(crate) const COMPUTE_STATUS: usize = 2048;
const PROGRESS: usize = 3072;

impl Session {
    /// Allocates, shares, compiles and loads. All ranks of the plan call this at the same time, for the same
    /// bindings in the same order; in what follows a binding is named by its place in the list.
    ///
    /// # Errors
    /// The machine lacks a library, a GPU, memory, or peer access; an op has no form on a GPU; a peer failed.
    pub fn new(
        bounds: &[Arc<Bound>],
        exchange: &dyn Exchange,
        config: &SessionConfig,
    ) -> Result<Session, CudaError> {
        let device = Device::open(config.gpu)?;
        let steps = || bounds.iter().flat_map(|b| &b.steps);
        let control = collective::control_of(steps());
        let symmetric = bounds.iter().map(|b| b.symmetric).max().unwrap_or(0).next_multiple_of(4096);
        let shared = symmetric + control.bytes();
        let arena = SymmetricArena::new(config.arena, &device, exchange, shared, config.limit)?;
        let counters = collective::local_bytes(control.groups).next_multiple_of(256);
        let machine = Machine { attention: config.attention(), ..Machine::of(&device) };
        let scratch = scratch::of_steps(steps(), &machine);
        let Private { memory, homes, counters: local, scratch: workspace } =
            lay_out(&device, bounds, arena.address(), [counters, scratch])?;
        let status = Pinned::new(&device, STATUS)?;
        let peers = Peers {
            rank: exchange.rank(),
            arenas: arena.addresses(),
            arena: symmetric,
            control,
            local,
            status: status.address(),
            links: device.links()?,
            ..config.peers()
        };
        let (span, lent) = ((arena.address(), arena.len()), config.adopted.communicator.as_ref());
        let making = Making { exchange, device: &device, arena: span, limit: config.limit, lent };
        let nccl = Communicators::new(steps(), &making)?;
        let machine = Machine {
            status: status.address() + COMPUTE_STATUS as Address,
            workspace,
            workspace_bytes: scratch,
            inputs: inputs_of(steps()),
            ..machine
        };
        let streams = Streams::with(&device, config.adopted.stream)?;
        let search = config.search(exchange, &device, &streams.compute);
        let homes: Vec<Homes> = bounds.iter().map(|bound| homes.of(bound)).collect();
        let program = |(bound, homes): (&Arc<Bound>, &Homes)| {
            let parts = Parts {
                device: &device,
                homes,
                peers: &peers,
                machine: &machine,
                nccl: &nccl,
                search: Some(&search),
                settled: None,
                progress: (config.progress == Progress::Told).then(|| status.address() + PROGRESS as Address),
                distances: Distances::Alike,
                shifted: None,
            };
            Program::new(exchange.rank(), &bound.steps, &parts)
        };
        let programs = bounds.iter().zip(&homes).map(program).collect::<Result<_, _>>()?;
        // SAFETY: the range was laid out above; nothing uses it yet.
        unsafe { streams.compute.fill(local, 0, counters)? };
        streams.compute.synchronize()?;
        let rig = Rig::new(rig::Parts { programs, streams, nccl, arena, status, _memory: memory, device });
        Ok(Session { rig, bounds: bounds.to_vec(), homes, limit: config.limit, runs: AtomicU64::new(0) })
    }

    /// Says that the run has failed elsewhere: peers may not come any more.
    pub fn abandon(&self) {
        self.rig.fail();
    }

    /// Writes the data of some inputs of a binding: the caller's, else that of a constant. What has the same size
    /// in all bindings is written for all.
    ///
    /// # Errors
    /// The data of an input has another size than the program says.
    pub fn write_inputs<'d>(
        &self,
        binding: usize,
        data: impl Fn(usize) -> Option<&'d [u8]>,
        which: impl Fn(usize) -> bool,
    ) -> Result<(), CudaError> {
        let (bound, compute) = (&self.bounds[binding], &self.rig.streams.compute);
        let mut staging = None;
        for (index, input) in bound.inputs.iter().enumerate().filter(|(i, _)| which(*i)) {
            let Some(bytes) = data(index).or_else(|| bound.constant(index)) else { continue };
            if bytes.len() != input.bytes {
                return Err(CudaError::Unsupported(format!(
                    "input {index} (%{}): expected {} bytes, found {}",
                    input.name,
                    input.bytes,
                    bytes.len()
                )));
            }
            let to = self.homes[binding].inputs[index];
            if bytes.len() < LARGE {
                // SAFETY: the input's memory was laid out as large; no run is in progress.
                unsafe { compute.upload(to, bytes)? };
                continue;
            }
            let staging = match &mut staging {
                Some(staging) => staging,
                none => none.insert(Staging::new(&self.rig.device, compute)?),
            };
            // SAFETY: as above; the end is waited for below.
            unsafe { staging.upload(to, bytes)? };
        }
        drop(staging);
        compute.synchronize()
    }

    /// Draws the data of all inputs of a binding on the device: floats of a few hundredths on either side of zero, other
    /// numbers zero, constants as they are.
    ///
    /// # Errors
    /// The device failed.
    pub fn draw_inputs(&self, binding: usize) -> Result<(), CudaError> {
        let compute = &self.rig.streams.compute;
        let sample: Vec<f64> = (0..SAMPLE).map(|i| ((i * 7919 % 8191) as f64 - 4095.0) / 1e5).collect();
        for (index, input) in self.bounds[binding].inputs.iter().enumerate() {
            let at = self.homes[binding].inputs[index];
            // SAFETY: the input's memory was laid out as large; no run is in progress.
            unsafe { compute.fill(at, 0, input.bytes)? };
            let sample = Tensor::from_f64(input.dtype, vec![SAMPLE], &sample);
            let Some(sample) = sample.filter(|_| input.dtype.is_float()) else { continue };
            let mut done = input.bytes.min(sample.data().len());
            // SAFETY: as above.
            unsafe { compute.upload(at, &sample.data()[..done])? };
            // What is there doubles until it fills the input.
            while done < input.bytes {
                let more = done.min(input.bytes - done);
                // SAFETY: as above; the ranges do not overlap.
                unsafe { compute.copy(at + done as Address, at, more)? };
                done += more;
            }
        }
        compute.synchronize()?;
        self.write_inputs(binding, |_| None, |_| true)
    }

    /// Reads an output of a binding.
    ///
    /// # Errors
    /// The copy fails.
    pub fn read_output(&self, binding: usize, index: usize, to: &mut [u8]) -> Result<(), CudaError> {
        let len = self.bounds[binding].outputs[index].bytes.min(to.len());
        // SAFETY: the output's memory was laid out as large; no run is in progress.
        unsafe { self.rig.streams.compute.download(&mut to[..len], self.homes[binding].outputs[index]) }
    }

    /// Copies outputs that mutate inputs to them, after a run of a binding.
    ///
    /// # Errors
    /// The copy fails.
    pub fn write_back(&self, binding: usize) -> Result<(), CudaError> {
        let (bound, homes) = (&self.bounds[binding], &self.homes[binding]);
        let compute = &self.rig.streams.compute;
        for (index, output) in bound.outputs.iter().enumerate() {
            let Some(input) = output.mutates else { continue };
            let (to, from) = (homes.inputs[input], homes.outputs[index]);
            if to != from && bound.inputs[input].bytes == output.bytes {
                // SAFETY: both were laid out as large, and apart; no run is in progress.
                unsafe { compute.copy(to, from, output.bytes)? };
            }
        }
        compute.synchronize()
    }

    /// Records `runs` runs of a binding into one graph.
    ///
    /// # Errors
    /// The driver refuses a launch.
    pub fn record(&self, binding: usize, runs: u32) -> Result<Recorded<'_>, CudaError> {
        let rig = &self.rig;
        let graph = rig.attempt(|| rig.programs[binding].record(&rig.streams, &rig.nccl, runs))?;
        Ok(Recorded { session: self, binding, runs, graph })
    }

    /// Puts one run of a binding on the session's stream, after what is there; while that stream is captured, the run
    /// becomes part of what is recorded. [`finish`](Self::finish) waits and tells how it went. For sessions on a
    /// stream that was lent; ranks put the same runs there, in the same order.
    ///
    /// # Errors
    /// The driver or the library refuses, or an earlier run failed.
    pub fn enqueue(&self, binding: usize) -> Result<(), CudaError> {
        let rig = &self.rig;
        rig.attempt(|| rig.programs[binding].enqueue(&rig.streams, &rig.nccl))
    }

    /// Waits for all runs that were put on the session's streams, also those of the caller's graphs; the last was of
    /// this binding. `alive` as for [`Recorded::replay`].
    ///
    /// # Errors
    /// As [`Recorded::replay`].
    pub fn finish(&self, binding: usize, alive: &dyn Fn() -> Result<(), RunError>) -> Result<(), CudaError> {
        let rig = &self.rig;
        rig.attempt(|| {
            watch::until_idle(&rig.streams, &rig.status, alive)?;
            self.reported(binding)
        })?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Runs a binding once, step by step, and takes the time of each; `alive` as for [`Recorded::replay`].
    ///
    /// # Errors
    /// As [`Recorded::replay`].
    pub fn trace(
        &self,
        binding: usize,
        alive: &dyn Fn() -> Result<(), RunError>,
    ) -> Result<Vec<TracedStep>, CudaError> {
        let rig = &self.rig;
        self.word_of_progress().store(0, Ordering::Relaxed);
        let start = Event::timed()?;
        start.record(&rig.streams.compute)?;
        let events = rig.attempt(|| {
            let events = rig.programs[binding].enqueue_timed(&rig.streams, &rig.nccl)?;
            watch::until_idle(&rig.streams, &rig.status, alive)?;
            self.reported(binding).map(|()| events)
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
        self.bounds[binding].steps.iter().zip(&events).map(traced).collect()
    }

    /// The step of NCCL's last collective that began in the run in progress, if any has.
    pub fn progress(&self) -> Option<usize> {
        (self.word_of_progress().load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    fn word_of_progress(&self) -> &AtomicU32 {
        let at = self.rig.status.as_ptr().wrapping_add(PROGRESS);
        // SAFETY: the word lies within the pinned memory, which lives as long as the session, aligned; it is only
        // used as an atomic here, and the device stores it whole.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// What kernels of a binding reported.
    fn reported(&self, binding: usize) -> Result<(), CudaError> {
        let (rig, run) = (&self.rig, self.runs.load(Ordering::Relaxed));
        let (bound, sites) = (&*self.bounds[binding], rig.programs[binding].sites());
        let report = Report { status: &rig.status, bound, sites, run, limit: self.limit };
        report.failure().map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Recorded<'_> {
    /// Replays the runs; returns when they have ended, with their time on the device in microseconds. `alive` is
    /// asked now and then; when it fails the kernels that wait for peers are told to end.
    ///
    /// # Errors
    /// `alive` failed, a kernel reported something, the device failed, or an earlier run of the session did.
    pub fn replay(&self, alive: &dyn Fn() -> Result<(), RunError>) -> Result<f64, CudaError> {
        let session = self.session;
        session.word_of_progress().store(0, Ordering::Relaxed);
        // SAFETY: the graph was recorded from a program of this session.
        let time = unsafe { session.rig.replay(&self.graph, alive)? };
        session.rig.attempt(|| session.reported(self.binding))?;
        session.runs.fetch_add(u64::from(self.runs), Ordering::Relaxed);
        Ok(time)
    }
}

/// Numbers that are drawn before they repeat.
const SAMPLE: usize = 8191;

/// What the steps do with the memory of inputs.
pub(crate) fn inputs_of<'b>(mut steps: impl Iterator<Item = &'b BoundStep>) -> InputUse {
    let input = |home: Home| matches!(home, Home::Input(_));
    let writes = |step: &BoundStep| match &step.work {
        StepWork::Kernel { results, .. } | StepWork::Custom { results, .. } => {
            results.iter().any(|r| input(r.home))
        }
        StepWork::Collective(call) => input(call.result.home),
    };
    if steps.any(writes) { InputUse::Written } else { InputUse::Read }
}

/// What only one rank reaches.
struct Private {
    memory: Memory,
    homes: Homes,
    counters: Address,
    scratch: Address,
}

/// Allocates what only this rank reaches, with so many bytes of counters and scratch.
fn lay_out(
    device: &Arc<Device>,
    bounds: &[Arc<Bound>],
    arena: Address,
    [counters, scratch]: [usize; 2],
) -> Result<Private, CudaError> {
    let layout = Layout::new(bounds, [counters, scratch])?;
    let memory = Memory::new(device, "the ordinary arena, inputs and outputs", layout.bytes)?;
    let base = memory.address();
    let [counters, scratch] = [layout.counters, layout.scratch].map(|at| base + at as Address);
    Ok(Private { homes: layout.homes(base, arena), memory, counters, scratch })
}
