//! Recorded runs, and how they change where ports begin elsewhere.
//!
//! A recording is an executable graph of a program together with the bases of its ports. For other bases the parameters of
//! the nodes that hold pointers to these ports are set, and the old recording no longer exists. Runs that were enqueued
//! before are not affected, and neither are graphs of the caller. A program whose nodes cannot be set is recorded again. So
//! are bases that return, if many parameters would have to be set each time.
//!
//! A program of a few pieces of work is enqueued piece by piece, which takes less time than setting parameters.

use std::sync::Arc;

use symmc_runtime::exec::Bound;

use crate::device::driver::{Copied, Event, Graph, Memory, Node, Stream};
use crate::device::launch::{Address, PortBases};
use crate::device::streams::Streams;
use crate::error::Result;
use crate::nccl::Communicators;
use crate::program::{DeviceProgram, Nodes};

/// Bytes that are copied in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
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
    pub moves: [Vec<Move>; 2],
}

impl RecordingKey {
    fn bases(&self) -> PortBases<'_> {
        PortBases(&self.bases)
    }
}

/// A program at some sizes as an executable graph. Fields are dropped in this order.
pub(super) struct Executable {
    pub graph: Graph,
    pub program: Arc<DeviceProgram>,
    pub bound: Arc<Bound>,
    /// What the work of the program became, if it holds pointers to ports.
    pub nodes: Nodes,
    /// For each port how many pieces of work have to be set for another base; `None` if they cannot be set.
    rebase_costs: Vec<Option<usize>>,
    /// What the copies before and after it became; `None` where that is not a node each.
    copies: [Option<Vec<Node>>; 2],
}

// SAFETY: one session has it, and uses its graph from one thread at a time.
unsafe impl Sync for Executable {}

/// An executable graph in the memory that it runs in. Fields are dropped in this order.
pub(super) struct Recording {
    pub executable: Arc<Executable>,
    key: RecordingKey,
    /// Whether the graph runs there; if not, it is put piece by piece.
    pub by_graph: bool,
    /// Held as long as the recording may run.
    memory: Vec<Arc<Memory>>,
}

fn copy(moves: &[Move], stream: &Stream) -> Result<()> {
    // SAFETY: the ranges exist and are apart: memory of the session, or lent for as many bytes.
    moves.iter().try_for_each(|m| unsafe { stream.copy(m.to, m.from, m.bytes) })
}

/// The same on a stream that is recorded; the nodes that the copies become, if these are one each.
fn copy_noted(moves: &[Move], stream: &Stream) -> Result<Option<Vec<Node>>> {
    let mut nodes = Some(Vec::with_capacity(moves.len()));
    for one in moves {
        let before = stream.frontier()?;
        copy(std::slice::from_ref(one), stream)?;
        match (stream.since(&before)?.as_deref(), &mut nodes) {
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
        bound: Arc<Bound>,
        key: &RecordingKey,
        memory: Vec<Arc<Memory>>,
        is_noted: bool,
        (streams, nccl): (&Streams, &Communicators),
    ) -> Result<Recording> {
        let (mut nodes, mut copies) = (Nodes::default(), [None, None]);
        let [before, after] = &key.moves;
        let graph = streams.compute.capture(|| {
            if !is_noted {
                copy(before, &streams.compute)?;
                program.enqueue(key.bases(), streams, nccl)?;
                return copy(after, &streams.compute);
            }
            copies[0] = copy_noted(before, &streams.compute)?;
            nodes = program.enqueue_noted(key.bases(), streams, nccl)?;
            copies[1] = copy_noted(after, &streams.compute)?;
            Ok(())
        })?;
        let rebase_costs = program.rebase_costs(&nodes);
        let executable = Arc::new(Executable { graph, program, bound, nodes, rebase_costs, copies });
        Ok(Recording { executable, key: key.clone(), by_graph: true, memory })
    }

    /// The same program in other memory, for [`put`](Self::put) alone: the graph runs where it did. `None` if its collectives
    /// of the library would get other memory.
    pub fn elsewhere(&self, key: &RecordingKey, memory: &[Arc<Memory>]) -> Option<Recording> {
        let serves = self.executable.program.serves_both(self.key.bases(), key.bases());
        serves.then(|| self.with_key(key, memory, false))
    }

    fn with_key(&self, key: &RecordingKey, memory: &[Arc<Memory>], by_graph: bool) -> Recording {
        Recording { executable: self.executable.clone(), key: key.clone(), by_graph, memory: memory.into() }
    }

    pub fn key(&self) -> &RecordingKey {
        &self.key
    }

    /// Whether memory of the session must be kept until its runs have ended.
    pub fn holds(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Whether it is the same run in the same memory.
    pub fn is_as(&self, other: &Recording) -> bool {
        Arc::ptr_eq(&self.executable, &other.executable) && self.key == other.key
    }

    /// Puts one run on streams, as what they record or run.
    pub fn put(&self, streams: &Streams, nccl: &Communicators) -> Result<()> {
        copy(&self.key.moves[0], &streams.compute)?;
        self.executable.program.enqueue(self.key.bases(), streams, nccl)?;
        copy(&self.key.moves[1], &streams.compute)
    }

    /// The same step by step, with an event before and after each.
    pub fn put_timed(&self, streams: &Streams, nccl: &Communicators) -> Result<Vec<[Event; 2]>> {
        copy(&self.key.moves[0], &streams.compute)?;
        let events = self.executable.program.enqueue_timed(self.key.bases(), streams, nccl)?;
        copy(&self.key.moves[1], &streams.compute)?;
        Ok(events)
    }

    pub fn copies(&self) -> Result<Vec<Copied>> {
        self.executable.graph.copies()
    }

    /// About how many pieces of work would have to be set for a run in this memory; `None` if they cannot be. Work with several
    /// ports counts once for each.
    pub fn far(&self, key: &RecordingKey) -> Option<usize> {
        let Executable { rebase_costs, copies, .. } = &*self.executable;
        let mut far = 0;
        for port in self.key.bases().changed_ports(key.bases()) {
            far += rebase_costs.get(port).copied().flatten()?;
        }
        for ((was, is), nodes) in self.key.moves.iter().zip(&key.moves).zip(copies) {
            let alike = was.iter().map(|m| m.bytes).eq(is.iter().map(|m| m.bytes));
            if !alike || was != is && nodes.is_none() {
                return None;
            }
            far += was.iter().zip(is).filter(|(was, is)| was != is).count();
        }
        Some(far)
    }

    pub fn copied(&self) -> usize {
        self.key.moves.iter().map(Vec::len).sum()
    }

    /// Has the graph run in this memory from now on; `None` if it cannot, and is of no use any more.
    pub fn moved(&self, key: &RecordingKey, memory: &[Arc<Memory>], scratch: &Stream) -> Option<Recording> {
        let Executable { program, nodes, copies, graph, .. } = &*self.executable;
        let (from, to) = (self.key.bases(), key.bases());
        program.rebase(from, to, graph, nodes, scratch).ok().filter(|&done| done)?;
        for ((was, is), nodes) in self.key.moves.iter().zip(&key.moves).zip(copies) {
            let changed = was.iter().zip(is).zip(nodes.iter().flatten()).filter(|((was, is), _)| was != is);
            for ((_, m), &node) in changed {
                // SAFETY: the node copies as many bytes, and both ranges exist.
                unsafe { graph.set_copy(node, m.to, m.from) }.ok()?;
            }
        }
        Some(self.with_key(key, memory, true))
    }
}
