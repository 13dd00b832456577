//! A session of one rank on the host: runs read and write memory of this process, and reach peers through
//! shared memory.
//!
//! A run is put on a queue that a thread of the session executes. A caller that waits for the run executes it
//! in its own thread, if no run is in progress.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symmc_check::CheckedPlan;
use symmc_control::{
    Group, JoinTerm, JoinedRank, LeaveMode, MemorySegment, ProgressRecording, RankConfig, SharedRunMemory,
    enter_rank_span,
};
use symmc_ir::{InputKind, SymbolBindings, Tensor};
use symmc_plan::{ParsedPlan, Plan};

use super::queue::{HostRunQueue, PendingHostRun, ResolvedHostRun};
use crate::custom::CustomKernelRegistry;
use crate::error::{Result, RunError, session_ended_error};
use crate::exec::{
    ByteSpan, ExecConfig, Executor, InputData, Lanes, RankMemory, ResolvedProgram, Timing, expect_kernels,
};
use crate::kernels::ScratchNeeds;
use crate::session::join::{count_groups, join_session, symmetric_bytes};
use crate::session::memory_usage::{self, ConstantStorage};
use crate::session::{
    DeviceMemory, DeviceName, DeviceRange, DeviceSession, MemoryUsage, Port, PortDevice, PortMemory,
    PortStorage, RawStream, SessionLayout, SessionPorts, SharedTensor, SizedProgram, arenas_released_error,
    check_proposals, encode_proposal, run_in_progress_error,
};

/// The longest wait for peers in earlier runs before a session is aborted.
const MAX_WAIT_BEFORE_ABORT: Duration = Duration::from_millis(200);

/// A plan on one rank of the host.
pub struct HostSession {
    /// `None` once the session has ended.
    joined_rank: Option<Arc<JoinedRank>>,
    rank: u32,
    ports: SessionPorts<MemorySegment>,
    ordinary_arena: Option<Arc<MemorySegment>>,
    /// The resources of the next run, unless a setting has changed since.
    next_resolved: Option<Arc<ResolvedHostRun>>,
    runs: u64,
    queue: HostRunQueue,
    /// The program that calls refer to, whose inputs and outputs are `ports`.
    selected_program: usize,
    /// The other programs, by number.
    parked: Vec<Option<ParkedProgram>>,
    layout: SessionLayout,
    config: RankConfig,
}

/// A program of the session while another one is selected.
struct ParkedProgram {
    ports: SessionPorts<MemorySegment>,
    resolved: Option<Arc<ResolvedHostRun>>,
}

impl HostSession {
    /// Opens the session of a rank; returns when all ranks of the group have opened it and run the same plan.
    /// `terms` are other settings that must be equal. Fails if the group has another number of ranks, an op
    /// has no kernel, or the other ranks do not join or run something else.
    pub fn open(
        plan: &CheckedPlan,
        group: &Group,
        kernels: &CustomKernelRegistry,
        config: &RankConfig,
        terms: Vec<JoinTerm>,
    ) -> Result<HostSession> {
        let _span = enter_rank_span(group.rank());
        let started = Instant::now();
        expect_kernels(plan, kernels).map_err(|error| group.decline(error))?;
        let joined = Arc::new(join_session(plan, group, config, terms)?);
        let opened = HostSession::open_joined(&joined, plan, kernels, config);
        let session = opened.and_then(|session| joined.start().map(|()| session));
        let session = session.map_err(|error| joined.fail_run(error))?;
        let ranks = plan.ranks;
        let elapsed = started.elapsed();
        let symmetric = plan.arenas.symmetric;
        let ordinary = plan.arenas.ordinary;
        tracing::info!(target: "symmc::session", ranks, symmetric, ordinary, ?elapsed, "opened a session on the host");
        Ok(session)
    }

    /// Opens a session of a checked plan on a rank that has joined the others, and has yet to [start]. A
    /// session leaves the others when it ends, unless its caller holds the rank too.
    ///
    /// [start]: JoinedRank::start
    ///
    /// Fails if an op has no kernel, or there is not enough memory.
    pub fn open_joined(
        joined: &Arc<JoinedRank>,
        plan: &ParsedPlan,
        kernels: &CustomKernelRegistry,
        config: &RankConfig,
    ) -> Result<HostSession> {
        let executor = Executor::new(plan, joined.comm().rank(), kernels, exec_config(config))?;
        let mut ports = SessionPorts::new(executor, (1, config.callers))?;
        let room = config.extendable.then(|| SessionLayout::reserved_capacity(plan));
        if room.is_some() && config.callers > 0 {
            return Err(caller_memory_error());
        }
        let layout = SessionLayout::new(plan, room);
        if room.is_some() {
            ports.set_placement(layout.program_placement(0))?;
        }
        let queue = HostRunQueue::new(exec_config(config), ports.scratch_needs());
        Ok(HostSession {
            joined_rank: Some(joined.clone()),
            rank: joined.comm().rank(),
            ports,
            ordinary_arena: Some(allocate_ordinary(plan)?),
            next_resolved: None,
            runs: 0,
            queue,
            selected_program: 0,
            parked: vec![None],
            layout,
            config: config.clone(),
        })
    }

    /// The memory that the session of a rank will use: the maximum, for the part that depends on sizes and on
    /// memory that the caller binds. Fails if the plan has no such rank, or an op has no kernel.
    pub fn memory_budget(
        plan: &CheckedPlan,
        rank: u32,
        kernels: &CustomKernelRegistry,
        config: &RankConfig,
    ) -> Result<MemoryUsage> {
        expect_kernels(plan, kernels)?;
        let mut executor = Executor::new(plan, rank, kernels, exec_config(config))?;
        let needs = executor.scratch_needs();
        Ok(MemoryUsage {
            ordinary: arena_size(plan.arenas.ordinary)?,
            symmetric: if config.extendable {
                SessionLayout::new(plan, Some(0)).required_bytes()
            } else {
                symmetric_bytes(plan, config)?
            },
            flags: SharedRunMemory::bytes_per_rank(plan.ranks, count_groups(plan)),
            scratch: needs.iter().map(ScratchNeeds::bytes).sum(),
            ports: memory_usage::max_port_bytes(plan, &executor.largest_buckets(), ConstantStorage::Read),
        })
    }

    fn prepare_program(&self, plan: &CheckedPlan, kernels: &CustomKernelRegistry) -> Result<PreparedProgram> {
        if plan.ranks != self.ports.plan().ranks {
            let expected = self.ports.plan().ranks;
            let plan_ranks = plan.ranks;
            return Err(RunError::Invalid(format!(
                "the session has {expected} ranks, the plan is for {plan_ranks}"
            )));
        }
        if self.config.callers > 0 {
            return Err(caller_memory_error());
        }
        if !self.config.extendable {
            return Err(RunError::Invalid("the session was not opened for several programs".into()));
        }
        expect_kernels(plan, kernels)?;
        let executor = Executor::new(plan, self.rank, kernels, exec_config(&self.config))?;
        let mut ports = SessionPorts::new(executor, (1, 0))?;
        let needs = ports.scratch_needs();
        let mut layout = self.layout.clone();
        // The last group is not a group of a plan.
        let groups = self.joined_rank()?.comm().control().groups().saturating_sub(1);
        layout.add_program(plan, Some(groups))?;
        let ordinary = match &self.ordinary_arena {
            None => return Err(arenas_released_error()),
            Some(arena) if arena.len() >= layout.ordinary_bytes() => arena.clone(),
            Some(_) => {
                Arc::new(MemorySegment::create_private("the ordinary arena", layout.ordinary_bytes())?)
            }
        };
        Ok(PreparedProgram { ports, needs, layout, ordinary })
    }

    /// Updates the placement of every program to the current layout of the session.
    fn update_placements(&mut self) -> Result<()> {
        self.next_resolved = None;
        if self.layout.is_open(self.selected_program) {
            self.ports.set_placement(self.layout.program_placement(self.selected_program))?;
        }
        for (number, parked) in self.parked.iter_mut().enumerate() {
            if let Some(parked) = parked {
                parked.resolved = None;
                parked.ports.set_placement(self.layout.program_placement(number))?;
            }
        }
        Ok(())
    }

    fn joined_rank(&self) -> Result<Arc<JoinedRank>> {
        self.joined_rank.clone().ok_or_else(session_ended_error)
    }

    fn prepare_next_run(&mut self) -> Result<PendingHostRun> {
        self.queue.expect_no_failure()?;
        let resolved = match &self.next_resolved {
            Some(resolved) => resolved.clone(),
            None => {
                let resolved = Arc::new(self.resolve_run()?);
                self.next_resolved.insert(resolved).clone()
            }
        };
        let loads = self.pending_loads(&resolved);
        let number = self.runs;
        self.runs += 1;
        let bucket = (self.layout.program_count() == 1).then(|| resolved.sized.program.bucket());
        Ok(PendingHostRun { number, resolved, bucket, loads })
    }

    fn resolve_run(&mut self) -> Result<ResolvedHostRun> {
        let sized = self.ports.sized_program()?.clone();
        let bound = &sized.program;
        self.ports.check_bound_memory()?;
        let mut inputs = Vec::with_capacity(bound.inputs.len());
        for i in 0..bound.inputs.len() {
            let memory = self.locate_port(Port::Input(i))?;
            self.ports.expect_data(i)?;
            let is_with_program = matches!(memory.storage, PortStorage::Program(_));
            inputs.push(if is_with_program { ByteSpan::NONE } else { range_span(memory.range) });
        }
        let outputs =
            (0..bound.outputs.len()).map(|k| Ok(range_span(self.locate_port(Port::Output(k))?.range)));
        let outputs = outputs.collect::<Result<_>>()?;
        let ordinary = self.ordinary_arena.clone().ok_or_else(arenas_released_error)?;
        let memory = RankMemory {
            ordinary: range_span(segment_range(&ordinary)),
            symmetric: range_span(self.symmetric_arena()?),
            inputs,
            outputs,
        };
        let segments = self.ports.session_memories().cloned().chain([ordinary]).collect();
        let confirms_success =
            sized.program.may_fail_on_one_rank(self.ports.plan().ranks, self.queue.exec.lanes);
        Ok(ResolvedHostRun { sized, memory, confirms_success, _segments: segments })
    }

    /// The parameters and constants that the run expects in the symmetric arena and that have not been copied
    /// there yet.
    fn pending_loads(&mut self, resolved: &ResolvedHostRun) -> Vec<(ByteSpan, usize)> {
        let ResolvedHostRun { sized: SizedProgram { program: bound, .. }, memory, .. } = resolved;
        let mut out = Vec::new();
        for (i, input) in bound.inputs.iter().enumerate() {
            let state = self.ports.state_mut(Port::Input(i));
            let is_pending = input.kind != InputKind::Argument && !state.is_loaded();
            let Some(offset) = input.fixed.filter(|_| is_pending) else { continue };
            state.set_loaded();
            let memory_span = memory.inputs[i];
            let from = if memory_span.ptr.is_null() {
                bound.constant_data(i).map(ByteSpan::from_slice)
            } else {
                Some(memory_span)
            };
            out.extend(from.map(|from| (ByteSpan { len: input.bytes.min(from.len), ..from }, offset)));
        }
        out
    }

    /// Refuses an access by the caller while runs may use the memory.
    fn expect_idle(&self, port: Port) -> Result<()> {
        if self.queue.is_idle()? { Ok(()) } else { Err(self.ports.busy_error(port)) }
    }

    /// Closes the session, once all runs have ended; other ranks may continue for a moment.
    fn leave_group(&mut self, leaving: LeaveMode) {
        self.queue.stop_worker();
        // The worker has ended: the session holds the only reference, unless the caller has one.
        if let Some(joined) = self.joined_rank.take().and_then(Arc::into_inner) {
            let _span = enter_rank_span(self.rank);
            tracing::info!(target: "symmc::session", runs = self.runs, ?leaving, "closing the session");
            joined.leave_session(ProgressRecording::All, self.runs, leaving);
        }
    }

    /// Waits a moment for peers that are still in a run that this rank has ended. They need nothing of this rank
    /// there, and would fail in another run than this rank.
    fn await_earlier_runs_of_peers(&self) {
        let Some(joined) = &self.joined_rank else { return };
        let control = joined.comm().control();
        let own = control.progress(self.rank);
        let ended = if own.running { own.run } else { self.runs };
        let is_late = |peer| {
            let progress = control.progress(peer);
            progress.running && progress.run < ended
        };
        let start = Instant::now();
        while !control.is_aborted()
            && start.elapsed() < MAX_WAIT_BEFORE_ABORT
            && (0..joined.comm().ranks()).any(is_late)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the session on all ranks, without waiting for others. `how` describes the way in which this rank
    /// leaves.
    fn abort_group(&mut self, how: String) {
        if let Some(joined) = self.joined_rank.take() {
            let _span = enter_rank_span(self.rank);
            tracing::warn!(target: "symmc::session", runs = self.runs, how, "ending the session on all ranks");
            // Ends the waits of a run in progress, so that the thread of the runs ends, too.
            let _ = joined.fail_run(RunError::Left { rank: self.rank, how });
            self.queue.stop_worker();
        }
    }
}

impl PortDevice for HostSession {
    type Memory = MemorySegment;

    fn ports(&mut self) -> &mut SessionPorts<MemorySegment> {
        &mut self.ports
    }

    fn symmetric_arena(&self) -> Result<DeviceRange> {
        let joined = self.joined_rank()?;
        let arena = joined.comm().arena();
        Ok(DeviceRange { address: arena.as_ptr().addr() as u64, bytes: arena.len() })
    }

    fn allocate_port_memory(
        &mut self,
        name: &str,
        bytes: usize,
        smaller: Option<Arc<MemorySegment>>,
    ) -> Result<MemorySegment> {
        let larger = MemorySegment::create_private(name, bytes)?;
        // Runs in progress may use the smaller segment, which holds the data too.
        if let Some(old) = smaller {
            // SAFETY: both are mapped for as many bytes; they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(old.as_ptr(), larger.as_ptr(), old.len()) };
        }
        Ok(larger)
    }
}

impl Drop for HostSession {
    fn drop(&mut self) {
        let is_idle = self.queue.is_idle().unwrap_or(true);
        if is_idle && self.queue.expect_no_failure().is_ok() && !std::thread::panicking() {
            // Peers may still be in a run that this rank has ended, as at the end of a program: they finish
            // it. A peer that begins or waits in another run gets an error at once.
            return self.leave_group(LeaveMode::Dropped);
        }
        let how =
            if is_idle { "ended without closing its session" } else { "ended its session during a run" };
        self.abort_group(how.to_string());
    }
}

impl DeviceSession for HostSession {
    fn set_sizes(&mut self, bindings: &SymbolBindings) -> Result<()> {
        self.ports.set_sizes(bindings)?;
        self.next_resolved = None;
        Ok(())
    }

    fn open_program(&mut self, plan: &CheckedPlan, kernels: &CustomKernelRegistry) -> Result<usize> {
        self.queue.wait_idle(self.rank, None)?;
        let joined = self.joined_rank()?;
        let prepared = self.prepare_program(plan, kernels);
        let proposals = joined.comm().exchange_bytes(&encode_proposal(plan, prepared.as_ref().err()));
        let agreed = check_proposals(&proposals.map_err(|error| joined.fail_run(error))?);
        // A rank that cannot open the program reports its own error.
        let PreparedProgram { ports, needs, layout, ordinary } = prepared?;
        agreed?;
        let number = layout.program_count() - 1;
        let _span = enter_rank_span(self.rank);
        tracing::info!(target: "symmc::session", program = number, "opened a program");
        self.parked.push(Some(ParkedProgram { ports, resolved: None }));
        self.layout = layout;
        self.ordinary_arena = Some(ordinary);
        self.queue.extend_scratch_needs(&needs);
        self.update_placements().map_err(|error| joined.fail_run(error))?;
        Ok(number)
    }

    fn switch_to_program(&mut self, program: usize) -> Result<()> {
        if program == self.selected_program {
            return Ok(());
        }
        let next = self.parked.get_mut(program).and_then(Option::take).ok_or_else(session_ended_error)?;
        let ports = std::mem::replace(&mut self.ports, next.ports);
        let resolved = std::mem::replace(&mut self.next_resolved, next.resolved);
        if self.layout.is_open(self.selected_program) {
            self.parked[self.selected_program] = Some(ParkedProgram { ports, resolved });
        }
        self.selected_program = program;
        Ok(())
    }

    fn close_program(&mut self, program: usize) -> Result<()> {
        self.queue.wait_idle(self.rank, None)?;
        self.layout.close_program(program);
        if let Some(parked) = self.parked.get_mut(program) {
            *parked = None;
        }
        Ok(())
    }

    fn resolved_program(&self) -> Result<&ResolvedProgram> {
        Ok(&self.ports.sized_program()?.program)
    }

    unsafe fn bind_port(&mut self, port: Port, memory: Option<DeviceRange>) -> Result<()> {
        self.ports.expect_port(port)?;
        if self.ports.state(port).binding() == memory {
            return Ok(());
        }
        let ordinary = self.ordinary_arena.as_ref().map(|s| ("the ordinary arena", segment_range(s)));
        let arena = self.symmetric_arena()?;
        let reserved = ordinary.into_iter().collect();
        self.ports.bind_memory(port, memory, Some(arena), reserved)?;
        self.next_resolved = None;
        Ok(())
    }

    fn device(&self) -> DeviceName {
        DeviceName::Host
    }

    fn allocate_memory(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>> {
        Ok(Arc::new(MemorySegment::create_private("memory of the caller", bytes)?))
    }

    fn allocate_symmetric(&mut self, bytes: usize) -> Result<Arc<dyn DeviceMemory>> {
        self.queue.wait_idle(self.rank, None)?;
        let joined = self.joined_rank()?;
        let rank = self.rank;
        let sizes = joined
            .comm()
            .exchange_bytes(&(bytes as u64).to_le_bytes())
            .map_err(|error| joined.fail_run(error))?;
        let range = self.ports.caller_arena().allocate_block(&sizes, rank)?;
        Ok(Arc::new(HostArenaBlock { arena: joined.comm().arena().clone(), range }))
    }

    fn share_tensor(&self, tensor: &Arc<Tensor>) -> Result<SharedTensor> {
        SharedTensor::on_host(tensor)
    }

    fn port_memory(&mut self, port: Port) -> Result<PortMemory> {
        let was_given = self.ports.state(port).has_data();
        let memory = self.expose_port(port)?;
        if self.ports.state(port).has_data() != was_given {
            self.next_resolved = None;
        }
        Ok(memory)
    }

    fn write_inputs(&mut self, inputs: &[(usize, InputData<'_>)]) -> Result<()> {
        for &(input, data) in inputs {
            self.expect_idle(Port::Input(input))?;
            let span = range_span(self.expose_input(input, data.size())?);
            self.next_resolved = None;
            match data {
                // SAFETY: the memory belongs to the session or is bound with as many bytes, no run is in
                // progress, and the data is a slice that nothing writes.
                InputData::Memory(bytes) => unsafe { std::ptr::copy(bytes.as_ptr(), span.ptr, bytes.len()) },
                InputData::Source(source) if span.len > 0 => {
                    // SAFETY: as above; nothing else uses the memory meanwhile.
                    source.read(0, unsafe { std::slice::from_raw_parts_mut(span.ptr, span.len) })?;
                }
                InputData::Source(_) => {}
            }
        }
        Ok(())
    }

    fn read_port(&mut self, port: Port, data: &mut [u8]) -> Result<()> {
        self.expect_idle(port)?;
        let memory = self.locate_port(port)?;
        self.ports.expect_bytes(port, data.len())?;
        let constant = match (port, memory.storage) {
            (Port::Input(i), PortStorage::Program(_)) => self.ports.sized_program()?.program.constant_data(i),
            _ => None,
        };
        match constant {
            Some(bytes) => data.copy_from_slice(bytes),
            // SAFETY: as for writing; the slice belongs to the caller alone.
            None => unsafe { std::ptr::copy(range_span(memory.range).ptr, data.as_mut_ptr(), data.len()) },
        }
        Ok(())
    }

    fn enqueue(&mut self, stream: Option<RawStream>) -> Result<()> {
        if stream.is_some() {
            return Err(RunError::Invalid(
                "a stream was given, but sessions of the host have no streams".into(),
            ));
        }
        // A run that has a number must be executed, so the worker is started first.
        self.queue.ensure_worker(&self.joined_rank()?)?;
        let pending = self.prepare_next_run()?;
        self.queue.enqueue(pending)
    }

    fn run(&mut self) -> Result<()> {
        if !self.queue.is_idle()? {
            self.enqueue(None)?;
            return self.queue.wait_idle(self.rank, None);
        }
        let pending = self.prepare_next_run()?;
        let joined = self.joined_rank()?;
        self.queue.run_on_this_thread(&joined, &pending)
    }

    fn poll(&mut self) -> Result<bool> {
        self.queue.is_idle()
    }

    fn wait(&mut self, limit: Duration) -> Result<()> {
        self.queue.wait_idle(self.rank, Some(limit))
    }

    fn release_arenas(&mut self) -> Result<()> {
        if !self.queue.is_idle()? {
            return Err(run_in_progress_error());
        }
        self.ports.expect_no_caller_memory()?;
        let joined = self.joined_rank()?;
        joined.comm().exchange_bytes(&[0]).map_err(|error| joined.fail_run(error))?;
        self.ordinary_arena = None;
        self.next_resolved = None;
        self.queue.free_scratch();
        joined.comm().arena().discard_pages()?;
        self.ports.invalidate_symmetric();
        for parked in self.parked.iter_mut().flatten() {
            parked.resolved = None;
            parked.ports.invalidate_symmetric();
        }
        joined.comm().exchange_bytes(&[0]).map(drop).map_err(|error| joined.fail_run(error))
    }

    fn resume_arenas(&mut self) -> Result<()> {
        let joined = self.joined_rank()?;
        if self.ordinary_arena.is_none() {
            let bytes = self.layout.ordinary_bytes();
            self.ordinary_arena = Some(Arc::new(MemorySegment::create_private("the ordinary arena", bytes)?));
        }
        joined.comm().exchange_bytes(&[0]).map(drop).map_err(|error| joined.fail_run(error))
    }

    fn memory_usage(&self) -> MemoryUsage {
        let symmetric = if self.config.extendable {
            self.layout.required_bytes()
        } else {
            self.symmetric_arena().map_or(0, |arena| arena.bytes)
        };
        let parked = self.parked.iter().flatten().flat_map(|parked| parked.ports.session_memories());
        MemoryUsage {
            ordinary: self.ordinary_arena.as_ref().map_or(0, |s| s.len()),
            symmetric: if self.ordinary_arena.is_some() { symmetric } else { 0 },
            flags: self.joined_rank.as_ref().map_or(0, |joined| {
                if self.config.extendable {
                    // Nothing touches the flags of groups that no program uses.
                    SharedRunMemory::bytes_per_rank(joined.comm().ranks(), self.layout.group_count() + 1)
                } else {
                    joined.comm().shared_bytes()
                }
            }),
            scratch: self.queue.scratch_bytes(),
            ports: self.ports.session_memories().chain(parked).map(|s| s.len()).sum(),
        }
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.queue.wait_idle(self.rank, None)?;
        self.leave_group(LeaveMode::Closed);
        Ok(())
    }

    fn abort(mut self: Box<Self>, reason: &str) {
        self.await_earlier_runs_of_peers();
        self.abort_group(format!("aborted its session: {reason}"));
    }
}

struct PreparedProgram {
    ports: SessionPorts<MemorySegment>,
    needs: [ScratchNeeds; 2],
    layout: SessionLayout,
    ordinary: Arc<MemorySegment>,
}

fn caller_memory_error() -> RunError {
    RunError::Invalid(
        "symmetric memory for the caller: a session of several programs does not provide it".into(),
    )
}

/// The configuration of a rank's walk of steps.
fn exec_config(config: &RankConfig) -> ExecConfig {
    let lanes = if config.chaos.is_some() { Lanes::Threads } else { Lanes::Inline };
    ExecConfig { lanes, timing: Timing::Off }
}

fn arena_size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|e| RunError::system(format!("an arena of {bytes} bytes"), e))
}

fn allocate_ordinary(plan: &Plan) -> Result<Arc<MemorySegment>> {
    Ok(Arc::new(MemorySegment::create_private("the ordinary arena", arena_size(plan.arenas.ordinary)?)?))
}

/// Memory of the caller in the symmetric arena.
#[derive(Debug)]
struct HostArenaBlock {
    arena: Arc<MemorySegment>,
    range: Range<usize>,
}

impl DeviceMemory for HostArenaBlock {
    fn device(&self) -> DeviceName {
        DeviceName::Host
    }

    fn range(&self) -> DeviceRange {
        let arena_range = DeviceMemory::range(&*self.arena);
        DeviceRange { address: arena_range.address + self.range.start as u64, bytes: self.range.len() }
    }

    unsafe fn write(&self, at: usize, data: &[u8]) -> Result<()> {
        // SAFETY: by the caller; the part lies in the arena.
        unsafe { self.arena.write(self.range.start + at, data) }
    }

    unsafe fn read(&self, at: usize, data: &mut [u8]) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.arena.read(self.range.start + at, data) }
    }
}

fn segment_range(segment: &MemorySegment) -> DeviceRange {
    DeviceRange { address: segment.as_ptr().addr() as u64, bytes: segment.len() }
}

fn range_span(extent: DeviceRange) -> ByteSpan {
    ByteSpan { ptr: std::ptr::with_exposed_provenance_mut(extent.address as usize), len: extent.bytes }
}
