//! The memory of a session's inputs and outputs, and the copies for ports that the plan places elsewhere.

use std::sync::Arc;

use symmc_runtime::RunError;
use symmc_runtime::exec::InputData;
use symmc_runtime::session::{DeviceRange, Port, PortDevice, SessionPorts, SizedProgram};

use super::cuda_session::{CudaSession, LastRun};
use super::recording::{PortCopy, RecordingKey};
use crate::device::driver::{DeviceBuffer, MemoryHolder};
use crate::device::launch::Address;
use crate::device::staging;

pub(super) struct ResolvedPorts {
    /// The bases of ports, and the copies. An input that the plan places elsewhere, or an output that an
    /// input holds, has its actual address instead of a base.
    pub key: RecordingKey,
    pub memory: Vec<Arc<DeviceBuffer>>,
}

impl PortDevice for CudaSession {
    type Memory = DeviceBuffer;

    fn ports(&mut self) -> &mut SessionPorts<DeviceBuffer> {
        &mut self.ports
    }

    fn symmetric_arena(&self) -> Result<DeviceRange, RunError> {
        let arena = &self.context()?.resources.arena;
        Ok(DeviceRange { address: arena.address(), bytes: arena.len() })
    }

    fn allocate_port_memory(
        &mut self,
        name: &str,
        bytes: usize,
        smaller: Option<Arc<DeviceBuffer>>,
    ) -> Result<DeviceBuffer, RunError> {
        self.wait_for_runs(None)?;
        let larger = DeviceBuffer::new(&self.device, name, bytes)?;
        if let Some(old) = smaller {
            let stream = &self.context()?.resources.streams.compute;
            // SAFETY: both exist and do not overlap, and no run is in progress.
            unsafe { stream.copy(larger.address(), old.address(), old.len())? };
            stream.synchronize()?;
        }
        Ok(larger)
    }

    fn constant_address(&mut self, input: usize, bytes: usize) -> Result<Address, RunError> {
        let port = Port::Input(input);
        let address = self.ensure_session_memory(port, bytes)?;
        if !self.ports.state(port).has_data() {
            let bound = self.ports.sized_program()?.program.clone();
            self.upload(address, bound.constant_data(input).unwrap_or_default())?;
            self.ports.state_mut(port).set_data();
        }
        Ok(address)
    }
}

impl CudaSession {
    pub(super) fn upload(&self, to: Address, data: &[u8]) -> Result<(), RunError> {
        self.upload_all(&[(to, InputData::Memory(data))])
    }

    /// Uploads to several addresses.
    pub(super) fn upload_all(&self, all: &[(Address, InputData<'_>)]) -> Result<(), RunError> {
        let stream = &self.context()?.resources.streams.compute;
        // SAFETY: the memory has at least that many bytes, and no run is in progress.
        unsafe { staging::upload(&self.device, stream, all) }
    }

    /// Refuses memory that is not on the GPU of the session.
    pub(super) fn expect_own(&self, port: Port, range: DeviceRange) -> Result<(), RunError> {
        let Some(last_offset) = range.bytes.checked_sub(1) else { return Ok(()) };
        for probed in [range.address, range.address.saturating_add(last_offset as Address)] {
            let holder = match self.device.memory_holder(probed)? {
                MemoryHolder::Gpu(gpu) if gpu == self.device.ordinal() => continue,
                MemoryHolder::Gpu(gpu) => format!("memory of GPU {gpu}"),
                MemoryHolder::Host => "host memory, or no memory".to_string(),
            };
            let DeviceRange { address, bytes } = range;
            return Err(RunError::Invalid(format!(
                "{}: the memory of {bytes} bytes at {address:#x}: expected memory of GPU {}, found {holder} at {probed:#x}",
                self.ports.state(port).name,
                self.device.ordinal()
            )));
        }
        Ok(())
    }

    /// The session's memory that a caller may not bind, apart from the symmetric arena.
    pub(super) fn reserved(&self) -> Vec<(&'static str, DeviceRange)> {
        let Some(context) = &self.context else { return Vec::new() };
        let buffers = context.resources._memory.iter();
        buffers
            .map(|buffer| ("memory", DeviceRange { address: buffer.address(), bytes: buffer.len() }))
            .collect()
    }

    /// The ports of the next run, if they differ from the last run's only in caller memory: inputs that the
    /// plan places nowhere else, and outputs that replace no input.
    fn resolve_rebound(&self) -> Result<Option<ResolvedPorts>, RunError> {
        let LastRun::Rebound(recording, ports) = &self.last_run else { return Ok(None) };
        let bound = &self.ports.sized_program()?.program;
        let mut bases = recording.key().bases.to_vec();
        for &port in ports {
            let (index, is_alone) = match port {
                Port::Input(i) => {
                    let is_replaced = bound.outputs.iter().any(|output| output.mutates == Some(i));
                    (i, self.ports.fixed_offset(i).is_none() && !is_replaced)
                }
                Port::Output(k) => (bound.inputs.len() + k, bound.outputs[k].mutates.is_none()),
            };
            if !is_alone {
                return Ok(None);
            }
            let Some(bound_memory) = self.ports.state(port).binding() else { return Ok(None) };
            bases[index] = bound_memory.address;
        }
        let key = RecordingKey { bases: bases.into(), ..recording.key().clone() };
        Ok(Some(ResolvedPorts { key, memory: self.ports.session_memories().cloned().collect() }))
    }

    /// Resolves the memory of all ports for the next run.
    pub(super) fn resolve(&mut self) -> Result<ResolvedPorts, RunError> {
        let SizedProgram { program: bound, text, .. } = self.ports.sized_program()?;
        let bound = bound.clone();
        let sizes = text.clone();
        self.ports.check_bound_memory()?;
        if let Some(resolved) = self.resolve_rebound()? {
            return Ok(resolved);
        }
        let arena = self.context()?.resources.arena.address();
        let mut bases: Vec<Address> = Vec::with_capacity(bound.inputs.len() + bound.outputs.len());
        let [mut before, mut after] = [Vec::new(), Vec::new()];
        for (i, input) in bound.inputs.iter().enumerate() {
            let binding = self.ports.state(Port::Input(i)).binding();
            let memory = self.locate_port(Port::Input(i))?;
            self.ports.expect_data(i)?;
            let fixed = self.ports.fixed_offset(i).map(|offset| arena + offset as Address);
            if let (Some(to), Some(binding)) = (fixed, binding)
                && self.ports.state(Port::Input(i)).is_rewritable()
            {
                before.push(PortCopy { to, from: binding.address, bytes: input.bytes });
            }
            bases.push(fixed.unwrap_or(memory.range.address));
        }
        for (k, output) in bound.outputs.iter().enumerate() {
            let memory = self.locate_port(Port::Output(k))?.range;
            let mutated =
                output.mutates.and_then(|i| Some((i, self.ports.state(Port::Input(i)).binding()?.address)));
            match (output.input_in_place(), output.mutates) {
                // The steps write this output into the input's memory.
                (Some(i), _) => {
                    let base = bases[i];
                    after.push(PortCopy { to: memory.address, from: base, bytes: output.bytes });
                    bases.push(base);
                }
                (None, Some(i)) => {
                    // The steps need two memories. If the caller bound the same one for both, the output uses
                    // session memory.
                    let shared = mutated.is_some_and(|(_, address)| address == memory.address);
                    let from = if shared {
                        self.ensure_session_memory(Port::Output(k), output.bytes)?
                    } else {
                        memory.address
                    };
                    after.push(PortCopy { to: bases[i], from, bytes: output.bytes });
                    after.extend(mutated.map(|(_, to)| PortCopy { to, from, bytes: output.bytes }));
                    bases.push(from);
                }
                (None, None) => bases.push(memory.address),
            }
        }
        let mut moves = [before, after];
        for list in &mut moves {
            list.retain(|m| m.to != m.from && m.bytes > 0);
            list.dedup();
        }
        let key = RecordingKey { sizes, bases: bases.into(), copies: moves };
        Ok(ResolvedPorts { key, memory: self.ports.session_memories().cloned().collect() })
    }

    /// Copies parameters and constants to their places in the symmetric arena, if the plan holds them there.
    pub(super) fn load_fixed_inputs(&mut self) -> Result<(), RunError> {
        let bound = self.ports.sized_program()?.program.clone();
        for (i, input) in bound.inputs.iter().enumerate() {
            let port = Port::Input(i);
            let Some(offset) = input.fixed.filter(|_| !self.ports.state(port).is_rewritable()) else {
                continue;
            };
            if self.ports.state(port).is_loaded() {
                continue;
            }
            let destination = self.context()?.symmetric(offset);
            match (self.ports.state(port).binding(), bound.constant_data(i)) {
                // The caller's memory is that place.
                (Some(borrowed), _) if borrowed.address == destination => {}
                (Some(borrowed), _) => {
                    self.wait_for_runs(None)?;
                    let stream = &self.context()?.resources.streams.compute;
                    // SAFETY: both hold the bytes of the input, and no run is in progress.
                    unsafe { stream.copy(destination, borrowed.address, input.bytes)? };
                    stream.synchronize()?;
                }
                (None, Some(data)) => {
                    self.wait_for_runs(None)?;
                    self.upload(destination, data)?;
                }
                // The data was written there.
                (None, None) => {}
            }
            self.ports.state_mut(port).set_loaded();
        }
        Ok(())
    }
}
