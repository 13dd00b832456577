//! Help, completion scripts and manual pages.

use crate::common::{failure, stdout, symmc};

/// The lines of a text that are headings.
fn headings(text: &str) -> Vec<&str> {
    let is_heading =
        |line: &&str| line.ends_with(':') && line.starts_with(|ch: char| ch.is_ascii_uppercase());
    text.lines().filter(is_heading).collect()
}

#[test]
fn the_help_lists_commands_in_groups() {
    let text = stdout("--help");
    assert!(
        text.starts_with("A compiler and memory planner for tensor programs with collectives\n"),
        "{text}"
    );
    let groups = [
        "Plan and run programs:",
        "Measure:",
        "This machine and this build:",
        "Other:",
        "Options:",
        "Examples:",
    ];
    assert_eq!(headings(&text), groups, "{text}");
    for command in ["plan", "check", "run", "print", "bench", "tune", "doctor", "ops", "pack", "man", "help"]
    {
        let lines = text.lines().filter(|l| l.trim_start().split("  ").next() == Some(command));
        assert_eq!(lines.count(), 1, "{command}: {text}");
    }
    assert!(!text.contains("  rank "), "{text}");
}

#[test]
fn options_have_headings() {
    for (command, expected) in [
        (
            "run",
            &[
                "Arguments:",
                "Program:",
                "Planning:",
                "Inputs:",
                "Comparison:",
                "Execution:",
                "Output:",
                "Other:",
            ][..],
        ),
        ("plan", &["Arguments:", "Program:", "Planning:", "Output:", "Other:"]),
        ("print", &["Arguments:", "Program:", "Planning:", "Output:", "Other:"]),
        ("bench program", &["Arguments:", "Program:", "Planning:", "Measurement:", "Other:"]),
    ] {
        for help in ["-h", "--help"] {
            let text = stdout(&format!("{command} {help}"));
            let actual: Vec<&str> = headings(&text).into_iter().filter(|h| *h != "Examples:").collect();
            assert_eq!(actual, expected, "{text}");
        }
    }
}

#[test]
fn shells_complete_commands_and_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&format!("completions {shell}"));
        for part in ["symmc", "symm-limit", "completions", "doctor"] {
            assert!(script.contains(part), "{part} is missing for {shell}");
        }
    }
    assert!(failure(&mut symmc("completions csh"), 2).contains("bash"));
}

#[test]
fn manual_pages_describe_commands() {
    let page = stdout("man");
    assert!(page.contains(".TH symmc 1") && page.contains("symmc\\-plan(1)"), "{page}");
    let page = stdout("man plan");
    assert!(page.contains(".TH symmc-plan 1") && page.contains("\\-\\-explain"), "{page}");
    assert!(stdout("man bench program").contains("\\-\\-replays"));
    let text = failure(&mut symmc("man nosuch"), 2);
    assert!(text.contains("symmc has no command nosuch"), "{text}");
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("man").join("man1");
    let message = stdout(&format!("man --folder {}", folder.display()));
    let pages = std::fs::read_dir(&folder).expect("the command created it").count();
    assert!(message.contains(&format!("{pages} pages")), "{message}");
    for name in ["symmc.1", "symmc-run.1", "symmc-bench.1", "symmc-bench-program.1", "symmc-man.1"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    assert!(!folder.join("symmc-rank.1").exists());
}
