//! Matrix products: the choice of kernel or library for each.
//!
//! Floats whose matrices have a unit stride use cuBLASLt ([`Gemm`]), as one product if the leading axes join
//! into one stride. Few rows (skinny GEMM, GEMV) use a kernel that reads the right matrix once. Integers and
//! other layouts use a generated kernel that supports any strides.

use smallvec::SmallVec;
use symmc_ir::DType;
use symmc_runtime::exec::LocatedTensor;

use super::gemm::{DeviceMatrix, Gemm, MatrixOrder};
use super::lowering::{KernelLowering, mismatch_error};
use super::skinny;
use super::space::{IterationAxis, Strides, broadcast, collapse};
use super::text::{self, computed_type, offset_function, stored_type};
use crate::codegen::command::{Commands, GpuCommand};
use crate::device::launch::{DevicePtr, KernelLaunch};
use crate::error::Result;

/// The largest number of library products for one step.
const MAX_PRODUCTS: usize = 64;
/// The rows and columns of the tile that a block of the generated kernel computes.
const TILE_EXTENT: usize = 64;

#[derive(Clone)]
struct ProductOperand {
    at: DevicePtr,
    /// The rows and the columns.
    matrix: [IterationAxis; 2],
    batch: Strides,
}

struct BatchedProduct {
    /// The dtype of the factors.
    dtype: DType,
    /// The dtype in which the right factor is stored.
    stored: DType,
    result_dtype: DType,
    batch: Vec<usize>,
    a: ProductOperand,
    b: ProductOperand,
    c: ProductOperand,
}

pub(super) fn lower(
    x: &LocatedTensor,
    y: &LocatedTensor,
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let mut p = product(x, y, result, l)?;
    if p.batch.contains(&0) || p.c.matrix.iter().any(|a| a.n == 0) {
        return Ok(Vec::new());
    }
    if p.a.matrix[1].n == 0 {
        let zero = symmc_ir::Op::Full(symmc_ir::Scalar::Int(0));
        return super::loops::lower_elements(&zero, &[], result, l);
    }
    fold(&mut p);
    if p.dtype.is_float()
        && let Some(products) = library_products(&p)
    {
        if let [one] = products[..]
            && let Some(work) = skinny::sequential_kernel(&[one], l.is_never_written(y), l)
        {
            return Ok(vec![work]);
        }
        if p.stored == p.dtype {
            return Ok(products.into_iter().map(GpuCommand::Gemm).collect());
        }
    }
    Ok(vec![tiled(&p, l)])
}

/// The product as a single library product, if possible, with the same rows as the result.
pub(super) fn single_library_product(
    x: &LocatedTensor,
    y: &LocatedTensor,
    result: &LocatedTensor,
    l: &KernelLowering<'_>,
) -> Result<Option<Gemm>> {
    let mut p = product(x, y, result, l)?;
    let empty = p.batch.contains(&0) || p.c.matrix.iter().any(|a| a.n == 0) || p.a.matrix[1].n == 0;
    fold(&mut p);
    let by_rows = matches!(order(&p.c.matrix), Some((MatrixOrder::Rows, _)));
    if empty || !p.dtype.is_float() || !by_rows {
        return Ok(None);
    }
    Ok(library_products(&p).and_then(|gemms| if let [one] = gemms[..] { Some(one) } else { None }))
}

fn product(
    x: &LocatedTensor,
    y: &LocatedTensor,
    result: &LocatedTensor,
    l: &KernelLowering<'_>,
) -> Result<BatchedProduct> {
    let rank = result.shape.len();
    let shape_error = || {
        let shapes = (x.shape.clone(), y.shape.clone(), result.shape.clone());
        mismatch_error("matmul", "[.., m, k], [.., k, n] and [.., m, n]", shapes)
    };
    let xr = x.shape.len();
    let yr = y.shape.len();
    if xr < 2 || yr < 2 || rank < 2 || !may_store(x.dtype, result.dtype) {
        return Err(shape_error());
    }
    if x.dtype != y.dtype && !y.dtype.is_stored_factor(x.dtype) {
        return Err(shape_error());
    }
    let fits = x.shape[xr - 1] == y.shape[yr - 2]
        && result.shape[rank - 2] == x.shape[xr - 2]
        && result.shape[rank - 1] == y.shape[yr - 1]
        && xr <= rank
        && yr <= rank;
    if !fits {
        return Err(shape_error());
    }
    let batch = result.shape[..rank - 2].to_vec();
    let [a, b, c] = [x, y, result].map(|v| {
        let outer = v.shape.len() - 2;
        ProductOperand {
            at: l.address_of(v),
            matrix: [IterationAxis::from_tensor(v, outer), IterationAxis::from_tensor(v, outer + 1)],
            batch: broadcast(&batch, &v.shape[..outer], &v.strides[..outer]),
        }
    });
    let mut out =
        BatchedProduct { dtype: x.dtype, stored: y.dtype, result_dtype: result.dtype, batch, a, b, c };
    collapse(&mut out.batch, &mut [&mut out.a.batch, &mut out.b.batch, &mut out.c.batch]);
    Ok(out)
}

/// Whether products of a dtype can be stored as `result`: rounded, or as sums in f32.
fn may_store(factors: DType, result: DType) -> bool {
    factors == result || factors.is_narrow_float() && result == factors.compute_dtype()
}

/// A batch of products with one right matrix is one product if the rows of the batch have one stride.
fn fold(p: &mut BatchedProduct) {
    while let Some(&n) = p.batch.last() {
        let last_axis = p.batch.len() - 1;
        let rows_join = [&p.a, &p.c].into_iter().all(|side| {
            let rows = side.matrix[0];
            rows.n == 1 || side.batch[last_axis] == rows.stride * rows.n as isize
        });
        if p.b.batch[last_axis] != 0 || !rows_join {
            return;
        }
        for side in [&mut p.a, &mut p.c] {
            let rows = side.matrix[0];
            let stride = if rows.n == 1 { side.batch[last_axis] } else { rows.stride };
            side.matrix[0] = IterationAxis { n: rows.n * n, stride };
            side.batch.truncate(last_axis);
        }
        p.b.batch.truncate(last_axis);
        p.batch.truncate(last_axis);
    }
}

/// The order of a matrix, if the library can read it.
fn order(matrix: &[IterationAxis; 2]) -> Option<(MatrixOrder, usize)> {
    let [rows, columns] = *matrix;
    if let Some(step) = line_step(columns, rows) {
        return Some((MatrixOrder::Rows, step));
    }
    line_step(rows, columns).map(|step| (MatrixOrder::Columns, step))
}

/// The distance between lines along `fast`, if the library can read them.
fn line_step(fast: IterationAxis, slow: IterationAxis) -> Option<usize> {
    let unit = fast.stride == 1 || fast.n == 1;
    let step = if slow.n == 1 { fast.n } else { usize::try_from(slow.stride).ok()? };
    (unit && step >= fast.n).then_some(step)
}

/// The product as library products; `None` if the library cannot read a layout, or there would be too many
/// calls.
fn library_products(p: &BatchedProduct) -> Option<Vec<Gemm>> {
    let mut a = p.a.clone();
    let mut b = p.b.clone();
    let mut c = p.c.clone();
    if order(&c.matrix)?.0 == MatrixOrder::Columns {
        // Only the right factor may have another dtype.
        if p.stored != p.dtype {
            return None;
        }
        // The transpose of the result is the product of the transposes in reverse order.
        std::mem::swap(&mut a, &mut b);
        [&mut a, &mut b, &mut c].into_iter().for_each(|s| s.matrix.swap(0, 1));
    }
    let inner_axis = p.batch.len().checked_sub(1);
    let template = Gemm {
        dtype: p.dtype,
        stored: p.stored,
        result_dtype: p.result_dtype,
        bias: None,
        m: c.matrix[0].n,
        n: c.matrix[1].n,
        k: a.matrix[1].n,
        batch: inner_axis.map_or(1, |l| p.batch[l]),
        a: device_matrix(&a, inner_axis)?,
        b: device_matrix(&b, inner_axis)?,
        c: device_matrix(&c, inner_axis)?,
    };
    let outer = &p.batch[..inner_axis.unwrap_or(0)];
    let count: usize = outer.iter().product();
    let largest = [
        template.m,
        template.n,
        template.k,
        template.batch,
        template.a.step,
        template.b.step,
        template.c.step,
    ];
    if count > MAX_PRODUCTS || largest.iter().any(|&n| n > i32::MAX as usize) || template.c.batch < 0 {
        return None;
    }
    let [size, stored_size, result_size] =
        [p.dtype, p.stored, p.result_dtype].map(|dtype| dtype.size() as i64);
    let mut gemms = Vec::with_capacity(count);
    for number in 0..count {
        let mut index = number;
        let mut gemm = template;
        for axis in (0..outer.len()).rev() {
            let i = (index % outer[axis]) as i64;
            index /= outer[axis];
            let sides =
                [(&mut gemm.a, &a, size), (&mut gemm.b, &b, stored_size), (&mut gemm.c, &c, result_size)];
            for (matrix, side, size) in sides {
                matrix.at = matrix.at.offset_by(i * side.batch[axis] as i64 * size);
            }
        }
        gemms.push(gemm);
    }
    Some(gemms)
}

fn device_matrix(side: &ProductOperand, batch_axis: Option<usize>) -> Option<DeviceMatrix> {
    let (order, step) = order(&side.matrix)?;
    let batch = batch_axis.map_or(0, |axis| side.batch[axis]);
    Some(DeviceMatrix { at: side.at, step, order, batch })
}

fn tiled(p: &BatchedProduct, l: &mut KernelLowering<'_>) -> GpuCommand {
    let [m, n] = p.c.matrix;
    let k = p.a.matrix[1].n;
    let batch: usize = p.batch.iter().product();
    let accumulated = computed_type(p.dtype);
    let mut out = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T; typedef {} B; typedef {} Out; typedef {accumulated} A;\nstatic const i64 M = {}, N = {}, K = {k};\n",
        stored_type(p.dtype),
        stored_type(p.stored),
        stored_type(p.result_dtype),
        m.n,
        n.n
    );
    for (name, side) in [("a", &p.a), ("b", &p.b), ("c", &p.c)] {
        let axes: SmallVec<[IterationAxis; 4]> =
            p.batch.iter().zip(&side.batch).map(|(&n, &stride)| IterationAxis { n, stride }).collect();
        out.push_str(&offset_function(&format!("{name}_batch"), &axes));
        let [rows, columns] = side.matrix;
        out.push_str(&format!(
            "SC_FN i64 {name}_at(i64 i, i64 j) {{ return i * {}ll + j * {}ll; }}\n",
            rows.stride, columns.stride
        ));
    }
    let tiles = n.n.div_ceil(TILE_EXTENT);
    out.push_str(&format!(
        "}}; }}\nextern \"C\" __global__ void __launch_bounds__(256) @(const void *a, const void *b, void *c) {{\n    symmc_enter();\n    \
         sc::product<sc::@_L, {tiles}>(a, b, c);\n}}\n"
    ));
    l.preludes();
    l.source.prelude(text::PRODUCT_SOURCE);
    let entry = l.source.function("product", out);
    // The batch is in x, the grid axis with the largest limit.
    let blocks = tiles * m.n.div_ceil(TILE_EXTENT) * batch;
    let params = vec![p.a.at.into(), p.b.at.into(), p.c.at.into()];
    GpuCommand::Kernel(KernelLaunch::flat(entry, blocks, 256, params))
}
