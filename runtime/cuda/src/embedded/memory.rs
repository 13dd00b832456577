//! Where inputs and outputs of a session lie, and what is copied because the plan has them elsewhere.

use std::sync::Arc;

use symmc_runtime::RunError;
use symmc_runtime::exec::InputData;
use symmc_runtime::session::{Extent, Location, Owner, Port, SizedProgram, Spot, Whose};

use super::piece::Piece;
use super::recording::{Move, RecordingKey};
use super::session::CudaSession;
use crate::driver::{Holder, Memory};
use crate::launch::Address;
use crate::staging;

/// The memory of one run.
pub(super) struct Resolved {
    /// Where ports begin, and what is copied. An input that the plan holds elsewhere, or an output that an input holds, has
    /// its address in the place of a base.
    pub key: RecordingKey,
    pub memory: Vec<Arc<Piece>>,
}

impl CudaSession {
    /// The memory of an input or output at the sizes that are set, made if there is none.
    pub(super) fn located(&mut self, port: Port) -> Result<Spot, RunError> {
        let Location { port, bytes, memory } = self.ports.location(port)?;
        let (address, owner) = match memory {
            Whose::Caller(extent) => (extent.address, Owner::Caller),
            Whose::Program(None) => (self.constant(port, bytes)?, Owner::Program),
            Whose::Program(Some(offset)) => (self.context()?.symmetric(offset), Owner::Program),
            Whose::Symmetric(offset) => (self.context()?.symmetric(offset), Owner::Symmetric),
            Whose::Session => (self.room(port, bytes)?, Owner::Session),
        };
        Ok(Spot { extent: Extent { address, bytes }, owner })
    }

    /// The memory of a constant, with its data.
    fn constant(&mut self, port: Port, bytes: usize) -> Result<Address, RunError> {
        let address = self.room(port, bytes)?;
        if let Port::Input(i) = port
            && !self.ports.held(port).given
        {
            let bound = self.ports.sized()?.bound.clone();
            self.upload(address, bound.constant(i).unwrap_or_default())?;
            self.ports.held_mut(port).given = true;
        }
        Ok(address)
    }

    /// Memory of the session's own for so many bytes. What was in a smaller one is in the larger one too.
    fn room(&mut self, port: Port, bytes: usize) -> Result<Address, RunError> {
        let there = self.ports.held(port).memory.clone();
        if let Some(memory) = there.as_ref().filter(|memory| memory.len() >= bytes) {
            return Ok(memory.address());
        }
        self.until_idle(None)?;
        let larger = Memory::new(&self.device, &self.ports.lending().name(port), bytes)?;
        if let Some(old) = &there {
            let stream = &self.context()?.resources.streams.compute;
            // SAFETY: both exist and are apart, and no run is in progress.
            unsafe { stream.copy(larger.address(), old.address(), old.len())? };
            stream.synchronize()?;
        }
        let address = larger.address();
        let len = larger.len();
        self.ports.held_mut(port).memory = Some(Arc::new(Piece::of(&Arc::new(larger), 0..len)));
        Ok(address)
    }

    /// Copies data of the host to memory that no run touches now.
    pub(super) fn upload(&self, to: Address, data: &[u8]) -> Result<(), RunError> {
        self.upload_all(&[(to, InputData::Memory(data))])
    }

    /// The same for several.
    pub(super) fn upload_all(&self, all: &[(Address, InputData<'_>)]) -> Result<(), RunError> {
        let stream = &self.context()?.resources.streams.compute;
        // SAFETY: the memory has as many bytes, and no run is in progress.
        unsafe { staging::upload(&self.device, stream, all) }
    }

    /// Refuses memory that the GPU of the session does not hold.
    pub(super) fn expect_own(&self, port: Port, given: Extent) -> Result<(), RunError> {
        let Some(last) = given.bytes.checked_sub(1) else { return Ok(()) };
        for at in [given.address, given.address.saturating_add(last as Address)] {
            let found = match self.device.holder(at)? {
                Holder::Gpu(gpu) if gpu == self.device.ordinal() => continue,
                Holder::Gpu(gpu) => format!("that of GPU {gpu}"),
                Holder::Host => "memory of the host, or nobody's".to_string(),
            };
            let Extent { address, bytes } = given;
            return Err(RunError::Invalid(format!(
                "{}: the memory of {bytes} bytes at {address:#x}: expected memory of GPU {}, found at {at:#x} {found}",
                self.ports.lending().name(port),
                self.device.ordinal()
            )));
        }
        Ok(())
    }

    /// What of the session a caller may not lend to it, beside the symmetric arena.
    pub(super) fn reserved(&self) -> Vec<(&'static str, Extent)> {
        let Some(context) = &self.context else { return Vec::new() };
        let of = |memory: &Memory| Extent { address: memory.address(), bytes: memory.len() };
        context.resources._memory.iter().map(|memory| ("memory", of(memory))).collect()
    }

    /// The symmetric arena, if it is there now.
    pub(super) fn arena(&self) -> Option<Extent> {
        let arena = &self.context.as_ref()?.resources.arena;
        Some(Extent { address: arena.address(), bytes: arena.len() })
    }

    /// What the next run takes.
    pub(super) fn resolve(&mut self) -> Result<Resolved, RunError> {
        let SizedProgram { bound, text, .. } = self.ports.sized()?;
        let (bound, sizes) = (bound.clone(), text.clone());
        self.ports.check_lending()?;
        let arena = self.context()?.resources.arena.address();
        let mut bases: Vec<Address> = Vec::with_capacity(bound.inputs.len() + bound.outputs.len());
        let [mut before, mut after] = [Vec::new(), Vec::new()];
        for (i, input) in bound.inputs.iter().enumerate() {
            let lent = self.ports.lending().of(Port::Input(i));
            let spot = self.located(Port::Input(i))?;
            self.ports.expect_data(i)?;
            let held = self.ports.fixed(i).map(|offset| arena + offset as Address);
            if let (Some(to), Some(lent), true) = (held, lent, self.ports.is_renewed(i)) {
                before.push(Move { to, from: lent.address, bytes: input.bytes });
            }
            bases.push(held.unwrap_or(spot.extent.address));
        }
        for (k, output) in bound.outputs.iter().enumerate() {
            let spot = self.located(Port::Output(k))?.extent;
            let given =
                output.mutates.and_then(|i| Some((i, self.ports.lending().of(Port::Input(i))?.address)));
            match (output.held_by(), output.mutates) {
                // The steps write it where the input lies.
                (Some(i), _) => {
                    let held = bases[i];
                    after.push(Move { to: spot.address, from: held, bytes: output.bytes });
                    bases.push(held);
                }
                (None, Some(i)) => {
                    // Where the caller has one memory for both, the steps, which need two, take one of the session's.
                    let shared = given.is_some_and(|(_, address)| address == spot.address);
                    let from = if shared { self.room(Port::Output(k), output.bytes)? } else { spot.address };
                    after.push(Move { to: bases[i], from, bytes: output.bytes });
                    after.extend(given.map(|(_, to)| Move { to, from, bytes: output.bytes }));
                    bases.push(from);
                }
                (None, None) => bases.push(spot.address),
            }
        }
        let mut moves = [before, after];
        for list in &mut moves {
            list.retain(|m| m.to != m.from && m.bytes > 0);
            list.dedup();
        }
        let key = RecordingKey { sizes, bases: bases.into(), moves };
        Ok(Resolved { key, memory: self.ports.memories().cloned().collect() })
    }

    /// Has parameters and constants that the plan holds in the symmetric arena there.
    pub(super) fn load(&mut self) -> Result<(), RunError> {
        let bound = self.ports.sized()?.bound.clone();
        for (i, input) in bound.inputs.iter().enumerate() {
            let port = Port::Input(i);
            let Some(offset) = input.fixed.filter(|_| !self.ports.is_renewed(i)) else { continue };
            if self.ports.held(port).loaded {
                continue;
            }
            let to = self.context()?.symmetric(offset);
            match (self.ports.lending().of(port), bound.constant(i)) {
                // It lies there.
                (Some(lent), _) if lent.address == to => {}
                (Some(lent), _) => {
                    self.until_idle(None)?;
                    let stream = &self.context()?.resources.streams.compute;
                    // SAFETY: both hold the bytes of the input, and no run is in progress.
                    unsafe { stream.copy(to, lent.address, input.bytes)? };
                    stream.synchronize()?;
                }
                (None, Some(data)) => {
                    self.until_idle(None)?;
                    self.upload(to, data)?;
                }
                // It was written there.
                (None, None) => {}
            }
            self.ports.held_mut(port).loaded = true;
        }
        Ok(())
    }
}
