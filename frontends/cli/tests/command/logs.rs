//! The log on standard error: filters, invalid filters, and the examples of the page on the log.

use std::process::Command;

use symmc_log::TARGETS;

use crate::common::{failure, output, symmc};

const RUN: &str = "run megatron_tp4_f32.pt2 --tensors megatron_tp4_f32.safetensors";
const PAGE: &str = include_str!("../../../../docs/debugging.md");

/// The lines of the log on standard error of a run with these variables.
fn log_of(line: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let mut command: Command = symmc(line);
    command.env_remove("SYMMC_LOG").env_remove("RUST_LOG").envs(variables.iter().copied());
    let text = String::from_utf8(output(&mut command).stderr).expect("UTF-8");
    text.lines().filter(|line| line.contains(" symmc::")).map(str::to_string).collect()
}

/// A line without its time, durations, and other numbers that change from run to run.
fn without_times(line: &str) -> String {
    let text = line.split_once("Z ").map_or(line, |(_, rest)| rest);
    let is_duration = |word: &str| word.starts_with("elapsed=");
    text.split_whitespace().filter(|word| !is_duration(word)).collect::<Vec<_>>().join(" ")
}

#[test]
fn without_a_filter_nothing_is_logged() {
    for variables in [&[][..], &[("SYMMC_LOG", "")], &[("SYMMC_LOG", "off")], &[("RUST_LOG", "hyper=trace")]]
    {
        assert_eq!(log_of(RUN, variables), Vec::<String>::new(), "{variables:?}");
    }
}

#[test]
fn each_line_names_the_rank() {
    let lines = log_of(RUN, &[("SYMMC_LOG", "symmc::join=debug")]);
    for rank in 0..4 {
        let expected = format!("DEBUG rank{{rank={rank}}}: symmc::join: ready, waiting until all ranks are");
        assert_eq!(
            lines.iter().filter(|line| line.ends_with(&expected)).count(),
            1,
            "{expected}: {lines:#?}"
        );
    }
    assert!(lines.iter().all(|line| line.contains(" symmc::join: ")), "{lines:#?}");
}

#[test]
fn symmc_log_counts_more_than_rust_log() {
    let quiet = [("SYMMC_LOG", "off"), ("RUST_LOG", "debug")];
    assert_eq!(log_of(RUN, &quiet), Vec::<String>::new());
    assert!(!log_of(RUN, &[("RUST_LOG", "hyper=off,debug")]).is_empty());
}

#[test]
fn wrong_filters_are_bad_input() {
    for (variable, filter, expected) in [
        ("SYMMC_LOG", "verbose", "SYMMC_LOG: unknown level \"verbose\""),
        ("SYMMC_LOG", "symmc::runs=debug", "SYMMC_LOG: unknown target \"symmc::runs\""),
        ("RUST_LOG", "symmc=loud", "RUST_LOG: unknown level \"loud\""),
    ] {
        let mut command = symmc(RUN);
        command.env_remove("SYMMC_LOG").env(variable, filter);
        let text = failure(&mut command, 2);
        assert!(text.contains(expected), "{text}");
    }
}

/// The lines of the example that follows a command on the page.
fn example(command: &str) -> Vec<&'static str> {
    let shown = PAGE.split("```text\n").skip(1).filter_map(|block| block.split("```").next());
    let mut lines = shown.filter_map(|block| block.strip_prefix(command)).flat_map(str::lines);
    lines.next();
    lines.collect()
}

#[test]
fn the_page_shows_lines_of_a_run() {
    let command = format!("$ SYMMC_LOG=debug symmc {RUN}");
    let shown: Vec<String> = example(&command).into_iter().map(without_times).collect();
    let lines: Vec<String> =
        log_of(RUN, &[("SYMMC_LOG", "debug")]).iter().map(|line| without_times(line)).collect();
    assert!(shown.len() > 5, "{shown:#?}");
    for line in shown {
        assert!(lines.contains(&line), "not in the log: {line}\n{lines:#?}");
    }
}

#[test]
fn the_page_lists_all_targets() {
    for (target, meaning) in TARGETS {
        let row = format!("| `{target}` | {meaning} |");
        assert!(PAGE.contains(&row), "{row}");
    }
}
