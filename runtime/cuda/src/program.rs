//! A program on one device: from resolved steps to a graph that replays with no work of the host.
//!
//! [`order`] says which stream runs each step; one that the other stream waits for is an event. A kernel behind
//! another one in its stream is launched early, and waits within.

use std::cell::RefCell;
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_planner::plan::Lane;
use symmc_runtime::RunError;
use symmc_runtime::exec::{BoundStep, Work as StepWork};

use crate::adopt::LentStream;
use crate::collective::{self, Peers, follow};
use crate::compile::{Source, compile};
use crate::compute::choice;
use crate::compute::fuse::{self, Member};
use crate::compute::fused::Candidates;
use crate::compute::gemm::Prepared;
use crate::compute::products;
use crate::compute::rotary;
use crate::compute::search::{self, Search};
use crate::compute::twins;
use crate::compute::{self, Machine, Sites};
use crate::cudnn;
use crate::driver::{Device, Event, Function, Graph, Module, Stream};
use crate::error::CudaError;
use crate::homes::Homes;
use crate::launch::{Address, Kernel, Start, Work};
use crate::nccl::{Communicators, Front, NcclCall};
use crate::order::{self, Turn};

/// What a program runs with on its rank.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The GPU.
    pub device: &'a Arc<Device>,
    /// Where everything lies.
    pub homes: &'a Homes,
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
pub struct Program {
    steps: Vec<Step>,
    /// Where data can be out of range.
    sites: Sites,
    /// Memory for one matrix product at a time.
    workspace: Address,
    /// What was chosen for it, with the module that the functions of the steps belong to.
    settled: Settled,
}

/// A step with everything looked up.
struct Step {
    turn: Turn,
    work: Vec<Ready>,
}

enum Ready {
    Kernel(Function, Kernel),
    Gemm(Prepared),
    Attention(cudnn::Prepared),
    Copy { to: u64, from: u64, bytes: usize },
    Store { at: u64, word: u32 },
    Zero { at: u64, bytes: usize },
    Nccl(NcclCall),
}

impl Ready {
    /// When a kernel behind this in its stream may start: early only behind kernels that let it.
    fn next(&self) -> Start {
        match self {
            // The library's attention lets it when it ends.
            Ready::Kernel(..) | Ready::Attention(_) => Start::Early,
            Ready::Gemm(_)
            | Ready::Copy { .. }
            | Ready::Store { .. }
            | Ready::Zero { .. }
            | Ready::Nccl(_) => Start::After,
        }
    }
}

impl Program {
    /// Compiles and loads the steps of a rank.
    ///
    /// # Errors
    /// A step has no form on a GPU, or a library that it needs is missing.
    pub fn new(rank: u32, list: &[BoundStep], parts: &Parts<'_>) -> Result<Program, CudaError> {
        let (mut source, mut sites) = (Source::new(), Sites::new());
        let turns = order::turns(list);
        let fused = together(list, &turns, parts, &mut source, &mut sites);
        let done: Vec<usize> =
            fused.iter().enumerate().map(|(place, f)| f.as_ref().map_or(place, |f| f.done)).collect();
        let mut lowered = Vec::with_capacity(list.len());
        for (step, fused) in list.iter().zip(fused) {
            lowered.push(match fused {
                Some(fused) => fused.work,
                None => lower(rank, step, parts, &mut source, &mut sites)?,
            });
        }
        let arena = parts.homes.symmetric..parts.homes.symmetric + parts.peers.arena as Address;
        let private = |value: &_| !arena.contains(&parts.homes.at(value));
        twins::join(list, &done, &private, &mut lowered);
        Program::load(turns, lowered, (&source, sites), parts)
    }

    /// Compiles and loads work that is lowered already. `list` says how it is ordered.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_work(
        list: &[BoundStep],
        lowered: Vec<Vec<Work>>,
        source: &Source,
        parts: &Parts<'_>,
    ) -> Result<Program, CudaError> {
        Program::load(order::turns(list), lowered, (source, Sites::new()), parts)
    }

    fn load(
        turns: Vec<Turn>,
        lowered: Vec<Vec<Work>>,
        (source, sites): (&Source, Sites),
        parts: &Parts<'_>,
    ) -> Result<Program, CudaError> {
        let text: Arc<str> = source.text().into();
        let module = match parts.settled.filter(|settled| settled.text == text) {
            Some(settled) => settled.module.clone(),
            None if source.is_empty() => None,
            None => {
                let code = compile(source, parts.device.capability())?;
                Some(Arc::new(Module::load(parts.device, &code)?))
            }
        };
        let products =
            lowered.iter().flatten().filter_map(|w| if let Work::Gemm(g) = w { Some(*g) } else { None });
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
        for (turn, work) in turns.into_iter().zip(lowered) {
            let work = work.into_iter().map(|w| loader.ready(w)).collect::<Result<Vec<_>, _>>()?;
            steps.push(Step { turn, work: work.into_iter().flatten().collect() });
        }
        let workspace = parts.machine.workspace;
        drop(loader);
        let settled = Settled { products: chosen, attentions, module, text };
        Ok(Program { steps, sites, workspace, settled })
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
    pub fn sites(&self) -> &Sites {
        &self.sites
    }

    /// Puts one run on the streams. It begins after what the compute stream holds, and what is put there next
    /// begins after it.
    ///
    /// # Errors
    /// The driver refuses a launch.
    pub fn enqueue(&self, lanes: &Streams, nccl: &Communicators) -> Result<(), CudaError> {
        let both = self.steps.iter().any(|s| s.turn.stream == Lane::Comm);
        if both {
            let start = Event::new()?;
            start.record(&lanes.compute)?;
            lanes.comm.wait(&start)?;
        }
        let mut ends: Vec<Option<Event>> = self.steps.iter().map(|_| None).collect();
        let mut starts = [Start::After; 2];
        for (index, step) in self.steps.iter().enumerate() {
            let stream = lanes.of(step.turn.stream);
            let start = &mut starts[usize::from(step.turn.stream == Lane::Comm)];
            for event in step.turn.waits.iter().filter_map(|&w| ends[w].as_ref()) {
                stream.wait(event)?;
                *start = Start::After;
            }
            for work in &step.work {
                self.put(work, stream, *start, nccl)?;
                *start = work.next();
            }
            if step.turn.awaited {
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
            let stream = lanes.of(step.turn.stream);
            for &wait in &step.turn.waits {
                stream.wait(&events[wait][1])?;
            }
            let pair = [Event::timed()?, Event::timed()?];
            pair[0].record(stream)?;
            for work in &step.work {
                self.put(work, stream, Start::After, nccl)?;
            }
            pair[1].record(stream)?;
            events.push(pair);
        }
        if let Some(last) = self.steps.iter().rposition(|s| s.turn.stream == Lane::Comm) {
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

/// What a step becomes that is done with others in one kernel.
struct Fused {
    /// The last of them, in whose place all is done.
    done: usize,
    /// The work, if this is the last; nothing otherwise.
    work: Vec<Work>,
}

/// Has all steps at `places` done in place of the last.
fn fuse_into(out: &mut [Option<Fused>], places: &[usize], work: Vec<Work>) {
    let Some(&done) = places.last() else { return };
    places.iter().for_each(|&place| out[place] = Some(Fused { done, work: Vec::new() }));
    out[done] = Some(Fused { done, work });
}

/// The steps that are done several in one kernel. `None` for steps that are done by themselves.
fn together(
    list: &[BoundStep],
    turns: &[Turn],
    parts: &Parts<'_>,
    source: &mut Source,
    sites: &mut Sites,
) -> Vec<Option<Fused>> {
    let mut out: Vec<Option<Fused>> = list.iter().map(|_| None).collect();
    let at = |value: &_| parts.homes.at(value);
    // What does not fit together is done, or refused with its name, step by step.
    for all in follow::find(list, turns) {
        for all in [Some(all), all.without_norm()].into_iter().flatten() {
            if let Ok(Some(work)) = follow::lower(list, &all, parts.homes, parts.peers, source) {
                fuse_into(&mut out, &all.places(), vec![work]);
                break;
            }
        }
    }
    let mut groups = fuse::groups(list);
    groups.retain(|g| g.steps.iter().all(|&s| out[s].is_none()));
    for whole in products::find(list, &groups) {
        let places = whole.places();
        let free = places.iter().all(|&p| out[p].is_none());
        let work = products::lower(list, &whole, &at, parts.machine, source, sites);
        if let (true, Ok(Some(work))) = (free, work) {
            fuse_into(&mut out, &places, vec![work]);
        }
    }
    for places in rotary::groups(list) {
        let steps: Vec<_> = places.iter().filter_map(|&p| fuse::compute_step(&list[p])).collect();
        let free = places.iter().all(|&p| out[p].is_none());
        let work = rotary::lower_together(&steps, &at, parts.machine, source, sites);
        if let (true, Ok(work)) = (free, work) {
            fuse_into(&mut out, &places, work);
        }
    }
    let member =
        |(&place, &stored): (&usize, &bool)| Some(Member { step: fuse::compute_step(&list[place])?, stored });
    for group in groups.iter().filter(|g| g.steps.iter().all(|&s| out[s].is_none())).collect::<Vec<_>>() {
        let members: Vec<_> = group.steps.iter().zip(&group.stored).filter_map(member).collect();
        let work = fuse::lower_fused(&members, &at, parts.machine, source, sites);
        if let Ok(Some(work)) = work {
            fuse_into(&mut out, &group.steps, work);
        }
    }
    out
}

/// What a step becomes.
fn lower(
    rank: u32,
    step: &BoundStep,
    parts: &Parts<'_>,
    source: &mut Source,
    sites: &mut Sites,
) -> Result<Vec<Work>, CudaError> {
    let failed = |error| match error {
        CudaError::Unsupported(detail) => CudaError::Run(RunError::Step {
            rank,
            step: step.index,
            node: step.node.clone(),
            op: step.op_name.clone(),
            detail,
        }),
        error => error,
    };
    match &step.work {
        StepWork::Kernel { op, operands, results } => {
            let at = |value: &_| parts.homes.at(value);
            let step = compute::Step { index: step.index, op, operands, results };
            compute::lower(&step, &at, parts.machine, source, sites).map_err(failed)
        }
        StepWork::Collective(call) => {
            let number = call.cell.iter().position(|&r| r == rank).unwrap_or(0);
            let ends = parts.homes.ends(call);
            match collective::lower(step.index, call, &ends, parts.peers, source).map_err(failed)? {
                Some(work) => Ok(work),
                None => {
                    let word = step.index as u32 + 1;
                    let front = Front { told: parts.progress, unread: collective::unread(parts.peers), word };
                    parts.nccl.lower(call, number, [ends.operand, ends.result], front).map_err(failed)
                }
            }
        }
        StepWork::Custom { name, .. } => {
            Err(failed(CudaError::Unsupported(format!("the custom op {name} has no kernel for GPUs"))))
        }
    }
}

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
        lowered: &[Vec<Work>],
        parts: &Parts<'_>,
    ) -> Result<(Vec<Option<cudnn::Prepared>>, choice::Settled), CudaError> {
        let all: Vec<&Candidates> = lowered
            .iter()
            .flatten()
            .filter_map(|w| if let Work::Attention(of) = w { Some(&**of) } else { None })
            .collect();
        let launch = |kernel: &Kernel, start| match parts.search {
            // SAFETY: the kernel was generated for memory that the checked plan lays out.
            Some(search) => unsafe { search.stream.launch(self.function(kernel)?, kernel, start) },
            None => Ok(()),
        };
        let settled = parts.settled.map(|settled| &settled.attentions);
        choice::attentions(settled, parts.search, parts.device, parts.machine, &all, &launch)
    }

    fn ready(&mut self, work: Work) -> Result<Vec<Ready>, CudaError> {
        Ok(vec![match work {
            Work::Kernel(kernel) => Ready::Kernel(self.function(&kernel)?, kernel),
            Work::Gemm(gemm) => {
                let missing = || CudaError::Unsupported(format!("{gemm:?} was not prepared"));
                Ready::Gemm(self.products.next().ok_or_else(missing)?)
            }
            Work::Attention(of) => {
                let prepared = self.attentions.next().flatten();
                let ready = |kernel| Ok(Ready::Kernel(self.function(&kernel)?, kernel));
                let Some(prepared) = prepared else {
                    return of.own.into_iter().map(ready).collect();
                };
                let (numbers, amend) = (of.numbers.map(ready), of.amend.map(ready));
                return numbers.into_iter().chain([Ok(Ready::Attention(prepared))]).chain(amend).collect();
            }
            Work::Copy { to, from, bytes } => Ready::Copy { to, from, bytes },
            Work::Store { at, word } => Ready::Store { at, word },
            Work::Zero { at, bytes } => Ready::Zero { at, bytes },
            Work::Nccl(call) => Ready::Nccl(call),
        }])
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

/// The streams of a rank.
#[derive(Debug)]
pub struct Streams {
    /// The compute lane; runs begin and end here.
    pub compute: Stream,
    /// The communication lane.
    pub comm: Stream,
}

impl Streams {
    /// One stream for each lane. What communicates goes first, because peers wait for it.
    pub fn new(device: &Arc<Device>) -> Result<Streams, CudaError> {
        Ok(Streams { compute: Stream::new(device)?, comm: Stream::urgent(device)? })
    }

    /// The caller's stream for the compute lane, if there is one, and new ones otherwise.
    pub fn with(device: &Arc<Device>, lent: Option<LentStream>) -> Result<Streams, CudaError> {
        match lent {
            Some(lent) => Ok(Streams { compute: Stream::adopt(device, lent), comm: Stream::urgent(device)? }),
            None => Streams::new(device),
        }
    }

    fn of(&self, lane: Lane) -> &Stream {
        match lane {
            Lane::Compute => &self.compute,
            Lane::Comm => &self.comm,
        }
    }
}
