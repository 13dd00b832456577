//! Pieces of work with everything looked up.

use smallvec::SmallVec;
use symmc_plan::Lane;

use crate::codegen::compute::gemm::Prepared;
use crate::cudnn;
use crate::device::driver::{Function, Node};
use crate::device::launch::{DevicePtr, Kernel, Start};
use crate::nccl::call::NcclCall;

/// A piece of work: which of which step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    pub step: usize,
    /// Its number among the work of the step.
    pub number: usize,
}

/// The graph nodes that pieces of work became in a recording, for those that hold pointers to ports.
#[derive(Debug, Default)]
pub struct Nodes(Vec<Vec<SmallVec<[Node; 1]>>>);

impl Nodes {
    pub fn insert(&mut self, place: Place, nodes: &[Node]) {
        if self.0.len() <= place.step {
            self.0.resize_with(place.step + 1, Vec::new);
        }
        let step = &mut self.0[place.step];
        if step.len() <= place.number {
            step.resize_with(place.number + 1, SmallVec::new);
        }
        step[place.number] = SmallVec::from_slice(nodes);
    }

    /// The nodes of a piece of work; none if it has none, or is not a chain of nodes.
    pub fn of(&self, place: Place) -> &[Node] {
        self.0.get(place.step).and_then(|step| step.get(place.number)).map_or(&[], |nodes| nodes)
    }
}

/// A step with everything looked up, its kernels loaded.
pub(super) struct LoadedStep {
    /// The lane whose stream it runs on.
    pub lane: Lane,
    /// Earlier steps, of the other lane, that it waits for.
    pub waits: Vec<usize>,
    /// Whether a step of the other lane waits for it.
    pub is_awaited: bool,
    pub work: Vec<Ready>,
}

/// A piece of work with everything looked up.
pub(super) enum Ready {
    Kernel(Function, Kernel),
    Gemm(Prepared),
    Attention(cudnn::Prepared),
    Copy { to: DevicePtr, from: DevicePtr, bytes: usize },
    Store { at: DevicePtr, word: u32 },
    Zero { at: DevicePtr, bytes: usize },
    Nccl(NcclCall),
}

impl Ready {
    /// When a kernel after this in its stream may start: by PDL only after kernels that allow it.
    pub fn next(&self) -> Start {
        match self {
            // The library's attention allows it when it ends.
            Ready::Kernel(..) | Ready::Attention(_) => Start::Dependent,
            Ready::Gemm(_)
            | Ready::Copy { .. }
            | Ready::Store { .. }
            | Ready::Zero { .. }
            | Ready::Nccl(_) => Start::After,
        }
    }

    /// The ports that it holds pointers to; some of them more than once.
    pub fn ports(&self) -> impl Iterator<Item = usize> {
        let mut pointers: SmallVec<[DevicePtr; 8]> = SmallVec::new();
        match self {
            Ready::Kernel(_, kernel) => pointers.extend(kernel.ports()),
            Ready::Gemm(product) => pointers.extend(product.gemm().pointers()),
            Ready::Attention(attention) => pointers.extend(attention.attention().pointers()),
            Ready::Copy { to, from, .. } => pointers.extend([*to, *from]),
            Ready::Store { at, .. } | Ready::Zero { at, .. } => pointers.push(*at),
            Ready::Nccl(call) => pointers.extend(call.pointers()),
        }
        pointers.into_iter().filter_map(DevicePtr::port_number).map(|port| port as usize)
    }
}

/// For each port the pieces of work that hold pointers to it.
pub(super) struct PortUses(Vec<PortUse>);

#[derive(Clone, Default)]
struct PortUse {
    places: Vec<Place>,
    /// Whether a collective of the library sends from it or receives into it. The library keeps what it knows of calls by
    /// their memory, so these are recorded anew for another base.
    by_library: bool,
}

impl PortUses {
    /// Those of a program with this many ports.
    pub fn of(steps: &[LoadedStep], ports: usize) -> PortUses {
        let mut uses = vec![PortUse::default(); ports];
        for (step, loaded) in steps.iter().enumerate() {
            for (number, work) in loaded.work.iter().enumerate() {
                let place = Place { step, number };
                for port in work.ports() {
                    let Some(port) = uses.get_mut(port) else { continue };
                    port.by_library |= matches!(work, Ready::Nccl(_));
                    if port.places.last() != Some(&place) {
                        port.places.push(place);
                    }
                }
            }
        }
        PortUses(uses)
    }

    /// The pieces of work that hold pointers to a port; `None` if its base cannot change in a recording.
    pub fn places(&self, port: usize) -> Option<&[Place]> {
        let found = self.0.get(port)?;
        (!found.by_library).then_some(&found.places)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}
