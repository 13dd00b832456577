//! The target of compute steps.

use serde::{Deserialize, Serialize};

use crate::codegen::compile;
use crate::device::driver::{self, Device};
use crate::device::launch::Address;

pub const STATUS_BYTES: usize = 16;

/// The workspace bytes that matrix products use. Other steps declare their own needs
/// ([`workspace`](super::workspace)).
pub const GEMM_WORKSPACE: usize = 32 << 20;

/// The largest static shared memory of kernels.
const STATIC_SHARED: usize = 2048;

#[derive(Clone, Copy, Debug)]
pub struct KernelTarget {
    pub multiprocessors: u32,
    /// The peak memory bandwidth in GB/s; 0 if unknown.
    pub bandwidth: u32,
    /// A status word that the host reads: [`STATUS_BYTES`](super::STATUS_BYTES) of zeros at a multiple of 16.
    pub status: Address,
    /// Memory that one step at a time uses, at a multiple of 256.
    pub workspace: Address,
    /// Its size: at least [`GEMM_WORKSPACE`], and at least the [`workspace`](super::workspace) of every step.
    pub workspace_bytes: usize,
    /// The largest dynamic shared memory of a block in bytes.
    pub shared: usize,
    /// Whether warp-group MMA (WGMMA), TMA and clusters of blocks are available: compute capability 9.0, with
    /// a driver and a compiler that support them.
    pub wgmma: bool,
    /// Whether steps write to the memory of inputs.
    pub inputs: InputUse,
    pub attention: AlgorithmSelection,
}

impl KernelTarget {
    /// A GPU like those of the built-in profiles, without memory.
    pub(crate) const PROFILE_GPU: KernelTarget = KernelTarget {
        multiprocessors: 132,
        bandwidth: 4917,
        status: 1 << 16,
        workspace: 1 << 21,
        workspace_bytes: 0,
        shared: 225 << 10,
        wgmma: true,
        inputs: InputUse::Written,
        attention: AlgorithmSelection::Heuristic,
    };

    pub fn from_device(device: &Device) -> KernelTarget {
        KernelTarget {
            multiprocessors: device.multiprocessors(),
            bandwidth: device.bandwidth(),
            status: 0,
            workspace: 0,
            workspace_bytes: 0,
            shared: device.shared().saturating_sub(STATIC_SHARED),
            wgmma: device.capability() == [9, 0]
                && driver::cuda_version().is_ok_and(|v| v[0] >= 12)
                && compile::version().is_ok_and(|v| v >= compile::MIN_NVRTC_FOR_SM90A),
            inputs: InputUse::Written,
            attention: AlgorithmSelection::Heuristic,
        }
    }
}

/// How algorithms of matrix products and implementations of attention are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlgorithmSelection {
    /// The fastest of several, by measurement; cached on disk. Attention runs in generated kernels or cuDNN.
    #[default]
    Measured,
    /// The first one of the library's heuristic; attention by generated kernels.
    Heuristic,
}

/// How the steps of a program use the memory of its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputUse {
    /// They only read it, so a kernel may read it before the previous kernels have ended.
    Read,
    /// Some steps write to it.
    Written,
}
