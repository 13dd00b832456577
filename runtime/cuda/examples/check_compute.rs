//! Runs all cases of the compute steps on GPU 0, including those at the edges of dtypes (`special`), and
//! prints the failed ones.
//!
//! ```text
//! check_compute [words]    only cases whose names contain all words
//! ```

use std::process::ExitCode;
use std::time::Instant;

// The tests use the other items of the module.
#[allow(dead_code)]
#[path = "../tests/compute/check.rs"]
mod check;

use symmc_cuda::CudaError;
use symmc_cuda::device::driver::Device;

fn run(words: &[String]) -> Result<usize, CudaError> {
    let device = Device::open(0)?;
    let mut cases = symmc_cases::corpus();
    cases.extend(symmc_cases::special());
    cases.retain(|c| words.iter().all(|w| c.name.contains(w.as_str())));
    let started = Instant::now();
    let (failures, by_library) = check::run(&device, &cases)?;
    failures.iter().for_each(|f| println!("{f}"));
    let n = cases.len();
    let failed = failures.len();
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{}: {n} cases, {failed} failed, {by_library} attentions by cuDNN, {seconds:.1} s",
        device.name()
    );
    Ok(failed)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
