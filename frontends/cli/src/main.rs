//! The `symmc` command.

use std::process::ExitCode;

use symmc::unstable::control;
use symmc_cli::SelfCommand;

fn main() -> ExitCode {
    // A reader that goes away (`symmc print … | head`) ends the command quietly, as for other filters.
    control::restore_default_sigpipe();
    // A file that may not grow is an error, as other limits are.
    control::ignore_sigxfsz();
    symmc_cli::run(std::env::args_os(), &SelfCommand::from_process())
}
