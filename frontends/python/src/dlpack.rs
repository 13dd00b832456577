//! Tensors of other libraries through DLPack: their memory and types, without copies.
//!
//! The layout of the structures is that of the DLPack specification, version 0.8 and 1.x (unversioned capsules).

use std::ffi::c_void;

use pyo3::exceptions::{PyBufferError, PyException};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use symmc::DType;

use crate::error::input_error;

/// The name of capsules whose tensor has not been taken.
pub const CAPSULE_NAME: &std::ffi::CStr = c"dltensor";

/// The device types of DLPack that symmc supports.
pub mod device {
    pub const CPU: i32 = 1;
    pub const CUDA: i32 = 2;
    pub const CUDA_HOST: i32 = 3;
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DlDevice {
    pub kind: i32,
    pub id: i32,
}

impl DlDevice {
    /// The device of a session on the GPU with this number, or on the host.
    pub fn of_session(gpu: Option<i32>) -> DlDevice {
        match gpu {
            Some(id) => DlDevice { kind: device::CUDA, id },
            None => DlDevice { kind: device::CPU, id: 0 },
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DlDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
pub struct DlTensor {
    pub data: *mut c_void,
    pub device: DlDevice,
    pub ndim: i32,
    pub dtype: DlDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// A tensor and the function that frees it.
#[repr(C)]
pub struct DlManagedTensor {
    pub tensor: DlTensor,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// The dtype in DLPack.
pub fn dlpack_dtype(dtype: DType) -> DlDataType {
    let (code, bits) = dtype.facts().dlpack;
    DlDataType { code, bits, lanes: 1 }
}

/// A tensor of another library, kept alive by this value.
pub struct ForeignTensor {
    pub address: u64,
    pub bytes: usize,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub device: DlDevice,
    /// Frees the tensor when it is dropped, since the tensor has not been taken out of it.
    capsule: Py<PyAny>,
}

impl ForeignTensor {
    /// The tensor of an object with `__dlpack__`, whose memory runs use in place. `what` names it in errors.
    pub fn from_object(what: &str, object: &Bound<'_, PyAny>) -> PyResult<ForeignTensor> {
        ForeignTensor::from_export(what, object, false)
    }

    /// The tensor of an object that is only read. It is a copy if the object does not share its memory, for example because the
    /// memory is read-only.
    pub fn from_read_object(what: &str, object: &Bound<'_, PyAny>) -> PyResult<ForeignTensor> {
        let py = object.py();
        ForeignTensor::from_export(what, object, false).or_else(|refusal| {
            let cause = refusal.cause(py);
            if !cause.is_some_and(|cause| cause.is_instance_of::<PyBufferError>(py)) {
                return Err(refusal);
            }
            // If the object cannot be copied either, the first error gives the reason.
            let copied = ForeignTensor::from_export(what, object, true);
            copied.map_err(|second| if second.cause(py).is_some() { refusal } else { second })
        })
    }

    fn from_export(what: &str, object: &Bound<'_, PyAny>, copy: bool) -> PyResult<ForeignTensor> {
        let py = object.py();
        let exports = object.getattr_opt("__dlpack__")?;
        let Some(export) = exports else {
            let type_name = object.get_type().name()?;
            return Err(input_error(format!(
                "{what}: expected a tensor (an object with __dlpack__, such as those of NumPy and PyTorch), found {type_name}"
            )));
        };
        let unshared = |error: PyErr| {
            // An interrupt and the end of the program are not errors of the tensor.
            if !error.is_instance_of::<PyException>(py) {
                return error;
            }
            let refusal = input_error(format!("{what}: its memory cannot be shared: {error}"));
            refusal.set_cause(py, Some(error));
            refusal
        };
        let location = object.call_method0("__dlpack_device__").and_then(|value| value.extract());
        let device: (i32, i32) = location.map_err(unshared)?;
        let keywords = PyDict::new(py);
        if device.0 == device::CUDA {
            // Runs are enqueued on the stream of the caller, so there is nothing to wait for.
            keywords.set_item("stream", -1)?;
        }
        if copy {
            keywords.set_item("copy", true)?;
        }
        let capsule = export.call((), Some(&keywords)).map_err(unshared)?;
        let named = capsule.cast::<PyCapsule>().map_err(|_| {
            input_error(format!("{what}: expected a capsule from __dlpack__, found something else"))
        })?;
        let pointer = named.pointer_checked(Some(CAPSULE_NAME));
        let managed = pointer
            .map_err(|_| {
                input_error(format!("{what}: the tensor has been taken out of the capsule already"))
            })?
            .cast::<DlManagedTensor>();
        // SAFETY: by the protocol a capsule of this name holds such a structure, and the tensor has not been taken.
        let tensor = unsafe { &managed.as_ref().tensor };
        ForeignTensor::from_description(what, tensor, capsule.clone().unbind())
    }

    fn from_description(what: &str, tensor: &DlTensor, capsule: Py<PyAny>) -> PyResult<ForeignTensor> {
        let dtype = DType::ALL.iter().copied().find(|&d| dlpack_dtype(d) == tensor.dtype).ok_or_else(|| {
            let DlDataType { code, bits, lanes } = tensor.dtype;
            input_error(format!(
                "{what}: the type of the elements is not supported (DLPack code {code}, {bits} bits, {lanes} lanes)"
            ))
        })?;
        let rank = usize::try_from(tensor.ndim)
            .map_err(|_| input_error(format!("{what}: it has {} axes", tensor.ndim)))?;
        // SAFETY: the protocol gives one number for each axis; without axes nothing is read.
        let axis_numbers = |numbers: *mut i64| unsafe {
            (rank > 0 && !numbers.is_null()).then(|| std::slice::from_raw_parts(numbers, rank))
        };
        let extents = axis_numbers(tensor.shape).unwrap_or_default();
        let shape: Result<Vec<usize>, _> = extents.iter().map(|&d| usize::try_from(d)).collect();
        let shape = shape.map_err(|_| input_error(format!("{what}: it has the extents {extents:?}")))?;
        if let Some(strides) = axis_numbers(tensor.strides)
            && !is_dense(extents, strides)
        {
            return Err(input_error(format!(
                "{what}: expected a contiguous tensor, found the extents {shape:?} at strides {strides:?}"
            )));
        }
        let bytes = if shape.contains(&0) {
            Some(0)
        } else {
            shape.iter().try_fold(dtype.size(), |bytes, &extent| bytes.checked_mul(extent))
        };
        let bytes = bytes.ok_or_else(|| {
            input_error(format!("{what}: the extents {shape:?} are more than memory can hold"))
        })?;
        if tensor.data.is_null() && bytes > 0 {
            return Err(input_error(format!(
                "{what}: expected a tensor with memory, found one without (a fake one?)"
            )));
        }
        let address = tensor.data.expose_provenance() as u64 + tensor.byte_offset;
        Ok(ForeignTensor { address, bytes, dtype, shape, device: tensor.device, capsule })
    }

    /// The first byte.
    pub fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// The capsule, which keeps the tensor alive.
    pub fn into_capsule(self) -> Py<PyAny> {
        self.capsule
    }
}

/// Whether elements are contiguous in row-major order. Strides of axes with one element do not matter.
pub fn is_dense(extents: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1i64;
    extents.contains(&0)
        || extents.iter().zip(strides).rev().all(|(&extent, &stride)| {
            let fits = extent == 1 || stride == expected;
            expected = expected.saturating_mul(extent);
            fits
        })
}

/// An object with `__dlpack__`, whose elements have this dtype, as a NumPy array of the same memory. NumPy has no bf16 and no floats
/// of 8 bits.
pub fn as_numpy<'py>(object: &Bound<'py, PyAny>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
    if dtype == DType::BF16 || dtype.is_storage_float() {
        return Err(input_error(format!("NumPy has no {dtype}: use torch() or another library")));
    }
    object.py().import("numpy")?.call_method1("from_dlpack", (object,))
}

/// An object with `__dlpack__` as a PyTorch tensor of the same memory.
pub fn as_torch<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("torch")?.call_method1("from_dlpack", (object,))
}

/// The content of a capsule that symmc exports.
struct ExportedTensor<T> {
    managed: DlManagedTensor,
    /// The extents, to which `managed` points.
    shape: Vec<i64>,
    _owner: T,
}

/// A tensor at an address.
pub struct ExportedMemory<'a> {
    pub address: u64,
    pub dtype: DType,
    pub shape: &'a [usize],
    pub device: DlDevice,
}

/// A capsule with a tensor. The capsule keeps `owner`.
pub fn export_capsule<T: Send + 'static>(
    py: Python<'_>,
    memory: ExportedMemory<'_>,
    owner: T,
) -> PyResult<Py<PyAny>> {
    let ExportedMemory { address, dtype, shape, device } = memory;
    let shape: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
    let tensor = DlTensor {
        data: std::ptr::with_exposed_provenance_mut(address as usize),
        device,
        ndim: shape.len() as i32,
        dtype: dlpack_dtype(dtype),
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = DlManagedTensor { tensor, context: std::ptr::null_mut(), deleter: Some(free::<T>) };
    let exported = Box::into_raw(Box::new(ExportedTensor { managed, shape, _owner: owner }));
    // SAFETY: the box was just made, and nothing else refers to it.
    let pointer = unsafe {
        (*exported).managed.context = exported.cast();
        (*exported).managed.tensor.shape = (*exported).shape.as_mut_ptr();
        &raw mut (*exported).managed
    };
    // SAFETY: the name is static. The pointer is valid until the destructor or the consumer frees the tensor.
    let capsule =
        unsafe { pyo3::ffi::PyCapsule_New(pointer.cast(), CAPSULE_NAME.as_ptr(), Some(drop_untaken)) };
    // SAFETY: it is a new reference, or NULL with an exception.
    match unsafe { Bound::from_owned_ptr_or_opt(py, capsule) } {
        Some(capsule) => Ok(capsule.unbind()),
        None => {
            // SAFETY: nothing else has the pointer.
            unsafe { free::<T>(pointer) };
            Err(PyErr::take(py).unwrap_or_else(|| PyBufferError::new_err("the capsule cannot be created")))
        }
    }
}

/// Frees a tensor.
///
/// # Safety
/// `managed` comes from [`export_capsule`] with this type of owner, and is freed once.
unsafe extern "C" fn free<T>(managed: *mut DlManagedTensor) {
    // SAFETY: the caller ensures it.
    drop(unsafe { Box::from_raw((*managed).context.cast::<ExportedTensor<T>>()) });
}

/// Frees the tensor of a capsule, unless a consumer took it.
///
/// # Safety
/// The interpreter calls it for a capsule of [`export_capsule`].
unsafe extern "C" fn drop_untaken(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: the caller ensures it. A consumer that takes the tensor renames the capsule.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, CAPSULE_NAME.as_ptr()) == 0 {
            return;
        }
        let managed =
            pyo3::ffi::PyCapsule_GetPointer(capsule, CAPSULE_NAME.as_ptr()).cast::<DlManagedTensor>();
        if let Some(deleter) = (*managed).deleter {
            deleter(managed);
        }
    }
}
