//! Runs the unmodified kernels, compiled for the host, and compares them with the interpreter. Skipped
//! without a C++ compiler.

use symmc_cases::{KernelLibrary, OpCase, corpus, special};
use symmc_cuda::codegen::command::GpuCommand;
use symmc_cuda::codegen::compute::{AlgorithmSelection, InputUse, KernelTarget};
use symmc_cuda::device::launch::{KernelLaunch, PortBases};
use symmc_ir::Op;

use crate::check::{lay, lowered, workspace_bytes};
use crate::library;

/// Generated code as a library of the host.
pub(crate) struct EmulatedLibrary(KernelLibrary);

impl EmulatedLibrary {
    /// [`KernelLibrary::build`].
    pub(crate) fn build<'a>(
        what: &str,
        text: &str,
        names: impl Iterator<Item = &'a str>,
    ) -> Option<EmulatedLibrary> {
        KernelLibrary::build(what, text, names).map(EmulatedLibrary)
    }

    /// Runs a kernel.
    ///
    /// # Safety
    /// The memory that its parameters name exists.
    pub(crate) unsafe fn run(&self, kernel: &KernelLaunch) {
        let params: Vec<*const u64> = kernel.params.iter().map(|p| p.as_ptr()).collect();
        // SAFETY: the kernel was generated for these parameters; the rest by the caller.
        unsafe { self.0.run(&kernel.entry, &params, [kernel.grid[0], kernel.block[0], kernel.cluster]) };
    }
}

/// Parts of the names of large cases that use special kernels or paths.
const WAYS: &[&str] = &[
    "failing",
    "attention bf16 [8, 2, 130,",
    "attention f16 [6, 3, 17,",
    "attention f16 [2, 1, 70,",
    "attention f16 [4, 2, 128,",
    "attention bf16 [8, 8, 128, 128, 64, 64] causal=true",
    "attention f32 [8, 1, 1, 700,",
    "attention bf16 [8, 1, 1, 700,",
    "attention f16 [32, 8, 1, 2000,",
    "attention bf16 [4, 4, 3, 300,",
    "attention f16 [20, 1, 1, 90,",
    "sink attention bf16 [8,",
    "sink attention f16 [4, 2,",
    "sink attention f32 [8, 1",
    "sink attention f32 [4, 4",
    "summed attention",
    "attention gradient bf16 [8,",
    "attention gradient f16 [2, 1",
    "attention gradient f32 [3,",
    "attention gradient f32 [4, 4",
    "matmul bf16 [3, 512]",
    "matmul f16 [8, 512]",
    "matmul bf16 [16, 512]",
    "matmul bf16 [8, 1032]",
    "matmul bf16 [30, 1416]",
    "matmul bf16 [40, 1032]",
    "matmul f16 [33, 328]",
    "matmul f16 [17, 136]",
    "matmul f16 [25, 264]",
    "matmul f16 [49, 4104]",
    "grouped matmul bf16 [7,",
    "grouped matmul bf16 [300,",
    "grouped matmul f16 [90,",
    "grouped matmul f16 [65,",
    "grouped matmul f32 [90,",
    "grouped matmul bf16 by terms",
    "grouped matmul f32 by terms, row-major [64,",
    "topk f32 5000",
    "index_add bf16",
    "many places: index_put to one row f64",
    "many places: index_put of columns bf16",
    "many places: index_put i64",
    "many places: index_add f32",
    "many places: index_put on two axes",
    "many places: scatter",
    "rms_norm bf16 [2, 40000]",
    "all of few rows",
    "argmax f32 [5, 1000] axis 0",
    "rotary bf16 bf16 [128, 128]",
    "rotary f16 f32 [80, 32]",
    "rotary f32 f32 [36, 12]",
];

/// A sample of small cases of every op, and the large cases that use special paths.
fn sample() -> Vec<OpCase> {
    let (mut small, mut bounded) = (0, 0);
    let mut takes = |name: &str| {
        if name.starts_with("large: bounded") {
            bounded += 1;
            return bounded % 13 == 0;
        }
        if name.starts_with("large") {
            return WAYS.iter().any(|w| name.contains(w));
        }
        small += 1;
        let every = if name.starts_with("bounded") { 6 } else { 9 };
        name.starts_with("failing") || name.starts_with("strided") || small % every == 0
    };
    let mut out = corpus();
    out.retain(|c| takes(&c.name) || matches!(c.op, Op::Permuted { .. }));
    out
}

/// The outcome of the cases.
#[derive(Default)]
pub(crate) struct RunOutcome {
    /// The number of cases that ran.
    pub all: usize,
    /// The number of these that were attentions which the library supports.
    pub by_library: usize,
    /// The failures.
    pub wrong: Vec<String>,
    /// The code of the kernels.
    text: String,
}

/// The machine that is emulated.
const MACHINE: KernelTarget = KernelTarget {
    // Few multiprocessors, so that small products have as many lines for each as large ones on a GPU.
    multiprocessors: 4,
    bandwidth: 4917,
    status: 0,
    workspace: 0,
    workspace_bytes: 0,
    shared: 225 << 10,
    wgmma: true,
    inputs: InputUse::Read,
    attention: AlgorithmSelection::Heuristic,
};

/// Runs cases as emulated kernels; `None` without a compiler.
pub(crate) fn run(what: &str, cases: &[OpCase], attention: AlgorithmSelection) -> Option<RunOutcome> {
    run_on(what, cases, KernelTarget { attention, ..MACHINE })
}

/// The same on a machine without memory.
fn run_on(what: &str, cases: &[OpCase], machine: KernelTarget) -> Option<RunOutcome> {
    let (laid, bytes) = lay(cases);
    let workspace_bytes = workspace_bytes(cases, &machine);
    // The status word and the workspace are after the cases.
    let mut memory = vec![0u128; (bytes + workspace_bytes + 4096).div_ceil(16) + 16];
    let base = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(256);
    let status = base + bytes as u64;
    let machine = KernelTarget { status, workspace: status + 256, workspace_bytes, ..machine };
    let lowered_cases = lowered(cases, &machine);
    let bases = [base];
    let bases = PortBases(&bases);
    let text = lowered_cases.source.text();
    let library = EmulatedLibrary::build(what, &text, lowered_cases.source.names())?;
    let pointer = |at: u64| std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
    let mut ran = RunOutcome { text, ..RunOutcome::default() };
    for ((case, laid), works) in cases.iter().zip(&laid).zip(&lowered_cases.works) {
        let works = works.as_ref().unwrap_or_else(|e| panic!("{}: {e}", case.name));
        // Products of the library are not emulated.
        if works.iter().any(|w| matches!(w, GpuCommand::Gemm(_))) {
            continue;
        }
        // SAFETY: all addresses are within `memory`, as it was laid out; nothing else accesses it during this
        // time.
        let word = unsafe {
            for (start, bytes) in laid.image() {
                pointer(base + *start as u64).copy_from(bytes.as_ptr(), bytes.len());
            }
            pointer(status).write_bytes(0, 16);
            for work in works {
                match work {
                    GpuCommand::Kernel(kernel) => library.run(&kernel.resolved(bases)),
                    GpuCommand::Copy { to, from, bytes } => {
                        pointer(to.resolve(bases)).copy_from(pointer(from.resolve(bases)), *bytes);
                    }
                    GpuCommand::Zero { at, bytes } => pointer(at.resolve(bases)).write_bytes(0, *bytes),
                    GpuCommand::Attention(of) => {
                        of.numbers.iter().for_each(|kernel| library.run(&kernel.resolved(bases)));
                        library::attend(&library::resolved(&of.attention, bases));
                        of.amend.iter().for_each(|kernel| library.run(&kernel.resolved(bases)));
                        ran.by_library += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            pointer(status).cast::<[u64; 2]>().read()
        };
        let failure = lowered_cases.assertions.failed_assertion(word).map(|f| f.1);
        let read = |start: usize, len| {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(pointer(base + start as u64), len) };
            Ok(bytes.to_vec())
        };
        ran.wrong.extend(laid.verify(failure, read).err().map(|what| format!("{}: {what}", case.name)));
        ran.all += 1;
    }
    Some(ran)
}

#[test]
fn kernels_give_what_the_interpreter_gives() {
    let cases = sample();
    let Some(ran) = run("corpus", &cases, AlgorithmSelection::Heuristic) else { return };
    assert!(ran.wrong.is_empty(), "{}", ran.wrong.join("\n"));
    assert!(ran.all > cases.len() / 2, "{} of {} cases", ran.all, cases.len());
}

/// Without warp-group MMA; with one multiprocessor, whose tiles are wide; with too little memory to store
/// results of wide tiles by TMA; and with many multiprocessors, whose tiles are narrow.
#[test]
fn grouped_products_are_the_same_with_all_tiles() {
    let mut cases = corpus();
    cases.retain(|c| c.op == Op::GroupedMatMul && !c.name.contains("f32"));
    // All large cases, and some small ones.
    let mut small = 0;
    cases.retain(|c| {
        small += usize::from(!c.name.starts_with("large"));
        c.name.starts_with("large") || small % 8 == 0
    });
    let one_multiprocessor = KernelTarget { multiprocessors: 1, bandwidth: 0, ..MACHINE };
    let machines = [
        ("mma", KernelTarget { wgmma: false, ..MACHINE }),
        ("wide", one_multiprocessor),
        ("direct", KernelTarget { shared: 180 << 10, ..one_multiprocessor }),
        ("narrow", KernelTarget { multiprocessors: 132, ..MACHINE }),
    ];
    for (name, machine) in machines {
        let Some(ran) = run_on(&format!("grouped-{name}"), &cases, machine) else { return };
        assert!(ran.wrong.is_empty(), "{name}: {}", ran.wrong.join("\n"));
        assert_eq!(ran.all, cases.len(), "{name}");
    }
}

/// Parts of the keys are combined by one warp for each row, or by one block for each row if there are many parts.
#[test]
fn attention_is_the_same_with_few_and_many_splits() {
    let all_cases = corpus();
    let ways = ["attention bf16 [8, 1, 1, 700,", "attention f32 [8, 1, 1, 700,", "sink attention f32 [8, 1"];
    let cases: Vec<OpCase> =
        ways.iter().filter_map(|way| all_cases.iter().find(|c| c.name.contains(way)).cloned()).collect();
    assert_eq!(cases.len(), ways.len());
    for (name, multiprocessors, combine) in
        [("few", 8, "sc::combine_few<sc::"), ("many", 264, "sc::combine<sc::")]
    {
        let machine = KernelTarget { multiprocessors, ..MACHINE };
        let Some(ran) = run_on(&format!("splits-{name}"), &cases, machine) else { return };
        assert!(ran.wrong.is_empty(), "{name}: {}", ran.wrong.join("\n"));
        assert_eq!(ran.all, cases.len(), "{name}");
        assert!(ran.text.contains(combine), "{name}");
    }
}

/// The cases at the edges of dtypes. Scalars are part of the kernel's text, so only some cases of each op
/// with a scalar are used.
fn edges() -> Vec<OpCase> {
    let mut scalars = 0;
    let mut out = special();
    out.retain(|c| match c.op {
        Op::BinaryScalar { .. } | Op::Pad { .. } | Op::Full(_) => {
            scalars += 1;
            scalars % 13 == 0
        }
        Op::Attention { .. } => false,
        _ => true,
    });
    out
}

#[test]
fn kernels_give_what_the_interpreter_gives_at_the_edges() {
    let cases = edges();
    let (mut all, mut failed) = (0, Vec::new());
    for (part, cases) in cases.chunks(400).enumerate() {
        let Some(ran) = run(&format!("edges-{part}"), cases, AlgorithmSelection::Heuristic) else { return };
        all += ran.all;
        failed.extend(ran.wrong);
    }
    assert!(failed.is_empty(), "{} of {all} cases\n{}", failed.len(), failed.join("\n"));
    assert!(all > cases.len() / 2, "{all} of {} cases", cases.len());
}
