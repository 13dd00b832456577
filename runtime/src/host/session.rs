//! A session of one rank on the host: runs go from memory to memory of this process, peers are reached by shared memory.
//!
//! A run is put on a queue that a thread of the session works off. Who waits for it anyway runs it in the own thread, where
//! nothing is in progress.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symmc_check::CheckedPlan;
use symmc_control::{Domain, Group, Leaving, Recorded, Segment, Term, enter_rank_span};
use symmc_ir::{Bindings, InputKind, Tensor};
use symmc_plan::{Plan, ReadPlan};

use super::config::{HostConfig, arena_size, count_groups};
use super::queue::{PendingRun, ResolvedRun, RunQueue};
use super::session_rank::SessionRank;
use crate::custom::Registry;
use crate::error::{Result, RunError};
use crate::exec::{Bound, Executor, InputData, RankMemory, Span, unread_plan};
use crate::kernels::Needs;
use crate::session::budget::{self, Constants};
use crate::session::{
    Arrangement, DeviceMemory, DeviceName, DeviceSession, Extent, Kept, Port, PortDevice, PortMemory, Ports,
    RawStream, SizedProgram, Storage, Taken, ended, expect_agreement, gave_back, in_progress, proposal,
};

/// A plan on one rank of the host.
pub struct HostSession {
    /// `None` once the session has ended.
    joined: Option<Arc<SessionRank>>,
    rank: u32,
    ports: Ports<Segment>,
    ordinary: Option<Arc<Segment>>,
    /// What the next run takes, unless something was set since.
    resolved: Option<Arc<ResolvedRun>>,
    runs: u64,
    queue: RunQueue,
    /// The program that calls are about, whose inputs and outputs are those above.
    program: usize,
    /// The other programs, by number.
    parked: Vec<Option<ParkedProgram>>,
    arrangement: Arrangement,
    config: HostConfig,
}

/// A program of the session while calls are about another one.
struct ParkedProgram {
    ports: Ports<Segment>,
    resolved: Option<Arc<ResolvedRun>>,
}

impl HostSession {
    /// Opens the session of a rank; returns when all ranks of the group have, and run the same. `terms` is what else must
    /// be alike. Fails if the group has another number of ranks, an op has no kernel, or the other ranks do not come or
    /// run something else.
    pub fn open(
        plan: &CheckedPlan,
        group: &Group,
        kernels: &Registry,
        config: &HostConfig,
        terms: Vec<Term>,
    ) -> Result<HostSession> {
        let (_span, started) = (enter_rank_span(group.rank()), Instant::now());
        expect_kernels(plan, kernels).map_err(|error| group.decline(error))?;
        let joined = Arc::new(SessionRank::for_session(plan, group, config, terms)?);
        let opened = HostSession::open_joined(&joined, plan, kernels, config);
        let session = opened.and_then(|session| joined.start().map(|()| session));
        let session = session.map_err(|error| joined.fail(error))?;
        let (ranks, elapsed) = (plan.ranks, started.elapsed());
        let (symmetric, ordinary) = (plan.arenas.symmetric, plan.arenas.ordinary);
        tracing::info!(target: "symmc::session", ranks, symmetric, ordinary, ?elapsed, "opened a session on the host");
        Ok(session)
    }

    /// Opens a session of a plan that was checked on a rank that has joined the others, and has yet to [start]. A session leaves
    /// the others when it ends, unless its caller has the rank too.
    ///
    /// [start]: SessionRank::start
    ///
    /// Fails if an op has no kernel, or there is no memory.
    pub fn open_joined(
        joined: &Arc<SessionRank>,
        plan: &ReadPlan,
        kernels: &Registry,
        config: &HostConfig,
    ) -> Result<HostSession> {
        let executor = Executor::new(plan, joined.comm().rank(), kernels, config.exec())?;
        let mut ports = Ports::new(executor, (1, config.callers))?;
        let room = config.extendable.then(|| Arrangement::room_for(plan));
        if room.is_some() && config.callers > 0 {
            return Err(no_callers());
        }
        let arrangement = Arrangement::new(plan, room);
        if room.is_some() {
            ports.place(arrangement.placement(0))?;
        }
        let queue = RunQueue::new(config.exec(), ports.needs());
        Ok(HostSession {
            joined: Some(joined.clone()),
            rank: joined.comm().rank(),
            ports,
            ordinary: Some(ordinary(plan)?),
            resolved: None,
            runs: 0,
            queue,
            program: 0,
            parked: vec![None],
            arrangement,
            config: config.clone(),
        })
    }

    /// What the session of a rank will take: at most, for what depends on sizes and on what the caller lends. Fails if
    /// the plan has no such rank, or an op has no kernel.
    pub fn budget(plan: &CheckedPlan, rank: u32, kernels: &Registry, config: &HostConfig) -> Result<Taken> {
        expect_kernels(plan, kernels)?;
        let mut executor = Executor::new(plan, rank, kernels, config.exec())?;
        let needs = executor.needs();
        Ok(Taken {
            ordinary: arena_size(plan.arenas.ordinary)?,
            symmetric: match config.extendable {
                true => Arrangement::new(plan, Some(0)).needed(),
                false => config.arena(plan)?,
            },
            flags: Domain::part(plan.ranks, count_groups(plan)),
            scratch: needs.iter().map(Needs::bytes).sum(),
            held: budget::held(plan, &executor.largest(), Constants::Read),
        })
    }

    fn prepare_program(&self, plan: &CheckedPlan, kernels: &Registry) -> Result<NewProgram> {
        if plan.ranks != self.ports.plan().ranks {
            let (expected, found) = (self.ports.plan().ranks, plan.ranks);
            return Err(RunError::Invalid(format!(
                "the session has {expected} ranks, the plan is for {found}"
            )));
        }
        if self.config.callers > 0 {
            return Err(no_callers());
        }
        if !self.config.extendable {
            return Err(RunError::Invalid("the session was not opened for several programs".into()));
        }
        expect_kernels(plan, kernels)?;
        let executor = Executor::new(plan, self.rank, kernels, self.config.exec())?;
        let mut ports = Ports::new(executor, (1, 0))?;
        let needs = ports.needs();
        let mut arrangement = self.arrangement.clone();
        // The last group is no group of a plan.
        let groups = self.joined()?.comm().control().groups().saturating_sub(1);
        arrangement.add(plan, Some(groups))?;
        let ordinary = match &self.ordinary {
            None => return Err(gave_back()),
            Some(there) if there.len() >= arrangement.ordinary() => there.clone(),
            Some(_) => Arc::new(Segment::private("the ordinary arena", arrangement.ordinary())?),
        };
        Ok(NewProgram { ports, needs, arrangement, ordinary })
    }

    /// Has every program lie where the session has it now.
    fn place_programs(&mut self) -> Result<()> {
        self.resolved = None;
        if self.arrangement.is_open(self.program) {
            self.ports.place(self.arrangement.placement(self.program))?;
        }
        for (number, parked) in self.parked.iter_mut().enumerate() {
            if let Some(parked) = parked {
                parked.resolved = None;
                parked.ports.place(self.arrangement.placement(number))?;
            }
        }
        Ok(())
    }

    fn joined(&self) -> Result<Arc<SessionRank>> {
        self.joined.clone().ok_or_else(ended)
    }

    fn next_run(&mut self) -> Result<PendingRun> {
        self.queue.failed()?;
        let resolved = match &self.resolved {
            Some(resolved) => resolved.clone(),
            None => {
                let resolved = Arc::new(self.resolve()?);
                self.resolved.insert(resolved).clone()
            }
        };
        let loads = self.loads(&resolved);
        let number = self.runs;
        self.runs += 1;
        let bucket = (self.arrangement.count() == 1).then(|| resolved.sized.bound.bucket());
        Ok(PendingRun { number, resolved, bucket, loads })
    }

    fn resolve(&mut self) -> Result<ResolvedRun> {
        let sized = self.ports.sized()?.clone();
        let bound = &sized.bound;
        self.ports.check_bound_memory()?;
        let mut inputs = Vec::with_capacity(bound.inputs.len());
        for i in 0..bound.inputs.len() {
            let memory = self.locate(Port::Input(i))?;
            self.ports.expect_data(i)?;
            let is_with_program = matches!(memory.storage, Storage::Program(_));
            inputs.push(if is_with_program { Span::NONE } else { span(memory.extent) });
        }
        let outputs = (0..bound.outputs.len()).map(|k| Ok(span(self.locate(Port::Output(k))?.extent)));
        let outputs = outputs.collect::<Result<_>>()?;
        let ordinary = self.ordinary.clone().ok_or_else(gave_back)?;
        let (ordinary_span, symmetric) = (span(extent(&ordinary)), span(self.arena()?));
        let memory = RankMemory { ordinary: ordinary_span, symmetric, inputs, outputs };
        let segments = self.ports.memories().cloned().chain([ordinary]).collect();
        let agrees = sized.bound.may_fail_alone(self.ports.plan().ranks, self.queue.exec.lanes);
        Ok(ResolvedRun { sized, memory, agrees, _segments: segments })
    }

    /// The parameters and constants that the run has to find in the symmetric arena and that are not there yet.
    fn loads(&mut self, resolved: &ResolvedRun) -> Vec<(Span, usize)> {
        let ResolvedRun { sized: SizedProgram { bound, .. }, memory, .. } = resolved;
        let mut out = Vec::new();
        for (i, input) in bound.inputs.iter().enumerate() {
            let once = self.ports.state(Port::Input(i)).loaded && !self.ports.is_renewed(i);
            let Some(offset) = input.fixed.filter(|_| !once && input.kind != InputKind::Argument) else {
                continue;
            };
            self.ports.state_mut(Port::Input(i)).loaded = true;
            let given = memory.inputs[i];
            let constant = || bound.constant(i).map(Span::of_const);
            let from = if given.ptr.is_null() { constant() } else { Some(given) };
            out.extend(from.map(|from| (Span { len: input.bytes.min(from.len), ..from }, offset)));
        }
        out
    }

    /// Refuses an access by the caller while runs may touch the memory.
    fn expect_idle(&self, port: Port) -> Result<()> {
        if self.queue.idle()? { Ok(()) } else { Err(self.ports.busy(port)) }
    }

    /// Ends the session in order, once all runs have ended; others may go on for a moment.
    fn end(&mut self, leaving: Leaving) {
        self.queue.end();
        // The worker has ended: nobody else has it, unless it stays with the caller.
        if let Some(joined) = self.joined.take().and_then(Arc::into_inner) {
            let _span = enter_rank_span(self.rank);
            tracing::info!(target: "symmc::session", runs = self.runs, ?leaving, "closing the session");
            joined.leave(Recorded::All, self.runs, leaving);
        }
    }

    /// Ends the session on all ranks, without a wait for others. `how` this rank leaves.
    fn abandon(&mut self, how: String) {
        if let Some(joined) = self.joined.take() {
            let _span = enter_rank_span(self.rank);
            tracing::warn!(target: "symmc::session", runs = self.runs, how, "ending the session on all ranks");
            // Ends the waits of a run in progress, so that the thread of the runs ends, too.
            let _ = joined.fail(RunError::Left { rank: self.rank, how });
            self.queue.end();
        }
    }
}

impl PortDevice for HostSession {
    type Memory = Segment;

    fn ports(&mut self) -> &mut Ports<Segment> {
        &mut self.ports
    }

    fn arena(&self) -> Result<Extent> {
        let joined = self.joined()?;
        let arena = joined.comm().arena();
        Ok(Extent { address: arena.as_ptr().addr() as u64, bytes: arena.len() })
    }

    fn allocate_port(&mut self, name: &str, bytes: usize, smaller: Option<Arc<Segment>>) -> Result<Segment> {
        let larger = Segment::private(name, bytes)?;
        // Runs in progress may use the smaller one, which holds the data too.
        if let Some(old) = smaller {
            // SAFETY: both are mapped for as many bytes; they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(old.as_ptr(), larger.as_ptr(), old.len()) };
        }
        Ok(larger)
    }
}

impl Drop for HostSession {
    fn drop(&mut self) {
        let is_idle = self.queue.idle().unwrap_or(true);
        if is_idle && self.queue.failed().is_ok() && !std::thread::panicking() {
            // Peers may still be in a run that this rank has ended, as at the end of a program: they finish it. A peer that
            // begins or waits in another run gets an error at once.
            return self.end(Leaving::Dropped);
        }
        let how =
            if is_idle { "ended without closing its session" } else { "ended its session during a run" };
        self.abandon(how.to_string());
    }
}

impl DeviceSession for HostSession {
    fn set(&mut self, bindings: &Bindings) -> Result<()> {
        self.ports.set(bindings)?;
        self.resolved = None;
        Ok(())
    }

    fn open_program(&mut self, plan: &CheckedPlan, kernels: &Registry) -> Result<usize> {
        self.queue.wait(self.rank, None)?;
        let (joined, made) = (self.joined()?, self.prepare_program(plan, kernels));
        let said = joined.comm().exchange(&proposal(plan, made.as_ref().err()));
        let agreed = expect_agreement(&said.map_err(|error| joined.fail(error))?);
        let NewProgram { ports, needs, arrangement, ordinary } = made?;
        agreed?;
        let number = arrangement.count() - 1;
        let _span = enter_rank_span(self.rank);
        tracing::info!(target: "symmc::session", program = number, "opened a program");
        self.parked.push(Some(ParkedProgram { ports, resolved: None }));
        (self.arrangement, self.ordinary) = (arrangement, Some(ordinary));
        self.queue.serve(&needs);
        self.place_programs().map_err(|error| joined.fail(error))?;
        Ok(number)
    }

    fn select(&mut self, program: usize) -> Result<()> {
        if program == self.program {
            return Ok(());
        }
        let next = self.parked.get_mut(program).and_then(Option::take).ok_or_else(ended)?;
        let ports = std::mem::replace(&mut self.ports, next.ports);
        let resolved = std::mem::replace(&mut self.resolved, next.resolved);
        if self.arrangement.is_open(self.program) {
            self.parked[self.program] = Some(ParkedProgram { ports, resolved });
        }
        self.program = program;
        Ok(())
    }

    fn close_program(&mut self, program: usize) -> Result<()> {
        self.queue.wait(self.rank, None)?;
        self.arrangement.close(program);
        if let Some(parked) = self.parked.get_mut(program) {
            *parked = None;
        }
        Ok(())
    }

    fn bound(&self) -> Result<&Bound> {
        Ok(&self.ports.sized()?.bound)
    }

    unsafe fn lend(&mut self, port: Port, memory: Option<Extent>) -> Result<()> {
        self.ports.expect(port)?;
        if self.ports.state(port).bound == memory {
            return Ok(());
        }
        let ordinary = self.ordinary.as_ref().map(|s| ("the ordinary arena", extent(s)));
        let (arena, reserved) = (self.arena()?, ordinary.into_iter().collect());
        self.ports.bind(port, memory, Some(arena), reserved)?;
        self.resolved = None;
        Ok(())
    }

    fn device(&self) -> DeviceName {
        DeviceName::Host
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>> {
        Ok(Arc::new(Segment::private("memory of the caller", bytes)?))
    }

    fn allocate_symmetric(&mut self, bytes: usize) -> Result<Arc<dyn DeviceMemory>> {
        self.queue.wait(self.rank, None)?;
        let (joined, rank) = (self.joined()?, self.rank);
        let asked =
            joined.comm().exchange(&(bytes as u64).to_le_bytes()).map_err(|error| joined.fail(error))?;
        let range = self.ports.callers().take(&asked, rank)?;
        Ok(Arc::new(PartOfArena { arena: joined.comm().arena_kept().clone(), range }))
    }

    fn keep(&self, tensor: &Arc<Tensor>) -> Result<Kept> {
        Kept::on_host(tensor)
    }

    fn memory_of(&mut self, port: Port) -> Result<PortMemory> {
        let was_given = self.ports.state(port).given;
        let memory = self.expose(port)?;
        if self.ports.state(port).given != was_given {
            self.resolved = None;
        }
        Ok(memory)
    }

    fn write_all(&mut self, inputs: &[(usize, InputData<'_>)]) -> Result<()> {
        for &(input, data) in inputs {
            self.expect_idle(Port::Input(input))?;
            let to = span(self.expose_for(input, data.size())?);
            self.resolved = None;
            match data {
                // SAFETY: the memory is the session's or bound for as many bytes, no run is in progress, and the data are a slice
                // that nobody writes.
                InputData::Memory(bytes) => unsafe { std::ptr::copy(bytes.as_ptr(), to.ptr, bytes.len()) },
                InputData::Source(source) if to.len > 0 => {
                    // SAFETY: as above; nobody else has the memory meanwhile.
                    source.read(0, unsafe { std::slice::from_raw_parts_mut(to.ptr, to.len) })?;
                }
                InputData::Source(_) => {}
            }
        }
        Ok(())
    }

    fn read(&mut self, port: Port, data: &mut [u8]) -> Result<()> {
        self.expect_idle(port)?;
        let memory = self.locate(port)?;
        self.ports.expect_bytes(port, data.len())?;
        let constant = match (port, memory.storage) {
            (Port::Input(i), Storage::Program(_)) => self.ports.sized()?.bound.constant(i),
            _ => None,
        };
        match constant {
            Some(bytes) => data.copy_from_slice(bytes),
            // SAFETY: as for writing; the slice is the caller's alone.
            None => unsafe { std::ptr::copy(span(memory.extent).ptr, data.as_mut_ptr(), data.len()) },
        }
        Ok(())
    }

    fn enqueue(&mut self, stream: Option<RawStream>) -> Result<()> {
        if stream.is_some() {
            return Err(RunError::Invalid("a stream was given: sessions of the host have none".into()));
        }
        // A run that has a number is done.
        self.queue.prepare(&self.joined()?)?;
        let pending = self.next_run()?;
        self.queue.put(pending)
    }

    fn run(&mut self) -> Result<()> {
        if !self.queue.idle()? {
            self.enqueue(None)?;
            return self.queue.wait(self.rank, None);
        }
        let (pending, joined) = (self.next_run()?, self.joined()?);
        self.queue.run_here(&joined, &pending)
    }

    fn poll(&mut self) -> Result<bool> {
        self.queue.idle()
    }

    fn wait(&mut self, limit: Duration) -> Result<()> {
        self.queue.wait(self.rank, Some(limit))
    }

    fn release(&mut self) -> Result<()> {
        if !self.queue.idle()? {
            return Err(in_progress());
        }
        self.ports.expect_no_callers()?;
        let joined = self.joined()?;
        joined.comm().exchange(&[0]).map_err(|error| joined.fail(error))?;
        self.ordinary = None;
        self.resolved = None;
        self.queue.free_scratch();
        joined.comm().arena().forget()?;
        self.ports.lose_symmetric();
        for parked in self.parked.iter_mut().flatten() {
            parked.resolved = None;
            parked.ports.lose_symmetric();
        }
        joined.comm().exchange(&[0]).map(drop).map_err(|error| joined.fail(error))
    }

    fn resume(&mut self) -> Result<()> {
        let joined = self.joined()?;
        if self.ordinary.is_none() {
            let bytes = self.arrangement.ordinary();
            self.ordinary = Some(Arc::new(Segment::private("the ordinary arena", bytes)?));
        }
        joined.comm().exchange(&[0]).map(drop).map_err(|error| joined.fail(error))
    }

    fn taken(&self) -> Taken {
        let symmetric = match self.config.extendable {
            true => self.arrangement.needed(),
            false => self.arena().map_or(0, |arena| arena.bytes),
        };
        let parked = self.parked.iter().flatten().flat_map(|parked| parked.ports.memories());
        Taken {
            ordinary: self.ordinary.as_ref().map_or(0, |s| s.len()),
            symmetric: if self.ordinary.is_some() { symmetric } else { 0 },
            flags: self.joined.as_ref().map_or(0, |joined| match self.config.extendable {
                // Nothing touches the flags of groups that no program has.
                true => Domain::part(joined.comm().ranks(), self.arrangement.groups() + 1),
                false => joined.comm().part(),
            }),
            scratch: self.queue.scratch_bytes(),
            held: self.ports.memories().chain(parked).map(|s| s.len()).sum(),
        }
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.queue.wait(self.rank, None)?;
        self.end(Leaving::Closed);
        Ok(())
    }

    fn abort(mut self: Box<Self>, reason: &str) {
        self.abandon(format!("aborted its session: {reason}"));
    }
}

struct NewProgram {
    ports: Ports<Segment>,
    needs: [Needs; 2],
    arrangement: Arrangement,
    ordinary: Arc<Segment>,
}

fn no_callers() -> RunError {
    RunError::Invalid("symmetric memory for the caller: a session of several programs has none".into())
}

/// Whether the host runs every node of a plan. Asked when the plan is made for the host; what passes here is refused by no rank.
pub fn expect_kernels(plan: &ReadPlan, kernels: &Registry) -> Result<()> {
    plan.programs().try_for_each(|program| kernels.check(&program.map_err(unread_plan)?.graph))
}

fn ordinary(plan: &Plan) -> Result<Arc<Segment>> {
    Ok(Arc::new(Segment::private("the ordinary arena", arena_size(plan.arenas.ordinary)?)?))
}

/// Memory of the caller in the symmetric arena.
#[derive(Debug)]
struct PartOfArena {
    arena: Arc<Segment>,
    range: Range<usize>,
}

impl DeviceMemory for PartOfArena {
    fn device(&self) -> DeviceName {
        DeviceName::Host
    }

    fn extent(&self) -> Extent {
        let all = DeviceMemory::extent(&*self.arena);
        Extent { address: all.address + self.range.start as u64, bytes: self.range.len() }
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

fn extent(segment: &Segment) -> Extent {
    Extent { address: segment.as_ptr().addr() as u64, bytes: segment.len() }
}

fn span(extent: Extent) -> Span {
    Span { ptr: std::ptr::with_exposed_provenance_mut(extent.address as usize), len: extent.bytes }
}
