//! A program on one device: from resolved steps to a graph that replays with no work of the host.
//!
//! `order.rs` says which stream runs each step; one that the other stream waits for is an event. A kernel behind
//! another one in its stream is launched by programmatic dependent launch (PDL), and waits within.
//!
//! A program is made for memory at some addresses. What of it changes where inputs and outputs lie elsewhere it knows if
//! it is asked to (`relocated`).

mod item;
mod relocated;

use std::cell::RefCell;
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_plan::Lane;
use symmc_runtime::exec::BoundStep;

use crate::addresses::AddressMap;
use crate::collective::Peers;
use crate::command::Command;
use crate::compile::{Source, compile};
use crate::compute::fused::Candidates;
use crate::compute::gemm::Prepared;
use crate::compute::search::{self, Search};
use crate::compute::{Assertions, Machine, choice};
use crate::driver::{Device, Event, Function, Graph, Module, Stream};
use crate::error::CudaError;
use crate::launch::{Address, Kernel, Start};
use crate::lowered::Lowered;
use crate::nccl::Communicators;
use crate::order;
use crate::relocation::{Relocation, Relocations, Shifted};
use crate::setting::{Distances, Setting};
use crate::streams::Streams;
use crate::{agreement, cudnn};

use self::item::{Item, LoadedStep, Ready, Split, Touching};
pub use self::item::{Nodes, Place};

/// What a program runs with on its rank.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The GPU.
    pub device: &'a Arc<Device>,
    /// Where everything lies.
    pub addresses: &'a AddressMap,
    /// The peers' memory.
    pub peers: &'a Peers,
    /// What compute steps are lowered for.
    pub machine: &'a Machine,
    /// The communicators of the library's own collectives.
    pub nccl: &'a Communicators,
    /// How algorithms of matrix products are chosen; the heuristic's first without.
    pub search: Option<&'a Search<'a>>,
    /// What was chosen for the same steps in other memory, which is chosen again without a search.
    pub settled: Option<&'a Settled>,
    /// A word that holds one more than the step of the library's last collective that began, if anybody asks.
    pub progress: Option<Address>,
    /// How far the memories of inputs and outputs are apart.
    pub distances: Distances,
    /// The same memory with inputs and outputs elsewhere, if these may move.
    pub shifted: Option<&'a Shifted>,
}

impl Parts<'_> {
    fn setting<'p>(&'p self, addresses: &'p AddressMap) -> Setting<'p> {
        let Parts { peers, machine, nccl, progress, distances, .. } = *self;
        Setting { addresses, peers, machine, nccl, progress, distances }
    }
}

/// What was chosen when a program was made. Programs of the same steps in other memory are made by it without their peers.
#[derive(Clone)]
pub struct Settled {
    products: search::Settled,
    attentions: choice::Settled,
    module: Option<Arc<Module>>,
    /// What the module was compiled from.
    text: Arc<str>,
}

impl std::fmt::Debug for Settled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settled").finish_non_exhaustive()
    }
}

/// A program that is compiled and loaded.
pub struct DeviceProgram {
    steps: Vec<LoadedStep>,
    /// Where data can be out of range.
    assertions: Assertions,
    /// Memory for one matrix product at a time.
    workspace: Address,
    /// What was chosen for it, with the module that the functions of the steps belong to.
    settled: Settled,
    touching: Touching,
}

impl DeviceProgram {
    /// Compiles and loads the steps of a rank.
    ///
    /// # Errors
    /// A step has no form on a GPU, or a library that it needs is missing.
    pub fn new(rank: u32, list: &[BoundStep], parts: &Parts<'_>) -> Result<DeviceProgram, CudaError> {
        let lowered = Lowered::new(rank, list, &parts.setting(parts.addresses))?;
        if let (Some(search), None) = (parts.search, parts.settled) {
            agreement::agreed(list, &lowered.alike(list), search.exchange)?;
        }
        let relocations = match parts.shifted {
            Some(shifted) => {
                let other = Lowered::new(rank, list, &parts.setting(shifted.addresses()))?;
                Relocations::find(&lowered, parts.addresses, &other, shifted)
            }
            None => None,
        };
        DeviceProgram::load(lowered, relocations, parts)
    }

    /// Compiles and loads work that is lowered already. `list` says how it is ordered.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_work(
        list: &[BoundStep],
        lowered: Vec<Vec<Command>>,
        source: &Source,
        parts: &Parts<'_>,
    ) -> Result<DeviceProgram, CudaError> {
        let (assigned, source) = (order::assign(list), source.clone());
        DeviceProgram::load(
            Lowered { assigned, work: lowered, source, assertions: Assertions::new() },
            None,
            parts,
        )
    }

    fn load(
        lowered: Lowered,
        relocations: Option<Relocations>,
        parts: &Parts<'_>,
    ) -> Result<DeviceProgram, CudaError> {
        let Lowered { assigned, work: lowered, source, assertions } = lowered;
        let text: Arc<str> = source.text().into();
        let module = match parts.settled.filter(|settled| settled.text == text) {
            Some(settled) => settled.module.clone(),
            None if source.is_empty() => None,
            None => {
                let code = compile(&source, parts.device.capability())?;
                Some(Arc::new(Module::load(parts.device, &code)?))
            }
        };
        let products =
            lowered.iter().flatten().filter_map(|w| if let Command::Gemm(g) = w { Some(*g) } else { None });
        let products: Vec<_> = products.collect();
        let settled = parts.settled.map(|settled| &settled.products);
        let (products, chosen) =
            search::prepare(settled, parts.search, parts.device, parts.machine, &products)?;
        let products = products.into_iter();
        let functions = RefCell::default();
        let mut loader =
            Loader { module: module.as_deref(), functions, products, attentions: vec![].into_iter() };
        let (prepared, attentions) = loader.choose(&lowered, parts)?;
        loader.attentions = prepared.into_iter();
        let mut steps = Vec::with_capacity(lowered.len());
        for (place, (on, work)) in assigned.into_iter().zip(lowered).enumerate() {
            let found = relocations.as_ref().and_then(|r| r.of_work.get(place));
            let mut items = Vec::with_capacity(work.len());
            for (number, work) in work.into_iter().enumerate() {
                let found = found.and_then(|place| place.get(number));
                items.extend(loader.ready(work, found.map_or(&[], Vec::as_slice))?);
            }
            steps.push(LoadedStep { on, work: items });
        }
        let workspace = parts.machine.workspace;
        drop(loader);
        let settled = Settled { products: chosen, attentions, module, text };
        let touching = Touching::of(&steps, relocations.map(|r| r.fixed));
        Ok(DeviceProgram { steps, assertions, workspace, settled, touching })
    }

    /// What was chosen for it.
    pub fn settled(&self) -> &Settled {
        &self.settled
    }

    /// Records `runs` runs, one after another, into one graph.
    ///
    /// # Errors
    /// The driver refuses a launch.
    pub fn record(&self, lanes: &Streams, nccl: &Communicators, runs: u32) -> Result<Graph, CudaError> {
        lanes.compute.capture(|| (0..runs).try_for_each(|_| self.enqueue(lanes, nccl)))
    }

    /// Where data can be out of range.
    pub fn assertions(&self) -> &Assertions {
        &self.assertions
    }

    /// Puts one run on the streams. It begins after what the compute stream holds, and what is put there next
    /// begins after it.
    ///
    /// # Errors
    /// The driver refuses a launch.
    pub fn enqueue(&self, lanes: &Streams, nccl: &Communicators) -> Result<(), CudaError> {
        self.enqueue_by(lanes, &mut |_, item, stream, start| self.put(&item.ready, stream, start, nccl))
    }

    /// The same by who puts each piece of work there.
    fn enqueue_by(&self, lanes: &Streams, put: Put<'_>) -> Result<(), CudaError> {
        let both = self.steps.iter().any(|s| s.on.stream == Lane::Comm);
        if both {
            let start = Event::new()?;
            start.record(&lanes.compute)?;
            lanes.comm.wait(&start)?;
        }
        let mut ends: Vec<Option<Event>> = self.steps.iter().map(|_| None).collect();
        let mut starts = [Start::After; 2];
        for (index, step) in self.steps.iter().enumerate() {
            let stream = lanes.of(step.on.stream);
            let start = &mut starts[usize::from(step.on.stream == Lane::Comm)];
            for event in step.on.waits.iter().filter_map(|&w| ends[w].as_ref()) {
                stream.wait(event)?;
                *start = Start::After;
            }
            for (number, item) in step.work.iter().enumerate() {
                put(Place { step: index, number }, item, stream, *start)?;
                *start = item.ready.next();
            }
            if step.on.awaited {
                let end = Event::new()?;
                end.record(stream)?;
                ends[index] = Some(end);
            }
        }
        if both {
            let end = Event::new()?;
            end.record(&lanes.comm)?;
            lanes.compute.wait(&end)?;
        }
        Ok(())
    }

    /// Puts one run on the streams, not as a graph, with an event before and after each step. What lies between
    /// the two events of a step is its time on the device; steps begin later than in a graph, because the host
    /// launches them one by one.
    ///
    /// # Errors
    /// The driver refuses a launch.
    pub fn enqueue_timed(&self, lanes: &Streams, nccl: &Communicators) -> Result<Vec<[Event; 2]>, CudaError> {
        let mut events: Vec<[Event; 2]> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let stream = lanes.of(step.on.stream);
            for &wait in &step.on.waits {
                stream.wait(&events[wait][1])?;
            }
            let pair = [Event::timed()?, Event::timed()?];
            pair[0].record(stream)?;
            for item in &step.work {
                self.put(&item.ready, stream, Start::After, nccl)?;
            }
            pair[1].record(stream)?;
            events.push(pair);
        }
        if let Some(last) = self.steps.iter().rposition(|s| s.on.stream == Lane::Comm) {
            lanes.compute.wait(&events[last][1])?;
        }
        Ok(events)
    }

    fn put(
        &self,
        work: &Ready,
        stream: &Stream,
        start: Start,
        nccl: &Communicators,
    ) -> Result<(), CudaError> {
        match work {
            // SAFETY: the work was made for memory that the checked plan lays out.
            Ready::Kernel(function, kernel) => unsafe { stream.launch(*function, kernel, start) },
            // SAFETY: as above.
            Ready::Copy { to, from, bytes } => unsafe { stream.copy(*to, *from, *bytes) },
            // SAFETY: as above; words of progress are pinned memory of the session.
            Ready::Store { at, word } => unsafe { stream.store(*at, *word) },
            // SAFETY: as above.
            Ready::Zero { at, bytes } => unsafe { stream.fill(*at, 0, *bytes) },
            // SAFETY: as above.
            Ready::Gemm(gemm) => unsafe { gemm.run(stream, self.workspace) },
            // SAFETY: as above.
            Ready::Attention(attention) => unsafe { attention.run(stream) },
            // SAFETY: as above.
            Ready::Nccl(call) => unsafe { nccl.run(call, stream) },
        }
    }
}

/// Puts a piece of work on a stream.
type Put<'p> = &'p mut dyn FnMut(Place, &Item, &Stream, Start) -> Result<(), CudaError>;

/// Looks up what launches name.
struct Loader<'a> {
    module: Option<&'a Module>,
    functions: RefCell<IndexMap<(String, u32), Function>>,
    /// The matrix products, in the order of the work.
    products: std::vec::IntoIter<Prepared>,
    /// The attentions that the library may compute, in the order of the work; `None` for those that kernels do.
    attentions: std::vec::IntoIter<Option<cudnn::Prepared>>,
}

impl Loader<'_> {
    /// Who computes each attention that the library may.
    fn choose(
        &self,
        lowered: &[Vec<Command>],
        parts: &Parts<'_>,
    ) -> Result<(Vec<Option<cudnn::Prepared>>, choice::Settled), CudaError> {
        let all: Vec<&Candidates> = lowered
            .iter()
            .flatten()
            .filter_map(|w| if let Command::Attention(of) = w { Some(&**of) } else { None })
            .collect();
        let launch = |kernel: &Kernel, start| match parts.search {
            // SAFETY: the kernel was generated for memory that the checked plan lays out.
            Some(search) => unsafe { search.stream.launch(self.function(kernel)?, kernel, start) },
            None => Ok(()),
        };
        let settled = parts.settled.map(|settled| &settled.attentions);
        choice::attentions(settled, parts.search, parts.device, parts.machine, &all, &launch)
    }

    fn ready(&mut self, work: Command, found: &[Relocation]) -> Result<Vec<Item>, CudaError> {
        let ready = match work {
            Command::Kernel(kernel) => Ready::Kernel(self.function(&kernel)?, kernel),
            Command::Gemm(gemm) => {
                let missing = || CudaError::Unsupported(format!("{gemm:?} was not prepared"));
                Ready::Gemm(self.products.next().ok_or_else(missing)?)
            }
            Command::Attention(of) => return self.attention(*of, Split::of(found)),
            Command::Copy { to, from, bytes } => Ready::Copy { to, from, bytes },
            Command::Store { at, word } => Ready::Store { at, word },
            Command::Zero { at, bytes } => Ready::Zero { at, bytes },
            Command::Nccl(call) => Ready::Nccl(call),
        };
        Ok(vec![Item { ready, relocations: found.into() }])
    }

    /// An attention as was chosen for it.
    fn attention(&mut self, of: Candidates, mut found: Split<'_>) -> Result<Vec<Item>, CudaError> {
        let prepared = self.attentions.next().flatten();
        let kernel = |(relocations, kernel): (_, Kernel)| {
            Ok::<_, CudaError>(Item { ready: Ready::Kernel(self.function(&kernel)?, kernel), relocations })
        };
        let own: Vec<_> = of.own.into_iter().map(|mut k| (found.next(&mut k), k)).collect();
        let Some(prepared) = prepared else { return own.into_iter().map(kernel).collect() };
        let numbers = of.numbers.map(|mut k| (found.next(&mut k), k)).map(kernel);
        let relocations = found.next(&mut { *prepared.attention() });
        let middle = Item { ready: Ready::Attention(prepared), relocations };
        let amend = of.amend.map(|mut k| (found.next(&mut k), k)).map(kernel);
        numbers.into_iter().chain([Ok(middle)]).chain(amend).collect()
    }

    fn function(&self, kernel: &Kernel) -> Result<Function, CudaError> {
        let key = (kernel.entry.clone(), kernel.shared);
        if let Some(function) = self.functions.borrow().get(&key) {
            return Ok(*function);
        }
        let missing = || CudaError::Compile { detail: format!("kernel {} was not generated", kernel.entry) };
        let function = self.module.ok_or_else(missing)?.function(&kernel.entry, kernel.shared)?;
        self.functions.borrow_mut().insert(key, function);
        Ok(function)
    }
}
