//! What runs of a session need beside the memory of inputs and outputs: arenas, flags, communicators, streams, workspace.
//! All ranks take it together, for all sizes that the plan serves, and may give it back between runs.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use symmc_check::CheckedPlan;
use symmc_plan::{Plan, ReadPlan};
use symmc_runtime::RunError;
use symmc_runtime::exec::{Bound, BoundStep, ExecConfig, Executor, MemorySpace, Placement, Registry, Work};
use symmc_runtime::host::HostConfig;
use symmc_runtime::session::budget::{self, Constants};
use symmc_runtime::session::{CallersPart, Taken};

use super::gpu::Gpu;
use super::programs::Programs;
use super::report::{self, COMPUTE_STATUS, PROGRESS, STATUS};
use super::resources::{self, Resources};
use crate::codegen::collective::{self, Control, Peers};
use crate::codegen::compute::{Attentions, InputUse, Machine};
use crate::codegen::largest::bound;
use crate::device::arena::SymmetricArena;
use crate::device::driver::{Device, LentStream, Memory, Pinned, Stream};
use crate::device::launch::Address;
use crate::device::streams::Streams;
use crate::error::{CudaError, Result};
use crate::exchange::Exchange;
use crate::nccl::{Communicators, Making};
use crate::{
    Products,
    codegen::{refusal, scratch},
};

pub(super) struct ExecutionContext {
    /// Its memories are the ordinary arena, the words of collectives, and the workspaces, of which the last is used.
    pub resources: Resources<Programs, Vec<Memory>>,
    pub peers: Peers,
    pub machine: Machine,
    pub ordinary: Address,
}

impl ExecutionContext {
    /// Takes it; all ranks call this together.
    pub fn new(
        sizes: &Sizes,
        exchange: &dyn Exchange,
        device: &Arc<Device>,
        gpu: &Gpu,
        &HostConfig { limit, chaos, .. }: &HostConfig,
    ) -> Result<ExecutionContext> {
        let arena =
            SymmetricArena::new(gpu.arena, device, exchange, sizes.symmetric + sizes.control.bytes(), limit)?;
        let ordinary = Memory::new(device, "the ordinary arena", sizes.ordinary)?;
        let local = Memory::new(device, "the words of collectives", sizes.words)?;
        let machine = Machine { attention: gpu.attention(), ..Machine::of(device) };
        let workspace = Memory::new(device, "the workspace of steps", sizes.workspace(&machine))?;
        let status = Pinned::new(device, STATUS)?;
        let peers = Peers {
            rank: exchange.rank(),
            arenas: arena.addresses(),
            arena: sizes.symmetric,
            control: sizes.control,
            local: local.address(),
            status: status.address(),
            links: device.links()?,
            ..waits(limit, chaos)
        };
        let (span, lent) = ((arena.address(), arena.len()), gpu.adopted.communicator.as_ref());
        let making = Making { exchange, device, arena: span, limit, lent };
        let nccl = Communicators::new(sizes.steps(), &making)?;
        let machine = Machine {
            status: status.address() + COMPUTE_STATUS as Address,
            workspace: workspace.address(),
            workspace_bytes: workspace.len(),
            inputs: inputs_of(sizes.steps()),
            ..machine
        };
        let streams = Streams::new(device)?;
        // SAFETY: the words were just allocated; nothing uses them yet.
        unsafe { streams.compute.fill(local.address(), 0, local.len())? };
        streams.compute.synchronize()?;
        // Nobody runs before all are here.
        exchange.all_gather(&[0])?;
        let ordinary_at = ordinary.address();
        let resources = Resources::new(resources::Parts {
            programs: Programs::new(gpu.kept),
            streams,
            nccl,
            arena,
            status,
            _memory: vec![ordinary, local, workspace],
            device: device.clone(),
        });
        Ok(ExecutionContext { resources, peers, machine, ordinary: ordinary_at })
    }

    /// Makes it serve these steps too, if they need more than the largest sizes of the plan do. All ranks call this
    /// together if `exchange` is given.
    pub fn serve(
        &mut self,
        steps: &[BoundStep],
        exchange: Option<&dyn Exchange>,
        (gpu, limit): (&Gpu, Duration),
    ) -> Result<()> {
        let (found, has) = (collective::control_of(steps), self.peers.control);
        if found.groups > has.groups || found.exchanging > has.exchanging {
            return Err(CudaError::Run(RunError::Defect(format!(
                "flags of the session: expected at most {has:?}, found {found:?}"
            ))));
        }
        let needed = scratch::of_steps(steps.iter(), &self.machine);
        let device = self.resources.device.clone();
        if needed > self.machine.workspace_bytes {
            let workspace = Memory::new(&device, "the workspace of steps", needed)?;
            (self.machine.workspace, self.machine.workspace_bytes) = (workspace.address(), needed);
            self.resources._memory.push(workspace);
        }
        if let Some(exchange) = exchange {
            let span = (self.resources.arena.address(), self.resources.arena.len());
            let lent = gpu.adopted.communicator.as_ref();
            let making = Making { exchange, device: &device, arena: span, limit, lent };
            self.resources.nccl.add(steps, &making)?;
        }
        Ok(())
    }

    /// What kernels of a program of the session know: those of each report apart.
    pub fn of_program(&self, program: usize) -> (Peers, Machine) {
        let status = self.resources.status.address() + report::compute_status(program) as Address;
        let peers = Peers { program: program as u8, ..self.peers.clone() };
        (peers, Machine { status, ..self.machine })
    }

    /// A stream of the caller in place of the first of the session's.
    pub fn lanes(&self, device: &Arc<Device>, compute: Stream) -> Streams {
        // SAFETY: the session's own stream, which lives as long as the context.
        let comm = unsafe { LentStream::new(self.resources.streams.comm.handle().cast()) };
        Streams { compute, comm: Stream::adopt(device, comm) }
    }

    /// What lies so many bytes from the start of the symmetric arena.
    pub fn symmetric(&self, offset: usize) -> Address {
        self.resources.arena.address() + offset as Address
    }

    /// Where the step of NCCL's last collective that began is told.
    pub fn told(&self) -> Address {
        self.resources.status.address() + PROGRESS as Address
    }

    /// The word there: one more than the step, and 0 before the first.
    pub fn progress(&self) -> &AtomicU32 {
        let at = self.resources.status.as_ptr().wrapping_add(PROGRESS);
        // SAFETY: the word lies within the pinned memory, which lives as long as this, aligned; it is only used as an
        // atomic here, and the device stores it whole.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    pub fn taken(&self) -> Taken {
        let bytes: Vec<usize> = self.resources._memory.iter().map(Memory::len).collect();
        let [ordinary, words] = [0, 1].map(|at| bytes.get(at).copied().unwrap_or(0));
        let flags = self.peers.control.bytes();
        let mut taken = Taken::default();
        taken.ordinary = ordinary;
        taken.symmetric = self.resources.arena.len().saturating_sub(flags);
        taken.flags = flags + words;
        taken.scratch = bytes.iter().skip(2).sum();
        taken
    }
}

/// What the steps do with the memory of inputs.
fn inputs_of<'b>(mut steps: impl Iterator<Item = &'b BoundStep>) -> InputUse {
    let input = |space: MemorySpace| matches!(space, MemorySpace::Input(_));
    let writes = |work: &Work| match work {
        Work::Kernel { results, .. } | Work::Custom { results, .. } => results.iter().any(|r| input(r.space)),
        Work::Collective(call) => input(call.result.space),
        Work::Dispatch(_) => false,
    };
    if steps.any(|step| step.work.parts().any(writes)) { InputUse::Written } else { InputUse::Read }
}

/// What waits for peers are like; addresses are left out.
fn waits(limit: Duration, chaos: Option<u64>) -> Peers {
    Peers { limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX), chaos, ..Peers::default() }
}

pub(super) struct Sizes {
    pub ordinary: usize,
    /// The symmetric arena without the flags behind it.
    pub symmetric: usize,
    pub control: Control,
    pub words: usize,
    /// The program at these sizes.
    pub bounds: Vec<Arc<Bound>>,
}

impl Sizes {
    /// For all that a plan serves: every bucket at its upper end.
    pub fn of(plan: &ReadPlan, rank: u32) -> Sizes {
        let bounds = (0..plan.buckets.len()).filter_map(|bucket| bound(plan, bucket, rank));
        let bytes = |arena: u64| usize::try_from(arena).unwrap_or(usize::MAX);
        let arenas = [plan.arenas.ordinary, plan.arenas.symmetric].map(bytes);
        Sizes::new(arenas, bounds.map(Arc::new).collect())
    }

    /// The same with so many bytes of symmetric memory of the caller. Fails if the symmetric arena would be larger than
    /// any memory.
    pub fn with_callers(self, plan: &Plan, callers: usize) -> Result<Sizes, RunError> {
        Ok(Sizes { symmetric: CallersPart::new(plan, callers)?.end(), ..self })
    }

    /// For all programs of a session, where they lie there, in arenas of these sizes: ordinary, symmetric.
    pub fn of_programs<'p>(
        programs: impl Iterator<Item = (&'p ReadPlan, Placement)>,
        arenas: [usize; 2],
        rank: u32,
    ) -> Sizes {
        let of_program = |(plan, placement): (&ReadPlan, Placement)| -> Vec<Arc<Bound>> {
            let bounds = (0..plan.buckets.len()).filter_map(|bucket| bound(plan, bucket, rank));
            bounds.map(|bound| Arc::new(bound.placed(&placement))).collect()
        };
        Sizes::new(arenas, programs.flat_map(of_program).collect())
    }

    /// For one binding alone.
    pub fn at(bound: &Arc<Bound>) -> Sizes {
        Sizes::new([bound.ordinary, bound.symmetric], vec![bound.clone()])
    }

    fn new([ordinary, symmetric]: [usize; 2], bounds: Vec<Arc<Bound>>) -> Sizes {
        let control = collective::control_of(bounds.iter().flat_map(|b| &b.steps));
        let words = collective::local_bytes(control.groups).next_multiple_of(256);
        Sizes { ordinary, symmetric: symmetric.next_multiple_of(4096), control, words, bounds }
    }

    fn workspace(&self, machine: &Machine) -> usize {
        scratch::of_steps(self.steps(), machine)
    }

    fn steps(&self) -> impl Iterator<Item = &BoundStep> {
        self.bounds.iter().flat_map(|b| &b.steps)
    }
}

/// What drivers round symmetric memory up to.
const SHARED_UNIT: usize = 2 << 20;

/// What the session of a rank will take of its GPU: at most, for what depends on sizes and on what the caller lends. Told
/// without a GPU, for one like those of the built-in profiles with every library there; what the driver, the vendor's
/// libraries and code take for themselves is not in it. Fails if the plan has no such rank, or GPUs cannot run a step.
pub fn budget(plan: &CheckedPlan, rank: u32, gpu: &Gpu, config: &HostConfig) -> Result<Taken, RunError> {
    refusal::accept(plan, &[])?;
    let attention = match gpu.products {
        Products::Measured => Attentions::Chosen,
        Products::Heuristic => Attentions::Kernels,
    };
    let mut executor = Executor::new(plan, rank, &Registry::new(), ExecConfig::default())?;
    let sizes = Sizes::of(plan, rank).with_callers(plan, config.callers)?;
    let flags = sizes.control.bytes();
    let mut taken = Taken::default();
    taken.ordinary = sizes.ordinary;
    taken.symmetric = (sizes.symmetric + flags).max(1).next_multiple_of(SHARED_UNIT) - flags;
    taken.flags = flags + sizes.words;
    taken.scratch = sizes.workspace(&Machine { attention, ..Machine::OF_PROFILES });
    taken.held = budget::held(plan, &executor.largest(), Constants::Copied);
    Ok(taken)
}
