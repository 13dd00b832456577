//! Errors of system calls, classified by their error number in one place.
//!
//! A system call fails for one of three reasons. A limit is reached or a resource is exhausted. The machine
//! or a container does not offer or allow the call (unsupported). The arguments are wrong, which is a fault
//! of this program. Users can change conditions of the first two kinds: the error names the call and the
//! remedy.

use std::io;

use crate::error::RunError;

/// The kind of failure that the error number of a system call indicates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SystemErrorKind {
    /// A limit is reached, or the system has no more of the resource.
    Exhausted,
    /// Not permitted, or not offered by this kernel.
    Forbidden,
    /// A file, device or program does not exist.
    Missing,
    Other,
}

impl SystemErrorKind {
    fn classify(error: &io::Error) -> SystemErrorKind {
        match error.raw_os_error() {
            Some(
                libc::EAGAIN
                | libc::EMFILE
                | libc::ENFILE
                | libc::ENOMEM
                | libc::ENOBUFS
                | libc::ENOSPC
                | libc::EDQUOT
                | libc::ETOOMANYREFS
                | libc::EUSERS,
            ) => SystemErrorKind::Exhausted,
            Some(
                libc::EPERM
                | libc::EACCES
                | libc::ENOSYS
                | libc::EOPNOTSUPP
                | libc::EAFNOSUPPORT
                | libc::EPROTONOSUPPORT
                | libc::ESOCKTNOSUPPORT
                | libc::EROFS,
            ) => SystemErrorKind::Forbidden,
            Some(libc::ENOENT | libc::ENOTDIR | libc::ENXIO | libc::ENODEV | libc::ENOEXEC | libc::ELOOP) => {
                SystemErrorKind::Missing
            }
            _ => SystemErrorKind::Other,
        }
    }
}

impl RunError {
    /// The error of the system call `call`; `what` names its purpose.
    pub fn from_system_call(what: impl Into<String>, call: &str, error: impl Into<io::Error>) -> RunError {
        let error = error.into();
        let purpose = what.into();
        match SystemErrorKind::classify(&error) {
            SystemErrorKind::Exhausted => {
                RunError::Exhausted { what: format!("{purpose} ({call})"), error: error.to_string() }
            }
            SystemErrorKind::Forbidden => forbidden_error(&purpose, call, &error),
            SystemErrorKind::Missing => RunError::Unsupported(format!(
                "{purpose}: {call}: {error}: this machine or container lacks it"
            )),
            SystemErrorKind::Other => {
                RunError::System { what: format!("{purpose} ({call})"), error: error.to_string() }
            }
        }
    }

    /// The error of a system call that was to provide `bytes` bytes of memory.
    pub fn from_failed_allocation(
        what: &str,
        bytes: usize,
        call: &str,
        error: impl Into<io::Error>,
    ) -> RunError {
        let error = error.into();
        match SystemErrorKind::classify(&error) {
            SystemErrorKind::Forbidden => forbidden_error(&format!("{what} of {bytes} bytes"), call, &error),
            SystemErrorKind::Exhausted | SystemErrorKind::Missing | SystemErrorKind::Other => {
                RunError::Memory { what: what.into(), bytes, error: error.to_string() }
            }
        }
    }
}

fn forbidden_error(what: &str, call: &str, error: &io::Error) -> RunError {
    RunError::Unsupported(format!(
        "{what}: the system refuses {call}: {error}. Allow {call} where a container, seccomp, AppArmor or permissions \
         forbid it (for example with another seccomp profile), or run outside of them"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every error number: a failure of the environment is never classified as a fault of this program,
    /// and its message names the call.
    #[test]
    fn every_error_number_has_a_class_and_names_the_call() {
        let (mut forbidden, mut missing) = (0, 0);
        for number in 1..134 {
            let error = || io::Error::from_raw_os_error(number);
            let of_call = RunError::from_system_call("starting rank 3", "sendmsg", error());
            let of_memory = RunError::from_failed_allocation("an arena", 64, "mmap", error());
            let text = of_call.to_string();
            assert!(text.contains("starting rank 3") && text.contains("sendmsg"), "{text}");
            match SystemErrorKind::classify(&error()) {
                SystemErrorKind::Forbidden => {
                    assert!(
                        matches!(of_call, RunError::Unsupported(_)) && text.contains("Allow sendmsg"),
                        "{text}"
                    );
                    assert!(matches!(of_memory, RunError::Unsupported(_)), "{of_memory}");
                    forbidden += 1;
                    continue;
                }
                SystemErrorKind::Missing => {
                    assert!(
                        matches!(of_call, RunError::Unsupported(_)) && text.contains("lacks it"),
                        "{text}"
                    );
                    missing += 1;
                }
                SystemErrorKind::Exhausted => {
                    assert!(matches!(of_call, RunError::Exhausted { .. }), "{text}")
                }
                SystemErrorKind::Other => assert!(matches!(of_call, RunError::System { .. }), "{text}"),
            }
            assert!(matches!(of_memory, RunError::Memory { bytes: 64, .. }), "{of_memory}");
        }
        assert_eq!((forbidden, missing), (8, 6));
        // Invalid arguments are a fault of this program.
        for number in [libc::EINVAL, libc::EFAULT, libc::EBADF, libc::ENOTSOCK] {
            let error = RunError::from_system_call("it", "poll", io::Error::from_raw_os_error(number));
            assert!(matches!(error, RunError::System { .. }), "{error}");
        }
    }
}
