//! The one error type of the API.
//!
//! An [`Error`] has a kind, which says what is at fault and from which a command chooses its exit code. Its text names the
//! thing, what was found and what was expected. As far as they are known it also holds the rank at fault, the rank that
//! reported the error, the step, the node and the op. The text of the [source](std::error::Error::source) is part of its text.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use symmc_driver::DriverError;
use symmc_ir::interp::{InterpError, OpError};
use symmc_ir::message::escape_message;
use symmc_pack::PackError;
use symmc_passes::PassError;
use symmc_plan::Plan;
use symmc_planner::PlanError;
use symmc_runtime::custom::ValueMismatch;
use symmc_runtime::{DataFault, RunError};
use thiserror::Error as ThisError;

/// The kind of an [`Error`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An input is invalid: a file, an option, a tensor, the size of a symbol.
    Input,
    /// The input is valid, but this build, this backend or this machine cannot plan or run it.
    Unsupported,
    /// More memory, threads or files are needed than a limit or the system allows.
    Resources,
    /// The ranks of one run were started with different plans, versions or inputs.
    Disagreement,
    /// A plan is not proved safe, or computes something else than its source.
    Check,
    /// A step failed, or the system refused something that a run needs.
    Run,
    /// A rank died, did not join or made no progress.
    Peer,
    /// A defect of symmc itself, whatever the input.
    Defect,
}

impl ErrorKind {
    /// Whether the request is at fault, in contrast to a check or a run that failed. A different request may succeed; the same
    /// one fails again.
    pub fn is_bad_input(self) -> bool {
        match self {
            ErrorKind::Input | ErrorKind::Unsupported | ErrorKind::Resources | ErrorKind::Disagreement => {
                true
            }
            ErrorKind::Check | ErrorKind::Run | ErrorKind::Peer | ErrorKind::Defect => false,
        }
    }
}

/// The error of all functions of this crate. The message names the thing, what was found and what was expected.
pub struct Error(Box<ErrorCause>);

/// The cause of an [`Error`].
#[derive(Debug, ThisError)]
enum ErrorCause {
    /// A file could not be read or written.
    #[error("{}: {cause}", path.display())]
    Io { path: PathBuf, cause: io::Error },
    /// A file is not what it should be.
    #[error("{}: {message}", path.display())]
    Format { path: PathBuf, message: String, cause: Option<Box<dyn StdError + Send + Sync>> },
    /// An error that only its message describes.
    #[error("{message}")]
    Message { kind: ErrorKind, message: String },
    /// The program cannot be compiled.
    #[error("{program}: {cause}")]
    Driver { program: String, cause: DriverError },
    /// The check found the plan unsafe.
    #[error("the plan does not check: {}\n{}", format_finding_count(.0), format_findings(.0))]
    Check(Vec<String>),
    /// A plan computes something else than the source that it carries.
    #[error("the plan does not compute what its source does: {} difference(s)\n{}", .0.len(), format_findings(.0))]
    Source(Vec<String>),
    /// A run failed on some rank.
    #[error("{0}")]
    Run(RunError),
    /// The reference interpreter failed.
    #[error("interpreter: {0}")]
    Interpreter(InterpError),
}

fn format_finding_count(list: &[String]) -> String {
    if list.len() == 1 { "1 finding".into() } else { format!("{} findings", list.len()) }
}

fn format_findings(findings: &[String]) -> String {
    findings.iter().map(|e| format!("  - {e}")).collect::<Vec<_>>().join("\n")
}

/// A number of ranks with its noun: `1 rank`, `4 ranks`.
pub(crate) fn format_rank_count(n: u32) -> String {
    if n == 1 { "1 rank".into() } else { format!("{n} ranks") }
}

impl Error {
    /// An error with the caller's own message, for callbacks that return errors to symmc.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::from_cause(ErrorCause::Message { kind, message: message.into() })
    }

    /// The kind, which says what is at fault.
    pub fn kind(&self) -> ErrorKind {
        match &*self.0 {
            ErrorCause::Io { cause, .. } => io_error_kind(cause),
            ErrorCause::Format { .. } => ErrorKind::Input,
            ErrorCause::Message { kind, .. } => *kind,
            ErrorCause::Driver { cause, .. } => driver_error_kind(cause),
            ErrorCause::Check(_) | ErrorCause::Source(_) => ErrorKind::Check,
            ErrorCause::Run(cause) => run_error_kind(cause),
            ErrorCause::Interpreter(cause) => interpreter_error_kind(cause),
        }
    }

    /// Whether the request is at fault: [`ErrorKind::is_bad_input`] of its kind.
    pub fn is_bad_input(&self) -> bool {
        self.kind().is_bad_input()
    }

    /// The file that the error is about.
    pub fn path(&self) -> Option<&Path> {
        match &*self.0 {
            ErrorCause::Io { path, .. } | ErrorCause::Format { path, .. } => Some(path),
            _ => None,
        }
    }

    /// The rank at fault: the one that failed, died, stopped, left, did not join, or differs from the others. It is never a
    /// rank that only waited.
    pub fn culprit(&self) -> Option<u32> {
        self.location().culprit
    }

    /// The rank that noticed the error. An error has the same culprit and reporter on every rank.
    pub fn reporter(&self) -> Option<u32> {
        self.location().reporter
    }

    /// Another name of [`culprit`](Self::culprit).
    pub fn rank(&self) -> Option<u32> {
        self.culprit()
    }

    /// The index of the step in its bucket.
    pub fn step(&self) -> Option<usize> {
        self.location().step
    }

    /// The node: the name of its first result, or of the value that the error is about.
    pub fn node(&self) -> Option<&str> {
        self.location().node
    }

    /// The op of the node.
    pub fn op(&self) -> Option<&str> {
        self.location().op
    }

    /// The symbols of an imported program whose ranges may be the cause, by their names in the file: an operator does not fit
    /// their ranges, or would fit if some of them were equal.
    pub fn symbols(&self) -> &[String] {
        let ErrorCause::Format { cause: Some(_cause), .. } = &*self.0 else { return &[] };
        #[cfg(feature = "torch")]
        if let Some(symmc_torch::ImportError::Extents { symbols, .. }) = _cause.downcast_ref() {
            return &symbols.aliases;
        }
        #[cfg(feature = "onnx")]
        if let Some(symmc_onnx::ImportError { symbols: Some(symbols), .. }) = _cause.downcast_ref() {
            return &symbols.aliases;
        }
        &[]
    }

    /// The groups of an imported program whose members are not known. The caller has to state them
    /// ([`OpenOptions::with_groups`](crate::OpenOptions::with_groups)).
    pub fn unknown_groups(&self) -> Vec<UnknownGroup> {
        #[cfg(feature = "torch")]
        return self.torch_error().map(unknown_groups).unwrap_or_default();
        #[cfg(not(feature = "torch"))]
        Vec::new()
    }

    /// A hint how to state the members of the [`unknown_groups`](Self::unknown_groups), in the syntax of a frontend. It begins
    /// with a separator. It is empty for other errors.
    pub fn group_hint(&self, syntax: &GroupSyntax) -> String {
        let groups = self.unknown_groups();
        let [first, ..] = groups.as_slice() else { return String::new() };
        let entries: Vec<String> = groups.iter().map(syntax.entry).collect();
        let alternative = first.all_ranks.map(syntax.ranks);
        let alternative =
            alternative.map_or(String::new(), |ranks| format!(", or {ranks} if it is all ranks"));
        format!("; give the ranks of each cell, such as {}{alternative}", (syntax.entries)(&entries))
    }

    /// The error of the importer of `.pt2` files, if it is the cause.
    #[cfg(feature = "torch")]
    fn torch_error(&self) -> Option<&symmc_torch::ImportError> {
        let ErrorCause::Format { cause: Some(cause), .. } = &*self.0 else { return None };
        cause.downcast_ref()
    }

    /// Whether an operator of an imported program has operands of dtypes for which PyTorch raises an error, too.
    pub fn is_dtype_error(&self) -> bool {
        #[cfg(feature = "torch")]
        return self.torch_error().is_some_and(symmc_torch::ImportError::is_dtype_error);
        #[cfg(not(feature = "torch"))]
        false
    }

    /// The fault in the data or the sizes of a run, if the run failed because of one. Such a run ended the session on all
    /// ranks; they can open another one together.
    pub fn data_fault(&self) -> Option<DataFault> {
        let ErrorCause::Run(error) = &*self.0 else { return None };
        match error.cause() {
            RunError::Data { fault, .. } => Some(*fault),
            RunError::Bounds { .. } => Some(DataFault::Index),
            _ => None,
        }
    }

    /// The findings of the check of a plan, or the differences from its source, one text each.
    pub fn findings(&self) -> &[String] {
        match &*self.0 {
            ErrorCause::Check(findings) | ErrorCause::Source(findings) => findings,
            ErrorCause::Driver { cause: DriverError::Unsafe { findings, .. }, .. } => findings,
            _ => &[],
        }
    }

    /// The plan that symmc made and that failed the check: for a report, not to be run.
    pub fn plan(&self) -> Option<&Plan> {
        match &*self.0 {
            ErrorCause::Driver { cause: DriverError::Unsafe { plan, .. }, .. } => Some(plan),
            _ => None,
        }
    }

    /// Whether an op has no kernel, and an embedder could register one.
    pub fn is_missing_kernel(&self) -> bool {
        match &*self.0 {
            ErrorCause::Run(error) => match error.cause() {
                RunError::CannotRun { why, .. } => !matches!(why, ValueMismatch::Backend(_)),
                _ => false,
            },
            _ => false,
        }
    }

    fn from_cause(cause: ErrorCause) -> Error {
        Error(Box::new(cause))
    }

    fn location(&self) -> ErrorLocation<'_> {
        match &*self.0 {
            ErrorCause::Run(cause) => ErrorLocation::from_run_error(cause),
            ErrorCause::Interpreter(cause) => ErrorLocation::from_interpreter_error(cause),
            ErrorCause::Driver { cause, .. } => ErrorLocation::from_driver_error(cause),
            #[cfg(feature = "torch")]
            ErrorCause::Format { cause: Some(cause), .. } => ErrorLocation::from_import_error(&**cause),
            _ => ErrorLocation::default(),
        }
    }

    /// A request that does not fit the program, the plan or the machine.
    pub(crate) fn invalid_request(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Input, message)
    }

    /// A file that could not be read or written.
    pub(crate) fn io(path: &Path, cause: io::Error) -> Error {
        Error::from_cause(ErrorCause::Io { path: path.to_path_buf(), cause })
    }

    /// A file whose content is not as expected.
    pub(crate) fn format(path: &Path, message: impl ToString) -> Error {
        Error::from_cause(ErrorCause::Format {
            path: path.to_path_buf(),
            message: message.to_string(),
            cause: None,
        })
    }

    /// As [`format`](Self::format), with the error of the reader as source.
    pub(crate) fn format_with_cause(
        path: &Path,
        message: impl ToString,
        cause: impl StdError + Send + Sync + 'static,
    ) -> Error {
        let (path, message) = (path.to_path_buf(), message.to_string());
        Error::from_cause(ErrorCause::Format { path, message, cause: Some(Box::new(cause)) })
    }

    /// A program that the driver cannot compile.
    pub(crate) fn driver(program: &str, cause: impl Into<DriverError>) -> Error {
        match cause.into() {
            // Options come from the caller, so the message does not begin with the program.
            cause @ (DriverError::OpenRanks | DriverError::Option(_)) => {
                Error::invalid_request(cause.to_string())
            }
            cause => Error::from_cause(ErrorCause::Driver { program: program.into(), cause }),
        }
    }

    /// The findings of the check in a plan that the caller gave.
    pub(crate) fn unsafe_plan(findings: Vec<String>) -> Error {
        Error::from_cause(ErrorCause::Check(findings))
    }

    pub(crate) fn interpreter(cause: InterpError) -> Error {
        Error::from_cause(ErrorCause::Interpreter(cause))
    }

    /// The differences between a plan and its source.
    pub(crate) fn differs_from_source(differences: Vec<String>) -> Error {
        Error::from_cause(ErrorCause::Source(differences))
    }
}

impl fmt::Display for Error {
    /// The text may quote untrusted files, so control characters are escaped ([`escape_message`]).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape_message(&self.0.to_string()))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &*self.0 {
            ErrorCause::Io { cause, .. } => Some(cause),
            ErrorCause::Format { cause, .. } => cause.as_deref().map(|e| e as &(dyn StdError + 'static)),
            ErrorCause::Driver { cause: DriverError::Pass(cause), .. } => Some(cause),
            ErrorCause::Driver { cause: DriverError::Plan(cause), .. } => Some(cause),
            ErrorCause::Driver { cause, .. } => Some(cause),
            ErrorCause::Run(cause) => Some(cause),
            ErrorCause::Interpreter(cause) => Some(cause),
            _ => None,
        }
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Self {
        Error::from_cause(ErrorCause::Run(error))
    }
}

/// The position of an error in a run or a program, as far as it is known.
#[derive(Clone, Copy, Default)]
struct ErrorLocation<'e> {
    culprit: Option<u32>,
    reporter: Option<u32>,
    step: Option<usize>,
    node: Option<&'e str>,
    op: Option<&'e str>,
}

impl<'e> ErrorLocation<'e> {
    fn from_run_error(error: &'e RunError) -> ErrorLocation<'e> {
        let (node, op) = match error.cause() {
            RunError::CannotRun { node, op, .. }
            | RunError::Bounds { node, op, .. }
            | RunError::Step { node, op, .. }
            | RunError::Data { node, op, .. }
            | RunError::Limit { node, op, .. }
            | RunError::Died { node, op, .. } => (Some(node.as_str()), Some(op.as_str())),
            _ => (None, None),
        };
        ErrorLocation { culprit: error.culprit(), reporter: error.reporter(), step: error.step(), node, op }
    }

    #[cfg(feature = "torch")]
    fn from_import_error(cause: &'e (dyn StdError + Send + Sync + 'static)) -> ErrorLocation<'e> {
        let imported = cause.downcast_ref::<symmc_torch::ImportError>();
        let (node, op) = imported.and_then(|e| e.node()).unzip();
        ErrorLocation { node, op, ..ErrorLocation::default() }
    }

    fn from_interpreter_error(error: &'e InterpError) -> ErrorLocation<'e> {
        let on = |rank: &usize| {
            let rank = u32::try_from(*rank).ok();
            ErrorLocation { culprit: rank, reporter: rank, ..ErrorLocation::default() }
        };
        match error {
            InterpError::Op { rank, node, op, .. } => {
                ErrorLocation { node: Some(node), op: Some(op), ..on(rank) }
            }
            InterpError::Type { node, op, .. } => {
                ErrorLocation { node: Some(node), op: Some(op), ..ErrorLocation::default() }
            }
            InterpError::InputDType { rank, input, .. } | InterpError::InputShape { rank, input, .. } => {
                ErrorLocation { node: Some(input), ..on(rank) }
            }
            InterpError::InputCount { rank, .. } => on(rank),
            InterpError::NoData { input: value }
            | InterpError::UnboundSymbol { value, .. }
            | InterpError::Extent { value, .. }
            | InterpError::TooLarge { value, .. }
            | InterpError::Order { value } => ErrorLocation { node: Some(value), ..ErrorLocation::default() },
            InterpError::OpenRanks
            | InterpError::RankCount { .. }
            | InterpError::Cells { .. }
            | InterpError::SymbolOutOfRange { .. } => ErrorLocation::default(),
        }
    }

    fn from_driver_error(error: &'e DriverError) -> ErrorLocation<'e> {
        let (node, op) = match error {
            DriverError::Plan(error) => return ErrorLocation::from_planner_error(error),
            DriverError::Pass(PassError::NoPlain { node, collective, .. }) => (node, collective),
            DriverError::Unsupported { node, op, .. } => (node, op),
            _ => return ErrorLocation::default(),
        };
        ErrorLocation { node: Some(node), op: Some(op), ..ErrorLocation::default() }
    }

    fn from_planner_error(error: &'e PlanError) -> ErrorLocation<'e> {
        match error {
            PlanError::NoVariant { node, op }
            | PlanError::WrongVariant { node, op, .. }
            | PlanError::EntrylessPush { node, op, .. } => {
                ErrorLocation { node: Some(node), op: Some(op), ..ErrorLocation::default() }
            }
            PlanError::TooLarge { value: node, .. } | PlanError::LandingTooLarge { node, .. } => {
                ErrorLocation { node: Some(node), ..ErrorLocation::default() }
            }
            _ => ErrorLocation::default(),
        }
    }
}

fn io_error_kind(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ErrorKind::Resources
        }
        _ => ErrorKind::Input,
    }
}

fn driver_error_kind(error: &DriverError) -> ErrorKind {
    match error {
        DriverError::OpenRanks | DriverError::Option(_) => ErrorKind::Input,
        DriverError::Pass(error) => pass_error_kind(error),
        DriverError::Plan(error) => planner_error_kind(error),
        DriverError::SymmLimit { .. } => ErrorKind::Resources,
        DriverError::Unsupported { .. } => ErrorKind::Unsupported,
        DriverError::Unsafe { .. } | DriverError::Defect(_) => ErrorKind::Defect,
    }
}

/// A program that is invalid before a pass is the caller's fault; one that is invalid after the pass is a defect.
fn pass_error_kind(error: &PassError) -> ErrorKind {
    match error {
        PassError::Internal(_) | PassError::Invalid { when: "after", .. } => ErrorKind::Defect,
        PassError::Invalid { .. }
        | PassError::OpenRanks { .. }
        | PassError::Range { .. }
        | PassError::NoPlain { .. } => ErrorKind::Input,
    }
}

/// Buckets, variants and alignments that the planner finds unsound were made by earlier stages of symmc: they are defects.
fn planner_error_kind(error: &PlanError) -> ErrorKind {
    match error {
        PlanError::OpenRanks { .. } | PlanError::WrongVariant { .. } => ErrorKind::Input,
        PlanError::EntrylessPush { .. } => ErrorKind::Unsupported,
        PlanError::TooLarge { .. }
        | PlanError::LandingTooLarge { .. }
        | PlanError::FixedTooLarge { .. }
        | PlanError::ArenaTooLarge { .. }
        | PlanError::Pack { error: PackError::TooLarge, .. } => ErrorKind::Resources,
        PlanError::NoBucket
        | PlanError::Mismatch { .. }
        | PlanError::Overlap { .. }
        | PlanError::NoVariant { .. }
        | PlanError::Pack { .. } => ErrorKind::Defect,
    }
}

fn run_error_kind(error: &RunError) -> ErrorKind {
    match error {
        RunError::Invalid(_) | RunError::Data { .. } | RunError::Bounds { .. } => ErrorKind::Input,
        RunError::Misplaced { .. } => ErrorKind::Input,
        RunError::CannotRun { .. } | RunError::Unsupported(_) => ErrorKind::Unsupported,
        RunError::Memory { .. } | RunError::Exhausted { .. } | RunError::Refused { .. } => {
            ErrorKind::Resources
        }
        RunError::PlanDiffers { .. }
        | RunError::VersionDiffers { .. }
        | RunError::TermsDiffer { .. }
        | RunError::SizesDiffer { .. } => ErrorKind::Disagreement,
        RunError::Step { .. } | RunError::System { .. } => ErrorKind::Run,
        RunError::Limit { .. }
        | RunError::Died { .. }
        | RunError::DiedOutside { .. }
        | RunError::Stuck { .. }
        | RunError::Absent { .. }
        | RunError::Left { .. }
        | RunError::Unfinished { .. }
        | RunError::Aborted { .. }
        | RunError::Protocol { .. } => ErrorKind::Peer,
        RunError::Defect(_) => ErrorKind::Defect,
        RunError::Reported { cause, .. } => run_error_kind(cause),
    }
}

fn interpreter_error_kind(error: &InterpError) -> ErrorKind {
    match error {
        InterpError::TooLarge { .. } => ErrorKind::Resources,
        InterpError::Op { error: OpError::Opaque { .. } | OpError::NoKernel { .. }, .. } => {
            ErrorKind::Unsupported
        }
        InterpError::Op { error: OpError::Custom { .. }, .. } => ErrorKind::Run,
        _ => ErrorKind::Input,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_and_the_planner_get_wrong_is_a_defect_and_what_they_are_given_is_not() {
        let (pass, violations) = ("lower", vec![]);
        let passes = [
            (PassError::Internal("no".into()), ErrorKind::Defect),
            (PassError::Invalid { when: "after", pass, violations: violations.clone() }, ErrorKind::Defect),
            (PassError::Invalid { when: "before", pass, violations }, ErrorKind::Input),
            (PassError::OpenRanks { pass, program: "p".into() }, ErrorKind::Input),
        ];
        for (cause, kind) in passes {
            let text = format!("p: {cause}");
            let error = Error::driver("p", cause);
            assert_eq!((error.kind(), error.to_string()), (kind, text));
        }
        let node = || "y".to_string();
        let op = "all_reduce";
        let arena = "symmetric";
        let plans = [
            (PlanError::NoBucket, ErrorKind::Defect, None),
            (PlanError::Overlap { first: 0, second: 1, example: "n=1".into() }, ErrorKind::Defect, None),
            (PlanError::NoVariant { node: node(), op }, ErrorKind::Defect, Some("y")),
            (PlanError::WrongVariant { node: node(), op, variant: "put" }, ErrorKind::Input, Some("y")),
            (
                PlanError::EntrylessPush { node: node(), op, variant: "put" },
                ErrorKind::Unsupported,
                Some("y"),
            ),
            (PlanError::TooLarge { value: node(), bytes: 1 << 53 }, ErrorKind::Resources, Some("y")),
            (PlanError::ArenaTooLarge { arena, bytes: 1 << 53 }, ErrorKind::Resources, None),
            (PlanError::Pack { arena, error: PackError::TooLarge }, ErrorKind::Resources, None),
            (
                PlanError::Pack { arena, error: PackError::Overlap { first: 0, second: 1 } },
                ErrorKind::Defect,
                None,
            ),
        ];
        for (cause, kind, node) in plans {
            let error = Error::driver("p", cause);
            assert_eq!((error.kind(), error.node()), (kind, node), "{error}");
        }
    }
}

/// A group of a program whose members the file does not state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownGroup {
    /// The name of the group in the program.
    pub name: String,
    /// Example cells: lists of ranks, each of the size of the group.
    pub example: Vec<Vec<u32>>,
    /// If the number of ranks is not fixed: the number with which this would be the group of all ranks.
    pub all_ranks: Option<u32>,
}

/// The syntax in which users of a frontend state the members of groups.
#[derive(Clone, Copy, Debug)]
pub struct GroupSyntax {
    /// Formats one group with its example cells.
    pub entry: fn(&UnknownGroup) -> String,
    /// Joins the formatted groups.
    pub entries: fn(&[String]) -> String,
    /// Formats the number of ranks.
    pub ranks: fn(u32) -> String,
}

/// The groups whose members an archive does not state.
#[cfg(feature = "torch")]
fn unknown_groups(error: &symmc_torch::ImportError) -> Vec<UnknownGroup> {
    let symmc_torch::ImportError::Undescribed { groups, ranks } = error else { return Vec::new() };
    let is_alone = groups.len() == 1 && ranks.is_none();
    let unknown = |g: &symmc_torch::UndescribedGroup| UnknownGroup {
        name: g.name.clone(),
        example: example_cells(g.size, *ranks),
        all_ranks: g.size.filter(|_| is_alone),
    };
    groups.iter().map(unknown).collect()
}

/// Example cells of one size: two cells if the number of ranks is not known.
#[cfg(feature = "torch")]
fn example_cells(size: Option<u32>, ranks: Option<u32>) -> Vec<Vec<u32>> {
    const SHOWN: u32 = 16;
    let size = size.unwrap_or(2).clamp(1, SHOWN);
    let ranks = ranks.filter(|n| n.is_multiple_of(size)).unwrap_or(2 * size).min(SHOWN.max(size));
    (0..ranks / size).map(|cell| (cell * size..(cell + 1) * size).collect()).collect()
}
