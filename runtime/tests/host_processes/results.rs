//! Successful runs give the interpreter's numbers.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use symmc_control::RankConfig;
use symmc_ir::Tensor;
use symmc_runtime::CustomKernelRegistry;
use symmc_runtime::RunError;
use symmc_support::{Backing, BackingSlice};

use crate::Test;
use crate::programs::{OwnedJob, command, launch, run_threads};

pub const TESTS: &[Test] = &[
    ("processes_give_the_numbers", processes_give_the_numbers),
    ("threads_give_the_numbers", threads_give_the_numbers),
    ("chaos_changes_no_number", chaos_changes_no_number),
    ("a_state_lives_through_repeats", a_state_lives_through_repeats),
    ("inputs_in_a_file_are_read_from_there", inputs_in_a_file_are_read_from_there),
    ("inputs_that_do_not_fit_are_named", inputs_that_do_not_fit_are_named),
];

fn processes_give_the_numbers() {
    for n in [1, 5, 64] {
        let owned = OwnedJob::mixed(n);
        assert_eq!(launch(&owned.job(), &command()).unwrap(), owned.expected());
    }
}

fn threads_give_the_numbers() {
    for n in [1, 64] {
        let owned = OwnedJob::mixed(n);
        assert_eq!(run_threads(&owned.job(), &CustomKernelRegistry::new()).unwrap(), owned.expected());
    }
}

fn chaos_changes_no_number() {
    let mut owned = OwnedJob::mixed(3);
    owned.repeats = 4;
    let expected = owned.expected();
    for seed in 0..12 {
        owned.config = RankConfig { chaos: Some(seed), ..owned.config };
        assert_eq!(
            run_threads(&owned.job(), &CustomKernelRegistry::new()).unwrap(),
            expected,
            "threads, seed {seed}"
        );
        if seed < 4 {
            assert_eq!(launch(&owned.job(), &command()).unwrap(), expected, "processes, seed {seed}");
        }
    }
}

fn a_state_lives_through_repeats() {
    let mut owned = OwnedJob::mixed(2);
    owned.repeats = 7;
    assert_eq!(run_threads(&owned.job(), &CustomKernelRegistry::new()).unwrap(), owned.expected());
    assert_eq!(launch(&owned.job(), &command()).unwrap(), owned.expected());
}

/// A file, and bytes of as many that this process has of it.
struct OfFile {
    file: File,
    bytes: Vec<u8>,
}

impl Backing for OfFile {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

fn inputs_in_a_file_are_read_from_there() {
    let mut owned = OwnedJob::mixed(3);
    owned.repeats = 3;
    let expected = owned.expected();
    let mut content = vec![0u8; 20];
    let mut append = |data: &[u8]| {
        let start = content.len();
        content.extend_from_slice(data);
        start..content.len()
    };
    let ranges: Vec<Vec<_>> =
        owned.inputs.iter().map(|inputs| inputs.iter().map(|t| append(t.data())).collect()).collect();
    let mut file = File::from(memfd_create(c"inputs", MFdFlags::empty()).unwrap());
    file.write_all(&content).unwrap();
    // The launcher reads only the states, which it copies because runs replace them.
    let mut bytes = vec![0; content.len()];
    ranges.iter().for_each(|r| bytes[r[1].clone()].copy_from_slice(&content[r[1].clone()]));
    let backing = Arc::new(OfFile { file, bytes });
    for (inputs, ranges) in owned.inputs.iter_mut().zip(ranges) {
        for (input, range) in inputs.iter_mut().zip(ranges) {
            let slice = BackingSlice::new(backing.clone(), range).unwrap();
            *input = Arc::new(Tensor::from_backing(input.dtype(), input.shape(), slice).unwrap());
        }
    }
    assert_eq!(launch(&owned.job(), &command()).unwrap(), expected);
    let mut contents = Vec::new();
    let mut file = backing.file.try_clone().unwrap();
    file.rewind().unwrap();
    std::io::Read::read_to_end(&mut file, &mut contents).unwrap();
    assert_eq!(contents, content, "nobody writes to the file");
}

fn inputs_that_do_not_fit_are_named() {
    let refused = |owned: &OwnedJob| {
        let (threads, processes) =
            (run_threads(&owned.job(), &CustomKernelRegistry::new()), launch(&owned.job(), &command()));
        assert_eq!(threads, processes);
        match threads {
            Err(RunError::Invalid(text)) => text,
            other => panic!("expected a refusal, found {other:?}"),
        }
    };
    let mut owned = OwnedJob::mixed(3);
    owned.inputs[3][0] = owned.inputs[3][2].clone();
    assert_eq!(refused(&owned), "input %x on rank 3: expected f32[12, 8], found f32[8, 8]");
    let mut owned = OwnedJob::mixed(3);
    owned.inputs[1].pop();
    assert_eq!(refused(&owned), "rank 1: expected 3 inputs, found 2");
    let mut owned = OwnedJob::mixed(3);
    owned.inputs.pop();
    assert_eq!(refused(&owned), "the plan is for 4 ranks, found inputs for 3");
    let mut owned = OwnedJob::mixed(3);
    owned.bindings = Default::default();
    assert!(refused(&owned).contains("has no size"));
}
