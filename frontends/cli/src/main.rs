//! The `symmc` command. Exit codes: 0 success, 1 a comparison or a check failed or a run broke down, 2 bad
//! input. A plan of symmc's own that does not check is a failed check.

mod args;
mod bounded;
mod commands;
mod explain;
mod load;
mod out;
mod progress;
mod report;
mod units;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // A reader that goes away (`symmc print … | head`) ends the command quietly, as for other filters.
    symmc::host::restore_default_sigpipe();
    let args = args::Args::parse();
    match commands::dispatch(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            if let Some(symmc::Error::Defect { .. }) = error.downcast_ref() {
                eprintln!("note: symmc plan with -o FILE keeps the plan, for the report");
            }
            ExitCode::from(commands::exit_code(&error))
        }
    }
}
