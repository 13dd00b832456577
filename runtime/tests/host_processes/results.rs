//! Runs that end well give the interpreter's numbers.

use symmc_runtime::Registry;
use symmc_runtime::RunError;
use symmc_runtime::host::{HostConfig, LaneThreads, launch, run_threads};

use crate::Test;
use crate::programs::{Owned, command};

pub const TESTS: &[Test] = &[
    ("processes_give_the_numbers", processes_give_the_numbers),
    ("threads_give_the_numbers", threads_give_the_numbers),
    ("chaos_changes_no_number", chaos_changes_no_number),
    ("a_state_lives_through_repeats", a_state_lives_through_repeats),
    ("inputs_that_do_not_fit_are_named", inputs_that_do_not_fit_are_named),
];

fn processes_give_the_numbers() {
    for n in [1, 5, 64] {
        let owned = Owned::mixed(n);
        assert_eq!(launch(&owned.job(), &command()).unwrap(), owned.expected());
    }
}

fn threads_give_the_numbers() {
    for n in [1, 64] {
        let mut owned = Owned::mixed(n);
        assert_eq!(run_threads(&owned.job(), &Registry::new()).unwrap(), owned.expected());
        owned.config.threads = LaneThreads::Each;
        assert_eq!(run_threads(&owned.job(), &Registry::new()).unwrap(), owned.expected());
    }
}

fn chaos_changes_no_number() {
    let mut owned = Owned::mixed(3);
    owned.repeats = 4;
    let expected = owned.expected();
    for seed in 0..12 {
        owned.config = HostConfig { chaos: Some(seed), ..owned.config };
        assert_eq!(run_threads(&owned.job(), &Registry::new()).unwrap(), expected, "threads, seed {seed}");
        if seed < 4 {
            assert_eq!(launch(&owned.job(), &command()).unwrap(), expected, "processes, seed {seed}");
        }
    }
}

fn a_state_lives_through_repeats() {
    let mut owned = Owned::mixed(2);
    owned.repeats = 7;
    // Counters wrap on the way.
    owned.config.first = u32::MAX - 9;
    assert_eq!(run_threads(&owned.job(), &Registry::new()).unwrap(), owned.expected());
    assert_eq!(launch(&owned.job(), &command()).unwrap(), owned.expected());
}

fn inputs_that_do_not_fit_are_named() {
    let refused = |owned: &Owned| {
        let (threads, processes) =
            (run_threads(&owned.job(), &Registry::new()), launch(&owned.job(), &command()));
        assert_eq!(threads, processes);
        match threads {
            Err(RunError::Invalid(text)) => text,
            other => panic!("expected a refusal, found {other:?}"),
        }
    };
    let mut owned = Owned::mixed(3);
    owned.inputs[3][0] = owned.inputs[3][2].clone();
    assert_eq!(refused(&owned), "input %x on rank 3: expected f32[12, 8], found f32[8, 8]");
    let mut owned = Owned::mixed(3);
    owned.inputs[1].pop();
    assert_eq!(refused(&owned), "rank 1: expected 3 inputs, found 2");
    let mut owned = Owned::mixed(3);
    owned.inputs.pop();
    assert_eq!(refused(&owned), "the plan is for 4 ranks, found inputs for 3");
    let mut owned = Owned::mixed(3);
    owned.bindings = Default::default();
    assert!(refused(&owned).contains("has no size"));
}
