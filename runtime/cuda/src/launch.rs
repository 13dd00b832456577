//! What a step becomes on a device: launches with every size, address and constant fixed.
//!
//! A [`Work`] is made once for each binding and recorded into a graph, so nothing here is fast or slow by
//! itself. Addresses are of this rank's context; those of peers too, since peers' arenas are mapped there.

use smallvec::SmallVec;

use crate::compute::gemm::Gemm;
use crate::nccl::NcclCall;

/// An address in the device memory of a context.
pub type Address = u64;

/// Something to be done on a stream, after what was recorded there before.
#[derive(Clone, PartialEq, Debug)]
pub enum Work {
    /// Launches a kernel of the program's modules.
    Kernel(Kernel),
    /// A matrix product by the vendor's library.
    Gemm(Gemm),
    /// A collective by the vendor's library.
    Nccl(NcclCall),
    /// Copies bytes; the two ranges do not overlap.
    Copy {
        /// Where to.
        to: Address,
        /// Where from.
        from: Address,
        /// How many.
        bytes: usize,
    },
    /// Sets bytes to zero.
    Zero {
        /// Where.
        at: Address,
        /// How many.
        bytes: usize,
    },
}

/// The launch of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    /// The name of the function, unmangled.
    pub entry: String,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory; above 48 KiB the function is allowed it when it is loaded.
    pub shared: u32,
    /// The parameters, in order.
    pub params: Vec<Param>,
}

/// A kernel parameter: its bytes, at an address aligned to 8 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param(SmallVec<[u64; 1]>);

impl Param {
    /// A struct passed by value. It must be `repr(C)`, without padding that is not written, and laid out as
    /// the kernel declares it.
    pub fn of<T: Copy>(value: &T) -> Param {
        let mut words: SmallVec<[u64; 1]> = SmallVec::from_elem(0u64, size_of::<T>().div_ceil(8));
        assert!(align_of::<T>() <= 8, "kernel parameters are aligned to 8 bytes at most");
        // SAFETY: the words are at least as many bytes as the value, which is plain data.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(value).cast::<u8>(),
                words.as_mut_ptr().cast::<u8>(),
                size_of::<T>(),
            );
        }
        Param(words)
    }

    /// Its bytes, in words of 8.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// The first byte.
    pub(crate) fn as_ptr(&self) -> *const u64 {
        self.0.as_ptr()
    }
}

impl From<u64> for Param {
    fn from(value: u64) -> Param {
        Param::of(&value)
    }
}

impl From<u32> for Param {
    fn from(value: u32) -> Param {
        Param::of(&value)
    }
}
