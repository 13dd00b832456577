//! Programs that index dynamic axes run as the interpreter says, or are refused where it finds a position outside of its
//! axis ([`symmc_tests::bounds`]).

use symmc_tests::bounds::trials;

/// The programs of every test run; `check_bounds` tries as many as wanted.
const SEEDS: u64 = 120;

#[test]
fn programs_run_or_are_refused_as_the_interpreter_says() {
    let mut failed = Vec::new();
    let done = trials(0..SEEDS, |error| failed.push(error));
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(done.ran > 100 && done.refused > 100, "they test little: {done:?}");
}
