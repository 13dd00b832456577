//! The device addresses of a rank's memories, as commands name them.

use symmc_runtime::call::RowTables;
use symmc_runtime::exec::{LocatedTensor, MemorySpace, ResolvedCollective, ResolvedProgram, ResolvedRegion};

use crate::device::pointer::{Address, DevicePtr, MAX_PORTS};
use crate::error::{CudaError, Result};

/// The base of each memory that a location can name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressMap {
    pub ordinary: Address,
    pub symmetric: Address,
    /// The memory of each input: its port, or its place in the symmetric arena if the plan holds it there.
    inputs: Vec<DevicePtr>,
    /// The memory of each output: the memory of the input that it replaces, if that holds it, else its port.
    outputs: Vec<DevicePtr>,
}

impl AddressMap {
    /// The map of a program with these arenas. Ports are numbered in program order, inputs first. Fails if
    /// the program has more inputs and outputs than pointers can name.
    pub fn new(bound: &ResolvedProgram, ordinary: Address, symmetric: Address) -> Result<AddressMap> {
        let count = bound.inputs.len() + bound.outputs.len();
        let mut inputs = Vec::with_capacity(bound.inputs.len());
        for (i, input) in bound.inputs.iter().enumerate() {
            inputs.push(match input.fixed {
                Some(offset) => DevicePtr::from(symmetric + offset as Address),
                None => DevicePtr::port(i).ok_or_else(|| too_many_ports(count))?,
            });
        }
        let mut outputs = Vec::with_capacity(bound.outputs.len());
        for (k, output) in bound.outputs.iter().enumerate() {
            outputs.push(match output.input_in_place() {
                Some(input) => inputs[input],
                None => DevicePtr::port(bound.inputs.len() + k).ok_or_else(|| too_many_ports(count))?,
            });
        }
        Ok(AddressMap { ordinary, symmetric, inputs, outputs })
    }

    /// A map for steps that name no input and no output.
    pub fn without_ports(ordinary: Address, symmetric: Address) -> AddressMap {
        AddressMap { ordinary, symmetric, inputs: Vec::new(), outputs: Vec::new() }
    }

    fn base_of(&self, space: MemorySpace) -> DevicePtr {
        match space {
            MemorySpace::Ordinary => self.ordinary.into(),
            MemorySpace::Symmetric => self.symmetric.into(),
            MemorySpace::Input(i) => self.inputs[i],
            MemorySpace::Output(o) => self.outputs[o],
            // Inner values are in registers of kernels.
            MemorySpace::Inner => DevicePtr::NULL,
        }
    }

    pub fn address_of(&self, value: &LocatedTensor) -> DevicePtr {
        self.base_of(value.space) + value.offset as u64
    }

    /// The first byte of a collective's operand or result on this rank.
    pub fn region(&self, region: &ResolvedRegion) -> DevicePtr {
        self.base_of(region.space) + region.offset as u64
    }

    /// The addresses of a collective's values on this rank.
    pub fn collective_pointers(&self, call: &ResolvedCollective) -> CollectivePointers {
        let sizes = call.splits.as_ref().map(|(sent, received)| SplitPointers {
            sent: self.region(sent),
            received: self.region(received),
        });
        CollectivePointers {
            operand: self.region(&call.operand),
            result: self.region(&call.result),
            sizes,
            rows: call.rows.as_ref().map(|tables| tables.map(|region| self.region(region))),
        }
    }
}

/// The addresses of a collective's values on a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectivePointers {
    pub operand: DevicePtr,
    pub result: DevicePtr,
    pub sizes: Option<SplitPointers>,
    /// The tables of an exchange of rows.
    pub rows: Option<RowTables<DevicePtr>>,
}

impl CollectivePointers {
    /// The pointers of a collective without sizes on the device or tables of rows.
    pub fn new(operand: DevicePtr, result: DevicePtr) -> CollectivePointers {
        CollectivePointers { operand, result, sizes: None, rows: None }
    }
}

/// The addresses of the sizes on a rank: the sent and the received row counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitPointers {
    pub sent: DevicePtr,
    pub received: DevicePtr,
}

fn too_many_ports(count: usize) -> CudaError {
    CudaError::Unsupported(format!(
        "the program has {count} inputs and outputs: expected at most {MAX_PORTS}"
    ))
}
