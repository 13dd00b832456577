//! An exchange of bytes between all ranks of a run, through the staging of a group of its own.

use crate::communicator::RankCommunicator;
use crate::domain::CHUNK;
use crate::error::Result;
use crate::rendezvous::{RendezvousStep, StepRendezvous};
use crate::stage::ChunkStage;

impl RankCommunicator {
    /// Returns the bytes of every rank, by rank. All ranks call this at the same point with the same number
    /// of bytes, and not while the plan runs on the host. Fails if a peer failed, or did not come before the
    /// timeout.
    pub fn exchange_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let cell: Vec<u32> = (0..self.ranks()).collect();
        // The last group is not a group of the plan.
        let group = self.control().groups().saturating_sub(1);
        let info = RendezvousStep { step: 0, node: "exchange", op: "all_gather", cell: &cell, group };
        self.begin_step(0);
        let gathered = StepRendezvous::new(self, info).and_then(|step| gather_bytes(&step, mine));
        let gathered = gathered.inspect_err(|error| self.abort(error))?;
        // The exchange was not a step of the plan.
        self.control().end_step(self.rank);
        Ok(gathered)
    }
}

fn gather_bytes(step: &StepRendezvous, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut gathered = vec![Vec::with_capacity(mine.len()); step.n];
    let mut stage = ChunkStage::new(step);
    for part in mine.chunks(CHUNK) {
        let chunk = stage.next_chunk();
        stage.acquire_chunk(chunk)?;
        // SAFETY: the part is not larger than a chunk; this rank may write its chunk until it publishes.
        unsafe {
            std::ptr::copy_nonoverlapping(part.as_ptr(), stage.chunk_address(step.me, chunk), part.len())
        };
        stage.publish_chunk(chunk);
        stage.await_all_chunks(chunk)?;
        for (p, bytes) in gathered.iter_mut().enumerate() {
            // SAFETY: all ranks have published as many bytes, and do not write the chunk before this rank has
            // released it.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(stage.chunk_address(p, chunk), part.len())
            });
        }
        stage.release_chunk(chunk);
    }
    Ok(gathered)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::SharedRunMemory;

    #[test]
    fn ranks_are_within_no_step_after_an_exchange() {
        let domain = SharedRunMemory::create(2, 1, 64, 0).expect("shared memory");
        // Two chunks, the second of which is not full.
        let bytes = |rank: u32| vec![rank as u8; CHUNK + 5];
        let exchange = |rank: u32| {
            let comm = RankCommunicator::new(domain.clone(), rank, Duration::from_secs(20));
            comm.exchange_bytes(&bytes(rank)).expect("both are there")
        };
        let exchange = &exchange;
        let results = std::thread::scope(|scope| {
            [0, 1].map(|rank| scope.spawn(move || exchange(rank))).map(|thread| thread.join())
        });
        for (rank, gathered) in results.into_iter().enumerate() {
            assert!(gathered.expect("a rank") == [bytes(0), bytes(1)]);
            assert_eq!(domain.control.progress(rank as u32).step, None);
        }
    }
}
