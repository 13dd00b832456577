//! Matrices that the copy engine of a multiprocessor reads box by box (`CUtensorMap`, compute capability 9).

use std::ffi::c_void;

use cudarc::driver::sys;

use crate::driver::checked;
use crate::error::CudaError;
use crate::launch::Address;

/// Columns of a box: 128 bytes.
const COLUMNS: u32 = 64;

/// A matrix of elements of two bytes. Kernels copy boxes of it to shared memory, each of so many rows and of 64 columns,
/// with zeros beyond the matrix; pieces of 16 bytes change places by the number of their row. Kernels that run on the host,
/// in tests, take it as it is here.
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
