//! What compute steps are lowered for.

use crate::codegen::compile;
use crate::device::driver::{self, Device};
use crate::device::launch::Address;

pub const STATUS_BYTES: usize = 16;

/// Bytes of workspace that matrix products want; other steps say what they need ([`workspace`](super::workspace)).
pub const GEMM_WORKSPACE: usize = 32 << 20;

/// The most shared memory that kernels have beside the dynamic one.
const STATIC_SHARED: usize = 2048;

#[derive(Clone, Copy, Debug)]
pub struct KernelTarget {
    pub multiprocessors: u32,
    /// The peak bandwidth of its memory in GB/s; 0 where nobody knows.
    pub bandwidth: u32,
    /// A status word that the host reads: [`STATUS_BYTES`] of zeros at a multiple of 16.
    pub status: Address,
    /// Memory that one step at a time uses, at a multiple of 256.
    pub workspace: Address,
    /// Its size: at least [`GEMM_WORKSPACE`] and [`workspace`](super::workspace) of every step.
    pub workspace_bytes: usize,
    /// Bytes of dynamic shared memory that a block may have.
    pub shared: usize,
    /// Whether there are warp-group MMA (WGMMA), TMA and clusters of blocks: compute capability 9.0, with a driver and a
    /// compiler that know them.
    pub wgmma: bool,
    /// What steps write among the memory of inputs.
    pub inputs: InputUse,
    pub attention: AttentionBackend,
}

impl KernelTarget {
    /// A GPU like those of the built-in profiles, without any memory.
    pub(crate) const PROFILE_GPU: KernelTarget = KernelTarget {
        multiprocessors: 132,
        bandwidth: 4917,
        status: 1 << 16,
        workspace: 1 << 21,
        workspace_bytes: 0,
        shared: 225 << 10,
        wgmma: true,
        inputs: InputUse::Written,
        attention: AttentionBackend::Kernels,
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
                && compile::version().is_ok_and(|v| v >= compile::LEAST_FOR_OWN),
            inputs: InputUse::Written,
            attention: AttentionBackend::Kernels,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttentionBackend {
    Kernels,
    /// Generated kernels or cuDNN, as is chosen when a program is loaded.
    Measured,
}

/// What the steps of a program do with the memory of its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputUse {
    /// They only read it, so a kernel may read it before the kernels in front of it have ended.
    Read,
    /// Some write to it.
    Written,
}
