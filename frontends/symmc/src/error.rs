//! The one error type of the API.

use thiserror::Error as ThisError;

/// What went wrong. The message names the thing, what was found and what was expected.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {cause}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        cause: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{path}: {message}")]
    Format {
        /// The file.
        path: String,
        /// What was found and what was expected.
        message: String,
    },
    /// A request that does not fit the program, the plan or the machine.
    #[error("{0}")]
    Request(String),
    /// The program cannot be compiled.
    #[error("{program}: {message}")]
    Compile {
        /// The name of the program.
        program: String,
        /// Which node, what was found and what was expected.
        message: String,
    },
    /// The check found the plan unsafe.
    #[error("the plan does not check: {} finding(s)\n{}", .0.len(), .0.iter().map(|e| format!("  - {e}")).collect::<Vec<_>>().join("\n"))]
    Check(Vec<String>),
    /// A run failed on some rank.
    #[error("{0}")]
    Run(symmc_runtime::RunError),
    /// The reference interpreter failed.
    #[error("interpreter: {0}")]
    Interpreter(String),
}

impl From<symmc_runtime::RunError> for Error {
    fn from(error: symmc_runtime::RunError) -> Self {
        Error::Run(error)
    }
}

impl Error {
    /// Whether the caller's input is to blame, in contrast to a check or a run that failed.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Error::Check(_) => false,
            Error::Run(e) => e.is_bad_input(),
            _ => true,
        }
    }

    /// A file that could not be read or written.
    pub fn io(path: &std::path::Path, cause: std::io::Error) -> Self {
        Error::Io { path: path.display().to_string(), cause }
    }

    pub(crate) fn format(path: &std::path::Path, message: impl ToString) -> Self {
        Error::Format { path: path.display().to_string(), message: message.to_string() }
    }
}
