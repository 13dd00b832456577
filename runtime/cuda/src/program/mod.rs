//! A program on one device: from resolved steps to a graph that replays without work on the host.
//!
//! The lanes of the plan are streams. A step that the other lane waits for records an event. A kernel that
//! follows another kernel in its stream is launched by programmatic dependent launch (PDL), and waits inside
//! the kernel. Two steps on different lanes run in any order if neither waits for the other.
//!
//! A program is made once per set of sizes. The bases of its inputs and outputs ([`PortBases`]) are given
//! when a run is recorded or enqueued. A recording can be changed to other bases (`rebase`).

mod rebase;
mod work;

use std::cell::RefCell;
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_plan::Lane;
use symmc_runtime::exec::ExecutableStep;

use crate::codegen::addresses::AddressMap;
use crate::codegen::collective::PeerContext;
use crate::codegen::command::GpuCommand;
use crate::codegen::compile::{KernelSource, compile};
use crate::codegen::compute::gemm::PreparedGemm;
use crate::codegen::compute::gemm_search::{self, GemmSearch};
use crate::codegen::compute::library_attention::AttentionCandidates;
use crate::codegen::compute::{DeviceAssertions, KernelTarget, attention_choice};
use crate::codegen::lowered::LoweredProgram;
use crate::codegen::lowering_context::LoweringContext;
use crate::device::driver::{Device, Event, ExecutableGraph, Function, Module, Stream};
use crate::device::launch::{Address, KernelLaunch, LaunchOrder, PortBases};
use crate::device::streams::LaneStreams;
use crate::error::{CudaError, Result};
use crate::nccl::Communicators;
use crate::{codegen::agreement, cudnn};

use self::work::{LoadedStep, LoadedWork, PortUses};
pub use self::work::{WorkId, WorkNodes};

#[derive(Debug)]
pub struct ProgramContext<'a> {
    pub device: &'a Arc<Device>,
    pub addresses: &'a AddressMap,
    pub peers: &'a PeerContext,
    pub machine: &'a KernelTarget,
    pub nccl: &'a Communicators,
    /// How algorithms of matrix products are chosen. `None`: the first one of the library's heuristic.
    pub search: Option<&'a GemmSearch<'a>>,
    /// The choices for the same steps in other memory. They are reused without a search.
    pub settled: Option<&'a ProgramChoices>,
    /// A word that holds one more than the step of the last NCCL collective that began. `None`: progress is
    /// not reported.
    pub progress: Option<Address>,
    /// The bases of the ports while algorithms are measured.
    pub bases: PortBases<'a>,
}

impl ProgramContext<'_> {
    fn lowering_context(&self) -> LoweringContext<'_> {
        let ProgramContext { addresses, peers, machine, nccl, progress, .. } = *self;
        LoweringContext { addresses, peers, machine, nccl, progress }
    }
}

/// The choices made for a program. Programs of the same steps in other memory reuse them without their peers.
#[derive(Clone)]
pub struct ProgramChoices {
    products: gemm_search::GemmChoices,
    attentions: attention_choice::AttentionChoices,
    module: Option<Arc<Module>>,
    /// The source text of the module.
    text: Arc<str>,
}

impl std::fmt::Debug for ProgramChoices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgramChoices").finish_non_exhaustive()
    }
}

pub struct DeviceProgram {
    steps: Vec<LoadedStep>,
    assertions: DeviceAssertions,
    /// Workspace for one matrix product at a time.
    workspace: Address,
    /// The choices made for it, with the module of the functions that the steps launch.
    settled: ProgramChoices,
    pieces: usize,
    uses: PortUses,
}

// SAFETY: handles of the driver and of the vendor's libraries may be used from any thread. The program
// belongs to one session, which uses it from one thread at a time.
unsafe impl Send for DeviceProgram {}
// SAFETY: as above.
unsafe impl Sync for DeviceProgram {}

impl DeviceProgram {
    /// Compiles and loads the steps of a rank. Fails if GPUs do not support a step, or a library that it
    /// needs is missing.
    pub fn new(rank: u32, list: &[ExecutableStep], context: &ProgramContext<'_>) -> Result<DeviceProgram> {
        let lowered = LoweredProgram::new(rank, list, &context.lowering_context())?;
        if let (Some(search), None) = (context.search, context.settled) {
            agreement::check_agreement(list, &lowered.launch_digests(list), search.exchange)?;
        }
        DeviceProgram::load_lowered(list, lowered, context)
    }

    /// Compiles and loads lowered commands. `list` gives their order.
    pub fn from_commands(
        list: &[ExecutableStep],
        lowered: Vec<Vec<GpuCommand>>,
        source: &KernelSource,
        context: &ProgramContext<'_>,
    ) -> Result<DeviceProgram> {
        let lowered =
            LoweredProgram { work: lowered, source: source.clone(), assertions: DeviceAssertions::new() };
        DeviceProgram::load_lowered(list, lowered, context)
    }

    fn load_lowered(
        list: &[ExecutableStep],
        lowered: LoweredProgram,
        context: &ProgramContext<'_>,
    ) -> Result<DeviceProgram> {
        let LoweredProgram { work: lowered, source, assertions } = lowered;
        let text: Arc<str> = source.text().into();
        let module = match context.settled.filter(|choices| choices.text == text) {
            Some(choices) => choices.module.clone(),
            None if source.is_empty() => None,
            None => {
                let code = compile(&source, context.device.capability())?;
                Some(Arc::new(Module::load(context.device, &code)?))
            }
        };
        let products = lowered
            .iter()
            .flatten()
            .filter_map(|w| if let GpuCommand::Gemm(g) = w { Some(*g) } else { None });
        let products: Vec<_> = products.collect();
        let product_choices = context.settled.map(|product_choices| &product_choices.products);
        let (products, chosen) = gemm_search::prepare(
            product_choices,
            context.search,
            context.device,
            context.machine,
            &products,
        )?;
        let products = products.into_iter();
        let functions = RefCell::default();
        let mut loader =
            WorkLoader { module: module.as_deref(), functions, products, attentions: vec![].into_iter() };
        let (prepared, attentions) = loader.choose_attentions(&lowered, context)?;
        loader.attentions = prepared.into_iter();
        let mut steps: Vec<LoadedStep> = Vec::with_capacity(lowered.len());
        for (step, commands) in list.iter().zip(lowered) {
            let mut work = Vec::with_capacity(commands.len());
            for command in commands {
                work.extend(loader.load_command(command)?);
            }
            for &earlier in &step.waits {
                if let Some(earlier) = steps.get_mut(earlier) {
                    earlier.is_awaited = true;
                }
            }
            steps.push(LoadedStep { lane: step.lane, waits: step.waits.clone(), is_awaited: false, work });
        }
        let workspace = context.machine.workspace;
        drop(loader);
        let choices = ProgramChoices { products: chosen, attentions, module, text };
        let uses = PortUses::from_steps(&steps, context.bases.0.len());
        let pieces = steps.iter().map(|step| step.work.len()).sum();
        Ok(DeviceProgram { steps, assertions, workspace, settled: choices, pieces, uses })
    }

    pub fn choices(&self) -> &ProgramChoices {
        &self.settled
    }

    pub fn record(
        &self,
        bases: PortBases<'_>,
        lanes: &LaneStreams,
        nccl: &Communicators,
        runs: u32,
    ) -> Result<ExecutableGraph> {
        lanes.compute.capture(|| (0..runs).try_for_each(|_| self.enqueue(bases, lanes, nccl)))
    }

    pub fn assertions(&self) -> &DeviceAssertions {
        &self.assertions
    }

    /// Enqueues one run with ports at these bases. The run begins after earlier work in the compute stream,
    /// and later work in that stream begins after the run.
    pub fn enqueue(&self, bases: PortBases<'_>, lanes: &LaneStreams, nccl: &Communicators) -> Result<()> {
        self.enqueue_with(lanes, &mut |_, work, stream, start| {
            self.enqueue_work(work, bases, stream, start, nccl)
        })
    }

    /// Enqueues one run by calling `put` for each piece of work.
    fn enqueue_with(&self, lanes: &LaneStreams, put: Put<'_>) -> Result<()> {
        let uses_comm = self.steps.iter().any(|s| s.lane == Lane::Comm);
        if uses_comm {
            let start = Event::new()?;
            start.record(&lanes.compute)?;
            lanes.comm.wait(&start)?;
        }
        let mut ends: Vec<Option<Event>> = self.steps.iter().map(|_| None).collect();
        let mut starts = [LaunchOrder::After; 2];
        for (index, step) in self.steps.iter().enumerate() {
            let stream = lanes.stream_of(step.lane);
            let start = &mut starts[usize::from(step.lane == Lane::Comm)];
            for event in step.waits.iter().filter_map(|&w| ends[w].as_ref()) {
                stream.wait(event)?;
                *start = LaunchOrder::After;
            }
            for (number, work) in step.work.iter().enumerate() {
                put(WorkId { step: index, index: number }, work, stream, *start)?;
                *start = work.next_start();
            }
            if step.is_awaited {
                let end = Event::new()?;
                end.record(stream)?;
                ends[index] = Some(end);
            }
        }
        if uses_comm {
            let end = Event::new()?;
            end.record(&lanes.comm)?;
            lanes.compute.wait(&end)?;
        }
        Ok(())
    }

    /// Enqueues one run on the streams without a graph, with an event before and after each step. The time
    /// between the two events of a step is its time on the device. Steps begin later than in a graph, because
    /// the host launches them one by one.
    pub fn enqueue_timed(
        &self,
        bases: PortBases<'_>,
        lanes: &LaneStreams,
        nccl: &Communicators,
    ) -> Result<Vec<[Event; 2]>> {
        // Steps of the communication lane also begin after earlier work in the compute stream.
        let start = Event::new()?;
        start.record(&lanes.compute)?;
        lanes.comm.wait(&start)?;
        let mut events: Vec<[Event; 2]> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let stream = lanes.stream_of(step.lane);
            for &wait in &step.waits {
                stream.wait(&events[wait][1])?;
            }
            let pair = [Event::timed()?, Event::timed()?];
            pair[0].record(stream)?;
            for work in &step.work {
                self.enqueue_work(work, bases, stream, LaunchOrder::After, nccl)?;
            }
            pair[1].record(stream)?;
            events.push(pair);
        }
        if let Some(last) = self.steps.iter().rposition(|s| s.lane == Lane::Comm) {
            lanes.compute.wait(&events[last][1])?;
        }
        Ok(events)
    }

    fn enqueue_work(
        &self,
        work: &LoadedWork,
        bases: PortBases<'_>,
        stream: &Stream,
        start: LaunchOrder,
        nccl: &Communicators,
    ) -> Result<()> {
        match work {
            // SAFETY: the work was made for memory that the checked plan lays out, or that is bound for it.
            LoadedWork::Kernel(function, kernel) => unsafe { stream.launch(*function, kernel, bases, start) },
            LoadedWork::Copy { to, from, bytes } => {
                // SAFETY: as above.
                unsafe { stream.copy(to.resolve(bases), from.resolve(bases), *bytes) }
            }
            // SAFETY: as above; progress words are pinned memory of the session.
            LoadedWork::Store { at, word } => unsafe { stream.store(at.resolve(bases), *word) },
            // SAFETY: as above.
            LoadedWork::Zero { at, bytes } => unsafe { stream.fill(at.resolve(bases), 0, *bytes) },
            // SAFETY: as above.
            LoadedWork::Gemm(gemm) => unsafe { gemm.run(stream, self.workspace, bases) },
            // SAFETY: as above.
            LoadedWork::Attention(attention) => unsafe { attention.run(stream, bases) },
            // SAFETY: as above.
            LoadedWork::Nccl(call) => unsafe { nccl.run(call, stream, bases) },
        }
    }
}

/// Enqueues a piece of work on a stream.
type Put<'p> = &'p mut dyn FnMut(WorkId, &LoadedWork, &Stream, LaunchOrder) -> Result<()>;

struct WorkLoader<'a> {
    module: Option<&'a Module>,
    functions: RefCell<IndexMap<(String, u32), Function>>,
    /// The matrix products, in the order of the work.
    products: std::vec::IntoIter<PreparedGemm>,
    /// For each attention that the library can compute, in the order of the work: the prepared call, or
    /// `None` if kernels compute it.
    attentions: std::vec::IntoIter<Option<cudnn::PreparedAttention>>,
}

impl WorkLoader<'_> {
    /// Chooses the implementation of each attention that the library can compute.
    fn choose_attentions(
        &self,
        lowered: &[Vec<GpuCommand>],
        context: &ProgramContext<'_>,
    ) -> Result<(Vec<Option<cudnn::PreparedAttention>>, attention_choice::AttentionChoices)> {
        let candidates: Vec<&AttentionCandidates> = lowered
            .iter()
            .flatten()
            .filter_map(|command| match command {
                GpuCommand::Attention(candidates) => Some(&**candidates),
                _ => None,
            })
            .collect();
        attention_choice::choose_attentions(
            context.settled.map(|choices| &choices.attentions),
            context.search,
            context.device,
            context.machine,
            &candidates,
            &|kernel: &KernelLaunch, start| match context.search {
                // SAFETY: the kernel was generated for memory that the checked plan lays out.
                Some(search) => unsafe {
                    search.stream.launch(self.function(kernel)?, kernel, search.bases, start)
                },
                None => Ok(()),
            },
        )
    }

    /// Loads a command: one piece of work, or several for an attention.
    fn load_command(&mut self, command: GpuCommand) -> Result<Vec<LoadedWork>> {
        let ready = match command {
            GpuCommand::Kernel(kernel) => self.load_kernel(kernel)?,
            GpuCommand::Gemm(gemm) => {
                let Some(prepared) = self.products.next() else {
                    return Err(CudaError::Unsupported(format!("{gemm:?} was not prepared")));
                };
                LoadedWork::Gemm(prepared)
            }
            GpuCommand::Attention(candidates) => return self.load_attention(*candidates),
            GpuCommand::Copy { to, from, bytes } => LoadedWork::Copy { to, from, bytes },
            GpuCommand::Store { at, word } => LoadedWork::Store { at, word },
            GpuCommand::Zero { at, bytes } => LoadedWork::Zero { at, bytes },
            GpuCommand::Nccl(call) => LoadedWork::Nccl(call),
        };
        Ok(vec![ready])
    }

    /// Loads the candidate that was chosen for an attention.
    fn load_attention(&mut self, candidates: AttentionCandidates) -> Result<Vec<LoadedWork>> {
        let Some(prepared) = self.attentions.next().flatten() else {
            return candidates.kernels.into_iter().map(|kernel| self.load_kernel(kernel)).collect();
        };
        let mut work = Vec::new();
        if let Some(kernel) = candidates.numbers {
            work.push(self.load_kernel(kernel)?);
        }
        work.push(LoadedWork::Attention(prepared));
        if let Some(kernel) = candidates.amend {
            work.push(self.load_kernel(kernel)?);
        }
        Ok(work)
    }

    fn load_kernel(&self, kernel: KernelLaunch) -> Result<LoadedWork> {
        Ok(LoadedWork::Kernel(self.function(&kernel)?, kernel))
    }

    fn function(&self, kernel: &KernelLaunch) -> Result<Function> {
        let key = (kernel.entry.clone(), kernel.shared);
        if let Some(function) = self.functions.borrow().get(&key) {
            return Ok(*function);
        }
        let Some(module) = self.module else {
            return Err(CudaError::Compile { detail: format!("kernel {} was not generated", kernel.entry) });
        };
        let function = module.function(&kernel.entry, kernel.shared)?;
        self.functions.borrow_mut().insert(key, function);
        Ok(function)
    }
}
