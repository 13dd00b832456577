//! The process of a rank, started without an unbounded wait.
//!
//! The standard library's `Command::spawn` waits until the child has begun its program. A child that is
//! stopped before this point would block the launcher forever. The function here lets the launcher wait with
//! a timeout, and returns the child's process number at once, so that the launcher can kill it.

use std::ffi::{CString, NulError};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{pipe2, read};

use crate::heartbeat::{ActiveClock, TICK};

/// The command that runs one rank: a program that calls [`rank_main`](crate::rank_main) with the number that
/// follows its last argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankCommand {
    pub program: PathBuf,
    /// Its arguments. The number of the control socket's descriptor is appended as one more.
    pub args: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct RankProcess {
    pid: libc::pid_t,
    /// `None` until the process has exited and was reaped.
    status: Option<ExitStatus>,
    is_stopped: bool,
    /// Closed when the child begins its program; contains its [`ChildReport`] if it cannot.
    begun: OwnedFd,
}

#[derive(Debug)]
pub(crate) struct CallFailure {
    pub call: &'static str,
    pub error: io::Error,
}

impl CallFailure {
    pub fn new(call: &'static str, error: impl Into<io::Error>) -> CallFailure {
        CallFailure { call, error: error.into() }
    }
}

/// The system calls of the child before its program, by their numbers in its report.
const CHILD_CALLS: [&str; 5] = ["prctl", "getppid", "dup2", "fcntl", "execve"];

/// The report of a child that cannot begin its program: in the upper half the index in [`CHILD_CALLS`] of the
/// call that failed, in the lower half the error number.
type ChildReport = u64;

/// The data that the child needs between fork and exec, where nothing may be allocated.
struct PreparedExec {
    program: CString,
    /// Pointers into `_arguments`, and NULL.
    pointers: Vec<*const libc::c_char>,
    _arguments: Vec<CString>,
    null: RawFd,
    inherited: RawFd,
    begun: RawFd,
    launcher: libc::pid_t,
}

impl RankProcess {
    /// Forks a child that runs the command, with the number of `inherited` as one more argument. This
    /// descriptor stays open in the child. The child reads from and writes to `null`, except for errors, and
    /// dies with this thread. Fails if the system provides no process, descriptor or memory. Whether the
    /// program exists is not known yet.
    pub fn spawn(
        command: &RankCommand,
        inherited: &OwnedFd,
        null: &File,
    ) -> Result<RankProcess, CallFailure> {
        let (begun, child_end) = pipe2(OFlag::O_CLOEXEC).map_err(|e| CallFailure::new("pipe2", e))?;
        let program = CString::new(command.program.as_os_str().as_bytes()).map_err(argument_error)?;
        let args = command.args.iter().cloned().chain([inherited.as_raw_fd().to_string()]);
        let args = args.map(CString::new).collect::<Result<Vec<_>, _>>().map_err(argument_error)?;
        let arguments: Vec<CString> = [program.clone()].into_iter().chain(args).collect();
        let pointers = arguments.iter().map(|a| a.as_ptr()).chain([std::ptr::null()]).collect();
        let inherited = inherited.as_raw_fd();
        let launcher = std::process::id() as libc::pid_t;
        let exec = PreparedExec {
            program,
            pointers,
            _arguments: arguments,
            null: null.as_raw_fd(),
            inherited,
            begun: child_end.as_raw_fd(),
            launcher,
        };
        // SAFETY: the child makes only system calls that are safe between fork and exec, and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(CallFailure::new("clone", io::Error::last_os_error())),
            // SAFETY: this is the child, right after the fork.
            0 => unsafe { exec.exec() },
            pid => Ok(RankProcess { pid, status: None, is_stopped: false, begun }),
        }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits until the child has begun its program; `Ok(false)` if it has not within `limit`.
    pub fn await_exec(&self, limit: Duration) -> Result<bool, CallFailure> {
        let mut clock = ActiveClock::start();
        while clock.now() < limit {
            let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(&self.begun), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO)) {
                Ok(0) | Err(Errno::EINTR) => continue,
                polled => polled.map_err(|e| CallFailure::new("poll", e))?,
            };
            let mut report = [0; size_of::<ChildReport>()];
            return match read(&self.begun, &mut report) {
                Ok(n) if n == report.len() => Err(child_failure(ChildReport::from_ne_bytes(report))),
                Ok(_) => Ok(true),
                Err(e) => Err(CallFailure::new("read", e)),
            };
        }
        Ok(false)
    }

    pub fn poll_exit(&mut self) -> Option<ExitStatus> {
        self.poll_state();
        self.status
    }

    pub fn is_stopped(&mut self) -> bool {
        self.poll_state();
        self.status.is_none() && self.is_stopped
    }

    /// Kills the process, if it has not exited.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            // SAFETY: the process is a child that was not reaped, so no other process has its number.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
    }

    /// Takes the state changes that the system holds for the process.
    fn poll_state(&mut self) {
        while self.status.is_none() {
            let mut status = 0;
            let flags = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
            // SAFETY: the call writes only to the given variable and keeps no pointer to it.
            if unsafe { libc::waitpid(self.pid, &raw mut status, flags) } != self.pid {
                return;
            }
            if libc::WIFSTOPPED(status) {
                self.is_stopped = true;
            } else if libc::WIFCONTINUED(status) {
                self.is_stopped = false;
            } else {
                self.status = Some(ExitStatus::from_raw(status));
            }
        }
    }
}

fn child_failure(report: ChildReport) -> CallFailure {
    let call = CHILD_CALLS.get((report >> 32) as usize).copied().unwrap_or("execve");
    CallFailure::new(call, io::Error::from_raw_os_error(report as u32 as i32))
}

impl PreparedExec {
    /// Replaces the process by the program of a rank.
    ///
    /// # Safety
    /// Called once, in a child right after a fork.
    unsafe fn exec(&self) -> ! {
        // SAFETY: all calls are safe in a child after a fork; pointers point into `self`, and the signal set to the stack.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            // The rank dies with the launcher, even if the launcher died before this call.
            let failed = if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                0
            } else if libc::getppid() != self.launcher {
                *libc::__errno_location() = libc::ESRCH;
                1
            } else if libc::dup2(self.null, 0) < 0 || libc::dup2(self.null, 1) < 0 {
                2
            } else if libc::fcntl(self.inherited, libc::F_SETFD, 0) != 0 {
                3
            } else {
                libc::execvp(self.program.as_ptr(), self.pointers.as_ptr());
                4
            };
            let report: ChildReport = failed << 32 | u64::from((*libc::__errno_location()).unsigned_abs());
            libc::write(self.begun, (&raw const report).cast(), size_of::<ChildReport>());
            libc::_exit(127)
        }
    }
}

fn argument_error(error: NulError) -> CallFailure {
    CallFailure::new("execve", io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Whether children of this process stop right after the fork.
    static STOPS: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" fn stop_if_asked() {
        if STOPS.load(Ordering::SeqCst) {
            // SAFETY: a signal to this process, which is safe in a child after a fork.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    }

    fn start(program: &str) -> RankProcess {
        let command = RankCommand { program: PathBuf::from(program), args: Vec::new() };
        let null = File::options().read(true).write(true).open("/dev/null").expect("it is there");
        let inherited: OwnedFd = null.try_clone().expect("a descriptor").into();
        RankProcess::spawn(&command, &inherited, &null).expect("a process")
    }

    #[test]
    fn a_child_begins_its_program_or_says_why_not_or_is_given_up() {
        let wait = Duration::from_secs(60);
        let mut child = start("true");
        assert!(child.await_exec(wait).expect("the program is there"));
        while child.poll_exit().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(child.poll_exit().and_then(|status| status.code()), Some(0));
        let missing = start("/nonexistent").await_exec(wait);
        let missing = missing.map_err(|failure| (failure.call, failure.error.kind()));
        assert_eq!(missing, Err(("execve", io::ErrorKind::NotFound)));

        // SAFETY: the handler reads a static and raises a signal.
        assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(stop_if_asked)) }, 0);
        STOPS.store(true, Ordering::SeqCst);
        let mut stopped = start("true");
        STOPS.store(false, Ordering::SeqCst);
        assert!(!stopped.await_exec(Duration::from_millis(200)).expect("no error"));
        assert!(stopped.is_stopped() && stopped.poll_exit().is_none());
        stopped.kill();
        while stopped.poll_exit().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(stopped.poll_exit().and_then(|status| status.signal()), Some(libc::SIGKILL));
    }
}
