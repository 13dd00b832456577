//! Runs on tensors by number, which a compiled function performs in each call.
//!
//! Only tensors whose location changed since the last launch are bound, and no names are looked up.

use std::fmt;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use symmc::PortSlot;

use crate::dlpack::{DlDevice, device};
use crate::error::input_error;
use crate::exchange::{LocationReader, TensorLocation};

/// The alignment of memory on GPUs that a run uses, in bytes. On the host elements are aligned to their size.
const GPU_ALIGN: u64 = 16;

/// The bindings of the last launch: arguments, and outputs that replace no input.
#[derive(Default)]
pub struct LaunchBindings {
    arguments: Vec<SlotBinding>,
    outputs: Vec<SlotBinding>,
    /// Whether `bytes` and `at` of all slots are current.
    is_known: bool,
    reader: LocationReader,
}

struct SlotBinding {
    slot: PortSlot,
    bytes: usize,
    /// The bytes of an element.
    element: u64,
    /// The address that is bound.
    at: u64,
    /// The address for the next run.
    next: u64,
}

impl LaunchBindings {
    /// Marks the bindings as outdated: other memory may be bound, or sizes may have changed.
    pub fn forget(&mut self) {
        self.is_known = false;
    }

    /// Locates tensors for the next run of a session, on this GPU or on the host. Returns the numbers of the arguments whose layout
    /// a run cannot use.
    pub fn locate_tensors(
        &mut self,
        session: &symmc::Session,
        gpu: Option<i32>,
        arguments: &Bound<'_, PyTuple>,
        outputs: &Bound<'_, PyList>,
    ) -> PyResult<Vec<usize>> {
        if !self.is_known {
            self.refresh_sizes(session).map_err(crate::error::to_exception)?;
        }
        expect_count("in", self.arguments.len(), arguments.len())?;
        expect_count("out", self.outputs.len(), outputs.len())?;
        let mut unusable = Vec::new();
        let arguments_in_order = self.arguments.iter_mut().zip(arguments.iter_borrowed());
        for (number, (slot, tensor)) in arguments_in_order.enumerate() {
            let port = LaunchPort { kind: "in", number };
            let located = self.reader.locate_tensor(&tensor);
            let location = located.map_err(|error| location_error(arguments.py(), port, error))?;
            if !slot.set_location(location, gpu, port)? {
                unusable.push(number);
            }
        }
        for (number, (slot, tensor)) in self.outputs.iter_mut().zip(outputs).enumerate() {
            let port = LaunchPort { kind: "out", number };
            let located = self.reader.locate_tensor(&tensor);
            let location = located.map_err(|error| location_error(arguments.py(), port, error))?;
            if !slot.set_location(location, gpu, port)? {
                return Err(input_error(format!(
                    "{port}: expected a contiguous tensor that is aligned for its elements, on GPUs to {GPU_ALIGN} bytes"
                )));
            }
        }
        Ok(unusable)
    }

    fn refresh_sizes(&mut self, session: &symmc::Session) -> Result<(), symmc::Error> {
        if self.arguments.is_empty() && self.outputs.is_empty() {
            let unbound = |slot| SlotBinding { slot, bytes: 0, element: 1, at: 0, next: 0 };
            self.arguments = session.argument_slots().into_iter().map(unbound).collect();
            self.outputs = session.returned_slots().into_iter().map(unbound).collect();
        }
        let returned = session.outputs()?.into_iter().filter(|value| value.replaces.is_none());
        let values = session.inputs()?.into_iter().chain(returned);
        for (slot, value) in self.arguments.iter_mut().chain(&mut self.outputs).zip(values) {
            slot.bytes = value.bytes;
            slot.element = value.dtype.size() as u64;
            slot.at = 0;
        }
        self.is_known = true;
        Ok(())
    }

    /// Binds the tensors whose location changed since the last launch.
    ///
    /// # Safety
    /// The tensors that were located exist until the next run has ended.
    pub unsafe fn bind(&mut self, session: &mut symmc::Session) -> Result<(), symmc::Error> {
        for slot in self.arguments.iter_mut().chain(&mut self.outputs) {
            if slot.next == slot.at || slot.bytes == 0 {
                continue;
            }
            let pointer = std::ptr::with_exposed_provenance_mut(slot.next as usize);
            // SAFETY: the caller ensures it, and the tensor has this many bytes.
            unsafe { session.bind_slot(slot.slot, pointer, slot.bytes)? };
            slot.at = slot.next;
        }
        Ok(())
    }
}

/// An argument or output of a launch, by its number. Shown as `in.0` or `out.0`.
#[derive(Clone, Copy)]
struct LaunchPort {
    kind: &'static str,
    number: usize,
}

impl fmt::Display for LaunchPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.number)
    }
}

impl SlotBinding {
    /// Sets the location for the next run. Returns whether a run can use the layout and alignment of the tensor.
    fn set_location(
        &mut self,
        location: TensorLocation,
        gpu: Option<i32>,
        port: LaunchPort,
    ) -> PyResult<bool> {
        if let Some((bytes, device)) = location.reported {
            if bytes != self.bytes {
                return Err(input_error(format!("{port}: expected {} bytes, found {bytes}", self.bytes)));
            }
            expect_device(gpu, device, || port.to_string())?;
        }
        self.next = location.address;
        let align = gpu.map_or(self.element, |_| GPU_ALIGN);
        let is_aligned = location.address.is_multiple_of(align);
        Ok(self.bytes == 0 || (location.is_dense && is_aligned))
    }
}

/// The error for a tensor that does not report its location. Interrupts are returned unchanged.
fn location_error(py: Python<'_>, port: LaunchPort, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let text = error.value(py).to_string();
    let why = text.lines().next().unwrap_or_default();
    let refusal = input_error(format!("{port}: the tensor does not report its location: {why}"));
    refusal.set_cause(py, Some(error));
    refusal
}

fn expect_count(kind: &str, expected: usize, found: usize) -> PyResult<()> {
    if expected == found {
        return Ok(());
    }
    Err(input_error(format!("{kind}: expected {expected} tensors, found {found}")))
}

/// Refuses a tensor that is not on the GPU of a session, or not on the host for a session there.
pub fn expect_device(gpu: Option<i32>, found: DlDevice, what: impl Fn() -> String) -> PyResult<()> {
    let fits = match gpu {
        None => found.kind == device::CPU || found.kind == device::CUDA_HOST,
        Some(gpu) => found.kind == device::CUDA && found.id == gpu,
    };
    if fits {
        return Ok(());
    }
    let device_text = |kind: i32, id: i32| match kind {
        device::CPU => "memory of the host".to_string(),
        device::CUDA => format!("memory of GPU {id}"),
        _ => format!("a device of type {kind}"),
    };
    let expected = gpu.map_or_else(|| device_text(device::CPU, 0), |gpu| device_text(device::CUDA, gpu));
    Err(input_error(format!("{}: expected {expected}, found {}", what(), device_text(found.kind, found.id))))
}
