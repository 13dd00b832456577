//! Cases of every op on a device: their layout in its memory, their lowering, and a run of all of them.
//!
//! Cases are compiled in parts, concurrently.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use symmc_cases::{OpCase, PlacedTensor};
use symmc_cuda::codegen::command::GpuCommand;
use symmc_cuda::codegen::compile::{KernelSource, compile};
use symmc_cuda::codegen::compute::gemm::GemmPlanner;
use symmc_cuda::codegen::compute::{
    AlgorithmSelection, BoundOperation, DeviceAssertions, GEMM_WORKSPACE, InputUse, KernelLowering,
    KernelTarget, STATUS_BYTES, lower, workspace,
};
use symmc_cuda::device::driver::{Device, DeviceBuffer, Module, PinnedBuffer, Stream};
use symmc_cuda::device::launch::{Address, DevicePtr, KernelLaunch, LaunchOrder, PortBases};
use symmc_cuda::{CudaError, cudnn};
use symmc_ir::Tensor;
use symmc_runtime::exec::{LocatedTensor, MemorySpace};
use symmc_runtime::kernels::KernelError;

/// The value of the bytes around operands and results.
const CANARY_BYTE: u8 = 0xa5;

/// The size of a tensor's memory in bytes.
fn bytes(x: &PlacedTensor) -> usize {
    x.layout.extent(x.tensor.shape()) * x.tensor.dtype().size()
}

/// The byte offsets of all elements in row-major order.
fn places(x: &PlacedTensor) -> impl Iterator<Item = usize> {
    let size = x.tensor.dtype().size();
    x.layout.places(x.tensor.shape()).into_iter().map(move |at| at * size)
}

fn located(x: &PlacedTensor, start: usize) -> LocatedTensor {
    LocatedTensor {
        space: MemorySpace::Ordinary,
        offset: start + x.layout.offset * x.tensor.dtype().size(),
        by_rank: 0,
        dtype: x.tensor.dtype(),
        shape: x.tensor.shape().into(),
        strides: x.layout.strides.clone().into(),
    }
}

/// The memory of a tensor, with the canary in its gaps.
fn image(x: &PlacedTensor) -> Vec<u8> {
    let mut out = vec![CANARY_BYTE; bytes(x)];
    let size = x.tensor.dtype().size();
    for (i, at) in places(x).enumerate() {
        out[at..at + size].copy_from_slice(&x.tensor.data()[i * size..][..size]);
    }
    out
}

/// Reads the tensor with this layout from `memory`, if nothing else was written there.
fn read_as(x: &PlacedTensor, memory: &[u8]) -> Result<Tensor, String> {
    let size = x.tensor.dtype().size();
    let mut data = Vec::with_capacity(x.tensor.data().len());
    let mut own = vec![false; memory.len()];
    for at in places(x) {
        data.extend_from_slice(&memory[at..at + size]);
        own[at..at + size].fill(true);
    }
    if let Some(at) = memory.iter().zip(own).position(|(&b, own)| !own && b != CANARY_BYTE) {
        return Err(format!("it wrote at byte {at}, beside its result"));
    }
    Tensor::new(x.tensor.dtype(), x.tensor.shape(), data).ok_or_else(|| "no tensor".into())
}

/// A case that failed.
#[derive(Clone, Debug)]
pub struct CaseFailure {
    /// The name of the case.
    pub case: String,
    pub what: String,
}

impl fmt::Display for CaseFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.what)
    }
}

/// A case with the layout of its values in memory.
pub struct PlacedCase<'a> {
    case: &'a OpCase,
    operands: Vec<LocatedTensor>,
    results: Vec<LocatedTensor>,
    /// The expected results, or places for the results of a case that must fail.
    rooms: Vec<PlacedTensor>,
    /// The first byte of each result.
    starts: Vec<usize>,
    /// The initial contents of the memory: first bytes and data.
    image: Vec<(usize, Vec<u8>)>,
}

impl PlacedCase<'_> {
    /// The contents of the memory before the case runs: first bytes and data.
    pub fn image(&self) -> &[(usize, Vec<u8>)] {
        &self.image
    }

    /// Compares the results of the case with the expected ones. `read` returns bytes from an offset on.
    ///
    /// # Errors
    /// A sentence that describes the difference.
    pub fn verify(
        &self,
        failure: Option<KernelError>,
        mut read: impl FnMut(usize, usize) -> Result<Vec<u8>, String>,
    ) -> Result<(), String> {
        match (&self.case.expected, failure) {
            (Err(expected), Some(found)) if *expected == found => return Ok(()),
            (Err(expected), found) => return Err(format!("expected {expected:?}, found {found:?}")),
            (Ok(_), Some(found)) => return Err(found.to_string()),
            (Ok(_), None) => {}
        }
        for (&start, expected) in self.starts.iter().zip(&self.rooms) {
            let actual = read_as(expected, &read(start, bytes(expected) + GUARD_BYTES)?)?;
            self.case.agrees(&actual, &expected.tensor)?;
        }
        Ok(())
    }
}

/// The number of bytes after each operand and result that nothing may write.
const GUARD_BYTES: usize = 64;

/// Lays out cases one after another; returns the total size in bytes.
pub fn lay(cases: &[OpCase]) -> (Vec<PlacedCase<'_>>, usize) {
    let mut end = 0;
    let mut allocate = |bytes: usize| {
        let start = end;
        end = (end + bytes + GUARD_BYTES).next_multiple_of(256);
        start
    };
    let mut out = Vec::with_capacity(cases.len());
    for case in cases {
        let (mut operands, mut results, mut starts, mut images) = (vec![], vec![], vec![], vec![]);
        let rooms = case.rooms();
        for x in &case.operands {
            let start = allocate(bytes(x));
            operands.push(located(x, start));
            images.push((start, image(x)));
        }
        for r in &rooms {
            let start = allocate(bytes(r));
            results.push(located(r, start));
            starts.push(start);
            images.push((start, vec![CANARY_BYTE; bytes(r) + GUARD_BYTES]));
        }
        out.push(PlacedCase { case, operands, results, rooms, starts, image: images });
    }
    (out, end)
}

/// All cases lowered.
pub struct LoweredCases {
    /// The functions of all cases.
    pub source: KernelSource,
    /// The places where data can be out of range; the step is the index of the case.
    pub assertions: DeviceAssertions,
    /// The commands of each case, or the reason why there are none.
    pub works: Vec<Result<Vec<GpuCommand>, CudaError>>,
}

/// Lowers cases in the memory of one port.
pub fn lowered(cases: &[OpCase], machine: &KernelTarget) -> LoweredCases {
    lower_all(&lay(cases).0, machine)
}

fn lower_all(laid: &[PlacedCase<'_>], machine: &KernelTarget) -> LoweredCases {
    let port = DevicePtr::port(0).expect("a port");
    let address_of = |v: &LocatedTensor| port + v.offset as u64;
    let mut l = KernelLowering::new(&address_of, machine);
    let mut works = Vec::with_capacity(laid.len());
    for (index, c) in laid.iter().enumerate() {
        let step = BoundOperation { index, op: &c.case.op, operands: &c.operands, results: &c.results };
        works.push(lower(&step, &mut l));
    }
    LoweredCases { source: l.source, assertions: l.assertions, works }
}

/// The workspace that is sufficient for all cases.
pub fn workspace_bytes(cases: &[OpCase], machine: &KernelTarget) -> usize {
    let (laid, _) = lay(cases);
    let needed = laid.iter().map(|c| workspace(&c.case.op, &c.operands, &c.results, machine));
    needed.max().unwrap_or(0).max(GEMM_WORKSPACE)
}

/// Runs cases on a device. Returns the failed ones, and the number of attentions that the library computed.
///
/// # Errors
/// The device cannot be used, or the code of the cases does not compile.
pub fn run(device: &Arc<Device>, cases: &[OpCase]) -> Result<(Vec<CaseFailure>, usize), CudaError> {
    let (laid, bytes) = lay(cases);
    let stream = Stream::new(device)?;
    let memory = DeviceBuffer::new(device, "the cases", bytes)?;
    let status = PinnedBuffer::new(device, STATUS_BYTES)?;
    // cuDNN computes the attentions that it supports.
    let library = cudnn::AttentionPlanner::new(device).ok();
    let attention =
        if library.is_some() { AlgorithmSelection::Measured } else { AlgorithmSelection::Heuristic };
    let machine = KernelTarget { attention, ..KernelTarget::from_device(device) };
    let room = workspace_bytes(cases, &machine).next_multiple_of(256);
    let scratch = DeviceBuffer::new(device, "the workspace", room)?;
    let machine = KernelTarget {
        status: status.address(),
        workspace: scratch.address(),
        workspace_bytes: room,
        inputs: InputUse::Read,
        ..machine
    };
    let planner = GemmPlanner::new(device)?;
    let chunks: Vec<&[PlacedCase<'_>]> = laid.chunks(CASES_PER_MODULE).collect();
    let lowered: Vec<LoweredCases> = chunks.iter().map(|p| lower_all(p, &machine)).collect();
    let by_library = Cell::new(0);
    let mut out = Vec::new();
    for ((part, lowered), code) in chunks.iter().zip(&lowered).zip(compile_all(&lowered, device.capability()))
    {
        let runner = CaseRunner {
            stream: &stream,
            module: Module::load(device, &code?)?,
            planner: &planner,
            library: library.as_ref(),
            by_library: &by_library,
            memory: &memory,
            bases: [memory.address()],
            status: &status,
            workspace: scratch.address(),
        };
        for (c, works) in part.iter().zip(&lowered.works) {
            let outcome = match works {
                Ok(works) => runner.case(c, works, &lowered.assertions),
                Err(error) => Err(error.to_string()),
            };
            out.extend(outcome.err().map(|what| CaseFailure { case: c.case.name.clone(), what }));
        }
    }
    Ok((out, by_library.get()))
}

/// The number of cases per module.
const CASES_PER_MODULE: usize = 24;

/// Compiles the parts concurrently.
fn compile_all(parts: &[LoweredCases], capability: [u32; 2]) -> Vec<Result<Vec<u8>, CudaError>> {
    let next = AtomicUsize::new(0);
    let done: Vec<_> = parts.iter().map(|_| OnceLock::new()).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let own = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(part), Some(slot)) = (parts.get(own), done.get(own)) else { break };
                    let _ = slot.set(compile(&part.source, capability));
                }
            });
        }
    });
    let missing = || Err(CudaError::Unsupported("a part was not compiled".into()));
    done.into_iter().map(|d| d.into_inner().unwrap_or_else(missing)).collect()
}

struct CaseRunner<'a> {
    stream: &'a Stream,
    module: Module,
    planner: &'a GemmPlanner,
    library: Option<&'a cudnn::AttentionPlanner>,
    by_library: &'a Cell<usize>,
    memory: &'a DeviceBuffer,
    bases: [Address; 1],
    status: &'a PinnedBuffer,
    workspace: u64,
}

impl CaseRunner<'_> {
    fn case(
        &self,
        c: &PlacedCase<'_>,
        works: &[GpuCommand],
        assertions: &DeviceAssertions,
    ) -> Result<(), String> {
        let base = self.memory.address();
        let text = |e: CudaError| e.to_string();
        for (start, image) in &c.image {
            // SAFETY: the place was laid out for it; nothing else runs.
            unsafe { self.stream.upload(base + *start as u64, image) }.map_err(text)?;
        }
        // SAFETY: the status word is pinned memory, and nothing runs.
        unsafe { std::ptr::write_bytes(self.status.as_ptr(), 0, STATUS_BYTES) };
        for work in works {
            self.work(work).map_err(text)?;
        }
        self.stream.synchronize().map_err(text)?;
        // SAFETY: as above; the device has ended.
        let status = unsafe { std::ptr::read_volatile(self.status.as_ptr().cast::<[u64; 2]>()) };
        c.verify(assertions.failed_assertion(status).map(|f| f.1), |start, len| {
            let mut bytes = vec![0; len];
            // SAFETY: as above.
            unsafe { self.stream.download(&mut bytes, base + start as u64) }.map_err(text)?;
            Ok(bytes)
        })
    }

    fn kernel(&self, kernel: &KernelLaunch) -> Result<(), CudaError> {
        let function = self.module.function(&kernel.entry, kernel.shared)?;
        // SAFETY: the kernel was generated for these parameters; all its memory exists.
        unsafe { self.stream.launch(function, kernel, PortBases(&self.bases), LaunchOrder::After) }
    }

    fn work(&self, work: &GpuCommand) -> Result<(), CudaError> {
        match work {
            GpuCommand::Kernel(kernel) => self.kernel(kernel),
            GpuCommand::Gemm(gemm) => {
                let prepared = self.planner.prepare(gemm, GEMM_WORKSPACE)?;
                // SAFETY: as above; the workspace has that many bytes.
                unsafe { prepared.run(self.stream, self.workspace, PortBases(&self.bases)) }?;
                self.stream.synchronize()
            }
            GpuCommand::Attention(of) => {
                let prepare = |l: &cudnn::AttentionPlanner| {
                    l.prepare(&of.attention, self.workspace, of.library_workspace_bytes)
                };
                let Some(prepared) = self.library.map(prepare).transpose()?.flatten() else {
                    return of.kernels.iter().try_for_each(|kernel| self.kernel(kernel));
                };
                of.numbers.iter().try_for_each(|kernel| self.kernel(kernel))?;
                // SAFETY: as above; the workspace is large enough.
                unsafe { prepared.run(self.stream, PortBases(&self.bases)) }?;
                self.by_library.set(self.by_library.get() + 1);
                of.amend.iter().try_for_each(|kernel| self.kernel(kernel))?;
                self.stream.synchronize()
            }
            GpuCommand::Copy { to, from, bytes } => {
                let bases = PortBases(&self.bases);
                // SAFETY: as above.
                unsafe { self.stream.copy(to.resolve(bases), from.resolve(bases), *bytes) }
            }
            // SAFETY: as above.
            GpuCommand::Store { at, word } => unsafe {
                self.stream.store(at.resolve(PortBases(&self.bases)), *word)
            },
            // SAFETY: as above.
            GpuCommand::Zero { at, bytes } => unsafe {
                self.stream.fill(at.resolve(PortBases(&self.bases)), 0, *bytes)
            },
            GpuCommand::Nccl(_) => Err(CudaError::Unsupported("a compute step that communicates".into())),
        }
    }
}
