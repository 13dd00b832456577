//! Where inputs and outputs of a session lie, and what is copied because the plan has them elsewhere.

use std::sync::Arc;

use symmc_runtime::RunError;
use symmc_runtime::exec::Bound;
use symmc_runtime::session::{Extent, Owner, Port, Spot};

use super::CudaSession;
use crate::driver::{Holder, Memory};
use crate::homes::Homes;
use crate::launch::Address;
use crate::staging::{LARGE, Staging};

/// Memory of the session for an input or output, and what is known of its data.
#[derive(Default)]
pub(super) struct Held {
    pub memory: Option<Arc<Memory>>,
    /// Whether the caller wrote it, or was told where to; of a constant, whether it is there.
    pub given: bool,
    /// Whether what the plan holds of it in the symmetric arena is there.
    pub loaded: bool,
}

/// Bytes that are copied in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    pub to: Address,
    pub from: Address,
    pub bytes: usize,
}

/// What one run takes.
pub(super) struct Resolved {
    pub homes: Homes,
    pub moves: [Vec<Move>; 2],
    pub memory: Vec<Arc<Memory>>,
}

impl CudaSession {
    /// The memory of an input or output at the sizes that are set, made if there is none.
    pub(super) fn located(&mut self, port: Port) -> Result<Spot, RunError> {
        let bound = self.sized()?.bound.clone();
        let bytes = bytes_of(&bound, port)?;
        if let Some(lent) = self.lending.of(port) {
            self.lending.expect_room(port, bytes)?;
            return Ok(Spot { extent: Extent { bytes, ..lent }, owner: Owner::Caller });
        }
        if let Port::Output(k) = port
            && let Some(input) = bound.outputs[k].held_by()
        {
            return self.located(Port::Input(input));
        }
        let constant = if let Port::Input(i) = port { bound.constant(i) } else { None };
        let owner = if constant.is_some() { Owner::Program } else { Owner::Session };
        if let Port::Input(i) = port
            && let Some(offset) = self.fixed[i]
        {
            let address = self.gear()?.rig.arena.address() + offset as Address;
            let owner = if constant.is_some() { Owner::Program } else { Owner::Symmetric };
            return Ok(Spot { extent: Extent { address, bytes }, owner });
        }
        let address = self.room(port, bytes)?;
        if let (Port::Input(i), Some(data)) = (port, constant)
            && !self.inputs[i].given
        {
            self.upload(address, data)?;
            self.inputs[i].given = true;
        }
        Ok(Spot { extent: Extent { address, bytes }, owner })
    }

    fn held(&mut self, port: Port) -> &mut Held {
        match port {
            Port::Input(i) => &mut self.inputs[i],
            Port::Output(k) => &mut self.outputs[k],
        }
    }

    /// Memory of the session's own for so many bytes. What was in a smaller one is in the larger one too.
    fn room(&mut self, port: Port, bytes: usize) -> Result<Address, RunError> {
        let there = self.held(port).memory.clone();
        if let Some(memory) = there.as_ref().filter(|memory| memory.len() >= bytes) {
            return Ok(memory.address());
        }
        self.until_idle(None)?;
        let larger = Memory::new(&self.device, &self.lending.name(port), bytes)?;
        if let Some(old) = &there {
            let stream = &self.gear()?.rig.streams.compute;
            // SAFETY: both exist and are apart, and no run is in progress.
            unsafe { stream.copy(larger.address(), old.address(), old.len())? };
            stream.synchronize()?;
        }
        let address = larger.address();
        self.held(port).memory = Some(Arc::new(larger));
        Ok(address)
    }

    /// Copies data of the host to memory that no run touches now.
    pub(super) fn upload(&self, to: Address, data: &[u8]) -> Result<(), RunError> {
        let stream = &self.gear()?.rig.streams.compute;
        if data.len() < LARGE {
            // SAFETY: the memory has as many bytes, and no run is in progress.
            unsafe { stream.upload(to, data)? };
            return Ok(());
        }
        let mut staging = Staging::new(&self.device, stream)?;
        // SAFETY: as above; the end is waited for below.
        unsafe { staging.upload(to, data)? };
        drop(staging);
        Ok(stream.synchronize()?)
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
                self.lending.name(port),
                self.device.ordinal()
            )));
        }
        Ok(())
    }

    /// What of the session a caller may not lend to it.
    pub(super) fn reserved(&self) -> Vec<(&'static str, Extent)> {
        let Some(gear) = &self.gear else { return Vec::new() };
        let of = |memory: &Memory| Extent { address: memory.address(), bytes: memory.len() };
        let own = gear.rig._memory.iter().map(|memory| ("memory", of(memory)));
        let arena = Extent { address: gear.rig.arena.address(), bytes: gear.rig.arena.len() };
        own.chain([("the symmetric arena", arena)]).collect()
    }

    /// What the next run takes.
    pub(super) fn resolve(&mut self) -> Result<Resolved, RunError> {
        let bound = self.sized()?.bound.clone();
        self.lending.check(&bound)?;
        let arena = self.gear()?.rig.arena.address();
        let mut homes = Homes {
            ordinary: self.gear()?.ordinary,
            symmetric: arena,
            inputs: Vec::with_capacity(bound.inputs.len()),
            outputs: Vec::with_capacity(bound.outputs.len()),
        };
        let [mut before, mut after] = [Vec::new(), Vec::new()];
        for (i, input) in bound.inputs.iter().enumerate() {
            let lent = self.lending.of(Port::Input(i));
            let spot = self.located(Port::Input(i))?;
            if !self.inputs[i].given && lent.is_none() && input.bytes > 0 && bound.constant(i).is_none() {
                return Err(RunError::Invalid(format!(
                    "input %{} has no data: it was neither written, nor bound, nor asked for its address",
                    input.name
                )));
            }
            let held = self.fixed[i].map(|offset| arena + offset as Address);
            if let (Some(to), Some(lent), true) = (held, lent, self.renewed[i]) {
                before.push(Move { to, from: lent.address, bytes: input.bytes });
            }
            homes.inputs.push(held.unwrap_or(spot.extent.address));
        }
        for (k, output) in bound.outputs.iter().enumerate() {
            let spot = self.located(Port::Output(k))?.extent;
            let given = output.mutates.and_then(|i| Some((i, self.lending.of(Port::Input(i))?.address)));
            match (output.held_by(), output.mutates) {
                // The steps write it where the input lies.
                (Some(i), _) => {
                    let held = homes.inputs[i];
                    after.push(Move { to: spot.address, from: held, bytes: output.bytes });
                    homes.outputs.push(held);
                }
                (None, Some(i)) => {
                    // Where the caller has one memory for both, the steps, which need two, take one of the session's.
                    let shared = given.is_some_and(|(_, address)| address == spot.address);
                    let from = if shared { self.room(Port::Output(k), output.bytes)? } else { spot.address };
                    after.push(Move { to: homes.inputs[i], from, bytes: output.bytes });
                    after.extend(given.map(|(_, to)| Move { to, from, bytes: output.bytes }));
                    homes.outputs.push(from);
                }
                (None, None) => homes.outputs.push(spot.address),
            }
        }
        let mut moves = [before, after];
        for list in &mut moves {
            list.retain(|m| m.to != m.from && m.bytes > 0);
            list.dedup();
        }
        let held = self.inputs.iter().chain(&self.outputs).filter_map(|held| held.memory.clone());
        Ok(Resolved { homes, moves, memory: held.collect() })
    }

    /// Has parameters and constants that the plan holds in the symmetric arena there.
    pub(super) fn load(&mut self) -> Result<(), RunError> {
        let bound = self.sized()?.bound.clone();
        for (i, input) in bound.inputs.iter().enumerate() {
            let (Some(_), false) = (self.fixed[i], self.inputs[i].loaded) else { continue };
            if input.fixed.is_none() || (self.renewed[i] && bound.constant(i).is_none()) {
                continue;
            }
            let arena = self.gear()?.rig.arena.address();
            let to = arena + self.fixed[i].unwrap_or_default() as Address;
            match (self.lending.of(Port::Input(i)), bound.constant(i)) {
                (Some(lent), _) => {
                    self.until_idle(None)?;
                    let stream = &self.gear()?.rig.streams.compute;
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
            self.inputs[i].loaded = true;
        }
        Ok(())
    }
}

pub(super) fn bytes_of(bound: &Bound, port: Port) -> Result<usize, RunError> {
    let bytes = match port {
        Port::Input(i) => bound.inputs.get(i).map(|x| x.bytes),
        Port::Output(k) => bound.outputs.get(k).map(|y| y.bytes),
    };
    bytes.ok_or_else(|| RunError::Invalid(format!("{port:?}: the program has no such input or output")))
}
