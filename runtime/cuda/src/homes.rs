//! Where the memories of a rank lie on its device.

use symmc_runtime::exec::{Bound, BoundRegion, Home, Located};

use crate::launch::Address;

/// The start of each memory that a place can name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Homes {
    /// The ordinary arena.
    pub ordinary: Address,
    /// This rank's symmetric arena.
    pub symmetric: Address,
    /// The memory of each input. One that the plan holds in fixed memory has that address.
    pub inputs: Vec<Address>,
    /// The memory of each output.
    pub outputs: Vec<Address>,
}

impl Homes {
    /// The same for the steps of a program: an output that lies in the memory of the input which it replaces is there.
    pub fn of(&self, bound: &Bound) -> Homes {
        let mut own = self.clone();
        for (k, output) in bound.outputs.iter().enumerate() {
            if let Some(input) = output.mutates.filter(|_| output.in_place) {
                own.outputs[k] = self.inputs[input];
            }
        }
        own
    }

    fn start(&self, home: Home) -> Address {
        match home {
            Home::Ordinary => self.ordinary,
            Home::Symmetric => self.symmetric,
            Home::Input(i) => self.inputs[i],
            Home::Output(o) => self.outputs[o],
        }
    }

    /// The first element of a value.
    pub fn at(&self, value: &Located) -> Address {
        self.start(value.home) + value.offset as Address
    }

    /// The first byte of a collective's operand or result on this rank, which is `number` in its cell.
    pub fn region(&self, region: &BoundRegion, number: usize) -> Address {
        self.start(region.home) + (region.offset + region.by_rank * number) as Address
    }
}
