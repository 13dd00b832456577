//! One rank of a plan between runs: the interface that sessions on devices implement.
//!
//! A session holds a rank's arenas, the resolved programs of each set of sizes, and the connection to its
//! peers. Its caller binds the memory of inputs and outputs, sets sizes, and enqueues runs. Callers map names
//! and types to numbers: here inputs and outputs have numbers only. The device-independent part is in
//! [`SessionPorts`].
//!
//! A run uses the sizes and the memory that are set when it is enqueued. Later changes affect later runs.

mod caller_arena;
pub mod join;
mod layout;
mod memory;
pub mod memory_usage;
mod port;
mod port_state;
mod ports;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symmc_check::CheckedPlan;
use symmc_ir::{SymbolBindings, Tensor};
use symmc_plan::Lane;

use crate::error::{Result, RunError};
use crate::exec::{CustomKernelRegistry, InputData, ResolvedProgram};

pub use caller_arena::CallerArena;
pub use layout::{SessionLayout, check_proposals, encode_proposal};
pub use memory::{DeviceMemory, DeviceName, SharedTensor};
pub use memory_usage::MemoryUsage;
pub use port::{DeviceRange, Port, PortMemory, PortStorage};
pub use port_state::PortState;
pub use ports::{PortDevice, SessionPorts, SizedProgram, arenas_released_error, run_in_progress_error};

/// A stream of a device, by its driver's handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawStream(pub *mut std::ffi::c_void);

// SAFETY: a handle is only a name; its users are responsible for what it refers to.
unsafe impl Send for RawStream {}

/// Counts of the recordings that a session made of runs of its program for sizes and memory. The host records
/// none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RecordingCounts {
    pub created: u64,
    /// The number of recordings that were changed to use other memory.
    pub retargeted: u64,
    /// The number of recordings that were dropped because the limit was reached.
    pub evicted: u64,
}

/// A step with its measured times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TracedStep {
    /// The name of its first result.
    pub node: String,
    pub op: String,
    pub lane: Lane,
    /// The start of the step, in microseconds from the start of the run.
    pub start_us: f64,
    pub us: f64,
}

/// One rank of a plan on a device.
pub trait DeviceSession: Send {
    /// Opens another program in this session, and returns its number. The programs take turns in the same
    /// arenas; the first has number 0. All ranks call this together, between runs. Fails if the session has
    /// symmetric memory for its caller, is recorded by its caller, or has no room; if ranks open different
    /// plans; or if a rank failed. If another request may still succeed, the session continues.
    fn open_program(&mut self, plan: &CheckedPlan, kernels: &CustomKernelRegistry) -> Result<usize>;

    /// Selects the program of the session that the following calls refer to. Fails if there is no such
    /// program.
    fn switch_to_program(&mut self, program: usize) -> Result<()>;

    /// Closes a program, once all runs have ended. Its inputs and outputs are freed; another program has to
    /// be selected then. Fails if a run failed.
    fn close_program(&mut self, program: usize) -> Result<()>;

    /// Sets the values of the imported program's symbols for later runs. Fails if no bucket covers them.
    fn set_sizes(&mut self, bindings: &SymbolBindings) -> Result<()>;

    /// The program at the current sizes. Fails if a symbol has no value yet.
    fn resolved_program(&self) -> Result<&ResolvedProgram>;

    /// Binds memory of the caller to an input or output for later runs; with `None` the session's memory is
    /// used again. Fails if the memory is not aligned, is on another device, or belongs to the session. Its
    /// size, and overlaps with memory that a run writes, are checked when a run is enqueued.
    ///
    /// # Safety
    /// The memory is valid until it is replaced or the session ends, and all runs that use it have ended.
    /// While a run is in progress nothing else writes it, nor reads what the run writes.
    unsafe fn bind_port(&mut self, port: Port, memory: Option<DeviceRange>) -> Result<()>;

    fn device(&self) -> DeviceName;

    /// Allocates zeroed memory of the device. It belongs to the caller and outlives the session.
    fn allocate_memory(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>>;

    /// Allocates zeroed symmetric memory for the caller, at the same offset on all ranks, which call this
    /// together. The memory outlives the session. Fails if ranks request different sizes, if not enough
    /// memory is left (on all ranks with the same error), or if a rank failed.
    fn allocate_symmetric(&mut self, bytes: usize) -> Result<Arc<dyn DeviceMemory>>;

    /// The bytes of a tensor in memory of the device, which nothing writes. All sessions of this process
    /// share one copy, as long as one of them uses it. Fails if the file of the tensor cannot be read, or
    /// there is not enough memory.
    fn share_tensor(&self, tensor: &Arc<Tensor>) -> Result<SharedTensor>;

    /// The memory of an input or output for later runs. The caller may write inputs there, and read outputs,
    /// while no run is in progress, until sizes are set that need more, or the session ends. Fails if a
    /// symbol has no value yet, or there is not enough memory.
    fn port_memory(&mut self, port: Port) -> Result<PortMemory>;

    /// Copies the data of an input to its memory, once all runs have ended. Fails if the size differs, the
    /// input is a constant, or a run failed.
    fn write_input(&mut self, input: usize, data: &[u8]) -> Result<()> {
        self.write_inputs(&[(input, InputData::Memory(data))])
    }

    /// Copies the data of several inputs to their memory, once all runs have ended. Fails as
    /// [`write_input`](Self::write_input), or if the data cannot be read.
    fn write_inputs(&mut self, inputs: &[(usize, InputData<'_>)]) -> Result<()>;

    /// Copies the data of an input or output from its memory, once all runs have ended. Fails if the size
    /// differs, or a run failed.
    fn read_port(&mut self, port: Port, data: &mut [u8]) -> Result<()>;

    /// Prepares the next run, so that it begins without delay. Without this call, runs prepare themselves.
    /// All ranks call this together, and set no other sizes before that run.
    fn prepare_run(&mut self) -> Result<()> {
        Ok(())
    }

    /// Enqueues one run after the earlier ones; on `stream`, if the device has streams and one is given. All
    /// ranks enqueue the same runs, in the same order. Fails if an input has no data, bound memory is too
    /// small or overlaps memory that a run writes, peers run with other sizes, or an earlier run failed.
    fn enqueue(&mut self, stream: Option<RawStream>) -> Result<()>;

    /// Runs once, after the earlier runs, and waits for the end.
    fn run(&mut self) -> Result<()>;

    /// Runs once, step by step, and waits for the end; returns the steps with their times on the device.
    /// Fails as [`run`](Self::run), or if the device does not measure steps.
    fn run_traced(&mut self) -> Result<Vec<TracedStep>> {
        Err(RunError::Unsupported(format!(
            "{}: times of single steps are not measured on this device",
            self.device()
        )))
    }

    /// Whether all runs have ended. Fails if one failed, with its rank, step and op.
    fn poll(&mut self) -> Result<bool>;

    /// Waits until all runs have ended. Fails if one failed, or did not end before the timeout `limit`.
    fn wait(&mut self, limit: Duration) -> Result<()>;

    /// Frees the memory of the arenas until [`resume_arenas`](Self::resume_arenas), once all runs have ended.
    /// All ranks call both.
    fn release_arenas(&mut self) -> Result<()>;

    /// Allocates the memory of the arenas again. Its contents are lost: inputs in the arenas must be written
    /// again.
    fn resume_arenas(&mut self) -> Result<()>;

    /// The memory that the session uses on its device now.
    fn memory_usage(&self) -> MemoryUsage;

    /// The recordings of runs since the session was opened, or its arenas were resumed.
    fn recording_counts(&self) -> RecordingCounts {
        RecordingCounts::default()
    }

    /// Waits until all runs have ended, and ends the session on this rank. Fails if a run failed.
    fn close(self: Box<Self>) -> Result<()>;

    /// Ends the session on all ranks at once, for this reason, without waiting for other ranks. Dropping a
    /// session while a run is in progress or during a panic does the same, without a reason; any other drop
    /// behaves like [`close`](Self::close).
    fn abort(self: Box<Self>, reason: &str);
}
