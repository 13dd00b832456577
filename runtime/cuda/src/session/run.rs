//! Runs of a session: how they are enqueued and watched, and how failures are reported.
//!
//! A run on another stream than the previous run waits for that run on its stream. One event marks the end of
//! the last run, and therefore of all runs. While the caller captures a stream, a run becomes part of the
//! capture. The caller then waits for the replays, and [`DeviceSession::poll`] returns what they reported.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use symmc_check::CheckedPlan;
use symmc_control::{ControlSegment, JoinedRank, LeaveMode, enter_rank_span};
use symmc_ir::{SymbolBindings, Tensor};
use symmc_runtime::RunError;
use symmc_runtime::error::session_ended_error;
use symmc_runtime::exec::{CustomKernelRegistry, InputData, ResolvedProgram};
use symmc_runtime::session::{
    DeviceMemory, DeviceName, DeviceRange, DeviceSession, MemoryUsage, Port, PortDevice, PortMemory,
    RawStream, RecordingCounts, SharedTensor, SizedProgram, TracedStep, arenas_released_error,
    run_in_progress_error,
};
use tracing::span::EnteredSpan;

use super::context::ExecutionContext;
use super::cuda_session::{CudaSession, LastRun};
use super::device_tensors::{self, CudaArenaBlock};
use super::gpu::ProgressReporting;
use super::memory::ResolvedPorts;
use super::progress::{ProgressUpdate, RunProgress};
use super::recording::{Recording, RecordingKey};
use super::report::StatusReport;
use crate::codegen::addresses::AddressMap;
use crate::codegen::compute::gemm_search::GemmSearch;
use crate::device::driver::{self, BorrowedStream, DeviceBuffer, Event, ExecutableGraph, Stream};
use crate::device::launch::{Address, PortBases};
use crate::error::Result;
use crate::exchange::RankExchange;
use crate::program::{DeviceProgram, ProgramChoices, ProgramContext};
use crate::{codegen::collective, session::resources};

/// How long a failure waits for kernels that were asked to end, so that their reports are seen.
const REPORT_TIMEOUT: Duration = Duration::from_secs(3);

impl CudaSession {
    /// Enqueues one run on a stream. Errors of this rank are returned before peers are notified of the run.
    fn enqueue_run(&mut self, stream: Option<RawStream>) -> Result<(), RunError> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let stream = match (stream, self.gpu.borrowed.stream) {
            // SAFETY: the caller guarantees that the stream exists on this GPU.
            (Some(raw), _) => Some(unsafe { BorrowedStream::new(raw.0) }),
            (None, adopted) => adopted,
        };
        let stream = stream.map(|borrowed| Stream::adopt(&self.device, borrowed));
        let enqueued = match stream {
            Some(stream) if self.is_capturing(&stream)? => {
                let recording = self.next_for_capture()?;
                self.capture(&recording, stream)
            }
            stream => {
                let recording = self.next_recording()?;
                if recording.runs_as_graph {
                    self.launch(&recording, stream, &recording.executable.graph, 1)
                } else {
                    self.launch_pieces(&recording, stream)
                }
            }
        };
        self.runs += 1;
        let _span = self.enter_span();
        tracing::trace!(target: "symmc::run", runs = self.runs, "enqueued a run");
        enqueued.map_err(|error| self.fail_session(error.into()))
    }

    /// The recording of the next run, after its sizes were announced to peers.
    pub(super) fn next_recording(&mut self) -> Result<Arc<Recording>, RunError> {
        if let Some(recording) = self.last_run.recording().cloned() {
            self.announce(self.runs)?;
            return Ok(recording);
        }
        let resolved = self.resolve()?;
        self.announce(self.runs)?;
        let recording = self.resolve_recording(resolved).map_err(|error| self.fail_session(error))?;
        self.last_run = LastRun::Same(recording.clone());
        Ok(recording)
    }

    /// The next run for a capture by the caller, after its sizes were announced to peers. It needs no graph
    /// of the session.
    fn next_for_capture(&mut self) -> Result<Arc<Recording>, RunError> {
        if self.last_run.recording().is_some() {
            return self.next_recording();
        }
        let resolved = self.resolve()?;
        self.announce(self.runs)?;
        self.load_fixed_inputs()?;
        let ResolvedPorts { key, memory } = &resolved;
        match self.context()?.resources.programs.find_for_enqueue(key, memory, |_| true) {
            Some(recording) => Ok(Arc::new(recording)),
            None => self.resolve_recording(resolved).map_err(|error| self.fail_session(error)),
        }
    }

    fn is_capturing(&self, stream: &Stream) -> Result<bool, RunError> {
        let is_known_stream = self.pending_runs.stream == Some(stream.handle().addr());
        if !is_known_stream && !stream.is_of_device()? {
            return Err(RunError::Invalid(format!(
                "the stream does not belong to the primary context of GPU {}",
                self.device.ordinal()
            )));
        }
        Ok(stream.is_capturing()?)
    }

    /// Announces to peers that this rank begins a run at the current sizes.
    pub(super) fn announce(&mut self, run: u64) -> Result<(), RunError> {
        let SizedProgram { digest, text, .. } = self.ports.sized_program()?;
        let comm = self.comm()?;
        let announced =
            comm.expect_running().and_then(|()| comm.announce_run(run, *digest, &|| text.to_string()));
        announced.map_err(|error| self.fail_session(error))
    }

    /// Launches a graph of this many runs of a recording, on the session's stream if none is given.
    pub(super) fn launch(
        &mut self,
        recording: &Arc<Recording>,
        stream: Option<Stream>,
        graph: &ExecutableGraph,
        runs: u32,
    ) -> Result<()> {
        let Some(context) = &self.context else { return Err(arenas_released_error().into()) };
        let stream = stream.as_ref().unwrap_or(&context.resources.streams.compute);
        self.pending_runs.wait_before(stream, context)?;
        // SAFETY: the recording (or the caller) keeps the memory that the graph uses, and the context exists.
        unsafe { stream.replay(graph)? };
        self.pending_runs.push_runs(stream, &recording.executable, self.runs, runs)
    }

    fn launch_pieces(&mut self, recording: &Arc<Recording>, stream: Option<Stream>) -> Result<()> {
        let Some(context) = &mut self.context else { return Err(arenas_released_error().into()) };
        let stream = stream.unwrap_or_else(|| {
            let handle = context.resources.streams.compute.handle().cast();
            // SAFETY: as in `launch`.
            Stream::adopt(&self.device, unsafe { BorrowedStream::new(handle) })
        });
        self.pending_runs.wait_before(&stream, context)?;
        let streams = context.streams_with_compute(&self.device, stream);
        recording.enqueue(&streams, &context.resources.nccl)?;
        if recording.holds_memory() {
            context.resources.programs.retired.push(recording.clone());
        }
        self.pending_runs.push_runs(&streams.compute, &recording.executable, self.runs, 1)
    }

    /// Enqueues one run step by step on the session's streams, after `start`.
    fn enqueue_timed(&mut self, recording: &Arc<Recording>, start: &Event) -> Result<Vec<[Event; 2]>> {
        let Some(context) = &self.context else { return Err(arenas_released_error().into()) };
        context.progress().store(0, Ordering::Relaxed);
        let resources = &context.resources;
        start.record(&resources.streams.compute)?;
        let events = recording.enqueue_timed(&resources.streams, &resources.nccl)?;
        self.pending_runs.push_runs(&resources.streams.compute, &recording.executable, self.runs, 1)?;
        Ok(events)
    }

    /// Adds a run to the caller's capture.
    fn capture(&mut self, recording: &Arc<Recording>, compute: Stream) -> Result<()> {
        let Some(context) = &mut self.context else { return Err(arenas_released_error().into()) };
        recording.enqueue(&context.streams_with_compute(&self.device, compute), &context.resources.nccl)?;
        if !context.resources.programs.captured.iter().any(|captured| captured.is_same_run(recording)) {
            context.resources.programs.captured.push(recording.clone());
        }
        Ok(())
    }

    /// The recording of a resolved run. All ranks call this together if the sizes are new. Whether they are
    /// new depends only on earlier runs, which are the same on all ranks.
    fn resolve_recording(&mut self, resolved: ResolvedPorts) -> Result<Arc<Recording>, RunError> {
        self.load_fixed_inputs()?;
        let ResolvedPorts { key, memory } = resolved;
        let choices = self.choices.get(&key.sizes).cloned();
        let context = self.context.as_mut().ok_or_else(arenas_released_error)?;
        let resources::ResourceParts { programs, streams, .. } = &mut *context.resources;
        if choices.is_some()
            && let Some(recording) = programs.find_or_retarget(&key, &memory, &streams.compute)
        {
            return Ok(recording);
        }
        let program = match programs.program(&key.sizes).filter(|_| choices.is_some()) {
            Some(program) => program,
            None => self.load_program(&key, choices)?,
        };
        self.record(program, key, memory)
    }

    /// Lowers and loads the program at the current sizes. All ranks call this together if there are no
    /// choices for them yet.
    fn load_program(
        &mut self,
        key: &RecordingKey,
        choices: Option<ProgramChoices>,
    ) -> Result<Arc<DeviceProgram>, RunError> {
        // Loading code may wait for running kernels, and timed candidates write to the arenas.
        self.wait_for_runs(None)?;
        let _span = self.enter_span();
        let started = Instant::now();
        tracing::debug!(target: "symmc::gpu", sizes = %key.sizes, "loading a program");
        let bound = self.ports.sized_program()?.program.clone();
        let limit = self.config.limit;
        let ranks = self.joined_rank.as_deref().map(JoinedRank::comm).ok_or_else(session_ended_error)?;
        let context = self.context.as_mut().ok_or_else(arenas_released_error)?;
        if choices.is_none() {
            ranks.all_gather(&[0])?;
        }
        let exchange = choices.is_none().then_some(ranks as &dyn RankExchange);
        context.extend_for(&bound.steps, exchange, &self.gpu, limit)?;
        let resources = &context.resources;
        let bases = PortBases(&key.bases);
        let input_memory = input_ranges(&bound, &key.bases);
        let search = exchange.map(|exchange| GemmSearch {
            exchange,
            products: self.gpu.products,
            device: &self.device,
            stream: &resources.streams.compute,
            limit,
            protected_ranges: &input_memory,
            bases,
        });
        let addresses = AddressMap::new(&bound, context.ordinary_address, resources.arena.address())?;
        let (peers, machine) = context.program_parameters(bound.program);
        let program_context = ProgramContext {
            device: &self.device,
            addresses: &addresses,
            peers: &peers,
            machine: &machine,
            nccl: &resources.nccl,
            search: search.as_ref(),
            settled: choices.as_ref(),
            progress: (self.gpu.progress == ProgressReporting::Enabled).then(|| context.progress_address()),
            bases,
        };
        let program = DeviceProgram::new(ranks.rank(), &bound.steps, &program_context)?;
        if choices.is_none() {
            self.choices.insert_or_evict(key.sizes.clone(), program.choices().clone());
        }
        tracing::info!(target: "symmc::gpu", sizes = %key.sizes, elapsed = ?started.elapsed(), "loaded a program");
        Ok(Arc::new(program))
    }

    /// Records a program with its ports at the bases of the key.
    fn record(
        &mut self,
        program: Arc<DeviceProgram>,
        key: RecordingKey,
        memory: Vec<Arc<DeviceBuffer>>,
    ) -> Result<Arc<Recording>, RunError> {
        let bound = self.ports.sized_program()?.program.clone();
        let is_noted = has_frontiers()?;
        let _span = self.enter_span();
        let started = Instant::now();
        let context = self.context.as_mut().ok_or_else(arenas_released_error)?;
        let streams = &context.resources.streams;
        let nccl = &context.resources.nccl;
        let recording = Arc::new(Recording::new(program, bound, &key, memory, is_noted, streams, nccl)?);
        let programs = &mut context.resources.programs;
        programs.record_count += 1;
        tracing::debug!(target: "symmc::gpu", recordings = programs.record_count, elapsed = ?started.elapsed(), "recorded a graph");
        programs.retired.extend(programs.recordings.insert_or_evict(key, recording.clone()));
        Ok(recording)
    }

    /// Polls the runs: whether all have ended.
    pub(super) fn poll_runs(&mut self) -> Result<bool, RunError> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        if self.pending_runs.pending {
            match self.pending_runs.end.reached() {
                Err(error) => return Err(self.fail_session(error.into())),
                Ok(false) => {
                    return self.report_progress().map(|()| false).map_err(|error| self.fail_session(error));
                }
                Ok(true) => {}
            }
        }
        if let Some(error) = self.kernel_error() {
            return Err(self.fail_session(error));
        }
        self.pending_runs.clear();
        if let Some(context) = &mut self.context {
            context.resources.programs.retired.clear();
        }
        Ok(true)
    }

    /// Reports the progress of runs to peers. Fails if the session has ended.
    fn report_progress(&mut self) -> Result<(), RunError> {
        let comm = self.joined_rank.as_deref().map(JoinedRank::comm).ok_or_else(session_ended_error)?;
        let word = self.context()?.progress().load(Ordering::Relaxed);
        // The supervisor of the ranks knows only the steps of the first plan.
        let is_named = self.arrangement.program_count() == 1;
        let flight = &mut self.pending_runs;
        match flight.progress.next_update(word, Instant::now(), self.config.limit, flight.count) {
            // Steps have names only if all runs are of one bucket.
            Some(ProgressUpdate::Step(step)) if is_named && flight.bucket().is_some() => {
                comm.begin_step(step)
            }
            Some(_) => comm.control().record_progress(comm.rank()),
            None => {}
        }
        let alive = comm.expect_running();
        match &alive {
            // A peer that closed its session after the runs of this rank does not keep them from ending here.
            // Because the session has ended, nothing watches the other peers any more; this state lasts no
            // longer than the limit.
            Err(error) if has_ended_runs(comm.control(), error, self.runs) => {
                let left_since = self.peer_left_since.get_or_insert_with(Instant::now);
                if left_since.elapsed() < self.config.limit { Ok(()) } else { alive }
            }
            _ => alive,
        }
    }

    /// The error that kernels reported, described by the first run whose program may have reported it.
    fn kernel_error(&self) -> Option<RunError> {
        let context = self.context.as_ref()?;
        let captured = context.resources.programs.captured.iter().chain(self.last_run.recording());
        let executables =
            self.pending_runs.running.iter().chain(captured.map(|recording| &recording.executable));
        executables.into_iter().find_map(|executable| {
            let report = StatusReport {
                status: &context.resources.status,
                bound: &executable.bound,
                assertions: executable.program.assertions(),
                run: self.pending_runs.first,
                limit: self.config.limit,
            };
            report.failure()
        })
    }

    /// Ends the session on all ranks. Returns the error that explains the failure best.
    pub(crate) fn fail_session(&mut self, error: RunError) -> RunError {
        if let Some(first) = &self.failure {
            return first.clone();
        }
        if let Some(context) = &self.context {
            context.resources.mark_failed();
            collective::abort_waits(&context.resources.status);
        }
        let start = Instant::now();
        while self.pending_runs.pending
            && !self.pending_runs.end.reached().unwrap_or(true)
            && start.elapsed() < REPORT_TIMEOUT
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        // A kernel's report about the step explains more than the departure of a peer.
        let error = if error.is_consequence() { self.kernel_error().unwrap_or(error) } else { error };
        let _span = self.enter_span();
        tracing::warn!(target: "symmc::run", %error, runs = self.runs, "ending the session on all ranks");
        let error = self.joined_rank.as_ref().map_or(error.clone(), |joined| joined.fail_run(error));
        self.failure.insert(error).clone()
    }

    pub(super) fn wait_for_runs(&mut self, limit: Option<Duration>) -> Result<(), RunError> {
        if !self.pending_runs.pending {
            return self.poll_runs().map(drop);
        }
        let bucket = self.pending_runs.bucket().and_then(|bucket| u32::try_from(bucket).ok());
        // The supervisor of the ranks knows only the steps of the first plan.
        let bucket =
            if self.arrangement.program_count() == 1 { bucket.unwrap_or_default() } else { u32::MAX };
        let run = Some((self.pending_runs.first, bucket));
        self.show_awaited(run);
        self.pending_runs.progress = RunProgress::new(Instant::now());
        let waited = self.poll_until_end(limit);
        self.show_awaited(None);
        waited
    }

    /// Shows peers that this rank waits for the end of a run in a bucket, or no longer waits. While it waits,
    /// peers expect progress.
    fn show_awaited(&self, run: Option<(u64, u32)>) {
        if let Ok(comm) = self.comm() {
            comm.control().begin_run(comm.rank(), run);
        }
    }

    /// Makes log records name the rank while the result lives.
    fn enter_span(&self) -> Option<EnteredSpan> {
        self.comm().ok().and_then(|comm| enter_rank_span(comm.rank()))
    }

    fn poll_until_end(&mut self, limit: Option<Duration>) -> Result<(), RunError> {
        let start = Instant::now();
        while !self.poll_runs()? {
            let elapsed = start.elapsed();
            if let Some(limit) = limit.filter(|limit| elapsed >= *limit) {
                let rank = self.comm()?.rank();
                let run = self.pending_runs.first;
                let _span = enter_rank_span(rank);
                tracing::warn!(target: "symmc::run", run, ?limit, "timed out waiting for a run");
                return Err(RunError::Unfinished { rank, run, limit_ms: limit.as_millis() as u64 });
            }
            if elapsed > Duration::from_millis(2) {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// Refuses an access by the caller while runs may use the memory.
    fn expect_idle(&mut self, port: Port) -> Result<(), RunError> {
        if self.poll_runs()? { Ok(()) } else { Err(self.ports.busy_error(port)) }
    }

    /// Waits until all ranks have reached this call.
    fn synchronize_ranks(&mut self) -> Result<(), RunError> {
        let met = self.comm()?.exchange_bytes(&[0]).map(drop);
        met.map_err(|error| self.fail_session(error))
    }
}

/// Whether the driver reports the dependencies of a capture's next node.
fn has_frontiers() -> Result<bool> {
    Ok(driver::cuda_version()? >= [12, 3])
}

/// Whether the session ended because a peer closed it, after that peer had completed this many runs.
fn has_ended_runs(control: &ControlSegment, end: &RunError, runs: u64) -> bool {
    let RunError::Left { rank, .. } = end.cause() else { return false };
    control.runs_before_close(*rank).is_some_and(|closed| closed >= runs)
}

/// The memory ranges of a program's inputs. Their data must be preserved.
fn input_ranges(bound: &ResolvedProgram, bases: &[Address]) -> Vec<Range<Address>> {
    let bound_inputs = bound.inputs.iter().zip(bases);
    bound_inputs
        .filter(|(input, _)| input.bytes > 0)
        .map(|(input, &base)| base..base + input.bytes as Address)
        .collect()
}

impl DeviceSession for CudaSession {
    fn set_sizes(&mut self, bindings: &SymbolBindings) -> Result<(), RunError> {
        self.ports.set_sizes(bindings)?;
        self.last_run = LastRun::Unknown;
        Ok(())
    }

    fn open_program(&mut self, plan: &CheckedPlan, _: &CustomKernelRegistry) -> Result<usize, RunError> {
        let _context = self.enter_device()?;
        self.add_program(plan)
    }

    fn switch_to_program(&mut self, program: usize) -> Result<(), RunError> {
        self.select_program(program)
    }

    fn close_program(&mut self, program: usize) -> Result<(), RunError> {
        let _context = self.enter_device()?;
        self.end_program(program)
    }

    fn resolved_program(&self) -> Result<&ResolvedProgram, RunError> {
        Ok(&self.ports.sized_program()?.program)
    }

    unsafe fn bind_port(&mut self, port: Port, memory: Option<DeviceRange>) -> Result<(), RunError> {
        self.ports.expect_port(port)?;
        let before = self.ports.state(port).binding();
        if before == memory {
            return Ok(());
        }
        let _context = self.enter_device()?;
        let arena = self.symmetric_arena().ok();
        let reserved = self.reserved();
        self.ports.bind_memory(port, memory, arena, reserved)?;
        if let Some(range) = memory
            && let Err(error) = self.expect_own(port, range)
        {
            self.ports.bind_memory(port, before, arena, Vec::new())?;
            return Err(error);
        }
        match memory {
            Some(_) => self.last_run.rebind(port),
            None => self.last_run = LastRun::Unknown,
        }
        Ok(())
    }

    fn device(&self) -> DeviceName {
        DeviceName::Gpu(self.device.ordinal())
    }

    fn allocate_memory(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, RunError> {
        let _context = self.enter_device()?;
        Ok(Arc::new(device_tensors::allocate_zeroed(&self.device, bytes)?))
    }

    fn allocate_symmetric(&mut self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, RunError> {
        let _context = self.enter_device()?;
        let comm = self.comm()?;
        let rank = comm.rank();
        let sizes = comm.exchange_bytes(&(bytes as u64).to_le_bytes());
        let sizes = sizes.map_err(|error| self.fail_session(error))?;
        let arena = self.context()?.resources.arena.clone();
        let range = self.ports.caller_arena().allocate_block(&sizes, rank)?;
        Ok(Arc::new(CudaArenaBlock { device: self.device.clone(), arena, range }))
    }

    fn share_tensor(&self, tensor: &Arc<Tensor>) -> Result<SharedTensor, RunError> {
        let _context = self.enter_device()?;
        device_tensors::share_tensor(&self.device, tensor)
    }

    fn port_memory(&mut self, port: Port) -> Result<PortMemory, RunError> {
        let _context = self.enter_device()?;
        self.expose_port(port)
    }

    fn write_inputs(&mut self, inputs: &[(usize, InputData<'_>)]) -> Result<(), RunError> {
        let _context = self.enter_device()?;
        let mut places = Vec::with_capacity(inputs.len());
        for &(input, data) in inputs {
            self.expect_idle(Port::Input(input))?;
            places.push((self.expose_input(input, data.size())?.address, data));
        }
        self.upload_all(&places)
    }

    fn read_port(&mut self, port: Port, data: &mut [u8]) -> Result<(), RunError> {
        let _context = self.enter_device()?;
        self.expect_idle(port)?;
        self.ports.expect_bytes(port, data.len())?;
        let memory = self.locate_port(port)?;
        let stream = &self.context()?.resources.streams.compute;
        // SAFETY: the memory has that many bytes, and no run is in progress.
        unsafe { stream.download(data, memory.range.address)? };
        Ok(())
    }

    fn enqueue(&mut self, stream: Option<RawStream>) -> Result<(), RunError> {
        let _context = self.enter_device()?;
        self.enqueue_run(stream)
    }

    fn run(&mut self) -> Result<(), RunError> {
        let _context = self.enter_device()?;
        self.enqueue_run(None)?;
        self.wait_for_runs(None)
    }

    fn prepare_run(&mut self) -> Result<(), RunError> {
        let _context = self.enter_device()?;
        self.next_recording().map(drop)
    }

    fn run_traced(&mut self) -> Result<Vec<TracedStep>, RunError> {
        let _context = self.enter_device()?;
        // Runs on other streams have ended before the steps begin.
        self.wait_for_runs(None)?;
        let recording = self.next_recording()?;
        let start = Event::timed()?;
        let events =
            self.enqueue_timed(&recording, &start).map_err(|error| self.fail_session(error.into()))?;
        self.runs += 1;
        self.wait_for_runs(None)?;
        let mut traced = Vec::with_capacity(events.len());
        for (step, [begin, end]) in recording.executable.bound.steps.iter().zip(&events) {
            traced.push(TracedStep {
                node: step.node.clone(),
                op: step.op_name.clone(),
                lane: step.lane,
                start_us: start.microseconds_to(begin)?,
                us: begin.microseconds_to(end)?,
            });
        }
        Ok(traced)
    }

    fn poll(&mut self) -> Result<bool, RunError> {
        let _context = self.enter_device()?;
        self.poll_runs()
    }

    fn wait(&mut self, limit: Duration) -> Result<(), RunError> {
        let _context = self.enter_device()?;
        self.wait_for_runs(Some(limit))
    }

    fn release_arenas(&mut self) -> Result<(), RunError> {
        let _context = self.enter_device()?;
        if !self.poll_runs()? {
            return Err(run_in_progress_error());
        }
        self.ports.expect_no_caller_memory()?;
        self.synchronize_ranks()?;
        self.forget_last_runs();
        self.context = None;
        self.ports.invalidate_symmetric();
        self.parked.iter_mut().flatten().for_each(|parked| parked.ports.invalidate_symmetric());
        self.synchronize_ranks()
    }

    fn resume_arenas(&mut self) -> Result<(), RunError> {
        let _context = self.enter_device()?;
        if self.context.is_some() {
            return self.synchronize_ranks();
        }
        let sizes = self.context_sizes()?;
        let comm = self.comm()?;
        let created = self.make_context(&sizes, comm);
        let context = created.map_err(|error| self.fail_session(error.into()))?;
        self.context = Some(context);
        Ok(())
    }

    fn recording_counts(&self) -> RecordingCounts {
        let mut out = RecordingCounts::default();
        if let Some(context) = &self.context {
            let programs = &context.resources.programs;
            (out.created, out.retargeted, out.evicted) =
                (programs.record_count, programs.retarget_count, programs.recordings.evicted());
        }
        out
    }

    fn memory_usage(&self) -> MemoryUsage {
        let mut usage =
            self.context.as_ref().map_or_else(MemoryUsage::default, ExecutionContext::memory_usage);
        let parked = self.parked.iter().flatten().flat_map(|parked| parked.ports.session_memories());
        usage.ports = self.ports.session_memories().chain(parked).map(|memory| memory.len()).sum();
        usage
    }

    fn close(mut self: Box<Self>) -> Result<(), RunError> {
        let _context = self.enter_device()?;
        self.wait_for_runs(None)?;
        self.leave_group(LeaveMode::Closed);
        Ok(())
    }

    fn abort(mut self: Box<Self>, reason: &str) {
        let _context = self.enter_device();
        self.abort_group(format!("aborted its session: {reason}"));
    }
}

#[cfg(test)]
mod tests {
    use symmc_control::{RankCommunicator, SharedRunMemory};

    use super::*;

    #[test]
    fn a_peer_that_closed_its_session_has_ended_only_the_runs_that_it_says() {
        let domain = SharedRunMemory::create(2, 1, 64, 0).expect("shared memory");
        let comm = RankCommunicator::new(domain, 0, Duration::from_secs(1));
        let control = comm.control();
        // A peer that aborts its session announces no number of runs.
        let aborted = RunError::Left { rank: 1, how: "aborted its session: enough".into() };
        assert!(!has_ended_runs(control, &aborted, 0));
        control.set_closed(1, 5);
        let closed = RunError::Left { rank: 1, how: "closed its session after 5 runs".into() };
        let closed = closed.reported_by(0);
        assert_eq!([4, 5, 6].map(|runs| has_ended_runs(control, &closed, runs)), [true, true, false]);
        assert!(!has_ended_runs(control, &RunError::Invalid("something else".into()), 0));
    }
}
