//! Tensors that sessions read where they lie: weights that several sessions of one process have together.

use std::sync::Arc;

use symmc_ir::{OutputKind, Tensor};
use symmc_runtime::session::{Extent, Port};

use super::{Session, values};
use crate::error::Error;

impl Session {
    /// Has the runs that come find an input in a tensor, where it lies: several sessions may read one, and none copies it,
    /// unless the plan holds the input in symmetric memory ([`Place::Symmetric`](super::Place::Symmetric)). The session keeps
    /// the tensor. One that lies in a file is read into memory here; who shares it with several sessions reads it before
    /// ([`Program::parameters`](crate::Program::parameters) does).
    ///
    /// # Errors
    /// There is no such input, an output replaces it, it is a constant, a symbol has no value, the tensor has another dtype
    /// or other extents, or its file cannot be read. What was there before stays then.
    pub fn share(&mut self, name: &str, tensor: Arc<Tensor>) -> Result<(), Error> {
        let port = self.port(name, values::Prefer::Input)?;
        let Port::Input(input) = port else {
            return Err(Error::request(format!("{name} is an output: only inputs are read")));
        };
        self.expect_read_only(name, input)?;
        self.expect_type(name, port, &tensor)?;
        let tensor =
            tensor.loaded().map_err(|e| Error::request(format!("{name}: its tensor cannot be read: {e}")))?;
        let address = tensor.data().as_ptr().expose_provenance() as u64;
        let extent = Extent { address, bytes: tensor.data().len() };
        // SAFETY: the session holds the tensor until its runs have ended; nobody writes it while it is held, nor do runs,
        // because no output replaces the input.
        unsafe { self.device.lend(port, Some(extent))? };
        let idle = self.device.poll().unwrap_or(false);
        self.shared.hold(input, tensor);
        if idle {
            self.shared.let_go();
        }
        Ok(())
    }

    /// Copies a tensor to where an input lies; in contrast to [`write`](Self::write) its dtype and extents are compared.
    ///
    /// # Errors
    /// As [`write`](Self::write); a symbol has no value, or the tensor has another dtype or other extents.
    pub fn write_tensor(&mut self, name: &str, tensor: &Tensor) -> Result<(), Error> {
        let port = self.port(name, values::Prefer::Input)?;
        self.expect_type(name, port, tensor)?;
        self.write(name, tensor.data())
    }

    /// Refuses inputs that runs write, and those of the program's own.
    fn expect_read_only(&self, name: &str, input: usize) -> Result<(), Error> {
        let source = self.plan.source_program();
        let replaces = |kind: &OutputKind| match kind {
            OutputKind::Mutates(id) => source.inputs.keys().position(|i| i == *id) == Some(input),
            OutputKind::Returned => false,
        };
        if let Some(output) = source.outputs.iter().find(|o| replaces(&o.kind)) {
            let output = source.name_of(output.value);
            return Err(Error::request(format!(
                "{name}: the output %{output} replaces it, so it is no tensor to be read alone: bind memory, or write it"
            )));
        }
        match source.inputs.values().nth(input) {
            Some(found) if found.data.is_some() => {
                Err(Error::request(format!("{name} is a constant of the program: it has no memory to share")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a tensor of another type.
    fn expect_type(&self, name: &str, port: Port, tensor: &Tensor) -> Result<(), Error> {
        let value = self.value(name, port)?;
        if tensor.dtype() == value.dtype && tensor.shape() == value.extents {
            return Ok(());
        }
        Err(Error::request(format!(
            "{name}: expected {}{:?}, found {}{:?}",
            value.dtype,
            value.extents,
            tensor.dtype(),
            tensor.shape()
        )))
    }
}
