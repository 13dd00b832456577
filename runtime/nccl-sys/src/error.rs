//! Errors: no usable library, a function that the library does not have yet, a call that failed.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::search::PATH_VARIABLE;
use crate::trust::UntrustedPath;
use crate::types::{ResultCode, result_code};
use crate::version::Version;

/// No usable library was found. The text lists every attempt and says how to install one.
#[derive(Clone, PartialEq, Eq, Error, Debug)]
pub struct LoadError {
    /// The attempts, in order.
    pub attempts: Vec<LoadAttempt>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadAttempt {
    /// A file, or a bare name that the system's loader looked up.
    pub path: PathBuf,
    pub failure: LoadFailure,
}

#[derive(Clone, PartialEq, Eq, Error, Debug)]
pub enum LoadFailure {
    #[error("no such file")]
    Absent,
    /// Another user could have put it there.
    #[error("not loaded: {}; {}", found, found.remedy())]
    Untrusted { found: UntrustedPath },
    /// The system's loader did not open it.
    #[error("{0}")]
    Loader(String),
    /// A function is missing that every accepted version has.
    #[error("not an NCCL library: it has no {0}")]
    NoSymbol(&'static str),
    #[error("found version {found}, expected {} or newer", Version::OLDEST)]
    Old {
        /// The version that the library reports.
        found: Version,
    },
    /// The library does not report its version.
    #[error(transparent)]
    Call(#[from] NcclError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no usable NCCL library ({} or newer); tried:", Version::OLDEST)?;
        for LoadAttempt { path, failure: refusal } in &self.attempts {
            writeln!(f, "  {}: {refusal}", path.display())?;
        }
        write!(
            f,
            "install one with `pip install nvidia-nccl-cu13` (nvidia-nccl-cu12 for CUDA 12) or the system's package \
             libnccl2, or set {PATH_VARIABLE} to the file libnccl.so.2 or its folder"
        )
    }
}

/// A function that the loaded library is too old to have.
#[derive(Clone, PartialEq, Eq, Error, Debug)]
#[error("NCCL {found} has no {symbol}; expected {since} or newer")]
pub struct MissingFunction {
    pub symbol: &'static str,
    /// The first version that has it.
    pub since: Version,
    /// The version that is loaded.
    pub found: Version,
}

/// A failed call of NCCL.
#[derive(Clone, PartialEq, Eq, Error, Debug)]
#[error("{call} failed with {}: {text}", code_name(*.code))]
pub struct NcclError {
    pub call: &'static str,
    pub code: ResultCode,
    /// NCCL's description: the meaning of the code, then its last message, if there is one. The message is
    /// the library's last on any thread.
    pub text: String,
}

fn code_name(code: ResultCode) -> String {
    match result_code::name(code) {
        Some(name) => format!("{name} ({code})"),
        None => format!("code {code}"),
    }
}
