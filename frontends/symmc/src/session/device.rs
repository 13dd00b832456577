//! The device of a session in the process that opened it. The programs of the session share it.
//!
//! A forked process has a copy without the threads. Its use of sockets and shared memory would reach the peers of the
//! parent, so calls in it are refused, and dropping the copy does nothing.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symmc_check::CheckedPlan;
use symmc_control::process;
use symmc_runtime::CustomKernelRegistry;
use symmc_runtime::session::DeviceSession;

use super::held_memory::HeldMemory;
use crate::error::Error;

/// A program on a device session, and the memory that its runs use.
pub(super) struct SessionProgram {
    /// `None` once this program has ended.
    device: Option<ManuallyDrop<Arc<Mutex<SharedDevice>>>>,
    /// The number of the program in the session.
    program: usize,
    /// Dropped after the device, whose runs may read this memory.
    shared: ManuallyDrop<HeldMemory>,
    process: u32,
}

/// A device session of one or more programs.
struct SharedDevice {
    /// `None` after the session has ended for all programs.
    session: Option<Box<dyn DeviceSession>>,
    /// How many programs have not ended.
    open: usize,
}

/// The locked device session, switched to one program.
pub(super) struct SelectedDevice<'a>(MutexGuard<'a, SharedDevice>);

impl Deref for SelectedDevice<'_> {
    type Target = dyn DeviceSession;

    fn deref(&self) -> &Self::Target {
        self.0.session.as_deref().expect("`select` found it, and the lock has been held since")
    }
}

impl DerefMut for SelectedDevice<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.session.as_deref_mut().expect("`select` found it, and the lock has been held since")
    }
}

impl SessionProgram {
    /// A device session that this process opened, with its first program.
    pub fn new(session: Box<dyn DeviceSession>) -> SessionProgram {
        SessionProgram::for_program(Arc::new(Mutex::new(SharedDevice { session: Some(session), open: 1 })), 0)
    }

    fn for_program(device: Arc<Mutex<SharedDevice>>, program: usize) -> SessionProgram {
        let device = Some(ManuallyDrop::new(device));
        let shared = ManuallyDrop::new(HeldMemory::default());
        SessionProgram { device, program, shared, process: process::current_process() }
    }

    /// Opens another program on the device session.
    ///
    /// # Errors
    /// As [`select`](Self::select), or as [`DeviceSession::open_program`].
    pub fn open_program(
        &self,
        plan: &CheckedPlan,
        kernels: &CustomKernelRegistry,
    ) -> Result<SessionProgram, Error> {
        let mut selected = self.select()?;
        let program = selected.open_program(plan, kernels)?;
        selected.0.open += 1;
        drop(selected);
        let device = self.device.as_ref().ok_or_else(session_ended_error)?;
        Ok(SessionProgram::for_program(Arc::clone(device), program))
    }

    /// The device session, for calls about this program. Calls about other programs wait meanwhile.
    ///
    /// # Errors
    /// This process is a fork of the one that opened it, or the session has ended.
    pub fn select(&self) -> Result<SelectedDevice<'_>, Error> {
        self.expect_opening_process()?;
        let mut shared = lock_device(self.device.as_deref().ok_or_else(session_ended_error)?);
        shared.session.as_deref_mut().ok_or_else(session_ended_error)?.switch_to_program(self.program)?;
        Ok(SelectedDevice(shared))
    }

    /// The memory that runs use and the session does not own.
    pub fn held_memory(&mut self) -> &mut HeldMemory {
        &mut self.shared
    }

    /// Ends this program once all runs have ended, and the session with the last program.
    ///
    /// # Errors
    /// As [`select`](Self::select), or a run failed.
    pub fn close(&mut self) -> Result<(), Error> {
        self.expect_opening_process()?;
        let device = self.device.take().map(ManuallyDrop::into_inner).ok_or_else(session_ended_error)?;
        let mut shared = lock_device(&device);
        shared.open -= 1;
        match shared.open {
            0 => Ok(shared.session.take().ok_or_else(session_ended_error)?.close()?),
            _ => Ok(shared
                .session
                .as_deref_mut()
                .ok_or_else(session_ended_error)?
                .close_program(self.program)?),
        }
    }

    /// Takes the device session out, which ends it for all programs. The memory that runs of this program use is kept until
    /// `self` is dropped.
    ///
    /// # Errors
    /// As [`select`](Self::select).
    pub fn take_session(&mut self) -> Result<Box<dyn DeviceSession>, Error> {
        self.expect_opening_process()?;
        let device = self.device.take().map(ManuallyDrop::into_inner).ok_or_else(session_ended_error)?;
        let mut shared = lock_device(&device);
        shared.open -= 1;
        shared.session.take().ok_or_else(session_ended_error)
    }

    fn expect_opening_process(&self) -> Result<(), Error> {
        if self.is_opening_process() {
            return Ok(());
        }
        Err(Error::invalid_request(format!(
            "the session belongs to process {}: a session does not survive a fork; open it in the process that uses it",
            self.process
        )))
    }

    fn is_opening_process(&self) -> bool {
        process::current_process() == self.process
    }

    /// Ends this program on drop. The last program drops the session; otherwise it continues, unless this thread panics.
    fn end_program(&mut self) {
        let Some(device) = self.device.take().map(ManuallyDrop::into_inner) else { return };
        let mut shared = lock_device(&device);
        shared.open -= 1;
        if shared.open == 0 || std::thread::panicking() {
            drop(shared.session.take());
        } else if let Some(session) = &mut shared.session {
            // A failure also fails the calls of the other programs, which return it.
            let _ = session.close_program(self.program);
        }
    }
}

impl Drop for SessionProgram {
    fn drop(&mut self) {
        if self.is_opening_process() {
            self.end_program();
            // SAFETY: this is the only place that drops it, and it runs once.
            unsafe { ManuallyDrop::drop(&mut self.shared) };
        }
    }
}

fn lock_device(device: &Mutex<SharedDevice>) -> MutexGuard<'_, SharedDevice> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

fn session_ended_error() -> Error {
    Error::from(symmc_runtime::error::session_ended_error())
}
