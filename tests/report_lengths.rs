//! Prints the source files and functions that are longer than most. The report has no limits: `.ci/run` prints it.

use symmc_tests::lengths::function_lengths;
use symmc_tests::root;

/// Files of at least as many lines are reported.
const LONG_FILE: usize = 800;

/// Functions of at least as many lines are reported.
const LONG_FUNCTION: usize = 80;

fn main() -> anyhow::Result<()> {
    let mut files = Vec::new();
    let mut functions = Vec::new();
    for folder in ["ir", "passes", "planner", "runtime", "frontends"] {
        let mut folders = vec![root().join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() && !path.ends_with("target") {
                    folders.push(path);
                    continue;
                }
                if path.extension().is_none_or(|extension| extension != "rs") {
                    continue;
                }
                let text = std::fs::read_to_string(&path)?;
                let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
                for (function, lines) in function_lengths(&text) {
                    functions.push((lines, format!("{name}: {function}")));
                }
                files.push((text.lines().count(), name));
            }
        }
    }
    print_longest("files", LONG_FILE, files);
    print_longest("functions", LONG_FUNCTION, functions);
    Ok(())
}

fn print_longest(what: &str, at_least: usize, mut items: Vec<(usize, String)>) {
    items.retain(|(lines, _)| *lines >= at_least);
    items.sort_unstable_by(|a, b| b.cmp(a));
    println!("{} {what} of at least {at_least} lines", items.len());
    for (lines, name) in items {
        println!("{lines:6}  {name}");
    }
}
