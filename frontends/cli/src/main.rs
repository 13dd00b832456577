//! The `symmc` command.

use std::process::ExitCode;

use symmc::unstable::runtime::host;
use symmc_cli::Own;

fn main() -> ExitCode {
    // A reader that goes away (`symmc print … | head`) ends the command quietly, as for other filters.
    host::restore_default_sigpipe();
    // A file that may not grow is an error, as other limits are.
    host::ignore_sigxfsz();
    symmc_cli::run(std::env::args_os(), &Own::of_process())
}
