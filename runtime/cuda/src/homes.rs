//! Where the memories of a rank lie on its device.

use std::sync::Arc;

use symmc_runtime::exec::{Bound, BoundCollective, BoundRegion, Home, Located};

use crate::collective::{Ends, Sizes};
use crate::error::CudaError;
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
    /// The memory of each output that has its own in any binding.
    pub outputs: Vec<Address>,
}

impl Homes {
    /// The same for the steps of a program: an output that lies in the memory of the input which it replaces is there.
    pub fn of(&self, bound: &Bound) -> Homes {
        let mut own = self.clone();
        for (k, output) in bound.outputs.iter().enumerate() {
            if let Some(input) = output.held_by() {
                own.outputs[k] = self.inputs[input];
            }
        }
        own
    }

    /// Where the memories of inputs and then those of outputs begin.
    pub fn bases(&self) -> impl Iterator<Item = Address> {
        self.inputs.iter().chain(&self.outputs).copied()
    }

    /// The same but for where these begin.
    pub fn with_bases(&self, bases: &[Address]) -> Homes {
        let mut out = self.clone();
        out.inputs.iter_mut().chain(&mut out.outputs).zip(bases).for_each(|(at, &base)| *at = base);
        out
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

    /// The first byte of a collective's operand or result on this rank.
    pub fn region(&self, region: &BoundRegion) -> Address {
        self.start(region.home) + region.offset as Address
    }
}

impl Homes {
    /// What a collective finds on this rank.
    pub fn ends(&self, call: &BoundCollective) -> Ends {
        let at = |region| self.region(region);
        let sizes =
            call.splits.as_ref().map(|(sent, received)| Sizes { sent: at(sent), received: at(received) });
        Ends { operand: at(&call.operand), result: at(&call.result), sizes }
    }
}

/// What only one rank reaches, in one allocation: places are bytes from its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The bytes of all.
    pub bytes: usize,
    /// The counters of collectives.
    pub counters: usize,
    /// The workspace of compute steps.
    pub scratch: usize,
    ordinary: usize,
    inputs: Vec<Place>,
    outputs: Vec<usize>,
}

/// Where an input lies: in the symmetric arena, or in memory of this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Fixed(usize),
    Own(usize),
}

impl Layout {
    /// For these bindings, with so many bytes of counters and scratch: as much for each input and output as the largest
    /// binding needs. Inputs that the plan holds in fixed memory lie in the arena, at the same place for all bindings;
    /// an output has memory of its own for bindings in which it does not lie in the memory of the input that it
    /// replaces.
    ///
    /// # Errors
    /// There is no binding, they are not of one program, or the sizes exceed memory.
    pub fn new(bounds: &[Arc<Bound>], [counters, scratch]: [usize; 2]) -> Result<Layout, CudaError> {
        let mut end = 0usize;
        let mut place = |bytes: usize| {
            let at = end;
            let next = end.checked_add(bytes).and_then(|e| e.checked_next_multiple_of(256));
            end = next.ok_or_else(|| CudaError::Unsupported("the program's memory has no size".into()))?;
            Ok::<usize, CudaError>(at)
        };
        let ordinary = place(bounds.iter().map(|b| b.ordinary).max().unwrap_or(0))?;
        let counters = place(counters)?;
        let scratch = place(scratch)?;
        let Some(first) = bounds.first() else {
            return Err(CudaError::Unsupported("a session needs a binding of the program's symbols".into()));
        };
        let counts = |b: &Bound| [b.inputs.len(), b.outputs.len()];
        if let Some(other) = bounds.iter().find(|b| counts(b) != counts(first)) {
            let (expected, found) = (counts(first), counts(other));
            let text = format!("bindings of one program: {expected:?} inputs and outputs, then {found:?}");
            return Err(CudaError::Unsupported(text));
        }
        // A bucket that does not use an input has no place for it.
        let fixed = |i: usize| bounds.iter().find_map(|b| b.inputs[i].fixed);
        let mut inputs = Vec::with_capacity(first.inputs.len());
        for i in 0..first.inputs.len() {
            inputs.push(match fixed(i) {
                Some(offset) => Place::Fixed(offset),
                None => Place::Own(place(bounds.iter().map(|b| b.inputs[i].bytes).max().unwrap_or(0))?),
            });
        }
        let own = |k: usize| bounds.iter().map(move |b| &b.outputs[k]).filter(|o| o.held_by().is_none());
        let outputs = (0..first.outputs.len()).map(|k| place(own(k).map(|o| o.bytes).max().unwrap_or(0)));
        let outputs = outputs.collect::<Result<_, _>>()?;
        Ok(Layout { bytes: end, counters, scratch, ordinary, inputs, outputs })
    }

    /// The memories, with the allocation and the symmetric arena at these addresses.
    pub fn homes(&self, base: Address, arena: Address) -> Homes {
        let input = |place: &Place| match *place {
            Place::Fixed(offset) => arena + offset as Address,
            Place::Own(at) => base + at as Address,
        };
        Homes {
            ordinary: base + self.ordinary as Address,
            symmetric: arena,
            inputs: self.inputs.iter().map(input).collect(),
            outputs: self.outputs.iter().map(|&at| base + at as Address).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use symmc_ir::{Bindings, text};
    use symmc_planner::{BucketInput, CheckedPlan, PlanConfig, plan};
    use symmc_runtime::Registry;
    use symmc_runtime::exec::{ExecConfig, Executor};

    use super::*;

    /// A cache of 4096 bytes that is changed, and an output of 256 bytes.
    const CACHE: &str = "program \"cache\" ranks 1\narg %x: f32[8]\nparam %keys: f32[1024]\n\
        %next: f32[1024] = neg %keys\n%z: f32[8] = exp %x\nreturn %z\nmutate %keys = %next\n";

    fn bound() -> Bound {
        let graph = text::parse(CACHE).expect("a program");
        let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
        let plan = plan(&graph, &[bucket], &PlanConfig::default()).expect("a plan");
        let plan = CheckedPlan::new(plan).expect("it is safe");
        let registry = Registry::new();
        let mut executor = Executor::new(plan.shared(), 0, &registry, ExecConfig::default()).expect("a plan");
        let bound = executor.bind(&Bindings::new()).expect("no symbols");
        drop(executor);
        Arc::into_inner(bound).expect("nobody else has it")
    }

    #[test]
    fn an_output_over_the_input_that_it_replaces_has_no_memory_of_its_own() {
        let held = Arc::new(bound());
        let mut apart = bound();
        apart.outputs[1].in_place = false;
        let apart = Arc::new(apart);
        let layout = |bounds: &[Arc<Bound>]| Layout::new(bounds, [256, 512]).expect("it fits");
        let (one, both) = (layout(std::slice::from_ref(&held)), layout(&[held.clone(), apart.clone()]));
        assert_eq!(both.bytes, one.bytes + 4096);
        assert_eq!(one.bytes, one.ordinary + held.ordinary + 256 + 512 + 256 + 4096 + 256);
        // A binding that needs memory of its own has it; the other one lies over the input still.
        let homes = both.homes(1 << 30, 1 << 40);
        let cache = homes.inputs[1];
        assert_eq!(homes.of(&held).outputs, [homes.outputs[0], cache]);
        assert_eq!(homes.of(&apart).outputs, homes.outputs);
        assert!(
            homes.outputs[1].abs_diff(cache) >= 4096 && homes.outputs[1].abs_diff(homes.outputs[0]) >= 256
        );
    }
}
