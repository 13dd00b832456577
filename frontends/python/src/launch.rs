//! Runs of tensors by their numbers: what a compiled function does in each call.
//!
//! Only what lies elsewhere than at the last launch is bound, and nothing is looked up by a name.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use symmc::PortSlot;

use crate::dlpack::{DlDevice, device};
use crate::error::input_error;
use crate::exchange::{LocationReader, TensorLocation};

/// What memory of GPUs that a run uses starts at a multiple of.
const ALIGN: u64 = 16;

/// Arguments and outputs that replace none, as the last launch had them.
#[derive(Default)]
pub struct LaunchBindings {
    arguments: Vec<SlotBinding>,
    outputs: Vec<SlotBinding>,
    /// Whether the bytes are those of the sizes that are set, and the addresses those that are bound.
    is_known: bool,
    reader: LocationReader,
}

struct SlotBinding {
    slot: PortSlot,
    bytes: usize,
    /// Where it is bound.
    at: u64,
    /// Where it lies in the next run.
    next: u64,
}

impl LaunchBindings {
    /// Forgets what is bound: something else may be, or of another size.
    pub fn forget(&mut self) {
        self.is_known = false;
    }

    /// Looks where tensors lie for the next run of a session, on this GPU or on the host; the numbers of arguments that do not
    /// lie as a run wants them.
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
        let mut odd = Vec::new();
        for (number, (placed, tensor)) in self.arguments.iter_mut().zip(arguments.iter_borrowed()).enumerate()
        {
            let lies = self
                .reader
                .locate_tensor(&tensor)
                .map_err(|error| location_error(arguments.py(), ("in", number), error))?;
            if !placed.set_location(lies, gpu, ("in", number))? {
                odd.push(number);
            }
        }
        for (number, (placed, tensor)) in self.outputs.iter_mut().zip(outputs).enumerate() {
            let lies = self
                .reader
                .locate_tensor(&tensor)
                .map_err(|error| location_error(arguments.py(), ("out", number), error))?;
            if !placed.set_location(lies, gpu, ("out", number))? {
                return Err(input_error(format!(
                    "out.{number}: its elements do not lie as a run writes them"
                )));
            }
        }
        Ok(odd)
    }

    fn refresh_sizes(&mut self, session: &symmc::Session) -> Result<(), symmc::Error> {
        if self.arguments.is_empty() && self.outputs.is_empty() {
            let of = |slot| SlotBinding { slot, bytes: 0, at: 0, next: 0 };
            self.arguments = session.argument_slots().into_iter().map(of).collect();
            self.outputs = session.returned_slots().into_iter().map(of).collect();
        }
        let returned = session.outputs()?.into_iter().filter(|value| value.replaces.is_none());
        let all = session.inputs()?.into_iter().chain(returned);
        for (placed, value) in self.arguments.iter_mut().chain(&mut self.outputs).zip(all) {
            (placed.bytes, placed.at) = (value.bytes, 0);
        }
        self.is_known = true;
        Ok(())
    }

    /// Binds what lies elsewhere than at the last launch.
    ///
    /// # Safety
    /// The tensors that were looked at stay until the run that comes has ended.
    pub unsafe fn bind(&mut self, session: &mut symmc::Session) -> Result<(), symmc::Error> {
        for placed in self.arguments.iter_mut().chain(&mut self.outputs) {
            if placed.next == placed.at || placed.bytes == 0 {
                continue;
            }
            let pointer = std::ptr::with_exposed_provenance_mut(placed.next as usize);
            // SAFETY: by the caller; the tensor has as many bytes.
            unsafe { session.bind_slot(placed.slot, pointer, placed.bytes)? };
            placed.at = placed.next;
        }
        Ok(())
    }
}

impl SlotBinding {
    /// Whether a tensor lies as a run wants it; then it is where the value lies in the next run.
    fn set_location(
        &mut self,
        lies: TensorLocation,
        gpu: Option<i32>,
        (kind, number): (&str, usize),
    ) -> PyResult<bool> {
        if let Some((bytes, device)) = lies.reported {
            if bytes != self.bytes {
                return Err(input_error(format!(
                    "{kind}.{number}: expected {} bytes, found {bytes}",
                    self.bytes
                )));
            }
            expect_device(gpu, device, || format!("{kind}.{number}"))?;
        }
        self.next = lies.address;
        let is_aligned = gpu.is_none() || lies.address.is_multiple_of(ALIGN);
        Ok(self.bytes == 0 || (lies.is_dense && is_aligned))
    }
}

/// Names what does not say where it lies.
fn location_error(py: Python<'_>, (kind, number): (&str, usize), error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let text = error.value(py).to_string();
    let why = text.lines().next().unwrap_or_default();
    let refusal = input_error(format!("{kind}.{number}: it does not say where it lies: {why}"));
    refusal.set_cause(py, Some(error));
    refusal
}

fn expect_count(kind: &str, expected: usize, found: usize) -> PyResult<()> {
    match expected == found {
        true => Ok(()),
        false => Err(input_error(format!("{kind}: expected {expected} tensors, found {found}"))),
    }
}

/// Refuses a tensor on another device than the GPU of a session, or than the host.
pub fn expect_device(gpu: Option<i32>, found: DlDevice, what: impl Fn() -> String) -> PyResult<()> {
    let fits = match gpu {
        None => found.kind == device::CPU || found.kind == device::CUDA_HOST,
        Some(gpu) => found.kind == device::CUDA && found.id == gpu,
    };
    if fits {
        return Ok(());
    }
    let at = |kind: i32, id: i32| match kind {
        device::CPU => "memory of the host".to_string(),
        device::CUDA => format!("memory of GPU {id}"),
        _ => format!("a device of type {kind}"),
    };
    let expected = gpu.map_or_else(|| at(device::CPU, 0), |gpu| at(device::CUDA, gpu));
    Err(input_error(format!("{}: expected {expected}, found {}", what(), at(found.kind, found.id))))
}
