//! The `symmc` command. Exit codes: 0 success, 1 a comparison or a check failed or a run broke down, 2 bad
//! input. A plan of symmc's own that does not check is a failed check.

// Without GPUs, what is said of them is parsed and refused.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, unused_imports))]
mod args;
mod bounded;
mod commands;
mod explain;
mod gpu;
mod load;
mod out;
mod progress;
mod report;
mod units;

use std::process::ExitCode;
use std::thread::{Builder, JoinHandle};

use symmc::unstable::runtime::host;

/// The stack that the command asks for where the first thread's is limited to less than [`ENOUGH`], in bytes.
const STACK: usize = 8 << 20;
const ENOUGH: u64 = 1 << 20;

fn main() -> ExitCode {
    // A reader that goes away (`symmc print … | head`) ends the command quietly, as for other filters.
    host::restore_default_sigpipe();
    if host::stack_limit().is_none_or(|limit| limit >= ENOUGH) {
        return command();
    }
    match Builder::new().stack_size(STACK).spawn(command).map(JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            let least = ENOUGH >> 10;
            eprintln!(
                "error: the stack is limited to less than {least} KiB (ulimit -s), and no thread can be had: {error}"
            );
            ExitCode::from(2)
        }
    }
}

fn command() -> ExitCode {
    let args = args::Args::of_process();
    match commands::dispatch(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", commands::message(&error));
            if error.downcast_ref().is_some_and(|e: &symmc::Error| e.plan().is_some()) {
                eprintln!("note: symmc plan with -o FILE keeps the plan, for the report");
            }
            ExitCode::from(commands::exit_code(&error))
        }
    }
}
