//! Recipes of `CONTRIBUTING.md` for a new variant of an enum name the files that do not compile without it.
//!
//! A file with an exhaustive match names every variant. The table of the text form has rows, from which a macro makes
//! matches. Tests are left out.

use std::collections::BTreeSet;

use super::circles::{code, words};
use super::pages::quoted_paths;
use super::{root, sources};

/// The heading of a recipe, the enum, the line before its variants, and the file that defines it.
const RECIPES: [(&str, &str, &str, &str); 4] = [
    ("A structured op", "Op", "pub enum Op {", "ir/src/op.rs"),
    ("A kind of collective", "CollectiveKind", "pub enum CollectiveKind {", "ir/src/collective.rs"),
    ("A dtype", "DType", "    DType {", "ir/src/types.rs"),
    ("A backend", "Backend", "    Backend {", "ir/src/machine/backend.rs"),
];

const TEXT_FORM: &str = "ir/src/text/forms.rs";

/// The variants of the enum that begins with `head`: the names at the beginning of a line or after a comma.
fn variants<'t>(text: &'t str, head: &str) -> Vec<&'t str> {
    // Enums within a macro have their variants on any lines, and none of these has fields.
    let end = if head.starts_with(' ') { "}" } else { "\n}" };
    let body = text.split(&format!("\n{head}")).nth(1).expect("the enum");
    let body = body.split(end).next().unwrap_or_default();
    let lines = body.lines().filter(|line| !line.trim_start().starts_with("//"));
    let names = lines.flat_map(|line| line.split(',')).filter_map(|item| words(item.trim_start()).next());
    names.filter(|name| name.starts_with(char::is_uppercase)).collect()
}

fn names_variant(code: &str, path: &str) -> bool {
    code.split(path).skip(1).any(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

#[test]
fn recipes_name_the_files_that_need_an_answer() {
    let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("UTF-8 text");
    let sources: Vec<(String, String)> = sources()
        .into_iter()
        .filter(|(file, _)| !file.starts_with("tests/") && !file.contains("/tests/"))
        .map(|(file, text)| (file, code(&text)))
        .collect();
    for (heading, name, head, definition) in RECIPES {
        let text = std::fs::read_to_string(root().join(definition)).expect("UTF-8 text");
        let paths: Vec<String> = variants(&text, head).iter().map(|v| format!("{name}::{v}")).collect();
        assert!(paths.len() > 1, "{definition}: no variants of {name}");
        let complete: BTreeSet<&str> = sources
            .iter()
            .filter(|(_, code)| paths.iter().all(|path| names_variant(code, path)))
            .map(|(file, _)| file.as_str())
            .collect();

        let section = page.split(&format!("### {heading}\n")).nth(1).expect("the recipe");
        let section = section.split("\n### ").next().unwrap_or_default();
        let listed: BTreeSet<&str> = section.lines().flat_map(quoted_paths).collect();
        let build_rows = section.lines().filter(|line| line.ends_with("| build |"));
        let needed: BTreeSet<&str> =
            build_rows.flat_map(|row| quoted_paths(row.split(" | ").next().unwrap_or_default())).collect();
        assert!(!needed.is_empty(), "{heading}: no rows with `build`");
        let unlisted: Vec<&&str> = complete.difference(&listed).collect();
        assert!(unlisted.is_empty(), "the recipe `{heading}` lacks files with all variants: {unlisted:?}");
        let idle: Vec<&&str> =
            needed.difference(&complete).filter(|file| ![TEXT_FORM, definition].contains(*file)).collect();
        assert!(
            idle.is_empty(),
            "the recipe `{heading}` marks files that do not name all variants: {idle:?}"
        );
    }
}
