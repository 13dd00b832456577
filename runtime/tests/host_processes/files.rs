//! Inputs that lie in files: they are read by position, and a file that is shortened under a run is an error
//! that names it, never a signal.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use symmc_control::Membership;
use symmc_ir::Tensor;
use symmc_runtime::RunError;
use symmc_runtime::job::{RankJob, run_rank};
use symmc_support::{BackingSlice, MappedFile};

use crate::programs::{OwnedJob, RankTask, command, launch, open};
use crate::{Test, custom};

pub const TESTS: &[Test] = &[
    ("inputs_are_read_from_files", inputs_are_read_from_files),
    ("a_file_that_is_shortened_under_a_run_is_named", a_file_that_is_shortened_under_a_run_is_named),
];

/// Shortens the file of the inputs, as rank 0. Other ranks wait until this is done.
pub fn shorten(path: &Path, length: u64, rank: u32) {
    let size = || std::fs::metadata(path).expect("the file is there").len();
    match rank {
        0 => {
            OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(length)).expect("shorter")
        }
        _ => {
            while size() != length {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}

/// The mixed program, whose inputs lie in a file, except for the states; and the size of the file.
fn with_file(path: &Path) -> (OwnedJob, usize) {
    let mut owned = OwnedJob::mixed(16);
    owned.repeats = 3;
    let mut file = std::fs::File::create(path).expect("a file");
    let (mut end, mut parts) = (0, Vec::new());
    for (rank, inputs) in owned.inputs.iter().enumerate() {
        for (i, tensor) in inputs.iter().enumerate().filter(|(i, _)| *i != 1) {
            file.write_all(tensor.data()).expect("written");
            parts.push((rank, i, end..end + tensor.data().len()));
            end += tensor.data().len();
        }
    }
    let backing = Arc::new(MappedFile::open(path).expect("it opens"));
    for (rank, i, range) in parts {
        let input = &mut owned.inputs[rank][i];
        let slice = BackingSlice::new(backing.clone(), range).expect("it is as long");
        *input = Arc::new(Tensor::from_backing(input.dtype(), input.shape(), slice).expect("it fits"));
    }
    (owned, end)
}

/// The outputs of ranks that this launcher starts, and of ranks of another launcher.
fn all_ways(owned: &OwnedJob, name: &str) -> [Result<Vec<Vec<Tensor>>, RunError>; 2] {
    [launch(&owned.job(), &command()), run_joined(owned, name, &|_| ())]
}

fn run_joined(
    owned: &OwnedJob,
    name: &str,
    before: &(dyn Fn(u32) + Sync),
) -> Result<Vec<Vec<Tensor>>, RunError> {
    let run = format!("files, process {}, {name}", std::process::id());
    let rank = |rank: u32| {
        let membership = Membership { rank, ranks: 4, run: run.clone() };
        let job = RankJob {
            plan: &owned.plan,
            bindings: owned.bindings.clone(),
            inputs: &owned.inputs[rank as usize],
            repeats: owned.repeats,
            trace: None,
            settings: &[],
            config: owned.config.clone(),
        };
        before(rank);
        run_rank(&membership, &job, &open(&custom::kernels())).map(|(outputs, _)| outputs)
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..4).map(|r| scope.spawn(move || rank(r))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("it does not panic")).collect()
    })
}

fn inputs_are_read_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let (owned, _) = with_file(&folder.path().join("inputs"));
    for outputs in all_ways(&owned, "whole") {
        assert_eq!(outputs.expect("it runs"), owned.expected());
    }
}

fn a_file_that_is_shortened_under_a_run_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("inputs");
    let size = with_file(&path).1;
    for cut in [0, 1, 4096, size / 2, size - 1] {
        for way in 0..2 {
            let (owned, length) = (with_file(&path).0, cut as u64);
            let result = match way {
                0 => {
                    let task = |job| RankTask::RunOnShortened { path: path.clone(), length, job };
                    symmc_runtime::job::launch_job(&owned.job(), &command(), task).map(|ran| ran.outputs)
                }
                _ => run_joined(&owned, &format!("cut to {cut}"), &|rank| shorten(&path, length, rank)),
            };
            let error = result.expect_err("the file changed");
            assert!(matches!(error.cause(), RunError::Invalid(_)), "way {way}, cut to {cut}: {error:?}");
            let text = error.to_string();
            let is_named = text.contains("changed while it was in use") && text.contains("inputs");
            assert!(is_named, "way {way}, cut to {cut}: {text}");
        }
    }
}
