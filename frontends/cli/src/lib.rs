//! The `symmc` command, for programs that offer it as their own. Exit codes: 0 success, 1 a comparison or a check failed or a run broke down, 2 bad
//! input. A plan of symmc's own that does not check is a failed check.

// Without GPUs, what is said of them is parsed and refused.
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

/// The stack that the command asks for where the first thread's is limited to less than [`ENOUGH`], in bytes.
const STACK: usize = 8 << 20;
const ENOUGH: u64 = 1 << 20;

/// Runs the command with these arguments, the first of which is its name.
pub fn run(arguments: impl IntoIterator<Item = OsString>, own: &SelfCommand) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if control::stack_limit().is_none_or(|limit| limit >= ENOUGH) {
        return run_arguments(arguments, own);
    }
    let own = own.clone();
    match Builder::new().stack_size(STACK).spawn(move || run_arguments(arguments, &own)).map(JoinHandle::join)
    {
        Ok(Ok(code)) => code,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            let least = ENOUGH >> 10;
            messages::error(&format!(
                "the stack is limited to less than {least} KiB (ulimit -s), and no thread can be had: {error}"
            ));
            ExitCode::from(2)
        }
    }
}

fn run_arguments(arguments: Vec<OsString>, own: &SelfCommand) -> ExitCode {
    let args = match args::Args::parse_arguments(arguments) {
        Ok(args) => args,
        Err(code) => return code,
    };
    if let Err(error) = symmc_log::init_from_env() {
        messages::error(&error.to_string());
        return ExitCode::from(2);
    }
    match commands::run_command(args, own) {
        Ok(code) => code,
        Err(error) => {
            messages::error(&failure::error_message(&error));
            if error.downcast_ref().is_some_and(|e: &symmc::Error| e.plan().is_some()) {
                messages::note("symmc plan with -o FILE keeps the plan, for the report");
            }
            ExitCode::from(failure::exit_code(&error))
        }
    }
}
