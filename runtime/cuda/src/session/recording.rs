//! Recorded runs, and how they are changed to other port bases.
//!
//! A recording is an executable graph of a program together with the bases of its ports. For other bases, the
//! parameters of the nodes that hold pointers to these ports are updated; the old recording then no longer
//! exists. Runs that were enqueued before, and graphs of the caller, are not affected. A program whose nodes
//! cannot be updated is recorded again. Bases that return are also recorded again, if many parameters would
//! have to be updated each time.
//!
//! A program of a few pieces of work is enqueued piece by piece, which is faster than updating parameters.

use std::sync::Arc;

use symmc_runtime::exec::ResolvedProgram;

use crate::device::driver::{DeviceBuffer, Event, ExecutableGraph, GraphCopy, GraphNode, Stream};
use crate::device::launch::{Address, PortBases};
use crate::device::streams::LaneStreams;
use crate::error::Result;
use crate::nccl::Communicators;
use crate::program::{DeviceProgram, WorkNodes};

/// A copy in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PortCopy {
    pub to: Address,
    pub from: Address,
    pub bytes: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RecordingKey {
    /// The sizes as text.
    pub sizes: Arc<str>,
    /// The bases of the ports.
    pub bases: Arc<[Address]>,
    /// The copies before the steps, and after them.
    pub copies: [Vec<PortCopy>; 2],
}

impl RecordingKey {
    fn bases(&self) -> PortBases<'_> {
        PortBases(&self.bases)
    }
}

/// A program at some sizes as an executable graph. Fields are dropped in declaration order.
pub(super) struct Executable {
    pub graph: ExecutableGraph,
    pub program: Arc<DeviceProgram>,
    pub bound: Arc<ResolvedProgram>,
    /// The nodes of the work that holds pointers to ports.
    pub nodes: WorkNodes,
    /// For each port, the number of pieces of work to update for another base; `None` if they cannot be
    /// updated.
    rebase_costs: Vec<Option<usize>>,
    /// The nodes of the copies before and after it; `None` if a copy is not exactly one node.
    copies: [Option<Vec<GraphNode>>; 2],
}

// SAFETY: it belongs to one session, which uses its graph from one thread at a time.
unsafe impl Sync for Executable {}

/// An executable graph with the memory that it uses. Fields are dropped in declaration order.
pub(super) struct Recording {
    pub executable: Arc<Executable>,
    key: RecordingKey,
    /// Whether the graph uses this memory. If not, the run is enqueued piece by piece.
    pub runs_as_graph: bool,
    /// Held as long as the recording may run.
    memory: Vec<Arc<DeviceBuffer>>,
}

fn enqueue_copies(moves: &[PortCopy], stream: &Stream) -> Result<()> {
    // SAFETY: the ranges exist and do not overlap: memory of the session, or memory bound with at least that
    // many bytes.
    moves.iter().try_for_each(|m| unsafe { stream.copy(m.to, m.from, m.bytes) })
}

/// Enqueues copies on a stream that is being captured. Returns their nodes, if each copy is exactly one node.
fn copy_noted(moves: &[PortCopy], stream: &Stream) -> Result<Option<Vec<GraphNode>>> {
    let mut nodes = Some(Vec::with_capacity(moves.len()));
    for copy in moves {
        let before = stream.frontier()?;
        enqueue_copies(std::slice::from_ref(copy), stream)?;
        match (stream.nodes_since(&before)?.as_deref(), &mut nodes) {
            (Some(&[node]), Some(nodes)) => nodes.push(node),
            _ => nodes = None,
        }
    }
    Ok(nodes)
}

impl Recording {
    /// Records a program in this memory. With `is_noted`, the recording can be changed to other bases later.
    pub fn new(
        program: Arc<DeviceProgram>,
        bound: Arc<ResolvedProgram>,
        key: &RecordingKey,
        memory: Vec<Arc<DeviceBuffer>>,
        is_noted: bool,
        streams: &LaneStreams,
        nccl: &Communicators,
    ) -> Result<Recording> {
        let mut nodes = WorkNodes::default();
        let mut copies = [None, None];
        let [before, after] = &key.copies;
        let graph = streams.compute.capture(|| {
            if !is_noted {
                enqueue_copies(before, &streams.compute)?;
                program.enqueue(key.bases(), streams, nccl)?;
                return enqueue_copies(after, &streams.compute);
            }
            copies[0] = copy_noted(before, &streams.compute)?;
            nodes = program.enqueue_noted(key.bases(), streams, nccl)?;
            copies[1] = copy_noted(after, &streams.compute)?;
            Ok(())
        })?;
        let rebase_costs = program.rebase_costs(&nodes);
        let executable = Arc::new(Executable { graph, program, bound, nodes, rebase_costs, copies });
        Ok(Recording { executable, key: key.clone(), runs_as_graph: true, memory })
    }

    /// The same program in other memory, only for [`enqueue`](Self::enqueue): the graph keeps its memory.
    /// `None` if collectives of the library would use other memory.
    pub fn for_enqueue(&self, key: &RecordingKey, memory: &[Arc<DeviceBuffer>]) -> Option<Recording> {
        let serves = self.executable.program.serves_both(self.key.bases(), key.bases());
        serves.then(|| self.with_key(key, memory, false))
    }

    fn with_key(&self, key: &RecordingKey, memory: &[Arc<DeviceBuffer>], by_graph: bool) -> Recording {
        Recording {
            executable: self.executable.clone(),
            key: key.clone(),
            runs_as_graph: by_graph,
            memory: memory.into(),
        }
    }

    pub fn key(&self) -> &RecordingKey {
        &self.key
    }

    /// Whether session memory must be kept until the runs of this recording have ended.
    pub fn holds_memory(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Whether both are the same run in the same memory.
    pub fn is_same_run(&self, other: &Recording) -> bool {
        Arc::ptr_eq(&self.executable, &other.executable) && self.key == other.key
    }

    /// Enqueues one run on streams, which may be capturing.
    pub fn enqueue(&self, streams: &LaneStreams, nccl: &Communicators) -> Result<()> {
        enqueue_copies(&self.key.copies[0], &streams.compute)?;
        self.executable.program.enqueue(self.key.bases(), streams, nccl)?;
        enqueue_copies(&self.key.copies[1], &streams.compute)
    }

    /// Enqueues one run step by step, with an event before and after each step.
    pub fn enqueue_timed(&self, streams: &LaneStreams, nccl: &Communicators) -> Result<Vec<[Event; 2]>> {
        enqueue_copies(&self.key.copies[0], &streams.compute)?;
        let events = self.executable.program.enqueue_timed(self.key.bases(), streams, nccl)?;
        enqueue_copies(&self.key.copies[1], &streams.compute)?;
        Ok(events)
    }

    pub fn copies(&self) -> Result<Vec<GraphCopy>> {
        self.executable.graph.copies()
    }

    /// The approximate number of pieces of work to update for a run in this memory; `None` if they cannot be
    /// updated. Work with several ports counts once per port.
    pub fn retarget_cost(&self, key: &RecordingKey) -> Option<usize> {
        let Executable { rebase_costs, copies, .. } = &*self.executable;
        let mut cost = 0;
        for port in self.key.bases().changed_ports(key.bases()) {
            cost += rebase_costs.get(port).copied().flatten()?;
        }
        for ((was, is), nodes) in self.key.copies.iter().zip(&key.copies).zip(copies) {
            let same_sizes = was.iter().map(|m| m.bytes).eq(is.iter().map(|m| m.bytes));
            if !same_sizes || was != is && nodes.is_none() {
                return None;
            }
            cost += was.iter().zip(is).filter(|(was, is)| was != is).count();
        }
        Some(cost)
    }

    pub fn copy_count(&self) -> usize {
        self.key.copies.iter().map(Vec::len).sum()
    }

    /// Changes the graph to this memory. `None` if that fails; the recording is then unusable.
    pub fn retarget(
        &self,
        key: &RecordingKey,
        memory: &[Arc<DeviceBuffer>],
        scratch: &Stream,
    ) -> Option<Recording> {
        let Executable { program, nodes, copies, graph, .. } = &*self.executable;
        let from = self.key.bases();
        let bases = key.bases();
        program.rebase(from, bases, graph, nodes, scratch).ok().filter(|&done| done)?;
        for ((was, is), nodes) in self.key.copies.iter().zip(&key.copies).zip(copies) {
            let changed = was.iter().zip(is).zip(nodes.iter().flatten()).filter(|((was, is), _)| was != is);
            for ((_, m), &node) in changed {
                // SAFETY: the node copies the same number of bytes, and both ranges exist.
                unsafe { graph.set_copy(node, m.to, m.from) }.ok()?;
            }
        }
        Some(self.with_key(key, memory, true))
    }
}
