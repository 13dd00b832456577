//! Which inputs and outputs lie in memory that the caller lends, and what of that may not be.

use symmc_ir::{Graph, ValueId};

use super::port::{Extent, Port};
use crate::error::RunError;
use crate::exec::Bound;

#[derive(Clone, Debug)]
pub struct Lending {
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
    unchecked: Unchecked,
}

/// What may not serve a run.
#[derive(Clone, Debug)]
enum Unchecked {
    /// Anything.
    All,
    /// What was lent for these since all of it was found to serve a run.
    These(Vec<Port>),
}

/// How many are looked at one by one, each beside all others.
const FEW: usize = 8;

#[derive(Clone, Debug)]
struct Slot {
    /// `input %x`.
    name: String,
    /// What the start of its memory must be a multiple of.
    align: usize,
    memory: Option<Extent>,
}

impl Slot {
    fn refused(&self, given: Extent, why: &str) -> RunError {
        let Extent { address, bytes } = given;
        RunError::Invalid(format!("{}: the memory of {bytes} bytes at {address:#x} {why}", self.name))
    }

    /// Whether its memory, if it is lent, has so many bytes.
    fn expect_room(&self, bytes: usize) -> Result<(), RunError> {
        match self.memory {
            Some(given) if given.bytes < bytes => {
                Err(self.refused(given, &format!("is too small: expected {bytes} bytes")))
            }
            _ => Ok(()),
        }
    }

    /// Whether memory is where it may be, whatever its size.
    fn takes(&self, given: Extent, reserved: &[(&str, Extent)]) -> Result<(), RunError> {
        if given.bytes == 0 {
            return Ok(());
        }
        if given.address == 0 {
            return Err(self.refused(given, "has no address"));
        }
        if given.address.checked_add(given.bytes as u64).is_none() {
            return Err(self.refused(given, "ends behind the last address"));
        }
        if !given.address.is_multiple_of(self.align as u64) {
            return Err(
                self.refused(given, &format!("is not aligned: expected a multiple of {}", self.align))
            );
        }
        match reserved.iter().find(|(_, memory)| memory.overlaps(&given)) {
            Some((what, _)) => Err(self.refused(given, &format!("overlaps {what} of the session"))),
            None => Ok(()),
        }
    }
}

impl Lending {
    /// No memory, for the inputs and outputs of a program, on a device whose kernels want memory at multiples of `align`.
    pub fn new(source: &Graph, align: usize) -> Lending {
        let slot = |kind: &str, value: ValueId| Slot {
            name: format!("{kind} %{}", source.name_of(value)),
            align: source.ty(value).dtype.size().max(align),
            memory: None,
        };
        Lending {
            inputs: source.inputs.values().map(|input| slot("input", input.value)).collect(),
            outputs: source.outputs.iter().map(|output| slot("output", output.value)).collect(),
            unchecked: Unchecked::All,
        }
    }

    /// The memory of an input or output, if it is lent.
    pub fn of(&self, port: Port) -> Option<Extent> {
        self.slot(port)?.memory
    }

    pub fn name(&self, port: Port) -> String {
        self.slot(port).map_or_else(|| format!("{port:?}"), |slot| slot.name.clone())
    }

    /// Whether the memory of an input or output, if it is lent, has so many bytes.
    pub fn expect_room(&self, port: Port, bytes: usize) -> Result<(), RunError> {
        self.slot(port).map_or(Ok(()), |slot| slot.expect_room(bytes))
    }

    /// Whether the program has such an input or output.
    pub fn expect(&self, port: Port) -> Result<(), RunError> {
        let none = || RunError::Invalid(format!("{port:?}: the program has no such input or output"));
        self.slot(port).map(drop).ok_or_else(none)
    }

    fn slot(&self, port: Port) -> Option<&Slot> {
        match port {
            Port::Input(i) => self.inputs.get(i),
            Port::Output(k) => self.outputs.get(k),
        }
    }

    /// Lends memory for an input or output, or takes it back. `reserved` is memory of the session, by what it is. Fails
    /// if it has no address, is not aligned, or overlaps memory of the session. What was lent before stays then.
    pub fn lend(
        &mut self,
        port: Port,
        memory: Option<Extent>,
        reserved: &[(&str, Extent)],
    ) -> Result<(), RunError> {
        self.expect(port)?;
        let slot = match port {
            Port::Input(i) => &mut self.inputs[i],
            Port::Output(k) => &mut self.outputs[k],
        };
        if let Some(given) = memory {
            slot.takes(given, reserved)?;
        }
        slot.memory = memory;
        if let Unchecked::These(ports) = &mut self.unchecked
            && !ports.contains(&port)
        {
            match ports.len() < FEW {
                true => ports.push(port),
                false => self.unchecked = Unchecked::All,
            }
        }
        Ok(())
    }

    /// Says that runs have other sizes from now on.
    pub fn resized(&mut self) {
        self.unchecked = Unchecked::All;
    }

    /// Whether all of it serves a run at these sizes, which are those of the last call, or [other ones](Self::resized).
    /// Fails if it is too small, or a run writes what something else lies in too.
    pub fn check(&mut self, bound: &Bound) -> Result<(), RunError> {
        match &self.unchecked {
            Unchecked::These(ports) if ports.is_empty() => return Ok(()),
            Unchecked::These(ports) => {
                let all = self.all(bound);
                for (at, changed) in all.iter().enumerate().filter(|(_, lent)| ports.contains(&lent.port)) {
                    changed.slot.expect_room(changed.used.bytes)?;
                    all[..at].iter().try_for_each(|earlier| earlier.beside(changed))?;
                    all[at + 1..].iter().try_for_each(|later| changed.beside(later))?;
                }
            }
            Unchecked::All => Lending::check_all(&self.all(bound))?,
        }
        self.unchecked = Unchecked::These(Vec::new());
        Ok(())
    }

    fn check_all(all: &[Lent<'_>]) -> Result<(), RunError> {
        all.iter().try_for_each(|lent| lent.slot.expect_room(lent.used.bytes))?;
        // Only what begins before the end of another one overlaps it.
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_unstable_by_key(|&at| all[at].used.address);
        for (place, &one) in order.iter().enumerate() {
            let end = all[one].used.end();
            for &other in order[place + 1..].iter().take_while(|&&other| all[other].used.address < end) {
                all[one.min(other)].beside(&all[one.max(other)])?;
            }
        }
        Ok(())
    }

    fn all<'l>(&'l self, bound: &Bound) -> Vec<Lent<'l>> {
        let mut replaced = vec![false; bound.inputs.len()];
        bound.outputs.iter().filter_map(|output| output.mutates).for_each(|i| replaced[i] = true);
        let inputs = self.inputs.iter().zip(&bound.inputs).enumerate();
        let inputs = inputs.filter_map(|(i, (slot, input))| {
            Lent::of(slot, Port::Input(i), input.bytes, replaced[i], Some(i))
        });
        let outputs = self.outputs.iter().zip(&bound.outputs).enumerate();
        let outputs = outputs.filter_map(|(k, (slot, output))| {
            Lent::of(slot, Port::Output(k), output.bytes, true, output.mutates)
        });
        inputs.chain(outputs).collect()
    }
}

struct Lent<'l> {
    slot: &'l Slot,
    port: Port,
    given: Extent,
    /// The part that a run uses.
    used: Extent,
    /// Whether a run writes it.
    written: bool,
    /// The input that it is, or that it replaces.
    input: Option<usize>,
}

impl<'l> Lent<'l> {
    fn of(slot: &'l Slot, port: Port, bytes: usize, written: bool, input: Option<usize>) -> Option<Lent<'l>> {
        let given = slot.memory?;
        Some(Lent { slot, port, given, used: Extent { bytes, ..given }, written, input })
    }

    /// Whether both may be used by one run.
    fn beside(&self, other: &Lent<'_>) -> Result<(), RunError> {
        if !(self.written || other.written) || !self.used.overlaps(&other.used) || self.is_replaced_by(other)
        {
            return Ok(());
        }
        let (one, other) = if other.written { (other, self) } else { (self, other) };
        Err(one
            .slot
            .refused(one.given, &format!("overlaps that of {}, and a run writes it", other.slot.name)))
    }

    /// Whether one is an input and the other the output that replaces it, at one place.
    fn is_replaced_by(&self, other: &Lent<'_>) -> bool {
        let one_each = matches!(
            (self.port, other.port),
            (Port::Input(_), Port::Output(_)) | (Port::Output(_), Port::Input(_))
        );
        one_each && self.input.is_some() && self.input == other.input && self.used == other.used
    }
}
