//! The errors of a compilation.

use symmc_passes::PassError;
use symmc_plan::Plan;
use symmc_planner::PlanError;
use thiserror::Error;

/// A result with [`DriverError`] as its default error.
pub type Result<T, E = DriverError> = std::result::Result<T, E>;

#[derive(Debug, Error)]
pub enum DriverError {
    #[error("the number of ranks is open: set it before compiling")]
    OpenRanks,
    #[error("{0}")]
    Option(String),
    #[error(transparent)]
    Pass(#[from] PassError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No plan was found whose symmetric arena fits the limit.
    #[error(
        "the smallest symmetric arena found, with exit barriers kept and without overlap, takes {least} bytes{}; \
         the limit is {limit} bytes",
        fixed_part(*fixed)
    )]
    SymmLimit {
        limit: u64,
        least: u64,
        /// The fixed part: landing zones and bound inputs.
        fixed: u64,
    },
    #[error("{message}")]
    Unsupported {
        /// The node of the first unsupported step.
        node: String,
        op: String,
        message: String,
    },
    #[error(
        "symmc made a plan that its check rejects. This is a defect of symmc, not of the program; \
         please report it with the program, the options and the following {}:\n{}",
        counted(findings),
        findings_text(findings)
    )]
    Unsafe { plan: Box<Plan>, findings: Vec<String> },
    /// A plan that was just made cannot be read: a defect.
    #[error("{0}")]
    Defect(String),
}

impl DriverError {
    pub(crate) fn defect(cause: impl ToString) -> DriverError {
        DriverError::Defect(cause.to_string())
    }
}

fn fixed_part(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        _ => format!(", {bytes} of them for landing zones and bound inputs"),
    }
}

fn counted(findings: &[String]) -> String {
    if findings.len() == 1 { "1 finding".into() } else { format!("{} findings", findings.len()) }
}

fn findings_text(findings: &[String]) -> String {
    findings.iter().map(|finding| format!("  - {finding}")).collect::<Vec<_>>().join("\n")
}
