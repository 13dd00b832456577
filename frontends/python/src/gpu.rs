//! Sessions on GPUs, where this build has them.

use pyo3::prelude::*;
use symmc::SessionConfig;

#[cfg(not(feature = "cuda"))]
use crate::error::refused;

/// The configuration of a session on the GPU of this number, on the host without one.
#[cfg(feature = "cuda")]
pub fn on_gpu(config: SessionConfig, gpu: Option<u32>) -> PyResult<SessionConfig> {
    Ok(match gpu {
        Some(gpu) => config.with_gpu(symmc::Gpu::new(gpu)),
        None => config,
    })
}

/// As above: no GPU can be named.
#[cfg(not(feature = "cuda"))]
pub fn on_gpu(config: SessionConfig, gpu: Option<u32>) -> PyResult<SessionConfig> {
    match gpu {
        Some(_) => Err(refused("this build of symmc has no GPUs: it was made without the feature `cuda`")),
        None => Ok(config),
    }
}
