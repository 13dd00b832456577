//! The command as it is started again, by itself.

use std::path::PathBuf;

use symmc::RankCommand;

/// How the command is started again: as a rank, or to ask a library that may crash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Own {
    /// The program.
    pub program: PathBuf,
    /// What stands before the arguments of the command.
    pub args: Vec<String>,
}

impl Own {
    /// This program, whose arguments are those of the command.
    ///
    /// # Errors
    /// The system does not say which program this is.
    pub fn of_process() -> std::io::Result<Own> {
        Ok(Own { program: std::env::current_exe()?, args: Vec::new() })
    }

    /// Its arguments, and these behind.
    pub(crate) fn with(&self, args: &[&str]) -> Vec<String> {
        self.args.iter().cloned().chain(args.iter().map(ToString::to_string)).collect()
    }

    /// The command as a rank of a run that it starts.
    pub(crate) fn rank_command(&self) -> RankCommand {
        RankCommand { program: self.program.clone(), args: self.with(&["rank", "--fd"]) }
    }
}
