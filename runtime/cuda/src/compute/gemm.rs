//! Matrix products by cuBLASLt.

/// A matrix product.
#[derive(Clone, PartialEq, Debug)]
pub struct Gemm {}
