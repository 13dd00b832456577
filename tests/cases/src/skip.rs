//! Tests that this machine cannot run. They are printed and counted, and fail in CI if CI must run them.
//!
//! `.ci/run` sets `SYMMC_SKIPPED_TESTS` to a file, which collects a line for each skipped test and is printed at the end.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write as _;

/// The variable that names the file of skipped tests. It is set in CI only.
const LIST: &str = "SYMMC_SKIPPED_TESTS";

/// Skips the calling test: its machine lacks something that machines of CI may lack too.
pub fn skip_test(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("a test"));
    // Past the capture of tests that pass.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(list) = std::env::var_os(LIST) {
        append(&list, &line);
    }
}

/// Skips the calling test: its machine lacks a program that each machine of CI has.
///
/// # Panics
/// This is CI.
pub fn skip_test_outside_ci(missing: &str) {
    fail_in_ci(std::env::var_os(LIST).as_deref(), missing);
    skip_test(&format!("no {missing}"));
}

fn fail_in_ci(list: Option<&OsStr>, missing: &str) {
    assert!(list.is_none(), "CI must run this test, which needs {missing}: install it");
}

fn append(list: &OsStr, line: &str) {
    let file = OpenOptions::new().create(true).append(true).open(list);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", list.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_are_listed() {
        let list = std::env::temp_dir().join(format!("symmc-skipped-{}", std::process::id()));
        append(list.as_os_str(), "skipped: one: no library\n");
        append(list.as_os_str(), "skipped: two: no driver\n");
        let text = std::fs::read_to_string(&list).expect("the list");
        std::fs::remove_file(&list).expect("the list");
        assert_eq!(text, "skipped: one: no library\nskipped: two: no driver\n");
    }

    #[test]
    #[should_panic(expected = "CI must run this test, which needs g++")]
    fn tests_that_ci_must_run_fail_there() {
        fail_in_ci(Some(OsStr::new("list")), "g++");
    }

    #[test]
    fn tests_that_ci_must_run_are_skipped_elsewhere() {
        fail_in_ci(None, "g++");
    }
}
