//! Grouped GEMM: products of groups of rows, each with a matrix of its own.
//!
//! How many rows a group has is known on the device only: a launch has as many blocks as any division of the rows may
//! need, and those that find no rows end. Halves in layouts that are copied 16 bytes at a time go by tensor cores,
//! everything else by the kernel of products of any layout.

use symmc_ir::DType;
use symmc_runtime::exec::Located;

use super::assertions::Fault;
use super::lowering::{Lowering, misfit};
use super::text::{self, computed, stored};
use crate::command::Command;
use crate::error::CudaError;
use crate::launch::{Kernel, Param};

/// Rows and columns of a tile of the kernel for any layout, and its threads.
const TILE: usize = 64;
const THREADS: u32 = 256;
/// By tensor cores: rows of a tile where groups have few rows or many, its columns, the K of a stage, threads.
const FEW_ROWS: usize = 16;
const MANY_ROWS: usize = 64;
const COLUMNS: usize = 128;
const TILE_K: usize = 64;
const TILE_THREADS: u32 = 128;
/// Stages that are filled while one is read, at most and at least.
const STAGES: [usize; 2] = [3, 2];

/// The kernel of a product, and its launch.
struct Config {
    call: String,
    rows: usize,
    columns: usize,
    threads: u32,
    shared: usize,
}

/// Operands: the rows, the matrices, the ends of the groups.
pub(super) fn lower(
    [x, y, ends]: [&Located; 3],
    result: &Located,
    l: &mut Lowering<'_>,
) -> Result<Vec<Command>, CudaError> {
    let ([rows, k], [groups, inner, n]) = (&x.shape[..], &y.shape[..]) else {
        return Err(misfit("grouped_matmul", "[rows, k] and [groups, k, n]", (&x.shape, &y.shape)));
    };
    let (rows, k, groups, n) = (*rows, *k, *groups, *n);
    let fits = k == *inner
        && ends.shape[..] == [groups]
        && result.shape[..] == [rows, n]
        && x.dtype == y.dtype
        && x.dtype == result.dtype
        && x.dtype.is_float();
    if !fits {
        return Err(misfit("the result of grouped_matmul", [rows, n], &result.shape));
    }
    let config = by_tensor_cores([x, y], l).unwrap_or_else(|| any(n));
    // Each piece that has rows, the groups and what lies behind them, may have one tile that is not full.
    let pieces = rows.min(groups + 1);
    let tiles = (rows + pieces * (config.rows - 1)) / config.rows;
    let blocks = tiles.max(1) * n.div_ceil(config.columns).max(1);
    let blocks = u32::try_from(blocks).ok().filter(|&b| b <= i32::MAX as u32);
    let blocks = blocks.ok_or_else(|| misfit("grouped_matmul", "fewer tiles", (rows, n)))?;
    let mut out = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T; typedef {} A; typedef {} I;\n\
         static const i64 R = {rows}, N = {n}, K = {k}, G = {groups}, b_group = {}ll, e_step = {}ll;\n",
        stored(x.dtype),
        computed(x.dtype),
        stored(ends.dtype),
        y.strides[0],
        ends.strides[0],
    );
    for (name, strides) in [("a", &x.strides[..]), ("b", &y.strides[1..]), ("c", &result.strides[..])] {
        out.push_str(&format!(
            "SC_FN i64 {name}_at(i64 i, i64 j) {{ return i * {}ll + j * {}ll; }}\n",
            strides[0], strides[1]
        ));
    }
    out.push_str(&format!(
        "}}; }}\nextern \"C\" __global__ void __launch_bounds__({}) @(const void *a, const void *b, const void *e, void *c, \
         void *status, unsigned assertion) {{\n    symmc_enter();\n    sc::{}(a, b, e, c, status, assertion);\n}}\n",
        config.threads, config.call
    ));
    l.preludes();
    for prelude in [text::MATRIX, text::PRODUCT, text::GROUPED] {
        l.source.prelude(prelude);
    }
    let assertion = l.assertion(Fault::GroupEnd { rows });
    let entry = l.source.function("grouped", out);
    let addresses = [l.at(x), l.at(y), l.at(ends), l.at(result), l.machine.status];
    let mut params: Vec<Param> = addresses.map(Param::from).to_vec();
    params.push(assertion.into());
    let kernel = Kernel::flat(entry, blocks as usize, config.threads as usize, params);
    Ok(vec![Command::Kernel(Kernel { shared: config.shared as u32, ..kernel })])
}

/// Any layout and type.
fn any(n: usize) -> Config {
    let tiles = n.div_ceil(TILE).max(1);
    let call = format!("grouped_product<sc::@_L, {tiles}>");
    Config { call, rows: TILE, columns: TILE, threads: THREADS, shared: 0 }
}

/// Tensor cores, where rows and matrices are halves that are copied 16 bytes at a time.
fn by_tensor_cores([x, y]: [&Located; 2], l: &Lowering<'_>) -> Option<Config> {
    let ([rows, k], [groups, _, n]) = (&x.shape[..], &y.shape[..]) else { return None };
    let eights = |stride: isize| stride > 0 && stride % 8 == 0;
    let by_terms = y.strides[1] == 1 && eights(y.strides[2]) && k % 8 == 0;
    let by_columns = y.strides[2] == 1 && eights(y.strides[1]) && n % 8 == 0;
    let aligned = |v: &Located| l.at(v).is_multiple_of(16);
    let fits = matches!(x.dtype, DType::BF16 | DType::F16)
        && (by_terms || by_columns)
        && k % 8 == 0
        && x.strides[1] == 1
        && (eights(x.strides[0]) || *rows == 1)
        && (eights(y.strides[0]) || *groups == 1)
        && aligned(x)
        && aligned(y);
    if !fits {
        return None;
    }
    let tile_rows = if *rows > 3 * FEW_ROWS / 2 * groups { MANY_ROWS } else { FEW_ROWS };
    let stage = (tile_rows + COLUMNS) * TILE_K * x.dtype.size();
    let stages = STAGES.into_iter().find(|stages| stages * stage <= l.machine.shared)?;
    let tiles = n.div_ceil(COLUMNS).max(1);
    let call = format!("grouped_tiles<sc::@_L, {tiles}, {tile_rows}, {stages}, {by_terms}>");
    Some(Config { call, rows: tile_rows, columns: COLUMNS, threads: TILE_THREADS, shared: stages * stage })
}
