//! Grouped GEMM: products of groups of rows, each with its own matrix, or of two matrices whose K is divided
//! into groups.
//!
//! The number of rows of a group is known only on the device. 16-bit floats in layouts that are copied 16
//! bytes at a time use tensor cores: with warp-group MMA in persistent blocks, which compute as many tiles as
//! there are, or with MMA. Everything else uses the kernel for products of any layout. A launch of the last
//! two has as many blocks as any division of the rows may need; blocks without rows end at once.

use symmc_ir::DType;
use symmc_runtime::exec::LocatedTensor;

use super::assertions::AssertedFault;
use super::grouped_tiling::{GroupedSizes, ResultStores, TILE_K, WGMMA_THREADS, WgmmaTiling};
use super::lowering::{KernelLowering, mismatch_error};
use super::text::{self, computed_type, stored_type};
use super::wgmma::{self, OperandMajor};
use crate::codegen::command::{Commands, GpuCommand};
use crate::device::launch::{KernelLaunch, KernelParam, TensorMap};

/// The rows and columns of a tile of the kernel for any layout, and its threads.
const TILE_EXTENT: usize = 64;
const THREADS_PER_BLOCK: u32 = 256;
/// For MMA: the rows of a tile if groups have few rows or many, its columns, threads.
const FEW_ROWS: usize = 16;
const MANY_ROWS: usize = 64;
const COLUMNS_PER_TILE: usize = 128;
const TILE_THREADS: u32 = 128;
/// The largest and the smallest number of stages that are filled while one is read.
const STAGE_COUNTS: [usize; 2] = [3, 2];

/// For warp-group MMA: the rows of a box of lines, and of a box of the result; the most columns of tiles that
/// are computed before the next row of tiles, so that concurrent blocks share rows and columns.
const BOX_ROWS: usize = 64;
const RESULT_BOX_ROWS: usize = 16;
const TILES_PER_BAND: usize = 8;

/// The kernel of a product, and its launch parameters.
struct GroupedKernel {
    /// The function, without its arguments.
    function: String,
    /// Constants in addition to those of the product.
    constants: String,
    matrices: MatrixParams,
    blocks: Option<usize>,
    threads: u32,
    shared: usize,
}

/// How a kernel receives the operands. All kernels receive the addresses of the ends and of the result.
enum MatrixParams {
    Addresses,
    /// The maps of both operands, and that of the result if it is stored by TMA.
    Maps {
        operands: Box<[TensorMap; 2]>,
        result: Option<Box<TensorMap>>,
    },
}

impl MatrixParams {
    /// The declaration of the parameters, the arguments of the function, and the statement before its call.
    fn text(&self) -> [&'static str; 3] {
        match self {
            MatrixParams::Addresses => ["const void *a, const void *b", "a, b", "symmc_enter();\n    "],
            MatrixParams::Maps { result: None, .. } => [
                "const __grid_constant__ sc::TensorMap a, const __grid_constant__ sc::TensorMap b",
                "a, b, 0",
                "",
            ],
            MatrixParams::Maps { result: Some(_), .. } => [
                "const __grid_constant__ sc::TensorMap a, const __grid_constant__ sc::TensorMap b, \
                 const __grid_constant__ sc::TensorMap c_map",
                "a, b, &c_map",
                "",
            ],
        }
    }

    fn params(self, [x, y]: [&LocatedTensor; 2], l: &KernelLowering<'_>) -> Vec<KernelParam> {
        match self {
            MatrixParams::Addresses => [x, y].map(|value| l.address_of(value).into()).to_vec(),
            MatrixParams::Maps { operands, result } => {
                let operands = operands.into_iter().map(Box::new);
                operands.chain(result).map(KernelParam::Map).collect()
            }
        }
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
    let config = by_tensor_cores([x, y], result, e, l).unwrap_or_else(|| any_layout_kernel(e));
    let blocks = config.blocks.and_then(|n| u32::try_from(n).ok()).filter(|&b| b <= i32::MAX as u32);
    let blocks = blocks.ok_or_else(|| mismatch_error("grouped_matmul", "fewer tiles", (e.m, e.n)))?;
    let rows = if e.divide_k { e.k } else { e.m };
    let [b_group, c_group] = [y, result].map(|v| if v.shape.len() == 3 { v.strides[0] } else { 0 });
    let mut out = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T; typedef T B; typedef T Out; typedef {} A; typedef {} I;\n\
         static const i64 R = {rows}, M = {}, N = {}, K = {}, G = {}, b_group = {b_group}ll, c_group = {c_group}ll, e_step = {}ll;\n{}",
        stored_type(x.dtype),
        computed_type(x.dtype),
        stored_type(ends.dtype),
        e.m,
        e.n,
        e.k,
        e.groups,
        ends.strides[0],
        config.constants,
    );
    for (name, v) in [("a", x), ("b", y), ("c", result)] {
        let strides = &v.strides[v.shape.len() - 2..];
        out.push_str(&format!(
            "SC_FN i64 {name}_at(i64 i, i64 j) {{ return i * {}ll + j * {}ll; }}\n",
            strides[0], strides[1]
        ));
    }
    let [declared, matrices, enter] = config.matrices.text();
    out.push_str(&format!(
        "}}; }}\nextern \"C\" __global__ void __launch_bounds__({}) @({declared}, const void *e, void *c, \
         void *status, unsigned assertion) {{\n    {enter}sc::{}({matrices}, e, c, status, assertion);\n}}\n",
        config.threads, config.function
    ));
    l.preludes();
    for prelude in
        [text::MATRIX_SOURCE, text::PRODUCT_SOURCE, text::GROUPED_SOURCE, text::GROUPED_WGMMA_SOURCE]
    {
        l.source.prelude(prelude);
    }
    let assertion = l.assertion(AssertedFault::GroupEnd { rows });
    let entry = l.source.function("grouped", out);
    let mut params = config.matrices.params([x, y], l);
    params.extend([ends, result].map(|value| KernelParam::from(l.address_of(value))));
    params.extend([l.machine.status.into(), assertion.into()]);
    let kernel = KernelLaunch::flat(entry, blocks as usize, config.threads as usize, params);
    Ok(vec![GpuCommand::Kernel(KernelLaunch { shared: config.shared as u32, ..kernel })])
}

/// The number of blocks with one tile each.
fn blocks(e: GroupedSizes, rows: usize, columns: usize) -> Option<usize> {
    e.tiles(rows).max(1).checked_mul(e.n.div_ceil(columns).max(1))
}

/// The kernel for any layout and type.
fn any_layout_kernel(e: GroupedSizes) -> GroupedKernel {
    let tiles = e.n.div_ceil(TILE_EXTENT).max(1);
    let name = if e.divide_k { "grouped_terms" } else { "grouped_product" };
    GroupedKernel {
        function: format!("{name}<sc::@_L, {tiles}>"),
        constants: String::new(),
        matrices: MatrixParams::Addresses,
        blocks: blocks(e, TILE_EXTENT, TILE_EXTENT),
        threads: THREADS_PER_BLOCK,
        shared: 0,
    }
}

/// A tensor core kernel, if both operands are 16-bit floats that can be copied 16 bytes at a time.
fn by_tensor_cores(
    operands: [&LocatedTensor; 2],
    result: &LocatedTensor,
    e: GroupedSizes,
    l: &KernelLowering<'_>,
) -> Option<GroupedKernel> {
    let majors = operand_majors(operands, e, l)?;
    by_wgmma(operands, result, e, majors, l).or_else(|| by_mma(operands[0].dtype, e, majors, l))
}

/// Which elements of both operands are adjacent, in whole pieces of 16 bytes. Groups that divide K begin at any
/// term, so the terms of a line must not be adjacent then.
fn operand_majors(
    [x, y]: [&LocatedTensor; 2],
    e: GroupedSizes,
    l: &KernelLowering<'_>,
) -> Option<[OperandMajor; 2]> {
    let matrix_strides = &y.strides[y.shape.len() - 2..];
    let by_terms = are_adjacent([matrix_strides[0], matrix_strides[1]], e.k);
    let by_columns = are_adjacent([matrix_strides[1], matrix_strides[0]], e.n);
    let aligned = [x, y].into_iter().all(|v| l.address_of(v).is_multiple_of(16));
    if !matches!(x.dtype, DType::BF16 | DType::F16) || !aligned {
        return None;
    }
    if e.divide_k {
        let fits = by_columns && are_adjacent([x.strides[0], x.strides[1]], e.m);
        return fits.then_some([OperandMajor::Lines; 2]);
    }
    let rows = x.strides[1] == 1 && (in_eights(x.strides[0]) || e.m == 1) && e.k.is_multiple_of(8);
    let fits = rows && (by_terms || by_columns) && (in_eights(y.strides[0]) || e.groups == 1);
    fits.then_some([OperandMajor::Terms, if by_terms { OperandMajor::Terms } else { OperandMajor::Lines }])
}

/// Whether the `n` elements along the first of two axes are adjacent, in whole pieces of 16 bytes.
fn are_adjacent([along, other]: [isize; 2], n: usize) -> bool {
    along == 1 && in_eights(other) && n.is_multiple_of(8)
}

fn in_eights(stride: isize) -> bool {
    stride > 0 && stride % 8 == 0
}

/// The kernel with warp-group MMA.
fn by_wgmma(
    [x, y]: [&LocatedTensor; 2],
    result: &LocatedTensor,
    e: GroupedSizes,
    majors: [OperandMajor; 2],
    l: &KernelLowering<'_>,
) -> Option<GroupedKernel> {
    let matrix_strides = &result.strides[result.shape.len() - 2..];
    let planes_fit = !e.divide_k || in_eights(result.strides[0]);
    let wide_result = are_adjacent([matrix_strides[1], matrix_strides[0]], e.n)
        && planes_fit
        && l.address_of(result).is_multiple_of(16);
    let stores = if wide_result { ResultStores::Eights } else { ResultStores::Single };
    let tiling = WgmmaTiling::choose(e, stores, &l.machine)?;
    let WgmmaTiling { columns, stages, stores_boxes, shared, blocks } = tiling;
    let of_terms = majors.map(|major| major == OperandMajor::Terms);
    let constants = format!(
        "static const int COLUMNS = {columns}, STAGES = {stages}, BAND = {TILES_PER_BAND};\n\
         static const bool DIVIDE_K = {}, A_K_MAJOR = {}, B_K_MAJOR = {}, C_WIDE = {wide_result}, C_BOXES = {stores_boxes};\n\
         SC_FN void enter() {{ symmc_enter(); }}\n{}",
        e.divide_k,
        of_terms[0],
        of_terms[1],
        wgmma::declare_instruction(x.dtype, columns, majors),
    );
    let bytes = |stride: isize| stride.unsigned_abs() * x.dtype.size();
    // The matrix of a plane, from which boxes of this many lines, or of as many terms as a stage has, are loaded.
    let map = |value: &LocatedTensor, extents: [usize; 2], strides: [isize; 2], major, lines| {
        let address = l.address_of(value);
        match major {
            OperandMajor::Terms => TensorMap::new(address, extents, bytes(strides[0]), lines),
            OperandMajor::Lines => {
                TensorMap::new(address, [extents[1], extents[0]], bytes(strides[1]), TILE_K)
            }
        }
    };
    let x_row = if in_eights(x.strides[0]) { x.strides[0] } else { e.k as isize };
    let rows = map(x, [e.m, e.k], [x_row, x.strides[1]], majors[0], BOX_ROWS);
    let [y_k, y_n] = [y.strides[y.shape.len() - 2], y.strides[y.shape.len() - 1]];
    let matrices = map(y, [e.n, e.k], [y_n, y_k], majors[1], columns);
    // The step between planes does not matter if there is only one.
    let planes = |v: &LocatedTensor| match v.shape[..] {
        [planes, _, _] if planes > 1 => [planes, bytes(v.strides[0])],
        _ => [1, 16],
    };
    let [y_planes, c_planes] = [planes(y), planes(result)];
    let result = stores_boxes.then(|| {
        let map = TensorMap::new(l.address_of(result), [e.m, e.n], bytes(matrix_strides[0]), RESULT_BOX_ROWS);
        Box::new(map.with_planes(c_planes[0], c_planes[1]))
    });
    Some(GroupedKernel {
        function: "grouped_wgmma<sc::@_L>".into(),
        constants,
        matrices: MatrixParams::Maps {
            operands: Box::new([rows, matrices.with_planes(y_planes[0], y_planes[1])]),
            result,
        },
        blocks: Some(blocks),
        threads: WGMMA_THREADS,
        shared,
    })
}

/// The kernel with MMA.
fn by_mma(
    dtype: DType,
    e: GroupedSizes,
    majors: [OperandMajor; 2],
    l: &KernelLowering<'_>,
) -> Option<GroupedKernel> {
    let many = e.divide_k || e.m > 3 * FEW_ROWS / 2 * e.groups;
    let rows = if many { MANY_ROWS } else { FEW_ROWS };
    let stage = (rows + COLUMNS_PER_TILE) * TILE_K * dtype.size();
    let stages = STAGE_COUNTS.into_iter().find(|stages| stages * stage <= l.machine.shared)?;
    let tiles = e.n.div_ceil(COLUMNS_PER_TILE).max(1);
    let function = if e.divide_k {
        format!("grouped_terms_tiles<sc::@_L, {tiles}, {rows}, {stages}>")
    } else {
        let by_terms = majors[1] == OperandMajor::Terms;
        format!("grouped_tiles<sc::@_L, {tiles}, {rows}, {stages}, {by_terms}>")
    };
    Some(GroupedKernel {
        function,
        constants: String::new(),
        matrices: MatrixParams::Addresses,
        blocks: blocks(e, rows, COLUMNS_PER_TILE),
        threads: TILE_THREADS,
        shared: stages * stage,
    })
}
