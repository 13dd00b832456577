//! One rank of a plan that stays: memory that the caller shares, sizes that change, runs that follow each other.

pub(crate) mod buffer;
mod device;
mod held_memory;
mod share;
pub(crate) mod slot;
mod values;

use std::time::Duration;

use symmc_check::CheckedPlan;
use symmc_ir::{SymbolBindings, Tensor};
use symmc_runtime::host::{self, HostConfig};
pub use symmc_runtime::session::PortStorage;
use symmc_runtime::session::{Port, RawStream};
use symmc_runtime::{CustomKernelRegistry, RunError};

pub use symmc_control::{Bootstrap, Group};
pub use symmc_runtime::session::{MemoryUsage, RecordingCounts};
pub use values::{SessionValue, ValueKind};

#[cfg(feature = "cuda")]
use crate::device::GpuConfig;
use crate::device::SessionDevice;
use crate::error::Error;
use crate::run::clamp_wait;
use crate::workload::find_symbol;
use device::SessionProgram;

/// How a session runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionConfig {
    /// No wait for other ranks takes longer.
    pub timeout: Duration,
    /// The kernels of custom ops.
    pub kernels: CustomKernelRegistry,
    /// Delays ranks at random around every touch of a peer, from this seed.
    pub chaos: Option<u64>,
    /// Bytes of symmetric memory for the caller ([`Session::allocate_symmetric`]), beside what the plan needs.
    pub symmetric_bytes: usize,
    /// Whether [`Session::open_program`] may open other programs. On the host it reserves addresses for them; on a GPU they may be
    /// opened in any session.
    pub extendable: bool,
    /// The device that it runs on.
    pub device: SessionDevice,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            timeout: Duration::from_secs(30),
            kernels: CustomKernelRegistry::new(),
            chaos: None,
            symmetric_bytes: 0,
            extendable: false,
            device: SessionDevice::default(),
        }
    }
}

impl SessionConfig {
    /// The same with another limit of waits.
    #[must_use]
    pub fn with_timeout(self, limit: Duration) -> Self {
        SessionConfig { timeout: limit, ..self }
    }

    /// The same with these kernels of custom ops.
    #[must_use]
    pub fn with_kernels(self, kernels: CustomKernelRegistry) -> Self {
        SessionConfig { kernels, ..self }
    }

    /// The same with random delays from this seed.
    #[must_use]
    pub fn with_chaos(self, seed: u64) -> Self {
        SessionConfig { chaos: Some(seed), ..self }
    }

    /// The same with so many bytes of symmetric memory for the caller.
    #[must_use]
    pub fn with_symmetric_bytes(self, bytes: usize) -> Self {
        SessionConfig { symmetric_bytes: bytes, ..self }
    }

    /// The same, where other programs may be opened.
    #[must_use]
    pub fn with_extendable(self, extendable: bool) -> Self {
        SessionConfig { extendable, ..self }
    }

    /// The same on a GPU.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn with_gpu(self, gpu: GpuConfig) -> Self {
        SessionConfig { device: SessionDevice::Gpu(gpu), ..self }
    }

    fn host_config(&self) -> HostConfig {
        let threads = if self.chaos.is_some() { host::LaneThreads::Each } else { host::LaneThreads::One };
        let (limit, callers, extendable) = (clamp_wait(self.timeout), self.symmetric_bytes, self.extendable);
        HostConfig { limit, chaos: self.chaos, threads, callers, extendable, ..HostConfig::default() }
    }
}

/// A plan on one rank, ready to run again and again.
///
/// All ranks of a [`Group`] open it together. Inputs and outputs have the names of the program: that of the value, that
/// under which a weight is stored, or by number `in.<i>` (arguments), `w.<name>` and `out.<i>` as in tensor files.
///
/// A run takes the sizes and the memory that are set when it is started, and every input must have data by then: written
/// ([`write`](Self::write)), in memory of the caller ([`bind`](Self::bind)), or at its [`address`](Self::address). What
/// an output replaces is replaced where it lies.
///
/// A run that fails ends the session on every rank; after that all calls return the error. [`abort`](Self::abort) does the
/// same, and so does dropping the session while a run is in progress or during a panic. Dropping it between runs behaves
/// like [`close`](Self::close): other ranks finish the runs that this rank has ended, and get an error that names it when
/// they begin or wait in another one.
///
/// A session belongs to the process that opened it. In a forked process its calls are errors, and dropping it there does
/// nothing to the session of the parent.
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

/// Bytes in memory, which the caller shares with a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ValueMemory {
    /// The first byte, of the session's device.
    pub address: u64,
    /// The number of bytes.
    pub bytes: usize,
    /// Where they are stored.
    pub storage: PortStorage,
}

impl ValueMemory {
    /// The first byte, as a pointer of the session's device.
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl Session {
    /// Opens the session of this rank on the host, or on a GPU if `config` names one; returns when all ranks of the group
    /// have opened theirs, of the same plan.
    ///
    /// # Errors
    /// The group has another number of ranks, an op has no kernel, there is no such GPU or no memory, the other ranks do not
    /// come within the limit, or run another plan, version or device.
    pub fn open(plan: &CheckedPlan, group: &Group, config: &SessionConfig) -> Result<Session, Error> {
        let device = config.device.open_session(plan, group, &config.kernels, &config.host_config())?;
        Session::from_device(plan, SessionProgram::new(device), group.rank(), config.kernels.clone())
    }

    /// Opens another program in this session, for example the backward pass of a model: both take turns in the same arenas, which
    /// are as large as the larger of them needs, with the same connections to other ranks. All ranks open the same programs in the
    /// same order, between runs, and run all programs in the same order. From then on each run begins with a barrier of all ranks, so that no
    /// rank begins a run of one program while another rank is in a run of another.
    ///
    /// What ends one program's runs by a failure ends the session: calls about other programs return the error, too.
    /// [`close`](Self::close) and drop end one program, and the session with the last one. Runs of programs that are put on several streams
    /// wait for each other; replays of graphs that the caller recorded are ordered by the caller.
    ///
    /// On a GPU the arenas are allocated anew, and runs are recorded again. What was written to inputs in symmetric memory is kept.
    ///
    /// # Errors
    /// The plan has another number of ranks, or an op without a kernel; the session is on the host and was not opened for several
    /// ([`SessionConfig::extendable`]), or has no room; it has symmetric memory for the caller; a caller's graph holds a run of it; or
    /// other ranks refuse the program or open another one. The session goes on then. It ends if a rank failed or has no memory.
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

    /// What the session of a rank will take of its device when it is opened as `config` says, and, as `scratch` and `held`,
    /// what it takes at most at any sizes that the plan serves, if the caller binds no input and no output. Nothing is
    /// allocated for it, and no device is asked: an engine subtracts it from what its cache may have. What libraries,
    /// drivers and kernels of custom ops take for themselves is not in it.
    ///
    /// # Errors
    /// The plan has no such rank, or an op has no kernel there.
    pub fn budget(plan: &CheckedPlan, rank: u32, config: &SessionConfig) -> Result<MemoryUsage, Error> {
        Ok(config.device.memory_budget(plan, rank, &config.kernels, &config.host_config())?)
    }

    /// The rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The plan.
    pub fn plan(&self) -> &CheckedPlan {
        &self.plan
    }

    /// Sets the value of a symbol for the runs that come. Where a symbol has no value yet, nothing has a size.
    ///
    /// # Errors
    /// There is no such symbol, or no bucket serves the value. The sizes stay as they were then.
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

    /// The arguments: inputs that change from run to run.
    ///
    /// # Errors
    /// A symbol has no value.
    pub fn inputs(&self) -> Result<Vec<SessionValue>, Error> {
        self.values_of_kind(|kind| kind == ValueKind::Argument)
    }

    /// The parameters: inputs that are given once.
    ///
    /// # Errors
    /// A symbol has no value.
    pub fn parameters(&self) -> Result<Vec<SessionValue>, Error> {
        self.values_of_kind(|kind| kind == ValueKind::Parameter)
    }

    /// The outputs, those that replace an input among them.
    ///
    /// # Errors
    /// A symbol has no value.
    pub fn outputs(&self) -> Result<Vec<SessionValue>, Error> {
        self.values_of_kind(|kind| kind == ValueKind::Output)
    }

    fn values_of_kind(&self, which: impl Fn(ValueKind) -> bool) -> Result<Vec<SessionValue>, Error> {
        let all = values::list_values(self.plan.source_program(), &self.bindings)?;
        Ok(all.into_iter().map(|(_, value)| value).filter(|value| which(value.kind)).collect())
    }

    fn find_port(&self, name: &str, prefer: values::PortPreference) -> Result<Port, Error> {
        values::find_port(self.plan.source_program(), name, prefer)
    }

    /// The input or output of a name; the input where both have it.
    ///
    /// # Errors
    /// There is no such input or output, or a symbol has no value.
    pub fn value(&self, name: &str) -> Result<SessionValue, Error> {
        self.value_at_port(name, self.find_port(name, values::PortPreference::Input)?)
    }

    fn value_at_port(&self, name: &str, port: Port) -> Result<SessionValue, Error> {
        let all = values::list_values(self.plan.source_program(), &self.bindings)?;
        let value = all.into_iter().find(|(other, _)| *other == port).map(|(_, value)| value);
        value.ok_or_else(|| Error::invalid_request(format!("{name} has no value")))
    }

    /// Where an input or output lies for the runs that come. The caller writes inputs there, or reads outputs, while no run
    /// is in progress; the memory stays until a symbol is set that needs more, the memory is bound elsewhere, or the session
    /// ends.
    ///
    /// # Errors
    /// There is no such input or output, a symbol has no value, or there is no memory.
    pub fn address(&mut self, name: &str) -> Result<ValueMemory, Error> {
        let port = self.find_port(name, values::PortPreference::Either)?;
        let memory = self.device.select()?.port_memory(port)?;
        if matches!(memory.storage, PortStorage::Program(_)) {
            return Err(Error::invalid_request(format!(
                "{name} is a constant of the program: it has no memory to write"
            )));
        }
        Ok(ValueMemory { address: memory.range.address, bytes: memory.range.bytes, storage: memory.storage })
    }

    /// Has the runs that come find an input, or write an output, in memory of the caller, where it lies. Nothing is copied,
    /// unless the plan holds the input in symmetric memory ([`PortStorage::Symmetric`]) and this memory is none
    /// ([`allocate_symmetric`](Self::allocate_symmetric)): a parameter is copied there before the first run then, an argument
    /// in every run.
    ///
    /// Inputs that no output replaces may share memory with each other; an output may share that of the input which it
    /// replaces; nothing else may overlap.
    ///
    /// # Errors
    /// There is no such input or output, or the memory has no address, is not aligned for its elements, is the session's own,
    /// or too small for what has the same size always. What was bound before stays then. What depends on sizes, and whether
    /// memory overlaps what it may not, is asked by the next run.
    ///
    /// # Safety
    /// The memory is valid for reads and writes (what a run does not write: for reads) until something else is bound or the
    /// session has ended, and all runs that take it have ended. While a run is in progress nobody else writes it, nor reads
    /// what the run writes.
    pub unsafe fn bind(&mut self, name: &str, pointer: *mut u8, bytes: usize) -> Result<(), Error> {
        let slot = self.slot(name)?;
        // SAFETY: by the caller.
        unsafe { self.bind_slot(slot, pointer, bytes) }
    }

    /// Has the runs that come use memory of the session again. What was in the caller's is not copied.
    ///
    /// # Errors
    /// There is no such input or output.
    pub fn unbind(&mut self, name: &str) -> Result<(), Error> {
        let port = self.find_port(name, values::PortPreference::Either)?;
        // SAFETY: no memory is lent.
        unsafe { self.device.select()?.bind_port(port, None)? };
        self.hold_owner(port, None);
        Ok(())
    }

    /// Copies the data of an input to where it lies.
    ///
    /// # Errors
    /// There is no such input, it is a constant, the data have another size, a run is in progress, or one failed.
    pub fn write(&mut self, name: &str, data: &[u8]) -> Result<(), Error> {
        let Port::Input(input) = self.find_port(name, values::PortPreference::Input)? else {
            return Err(Error::invalid_request(format!("{name} is an output: only inputs are written")));
        };
        Ok(self.device.select()?.write_input(input, data)?)
    }

    /// The value of an output, or of an input, as it is now.
    ///
    /// # Errors
    /// There is no such output or input, a run is in progress, or one failed.
    pub fn read(&mut self, name: &str) -> Result<Tensor, Error> {
        let port = self.find_port(name, values::PortPreference::Output)?;
        let value = self.value_at_port(name, port)?;
        let mut data = vec![0; value.bytes];
        self.device.select()?.read_port(port, &mut data)?;
        let tensor = Tensor::new(value.dtype, value.extents, data);
        tensor.ok_or_else(|| RunError::Defect(format!("{name}: its bytes do not fit its extents")).into())
    }

    /// Runs once and waits for the end. All ranks run the same, in the same order.
    ///
    /// # Errors
    /// A symbol has no value, an input has no data, other ranks run with other sizes, or the run failed on some rank.
    pub fn run(&mut self) -> Result<(), Error> {
        Ok(self.device.select()?.run()?)
    }

    /// Starts one run behind those that were started, and returns.
    ///
    /// # Errors
    /// As [`run`](Self::run), as far as it is known now.
    pub fn enqueue(&mut self) -> Result<(), Error> {
        Ok(self.device.select()?.enqueue(None)?)
    }

    /// As [`enqueue`](Self::enqueue), on a stream of the caller (a `cudaStream_t` or `CUstream`): the run begins after what is
    /// there, and what is put there next begins after the run. While the caller records the stream, the run becomes part of
    /// the recording instead; the caller then waits for his replays before he asks [`poll`](Self::poll) how they went, and
    /// replays them as long as the session is there and keeps its memory.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); the session is on the host, or the stream is of another GPU.
    ///
    /// # Safety
    /// The stream exists, until all runs there have ended.
    pub unsafe fn enqueue_on(&mut self, stream: *mut std::ffi::c_void) -> Result<(), Error> {
        Ok(self.device.select()?.enqueue(Some(RawStream(stream)))?)
    }

    /// The bytes that the session takes of its device now.
    pub fn memory_usage(&self) -> MemoryUsage {
        self.device.select().map(|device| device.memory_usage()).unwrap_or_default()
    }

    /// How often the session recorded runs on its GPU, and what became of the recordings: one is made for new sizes and for
    /// memory that none fits, and as many are kept as `Gpu::with_kept` says.
    pub fn recordings(&self) -> RecordingCounts {
        self.device.select().map(|device| device.recording_counts()).unwrap_or_default()
    }

    /// Whether all runs have ended.
    ///
    /// # Errors
    /// One failed.
    pub fn poll(&mut self) -> Result<bool, Error> {
        Ok(self.device.select()?.poll()?)
    }

    /// Waits until all runs have ended.
    ///
    /// # Errors
    /// One failed, or they have not ended within `limit` and go on.
    pub fn wait(&mut self, limit: Duration) -> Result<(), Error> {
        Ok(self.device.select()?.wait(clamp_wait(limit))?)
    }

    /// Gives the memory of the arenas back until [`resume`](Self::resume). All ranks call both, between runs. Memory of
    /// inputs and outputs stays.
    ///
    /// # Errors
    /// A run is in progress, or a rank failed.
    pub fn release(&mut self) -> Result<(), Error> {
        Ok(self.device.select()?.release_arenas()?)
    }

    /// Takes the memory of the arenas again. Inputs in symmetric memory are to be written again.
    ///
    /// # Errors
    /// There is no memory, or a rank failed.
    pub fn resume(&mut self) -> Result<(), Error> {
        Ok(self.device.select()?.resume_arenas()?)
    }

    /// Waits until all runs of this rank have ended, and ends the session, if no other program of it is open. Other ranks may close theirs later; a rank that
    /// runs it again gets an error that names this rank. Rank 0 of ranks that are processes waits until the others have
    /// ended the runs that it has ended, up to the limit.
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
