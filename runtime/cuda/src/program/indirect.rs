//! What an indirect recording has in the place of addresses: a table of pointers, and kernels that find theirs there
//! ([`pointers`](crate::codegen::pointers)).

use std::sync::Arc;

use super::DeviceProgram;
use super::item::Ready;
use crate::codegen::pointers::{PointerTable, UPLOAD_ENTRY};
use crate::device::driver::{Device, Function, Graph, Memory, Node, Stream};
use crate::device::launch::{Kernel, PortBases, Start};
use crate::error::Result;

/// The table of one indirect recording. The graph of the recording is dropped before it.
pub struct IndirectPorts {
    table: PointerTable,
    memory: Memory,
    upload: Function,
    /// The launches that write it.
    uploads: Vec<Kernel>,
    /// The nodes that they became.
    nodes: Vec<Node>,
}

// SAFETY: handles of the driver may be used from any thread. One session has the recording, and uses it from one thread at a
// time.
unsafe impl Send for IndirectPorts {}
// SAFETY: as above.
unsafe impl Sync for IndirectPorts {}

impl DeviceProgram {
    /// A table for one indirect recording; `None` if no kernel of the program resolves pointers to ports.
    ///
    /// # Errors
    /// The device has no memory for it.
    pub fn indirect_ports(&self, device: &Arc<Device>) -> Result<Option<IndirectPorts>> {
        let work = self.steps.iter().flat_map(|step| &step.work);
        let kernels = work.filter_map(|work| match work {
            Ready::Kernel(_, kernel) if work.resolves_ports() => Some(kernel),
            _ => None,
        });
        let table = PointerTable::new(kernels);
        let Some(module) = self.settled.module.as_ref().filter(|_| table.bytes() > 0) else {
            return Ok(None);
        };
        let memory = Memory::new(device, "pointers to inputs and outputs", table.bytes())?;
        let upload = module.function(UPLOAD_ENTRY, 0)?;
        let uploads = table.uploads(memory.address());
        Ok(Some(IndirectPorts { table, memory, upload, uploads, nodes: Vec::new() }))
    }
}

impl IndirectPorts {
    /// The kernel with entries of the table in the place of its pointers to ports.
    pub(super) fn indirect(&self, kernel: &Kernel) -> Kernel {
        self.table.indirect(kernel, self.memory.address())
    }

    /// Records the launches that write the table, in front of all kernels that read it.
    ///
    /// # Errors
    /// The driver refuses a launch.
    pub(super) fn record(&mut self, bases: PortBases<'_>, stream: &Stream) -> Result<()> {
        for kernel in &self.uploads {
            let before = stream.frontier()?;
            // SAFETY: the table has as many entries, and lives as long as the recording.
            unsafe { stream.launch(self.upload, kernel, bases, Start::After)? };
            self.nodes.extend(stream.since(&before)?.unwrap_or_default());
        }
        Ok(())
    }

    /// Has the recorded launches write the addresses of ports at other bases; whether all of them can.
    ///
    /// # Errors
    /// The driver refuses the parameters.
    pub(super) fn rebase(&self, bases: PortBases<'_>, graph: &Graph) -> Result<bool> {
        for (kernel, &node) in self.uploads.iter().zip(&self.nodes) {
            // SAFETY: as above.
            unsafe { graph.set_kernel(node, self.upload, kernel, bases)? };
        }
        Ok(self.nodes.len() == self.uploads.len())
    }
}
