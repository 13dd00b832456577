//! Paths in the pages for contributors: every file and folder that a page names exists.
//!
//! A path is a span in backticks that has a `/` and consists of the characters of paths, or the target of a link. Code blocks are
//! not examined.

use std::fs::read_to_string;
use std::path::PathBuf;

use symmc_tests::root;

/// The pages, relative to the root.
fn pages() -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> =
        ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].iter().map(PathBuf::from).collect();
    let folder = PathBuf::from("docs/design");
    for entry in std::fs::read_dir(root().join(&folder)).expect("the folder is readable").flatten() {
        out.push(folder.join(entry.file_name()));
    }
    out
}

/// The lines of a page outside of code blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut in_block = false;
    let mut out = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            out.push(line);
        }
    }
    out
}

/// The spans in backticks of a line that look like paths.
pub(super) fn quoted_paths(line: &str) -> Vec<&str> {
    let is_path_character = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let spans = line.split('`').skip(1).step_by(2);
    spans
        .filter(|span| span.contains('/') && !span.starts_with('/') && span.chars().all(is_path_character))
        .collect()
}

/// The targets of the links of a line within the repository, without their fragments.
fn linked_files(line: &str) -> Vec<&str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://")).collect()
}

#[test]
fn paths_in_pages_exist() {
    let mut missing = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = read_to_string(root().join(&page)).expect("UTF-8 text");
        let folder = root().join(&page).parent().expect("a folder").to_path_buf();
        for line in prose(&text) {
            let quoted = quoted_paths(line).into_iter().map(|path| (path, root().join(path)));
            let linked = linked_files(line).into_iter().map(|path| (path, folder.join(path)));
            for (path, file) in quoted.chain(linked) {
                count += 1;
                if !file.exists() {
                    missing.push(format!("{}: {path}", page.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "paths that do not exist: {missing:#?}");
    assert!(count > 100, "expected the paths of the pages, found {count}");
}
