//! The errors that end a run.
//!
//! A [`RunError`] crosses process boundaries: every rank reports its own, and the coordinator picks the
//! cause. It therefore holds text and numbers only, and is serialised on the control sockets.
//!
//! An error answers three questions: which rank is at fault ([`RunError::culprit`]), which rank noticed the
//! fault ([`RunError::reporter`]), and at which step it happened ([`RunError::step`]). An error that one rank
//! found reaches the others as [`RunError::Reported`], with its cause unchanged.

use serde::{Deserialize, Serialize};
use symmc_support::shorten_middle;
use thiserror::Error;

/// The lengths to which the texts of a long error are shortened, until it fits. One character may take six bytes of JSON.
const TEXT_BYTES: [usize; 3] = [2048, 256, 64];

/// The result of an operation that fails with a [`RunError`], or with another error type where one is named.
pub type Result<T, E = RunError> = std::result::Result<T, E>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DataFault {
    /// An index lies outside the axis that it indexes.
    Index,
    /// An integer is divided by zero.
    Division,
    /// Anything else: rows that do not fit, a maximum of no elements.
    Other,
}

#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum ValueMismatch {
    /// The importer does not know the op.
    #[error("it is opaque: it can be planned, not run")]
    Opaque,
    /// No kernel is registered for the custom op.
    #[error("no kernel is registered for it")]
    NoKernel,
    /// The registered kernel has another signature.
    #[error("the kernel that is registered for it has another signature: {0}")]
    Signature(String),
    /// The backend does not implement the op, or not for these types or ranks.
    #[error("{0}")]
    Backend(String),
}

fn shorten_strings(json: &mut serde_json::Value, max_bytes: usize) {
    match json {
        serde_json::Value::String(text) => *text = shorten_middle(text, max_bytes),
        serde_json::Value::Array(items) => items.iter_mut().for_each(|item| shorten_strings(item, max_bytes)),
        serde_json::Value::Object(fields) => {
            fields.values_mut().for_each(|field| shorten_strings(field, max_bytes))
        }
        _ => {}
    }
}

/// Why a run failed, with the rank, step and node as far as they are known.
#[derive(Clone, PartialEq, Debug, Error, Serialize, Deserialize)]
pub enum RunError {
    /// The job or the environment does not describe a possible run. The text names the thing, what was
    /// expected and what was found.
    #[error("{0}")]
    Invalid(String),
    /// The request needs something that this machine does not have or does not allow: a driver, a library, a
    /// system call. The text names it.
    #[error("{0}")]
    Unsupported(String),
    /// A checked plan contains a statement that does not hold, or a backend refuses a plan that it had
    /// accepted.
    #[error("{0}; this is a defect of symmc, please report it with the program and the command")]
    Defect(String),
    #[error("{}%{node} ({op}): {why}", rank_text(*rank))]
    CannotRun {
        rank: Option<u32>,
        /// The node: the name of its first result.
        node: String,
        op: String,
        why: ValueMismatch,
    },
    #[error("rank {rank}, step {step} ({op} %{node}): {detail}")]
    Step {
        rank: u32,
        /// The index of the step in its bucket.
        step: usize,
        node: String,
        op: String,
        detail: String,
    },
    /// A step received data that its op does not accept: an index outside its axis, rows that do not fit.
    #[error("rank {rank}, step {step} ({op} %{node}): {detail}")]
    Data { rank: u32, step: usize, node: String, op: String, fault: DataFault, detail: String },
    /// The program reads outside of an axis at the sizes of the run. No step ran.
    #[error("%{node} ({op}): {detail}")]
    Bounds {
        /// The node of the imported program: the name of its first result.
        node: String,
        op: String,
        detail: String,
    },
    #[error("{what} of {bytes} bytes cannot be allocated: {error}")]
    Memory { what: String, bytes: usize, error: String },
    /// The system has no more threads, processes or files for this user or process.
    #[error("{what}: {error}; is a limit on threads, processes or open files reached (ulimit -a)?")]
    Exhausted { what: String, error: String },
    #[error(
        "rank {rank} waited {limit_ms} ms for {missing} at step {step} ({op} %{node}), run {run}, and timed out{behind}",
        missing = peers_text(peers), behind = waiting_text(*culprit, peers)
    )]
    Limit {
        rank: u32,
        /// The rank that ultimately keeps the others waiting: one of `peers`, or a rank that these wait for themselves.
        culprit: u32,
        peers: Vec<u32>,
        step: usize,
        node: String,
        op: String,
        /// The repetition of the plan, from 0.
        run: u64,
        limit_ms: u64,
    },
    #[error("rank {rank} died ({how}) at step {step} ({op} %{node}), run {run}")]
    Died {
        rank: u32,
        /// `signal 9, SIGKILL` or `exit code 3`.
        how: String,
        /// The step that it had begun.
        step: usize,
        node: String,
        op: String,
        run: u64,
    },
    /// A rank's process ended outside of a step.
    #[error("rank {rank} died ({how}) {when}")]
    DiedOutside {
        rank: u32,
        how: String,
        /// `before the first step`, `between steps` or `while the ranks joined`.
        when: String,
    },
    /// The process of a rank exited with code 2: it could not get memory, threads or files, not even to
    /// report this.
    #[error(
        "rank {rank} could not get memory, threads or files from the system (exit code 2); see its own error message"
    )]
    Refused { rank: u32 },
    /// A rank neither finished nor reported an error before the timeout.
    #[error("rank {rank} made no progress for {limit_ms} ms {at}")]
    Stuck {
        rank: u32,
        /// The place at which it was last seen: `at step 3 (all_reduce %x), run 0`.
        at: String,
        limit_ms: u64,
    },
    #[error("{} did not join within {limit_ms} ms", peers_text(ranks))]
    Absent { ranks: Vec<u32>, limit_ms: u64 },
    #[error("{detail}")]
    Misplaced {
        /// The rank that the process claims to be.
        rank: u32,
        detail: String,
    },
    #[error("rank {rank} has {found}, rank 0 has {expected}: all ranks must run the same plan")]
    PlanDiffers {
        rank: u32,
        /// The properties of rank 0's plan that differ from those of `rank`: `the program "mlp" (plan 1f…)`.
        expected: String,
        /// The properties of `rank`'s plan that differ from those of rank 0.
        found: String,
    },
    #[error("rank {rank} runs {found}, rank 0 runs {expected}: all ranks must run the same version")]
    VersionDiffers { rank: u32, expected: String, found: String },
    /// The ranks run the same plan with different settings (sizes, seed or tensors), or open different programs.
    #[error("rank {rank} runs {found}, rank 0 {expected}: all ranks must agree")]
    TermsDiffer {
        rank: u32,
        /// How rank 0 runs: `with tokens=5`.
        expected: String,
        /// How `rank` runs: `with tokens=6`.
        found: String,
    },
    #[error(
        "run {run}: rank {rank} runs it with {}, rank {peer} with other values: all ranks must agree on the program, \
         its sizes and symmetric memory",
        sizes_text(sizes)
    )]
    SizesDiffer {
        /// The rank that detected the difference.
        rank: u32,
        /// A rank that runs another program, or with other sizes or symmetric memory.
        peer: u32,
        run: u64,
        /// The program, sizes and symmetric memory of `rank`: `n=4`.
        sizes: String,
    },
    #[error("rank {rank} {how}")]
    Left {
        rank: u32,
        /// The way in which it left: `closed its session after 3 runs`.
        how: String,
    },
    /// The caller's timeout for its own runs passed. The runs continue.
    #[error("run {run} of rank {rank} did not end within the timeout of {limit_ms} ms, and continues")]
    Unfinished {
        rank: u32,
        /// The first run that has not ended, from 0.
        run: u64,
        /// The timeout in milliseconds.
        limit_ms: u64,
    },
    /// An error that another rank found, with the cause as that rank reported it.
    #[error("{}", reported_text(*reporter, cause))]
    Reported { reporter: u32, cause: Box<RunError> },
    /// The run ended on another rank, and no cause is known.
    #[error("rank {rank} stopped: {reason}")]
    Aborted { rank: u32, reason: String },
    #[error("{what}: {error}")]
    System { what: String, error: String },
    #[error("control socket of rank {rank}: {detail}")]
    Protocol { rank: u32, detail: String },
}

impl RunError {
    /// The error of an operation that failed without an error number. System calls use
    /// [`RunError::from_system_call`].
    pub fn system(what: impl Into<String>, error: impl std::fmt::Display) -> Self {
        RunError::System { what: what.into(), error: error.to_string() }
    }

    /// The error of ranks that want to run after `rank` has closed its session.
    pub fn session_closed(rank: u32, runs: u64) -> Self {
        let count = if runs == 1 { "1 run".into() } else { format!("{runs} runs") };
        RunError::Left { rank, how: format!("closed its session after {count}") }
    }

    /// The rank at fault: the rank that failed, died, stopped, left, did not join, or differs from the
    /// others. `None` if no rank is at fault but the run or the system.
    pub fn culprit(&self) -> Option<u32> {
        match self {
            RunError::Step { rank, .. }
            | RunError::Data { rank, .. }
            | RunError::Died { rank, .. }
            | RunError::DiedOutside { rank, .. }
            | RunError::Refused { rank }
            | RunError::Stuck { rank, .. }
            | RunError::Misplaced { rank, .. }
            | RunError::PlanDiffers { rank, .. }
            | RunError::VersionDiffers { rank, .. }
            | RunError::TermsDiffer { rank, .. }
            | RunError::SizesDiffer { peer: rank, .. }
            | RunError::Left { rank, .. }
            | RunError::Aborted { rank, .. }
            | RunError::Protocol { rank, .. } => Some(*rank),
            RunError::Limit { culprit, .. } => Some(*culprit),
            RunError::CannotRun { rank, .. } => *rank,
            RunError::Absent { ranks, .. } => ranks.first().copied(),
            RunError::Reported { reporter, cause } => cause.culprit().or(Some(*reporter)),
            RunError::Invalid(_)
            | RunError::Bounds { .. }
            | RunError::Unsupported(_)
            | RunError::Defect(_)
            | RunError::Memory { .. }
            | RunError::Exhausted { .. }
            | RunError::Unfinished { .. }
            | RunError::System { .. } => None,
        }
    }

    /// The error in at most `max_bytes` bytes of JSON. Its texts are shortened if it is longer: they may quote names,
    /// which have no limit. `rank` is where it happened, for an error without a culprit that stays too long.
    pub(crate) fn with_bounded_size(&self, rank: u32, max_bytes: usize) -> RunError {
        let fits = |error: &RunError| serde_json::to_vec(error).is_ok_and(|json| json.len() <= max_bytes);
        if fits(self) {
            return self.clone();
        }
        let shortened = TEXT_BYTES.iter().find_map(|&text_bytes| {
            let mut json = serde_json::to_value(self).ok()?;
            shorten_strings(&mut json, text_bytes);
            serde_json::from_value(json).ok().filter(fits)
        });
        shortened.unwrap_or_else(|| {
            let rank = self.culprit().unwrap_or(rank);
            RunError::Aborted { rank, reason: shorten_middle(&self.to_string(), TEXT_BYTES[1]) }
        })
    }

    /// The rank that noticed the error. `None` if a launcher that is not a rank noticed it, or the error has
    /// not left its rank.
    pub fn reporter(&self) -> Option<u32> {
        match self {
            RunError::Step { rank, .. }
            | RunError::Data { rank, .. }
            | RunError::Limit { rank, .. }
            | RunError::SizesDiffer { rank, .. }
            | RunError::Unfinished { rank, .. }
            | RunError::Reported { reporter: rank, .. } => Some(*rank),
            RunError::CannotRun { rank, .. } => *rank,
            _ => None,
        }
    }

    pub fn step(&self) -> Option<usize> {
        match self.cause() {
            RunError::Step { step, .. }
            | RunError::Data { step, .. }
            | RunError::Limit { step, .. }
            | RunError::Died { step, .. } => Some(*step),
            _ => None,
        }
    }

    /// The original error, as the rank that found it reported it.
    pub fn cause(&self) -> &RunError {
        match self {
            RunError::Reported { cause, .. } => cause.cause(),
            own => own,
        }
    }

    /// Marks the error as reported by `reporter`, unless its reporter is known already or it only says that
    /// the run ended.
    #[must_use]
    pub fn reported_by(self, reporter: u32) -> RunError {
        match self.reporter() {
            _ if matches!(self, RunError::Aborted { .. }) => self,
            Some(_) => self,
            None => RunError::Reported { reporter, cause: Box::new(self) },
        }
    }

    /// Whether this error only repeats that the run ended on another rank.
    pub fn is_consequence(&self) -> bool {
        matches!(self, RunError::Aborted { .. } | RunError::Reported { .. })
    }
}

fn sizes_text(sizes: &str) -> &str {
    if sizes.is_empty() { "no sizes" } else { sizes }
}

fn rank_text(rank: Option<u32>) -> String {
    rank.map_or_else(String::new, |rank| format!("rank {rank}: "))
}

fn peers_text(peers: &[u32]) -> String {
    let list = peers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    if peers.len() == 1 { format!("rank {list}") } else { format!("ranks {list}") }
}

/// The text of one rank's error for all ranks: with the number of this rank, unless the text names a rank
/// already.
fn reported_text(reporter: u32, cause: &RunError) -> String {
    let text = cause.to_string();
    let name = format!("rank {reporter}");
    if cause.culprit().is_some() || text.starts_with(&name) { text } else { format!("{name}: {text}") }
}

/// Names the rank that keeps the others waiting, unless the text has named it already.
fn waiting_text(culprit: u32, peers: &[u32]) -> String {
    match peers {
        [peer] if *peer == culprit => String::new(),
        _ => format!("; rank {culprit} keeps the others waiting"),
    }
}

pub fn session_ended_error() -> RunError {
    RunError::Invalid("the session has ended".into())
}
