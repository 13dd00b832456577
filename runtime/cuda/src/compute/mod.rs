//! Compute steps on a device.

pub mod gemm;
