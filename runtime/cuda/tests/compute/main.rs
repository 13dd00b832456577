//! Compute steps without a GPU: lowering of every op ([`check`]), kernels on the host ([`emulate`]), fusion.
//! If NVRTC is present, some of the code is compiled.

// The example `check_compute` uses the other items of the module.
mod batch;
#[allow(dead_code)]
mod check;
mod emulate;
mod interleaved;
mod library;
mod norms;
mod products;
mod rotary;
mod route;
mod rows;
mod scatter;

use symmc_cases::corpus;
use symmc_cuda::CudaError;
use symmc_cuda::codegen::command::GpuCommand;
use symmc_cuda::codegen::compile::compile;
use symmc_cuda::codegen::compute::loops::lower;
use symmc_cuda::codegen::compute::{
    AlgorithmSelection, BoundOperation, InputUse, KernelLowering, KernelTarget,
};
use symmc_cuda::device::launch::DevicePtr;
use symmc_ir::{BinaryOp, DType, Op, Scalar, UnaryOp};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use crate::check::{lowered, workspace_bytes};

fn machine(workspace_bytes: usize, shared: usize) -> KernelTarget {
    KernelTarget {
        multiprocessors: 132,
        bandwidth: 4917,
        status: 0x1000,
        workspace: 0x10_0000,
        workspace_bytes,
        shared,
        wgmma: true,
        inputs: InputUse::Read,
        attention: AlgorithmSelection::Heuristic,
    }
}

#[test]
fn every_case_is_lowered_and_compiles() {
    let cases = corpus();
    let room = workspace_bytes(&cases, &machine(0, 0));
    let machine = machine(room, 225 << 10);
    let lowered_cases = lowered(&cases, &machine);
    for (case, works) in cases.iter().zip(&lowered_cases.works) {
        let works = works.as_ref().unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for work in works {
            let GpuCommand::Kernel(kernel) = work else { continue };
            assert!(
                lowered_cases.source.names().any(|n| n == kernel.entry),
                "{}: no {}",
                case.name,
                kernel.entry
            );
            let threads: u32 = kernel.block.iter().product();
            assert!((1..=1024).contains(&threads), "{}: {threads} threads", case.name);
            assert!(kernel.grid.iter().all(|&n| n > 0), "{}: {:?} blocks", case.name, kernel.grid);
        }
    }
    // A sample, because compiling all cases takes minutes.
    let sample: Vec<_> = cases.into_iter().step_by(12).collect();
    for (target, shared, wgmma) in [([9, 0], 225 << 10, true), ([8, 0], 160 << 10, false)] {
        match compile(&lowered(&sample, &KernelTarget { shared, wgmma, ..machine }).source, target) {
            Ok(code) => assert!(!code.is_empty()),
            Err(CudaError::Missing { library, .. }) => symmc_cases::skip_test(&format!("no {library}")),
            Err(error) => panic!("{error}"),
        }
    }
}

fn located_at(space: MemorySpace, offset: usize) -> LocatedTensor {
    LocatedTensor {
        space,
        offset,
        by_rank: 0,
        dtype: DType::F32,
        shape: [8, 32].into(),
        strides: [32, 1].into(),
    }
}

#[test]
fn chain_is_one_kernel_storing_only_placed_values() {
    // The chain is `x + 1` to the second place, `relu` of that to the third, times `x` to an output.
    let (x, out) = (located_at(MemorySpace::Input(0), 0), located_at(MemorySpace::Output(0), 0));
    let add = Op::BinaryScalar { op: BinaryOp::Add, scalar: Scalar::Int(1), scalar_left: false };
    let (relu, mul) = (Op::Unary(UnaryOp::Relu), Op::Binary(BinaryOp::Mul));
    let address = |v: &LocatedTensor| {
        DevicePtr::from((v.offset + 0x10_0000 * (1 + usize::from(v.space == MemorySpace::Ordinary))) as u64)
    };
    let kernel = |addresses: [MemorySpace; 2]| {
        let [a, b] =
            [(addresses[0], 0), (addresses[1], 4096)].map(|(space, offset)| [located_at(space, offset)]);
        let (first, last) = ([x.clone()], [b[0].clone(), x.clone()]);
        let out = [out.clone()];
        let steps = [
            BoundOperation { index: 0, op: &add, operands: &first, results: &a },
            BoundOperation { index: 0, op: &relu, operands: &a, results: &b },
            BoundOperation { index: 0, op: &mul, operands: &last, results: &out },
        ];
        let works = lower(&steps, &mut KernelLowering::new(&address, &machine(0, 0)));
        match &works.expect("it fits").expect("one shape")[..] {
            [GpuCommand::Kernel(kernel)] => kernel.params.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(kernel([MemorySpace::Inner; 2]).len(), 2);
    assert_eq!(kernel([MemorySpace::Inner, MemorySpace::Ordinary]).len(), 3);
    assert_eq!(kernel([MemorySpace::Ordinary; 2]).len(), 4);
}
