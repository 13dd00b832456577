//! The one error type of the API.

use std::fs::File;
use std::io::Read;

use symmc_planner::plan::Plan;
use symmc_runtime::RunError;
use symmc_runtime::custom::Mismatch;
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
    /// The machine that a plan is made for cannot run it.
    #[error("{program}: {message}")]
    Refused {
        /// The name of the program.
        program: String,
        /// Which nodes, and why.
        message: String,
    },
    /// The check found the plan unsafe.
    #[error("the plan does not check: {}\n{}", counted(.0), list(.0))]
    Check(Vec<String>),
    /// The plan that symmc made for a program does not check.
    #[error(
        "{program}: the plan that symmc made does not check. This is a defect of symmc, not of the program; \
         please report it with the program, the command and the following, {}:\n{}",
        counted(.findings), list(.findings)
    )]
    Defect {
        /// The name of the program.
        program: String,
        /// What the check found.
        findings: Vec<String>,
        /// The plan, which must not be run.
        plan: Box<Plan>,
    },
    /// A plan computes something else than the source that it carries.
    #[error("the plan does not compute what its source does: {} difference(s)\n{}", .0.len(), list(.0))]
    Source(Vec<String>),
    /// A run failed on some rank.
    #[error("{0}")]
    Run(RunError),
    /// The reference interpreter failed.
    #[error("interpreter: {0}")]
    Interpreter(String),
}

fn counted(list: &[String]) -> String {
    if list.len() == 1 { "1 finding".into() } else { format!("{} findings", list.len()) }
}

fn list(findings: &[String]) -> String {
    findings.iter().map(|e| format!("  - {e}")).collect::<Vec<_>>().join("\n")
}

/// The bytes of a file that should be `expected`.
///
/// # Errors
/// It cannot be read, or is a folder.
pub(crate) fn read(path: &std::path::Path, expected: &str) -> Result<Vec<u8>, Error> {
    let (bytes, file) = head(path, expected)?;
    read_on(path, bytes, file)
}

/// The first two bytes of a file that should be `expected`, or as many as it has, and the file to [`read_on`].
///
/// # Errors
/// As [`read`].
pub(crate) fn head(path: &std::path::Path, expected: &str) -> Result<(Vec<u8>, File), Error> {
    if path.is_dir() {
        return Err(Error::format(path, format!("this is a folder; expected {expected}")));
    }
    let mut bytes = Vec::new();
    let mut open = || {
        let mut file = File::open(path)?;
        file.by_ref().take(2).read_to_end(&mut bytes)?;
        Ok(file)
    };
    let file = open().map_err(|e| Error::io(path, e))?;
    Ok((bytes, file))
}

/// All of a file, of which `bytes` were read.
///
/// # Errors
/// It cannot be read.
pub(crate) fn read_on(path: &std::path::Path, mut bytes: Vec<u8>, mut file: File) -> Result<Vec<u8>, Error> {
    file.read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    Ok(bytes)
}

/// The text of a file that should be `expected`, without the mark that some editors put in front of UTF-8.
///
/// # Errors
/// It is not UTF-8.
pub(crate) fn utf8(path: &std::path::Path, bytes: Vec<u8>, expected: &str) -> Result<String, Error> {
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::format(path, format!("the file is not UTF-8 text; expected {expected}")))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text))
}

/// A number of ranks in words.
pub(crate) fn ranks(n: u32) -> String {
    if n == 1 { "1 rank".into() } else { format!("{n} ranks") }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Self {
        Error::Run(error)
    }
}

impl Error {
    /// Whether the caller's input is to blame, in contrast to a check or a run that failed.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Error::Check(_) | Error::Defect { .. } | Error::Source(_) => false,
            Error::Run(e) => e.is_bad_input(),
            _ => true,
        }
    }

    /// Whether an op lacks a kernel that its embedder registers.
    pub fn is_about_kernels(&self) -> bool {
        let why = match self {
            Error::Run(RunError::CannotRun { why, .. }) => Some(why),
            _ => None,
        };
        why.is_some_and(|why| !matches!(why, Mismatch::Backend(_)))
    }

    /// A file that could not be read or written.
    pub fn io(path: &std::path::Path, cause: std::io::Error) -> Self {
        Error::Io { path: path.display().to_string(), cause }
    }

    pub(crate) fn format(path: &std::path::Path, message: impl ToString) -> Self {
        Error::Format { path: path.display().to_string(), message: message.to_string() }
    }
}
