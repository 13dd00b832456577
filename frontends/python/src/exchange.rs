//! Locations of PyTorch tensors in memory, without a Python call for each: through the table of functions of their type.
//!
//! The table is `__dlpack_c_exchange_api__` of the DLPack specification, version 1.3. Its layout is that of the structures here.
//! Types of older releases have no table; their tensors are located by Python methods.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};

use crate::dlpack::{DlDevice, DlTensor, is_dense};
use crate::error::input_error;

/// The name of the capsule that holds a table.
const NAME: &CStr = c"dlpack_exchange_api";

/// The major version of DLPack whose structures these are. Later minor versions only add values.
const MAJOR: u32 = 1;

/// The beginning of tables of all versions.
#[repr(C)]
struct ExchangeHeader {
    major: u32,
    minor: u32,
    /// The table of an earlier version, or null.
    earlier: *const ExchangeHeader,
}

/// Describes a tensor. Returns 0, or another number with an exception.
type Describe = unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int;

#[repr(C)]
struct ExchangeTable {
    header: ExchangeHeader,
    allocate: *const c_void,
    export: *const c_void,
    import: *const c_void,
    describe: Option<Describe>,
    stream: *const c_void,
}

/// The location of a tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorLocation {
    /// The first byte.
    pub address: u64,
    /// The number of bytes from the first byte to the end of the last element; 0 if it has no elements.
    pub span: u64,
    /// Whether its elements are contiguous in row-major order.
    pub is_dense: bool,
    /// The number of bytes of its elements and the device, if the type has a table.
    pub reported: Option<(usize, DlDevice)>,
}

/// Locates tensors. It caches the function of each type.
#[derive(Default)]
pub struct LocationReader(Vec<(Py<PyType>, Option<Describe>)>);

impl LocationReader {
    /// The current location of a PyTorch tensor.
    pub fn locate_tensor(&mut self, tensor: &Bound<'_, PyAny>) -> PyResult<TensorLocation> {
        match self.describe_function(tensor)? {
            Some(describe) => call_describe(describe, tensor),
            None => {
                let py = tensor.py();
                let is_dense = tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy()?;
                let address = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
                let extents: Vec<i64> = tensor.getattr(intern!(py, "shape"))?.extract()?;
                let strides: Vec<i64> = tensor.call_method0(intern!(py, "stride"))?.extract()?;
                let size: u64 = tensor.getattr(intern!(py, "itemsize"))?.extract()?;
                let span = span_in_elements(&extents, &strides).saturating_mul(size);
                Ok(TensorLocation { address, span, is_dense, reported: None })
            }
        }
    }

    /// The function that describes tensors of this type, if the type has a table.
    fn describe_function(&mut self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Describe>> {
        let type_ptr = tensor.get_type_ptr();
        if let Some((_, describe)) = self.0.iter().find(|(ty, _)| ty.as_ptr() == type_ptr.cast()) {
            return Ok(*describe);
        }
        let describe = find_describe_function(&tensor.get_type())?;
        self.0.push((tensor.get_type().unbind(), describe));
        Ok(describe)
    }
}

/// The function of a type's table that describes its tensors.
fn find_describe_function(of: &Bound<'_, PyType>) -> PyResult<Option<Describe>> {
    let Some(capsule) = of.getattr_opt(intern!(of.py(), "__dlpack_c_exchange_api__"))? else {
        return Ok(None);
    };
    let Ok(capsule) = capsule.cast_into::<PyCapsule>() else { return Ok(None) };
    let mut table = capsule.pointer_checked(Some(NAME))?.as_ptr().cast_const().cast::<ExchangeHeader>();
    while !table.is_null() {
        // SAFETY: by the protocol a capsule of this name holds a table. It and its earlier tables exist as long as the process.
        let header = unsafe { &*table };
        if header.major == MAJOR {
            // SAFETY: as above; tables of this version have this layout.
            return Ok(unsafe { (*table.cast::<ExchangeTable>()).describe });
        }
        table = header.earlier;
    }
    Ok(None)
}

fn call_describe(describe: Describe, object: &Bound<'_, PyAny>) -> PyResult<TensorLocation> {
    let mut tensor = MaybeUninit::<DlTensor>::zeroed();
    // SAFETY: the object has the type to which the function belongs, and the GIL is held.
    if unsafe { describe(object.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
        return Err(
            PyErr::take(object.py()).unwrap_or_else(|| input_error("a tensor does not report its location"))
        );
    }
    // SAFETY: the function returned 0, so the structure is filled. Zeros would be a valid structure too.
    let tensor = unsafe { tensor.assume_init() };
    let axes = usize::try_from(tensor.ndim).unwrap_or(0);
    let axis_numbers = |numbers: *mut i64| match NonNull::new(numbers) {
        // SAFETY: by the protocol there is a number for each axis as long as the tensor exists.
        Some(numbers) => unsafe { std::slice::from_raw_parts(numbers.as_ptr(), axes) },
        None => &[],
    };
    let extents = axis_numbers(tensor.shape);
    let strides = axis_numbers(tensor.strides);
    let bits = usize::from(tensor.dtype.bits) * usize::from(tensor.dtype.lanes);
    let extent = |&extent: &i64| usize::try_from(extent).unwrap_or(0);
    let elements = extents.iter().map(extent).fold(1usize, usize::saturating_mul);
    let bytes = elements.saturating_mul(bits) / 8;
    let span = if strides.is_empty() {
        bytes as u64
    } else {
        span_in_elements(extents, strides).saturating_mul(bits as u64) / 8
    };
    Ok(TensorLocation {
        address: tensor.data.expose_provenance() as u64 + tensor.byte_offset,
        span,
        is_dense: strides.is_empty() || is_dense(extents, strides),
        reported: Some((bytes, tensor.device)),
    })
}

/// The number of elements from the first to the last of a tensor, both included.
fn span_in_elements(extents: &[i64], strides: &[i64]) -> u64 {
    if extents.contains(&0) {
        return 0;
    }
    let steps = extents.iter().zip(strides).map(|(extent, stride)| (extent - 1).saturating_mul(*stride));
    steps.fold(1u64, |span, step| span.saturating_add(u64::try_from(step).unwrap_or(0)))
}
