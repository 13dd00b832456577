//! Finds the process that started all ranks of a run on this host.
//!
//! A launcher sets variables for each rank that its own environment does not have, and the processes that a
//! rank starts inherit them. The launcher is therefore the nearest ancestor without these variables, however
//! many shells and scripts are in between.

use std::fs;

/// Names the nearest ancestor of this process whose environment does not set `variable`, or cannot be read:
/// its process number and start time, which together are unique.
pub(crate) fn starting_process(variable: &str) -> String {
    let mut process = std::os::unix::process::parent_id();
    while let Some(parent) = parent_process(process).filter(|_| sets_variable(process, variable)) {
        process = parent;
    }
    format!("{process}/{}", stat_field(process, STARTED).unwrap_or_default())
}

/// Indices of the parent and the start time in the state of a process, counted from 0 after its name.
const PARENT: usize = 1;
const STARTED: usize = 19;

fn parent_process(process: u32) -> Option<u32> {
    stat_field(process, PARENT)?.parse().ok().filter(|&parent| parent != 0)
}

/// A field of `/proc/<process>/stat`, counted after the name, which may hold any characters.
fn stat_field(process: u32, index: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(index).map(str::to_string)
}

fn sets_variable(process: u32, variable: &str) -> bool {
    let start = format!("{variable}=");
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    environment.split(|&b| b == 0).any(|entry| entry.starts_with(start.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_does_not_set_what_nobody_sets() {
        let process = starting_process("SYMMC_NOBODY_SETS_THIS");
        let parent = std::os::unix::process::parent_id();
        assert!(process.starts_with(&format!("{parent}/")) && !process.ends_with('/'), "{process}");
        assert!(sets_variable(std::process::id(), "PATH") && !sets_variable(std::process::id(), "PAT"));
    }
}
