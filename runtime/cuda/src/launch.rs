//! What a step becomes on a device: launches with every size, address and constant fixed.
//!
//! A [`Work`] is made once for each binding and recorded into a graph, so nothing here is fast or slow by
//! itself. Addresses are of this rank's context; those of peers too, since peers' arenas are mapped there.

use smallvec::SmallVec;

use crate::compute::fused::Candidates;
use crate::compute::gemm::Gemm;
use crate::nccl::NcclCall;
use crate::tensor_map::TensorMap;

/// An address in the device memory of a context.
pub type Address = u64;

/// Something to be done on a stream, after what was recorded there before.
#[derive(Clone, PartialEq, Debug)]
pub enum Work {
    /// Launches a kernel of the program's modules.
    Kernel(Kernel),
    /// A matrix product by the vendor's library.
    Gemm(Gemm),
    /// Attention by the vendor's library or by kernels, as is chosen when the program is loaded.
    Attention(Box<Candidates>),
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
    /// Stores a word.
    Store {
        /// Where, at a multiple of 4.
        at: Address,
        /// What.
        word: u32,
    },
    /// Sets bytes to zero.
    Zero {
        /// Where.
        at: Address,
        /// How many.
        bytes: usize,
    },
}

/// When a kernel may be launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Once everything in front of it in its stream has ended.
    After,
    /// Once every block of the kernel in front of it has entered, where the device can (compute capability 9):
    /// its blocks take their places, and wait in `symmc_enter()` until that kernel has ended.
    Early,
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
    /// How many blocks, neighbours in x, run side by side and read each other's shared memory; 1 for none. More need
    /// compute capability 9, and divide the grid.
    pub cluster: u32,
    /// Bytes of dynamic shared memory; above 48 KiB the function is allowed it when it is loaded.
    pub shared: u32,
    /// The parameters, in order.
    pub params: Vec<Param>,
}

/// Values whose bytes are all written: numbers, arrays of them, and structs without padding.
///
/// # Safety
/// No byte of a value is padding, and the alignment is at most 8.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: a number.
unsafe impl Plain for u64 {}
// SAFETY: a number.
unsafe impl Plain for f32 {}
// SAFETY: elements of an array have nothing between them.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Declares a `repr(C)` struct that is [`Plain`]; does not compile if there are bytes between or behind its fields.
macro_rules! plain {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$about:meta])* $of:vis $field:ident: $ty:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        $vis struct $name { $($(#[$about])* $of $field: $ty),* }
        const _: () = {
            assert!(size_of::<$name>() == 0 $(+ size_of::<$ty>())*, "bytes between or behind the fields");
            assert!(align_of::<$name>() <= 8, "kernel parameters are aligned to 8 bytes at most");
        };
        // SAFETY: the fields, which are plain, are as many bytes as the struct.
        unsafe impl $crate::launch::Plain for $name where $($ty: $crate::launch::Plain),* {}
    };
}
pub(crate) use plain;

/// A kernel parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Param {
    /// Its bytes, at an address aligned to 8 bytes.
    Value(SmallVec<[u64; 1]>),
    /// A matrix. The launch gives the kernel the driver's form of it.
    Map(Box<TensorMap>),
}

impl Param {
    /// A struct passed by value, laid out as the kernel declares it.
    pub(crate) fn of<T: Plain>(value: &T) -> Param {
        let mut words: SmallVec<[u64; 1]> = SmallVec::from_elem(0u64, size_of::<T>().div_ceil(8));
        // SAFETY: the words are at least as many bytes as the value, all of which are written.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(value).cast::<u8>(),
                words.as_mut_ptr().cast::<u8>(),
                size_of::<T>(),
            );
        }
        Param::Value(words)
    }

    /// The matrix, if it is one.
    pub(crate) fn map(&self) -> Option<&TensorMap> {
        match self {
            Param::Value(_) => None,
            Param::Map(map) => Some(map),
        }
    }

    /// The first byte; of a matrix, of its description.
    pub fn as_ptr(&self) -> *const u64 {
        match self {
            Param::Value(words) => words.as_ptr(),
            Param::Map(map) => std::ptr::from_ref(&**map).cast(),
        }
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
