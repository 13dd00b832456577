//! Runs of a session: put on streams, watched, and what failed.
//!
//! A run on another stream than the one before it waits for that one there. One event marks the end of the last run, and
//! so of all. While the caller records a stream, a run becomes part of the recording; the caller then waits for his own
//! replays, and [`DeviceSession::poll`] tells what they reported.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use symmc_check::CheckedPlan;
use symmc_control::{Control, Leaving, enter_rank_span};
use symmc_ir::{Bindings, Tensor};
use symmc_runtime::RunError;
use symmc_runtime::exec::{Bound, BoundStep, InputData, Registry};
use symmc_runtime::host::SessionRank;
use symmc_runtime::session::{
    DeviceMemory, DeviceName, DeviceSession, Extent, Kept, Port, PortDevice, PortMemory, RawStream,
    Recordings, SizedProgram, Taken, TracedStep, ended, gave_back, in_progress,
};
use tracing::span::EnteredSpan;

use super::context::ExecutionContext;
use super::cuda_session::{CudaSession, LastRun};
use super::gpu::Progress;
use super::kept::{self, PartOfArena};
use super::memory::Resolved;
use super::progress::{Heard, News};
use super::recording::{Executable, Recording, RecordingKey};
use super::report::Report;
use crate::codegen::addresses::AddressMap;
use crate::codegen::compute::search::Search;
use crate::device::driver::{self, Event, Graph, LentStream, Memory, Stream};
use crate::device::launch::{Address, PortBases};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::program::{DeviceProgram, Parts, Settled};
use crate::{codegen::collective, session::resources};

/// How long a failure waits for kernels that were told to end, so that their reports are seen.
const ENDING: Duration = Duration::from_secs(3);

impl CudaSession {
    /// Puts one run on a stream. What is wrong with it here is told before peers hear of it.
    fn put(&mut self, stream: Option<RawStream>) -> Result<(), RunError> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let stream = match (stream, self.gpu.adopted.stream) {
            // SAFETY: the caller's promise: it exists, on this GPU.
            (Some(raw), _) => Some(unsafe { LentStream::new(raw.0) }),
            (None, adopted) => adopted,
        };
        let stream = stream.map(|lent| Stream::adopt(&self.device, lent));
        let put = match stream {
            Some(stream) if self.is_recorded(&stream)? => {
                let recording = self.next_elsewhere()?;
                self.capture(&recording, stream)
            }
            stream => {
                let recording = self.next()?;
                match recording.by_graph {
                    true => self.launch(&recording, stream, (&recording.executable.graph, 1)),
                    false => self.launch_pieces(&recording, stream),
                }
            }
        };
        self.runs += 1;
        let _span = self.enter_span();
        tracing::trace!(target: "symmc::run", runs = self.runs, "enqueued a run");
        put.map_err(|error| self.fail(error.into()))
    }

    /// The recording of the next run, once peers know its sizes.
    pub(super) fn next(&mut self) -> Result<Arc<Recording>, RunError> {
        if let Some(recording) = self.last.recording().cloned() {
            self.announce()?;
            return Ok(recording);
        }
        let resolved = self.resolve()?;
        self.announce()?;
        let recording = self.recording(resolved).map_err(|error| self.fail(error))?;
        self.last = LastRun::Same(recording.clone());
        Ok(recording)
    }

    /// The next run for a recording of the caller, once peers know its sizes. It needs no graph of the session's own.
    fn next_elsewhere(&mut self) -> Result<Arc<Recording>, RunError> {
        if self.last.recording().is_some() {
            return self.next();
        }
        let resolved = self.resolve()?;
        self.announce()?;
        self.load()?;
        let Resolved { key, memory } = &resolved;
        match self.context()?.resources.programs.known_elsewhere(key, memory, |_| true) {
            Some(known) => Ok(Arc::new(known)),
            None => self.recording(resolved).map_err(|error| self.fail(error)),
        }
    }

    fn is_recorded(&self, stream: &Stream) -> Result<bool, RunError> {
        let known = self.flight.stream == Some(stream.handle().addr());
        if !known && !stream.is_of_device()? {
            return Err(RunError::Invalid(format!(
                "the stream is not of the primary context of GPU {}",
                self.device.ordinal()
            )));
        }
        Ok(stream.is_capturing()?)
    }

    fn announce(&mut self) -> Result<(), RunError> {
        let SizedProgram { digest, text, .. } = self.ports.sized()?;
        let (comm, run) = (self.comm()?, self.runs);
        let said = comm.alive().and_then(|()| comm.announce(run, *digest, &|| text.to_string()));
        said.map_err(|error| self.fail(error))
    }

    /// Launches a graph of so many runs of a recording, on the session's stream if none is given.
    pub(super) fn launch(
        &mut self,
        recording: &Arc<Recording>,
        stream: Option<Stream>,
        (graph, runs): (&Graph, u32),
    ) -> Result<()> {
        let Some(context) = &self.context else { return Err(gave_back().into()) };
        let stream = stream.as_ref().unwrap_or(&context.resources.streams.compute);
        self.flight.before(stream, context)?;
        // SAFETY: the recording holds what it uses, or the lender does, and the context is there.
        unsafe { stream.replay(graph)? };
        self.flight.put(stream, &recording.executable, self.runs, runs)
    }

    fn launch_pieces(&mut self, recording: &Arc<Recording>, stream: Option<Stream>) -> Result<()> {
        let Some(context) = &mut self.context else { return Err(gave_back().into()) };
        // SAFETY: as for the other one.
        let own = || unsafe { LentStream::new(context.resources.streams.compute.handle().cast()) };
        let stream = stream.unwrap_or_else(|| Stream::adopt(&self.device, own()));
        self.flight.before(&stream, context)?;
        let streams = context.lanes(&self.device, stream);
        recording.put(&streams, &context.resources.nccl)?;
        if recording.holds() {
            context.resources.programs.retired.push(recording.clone());
        }
        self.flight.put(&streams.compute, &recording.executable, self.runs, 1)
    }

    /// Puts one run on the session's streams step by step, behind `start`.
    fn put_timed(&mut self, recording: &Arc<Recording>, start: &Event) -> Result<Vec<[Event; 2]>> {
        let Some(context) = &self.context else { return Err(gave_back().into()) };
        context.progress().store(0, Ordering::Relaxed);
        let resources = &context.resources;
        start.record(&resources.streams.compute)?;
        let events = recording.put_timed(&resources.streams, &resources.nccl)?;
        self.flight.put(&resources.streams.compute, &recording.executable, self.runs, 1)?;
        Ok(events)
    }

    /// Makes a run part of what the caller records.
    fn capture(&mut self, recording: &Arc<Recording>, compute: Stream) -> Result<()> {
        let Some(context) = &mut self.context else { return Err(gave_back().into()) };
        recording.put(&context.lanes(&self.device, compute), &context.resources.nccl)?;
        if !context.resources.programs.captured.iter().any(|known| known.is_as(recording)) {
            context.resources.programs.captured.push(recording.clone());
        }
        Ok(())
    }

    /// The recording of a resolved run. All ranks call this together if the sizes are new; which these are depends on the
    /// runs before, which are the same on all ranks.
    fn recording(&mut self, resolved: Resolved) -> Result<Arc<Recording>, RunError> {
        self.load()?;
        let Resolved { key, memory } = resolved;
        let settled = self.settled.get(&key.sizes).cloned();
        let context = self.context.as_mut().ok_or_else(gave_back)?;
        let resources::Parts { programs, streams, .. } = &mut *context.resources;
        if settled.is_some()
            && let Some(known) = programs.known(&key, &memory, &streams.compute)
        {
            return Ok(known);
        }
        let program = match programs.program(&key.sizes).filter(|_| settled.is_some()) {
            Some(program) => program,
            None => self.load_program(&key, settled)?,
        };
        self.record(program, key, memory)
    }

    /// Lowers and loads the program at the sizes that are set; together with all ranks if nothing is settled for them.
    fn load_program(
        &mut self,
        key: &RecordingKey,
        settled: Option<Settled>,
    ) -> Result<Arc<DeviceProgram>, RunError> {
        // Loading code may wait for what runs, and what is timed writes to the arenas.
        self.until_idle(None)?;
        let (_span, started) = (self.enter_span(), Instant::now());
        tracing::debug!(target: "symmc::gpu", sizes = %key.sizes, "loading a program");
        let bound = self.ports.sized()?.bound.clone();
        let limit = self.config.limit;
        let ranks = self.joined.as_deref().map(SessionRank::comm).ok_or_else(ended)?;
        let context = self.context.as_mut().ok_or_else(gave_back)?;
        if settled.is_none() {
            ranks.all_gather(&[0])?;
        }
        let exchange = settled.is_none().then_some(ranks as &dyn Exchange);
        context.serve(&bound.steps, exchange, (&self.gpu, limit))?;
        let (resources, bases) = (&context.resources, PortBases(&key.bases));
        let kept = inputs_at(&bound, &key.bases);
        let search = exchange.map(|exchange| Search {
            exchange,
            products: self.gpu.products,
            device: &self.device,
            stream: &resources.streams.compute,
            limit,
            kept: &kept,
            bases,
        });
        let addresses = AddressMap::new(&bound, context.ordinary, resources.arena.address())?;
        let (peers, machine) = context.of_program(bound.program);
        let parts = Parts {
            device: &self.device,
            addresses: &addresses,
            peers: &peers,
            machine: &machine,
            nccl: &resources.nccl,
            search: search.as_ref(),
            settled: settled.as_ref(),
            progress: (self.gpu.progress == Progress::Told).then(|| context.told()),
            bases,
        };
        let program = DeviceProgram::new(ranks.rank(), &bound.steps, &parts)?;
        if settled.is_none() {
            self.settled.put(key.sizes.clone(), program.settled().clone());
        }
        tracing::info!(target: "symmc::gpu", sizes = %key.sizes, elapsed = ?started.elapsed(), "loaded a program");
        Ok(Arc::new(program))
    }

    /// Records a program with its ports at the bases of the key.
    fn record(
        &mut self,
        program: Arc<DeviceProgram>,
        key: RecordingKey,
        memory: Vec<Arc<Memory>>,
    ) -> Result<Arc<Recording>, RunError> {
        let bound = self.ports.sized()?.bound.clone();
        let is_noted = has_frontiers()?;
        let (_span, started) = (self.enter_span(), Instant::now());
        let context = self.context.as_mut().ok_or_else(gave_back)?;
        let lanes = (&context.resources.streams, &context.resources.nccl);
        let recording = Arc::new(Recording::new(program, bound, &key, memory, is_noted, lanes)?);
        let programs = &mut context.resources.programs;
        programs.recorded += 1;
        tracing::debug!(target: "symmc::gpu", recordings = programs.recorded, elapsed = ?started.elapsed(), "recorded a graph");
        programs.retired.extend(programs.recent.put(key, recording.clone()));
        Ok(recording)
    }

    /// Whether all runs have ended.
    pub(super) fn look(&mut self) -> Result<bool, RunError> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        if self.flight.pending {
            match self.flight.end.reached() {
                Err(error) => return Err(self.fail(error.into())),
                Ok(false) => return self.go_on().map(|()| false).map_err(|error| self.fail(error)),
                Ok(true) => {}
            }
        }
        if let Some(error) = self.reported() {
            return Err(self.fail(error));
        }
        self.flight.clear();
        if let Some(context) = &mut self.context {
            context.resources.programs.retired.clear();
        }
        Ok(true)
    }

    /// Tells peers how far the runs are; whether the session goes on.
    fn go_on(&mut self) -> Result<(), RunError> {
        let comm = self.joined.as_deref().map(SessionRank::comm).ok_or_else(ended)?;
        let word = self.context()?.progress().load(Ordering::Relaxed);
        // Whoever watches the ranks knows the steps of the first plan.
        let is_named = self.arrangement.count() == 1;
        let flight = &mut self.flight;
        match flight.heard.news(word, Instant::now(), self.config.limit, flight.count) {
            // Steps have names where all runs are of one bucket.
            Some(News::Step(step)) if is_named && flight.bucket().is_some() => comm.begin_step(step),
            Some(_) => comm.control().beat(comm.rank()),
            None => {}
        }
        let alive = comm.alive();
        match &alive {
            // A peer that closed its session after the runs of this rank does not keep them from ending here. The session has
            // ended, so that nothing watches the other peers any more: that takes no longer than the limit.
            Err(error) if has_ended_runs(comm.control(), error, self.runs) => {
                let left = self.left.get_or_insert_with(Instant::now);
                if left.elapsed() < self.config.limit { Ok(()) } else { alive }
            }
            _ => alive,
        }
    }

    /// What kernels reported, in words of the first run whose program it may be.
    fn reported(&self) -> Option<RunError> {
        let context = self.context.as_ref()?;
        let captured = context.resources.programs.captured.iter().chain(self.last.recording());
        let all = self.flight.running.iter().chain(captured.map(|recording| &recording.executable));
        let report = |executable: &Arc<Executable>| {
            let (bound, assertions) = (&*executable.bound, executable.program.assertions());
            let (status, run, limit) = (&context.resources.status, self.flight.first, self.config.limit);
            Report { status, bound, assertions, run, limit }.failure()
        };
        all.into_iter().find_map(report)
    }

    /// Ends the session on all ranks; the error that explains it best.
    pub(crate) fn fail(&mut self, error: RunError) -> RunError {
        if let Some(first) = &self.failure {
            return first.clone();
        }
        if let Some(context) = &self.context {
            context.resources.fail();
            collective::end(&context.resources.status);
        }
        let start = Instant::now();
        while self.flight.pending && !self.flight.end.reached().unwrap_or(true) && start.elapsed() < ENDING {
            std::thread::sleep(Duration::from_millis(1));
        }
        // What kernels say of the step explains more than that a peer has gone.
        let error = if error.is_consequence() { self.reported().unwrap_or(error) } else { error };
        let _span = self.enter_span();
        tracing::warn!(target: "symmc::run", %error, runs = self.runs, "ending the session on all ranks");
        let error = self.joined.as_ref().map_or(error.clone(), |joined| joined.fail(error));
        self.failure.insert(error).clone()
    }

    pub(super) fn until_idle(&mut self, limit: Option<Duration>) -> Result<(), RunError> {
        if !self.flight.pending {
            return self.look().map(drop);
        }
        let bucket = self.flight.bucket().and_then(|bucket| u32::try_from(bucket).ok());
        // Whoever watches the ranks knows the steps of the first plan.
        let bucket = if self.arrangement.count() == 1 { bucket.unwrap_or_default() } else { u32::MAX };
        let run = Some((self.flight.first, bucket));
        self.show_awaited(run);
        self.flight.heard = Heard::new(Instant::now());
        let waited = self.await_end(limit);
        self.show_awaited(None);
        waited
    }

    /// Shows peers that this rank waits for the end of a run, in a bucket, or that it does not any more: while it waits, peers
    /// expect that it goes on.
    fn show_awaited(&self, run: Option<(u64, u32)>) {
        if let Ok(comm) = self.comm() {
            comm.control().begin_run(comm.rank(), run);
        }
    }

    /// Has the log name the rank while the result lives.
    fn enter_span(&self) -> Option<EnteredSpan> {
        self.comm().ok().and_then(|comm| enter_rank_span(comm.rank()))
    }

    fn await_end(&mut self, limit: Option<Duration>) -> Result<(), RunError> {
        let start = Instant::now();
        while !self.look()? {
            let elapsed = start.elapsed();
            if let Some(limit) = limit.filter(|limit| elapsed >= *limit) {
                let (rank, run) = (self.comm()?.rank(), self.flight.first);
                let _span = enter_rank_span(rank);
                tracing::warn!(target: "symmc::run", run, ?limit, "timed out waiting for a run");
                return Err(RunError::Unfinished { rank, run, limit_ms: limit.as_millis() as u64 });
            }
            match elapsed > Duration::from_millis(2) {
                true => std::thread::sleep(Duration::from_micros(50)),
                false => std::hint::spin_loop(),
            }
        }
        Ok(())
    }

    /// Refuses an access by the caller while runs may touch the memory.
    fn expect_idle(&mut self, port: Port) -> Result<(), RunError> {
        if self.look()? { Ok(()) } else { Err(self.ports.busy(port)) }
    }

    /// Tells all ranks that this one is here, and waits for them.
    fn meet(&mut self) -> Result<(), RunError> {
        let met = self.comm()?.exchange(&[0]).map(drop);
        met.map_err(|error| self.fail(error))
    }
}

/// Whether the driver says what it records next work behind.
fn has_frontiers() -> Result<bool> {
    Ok(driver::version()? >= [12, 3])
}

/// Whether the session ended because a peer closed it, after that peer had ended this many runs.
fn has_ended_runs(control: &Control, end: &RunError, runs: u64) -> bool {
    let RunError::Left { rank, .. } = end.cause() else { return false };
    control.closed(*rank).is_some_and(|closed| closed >= runs)
}

/// Where the inputs of a program lie, whose data must stay.
fn inputs_at(bound: &Bound, bases: &[Address]) -> Vec<Range<Address>> {
    let at = bound.inputs.iter().zip(bases);
    at.filter(|(input, _)| input.bytes > 0).map(|(input, &at)| at..at + input.bytes as Address).collect()
}

impl DeviceSession for CudaSession {
    fn set(&mut self, bindings: &Bindings) -> Result<(), RunError> {
        self.ports.set(bindings)?;
        self.last = LastRun::Unknown;
        Ok(())
    }

    fn open_program(&mut self, plan: &CheckedPlan, _: &Registry) -> Result<usize, RunError> {
        let _context = self.entered()?;
        self.add_program(plan)
    }

    fn select(&mut self, program: usize) -> Result<(), RunError> {
        self.activate(program)
    }

    fn close_program(&mut self, program: usize) -> Result<(), RunError> {
        let _context = self.entered()?;
        self.end_program(program)
    }

    fn bound(&self) -> Result<&Bound, RunError> {
        Ok(&self.ports.sized()?.bound)
    }

    unsafe fn lend(&mut self, port: Port, memory: Option<Extent>) -> Result<(), RunError> {
        self.ports.expect(port)?;
        let before = self.ports.state(port).bound;
        if before == memory {
            return Ok(());
        }
        let _context = self.entered()?;
        let (arena, reserved) = (self.arena().ok(), self.reserved());
        self.ports.bind(port, memory, arena, reserved)?;
        if let Some(given) = memory
            && let Err(error) = self.expect_own(port, given)
        {
            self.ports.bind(port, before, arena, Vec::new())?;
            return Err(error);
        }
        match memory {
            Some(_) => self.last.rebind(port),
            None => self.last = LastRun::Unknown,
        }
        Ok(())
    }

    fn device(&self) -> DeviceName {
        DeviceName::Gpu(self.device.ordinal())
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, RunError> {
        let _context = self.entered()?;
        Ok(Arc::new(kept::zeros(&self.device, bytes)?))
    }

    fn allocate_symmetric(&mut self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, RunError> {
        let _context = self.entered()?;
        let comm = self.comm()?;
        let (rank, asked) = (comm.rank(), comm.exchange(&(bytes as u64).to_le_bytes()));
        let asked = asked.map_err(|error| self.fail(error))?;
        let arena = self.context()?.resources.arena.clone();
        let range = self.ports.callers().take(&asked, rank)?;
        Ok(Arc::new(PartOfArena { device: self.device.clone(), arena, range }))
    }

    fn keep(&self, tensor: &Arc<Tensor>) -> Result<Kept, RunError> {
        let _context = self.entered()?;
        kept::keep(&self.device, tensor)
    }

    fn memory_of(&mut self, port: Port) -> Result<PortMemory, RunError> {
        let _context = self.entered()?;
        self.expose(port)
    }

    fn write_all(&mut self, inputs: &[(usize, InputData<'_>)]) -> Result<(), RunError> {
        let _context = self.entered()?;
        let mut places = Vec::with_capacity(inputs.len());
        for &(input, data) in inputs {
            self.expect_idle(Port::Input(input))?;
            places.push((self.expose_for(input, data.size())?.address, data));
        }
        self.upload_all(&places)
    }

    fn read(&mut self, port: Port, data: &mut [u8]) -> Result<(), RunError> {
        let _context = self.entered()?;
        self.expect_idle(port)?;
        self.ports.expect_bytes(port, data.len())?;
        let memory = self.locate(port)?;
        let stream = &self.context()?.resources.streams.compute;
        // SAFETY: the memory has as many bytes, and no run is in progress.
        unsafe { stream.download(data, memory.extent.address)? };
        Ok(())
    }

    fn enqueue(&mut self, stream: Option<RawStream>) -> Result<(), RunError> {
        let _context = self.entered()?;
        self.put(stream)
    }

    fn run(&mut self) -> Result<(), RunError> {
        let _context = self.entered()?;
        self.put(None)?;
        self.until_idle(None)
    }

    fn prepare(&mut self) -> Result<(), RunError> {
        let _context = self.entered()?;
        self.next().map(drop)
    }

    fn run_traced(&mut self) -> Result<Vec<TracedStep>, RunError> {
        let _context = self.entered()?;
        // Runs that are on other streams have ended before the steps begin.
        self.until_idle(None)?;
        let recording = self.next()?;
        let start = Event::timed()?;
        let events = self.put_timed(&recording, &start).map_err(|error| self.fail(error.into()))?;
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

    fn poll(&mut self) -> Result<bool, RunError> {
        let _context = self.entered()?;
        self.look()
    }

    fn wait(&mut self, limit: Duration) -> Result<(), RunError> {
        let _context = self.entered()?;
        self.until_idle(Some(limit))
    }

    fn release(&mut self) -> Result<(), RunError> {
        let _context = self.entered()?;
        if !self.look()? {
            return Err(in_progress());
        }
        self.ports.expect_no_callers()?;
        self.meet()?;
        self.drop_recordings();
        self.context = None;
        self.ports.lose_symmetric();
        self.parked.iter_mut().flatten().for_each(|parked| parked.ports.lose_symmetric());
        self.meet()
    }

    fn resume(&mut self) -> Result<(), RunError> {
        let _context = self.entered()?;
        if self.context.is_some() {
            return self.meet();
        }
        let (sizes, comm) = (self.sizes()?, self.comm()?);
        let made = self.make_context(&sizes, comm);
        let context = made.map_err(|error| self.fail(error.into()))?;
        self.context = Some(context);
        Ok(())
    }

    fn recordings(&self) -> Recordings {
        let mut out = Recordings::default();
        if let Some(context) = &self.context {
            let programs = &context.resources.programs;
            (out.made, out.moved, out.evicted) =
                (programs.recorded, programs.moved, programs.recent.evicted());
        }
        out
    }

    fn taken(&self) -> Taken {
        let mut taken = self.context.as_ref().map_or_else(Taken::default, ExecutionContext::taken);
        let parked = self.parked.iter().flatten().flat_map(|parked| parked.ports.memories());
        taken.held = self.ports.memories().chain(parked).map(|memory| memory.len()).sum();
        taken
    }

    fn close(mut self: Box<Self>) -> Result<(), RunError> {
        let _context = self.entered()?;
        self.until_idle(None)?;
        self.end(Leaving::Closed);
        Ok(())
    }

    fn abort(mut self: Box<Self>, reason: &str) {
        let _context = self.entered();
        self.abandon(format!("aborted its session: {reason}"));
    }
}

#[cfg(test)]
mod tests {
    use symmc_control::Domain;
    use symmc_runtime::host::{Comm, CommConfig};

    use super::*;

    #[test]
    fn a_peer_that_closed_its_session_has_ended_only_the_runs_that_it_says() {
        let domain = Domain::create(2, 1, 64, 0).expect("shared memory");
        let comm = Comm::new(domain, 0, CommConfig::new(2, Duration::from_secs(1))).expect("a rank");
        let left = |how: &str| RunError::Left { rank: 1, how: how.into() };
        let ended = |error: &RunError, runs| has_ended_runs(comm.control(), error, runs);
        // A peer that aborts its session says nothing.
        assert!(!ended(&left("aborted its session: enough"), 0));
        comm.control().set_closed(1, 5);
        let closed = left("closed its session after 5 runs").reported_by(0);
        assert_eq!([4, 5, 6].map(|runs| ended(&closed, runs)), [true, true, false]);
        assert!(!ended(&RunError::Invalid("something else".into()), 0));
    }
}
