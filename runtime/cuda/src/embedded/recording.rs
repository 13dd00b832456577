//! Runs that are recorded, what of them changes where inputs and outputs lie elsewhere, and those that are on streams.
//!
//! A recording is an executable graph with the memory that it runs in. Other memory of the same sizes takes the graph
//! over: the parameters of the nodes that hold addresses of what moved are set, and the recording that was is none any
//! more. Runs that were put on a stream before are not touched by that, nor is what a caller's graph holds. What cannot
//! be set so is recorded for itself, and so is memory that comes again of which much would have to be set each time.
//!
//! A program of a few pieces of work is not moved: it is put piece by piece, which takes less time than setting parameters.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use symmc_runtime::exec::Bound;

use super::gear::Gear;
use super::piece::Piece;
use super::progress::Heard;
use super::recent::Recent;
use crate::adopt::LentStream;
use crate::driver::{Copied, Device, Event, Graph, Node, Stream};
use crate::error::CudaError;
use crate::homes::Homes;
use crate::launch::Address;
use crate::nccl::Communicators;
use crate::program::{Nodes, Program, Streams};
use crate::rig;

/// Bytes that are copied in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    pub to: Address,
    pub from: Address,
    pub bytes: usize,
}

/// Sizes in words, where everything lies, and what is copied: what tells recordings apart.
pub(super) type Key = (Arc<str>, Homes, [Vec<Move>; 2]);

/// A program at some sizes as an executable graph. Fields are dropped in this order.
pub(super) struct Executable {
    pub graph: Graph,
    pub program: Program,
    pub bound: Arc<Bound>,
    /// What the work of the program became, as far as it may move.
    nodes: Nodes,
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
    homes: Homes,
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
        program: Program,
        bound: Arc<Bound>,
        (_, homes, moves): &Key,
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
        Ok(Recording { executable, homes: homes.clone(), moves: moves.clone(), by_graph: true, memory })
    }

    /// The same program in other memory, for [`put`](Self::put) alone: the graph runs where it did. `None` if it cannot.
    pub fn elsewhere(&self, (_, homes, moves): &Key, memory: &[Arc<Piece>]) -> Option<Recording> {
        self.executable.program.touched(&self.homes, homes)?;
        Some(self.at(homes, moves, memory, false))
    }

    fn at(&self, homes: &Homes, moves: &[Vec<Move>; 2], memory: &[Arc<Piece>], by_graph: bool) -> Recording {
        let (executable, homes, moves) = (self.executable.clone(), homes.clone(), moves.clone());
        Recording { executable, homes, moves, by_graph, memory: memory.into() }
    }

    /// Whether memory of the session must be kept until its runs have ended.
    pub fn holds(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Whether it is the same run in the same memory.
    pub fn is_as(&self, other: &Recording) -> bool {
        Arc::ptr_eq(&self.executable, &other.executable)
            && (&self.homes, &self.moves) == (&other.homes, &other.moves)
    }

    /// Puts one run on streams, as what they record or run.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn put(&self, streams: &Streams, nccl: &Communicators) -> Result<(), CudaError> {
        copy(&self.moves[0], &streams.compute)?;
        self.executable.program.enqueue_at(&self.homes, streams, nccl)?;
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
    fn far(&self, (_, homes, moves): &Key) -> Option<usize> {
        let Executable { program, nodes, copies, .. } = &*self.executable;
        let places = program.touched(&self.homes, homes)?;
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

    fn copied(&self) -> usize {
        self.moves.iter().map(Vec::len).sum()
    }

    /// Has the graph run in this memory from now on; `None` if it cannot, and is of no use any more.
    fn moved(&self, (_, homes, moves): &Key, memory: &[Arc<Piece>], scratch: &Stream) -> Option<Recording> {
        let Executable { program, nodes, copies, graph, .. } = &*self.executable;
        let places = program.touched(&self.homes, homes)?;
        program.relocate(&places, homes, (graph, nodes), scratch).ok().filter(|&done| done)?;
        for ((was, is), nodes) in self.moves.iter().zip(moves).zip(copies) {
            let changed = was.iter().zip(is).zip(nodes.iter().flatten()).filter(|((was, is), _)| was != is);
            for ((_, m), &node) in changed {
                // SAFETY: the node copies as many bytes, and both ranges exist.
                unsafe { graph.set_copy(node, m.to, m.from) }.ok()?;
            }
        }
        Some(self.at(homes, moves, memory, true))
    }
}

/// The programs of a session.
pub(super) struct Programs {
    pub recent: Recent<Key, Arc<Recording>>,
    /// What had to go while it may still run.
    pub retired: Vec<Arc<Recording>>,
    /// What the caller's graphs hold, each once.
    pub captured: Vec<Arc<Recording>>,
    /// Memory that a recording gave up for other memory, and how often.
    left: Recent<Key, usize>,
    /// Sizes of which a graph refused what it should have taken.
    refused: Vec<Arc<str>>,
    /// How many recordings took over other memory.
    pub moved: u64,
    /// How many runs were recorded.
    pub recorded: u64,
}

impl Programs {
    /// None yet, of which so many are to be kept.
    pub fn new(kept: usize) -> Programs {
        let (retired, captured, refused, left) = (Vec::new(), Vec::new(), Vec::new(), Recent::new(kept));
        Programs { recent: Recent::new(kept), retired, captured, left, refused, moved: 0, recorded: 0 }
    }
}

impl Gear {
    /// The program of some sizes in some memory, to be put piece by piece; `None` if none is known that can be there and fits.
    pub fn known_elsewhere(
        &self,
        key: &Key,
        memory: &[Arc<Piece>],
        fits: impl Fn(&Recording) -> bool,
    ) -> Option<Recording> {
        self.rig.programs.recent.find(|known, recording| {
            if known.0 == key.0 && fits(recording) { recording.elsewhere(key, memory) } else { None }
        })
    }

    /// A stream of the caller in place of the first of the session's.
    pub fn lanes(&self, device: &Arc<Device>, compute: Stream) -> Streams {
        // SAFETY: the session's own stream, which lives as long as the gear.
        let comm = unsafe { LentStream::new(self.rig.streams.comm.handle().cast()) };
        Streams { compute, comm: Stream::adopt(device, comm) }
    }

    /// The recording of some sizes and memory: one that is kept, or the nearest of the same sizes, moved there.
    pub fn known(&mut self, key: &Key, memory: &[Arc<Piece>]) -> Option<Arc<Recording>> {
        if let Some(known) = self.rig.programs.recent.get(key) {
            return Some(known.clone());
        }
        let few = |found: &Recording| found.executable.program.pieces() + found.copied() <= PIECES;
        if let Some(found) = self.known_elsewhere(key, memory, few) {
            return Some(Arc::new(found));
        }
        let rig::Parts { programs, streams, .. } = &mut *self.rig;
        if programs.refused.contains(&key.0) {
            return None;
        }
        let far = |known: &Key, recording: &Arc<Recording>| {
            if known.0 == key.0 { recording.far(key) } else { None }
        };
        let place =
            nearest((&programs.recent, &programs.left), key, far, |known| known.executable.nodes.len())?;
        let (old, near) = programs.recent.take(place)?;
        let moved = near.moved(key, memory, &streams.compute).map(Arc::new);
        match &moved {
            Some(moved) => {
                programs.moved += 1;
                programs.retired.extend(programs.recent.put(key.clone(), moved.clone()));
                let times = programs.left.remove(&old).unwrap_or_default();
                programs.left.put(old, times + 1);
            }
            None => {
                programs.refused.push(key.0.clone());
                programs.retired.push(near);
            }
        }
        moved
    }
}

/// Pieces of work that take less time to be put one by one than to have their parameters set in a graph.
const PIECES: usize = 4;

/// Pieces of work whose parameters take less time to be set than what comes again takes to be recorded a few times.
const FEW: usize = 24;

/// The place of the recording that is to be moved; none if there is none, or if this memory was left before and there is room
/// for a recording of its own: memory that takes turns is recorded, and found from then on. That is so when it comes again if
/// it is far from all; what is near is recorded when its moves took as long as that takes, which is as many as there are `pieces`
/// of work.
fn nearest<K: PartialEq, V>(
    (recent, left): (&Recent<K, V>, &Recent<K, usize>),
    key: &K,
    far: impl Fn(&K, &V) -> Option<usize>,
    pieces: impl Fn(&V) -> usize,
) -> Option<usize> {
    let (far, place) = recent.nearest(far)?;
    let enough = if far > FEW { 1 } else { recent.at(place).map_or(usize::MAX, pieces).max(1) };
    let times = left.find(|known, times| (known == key).then_some(*times)).unwrap_or_default();
    (times < enough || !recent.has_room()).then_some(place)
}

/// The runs that were put on streams.
pub(super) struct Flight {
    pub end: Event,
    /// The driver's handle of the stream of the last run.
    pub stream: Option<usize>,
    pub pending: bool,
    /// The number of the first run that may not have ended.
    pub first: u64,
    /// How many may not have.
    pub count: u32,
    /// What may run now.
    pub running: Vec<Arc<Executable>>,
    /// What peers heard of them.
    pub heard: Heard,
}

impl Flight {
    pub fn new(end: Event) -> Flight {
        let heard = Heard::new(Instant::now());
        Flight { end, stream: None, pending: false, first: 0, count: 0, running: Vec::new(), heard }
    }

    pub fn clear(&mut self) {
        (self.pending, self.count) = (false, 0);
        self.running.clear();
    }

    /// Has a stream wait for the runs that are there, if it is another one than theirs.
    pub fn before(&self, stream: &Stream, gear: &Gear) -> Result<(), CudaError> {
        match self.pending {
            true if self.stream != Some(stream.handle().addr()) => stream.wait(&self.end)?,
            true => {}
            false => gear.progress().store(0, Ordering::Relaxed),
        }
        Ok(())
    }

    /// Marks that so many runs were put on a stream, behind those that are there; this is the number of the first.
    pub fn put(
        &mut self,
        stream: &Stream,
        executable: &Arc<Executable>,
        run: u64,
        count: u32,
    ) -> Result<(), CudaError> {
        self.end.record(stream)?;
        self.stream = Some(stream.handle().addr());
        if !self.pending {
            (self.pending, self.first, self.heard) = (true, run, Heard::new(Instant::now()));
        }
        self.count = self.count.saturating_add(count);
        if !self.running.iter().rev().any(|known| Arc::ptr_eq(known, executable)) {
            self.running.push(executable.clone());
        }
        Ok(())
    }

    /// The bucket of all runs, if it is one.
    pub fn bucket(&self) -> Option<usize> {
        let mut buckets = self.running.iter().map(|executable| executable.bound.bucket());
        let first = buckets.next()?;
        buckets.all(|bucket| bucket == first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often memory is found, moved and recorded, if programs of so many pieces are run in these places in turn, of which so
    /// many recordings are kept.
    fn counted(kept: usize, pieces: usize, runs: &[usize]) -> [usize; 3] {
        let (mut recent, mut left) = (Recent::new(kept), Recent::new(kept));
        let [mut found, mut moved, mut recorded] = [0; 3];
        for &run in runs {
            if recent.get(&run).is_some() {
                found += 1;
                continue;
            }
            let near = nearest((&recent, &left), &run, |known, ()| Some(run.abs_diff(*known)), |()| pieces);
            match near.and_then(|place| recent.take(place)) {
                Some((old, ())) => {
                    moved += 1;
                    let times = left.remove(&old).unwrap_or_default();
                    left.put(old, times + 1);
                }
                None => recorded += 1,
            }
            recent.put(run, ());
        }
        [found, moved, recorded]
    }

    #[test]
    fn memory_that_is_near_is_moved_as_long_as_that_is_cheaper() {
        let turns: Vec<usize> = (0..100).map(|run| run % 2).collect();
        assert_eq!(counted(8, 1000, &turns), [0, 99, 1]);
        let all: Vec<usize> = (0..100).collect();
        assert_eq!(counted(8, 3, &all), [0, 99, 1]);
        // Many places that run one small program: each has a recording of its own soon.
        let places: Vec<usize> = (0..1600).map(|run| run % 16).collect();
        let [found, moved, recorded] = counted(64, 3, &places);
        assert!(found > 1500 && recorded == 16, "{found} found, {moved} moved, {recorded} recorded");
    }

    #[test]
    fn memory_that_is_far_is_recorded_when_it_comes_again() {
        let turns = |of: usize| (0..100).map(|run| run % of * 1000).collect::<Vec<usize>>();
        // Two: the first is left for the second, comes again, and both are found from then on.
        assert_eq!(counted(8, 1000, &turns(2)), [97, 1, 2]);
        assert_eq!(counted(8, 1000, &turns(4)), [93, 3, 4]);
        // Where there is no room for all of them, they are moved.
        let [_, moved, recorded] = counted(2, 1000, &turns(4));
        assert!(moved > 50 && recorded <= 2, "{moved} moved, {recorded} recorded");
        let all: Vec<usize> = (0..100).map(|run| run * 1000).collect();
        assert_eq!(counted(8, 1000, &all), [0, 99, 1]);
    }
}
