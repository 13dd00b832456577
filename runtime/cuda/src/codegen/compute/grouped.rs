//! Grouped GEMM: products of groups of rows, each with its own matrix, or of two matrices whose K is divided
//! into groups.
//!
//! The number of rows of a group is known only on the device. A launch therefore has as many blocks as any
//! division of the rows may need; blocks without rows end at once. 16-bit floats in layouts that are copied
//! 16 bytes at a time use tensor cores, everything else the kernel for products of any layout.

use symmc_ir::DType;
use symmc_runtime::exec::LocatedTensor;

use super::assertions::AssertedFault;
use super::lowering::{KernelLowering, mismatch_error};
use super::text::{self, computed_type, stored_type};
use crate::codegen::command::{Commands, GpuCommand};
use crate::device::launch::{KernelLaunch, KernelParam};
use crate::error::Result;

/// The rows and columns of a tile of the kernel for any layout, and its threads.
const TILE: usize = 64;
const THREADS: u32 = 256;
/// For tensor cores: the rows of a tile if groups have few rows or many, its columns, the K of a stage,
/// threads.
const FEW_ROWS: usize = 16;
const MANY_ROWS: usize = 64;
const COLUMNS: usize = 128;
const TILE_K: usize = 64;
const TILE_THREADS: u32 = 128;
/// The largest and the smallest number of stages that are filled while one is read.
const STAGES: [usize; 2] = [3, 2];

/// The kernel of a product, and its launch parameters.
struct GroupedKernel {
    call: String,
    rows: usize,
    columns: usize,
    threads: u32,
    shared: usize,
}

/// The extents of a product of `m` rows by `n` columns, whose rows, or whose `k`, are divided into groups.
#[derive(Clone, Copy)]
struct GroupedSizes {
    m: usize,
    k: usize,
    n: usize,
    groups: usize,
    divide_k: bool,
}

impl GroupedSizes {
    fn from_operands([x, y, ends]: [&LocatedTensor; 3], result: &LocatedTensor) -> Result<Self> {
        let e = match (&x.shape[..], &y.shape[..], &ends.shape[..]) {
            (&[m, k], &[groups, inner, n], &[given]) if k == inner && groups == given => {
                GroupedSizes { m, k, n, groups, divide_k: false }
            }
            (&[m, k], &[inner, n], &[groups]) if k == inner => {
                GroupedSizes { m, k, n, groups, divide_k: true }
            }
            _ => {
                let expected = "[rows, k] and [groups, k, n], or [m, k] and [k, n], and [groups]";
                return Err(mismatch_error("grouped_matmul", expected, (&x.shape, &y.shape, &ends.shape)));
            }
        };
        let shape = if e.divide_k { vec![e.groups, e.m, e.n] } else { vec![e.m, e.n] };
        let fits = result.shape[..] == shape[..]
            && x.dtype == y.dtype
            && x.dtype == result.dtype
            && x.dtype.is_float();
        if fits { Ok(e) } else { Err(mismatch_error("the result of grouped_matmul", shape, &result.shape)) }
    }

    /// The number of tiles of `rows` rows that the worst division needs.
    fn tiles(self, rows: usize) -> usize {
        if self.divide_k {
            return self.groups * self.m.div_ceil(rows);
        }
        // Each piece that has rows (the groups and the rest after them) may have one partial tile.
        let pieces = self.m.min(self.groups + 1);
        (self.m + pieces * (rows - 1)) / rows
    }
}

/// The operands are the rows, the matrices and the ends of the groups; or two matrices and the ends.
pub(super) fn lower(
    operands: [&LocatedTensor; 3],
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let [x, y, ends] = operands;
    let e = GroupedSizes::from_operands(operands, result)?;
    let config = by_tensor_cores([x, y], e, l).unwrap_or_else(|| any_layout_kernel(e));
    let blocks = e.tiles(config.rows).max(1).checked_mul(e.n.div_ceil(config.columns).max(1));
    let blocks = blocks.and_then(|n| u32::try_from(n).ok()).filter(|&b| b <= i32::MAX as u32);
    let blocks = blocks.ok_or_else(|| mismatch_error("grouped_matmul", "fewer tiles", (e.m, e.n)))?;
    let rows = if e.divide_k { e.k } else { e.m };
    let [b_group, c_group] = [y, result].map(|v| if v.shape.len() == 3 { v.strides[0] } else { 0 });
    let mut out = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T; typedef {} A; typedef {} I;\n\
         static const i64 R = {rows}, M = {}, N = {}, K = {}, G = {}, b_group = {b_group}ll, c_group = {c_group}ll, e_step = {}ll;\n",
        stored_type(x.dtype),
        computed_type(x.dtype),
        stored_type(ends.dtype),
        e.m,
        e.n,
        e.k,
        e.groups,
        ends.strides[0],
    );
    for (name, v) in [("a", x), ("b", y), ("c", result)] {
        let strides = &v.strides[v.shape.len() - 2..];
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
    let assertion = l.assertion(AssertedFault::GroupEnd { rows });
    let entry = l.source.function("grouped", out);
    let mut params: Vec<KernelParam> = [x, y, ends, result].map(|value| l.address_of(value).into()).to_vec();
    params.extend([l.machine.status.into(), assertion.into()]);
    let kernel = KernelLaunch::flat(entry, blocks as usize, config.threads as usize, params);
    Ok(vec![GpuCommand::Kernel(KernelLaunch { shared: config.shared as u32, ..kernel })])
}

/// The kernel for any layout and type.
fn any_layout_kernel(e: GroupedSizes) -> GroupedKernel {
    let tiles = e.n.div_ceil(TILE).max(1);
    let name = if e.divide_k { "grouped_terms" } else { "grouped_product" };
    let call = format!("{name}<sc::@_L, {tiles}>");
    GroupedKernel { call, rows: TILE, columns: TILE, threads: THREADS, shared: 0 }
}

/// The tensor core kernel, if both operands are 16-bit floats that can be copied 16 bytes at a time. Groups
/// that divide K begin at any term, so the terms of a line must not be adjacent then.
fn by_tensor_cores(
    [x, y]: [&LocatedTensor; 2],
    e: GroupedSizes,
    l: &KernelLowering<'_>,
) -> Option<GroupedKernel> {
    // Whether the elements along the first of two axes are adjacent, in whole pieces.
    let side_by_side =
        |[along, other]: [isize; 2], n: usize| along == 1 && in_eights(other) && n.is_multiple_of(8);
    let last = &y.strides[y.shape.len() - 2..];
    let by_terms = side_by_side([last[0], last[1]], e.k);
    let by_columns = side_by_side([last[1], last[0]], e.n);
    let laid_out = if e.divide_k {
        by_columns && side_by_side([x.strides[0], x.strides[1]], e.m)
    } else {
        let rows = x.strides[1] == 1 && (in_eights(x.strides[0]) || e.m == 1) && e.k.is_multiple_of(8);
        rows && (by_terms || by_columns) && (in_eights(y.strides[0]) || e.groups == 1)
    };
    let aligned = [x, y].into_iter().all(|v| l.address_of(v).is_multiple_of(16));
    if !matches!(x.dtype, DType::BF16 | DType::F16) || !laid_out || !aligned {
        return None;
    }
    let many = e.divide_k || e.m > 3 * FEW_ROWS / 2 * e.groups;
    let rows = if many { MANY_ROWS } else { FEW_ROWS };
    let stage = (rows + COLUMNS) * TILE_K * x.dtype.size();
    let stages = STAGES.into_iter().find(|stages| stages * stage <= l.machine.shared)?;
    let tiles = e.n.div_ceil(COLUMNS).max(1);
    let call = if e.divide_k {
        format!("grouped_terms_tiles<sc::@_L, {tiles}, {rows}, {stages}>")
    } else {
        format!("grouped_tiles<sc::@_L, {tiles}, {rows}, {stages}, {by_terms}>")
    };
    Some(GroupedKernel { call, rows, columns: COLUMNS, threads: TILE_THREADS, shared: stages * stage })
}

fn in_eights(stride: isize) -> bool {
    stride > 0 && stride % 8 == 0
}
