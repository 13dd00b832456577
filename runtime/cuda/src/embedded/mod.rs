//! One rank of a plan that stays on its GPU: memory, stream and communicator of its caller, sizes that change, runs behind
//! each other.
//!
//! ```text
//! sizes ──with all ranks──► Settled: algorithms, compiled code      kept by sizes, the same on all ranks
//! sizes + memory ──this rank alone──► Recording: one graph          kept by sizes and addresses
//! run = launch of a recording, on any stream
//! ```
//!
//! What ranks have to agree on depends on sizes alone, so that another pointer is the business of its rank: memory that
//! is lent starts at a multiple of [`ALIGN`], and no kernel or algorithm is chosen for more than that.
//!
//! - [`gear`](self) is what all ranks take together: arenas, flags, communicators, workspace.
//! - `memory` says where inputs and outputs lie.
//! - `run` puts runs on streams and watches them.

mod gear;
mod memory;
mod recent;
mod run;

use std::sync::Arc;
use std::time::Duration;

use symmc_planner::CheckedPlan;
use symmc_planner::plan::Role;
use symmc_runtime::RunError;
use symmc_runtime::custom::Mismatch;
use symmc_runtime::exec::{Bound, ExecConfig, Executor, Registry};
use symmc_runtime::host::{Group, HostConfig, Seat};
use symmc_runtime::session::{Lending, RawStream, renewed};

use self::gear::Gear;
pub use self::gear::memory_of;
use self::memory::{Held, Move};
use self::recent::Recent;
use self::run::Flight;
use crate::adopt::{Adopted, LentStream};
use crate::arena::Source;
use crate::compute::gemm;
use crate::driver::{self, CallersContext, Device, Event, Graph, Memory};
use crate::error::CudaError;
use crate::homes::Homes;
use crate::nccl::Lent;
use crate::program::{Program, Settled};
use crate::refusal::{Refusal, refusals};
use crate::{Products, compile, cudnn};

/// What memory that is lent starts at a multiple of.
pub const ALIGN: usize = 16;

/// The GPU of a session, and what its caller lends: by default the GPU whose number is that of the rank, and nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Gpu {
    /// The number of the GPU among those that the process sees; that of the rank without.
    pub ordinal: Option<u32>,
    /// The caller's stream and communicator.
    pub adopted: Adopted,
    /// Who allocates the symmetric arena.
    pub arena: Source,
    /// How algorithms of matrix products are chosen, and who computes attention.
    pub products: Products,
    /// How many recorded runs are kept, each for some sizes and some memory, and for how many sizes the choices.
    pub kept: usize,
}

impl Default for Gpu {
    fn default() -> Self {
        Gpu {
            ordinal: None,
            adopted: Adopted::default(),
            arena: Source::default(),
            products: Products::default(),
            kept: 64,
        }
    }
}

impl Gpu {
    /// The GPU of this number.
    pub fn new(ordinal: u32) -> Gpu {
        Gpu { ordinal: Some(ordinal), ..Gpu::default() }
    }

    /// Runs that are given no stream are put on this one, a `cudaStream_t` (`CUstream`).
    ///
    /// # Safety
    /// It belongs to the primary context of the GPU, and exists until the session has ended.
    #[must_use]
    pub unsafe fn with_stream(mut self, stream: RawStream) -> Gpu {
        // SAFETY: by the caller.
        self.adopted.stream = Some(unsafe { LentStream::new(stream.0) });
        self
    }

    /// Plain collectives of exactly these ranks run on this `ncclComm_t`, whose ranks they are in its order.
    ///
    /// # Safety
    /// As [`Lent::new`].
    #[must_use]
    pub unsafe fn with_communicator(mut self, communicator: *mut std::ffi::c_void, ranks: Vec<u32>) -> Gpu {
        // SAFETY: by the caller.
        self.adopted.communicator = Some(unsafe { Lent::new(communicator, ranks) });
        self
    }

    /// Who allocates the symmetric arena.
    #[must_use]
    pub fn with_arena(self, arena: Source) -> Gpu {
        Gpu { arena, ..self }
    }

    /// How algorithms of matrix products are chosen, and who computes attention.
    #[must_use]
    pub fn with_products(self, products: Products) -> Gpu {
        Gpu { products, ..self }
    }

    /// How many recorded runs are kept.
    #[must_use]
    pub fn with_kept(self, kept: usize) -> Gpu {
        Gpu { kept, ..self }
    }

    /// What must be alike on all ranks, by name.
    fn terms(&self, device: &Device) -> Result<Vec<(String, String)>, CudaError> {
        let of = |version: [i32; 2]| format!("{}.{}", version[0], version[1]);
        let cuda = driver::version()?;
        let terms = [
            ("device", format!("GPU ({})", device.name())),
            ("CUDA", format!("{}.{}", cuda[0], cuda[1])),
            ("NVRTC", of(compile::version()?)),
            ("cuBLASLt", gemm::library().map_or_else(|_| "none".into(), |(version, _)| version)),
            ("cuDNN", cudnn::version().map_or_else(|_| "none".into(), |version| version.to_string())),
            ("arena", format!("{:?}", self.arena)),
            ("products", format!("{:?}", self.products)),
            ("kept runs", self.kept.to_string()),
            ("lent communicators", usize::from(self.adopted.communicator.is_some()).to_string()),
        ];
        Ok(terms.map(|(name, value)| (name.to_string(), value)).into())
    }
}

/// Sizes in words, where everything lies, and what is copied: what tells recordings apart.
type Key = (Arc<str>, Homes, [Vec<Move>; 2]);

/// A run at some sizes in some memory, recorded. Fields are dropped in this order.
struct Recording {
    graph: Graph,
    program: Program,
    bound: Arc<Bound>,
    /// What is copied before the steps, and behind them.
    moves: [Vec<Move>; 2],
    /// Held as long as the recording may run.
    _memory: Vec<Arc<Memory>>,
}

// SAFETY: handles of the driver and of the vendor's libraries may be used from any thread; one session has the recording, and
// uses it from one thread at a time.
unsafe impl Send for Recording {}
// SAFETY: as above.
unsafe impl Sync for Recording {}

/// The program at some sizes.
struct Sized {
    bound: Arc<Bound>,
    digest: u32,
    /// The sizes in words.
    text: Arc<str>,
}

/// A plan on one rank and its GPU.
pub struct CudaSession {
    /// What the next run takes, unless something was set since.
    ready: Option<Arc<Recording>>,
    /// `None` while it is given back, and once the session has ended.
    gear: Option<Gear>,
    /// By sizes.
    settled: Recent<Arc<str>, Settled>,
    /// `None` once the session has ended.
    seat: Option<Seat>,
    executor: Executor,
    gpu: Gpu,
    limit: Duration,
    chaos: Option<u64>,
    sized: Option<Sized>,
    lending: Lending,
    inputs: Vec<Held>,
    outputs: Vec<Held>,
    /// Where the plan holds inputs in the symmetric arena, in any bucket.
    fixed: Vec<Option<usize>>,
    /// Which inputs may be written there before each run.
    renewed: Vec<bool>,
    flight: Flight,
    runs: u64,
    failure: Option<RunError>,
    device: Arc<Device>,
}

// SAFETY: handles of the driver and of the vendor's libraries may be used from any thread, one at a time.
unsafe impl Send for CudaSession {}

impl CudaSession {
    /// Opens the session of a rank; returns when all ranks of the group have, and run the same.
    ///
    /// # Errors
    /// The group has another number of ranks, GPUs cannot run a step, there is no such GPU, a library or memory is missing,
    /// or the other ranks do not come or run something else.
    pub fn open(
        plan: &CheckedPlan,
        group: &Group,
        gpu: &Gpu,
        limit: Duration,
        chaos: Option<u64>,
    ) -> Result<CudaSession, RunError> {
        let ordinal = gpu.ordinal.unwrap_or(group.rank());
        let opened = runs_on_gpus(plan).and_then(|()| {
            let caller = CallersContext::keep()?;
            let device = Device::open(ordinal)?;
            let terms = gpu.terms(&device)?;
            Ok((caller, device, terms))
        });
        let (_caller, device, terms) = opened.inspect_err(|error| group.decline(error))?;
        let config = HostConfig { limit, ..HostConfig::default() };
        let seat = Seat::take(plan, group, &config, terms)?;
        let built = CudaSession::build(plan, &seat, gpu, (limit, chaos), device);
        let mut session = built.map_err(|error| seat.fail(error))?;
        seat.start().map_err(|error| seat.fail(error))?;
        session.seat = Some(seat);
        Ok(session)
    }

    fn build(
        plan: &CheckedPlan,
        seat: &Seat,
        gpu: &Gpu,
        (limit, chaos): (Duration, Option<u64>),
        device: Arc<Device>,
    ) -> Result<CudaSession, RunError> {
        let source = plan.source_program();
        let rank = seat.comm().rank();
        let executor = Executor::new(plan.shared(), rank, &Registry::new(), ExecConfig::default())?;
        let held = |n: usize| (0..n).map(|_| Held::default()).collect();
        let (inputs, outputs) = (source.inputs.len(), source.outputs.len());
        let mut fixed = vec![None; inputs];
        for memory in &plan.fixed {
            if let Role::Bound { input } = memory.role
                && let Some(at) = fixed.get_mut(input)
            {
                *at = usize::try_from(memory.offset).ok();
            }
        }
        let mut session = CudaSession {
            ready: None,
            gear: None,
            settled: Recent::new(gpu.kept),
            seat: None,
            executor,
            gpu: gpu.clone(),
            limit,
            chaos,
            sized: None,
            lending: Lending::new(source, ALIGN),
            inputs: held(inputs),
            outputs: held(outputs),
            fixed,
            renewed: renewed(source),
            flight: Flight::new(Event::new()?),
            runs: 0,
            failure: None,
            device,
        };
        session.gear = Some(Gear::new(plan, seat, &session.device, &session)?);
        Ok(session)
    }

    /// The GPU.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// How many recorded runs had to go because more were kept than [`Gpu::kept`] allows.
    pub fn evicted(&self) -> u64 {
        self.gear.as_ref().map_or(0, |gear| gear.rig.programs.recent.evicted())
    }

    /// Makes the context of the GPU current, until what this gives is dropped.
    fn entered(&self) -> Result<Option<CallersContext>, RunError> {
        Ok(CallersContext::changed_to(&self.device)?)
    }

    fn seat(&self) -> Result<&Seat, RunError> {
        self.seat.as_ref().ok_or_else(|| RunError::Invalid("the session has ended".into()))
    }

    fn gear(&self) -> Result<&Gear, RunError> {
        self.gear.as_ref().ok_or_else(gone)
    }

    fn sized(&self) -> Result<&Sized, RunError> {
        let none = || RunError::Invalid("the sizes of the program are not set: a symbol has no value".into());
        self.sized.as_ref().ok_or_else(none)
    }

    /// Ends the session; peers may go on for a moment.
    fn end(&mut self) {
        if let Some(gear) = &mut self.gear {
            // Runs on streams of the caller count as the session's own.
            if self.flight.is_pending() {
                let _ = gear.rig.streams.compute.wait(self.flight.event());
            }
            if self.failure.is_some() {
                gear.rig.fail();
            }
        }
        self.ready = None;
        self.flight.clear();
        self.gear = None;
        if let Some(seat) = self.seat.take() {
            seat.leave();
        }
    }
}

fn gone() -> RunError {
    RunError::Invalid("the session gave its memory back: resume it first".into())
}

impl Drop for CudaSession {
    fn drop(&mut self) {
        let _context = self.entered();
        if self.gear.is_some() && self.failure.is_none() && !self.look().unwrap_or(true) {
            // A session that goes away within a run will not come to the peers' meetings.
            let rank = self.seat.as_ref().map_or(0, |seat| seat.comm().rank());
            self.fail(RunError::Aborted { rank, reason: "its session was dropped during a run".into() });
        }
        self.end();
    }
}

/// Whether GPUs can run all steps of a plan.
fn runs_on_gpus(plan: &CheckedPlan) -> Result<(), RunError> {
    let custom = Registry::new();
    plan.programs().iter().try_for_each(|program| custom.check(&program.graph))?;
    match refusals(plan, &[]).into_iter().next() {
        None => Ok(()),
        Some(Refusal { node, op, reason }) => {
            Err(RunError::CannotRun { rank: None, node, op, why: Mismatch::Backend(reason) })
        }
    }
}
