//! The log of symmc's frontends: writes events to standard error, by a filter.
//!
//! Library crates emit events and spans of `tracing` and never install a subscriber. The command, the Python package and the C
//! library install this one when they start. Rust programs that use symmc install their own. Nothing is written until a filter is
//! set, by [`init_from_env`] from `SYMMC_LOG` or `RUST_LOG`, or by [`set_filter`].
//!
//! A filter is a list such as `info,symmc::join=debug`: a level for all of symmc, and levels for [`TARGETS`]. It does not use
//! `tracing_subscriber::EnvFilter`, which needs regular expressions and accepts misspelt levels as targets.

use std::sync::{Mutex, OnceLock, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::{Layer as _, Registry, fmt};

/// The targets of events, each with a description. `symmc` stands for all of them.
pub const TARGETS: [(&str, &str); 5] = [
    ("symmc::compile", "stages of a compilation and their times"),
    ("symmc::join", "ranks that meet, and what they agree on"),
    ("symmc::session", "sessions and programs that are opened, released and closed"),
    ("symmc::gpu", "GPUs: memory, code, graphs that are recorded"),
    ("symmc::run", "runs: starts, waits, timeouts and failures"),
];

/// The target of the span with the rank, and its level. All filters enable it.
const RANK_TARGET: (&str, LevelFilter) = ("symmc::rank", LevelFilter::ERROR);

const LEVEL_NAMES: &str = "off, error, warn, info, debug or trace";

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LogError {
    #[error("{origin}: unknown level {found:?}: expected {LEVEL_NAMES}, or TARGET=LEVEL")]
    Level { origin: String, found: String },
    #[error("{origin}: unknown target {found:?}: expected {}", target_names())]
    Target { origin: String, found: String },
    /// The program has installed another subscriber.
    #[error("the process has another subscriber of tracing: set the filter there")]
    OtherSubscriber,
}

fn target_names() -> String {
    let names: Vec<&str> = std::iter::once("symmc").chain(TARGETS.map(|(name, _)| name)).collect();
    names.join(", ")
}

/// Whether directives for other crates are skipped, as in `RUST_LOG`, which all crates of a process share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OtherCrates {
    Skip,
    Reject,
}

/// Starts the log with the filter in `SYMMC_LOG`, or in `RUST_LOG` if that is not set. Directives of `RUST_LOG` for other crates are
/// skipped. Without either variable, or if the log was started before, it does nothing.
pub fn init_from_env() -> Result<(), LogError> {
    static INIT_RESULT: OnceLock<Result<(), LogError>> = OnceLock::new();
    INIT_RESULT
        .get_or_init(|| {
            let variables = [("SYMMC_LOG", OtherCrates::Reject), ("RUST_LOG", OtherCrates::Skip)];
            for (variable, others) in variables {
                let Some(value) = std::env::var_os(variable) else { continue };
                let targets = parse_filter(variable, &value.to_string_lossy(), others)?;
                return match install_filter(targets) {
                    // The environment configures the subscriber of the program.
                    Err(LogError::OtherSubscriber) => Ok(()),
                    installed => installed,
                };
            }
            Ok(())
        })
        .clone()
}

/// Replaces the filter; `off` ends the log. `origin` names the argument in errors. Fails if the filter is invalid, or the process has
/// another subscriber.
pub fn set_filter(origin: &str, filter: &str) -> Result<(), LogError> {
    install_filter(parse_filter(origin, filter, OtherCrates::Reject)?)
}

fn parse_filter(origin: &str, filter: &str, others: OtherCrates) -> Result<Targets, LogError> {
    let mut targets = Targets::new();
    for directive in filter.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        let (target, level) = match directive.split_once('=') {
            Some((target, level)) => (target.trim(), level.trim()),
            None => ("symmc", directive),
        };
        let is_known = target == "symmc" || TARGETS.iter().any(|(name, _)| *name == target);
        if !is_known {
            match others {
                OtherCrates::Skip => continue,
                OtherCrates::Reject => {
                    return Err(LogError::Target { origin: origin.into(), found: target.into() });
                }
            }
        }
        match parse_level(level) {
            Some(level) => targets = targets.with_target(target, level),
            // In `RUST_LOG` a single word may be the name of another crate.
            None if others == OtherCrates::Skip && !directive.contains('=') => {}
            None => return Err(LogError::Level { origin: origin.into(), found: level.into() }),
        }
    }
    Ok(targets.with_target(RANK_TARGET.0, RANK_TARGET.1))
}

fn parse_level(text: &str) -> Option<LevelFilter> {
    let levels = [
        ("off", LevelFilter::OFF),
        ("error", LevelFilter::ERROR),
        ("warn", LevelFilter::WARN),
        ("info", LevelFilter::INFO),
        ("debug", LevelFilter::DEBUG),
        ("trace", LevelFilter::TRACE),
    ];
    levels.into_iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, level)| level)
}

/// Installs the subscriber, or replaces the filter if it is installed.
fn install_filter(targets: Targets) -> Result<(), LogError> {
    type Handle = reload::Handle<Targets, Registry>;
    static FILTER_HANDLE: Mutex<Option<Handle>> = Mutex::new(None);
    let mut handle = FILTER_HANDLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*handle {
        return handle.reload(targets).map_err(|_| LogError::OtherSubscriber);
    }
    let (filter, new_handle) = reload::Layer::new(targets);
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let subscriber = Registry::default().with(lines.with_filter(filter));
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::OtherSubscriber)?;
    *handle = Some(new_handle);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn error(filter: &str, others: OtherCrates) -> String {
        parse_filter("SYMMC_LOG", filter, others).expect_err("it is wrong").to_string()
    }

    #[test]
    fn filters_give_levels_to_targets() {
        let targets =
            parse_filter("SYMMC_LOG", "info, symmc::join=TRACE", OtherCrates::Reject).expect("a filter");
        assert!(targets.would_enable("symmc::join", &Level::TRACE));
        assert!(targets.would_enable("symmc::run", &Level::INFO));
        assert!(!targets.would_enable("symmc::run", &Level::DEBUG));
        assert!(!targets.would_enable("hyper", &Level::ERROR));
        let rank_only = parse_filter("SYMMC_LOG", "off", OtherCrates::Reject).expect("a filter");
        assert!(rank_only.would_enable(RANK_TARGET.0, &Level::ERROR));
        assert!(!rank_only.would_enable("symmc::run", &Level::ERROR));
    }

    #[test]
    fn misspelt_levels_and_targets_are_rejected() {
        let level = "SYMMC_LOG: unknown level \"debgu\": expected off, error, warn, info, debug or trace, or TARGET=LEVEL";
        assert_eq!(error("debgu", OtherCrates::Reject), level);
        assert_eq!(error("info,symmc::run=debgu", OtherCrates::Reject), level);
        let targets = "symmc, symmc::compile, symmc::join, symmc::session, symmc::gpu, symmc::run";
        for target in ["symmc::joni", "hyper", "symmcx", ""] {
            let expected = format!("SYMMC_LOG: unknown target {target:?}: expected {targets}");
            assert_eq!(error(&format!("{target}=debug"), OtherCrates::Reject), expected);
        }
    }

    #[test]
    fn directives_for_other_crates_are_skipped_in_rust_log() {
        let filter = "hyper=debug,tokio,symmc::run=debug";
        let targets = parse_filter("RUST_LOG", filter, OtherCrates::Skip).expect("a filter");
        assert!(targets.would_enable("symmc::run", &Level::DEBUG));
        assert!(!targets.would_enable("hyper", &Level::ERROR));
        assert!(error("symmc=loud", OtherCrates::Skip).contains("unknown level \"loud\""));
    }
}
