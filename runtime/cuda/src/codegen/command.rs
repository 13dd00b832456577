//! What a step becomes on a device: launches and calls of libraries with every size, address and constant fixed.
//!
//! A [`GpuCommand`] is made once for each binding and recorded into a graph, so nothing here is fast or slow by itself.

use crate::codegen::compute::gemm::Gemm;
use crate::codegen::compute::library_attention::AttentionCandidates;
use crate::device::launch::{DevicePtr, KernelLaunch};
use crate::error::Result;
use crate::nccl::call::NcclCall;

/// What the lowering of a step gives.
pub type Commands = Result<Vec<GpuCommand>>;

/// Something to be done on a stream, after what was recorded there before.
#[derive(Clone, PartialEq, Debug)]
pub enum GpuCommand {
    Kernel(KernelLaunch),
    /// A matrix product by the vendor's library.
    Gemm(Gemm),
    /// Attention by the vendor's library or by kernels, as is chosen when the program is loaded.
    Attention(Box<AttentionCandidates>),
    /// A collective by the vendor's library.
    Nccl(NcclCall),
    /// Copies bytes; the two ranges do not overlap.
    Copy {
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
    },
    Store {
        /// Where, at a multiple of 4.
        at: DevicePtr,
        word: u32,
    },
    Zero {
        at: DevicePtr,
        bytes: usize,
    },
}
