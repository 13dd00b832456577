//! Handles of inputs and outputs, for callers that bind memory before every run.

use symmc_ir::entity::Entity;
use symmc_ir::{InputKind, OutputKind};
use symmc_runtime::session::{DeviceRange, Port};

use super::{Session, values};
use crate::error::Error;

/// A handle of an input or an output, valid in all sessions of the same plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortSlot(Port);

impl Session {
    /// The input or output of a name, as a handle to bind memory without looking up the name again.
    ///
    /// # Errors
    /// There is no such input or output.
    pub fn slot(&self, name: &str) -> Result<PortSlot, Error> {
        self.find_port(name, values::PortPreference::Either).map(PortSlot)
    }

    /// All arguments in order: `in.0`, `in.1` and so on.
    pub fn argument_slots(&self) -> Vec<PortSlot> {
        let inputs = self.plan.source_program().inputs.iter();
        let arguments = inputs.filter(|(_, input)| input.kind == InputKind::Argument);
        arguments.map(|(id, _)| PortSlot(Port::Input(id.index()))).collect()
    }

    /// All outputs that replace no input, in order: `out.0`, `out.1` and so on.
    pub fn returned_slots(&self) -> Vec<PortSlot> {
        let outputs = self.plan.source_program().outputs.iter().enumerate();
        let returned = outputs.filter(|(_, output)| output.kind == OutputKind::Returned);
        returned.map(|(number, _)| PortSlot(Port::Output(number))).collect()
    }

    /// As [`bind`](Self::bind), for a handle from [`slot`](Self::slot) of a session of the same plan.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    ///
    /// # Safety
    /// As [`bind`](Self::bind).
    pub unsafe fn bind_slot(&mut self, slot: PortSlot, pointer: *mut u8, bytes: usize) -> Result<(), Error> {
        let address = pointer.expose_provenance() as u64;
        values::check_capacity(self.plan.source_program(), slot.0, bytes)?;
        // SAFETY: the caller ensures it.
        unsafe { self.device.select()?.bind_port(slot.0, Some(DeviceRange { address, bytes }))? };
        self.hold_owner(slot.0, None);
        Ok(())
    }
}
