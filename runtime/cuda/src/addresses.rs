//! Where the memories of a rank lie on its device.

use symmc_runtime::exec::{
    Bound, BoundCollective, BoundInput, BoundOutput, BoundRegion, Located, MemorySpace,
};

use crate::collective::{Ends, Sizes};
use crate::launch::Address;

/// What the driver aligns memory to.
const UNIT: Address = 256;

/// The start of each memory that a place can name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressMap {
    /// The ordinary arena.
    pub ordinary: Address,
    /// This rank's symmetric arena.
    pub symmetric: Address,
    /// The memory of each input. One that the plan holds in fixed memory has that address.
    pub inputs: Vec<Address>,
    /// The memory of each output: that of the input which it replaces, if it lies there.
    pub outputs: Vec<Address>,
}

impl AddressMap {
    /// Places for a program on a device that nobody has: the arenas are here, what else it has lies apart behind the
    /// ordinary one.
    pub fn without_device(bound: &Bound, ordinary: Address, symmetric: Address) -> AddressMap {
        let mut end = ordinary.saturating_add(bound.ordinary as Address);
        let mut place = |bytes: usize| {
            let at = end.saturating_add(UNIT - 1) / UNIT * UNIT;
            end = at.saturating_add(bytes as Address);
            at
        };
        let input = |input: &BoundInput| match input.fixed {
            Some(offset) => symmetric + offset as Address,
            None => place(input.bytes),
        };
        let inputs: Vec<Address> = bound.inputs.iter().map(input).collect();
        let output =
            |output: &BoundOutput| output.held_by().map_or_else(|| place(output.bytes), |i| inputs[i]);
        let outputs = bound.outputs.iter().map(output).collect();
        AddressMap { ordinary, symmetric, inputs, outputs }
    }

    /// Where the memories of inputs and then those of outputs begin.
    pub fn bases(&self) -> impl Iterator<Item = Address> {
        self.inputs.iter().chain(&self.outputs).copied()
    }

    /// The same but for where these begin.
    pub fn with_bases(&self, bases: &[Address]) -> AddressMap {
        let mut out = self.clone();
        out.inputs.iter_mut().chain(&mut out.outputs).zip(bases).for_each(|(at, &base)| *at = base);
        out
    }

    fn start(&self, space: MemorySpace) -> Address {
        match space {
            MemorySpace::Ordinary => self.ordinary,
            MemorySpace::Symmetric => self.symmetric,
            MemorySpace::Input(i) => self.inputs[i],
            MemorySpace::Output(o) => self.outputs[o],
            // Kernels have it in registers.
            MemorySpace::Inner => 0,
        }
    }

    /// The first element of a value.
    pub fn at(&self, value: &Located) -> Address {
        self.start(value.space) + value.offset as Address
    }

    /// The first byte of a collective's operand or result on this rank.
    pub fn region(&self, region: &BoundRegion) -> Address {
        self.start(region.space) + region.offset as Address
    }
}

impl AddressMap {
    /// What a collective finds on this rank.
    pub fn ends(&self, call: &BoundCollective) -> Ends {
        let at = |region| self.region(region);
        let sizes =
            call.splits.as_ref().map(|(sent, received)| Sizes { sent: at(sent), received: at(received) });
        Ends { operand: at(&call.operand), result: at(&call.result), sizes }
    }
}
