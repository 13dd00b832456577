//! Recorded runs, and how they change where ports begin elsewhere.
//!
//! A recording is an executable graph of a program together with the bases of its ports. For other bases the parameters of
//! the nodes that hold pointers to these ports are set, and the old recording no longer exists. Runs that were enqueued
//! before are not affected, and neither are graphs of the caller. A program whose nodes cannot be set is recorded again. So
//! are bases that return, if many parameters would have to be set each time.
//!
//! A program of a few pieces of work is enqueued piece by piece, which takes less time than setting parameters.

use std::sync::Arc;

use symmc_runtime::exec::ResolvedProgram;

use crate::device::driver::{DeviceBuffer, Event, ExecutableGraph, GraphCopy, GraphNode, Stream};
use crate::device::launch::{Address, PortBases};
use crate::device::streams::LaneStreams;
use crate::error::Result;
use crate::nccl::Communicators;
use crate::program::{DeviceProgram, WorkNodes};

/// Bytes that are copied in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PortCopy {
    pub to: Address,
    pub from: Address,
    pub bytes: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RecordingKey {
    /// The sizes in words.
    pub sizes: Arc<str>,
    /// Where ports begin.
    pub bases: Arc<[Address]>,
    /// What is copied before the steps, and after them.
    pub copies: [Vec<PortCopy>; 2],
}

impl RecordingKey {
    fn bases(&self) -> PortBases<'_> {
        PortBases(&self.bases)
    }
}

/// A program at some sizes as an executable graph. Fields are dropped in this order.
pub(super) struct Executable {
    pub graph: ExecutableGraph,
    pub program: Arc<DeviceProgram>,
    pub bound: Arc<ResolvedProgram>,
    /// What the work of the program became, if it holds pointers to ports.
    pub nodes: WorkNodes,
    /// For each port how many pieces of work have to be set for another base; `None` if they cannot be set.
    rebase_costs: Vec<Option<usize>>,
    /// What the copies before and after it became; `None` where that is not a node each.
    copies: [Option<Vec<GraphNode>>; 2],
}

// SAFETY: one session has it, and uses its graph from one thread at a time.
unsafe impl Sync for Executable {}

/// An executable graph in the memory that it runs in. Fields are dropped in this order.
pub(super) struct Recording {
    pub executable: Arc<Executable>,
    key: RecordingKey,
    /// Whether the graph runs there; if not, it is put piece by piece.
    pub runs_as_graph: bool,
    /// Held as long as the recording may run.
    memory: Vec<Arc<DeviceBuffer>>,
}

fn enqueue_copies(moves: &[PortCopy], stream: &Stream) -> Result<()> {
    // SAFETY: the ranges exist and are apart: memory of the session, or lent for as many bytes.
    moves.iter().try_for_each(|m| unsafe { stream.copy(m.to, m.from, m.bytes) })
}

/// The same on a stream that is recorded; the nodes that the copies become, if these are one each.
fn copy_noted(moves: &[PortCopy], stream: &Stream) -> Result<Option<Vec<GraphNode>>> {
    let mut nodes = Some(Vec::with_capacity(moves.len()));
    for one in moves {
        let before = stream.frontier()?;
        enqueue_copies(std::slice::from_ref(one), stream)?;
        match (stream.nodes_since(&before)?.as_deref(), &mut nodes) {
            (Some(&[node]), Some(nodes)) => nodes.push(node),
            _ => nodes = None,
        }
    }
    Ok(nodes)
}

impl Recording {
    /// Records a program in this memory. With `is_noted` it can get other bases later.
    pub fn new(
        program: Arc<DeviceProgram>,
        bound: Arc<ResolvedProgram>,
        key: &RecordingKey,
        memory: Vec<Arc<DeviceBuffer>>,
        is_noted: bool,
        (streams, nccl): (&LaneStreams, &Communicators),
    ) -> Result<Recording> {
        let (mut nodes, mut copies) = (WorkNodes::default(), [None, None]);
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

    /// The same program in other memory, for [`put`](Self::put) alone: the graph runs where it did. `None` if its collectives
    /// of the library would get other memory.
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

    /// Whether memory of the session must be kept until its runs have ended.
    pub fn holds_memory(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Whether it is the same run in the same memory.
    pub fn is_same_run(&self, other: &Recording) -> bool {
        Arc::ptr_eq(&self.executable, &other.executable) && self.key == other.key
    }

    /// Puts one run on streams, as what they record or run.
    pub fn enqueue(&self, streams: &LaneStreams, nccl: &Communicators) -> Result<()> {
        enqueue_copies(&self.key.copies[0], &streams.compute)?;
        self.executable.program.enqueue(self.key.bases(), streams, nccl)?;
        enqueue_copies(&self.key.copies[1], &streams.compute)
    }

    /// The same step by step, with an event before and after each.
    pub fn enqueue_timed(&self, streams: &LaneStreams, nccl: &Communicators) -> Result<Vec<[Event; 2]>> {
        enqueue_copies(&self.key.copies[0], &streams.compute)?;
        let events = self.executable.program.enqueue_timed(self.key.bases(), streams, nccl)?;
        enqueue_copies(&self.key.copies[1], &streams.compute)?;
        Ok(events)
    }

    pub fn copies(&self) -> Result<Vec<GraphCopy>> {
        self.executable.graph.copies()
    }

    /// About how many pieces of work would have to be set for a run in this memory; `None` if they cannot be. Work with several
    /// ports counts once for each.
    pub fn retarget_cost(&self, key: &RecordingKey) -> Option<usize> {
        let Executable { rebase_costs, copies, .. } = &*self.executable;
        let mut far = 0;
        for port in self.key.bases().changed_ports(key.bases()) {
            far += rebase_costs.get(port).copied().flatten()?;
        }
        for ((was, is), nodes) in self.key.copies.iter().zip(&key.copies).zip(copies) {
            let alike = was.iter().map(|m| m.bytes).eq(is.iter().map(|m| m.bytes));
            if !alike || was != is && nodes.is_none() {
                return None;
            }
            far += was.iter().zip(is).filter(|(was, is)| was != is).count();
        }
        Some(far)
    }

    pub fn copy_count(&self) -> usize {
        self.key.copies.iter().map(Vec::len).sum()
    }

    /// Has the graph run in this memory from now on; `None` if it cannot, and is of no use any more.
    pub fn retarget(
        &self,
        key: &RecordingKey,
        memory: &[Arc<DeviceBuffer>],
        scratch: &Stream,
    ) -> Option<Recording> {
        let Executable { program, nodes, copies, graph, .. } = &*self.executable;
        let (from, to) = (self.key.bases(), key.bases());
        program.rebase(from, to, graph, nodes, scratch).ok().filter(|&done| done)?;
        for ((was, is), nodes) in self.key.copies.iter().zip(&key.copies).zip(copies) {
            let changed = was.iter().zip(is).zip(nodes.iter().flatten()).filter(|((was, is), _)| was != is);
            for ((_, m), &node) in changed {
                // SAFETY: the node copies as many bytes, and both ranges exist.
                unsafe { graph.set_copy(node, m.to, m.from) }.ok()?;
            }
        }
        Some(self.with_key(key, memory, true))
    }
}
