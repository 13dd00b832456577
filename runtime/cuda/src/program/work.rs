//! Pieces of work, ready to launch: functions loaded, library calls prepared.

use smallvec::SmallVec;
use symmc_plan::Lane;

use crate::codegen::compute::gemm::PreparedGemm;
use crate::cudnn;
use crate::device::driver::{Function, GraphNode};
use crate::device::launch::{DevicePtr, KernelLaunch, LaunchOrder};
use crate::nccl::call::NcclCall;

/// Identifies a piece of work by its step and its index in the step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkId {
    pub step: usize,
    /// Index among the work of the step.
    pub index: usize,
}

/// The graph nodes of each piece of work in a recording, for work that holds pointers to ports.
#[derive(Debug, Default)]
pub struct WorkNodes(Vec<Vec<SmallVec<[GraphNode; 1]>>>);

impl WorkNodes {
    pub fn insert(&mut self, id: WorkId, nodes: &[GraphNode]) {
        if self.0.len() <= id.step {
            self.0.resize_with(id.step + 1, Vec::new);
        }
        let step = &mut self.0[id.step];
        if step.len() <= id.index {
            step.resize_with(id.index + 1, SmallVec::new);
        }
        step[id.index] = SmallVec::from_slice(nodes);
    }

    /// The nodes of a piece of work; empty if it has none, or is not a chain of nodes.
    pub fn nodes_of(&self, id: WorkId) -> &[GraphNode] {
        self.0.get(id.step).and_then(|step| step.get(id.index)).map_or(&[], |nodes| nodes)
    }
}

/// A step that is ready to run, with its kernels loaded.
pub(super) struct LoadedStep {
    /// The lane whose stream it runs on.
    pub lane: Lane,
    /// Earlier steps of the other lane that it waits for.
    pub waits: Vec<usize>,
    /// Whether a step of the other lane waits for it.
    pub is_awaited: bool,
    pub work: Vec<LoadedWork>,
}

/// A piece of work that is ready to launch.
pub(super) enum LoadedWork {
    Kernel(Function, KernelLaunch),
    Gemm(PreparedGemm),
    Attention(cudnn::PreparedAttention),
    Copy { to: DevicePtr, from: DevicePtr, bytes: usize },
    Store { at: DevicePtr, word: u32 },
    Zero { at: DevicePtr, bytes: usize },
    Nccl(NcclCall),
}

impl LoadedWork {
    /// When the next kernel in this stream may start. PDL applies only after kernels that allow it.
    pub fn next_start(&self) -> LaunchOrder {
        match self {
            // The library's attention kernel triggers the dependent launch when it ends.
            LoadedWork::Kernel(..) | LoadedWork::Attention(_) => LaunchOrder::Dependent,
            LoadedWork::Gemm(_)
            | LoadedWork::Copy { .. }
            | LoadedWork::Store { .. }
            | LoadedWork::Zero { .. }
            | LoadedWork::Nccl(_) => LaunchOrder::After,
        }
    }

    /// The ports that it holds pointers to, possibly with duplicates.
    pub fn ports(&self) -> impl Iterator<Item = usize> {
        let mut pointers: SmallVec<[DevicePtr; 8]> = SmallVec::new();
        match self {
            LoadedWork::Kernel(_, kernel) => pointers.extend(kernel.ports()),
            LoadedWork::Gemm(product) => pointers.extend(product.gemm().pointers()),
            LoadedWork::Attention(attention) => pointers.extend(attention.attention().pointers()),
            LoadedWork::Copy { to, from, .. } => pointers.extend([*to, *from]),
            LoadedWork::Store { at, .. } | LoadedWork::Zero { at, .. } => pointers.push(*at),
            LoadedWork::Nccl(call) => pointers.extend(call.pointers()),
        }
        pointers.into_iter().filter_map(DevicePtr::port_number).map(|port| port as usize)
    }
}

/// For each port, the pieces of work that hold pointers to it.
pub(super) struct PortUses(Vec<PortUse>);

#[derive(Clone, Default)]
struct PortUse {
    places: Vec<WorkId>,
    /// Whether a collective of the library sends from the port or receives into it. The library keeps state
    /// per call and memory address, so these calls are recorded again for another base.
    by_library: bool,
}

impl PortUses {
    /// Collects the uses in the steps of a program with this many ports.
    pub fn from_steps(steps: &[LoadedStep], ports: usize) -> PortUses {
        let mut uses = vec![PortUse::default(); ports];
        for (step, loaded) in steps.iter().enumerate() {
            for (number, work) in loaded.work.iter().enumerate() {
                let id = WorkId { step, index: number };
                for port in work.ports() {
                    let Some(port) = uses.get_mut(port) else { continue };
                    port.by_library |= matches!(work, LoadedWork::Nccl(_));
                    if port.places.last() != Some(&id) {
                        port.places.push(id);
                    }
                }
            }
        }
        PortUses(uses)
    }

    /// The pieces of work that hold pointers to a port; `None` if a recording cannot change its base.
    pub fn work_ids(&self, port: usize) -> Option<&[WorkId]> {
        let uses = self.0.get(port)?;
        (!uses.by_library).then_some(&uses.places)
    }

    pub fn port_count(&self) -> usize {
        self.0.len()
    }
}
