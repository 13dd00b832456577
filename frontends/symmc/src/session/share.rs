//! Tensors that sessions read: weights that several sessions of one process have together.

use std::sync::Arc;

use symmc_ir::{OutputKind, Tensor};
use symmc_runtime::RunError;
use symmc_runtime::session::Port;

use super::held_memory::Owner;
use super::{Session, values};
use crate::error::Error;

impl Session {
    /// Has the runs that come find an input in a tensor: several sessions may read one. On the host they read it where it
    /// lies; on a GPU it is put there once for all sessions of this process that share it. Nothing else is copied, unless
    /// the plan holds the input in symmetric memory ([`Storage::Symmetric`](super::PortStorage::Symmetric)). The session keeps what
    /// it reads: on the host the tensor, on a GPU the copy there. A tensor that lies in a file is read into memory here; who
    /// shares it with several sessions of the host reads it before ([`Program::parameters`](crate::Program::parameters) does).
    ///
    /// # Errors
    /// There is no such input, an output replaces it, it is a constant, a symbol has no value, the tensor has another dtype
    /// or other extents, its file cannot be read, or the GPU has no room. What was there before stays then.
    pub fn share(&mut self, name: &str, tensor: Arc<Tensor>) -> Result<(), Error> {
        let port = self.find_port(name, values::PortPreference::Input)?;
        let Port::Input(input) = port else {
            return Err(Error::invalid_request(format!("{name} is an output: only inputs are read")));
        };
        self.expect_read_only(name, input)?;
        self.expect_type(name, port, &tensor)?;
        let kept = self.device.select()?.share_tensor(&tensor).map_err(|error| match error {
            RunError::Invalid(why) => RunError::Invalid(format!("{name}: {why}")),
            other => other,
        })?;
        // SAFETY: the session holds the owner until its runs have ended; nobody writes the bytes while it is held, nor do
        // runs, because no output replaces the input.
        unsafe { self.device.select()?.bind_port(port, Some(kept.range))? };
        self.hold_owner(port, Some(kept.owner));
        Ok(())
    }

    /// Holds the owner of the memory of an input or output, or none, in place of another one.
    pub(super) fn hold_owner(&mut self, port: Port, owner: Option<Owner>) {
        if self.device.held_memory().hold_owner(port, owner) && self.poll().unwrap_or(false) {
            self.device.held_memory().release_retired();
        }
    }

    /// Copies a tensor to where an input lies; in contrast to [`write`](Self::write) its dtype and extents are compared.
    ///
    /// # Errors
    /// As [`write`](Self::write); a symbol has no value, the tensor has another dtype or other extents, or its file cannot be read.
    pub fn write_tensor(&mut self, name: &str, tensor: &Tensor) -> Result<(), Error> {
        let port = self.find_port(name, values::PortPreference::Input)?;
        self.expect_type(name, port, tensor)?;
        let mut copy = Vec::new();
        let data = match tensor.backing_slice().filter(|part| part.is_volatile()) {
            // A file that another process shortens is an error.
            Some(part) => {
                copy.resize(part.range().len(), 0);
                part.read(&mut copy).map_err(|e| Error::invalid_request(format!("{name}: {e}")))?;
                &copy
            }
            None => tensor.data(),
        };
        self.write(name, data)
    }

    /// Refuses inputs that runs write, and those of the program's own.
    fn expect_read_only(&self, name: &str, input: usize) -> Result<(), Error> {
        let source = self.plan.source_program();
        let replaces = |kind: &OutputKind| match kind {
            OutputKind::Mutates(id) => source.inputs.keys().position(|i| i == *id) == Some(input),
            OutputKind::Returned => false,
        };
        if let Some(output) = source.outputs.iter().find(|o| replaces(&o.kind)) {
            let output = source.value_name(output.value);
            return Err(Error::invalid_request(format!(
                "{name}: the output %{output} replaces it, so it is no tensor to be read alone: bind memory, or write it"
            )));
        }
        match source.inputs.values().nth(input) {
            Some(found) if found.data.is_some() => Err(Error::invalid_request(format!(
                "{name} is a constant of the program: it has no memory to share"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a tensor of another type.
    fn expect_type(&self, name: &str, port: Port, tensor: &Tensor) -> Result<(), Error> {
        let value = self.value_at_port(name, port)?;
        if tensor.dtype() == value.dtype && tensor.shape() == value.extents {
            return Ok(());
        }
        Err(Error::invalid_request(format!(
            "{name}: expected {}{:?}, found {}{:?}",
            value.dtype,
            value.extents,
            tensor.dtype(),
            tensor.shape()
        )))
    }
}
