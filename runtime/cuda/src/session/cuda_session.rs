//! A session of one rank on its GPU: its state, from opening to end.

use std::sync::Arc;
use std::time::Instant;

use symmc_check::CheckedPlan;
use symmc_control::{
    Group, JoinedRank, LeaveMode, ProgressRecording, RankCommunicator, RankConfig, enter_rank_span,
};
use symmc_runtime::RunError;
use symmc_runtime::error::session_ended_error;
use symmc_runtime::exec::{CustomKernelRegistry, ExecConfig, Executor};
use symmc_runtime::job::SessionRequest;
use symmc_runtime::session::join::join_session;
use symmc_runtime::session::{Port, SessionLayout, SessionPorts, arenas_released_error};

use super::context::{ContextSizes, ExecutionContext};
use super::gpu::{ALIGN, GpuConfig};
use super::lru_cache::LruCache;
use super::peer_watch::PeerWatch;
use super::pending_runs::PendingRuns;
use super::recording::Recording;
use crate::codegen::unsupported::check_supported;
use crate::device::driver::{CallersContext, Device, DeviceBuffer, Event, GraphCopy, RelaxedCaptureMode};
use crate::error::Result;
use crate::program::ProgramChoices;

pub struct CudaSession {
    pub(super) last_run: LastRun,
    /// `None` while arenas are released, and after the session has ended.
    pub(super) context: Option<ExecutionContext>,
    pub(super) choices: LruCache<Arc<str>, ProgramChoices>,
    /// `None` after the session has ended.
    pub(super) joined_rank: Option<Arc<JoinedRank>>,
    pub(super) gpu: GpuConfig,
    pub(super) config: RankConfig,
    pub(super) ports: SessionPorts<DeviceBuffer>,
    pub(super) pending_runs: PendingRuns,
    pub(super) runs: u64,
    pub(super) failure: Option<RunError>,
    /// When a peer was found to have left while runs were in progress.
    pub(super) peer_left_since: Option<Instant>,
    pub(super) device: Arc<Device>,
    /// The selected program: the inputs, outputs and last run above are its own.
    pub(super) program: usize,
    /// The other programs, by number.
    pub(super) parked: Vec<Option<ParkedProgram>>,
    pub(super) arrangement: SessionLayout,
}

/// A program of the session while another one is selected.
pub(super) struct ParkedProgram {
    pub ports: SessionPorts<DeviceBuffer>,
    pub last: LastRun,
}

/// The cached resolution of a program's last run, for its next run.
pub(super) enum LastRun {
    /// Nothing is cached. All ports are resolved again.
    Unknown,
    /// The next run uses this recording again.
    Same(Arc<Recording>),
    /// The caller has since bound other memory for these ports. Only these ports are resolved again.
    Rebound(Arc<Recording>, Vec<Port>),
}

impl LastRun {
    /// The recording that the next run uses, if it is known.
    pub fn recording(&self) -> Option<&Arc<Recording>> {
        match self {
            LastRun::Same(recording) => Some(recording),
            LastRun::Unknown | LastRun::Rebound(..) => None,
        }
    }

    /// Notes that the caller bound other memory for a port.
    pub fn rebind(&mut self, port: Port) {
        match self {
            LastRun::Unknown => {}
            LastRun::Same(recording) => *self = LastRun::Rebound(recording.clone(), vec![port]),
            LastRun::Rebound(_, ports) if ports.contains(&port) => {}
            LastRun::Rebound(_, ports) => ports.push(port),
        }
    }
}

// SAFETY: handles of the driver and of the vendor's libraries may be used from any thread, one at a time.
unsafe impl Send for CudaSession {}

impl CudaSession {
    /// Opens the session of a rank. Returns when all ranks of the group have opened theirs with the same
    /// plan. Fails if the group has another number of ranks, GPUs cannot run a step, there is no such GPU, a
    /// library or memory is missing, or the other ranks do not come or run another plan. GPUs use only the
    /// limit, the chaos seed and the caller's symmetric memory of `config`.
    pub fn open(
        plan: &CheckedPlan,
        group: &Group,
        gpu: &GpuConfig,
        config: &RankConfig,
    ) -> Result<CudaSession, RunError> {
        let _span = enter_rank_span(group.rank());
        let started = Instant::now();
        let opened = check_supported(plan, &[]).and_then(|()| {
            let caller = CallersContext::keep()?;
            let device = Device::open(gpu.gpu_of_rank(group.rank(), group.ranks())?)?;
            let terms = gpu.join_terms(&device)?;
            Ok((caller, device, terms))
        });
        let (_caller, device, terms) = opened.map_err(|error| group.decline(error))?;
        let joining = RankConfig { chaos: None, extendable: false, ..config.clone() };
        let joined = Arc::new(join_session(plan, group, &joining, terms)?);
        let comm = joined.comm();
        let executor = Executor::new(plan, comm.rank(), &CustomKernelRegistry::new(), ExecConfig::default());
        let built = executor.and_then(|executor| {
            let session = CudaSession::build(executor, gpu, config, device)?;
            let sizes = ContextSizes::for_plan(plan, comm.rank()).with_callers(plan, config.callers)?;
            session.with_context(&sizes, comm)
        });
        let ready = built.and_then(|session| joined.start().map(|()| session));
        let mut session = ready.map_err(|error| joined.fail_run(error))?;
        session.joined_rank = Some(joined);
        let symmetric = plan.arenas.symmetric;
        let ordinary = plan.arenas.ordinary;
        tracing::info!(target: "symmc::session", gpu = session.device.ordinal(), symmetric, ordinary, elapsed = ?started.elapsed(), "opened a session on a GPU");
        Ok(session)
    }

    /// Opens a session for these sizes only, on a rank that has joined the others but has not
    /// [started][start]. The session leaves the group when it ends, unless its caller also holds the rank.
    /// All ranks call this together.
    ///
    /// [start]: JoinedRank::start
    ///
    /// Fails if GPUs cannot run a step, there is no such GPU, a library or memory is missing, or a peer failed.
    pub fn open_joined(request: &SessionRequest<'_>, gpu: &GpuConfig) -> Result<CudaSession, RunError> {
        let SessionRequest { rank: joined, plan, bindings, config } = *request;
        let comm = joined.comm();
        let _caller = CallersContext::keep()?;
        let device = Device::open(gpu.gpu_of_rank(comm.rank(), comm.ranks())?)?;
        let executor = Executor::new(plan, comm.rank(), &CustomKernelRegistry::new(), ExecConfig::default())?;
        let mut session = CudaSession::build(executor, gpu, config, device)?;
        session.ports.set_sizes(bindings)?;
        let sizes = ContextSizes::for_bound(&session.ports.sized_program()?.program);
        let mut session = session.with_context(&sizes, comm)?;
        session.joined_rank = Some(joined.clone());
        Ok(session)
    }

    /// Builds a session without an execution context and before it joins a group.
    pub(super) fn build(
        executor: Executor,
        gpu: &GpuConfig,
        config: &RankConfig,
        device: Arc<Device>,
    ) -> Result<CudaSession, RunError> {
        let arrangement = SessionLayout::new(executor.plan(), None);
        let ports = SessionPorts::new(executor, (ALIGN, config.callers))?;
        Ok(CudaSession {
            last_run: LastRun::Unknown,
            context: None,
            choices: LruCache::new(gpu.cached_recordings),
            joined_rank: None,
            gpu: gpu.clone(),
            config: config.clone(),
            ports,
            pending_runs: PendingRuns::new(Event::new()?),
            runs: 0,
            failure: None,
            peer_left_since: None,
            device,
            program: 0,
            parked: vec![None],
            arrangement,
        })
    }

    pub(super) fn with_context(
        mut self,
        sizes: &ContextSizes,
        comm: &RankCommunicator,
    ) -> Result<CudaSession, RunError> {
        self.context = Some(self.make_context(sizes, comm)?);
        Ok(self)
    }

    /// Allocates the execution context; all ranks call this together.
    pub(super) fn make_context(
        &self,
        sizes: &ContextSizes,
        comm: &RankCommunicator,
    ) -> Result<ExecutionContext> {
        let mut context = ExecutionContext::new(sizes, comm, &self.device, &self.gpu, &self.config)?;
        if comm.ranks() > 1 {
            context.watch = Some(PeerWatch::start(comm.memory(), &context.resources.status));
        }
        Ok(context)
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The copies in the graph of the last run, with their recorded addresses; none if something was set or
    /// bound since. Small programs are enqueued piece by piece, at other addresses than those of their graph.
    pub fn copies(&self) -> Result<Vec<GraphCopy>, RunError> {
        Ok(self.last_run.recording().map_or(Ok(vec![]), |recording| recording.copies())?)
    }

    /// Makes the context of the GPU current. Until the result is dropped, a capture on this thread records
    /// only work that is enqueued on the caller's stream.
    pub(super) fn enter_device(&self) -> Result<(Option<CallersContext>, RelaxedCaptureMode), RunError> {
        Ok((CallersContext::switch_to(&self.device)?, RelaxedCaptureMode::begin()?))
    }

    pub(super) fn comm(&self) -> Result<&RankCommunicator, RunError> {
        self.joined_rank.as_deref().map(JoinedRank::comm).ok_or_else(session_ended_error)
    }

    pub(super) fn context(&self) -> Result<&ExecutionContext, RunError> {
        self.context.as_ref().ok_or_else(arenas_released_error)
    }

    /// Ends the session; peers may continue for a moment.
    pub(super) fn leave_group(&mut self, leaving: LeaveMode) {
        if let Some(context) = &mut self.context {
            // Runs on streams of the caller are treated like the session's own.
            if self.pending_runs.pending {
                let _ = context.resources.streams.compute.wait(&self.pending_runs.end);
            }
            if self.failure.is_some() {
                context.resources.mark_failed();
            }
        }
        self.forget_last_runs();
        self.pending_runs.clear();
        self.context = None;
        // This session is the only owner of the rank, unless the caller holds it too.
        if let Some(joined) = self.joined_rank.take().and_then(Arc::into_inner) {
            let _span = enter_rank_span(joined.comm().rank());
            tracing::info!(target: "symmc::session", runs = self.runs, ?leaving, "closing the session");
            joined.leave_session(ProgressRecording::Awaited, self.runs, leaving);
        }
    }

    /// Ends the session on all ranks of its group, without waiting for other ranks. `how` describes how this
    /// rank leaves.
    pub(super) fn abort_group(&mut self, how: String) {
        if let Some(rank) = self.comm().map(RankCommunicator::rank).ok().filter(|_| self.failure.is_none()) {
            let error = RunError::Left { rank, how };
            let is_idle = self.context.is_none() || self.poll_runs().unwrap_or(true);
            match self.joined_rank.take_if(|_| is_idle && self.failure.is_none()) {
                // Nothing is in progress on the device that would have to be notified.
                Some(joined) => drop(joined.fail_run(error)),
                None => drop(self.fail_session(error)),
            }
        }
        self.leave_group(LeaveMode::Dropped);
    }
}

impl Drop for CudaSession {
    fn drop(&mut self) {
        let _context = self.enter_device();
        let is_idle = self.context.is_none() || self.failure.is_some() || self.poll_runs().unwrap_or(true);
        if is_idle && self.failure.is_none() && !std::thread::panicking() {
            // Peers may still be in a run that this rank has completed.
            return self.leave_group(LeaveMode::Dropped);
        }
        let how =
            if is_idle { "ended without closing its session" } else { "ended its session during a run" };
        self.abort_group(how.to_string());
    }
}
