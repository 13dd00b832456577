//! Products of few rows, bound by reading the right matrix once.

use super::Lowering;
use super::gemm::{Gemm, Order};
use super::text::{self, stored};
use crate::launch::{Kernel, Work};

/// The most rows where the right matrix lies along the summed axis, and where it lies along the columns. On an
/// H200 a row of a 4096 × 7168 matrix takes 15 µs this way, 4 rows take 19 and 8 rows 27; the library takes about
/// 19 for any of them.
const MOST_ROWS: [usize; 2] = [2, 4];
/// Columns that a block computes where the right matrix lies along the columns.
const COLUMNS: usize = 32;

/// The launch, if this is a product of few rows in a layout that is read in accesses of 16 bytes.
pub(super) fn lower(gemm: &Gemm, l: &mut Lowering<'_>) -> Option<Work> {
    let size = gemm.dtype.size();
    let width = 16 / size;
    let along = usize::from(gemm.b.order == Order::Rows);
    let aligned = |at: u64, step: usize| at.is_multiple_of(16) && step.is_multiple_of(width);
    let fits = gemm.dtype.is_float()
        && size < 8
        && gemm.batch == 1
        && gemm.m <= MOST_ROWS[along]
        && gemm.a.order == Order::Rows
        && gemm.k >= 64
        && gemm.n >= 32
        && aligned(gemm.b.at, gemm.b.step);
    let whole = match gemm.b.order {
        Order::Columns => gemm.k.is_multiple_of(width) && aligned(gemm.a.at, gemm.a.step),
        Order::Rows => gemm.n.is_multiple_of(width),
    };
    if !fits || !whole {
        return None;
    }
    // One row is bound by the accesses in flight, more by reading the rows again for every column.
    let (call, threads, columns) = match gemm.b.order {
        Order::Columns if gemm.m == 1 => ("skinny_lines<sc::@_L, 1, 4>", 128, 1),
        Order::Columns => ("skinny_lines<sc::@_L, 4, 4>", 128, 4),
        Order::Rows => ("skinny_columns<sc::@_L, 16>", 512, COLUMNS),
    };
    let text = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T;\nstatic const int M = {}, V = {width};\nstatic const i64 N = {}, K = {}, a_step = {}, b_step = {}, c_step = {};\n}}; }}\n\
         extern \"C\" __global__ void __launch_bounds__({threads}) @(const void *a, const void *b, void *c) {{\n    sc::{call}(a, b, c);\n}}\n",
        stored(gemm.dtype),
        gemm.m,
        gemm.n,
        gemm.k,
        gemm.a.step,
        gemm.b.step,
        gemm.c.step,
    );
    l.preludes();
    l.source.prelude(text::SKINNY);
    Some(Work::Kernel(Kernel {
        entry: l.source.function("skinny", text),
        grid: [gemm.n.div_ceil(columns) as u32, 1, 1],
        block: [threads, 1, 1],
        shared: 0,
        params: vec![gemm.a.at.into(), gemm.b.at.into(), gemm.c.at.into()],
    }))
}
