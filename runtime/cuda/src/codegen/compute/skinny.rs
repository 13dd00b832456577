//! Skinny GEMM: products of few rows (one row: GEMV), whose time is that of one read of the right matrix.
//!
//! The caller's [`ProductEpilogue`] consumes the sums, so several products of one left matrix can be one
//! kernel. They are computed side by side in each block, with element-wise steps on their results, or one
//! after another in the grid.

use std::fmt::Write as _;

use symmc_ir::DType;
use symmc_ir::machine::{DispatchCapabilities, ProductLimits, ProductShape};

use super::gemm::{Gemm, MatrixOrder};
use super::lowering::KernelLowering;
use super::text::{self, stored_type};
use super::wgmma::{self, OperandMajor};
use crate::codegen::command::GpuCommand;
use crate::device::launch::{DevicePtr, KernelLaunch, KernelParam, TensorMap};

/// The largest number of rows if lines of the right matrix are along the columns. The library takes about 19
/// µs for any few rows of a 4096 × 7168 matrix on an H200; here 4 rows take 19 µs, and 8 rows 27 µs.
const MAX_ROWS_BY_COLUMNS: usize = 4;
/// The number of columns that a block computes in that case.
const COLUMNS_PER_BLOCK: usize = 32;
/// The sizes for which tensor cores are faster. On an H200 a 4096 × 7168 matrix takes 17 µs with up to 16
/// rows, and two that are multiplied together take 28; the library takes 19 for each product of this size.
const PRODUCT_LIMITS: ProductLimits = match DispatchCapabilities::GPU.product {
    Some(limits) => limits,
    None => panic!("GPUs have such kernels"),
};
/// The largest number of rows with tensor cores.
const MAX_ROWS: usize = PRODUCT_LIMITS.rows as usize;
/// The threads of a block with tensor cores, and the K of a stage.
const TILE_THREADS: u32 = 448;
const TILE_K: usize = 128;
/// The smallest and largest number of stages of a ring, and the bytes of the barriers of each.
const STAGE_RANGE: [usize; 2] = [4, 16];
const STAGE_BARRIERS: usize = 16;

/// With warp-group MMA: the K of a stage, the threads of a block, and how many of these multiply.
const WGMMA_TILE_K: usize = 64;
const WGMMA_THREADS: u32 = 384;
const WGMMA_WORKERS: usize = 128;
/// The smallest and largest number of stages of a ring with warp-group MMA.
const WGMMA_STAGES: [usize; 2] = [3, 16];

/// Split-K of [`mma`]: the numbers of blocks of a cluster, the least K of each block, and the largest number
/// of rows of a single product. For 64 rows by a 8192 × 1024 matrix the library is as fast.
const SPLIT_COUNTS: [usize; 3] = [2, 4, 8];
const MIN_SPLIT_K: usize = 512;
const MAX_SPLIT_ROWS: usize = 32;

/// The largest number of products of one kernel, one after another.
const MAX_SEQUENTIAL_PRODUCTS: usize = 8;
/// The largest number of products of one kernel, side by side.
pub(super) const MAX_ADJACENT_PRODUCTS: usize = PRODUCT_LIMITS.products as usize;

/// How products of one left matrix form one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProductArrangement<'a> {
    /// Products of the same extents, side by side: the epilogue gets the sums of all. The plan has decided
    /// that this is faster.
    SideBySide,
    /// Products with any numbers of columns, one after another in the grid: the epilogue gets the sum of one.
    /// There is no kernel if the library is faster.
    Sequential,
    /// Like `Sequential`, but two columns of one product are computed side by side: the epilogue gets the
    /// sums of both, with the number of the pair. For each product, the field gives their distance, if that
    /// matters. The plan has decided that this is faster.
    ColumnPairs(&'a [Option<usize>]),
}

impl ProductArrangement<'_> {
    /// The number of lines of right matrices that a block has side by side for each of its columns.
    fn lines_per_column(self, gemms: &[Gemm]) -> usize {
        match self {
            ProductArrangement::SideBySide => gemms.len(),
            ProductArrangement::Sequential => 1,
            ProductArrangement::ColumnPairs(_) => 2,
        }
    }

    /// The products that are computed one after another.
    fn sequential_products(self, gemms: &[Gemm]) -> &[Gemm] {
        if self == ProductArrangement::SideBySide { &gemms[..1] } else { gemms }
    }
}

/// The epilogue of a kernel: its code for the sums of all products at one position.
#[derive(Clone, Default, Debug)]
pub(super) struct ProductEpilogue {
    pub layouts: String,
    /// The parameters of the kernel, as CUDA C declares them.
    pub declared: Vec<String>,
    pub params: Vec<KernelParam>,
    /// Statements that use `product`, `row`, `column` and `sum`, an array of floats with one element per
    /// product that is computed side by side.
    pub body: String,
}

impl ProductEpilogue {
    /// Stores the sums of products that are computed one after another.
    fn store(gemms: &[Gemm]) -> ProductEpilogue {
        let stores = gemms.iter().enumerate().map(|(p, gemm)| {
            let ty = stored_type(gemm.result_dtype);
            let step = gemm.c.step;
            format!("if (product == {p}) (({ty} *)c{p})[row * {step}ll + column] = Put<{ty}>::of(sum[0]);")
        });
        ProductEpilogue {
            layouts: String::new(),
            declared: (0..gemms.len()).map(|p| format!("void *c{p}")).collect(),
            params: gemms.iter().map(|gemm| gemm.c.at.into()).collect(),
            body: stores.collect::<Vec<_>>().join("\n"),
        }
    }

    /// Stores the sums of pairs of columns of product `p`, with any pairing.
    pub fn store_pairs(&mut self, p: usize, gemm: &Gemm) {
        let ty = stored_type(gemm.result_dtype);
        let step = gemm.c.step;
        let n = gemm.n;
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
struct SkinnyKernel {
    call: &'static str,
    /// Constants in addition to those of the product.
    constants: String,
    columns: usize,
    /// The number of blocks of a cluster, which share a tile.
    split: u32,
    threads: u32,
    shared: usize,
    /// If it loads by TMA: the rows of the boxes of the left matrix and of the right ones.
    boxes: Option<[usize; 2]>,
}

impl SkinnyKernel {
    /// The declaration of a matrix parameter with this name.
    fn declare(&self, name: &str) -> String {
        match self.boxes {
            Some(_) => format!("const __grid_constant__ sc::TensorMap {name}"),
            None => format!("const void *{name}"),
        }
    }

    /// The array of the right matrices.
    fn array(&self, count: usize) -> String {
        let (ty, prefix) = if self.boxes.is_some() { ("TensorMap", "&") } else { ("void", "") };
        let names = (0..count).map(|p| format!("{prefix}b{p}")).collect::<Vec<_>>();
        format!("const {ty} *const b[] = {{{}}};", names.join(", "))
    }

    /// The matrix parameters: the left one, and the right ones.
    fn matrices(&self, gemms: &[Gemm]) -> Vec<KernelParam> {
        let gemm = &gemms[0];
        let Some([rows, columns]) = self.boxes else {
            let lines = gemms.iter().map(|g| g.b.at);
            return [gemm.a.at].into_iter().chain(lines).map(KernelParam::from).collect();
        };
        let map = |address, rows, step: usize, box_rows| {
            let map = TensorMap::new(address, [rows, gemm.k], step * gemm.dtype.size(), box_rows);
            KernelParam::Map(Box::new(map))
        };
        let left_map = map(gemm.a.at, gemm.m, gemm.a.step, rows);
        let lines = gemms.iter().map(|g| map(g.b.at, g.n, g.b.step, columns));
        [left_map].into_iter().chain(lines).collect()
    }
}

/// One kernel with an epilogue for products of the same left matrix and the same extents, if it has few rows
/// and a layout that is read in accesses of 16 bytes. `steady` means that nothing writes the right matrices
/// while the program runs.
pub(super) fn side_by_side_kernel(
    gemms: &[Gemm],
    steady: bool,
    epilogue: ProductEpilogue,
    l: &mut KernelLowering<'_>,
) -> Option<GpuCommand> {
    kernel(gemms, ProductArrangement::SideBySide, steady, epilogue, l)
}

/// A kernel for products that are stored, with any numbers of columns, unless the library is faster.
pub(super) fn sequential_kernel(
    gemms: &[Gemm],
    steady: bool,
    l: &mut KernelLowering<'_>,
) -> Option<GpuCommand> {
    kernel(gemms, ProductArrangement::Sequential, steady, ProductEpilogue::store(gemms), l)
}

/// A kernel with an epilogue for pairs of columns. For each product, either the distance of the pair is
/// given, in runs of the same length, or any pairing is allowed, for [`ProductEpilogue::store_pairs`].
pub(super) fn column_pair_kernel(
    gemms: &[Gemm],
    halves: &[Option<usize>],
    steady: bool,
    epilogue: ProductEpilogue,
    l: &mut KernelLowering<'_>,
) -> Option<GpuCommand> {
    kernel(gemms, ProductArrangement::ColumnPairs(halves), steady, epilogue, l)
}

/// Whether a kernel with an epilogue is faster than the library, by the limits with which plans decide.
pub(super) fn is_profitable(gemm: &Gemm, l: &KernelLowering<'_>) -> bool {
    let [rows, columns, k] = [gemm.m, gemm.n, gemm.k].map(|n| n as u64);
    PRODUCT_LIMITS.is_profitable(&ProductShape { count: 1, rows, columns, k }, l.machine.multiprocessors)
}

fn kernel(
    gemms: &[Gemm],
    arrangement: ProductArrangement<'_>,
    steady: bool,
    epilogue: ProductEpilogue,
    l: &mut KernelLowering<'_>,
) -> Option<GpuCommand> {
    let first = gemms.first()?;
    let lines_per_column = arrangement.lines_per_column(gemms);
    let max_products = if arrangement == ProductArrangement::SideBySide {
        MAX_ADJACENT_PRODUCTS
    } else {
        MAX_SEQUENTIAL_PRODUCTS
    };
    let all_match = gemms.iter().all(|g| {
        let same_extents = (g.dtype, g.stored, g.m, g.k, g.a, g.b.step, g.b.order)
            == (first.dtype, first.stored, first.m, first.k, first.a, first.b.step, first.b.order);
        let same_columns = arrangement != ProductArrangement::SideBySide || g.n == first.n;
        g.batch == 1 && same_extents && same_columns
    });
    let fits = gemms.len() <= max_products && all_match;
    let config = fits.then(|| config(gemms, arrangement, l)).flatten()?;
    let width = 16 / first.dtype.size();
    let count = gemms.len();
    let mut declared = vec![config.declare("a")];
    declared.extend((0..count).map(|p| config.declare(&format!("b{p}"))));
    declared.extend(epilogue.declared);
    let (tile_text, tiles) = tile_function(gemms, arrangement, config.columns);
    let paired = matches!(arrangement, ProductArrangement::ColumnPairs(_));
    let text = format!(
        "{}namespace sc {{ struct @_L {{\ntypedef {} T; typedef {} B;\nstatic const int M = {}, V = {width}, P = {lines_per_column};\nstatic const i64 K = {}, a_step = {}, b_step = {};\nstatic const int HALF = {};\nstatic const bool STEADY = {steady}, PAIRED = {paired};\n{}{tile_text}SC_FN void enter() {{ symmc_enter(); }}\n}}; }}\n\
         extern \"C\" __global__ void __launch_bounds__({}) @({}) {{\n    using namespace sc;\n    {}\n    \
         const auto epilogue = [&](int product, i64 row, i64 column, const float *sum) {{\n{}\n    }};\n    {}\n}}\n",
        epilogue.layouts,
        stored_type(first.dtype),
        stored_type(first.stored),
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
    let sources =
        [text::MATRIX_SOURCE, text::SKINNY_SOURCE, text::STORED_SOURCE, text::MMA_SOURCE, text::WGMMA_SOURCE];
    for prelude in sources {
        l.source.prelude(prelude);
    }
    let entry = l.source.function("skinny", text);
    let params = config.matrices(gemms).into_iter().chain(epilogue.params).collect();
    let kernel = KernelLaunch::flat(entry, tiles * config.split as usize, config.threads as usize, params);
    Some(GpuCommand::Kernel(KernelLaunch { cluster: config.split, shared: config.shared as u32, ..kernel }))
}

/// The function that maps a tile to its product and columns, and the number of tiles.
fn tile_function(gemms: &[Gemm], arrangement: ProductArrangement<'_>, columns: usize) -> (String, usize) {
    let mut out = String::from("SC_FN Part part(u32 tile) {\n");
    let mut first = 0;
    let lines_per_column = arrangement.lines_per_column(gemms);
    let gemms = arrangement.sequential_products(gemms);
    for (p, gemm) in gemms.iter().enumerate() {
        let (lines, half) = match arrangement {
            ProductArrangement::ColumnPairs(halves) => {
                (columns * lines_per_column, halves.get(p).copied().flatten().unwrap_or(columns))
            }
            ProductArrangement::SideBySide | ProductArrangement::Sequential => (columns, gemm.n),
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

fn config(
    gemms: &[Gemm],
    arrangement: ProductArrangement<'_>,
    l: &KernelLowering<'_>,
) -> Option<SkinnyKernel> {
    let gemm = &gemms[0];
    if gemm.stored != gemm.dtype {
        return by_stored_lines(gemms, arrangement);
    }
    let width = 16 / gemm.dtype.size();
    let aligned = |address: DevicePtr, step: usize| address.is_multiple_of(16) && step.is_multiple_of(width);
    let fits = gemm.dtype.is_float()
        && gemm.dtype.size() < 8
        && gemm.a.order == MatrixOrder::Rows
        && gemm.k >= 64
        && gemms.iter().all(|g| g.n >= 32 && aligned(g.b.at, g.b.step));
    if !fits {
        return None;
    }
    match gemm.b.order {
        MatrixOrder::Rows if arrangement.lines_per_column(gemms) == 1 => by_columns(gemms),
        MatrixOrder::Rows => None,
        MatrixOrder::Columns if !gemm.k.is_multiple_of(width) || !aligned(gemm.a.at, gemm.a.step) => None,
        MatrixOrder::Columns => by_tensor_cores(gemms, arrangement, l).or_else(|| gemv(gemm)),
    }
}

/// The kernel for right matrices of 8 bits, with lines along K.
fn by_stored_lines(gemms: &[Gemm], arrangement: ProductArrangement<'_>) -> Option<SkinnyKernel> {
    let gemm = &gemms[0];
    let aligned = |address: DevicePtr, bytes: usize| address.is_multiple_of(16) && bytes.is_multiple_of(16);
    let fits = PRODUCT_LIMITS.stored_rows.is_some_and(|rows| gemm.m <= rows as usize)
        && !matches!(arrangement, ProductArrangement::ColumnPairs(_))
        && gemm.a.order == MatrixOrder::Rows
        && gemm.b.order == MatrixOrder::Columns
        && gemm.k.is_multiple_of(16)
        && aligned(gemm.a.at, gemm.a.step * gemm.dtype.size())
        && gemms.iter().all(|g| aligned(g.b.at, g.b.step));
    // More columns read the left matrix less often, which matters for many rows.
    let tiles = if gemm.m > 16 { 2 } else { 1 };
    let warps = if gemm.m > 32 { 4 } else { 8 };
    fits.then(|| SkinnyKernel {
        call: "skinny_stored<@_L>(a, b, epilogue);",
        constants: format!("static const int COLUMNS = {tiles}, WARPS = {warps};\n"),
        columns: 8 * tiles,
        split: 1,
        threads: 32 * warps,
        ..SkinnyKernel::default()
    })
}

fn by_columns(gemms: &[Gemm]) -> Option<SkinnyKernel> {
    let has_few_rows = gemms[0].m <= MAX_ROWS_BY_COLUMNS;
    let width = 16 / gemms[0].dtype.size();
    (has_few_rows && gemms.iter().all(|g| g.n.is_multiple_of(width))).then(|| SkinnyKernel {
        call: "skinny_columns<@_L>(a, b, epilogue);",
        columns: COLUMNS_PER_BLOCK,
        split: 1,
        threads: 512,
        ..SkinnyKernel::default()
    })
}

fn gemv(gemm: &Gemm) -> Option<SkinnyKernel> {
    (gemm.m == 1).then(|| SkinnyKernel {
        call: "gemv<@_L>(a, b, epilogue);",
        columns: 1,
        split: 1,
        threads: 128,
        ..SkinnyKernel::default()
    })
}

fn by_tensor_cores(
    gemms: &[Gemm],
    arrangement: ProductArrangement<'_>,
    l: &KernelLowering<'_>,
) -> Option<SkinnyKernel> {
    let fits = matches!(gemms[0].dtype, DType::BF16 | DType::F16) && gemms[0].m <= MAX_ROWS;
    if !fits {
        return None;
    }
    // Pairs of columns do not form boxes of lines.
    let with_boxes = match arrangement {
        ProductArrangement::ColumnPairs(_) => None,
        _ => by_wgmma(gemms, arrangement, l),
    };
    with_boxes.or_else(|| mma(gemms, arrangement, l))
}

/// The shape as limits count it: the products that a block computes side by side, or the columns of all
/// sequential products, which the library would also compute one after another.
fn extents(gemms: &[Gemm], arrangement: ProductArrangement<'_>) -> ProductShape {
    let total_columns = gemms.iter().map(|g| g.n).sum::<usize>();
    let count = match arrangement {
        ProductArrangement::Sequential => gemms.len().min(MAX_ADJACENT_PRODUCTS),
        ProductArrangement::SideBySide | ProductArrangement::ColumnPairs(_) => {
            arrangement.lines_per_column(gemms)
        }
    };
    let [count, rows, columns, k] = [count, gemms[0].m, total_columns / count, gemms[0].k].map(|n| n as u64);
    ProductShape { count, rows, columns, k }
}

/// The kernel with `mma` instructions. All multiprocessors get equal parts of the columns, and each reads all
/// rows; if split-K is faster, clusters get the parts.
fn mma(gemms: &[Gemm], arrangement: ProductArrangement<'_>, l: &KernelLowering<'_>) -> Option<SkinnyKernel> {
    let full_k = choose_full_k(gemms, arrangement, l);
    let split = if is_sequential(gemms, arrangement) { choose_split_k(gemms, l) } else { None };
    let tiling = match (full_k, split) {
        (Some(full_k), Some(split)) if split.cost(gemms, l) >= full_k.cost(gemms, l) => full_k,
        (full_k, split) => split.or(full_k)?,
    };
    let MmaTiling { lines, split } = tiling;
    let (stages, shared) = ring_stages(&gemms[0], lines, split, l)?;
    Some(SkinnyKernel {
        call: "skinny_mma<@_L>(a, b, epilogue);",
        constants: format!("static const int TILE_N = {lines}, STAGES = {stages}, SPLIT = {split};\n"),
        columns: lines / arrangement.lines_per_column(gemms),
        split: split as u32,
        threads: TILE_THREADS,
        shared,
        boxes: None,
    })
}

/// Whether the columns of all products are computed one after another.
fn is_sequential(gemms: &[Gemm], arrangement: ProductArrangement<'_>) -> bool {
    arrangement != ProductArrangement::SideBySide || gemms.len() == 1
}

/// The tiling of blocks that each add all terms.
fn choose_full_k(
    gemms: &[Gemm],
    arrangement: ProductArrangement<'_>,
    l: &KernelLowering<'_>,
) -> Option<MmaTiling> {
    let not_sequential = arrangement != ProductArrangement::Sequential;
    let extents = extents(gemms, arrangement);
    let multiprocessors = l.machine.multiprocessors;
    if !not_sequential && !PRODUCT_LIMITS.is_profitable_with_full_k(&extents, multiprocessors) {
        return None;
    }
    let (waves, lines) = PRODUCT_LIMITS.waves_and_columns(&extents, multiprocessors);
    let mut lines = usize::try_from(lines).ok()?;
    if is_sequential(gemms, arrangement) {
        lines = narrowest_tile(gemms, lines, multiprocessors as usize * usize::try_from(waves).ok()?);
    }
    // A machine with less shared memory holds fewer lines at once.
    while not_sequential && lines > 16 && ring_stages(&gemms[0], lines, 1, l).is_none() {
        lines = (lines / 2).next_multiple_of(8);
    }
    Some(MmaTiling { lines, split: 1 })
}

/// The smallest number of columns of a tile, from `columns` on, with at most this many tiles.
fn narrowest_tile(gemms: &[Gemm], mut columns: usize, tiles: usize) -> usize {
    while gemms.iter().map(|g| g.n.div_ceil(columns)).sum::<usize>() > tiles.max(gemms.len()) {
        columns += 8;
    }
    columns
}

/// The work of the blocks of [`mma`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MmaTiling {
    /// The number of lines of the right matrices.
    lines: usize,
    /// The number of blocks of a cluster, each with a share of K.
    split: usize,
}

impl MmaTiling {
    /// The time of a block, in units of 2.5 ns of an H200. For 8192 × 1280 with 1 to 64 rows, in tiles of 16
    /// to 96 columns and clusters of 1 to 8 blocks, the estimate is within a fifth. Memory delivers the right
    /// matrices at nine tenths of its peak. If blocks with all of K are already limited by that, as on an
    /// H100, clusters are slower.
    fn cost(self, gemms: &[Gemm], l: &KernelLowering<'_>) -> usize {
        let gemm = &gemms[0];
        let steps = gemm.k.div_ceil(TILE_K).div_ceil(self.split);
        let bytes = gemms.iter().map(|g| g.n * g.k * g.dtype.size()).sum::<usize>();
        let reading = (bytes * 4).checked_div(l.machine.bandwidth as usize * 9).unwrap_or(0);
        // Clusters have to be faster by a tenth.
        (steps * (3 * rows_of_tile(gemm) + 2 * self.lines)).max(reading) * if self.split > 1 { 10 } else { 9 }
    }
}

/// Split-K between the blocks of clusters. If K is long and columns are few, blocks with more columns and
/// less K have fewer stages; each stage has a fixed cost in addition to its bytes.
fn choose_split_k(gemms: &[Gemm], l: &KernelLowering<'_>) -> Option<MmaTiling> {
    let gemm = &gemms[0];
    if !l.machine.wgmma || (gemms.len() == 1 && gemm.m > MAX_SPLIT_ROWS) {
        return None;
    }
    let tilings = SPLIT_COUNTS.into_iter().filter_map(|split| {
        let lines = narrowest_tile(gemms, 8, clusters(l.machine.multiprocessors as usize, split));
        let fits = (PRODUCT_LIMITS.few_columns as usize..=PRODUCT_LIMITS.columns as usize).contains(&lines)
            && gemm.k >= split * MIN_SPLIT_K
            && ring_stages(gemm, lines, split, l).is_some();
        fits.then_some(MmaTiling { lines, split })
    });
    tilings.min_by_key(|tiling| tiling.cost(gemms, l))
}

/// The number of clusters that run concurrently. Not every GPC of the machine has a multiple of four
/// multiprocessors: with 132 multiprocessors, an H200 has 30 clusters of four blocks, and 15 of eight.
fn clusters(multiprocessors: usize, blocks: usize) -> usize {
    let usable = if blocks > 2 { multiprocessors * 10 / 11 } else { multiprocessors };
    (usable / blocks).max(1)
}

/// The number of rows that a block computes, including padding.
fn rows_of_tile(gemm: &Gemm) -> usize {
    gemm.m.next_power_of_two().clamp(16, MAX_ROWS)
}

/// The number of stages of a ring and their shared memory in bytes, if the smallest number fits.
fn ring_stages(gemm: &Gemm, lines: usize, split: usize, l: &KernelLowering<'_>) -> Option<(usize, usize)> {
    let stage = (lines + rows_of_tile(gemm)) * TILE_K * gemm.dtype.size();
    let [min, max] = STAGE_RANGE;
    let shared = l.machine.shared.saturating_sub(max * STAGE_BARRIERS);
    let steps = gemm.k.div_ceil(TILE_K).div_ceil(split);
    let stages = (shared / stage).min(max).min((steps + 2).max(min));
    (shared >= min * stage).then_some((stages, stages * (stage + STAGE_BARRIERS)))
}

/// The kernel with warp-group MMA and split-K between the two blocks of a cluster, which is faster above 16
/// rows (64 rows by a 3584 × 4096 matrix: 10.2 µs, 17.5 by [`mma`], 18.6 by the library).
fn by_wgmma(
    gemms: &[Gemm],
    arrangement: ProductArrangement<'_>,
    l: &KernelLowering<'_>,
) -> Option<SkinnyKernel> {
    let gemm = &gemms[0];
    let clusters = l.machine.multiprocessors as usize / 2;
    if !l.machine.wgmma
        || !PRODUCT_LIMITS.is_profitable_with_split_k(&extents(gemms, arrangement), l.machine.multiprocessors)
    {
        return None;
    }
    let lines_per_column = arrangement.lines_per_column(gemms);
    let columns = narrowest_tile(arrangement.sequential_products(gemms), 8, clusters);
    if columns * lines_per_column > PRODUCT_LIMITS.split_k.map_or(0, |s| s.columns as usize) {
        return None;
    }
    let lines = columns * lines_per_column;
    let rows = gemm.m.next_multiple_of(8);
    let stage = (lines + rows).max(MAX_ROWS) * WGMMA_TILE_K * gemm.dtype.size();
    // The sums of the other block, and the padding to a multiple of 1024.
    let other_bytes = lines.div_ceil(16) * 16 * WGMMA_WORKERS + 1024;
    let [min_stages, max_stages] = WGMMA_STAGES;
    let room = l.machine.shared.saturating_sub(other_bytes + (max_stages + 1) * STAGE_BARRIERS);
    let stages = (room / stage).min(max_stages);
    if stages < min_stages {
        return None;
    }
    Some(SkinnyKernel {
        call: "skinny_wgmma<@_L>(a, b, epilogue);",
        constants: format!(
            "static const int COLUMNS = {columns}, STAGES = {stages};\n{}",
            wgmma::declare_instruction(gemm.dtype, lines, [OperandMajor::Terms; 2])
        ),
        columns,
        split: 2,
        threads: WGMMA_THREADS,
        shared: stages * (stage + STAGE_BARRIERS) + STAGE_BARRIERS + other_bytes,
        boxes: Some([rows, columns]),
    })
}
