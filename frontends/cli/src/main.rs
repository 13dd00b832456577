//! The `symmc` command.

use std::process::ExitCode;

use symmc::unstable::control;
use symmc_cli::SelfCommand;

fn main() -> ExitCode {
    // A reader that closes the pipe (`symmc print … | head`) ends the command without a message, as for other filters.
    control::restore_default_sigpipe();
    // Writing beyond the limit of file sizes gives an error, not a signal.
    control::ignore_sigxfsz();
    symmc_cli::run(std::env::args_os(), &SelfCommand::from_process())
}
