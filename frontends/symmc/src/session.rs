//! Sessions: one rank of a plan that stays open. The caller shares memory with it, changes sizes, and starts runs one after
//! another.
pub(crate) mod buffer;
mod device;
mod held_memory;
mod share;
pub(crate) mod slot;
mod values;

use std::time::Duration;

use symmc_check::CheckedPlan;
use symmc_control::RankConfig;
use symmc_ir::{SymbolBindings, Tensor};
pub use symmc_runtime::session::PortStorage;
use symmc_runtime::session::{Port, RawStream};
use symmc_runtime::{CustomKernelRegistry, RunError};

pub use symmc_control::{Bootstrap, Group};
pub use symmc_runtime::session::{MemoryUsage, RecordingCounts};
pub use values::{SessionValue, ValueKind};

use crate::device::Device;
use crate::error::Error;
use crate::run::clamp_wait;
use crate::workload::find_symbol;
use device::SessionProgram;
#[cfg(feature = "cuda")]
use symmc_cuda::GpuConfig;

/// The options of a session. The default opens it on the host; `with_…` methods change fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionConfig {
    /// The longest time that a rank waits for other ranks before the session fails; 30 seconds by default.
    pub timeout: Duration,
    /// The kernels of custom ops.
    pub kernels: CustomKernelRegistry,
    /// The seed of random delays around every access to a peer's memory. `None`, the default, delays nothing.
    pub chaos: Option<u64>,
    /// Bytes of symmetric memory for the caller ([`Session::allocate_symmetric`]), in addition to the memory of the plan.
    pub symmetric_bytes: usize,
    /// Whether [`Session::open_program`] may open other programs. On the host this reserves addresses for them. On a GPU any
    /// session can open other programs.
    pub extendable: bool,
    /// The device that the session runs on.
    pub device: Device,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            timeout: Duration::from_secs(30),
            kernels: CustomKernelRegistry::new(),
            chaos: None,
            symmetric_bytes: 0,
            extendable: false,
            device: Device::default(),
        }
    }
}

impl SessionConfig {
    /// Sets the longest time that a rank waits for other ranks.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        SessionConfig { timeout, ..self }
    }

    /// Sets the kernels of custom ops.
    #[must_use]
    pub fn with_kernels(self, kernels: CustomKernelRegistry) -> Self {
        SessionConfig { kernels, ..self }
    }

    /// Sets the seed of random delays.
    #[must_use]
    pub fn with_chaos(self, seed: u64) -> Self {
        SessionConfig { chaos: Some(seed), ..self }
    }

    /// Sets the bytes of symmetric memory for the caller.
    #[must_use]
    pub fn with_symmetric_bytes(self, bytes: usize) -> Self {
        SessionConfig { symmetric_bytes: bytes, ..self }
    }

    /// Sets whether other programs may be opened in the session.
    #[must_use]
    pub fn with_extendable(self, extendable: bool) -> Self {
        SessionConfig { extendable, ..self }
    }

    /// Sets the GPU that the session runs on.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn with_gpu(self, gpu: GpuConfig) -> Self {
        SessionConfig { device: Device::Gpu(gpu), ..self }
    }

    fn rank_config(&self) -> RankConfig {
        RankConfig {
            limit: clamp_wait(self.timeout),
            chaos: self.chaos,
            callers: self.symmetric_bytes,
            extendable: self.extendable,
        }
    }
}

/// A plan on one rank, ready to run again and again.
///
/// All ranks of a [`Group`] open it together. Inputs and outputs are found by name: the name of the value in the program, the
/// name under which a weight is stored, or `in.<i>` (arguments), `w.<name>` (weights) and `out.<i>` as in tensor files.
///
/// A run uses the sizes and the memory that are set when it starts. By then every input must have data: written
/// ([`write`](Self::write)), in memory of the caller ([`bind`](Self::bind)), or at its [`address`](Self::address). An output
/// that replaces an input is written to the memory of that input.
///
/// A run that fails ends the session on every rank; after that all calls return the error. [`abort`](Self::abort) does the
/// same, and so does dropping the session while a run is in progress or during a panic. Dropping it between runs behaves
/// like [`close`](Self::close): other ranks finish the runs that this rank has finished. When they start or wait for another
/// run, they get an error that names this rank.
///
/// A session belongs to the process that opened it. In a forked process its calls are errors, and dropping it there does
/// not affect the session of the parent.
pub struct Session {
    plan: CheckedPlan,
    rank: u32,
    bindings: SymbolBindings,
    device: SessionProgram,
    kernels: CustomKernelRegistry,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {} ({:?})", self.rank, self.plan.ranks, self.plan.source.name)
    }
}

/// The memory of an input or output, which the caller shares with a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ValueMemory {
    /// The address of the first byte, on the session's device.
    pub address: u64,
    /// The number of bytes.
    pub bytes: usize,
    /// The owner of the memory.
    pub storage: PortStorage,
}

impl ValueMemory {
    /// The first byte, as a pointer of the session's device.
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl Session {
    /// Opens the session of this rank on the host, or on a GPU if `config` names one. Returns when all ranks of the group
    /// have opened theirs with the same plan.
    ///
    /// # Errors
    /// The group has another number of ranks, an op has no kernel, there is no such GPU or no memory, or the other ranks do not
    /// join before the timeout, or use another plan, version or device.
    pub fn open(plan: &CheckedPlan, group: &Group, config: &SessionConfig) -> Result<Session, Error> {
        let device = config.device.open_session(plan, group, &config.kernels, &config.rank_config())?;
        Session::from_device(plan, SessionProgram::new(device), group.rank(), config.kernels.clone())
    }

    /// Opens another program in this session, for example the backward pass of a model. The programs take turns in the same
    /// arenas, which are as large as the largest program needs, and share the connections to other ranks. All ranks open the
    /// same programs in the same order, between runs, and run all programs in the same order. From then on each run begins with
    /// a barrier of all ranks, so that no rank begins a run of one program while another rank is in a run of another.
    ///
    /// A failed run of one program ends the session: calls about other programs return the error, too.
    /// [`close`](Self::close) and drop end one program, and the session with the last one. Runs of programs that are enqueued
    /// on several streams wait for each other. The caller orders replays of graphs that it recorded.
    ///
    /// On a GPU the arenas are allocated again, and runs are recorded again. Data in inputs in symmetric memory is kept.
    ///
    /// # Errors
    /// The plan has another number of ranks, or an op without a kernel. The session is on the host and was not opened for
    /// several programs ([`SessionConfig::extendable`]), or has no room. It has symmetric memory for the caller, or a graph of
    /// the caller holds a run of it. Other ranks refuse the program or open another one. After these errors the session
    /// continues. It ends if a rank failed or is out of memory.
    pub fn open_program(&self, plan: &CheckedPlan) -> Result<Session, Error> {
        let device = self.device.open_program(plan, &self.kernels)?;
        Session::from_device(plan, device, self.rank, self.kernels.clone())
    }

    fn from_device(
        plan: &CheckedPlan,
        device: SessionProgram,
        rank: u32,
        kernels: CustomKernelRegistry,
    ) -> Result<Session, Error> {
        let mut session =
            Session { plan: plan.clone(), rank, bindings: SymbolBindings::new(), device, kernels };
        if session.is_sized() {
            session.apply_sizes()?;
        }
        Ok(session)
    }

    /// The bytes that the session of a rank will use on its device when it is opened with `config`. `scratch` and `held` are
    /// the most that it uses at any sizes that the plan serves, if the caller binds no input and no output. Nothing is
    /// allocated, and no device is queried: an engine subtracts the result from the memory for its cache. Memory of libraries,
    /// drivers and kernels of custom ops is not included.
    ///
    /// # Errors
    /// The plan has no such rank, or an op has no kernel there.
    pub fn budget(plan: &CheckedPlan, rank: u32, config: &SessionConfig) -> Result<MemoryUsage, Error> {
        Ok(config.device.memory_budget(plan, rank, &config.kernels, &config.rank_config())?)
    }

    /// The rank of this process or thread.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The plan that the session runs.
    pub fn plan(&self) -> &CheckedPlan {
        &self.plan
    }

    /// Sets the value of a symbol for the next runs. Inputs and outputs have sizes once every symbol has a value.
    ///
    /// # Errors
    /// There is no such symbol, or no bucket serves the value. The sizes stay as they were.
    pub fn set(&mut self, symbol: &str, value: i64) -> Result<(), Error> {
        self.set_all(&[(symbol, value)])
    }

    /// Sets several symbols at once.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_all(&mut self, values: &[(&str, i64)]) -> Result<(), Error> {
        let mut bindings = self.bindings.clone();
        let source = self.plan.source_program();
        for (symbol, value) in values {
            bindings.set(find_symbol(source, symbol)?, *value);
        }
        let old = std::mem::replace(&mut self.bindings, bindings);
        if self.is_sized()
            && let Err(error) = self.apply_sizes()
        {
            self.bindings = old;
            return Err(error);
        }
        Ok(())
    }

    fn apply_sizes(&mut self) -> Result<(), Error> {
        Ok(self.device.select()?.set_sizes(&self.bindings)?)
    }

    fn is_sized(&self) -> bool {
        let symbols = &self.plan.source_program().symbols;
        symbols.keys().all(|symbol| self.bindings.get(symbol).is_some())
    }

    /// Fails if a symbol has no value. The error names the symbols.
    fn expect_sizes(&self) -> Result<(), Error> {
        if self.is_sized() {
            return Ok(());
        }
        let unset = values::unset_symbols(self.plan.source_program(), &self.bindings);
        Err(Error::invalid_request(format!("the sizes of the program are not set: set {unset}")))
    }

    /// The arguments, which are the inputs that change from run to run, in the order of the program.
    ///
    /// # Errors
    /// A symbol has no value.
    pub fn inputs(&self) -> Result<Vec<SessionValue>, Error> {
        self.values_of_kind(|kind| kind == ValueKind::Argument)
    }

    /// The parameters, which are the inputs that are given once, in the order of the program.
    ///
    /// # Errors
    /// A symbol has no value.
    pub fn parameters(&self) -> Result<Vec<SessionValue>, Error> {
        self.values_of_kind(|kind| kind == ValueKind::Parameter)
    }

    /// The outputs, including those that replace an input, in the order of the program.
    ///
    /// # Errors
    /// A symbol has no value.
    pub fn outputs(&self) -> Result<Vec<SessionValue>, Error> {
        self.values_of_kind(|kind| kind == ValueKind::Output)
    }

    fn values_of_kind(&self, which: impl Fn(ValueKind) -> bool) -> Result<Vec<SessionValue>, Error> {
        let values = values::list_values(self.plan.source_program(), &self.bindings)?;
        Ok(values.into_iter().map(|(_, value)| value).filter(|value| which(value.kind)).collect())
    }

    fn find_port(&self, name: &str, prefer: values::PortPreference) -> Result<Port, Error> {
        values::find_port(self.plan.source_program(), name, prefer)
    }

    /// The input or output of this name. The input is preferred if both have the name.
    ///
    /// # Errors
    /// There is no such input or output, or a symbol has no value.
    pub fn value(&self, name: &str) -> Result<SessionValue, Error> {
        self.value_at_port(name, self.find_port(name, values::PortPreference::Input)?)
    }

    fn value_at_port(&self, name: &str, port: Port) -> Result<SessionValue, Error> {
        let values = values::list_values(self.plan.source_program(), &self.bindings)?;
        let value = values.into_iter().find(|(other, _)| *other == port).map(|(_, value)| value);
        value.ok_or_else(|| Error::invalid_request(format!("{name} has no value")))
    }

    /// The memory that the next runs use for an input or output. While no run is in progress, the caller may write inputs and
    /// read outputs there. The memory stays valid until a symbol is set that needs more, other memory is bound, or the session
    /// ends.
    ///
    /// # Errors
    /// There is no such input or output, a symbol has no value, or there is no memory.
    pub fn address(&mut self, name: &str) -> Result<ValueMemory, Error> {
        let port = self.find_port(name, values::PortPreference::Either)?;
        let mut device = self.device.select()?;
        self.expect_sizes()?;
        let memory = device.port_memory(port)?;
        if matches!(memory.storage, PortStorage::Program(_)) {
            return Err(Error::invalid_request(format!(
                "{name} is a constant of the program: it has no memory to write"
            )));
        }
        Ok(ValueMemory { address: memory.range.address, bytes: memory.range.bytes, storage: memory.storage })
    }

    /// Makes the next runs read an input from memory of the caller, or write an output there, in place. There is one case of a
    /// copy: the plan holds the input in symmetric memory ([`PortStorage::Symmetric`]), and this memory is not symmetric
    /// ([`allocate_symmetric`](Self::allocate_symmetric)). Then a parameter is copied before the first run, and an argument
    /// before every run.
    ///
    /// Inputs that no output replaces may share memory with each other. An output may share the memory of the input that it
    /// replaces. No other memory may overlap.
    ///
    /// # Errors
    /// There is no such input or output. The memory has no address, is not aligned for its elements, is the session's own, or
    /// is too small for a value whose size does not depend on symbols. The previous memory stays bound. The next run checks
    /// sizes that depend on symbols, and overlaps.
    ///
    /// # Safety
    /// The memory is valid for reads, and for writes if a run writes it, until other memory is bound or the session has ended,
    /// and all runs that use it have ended. While a run is in progress nothing else writes it, or reads bytes that the run
    /// writes.
    pub unsafe fn bind(&mut self, name: &str, pointer: *mut u8, bytes: usize) -> Result<(), Error> {
        let slot = self.slot(name)?;
        // SAFETY: the caller ensures it.
        unsafe { self.bind_slot(slot, pointer, bytes) }
    }

    /// Makes the next runs use memory of the session again. The data in the caller's memory is not copied.
    ///
    /// # Errors
    /// There is no such input or output.
    pub fn unbind(&mut self, name: &str) -> Result<(), Error> {
        let port = self.find_port(name, values::PortPreference::Either)?;
        // SAFETY: no memory of the caller is bound.
        unsafe { self.device.select()?.bind_port(port, None)? };
        self.hold_owner(port, None);
        Ok(())
    }

    /// Copies data to an input: all its bytes, in row-major order.
    ///
    /// # Errors
    /// There is no such input, it is a constant, the data has another size, a run is in progress, or one failed.
    pub fn write(&mut self, name: &str, data: &[u8]) -> Result<(), Error> {
        let Port::Input(input) = self.find_port(name, values::PortPreference::Input)? else {
            return Err(Error::invalid_request(format!("{name} is an output: only inputs can be written")));
        };
        let mut device = self.device.select()?;
        self.expect_sizes()?;
        Ok(device.write_input(input, data)?)
    }

    /// The current value of an output or an input.
    ///
    /// # Errors
    /// There is no such output or input, a run is in progress, or one failed.
    pub fn read(&mut self, name: &str) -> Result<Tensor, Error> {
        let port = self.find_port(name, values::PortPreference::Output)?;
        let value = self.value_at_port(name, port)?;
        let mut data = vec![0; value.bytes];
        self.device.select()?.read_port(port, &mut data)?;
        let tensor = Tensor::new(value.dtype, value.extents, data);
        let tensor =
            tensor.ok_or_else(|| RunError::Defect(format!("{name}: the bytes do not fit the extents")))?;
        let lengths = self.lengths_at_port(port)?;
        Ok(lengths.into_iter().fold(tensor, |tensor, (axis, length)| tensor.first_along(axis, length)))
    }

    /// The extents of an output or input after the last run. They are those of its memory, except along axes whose number of
    /// elements is data ([`SessionValue::counted_axes`]).
    ///
    /// # Errors
    /// There is no such output or input, a symbol has no value, a run is in progress, or one failed.
    pub fn read_extents(&mut self, name: &str) -> Result<Vec<usize>, Error> {
        let port = self.find_port(name, values::PortPreference::Output)?;
        let mut extents = self.value_at_port(name, port)?.extents;
        for (axis, length) in self.lengths_at_port(port)? {
            if let Some(extent) = extents.get_mut(axis) {
                *extent = length.min(*extent);
            }
        }
        Ok(extents)
    }

    /// The axes of an output whose number of elements is data, with that number.
    fn lengths_at_port(&mut self, port: Port) -> Result<Vec<(usize, usize)>, Error> {
        let Port::Output(output) = port else { return Ok(Vec::new()) };
        let axes: Vec<(usize, usize)> = self.plan.source_program().output_lengths(output).collect();
        let mut lengths = Vec::with_capacity(axes.len());
        for (axis, position) in axes {
            let mut data = [0; size_of::<i64>()];
            self.device.select()?.read_port(Port::Output(position), &mut data)?;
            lengths.push((axis, usize::try_from(i64::from_le_bytes(data)).unwrap_or(0)));
        }
        Ok(lengths)
    }

    /// Runs once and waits for the end. All ranks start the same runs in the same order.
    ///
    /// # Errors
    /// A symbol has no value, an input has no data, other ranks run with other sizes, or the run failed on some rank.
    pub fn run(&mut self) -> Result<(), Error> {
        let mut device = self.device.select()?;
        self.expect_sizes()?;
        Ok(device.run()?)
    }

    /// Starts one run after those that were started before, and returns at once.
    ///
    /// # Errors
    /// As [`run`](Self::run), if the error is known already. Other errors are returned by later calls.
    pub fn enqueue(&mut self) -> Result<(), Error> {
        let mut device = self.device.select()?;
        self.expect_sizes()?;
        Ok(device.enqueue(None)?)
    }

    /// As [`enqueue`](Self::enqueue), on a stream of the caller (a `cudaStream_t` or `CUstream`). The run begins after the work
    /// that is on the stream, and work that is enqueued there later begins after the run. While the caller captures the stream,
    /// the run becomes part of the captured graph instead. The caller then waits for its replays before it calls
    /// [`poll`](Self::poll), and replays the graph only while the session is open and keeps its memory.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue). Also if the session is on the host, or the stream is of another GPU.
    ///
    /// # Safety
    /// The stream exists until all runs on it have ended.
    pub unsafe fn enqueue_on(&mut self, stream: *mut std::ffi::c_void) -> Result<(), Error> {
        let mut device = self.device.select()?;
        self.expect_sizes()?;
        Ok(device.enqueue(Some(RawStream(stream)))?)
    }

    /// The bytes that the session uses on its device now.
    pub fn memory_usage(&self) -> MemoryUsage {
        self.device.select().map(|device| device.memory_usage()).unwrap_or_default()
    }

    /// The numbers of recordings of runs that the session made on its GPU, reused and dropped. A run is recorded for new sizes
    /// and for memory that no recording fits. `GpuConfig::with_cached_recordings` sets how many are kept.
    pub fn recordings(&self) -> RecordingCounts {
        self.device.select().map(|device| device.recording_counts()).unwrap_or_default()
    }

    /// Whether all runs have ended.
    ///
    /// # Errors
    /// A run failed.
    pub fn poll(&mut self) -> Result<bool, Error> {
        Ok(self.device.select()?.poll()?)
    }

    /// Waits until all runs have ended.
    ///
    /// # Errors
    /// A run failed, or the runs did not end before the timeout, and continue.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        Ok(self.device.select()?.wait(clamp_wait(timeout))?)
    }

    /// Releases the memory of the arenas until [`resume`](Self::resume). All ranks call both, between runs. The memory of
    /// inputs and outputs outside of the arenas is kept.
    ///
    /// # Errors
    /// A run is in progress, or a rank failed.
    pub fn release(&mut self) -> Result<(), Error> {
        Ok(self.device.select()?.release_arenas()?)
    }

    /// Allocates the memory of the arenas again. Inputs in symmetric memory must be written again.
    ///
    /// # Errors
    /// There is not enough memory, or a rank failed.
    pub fn resume(&mut self) -> Result<(), Error> {
        Ok(self.device.select()?.resume_arenas()?)
    }

    /// Waits until all runs of this rank have ended, and ends the session if no other program of it is open. Other ranks may
    /// close theirs later. A rank that starts another run gets an error that names this rank. If the ranks are processes, rank
    /// 0 waits until the others have ended the runs that it has ended, but no longer than the timeout.
    ///
    /// # Errors
    /// A run failed, or the session belongs to the process that this one was forked from.
    pub fn close(self) -> Result<(), Error> {
        let mut device = self.device;
        device.close()
    }

    /// Ends the session on every rank at once, without waiting for runs: the other ranks get an error that names this rank
    /// and the reason. Dropping a session while a run is in progress or during a panic does the same, without a reason.
    ///
    /// # Errors
    /// The session belongs to the process that this one was forked from.
    pub fn abort(self, reason: &str) -> Result<(), Error> {
        let mut device = self.device;
        device.take_session()?.abort(reason);
        Ok(())
    }
}
