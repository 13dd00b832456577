//! Skinny GEMM: products of few rows (one: GEMV), bound by reading the right matrix once.
//!
//! What becomes of the sums is the caller's [`Epilogue`]. So several products of one left matrix are one kernel: side by
//! side in each block, with what is done element by element with their results, or one behind the other in the grid.

use std::fmt::Write as _;

use symmc_ir::DType;
use symmc_ir::machine::{Capabilities, Extents, Products};

use super::gemm::{Gemm, Order};
use super::lowering::Lowering;
use super::text::{self, stored};
use crate::codegen::command::Command;
use crate::device::launch::{DevicePtr, Kernel, Param, TensorMap};

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

/// Split-K of [`mma`]: the blocks of a cluster, the least K of each, and the most rows of one product by itself: of 64 rows by
/// a 8192 × 1024 matrix the library is as fast.
const SPLITS: [usize; 3] = [2, 4, 8];
const LEAST_SPLIT_K: usize = 512;
const MOST_SPLIT_ROWS: usize = 32;

/// The most products of one kernel, one behind the other.
const MOST_APART: usize = 8;
/// The most products of one kernel, side by side.
pub(super) const MOST_PRODUCTS: usize = LIMITS.products as usize;

/// How products of one left matrix are one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arrangement<'a> {
    /// Of the same extents, side by side: the epilogue has the sums of all. The plan says that it is worth it.
    Joined,
    /// Of any number of columns, one behind the other in the grid: the epilogue has the sum of one. There is no kernel where
    /// the library is faster.
    Apart,
    /// The same, but two columns of one product stand side by side: the epilogue has the sums of both, under the number of the
    /// pair. For each product how far apart they are, where that matters. The plan says that it is worth it.
    Paired(&'a [Option<usize>]),
}

impl Arrangement<'_> {
    /// How many lines of right matrices a block has side by side for each of its columns.
    fn beside(self, gemms: &[Gemm]) -> usize {
        match self {
            Arrangement::Joined => gemms.len(),
            Arrangement::Apart => 1,
            Arrangement::Paired(_) => 2,
        }
    }

    /// The products, of those that are given, that stand one behind the other.
    fn behind(self, gemms: &[Gemm]) -> &[Gemm] {
        if self == Arrangement::Joined { &gemms[..1] } else { gemms }
    }
}

/// What a kernel does with the sums of all its products at one position: its epilogue.
#[derive(Clone, Default, Debug)]
pub(super) struct Epilogue {
    pub layouts: String,
    /// Parameters of the kernel, as CUDA C declares them.
    pub declared: Vec<String>,
    pub params: Vec<Param>,
    /// Statements that use `product`, `row`, `column` and `sum`, an array of floats with one for each product that stands
    /// side by side.
    pub body: String,
}

impl Epilogue {
    /// Stores the sums of products that stand behind each other.
    fn store(gemms: &[Gemm]) -> Epilogue {
        let store = |(p, gemm): (usize, &Gemm)| {
            let (ty, step) = (stored(gemm.dtype), gemm.c.step);
            format!("if (product == {p}) (({ty} *)c{p})[row * {step}ll + column] = Put<{ty}>::of(sum[0]);")
        };
        Epilogue {
            layouts: String::new(),
            declared: (0..gemms.len()).map(|p| format!("void *c{p}")).collect(),
            params: gemms.iter().map(|gemm| gemm.c.at.into()).collect(),
            body: gemms.iter().enumerate().map(store).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Stores the sums of pairs of columns, any two, of a product of this number.
    pub fn store_pairs(&mut self, p: usize, gemm: &Gemm) {
        let (ty, step, n) = (stored(gemm.dtype), gemm.c.step, gemm.n);
        self.declared.push(format!("void *c{p}"));
        self.params.push(gemm.c.at.into());
        let _ = writeln!(
            self.body,
            "if (product == {p}) {{\n    const i64 line = first_of_pair(column, @_L::HALF);\n    {ty} *to = ({ty} *)c{p} + row * {step}ll + line;\n    \
             *to = Put<{ty}>::of(sum[0]);\n    if (line + @_L::HALF < {n}) to[@_L::HALF] = Put<{ty}>::of(sum[1]);\n}}"
        );
    }
}

#[derive(Default)]
struct Config {
    call: &'static str,
    /// Constants beside those of the product, and the like.
    constants: String,
    columns: usize,
    /// The blocks of a cluster, which have a tile together.
    split: u32,
    threads: u32,
    shared: usize,
    /// Where it loads by TMA: the rows of the boxes of the left matrix and of the right ones.
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
        let Some([rows, columns]) = self.boxes else {
            let lines = gemms.iter().map(|g| g.b.at);
            return [gemm.a.at].into_iter().chain(lines).map(Param::from).collect();
        };
        let map = |at, rows, step: usize, box_rows| {
            let map = TensorMap::new(at, [rows, gemm.k], step * gemm.dtype.size(), box_rows);
            Param::Map(Box::new(map))
        };
        let left = map(gemm.a.at, gemm.m, gemm.a.step, rows);
        let lines = gemms.iter().map(|g| map(g.b.at, g.n, g.b.step, columns));
        [left].into_iter().chain(lines).collect()
    }
}

/// One kernel for products of the same left matrix and the same extents with an epilogue, if it has few rows and a layout that
/// is read in accesses of 16 bytes. `steady` says that nothing writes the right matrices while the program runs.
pub(super) fn joined(
    gemms: &[Gemm],
    steady: bool,
    epilogue: Epilogue,
    l: &mut Lowering<'_>,
) -> Option<Command> {
    kernel(gemms, Arrangement::Joined, steady, epilogue, l)
}

/// The same for products that are stored, of any number of columns, if the library is not faster.
pub(super) fn apart(gemms: &[Gemm], steady: bool, l: &mut Lowering<'_>) -> Option<Command> {
    kernel(gemms, Arrangement::Apart, steady, Epilogue::store(gemms), l)
}

/// The same with an epilogue for pairs of columns: of each product those that are so far apart, in runs of as many, or any two,
/// for [`Epilogue::store_pairs`].
pub(super) fn paired(
    gemms: &[Gemm],
    halves: &[Option<usize>],
    steady: bool,
    epilogue: Epilogue,
    l: &mut Lowering<'_>,
) -> Option<Command> {
    kernel(gemms, Arrangement::Paired(halves), steady, epilogue, l)
}

fn kernel(
    gemms: &[Gemm],
    arrangement: Arrangement<'_>,
    steady: bool,
    epilogue: Epilogue,
    l: &mut Lowering<'_>,
) -> Option<Command> {
    let first = gemms.first()?;
    let beside = arrangement.beside(gemms);
    let most = if arrangement == Arrangement::Joined { MOST_PRODUCTS } else { MOST_APART };
    let same = |g: &Gemm| {
        let extents = |g: &Gemm| (g.dtype, g.m, g.k, g.a, g.b.step, g.b.order);
        let beside = arrangement != Arrangement::Joined || g.n == first.n;
        g.batch == 1 && extents(g) == extents(first) && beside
    };
    let fits = gemms.len() <= most && gemms.iter().all(same);
    let config = fits.then(|| config(gemms, arrangement, l)).flatten()?;
    let width = 16 / first.dtype.size();
    let count = gemms.len();
    let mut declared = vec![config.declare("a")];
    declared.extend((0..count).map(|p| config.declare(&format!("b{p}"))));
    declared.extend(epilogue.declared);
    let (part, tiles) = parts(gemms, arrangement, config.columns);
    let paired = matches!(arrangement, Arrangement::Paired(_));
    let text = format!(
        "{}namespace sc {{ struct @_L {{\ntypedef {} T;\nstatic const int M = {}, V = {width}, P = {beside};\nstatic const i64 K = {}, a_step = {}, b_step = {};\nstatic const int HALF = {};\nstatic const bool STEADY = {steady}, PAIRED = {paired};\n{}{part}SC_FN void enter() {{ symmc_enter(); }}\n}}; }}\n\
         extern \"C\" __global__ void __launch_bounds__({}) @({}) {{\n    using namespace sc;\n    {}\n    \
         const auto epilogue = [&](int product, i64 row, i64 column, const float *sum) {{\n{}\n    }};\n    {}\n}}\n",
        epilogue.layouts,
        stored(first.dtype),
        first.m,
        first.k,
        first.a.step,
        first.b.step,
        config.columns,
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
    let kernel = Kernel::flat(entry, tiles * config.split as usize, config.threads as usize, params);
    Some(Command::Kernel(Kernel { cluster: config.split, shared: config.shared as u32, ..kernel }))
}

/// The function that says which columns a tile has of which product, and the number of tiles.
fn parts(gemms: &[Gemm], arrangement: Arrangement<'_>, columns: usize) -> (String, usize) {
    let (mut out, mut first) = (String::from("SC_FN Part part(u32 tile) {\n"), 0);
    let (beside, gemms) = (arrangement.beside(gemms), arrangement.behind(gemms));
    for (p, gemm) in gemms.iter().enumerate() {
        let (lines, half) = match arrangement {
            Arrangement::Paired(halves) => {
                (columns * beside, halves.get(p).copied().flatten().unwrap_or(columns))
            }
            Arrangement::Joined | Arrangement::Apart => (columns, gemm.n),
        };
        let end = first + gemm.n.div_ceil(lines);
        let case = if p + 1 < gemms.len() { format!("if (tile < {end}u) ") } else { String::new() };
        let _ = writeln!(
            out,
            "{case}return Part{{{p}, {half}, (i64)(tile - {first}u) * {columns}, {}}};",
            gemm.n
        );
        first = end;
    }
    out.push_str("}\n");
    (out, first)
}

fn config(gemms: &[Gemm], arrangement: Arrangement<'_>, l: &Lowering<'_>) -> Option<Config> {
    let gemm = &gemms[0];
    let width = 16 / gemm.dtype.size();
    let aligned = |at: DevicePtr, step: usize| at.is_multiple_of(16) && step.is_multiple_of(width);
    let fits = gemm.dtype.is_float()
        && gemm.dtype.size() < 8
        && gemm.a.order == Order::Rows
        && gemm.k >= 64
        && gemms.iter().all(|g| g.n >= 32 && aligned(g.b.at, g.b.step));
    if !fits {
        return None;
    }
    match gemm.b.order {
        Order::Rows if arrangement.beside(gemms) == 1 => by_columns(gemms),
        Order::Rows => None,
        Order::Columns if !gemm.k.is_multiple_of(width) || !aligned(gemm.a.at, gemm.a.step) => None,
        Order::Columns => by_tensor_cores(gemms, arrangement, l).or_else(|| gemv(gemm)),
    }
}

fn by_columns(gemms: &[Gemm]) -> Option<Config> {
    let (few, width) = (gemms[0].m <= MOST_ROWS_BY_COLUMNS, 16 / gemms[0].dtype.size());
    (few && gemms.iter().all(|g| g.n.is_multiple_of(width))).then(|| Config {
        call: "skinny_columns<@_L>(a, b, epilogue);",
        columns: COLUMNS,
        split: 1,
        threads: 512,
        ..Config::default()
    })
}

fn gemv(gemm: &Gemm) -> Option<Config> {
    (gemm.m == 1).then(|| Config {
        call: "gemv<@_L>(a, b, epilogue);",
        columns: 1,
        split: 1,
        threads: 128,
        ..Config::default()
    })
}

fn by_tensor_cores(gemms: &[Gemm], arrangement: Arrangement<'_>, l: &Lowering<'_>) -> Option<Config> {
    let fits = matches!(gemms[0].dtype, DType::BF16 | DType::F16) && gemms[0].m <= MOST_ROWS;
    // Pairs of columns are no boxes of lines.
    let boxes = || if let Arrangement::Paired(_) = arrangement { None } else { wgmma(gemms, arrangement, l) };
    let ways = || boxes().or_else(|| mma(gemms, arrangement, l));
    fits.then(ways).flatten()
}

/// As limits count products: those that a block does side by side, or the columns of all that stand behind each other, which
/// the library would do one after another as well.
fn extents(gemms: &[Gemm], arrangement: Arrangement<'_>) -> Extents {
    let all = gemms.iter().map(|g| g.n).sum::<usize>();
    let count = match arrangement {
        Arrangement::Apart => gemms.len().min(MOST_PRODUCTS),
        Arrangement::Joined | Arrangement::Paired(_) => arrangement.beside(gemms),
    };
    let [count, rows, columns, k] = [count, gemms[0].m, all / count, gemms[0].k].map(|n| n as u64);
    Extents { count, rows, columns, k }
}

/// By `mma` instructions: all multiprocessors have an equal part of the columns, and each reads all rows; or clusters have it,
/// where split-K is faster.
fn mma(gemms: &[Gemm], arrangement: Arrangement<'_>, l: &Lowering<'_>) -> Option<Config> {
    // Whether the columns of all stand one behind the other.
    let behind = arrangement != Arrangement::Joined || gemms.len() == 1;
    let given = arrangement != Arrangement::Apart;
    let (extents, multiprocessors) = (extents(gemms, arrangement), l.machine.multiprocessors);
    let whole = || {
        let (waves, lines) = LIMITS.waves_and_columns(&extents, multiprocessors);
        let mut lines = usize::try_from(lines).ok()?;
        if behind {
            lines = narrowest(gemms, lines, multiprocessors as usize * usize::try_from(waves).ok()?);
        }
        // A machine with less shared memory has fewer lines at once.
        while given && lines > 16 && ring(&gemms[0], lines, 1, l).is_none() {
            lines = (lines / 2).next_multiple_of(8);
        }
        Some(Tiling { lines, split: 1 })
    };
    let able = given || LIMITS.by_whole_k(&extents, multiprocessors);
    let whole = able.then(whole).flatten();
    let split = if behind { split(gemms, l) } else { None };
    let tiling = match (whole, split) {
        (Some(whole), Some(split)) if split.cost(gemms, l) >= whole.cost(gemms, l) => whole,
        (whole, split) => split.or(whole)?,
    };
    let Tiling { lines, split } = tiling;
    let (stages, shared) = ring(&gemms[0], lines, split, l)?;
    Some(Config {
        call: "skinny_mma<@_L>(a, b, epilogue);",
        constants: format!("static const int TILE_N = {lines}, STAGES = {stages}, SPLIT = {split};\n"),
        columns: lines / arrangement.beside(gemms),
        split: split as u32,
        threads: TILE_THREADS,
        shared,
        boxes: None,
    })
}

/// The fewest columns of a tile, from so many on, with which there are not more tiles than this.
fn narrowest(gemms: &[Gemm], mut columns: usize, tiles: usize) -> usize {
    while gemms.iter().map(|g| g.n.div_ceil(columns)).sum::<usize>() > tiles.max(gemms.len()) {
        columns += 8;
    }
    columns
}

/// What the blocks of [`mma`] have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tiling {
    /// Lines of the right matrices.
    lines: usize,
    /// The blocks of a cluster, of which each has a share of K.
    split: usize,
}

impl Tiling {
    /// How long a block takes, in units of 2.5 ns of an H200: 8192 × 1280 with 1 to 64 rows in tiles of 16 to 96 columns, by
    /// clusters of 1 to 8 blocks, are within a fifth of it. Memory gives the right matrices at nine tenths of its peak: where
    /// blocks of all of K wait for that already, as they do on an H100, clusters are slower.
    fn cost(self, gemms: &[Gemm], l: &Lowering<'_>) -> usize {
        let gemm = &gemms[0];
        let steps = gemm.k.div_ceil(TILE_K).div_ceil(self.split);
        let bytes = gemms.iter().map(|g| g.n * g.k * g.dtype.size()).sum::<usize>();
        let reading = (bytes * 4).checked_div(l.machine.bandwidth as usize * 9).unwrap_or(0);
        // Clusters have to be faster by a tenth.
        (steps * (3 * rows_of_tile(gemm) + 2 * self.lines)).max(reading) * if self.split > 1 { 10 } else { 9 }
    }
}

/// By split-K between the blocks of clusters: where K is long and columns are few, blocks with more of them and less of K
/// have fewer stages, which all cost the same beside their bytes.
fn split(gemms: &[Gemm], l: &Lowering<'_>) -> Option<Tiling> {
    let gemm = &gemms[0];
    if !l.machine.wgmma || (gemms.len() == 1 && gemm.m > MOST_SPLIT_ROWS) {
        return None;
    }
    let all = SPLITS.into_iter().filter_map(|split| {
        let lines = narrowest(gemms, 8, clusters(l.machine.multiprocessors as usize, split));
        let fits = (LIMITS.few_columns as usize..=LIMITS.columns as usize).contains(&lines)
            && gemm.k >= split * LEAST_SPLIT_K
            && ring(gemm, lines, split, l).is_some();
        fits.then_some(Tiling { lines, split })
    });
    all.min_by_key(|tiling| tiling.cost(gemms, l))
}

/// How many clusters run at once. The clusters (GPCs) of the machine have not all a multiple of four multiprocessors: of 132
/// an H200 has 30 clusters of four, and 15 of eight.
fn clusters(multiprocessors: usize, blocks: usize) -> usize {
    let whole = if blocks > 2 { multiprocessors * 10 / 11 } else { multiprocessors };
    (whole / blocks).max(1)
}

/// The rows that a block computes: with those that there are not.
fn rows_of_tile(gemm: &Gemm) -> usize {
    gemm.m.next_power_of_two().clamp(16, MOST_ROWS)
}

/// The stages of a ring and the bytes of shared memory that they take, if as many as are needed have room.
fn ring(gemm: &Gemm, lines: usize, split: usize, l: &Lowering<'_>) -> Option<(usize, usize)> {
    let stage = (lines + rows_of_tile(gemm)) * TILE_K * gemm.dtype.size();
    let [least, most] = STAGES;
    let shared = l.machine.shared.saturating_sub(most * STAGE_BARRIERS);
    let steps = gemm.k.div_ceil(TILE_K).div_ceil(split);
    let stages = (shared / stage).min(most).min((steps + 2).max(least));
    (shared >= least * stage).then_some((stages, stages * (stage + STAGE_BARRIERS)))
}

/// By warp-group MMA, with split-K between the two blocks of a cluster, which is faster above 16 rows (64 rows by a
/// 3584 × 4096 matrix: 10.2 µs, 17.5 by [`mma`], the library 18.6).
fn wgmma(gemms: &[Gemm], arrangement: Arrangement<'_>, l: &Lowering<'_>) -> Option<Config> {
    let (gemm, clusters) = (&gemms[0], l.machine.multiprocessors as usize / 2);
    if !l.machine.wgmma || !LIMITS.by_split_k(&extents(gemms, arrangement), l.machine.multiprocessors) {
        return None;
    }
    let beside = arrangement.beside(gemms);
    let columns = narrowest(arrangement.behind(gemms), 8, clusters);
    if columns * beside > LIMITS.split_k.map_or(0, |s| s.columns as usize) {
        return None;
    }
    let (lines, rows) = (columns * beside, gemm.m.next_multiple_of(8));
    let stage = (lines + rows).max(MOST_ROWS) * WGMMA_TILE_K * gemm.dtype.size();
    // Sums of another block, and what lies in front of a multiple of 1024.
    let others = lines.div_ceil(16) * 16 * WGMMA_WORKERS + 1024;
    let [least, most] = WGMMA_STAGES;
    let room = l.machine.shared.saturating_sub(others + (most + 1) * STAGE_BARRIERS);
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
        columns,
        split: 2,
        threads: WGMMA_THREADS,
        shared: stages * (stage + STAGE_BARRIERS) + STAGE_BARRIERS + others,
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
