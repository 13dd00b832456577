//! Tensors that symmc returns: outputs, and weights of a program.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dlpack::{self, DlDevice, ExportedMemory, device};
use crate::error::input_error;

/// A tensor in memory of the host. Tensor libraries use its memory without a copy: `numpy.from_dlpack(t)`,
/// `torch.from_dlpack(t)`, or its methods `numpy()` and `torch()`.
#[pyclass(frozen, module = "symmc")]
pub struct Tensor(Arc<symmc::Tensor>);

impl Tensor {
    pub fn new(tensor: Arc<symmc::Tensor>) -> Tensor {
        Tensor(tensor)
    }
}

#[pymethods]
impl Tensor {
    /// The extent of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    /// The type of the elements: bool, u8, i32, i64, f16, bf16, f32 or f64.
    #[getter]
    fn dtype(&self) -> String {
        self.0.dtype().to_string()
    }

    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.data().len()
    }

    /// A DLPack capsule with this tensor.
    #[pyo3(signature = (*, stream=None, **_other))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        _other: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        if let Some(stream) = stream {
            return Err(input_error(format!(
                "the tensor is in memory of the host, which has no stream; found {stream}"
            )));
        }
        let tensor = &self.0;
        let memory = ExportedMemory {
            address: tensor.data().as_ptr().expose_provenance() as u64,
            dtype: tensor.dtype(),
            shape: tensor.shape(),
            device: DlDevice { kind: device::CPU, id: 0 },
        };
        dlpack::export_capsule(py, memory, tensor.clone())
    }

    /// The DLPack device, which is the host.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (device::CPU, 0)
    }

    /// The same memory as a NumPy array. NumPy has no bf16.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        dlpack::as_numpy(slf, slf.get().0.dtype())
    }

    /// The same memory as a PyTorch tensor.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        dlpack::as_torch(slf)
    }

    fn __repr__(&self) -> String {
        format!("symmc.Tensor({}{:?})", self.0.dtype(), self.0.shape())
    }
}
