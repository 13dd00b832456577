//! Products of few rows, bound by reading the right matrix once.
//!
//! What becomes of the sums is the caller's: [`Finish`]. So several products of one left matrix, and what is done
//! element by element with their results, are one kernel.

use symmc_ir::DType;

use super::Lowering;
use super::gemm::{Gemm, Order};
use super::text::{self, stored};
use crate::launch::{Address, Kernel, Param, Work};

/// The most rows where lines of the right matrix lie along the columns. The library takes about 19 µs for any few
/// rows of a 4096 × 7168 matrix on an H200; 4 rows take 19 this way, 8 rows 27.
const MOST_ROWS_BY_COLUMNS: usize = 4;
/// Columns that a block computes there.
const COLUMNS: usize = 32;
/// The most rows by matrix instructions. On an H200 a 4096 × 7168 matrix takes 17 µs with up to 16 rows, and two that
/// are multiplied together 28; the library takes 19 for each with any of these.
const MOST_ROWS: usize = 64;
/// The most lines of right matrices that a block has there, and the most blocks that a multiprocessor does in turn.
const MOST_LINES: usize = 112;
const MOST_TURNS: usize = 2;
/// Fewer lines are less work than what a step costs beside; more terms than these are too many such steps.
const FEW_LINES: usize = 24;
const MOST_TERMS_OF_FEW: usize = 2048;
/// Threads of a block there, and terms of a step.
const TILE_THREADS: u32 = 448;
const TERMS: usize = 128;
/// Stages of a ring, at least and at most, and bytes of the barriers of each.
const STAGES: [usize; 2] = [4, 16];
const STAGE_BARRIERS: usize = 16;

/// The most products of one kernel.
pub(super) const MOST_PRODUCTS: usize = 2;

/// What a kernel does with the sums of all its products at one position.
#[derive(Clone, Debug)]
pub(super) struct Finish {
    /// Parameters of the kernel, as CUDA C declares them.
    pub declared: Vec<String>,
    /// Their values.
    pub params: Vec<Param>,
    /// Statements that use `row`, `column` and `sum`, an array of floats with one for each product.
    pub body: String,
}

impl Finish {
    /// Stores the sums of one product.
    pub fn store(gemm: &Gemm) -> Finish {
        let (ty, step) = (stored(gemm.dtype), gemm.c.step);
        Finish {
            declared: vec!["void *c".into()],
            params: vec![gemm.c.at.into()],
            body: format!("(({ty} *)c)[row * {step}ll + column] = Put<{ty}>::of(sum[0]);"),
        }
    }
}

/// The way a kernel goes through the matrices.
struct Way {
    call: &'static str,
    /// Constants beside those of the product.
    constants: String,
    grid: usize,
    threads: u32,
    cluster: usize,
    shared: usize,
}

/// One kernel for products of the same left matrix and the same extents, if it has few rows and a layout that is
/// read in accesses of 16 bytes. `steady` says that nothing writes the right matrices while the program runs.
pub(super) fn lower(gemms: &[Gemm], steady: bool, finish: Finish, l: &mut Lowering<'_>) -> Option<Work> {
    let first = gemms.first().filter(|_| gemms.len() <= MOST_PRODUCTS)?;
    let same = |g: &Gemm| {
        let extents = |g: &Gemm| (g.dtype, g.m, g.n, g.k, g.a, g.b.step, g.b.order);
        g.batch == 1 && extents(g) == extents(first)
    };
    let way = gemms.iter().all(same).then(|| way(gemms, l)).flatten()?;
    let width = 16 / first.dtype.size();
    let count = gemms.len();
    let text = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T;\nstatic const int M = {}, V = {width}, P = {count};\nstatic const i64 N = {}, K = {}, a_step = {}, b_step = {};\nstatic const bool STEADY = {steady};\n{}SC_FN void enter() {{ symmc_enter(); }}\n}}; }}\n\
         extern \"C\" __global__ void __launch_bounds__({}) @({}) {{\n    using namespace sc;\n    \
         const void *const b[] = {{{}}};\n    \
         const auto finish = [&](i64 row, i64 column, const float *sum) {{\n{}\n    }};\n    {}\n}}\n",
        stored(first.dtype),
        first.m,
        first.n,
        first.k,
        first.a.step,
        first.b.step,
        way.constants,
        way.threads,
        declared(count, &finish).join(", "),
        (0..count).map(|p| format!("b{p}")).collect::<Vec<_>>().join(", "),
        finish.body,
        way.call,
    );
    l.preludes();
    l.source.prelude(text::MATRIX);
    l.source.prelude(text::SKINNY);
    l.source.prelude(text::TILES);
    let addresses = [first.a.at].into_iter().chain(gemms.iter().map(|g| g.b.at));
    Some(Work::Kernel(Kernel {
        entry: l.source.function("skinny", text),
        grid: [way.grid as u32, 1, 1],
        block: [way.threads, 1, 1],
        cluster: way.cluster as u32,
        shared: way.shared as u32,
        params: addresses.map(Param::from).chain(finish.params).collect(),
    }))
}

/// The parameters of a kernel.
fn declared(count: usize, finish: &Finish) -> Vec<String> {
    let mut out = vec!["const void *a".to_string()];
    out.extend((0..count).map(|p| format!("const void *b{p}")));
    out.extend(finish.declared.iter().cloned());
    out
}

fn way(gemms: &[Gemm], l: &Lowering<'_>) -> Option<Way> {
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
        Order::Columns => tiles(gemms, l).or_else(|| by_line(gemm)),
    }
}

fn by_columns(gemms: &[Gemm]) -> Option<Way> {
    let [gemm] = gemms else { return None };
    let fits = gemm.m <= MOST_ROWS_BY_COLUMNS && gemm.n.is_multiple_of(16 / gemm.dtype.size());
    fits.then(|| Way {
        call: "skinny_columns<@_L>(a, b, finish);",
        constants: String::new(),
        grid: gemm.n.div_ceil(COLUMNS),
        threads: 512,
        cluster: 1,
        shared: 0,
    })
}

fn by_line(gemm: &Gemm) -> Option<Way> {
    (gemm.m == 1).then(|| Way {
        call: "skinny_line<@_L>(a, b, finish);",
        constants: String::new(),
        grid: gemm.n,
        threads: 128,
        cluster: 1,
        shared: 0,
    })
}

/// Matrix instructions. All multiprocessors have an equal part of the lines. Each also reads all rows, or half of each
/// row where pairs of them halve the terms, which is faster above 16 rows (64 rows by a 3584 × 4096 matrix: 12.7 µs
/// instead of 17.5, the library 18.6) if the lines of both fit one. Where rows are many beside lines, the library is
/// faster.
fn tiles(gemms: &[Gemm], l: &Lowering<'_>) -> Option<Way> {
    let gemm = &gemms[0];
    let all = gemm.n * gemms.len();
    let multiprocessors = l.machine.multiprocessors as usize;
    let turns = all.div_ceil(multiprocessors * MOST_LINES);
    let rows = gemm.m.next_power_of_two().clamp(16, MOST_ROWS);
    let lines = |parts: usize| all.div_ceil(parts).next_multiple_of(8);
    let paired = lines(multiprocessors / 2);
    let pairs = l.machine.pairs && multiprocessors >= 2 && rows > 16 && paired <= MOST_LINES;
    let (cluster, lines) = if pairs { (2, paired) } else { (1, lines(multiprocessors * turns)) };
    // The library would do one product after another.
    let most_rows = match (gemms.len(), cluster) {
        (1, 1) => lines * 9 / 10,
        (1, _) => lines,
        _ => lines * 5 / 4,
    };
    let fits = matches!(gemm.dtype, DType::BF16 | DType::F16)
        && gemm.m <= MOST_ROWS
        && turns <= MOST_TURNS
        && gemm.m <= most_rows
        && (lines >= FEW_LINES || gemm.k <= MOST_TERMS_OF_FEW);
    let stage = (lines + rows) * TERMS * gemm.dtype.size();
    let [least, most] = STAGES;
    let shared = l.machine.shared.saturating_sub(most * STAGE_BARRIERS);
    if !fits || shared < least * stage {
        return None;
    }
    let steps = gemm.k.div_ceil(TERMS).div_ceil(cluster);
    let stages = (shared / stage).min(most).min((steps + 2).max(least));
    Some(Way {
        call: "skinny_tiles<@_L>(a, b, finish);",
        constants: format!("static const int LINES = {lines}, STAGES = {stages}, CLUSTER = {cluster};\n"),
        grid: gemm.n.div_ceil(lines / gemms.len()) * cluster,
        threads: TILE_THREADS,
        cluster,
        shared: stages * (stage + STAGE_BARRIERS),
    })
}
