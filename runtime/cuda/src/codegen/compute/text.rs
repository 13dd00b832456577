//! Pieces of CUDA C: type names, literals, offsets of multi-dimensional positions.

use std::fmt::Write as _;

use symmc_ir::tensor::{write_f64, write_i64};
use symmc_ir::{DType, Scalar};

use super::space::IterationAxis;

/// Machine instructions.
pub(super) const PTX_SOURCE: &str = include_str!("kernels/ptx.cuh");
/// Declarations that all kernels need.
pub(super) const BASE_SOURCE: &str = include_str!("kernels/base.cuh");
/// Reductions, softmax and norms.
pub(super) const ROWS_SOURCE: &str = include_str!("kernels/rows.cuh");

/// Matrix products of any layout.
pub(super) const PRODUCT_SOURCE: &str = include_str!("kernels/product.cuh");
/// Selection of elements of short rows.
pub(super) const SELECTION_SOURCE: &str = include_str!("kernels/selection.cuh");
/// Grouped GEMM: products of groups of rows.
pub(super) const GROUPED_SOURCE: &str = include_str!("kernels/grouped.cuh");
/// Grouped GEMM by warp-group MMA.
pub(super) const GROUPED_WGMMA_SOURCE: &str = include_str!("kernels/grouped_wgmma.cuh");
/// GEMV, and skinny GEMM of up to four rows.
pub(super) const SKINNY_SOURCE: &str = include_str!("kernels/skinny.cuh");
/// Skinny GEMM by tensor cores with right matrices of 8 bits.
pub(super) const STORED_SOURCE: &str = include_str!("kernels/stored.cuh");
/// Skinny GEMM by tensor cores.
pub(super) const MMA_SOURCE: &str = include_str!("kernels/mma.cuh");
/// Skinny GEMM by warp-group MMA, with TMA and split-K.
pub(super) const WGMMA_SOURCE: &str = include_str!("kernels/wgmma.cuh");
/// MMA instructions by dtype.
pub(super) const MATRIX_SOURCE: &str = include_str!("kernels/matrix.cuh");
pub(super) const ATTENTION_SOURCE: &str = include_str!("kernels/attention.cuh");
pub(super) const ATTENTION_GRADIENT_SOURCE: &str = include_str!("kernels/attention_gradient.cuh");
/// Attention by tensor cores.
pub(super) const TENSOR_SOURCE: &str = include_str!("kernels/tensor.cuh");
/// Attention of few rows, as in decoding.
pub(super) const DECODE_SOURCE: &str = include_str!("kernels/decode.cuh");
pub(super) const ROTARY_SOURCE: &str = include_str!("kernels/rotary.cuh");
/// Stores at positions from data.
pub(super) const SCATTER_SOURCE: &str = include_str!("kernels/scatter.cuh");
/// Sorting of integers below 2^32 with their positions.
pub(super) const RADIX_SOURCE: &str = include_str!("kernels/radix.cuh");
pub(super) const SORT_SOURCE: &str = include_str!("kernels/sort.cuh");
/// Routing of tokens to experts.
pub(super) const ROUTE_SOURCE: &str = include_str!("kernels/route.cuh");

/// The type of a stored element.
pub(super) fn stored_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "boolean",
        DType::U8 => "u8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::I8 => "signed char",
        DType::I16 => "short",
        DType::I32 => "int",
        DType::I64 => "i64",
        DType::F8E4M3 => "f8e4m3",
        DType::F8E5M2 => "f8e5m2",
        DType::F8E8M0 => "f8e8m0",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// The type of an element that is only moved.
pub(super) fn moved_type(dtype: DType) -> &'static str {
    match dtype.size() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

/// The type in which an element is computed.
pub(super) fn computed_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        dtype if dtype.is_float() => "float",
        _ => "i64",
    }
}

pub(super) fn bits(dtype: DType, scalar: Scalar) -> u64 {
    let mut bytes = [0u8; 8];
    match scalar {
        Scalar::Float(x) if dtype.is_float() || dtype == DType::Bool => write_f64(dtype, &mut bytes, 0, x.0),
        _ if dtype.is_float() => write_f64(dtype, &mut bytes, 0, scalar.as_f64()),
        _ => write_i64(dtype, &mut bytes, 0, scalar.as_i64()),
    }
    u64::from_le_bytes(bytes)
}

/// A float literal of the type in which a dtype is computed.
pub(super) fn float_literal(dtype: DType, x: f64) -> String {
    match dtype {
        DType::F64 => format!("__longlong_as_double((i64)0x{:x}ull)", x.to_bits()),
        _ => format!("__uint_as_float(0x{:x}u)", (x as f32).to_bits()),
    }
}

/// A kernel of blocks of this many threads that only calls a function of the namespace `sc`.
pub(super) fn calling_kernel(threads: usize, parameters: &str, call: &str) -> String {
    format!(
        "extern \"C\" __global__ void __launch_bounds__({threads}) @({parameters}) {{\n    symmc_enter();\n    sc::{call};\n}}\n"
    )
}

pub(super) fn int_literal(x: i64) -> String {
    match x {
        i64::MIN => "(i64)0x8000000000000000ull".into(),
        _ => format!("{x}ll"),
    }
}

/// A function of this name that returns the offset of position `at` in row-major order along the axes.
pub(super) fn offset_function(name: &str, axes: &[IterationAxis]) -> String {
    let axes: Vec<_> = axes.iter().filter(|a| a.n != 1).collect();
    let mut out = format!("SC_FN i64 {name}(i64 at) {{ ");
    // A position that fits 32 bits is divided in 32 bits, which compiles to a multiplication and a shift.
    let small = axes.iter().map(|a| a.n).product::<usize>() <= u32::MAX as usize;
    out.push_str(if small { "u32 i = (u32)at; " } else { "u64 i = (u64)at; " });
    out.push_str("i64 o = 0; ");
    for (position, axis) in axes.iter().enumerate().rev() {
        if axis.stride != 0 {
            let index = if position == 0 { "i".to_string() } else { format!("(i % {}u)", axis.n) };
            let _ = write!(out, "o += (i64){index} * {}; ", int_literal(axis.stride as i64));
        }
        if position > 0 {
            let _ = write!(out, "i /= {}u; ", axis.n);
        }
    }
    out.push_str("return o; }\n");
    out
}
