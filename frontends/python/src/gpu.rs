//! Sessions on GPUs, if this build supports them.

use pyo3::prelude::*;
use symmc::SessionConfig;

use crate::error::input_error;

/// Converts the number of a GPU.
pub fn gpu_number(gpu: Option<i128>) -> PyResult<Option<u32>> {
    let number = |n| u32::try_from(n).ok().filter(|&n| n <= i32::MAX as u32);
    gpu.map(|n| number(n).ok_or_else(|| input_error(format!("gpu: expected the number of a GPU, found {n}"))))
        .transpose()
}

/// The configuration of a session on the GPU with this number, or on the host for `None`.
#[cfg(feature = "cuda")]
pub fn on_gpu(config: SessionConfig, gpu: Option<u32>) -> PyResult<SessionConfig> {
    Ok(match gpu {
        Some(gpu) => config.with_gpu(symmc::GpuConfig::new(gpu)),
        None => config,
    })
}

/// In a build without support for GPUs every number is an error.
#[cfg(not(feature = "cuda"))]
pub fn on_gpu(config: SessionConfig, gpu: Option<u32>) -> PyResult<SessionConfig> {
    match gpu {
        Some(_) => Err(input_error("this build of symmc does not support GPUs: it lacks the feature `cuda`")),
        None => Ok(config),
    }
}
