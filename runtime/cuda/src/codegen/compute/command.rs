//! The commands of a step on a device: launches and library calls with every size, address and constant
//! fixed.
//!
//! A [`GpuCommand`] is made once per binding and recorded into a graph, so its own speed does not matter.

use crate::codegen::compute::gemm::Gemm;
use crate::codegen::compute::library_attention::AttentionCandidates;
use crate::device::launch::{DevicePtr, KernelLaunch};
use crate::error::Result;
use crate::nccl::call::NcclCall;

/// The result of lowering a step.
pub type Commands = Result<Vec<GpuCommand>>;

/// An operation on a stream, which follows the stream's earlier operations.
#[derive(Clone, PartialEq, Debug)]
pub enum GpuCommand {
    Kernel(KernelLaunch),
    /// A matrix product by the vendor's library.
    Gemm(Gemm),
    /// Attention by the vendor's library or by kernels. The choice is made when the program is loaded.
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
        /// The address, a multiple of 4.
        at: DevicePtr,
        word: u32,
    },
    Zero {
        at: DevicePtr,
        bytes: usize,
    },
}
