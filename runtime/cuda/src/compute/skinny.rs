//! Skinny GEMM: products of few rows (one: GEMV), bound by reading the right matrix once.
//!
//! What becomes of the sums is the caller's [`Epilogue`]. So several products of one left matrix, and what is done
//! element by element with their results, are one kernel.

use symmc_ir::DType;
use symmc_ir::machine::{Capabilities, Extents, Products};

use super::gemm::{Gemm, Order};
use super::lowering::Lowering;
use super::text::{self, stored};
use crate::command::Command;
use crate::launch::{Address, Kernel, Param, TensorMap};

/// The most rows where lines of the right matrix lie along the columns. The library takes about 19 µs for any few
/// rows of a 4096 × 7168 matrix on an H200; 4 rows take 19 this way, 8 rows 27.
const MOST_ROWS_BY_COLUMNS: usize = 4;
/// Columns that a block computes there.
const COLUMNS: usize = 32;
/// What is worth it by tensor cores. On an H200 a 4096 × 7168 matrix takes 17 µs with up to 16 rows, and two that
/// are multiplied together 28; the library takes 19 for each with any of these.
const LIMITS: Products = match Capabilities::GPU.product {
    Some(limits) => limits,
    None => panic!("GPUs have such kernels"),
};
/// The most rows there.
const MOST_ROWS: usize = LIMITS.rows as usize;
/// Threads of a block there, and the K of a stage.
const TILE_THREADS: u32 = 448;
const TILE_K: usize = 128;
/// Stages of a ring, at least and at most, and bytes of the barriers of each.
const STAGES: [usize; 2] = [4, 16];
const STAGE_BARRIERS: usize = 16;

/// By warp-group MMA: the K of a stage, threads of a block, of which so many multiply.
const WGMMA_TILE_K: usize = 64;
const WGMMA_THREADS: u32 = 384;
const WGMMA_WORKERS: usize = 128;
/// Stages of a ring there.
const WGMMA_STAGES: [usize; 2] = [3, 16];

/// The most products of one kernel.
pub(super) const MOST_PRODUCTS: usize = LIMITS.products as usize;

/// Whether somebody decided already that the kernel is worth it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Worth {
    /// Nobody did: there is none where the library is faster.
    Asked,
    /// The plan says so.
    Given,
}

/// What a kernel does with the sums of all its products at one position: its epilogue.
#[derive(Clone, Debug)]
pub(super) struct Epilogue {
    /// Parameters of the kernel, as CUDA C declares them.
    pub declared: Vec<String>,
    /// Their values.
    pub params: Vec<Param>,
    /// Statements that use `row`, `column` and `sum`, an array of floats with one for each product.
    pub body: String,
}

impl Epilogue {
    /// Stores the sums of one product.
    pub fn store(gemm: &Gemm) -> Epilogue {
        let (ty, step) = (stored(gemm.dtype), gemm.c.step);
        Epilogue {
            declared: vec!["void *c".into()],
            params: vec![gemm.c.at.into()],
            body: format!("(({ty} *)c)[row * {step}ll + column] = Put<{ty}>::of(sum[0]);"),
        }
    }
}

/// The kernel for a product, and its launch.
#[derive(Default)]
struct Config {
    call: &'static str,
    /// Constants beside those of the product, and the like.
    constants: String,
    grid: usize,
    threads: u32,
    shared: usize,
    /// Where it loads by TMA, in clusters of two blocks: the rows of the boxes of the left matrix and of the right ones.
    boxes: Option<[usize; 2]>,
}

impl Config {
    /// How the kernel takes a matrix, by this name.
    fn declare(&self, name: &str) -> String {
        match self.boxes {
            Some(_) => format!("const __grid_constant__ sc::TensorMap {name}"),
            None => format!("const void *{name}"),
        }
    }

    /// How the kernel names the right matrices.
    fn array(&self, count: usize) -> String {
        let (ty, of) = if self.boxes.is_some() { ("TensorMap", "&") } else { ("void", "") };
        let names = (0..count).map(|p| format!("{of}b{p}")).collect::<Vec<_>>();
        format!("const {ty} *const b[] = {{{}}};", names.join(", "))
    }

    /// The matrices: the left one, and the right ones.
    fn matrices(&self, gemms: &[Gemm]) -> Vec<Param> {
        let gemm = &gemms[0];
        let lines = gemms.iter().map(|g| g.b.at);
        let Some([rows, columns]) = self.boxes else {
            return [gemm.a.at].into_iter().chain(lines).map(Param::from).collect();
        };
        let map = |at, rows, step: usize, box_rows| {
            let map = TensorMap::new(at, [rows, gemm.k], step * gemm.dtype.size(), box_rows);
            Param::Map(Box::new(map))
        };
        let left = map(gemm.a.at, gemm.m, gemm.a.step, rows);
        [left].into_iter().chain(lines.map(|at| map(at, gemm.n, gemm.b.step, columns))).collect()
    }
}

/// One kernel for products of the same left matrix and the same extents, if it has few rows and a layout that is
/// read in accesses of 16 bytes. `steady` says that nothing writes the right matrices while the program runs.
pub(super) fn lower(
    gemms: &[Gemm],
    worth: Worth,
    steady: bool,
    epilogue: Epilogue,
    l: &mut Lowering<'_>,
) -> Option<Command> {
    let first = gemms.first().filter(|_| gemms.len() <= MOST_PRODUCTS)?;
    let same = |g: &Gemm| {
        let extents = |g: &Gemm| (g.dtype, g.m, g.n, g.k, g.a, g.b.step, g.b.order);
        g.batch == 1 && extents(g) == extents(first)
    };
    let config = gemms.iter().all(same).then(|| config(gemms, worth, l)).flatten()?;
    let width = 16 / first.dtype.size();
    let count = gemms.len();
    let mut declared = vec![config.declare("a")];
    declared.extend((0..count).map(|p| config.declare(&format!("b{p}"))));
    declared.extend(epilogue.declared);
    let text = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T;\nstatic const int M = {}, V = {width}, P = {count};\nstatic const i64 N = {}, K = {}, a_step = {}, b_step = {};\nstatic const bool STEADY = {steady};\n{}SC_FN void enter() {{ symmc_enter(); }}\n}}; }}\n\
         extern \"C\" __global__ void __launch_bounds__({}) @({}) {{\n    using namespace sc;\n    {}\n    \
         const auto epilogue = [&](i64 row, i64 column, const float *sum) {{\n{}\n    }};\n    {}\n}}\n",
        stored(first.dtype),
        first.m,
        first.n,
        first.k,
        first.a.step,
        first.b.step,
        config.constants,
        config.threads,
        declared.join(", "),
        config.array(count),
        epilogue.body,
        config.call,
    );
    l.preludes();
    for prelude in [text::MATRIX, text::SKINNY, text::MMA, text::WGMMA] {
        l.source.prelude(prelude);
    }
    let entry = l.source.function("skinny", text);
    let params = config.matrices(gemms).into_iter().chain(epilogue.params).collect();
    let kernel = Kernel::flat(entry, config.grid, config.threads as usize, params);
    let cluster = if config.boxes.is_some() { 2 } else { 1 };
    Some(Command::Kernel(Kernel { cluster, shared: config.shared as u32, ..kernel }))
}

fn config(gemms: &[Gemm], worth: Worth, l: &Lowering<'_>) -> Option<Config> {
    let gemm = &gemms[0];
    let width = 16 / gemm.dtype.size();
    let aligned = |at: Address, step: usize| at.is_multiple_of(16) && step.is_multiple_of(width);
    let fits = gemm.dtype.is_float()
        && gemm.dtype.size() < 8
        && gemm.a.order == Order::Rows
        && gemm.k >= 64
        && gemm.n >= 32
        && gemms.iter().all(|g| aligned(g.b.at, g.b.step));
    if !fits {
        return None;
    }
    match gemm.b.order {
        Order::Rows => by_columns(gemms),
        Order::Columns if !gemm.k.is_multiple_of(width) || !aligned(gemm.a.at, gemm.a.step) => None,
        Order::Columns => by_tensor_cores(gemms, worth, l).or_else(|| gemv(gemm)),
    }
}

fn by_columns(gemms: &[Gemm]) -> Option<Config> {
    let [gemm] = gemms else { return None };
    let fits = gemm.m <= MOST_ROWS_BY_COLUMNS && gemm.n.is_multiple_of(16 / gemm.dtype.size());
    fits.then(|| Config {
        call: "skinny_columns<@_L>(a, b, epilogue);",
        grid: gemm.n.div_ceil(COLUMNS),
        threads: 512,
        ..Config::default()
    })
}

fn gemv(gemm: &Gemm) -> Option<Config> {
    (gemm.m == 1).then(|| Config {
        call: "gemv<@_L>(a, b, epilogue);",
        grid: gemm.n,
        threads: 128,
        ..Config::default()
    })
}

/// Tensor cores.
fn by_tensor_cores(gemms: &[Gemm], worth: Worth, l: &Lowering<'_>) -> Option<Config> {
    let fits = matches!(gemms[0].dtype, DType::BF16 | DType::F16) && gemms[0].m <= MOST_ROWS;
    fits.then(|| wgmma(gemms, l).or_else(|| mma(gemms, worth, l))).flatten()
}

fn extents(gemms: &[Gemm]) -> Extents {
    let [count, rows, columns, k] = [gemms.len(), gemms[0].m, gemms[0].n, gemms[0].k].map(|n| n as u64);
    Extents { count, rows, columns, k }
}

/// By `mma` instructions: all multiprocessors have an equal part of the columns, and each reads all rows.
fn mma(gemms: &[Gemm], worth: Worth, l: &Lowering<'_>) -> Option<Config> {
    let gemm = &gemms[0];
    let (_, lines) = LIMITS.waves_and_columns(&extents(gemms), l.machine.multiprocessors);
    let mut lines = usize::try_from(lines).ok()?;
    let rows = gemm.m.next_power_of_two().clamp(16, MOST_ROWS);
    let fits = worth == Worth::Given || LIMITS.by_whole_k(&extents(gemms), l.machine.multiprocessors);
    let stage = |lines: usize| (lines + rows) * TILE_K * gemm.dtype.size();
    let [least, most] = STAGES;
    let shared = l.machine.shared.saturating_sub(most * STAGE_BARRIERS);
    // A machine with less shared memory has fewer lines at once.
    while worth == Worth::Given && lines > 16 && shared < least * stage(lines) {
        lines = (lines / 2).next_multiple_of(8);
    }
    let stage = stage(lines);
    if !fits || shared < least * stage {
        return None;
    }
    let stages = (shared / stage).min(most).min((gemm.k.div_ceil(TILE_K) + 2).max(least));
    Some(Config {
        call: "skinny_mma<@_L>(a, b, epilogue);",
        constants: format!("static const int TILE_N = {lines}, STAGES = {stages};\n"),
        grid: gemm.n.div_ceil(lines / gemms.len()),
        threads: TILE_THREADS,
        shared: stages * (stage + STAGE_BARRIERS),
        ..Config::default()
    })
}

/// By warp-group MMA, with split-K between the two blocks of a cluster, which is faster above 16 rows (64 rows by a
/// 3584 × 4096 matrix: 10.2 µs, 17.5 by [`mma`], the library 18.6).
fn wgmma(gemms: &[Gemm], l: &Lowering<'_>) -> Option<Config> {
    let (gemm, count) = (&gemms[0], gemms.len());
    let clusters = l.machine.multiprocessors as usize / 2;
    if !l.machine.wgmma || !LIMITS.by_split_k(&extents(gemms), l.machine.multiprocessors) {
        return None;
    }
    let columns = gemm.n.div_ceil(clusters).next_multiple_of(8);
    let (lines, rows) = (columns * count, gemm.m.next_multiple_of(8));
    let stage = (lines + rows).max(MOST_ROWS) * WGMMA_TILE_K * gemm.dtype.size();
    // Sums of another block, and what lies in front of a multiple of 1024.
    let beside = lines.div_ceil(16) * 16 * WGMMA_WORKERS + 1024;
    let [least, most] = WGMMA_STAGES;
    let room = l.machine.shared.saturating_sub(beside + (most + 1) * STAGE_BARRIERS);
    let stages = (room / stage).min(most);
    if stages < least {
        return None;
    }
    Some(Config {
        call: "skinny_wgmma<@_L>(a, b, epilogue);",
        constants: format!(
            "static const int COLUMNS = {columns}, STAGES = {stages};\n{}",
            wgmma_instruction(gemm.dtype, lines)
        ),
        grid: gemm.n.div_ceil(columns) * 2,
        threads: WGMMA_THREADS,
        shared: stages * (stage + STAGE_BARRIERS) + STAGE_BARRIERS + beside,
        boxes: Some([rows, columns]),
    })
}

/// The instruction for so many columns, which names every register.
fn wgmma_instruction(dtype: DType, lines: usize) -> String {
    let (sums, ty) = (lines / 2, if dtype == DType::BF16 { "bf16" } else { "f16" });
    let names = |of: fn(usize) -> String| (0..sums).map(of).collect::<Vec<_>>().join(", ");
    format!(
        "SC_WGMMA({}, {lines}, \"{{ .reg .pred p; setp.ne.b32 p, %{}, 0; \
         wgmma.mma_async.sync.aligned.m64n{lines}k16.f32.{ty}.{ty} {{{}}}, %{sums}, %{}, p, 1, 1, 0, 0; }}\", {})\n",
        stored(dtype),
        sums + 2,
        names(|i| format!("%{i}")),
        sums + 1,
        names(|i| format!("\"+f\"(c[{}][{}])", i / 4, i % 4)),
    )
}
