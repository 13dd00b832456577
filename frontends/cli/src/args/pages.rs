//! The arguments of `symmc completions` and `symmc man`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use clap_complete::Shell;

pub const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  symmc completions bash > ~/.local/share/bash-completion/completions/symmc
  symmc completions zsh > ~/.zfunc/_symmc                with fpath+=~/.zfunc before compinit in ~/.zshrc
  symmc completions fish > ~/.config/fish/completions/symmc.fish";

pub const MAN_EXAMPLES: &str = "\
Examples:
  symmc man > symmc.1 && man ./symmc.1
  symmc man plan > symmc-plan.1
  symmc man --folder ~/.local/share/man/man1             the pages of all commands";

#[derive(ClapArgs, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(ClapArgs, Debug)]
pub struct ManArgs {
    /// The command whose page is printed, such as `plan` or `bench program` [default: symmc itself]
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Write the pages of symmc and of all commands into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    pub folder: Option<PathBuf>,
}
