//! One rank of a plan between runs: the seam behind which sessions on devices stand.
//!
//! A session holds a rank's arenas, what was made of the plan for each size, and the connection to its peers. Its caller
//! says where inputs and outputs lie, sets sizes, and puts runs behind each other. Names and types are the business of
//! whoever stands in front; here inputs and outputs have numbers. What does not depend on the device is in [`SessionPorts`].
//!
//! A run takes the sizes and the memory that are set when it is put there. What is set later is for later runs.

mod caller_arena;
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
pub use ports::{
    PortBackend, SessionPorts, SizedProgram, arenas_released_error, run_in_progress_error,
    session_ended_error,
};

/// A stream of a device, by its driver's handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawStream(pub *mut std::ffi::c_void);

// SAFETY: a handle is a name; whoever uses it answers for what it names.
unsafe impl Send for RawStream {}

/// How often a session recorded a run of its program for sizes and memory, and what became of the recordings. The host
/// records none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RecordingCounts {
    pub created: u64,
    /// How often one took over other memory instead.
    pub retargeted: u64,
    /// How many had to go because more were kept than may be.
    pub evicted: u64,
}

/// A step as it ran.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TracedStep {
    /// The name of its first result.
    pub node: String,
    pub op: String,
    pub lane: Lane,
    /// When it began, in microseconds from the start of the run.
    pub start_us: f64,
    pub us: f64,
}

/// One rank of a plan on a device.
pub trait DeviceSession: Send {
    /// Opens another program in this session, which takes turns with the others in the same arenas; its number. The first has
    /// number 0. All ranks call this together, between runs. Fails if the session has symmetric memory for its caller,
    /// is recorded by its caller, or has no room; ranks open different plans; or a rank failed. The session goes on
    /// where another request could do.
    fn open_program(&mut self, plan: &CheckedPlan, kernels: &CustomKernelRegistry) -> Result<usize>;

    /// Has the calls that follow be about a program of the session. Fails if there is no such program.
    fn switch_to_program(&mut self, program: usize) -> Result<()>;

    /// Ends a program, once all runs have ended. Its inputs and outputs are freed; another program has to be selected then.
    /// Fails if a run failed.
    fn close_program(&mut self, program: usize) -> Result<()>;

    /// Sets the values of the imported program's symbols for the runs that come. Fails if no bucket serves them.
    fn set_sizes(&mut self, bindings: &SymbolBindings) -> Result<()>;

    /// The program at the sizes that are set. Fails if a symbol has no value yet.
    fn resolved_program(&self) -> Result<&ResolvedProgram>;

    /// Has the runs that come find an input, or write an output, in memory of the caller; with `None` in memory of the
    /// session again. Fails if the memory is not aligned, of another device, or the session's. Whether it is large
    /// enough and overlaps nothing that a run writes is asked when a run is put there.
    ///
    /// # Safety
    /// The memory is valid until it is replaced or the session ends, and all runs that take it have ended. While a run is
    /// in progress nobody else writes it, nor reads what the run writes.
    unsafe fn bind_port(&mut self, port: Port, memory: Option<DeviceRange>) -> Result<()>;

    fn device(&self) -> DeviceName;

    /// So many zeros of the device, which are the caller's and outlive the session.
    fn allocate_memory(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>>;

    /// So many zeros of the symmetric memory for the caller, at the same offset on all ranks, which allocate together. They
    /// outlive the session. Fails if ranks allocate different sizes, or there is not as much left, which is told to all
    /// of them alike; or a rank failed.
    fn allocate_symmetric(&mut self, bytes: usize) -> Result<Arc<dyn DeviceMemory>>;

    /// The bytes of a tensor in memory of the device, which nobody writes: once there for all sessions of this process, as
    /// long as one of them keeps them. Fails if the file of the tensor cannot be read, or there is not as much memory.
    fn share_tensor(&self, tensor: &Arc<Tensor>) -> Result<SharedTensor>;

    /// The memory of an input or output for the runs that come. The caller may write inputs there, and read outputs, while no
    /// run is in progress, until sizes are set that need more, or the session ends. Fails if a symbol has no value yet,
    /// or there is no memory.
    fn port_memory(&mut self, port: Port) -> Result<PortMemory>;

    /// Copies the data of an input to where it lies, once all runs have ended. Fails if it has another size, is a
    /// constant, or a run failed.
    fn write_input(&mut self, input: usize, data: &[u8]) -> Result<()> {
        self.write_inputs(&[(input, InputData::Memory(data))])
    }

    /// Copies the data of several inputs to where they lie, once all runs have ended. Fails as [`write`](Self::write_input),
    /// or if data cannot be read.
    fn write_inputs(&mut self, inputs: &[(usize, InputData<'_>)]) -> Result<()>;

    /// Copies the data of an input or output from where it lies, once all runs have ended. Fails if it has another
    /// size, or a run failed.
    fn read_port(&mut self, port: Port, data: &mut [u8]) -> Result<()>;

    /// Prepares the next run, which then begins at once. Runs prepare themselves otherwise. All ranks call this together, and set
    /// no other sizes before that run.
    fn prepare_run(&mut self) -> Result<()> {
        Ok(())
    }

    /// Puts one run behind those that are there; on `stream`, where the device has streams and one is given. All ranks put
    /// the same runs there, in the same order. Fails if an input has no data, lent memory is too small or overlaps what
    /// a run writes, peers run with other sizes, or an earlier run failed.
    fn enqueue(&mut self, stream: Option<RawStream>) -> Result<()>;

    /// Runs once, behind those that are there, and waits for the end.
    fn run(&mut self) -> Result<()>;

    /// Runs once, step by step, and waits for the end; the steps with their times on the device. Fails as
    /// [`run`](Self::run), or if the device takes no times.
    fn run_traced(&mut self) -> Result<Vec<TracedStep>> {
        Err(RunError::Unsupported(format!(
            "{}: the times of single steps are not taken there",
            self.device()
        )))
    }

    /// Whether all runs have ended. Fails if one failed, with its rank, step and op.
    fn poll(&mut self) -> Result<bool>;

    /// Waits until all runs have ended. Fails if one failed, or did not end within `limit`.
    fn wait(&mut self, limit: Duration) -> Result<()>;

    /// Gives the memory of the arenas back until [`resume`](Self::resume_arenas), once all runs have ended. All ranks call both.
    fn release_arenas(&mut self) -> Result<()>;

    /// Takes the memory of the arenas again. What lay there is lost: inputs there are to be written again.
    fn resume_arenas(&mut self) -> Result<()>;

    /// What the session takes of its device now.
    fn memory_usage(&self) -> MemoryUsage;

    /// How often it recorded runs since it was opened, or has had its memory again.
    fn recording_counts(&self) -> RecordingCounts {
        RecordingCounts::default()
    }

    /// Waits until all runs have ended, and ends the session on this rank. Fails if a run failed.
    fn close(self: Box<Self>) -> Result<()>;

    /// Ends the session on all ranks at once, for this reason, without waiting for other ranks. Dropping a session while a
    /// run is in progress or during a panic does the same, without a reason; any other drop behaves like
    /// [`close`](Self::close).
    fn abort(self: Box<Self>, reason: &str);
}
