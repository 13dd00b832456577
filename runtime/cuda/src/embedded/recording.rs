//! Runs that are recorded, and what of them changes where inputs and outputs lie elsewhere.
//!
//! A recording is an executable graph with the memory that it runs in. Other memory of the same sizes takes the graph
//! over: the parameters of the nodes that hold addresses of what moved are set, and the recording that was is none any
//! more. Runs that were put on a stream before are not touched by that, nor is what a caller's graph holds. What cannot
//! be set so is recorded for itself, and so is memory that comes again of which much would have to be set each time.
//!
//! A program of a few pieces of work is not moved: it is put piece by piece, which takes less time than setting parameters.

use std::sync::Arc;

use symmc_runtime::exec::Bound;

use super::piece::Piece;
use crate::addresses::AddressMap;
use crate::driver::{Copied, Event, Graph, Node, Stream};
use crate::error::CudaError;
use crate::launch::Address;
use crate::nccl::Communicators;
use crate::program::{DeviceProgram, Nodes};
use crate::streams::Streams;

/// Bytes that are copied in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    pub to: Address,
    pub from: Address,
    pub bytes: usize,
}

/// Sizes in words, where everything lies, and what is copied: what tells recordings apart.
pub(super) type Key = (Arc<str>, AddressMap, [Vec<Move>; 2]);

/// A program at some sizes as an executable graph. Fields are dropped in this order.
pub(super) struct Executable {
    pub graph: Graph,
    pub program: DeviceProgram,
    pub bound: Arc<Bound>,
    /// What the work of the program became, as far as it may move.
    pub nodes: Nodes,
    /// What the copies before and behind it became; `None` where that is not a node each.
    copies: [Option<Vec<Node>>; 2],
}

// SAFETY: handles of the driver and of the vendor's libraries may be used from any thread; one session has it, and
// uses it from one thread at a time.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

/// An executable graph in the memory that it runs in. Fields are dropped in this order.
pub(super) struct Recording {
    pub executable: Arc<Executable>,
    addresses: AddressMap,
    /// What is copied before the steps, and behind them.
    moves: [Vec<Move>; 2],
    /// Whether the graph runs there; if not, it is put piece by piece.
    pub by_graph: bool,
    /// Held as long as the recording may run.
    memory: Vec<Arc<Piece>>,
}

/// Copies on a stream.
fn copy(moves: &[Move], stream: &Stream) -> Result<(), CudaError> {
    // SAFETY: the ranges exist and are apart: memory of the session, or lent for as many bytes.
    moves.iter().try_for_each(|m| unsafe { stream.copy(m.to, m.from, m.bytes) })
}

/// The same on a stream that is recorded; the nodes that the copies become, if these are one each.
fn copy_noted(moves: &[Move], stream: &Stream) -> Result<Option<Vec<Node>>, CudaError> {
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
    /// Records a program that was made for this memory.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(
        program: DeviceProgram,
        bound: Arc<Bound>,
        (_, addresses, moves): &Key,
        memory: Vec<Arc<Piece>>,
        (streams, nccl): (&Streams, &Communicators),
    ) -> Result<Recording, CudaError> {
        let (mut nodes, mut copies) = (Nodes::new(), [None, None]);
        let [before, after] = moves;
        let graph = streams.compute.capture(|| {
            if !program.may_move() {
                copy(before, &streams.compute)?;
                program.enqueue(streams, nccl)?;
                return copy(after, &streams.compute);
            }
            copies[0] = copy_noted(before, &streams.compute)?;
            nodes = program.enqueue_noted(streams, nccl)?;
            copies[1] = copy_noted(after, &streams.compute)?;
            Ok(())
        })?;
        let executable = Arc::new(Executable { graph, program, bound, nodes, copies });
        Ok(Recording {
            executable,
            addresses: addresses.clone(),
            moves: moves.clone(),
            by_graph: true,
            memory,
        })
    }

    /// The same program in other memory, for [`put`](Self::put) alone: the graph runs where it did. `None` if it cannot.
    pub fn elsewhere(&self, (_, addresses, moves): &Key, memory: &[Arc<Piece>]) -> Option<Recording> {
        self.executable.program.touched(&self.addresses, addresses)?;
        Some(self.at(addresses, moves, memory, false))
    }

    fn at(
        &self,
        addresses: &AddressMap,
        moves: &[Vec<Move>; 2],
        memory: &[Arc<Piece>],
        by_graph: bool,
    ) -> Recording {
        let (executable, addresses, moves) = (self.executable.clone(), addresses.clone(), moves.clone());
        Recording { executable, addresses, moves, by_graph, memory: memory.into() }
    }

    /// Whether memory of the session must be kept until its runs have ended.
    pub fn holds(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Whether it is the same run in the same memory.
    pub fn is_as(&self, other: &Recording) -> bool {
        Arc::ptr_eq(&self.executable, &other.executable)
            && (&self.addresses, &self.moves) == (&other.addresses, &other.moves)
    }

    /// Puts one run on streams, as what they record or run.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn put(&self, streams: &Streams, nccl: &Communicators) -> Result<(), CudaError> {
        copy(&self.moves[0], &streams.compute)?;
        self.executable.program.enqueue_at(&self.addresses, streams, nccl)?;
        copy(&self.moves[1], &streams.compute)
    }

    /// The same step by step, with an event before and after each, in the memory that the program was made for.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn put_timed(&self, streams: &Streams, nccl: &Communicators) -> Result<Vec<[Event; 2]>, CudaError> {
        copy(&self.moves[0], &streams.compute)?;
        let events = self.executable.program.enqueue_timed(streams, nccl)?;
        copy(&self.moves[1], &streams.compute)?;
        Ok(events)
    }

    /// What is copied in a run.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn copies(&self) -> Result<Vec<Copied>, CudaError> {
        self.executable.graph.copies()
    }

    /// How many pieces of work would have to change for a run in this memory; `None` if it cannot be so.
    pub fn far(&self, (_, addresses, moves): &Key) -> Option<usize> {
        let Executable { program, nodes, copies, .. } = &*self.executable;
        let places = program.touched(&self.addresses, addresses)?;
        let mut copied = 0;
        for ((was, is), nodes) in self.moves.iter().zip(moves).zip(copies) {
            let alike = was.iter().map(|m| m.bytes).eq(is.iter().map(|m| m.bytes));
            if !alike || was != is && nodes.is_none() {
                return None;
            }
            copied += was.iter().zip(is).filter(|(was, is)| was != is).count();
        }
        program.has_nodes(&places, nodes).then_some(places.len() + copied)
    }

    /// How many copies there are in a run.
    pub fn copied(&self) -> usize {
        self.moves.iter().map(Vec::len).sum()
    }

    /// Has the graph run in this memory from now on; `None` if it cannot, and is of no use any more.
    pub fn moved(
        &self,
        (_, addresses, moves): &Key,
        memory: &[Arc<Piece>],
        scratch: &Stream,
    ) -> Option<Recording> {
        let Executable { program, nodes, copies, graph, .. } = &*self.executable;
        let places = program.touched(&self.addresses, addresses)?;
        program.relocate(&places, addresses, (graph, nodes), scratch).ok().filter(|&done| done)?;
        for ((was, is), nodes) in self.moves.iter().zip(moves).zip(copies) {
            let changed = was.iter().zip(is).zip(nodes.iter().flatten()).filter(|((was, is), _)| was != is);
            for ((_, m), &node) in changed {
                // SAFETY: the node copies as many bytes, and both ranges exist.
                unsafe { graph.set_copy(node, m.to, m.from) }.ok()?;
            }
        }
        Some(self.at(addresses, moves, memory, true))
    }
}
