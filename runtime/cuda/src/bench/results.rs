//! The configuration and the results of measurements.

use serde::{Deserialize, Serialize};

/// The measurements to make. By default there are none; `with_…` methods add them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BenchConfig {
    /// The larger side of each collective, in bytes.
    pub bytes: Vec<usize>,
    pub dtype: String,
    /// The number of counted replays of each graph.
    pub replays: usize,
    /// All-reduces with a residual and a norm: rows, and elements of a row.
    pub norms: Vec<[usize; 2]>,
    /// The block limits with which kernels of collectives are tried; if empty, only their default.
    pub blocks: Vec<u32>,
}

impl Default for BenchConfig {
    fn default() -> Self {
        BenchConfig { bytes: vec![], dtype: "bf16".into(), replays: 20, norms: vec![], blocks: vec![] }
    }
}

impl BenchConfig {
    /// Sets the larger sides of collectives, in bytes.
    pub fn with_bytes(self, bytes: impl Into<Vec<usize>>) -> BenchConfig {
        BenchConfig { bytes: bytes.into(), ..self }
    }

    pub fn with_dtype(self, dtype: impl Into<String>) -> BenchConfig {
        BenchConfig { dtype: dtype.into(), ..self }
    }

    /// Sets the number of counted replays of each graph.
    pub fn with_replays(self, replays: usize) -> BenchConfig {
        BenchConfig { replays, ..self }
    }

    /// Sets all-reduces with a residual and a norm: rows, and elements of a row.
    pub fn with_norms(self, norms: impl Into<Vec<[usize; 2]>>) -> BenchConfig {
        BenchConfig { norms: norms.into(), ..self }
    }

    /// Sets the block limits with which kernels of collectives are tried.
    pub fn with_blocks(self, blocks: impl Into<Vec<u32>>) -> BenchConfig {
        BenchConfig { blocks: blocks.into(), ..self }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MeasuredCollective {
    pub collective: String,
    pub variant: String,
    /// For a variant whose exit barrier can be dropped: whether it was kept.
    pub exit: Option<bool>,
    /// The larger side in bytes.
    pub bytes: usize,
    /// The block limit of its kernel, if one was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u32>,
    /// Microseconds: minimum, median, maximum. `None` if it cannot run.
    pub us: Option<[f64; 3]>,
    /// The description of a wrong result, or the reason why it cannot run.
    pub failed: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurements {
    /// The GPU, the driver and NCCL, with their versions.
    pub machine: String,
    pub multiprocessors: u32,
    /// Copies within the memory of one rank: bytes, and the minimum, median and maximum microseconds.
    pub copies: Vec<(usize, [f64; 3])>,
    pub collectives: Vec<MeasuredCollective>,
    pub norms: Vec<MeasuredNorm>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MeasuredNorm {
    pub rows: usize,
    /// The number of elements of a row.
    pub hidden: usize,
    pub how: NormImplementation,
    /// Microseconds: minimum, median, maximum. `None` if it cannot run.
    pub us: Option<[f64; 3]>,
    /// The description of a wrong result, or the reason why it cannot run.
    pub failed: Option<String>,
}

/// How the three steps are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormImplementation {
    Fused,
    Separate,
}
