//! The command line with which the command starts itself again.

use std::ffi::OsString;
use std::path::PathBuf;

use symmc::RankCommand;

/// How the command starts itself again: as a rank of a run, or to load a library that may crash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelfCommand {
    pub program: PathBuf,
    /// Arguments of the program in front of those of the command.
    pub args: Vec<String>,
}

impl SelfCommand {
    /// The program of this process, with no arguments in front. Without `/proc`, the first argument of the process names the
    /// program.
    pub fn from_process() -> SelfCommand {
        let program = std::env::current_exe().unwrap_or_else(|_| find_program(std::env::args_os().next()));
        SelfCommand { program, args: Vec::new() }
    }

    /// The arguments in front, followed by `args`.
    pub(crate) fn args_with(&self, args: &[&str]) -> Vec<String> {
        self.args.iter().cloned().chain(args.iter().map(ToString::to_string)).collect()
    }

    pub(crate) fn rank_command(&self) -> RankCommand {
        RankCommand { program: self.program.clone(), args: self.args_with(&["rank", "--fd"]) }
    }
}

/// Finds a program by its path, or by its name in the folders of `PATH`.
fn find_program(name: Option<OsString>) -> PathBuf {
    let name = PathBuf::from(name.unwrap_or_else(|| "symmc".into()));
    if name.components().count() > 1 {
        return std::path::absolute(&name).unwrap_or(name);
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::split_paths(&folders).map(|folder| folder.join(&name)).find(|path| path.is_file());
    path.unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_its_first_argument() {
        assert_eq!(find_program(Some("/opt/symmc".into())), PathBuf::from("/opt/symmc"));
        assert!(find_program(Some("bin/symmc".into())).is_absolute());
        let shell = find_program(Some("sh".into()));
        assert!(shell.is_file() && shell.ends_with("sh"), "{}", shell.display());
        assert_eq!(find_program(Some("no-such-program".into())), PathBuf::from("no-such-program"));
        assert_eq!(find_program(None).file_name(), Some("symmc".as_ref()));
    }
}
