//! Memory of sessions as tensors without a copy: views of outputs, and symmetric buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use symmc::{DType, SessionBuffer};

use crate::dlpack::{self, DlDevice, ExportedMemory, device};
use crate::error::input_error;

/// The number of runs that a session has started.
#[derive(Clone, Default)]
pub struct RunCounter(Arc<AtomicU64>);

impl RunCounter {
    /// Counts a run that starts.
    pub fn count_run(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn current_run(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The elements of a buffer of a session.
struct BufferTensor {
    buffer: SessionBuffer,
    dtype: DType,
    extents: Vec<usize>,
    device: DlDevice,
}

impl BufferTensor {
    /// The elements of a buffer on the GPU with this number, or on the host.
    fn new(buffer: SessionBuffer, dtype: DType, extents: Vec<usize>, gpu: Option<i32>) -> BufferTensor {
        BufferTensor { buffer, dtype, extents, device: DlDevice::of_session(gpu) }
    }

    fn export(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let memory = ExportedMemory {
            address: self.buffer.as_ptr().expose_provenance() as u64,
            dtype: self.dtype,
            shape: &self.extents,
            device: self.device,
        };
        dlpack::export_capsule(py, memory, self.buffer.clone())
    }
}

/// An output of the last run, without a copy: `numpy.from_dlpack(v)`, `torch.from_dlpack(v)`, or its methods `numpy()` and
/// `torch()`.
///
/// The view is valid until the next run starts, which writes the same memory. From then on taking it raises an `InputError`, and
/// tensors that were taken before show the output of the new run. The memory exists as long as a tensor or view refers to it,
/// also after the session.
#[pyclass(frozen, module = "symmc")]
pub struct View {
    name: String,
    tensor: BufferTensor,
    runs: RunCounter,
    /// The number of runs when the view was made.
    run: u64,
}

impl View {
    /// A view of a value in a buffer, on the GPU with this number or on the host.
    pub fn new(
        value: symmc::SessionValue,
        buffer: SessionBuffer,
        gpu: Option<i32>,
        runs: &RunCounter,
    ) -> View {
        let symmc::SessionValue { name, dtype, extents, .. } = value;
        let tensor = BufferTensor::new(buffer, dtype, extents, gpu);
        View { name, tensor, runs: runs.clone(), run: runs.current_run() }
    }
}

#[pymethods]
impl View {
    /// The extent of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tensor.extents)
    }

    /// The type of the elements: bool, u8, i32, i64, f16, bf16, f32 or f64.
    #[getter]
    fn dtype(&self) -> String {
        self.tensor.dtype.to_string()
    }

    /// Whether a later run has started.
    #[getter]
    fn stale(&self) -> bool {
        self.runs.current_run() != self.run
    }

    /// A DLPack capsule with this view.
    #[pyo3(signature = (*, stream=None, **_other))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        _other: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        if let Some(stream) = stream.filter(|_| self.tensor.device.kind == device::CPU) {
            return Err(input_error(format!(
                "{}: the view is of memory of the host, which has no stream; found {stream}",
                self.name
            )));
        }
        if self.stale() {
            return Err(input_error(format!(
                "{}: the view is of run {}, and a later run has started: take the tensor before, or copy the output with read",
                self.name, self.run
            )));
        }
        self.tensor.export(py)
    }

    /// The DLPack device.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (self.tensor.device.kind, self.tensor.device.id)
    }

    /// The same memory as a NumPy array. NumPy has no bf16.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        dlpack::as_numpy(slf, slf.get().tensor.dtype)
    }

    /// The same memory as a PyTorch tensor.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        dlpack::as_torch(slf)
    }

    fn __repr__(&self) -> String {
        let stale = if self.stale() { ", stale" } else { "" };
        format!("<symmc.View {}: {}{:?}{stale}>", self.name, self.tensor.dtype, self.tensor.extents)
    }
}

/// Symmetric memory of a session for the caller, from `Session.allocate_symmetric`, as a tensor without a copy:
/// `torch.from_dlpack(b)`, `numpy.from_dlpack(b)`, or its methods `torch()` and `numpy()`. An input that is bound to it is read in
/// place, also by peers.
#[pyclass(frozen, module = "symmc")]
pub struct SymmetricBuffer {
    tensor: BufferTensor,
}

impl SymmetricBuffer {
    /// The elements of a buffer, on the GPU with this number or on the host.
    pub fn new(buffer: SessionBuffer, dtype: DType, extents: Vec<usize>, gpu: Option<i32>) -> Self {
        SymmetricBuffer { tensor: BufferTensor::new(buffer, dtype, extents, gpu) }
    }
}

#[pymethods]
impl SymmetricBuffer {
    /// The extent of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tensor.extents)
    }

    /// The type of the elements.
    #[getter]
    fn dtype(&self) -> String {
        self.tensor.dtype.to_string()
    }

    /// A DLPack capsule with this memory.
    #[pyo3(signature = (*, stream=None, **_other))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        _other: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        if let Some(stream) = stream.filter(|_| self.tensor.device.kind == device::CPU) {
            return Err(input_error(format!("memory of the host has no stream: found {stream}")));
        }
        self.tensor.export(py)
    }

    /// The DLPack device.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (self.tensor.device.kind, self.tensor.device.id)
    }

    /// The same memory as a NumPy array. NumPy has no bf16.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        dlpack::as_numpy(slf, slf.get().tensor.dtype)
    }

    /// The same memory as a PyTorch tensor.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        dlpack::as_torch(slf)
    }

    fn __repr__(&self) -> String {
        format!("<symmc.SymmetricBuffer: {}{:?}>", self.tensor.dtype, self.tensor.extents)
    }
}
