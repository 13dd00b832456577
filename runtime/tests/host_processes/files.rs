//! Inputs that lie in files: they are read by position on every engine, and a file that is shortened under a run is an error
//! that names it, never a signal.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use symmc_ir::Tensor;
use symmc_runtime::RunError;
use symmc_runtime::exec::RankMemory;
use symmc_runtime::host::{Engine, EngineChoice, Engines, Membership, RankJob, RankRun, launch, run_rank};
use symmc_support::{Mapped, Part};

use crate::programs::{Owned, command};
use crate::{Test, custom};

pub const TESTS: &[Test] = &[
    ("engines_read_inputs_from_files", engines_read_inputs_from_files),
    ("a_file_that_is_shortened_under_a_run_is_named", a_file_that_is_shortened_under_a_run_is_named),
];

/// Copies the first input to the first output in small pieces, as an engine that uploads to a device. Before that, rank 0
/// shortens the file of the inputs, if the options give a length and the path.
pub struct Uploads;

impl Engine for Uploads {
    fn name(&self) -> &'static str {
        "uploads"
    }

    unsafe fn run(
        &self,
        options: &str,
        run: &RankRun<'_>,
        memory: &RankMemory,
        ready: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        ready()?;
        if let Some((length, path)) = options.split_once(' ').filter(|_| run.comm.rank() == 0) {
            let file = OpenOptions::new().write(true).open(path).expect("the file is there");
            file.set_len(length.parse().expect("a number")).expect("it is shortened");
        }
        run.exchange(&[0])?;
        // SAFETY: the caller's promise.
        let input = unsafe { memory.input(0) }.expect("it has data");
        // SAFETY: the caller's promise; the program returns a value of the size of its first argument.
        let output = unsafe { std::slice::from_raw_parts_mut(memory.outputs[0].ptr, input.size()) };
        for (piece, at) in output.chunks_mut(100).zip((0..).step_by(100)) {
            input.read(at, piece)?;
        }
        Ok(())
    }
}

/// The mixed program, whose inputs lie in a file, except for the states; and the size of the file.
fn with_file(path: &Path, options: String) -> (Owned, usize) {
    let mut owned = Owned::mixed(16);
    owned.config.engine = EngineChoice::Named { name: "uploads".into(), options };
    let mut file = std::fs::File::create(path).expect("a file");
    let (mut end, mut parts) = (0, Vec::new());
    for (rank, inputs) in owned.inputs.iter().enumerate() {
        for (i, tensor) in inputs.iter().enumerate().filter(|(i, _)| *i != 1) {
            file.write_all(tensor.data()).expect("written");
            parts.push((rank, i, end..end + tensor.data().len()));
            end += tensor.data().len();
        }
    }
    let backing = Arc::new(Mapped::open(path).expect("it opens"));
    for (rank, i, range) in parts {
        let input = &mut owned.inputs[rank][i];
        let part = Part::new(backing.clone(), range).expect("it is as long");
        *input = Arc::new(Tensor::shared(input.dtype(), input.shape(), part).expect("it fits"));
    }
    (owned, end)
}

/// The outputs of ranks that a launcher starts, and of ranks that join by themselves.
fn all_ways(owned: &Owned, name: &str) -> [Result<Vec<Vec<Tensor>>, RunError>; 2] {
    [launch(&owned.job(), &command()), joined(owned, name)]
}

fn joined(owned: &Owned, name: &str) -> Result<Vec<Vec<Tensor>>, RunError> {
    let run = format!("files, process {}, {name}", std::process::id());
    let rank = |rank: u32| {
        let place = Membership { rank, ranks: 4, run: run.clone() };
        let job = RankJob {
            plan: &owned.plan,
            bindings: owned.bindings.clone(),
            inputs: &owned.inputs[rank as usize],
            repeats: 1,
            settings: &[],
            config: owned.config.clone(),
        };
        let kernels = custom::kernels();
        run_rank(&place, &job, &Engines { kernels: &kernels, others: &[&Uploads] })
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..4).map(|r| scope.spawn(move || rank(r))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("it does not panic")).collect()
    })
}

fn engines_read_inputs_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("inputs");
    let (owned, _) = with_file(&path, String::new());
    for outputs in all_ways(&owned, "whole") {
        for (outputs, inputs) in outputs.expect("it runs").iter().zip(&owned.inputs) {
            assert_eq!(outputs[0].data(), inputs[0].loaded().expect("it is there").data());
        }
    }
}

fn a_file_that_is_shortened_under_a_run_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("inputs");
    let size = with_file(&path, String::new()).1;
    for cut in [0, 1, 4096, size / 2, size - 1] {
        for way in 0..2 {
            let (owned, _) = with_file(&path, format!("{cut} {}", path.display()));
            let result = match way {
                0 => launch(&owned.job(), &command()),
                _ => joined(&owned, &format!("cut to {cut}")),
            };
            let error = result.expect_err("the file changed");
            assert!(matches!(error.cause(), RunError::Invalid(_)), "way {way}, cut to {cut}: {error:?}");
            let text = error.to_string();
            let is_named = text.contains("changed while it was in use") && text.contains("inputs");
            assert!(is_named, "way {way}, cut to {cut}: {text}");
        }
    }
}
