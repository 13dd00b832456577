//! Rules of the tree itself: who may depend on whom, and what every source file looks like.

mod circles;
mod pages;
mod recipes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use symmc_tests::root;

/// The crates of the workspace and those of ours that each may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("ir", &["symmc-support"]),
    ("ir/support", &[]),
    ("passes", &["symmc-support", "symmc-ir", "symmc-dispatch", "symmc-plan"]),
    ("planner/dispatch", &["symmc-ir"]),
    ("planner/pack", &[]),
    ("planner/plan", &["symmc-support", "symmc-ir"]),
    ("planner/check", &["symmc-support", "symmc-ir", "symmc-plan"]),
    ("planner/compare", &["symmc-support", "symmc-ir", "symmc-plan"]),
    ("planner", &["symmc-support", "symmc-ir", "symmc-dispatch", "symmc-pack", "symmc-plan"]),
    ("runtime/control", &["symmc-support"]),
    ("runtime", &["symmc-support", "symmc-control", "symmc-ir", "symmc-plan", "symmc-check"]),
    ("runtime/nccl-sys", &[]),
    ("frontends/common", &["symmc-ir"]),
    ("frontends/torch", &["symmc-ir", "symmc-import"]),
    ("frontends/onnx", &["symmc-support", "symmc-ir", "symmc-import"]),
    (
        "frontends/driver",
        &[
            "symmc-support",
            "symmc-ir",
            "symmc-dispatch",
            "symmc-passes",
            "symmc-planner",
            "symmc-pack",
            "symmc-plan",
            "symmc-check",
            "symmc-cuda",
        ],
    ),
    (
        "runtime/cuda",
        &[
            "symmc-support",
            "symmc-control",
            "symmc-ir",
            "symmc-plan",
            "symmc-check",
            "symmc-runtime",
            "nccl-sys",
        ],
    ),
    (
        "frontends/symmc",
        &[
            "symmc-ir",
            "symmc-driver",
            "symmc-passes",
            "symmc-planner",
            "symmc-pack",
            "symmc-plan",
            "symmc-check",
            "symmc-compare",
            "symmc-control",
            "symmc-runtime",
            "symmc-support",
            "symmc-cuda",
            "symmc-import",
            "symmc-torch",
            "symmc-onnx",
        ],
    ),
    ("frontends/log", &[]),
    ("frontends/cli", &["symmc", "symmc-log"]),
    ("frontends/capi", &["symmc", "symmc-log"]),
    ("frontends/python", &["symmc", "symmc-cli", "symmc-log"]),
    (
        "tests",
        &[
            "symmc",
            "symmc-cases",
            "symmc-check",
            "symmc-control",
            "symmc-ir",
            "symmc-passes",
            "symmc-plan",
            "symmc-planner",
            "symmc-runtime",
            "symmc-support",
        ],
    ),
    ("tests/cases", &["symmc-support", "symmc-ir", "symmc-runtime"]),
];

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("the folder is readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                rust_files(&path, out);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn sources() -> BTreeMap<String, String> {
    let mut files = Vec::new();
    for dir in ["ir", "passes", "planner", "runtime", "frontends", "tests", "examples"] {
        rust_files(&root().join(dir), &mut files);
    }
    let name = |p: &Path| p.strip_prefix(root()).expect("below the root").display().to_string();
    files.iter().map(|p| (name(p), std::fs::read_to_string(p).expect("UTF-8 source"))).collect()
}

#[test]
fn dependencies_follow_the_arrows() {
    for &(dir, allowed) in ARROWS {
        let manifest = std::fs::read_to_string(root().join(dir).join("Cargo.toml")).expect("a manifest");
        let normal = manifest
            .split("[dependencies]")
            .nth(1)
            .unwrap_or_default()
            .split("\n[")
            .next()
            .unwrap_or_default();
        let ours = normal
            .lines()
            .filter_map(|l| l.split(['.', ' ', '=']).next())
            .filter(|n| n.starts_with("symmc") || *n == "nccl-sys");
        for used in ours {
            assert!(allowed.contains(&used), "{dir} depends on {used}; allowed are {allowed:?}");
        }
    }
}

#[test]
fn every_source_file_has_a_page() {
    let bare: Vec<String> =
        sources().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(name, _)| name).collect();
    assert!(bare.is_empty(), "no //! page at the top of: {bare:#?}");
}

/// The targets that docs/debugging.md lists.
fn log_targets() -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/debugging.md")).expect("UTF-8 text");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `symmc::"));
    rows.filter_map(|row| row.split('`').next()).map(|name| format!("symmc::{name}")).collect()
}

#[test]
fn events_have_targets_that_the_page_lists() {
    let targets = log_targets();
    let mut used = std::collections::BTreeSet::new();
    for (name, text) in sources() {
        for macro_name in ["trace!(", "debug!(", "info!(", "warn!(", "error!("] {
            for call in text.split(&format!("tracing::{macro_name}")).skip(1) {
                let target =
                    call.trim_start().strip_prefix("target: \"").and_then(|rest| rest.split('"').next());
                let target =
                    target.unwrap_or_else(|| panic!("{name}: an event without a target: {call:.80}"));
                assert!(targets.iter().any(|known| known == target), "{name}: {target} is not on the page");
                used.insert(target.to_string());
            }
        }
    }
    assert_eq!(used, targets.into_iter().collect(), "targets without an event");
}

#[test]
fn only_the_log_of_frontends_installs_a_subscriber() {
    for &(dir, _) in ARROWS {
        let manifest = std::fs::read_to_string(root().join(dir).join("Cargo.toml")).expect("a manifest");
        let installs = manifest.contains("tracing-subscriber");
        assert_eq!(installs, dir == "frontends/log", "{dir}");
    }
}

#[test]
fn the_page_of_custom_ops_quotes_the_example() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect("UTF-8 text");
    let (page, example) = (read("docs/custom-ops.md"), read("examples/custom_op.rs"));
    let quote = page.split("<!-- custom ops -->\n```rust\n").nth(1).expect("the quote");
    let quote = quote.split("```").next().unwrap_or_default();
    assert!(quote.lines().count() > 3 && example.contains(quote), "not in the example:\n{quote}");
    let declared = page.split("```text\n").filter_map(|b| b.split("```").next());
    let declared = declared.filter(|b| b.starts_with("custom ")).flat_map(str::lines);
    assert!(declared.map(|line| assert!(example.contains(line), "{line}")).count() == 2);
}

#[test]
fn the_page_of_the_text_form_is_current() {
    let page = std::fs::read_to_string(root().join("docs/symm.md")).expect("docs/symm.md");
    assert!(page == symmc_ir::text::reference(), "docs/symm.md: write it again with `symmc ops --symm`");
}

#[test]
fn sources_contain_no_stubs_or_ignored_tests() {
    let words = [["to", "do!("].concat(), ["unimpl", "emented!("].concat(), ["#[ig", "nore"].concat()];
    for (name, text) in sources() {
        for word in &words {
            assert!(!text.contains(word.as_str()), "{name} contains {word}");
        }
    }
}
