//! The `symmc` command as a library, for programs that offer it as their own, such as the Python package.
//!
//! Exit codes: 0 success; 1 a comparison or a check failed, or a run failed; 2 bad input. A plan that symmc made and that
//! does not check is a failed check.

// Builds without GPUs parse the options of GPUs and refuse them.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, unused_imports))]
mod args;
mod bounded;
mod commands;
mod dispatch_report;
mod explain;
mod failure;
mod gpu;
mod html;
mod load;
mod messages;
mod planned_bucket;
mod progress;
mod report;
mod self_command;
mod stdout;
mod summary;
mod units;

use std::ffi::OsString;
use std::process::ExitCode;
use std::thread::{Builder, JoinHandle};

use symmc::unstable::control;

pub use explain::explain;
pub use html::{escape_html, render_plan};
pub use report::report;
pub use self_command::SelfCommand;

/// The bytes of the stack of the thread that runs the command, if the main thread's stack is limited to less than
/// [`SUFFICIENT_STACK`].
const STACK: usize = 8 << 20;
const SUFFICIENT_STACK: u64 = 1 << 20;

/// Runs the command with these arguments; the first is the name of the command.
pub fn run(arguments: impl IntoIterator<Item = OsString>, self_command: &SelfCommand) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if control::stack_limit().is_none_or(|limit| limit >= SUFFICIENT_STACK) {
        return run_arguments(arguments, self_command);
    }
    let self_command = self_command.clone();
    match Builder::new()
        .stack_size(STACK)
        .spawn(move || run_arguments(arguments, &self_command))
        .map(JoinHandle::join)
    {
        Ok(Ok(code)) => code,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            let min_kib = SUFFICIENT_STACK >> 10;
            messages::error(&format!(
                "the stack is limited to less than {min_kib} KiB (ulimit -s), and no thread with a larger one can start: \
                 {error}"
            ));
            ExitCode::from(2)
        }
    }
}

fn run_arguments(arguments: Vec<OsString>, self_command: &SelfCommand) -> ExitCode {
    let args = match args::Args::parse_arguments(arguments) {
        Ok(args) => args,
        Err(code) => return code,
    };
    if let Err(error) = symmc_log::init_from_env() {
        messages::error(&error.to_string());
        return ExitCode::from(2);
    }
    match commands::run_command(args, self_command) {
        Ok(code) => code,
        Err(error) => {
            messages::error(&failure::error_message(&error));
            if error.downcast_ref().is_some_and(|e: &symmc::Error| e.plan().is_some()) {
                messages::note(
                    "`symmc plan -o FILE` writes the plan to a file; please attach it to your report",
                );
            }
            ExitCode::from(failure::exit_code(&error))
        }
    }
}
