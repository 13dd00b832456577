//! Launches of kernels as data: grids, and parameters with every address and constant fixed.
//!
//! Addresses are of this rank's context; those of peers too, since peers' arenas are mapped there. A parameter is plain
//! bytes, or a tensor map: a matrix that kernels load box by box by TMA (`CUtensorMap`, compute capability 9).

use std::ffi::c_void;

use cudarc::driver::sys;
use smallvec::SmallVec;

use crate::error::{CudaError, checked};

/// An address in the device memory of a context.
pub type Address = u64;

/// When a kernel may be launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Once everything in front of it in its stream has ended.
    After,
    /// By programmatic dependent launch (PDL) where the device can (compute capability 9), else as [`After`](Self::After):
    /// once every block of the kernel in front of it has entered, its blocks take their places, and wait in `symmc_enter()`
    /// until that kernel has ended.
    Dependent,
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

impl Kernel {
    /// So many blocks of so many threads in one row, without dynamic shared memory.
    pub(crate) fn flat(entry: String, blocks: usize, threads: usize, params: Vec<Param>) -> Kernel {
        let (grid, block) = ([blocks as u32, 1, 1], [threads as u32, 1, 1]);
        Kernel { entry, grid, block, cluster: 1, shared: 0, params }
    }
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
    /// A tensor map. The launch gives the kernel the driver's form of it.
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

/// Columns of a box: 128 bytes.
const COLUMNS: u32 = 64;

/// A tensor map of a matrix of elements of two bytes. Kernels load boxes of it to shared memory by TMA, each of so many
/// rows and of 64 columns, with zeros beyond the matrix; pieces of 16 bytes are swizzled by the number of their row.
/// Kernels that run on the host, in tests, take it as it is here.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorMap {
    /// The first element, at a multiple of 16.
    at: Address,
    /// How many rows there are.
    rows: u64,
    /// How many columns.
    columns: u64,
    /// Bytes from row to row, a multiple of 16.
    step: u64,
    /// Rows of a box, up to 256.
    box_rows: u64,
}

impl TensorMap {
    /// `rows` × `columns` elements, `step` bytes from row to row, boxes of `box_rows` rows.
    pub(crate) fn new(at: Address, [rows, columns]: [usize; 2], step: usize, box_rows: usize) -> TensorMap {
        let [rows, columns, step, box_rows] = [rows, columns, step, box_rows].map(|n| n as u64);
        TensorMap { at, rows, columns, step, box_rows }
    }

    /// Where the first element is.
    pub(crate) fn at_mut(&mut self) -> &mut Address {
        &mut self.at
    }

    /// The driver's form of it.
    pub(crate) fn encode(&self) -> Result<sys::CUtensorMap, CudaError> {
        let mut out = sys::CUtensorMap { opaque: [0; 16] };
        let (sizes, steps) = ([self.columns, self.rows], [self.step]);
        let (box_sizes, every) = ([COLUMNS, self.box_rows as u32], [1, 1]);
        let at: *mut c_void = std::ptr::with_exposed_provenance_mut(self.at as usize);
        // SAFETY: two sizes, one step and two sizes of a box are read, and the map is written; the memory is not touched.
        let encoded = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut out,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                2,
                at,
                sizes.as_ptr(),
                steps.as_ptr(),
                box_sizes.as_ptr(),
                every.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        let TensorMap { at, rows, columns, step, box_rows } = self;
        let what = || {
            format!(
                "describing {rows} × {columns} elements at {at:#x}, {step} bytes apart, by {box_rows} rows"
            )
        };
        checked(what, encoded.result())?;
        Ok(out)
    }
}
