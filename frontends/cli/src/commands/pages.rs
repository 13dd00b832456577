//! `symmc completions` and `symmc man`: completion scripts and manual pages, from the declarations of the arguments.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Command;
use clap_mangen::Man;

use crate::args::{CompletionsArgs, ManArgs, symmc_command};
use crate::stdout::{print_exact, print_text};
use crate::units::format_count;

pub fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut symmc_command(), "symmc", &mut script);
    print_exact(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the page of one command, or writes the pages of all commands into a folder.
pub fn man(args: &ManArgs) -> Result<ExitCode> {
    let mut root = symmc_command().disable_help_subcommand(true);
    // This gives commands the names of their pages, such as symmc-bench-program.
    root.build();
    if let Some(folder) = &args.folder {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("the folder {} cannot be created", folder.display()))?;
        let mut written = 0;
        write_pages(&root, folder, &mut written)?;
        print_text(&format!("{}: {}\n", folder.display(), format_count(written, "page")))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = &root;
    for name in &args.command {
        let Some(subcommand) = command.find_subcommand(name).filter(|subcommand| !subcommand.is_hide_set())
        else {
            bail!("expected the name of a command; {} has no command {name}", command.get_name());
        };
        command = subcommand;
    }
    print_exact(&render_page(command)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, and those of its subcommands.
fn write_pages(command: &Command, folder: &Path, written: &mut u64) -> Result<()> {
    let page = render_page(command)?;
    let file = folder.join(format!("{}.1", page_name(command)));
    symmc::write_file(&file, page.as_bytes())?;
    *written += 1;
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(subcommand, folder, written)?;
    }
    Ok(())
}

fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn render_page(command: &Command) -> Result<String> {
    let man = Man::new(command.clone()).source(concat!("symmc ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page).context("rendering a manual page")?;
    Ok(String::from_utf8(page)?)
}
