//! The inputs and outputs of a session: their sizes at the current symbol values, their memory, and the state
//! of their data.
//!
//! The rules are the same on every device; the kind of memory, and the way data is copied to it, depend on
//! the device.

use std::sync::Arc;

use symmc_ir::{Graph, GraphInput, InputId, InputKind, OutputKind, SymbolBindings, ValueId};
use symmc_plan::{FixedRole, ParsedPlan};

use super::caller_arena::CallerArena;
use super::memory::DeviceMemory;
use super::port::{DeviceRange, Port, PortMemory, PortStorage};
use super::port_state::{FixedInput, PortBinding, PortState, check_bound_memory};
use crate::error::{Result, RunError};
use crate::exec::{Executor, ProgramPlacement, RelocatedRange, ResolvedProgram};
use crate::kernels::ScratchNeeds;

#[derive(Clone, Debug)]
pub struct SizedProgram {
    pub program: Arc<ResolvedProgram>,
    /// The digest that ranks compare before a run.
    pub digest: u32,
    /// The sizes as text, and the inputs that lie in symmetric memory of the caller.
    pub text: Arc<str>,
}

/// The number of programs with inputs in symmetric memory of the caller that are kept.
const KEPT: usize = 64;

/// The number of newly bound ports up to which they are checked one by one.
const FEW: usize = 8;

/// The device of a session: the functions that [`SessionPorts`] needs of it.
pub trait PortDevice {
    type Memory: DeviceMemory;

    fn ports(&mut self) -> &mut SessionPorts<Self::Memory>;

    /// The symmetric arena. Fails if the session has none now.
    fn symmetric_arena(&self) -> Result<DeviceRange>;

    /// Allocates memory of this many bytes for an input or output of this name. It begins with the data of
    /// the smaller memory that it replaces. Fails if there is not enough memory, or a run failed.
    fn allocate_port_memory(
        &mut self,
        name: &str,
        bytes: usize,
        smaller: Option<Arc<Self::Memory>>,
    ) -> Result<Self::Memory>;

    /// The address of a constant's data for a run. The host reads the data from the program, without an
    /// address.
    fn constant_address(&mut self, input: usize, bytes: usize) -> Result<u64> {
        let _ = (input, bytes);
        Ok(0)
    }

    /// The memory of an input or output at the current sizes, allocated if there is none. Fails as
    /// [`SessionPorts::port_bytes`] and [`allocate_port_memory`](Self::allocate_port_memory), or if memory
    /// that the caller bound is too small.
    fn locate_port(&mut self, port: Port) -> Result<PortMemory> {
        let ports = self.ports();
        let holder = ports.memory_owner(port)?;
        let bytes = ports.port_bytes(holder)?;
        let storage = ports.resolve_storage(holder)?;
        let address = match (storage, holder) {
            (PortStorage::Caller(address), _) => address,
            (PortStorage::Program(None), Port::Input(input)) => self.constant_address(input, bytes)?,
            (PortStorage::Symmetric(offset) | PortStorage::Program(Some(offset)), _) => {
                self.symmetric_arena()?.address + offset as u64
            }
            (PortStorage::Session | PortStorage::Program(None), _) => {
                self.ensure_session_memory(holder, bytes)?
            }
        };
        Ok(PortMemory { range: DeviceRange { address, bytes }, storage })
    }

    /// The address of memory of the session for an input or output, with this many bytes.
    fn ensure_session_memory(&mut self, port: Port, bytes: usize) -> Result<u64> {
        let smaller = match &self.ports().state(port).memory {
            Some(memory) if memory.range().bytes >= bytes => return Ok(memory.range().address),
            smaller => smaller.clone(),
        };
        let name = self.ports().state(port).name.clone();
        let memory = Arc::new(self.allocate_port_memory(&name, bytes, smaller)?);
        let address = memory.range().address;
        self.ports().state_mut(port).memory = Some(memory);
        Ok(address)
    }

    /// As [`locate_port`](Self::locate_port), for a caller that may write an input there.
    fn expose_port(&mut self, port: Port) -> Result<PortMemory> {
        let memory = self.locate_port(port)?;
        if let (Port::Input(_), PortStorage::Session | PortStorage::Symmetric(_)) = (port, memory.storage) {
            self.ports().state_mut(port).set_data();
        }
        Ok(memory)
    }

    /// As [`expose_port`](Self::expose_port), for data of this many bytes that is written now. Fails as
    /// [`expose_port`](Self::expose_port), or if the input has another size or is a constant.
    fn expose_input(&mut self, input: usize, bytes: usize) -> Result<DeviceRange> {
        let port = Port::Input(input);
        // A refused write must not count as data.
        self.ports().expect_bytes(port, bytes)?;
        let memory = self.expose_port(port)?;
        match memory.storage {
            PortStorage::Program(_) => Err(self.ports().constant_error(port)),
            _ => Ok(memory.range),
        }
    }
}

/// All inputs and outputs of a session, in memory of type `M`.
#[derive(Debug)]
pub struct SessionPorts<M> {
    executor: Executor,
    bindings: Option<SymbolBindings>,
    sized: Option<SizedProgram>,
    /// Programs with inputs in symmetric memory of the caller, the oldest first.
    relocated_programs: Vec<SizedProgram>,
    inputs: Vec<PortState<M>>,
    outputs: Vec<PortState<M>>,
    /// The ports that were bound since all bound memory was last checked for a run; `None` means all.
    unchecked: Option<Vec<Port>>,
    caller_arena: CallerArena,
    /// The placement of the program in a session that has or may have other programs.
    placement: Option<ProgramPlacement>,
}

impl<M> SessionPorts<M> {
    /// The ports of an executor's plan on its rank, without data. Kernels of the device need memory at
    /// multiples of `align`. `callers` bytes of symmetric memory belong to the caller. Fails if the symmetric
    /// arena would be larger than any memory.
    pub fn new(executor: Executor, (align, callers): (usize, usize)) -> Result<SessionPorts<M>> {
        let plan = executor.plan();
        let source = executor.source_graph();
        let fixed_range = |number: usize| {
            let is_role = |role: &FixedRole| matches!(role, FixedRole::Bound { input } if *input == number);
            let memory = plan.fixed.iter().rfind(|memory| is_role(&memory.role))?;
            let end = memory.offset.checked_add(memory.size)?;
            Some(usize::try_from(memory.offset).ok()?..usize::try_from(end).ok()?)
        };
        let inputs = source.inputs.iter().enumerate().map(|(number, (id, input))| {
            let is_rewritable = may_be_rewritten(source, id, input);
            let fixed = fixed_range(number).map(|range| FixedInput { range, is_rewritable });
            port_state(source, "input", input.value, align, fixed)
        });
        let inputs = inputs.collect();
        let outputs =
            source.outputs.iter().map(|o| port_state(source, "output", o.value, align, None)).collect();
        Ok(SessionPorts {
            bindings: None,
            sized: None,
            relocated_programs: Vec::new(),
            inputs,
            outputs,
            unchecked: None,
            caller_arena: CallerArena::new(plan, callers)?,
            placement: None,
            executor,
        })
    }

    pub fn plan(&self) -> &ParsedPlan {
        self.executor.plan()
    }

    pub fn scratch_needs(&mut self) -> [ScratchNeeds; 2] {
        self.executor.scratch_needs()
    }

    /// Sets the placement of the program in a session with several programs. Data in its part of the
    /// symmetric arena is not moved. Fails if the current sizes no longer resolve.
    pub fn set_placement(&mut self, placement: ProgramPlacement) -> Result<()> {
        self.placement = Some(placement);
        self.relocated_programs.clear();
        if let Some(bindings) = self.bindings.clone() {
            self.sized = Some(self.resolve_program(&bindings)?);
        }
        Ok(())
    }

    /// Sets the values of the imported program's symbols. Fails if no bucket covers them; the sizes are then
    /// unchanged.
    pub fn set_sizes(&mut self, bindings: &SymbolBindings) -> Result<()> {
        self.sized = Some(self.resolve_program(bindings)?);
        self.bindings = Some(bindings.clone());
        self.unchecked = None;
        Ok(())
    }

    /// The program at these sizes, with inputs at their current location.
    fn resolve_program(&mut self, bindings: &SymbolBindings) -> Result<SizedProgram> {
        let bound = self.executor.resolve_bindings(bindings)?;
        let mut descriptions = vec![self.executor.describe_sizes(bindings)];
        // The program number in the text keeps the texts of the session's programs distinct.
        if let Some(placement) = self.placement.as_ref().filter(|placement| placement.program > 0) {
            descriptions.insert(0, format!("program {}", placement.program));
        }
        let mut moves = Vec::new();
        for input in &self.inputs {
            if let Some(from) = input.fixed_range()
                && let Some(to) = input.caller_offset()
            {
                moves.push(RelocatedRange { from: from.clone(), to });
                descriptions.push(format!("{} in symmetric memory at {to}", input.name));
            }
        }
        descriptions.retain(|text| !text.is_empty());
        let text = descriptions.join(", ");
        if let Some(existing) = self.relocated_programs.iter().find(|existing| *existing.text == *text) {
            return Ok(existing.clone());
        }
        let digest = text
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let sized = SizedProgram { program: bound, digest, text: text.into() };
        let bound = match &self.placement {
            Some(placement) => Arc::new(sized.program.with_placement(placement)),
            None if moves.is_empty() => return Ok(sized),
            None => Arc::new(sized.program.with_relocations(&moves)),
        };
        let sized = SizedProgram { program: bound, ..sized };
        if self.relocated_programs.len() == KEPT {
            self.relocated_programs.remove(0);
        }
        self.relocated_programs.push(sized.clone());
        Ok(sized)
    }

    /// The program at the current sizes. Fails if a symbol has no value.
    pub fn sized_program(&self) -> Result<&SizedProgram> {
        self.sized.as_ref().ok_or_else(|| {
            RunError::Invalid("the sizes of the program are not set: a symbol has no value".into())
        })
    }

    /// The bytes of an input or output at the current sizes. Fails if a symbol has no value, or there is no
    /// such input or output.
    pub fn port_bytes(&self, port: Port) -> Result<usize> {
        let bound = &self.sized_program()?.program;
        self.expect_port(port)?;
        Ok(match port {
            Port::Input(i) => bound.inputs[i].bytes,
            Port::Output(k) => bound.outputs[k].bytes,
        })
    }

    /// Fails if the program has no such input or output.
    pub fn expect_port(&self, port: Port) -> Result<()> {
        let exists = match port {
            Port::Input(i) => i < self.inputs.len(),
            Port::Output(k) => k < self.outputs.len(),
        };
        if exists {
            return Ok(());
        }
        Err(RunError::Invalid(format!("{port:?}: the program has no such input or output")))
    }

    /// The port whose memory an input or output uses: for an output that replaces an input in place, this
    /// input, unless the caller bound other memory to the output.
    fn memory_owner(&self, port: Port) -> Result<Port> {
        self.expect_port(port)?;
        let replaced = match port {
            Port::Output(k) if self.state(port).binding().is_none() => {
                self.sized_program()?.program.outputs[k].input_in_place()
            }
            _ => None,
        };
        Ok(replaced.map_or(port, Port::Input))
    }

    /// The storage of a [memory owner](Self::memory_owner). Fails if memory that the caller bound is too
    /// small.
    fn resolve_storage(&self, holder: Port) -> Result<PortStorage> {
        let state = self.state(holder);
        if let Some(memory) = state.binding() {
            state.expect_capacity(self.port_bytes(holder)?)?;
            return Ok(PortStorage::Caller(memory.address));
        }
        Ok(match holder {
            Port::Output(_) => PortStorage::Session,
            Port::Input(i) if self.sized_program()?.program.constant_data(i).is_some() => {
                PortStorage::Program(self.fixed_offset(i))
            }
            Port::Input(i) => self.fixed_offset(i).map_or(PortStorage::Session, PortStorage::Symmetric),
        })
    }

    pub fn state(&self, port: Port) -> &PortState<M> {
        match port {
            Port::Input(i) => &self.inputs[i],
            Port::Output(k) => &self.outputs[k],
        }
    }

    pub fn state_mut(&mut self, port: Port) -> &mut PortState<M> {
        match port {
            Port::Input(i) => &mut self.inputs[i],
            Port::Output(k) => &mut self.outputs[k],
        }
    }

    pub fn session_memories(&self) -> impl Iterator<Item = &Arc<M>> {
        self.inputs.iter().chain(&self.outputs).filter_map(|state| state.memory.as_ref())
    }

    /// The offset of an input in the symmetric arena, if the plan holds it there in some bucket.
    pub fn fixed_offset(&self, input: usize) -> Option<usize> {
        let state = &self.inputs[input];
        let planned = state.fixed_range()?.start;
        Some(match (state.caller_offset(), &self.placement) {
            (Some(offset), _) => offset,
            (None, Some(placement)) => placement.session_offset(planned),
            (None, None) => planned,
        })
    }

    /// Fails if a run cannot use the memory that the caller bound: it is too small, or a run writes memory
    /// that is bound to another port as well.
    pub fn check_bound_memory(&mut self) -> Result<()> {
        let program = &self.sized_program()?.program;
        check_bound_memory(&self.inputs, &self.outputs, program, self.unchecked.as_deref())?;
        self.unchecked = Some(Vec::new());
        Ok(())
    }

    /// Binds memory of the caller, or releases it. An input that the plan holds in symmetric memory is used
    /// in place if the bound memory is symmetric as well, at the same offset on all ranks. `arena` is the
    /// symmetric arena, if it is allocated now, and `reserved` is other memory of the session, with names.
    ///
    /// Fails if the memory has no address, is not aligned, or overlaps memory of the session, or if the plan
    /// relies on the input being unchanged since a run first read it. The previous binding then stays.
    pub fn bind_memory(
        &mut self,
        port: Port,
        memory: Option<DeviceRange>,
        arena: Option<DeviceRange>,
        mut reserved: Vec<(&str, DeviceRange)>,
    ) -> Result<()> {
        self.expect_port(port)?;
        if let Some(arena) = arena {
            reserved.extend(
                self.caller_arena.surrounding_ranges(arena).map(|range| ("the symmetric arena", range)),
            );
        }
        let state = self.state(port);
        let binding = memory.map(|memory| {
            let arena = arena.filter(|_| state.fixed_range().is_some());
            let caller_offset = arena.and_then(|arena| self.caller_arena.block_offset(memory, arena));
            PortBinding { memory, caller_offset }
        });
        state.expect_bindable(binding, &reserved)?;
        let is_elsewhere = self.state_mut(port).bind(binding);
        self.unchecked = self.unchecked.take().and_then(|mut ports| {
            if !ports.contains(&port) {
                ports.push(port);
            }
            (ports.len() <= FEW).then_some(ports)
        });
        if let Some(bindings) = self.bindings.clone().filter(|_| is_elsewhere) {
            self.sized = Some(self.resolve_program(&bindings)?);
        }
        Ok(())
    }

    pub fn caller_arena(&mut self) -> &mut CallerArena {
        &mut self.caller_arena
    }

    /// Refuses to release the arenas while the caller has memory there.
    pub fn expect_no_caller_memory(&self) -> Result<()> {
        if self.caller_arena.is_unused() {
            return Ok(());
        }
        Err(RunError::Invalid(
            "the caller has memory in the symmetric arena, which therefore cannot be released".into(),
        ))
    }

    /// Marks the data in the symmetric arena as lost.
    pub fn invalidate_symmetric(&mut self) {
        self.inputs.iter_mut().for_each(PortState::invalidate_symmetric);
    }

    /// Refuses a run whose input has no data. Also fails if a symbol has no value.
    pub fn expect_data(&self, input: usize) -> Result<()> {
        let port = Port::Input(input);
        let bound = &self.sized_program()?.program;
        let state = self.state(port);
        let has_data = state.has_data() || state.binding().is_some();
        if has_data || self.port_bytes(port)? == 0 || bound.constant_data(input).is_some() {
            return Ok(());
        }
        Err(RunError::Invalid(format!(
            "{} has no data: it was neither written nor bound, and its address was not requested",
            self.state(port).name
        )))
    }

    /// Fails if an input or output has another number of bytes, or as [`port_bytes`](Self::port_bytes).
    pub fn expect_bytes(&self, port: Port, found: usize) -> Result<()> {
        let expected = self.port_bytes(port)?;
        if expected == found {
            return Ok(());
        }
        let name = &self.state(port).name;
        Err(RunError::Invalid(format!("{name}: expected {expected} bytes, found {found}")))
    }

    /// The error of an access by the caller while runs may use the memory.
    pub fn busy_error(&self, port: Port) -> RunError {
        RunError::Invalid(format!("{}: {IN_PROGRESS}", self.state(port).name))
    }

    /// The error of data that is written to a constant.
    pub fn constant_error(&self, port: Port) -> RunError {
        RunError::Invalid(format!("{} is a constant of the program", self.state(port).name))
    }
}

const IN_PROGRESS: &str = "a run is in progress: wait for its end first";

/// The error of an operation that is not allowed while a run is in progress.
pub fn run_in_progress_error() -> RunError {
    RunError::Invalid(IN_PROGRESS.into())
}

/// The error of a session whose arenas are released.
pub fn arenas_released_error() -> RunError {
    RunError::Invalid("the memory of the session was released: resume the session first".into())
}

fn port_state<M>(
    source: &Graph,
    kind: &str,
    value: ValueId,
    align: usize,
    fixed: Option<FixedInput>,
) -> PortState<M> {
    let align = source.ty(value).dtype.size().max(align);
    PortState::new(format!("{kind} %{}", source.value_name(value)), align, fixed)
}

/// Whether the caller may write an input before each run: an argument, an input that an output replaces, or
/// one whose size depends on a symbol.
fn may_be_rewritten(source: &Graph, id: InputId, input: &GraphInput) -> bool {
    let is_replaced = source.outputs.iter().any(|output| output.kind == OutputKind::Mutates(id));
    let varies = source.ty(input.value).concrete_shape(&SymbolBindings::new()).is_none();
    input.kind == InputKind::Argument || is_replaced || varies
}
