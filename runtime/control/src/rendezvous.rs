//! One step of one rank that synchronises with its peers: barriers, waits, addresses in the peers' arenas,
//! errors. Collectives and custom ops that touch peers share this code.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use crate::communicator::{GroupState, RankCommunicator};
use crate::control::{GroupCounter, has_reached};
use crate::culprit;
use crate::error::{DataFault, Result, RunError};
use crate::wait::WaitFailure;

/// The step in which a rank synchronises with its peers.
#[derive(Clone, Copy, Debug)]
pub struct RendezvousStep<'a> {
    pub step: usize,
    pub node: &'a str,
    pub op: &'a str,
    pub cell: &'a [u32],
    pub group: usize,
}

pub struct StepRendezvous<'a> {
    pub comm: &'a RankCommunicator,
    pub info: RendezvousStep<'a>,
    pub group: &'a GroupState,
    /// This rank's number in its cell.
    pub me: usize,
    /// The number of ranks in the cell.
    pub n: usize,
    touches: Cell<u32>,
}

impl<'a> StepRendezvous<'a> {
    /// The rank of `comm` at this step. Fails if the cell does not contain this rank, or the run has no such
    /// group.
    pub fn new(comm: &'a RankCommunicator, info: RendezvousStep<'a>) -> Result<Self> {
        let me = info.cell.iter().position(|&r| r == comm.rank);
        let (Some(me), Some(group)) = (me, comm.groups.get(info.group)) else {
            let actual = format!("cell {:?} of group {} on rank {}", info.cell, info.group, comm.rank);
            return Err(step_error(comm, &info, format!("expected a cell with this rank, found {actual}")));
        };
        let rendezvous = StepRendezvous { comm, info, group, me, n: info.cell.len(), touches: Cell::new(0) };
        if info.cell.iter().any(|&r| r >= comm.ranks()) {
            let ranks = comm.ranks();
            return Err(rendezvous.call_error(format!("expected ranks below {ranks}, found {:?}", info.cell)));
        }
        Ok(rendezvous)
    }

    /// Delays the rank before or after an access to a peer, if the run asks for chaos.
    #[inline]
    pub fn delay_peer_access(&self) {
        if let Some(chaos) = &self.comm.chaos {
            let touch = self.touches.get();
            self.touches.set(touch + 1);
            chaos.delay(self.comm.run.load(Ordering::Relaxed), self.info.step, touch);
        }
    }

    /// A barrier: returns when every peer has arrived at it.
    pub fn await_barrier(&self) -> Result<()> {
        self.delay_peer_access();
        let target = self.own_counter(GroupCounter::Meet).wrapping_add(1);
        self.advance_counter(GroupCounter::Meet, target);
        self.await_peers(GroupCounter::Meet, target)?;
        self.delay_peer_access();
        Ok(())
    }

    /// The numbers of the peers in the cell, beginning after this rank's.
    #[inline]
    pub fn peer_numbers(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        let n = self.n;
        (1..n).map(move |i| if me + i < n { me + i } else { me + i - n })
    }

    /// The value of a counter of this rank, which only this rank sets.
    pub(crate) fn own_counter(&self, counter: GroupCounter) -> u32 {
        self.comm.domain.control.counter(self.info.group, self.comm.rank, counter).load(Ordering::Relaxed)
    }

    /// Sets a counter of this rank and wakes peers that sleep.
    #[inline]
    pub fn advance_counter(&self, counter: GroupCounter, value: u32) {
        let control = &self.comm.domain.control;
        control.counter(self.info.group, self.comm.rank, counter).store(value, Ordering::Release);
        self.wake_peers();
    }

    /// Wakes peers that sleep.
    #[inline]
    pub fn wake_peers(&self) {
        self.comm.domain.control.wake_ranks(self.peer_numbers().map(|p| self.info.cell[p]));
    }

    #[inline]
    pub fn await_peers(&self, counter: GroupCounter, target: u32) -> Result<()> {
        match self
            .comm
            .waiter
            .wait_until(|| self.peer_numbers().all(|p| self.has_peer_reached(p, counter, target)))
        {
            Ok(()) => Ok(()),
            Err(ended) => Err(self.wait_error(ended, |p| self.has_peer_reached(p, counter, target))),
        }
    }

    pub fn await_peer(&self, p: usize, counter: GroupCounter, target: u32) -> Result<()> {
        match self.comm.waiter.wait_until(|| self.has_peer_reached(p, counter, target)) {
            Ok(()) => Ok(()),
            Err(ended) => {
                Err(self.wait_error(ended, |q| q != p || self.has_peer_reached(q, counter, target)))
            }
        }
    }

    #[inline]
    fn has_peer_reached(&self, p: usize, counter: GroupCounter, target: u32) -> bool {
        let control = &self.comm.domain.control;
        let word = control.counter(self.info.group, self.info.cell[p], counter);
        has_reached(word.load(Ordering::Acquire), target)
    }

    /// The error of a wait that ended early; `ready` returns which peers had come.
    #[cold]
    pub fn wait_error(&self, ended: WaitFailure, ready: impl Fn(usize) -> bool) -> RunError {
        let control = &self.comm.domain.control;
        let silent = match ended {
            WaitFailure::Aborted => return control.end_reason(),
            WaitFailure::Limit { silent } => silent,
        };
        let peers: Vec<u32> = self.peer_numbers().filter(|&p| !ready(p)).map(|p| self.info.cell[p]).collect();
        RunError::Limit {
            rank: self.comm.rank,
            culprit: silent.unwrap_or_else(|| culprit::find_culprit(control, self.comm.rank, &peers)),
            peers,
            step: self.info.step,
            node: self.info.node.into(),
            op: self.info.op.into(),
            run: self.comm.run.load(Ordering::Relaxed),
            limit_ms: self.comm.waiter.limit().as_millis() as u64,
        }
    }

    /// The address of `bytes` bytes at `offset` in the symmetric arena of rank number `p`.
    pub fn arena_address(&self, p: usize, offset: usize, bytes: usize) -> Result<*mut u8> {
        let arena = &self.comm.domain.arenas[self.info.cell[p] as usize];
        if offset.checked_add(bytes).is_none_or(|end| end > arena.len()) {
            let size = arena.len();
            return Err(self.call_error(format!(
                "expected memory within the {size} bytes of the symmetric arena, found {bytes} bytes at {offset}"
            )));
        }
        // SAFETY: the offset lies within the arena.
        Ok(unsafe { arena.as_ptr().add(offset) })
    }

    #[cold]
    pub fn call_error(&self, detail: String) -> RunError {
        step_error(self.comm, &self.info, detail)
    }

    /// The error of a step that refuses its data.
    #[cold]
    pub fn data_error(&self, detail: String) -> RunError {
        let RendezvousStep { step, node, op, .. } = self.info;
        let rank = self.comm.rank;
        let fault = DataFault::Other;
        RunError::Data { rank, step, node: node.into(), op: op.into(), fault, detail }
    }
}

#[cold]
fn step_error(comm: &RankCommunicator, info: &RendezvousStep<'_>, detail: String) -> RunError {
    RunError::Step { rank: comm.rank, step: info.step, node: info.node.into(), op: info.op.into(), detail }
}
