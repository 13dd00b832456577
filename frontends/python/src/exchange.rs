//! Where tensors of PyTorch lie, without a call of Python for each: by the table of functions that their type has.
//!
//! The table is `__dlpack_c_exchange_api__` of the DLPack specification, version 1.3, whose layout is that of the structures
//! here. Types without one, those of older releases, are asked by their methods.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};

use crate::dlpack::{DlDevice, DlTensor, is_dense};
use crate::error::input_error;

/// What the capsule with a table is called.
const NAME: &CStr = c"dlpack_exchange_api";

/// The version of DLPack whose structures these are: later ones of it only have more values.
const MAJOR: u32 = 1;

/// How tables of all versions begin.
#[repr(C)]
struct ExchangeHeader {
    major: u32,
    minor: u32,
    /// That of an earlier version, if there is one.
    earlier: *const ExchangeHeader,
}

/// Says where a tensor lies; 0, or another number and an exception.
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

/// Where a tensor lies.
#[derive(Clone, Copy, Debug)]
pub struct TensorLocation {
    /// The first byte.
    pub address: u64,
    /// Whether its elements lie behind each other.
    pub is_dense: bool,
    /// The number of bytes of its elements and the device, where the type has a table.
    pub reported: Option<(usize, DlDevice)>,
}

/// Says where tensors lie, and keeps for each type how it is asked.
#[derive(Default)]
pub struct LocationReader(Vec<(Py<PyType>, Option<Describe>)>);

impl LocationReader {
    /// Where a tensor of PyTorch lies now.
    pub fn locate_tensor(&mut self, tensor: &Bound<'_, PyAny>) -> PyResult<TensorLocation> {
        match self.describe_function(tensor)? {
            Some(describe) => call_describe(describe, tensor),
            None => {
                let py = tensor.py();
                let is_dense = tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy()?;
                let address = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
                Ok(TensorLocation { address, is_dense, reported: None })
            }
        }
    }

    /// How tensors of this type are asked, if they are by a table.
    fn describe_function(&mut self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Describe>> {
        let found = tensor.get_type_ptr();
        if let Some((_, describe)) = self.0.iter().find(|(known, _)| known.as_ptr() == found.cast()) {
            return Ok(*describe);
        }
        let describe = find_describe_function(&tensor.get_type())?;
        self.0.push((tensor.get_type().unbind(), describe));
        Ok(describe)
    }
}

/// What says where tensors of a type lie.
fn find_describe_function(of: &Bound<'_, PyType>) -> PyResult<Option<Describe>> {
    let Some(capsule) = of.getattr_opt(intern!(of.py(), "__dlpack_c_exchange_api__"))? else {
        return Ok(None);
    };
    let Ok(capsule) = capsule.cast_into::<PyCapsule>() else { return Ok(None) };
    let mut at = capsule.pointer_checked(Some(NAME))?.as_ptr().cast_const().cast::<ExchangeHeader>();
    while !at.is_null() {
        // SAFETY: by the protocol a capsule of this name holds a table, which stays as long as the process, as do earlier ones.
        let header = unsafe { &*at };
        if header.major == MAJOR {
            // SAFETY: as above; this is the layout of tables of this version.
            return Ok(unsafe { (*at.cast::<ExchangeTable>()).describe });
        }
        at = header.earlier;
    }
    Ok(None)
}

fn call_describe(describe: Describe, object: &Bound<'_, PyAny>) -> PyResult<TensorLocation> {
    let mut tensor = MaybeUninit::<DlTensor>::zeroed();
    // SAFETY: the object has the type that the function is of, and the interpreter's lock is held.
    if unsafe { describe(object.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
        return Err(
            PyErr::take(object.py()).unwrap_or_else(|| input_error("a tensor does not say where it lies"))
        );
    }
    // SAFETY: the function gave 0, so it is filled; zeros were a tensor too.
    let tensor = unsafe { tensor.assume_init() };
    let axes = usize::try_from(tensor.ndim).unwrap_or(0);
    let of = |at: *mut i64| match NonNull::new(at) {
        // SAFETY: by the protocol there is a number for each axis as long as the tensor is there.
        Some(at) => unsafe { std::slice::from_raw_parts(at.as_ptr(), axes) },
        None => &[],
    };
    let (extents, strides) = (of(tensor.shape), of(tensor.strides));
    let bits = usize::from(tensor.dtype.bits) * usize::from(tensor.dtype.lanes);
    let extent = |&extent: &i64| usize::try_from(extent).unwrap_or(0);
    let elements = extents.iter().map(extent).fold(1usize, usize::saturating_mul);
    let bytes = elements.saturating_mul(bits) / 8;
    Ok(TensorLocation {
        address: tensor.data.expose_provenance() as u64 + tensor.byte_offset,
        is_dense: strides.is_empty() || is_dense(extents, strides),
        reported: Some((bytes, tensor.device)),
    })
}
