//! Tensors that sessions read in place: weights that several sessions of one process share.

use std::sync::Arc;

use symmc_ir::{OutputKind, Tensor};
use symmc_runtime::RunError;
use symmc_runtime::session::Port;

use super::held_memory::Owner;
use super::{Session, values};
use crate::error::Error;

impl Session {
    /// Makes the next runs read an input from a tensor, which several sessions may share. On the host the runs read it in
    /// place. On a GPU it is copied there once for all sessions of this process. There is one other copy: if the plan holds the
    /// input in symmetric memory ([`PortStorage::Symmetric`](super::PortStorage::Symmetric)), it is copied there. The session
    /// keeps the tensor on the host, and the copy on a GPU. A tensor that is in a file is loaded into memory by this call. To
    /// share it between several sessions on the host, load it before
    /// ([`Program::parameters`](crate::Program::parameters) does so).
    ///
    /// # Errors
    /// There is no such input, an output replaces it, it is a constant, a symbol has no value, the tensor has another dtype
    /// or other extents, its file cannot be read, or the GPU is out of memory. The previous memory of the input stays bound.
    pub fn share(&mut self, name: &str, tensor: Arc<Tensor>) -> Result<(), Error> {
        let port = self.find_port(name, values::PortPreference::Input)?;
        let Port::Input(input) = port else {
            return Err(Error::invalid_request(format!("{name} is an output: only inputs can be shared")));
        };
        self.expect_read_only(name, input)?;
        self.expect_type(name, port, &tensor)?;
        let shared = self.device.select()?.share_tensor(&tensor).map_err(|error| match error {
            RunError::Invalid(why) => RunError::Invalid(format!("{name}: {why}")),
            other => other,
        })?;
        // SAFETY: the session holds the owner until its runs have ended. Nothing writes the bytes while it is held: runs do not,
        // because no output replaces the input.
        unsafe { self.device.select()?.bind_port(port, Some(shared.range))? };
        self.hold_owner(port, Some(shared.owner));
        Ok(())
    }

    /// Replaces the owner of the memory of an input or output. Former owners are dropped if no run is in progress.
    pub(super) fn hold_owner(&mut self, port: Port, owner: Option<Owner>) {
        if self.device.held_memory().hold_owner(port, owner) && self.poll().unwrap_or(false) {
            self.device.held_memory().release_retired();
        }
    }

    /// Copies a tensor to an input, as [`write`](Self::write), after comparing its dtype and extents.
    ///
    /// # Errors
    /// As [`write`](Self::write). Also if a symbol has no value, the tensor has another dtype or other extents, or its file
    /// cannot be read.
    pub fn write_tensor(&mut self, name: &str, tensor: &Tensor) -> Result<(), Error> {
        let port = self.find_port(name, values::PortPreference::Input)?;
        self.expect_type(name, port, tensor)?;
        let mut copy = Vec::new();
        let data = match tensor.backing_slice().filter(|slice| slice.is_volatile()) {
            // Reading by position gives an error if another process has shortened the file.
            Some(slice) => {
                copy.resize(slice.range().len(), 0);
                slice.read(&mut copy).map_err(|e| Error::invalid_request(format!("{name}: {e}")))?;
                &copy
            }
            None => tensor.data(),
        };
        self.write(name, data)
    }

    /// Refuses inputs that runs write, and constants of the program.
    fn expect_read_only(&self, name: &str, input: usize) -> Result<(), Error> {
        let source = self.plan.source_program();
        let replaces = |kind: &OutputKind| match kind {
            OutputKind::Mutates(id) => source.inputs.keys().position(|i| i == *id) == Some(input),
            OutputKind::Returned | OutputKind::Length { .. } => false,
        };
        if let Some(output) = source.outputs.iter().find(|o| replaces(&o.kind)) {
            let output = source.value_name(output.value);
            return Err(Error::invalid_request(format!(
                "{name}: the output %{output} replaces it, so it cannot be shared read-only: bind memory, or write it"
            )));
        }
        match source.inputs.values().nth(input) {
            Some(graph_input) if graph_input.data.is_some() => Err(Error::invalid_request(format!(
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
