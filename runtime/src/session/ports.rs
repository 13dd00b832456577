//! The inputs and outputs of a session: how large they are at the sizes that are set, whose memory they lie in, and what is
//! known of their data.
//!
//! The rules are the same on every device; what memory is, and how data come there, is the device's.

use std::ops::Range;
use std::sync::Arc;

use symmc_ir::{Bindings, Graph, Input, InputId, InputKind, OutputKind};
use symmc_plan::{ALIGN, ReadPlan, Role};

use super::callers::CallersPart;
use super::lending::Lending;
use super::memory::DeviceMemory;
use super::port::{Extent, Port, PortMemory, Storage};
use crate::error::RunError;
use crate::exec::{Bound, Executor, Moved, Placement};
use crate::kernels::Needs;

#[derive(Clone, Debug)]
pub struct SizedProgram {
    pub bound: Arc<Bound>,
    /// What ranks compare before a run.
    pub digest: u32,
    /// The sizes in words, and which inputs lie in symmetric memory of the caller.
    pub text: Arc<str>,
}

/// How many programs with inputs in symmetric memory of the caller are kept.
const KEPT: usize = 64;

/// Memory of the session for an input or output, and what is known of its data.
#[derive(Debug)]
pub struct Held<M> {
    pub memory: Option<Arc<M>>,
    /// Whether the caller wrote it, or was told where to; of a constant, whether it is there.
    pub given: bool,
    /// Whether what the plan holds of it in the symmetric arena is there.
    pub loaded: bool,
}

impl<M> Default for Held<M> {
    fn default() -> Self {
        Held { memory: None, given: false, loaded: false }
    }
}

/// Where an input or output is stored, before there has to be memory for it.
struct Location {
    /// Its holder: the input that an output replaces, if the output is stored in the memory of that input.
    port: Port,
    bytes: usize,
    storage: Storage,
}

/// The device of a session: what the rules of [`Ports`] need of it.
pub trait PortDevice {
    type Memory: DeviceMemory;

    fn ports(&mut self) -> &mut Ports<Self::Memory>;

    /// The symmetric arena. Fails if the session has none now.
    fn arena(&self) -> Result<Extent, RunError>;

    /// Memory of this many bytes for an input or output of this name. It begins with the data of the smaller memory that it
    /// takes the place of. Fails if there is not as much memory, or a run failed.
    fn allocate_port(
        &mut self,
        name: &str,
        bytes: usize,
        smaller: Option<Arc<Self::Memory>>,
    ) -> Result<Self::Memory, RunError>;

    /// The address of a constant's data, where a run finds them. The host reads them with the program, at no address.
    fn constant(&mut self, input: usize, bytes: usize) -> Result<u64, RunError> {
        let _ = (input, bytes);
        Ok(0)
    }

    /// The memory of an input or output at the sizes that are set, allocated if there is none. Fails as
    /// [`Ports::bytes`] and [`allocate_port`](Self::allocate_port), or if memory that the caller bound is too small.
    fn locate(&mut self, port: Port) -> Result<PortMemory, RunError> {
        let Location { port, bytes, storage } = self.ports().location(port)?;
        let address = match (storage, port) {
            (Storage::Caller(address), _) => address,
            (Storage::Program(None), Port::Input(input)) => self.constant(input, bytes)?,
            (Storage::Symmetric(offset) | Storage::Program(Some(offset)), _) => {
                self.arena()?.address + offset as u64
            }
            (Storage::Session | Storage::Program(None), _) => self.own_memory(port, bytes)?,
        };
        Ok(PortMemory { extent: Extent { address, bytes }, storage })
    }

    /// The address of memory of the session's own for an input or output, which has this many bytes.
    fn own_memory(&mut self, port: Port, bytes: usize) -> Result<u64, RunError> {
        let smaller = match &self.ports().held(port).memory {
            Some(memory) if memory.extent().bytes >= bytes => return Ok(memory.extent().address),
            smaller => smaller.clone(),
        };
        let name = self.ports().lending().name(port);
        let memory = Arc::new(self.allocate_port(&name, bytes, smaller)?);
        let address = memory.extent().address;
        self.ports().held_mut(port).memory = Some(memory);
        Ok(address)
    }

    /// As [`locate`](Self::locate), for a caller that may write an input there.
    fn expose(&mut self, port: Port) -> Result<PortMemory, RunError> {
        let memory = self.locate(port)?;
        if let (Port::Input(_), Storage::Session | Storage::Symmetric(_)) = (port, memory.storage) {
            self.ports().held_mut(port).given = true;
        }
        Ok(memory)
    }

    /// As [`expose`](Self::expose), for data of this many bytes that are written now. Fails as
    /// [`expose`](Self::expose), or if the input has another size or is a constant.
    fn expose_for(&mut self, input: usize, bytes: usize) -> Result<Extent, RunError> {
        let port = Port::Input(input);
        let memory = self.expose(port)?;
        self.ports().expect_bytes(port, bytes)?;
        match memory.storage {
            Storage::Program(_) => Err(self.ports().is_constant(port)),
            _ => Ok(memory.extent),
        }
    }
}

/// All inputs and outputs of a session, in memory of the kind `M`.
#[derive(Debug)]
pub struct Ports<M> {
    executor: Executor,
    bindings: Option<Bindings>,
    sized: Option<SizedProgram>,
    /// Programs with inputs in symmetric memory of the caller, the oldest first.
    moved: Vec<SizedProgram>,
    lending: Lending,
    inputs: Vec<Held<M>>,
    outputs: Vec<Held<M>>,
    /// Where the plan holds inputs in the symmetric arena, in any bucket.
    fixed: Vec<Option<Range<usize>>>,
    /// Where they lie in symmetric memory of the caller instead.
    placed: Vec<Option<usize>>,
    callers: CallersPart,
    /// Where the program lies in a session that has or may have others.
    placement: Option<Placement>,
    /// Which inputs may be written there before each run: the plan counts on it that others are before the first alone.
    renewed: Vec<bool>,
}

impl<M> Ports<M> {
    /// Those of the plan of an executor on its rank, of which no data are there yet. `align` as for [`Lending::new`], `callers`
    /// for how many bytes of symmetric memory are the caller's. Fails if the symmetric arena would be larger than any
    /// memory.
    pub fn new(executor: Executor, (align, callers): (usize, usize)) -> Result<Ports<M>, RunError> {
        let (plan, source) = (executor.plan(), executor.source());
        let mut fixed = vec![None; source.inputs.len()];
        for memory in &plan.fixed {
            if let Role::Bound { input } = memory.role
                && let Some(at) = fixed.get_mut(input)
            {
                let place = |at: u64| usize::try_from(at).ok();
                let end = memory.offset.checked_add(memory.size);
                *at = place(memory.offset).zip(end.and_then(place)).map(|(start, end)| start..end);
            }
        }
        Ok(Ports {
            bindings: None,
            sized: None,
            moved: Vec::new(),
            lending: Lending::new(source, align),
            inputs: source.inputs.values().map(|_| Held::default()).collect(),
            outputs: source.outputs.iter().map(|_| Held::default()).collect(),
            placed: vec![None; fixed.len()],
            fixed,
            callers: CallersPart::new(plan, callers)?,
            placement: None,
            renewed: renewed(source),
            executor,
        })
    }

    pub fn plan(&self) -> &ReadPlan {
        self.executor.plan()
    }

    pub fn needs(&mut self) -> [Needs; 2] {
        self.executor.needs()
    }

    /// Has the program lie where a session with several programs has it. What lay in its part of the symmetric arena stays where it
    /// was. Fails if the sizes that are set do not resolve any more.
    pub fn place(&mut self, placement: Placement) -> Result<(), RunError> {
        self.placement = Some(placement);
        self.moved.clear();
        if let Some(bindings) = self.bindings.clone() {
            self.sized = Some(self.program(&bindings)?);
        }
        Ok(())
    }

    /// Sets the values of the imported program's symbols. Fails if no bucket serves them. The sizes stay as they were
    /// then.
    pub fn set(&mut self, bindings: &Bindings) -> Result<(), RunError> {
        self.sized = Some(self.program(bindings)?);
        self.bindings = Some(bindings.clone());
        self.lending.resized();
        Ok(())
    }

    /// The program at these sizes, with inputs where they lie.
    fn program(&mut self, bindings: &Bindings) -> Result<SizedProgram, RunError> {
        let bound = self.executor.bind(bindings)?;
        let mut parts = vec![self.executor.sizes(bindings)];
        // What is kept by this text is never that of another program of the session.
        if let Some(placement) = self.placement.as_ref().filter(|placement| placement.program > 0) {
            parts.insert(0, format!("program {}", placement.program));
        }
        let mut moves = Vec::new();
        for (i, (fixed, placed)) in self.fixed.iter().zip(&self.placed).enumerate() {
            let (Some(from), Some(to)) = (fixed, *placed) else { continue };
            moves.push(Moved { from: from.clone(), to });
            parts.push(format!("{} in symmetric memory at {to}", self.lending.name(Port::Input(i))));
        }
        parts.retain(|part| !part.is_empty());
        let text = parts.join(", ");
        if let Some(known) = self.moved.iter().find(|known| *known.text == *text) {
            return Ok(known.clone());
        }
        let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let digest = text.bytes().fold(0x811c_9dc5, fnv);
        let sized = SizedProgram { bound, digest, text: text.into() };
        let bound = match &self.placement {
            Some(placement) => Arc::new(sized.bound.placed(placement)),
            None if moves.is_empty() => return Ok(sized),
            None => Arc::new(sized.bound.moved(&moves)),
        };
        let sized = SizedProgram { bound, ..sized };
        if self.moved.len() == KEPT {
            self.moved.remove(0);
        }
        self.moved.push(sized.clone());
        Ok(sized)
    }

    /// The program at the sizes that are set. Fails if a symbol has no value.
    pub fn sized(&self) -> Result<&SizedProgram, RunError> {
        let none = || RunError::Invalid("the sizes of the program are not set: a symbol has no value".into());
        self.sized.as_ref().ok_or_else(none)
    }

    /// The bytes of an input or output at the sizes that are set. Fails if a symbol has no value, or there is no such
    /// input or output.
    pub fn bytes(&self, port: Port) -> Result<usize, RunError> {
        let bound = &self.sized()?.bound;
        self.lending.expect(port)?;
        Ok(match port {
            Port::Input(i) => bound.inputs[i].bytes,
            Port::Output(k) => bound.outputs[k].bytes,
        })
    }

    /// Where an input or output is stored. Fails as [`bytes`](Self::bytes), or if memory that the caller bound is too
    /// small.
    fn location(&self, port: Port) -> Result<Location, RunError> {
        let (bytes, bound) = (self.bytes(port)?, &self.sized()?.bound);
        let own = |storage| Ok(Location { port, bytes, storage });
        if let Some(lent) = self.lending.of(port) {
            self.lending.expect_room(port, bytes)?;
            return own(Storage::Caller(lent.address));
        }
        match port {
            Port::Output(k) => match bound.outputs[k].held_by() {
                Some(input) => self.location(Port::Input(input)),
                None => own(Storage::Session),
            },
            Port::Input(i) if bound.constant(i).is_some() => own(Storage::Program(self.fixed(i))),
            Port::Input(i) => own(self.fixed(i).map_or(Storage::Session, Storage::Symmetric)),
        }
    }

    /// What the session holds of an input or output of the program.
    pub fn held(&self, port: Port) -> &Held<M> {
        match port {
            Port::Input(i) => &self.inputs[i],
            Port::Output(k) => &self.outputs[k],
        }
    }

    /// The same, to be changed.
    pub fn held_mut(&mut self, port: Port) -> &mut Held<M> {
        match port {
            Port::Input(i) => &mut self.inputs[i],
            Port::Output(k) => &mut self.outputs[k],
        }
    }

    pub fn memories(&self) -> impl Iterator<Item = &Arc<M>> {
        self.inputs.iter().chain(&self.outputs).filter_map(|held| held.memory.as_ref())
    }

    /// Where an input of the program lies in the symmetric arena, if the plan holds it there in some bucket.
    pub fn fixed(&self, input: usize) -> Option<usize> {
        let offset = |at| self.placement.as_ref().map_or(at, |placement| placement.offset(at));
        self.fixed[input].as_ref().map(|plan| self.placed[input].unwrap_or_else(|| offset(plan.start)))
    }

    /// Whether an input of the program may be written there before each run, not before the first alone.
    pub fn is_renewed(&self, input: usize) -> bool {
        self.renewed[input]
    }

    pub fn lending(&self) -> &Lending {
        &self.lending
    }

    /// Refuses a run with what the caller lends, as [`Lending::check`].
    pub fn check_lending(&mut self) -> Result<(), RunError> {
        let bound = self.sized()?.bound.clone();
        self.lending.check(&bound)
    }

    /// Lends memory as [`Lending::lend`]. An input that the plan holds in symmetric memory lies in memory of the caller that is
    /// symmetric itself, at the same place on all ranks. `arena` is the symmetric arena, if it is there now. Fails as
    /// that, if symmetric memory is not aligned as the plan has it, or if the plan holds the input in symmetric memory
    /// and counts on it that it stays as it was when a run first read it. What was lent before stays then.
    pub fn lend(
        &mut self,
        port: Port,
        memory: Option<Extent>,
        arena: Option<Extent>,
        mut reserved: Vec<(&str, Extent)>,
    ) -> Result<(), RunError> {
        self.lending.expect(port)?;
        if let Some(arena) = arena {
            reserved.extend(self.callers.others(arena).map(|part| ("the symmetric arena", part)));
        }
        let placed = match port {
            Port::Input(i) if self.fixed[i].is_some() => {
                memory.zip(arena).and_then(|(memory, arena)| self.callers.offset_of(memory, arena))
            }
            _ => None,
        };
        if let Some(at) = placed.filter(|at| !at.is_multiple_of(ALIGN as usize)) {
            return Err(RunError::Invalid(format!(
                "{}: the memory at {at} in the symmetric arena is not aligned: expected a multiple of {ALIGN} there",
                self.lending.name(port)
            )));
        }
        if let Port::Input(i) = port
            && self.inputs[i].loaded
            && !self.renewed[i]
        {
            let name = self.lending.name(port);
            return Err(RunError::Invalid(format!(
                "{name}: the plan holds it in symmetric memory, where it was written before the first run"
            )));
        }
        self.lending.lend(port, memory, &reserved)?;
        if let Port::Input(i) = port
            && self.placed[i] != placed
        {
            self.placed[i] = placed;
            if let Some(bindings) = self.bindings.clone() {
                self.sized = Some(self.program(&bindings)?);
            }
        }
        Ok(())
    }

    /// Symmetric memory of the caller.
    pub fn callers(&mut self) -> &mut CallersPart {
        &mut self.callers
    }

    /// Refuses to give the arenas back while the caller has memory there.
    pub fn expect_no_callers(&self) -> Result<(), RunError> {
        match self.callers.is_untouched() {
            true => Ok(()),
            false => Err(RunError::Invalid(
                "the caller has memory in the symmetric arena, which cannot be given back therefore".into(),
            )),
        }
    }

    /// Forgets what was in the symmetric arena.
    pub fn lose_symmetric(&mut self) {
        for (held, _) in self.inputs.iter_mut().zip(&self.fixed).filter(|(_, fixed)| fixed.is_some()) {
            *held = Held { memory: held.memory.take(), ..Held::default() };
        }
    }

    /// Refuses a run that would find nothing in an input. Fails if nobody gave its data, or a symbol has no value.
    pub fn expect_data(&self, input: usize) -> Result<(), RunError> {
        let (port, bound) = (Port::Input(input), &self.sized()?.bound);
        let given = self.inputs[input].given || self.lending.of(port).is_some();
        if given || self.bytes(port)? == 0 || bound.constant(input).is_some() {
            return Ok(());
        }
        Err(RunError::Invalid(format!(
            "{} has no data: it was neither written, nor bound, nor asked for its address",
            self.lending.name(port)
        )))
    }

    /// Refuses data of another size. Fails if an input or output has another number of bytes, or as
    /// [`bytes`](Self::bytes).
    pub fn expect_bytes(&self, port: Port, found: usize) -> Result<(), RunError> {
        let expected = self.bytes(port)?;
        if expected == found {
            return Ok(());
        }
        let name = self.lending.name(port);
        Err(RunError::Invalid(format!("{name}: expected {expected} bytes, found {found}")))
    }

    /// An access by the caller while runs may touch the memory.
    pub fn busy(&self, port: Port) -> RunError {
        RunError::Invalid(format!("{}: {IN_PROGRESS}", self.lending.name(port)))
    }

    /// Data for a constant.
    pub fn is_constant(&self, port: Port) -> RunError {
        RunError::Invalid(format!("{} is a constant of the program", self.lending.name(port)))
    }
}

const IN_PROGRESS: &str = "a run is in progress: wait for its end first";

/// What may not be done while a run is in progress.
pub fn in_progress() -> RunError {
    RunError::Invalid(IN_PROGRESS.into())
}

pub fn ended() -> RunError {
    RunError::Invalid("the session has ended".into())
}

/// A session without arenas.
pub fn gave_back() -> RunError {
    RunError::Invalid("the session gave its memory back: resume it first".into())
}

/// For each input whether its caller may write it before each run: arguments, those that an output replaces, and those
/// whose size depends on a symbol.
fn renewed(source: &Graph) -> Vec<bool> {
    let replaced = |id: InputId| source.outputs.iter().any(|o| o.kind == OutputKind::Mutates(id));
    let varies = |value| source.ty(value).concrete(&Bindings::new()).is_none();
    let of = |(id, input): (InputId, &Input)| {
        input.kind == InputKind::Argument || replaced(id) || varies(input.value)
    };
    source.inputs.iter().map(of).collect()
}
