//! Errors of system calls, classified by their error number in one place.
//!
//! A system call fails for one of three reasons: a limit or a lack (resources), the machine or a container that does not
//! offer or allow it (unsupported), or wrong arguments, which are a fault of this program. The first two are conditions of
//! the environment that a user can change: the error names the call and the remedy.

use std::io;

use crate::error::RunError;

/// What the error number of a system call says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// A limit is reached, or the system has no more.
    Exhausted,
    /// Not permitted, or not offered by this kernel.
    Forbidden,
    /// A file, device or program is not there.
    Missing,
    Other,
}

impl Refusal {
    fn of(error: &io::Error) -> Refusal {
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
            ) => Refusal::Exhausted,
            Some(
                libc::EPERM
                | libc::EACCES
                | libc::ENOSYS
                | libc::EOPNOTSUPP
                | libc::EAFNOSUPPORT
                | libc::EPROTONOSUPPORT
                | libc::ESOCKTNOSUPPORT
                | libc::EROFS,
            ) => Refusal::Forbidden,
            Some(libc::ENOENT | libc::ENOTDIR | libc::ENXIO | libc::ENODEV | libc::ENOEXEC | libc::ELOOP) => {
                Refusal::Missing
            }
            _ => Refusal::Other,
        }
    }
}

impl RunError {
    /// The error of the system call `call`, which was made for `what`.
    pub fn of_call(what: impl Into<String>, call: &str, error: impl Into<io::Error>) -> RunError {
        let (what, error) = (what.into(), error.into());
        match Refusal::of(&error) {
            Refusal::Exhausted => {
                RunError::Exhausted { what: format!("{what} ({call})"), error: error.to_string() }
            }
            Refusal::Forbidden => forbidden(&what, call, &error),
            Refusal::Missing => {
                RunError::Unsupported(format!("{what}: {call}: {error}: this machine or container lacks it"))
            }
            Refusal::Other => RunError::System { what: format!("{what} ({call})"), error: error.to_string() },
        }
    }

    /// The error of a system call that was to give so many bytes of memory.
    pub fn of_memory(what: &str, bytes: usize, call: &str, error: impl Into<io::Error>) -> RunError {
        let error = error.into();
        match Refusal::of(&error) {
            Refusal::Forbidden => forbidden(&format!("{what} of {bytes} bytes"), call, &error),
            Refusal::Exhausted | Refusal::Missing | Refusal::Other => {
                RunError::Memory { what: what.into(), bytes, error: error.to_string() }
            }
        }
    }
}

fn forbidden(what: &str, call: &str, error: &io::Error) -> RunError {
    RunError::Unsupported(format!(
        "{what}: the system refuses {call}: {error}. Allow {call} where a container, seccomp, AppArmor or permissions \
         forbid it (for example with another seccomp profile), or run outside of them"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every error number there is: a refusal of the environment is never classified as a fault of this program, and its
    /// message names the call.
    #[test]
    fn every_error_number_has_a_class_and_names_the_call() {
        let (mut forbidden, mut missing) = (0, 0);
        for number in 1..134 {
            let error = || io::Error::from_raw_os_error(number);
            let of_call = RunError::of_call("starting rank 3", "sendmsg", error());
            let of_memory = RunError::of_memory("an arena", 64, "mmap", error());
            let text = of_call.to_string();
            assert!(text.contains("starting rank 3") && text.contains("sendmsg"), "{text}");
            match Refusal::of(&error()) {
                Refusal::Forbidden => {
                    assert!(
                        matches!(of_call, RunError::Unsupported(_)) && text.contains("Allow sendmsg"),
                        "{text}"
                    );
                    assert!(matches!(of_memory, RunError::Unsupported(_)), "{of_memory}");
                    forbidden += 1;
                    continue;
                }
                Refusal::Missing => {
                    assert!(
                        matches!(of_call, RunError::Unsupported(_)) && text.contains("lacks it"),
                        "{text}"
                    );
                    missing += 1;
                }
                Refusal::Exhausted => assert!(matches!(of_call, RunError::Exhausted { .. }), "{text}"),
                Refusal::Other => assert!(matches!(of_call, RunError::System { .. }), "{text}"),
            }
            assert!(matches!(of_memory, RunError::Memory { bytes: 64, .. }), "{of_memory}");
        }
        assert_eq!((forbidden, missing), (8, 6));
        // Arguments that the system cannot take are a fault of this program.
        for number in [libc::EINVAL, libc::EFAULT, libc::EBADF, libc::ENOTSOCK] {
            let error = RunError::of_call("it", "poll", io::Error::from_raw_os_error(number));
            assert!(matches!(error, RunError::System { .. }), "{error}");
        }
    }
}
