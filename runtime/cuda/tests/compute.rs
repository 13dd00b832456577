//! Lowering of every op: what does not need a GPU. Where NVRTC is present, some of the code is compiled.

use symmc_cuda::CudaError;
use symmc_cuda::compile::compile;
use symmc_cuda::compute::check::{corpus, lowered, workspace_bytes};
use symmc_cuda::compute::{GEMM_WORKSPACE, Machine};
use symmc_cuda::launch::Work;

fn machine(workspace_bytes: usize) -> Machine {
    Machine { multiprocessors: 132, status: 0x1000, workspace: 0x10_0000, workspace_bytes }
}

#[test]
fn every_case_is_lowered_and_compiles() {
    let cases = corpus();
    let machine = machine(workspace_bytes(&cases, 132).max(GEMM_WORKSPACE));
    let all = lowered(&cases, &machine, 1 << 32);
    for (case, works) in cases.iter().zip(&all.works) {
        let works = works.as_ref().unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for work in works {
            let Work::Kernel(kernel) = work else { continue };
            assert!(all.source.names().any(|n| n == kernel.entry), "{}: no {}", case.name, kernel.entry);
            let threads: u32 = kernel.block.iter().product();
            assert!((1..=1024).contains(&threads), "{}: {threads} threads", case.name);
            assert!(kernel.grid.iter().all(|&n| n > 0), "{}: {:?} blocks", case.name, kernel.grid);
        }
    }
    // A sample: all of them take minutes.
    let sample: Vec<_> = cases.into_iter().step_by(12).collect();
    for target in [[9, 0], [8, 0]] {
        match compile(&lowered(&sample, &machine, 1 << 32).source, target) {
            Ok(code) => assert!(!code.is_empty()),
            Err(CudaError::Missing { library, .. }) => println!("skipped: no {library}"),
            Err(error) => panic!("{error}"),
        }
    }
}
