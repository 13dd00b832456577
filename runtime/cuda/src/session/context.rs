//! The resources of a session's runs, apart from the memory of inputs and outputs: arenas, flags,
//! communicators, streams, workspace. All ranks allocate them together, for all sizes that the plan serves,
//! and may release them between runs.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use symmc_check::CheckedPlan;
use symmc_control::RankConfig;
use symmc_plan::{ParsedPlan, Plan};
use symmc_runtime::RunError;
use symmc_runtime::exec::{
    CustomKernelRegistry, ExecConfig, ExecutableStep, Executor, MemorySpace, ProgramPlacement,
    ResolvedProgram, StepWork,
};
use symmc_runtime::session::memory_usage::{self, ConstantStorage};
use symmc_runtime::session::{CallerArena, MemoryUsage};

use super::gpu::GpuConfig;
use super::peer_watch::PeerWatch;
use super::recording_cache::RecordingCache;
use super::report::{self, COMPUTE_STATUS, PROGRESS, STATUS};
use super::resources::{self, Resources};
use crate::arena::SymmetricArena;
use crate::codegen::collective::{self, ControlRegion, PeerContext};
use crate::codegen::compute::{InputUse, KernelTarget};
use crate::codegen::largest_sizes::bind_largest;
use crate::codegen::{unsupported, workspace};
use crate::device::driver::{BorrowedStream, Device, DeviceBuffer, PinnedBuffer, Stream};
use crate::device::launch::Address;
use crate::device::streams::LaneStreams;
use crate::error::{CudaError, Result};
use crate::exchange::RankExchange;
use crate::nccl::{CommunicatorContext, Communicators};

pub(super) struct ExecutionContext {
    /// Its memories are the ordinary arena, the words of collectives, and the workspaces. The last workspace
    /// is in use.
    pub resources: Resources<RecordingCache, Vec<DeviceBuffer>>,
    pub peers: PeerContext,
    pub machine: KernelTarget,
    pub ordinary_address: Address,
    /// `None` without peers.
    pub watch: Option<PeerWatch>,
}

impl ExecutionContext {
    /// Allocates the context; all ranks call this together.
    pub fn new(
        sizes: &ContextSizes,
        exchange: &dyn RankExchange,
        device: &Arc<Device>,
        gpu: &GpuConfig,
        &RankConfig { limit, chaos, .. }: &RankConfig,
    ) -> Result<ExecutionContext> {
        let arena =
            SymmetricArena::new(gpu.arena, device, exchange, sizes.symmetric + sizes.control.bytes(), limit)?;
        let ordinary = DeviceBuffer::new(device, "the ordinary arena", sizes.ordinary)?;
        let local = DeviceBuffer::new(device, "the words of collectives", sizes.words)?;
        let machine =
            KernelTarget { attention: gpu.attention_selection(), ..KernelTarget::from_device(device) };
        let workspace = DeviceBuffer::new(device, "the workspace of steps", sizes.workspace(&machine))?;
        let status = PinnedBuffer::new(device, STATUS)?;
        let peers = PeerContext {
            rank: exchange.rank(),
            arenas: arena.addresses(),
            arena: sizes.symmetric,
            control: sizes.control,
            local: local.address(),
            status: status.address(),
            links: device.links()?,
            ..peers_with_limit(limit, chaos)
        };
        let span = (arena.address(), arena.len());
        let borrowed = gpu.borrowed.communicator.as_ref();
        let making = CommunicatorContext { exchange, device, arena: span, limit, lent: borrowed };
        let nccl = Communicators::new(sizes.steps(), &making)?;
        let machine = KernelTarget {
            status: status.address() + COMPUTE_STATUS as Address,
            workspace: workspace.address(),
            workspace_bytes: workspace.len(),
            inputs: inputs_of(sizes.steps()),
            ..machine
        };
        let streams = LaneStreams::new(device)?;
        // SAFETY: the words were just allocated; nothing uses them yet.
        unsafe { streams.compute.fill(local.address(), 0, local.len())? };
        streams.compute.synchronize()?;
        // No rank starts a run before all ranks are here.
        exchange.all_gather(&[0])?;
        let ordinary_at = ordinary.address();
        let resources = Resources::new(resources::ResourceParts {
            programs: RecordingCache::new(gpu.cached_recordings),
            streams,
            nccl,
            arena,
            status: Arc::new(status),
            _memory: vec![ordinary, local, workspace],
            device: device.clone(),
        });
        Ok(ExecutionContext { resources, peers, machine, ordinary_address: ordinary_at, watch: None })
    }

    /// Grows the context for these steps, if they need more than the largest sizes of the plan. All ranks
    /// call this together if `exchange` is given.
    pub fn extend_for(
        &mut self,
        steps: &[ExecutableStep],
        exchange: Option<&dyn RankExchange>,
        gpu: &GpuConfig,
        limit: Duration,
    ) -> Result<()> {
        let required = collective::control_of(steps);
        let has = self.peers.control;
        if required.groups > has.groups || required.max_exchange_ranks > has.max_exchange_ranks {
            return Err(CudaError::Run(RunError::Defect(format!(
                "flags of the session: expected at most {has:?}, found {required:?}"
            ))));
        }
        let needed = workspace::bytes_of_steps(steps.iter(), &self.machine);
        let device = self.resources.device.clone();
        if needed > self.machine.workspace_bytes {
            let workspace = DeviceBuffer::new(&device, "the workspace of steps", needed)?;
            self.machine.workspace = workspace.address();
            self.machine.workspace_bytes = needed;
            self.resources._memory.push(workspace);
        }
        if let Some(exchange) = exchange {
            let span = (self.resources.arena.address(), self.resources.arena.len());
            let borrowed = gpu.borrowed.communicator.as_ref();
            let making =
                CommunicatorContext { exchange, device: &device, arena: span, limit, lent: borrowed };
            self.resources.nccl.create_missing(steps, &making)?;
        }
        Ok(())
    }

    /// The parameters of kernels of one program of the session. Each program reports to its own words.
    pub fn program_parameters(&self, program: usize) -> (PeerContext, KernelTarget) {
        let status = self.resources.status.address() + report::compute_status_offset(program) as Address;
        let peers = PeerContext { program: program as u8, ..self.peers.clone() };
        (peers, KernelTarget { status, ..self.machine })
    }

    /// The streams of the context with a stream of the caller as the compute stream.
    pub fn streams_with_compute(&self, device: &Arc<Device>, compute: Stream) -> LaneStreams {
        // SAFETY: the session's own stream, which lives as long as the context.
        let comm = unsafe { BorrowedStream::new(self.resources.streams.comm.handle().cast()) };
        LaneStreams { compute, comm: Stream::adopt(device, comm) }
    }

    /// The address `offset` bytes from the start of the symmetric arena.
    pub fn symmetric(&self, offset: usize) -> Address {
        self.resources.arena.address() + offset as Address
    }

    /// The address of the progress word of NCCL's collectives.
    pub fn progress_address(&self) -> Address {
        self.resources.status.address() + PROGRESS as Address
    }

    /// The progress word: one more than the step of the last collective that began, and 0 before the first.
    pub fn progress(&self) -> &AtomicU32 {
        let word = self.resources.status.as_ptr().wrapping_add(PROGRESS);
        // SAFETY: the word is aligned and lies within the pinned memory, which lives as long as `self`. The
        // host uses it only as an atomic, and the device stores it as a whole.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }

    pub fn memory_usage(&self) -> MemoryUsage {
        let bytes: Vec<usize> = self.resources._memory.iter().map(DeviceBuffer::len).collect();
        let [ordinary, words] = [0, 1].map(|i| bytes.get(i).copied().unwrap_or(0));
        let flags = self.peers.control.bytes();
        let mut usage = MemoryUsage::default();
        usage.ordinary = ordinary;
        usage.symmetric = self.resources.arena.len().saturating_sub(flags);
        usage.flags = flags + words;
        usage.scratch = bytes.iter().skip(2).sum();
        usage
    }
}

/// How the steps use the memory of inputs.
fn inputs_of<'b>(mut steps: impl Iterator<Item = &'b ExecutableStep>) -> InputUse {
    let written = steps.any(|step| step.work.node_work().any(writes_input));
    if written { InputUse::Written } else { InputUse::Read }
}

fn writes_input(work: &StepWork) -> bool {
    match work {
        StepWork::Kernel { results, .. } | StepWork::Custom { results, .. } => {
            results.iter().any(|r| matches!(r.space, MemorySpace::Input(_)))
        }
        StepWork::Collective(call) => matches!(call.result.space, MemorySpace::Input(_)),
        StepWork::Dispatch(_) => false,
    }
}

/// The wait settings of peers; addresses are left out.
fn peers_with_limit(limit: Duration, chaos: Option<u64>) -> PeerContext {
    PeerContext {
        limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
        chaos,
        ..PeerContext::default()
    }
}

pub(super) struct ContextSizes {
    pub ordinary: usize,
    /// The symmetric arena without the flags after it.
    pub symmetric: usize,
    pub control: ControlRegion,
    pub words: usize,
    /// The program at each of these sizes.
    pub bounds: Vec<Arc<ResolvedProgram>>,
}

impl ContextSizes {
    /// The sizes for everything that a plan serves: every bucket at its upper end.
    pub fn for_plan(plan: &ParsedPlan, rank: u32) -> ContextSizes {
        let bounds = (0..plan.buckets.len()).filter_map(|bucket| bind_largest(plan, bucket, rank));
        let arenas = [plan.arenas.ordinary, plan.arenas.symmetric]
            .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        ContextSizes::new(arenas, bounds.map(Arc::new).collect())
    }

    /// Adds `callers` bytes of symmetric memory of the caller. Fails if the symmetric arena would exceed the
    /// address space.
    pub fn with_callers(self, plan: &Plan, callers: usize) -> Result<ContextSizes, RunError> {
        Ok(ContextSizes { symmetric: CallerArena::new(plan, callers)?.end(), ..self })
    }

    /// The sizes for all programs of a session at their placements, in arenas of these sizes: ordinary,
    /// symmetric.
    pub fn for_programs<'p>(
        programs: impl Iterator<Item = (&'p ParsedPlan, ProgramPlacement)>,
        arenas: [usize; 2],
        rank: u32,
    ) -> ContextSizes {
        let mut bounds = Vec::new();
        for (plan, placement) in programs {
            for bucket in 0..plan.buckets.len() {
                let Some(bound) = bind_largest(plan, bucket, rank) else { continue };
                bounds.push(Arc::new(bound.with_placement(&placement)));
            }
        }
        ContextSizes::new(arenas, bounds)
    }

    /// The sizes for a single binding.
    pub fn for_bound(bound: &Arc<ResolvedProgram>) -> ContextSizes {
        ContextSizes::new([bound.ordinary_bytes, bound.symmetric_bytes], vec![bound.clone()])
    }

    fn new([ordinary, symmetric]: [usize; 2], bounds: Vec<Arc<ResolvedProgram>>) -> ContextSizes {
        let control = collective::control_of(bounds.iter().flat_map(|b| &b.steps));
        let words = collective::local_bytes(control.groups).next_multiple_of(256);
        ContextSizes { ordinary, symmetric: symmetric.next_multiple_of(4096), control, words, bounds }
    }

    fn workspace(&self, machine: &KernelTarget) -> usize {
        workspace::bytes_of_steps(self.steps(), machine)
    }

    fn steps(&self) -> impl Iterator<Item = &ExecutableStep> {
        self.bounds.iter().flat_map(|b| &b.steps)
    }
}

/// The granularity to which drivers round symmetric memory up.
const SHARED_UNIT: usize = 2 << 20;

/// An upper bound of the GPU memory that the session of a rank will allocate, for the parts that depend on
/// sizes and on the memory that the caller provides. It is computed without a GPU, for a GPU of the built-in
/// profiles with every library present. Memory that the driver, the vendor's libraries and code use is not
/// included. Fails if the plan has no such rank, or GPUs cannot run a step.
pub fn memory_budget(
    plan: &CheckedPlan,
    rank: u32,
    gpu: &GpuConfig,
    config: &RankConfig,
) -> Result<MemoryUsage, RunError> {
    unsupported::check_supported(plan, &[])?;
    let mut executor = Executor::new(plan, rank, &CustomKernelRegistry::new(), ExecConfig::default())?;
    let sizes = ContextSizes::for_plan(plan, rank).with_callers(plan, config.callers)?;
    let flags = sizes.control.bytes();
    let mut usage = MemoryUsage::default();
    usage.ordinary = sizes.ordinary;
    usage.symmetric = (sizes.symmetric + flags).max(1).next_multiple_of(SHARED_UNIT) - flags;
    usage.flags = flags + sizes.words;
    usage.scratch = sizes.workspace(&KernelTarget { attention: gpu.products, ..KernelTarget::PROFILE_GPU });
    usage.ports = memory_usage::max_port_bytes(plan, &executor.largest_buckets(), ConstantStorage::Copied);
    Ok(usage)
}
